// SPDX-License-Identifier: MIT
//
// policy: matching names and finding their directories. Raw system calls and text only; no state of the process, so
// that unit tests can link it.

#include "policy.h"

#include "../core/log.h"
#include "../core/os.h"
#include "../core/path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/statfs.h>

#define LINKS_MAX 40 // as the kernel's

// The absolute path of a directory. Its length, or an error; one outside our root ("(unreachable)...") has none.
static long directory_text(int dirfd, char *buf, size_t cap) {
    long n;
    if (dirfd == AT_FDCWD) {
        n = OS_CALL(SYS_getcwd, buf, cap, 0, 0, 0, 0);
    } else {
        char link[32];
        log_format(link, sizeof link, "/proc/self/fd/%d", dirfd);
        n = os_readlinkat(AT_FDCWD, link, buf, cap - 1);
        if (n >= 0) {
            buf[n] = '\0';
        }
    }
    return n < 0 ? n : buf[0] == '/' ? n : -ENOENT;
}

int policy_text(int dirfd, const char *path, char *buf, size_t cap) {
    char dir[PATH_MAX];
    if (path[0] == '/') {
        return path_normalise("/", path, buf, cap);
    }
    long n = directory_text(dirfd, dir, sizeof dir);
    return n < 0 ? (int)n : path_normalise(dir, path, buf, cap);
}

bool policy_match(const char *patterns, int dirfd, const char *path) {
    char text[PATH_MAX];
    return policy_text(dirfd, path, text, sizeof text) > 0 && path_match(patterns, text);
}

bool policy_match_in(const char *patterns, int dir, const char *name) {
    char text[PATH_MAX + NAME_CAP];
    long n = directory_text(dir, text, PATH_MAX);
    if (n < 0) {
        return false;
    }
    if (n > 1) {
        text[n++] = '/';
    }
    memcpy(text + n, name, strlen(name) + 1);
    return path_match(patterns, text);
}

void place_close(struct place *p) {
    if (p->dir >= 0) {
        os_close(p->dir);
    }
    p->dir = -1;
}

// The place of `path` without looking at its last component.
static int enter(struct place *p, int dirfd, const char *path) {
    char parent[PATH_MAX];
    size_t len = strnlen(path, PATH_MAX);
    if (len == PATH_MAX) {
        return -ENAMETOOLONG;
    }
    const char *base = path + len;
    while (base > path && base[-1] != '/') {
        base--;
    }
    size_t n = len - (size_t)(base - path);
    if (n == 0 || strcmp(base, ".") == 0 || strcmp(base, "..") == 0) {
        return -EISDIR;
    }
    if (n >= NAME_CAP) {
        return -ENAMETOOLONG;
    }
    memcpy(parent, path, (size_t)(base - path));
    strcpy(parent + (base - path), base == path ? "." : "");
    int dir = os_openat(dirfd, parent, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    if (dir < 0) {
        return dir;
    }
    struct stat st;
    int r = os_fstat(dir, &st);
    if (r < 0) {
        os_close(dir);
        return r;
    }
    p->dir = dir;
    p->linked = false;
    p->dev = st.st_dev;
    p->ino = st.st_ino;
    p->mode = st.st_mode;
    memcpy(p->name, base, n + 1);
    return 0;
}

bool place_in_proc(const struct place *p) {
    struct statfs fs;
    return OS_CALL(SYS_fstatfs, p->dir, &fs, 0, 0, 0, 0) < 0 || fs.f_type == PROC_SUPER_MAGIC;
}

int place_find(struct place *p, int dirfd, const char *path, bool follow, place_stop *stop) {
    int r = enter(p, dirfd, path);
    for (int links = 0; follow && r == 0 && (stop == NULL || !stop(p)); links++) {
        char target[PATH_MAX];
        ssize_t n = os_readlinkat(p->dir, p->name, target, sizeof target - 1);
        if (n < 0) {
            return 0; // no symlink, or nothing yet
        }
        if (n == 0 || n == (ssize_t)sizeof target - 1 || links == LINKS_MAX || place_in_proc(p)) {
            place_close(p); // the links of /proc are no text
            return -ELOOP;
        }
        target[n] = '\0';
        struct place next;
        r = enter(&next, p->dir, target);
        place_close(p);
        if (r == 0) {
            next.linked = true;
            *p = next;
        }
    }
    return r;
}
