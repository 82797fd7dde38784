// SPDX-License-Identifier: MIT
//
// fdtable: see fdtable.h. Entries are changed by atomic exchange; there is no lock.

#include "fdtable.h"

#include <errno.h>

#include "../core/os.h"

struct file *_Atomic fdtable[FDTABLE_MAX];
struct _IO_FILE *_Atomic fd_streams[FDTABLE_MAX];

static _Atomic int limit; // highest entry ever used + 1

int fd_limit(void) {
    return atomic_load_explicit(&limit, memory_order_relaxed);
}

struct file *fd_get(int fd, bool change) {
    struct file *f = fd_peek(fd);
    if (!f || (change && guard_foreign())) {
        return NULL;
    }
    struct stat st;
    if (os_fstat(fd, &st) == 0 && st.st_dev == f->dev && st.st_ino == f->ino) {
        return f;
    }
    // Closed and perhaps re-used where no hook saw it. Only if the entry is still the one that was looked at: another
    // thread may have put a new one there. Not in a vfork child, whose descriptors are not its parent's.
    if (!guard_foreign() && atomic_compare_exchange_strong(&fdtable[fd], &f, NULL)) {
        file_put(f);
    }
    return NULL;
}

void fd_enter(int fd, struct file *f) {
    if ((unsigned)fd >= FDTABLE_MAX) {
        file_put(f);
        return;
    }
    f->stdio |= fd <= 2;
    int seen = atomic_load(&limit);
    while (seen < fd + 1 && !atomic_compare_exchange_weak(&limit, &seen, fd + 1)) {
    }
    struct file *old = atomic_exchange(&fdtable[fd], f);
    if (old) {
        file_put(old);
    }
}

void fd_dup(int from, int to) {
    struct file *f = fd_peek(from);
    if (!f) {
        fd_forget(to);
        return;
    }
    if (from == to) {
        return;
    }
    atomic_fetch_add(&f->refs, 1);
    fd_enter(to, f);
}

int fd_before_close(int fd, struct file *f) {
    struct file *seen = f;
    if (!atomic_compare_exchange_strong(&fdtable[fd], &seen, NULL)) {
        return 0;
    }
    int r = atomic_load(&f->refs) == 1 ? file_close(f, fd) : 0;
    file_put(f);
    return r;
}

void fd_forget(int fd) {
    if (!fd_peek(fd)) {
        return;
    }
    struct file *f = atomic_exchange(&fdtable[fd], NULL);
    if (f) {
        file_put(f);
    }
}

bool fd_has_stream(const struct file *f) {
    for (int fd = 0; f->stdio && fd < fd_limit(); fd++) {
        if (fd_peek(fd) == f && (fd <= 2 || atomic_load_explicit(&fd_streams[fd], memory_order_relaxed) != NULL)) {
            return true;
        }
    }
    return false;
}

int fd_of(const struct file *f) {
    for (int fd = 0; fd < fd_limit(); fd++) {
        if (fd_peek(fd) == f && fd_get(fd, false) == f) {
            return fd;
        }
    }
    return -EBADF;
}
