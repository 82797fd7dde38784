// SPDX-License-Identifier: MIT
//
// file_sync: fsync, and release: the file gets its name now and is the kernel's from then on.

#include "../core/os.h"
#include "client.h"
#include "file_inside.h"
#include "held.h"
#include "lost.h"
#include "workers.h"

#include <errno.h>

// Publish (or just make durable): a shadow that the engine has.
int file_sync_locked(struct file *f, int fd, bool publish) {
    if (held_hand_over(f) == -EPIPE) {
        lost_recover(f, fd);
        return -EPIPE;
    }
    unsigned how = SYNC_PUBLISH | (file_has_spawned(f) ? SYNC_SPAWNED : 0);
    if (f->allocated || (f->reserved && workers_has_threads())) { // another thread may be in a call without the lock
        how |= SYNC_KEEP;
    }
    struct timespec ts[2];
    file_times(f, fd, ts);
    int r = file_ask(f, fd, MSG_SYNC, publish ? how : 0);
    if (r == 0) {
        f->staged_end = 0;
        file_forget_refs(f);
        f->published |= publish;
        f->native |= publish;
    }
    if (r == 0 && publish && file_engine_changes(f) && fd >= 0) { // what the engine did came after what the program did
        OS_CALL(SYS_utimensat, fd, NULL, ts, 0, 0, 0);
        f->times_set = false;
    }
    return r;
}

// With stripes it is enough that the file is safe there, and it goes on being staged. -EOPNOTSUPP: then as without.
static int sync_safe(struct file *f, int fd) {
    if (!shim.config.stripes[0]) {
        return -EOPNOTSUPP;
    }
    if (held_hand_over(f) == -EPIPE) {
        lost_recover(f, fd);
        return -EPIPE;
    }
    struct msg q = {.type = MSG_SYNC, .file = f->id, .slot = f->slot};
    q.scope = (uint16_t)(SYNC_SAFE | (f->replaces ? 0 : SYNC_PUBLISH));
    int r = client_ask(&q, NULL, 0, NULL, NULL, -1);
    if (r == -EPIPE) {
        lost_recover(f, fd);
    } else if (r < 0 && r != -EOPNOTSUPP && f->error == 0) {
        f->error = r;
    }
    return r;
}

int file_release(struct file *f, int fd) {
    sigset_t saved;
    lock_take(&f->lock, &saved);
    file_begin(f, fd);
    int r = 0;
    if (!f->followed && !f->published && !f->closed && !f->lost && !f->inherited && !f->dropped) {
        r = file_sync_locked(f, fd, true);
    }
    if (r == -EPIPE) { // recovered: native already. The name waits for close, as far as this process can help it
        r = 0;
    }
    f->native = true;
    r = r < 0 ? r : file_known_error(f);
    lock_drop(&f->lock, &saved);
    return r;
}

static int fsync_locked(struct file *f, int fd) {
    int r = file_known_error(f);
    if (r < 0) {
        return r;
    }
    if (!f->followed && !f->lost && !f->published && !f->closed && !f->inherited && !f->dropped) {
        if (shim.config.fsync == FSYNC_DEFER && !f->must_wait) {
            return 0;
        }
        r = f->must_wait ? -EOPNOTSUPP : sync_safe(f, fd);
        r = r == -EOPNOTSUPP ? file_sync_locked(f, fd, !f->replaces) : r;
        if (r != -EPIPE) {
            return r;
        }
    }
    r = os_fsync(fd);
    return r < 0 ? r : file_known_error(f);
}

int file_fsync(struct file *f, int fd) {
    int64_t begun = os_now_ns(CLOCK_MONOTONIC);
    sigset_t saved;
    lock_take(&f->lock, &saved);
    file_begin(f, fd);
    int r = fsync_locked(f, fd);
    lock_drop(&f->lock, &saved);
    uint64_t took = (uint64_t)(os_now_ns(CLOCK_MONOTONIC) - begun);
    atomic_fetch_add(&file_report.fsync_ns, took);
    atomic_fetch_add(&file_report.held_ns, took);
    return r < 0 ? r : lost_error();
}
