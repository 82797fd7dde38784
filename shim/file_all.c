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

#define PREPARE_MS 100 // how long a fork waits for a file in another thread's hands

void file_hand_over_all(void) {
    uint32_t i = 0;
    for (struct file *f; (f = file_each(&i));) {
        sigset_t saved;
        int ms = 0;
        bool ours = lock_try(&f->lock, &saved);
        // Another thread may be in an fsync of seconds: it has handed everything over, and fork must not wait for it.
        while (!ours && ms++ < PREPARE_MS) {
            os_sleep_ms(1);
            ours = lock_try(&f->lock, &saved);
        }
        if (!ours) {
            continue;
        }
        file_begin(f, -1);
        if (held_hand_over(f) == -EPIPE) {
            lost_recover(f, -1);
        }
        lock_drop(&f->lock, &saved);
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
        file_close(f, -1);
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
