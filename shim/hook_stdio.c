// SPDX-License-Identifier: MIT
//
// hook_stdio: FILE streams. A FILE stands on a real descriptor; glibc's own writes go straight to the inode (design
// 5), so only opening, closing and moving need us. The one place that may call stdio, through real.* alone.

#include "hook_stdio.h"

#include "capture.h"
#include "hook_inside.h"
#include "namecalls.h"

#include <string.h>

// The FILE on a captured descriptor, for the flush at exit. A stale one is a FILE that was never closed: still memory.
static FILE *_Atomic streams[FDTABLE_MAX];

static int number(FILE *fp) {
    int saved = errno;
    int fd = fp != NULL ? fileno_unlocked(fp) : -1;
    errno = saved;
    return fd;
}

static FILE *attach(FILE *fp) {
    int fd = number(fp);
    struct file *f = hook_captured(fd);
    if (f != NULL) {
        f->stdio = true;
        atomic_store_explicit(&streams[fd], fp, memory_order_release);
    }
    return fp;
}

void stdio_flush_captured(void) {
    for (int fd = 0; fd < fd_limit(); fd++) {
        FILE *fp = atomic_load_explicit(&streams[fd], memory_order_acquire);
        // A thread that is inside this FILE for ever must not hold up the end of the process.
        if (fp != NULL && hook_captured(fd) != NULL && ftrylockfile(fp) == 0) {
            real.fflush_unlocked(fp);
            funlockfile(fp);
        }
    }
}

// The open flags of a mode, or -1: glibc says what is wrong with it.
static int mode_flags(const char *mode) {
    int flags = mode[0] == 'r' ? 0 : mode[0] == 'w' ? O_CREAT | O_TRUNC : mode[0] == 'a' ? O_CREAT | O_APPEND : -1;
    int access = mode[0] == 'r' ? O_RDONLY : O_WRONLY;
    if (flags < 0) {
        return -1;
    }
    for (const char *m = mode + 1; *m != '\0' && *m != ',' && m < mode + 7; m++) {
        access = *m == '+' ? O_RDWR : access;
        flags |= *m == 'x' ? O_EXCL : *m == 'e' ? O_CLOEXEC : 0;
    }
    return flags | access;
}

static FILE *on_descriptor(long fd, const char *mode) {
    if (fd < 0) {
        hook_ret(fd);
        return NULL;
    }
    if (mode[0] == 'a' && strchr(mode, '+') == NULL) {
        os_lseek((int)fd, 0, SEEK_END); // as fopen does
    }
    FILE *fp = REAL(fdopen) != NULL ? real.fdopen((int)fd, mode) : NULL;
    if (fp == NULL) {
        int saved = errno;
        struct file *f = hook_captured((int)fd);
        if (f != NULL) {
            fd_before_close((int)fd, f);
        }
        os_close((int)fd);
        errno = saved;
    }
    return attach(fp);
}

FILE *hook_fopen(const char *path, const char *mode) {
    int flags = path != NULL && mode != NULL ? mode_flags(mode) : -1;
    struct lent lent;
    // "ccs=" is native: only glibc knows the character set.
    if (flags >= 0 && (flags & O_ACCMODE) != O_RDONLY && strchr(mode, ',') == NULL) {
        long fd = capture_open(AT_FDCWD, path, flags, 0666, __builtin_return_address(0));
        if (fd != CAPTURE_NATIVE) {
            return on_descriptor(fd, mode);
        }
    }
    int r = flags >= 0 && !names_native() ? names_before_open(AT_FDCWD, path, flags, &lent) : 0;
    if (UNLIKELY(r < 0)) {
        hook_ret(r);
        return NULL;
    }
    FILE *fp = REAL(fopen) != NULL ? real.fopen(UNLIKELY(r > 0) ? lent.path : path, mode) : NULL;
    if (UNLIKELY(r > 0)) {
        names_opened(&lent);
        names_return(&lent);
    }
    return fp;
}

FILE *hook_fdopen(int fd, const char *mode) {
    struct file *f = hook_captured(fd);
    if (UNLIKELY(f != NULL)) {
        file_settle(f, fd); // the FILE's own writes come behind ours
        f->native |= mode != NULL && mode[0] == 'a'; // libc sets O_APPEND
    }
    FILE *fp = REAL(fdopen) != NULL ? real.fdopen(fd, mode) : NULL;
    return UNLIKELY(f != NULL) ? attach(fp) : fp;
}

// Before a FILE lets its descriptor go. Returns the file's known error.
static int before_end(FILE *fp, int fd) {
    if ((unsigned)fd >= FDTABLE_MAX) {
        return 0;
    }
    if (UNLIKELY(atomic_load_explicit(&streams[fd], memory_order_relaxed) == fp)) {
        atomic_store_explicit(&streams[fd], NULL, memory_order_relaxed);
    }
    struct file *f = hook_captured(fd);
    if (LIKELY(f == NULL)) {
        return 0;
    }
    int saved = errno;
    flockfile(fp);
    real.fflush_unlocked(fp); // its error comes again from the real call
    funlockfile(fp);
    errno = saved;
    return fd_before_close(fd, f);
}

// Opens the new name natively: reopening keeps the descriptor's number, which a shadow could not.
FILE *hook_freopen(const char *path, const char *mode, FILE *fp) {
    int flags = path != NULL && mode != NULL ? mode_flags(mode) : -1;
    struct lent lent;
    int lending = 0;
    before_end(fp, number(fp));
    if (path == NULL && !names_native()) {
        names_wait(WAIT_CLIENT, -1); // the same inode in another mode: it stands under its name by then
    }
    if (flags >= 0 && !names_native()) {
        lending = names_before_open(AT_FDCWD, path, flags, &lent);
        if (lending == 0 && (flags & O_TRUNC) && policy_match(shim.config.paths, AT_FDCWD, path)) {
            lending = names_wait(WAIT_ALL, -1);
        }
    }
    // A failed freopen has closed the stream all the same: the empty name fails.
    const char *name = lending < 0 ? "" : lending > 0 ? lent.path : path;
    FILE *ret = REAL(freopen) != NULL ? real.freopen(name, mode, fp) : NULL;
    if (lending < 0) {
        hook_ret(lending);
        return NULL;
    }
    if (lending > 0) {
        names_return(&lent);
    } else if (ret != NULL && flags >= 0 && (flags & O_ACCMODE) != O_RDONLY) {
        capture_follow(number(ret), AT_FDCWD, path, flags, __builtin_return_address(0));
        attach(ret);
    }
    return ret;
}

int hook_fclose(FILE *fp) {
    int fd = number(fp);
    int err = before_end(fp, fd);
    int r = REAL(fclose) != NULL ? real.fclose(fp) : EOF;
    if (UNLIKELY(err < 0) && r == 0) {
        hook_ret(err);
        return EOF;
    }
    return r;
}

// Only counted: libc's own write is in the inode already.
static int flushed(int r, FILE *fp) {
    if (UNLIKELY(fd_limit() > 0) && r == 0 && fp != NULL) {
        int fd = number(fp);
        struct file *f = hook_captured(fd);
        if (UNLIKELY(f != NULL) && !f->native && !f->log) {
            file_count_flush(f, fd);
        }
    }
    return r;
}

int hook_fflush(FILE *fp) {
    return REAL(fflush) != NULL ? flushed(real.fflush(fp), fp) : EOF;
}

int hook_fflush_unlocked(FILE *fp) {
    return REAL(fflush_unlocked) != NULL ? flushed(real.fflush_unlocked(fp), fp) : EOF;
}

// glibc seeks and then writes by itself, invisibly: nothing of ours may be left behind it.
static void before_seek(FILE *fp) {
    int fd = number(fp);
    struct file *f = hook_captured(fd);
    if (UNLIKELY(f != NULL)) {
        file_settle(f, fd); // its error is for write, fsync and close
    }
}

int hook_fseek(FILE *fp, long off, int whence) {
    before_seek(fp);
    return REAL(fseek) != NULL ? real.fseek(fp, off, whence) : -1;
}

void hook_rewind(FILE *fp) {
    before_seek(fp);
    if (REAL(rewind) != NULL) {
        real.rewind(fp);
    }
}

int hook_fsetpos(FILE *fp, const fpos_t *pos) {
    before_seek(fp);
    return REAL(fsetpos) != NULL ? real.fsetpos(fp, pos) : -1;
}

#define HOOKS_STDIO
#define HOOK_ALIAS HOOK_TWIN
#include "hooks.h"
