// SPDX-License-Identifier: MIT
//
// way: see way.h. A walk component by component, as the kernel's: only taken where the kernel has refused a path, or
// where a directory or a symlink is going to be deleted.

#include "way.h"

#include "../core/os.h"
#include "client.h"
#include "namecalls.h"
#include "starved.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/statfs.h>

#define LINKS_MAX 40 // as the kernel's

struct walk {
    int dir;
    int links;
    bool slash; // something follows the component in hand
    size_t at;  // what is left of the path
    char path[2 * PATH_MAX];
    char name[NAME_CAP];
};

static void move(struct walk *w, int dir) {
    if (w->dir >= 0) {
        os_close(w->dir);
    }
    w->dir = dir;
}

// Takes the next component. False: there is none, or none that could exist.
static bool next(struct walk *w) {
    w->at += strspn(w->path + w->at, "/");
    size_t n = strcspn(w->path + w->at, "/");
    if (n == 0 || n >= NAME_CAP) {
        return false;
    }
    memcpy(w->name, w->path + w->at, n);
    w->name[n] = '\0';
    w->at += n;
    w->slash = w->path[w->at] == '/';
    return true;
}

static bool is_last(const struct walk *w) {
    return w->path[w->at + strspn(w->path + w->at, "/")] == '\0';
}

// What an open says of the walk: go on, what comes is the kernel's, or we cannot know.
static int entered(int fd) {
    return fd >= 0 ? 1 : starved(fd) ? fd : 0;
}

// Puts the target of the symlink `name` in front of what is left. 0: the kernel's to say what is wrong with it.
static int follow_link(struct walk *w) {
    char target[PATH_MAX];
    struct statfs fs;
    ssize_t n = os_readlinkat(w->dir, w->name, target, sizeof target);
    size_t left = strlen(w->path + w->at) + 1;
    if (n <= 0 || n == (ssize_t)sizeof target || (size_t)n + left > sizeof w->path || ++w->links > LINKS_MAX ||
        OS_CALL(SYS_fstatfs, w->dir, &fs, 0, 0, 0, 0) < 0 || fs.f_type == PROC_SUPER_MAGIC) {
        return 0;
    }
    memmove(w->path + n, w->path + w->at, left);
    memcpy(w->path, target, (size_t)n);
    w->at = 0;
    if (target[0] == '/') {
        move(w, os_openat(AT_FDCWD, "/", O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
    }
    return entered(w->dir);
}

// One component that is passed through. 1: go on; 0: what comes is the kernel's; or an error.
static int step(struct walk *w, bool passed) {
    struct stat st;
    struct place p = {.dir = w->dir};
    if (strcmp(w->name, ".") == 0) {
        return 1;
    }
    if (os_fstat(w->dir, &st) < 0) {
        return 0;
    }
    if (strcmp(w->name, "..") != 0) {
        p.dev = st.st_dev;
        p.ino = st.st_ino;
        memcpy(p.name, w->name, sizeof p.name);
        uint64_t word = names_word(&p);
        enum name_state s = word != 0 ? name_word_state(word) : NAME_NONE;
        if (names_gone(word)) {
            return passed ? -ENOENT : 0; // the caller has the word of the last one
        }
        if (s == NAME_OPEN || s == NAME_PENDING) {
            return passed ? -ENOTDIR : 0;
        }
    }
    int fd = os_openat(w->dir, w->name, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0);
    if (fd < 0) {
        return entered(fd);
    }
    if (os_fstat(fd, &st) < 0) {
        os_close(fd);
        return 0;
    }
    if (S_ISLNK(st.st_mode)) {
        os_close(fd);
        return follow_link(w);
    }
    move(w, fd);
    return S_ISDIR(st.st_mode);
}

int way_check(int dirfd, const char *path, enum way_end end) {
    struct walk w = {.dir = -1};
    size_t len = strnlen(path, PATH_MAX);
    if (len == 0 || len == PATH_MAX) {
        return 0;
    }
    memcpy(w.path, path, len + 1);
    bool absolute = path[0] == '/';
    w.dir = os_openat(absolute ? AT_FDCWD : dirfd, absolute ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    int r = entered(w.dir);
    while (r == 1 && next(&w)) {
        bool last = is_last(&w);
        if (last && (end == WAY_PARENTS || (end == WAY_LINK && !w.slash))) {
            break;
        }
        bool passed = !last || w.slash || end == WAY_ALL;
        r = step(&w, passed);
    }
    move(&w, -1);
    return r < 0 ? r : 0;
}

bool way_may_differ(void) {
    const struct tables *t = client_tables();
    return t != NULL && atomic_load_explicit(&t->ways_gone, memory_order_acquire) != 0;
}
