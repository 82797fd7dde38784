// SPDX-License-Identifier: MIT
//
// keeper: see keeper.h. The keeper is one thread that waits; it calls no malloc after its start, so that the memory its
// clones begin with is sound.

#include "keeper.h"

#include "engine.h"
#include "log.h"
#include "os.h"
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOG_MAX        (1 * MIB)
#define CRASHES_MAX    3 // within a minute: once more in plain mode, then closed
#define CRASH_SPAN_NS  60000000000ll
#define DELAY_FIRST_MS 10
#define DELAY_MOST_MS  1000

// ---- Becoming a process of its own

/** The engine ends when its work is done; the keeper when the engine ends. */
static const int ending[] = {SIGTERM, SIGHUP, SIGINT};

static void ignore_ending(void) {
    for (size_t i = 0; i < ARRAY_LEN(ending); i++) {
        signal(ending[i], SIG_IGN);
    }
}

/** Between an exec and ignore_ending the default action would hold. */
static void mask_ending(int how) {
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < ARRAY_LEN(ending); i++) {
        sigaddset(&set, ending[i]);
    }
    sigprocmask(how, &set, NULL);
}

/** Nothing of the job may cling to us: session, directory, descriptors, signals, limits, nice, affinity. */
static void detach(void) {
    setsid();
    if (chdir("/") < 0) {
        log_debug("chdir: %s", log_errno(errno));
    }
    umask(077);
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd <= 2 && null >= 0; fd++) {
        if (null != fd) {
            dup2(null, fd);
        }
    }
    for (int sig = 1; sig < NSIG; sig++) {
        signal(sig, SIG_DFL);
    }
    ignore_ending();
    signal(SIGPIPE, SIG_IGN);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY}, r;
    if (setrlimit(RLIMIT_FSIZE, &unlimited) < 0 && getrlimit(RLIMIT_FSIZE, &r) == 0) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_FSIZE, &r);
    }
    static const int raise_to_hard[] = {RLIMIT_NOFILE, RLIMIT_CPU, RLIMIT_MEMLOCK};
    for (size_t i = 0; i < ARRAY_LEN(raise_to_hard); i++) {
        if (getrlimit(raise_to_hard[i], &r) == 0) {
            r.rlim_cur = r.rlim_max;
            setrlimit(raise_to_hard[i], &r);
        }
    }
    setpriority(PRIO_PROCESS, 0, 0); // back to 0 where we may
    cpu_set_t all;
    memset(&all, 0xff, sizeof all);
    sched_setaffinity(0, sizeof all, &all);
    prctl(PR_SET_NAME, "fastckpt");
}

static int open_log(struct state *st) {
    char name[64];
    runtime_name(st->key, ".log", name, sizeof name);
    int fd = os_openat(st->fd_dir, name, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
    return fd < 0 ? 2 : fd;
}

void keeper_rotate_log(struct state *st) {
    struct stat s;
    if (st->fd_log <= 2 || os_fstat(st->fd_log, &s) < 0 || (uint64_t)s.st_size < LOG_MAX) {
        return;
    }
    char name[64], old[64];
    runtime_name(st->key, ".log", name, sizeof name);
    runtime_name(st->key, ".log.1", old, sizeof old);
    os_renameat2(st->fd_dir, name, st->fd_dir, old, 0);
    int fd = open_log(st);
    if (fd > 2) {
        OS_CALL(SYS_dup3, fd, st->fd_log, 0, 0, 0, 0); // the number stays: it is recorded
        os_close(fd);
    }
}

static int bind_socket(struct state *st) {
    char name[64];
    runtime_name(st->key, ".sock", name, sizeof name);
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    log_format(addr.sun_path, sizeof addr.sun_path, "/proc/self/fd/%d/%s", st->fd_dir, name);
    int fd = os_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return fd;
    }
    os_unlinkat(st->fd_dir, name, 0); // of a pair that was killed: the lock says that there is none now
    if (bind(fd, (struct sockaddr *)&addr, sizeof addr) < 0 || listen(fd, 1024) < 0) {
        int err = -errno;
        os_close(fd);
        return err;
    }
    return fd;
}

// ---- Engines

static int clone_engine(void) {
    // Not fork: the descriptor table is shared, so that every descriptor outlives the engine that took it.
    return (int)OS_CALL(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0, 0);
}

static bool is_crash(int status) {
    if (!WIFSIGNALED(status)) {
        return true; // an exit that is not 0
    }
    switch (WTERMSIG(status)) {
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGABRT:
        return true;
    default:
        return false; // killed from outside: nobody's fault
    }
}

/** Notes the entry that the dying thread named; one that is named twice is not served again. */
static void blame(struct state *st) {
    uint64_t number = atomic_exchange(&st->blame, 0);
    if (number && state_blame(st, number)) {
        log_error("entry %lu has crashed the engine twice: it is skipped", (unsigned long)number);
    }
}

/** Makes engines until one leaves in peace. */
static int keep(struct state *st) {
    int64_t crashes[CRASHES_MAX] = {0};
    unsigned n = 0, delay = DELAY_FIRST_MS;
    for (;;) {
        int64_t begun = os_now_ns(CLOCK_MONOTONIC);
        int pid = clone_engine();
        if (pid == 0) {
            _exit(engine_run(st->fd_state));
        }
        if (pid < 0) {
            log_error("no engine: %s", log_errno(-pid));
            os_sleep_ms(DELAY_MOST_MS);
            continue;
        }
        int status = 0;
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        }
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
            return 0;
        }
        int64_t now = os_now_ns(CLOCK_MONOTONIC);
        log_error("the engine (process %d) died: %s %d", pid, WIFSIGNALED(status) ? "signal" : "status",
                  WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        if (is_crash(status)) {
            blame(st);
            if (n >= CRASHES_MAX && now - crashes[n % CRASHES_MAX] < CRASH_SPAN_NS) {
                if (st->plain) {
                    log_error("too many crashes: closed. Clients go on natively");
                    return 1;
                }
                st->plain = 1;
                n = 0;
            }
            crashes[n++ % CRASHES_MAX] = now;
        }
        delay = now - begun > 10ll * 1000000000 ? DELAY_FIRST_MS : delay;
        os_sleep_ms(delay);
        delay = delay * 2 > DELAY_MOST_MS ? DELAY_MOST_MS : delay * 2;
    }
}

static int be_keeper(struct pair *p) {
    struct state *st = p->st;
    st->keeper_pid = getpid();
    int fd = os_pidfd_open(getpid());
    if (fd < 0) {
        log_error("pidfd_open: %s", log_errno(-fd));
        return 1;
    }
    state_close_fd(&st->fd_keeper);
    os_fcntl(fd, F_SETFD, 0);
    st->fd_keeper = fd;
    return keep(st);
}

int keeper_serve(const char *dir, uint64_t key, const struct config *c) {
    char path[CONFIG_DIR_MAX], why[256] = "";
    int fd_dir = runtime_open(dir, path, sizeof path, why, sizeof why);
    if (fd_dir < 0) {
        log_error("%s", why);
        return 1;
    }
    char name[64];
    runtime_name(key, ".lock", name, sizeof name);
    for (int fd; (fd = open("/dev/null", O_RDWR)) >= 0;) { // 0 to 2 taken: no recorded descriptor is ever one of them
        if (fd > 2) {
            close(fd);
            break;
        }
    }
    int fd_lock = os_openat(fd_dir, name, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
    if (fd_lock < 0 || os_flock(fd_lock, LOCK_EX | LOCK_NB) < 0) {
        return fd_lock < 0; // another pair serves: fine
    }
    struct pair p;
    int r = state_create(&p, c);
    if (r < 0) {
        log_error("no memory for a new engine: %s", log_errno(-r));
        return 1;
    }
    struct state *st = p.st;
    st->key = key;
    st->fd_dir = os_fcntl(fd_dir, F_DUPFD, 3);
    os_close(fd_dir);
    st->fd_lock = fd_lock;
    st->fd_binary = os_openat(AT_FDCWD, "/proc/self/exe", O_PATH, 0);
    st->fd_listen = bind_socket(st);
    st->fd_log = open_log(st);
    if (st->fd_listen < 0) {
        log_error("socket in %s: %s", path, log_errno(-st->fd_listen));
        return 1;
    }
    pid_t pid = fork();
    if (pid != 0) {
        _exit(pid < 0); // the launcher is done: the socket takes connections
    }
    log_setup((enum log_level)c->log, st->fd_log, "fastckpt keeper");
    detach();
    state_close_litter(&p); // what the job had open is not ours to keep
    return be_keeper(&p);
}

int keeper_serve_resume(int fd_state) {
    struct pair p;
    int r = state_attach(&p, fd_state);
    if (r < 0) {
        return 1;
    }
    log_setup((enum log_level)p.st->config.log, p.st->fd_log, "fastckpt keeper");
    ignore_ending();
    mask_ending(SIG_UNBLOCK);
    log_error("the keeper was killed: process %d takes its place", getpid());
    return be_keeper(&p);
}

void keeper_resume(struct state *st) {
    char fd[16];
    log_format(fd, sizeof fd, "%d", st->fd_state);
    char *argv[] = {"fastckpt", "serve", "--resume", fd, NULL};
    char *envp[] = {NULL};
    mask_ending(SIG_BLOCK);
    OS_CALL(SYS_execveat, st->fd_binary, "", argv, envp, AT_EMPTY_PATH, 0);
    mask_ending(SIG_UNBLOCK);
    log_error("the keeper is gone and its place could not be taken");
}
