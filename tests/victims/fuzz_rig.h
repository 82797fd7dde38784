// SPDX-License-Identifier: MIT
//
// What fuzz_ops and name_ops are made of besides their calls: the trace that they print, the bytes they write, the hash
// of what they read, their descriptors and FILEs.
// Nothing here depends on time, addresses or inode numbers: two runs of a script print the same.

#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define POOL_BYTES (9 << 20)
#define LONG_AGO   1000000000 // times before are those that a script has set
#define SLOTS      8
#define MAYBE      __attribute__((unused)) // by one of the programs
#define FDS        64 // no script opens more

static unsigned char *pool;
static char trace[1 << 16];
static size_t traced;


static void trace_flush(void) {
    for (size_t at = 0; at < traced;) {
        ssize_t n = write(1, trace + at, traced - at);
        if (n <= 0) {
            _exit(99);
        }
        at += (size_t)n;
    }
    traced = 0;
}

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
    va_list ap;
    if (traced > sizeof trace - 8192) {
        trace_flush();
    }
    va_start(ap, format);
    traced += (size_t)vsnprintf(trace + traced, 8192, format, ap);
    va_end(ap);
}

// The result of a call: a number, or the name of the error.
static void result(long r) {
    if (r < 0) {
        const char *name = strerrorname_np(errno);
        say(" = %s", name ? name : "?");
    } else {
        say(" = %ld", r);
    }
}

static uint64_t hash_add(uint64_t h, const void *buf, size_t n) {
    const unsigned char *p = buf;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        h = (h ^ v) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    for (; n > 0; p++, n--) {
        h = (h ^ *p) * 0x9e3779b97f4a7c15u;
        h ^= h >> 31;
    }
    return h;
}

static void fill_pool(void) {
    uint64_t x = 88172645463325252u;
    pool = malloc(POOL_BYTES);
    for (size_t i = 0; i < POOL_BYTES; i += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        uint64_t v = x | 0x0101010101010101u; // no byte is zero: holes are told from data
        memcpy(pool + i, &v, 8);
    }
}

// `size` bytes, others for each seed.
static unsigned char *bytes(long size, long seed) {
    if (size > (7 << 20) || size < 0) {
        _exit(98);
    }
    return pool + ((unsigned long)seed * 4099 % (1 << 20));
}

static void say_stat(const struct stat *st) {
    int type = st->st_mode & S_IFMT;
    say(" %s %o nlink=%ld", type == S_IFREG ? "file" : type == S_IFDIR ? "dir" : type == S_IFLNK ? "link" : "other",
        st->st_mode & 07777, (long)st->st_nlink);
    if (type != S_IFDIR) {
        say(" size=%ld uid=%d", (long)st->st_size, (int)st->st_uid);
        if (st->st_mtim.tv_sec < LONG_AGO) {
            say(" m=%ld.%ld", (long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec);
        }
    }
}

// The content of a file from its beginning.
static void say_content(const char *name) {
    static unsigned char buf[1 << 20];
    int fd = open(name, O_RDONLY);
    uint64_t h = 1;
    ssize_t n = 0;
    long all = 0;
    if (fd < 0) {
        result(fd);
        return;
    }
    while ((n = read(fd, buf, sizeof buf)) > 0) {
        h = hash_add(h, buf, (size_t)n);
        all += n;
    }
    close(fd);
    say(" bytes=%ld hash=%016lx", all, (unsigned long)h);
}

MAYBE static void say_name(const char *name) {
    struct stat st;
    say("  %s:", name);
    if (lstat(name, &st) < 0) {
        result(-1);
    } else {
        say_stat(&st);
        if (stat(name, &st) == 0 && S_ISREG(st.st_mode)) {
            say_content(name);
        }
    }
    say("\n");
}

static void say_status(int status) {
    if (WIFEXITED(status)) {
        say(" = exit %d", WEXITSTATUS(status));
    } else {
        say(" = signal %d", WTERMSIG(status));
    }
}

// ---- Descriptors and FILEs

static const char *const names[] = {"a.ck", "b.ck", "l.ck", "x.tx", "y.tx", "l.tx", "d", "d/c.ck", "d/z.tx",
                                    "e.ck", "e.ck/c.ck", "e", "e/c.ck"};

// `writes`: opened for writing under a matched name, so that the shim knows it.
static struct slot {
    int fd;
    bool writes;
} slots[SLOTS];
static FILE *files[SLOTS];
static bool file_writes[SLOTS];

static struct slot *slot(const char *w) {
    return &slots[w ? atoi(w) % SLOTS : 0];
}

static int fd_of(const char *w) {
    return slot(w)->fd;
}

static long num(const char *w) {
    return w ? strtol(w, NULL, 0) : 0;
}

static int flags_of(const char *w) {
    int flags = strchr(w, 'b') ? O_RDWR : strchr(w, 'w') ? O_WRONLY : O_RDONLY;
    static const struct {
        char c;
        int flag;
    } more[] = {{'c', O_CREAT}, {'t', O_TRUNC}, {'x', O_EXCL}, {'a', O_APPEND}, {'n', O_NOFOLLOW}, {'d', O_DIRECTORY},
                {'s', O_SYNC}, {'e', O_CLOEXEC}};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        flags |= strchr(w, more[i].c) ? more[i].flag : 0;
    }
    return flags;
}

MAYBE static int whence_of(const char *w) {
    return !strcmp(w, "cur") ? SEEK_CUR : !strcmp(w, "end") ? SEEK_END : !strcmp(w, "data") ? SEEK_DATA
         : !strcmp(w, "hole") ? SEEK_HOLE : SEEK_SET;
}

static bool matched(const char *name) {
    size_t n = strlen(name);
    return n > 3 && !strcmp(name + n - 3, ".ck");
}

static bool is_of(int fd, const struct stat *st) {
    struct stat mine;
    return fd >= 0 && fstat(fd, &mine) == 0 && mine.st_dev == st->st_dev && mine.st_ino == st->st_ino;
}

// An open descriptor on this inode that the shim has no reason to know.
MAYBE static bool has_stranger(const struct stat *st) {
    for (int i = 0; i < SLOTS; i++) {
        if ((!slots[i].writes && is_of(slots[i].fd, st)) ||
            (files[i] && !file_writes[i] && is_of(fileno(files[i]), st))) {
            return true;
        }
    }
    return false;
}

// For writing. Who reads an older file keeps that when its name gets a new one.
MAYBE static bool has_open(const struct stat *st) {
    for (int fd = 3; fd < FDS; fd++) {
        if (is_of(fd, st) && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY) {
            return true;
        }
    }
    return false;
}

// Deviation by design (P3), left out of both runs: a save over an old file makes another inode, so who has the old one
// open for reading goes on reading the old bytes, where natively they are cut off.
MAYBE static bool replaces_under_reader(const char *name, int flags) {
    struct stat st;
    if ((flags & O_ACCMODE) == O_WRONLY && (flags & O_TRUNC) && stat(name, &st) == 0 && has_stranger(&st)) {
        say(" = (not done: a reader has the old file)");
        return true;
    }
    return false;
}

static void set_slot(const char *w, int fd, bool writes) {
    result(fd);
    if (fd >= 0) {
        *slot(w) = (struct slot){fd, writes};
    }
}

// ---- Scripts

#define WORDS 12

// A call that a line begins with, and how many words follow it.
struct op {
    const char *name;
    void (*fn)(char **w);
    int words;
};
#define OP(name, words) {#name, op_##name, words}

static bool child; // one that does a line, whose descriptors go with it

static void run_op(char *line, const struct op *table, size_t n_table) {
    char *w[WORDS] = {0}, *save = NULL;
    int n = 0;
    for (char *p = strtok_r(line, " ", &save); p && n < WORDS - 1; p = strtok_r(NULL, " ", &save)) {
        w[n++] = p;
    }
    for (size_t i = 0; i < n_table; i++) {
        if (n > 0 && !strcmp(w[0], table[i].name) && n == table[i].words + 1) {
            errno = 0;
            table[i].fn(w);
            return;
        }
    }
    say(" = (what?)");
}

static void run_forked(char *line, void (*run)(char *line)) {
    int status = 0;
    trace_flush();
    pid_t pid = fork();
    if (pid == 0) {
        child = true;
        run(line);
        trace_flush();
        _exit(7);
    }
    waitpid(pid, &status, 0);
    say("  child");
    say_status(status);
}

static void close_all(void) {
    for (int i = 0; i < SLOTS; i++) {
        if (files[i]) {
            say("end fclose %d", i);
            result(fclose(files[i]));
            say("\n");
            files[i] = NULL;
        }
    }
    for (int fd = 3; fd < FDS; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) {
            say("end close %d", fd);
            result(close(fd));
            say("\n");
        }
    }
    for (int i = 0; i < SLOTS; i++) {
        slots[i] = (struct slot){-1, false};
    }
}

// The sequences on stdin, each in its directory. `begin` may be NULL; `run` does one line.
static void run_script(void (*begin)(void), void (*run)(char *line), void (*end)(void)) {
    static char text[1 << 20], start[4096];
    char *save = NULL;
    size_t n = 0;
    for (ssize_t r; n < sizeof text - 1 && (r = read(0, text + n, sizeof text - 1 - n)) > 0;) {
        n += (size_t)r;
    }
    if (!getcwd(start, sizeof start)) {
        _exit(97);
    }
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (line[0] == '@') {
            if (line != text) {
                end();
            }
            say("%s\n", line);
            if (chdir(start) < 0 || chdir(line + 2) < 0) {
                _exit(96);
            }
            if (begin) {
                begin();
            }
        } else if (line[0] != '#' && strncmp(line, "pre ", 4)) {
            run(line);
        }
    }
    end();
    trace_flush();
}
