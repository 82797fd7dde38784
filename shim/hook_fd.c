// SPDX-License-Identifier: MIT
//
// hook_fd: calls on descriptor numbers and on the descriptions behind them: close, dup, fcntl, locks, ioctl, mmap.
// Keeps fdtable in step, and hides the shim's own descriptors from close loops. What a file does when it closes is
// file.c's.

#include "arena.h"
#include "callsite.h"
#include "client.h"
#include "hook_inside.h"
#include "late.h"
#include "locked.h"
#include "namecalls.h"
#include "reopen.h"

#include <linux/close_range.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

int hook_close(int fd) {
    int err = 0;
    struct file *f = UNLIKELY(fd_peek(fd) != NULL) ? fd_get(fd, true) : NULL;
    if (UNLIKELY(f != NULL)) {
        err = fd_before_close(fd, f);
    } else if (UNLIKELY(client_owns_fd(fd))) {
        return (int)hook_ret(-EBADF);
    }
    int r = (int)NATIVE(close, SYS_close, fd);
    return r < 0 || LIKELY(err >= 0) ? r : (int)hook_ret(err);
}

// Tells of every captured file in [first, last] that it is about to be closed.
static void before_close_range(unsigned first, unsigned last) {
    for (unsigned fd = first; fd < (unsigned)fd_limit() && fd <= last; fd++) {
        struct file *f = fd_peek((int)fd) != NULL ? fd_get((int)fd, true) : NULL;
        if (f != NULL) {
            fd_before_close((int)fd, f);
        }
    }
}

static int close_piece(unsigned first, unsigned last, int flags) {
    return (int)NATIVE(close_range, SYS_close_range, first, last, flags);
}

// Closes [first, last] around the shim's own descriptors. 0, or libc's -1.
static int close_around_ours(unsigned first, unsigned last, int flags) {
    unsigned start = first;
    int r = 0;
    for (unsigned fd = (unsigned)client_fd_floor(); fd <= last && fd < FDTABLE_MAX; fd++) {
        if (fd < start || !client_owns_fd((int)fd)) {
            continue;
        }
        if (fd > start && r == 0) {
            r = close_piece(start, fd - 1, flags);
        }
        start = fd + 1;
    }
    return r == 0 && start <= last ? close_piece(start, last, flags) : r;
}

int hook_close_range(unsigned first, unsigned last, int flags) {
    if (first > last || (flags & ~(int)CLOSE_RANGE_CLOEXEC & ~(int)CLOSE_RANGE_UNSHARE) != 0) {
        return close_piece(first, last, flags);
    }
    if (!(flags & CLOSE_RANGE_CLOEXEC)) {
        before_close_range(first, last);
    }
    return close_around_ours(first, last, flags);
}

void hook_closefrom(int first) {
    unsigned from = first < 0 ? 0 : (unsigned)first;
    before_close_range(from, ~0u);
    // libc's own falls back to /proc where the kernel has no close_range; it knows no exceptions, so it comes last.
    int saved = errno;
    if (close_around_ours(from, ~0u, 0) < 0 && real.closefrom != NULL) {
        real.closefrom(first);
    }
    errno = saved;
}

int hook_dup(int fd) {
    if (UNLIKELY(client_owns_fd(fd))) {
        return (int)hook_ret(-EBADF);
    }
    int r = (int)NATIVE(dup, SYS_dup, fd);
    if (UNLIKELY(fd_peek(fd) != NULL) && r >= 0 && fd_get(fd, true) != NULL) {
        fd_dup(fd, r);
    }
    return r;
}

// `to` is about to be replaced by a duplicate of `from`: a captured file there closes, one of ours moves away.
static void before_replace(int from, int to, int flags) {
    if (LIKELY(fd_peek(to) == NULL && !client_owns_fd(to))) {
        return;
    }
    if (from == to || (flags & ~O_CLOEXEC) != 0 || os_fcntl(from, F_GETFD, 0) < 0) {
        return; // the call fails, and changes nothing
    }
    struct file *f = fd_peek(to) != NULL ? fd_get(to, true) : NULL;
    if (f != NULL) {
        fd_before_close(to, f);
    } else if (client_owns_fd(to) && !guard_foreign()) {
        client_move_fd(to);
    }
}

static int replaced(int r, int from, int to) {
    if (UNLIKELY(fd_peek(from) != NULL) && r >= 0 && from != to && fd_get(from, true) != NULL) {
        fd_dup(from, to);
    }
    return r;
}

int hook_dup2(int from, int to) {
    before_replace(from, to, 0);
    int r = (int)NATIVE_OR(dup2, from == to ? os_fcntl(from, F_GETFD, 0) < 0 ? -EBADF : to : RAW(SYS_dup3, from, to, 0),
                           from, to);
    return replaced(r, from, to);
}

int hook_dup3(int from, int to, int flags) {
    before_replace(from, to, flags);
    return replaced((int)NATIVE(dup3, SYS_dup3, from, to, flags), from, to);
}

// The descriptor of a process that has not captured anything may be another one's shadow.
static inline int before_lock(int fd, bool record) {
    if (record) {
        locked_note(fd);
    }
    return LIKELY(fd_peek(fd) == NULL && names_native()) ? 0 : reopen_before_lock(fd);
}

// Opened without a name: by the program itself, or by one that captured it and left it to this one (`cmd > file`).
static int flags_of_shadow(int fd, int flags) {
    struct stat st;
    bool shadow = !names_native() && os_fstat(fd, &st) == 0 && names_word_of(&st) != 0;
    return shadow ? flags & ~O_TMPFILE : flags;
}

static int fcntl_captured(struct file *f, int fd, int cmd, long arg) {
    int r = 0;
    switch (cmd) {
    case F_SETFL:
        r = file_settle(f, fd);
        f->native |= r == 0 && (arg & (O_APPEND | O_DIRECT)) != 0;
        break;
    default:
        r = hook_locks(cmd) ? before_lock(fd, hook_locks_record(cmd)) : 0;
        break;
    }
    if (r < 0) {
        return (int)hook_ret(r);
    }
    int ret = (int)NATIVE(fcntl, SYS_fcntl, fd, cmd, arg);
    if ((cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC) && ret >= 0) {
        fd_dup(fd, ret);
    } else if (cmd == F_GETFL && ret >= 0) {
        ret &= ~O_TMPFILE; // how the shadow was made
    }
    return ret;
}

// A lease is refused as long as anybody has the file open, to write or at all: natively whoever has closed it has not.
static int lease(int fd, long type) {
    int saved = errno;
    int r = (int)NATIVE(fcntl, SYS_fcntl, fd, F_SETLEASE, type);
    if (UNLIKELY(r < 0 && errno == EAGAIN)) {
        errno = saved;
        HOOK_WHEN_LET_GO(r, EAGAIN, NATIVE(fcntl, SYS_fcntl, fd, F_SETLEASE, type));
    }
    return r;
}

// The argument may be a pointer: it is passed on as a long whatever the command.
int hook_fcntl(int fd, int cmd, ...) {
    va_list ap;
    va_start(ap, cmd);
    long arg = va_arg(ap, long);
    va_end(ap);
    if (UNLIKELY(fd_peek(fd) != NULL)) {
        struct file *f = fd_get(fd, true);
        if (f != NULL) {
            return fcntl_captured(f, fd, cmd, arg);
        }
    } else if (UNLIKELY(client_owns_fd(fd))) {
        return (int)hook_ret(-EBADF);
    }
    int r = UNLIKELY(hook_locks(cmd)) ? before_lock(fd, hook_locks_record(cmd)) : 0;
    if (UNLIKELY(cmd == F_NOTIFY) && !names_native()) {
        names_before_list(fd, ".");
    }
    if (UNLIKELY(cmd == F_SETLEASE && arg != F_UNLCK) && r == 0) {
        return lease(fd, arg);
    }
    int ret = r < 0 ? (int)hook_ret(r) : (int)NATIVE(fcntl, SYS_fcntl, fd, cmd, arg);
    return UNLIKELY(cmd == F_GETFL && ret >= 0 && (ret & O_TMPFILE) == O_TMPFILE) ? flags_of_shadow(fd, ret) : ret;
}

int hook_flock(int fd, int op) {
    int r = op & LOCK_UN ? 0 : before_lock(fd, false);
    return r < 0 ? (int)hook_ret(r) : (int)NATIVE(flock, SYS_flock, fd, op);
}

int hook_lockf(int fd, int cmd, off_t len) {
    int r = cmd == F_LOCK || cmd == F_TLOCK ? before_lock(fd, true) : 0;
    if (r < 0) {
        return (int)hook_ret(r);
    }
    return LIKELY(REAL(lockf) != NULL) ? real.lockf(fd, cmd, len) : (int)hook_ret(-ENOSYS);
}

// Requests that neither read nor change what a file holds.
static bool harmless(unsigned long request) {
    switch (request) {
    case TCGETS: // isatty
    case FIOCLEX:
    case FIONCLEX:
    case FIONBIO:
    case FS_IOC_GETFLAGS:
        return true;
    default:
        return false;
    }
}

int hook_ioctl(int fd, unsigned long request, ...) {
    va_list ap;
    va_start(ap, request);
    void *arg = va_arg(ap, void *);
    va_end(ap);
    if (UNLIKELY(fd_peek(fd) != NULL) && !harmless(request)) {
        struct file *f = fd_get(fd, true);
        int r = f != NULL ? file_settle(f, fd) : 0;
        if (r < 0) {
            return (int)hook_ret(r);
        }
    }
    return (int)NATIVE(ioctl, SYS_ioctl, fd, request, arg);
}

void *hook_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t off) {
    if (UNLIKELY(!(flags & MAP_ANONYMOUS) && fd_peek(fd) != NULL)) {
        struct file *f = fd_get(fd, true);
        if (f != NULL) {
            file_settle(f, fd); // its error is for write, fsync and close
        }
    }
    if (LIKELY(real.mmap != NULL)) {
        return real.mmap(addr, len, prot, flags, fd, off);
    }
    void *p = os_mmap(addr, len, prot, flags, fd, off);
    return os_is_err(p) ? (void *)hook_ret((long)p) : p;
}

// Memory that was adopted would show the arena's pages again where anonymous memory reads as zeros. (MADV_REMOVE is
// refused for both.)
static bool discards(int advice) {
    return (advice == MADV_DONTNEED || advice == MADV_FREE) && arena_in_use() && !guard_foreign();
}

int hook_madvise(void *addr, size_t len, int advice) {
    if (UNLIKELY(discards(advice))) {
        arena_before_discard(addr, len);
    }
    return (int)NATIVE(madvise, SYS_madvise, addr, len, advice);
}

// The kernel lets nobody discard another process's memory: what has succeeded was of this one.
ssize_t hook_process_madvise(int pidfd, const struct iovec *iov, size_t n, int advice, unsigned flags) {
    ssize_t r = NATIVE(process_madvise, SYS_process_madvise, pidfd, iov, n, advice, flags);
    size_t left = r > 0 && discards(advice) ? (size_t)r : 0;
    for (; left > 0; iov++) {
        size_t len = min_u64(iov->iov_len, left);
        arena_before_discard(iov->iov_base, len);
        left -= len;
    }
    return r;
}

// Memory whose bytes have not come yet loses its guard when it is moved: they are there first.
void *hook_mremap(void *addr, size_t len, size_t new_len, int flags, ...) {
    va_list ap;
    va_start(ap, flags);
    void *to = flags & ~MREMAP_MAYMOVE ? va_arg(ap, void *) : NULL;
    va_end(ap);
    if (UNLIKELY(arena_in_use()) && !guard_foreign()) {
        late_settle();
        arena_before_move(addr, len);
    }
    if (LIKELY(real.mremap != NULL)) {
        return real.mremap(addr, len, new_len, flags, to);
    }
    return (void *)hook_ret(OS_CALL(SYS_mremap, addr, len, new_len, flags, to, 0));
}

// Not for the program's own: what the shim loads into it must not take numbers that are the program's.
int hook_pipe2(int fds[2], int flags) {
    return UNLIKELY(callsite_loading()) ? (int)hook_ret(-ENOSYS) : (int)NATIVE(pipe2, SYS_pipe2, fds, flags);
}

#define HOOKS_FD
#define HOOK_ALIAS HOOK_TWIN
#include "hooks.h"
