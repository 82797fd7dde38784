// SPDX-License-Identifier: MIT
//
// hook_stdio: FILE streams. A FILE stands on a real descriptor, and what libc writes by itself goes straight to the
// inode, at the kernel's offset, which is ours too. So there is nothing to do but to open, to close, to settle
// before a move back, to stage what is large in an fwrite, and to note that libc writes (flush, close, exit: for the
// times). The one place that may call stdio, through real.* alone, and that knows struct _IO_FILE, whose layout is
// libc's ABI: putc_unlocked has always been compiled into programs.

#include "hook_stdio.h"

#include "capture.h"
#include "hook_inside.h"
#include "namecalls.h"

#include <pthread.h>
#include <stdio_ext.h>
#include <string.h>

#define STAGE_MIN (64 * KIB) // of one fwrite: below, libc's buffer and write are as fast

static int number(FILE *fp) {
    int saved = errno;
    int fd = fp != NULL ? fileno_unlocked(fp) : -1;
    errno = saved;
    return fd;
}

static bool pends(const FILE *fp) {
    return fp->_IO_write_ptr > fp->_IO_write_base;
}

static FILE *attach(FILE *fp) {
    int fd = number(fp);
    struct file *f = hook_captured(fd);
    if (f != NULL) {
        f->stdio = true;
        atomic_store_explicit(&fd_streams[fd], fp, memory_order_release);
    }
    return fp;
}

void stdio_flush_captured(void) {
    for (int fd = 0; fd < fd_limit(); fd++) {
        FILE *fp = atomic_load_explicit(&fd_streams[fd], memory_order_acquire);
        // A thread that is inside this FILE for ever must not hold up the end of the process.
        struct file *f = fp != NULL ? hook_captured(fd) : NULL;
        if (f != NULL && ftrylockfile(fp) == 0) {
            bool writes = pends(fp);
            if (real.fflush_unlocked(fp) == 0 && writes) {
                file_touch(f);
            }
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
        names_return(&lent);
    }
    return fp;
}

FILE *hook_fdopen(int fd, const char *mode) {
    struct file *f = hook_captured(fd);
    if (UNLIKELY(f != NULL)) {
        bool append = mode != NULL && mode[0] == 'a'; // libc sets O_APPEND
        file_before_libc(f, fd, append ? 0 : -1);
        f->native |= append;
    }
    FILE *fp = REAL(fdopen) != NULL ? real.fdopen(fd, mode) : NULL;
    return UNLIKELY(f != NULL) ? attach(fp) : fp;
}

// Before a FILE lets its descriptor go. Returns the file's known error.
static int before_end(FILE *fp, int fd) {
    if ((unsigned)fd >= FDTABLE_MAX) {
        return 0;
    }
    if (UNLIKELY(atomic_load_explicit(&fd_streams[fd], memory_order_relaxed) == fp)) {
        atomic_store_explicit(&fd_streams[fd], NULL, memory_order_relaxed);
    }
    struct file *f = hook_captured(fd);
    if (LIKELY(f == NULL)) {
        return 0;
    }
    int saved = errno;
    flockfile(fp);
    bool writes = pends(fp);
    if (real.fflush_unlocked(fp) == 0 && writes) { // its error comes again from the real call
        file_touch(f);
    }
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
        names_wait(WAIT_CLIENT); // the same inode in another mode: it stands under its name by then
    }
    if (flags >= 0 && !names_native()) {
        lending = names_before_open(AT_FDCWD, path, flags, &lent);
        if (lending == 0 && (flags & O_TRUNC) && policy_match(shim.config.paths, AT_FDCWD, path)) {
            lending = names_wait(WAIT_CHANGE);
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

// Only noted: libc's own write is in the inode already.
static int flushed(int r, FILE *fp, bool writes) {
    if (UNLIKELY(fd_limit() > 0) && r == 0 && fp != NULL) {
        int fd = number(fp);
        struct file *f = hook_captured(fd);
        if (UNLIKELY(f != NULL) && writes) {
            file_touch(f);
        }
        if (UNLIKELY(f != NULL) && !f->native && !f->log) {
            file_count_flush(f, fd);
        }
    }
    return r;
}

int hook_fflush(FILE *fp) {
    bool writes = fp != NULL && pends(fp);
    return REAL(fflush) != NULL ? flushed(real.fflush(fp), fp, writes) : EOF;
}

int hook_fflush_unlocked(FILE *fp) {
    bool writes = fp != NULL && pends(fp);
    return REAL(fflush_unlocked) != NULL ? flushed(real.fflush_unlocked(fp), fp, writes) : EOF;
}

// Where the FILE moves to, from where libc writes next; 0 if only libc can say. From here is from the FILE's own
// position: a write to the descriptor has moved the kernel's further.
static off_t destination(FILE *fp, off_t off, int whence) {
    off_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? ftello(fp) : -1, to;
    return from < 0 || __builtin_add_overflow(from, off, &to) || to < 0 ? 0 : to;
}

static void before_seek(FILE *fp, off_t off, int whence) {
    int fd = number(fp);
    struct file *f = hook_captured(fd);
    if (UNLIKELY(f != NULL)) {
        file_before_libc(f, fd, destination(fp, off, whence));
    }
}

int hook_fseek(FILE *fp, long off, int whence) {
    before_seek(fp, off, whence);
    return REAL(fseek) != NULL ? real.fseek(fp, off, whence) : -1;
}

void hook_rewind(FILE *fp) {
    before_seek(fp, 0, SEEK_SET);
    if (REAL(rewind) != NULL) {
        real.rewind(fp);
    }
}

int hook_fsetpos(FILE *fp, const fpos_t *pos) {
    before_seek(fp, 0, SEEK_SET);
    return REAL(fsetpos) != NULL ? real.fsetpos(fp, pos) : -1;
}

// ---- By libc's own FILE on a descriptor

static int print(int fd, int chk, const char *format, va_list ap) {
    struct file *f = hook_captured(fd);
    if (UNLIKELY(f != NULL)) {
        file_before_libc(f, fd, -1);
    }
    int r = chk < 0 ? (REAL(vdprintf) != NULL ? real.vdprintf(fd, format, ap) : -1)
                    : (REAL(__vdprintf_chk) != NULL ? real.__vdprintf_chk(fd, chk, format, ap) : -1);
    if (UNLIKELY(f != NULL) && r > 0) {
        file_touch(f);
    }
    return r;
}

int hook_vdprintf(int fd, const char *format, va_list ap) {
    return print(fd, -1, format, ap);
}

int hook___vdprintf_chk(int fd, int chk, const char *format, va_list ap) {
    return print(fd, chk < 0 ? 0 : chk, format, ap);
}

int hook_dprintf(int fd, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    int r = print(fd, -1, format, ap);
    va_end(ap);
    return r;
}

int hook___dprintf_chk(int fd, int chk, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    int r = print(fd, chk < 0 ? 0 : chk, format, ap);
    va_end(ap);
    return r;
}

// ---- fwrite

// Room that libc would fill before it writes. With nothing pending it would as well, to the same end.
static size_t room(FILE *fp) {
    char *end = __flbf(fp) ? fp->_IO_buf_end : fp->_IO_write_end;
    return pends(fp) && end > fp->_IO_write_ptr ? (size_t)(end - fp->_IO_write_ptr) : 0;
}

// Nothing is pending, neither to be written nor to be gone back over.
static bool drained(const FILE *fp) {
    return fp->_IO_write_ptr == fp->_IO_buf_base && fp->_IO_write_base == fp->_IO_buf_base &&
           fp->_IO_read_end == fp->_IO_buf_base;
}

// In place of libc's own write to the descriptor; its marks in the FILE are the same. How many bytes.
static size_t write_through(struct file *f, FILE *fp, const char *data, size_t len) {
    size_t done = 0;
    while (done < len) {
        ssize_t n = file_write(f, fp->_fileno, data + done, len - done);
        if (n <= 0) {
            hook_ret(n);
            fp->_flags |= _IO_ERR_SEEN;
            break;
        }
        done += (size_t)n;
    }
    if (fp->_offset >= 0) { // what ftell answers: known, so kept
        fp->_offset += (off_t)done;
    }
    bool pass = __flbf(fp) || __fbufsize(fp) == 1; // putc leaves every byte to libc's overflow
    fp->_IO_write_end = pass ? fp->_IO_buf_base : fp->_IO_buf_end;
    return done;
}

// libc's steps: fill the buffer, flush it, write whole blocks past it, put the rest into it. So what is pending, the
// descriptor's offset and ftell are as without us, whatever is mixed. The FILE is locked. How many bytes.
static size_t put_all(struct file *f, FILE *fp, const char *data, size_t len) {
    size_t fits = min_u64(room(fp), len), done = 0;
    if (fits > 0) {
        done = real.fwrite_unlocked(data, 1, fits, fp);
        if (done < fits || done == len) {
            return done;
        }
    }
    if (__overflow(fp, EOF) == EOF) {
        return done;
    }
    if (drained(fp)) {
        size_t block = (size_t)(fp->_IO_buf_end - fp->_IO_buf_base), rest = len - done;
        size_t whole = rest - (block >= 128 ? rest % block : 0);
        size_t n = write_through(f, fp, data + done, whole);
        done += n;
        if (n < whole) {
            return done;
        }
    }
    return done + (done < len ? real.fwrite_unlocked(data + done, 1, len - done, fp) : 0);
}

// The captured file that this fwrite of `len` bytes may be staged for. A wide FILE refuses bytes.
static inline struct file *staging_for(size_t len, FILE *fp) {
    if (LIKELY(len < STAGE_MIN || fd_peek(fp->_fileno) == NULL) || fp->_mode > 0) {
        return NULL;
    }
    struct file *f = fd_get(fp->_fileno, true);
    return f == NULL || f->native || f->followed || real.fwrite_unlocked == NULL ? NULL : f;
}

static size_t items(size_t bytes, size_t size, size_t count) {
    return bytes == size * count ? count : bytes / size;
}

size_t hook_fwrite(const void *data, size_t size, size_t count, FILE *fp) {
    struct file *f = staging_for(size * count, fp);
    if (LIKELY(f == NULL)) {
        return LIKELY(REAL(fwrite) != NULL) ? real.fwrite(data, size, count, fp) : 0;
    }
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel); // else the lock would stay taken
    flockfile(fp);
    size_t done = put_all(f, fp, data, size * count);
    funlockfile(fp);
    pthread_setcancelstate(cancel, NULL);
    return items(done, size, count);
}

size_t hook_fwrite_unlocked(const void *data, size_t size, size_t count, FILE *fp) {
    struct file *f = staging_for(size * count, fp);
    if (LIKELY(f == NULL)) {
        return LIKELY(REAL(fwrite_unlocked) != NULL) ? real.fwrite_unlocked(data, size, count, fp) : 0;
    }
    return items(put_all(f, fp, data, size * count), size, count);
}

#define HOOKS_STDIO
#define HOOK_ALIAS HOOK_TWIN
#include "hooks.h"
