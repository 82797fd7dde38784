// SPDX-License-Identifier: MIT
//
// file_log: the rule of logs (design 4). A file that stays below 1 MiB and is written 16 times in three different
// seconds or more is one that people read while it grows: a new name is linked, in its place in the order, and the
// program goes on without a wait. A name that replaces an older file moves at close; if the program dies before, what
// was written counts. Never by time alone. What bytes go where is not decided here.

#include "../core/os.h"
#include "client.h"
#include "file_inside.h"

#define LOG_WRITES  16
#define LOG_SECONDS 3
#define LOG_BYTES   (1u << 20)

static void link_soon(struct file *f) {
    f->log = true;
    struct msg m = {.type = MSG_SYNC, .scope = SYNC_LOG | SYNC_QUIET, .file = f->id, .slot = f->slot};
    if (!f->replaces) {
        m.scope |= SYNC_PUBLISH | SYNC_SPAWNED; // it is written meanwhile: nothing is cut off
        f->native = true; // all of it is below 1 MiB: nothing is staged
    }
    client_tell(&m); // keeper and engine gone: the next call on the file finds out
}

// A log is small by what the kernel has of it, not by what this process has written through our hooks: libc writes too.
static bool is_small(int fd) {
    struct stat st;
    return os_fstat(fd, &st) == 0 && st.st_size < LOG_BYTES;
}

void file_count_write(struct file *f, int fd) {
    if (f->log || f->native || f->followed || f->bytes_staged + f->bytes_native >= LOG_BYTES) {
        return;
    }
    if (f->log_second != f->mtime.tv_sec) {
        f->log_second = f->mtime.tv_sec;
        f->log_seconds++;
    }
    f->log_writes++;
    if (f->log_writes >= LOG_WRITES && f->log_seconds >= LOG_SECONDS && f->staged_end == 0 && !f->dropped &&
        !f->closed && !f->inherited && !f->lost && is_small(fd)) {
        link_soon(f);
    }
}

void file_count_flush(struct file *f, int fd) {
    struct stat st;
    sigset_t saved;
    lock_take(&f->lock, &saved);
    file_begin(f, fd);
    if (os_fstat(fd, &st) == 0 && st.st_size > 0 && st.st_size < LOG_BYTES) {
        file_touch(f);
        file_count_write(f, fd);
    }
    lock_drop(&f->lock, &saved);
}
