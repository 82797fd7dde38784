// SPDX-License-Identifier: MIT
//
// guarded: see guarded.h. A mapping is guarded or is not: the kernel keeps that with the mapping, and drops it with it,
// so that memory which the program has given back and got again is never taken for what was there before.

#include "guarded.h"

#include "../core/os.h"
#include "../core/util.h"
#include "own.h"

#include <errno.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#define PAGE 4096u

// Newer than the C library's headers may be.
struct poison {
    struct uffdio_range range;
    uint64_t mode;
    int64_t done;
};
#define POISON _IOWR(UFFDIO, 0x08, struct poison)

static struct guarded {
    int own;          // handle of the userfaultfd, once there is `nothing`
    char *nothing;    // a page that cannot be read
} guarded;

static int call(unsigned long request, void *arg) {
    int fd = own_pin(guarded.own);
    if (fd < 0) {
        return fd;
    }
    int r = (int)OS_CALL(SYS_ioctl, fd, request, arg, 0, 0, 0);
    own_unpin(guarded.own);
    return r;
}

int guarded_begin(void) {
    int fd = os_userfaultfd();
    int own = fd < 0 ? fd : own_add(fd);
    if (own < 0) {
        return own;
    }
    void *p = os_mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (os_is_err(p)) {
        own_drop(own);
        return (int)(intptr_t)p;
    }
    guarded.own = own;
    guarded.nothing = p;
    return 0;
}

int guarded_fd(void) {
    int fd = own_pin(guarded.own);
    if (fd >= 0) {
        own_unpin(guarded.own);
    }
    return fd;
}

char *guarded_next(void) {
    struct uffd_msg m;
    int fd = own_pin(guarded.own);
    ssize_t n = fd < 0 ? fd : os_read(fd, &m, sizeof m);
    if (fd >= 0) {
        own_unpin(guarded.own);
    }
    bool fault = n == (ssize_t)sizeof m && m.event == UFFD_EVENT_PAGEFAULT;
    return fault ? (char *)(uintptr_t)(m.arg.pagefault.address & ~(uint64_t)(PAGE - 1)) : NULL;
}

int guarded_add(char *addr, size_t len) {
    struct uffdio_register r = {.range = {(uintptr_t)addr, len}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    return call(UFFDIO_REGISTER, &r);
}

// The kernel looks for the mapping first, and for the bytes then.
bool guarded_is(const char *page) {
    struct uffdio_copy c = {.dst = (uintptr_t)page, .src = (uintptr_t)guarded.nothing, .len = PAGE};
    int r = guarded.nothing != NULL ? call(UFFDIO_COPY, &c) : -ENOENT;
    return r == -EFAULT || r == -EEXIST;
}

int guarded_fill(char *addr, const char *from, size_t len) {
    for (size_t done = 0; done < len;) {
        struct uffdio_copy c = {.dst = (uintptr_t)addr + done, .src = (uintptr_t)from + done, .len = len - done};
        int r = call(UFFDIO_COPY, &c);
        if (r >= 0) {
            return 0;
        }
        if (c.copy > 0) {
            done += (size_t)c.copy;
        } else if (r == -EEXIST) { // there already; who waits for it may have come just before
            guarded_wake(addr + done, PAGE);
            done += PAGE;
        } else if (r != -EAGAIN && r != -EINTR) {
            return r;
        }
    }
    return 0;
}

void guarded_lose(char *addr, size_t len) {
    for (size_t done = 0; done < len;) {
        struct poison p = {.range = {(uintptr_t)addr + done, len - done}};
        int r = call(POISON, &p);
        if (r >= 0) {
            return;
        }
        if (p.done > 0) {
            done += (size_t)p.done;
        } else if (r != -EAGAIN && r != -EINTR) {
            done += PAGE;
        }
    }
}

void guarded_wake(char *addr, size_t len) {
    struct uffdio_range r = {(uintptr_t)addr, len};
    call(UFFDIO_WAKE, &r);
}

void guarded_drop(char *addr, size_t len) {
    struct uffdio_range r = {(uintptr_t)addr, len};
    call(UFFDIO_UNREGISTER, &r);
}
