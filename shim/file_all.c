// SPDX-License-Identifier: MIT
//
// file_all: what happens to all files of this process at once: before fork and exec, at exit, and when keeper and
// engine are gone. What happens to one is file.c's.

#include <errno.h>

#include "../core/os.h"
#include "client.h"
#include "fdtable.h"
#include "file_inside.h"
#include "held.h"
#include "lost.h"

#define PREPARE_MS 2 // how long a fork waits for files in other threads' hands, all together

// False: in another thread's hands.
static bool try_hand_over(struct file *f) {
    sigset_t saved;
    if (!lock_try(&f->lock, &saved)) {
        return false;
    }
    file_begin(f, -1);
    if (held_hand_over(f) == -EPIPE) {
        lost_recover(f, -1);
    }
    atomic_store(&f->wanted, false);
    lock_drop(&f->lock, &saved);
    return true;
}

// A thread may be in a write that waits for the disk: it hands over itself when that is done, and fork goes on.
void file_hand_over_all(void) {
    int ms = 0;
    uint32_t i = 0;
    for (struct file *f; (f = file_each(&i));) {
        bool done = try_hand_over(f);
        atomic_store(&f->wanted, !done);
        while (!done && !(done = try_hand_over(f)) && ms++ < PREPARE_MS) {
            os_sleep_ms(1);
        }
    }
}

void file_before_program(void) {
    for (int fd = 0; fd < fd_limit(); fd++) {
        struct file *f = fd_peek(fd) != NULL ? fd_get(fd, false) : NULL;
        if (f != NULL && f->staged_end > 0 && os_lseek(fd, 0, SEEK_CUR) < (off_t)f->staged_end) {
            file_settle(f, fd);
        }
    }
}

void file_before_exec(void) {
    if (guard_foreign()) {
        return; // a vfork child: the files are its parent's, who goes on
    }
    uint32_t i = 0;
    bool any = false;
    for (struct file *f; (f = file_each(&i));) {
        if (!f->inherited && !f->closed) {
            any = true;
            file_settle(f, -1);
        }
    }
    if (any && client_alive()) {
        struct msg m = {.type = MSG_EXEC};
        client_tell(&m);
    }
}

void file_close_all(void) {
    uint32_t i = 0;
    for (struct file *f; (f = file_each(&i));) {
        file_close(f, fd_of(f));
    }
}

bool file_recover_all(void) {
    uint32_t i = 0;
    bool all = true;
    for (struct file *f; (f = file_each(&i));) {
        sigset_t saved;
        if (f->inherited || f->epoch == client_epoch()) {
            continue;
        }
        if (lock_try(&f->lock, &saved)) {
            file_begin(f, -1);
            lock_drop(&f->lock, &saved);
        } else {
            all = false;
        }
    }
    return all;
}
