// SPDX-License-Identifier: MIT
//
// shadow: see shadow.h. Whatever cannot be copied exactly makes the file native: a published file has to look as if the
// program had written over the old one (design, P2).

#include "shadow.h"

#include "../core/fs.h"
#include "../core/log.h"
#include "../core/os.h"
#include "creds.h"
#include "locked.h"
#include "own.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#define XATTR_BYTES 4096 // more than this in one list or value: native

// Inode flags that a program can set, and that change what a file is: they have to be the same.
#define FLAGS_KEPT                                                                                                     \
    (FS_SECRM_FL | FS_UNRM_FL | FS_COMPR_FL | FS_SYNC_FL | FS_IMMUTABLE_FL | FS_APPEND_FL | FS_NODUMP_FL |             \
     FS_NOATIME_FL | FS_NOCOMP_FL | FS_JOURNAL_DATA_FL | FS_NOTAIL_FL | FS_NOCOW_FL | FS_PROJINHERIT_FL)

bool shadow_useless_fs(int dir) {
    const struct fs_type *t = fs_of(dir);
    return !t || (t->traits & FS_NATIVE);
}

// Has anybody, of whatever process, the file open for writing? Then the kernel refuses a lease on it. One that is given
// goes back at once; who opens the file in between waits until then, and has the signal of a broken lease sent to us:
// one that nobody minds in the place of SIGIO, which kills. What cannot be asked (a file of another's or without read
// permission, a file system without leases; one of a network gives them by other rules) counts as no.
static bool is_written(const struct place *p) {
    int fd = os_openat(p->dir, p->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
    if (fd < 0) {
        return false;
    }
    int r = os_fcntl(fd, F_SETSIG, SIGURG);
    r = r < 0 ? r : os_fcntl(fd, F_SETLEASE, F_RDLCK);
    if (r == 0) {
        os_fcntl(fd, F_SETLEASE, F_UNLCK);
    }
    const struct fs_type *t = r == -EAGAIN ? fs_of(fd) : NULL;
    os_close(fd);
    return t != NULL && !(t->traits & FS_NETWORK);
}

// One extended attribute. 0, or an error: then the two files would differ.
static int copy_xattr(int from, int to, const char *name) {
    char value[XATTR_BYTES], has[XATTR_BYTES];
    long n = OS_CALL(SYS_fgetxattr, from, name, value, sizeof value, 0, 0);
    if (n < 0) {
        return (int)n;
    }
    long m = OS_CALL(SYS_fgetxattr, to, name, has, sizeof has, 0, 0);
    if (m == n && memcmp(value, has, (size_t)n) == 0) {
        return 0; // a label that the directory gives: setting it may not be allowed
    }
    return (int)OS_CALL(SYS_fsetxattr, to, name, value, n, 0, 0);
}

static int copy_xattrs(int from, int to) {
    char list[XATTR_BYTES];
    long n = OS_CALL(SYS_flistxattr, from, list, sizeof list, 0, 0, 0);
    if (n == -EOPNOTSUPP) {
        return 0;
    }
    // The directory's default ACL is for new files; what the old file has of it comes with its own attributes.
    long r = n < 0 ? n : OS_CALL(SYS_fremovexattr, to, "system.posix_acl_access", 0, 0, 0, 0);
    if (n < 0 || (r < 0 && r != -ENODATA && r != -EOPNOTSUPP)) {
        return (int)r;
    }
    for (char *name = list; name < list + n; name += strlen(name) + 1) {
        if (strcmp(name, "security.capability") == 0 || strcmp(name, "security.ima") == 0 ||
            strcmp(name, "security.evm") == 0) {
            return -EOPNOTSUPP; // the kernel drops or computes these when a file is written
        }
        int e = copy_xattr(from, to, name);
        if (e < 0) {
            return e;
        }
    }
    return 0;
}

// Gives `to` the owner, group, inode flags, attributes and mode of `from`. 0 or an error.
static int copy_meta(int from, const struct stat *st, int to) {
    struct stat now;
    long flags = 0, have = 0;
    int r = os_fstat(to, &now);
    if (r == 0 && (now.st_uid != st->st_uid || now.st_gid != st->st_gid)) {
        r = (int)OS_CALL(SYS_fchown, to, st->st_uid, st->st_gid, 0, 0, 0);
    }
    if (r == 0 && OS_CALL(SYS_ioctl, from, FS_IOC_GETFLAGS, &flags, 0, 0, 0) == 0 &&
        OS_CALL(SYS_ioctl, to, FS_IOC_GETFLAGS, &have, 0, 0, 0) == 0 && ((flags ^ have) & FLAGS_KEPT) != 0) {
        return -EOPNOTSUPP;
    }
    if (r == 0) {
        r = copy_xattrs(from, to);
    }
    // Last: a change of owner drops bits, an ACL sets the group's.
    return r < 0 ? r : (int)OS_CALL(SYS_fchmod, to, st->st_mode & 07777, 0, 0, 0, 0);
}

static uint64_t hidden_number(const struct place *p) {
    static _Atomic uint64_t counter;
    uint64_t salt[] = {(uint64_t)os_getpid(), (uint64_t)os_now_ns(CLOCK_REALTIME), ++counter, p->ino};
    return fnv1a(fnv1a(FNV1A_INIT, p->name, strlen(p->name)), salt, sizeof salt);
}

// The inode itself, at the lowest free descriptor.
static int make_inode(const struct place *p, int flags, mode_t mode, char *hidden) {
    hidden[0] = '\0';
    flags &= ~(O_CREAT | O_EXCL | O_TRUNC); // the rest is what F_GETFL says
    int fd = os_openat(p->dir, ".", flags | O_TMPFILE, mode);
    if (fd != -EOPNOTSUPP && fd != -EISDIR && fd != -ENOENT && fd != -EINVAL) {
        return fd;
    }
    if (fs_dir_only_grows(p->dir)) {
        return -EPERM; // the hidden name could not go again
    }
    log_format(hidden, NAME_CAP, ".fastckpt-%lx", (unsigned long)hidden_number(p));
    return os_openat(p->dir, hidden, flags | O_CREAT | O_EXCL | O_NOFOLLOW, mode);
}

void shadow_drop(const struct place *p, struct shadow *s) {
    if (s->hidden[0] != '\0') {
        os_unlinkat(p->dir, s->hidden, 0);
    }
    os_close(s->fd);
    shadow_forget_old(s);
}

void shadow_forget_old(struct shadow *s) {
    if (s->old >= 0) {
        os_close(s->old);
    }
    s->old = -1;
}

// Would the kernel let this thread put another file in the place of one that is `st`? Where there is no sticky bit the
// new one is given the owner of the old, and that is where it says so.
static bool is_ours(const struct place *p, const struct stat *st) {
    if (p->mode & S_ISVTX) {
        return creds_own(st->st_uid);
    }
    uid_t euid = creds_euid();
    return st->st_uid == euid || euid == 0;
}

// Can what stands under the name be replaced without anybody noticing?
static bool replaceable(const struct place *p, const struct stat *st) {
    return S_ISREG(st->st_mode) && st->st_size > 0 && st->st_nlink == 1 && (st->st_mode & (S_ISUID | S_ISGID)) == 0 &&
           is_ours(p, st);
}

// Opens the old file as the program would, without truncating it: the errors of its open come from here. A high
// descriptor, SHADOW_NATIVE, or the error.
static int open_old(const struct place *p, const struct stat *seen, int flags) {
    struct stat st;
    int old = os_openat(p->dir, p->name, (flags & ~(O_TRUNC | O_CREAT)) | O_NOFOLLOW | O_CLOEXEC, 0);
    if (old == -ENOENT || old == -ELOOP) {
        return SHADOW_NATIVE; // changed under our eyes
    }
    old = old < 0 ? old : own_high(old);
    if (old >= 0 && (os_fstat(old, &st) < 0 || st.st_dev != seen->st_dev || st.st_ino != seen->st_ino)) {
        os_close(old);
        return SHADOW_NATIVE;
    }
    return old;
}

// The same for the inode of `base`.
static int open_base(int base, int flags) {
    char path[64];
    log_format(path, sizeof path, "/proc/self/fd/%d", base);
    int old = os_openat(AT_FDCWD, path, (flags & ~(O_TRUNC | O_CREAT | O_NOFOLLOW)) | O_CLOEXEC, 0);
    return old < 0 ? old : own_high(old);
}

// A shadow that replaces the inode open as `old`, which becomes the shadow's.
static int make_over(const struct place *p, int old, const struct stat *st, int flags, struct shadow *s) {
    s->old = old;
    s->fd = make_inode(p, flags, 0600, s->hidden);
    int r = s->fd < 0 ? s->fd : copy_meta(old, st, s->fd);
    if (s->fd < 0) {
        shadow_forget_old(s);
    } else if (r < 0) {
        shadow_drop(p, s);
    }
    s->replaces = r >= 0;
    // Natively it would be truncated, but that needs no space: the old file stays (P6). Else, a directory that is not
    // writable, an attribute that cannot be given: the native open may still succeed.
    return r >= 0 ? 0 : r == -ENOSPC || r == -EDQUOT ? r : SHADOW_NATIVE;
}

int shadow_make(const struct place *p, int base, bool gone, int flags, mode_t mode, struct shadow *s) {
    struct stat st;
    int r = gone ? -ENOENT : base >= 0 ? os_fstat(base, &st) : os_fstatat(p->dir, p->name, &st, AT_SYMLINK_NOFOLLOW);
    s->replaces = false;
    s->old = -1;
    if (r == -ENOENT && (flags & O_CREAT)) {
        s->fd = make_inode(p, flags, mode, s->hidden);
        return s->fd < 0 ? SHADOW_NATIVE : 0;
    }
    if (r < 0 || fs_dir_only_grows(p->dir)) {
        return SHADOW_NATIVE;
    }
    if (locked_inode(&st)) {
        return SHADOW_NATIVE; // to look at it would end the lock
    }
    if (base >= 0 && (st.st_nlink > 1 || (st.st_mode & (S_ISUID | S_ISGID)) != 0 || !is_ours(p, &st))) {
        return SHADOW_NATIVE; // renamed, and no new file's; or the kernel is to say
    }
    if (base < 0 && !replaceable(p, &st)) {
        return SHADOW_NATIVE;
    }
    if (base < 0 && is_written(p)) {
        return SHADOW_WRITTEN;
    }
    int old = base >= 0 ? open_base(base, flags) : open_old(p, &st, flags);
    return old < 0 ? old : make_over(p, old, &st, flags, s);
}
