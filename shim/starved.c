// SPDX-License-Identifier: MIT
//
// starved: see starved.h. Everything here goes by text and stat: nothing is opened.

#include "starved.h"

#include "../core/os.h"
#include "fdtable.h"
#include "file.h"
#include "namecalls.h"
#include "way.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>

#define LINKS_MAX 40 // as the kernel's

static void publish_in(const struct stat *dir) {
    names_publish_dir(dir);
    names_wait(WAIT_ALL); // whether it failed, the kernel's answer is the right one
}

void starved_place(const struct place *p) {
    guard_depth++;
    publish_in(&(struct stat){.st_dev = p->dev, .st_ino = p->ino});
    guard_depth--;
}

// A link of /proc may lead to what has no name yet.
static void publish_inode(int dirfd, const char *path) {
    struct stat st;
    struct file *f = os_fstatat(dirfd, path, &st, 0) == 0 ? file_by_inode(st.st_dev, st.st_ino, true) : NULL;
    if (f != NULL && !f->followed && !f->inherited && !f->dropped) {
        file_release(f, fd_of(f)); // its error is for its own calls
    }
}

// Publishes what stands at `path`, whose last component is not followed. Its directory goes to `dir`. False: there is
// no such place.
static bool publish_name(int dirfd, const char *path, char dir[PATH_MAX]) {
    struct place p = {.dir = -1};
    struct stat st;
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    size_t n = (size_t)(name - path);
    memcpy(dir, path, n);
    memcpy(dir + n, n > 0 ? "" : ".", n > 0 ? 1 : 2);
    if (name[0] == '\0' || strlen(name) >= sizeof p.name || os_fstatat(dirfd, dir, &st, 0) < 0) {
        return false;
    }
    p.dev = st.st_dev;
    p.ino = st.st_ino;
    memcpy(p.name, name, strlen(name) + 1);
    if (names_word(&p) != 0) {
        publish_in(&st);
    }
    return true;
}

// The path that the symlink `path`, in `dir`, leads to, in its place. False: it is none.
static bool follow_link(int dirfd, char path[PATH_MAX], const char *dir) {
    char target[PATH_MAX];
    ssize_t n = os_readlinkat(dirfd, path, target, sizeof target);
    size_t at = n > 0 && target[0] != '/' ? strlen(dir) : 0;
    if (n <= 0 || n == (ssize_t)sizeof target || at + 1 + (size_t)n >= PATH_MAX) {
        return false;
    }
    memcpy(path, dir, at);
    if (at > 0) {
        path[at++] = '/';
    }
    memcpy(path + at, target, (size_t)n);
    path[at + (size_t)n] = '\0';
    return true;
}

void starved_path(int dirfd, const char *path, bool follow) {
    char at[PATH_MAX], dir[PATH_MAX];
    size_t len = strnlen(path, PATH_MAX);
    if (len == 0 || len == PATH_MAX) {
        return;
    }
    guard_depth++;
    memcpy(at, path, len + 1);
    struct stat st;
    if (way_may_differ() || os_fstatat(dirfd, path, &st, AT_SYMLINK_NOFOLLOW) == -ENOTDIR) {
        names_wait(WAIT_ALL); // it leads through what is queued
    }
    for (int links = 0; links <= LINKS_MAX; links++) {
        if (!publish_name(dirfd, at, dir)) {
            names_wait(WAIT_ALL); // "a/", or a directory that is not there yet
            break;
        }
        if (!follow || !follow_link(dirfd, at, dir)) {
            break;
        }
    }
    publish_inode(dirfd, path);
    guard_depth--;
}
