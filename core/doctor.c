// SPDX-License-Identifier: MIT
//
// doctor: see doctor.h. Here: how findings are said, and what concerns no directory: kernel, io_uring, memory, limits,
// the engine. Where the engine has a function for it, that function is asked. Nothing here may end the program.

#include "doctor_inside.h"
#include "io.h"
#include "log.h"
#include "os.h"
#include "runtime.h"
#include "staging.h"
#include "tool_text.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#define DIRS_MAX 64

static const char *const found_words[] = {"ok", "unknown", "note", "warn", "bad"};

void doctor_say(struct doctor *d, enum finding found, const char *where, const char *what, const char *remedy,
                const char *fmt, ...) {
    char value[2048], line[2048], name[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(value, sizeof value, fmt, ap);
    va_end(ap);
    remedy = found == FOUND_OK || !remedy ? "" : remedy;
    d->worst = found > d->worst ? found : d->worst;
    if (!d->json) {
        printf("%-8s %s%s%s: %s\n", found_words[found], where ? text_line(where, name, sizeof name) : "",
               where ? " " : "", what, text_line(value, line, sizeof line));
        if (*remedy) {
            printf("         -> %s\n", remedy);
        }
        return;
    }
    printf("%s\n  {\"found\": \"%s\", \"what\": \"%s\"", d->said++ ? "," : "", found_words[found], what);
    printf(", \"directory\": ");
    where ? text_json(where) : (void)printf("null");
    printf(", \"value\": ");
    text_json(value);
    printf(", \"remedy\": ");
    text_json(remedy);
    printf("}");
}

bool doctor_read(const char *path, char *buf, size_t cap) {
    ssize_t n = os_read_file(path, buf, cap);
    if (n <= 0) {
        buf[0] = '\0';
        return false;
    }
    if (buf[n - 1] == '\n') {
        buf[n - 1] = '\0';
    }
    return true;
}

// ---- Software

static bool kernel_is(unsigned want_major, unsigned want_minor) {
    struct utsname u;
    unsigned a = 0, b = 0;
    return uname(&u) == 0 && sscanf(u.release, "%u.%u", &a, &b) == 2 &&
           (a > want_major || (a == want_major && b >= want_minor));
}

static void say_kernel(struct doctor *d) {
    struct utsname u;
    if (uname(&u) < 0) {
        doctor_say(d, FOUND_UNKNOWN, NULL, "kernel", NULL, "%s", log_errno(errno));
    } else if (!kernel_is(5, 6)) {
        doctor_say(d, FOUND_WARN, NULL, "kernel", "Linux 6.1 or later", "%s: without io_uring, huge pages", u.release);
    } else if (!kernel_is(6, 1)) {
        doctor_say(d, FOUND_WARN, NULL, "kernel", "Linux 6.1 or later", "%s: staging has small pages", u.release);
    } else {
        doctor_say(d, FOUND_OK, NULL, "kernel", NULL, "%s, %s", u.release, u.machine);
    }
    doctor_say(d, FOUND_OK, NULL, "glibc", NULL, "%s", gnu_get_libc_version());
    doctor_say(d, d->c->paths[0] ? FOUND_OK : FOUND_NOTE, NULL, "paths", "--paths '/ckpt/*', or FASTCKPT_PATHS", "%s",
               d->c->paths[0] ? d->c->paths : "none: nothing is captured");
}

static void say_fsync(struct doctor *d) {
    bool wait = d->c->fsync == FSYNC_WAIT;
    doctor_say(d, wait ? FOUND_NOTE : FOUND_OK, NULL, "fsync", "--fsync defer, if nothing outside the job relies on it",
               wait ? "wait: programs that call it for each file (PyTorch DCP, Megatron) wait for the disk"
                    : "defer: returns at once");
}

static void say_proc(struct doctor *d) {
    struct stat st;
    if (os_fstatat(AT_FDCWD, "/proc/self/fd", &st, 0) < 0) {
        doctor_say(d, FOUND_BAD, NULL, "/proc", "mount -t proc proc /proc",
                   "not mounted: programs run natively, and much below is unknown");
    } else {
        doctor_say(d, FOUND_OK, NULL, "/proc", NULL, "mounted");
    }
}

static void say_library(struct doctor *d) {
    char path[4096];
    ssize_t n = os_readlinkat(AT_FDCWD, "/proc/self/exe", path, sizeof path - 32);
    if (n <= 0) {
        doctor_say(d, FOUND_UNKNOWN, NULL, "library", NULL, "where this program lies is not known without /proc");
        return;
    }
    path[n] = '\0';
    strcpy(strrchr(path, '/') + 1, "libfastckpt.so");
    if (access(path, R_OK) < 0) {
        doctor_say(d, FOUND_BAD, NULL, "library", "put fastckpt and libfastckpt.so side by side", "%s: %s", path,
                   log_errno(errno));
    } else {
        doctor_say(d, FOUND_OK, NULL, "library", NULL, "%s", path);
    }
    const char *preload = getenv("LD_PRELOAD");
    const char *ours = preload ? strstr(preload, "libfastckpt.so") : NULL;
    if (ours && !strstr(preload, path)) {
        doctor_say(d, FOUND_WARN, NULL, "LD_PRELOAD", "unset LD_PRELOAD, or use the fastckpt beside that library",
                   "%s: another libfastckpt.so than the one beside this program", preload);
    } else {
        doctor_say(d, FOUND_OK, NULL, "LD_PRELOAD", NULL, "%s", preload && *preload ? preload : "not set");
    }
}

// ---- io_uring and limits

static const char *uring_remedy(void) {
    char text[64];
    if (!kernel_is(5, 6)) {
        return "Linux 5.6 or later";
    }
    if (doctor_read("/proc/sys/kernel/io_uring_disabled", text, sizeof text) &&
        (text[0] == '2' || (text[0] == '1' && geteuid() != 0))) {
        return "sysctl kernel.io_uring_disabled=0";
    }
    return "a container's seccomp profile that allows io_uring_setup, io_uring_enter and io_uring_register";
}

static void say_uring(struct doctor *d) {
    char why[256];
    struct io *io = NULL;
    int r = io_open(&io, d->c->io, why, sizeof why);
    if (r < 0) {
        doctor_say(d, FOUND_BAD, NULL, "io_uring", "more memory or file descriptors", "no backend: %s", log_errno(-r));
        return;
    }
    bool uring = strcmp(io_name(io), "uring") == 0;
    if (d->c->io == IO_THREADS) {
        doctor_say(d, FOUND_NOTE, NULL, "io_uring", "unset FASTCKPT_IO", "not used: FASTCKPT_IO=threads");
    } else {
        doctor_say(d, uring ? FOUND_OK : FOUND_WARN, NULL, "io_uring", uring_remedy(), "%s", uring ? "works" : why);
    }
    io_close(io);
}

static const char *limit_text(rlim_t v, char *buf, size_t cap) {
    if (v == RLIM_INFINITY) {
        snprintf(buf, cap, "unlimited");
    } else {
        snprintf(buf, cap, "%llu", (unsigned long long)v);
    }
    return buf;
}

/** The engine raises its own limits to the hard ones; so these count. */
static void say_limits(struct doctor *d) {
    struct rlimit r;
    char soft[24], hard[24];
    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        // A pending file has two descriptors and its directory's; a program with many open at once needs its own.
        enum finding found = !runtime_has_files() ? FOUND_BAD : r.rlim_max < 1024 ? FOUND_WARN : FOUND_OK;
        doctor_say(d, found, NULL, "open files", "ulimit -Hn 65536 (RLIMIT_NOFILE)",
                   "%s, hard limit %s", limit_text(r.rlim_cur, soft, sizeof soft),
                   limit_text(r.rlim_max, hard, sizeof hard));
    }
    if (getrlimit(RLIMIT_MEMLOCK, &r) == 0) {
        // Rings count against it before Linux 5.12. Memory that a device registers does, too, with some drivers.
        bool few = !kernel_is(5, 12) && r.rlim_max < 64 * KIB;
        doctor_say(d, few ? FOUND_WARN : FOUND_OK, NULL, "locked memory", "ulimit -Hl unlimited (RLIMIT_MEMLOCK)",
                   "%s bytes, hard limit %s", limit_text(r.rlim_cur, soft, sizeof soft),
                   limit_text(r.rlim_max, hard, sizeof hard));
    }
}

#define UFFD_USER_FAULTS 1 // UFFD_USER_MODE_ONLY

static void say_userfaultfd(struct doctor *d) {
    static const char remedy[] = "sysctl vm.unprivileged_userfaultfd=1, or access to /dev/userfaultfd";
    int all = (int)OS_CALL(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK, 0, 0, 0, 0, 0);
    int dev = all >= 0 ? -1 : os_openat(AT_FDCWD, "/dev/userfaultfd", O_RDWR | O_CLOEXEC, 0);
    int some = (int)OS_CALL(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_FAULTS, 0, 0, 0, 0, 0);
    if (all >= 0 || dev >= 0) {
        doctor_say(d, FOUND_OK, NULL, "userfaultfd", NULL, "also for faults in system calls%s",
                   all >= 0 ? "" : " (/dev/userfaultfd)");
    } else if (some >= 0) {
        doctor_say(d, FOUND_NOTE, NULL, "userfaultfd", remedy, "only for a program's own faults, not in system calls");
    } else {
        doctor_say(d, FOUND_NOTE, NULL, "userfaultfd", remedy, "none: %s", log_errno(-all));
    }
    int fds[] = {all, dev, some};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        if (fds[i] >= 0) {
            os_close(fds[i]);
        }
    }
}

// ---- Memory

static void say_staging(struct doctor *d, uint64_t room) {
    uint64_t budget = staging_budget(d->c->staging);
    char a[24], b[24];
    text_size(budget, a, sizeof a);
    text_size(room, b, sizeof b);
    if (room == 0) {
        doctor_say(d, FOUND_BAD, NULL, "staging", "mount /proc; leave memory free; raise the cgroup's limit",
                   "no room can be seen (MemAvailable and the memory cgroup)");
    } else if (budget > room) {
        doctor_say(d, FOUND_WARN, NULL, "staging", "more memory for the job (cgroup), or a smaller FASTCKPT_STAGING",
                   "%s, but there is room for %s only", a, b);
    } else if (budget < 4 * STAGING_STEP) {
        doctor_say(d, FOUND_WARN, NULL, "staging", "more memory for the job (--mem, resources.limits.memory)",
                   "%s of %s that are free: larger saves wait for the disk", a, b);
    } else {
        doctor_say(d, FOUND_OK, NULL, "staging", NULL, "%s of %s that are free, the cgroup's limit included", a, b);
    }
}

/** Populates one huge page as the engine would. Not where memory is so short that it could kill somebody. */
static void say_huge_pages(struct doctor *d, uint64_t room) {
    int fd = room < 16 * HUGE_PAGE ? -ENOMEM : staging_create(STAGING_STEP);
    char *window = fd < 0 ? NULL : staging_window(STAGING_STEP);
    int huge = 0, r = window ? staging_map(window, fd, 0, STAGING_STEP, 0) : -ENOMEM;
    r = r < 0 ? r : staging_populate(window, HUGE_PAGE, &huge);
    if (r < 0) {
        doctor_say(d, FOUND_UNKNOWN, NULL, "huge pages", NULL, "not tried: %s", log_errno(-r));
    } else {
        doctor_say(d, huge ? FOUND_OK : FOUND_WARN, NULL, "huge pages",
                   "Linux 6.1 or later with transparent huge pages",
                   huge ? "staging gets them" : "none: the first save of a process is slower");
    }
    if (window) {
        os_munmap(window, STAGING_STEP);
    }
    if (fd >= 0) {
        os_close(fd);
    }
}

// ---- The engine

static void say_engine(struct doctor *d) {
    char path[CONFIG_DIR_MAX], why[512] = "", name[64], pidns[64], cgroup[2048];
    int dir = runtime_open(d->c->runtime_dir, path, sizeof path, why, sizeof why);
    if (dir < 0) {
        doctor_say(d, FOUND_BAD, NULL, "runtime directory", "a directory of your own as FASTCKPT_RUNTIME_DIR", "%s",
                   why[0] ? why : log_errno(-dir));
        return;
    }
    doctor_say(d, FOUND_OK, NULL, "runtime directory", NULL, "%s", path);
    uint64_t key = runtime_key();
    runtime_name(key, ".sock", name, sizeof name);
    int sock = runtime_connect(dir, key);
    if (sock >= 0) {
        doctor_say(d, FOUND_OK, NULL, "engine", NULL, "runs: %s/%s", path, name);
        os_close(sock);
    } else if (sock == -EPERM) {
        doctor_say(d, FOUND_BAD, NULL, "engine", "another FASTCKPT_RUNTIME_DIR", "%s/%s is another user's", path, name);
    } else if (sock != -ENOENT && sock != -ECONNREFUSED) {
        doctor_say(d, FOUND_WARN, NULL, "engine", "fastckpt status; is it stopped?", "%s/%s does not answer: %s", path,
                   name, log_errno(-sock));
    } else {
        doctor_say(d, FOUND_OK, NULL, "engine", NULL, "none runs yet; it would be %s/%s", path, name);
    }
    os_close(dir);
    ssize_t n = os_readlinkat(AT_FDCWD, "/proc/self/ns/pid", pidns, sizeof pidns - 1);
    pidns[n > 0 ? n : 0] = '\0';
    bool grouped = doctor_read("/proc/self/cgroup", cgroup, sizeof cgroup);
    for (char *p = cgroup; *p; p++) {
        *p = *p == '\n' ? ' ' : *p;
    }
    bool known = n > 0 && grouped;
    doctor_say(d, known ? FOUND_OK : FOUND_UNKNOWN, NULL, "engine is shared by", "mount /proc",
               "user %u, %s, cgroup %s", (unsigned)geteuid(), n > 0 ? pidns : "pid:[unknown]",
               grouped ? cgroup : "unknown");
}

// ---- All of it

/** The directories that FASTCKPT_PATHS names: of each absolute pattern what stands before its first glob character. */
static int dirs_of_paths(const char *paths, char **dirs) {
    int n = 0;
    for (const char *p = paths; *p && n < DIRS_MAX;) {
        size_t len = strcspn(p, ":"), fixed = strcspn(p, ":*?[\\");
        while (fixed > 1 && p[fixed - 1] != '/') {
            fixed--;
        }
        if (*p == '/' && (dirs[n] = strndup(p, fixed > 1 ? fixed - 1 : 1))) {
            n++;
        }
        p += len + (p[len] == ':');
    }
    return n;
}

static void say_all(struct doctor *d, const struct doctor_request *rq) {
    if (rq->config_fault) {
        doctor_say(d, FOUND_BAD, NULL, "settings", "fastckpt --help", "%s", rq->config_fault);
    } else if (d->c->disable) {
        doctor_say(d, FOUND_BAD, NULL, "settings", "unset FASTCKPT_DISABLE", "FASTCKPT_DISABLE=1: all is native");
    }
    say_kernel(d);
    say_fsync(d);
    say_proc(d);
    say_library(d);
    say_uring(d);
    say_limits(d);
    uint64_t room = staging_room();
    say_staging(d, room);
    say_huge_pages(d, room);
    say_userfaultfd(d);
    say_engine(d);
    char *named[DIRS_MAX];
    int n = rq->n_dirs ? 0 : dirs_of_paths(d->c->paths, named);
    doctor_directories(d, rq->n_dirs ? rq->dirs : named, rq->n_dirs ? rq->n_dirs : n);
    for (int i = 0; i < n; i++) {
        free(named[i]);
    }
    if (rq->command) {
        doctor_command(d, rq->command);
    }
}

int doctor(const struct config *c, const struct doctor_request *rq) {
    struct doctor d = {.c = c, .json = rq->json};
    if (d.json) {
        printf("{\"findings\": [");
    }
    say_all(&d, rq);
    if (d.json) {
        printf("\n], \"worst\": \"%s\"}\n", found_words[d.worst]);
    }
    return d.worst >= FOUND_WARN;
}
