// SPDX-License-Identifier: MIT
//
// What name_ops is made of besides its calls: what both of its processes have open, what a listing found, a whole tree
// as text, and the second process. The rest is fuzz_rig.h's.

#pragma once

#include "fuzz_rig.h"

#include <dirent.h>
#include <spawn.h>

#define FOUND_MAX 256
#define PIPES     180 // the second process's pipes: above all descriptors of a script

extern char **environ;
static char *self = "/proc/self/exe", top[4096];
static bool second;

// What is open in either process: both have it in common, but a forked child, whose descriptors go with it.
static struct seen {
    dev_t dev;
    ino_t ino;
    bool open, writes;
} *seen;

static void note(const char *w, bool writes) {
    struct stat st;
    struct seen *s = &seen[(second ? SLOTS : 0) + num(w) % SLOTS];
    if (!child) {
        bool open = fd_of(w) >= 0 && fstat(fd_of(w), &st) == 0;
        *s = (struct seen){open ? st.st_dev : 0, open ? st.st_ino : 0, open, writes};
    }
}

// `strangers`: not by a descriptor that the shim of this process knows.
static bool open_somewhere(const struct stat *st, bool strangers) {
    for (int i = 0; i < 2 * SLOTS; i++) {
        bool known = seen[i].writes && (i >= SLOTS) == second;
        if (seen[i].open && seen[i].dev == st->st_dev && seen[i].ino == st->st_ino && !(strangers && known)) {
            return true;
        }
    }
    return false;
}

// Deviation, left out of both runs (README, "What it does not catch"): who looks at a file that another process is
// still writing may miss its last megabytes.
static bool others_write(dev_t dev, ino_t ino) {
    for (int i = 0; i < SLOTS; i++) {
        const struct seen *s = &seen[(second ? 0 : SLOTS) + i];
        if (s->open && s->writes && s->dev == dev && s->ino == ino) {
            return true;
        }
    }
    return false;
}

// Deviation by design (P3), left out of both runs, as in fuzz_ops: a save over an old file that somebody has open to
// read it leaves that one with the old bytes.
static bool replaces(const char *name, int flags) {
    struct stat st;
    if ((flags & O_ACCMODE) == O_WRONLY && (flags & O_TRUNC) && stat(name, &st) == 0 && open_somewhere(&st, true)) {
        say(" = (not done: a reader has the old file)");
        return true;
    }
    return false;
}

// Deviation, left out of both runs: a directory's times and count of links are the kernel's until what is queued has
// happened.
static void stat_result(int r, struct stat *st) {
    result(r);
    if (r == 0) {
        if (S_ISDIR(st->st_mode)) {
            st->st_nlink = 99;
            st->st_mtim.tv_sec = LONG_AGO;
        }
        st->st_size = others_write(st->st_dev, st->st_ino) ? 0 : st->st_size;
        say_stat(st);
    }
}

// A name whose file is open gets a '?': namefuzz.py says why.
static struct found {
    char *names[FOUND_MAX];
    size_t n;
} found;

static void find(const char *path, const char *name) {
    struct stat st;
    bool is_open = lstat(path, &st) == 0 && S_ISREG(st.st_mode) && open_somewhere(&st, false);
    if (found.n < FOUND_MAX && asprintf(&found.names[found.n], "%s%s", name, is_open ? "?" : "") > 0) {
        found.n++;
    }
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void say_found(void) {
    qsort(found.names, found.n, sizeof *found.names, by_name);
    for (size_t i = 0; i < found.n; i++) {
        say(" %s", found.names[i]);
        free(found.names[i]);
    }
    found.n = 0;
}

static void say_target(const char *name) {
    char buf[256];
    ssize_t n = readlink(name, buf, sizeof buf - 1);
    result(n);
    say(" %.*s", n > 0 ? (int)n : 0, buf);
}

// All that is under a directory, each inode's names marked with the same number.
static void say_tree(const char *path, const char *shown) {
    static ino_t inodes[FOUND_MAX];
    static size_t n_inodes;
    char *list[FOUND_MAX], below[4500], said[4500];
    size_t n = 0;
    n_inodes = path == shown ? 0 : n_inodes;
    DIR *d = opendir(path);
    for (struct dirent *e; d && n < FOUND_MAX && (e = readdir(d)) != NULL;) {
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) {
            list[n++] = strdup(e->d_name);
        }
    }
    if (d) {
        closedir(d);
    }
    qsort(list, n, sizeof *list, by_name);
    for (size_t i = 0; i < n; free(list[i++])) {
        struct stat st;
        snprintf(below, sizeof below, "%s/%s", path, list[i]);
        snprintf(said, sizeof said, "%s/%s", path == shown ? "" : shown, list[i]);
        say("  %s:", said + 1);
        if (lstat(below, &st) < 0) {
            result(-1);
        } else {
            size_t k = 0;
            say_stat(&st);
            while (k < n_inodes && inodes[k] != st.st_ino) {
                k++;
            }
            n_inodes += k == n_inodes && n_inodes < FOUND_MAX - 1;
            inodes[k] = st.st_ino;
            say(" i%zu", k);
            if (S_ISREG(st.st_mode)) {
                say_content(below);
            }
            if (S_ISDIR(st.st_mode)) {
                say(st.st_mtim.tv_sec < LONG_AGO ? " untouched" : "");
            }
        }
        say("\n");
        if (S_ISDIR(st.st_mode)) {
            say_tree(below, said);
        }
    }
}

static void say_link(const char *name) {
    struct stat st;
    say("  %s:", name);
    stat_result(lstat(name, &st), &st);
    say_target(name);
    say("\n");
}

// ---- The second process

// A line for the second process; what it has said is ours.
static void tell(const char *line) {
    static char buf[1 << 14];
    dprintf(PIPES + 1, "%s\n", line);
    for (ssize_t n; (n = read(PIPES, buf, sizeof buf - 1)) > 0;) {
        bool last = buf[n - 1] == '\0';
        buf[n] = '\0';
        say("%s", buf);
        if (last) {
            return;
        }
    }
    say(" (the second process is gone)\n");
    trace_flush();
    _exit(94);
}

static void start_second(int shared) {
    posix_spawn_file_actions_t a;
    int to[2], from[2];
    pid_t pid;
    if (pipe(to) < 0 || pipe(from) < 0) {
        _exit(93);
    }
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_adddup2(&a, to[0], PIPES);
    posix_spawn_file_actions_adddup2(&a, from[1], 1);
    posix_spawn_file_actions_adddup2(&a, shared, PIPES + 2);
    for (int fd = 3; fd < FDS; fd++) {
        if (fd == to[0] || fd == to[1] || fd == from[0] || fd == from[1] || fd == shared) {
            posix_spawn_file_actions_addclose(&a, fd);
        }
    }
    if (posix_spawn(&pid, self, &a, NULL, (char *[]){self, "-b", NULL}, environ) != 0) {
        _exit(92);
    }
    dup3(from[0], PIPES, O_CLOEXEC);
    dup3(to[1], PIPES + 1, O_CLOEXEC);
    close(to[0]), close(to[1]), close(from[0]), close(from[1]), close(shared);
}
