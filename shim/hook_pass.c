// SPDX-License-Identifier: MIT
//
// hook_pass: a captured descriptor that goes where no hook sees what is done with it: POSIX aio (threads of libc), and
// other processes by SCM_RIGHTS. All bytes are in the kernel's file first, and nothing of it is staged from then on.

#include "hook_inside.h"

#include <aio.h>
#include <sys/socket.h>

#define CONTROL_MAX 2048 // more than the kernel takes: 253 descriptors

static inline bool none_captured(void) {
    return LIKELY(fd_limit() == 0);
}

static __attribute__((noinline)) void unstage_control(const struct aiocb *cb) {
    int fd;
    if (hook_fetch(&fd, &cb->aio_fildes, sizeof fd)) {
        hook_unstaged(fd); // its error is for write, fsync and close
    }
}

static inline void before_aio(const struct aiocb *cb) {
    if (!none_captured()) {
        unstage_control(cb);
    }
}

static int missing(void) {
    return (int)hook_ret(-ENOSYS);
}

int hook_aio_read(struct aiocb *cb) {
    before_aio(cb);
    return REAL(aio_read) != NULL ? real.aio_read(cb) : missing();
}

int hook_aio_write(struct aiocb *cb) {
    before_aio(cb);
    return REAL(aio_write) != NULL ? real.aio_write(cb) : missing();
}

// Its fsync is libc's own, on our inode: durable are the bytes; the name is, as after any other close, the engine's.
int hook_aio_fsync(int op, struct aiocb *cb) {
    before_aio(cb);
    return REAL(aio_fsync) != NULL ? real.aio_fsync(op, cb) : missing();
}

int hook_lio_listio(int mode, struct aiocb *const list[], int n, struct sigevent *sig) {
    struct aiocb *cb;
    for (int i = 0; !none_captured() && i < n && hook_fetch(&cb, &list[i], sizeof cb); i++) {
        if (cb != NULL) {
            unstage_control(cb);
        }
    }
    return REAL(lio_listio) != NULL ? real.lio_listio(mode, list, n, sig) : missing();
}

// One control message's descriptors. The receiver may write at any time: like a child that has them.
static void unstage_rights(const int *fds, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (hook_captured(fds[i]) != NULL) {
            hook_unstaged(fds[i]);
            atomic_fetch_add_explicit(&shim.spawned, 1, memory_order_relaxed);
        }
    }
}

static __attribute__((noinline)) void unstage_passed(const struct msghdr *msg) {
    union {
        struct cmsghdr head;
        char bytes[CONTROL_MAX];
    } control;
    struct msghdr m;
    if (!hook_fetch(&m, msg, sizeof m) || m.msg_control == NULL || m.msg_controllen < CMSG_LEN(sizeof(int))) {
        return;
    }
    m.msg_controllen = min_u64(m.msg_controllen, sizeof control);
    if (!hook_fetch(&control, m.msg_control, m.msg_controllen)) {
        return;
    }
    m.msg_control = &control;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c != NULL; c = CMSG_NXTHDR(&m, c)) {
        char *end = control.bytes + m.msg_controllen;
        if (c->cmsg_len < CMSG_LEN(0) || c->cmsg_len > (size_t)(end - (char *)c)) {
            return; // the kernel says what is wrong with it
        }
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
            unstage_rights((const int *)CMSG_DATA(c), (c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        }
    }
}

ssize_t hook_sendmsg(int fd, const struct msghdr *msg, int flags) {
    if (!none_captured()) {
        unstage_passed(msg);
    }
    return NATIVE(sendmsg, SYS_sendmsg, fd, msg, flags);
}

int hook_sendmmsg(int fd, struct mmsghdr *list, unsigned n, int flags) {
    for (unsigned i = 0; !none_captured() && i < n && i < 1024; i++) {
        unstage_passed(&list[i].msg_hdr);
    }
    return (int)NATIVE(sendmmsg, SYS_sendmmsg, fd, list, n, flags);
}

#define HOOKS_PASS
#define HOOK_ALIAS HOOK_TWIN
#include "hooks.h"
