// SPDX-License-Identifier: MIT
//
// own: see own.h. One array of handles, changed by compare-and-swap only: no lock, so that a hook in any thread may
// ask.

#include "own.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/resource.h>

#include "../core/os.h"
#include "../core/util.h"
#include "fdtable.h"
#include "guard.h"

#define OWN_RESERVE   80   // numbers kept for us below the limit
#define PINS_MOVING   (-1) // in the hands of own_add, own_drop or own_move
#define MOVE_TRIES_MS 200

static struct own {
    _Atomic int fd;   // number + 1; 0: free
    _Atomic int pins; // users in the middle of a call, or PINS_MOVING
    dev_t dev;        // written while PINS_MOVING only
    ino_t ino;
} owns[OWN_MAX];

static _Atomic unsigned char owned[FDTABLE_MAX / 8]; // a bit a number: what every close of the program looks at

static void mark(int fd, bool ours) {
    if ((unsigned)fd >= FDTABLE_MAX) {
        return;
    }
    unsigned char bit = (unsigned char)(1 << (fd & 7));
    if (ours) {
        atomic_fetch_or(&owned[fd >> 3], bit);
    } else {
        atomic_fetch_and(&owned[fd >> 3], (unsigned char)~bit);
    }
}

bool own_is(int fd) {
    return (unsigned)fd < FDTABLE_MAX &&
           (atomic_load_explicit(&owned[fd >> 3], memory_order_relaxed) >> (fd & 7) & 1);
}

int own_floor(void) {
    struct {
        uint64_t cur, max;
    } rl = {1024, 1024};
    OS_CALL(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &rl, 0, 0);
    int limit = (int)min_u64(rl.cur, FDTABLE_MAX);
    int floor = limit - OWN_RESERVE;
    if (floor < 64) {
        floor = limit / 2 > 20 ? limit / 2 : 20;
    }
    return floor;
}

// A duplicate of `fd` at a high number; where the highest are full, anywhere in the upper half.
static int dup_high(int fd) {
    int floor = own_floor();
    int r = os_fcntl(fd, F_DUPFD_CLOEXEC, floor);
    return r >= 0 ? r : os_fcntl(fd, F_DUPFD_CLOEXEC, floor / 2);
}

int own_high(int fd) {
    int high = dup_high(fd);
    os_close(fd);
    return high;
}

int own_high_if(int fd) {
    int high = dup_high(fd);
    if (high < 0) {
        return fd;
    }
    os_close(fd);
    return high;
}

int own_adopt(int high, dev_t dev, ino_t ino) {
    for (int i = 0; high < FDTABLE_MAX && i < OWN_MAX; i++) {
        struct own *o = &owns[i];
        int free_fd = 0;
        if (atomic_load(&o->fd) != 0 || !atomic_compare_exchange_strong(&o->fd, &free_fd, high + 1)) {
            continue;
        }
        o->dev = dev;
        o->ino = ino;
        atomic_store(&o->pins, 0); // a free one is PINS_MOVING or fresh
        mark(high, true);
        return i;
    }
    return -EMFILE;
}

int own_add(int fd) {
    struct stat st;
    int high = own_high(fd);
    if (high < 0) {
        return high;
    }
    int r = os_fstat(high, &st);
    r = r < 0 ? r : own_adopt(high, st.st_dev, st.st_ino);
    if (r < 0) {
        os_close(high);
    }
    return r;
}

// Is the number still the inode that we put there?
static bool intact(const struct own *o, int fd) {
    struct stat st;
    return os_fstat(fd, &st) == 0 && st.st_dev == o->dev && st.st_ino == o->ino;
}

int own_pin(int handle) {
    struct own *o = &owns[handle];
    for (;;) {
        int pins = atomic_load(&o->pins);
        if (pins == PINS_MOVING) {
            if (atomic_load(&o->fd) == 0) {
                return -EBADF;
            }
            os_sleep_ms(1);
            continue;
        }
        if (atomic_compare_exchange_weak(&o->pins, &pins, pins + 1)) {
            break;
        }
    }
    int fd = atomic_load(&o->fd) - 1;
    if (fd >= 0 && intact(o, fd)) {
        return fd;
    }
    own_unpin(handle);
    return -EBADF;
}

bool own_still(int fd) {
    for (int i = 0; i < OWN_MAX; i++) { // a number that was taken from us may be ours again, under another handle
        if (atomic_load(&owns[i].fd) == fd + 1 && intact(&owns[i], fd)) {
            return true;
        }
    }
    if (!guard_foreign()) {
        mark(fd, false); // closed behind our back, and the number used again
    }
    return false;
}

void own_unpin(int handle) {
    atomic_fetch_sub(&owns[handle].pins, 1);
}

// Waits a little until nobody is in the middle of a call with it.
static bool seize(struct own *o) {
    for (int i = 0; i < MOVE_TRIES_MS; i++) {
        int idle = 0;
        if (atomic_compare_exchange_strong(&o->pins, &idle, PINS_MOVING)) {
            return true;
        }
        os_sleep_ms(1);
    }
    return false;
}

void own_drop(int handle) {
    struct own *o = &owns[handle];
    if (!seize(o)) {
        return; // stays registered: a leak is better than a number closed under somebody's call
    }
    int fd = atomic_load(&o->fd) - 1;
    if (fd >= 0) {
        mark(fd, false);
        if (intact(o, fd)) {
            os_close(fd);
        }
    }
    atomic_store(&o->fd, 0);
}

int own_move(int fd) {
    for (int i = 0; i < OWN_MAX; i++) {
        struct own *o = &owns[i];
        if (atomic_load(&o->fd) != fd + 1) {
            continue;
        }
        if (!seize(o)) {
            return -EBUSY;
        }
        int r = 0;
        if (intact(o, fd)) {
            r = dup_high(fd);
            if (r >= FDTABLE_MAX) {
                os_close(r);
                r = -EMFILE;
            }
            if (r >= 0) {
                atomic_store(&o->fd, r + 1);
                mark(r, true);
                mark(fd, false);
                os_close(fd);
            }
        } else {
            mark(fd, false); // the program took the number some other way
        }
        atomic_store(&o->pins, 0);
        return r < 0 ? -EBUSY : 0;
    }
    return -EBADF;
}

void own_after_fork(void) {
    for (int i = 0; i < OWN_MAX; i++) {
        struct own *o = &owns[i];
        int fd = atomic_load(&o->fd) - 1;
        if (fd >= 0) {
            mark(fd, false);
            if (intact(o, fd)) {
                os_close(fd);
            }
        }
        atomic_store(&o->fd, 0);
        atomic_store(&o->pins, 0);
    }
}
