// SPDX-License-Identifier: MIT
//
// reopen: see reopen.h. The way back to the older inode is a real open of the name, as the program's own would have
// been: truncated, then the bytes so far, then put onto every descriptor of the file. Other processes that hold the
// shadow keep it.

#include "reopen.h"

#include "../core/log.h"
#include "../core/os.h"
#include "capture.h"
#include "fdtable.h"
#include "lost.h"
#include "namecalls.h"

#include <errno.h>
#include <fcntl.h>

// How the program opened it, as far as the kernel still knows.
#define FLAGS_AGAIN (O_ACCMODE | O_APPEND | O_NONBLOCK | O_NOATIME | O_NOFOLLOW)

// The bytes and the offset of `fd` to the inode open as `to`. 0 or an error.
static int move_bytes(int fd, int to) {
    char link[32];
    log_format(link, sizeof link, "/proc/self/fd/%d", fd);
    int from = os_openat(AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
    if (from < 0) {
        return from;
    }
    long n;
    do {
        n = OS_CALL(SYS_sendfile, to, from, NULL, 1 << 30, 0, 0);
    } while (n > 0);
    os_close(from);
    // The shadow took after the old file: where they differ now, the program has changed it.
    struct stat st, old;
    if (os_fstat(fd, &st) == 0 && os_fstat(to, &old) == 0) {
        if (st.st_uid != old.st_uid || st.st_gid != old.st_gid) {
            OS_CALL(SYS_fchown, to, st.st_uid, st.st_gid, 0, 0, 0);
        }
        if (((st.st_mode ^ old.st_mode) & 07777) != 0) {
            OS_CALL(SYS_fchmod, to, st.st_mode & 07777, 0, 0, 0, 0);
        }
    }
    off_t at = n < 0 ? n : os_lseek(fd, 0, SEEK_CUR);
    at = at < 0 ? at : os_lseek(to, at, SEEK_SET);
    return at < 0 ? (int)at : 0;
}

// Every descriptor of `f` becomes one of `to`'s description.
static void replace_all(struct file *f, int to) {
    for (int fd = 0; fd < fd_limit(); fd++) {
        if (fd_peek(fd) != f || fd_get(fd, true) != f) {
            continue;
        }
        int flags = os_fcntl(fd, F_GETFD, 0);
        fd_forget(fd);
        OS_CALL(SYS_dup3, to, fd, flags > 0 && (flags & FD_CLOEXEC) ? O_CLOEXEC : 0, 0, 0, 0);
    }
}

// 0; 1: not possible here (publish it as it is); or an error.
static int reopen_old(struct file *f, int fd) {
    int r = file_settle(f, fd);
    int dir = r < 0 ? r : lost_pin_dir(f);
    if (r < 0 || dir < 0) {
        return r < 0 ? r : 1;
    }
    r = names_wait(WAIT_CHANGE); // its truncation deletes
    struct stat st;
    if (r == 0 && (os_fstatat(dir, f->name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode) ||
                   (st.st_dev == f->dev && st.st_ino == f->ino))) { // published already, for another process
        r = 1;
    }
    if (r == 0) {
        int flags = os_fcntl(fd, F_GETFL, 0) & FLAGS_AGAIN;
        int to = os_openat(dir, f->name, flags | O_TRUNC | O_CLOEXEC, 0);
        r = to < 0 || move_bytes(fd, to) < 0 || file_drop(f) < 0;
        if (r == 0) {
            struct timespec ts[2] = {f->atime, f->mtime};
            if (f->times_set) {
                OS_CALL(SYS_utimensat, to, NULL, ts, 0, 0, 0);
            }
            char name[NAME_CAP];
            log_format(name, sizeof name, "%s", f->name);
            atomic_fetch_add(&f->refs, 1);
            replace_all(f, to);
            capture_follow(fd, dir, name, flags | O_TRUNC, NULL);
            lost_unpin_dir(f);
            file_put(f);
        }
        if (to >= 0) {
            os_close(to);
        }
        if (r == 0) {
            return 0;
        }
    }
    lost_unpin_dir(f);
    return r;
}

// A shadow that another process has captured, and that came here by fork, exec or a socket: the engine links it.
static int link_shared(int fd) {
    struct stat st;
    if (names_native() || guard_foreign() || os_fstat(fd, &st) < 0 || st.st_nlink > 0 || !S_ISREG(st.st_mode)) {
        return 0;
    }
    guard_depth++;
    int r = client_connect() < 0 ? 0 : names_link_inode(fd);
    guard_depth--;
    return r == -EPIPE || r > 0 ? 0 : r;
}

int reopen_before_lock(int fd) {
    struct file *f = fd_peek(fd) != NULL ? fd_get(fd, true) : NULL;
    if (f == NULL || f->inherited) {
        return link_shared(fd);
    }
    if (f->followed) {
        return 0;
    }
    if (f->replaces && !f->published && !f->dropped && !f->lost) {
        int r = reopen_old(f, fd);
        if (r <= 0) {
            return r;
        }
    }
    return f->native && !f->log ? 0 : file_release(f, fd);
}
