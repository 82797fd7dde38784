// SPDX-License-Identifier: MIT
//
// runtime: the runtime directory, the key of an engine, connecting to it, and starting it on demand. Runs inside hooks:
// system calls only, no malloc, no state. What is said over the connection is protocol's.

#include "runtime.h"

#include "log.h"
#include "os.h"
#include "util.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>

#define CONNECT_MS 2000 // a stopped engine with a full backlog must not hold the job
#define LOCK_MS    2000
#define LAUNCH_MS  10000
#define STACK      (64 * KIB)

static unsigned own_uid(void) {
    return (unsigned)OS_CALL(SYS_geteuid, 0, 0, 0, 0, 0, 0);
}

// Opens `path`, made if missing, and checks that it is ours alone.
static int open_checked(const char *path, int extra_flags, char *why, size_t cap) {
    int err = os_mkdirat(AT_FDCWD, path, 0700);
    if (err == 0) {
        OS_CALL(SYS_fchmodat, AT_FDCWD, path, 0700, 0, 0, 0); // whatever the job's umask is
    }
    int fd = os_openat(AT_FDCWD, path, O_PATH | O_DIRECTORY | O_CLOEXEC | extra_flags, 0);
    if (fd < 0) {
        err = err < 0 && err != -EEXIST ? err : fd;
        log_format(why, cap, "runtime directory %s: %s", path, log_errno(-err));
        return err;
    }
    struct stat st;
    err = os_fstat(fd, &st);
    if (err == 0 && (st.st_uid != own_uid() || (st.st_mode & 077) != 0)) {
        err = -EPERM;
        log_format(why, cap, "runtime directory %s: must belong to user %u and be closed to others (mode 0700)", path,
                   own_uid());
    }
    if (err < 0) {
        os_close(fd);
        return err;
    }
    return fd;
}

int runtime_open(const char *dir, char *path, size_t path_cap, char *why, size_t why_cap) {
    if (dir && *dir) {
        if ((size_t)log_format(path, path_cap, "%s", dir) >= path_cap) {
            log_format(why, why_cap, "runtime directory: the path is too long");
            return -ENAMETOOLONG;
        }
        return open_checked(path, 0, why, why_cap);
    }
    static const char *const roots[] = {"/tmp", "/dev/shm"};
    int fd = -ENOENT;
    for (size_t i = 0; i < ARRAY_LEN(roots) && fd < 0; i++) {
        log_format(path, path_cap, "%s/fastckpt-%u", roots[i], own_uid());
        fd = open_checked(path, O_NOFOLLOW, why, why_cap);
    }
    return fd;
}

// The length of the component at `p`, which stands behind its '/'.
static size_t component_len(const char *p) {
    return strcspn(p, "/\n");
}

// The length of `line` up to the end of Slurm's ".../job_N/step_X", or of the whole line.
static size_t cut_at(const char *line) {
    size_t len = strcspn(line, "\n");
    bool in_job = false;
    for (size_t at = strcspn(line, "/\n"); at < len;) {
        const char *p = line + at + 1;
        size_t n = component_len(p);
        if (in_job && n > 5 && memcmp(p, "step_", 5) == 0) {
            return at + 1 + n;
        }
        in_job = n > 4 && memcmp(p, "job_", 4) == 0 && p[4] >= '0' && p[4] <= '9';
        at += 1 + n;
    }
    return len;
}

void runtime_cut_cgroup(char *text) {
    char *to = text;
    for (const char *line = text; *line;) {
        size_t len = strcspn(line, "\n");
        size_t keep = cut_at(line);
        bool newline = line[len] == '\n';
        memmove(to, line, keep);
        to += keep;
        if (newline) {
            *to++ = '\n';
        }
        line += len + newline;
    }
    *to = '\0';
}

static uint64_t hash_namespace(uint64_t hash, const char *path) {
    struct stat st;
    if (os_fstatat(AT_FDCWD, path, &st, 0) < 0) {
        return hash; // no /proc here: the rest has to do
    }
    hash = fnv1a(hash, &st.st_dev, sizeof st.st_dev);
    return fnv1a(hash, &st.st_ino, sizeof st.st_ino);
}

uint64_t runtime_key(void) {
    unsigned uid = own_uid();
    uint64_t hash = fnv1a(FNV1A_INIT, &uid, sizeof uid);
    hash = hash_namespace(hash, "/proc/self/ns/pid");
    hash = hash_namespace(hash, "/proc/self/ns/cgroup");
    char text[8192];
    if (os_read_file("/proc/self/cgroup", text, sizeof text) > 0) {
        runtime_cut_cgroup(text);
        hash = fnv1a(hash, text, strlen(text));
    }
    return hash;
}

static void put_hex16(uint64_t v, char buf[17]) {
    for (int i = 15; i >= 0; i--, v >>= 4) {
        buf[i] = "0123456789abcdef"[v & 15];
    }
    buf[16] = '\0';
}

void runtime_name(uint64_t key, const char *suffix, char *buf, size_t cap) {
    char hex[17];
    put_hex16(key, hex);
    log_format(buf, cap, "engine-%s%s", hex, suffix);
}

static int set_timeout(int sock, int ms) {
    struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = (ms % 1000) * 1000L};
    return (int)OS_CALL(SYS_setsockopt, sock, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv, 0);
}

static int check_peer(int sock) {
    struct ucred cred;
    socklen_t len = sizeof cred;
    int err = (int)OS_CALL(SYS_getsockopt, sock, SOL_SOCKET, SO_PEERCRED, &cred, &len, 0);
    if (err < 0) {
        return err;
    }
    return cred.uid == own_uid() ? 0 : -EPERM;
}

int runtime_connect(int dirfd, uint64_t key) {
    char name[64];
    runtime_name(key, ".sock", name, sizeof name);
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    // By the descriptor: sun_path is too short for most directories.
    int n = log_format(addr.sun_path, sizeof addr.sun_path, "/proc/self/fd/%d/%s", dirfd, name);
    assert(n < (int)sizeof addr.sun_path);
    (void)n;
    int sock = os_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sock < 0) {
        return sock;
    }
    set_timeout(sock, CONNECT_MS);
    int err = os_connect(sock, &addr, sizeof addr);
    if (err == 0) {
        err = check_peer(sock);
    }
    if (err < 0) {
        os_close(sock);
        return err;
    }
    set_timeout(sock, 0);
    return sock;
}

// What the launching processes share with the caller, on pages made for them: they run in its memory.
struct launch {
    char *argv[7];
    char **envp;
    const char *binary;
    char key[17];
    int error;  // negative errno
    int status; // of wait4
    _Alignas(16) char outer_stack[STACK];
    _Alignas(16) char inner_stack[STACK];
    char *env[]; // room for the filtered environment
};

static _Noreturn void exit_raw(int code) {
    for (;;) {
        OS_CALL(SYS_exit, code, 0, 0, 0, 0, 0);
    }
}

static int run_binary(void *arg) {
    struct launch *l = arg;
    l->error = (int)OS_CALL(SYS_execve, l->binary, l->argv, l->envp, 0, 0, 0);
    exit_raw(127);
}

static int wait_pid(int pid, int *status, int flags) {
    return (int)OS_CALL(SYS_wait4, pid, status, __WALL | flags, NULL, 0, 0);
}

// exec gives every process the exit signal SIGCHLD, whatever clone said. So the program is not our child but this
// process's, which never execs: the job gets no SIGCHLD and cannot reap it by a plain wait.
static int run_outer(void *arg) {
    struct launch *l = arg;
    int pid = clone(run_binary, l->inner_stack + STACK, CLONE_VM | CLONE_VFORK, l);
    if (pid < 0) {
        l->error = -EAGAIN;
        exit_raw(1);
    }
    for (int ms = 0;; ms++) {
        int ret = wait_pid(pid, &l->status, WNOHANG);
        if (ret == pid) {
            break;
        }
        if (ret == -ECHILD) { // the job ignores SIGCHLD and we inherited that: nobody learns how it ended
            l->status = 0;
            break;
        }
        if (ms >= LAUNCH_MS) {
            l->error = -ETIMEDOUT;
            OS_CALL(SYS_kill, pid, SIGKILL, 0, 0, 0, 0);
            wait_pid(pid, &l->status, 0);
            break;
        }
        os_sleep_ms(1);
    }
    exit_raw(0);
}

// Our own library has no business in the engine, nor has any other that the job preloads.
static void filter_env(struct launch *l, char *const envp[]) {
    size_t n = 0;
    for (; envp && *envp; envp++) {
        if (strncmp(*envp, "LD_PRELOAD=", 11) != 0) {
            l->env[n++] = *envp;
        }
    }
    l->env[n] = NULL;
    l->envp = l->env;
}

bool runtime_has_files(void) {
    struct {
        uint64_t cur, max;
    } r = {0};
    return OS_CALL(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &r, 0, 0) < 0 || r.max >= RUNTIME_FILES_MIN;
}

// Runs `binary serve` to its end. All signals are blocked.
static int launch(const char *dir_path, uint64_t key, const char *binary, char *const envp[]) {
    size_t vars = 0;
    if (!runtime_has_files()) {
        return -EMFILE; // it would have to turn everybody away
    }
    while (envp && envp[vars]) {
        vars++;
    }
    size_t size = align_up(sizeof(struct launch) + (vars + 1) * sizeof(char *), 4096);
    struct launch *l = os_mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (os_is_err(l)) {
        return (int)(intptr_t)l;
    }
    put_hex16(key, l->key);
    l->binary = binary;
    char *argv[] = {(char *)binary, "serve", "--dir", (char *)dir_path, "--key", l->key, NULL};
    memcpy(l->argv, argv, sizeof argv);
    filter_env(l, envp);
    l->status = -1;
    int saved = errno; // libc's clone writes it, here and in the process that shares our memory
    int pid = clone(run_outer, l->outer_stack + STACK, CLONE_VM | CLONE_VFORK, l);
    errno = saved;
    int err = pid < 0 ? -EAGAIN : l->error;
    int status;
    while (pid > 0 && wait_pid(pid, &status, 0) == -EINTR) {
    }
    if (err == 0 && l->status != 0) {
        err = -EIO;
    }
    os_munmap(l, size);
    return err;
}

static bool nobody_there(int err) {
    return err == -ENOENT || err == -ECONNREFUSED;
}

// Under the lock, or until another holder of it has made an engine.
static int start_locked(int dirfd, int lock, const char *dir_path, uint64_t key, const char *binary,
                        char *const envp[]) {
    int64_t end = os_now_ns(CLOCK_MONOTONIC) + LOCK_MS * INT64_C(1000000);
    int err;
    while ((err = os_flock(lock, LOCK_EX | LOCK_NB)) == -EWOULDBLOCK) {
        int sock = runtime_connect(dirfd, key);
        if (!nobody_there(sock)) {
            return sock;
        }
        if (os_now_ns(CLOCK_MONOTONIC) > end) {
            return -ETIMEDOUT;
        }
        os_sleep_ms(5);
    }
    if (err < 0) {
        return err;
    }
    int sock = runtime_connect(dirfd, key);
    while (nobody_there(sock) && err == 0) {
        err = launch(dir_path, key, binary, envp);
        sock = err < 0 ? err : runtime_connect(dirfd, key);
        if (err == 0 && nobody_there(sock)) { // the pair before it is on its way out, and has the lock for pairs still
            err = os_now_ns(CLOCK_MONOTONIC) > end ? -ETIMEDOUT : 0;
            os_sleep_ms(5);
        }
    }
    os_flock(lock, LOCK_UN); // explicitly: a child forked meanwhile has the same description
    return sock;
}

int runtime_start(int dirfd, const char *dir_path, uint64_t key, const char *binary, char *const envp[]) {
    int sock = runtime_connect(dirfd, key);
    if (!nobody_there(sock)) {
        return sock;
    }
    char name[64];
    runtime_name(key, ".start", name, sizeof name);
    int lock = os_openat(dirfd, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock < 0) {
        return lock;
    }
    // No handler of the job may run while the lock is held, nor in the processes that run in its memory.
    uint64_t all = ~UINT64_C(0);
    uint64_t before = 0;
    OS_CALL(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof all, 0, 0);
    sock = start_locked(dirfd, lock, dir_path, key, binary, envp);
    OS_CALL(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before, 0, 0);
    os_close(lock);
    return sock;
}
