// SPDX-License-Identifier: MIT
//
// hook_process: processes that begin and this one's end. fork is served by handlers (shim.c); vfork is left alone: it
// cannot be wrapped in C, and a vfork child shares our memory, so that its exec changes no table.

#include "hook_inside.h"
#include "late.h"
#include "namecalls.h"
#include "shim.h"

#include <alloca.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static void count_process(void) {
    atomic_fetch_add_explicit(&shim.spawned, 1, memory_order_relaxed);
}

static void settle_all(void) {
    for (int fd = 0; fd < fd_limit(); fd++) {
        hook_settled(fd);
    }
}

// Will the program started with `envp` carry the shim? Without it, it sees only what is published.
static bool carries_shim(char *const envp[]) {
    for (char *const *e = envp; e != NULL && guard_readable(e) && *e != NULL && guard_readable(*e); e++) {
        if (strncmp(*e, "LD_PRELOAD=", 11) == 0 && strstr(*e, "libfastckpt") != NULL) {
            return true;
        }
    }
    return false;
}

// A program that libc looks for along PATH has no place that is known before.
static const char *if_path(const char *file) {
    return guard_readable(file) && strchr(file, '/') != NULL ? file : NULL;
}

// A program without the shim reads what this process has closed, or who started it (`{ save > f; env -i read f; }`):
// all that is closed is published first. In a vfork child as well, which asks by its parent's connections: it changes
// nothing of the parent's, and a child's own descriptor is seen to be none of ours.
static void before_program(int dirfd, const char *path, char *const envp[]) {
    if (!atomic_load_explicit(&shim.ready, memory_order_acquire) || names_native()) {
        return;
    }
    guard_depth++;
    file_hand_over_all(); // a child that reads a file we are writing sees what we have written
    file_before_program();
    guard_depth--;
    names_before_exec(dirfd, path);
    if (!carries_shim(envp)) {
        guard_depth++;
        names_wait(WAIT_ALL);
        guard_depth--;
    }
}

// The image is about to be replaced. An exec that fails goes on with everything in the kernel's files.
static void before_exec(int dirfd, const char *path, char *const envp[]) {
    count_process();
    before_program(dirfd, path, envp);
    if (atomic_load_explicit(&shim.ready, memory_order_acquire) && guard_depth == 0 && !guard_foreign()) {
        guard_depth++;
        late_settle();
        file_before_exec();
        guard_depth--;
    }
}

int hook_execve(const char *path, char *const argv[], char *const envp[]) {
    before_exec(AT_FDCWD, path, envp);
    return (int)NATIVE(execve, SYS_execve, path, argv, envp);
}

int hook_execv(const char *path, char *const argv[]) {
    before_exec(AT_FDCWD, path, environ);
    return (int)NATIVE_OR(execv, RAW(SYS_execve, path, argv, environ), path, argv);
}

int hook_execvp(const char *file, char *const argv[]) {
    before_exec(AT_FDCWD, if_path(file), environ);
    return REAL(execvp) != NULL ? real.execvp(file, argv) : (int)hook_ret(-ENOSYS);
}

int hook_execvpe(const char *file, char *const argv[], char *const envp[]) {
    before_exec(AT_FDCWD, if_path(file), envp);
    return REAL(execvpe) != NULL ? real.execvpe(file, argv, envp) : (int)hook_ret(-ENOSYS);
}

static size_t count_args(va_list ap) {
    size_t n = 0;
    while (va_arg(ap, char *) != NULL) {
        n++;
    }
    return n;
}

// Fills argv from the arguments behind `arg`; the terminator included.
static void take_args(char **argv, const char *arg, va_list ap) {
    size_t i = 0;
    argv[i++] = (char *)(uintptr_t)arg;
    while (argv[i - 1] != NULL) {
        argv[i++] = va_arg(ap, char *);
    }
}

int hook_execl(const char *path, const char *arg, ...) {
    va_list ap;
    va_start(ap, arg);
    size_t n = arg != NULL ? count_args(ap) : 0;
    va_end(ap);
    char **argv = alloca((n + 2) * sizeof *argv);
    va_start(ap, arg);
    take_args(argv, arg, ap);
    va_end(ap);
    return hook_execv(path, argv);
}

int hook_execlp(const char *file, const char *arg, ...) {
    va_list ap;
    va_start(ap, arg);
    size_t n = arg != NULL ? count_args(ap) : 0;
    va_end(ap);
    char **argv = alloca((n + 2) * sizeof *argv);
    va_start(ap, arg);
    take_args(argv, arg, ap);
    va_end(ap);
    return hook_execvp(file, argv);
}

int hook_execle(const char *path, const char *arg, ...) {
    va_list ap;
    va_start(ap, arg);
    size_t n = arg != NULL ? count_args(ap) : 0;
    va_end(ap);
    char **argv = alloca((n + 2) * sizeof *argv);
    va_start(ap, arg);
    take_args(argv, arg, ap);
    char **envp = va_arg(ap, char **); // stands behind the terminator
    va_end(ap);
    return hook_execve(path, argv, envp);
}

int hook_fexecve(int fd, char *const argv[], char *const envp[]) {
    before_exec(AT_FDCWD, NULL, envp);
    return REAL(fexecve) != NULL ? real.fexecve(fd, argv, envp) : (int)hook_ret(-ENOSYS);
}

int hook_execveat(int dirfd, const char *path, char *const argv[], char *const envp[], int flags) {
    before_exec(dirfd, path, envp);
    return (int)NATIVE(execveat, SYS_execveat, dirfd, path, argv, envp, flags);
}

int hook_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                     const posix_spawnattr_t *attr, char *const argv[], char *const envp[]) {
    count_process();
    before_program(AT_FDCWD, path, envp);
    return REAL(posix_spawn) != NULL ? real.posix_spawn(pid, path, actions, attr, argv, envp) : ENOSYS;
}

int hook_posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                      const posix_spawnattr_t *attr, char *const argv[], char *const envp[]) {
    count_process();
    before_program(AT_FDCWD, if_path(file), envp);
    return REAL(posix_spawnp) != NULL ? real.posix_spawnp(pid, file, actions, attr, argv, envp) : ENOSYS;
}

// The child opens inside of libc, and sees what is published.
int hook_posix_spawn_file_actions_addopen(posix_spawn_file_actions_t *actions, int fd, const char *path, int flags,
                                          mode_t mode) {
    if (!names_native() && !guard_foreign()) {
        names_publish(AT_FDCWD, path, !(flags & O_NOFOLLOW));
        guard_depth++;
        if (flags & O_TRUNC) {
            names_wait(WAIT_ALL);
        }
        guard_depth--;
    }
    return REAL(posix_spawn_file_actions_addopen) != NULL
               ? real.posix_spawn_file_actions_addopen(actions, fd, path, flags, mode)
               : ENOSYS;
}

int hook_pidfd_spawn(int *pidfd, const char *path, const posix_spawn_file_actions_t *actions,
                     const posix_spawnattr_t *attr, char *const argv[], char *const envp[]) {
    count_process();
    before_program(AT_FDCWD, path, envp);
    return REAL(pidfd_spawn) != NULL ? real.pidfd_spawn(pidfd, path, actions, attr, argv, envp) : ENOSYS;
}

int hook_pidfd_spawnp(int *pidfd, const char *file, const posix_spawn_file_actions_t *actions,
                      const posix_spawnattr_t *attr, char *const argv[], char *const envp[]) {
    count_process();
    before_program(AT_FDCWD, if_path(file), envp);
    return REAL(pidfd_spawnp) != NULL ? real.pidfd_spawnp(pidfd, file, actions, attr, argv, envp) : ENOSYS;
}

int hook_system(const char *command) {
    count_process();
    before_program(AT_FDCWD, NULL, environ);
    return REAL(system) != NULL ? real.system(command) : (int)hook_ret(-ENOSYS);
}

FILE *hook_popen(const char *command, const char *mode) {
    count_process();
    before_program(AT_FDCWD, NULL, environ);
    return REAL(popen) != NULL ? real.popen(command, mode) : NULL;
}

// fork without its handlers: they are run here. The child is served like any other.
pid_t hook__Fork(void) {
    bool ours = atomic_load_explicit(&shim.ready, memory_order_acquire) && !guard_foreign();
    if (ours) {
        shim_before_fork();
    }
    long r = real._Fork != NULL ? real._Fork() : hook_ret(RAW(SYS_clone, SIGCHLD));
    if (r == 0 && ours) {
        shim_after_fork_in_child();
    } else if (ours) {
        shim_after_fork_in_parent();
    }
    return (pid_t)r;
}

// A child with its own memory that runs no handlers: to it, everything is the kernel's (guard_foreign). Memory
// that shows the arena's pages becomes the program's own, as before a fork; but no lock is held over the call, since
// the child would begin with its signals blocked.
int hook_clone(clone_main *fn, void *stack, int flags, void *arg, void *ptid, void *tls, void *ctid) {
    count_process();
    if (!(flags & CLONE_VM)) {
        settle_all();
        if (atomic_load_explicit(&shim.ready, memory_order_acquire) && !guard_foreign()) {
            shim_before_fork();
            shim_after_fork_in_parent();
        }
    }
    return REAL(clone) != NULL ? real.clone(fn, stack, flags, arg, ptid, tls, ctid) : (int)hook_ret(-ENOSYS);
}

// The parent ends inside of libc, without a word to the engine, and the child goes on with its files.
int hook_daemon(int nochdir, int noclose) {
    for (int fd = 0; fd < fd_limit(); fd++) {
        struct file *f = hook_captured(fd);
        if (f != NULL) {
            file_release(f, fd);
        }
    }
    return REAL(daemon) != NULL ? real.daemon(nochdir, noclose) : (int)hook_ret(-ENOSYS);
}

void hook__exit(int status) {
    shim_leave(false);
    for (;;) {
        OS_CALL(SYS_exit_group, status, 0, 0, 0, 0, 0);
    }
}

// Its handlers run behind us, and its own _exit is invisible: what they still write goes to the kernel.
void hook_quick_exit(int status) {
    shim_leave(false);
    if (REAL(quick_exit) != NULL) {
        real.quick_exit(status);
    }
    hook__exit(status);
}

// What a child has saved, by an engine that it may have started, is there now.
static long waited(long r) {
    names_look_soon();
    return r;
}

pid_t hook_wait(int *status) {
    return (pid_t)waited(NATIVE_OR(wait, RAW(SYS_wait4, -1, status, 0, NULL), status));
}

pid_t hook_waitpid(pid_t pid, int *status, int options) {
    return (pid_t)waited(NATIVE_OR(waitpid, RAW(SYS_wait4, pid, status, options, NULL), pid, status, options));
}

pid_t hook_wait3(int *status, int options, struct rusage *usage) {
    return (pid_t)waited(NATIVE_OR(wait3, RAW(SYS_wait4, -1, status, options, usage), status, options, usage));
}

pid_t hook_wait4(pid_t pid, int *status, int options, struct rusage *usage) {
    return (pid_t)waited(NATIVE(wait4, SYS_wait4, pid, status, options, usage));
}

int hook_waitid(int type, unsigned id, siginfo_t *info, int options) {
    return (int)waited(
        NATIVE_OR(waitid, RAW(SYS_waitid, type, id, info, options, NULL), type, id, info, options));
}

#define HOOKS_PROCESS
#define HOOK_ALIAS HOOK_TWIN
#include "hooks.h"
