// SPDX-License-Identifier: MIT
//
// hook_inside: what several hook_*.c ask about a descriptor, and how they look at a program's memory. Inline, because
// it stands on the path that costs nothing.

#ifndef FASTCKPT_HOOK_INSIDE_H
#define FASTCKPT_HOOK_INSIDE_H

#include "fdtable.h"
#include "real.h"

// Newer than the headers that this may be compiled with; the same on every processor.
enum { NR_FSCONFIG = 431, NR_MOUNT_SETATTR = 442 };

/** The captured file of `fd` for a call that stages or settles; in a vfork child none: the kernel's offset is
 *  shared. */
static inline struct file *hook_captured(int fd) {
    return LIKELY(fd_peek(fd) == NULL) ? NULL : fd_get(fd, true);
}

/** For calls that the shim does not model: all bytes into the kernel's file first. 0, or the file's error. */
static inline int hook_settled(int fd) {
    struct file *f = hook_captured(fd);
    return LIKELY(f == NULL) ? 0 : file_settle(f, fd);
}

/** The same, and nothing of it is staged any more: somebody whom no hook sees is going to write. */
static inline int hook_unstaged(int fd) {
    struct file *f = hook_captured(fd);
    if (LIKELY(f == NULL)) {
        return 0;
    }
    int r = file_settle(f, fd);
    f->native = true;
    return r;
}

static inline bool hook_locks_record(int cmd) {
    return cmd == F_SETLK || cmd == F_SETLKW;
}

/** The commands of fcntl that are about others who have the file open, on whatever descriptor. A lease is about the
 *  opens of a name. */
static inline bool hook_locks(int cmd) {
    return hook_locks_record(cmd) || cmd == F_OFD_SETLK || cmd == F_OFD_SETLKW || cmd == F_SETLEASE;
}

/** Is a call by name about its directory's descriptor itself? */
static inline bool hook_by_descriptor(const char *path, int flags) {
    return (flags & AT_EMPTY_PATH) && (path == NULL || (guard_readable(path) && path[0] == '\0'));
}

/** Copies from a program's pointer that may be wild. False: it is, and the kernel is to say so. */
static inline bool hook_fetch(void *to, const void *from, size_t len) {
    struct iovec here = {to, len}, there = {(void *)(uintptr_t)from, len};
    long r = OS_CALL(SYS_process_vm_readv, os_getpid(), &here, 1, &there, 1, 0);
    if (UNLIKELY(r == -ENOSYS || r == -EPERM)) { // a seccomp filter forbids it: trust
        __builtin_memcpy(to, from, len);
        return true;
    }
    return r == (long)len;
}

/** The same to a program's pointer. */
static inline bool hook_store(void *to, const void *from, size_t len) {
    struct iovec here = {(void *)(uintptr_t)from, len}, there = {to, len};
    long r = OS_CALL(SYS_process_vm_writev, os_getpid(), &here, 1, &there, 1, 0);
    if (UNLIKELY(r == -ENOSYS || r == -EPERM)) {
        __builtin_memcpy(to, from, len);
        return true;
    }
    return r == (long)len;
}

/** Before a call that is refused as long as the engine has certain files open (hook_mount.c): returns when what was
 *  closed so far has its name, and is closed. Until when hook_held is to be asked, CLOCK_MONOTONIC ns; 0: there is no
 *  engine. */
int64_t hook_let_go(void);
/** Behind it: was the call, which returned `r` (and errno) as libc's do, refused by what may be the engine's doing? It
 *  is to be made again then; a millisecond has passed, and errno is `saved` again. */
bool hook_held(long r, int refusal, int64_t until, int saved);
/** Both: `ret` is what `call`, a libc call that is refused with `refusal`, says when the engine has let go. */
#define HOOK_WHEN_LET_GO(ret, refusal, call)                                                                           \
    do {                                                                                                               \
        int64_t until_ = hook_let_go();                                                                                \
        int saved_ = errno;                                                                                            \
        do {                                                                                                           \
            (ret) = (int)(call);                                                                                       \
        } while (hook_held((ret), (refusal), until_, saved_));                                                         \
    } while (0)

/** What an open is beyond the real call (hook_open.c): a descriptor, an error, or CAPTURE_NATIVE: it is just that. */
long hook_open_slow(int dirfd, const char *path, int flags, mode_t mode, const void *caller);
long hook_openat2_slow(int dirfd, const char *path, const struct open_how *how, size_t size, const void *caller);

#endif
