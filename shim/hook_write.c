// SPDX-License-Identifier: MIT
//
// hook_write: calls on a descriptor that move or size data, and the durability calls. On a descriptor that is not
// captured: one load, one compare, the real call. What a captured file does is file.c's.

#include "callsite.h"
#include "hook_inside.h"
#include "namecalls.h"

#include <pthread.h>
#include <sys/mman.h>

#define RETURN_MAX 0x7ffff000 // what one call moves at most
#define PUMP_BYTES (256 * KIB)

// These calls are cancellation points, which glibc's are by themselves.
static inline struct file *captured_point(int fd) {
    struct file *f = hook_captured(fd);
    if (UNLIKELY(f != NULL)) {
        pthread_testcancel();
    }
    return f;
}

ssize_t hook_write(int fd, const void *buf, size_t len) {
    struct file *f = captured_point(fd);
    if (UNLIKELY(fd == CALLSITE_FD)) {
        return hook_ret(callsite_take(buf, len));
    }
    return LIKELY(f == NULL) ? NATIVE(write, SYS_write, fd, buf, len) : hook_ret(file_write(f, fd, buf, len));
}

ssize_t hook_pwrite(int fd, const void *buf, size_t len, off_t off) {
    struct file *f = captured_point(fd);
    return LIKELY(f == NULL) ? NATIVE(pwrite, SYS_pwrite64, fd, buf, len, off)
                             : hook_ret(file_pwrite(f, fd, buf, len, off));
}

ssize_t hook_writev(int fd, const struct iovec *iov, int n) {
    struct file *f = captured_point(fd);
    return LIKELY(f == NULL) ? NATIVE(writev, SYS_writev, fd, iov, n) : hook_ret(file_writev(f, fd, iov, n));
}

ssize_t hook_pwritev(int fd, const struct iovec *iov, int n, off_t off) {
    struct file *f = captured_point(fd);
    return LIKELY(f == NULL) ? NATIVE(pwritev, SYS_pwritev, fd, iov, n, off)
                             : hook_ret(file_pwritev(f, fd, iov, n, off));
}

// A change by the kernel comes after the times that the program has set.
static ssize_t moved(int fd, ssize_t r) {
    struct file *f = r > 0 ? hook_captured(fd) : NULL;
    if (UNLIKELY(f != NULL)) {
        file_touch(f);
    }
    return r;
}

ssize_t hook_pwritev2(int fd, const struct iovec *iov, int n, off_t off, int flags) {
    struct file *f = captured_point(fd);
    if (UNLIKELY(f != NULL)) {
        if (flags == 0) {
            return hook_ret(off == -1 ? file_writev(f, fd, iov, n) : file_pwritev(f, fd, iov, n, off));
        }
        int r = file_settle(f, fd); // RWF_APPEND, RWF_DSYNC and kin are the kernel's
        if (r < 0) {
            return hook_ret(r);
        }
    }
    return moved(fd, LIKELY(real.pwritev2 != NULL) ? real.pwritev2(fd, iov, n, off, flags)
                                                   : hook_ret(OS_CALL(SYS_pwritev2, fd, iov, n, off, 0, flags)));
}

// Where a copy begins, if not where the descriptor is. The program's pointer may be wild.
struct from {
    off_t *program; // NULL: the descriptor's
    off_t at;
};

static bool fetch_offset(struct from *o, off_t *program) {
    *o = (struct from){program, 0};
    return program == NULL || hook_fetch(&o->at, program, sizeof o->at);
}

static int store_offset(const struct from *o) {
    return o->program == NULL || hook_store(o->program, &o->at, sizeof o->at) ? 0 : -EFAULT;
}

// Copies in the kernel stage like any write: through a buffer of our own. Only from a regular file and with nothing odd
// about the call: what else there is has rules of its own, which the kernel knows.
static bool pumps(const struct file *out, const struct from *to, int in, const struct from *from, size_t len) {
    struct stat st;
    return out != NULL && !out->followed && !out->native && !out->inherited && from->at >= 0 &&
           len <= (size_t)(INT64_MAX - from->at) && // cp asks for all but that much
           to->at >= 0 && to->at <= INT64_MAX / 2 && os_fstat(in, &st) == 0 && S_ISREG(st.st_mode) &&
           (st.st_dev != out->dev || st.st_ino != out->ino) && from->at <= st.st_size &&
           (os_fcntl(in, F_GETFL, 0) & (O_ACCMODE | O_PATH)) != O_WRONLY;
}

// One piece. Its length, 0 at the end of `in`, or an error.
static ssize_t pump_piece(struct file *f, int out, struct from *to, int in, struct from *from, void *buf, size_t len) {
    ssize_t n = from->program != NULL ? os_pread(in, buf, len, from->at) : os_read(in, buf, len);
    if (n <= 0) {
        return n;
    }
    ssize_t w = to->program != NULL ? file_pwrite(f, out, buf, (size_t)n, to->at) : file_write(f, out, buf, (size_t)n);
    if (from->program == NULL && w < n) {
        os_lseek(in, (w < 0 ? 0 : w) - n, SEEK_CUR); // not taken
    }
    from->at += w > 0 ? w : 0;
    to->at += w > 0 ? w : 0;
    return w;
}

static ssize_t pump(struct file *f, int out, struct from *to, int in, struct from *from, size_t len) {
    void *buf = os_mmap(NULL, PUMP_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (os_is_err(buf)) {
        return -ENOMEM;
    }
    ssize_t done = 0, n = 0;
    len = min_u64(len, RETURN_MAX);
    while ((size_t)done < len) {
        n = pump_piece(f, out, to, in, from, buf, min_u64(len - (size_t)done, PUMP_BYTES));
        if (n <= 0) {
            break;
        }
        done += n;
    }
    os_munmap(buf, PUMP_BYTES);
    int r = store_offset(from) < 0 || store_offset(to) < 0 ? -EFAULT : 0;
    return r < 0 ? r : done > 0 ? done : n;
}

// A copy to a captured file. True: *ret is its result. Else it is the kernel's, behind what is staged.
static bool pumped(int out, off_t *out_off, int in, off_t *in_off, size_t len, bool plain, ssize_t *ret) {
    struct file *f = hook_captured(out);
    struct from from, to;
    *ret = hook_settled(in);
    if (LIKELY(f == NULL) || *ret < 0) {
        return *ret < 0;
    }
    if (plain && fetch_offset(&from, in_off) && fetch_offset(&to, out_off) && pumps(f, &to, in, &from, len)) {
        *ret = pump(f, out, &to, in, &from, len);
        return true;
    }
    *ret = file_settle(f, out);
    return *ret < 0;
}

ssize_t hook_sendfile(int out, int in, off_t *off, size_t len) {
    ssize_t r;
    return pumped(out, NULL, in, off, len, true, &r) ? hook_ret(r)
                                                     : moved(out, NATIVE(sendfile, SYS_sendfile, out, in, off, len));
}

ssize_t hook_copy_file_range(int in, off_t *in_off, int out, off_t *out_off, size_t len, unsigned flags) {
    ssize_t r;
    if (pumped(out, out_off, in, in_off, len, flags == 0, &r)) {
        return hook_ret(r);
    }
    return moved(out, NATIVE(copy_file_range, SYS_copy_file_range, in, in_off, out, out_off, len, flags));
}

ssize_t hook_splice(int in, off_t *in_off, int out, off_t *out_off, size_t len, unsigned flags) {
    int r = hook_settled(out);
    r = r < 0 ? r : hook_settled(in);
    return r < 0 ? hook_ret(r) : moved(out, NATIVE(splice, SYS_splice, in, in_off, out, out_off, len, flags));
}

off_t hook_lseek(int fd, off_t off, int whence) {
    struct file *f = hook_captured(fd);
    return LIKELY(f == NULL) ? NATIVE(lseek, SYS_lseek, fd, off, whence) : hook_ret(file_lseek(f, fd, off, whence));
}

// The same for calls that move no bytes.
static int changed(int fd, int r) {
    struct file *f = hook_captured(fd);
    if (UNLIKELY(f != NULL) && r == 0) {
        file_touch(f);
    }
    return r;
}

int hook_ftruncate(int fd, off_t len) {
    int r = hook_settled(fd);
    if (r < 0) {
        return (int)hook_ret(r);
    }
    struct file *f = hook_captured(fd);
    struct stat st;
    bool grows = UNLIKELY(f != NULL) && os_fstat(fd, &st) == 0 && len > st.st_size;
    r = changed(fd, (int)NATIVE(ftruncate, SYS_ftruncate, fd, len));
    if (grows && r == 0) {
        f->sparse = true; // what was cut to size is a hole until it is written
    }
    return r;
}

// Space that the program asks for by itself stays, with bytes in it or without.
static int allocated(int fd, int r) {
    struct file *f = hook_captured(fd);
    if (UNLIKELY(f != NULL) && r == 0) {
        f->allocated = true;
    }
    return r;
}

// numpy asks for the space of each array of 16 MiB or more before it writes it.
int hook_fallocate(int fd, int mode, off_t off, off_t len) {
    struct file *f = hook_captured(fd);
    if (UNLIKELY(f != NULL) && mode == FALLOC_FL_KEEP_SIZE && file_reserve(f, fd, off, len)) {
        return allocated(fd, 0);
    }
    int r = f != NULL ? file_settle(f, fd) : 0;
    if (r < 0) {
        return (int)hook_ret(r);
    }
    r = changed(fd, (int)NATIVE(fallocate, SYS_fallocate, fd, mode, off, len));
    return mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE) ? r : allocated(fd, r);
}

// Returns the error and leaves errno alone.
int hook_posix_fallocate(int fd, off_t off, off_t len) {
    int r = hook_settled(fd);
    if (r < 0) {
        return -r;
    }
    return LIKELY(REAL(posix_fallocate) != NULL) ? allocated(fd, real.posix_fallocate(fd, off, len)) : ENOSYS;
}

// fsync of a directory waits for its pending names; those that are on the stripes will be there.
static void sync_listed(int fd) {
    struct stat st;
    if (!guard_foreign() && os_fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
        guard_depth++;
        names_wait_dir(WAIT_DIR_SAFE, &st);
        guard_depth--;
    }
}

int hook_fsync(int fd) {
    struct file *f = captured_point(fd);
    if (UNLIKELY(f != NULL)) {
        return (int)hook_ret(file_fsync(f, fd));
    }
    if (UNLIKELY(!names_native()) && shim.config.fsync == FSYNC_WAIT) {
        sync_listed(fd);
    }
    return (int)NATIVE(fsync, SYS_fsync, fd);
}

int hook_fdatasync(int fd) {
    struct file *f = captured_point(fd);
    return LIKELY(f == NULL) ? (int)NATIVE(fdatasync, SYS_fdatasync, fd) : (int)hook_ret(file_fsync(f, fd));
}

int hook_sync_file_range(int fd, off_t off, off_t len, unsigned flags) {
    struct file *f = hook_captured(fd);
    off_t end;
    if (UNLIKELY(f != NULL) && flags == SYNC_FILE_RANGE_WRITE && off >= 0 && len >= 0 &&
        !__builtin_add_overflow(off, len, &end)) {
        return 0; // "begin to write": the engine has
    }
    int r = f != NULL ? file_settle(f, fd) : 0;
    return r < 0 ? (int)hook_ret(r) : (int)NATIVE(sync_file_range, SYS_sync_file_range, fd, off, len, flags);
}

// sync and syncfs: everything of this process is in the kernel, and what it has closed is durable.
static void sync_process(void) {
    if (names_native() || shim.config.fsync != FSYNC_WAIT || guard_foreign()) {
        return;
    }
    guard_depth++;
    for (int fd = 0; fd < fd_limit(); fd++) {
        hook_settled(fd);
    }
    names_wait(WAIT_CLIENT);
    guard_depth--;
}

int hook_syncfs(int fd) {
    sync_process();
    return (int)NATIVE(syncfs, SYS_syncfs, fd);
}

void hook_sync(void) {
    sync_process();
    if (LIKELY(real.sync != NULL)) {
        real.sync();
    } else {
        OS_CALL(SYS_sync, 0, 0, 0, 0, 0, 0);
    }
}

#define HOOKS_WRITE
#define HOOK_ALIAS HOOK_TWIN
#include "hooks.h"
