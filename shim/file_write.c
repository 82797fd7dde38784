// SPDX-License-Identifier: MIT
//
// file_write: the program's bytes. The first MiB goes to the kernel; behind it, a range is reserved by moving the
// kernel's offset, then copied into staging. Whatever is odd (a bad pointer, a limit, no space, no chunk, a file that
// is native) is done by the kernel after a settle: then its answer is right by definition.

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/resource.h>

#include "../core/os.h"
#include "adopt.h"
#include "arena.h"
#include "client.h"
#include "fdtable.h"
#include "file_inside.h"
#include "held.h"
#include "lost.h"
#include "maps.h"

#define HOLE_MAX  (16 * MIB) // out-of-order writers leave smaller ones
#define COUNT_MAX 0x7ffff000u // the kernel's limit for one call
#define PAGE_MIN  4096

/** Where in the program's vector we are. */
struct cursor {
    const struct iovec *iov;
    size_t skip; // of the first element
};

static size_t piece(struct cursor *c, size_t most, const char **p) {
    while (c->skip == c->iov->iov_len) {
        c->iov++;
        c->skip = 0;
    }
    size_t n = c->iov->iov_len - c->skip;
    n = n < most ? n : most;
    *p = (const char *)c->iov->iov_base + c->skip;
    c->skip += n;
    return n;
}

// ---- By the kernel

static ssize_t kernel_write(int fd, const struct iovec *iov, int n, off_t at) {
    if (at >= 0) {
        return n == 1 ? os_pwrite(fd, iov->iov_base, iov->iov_len, at) : OS_CALL(SYS_pwritev, fd, iov, n, at, 0, 0);
    }
    return n == 1 ? os_write(fd, iov->iov_base, iov->iov_len) : OS_CALL(SYS_writev, fd, iov, n, 0, 0, 0);
}

// The call as it stands, after a settle: the range may have bytes in staging, and those must not come behind these.
static ssize_t by_kernel(struct file *f, int fd, const struct iovec *iov, int n, off_t at) {
    int r = file_settle_locked(f, fd);
    if (r < 0) {
        return r;
    }
    ssize_t w = kernel_write(fd, iov, n, at);
    if (w > 0) {
        f->bytes_native += (uint64_t)w;
    }
    return w;
}

// Writes up to `len` bytes at `off`. How many, or the error if none.
static ssize_t put_native(struct file *f, int fd, struct cursor *c, size_t len, off_t off) {
    size_t done = 0;
    while (done < len) {
        const char *p;
        size_t n = piece(c, len - done, &p);
        ssize_t w = os_pwrite(fd, p, n, off + (off_t)done);
        if (w < 0) {
            return done > 0 ? (ssize_t)done : w;
        }
        done += (size_t)w;
        f->bytes_native += (uint64_t)w;
        if ((size_t)w < n) {
            break;
        }
    }
    return (ssize_t)done;
}

// ---- Checks before anything is moved

// Not by touching what is not there yet: that would wait for it.
static bool byte_readable(const char *p) {
    struct maps_area a;
    return arena_promised(p) ? maps_find(p, &a) < 0 || (a.flags & MAPS_READ) : guard_readable(p);
}

// Can the source be read? The first and the last byte of each element tell of wild pointers and lengths.
static bool readable(const struct iovec *iov, int n) {
    for (int i = 0; i < n; i++) {
        const char *first = iov[i].iov_base, *last = first + iov[i].iov_len - 1;
        bool one_page = ((uintptr_t)first ^ (uintptr_t)last) < PAGE_MIN;
        if (iov[i].iov_len > 0 && !(byte_readable(first) && (one_page || byte_readable(last)))) {
            return false;
        }
    }
    return true;
}

// The sum of the lengths, as far as one call takes it; -1 for what the kernel would refuse.
static ssize_t total(const struct iovec *iov, int n) {
    size_t sum = 0;
    for (int i = 0; i < n; i++) {
        if (iov[i].iov_len > SSIZE_MAX - sum) {
            return -1;
        }
        sum += iov[i].iov_len;
    }
    return (ssize_t)min_u64(sum, COUNT_MAX);
}

static bool within_limit(uint64_t end) {
    struct {
        uint64_t cur, max;
    } rl;
    return OS_CALL(SYS_prlimit64, 0, RLIMIT_FSIZE, NULL, &rl, 0, 0) < 0 || end <= rl.cur;
}

// No space: what was closed before may still hold space that it gives back when it is published (what the engine has
// reserved ahead, an older file that is replaced or deleted). True when it was worth the wait: try again, once.
static bool made_room(ssize_t err) {
    if ((err != -ENOSPC && err != -EDQUOT) || !client_alive()) {
        return false;
    }
    struct msg q = {.type = MSG_WAIT, .scope = WAIT_SPACE};
    return client_ask(&q, NULL, 0, NULL, NULL, -1) != -EPIPE;
}

// Is there space on disk up to `end`? Asks the engine if it is not reserved yet. For all of a long write at once:
// fallocate waits for direct writes in flight, so that asking in steps would tie the copy to the disk's speed.
// A write far beyond the end leaves a hole, which the engine's reservation would fill.
static bool leaves_hole(const struct file *f, int fd, uint64_t off) {
    struct stat st;
    return os_fstat(fd, &st) == 0 && off > max_u64((uint64_t)st.st_size, f->staged_end) + HOLE_MAX;
}

static bool reserved(struct file *f, int fd, uint64_t off, uint64_t end) {
    const struct tables *t = client_tables();
    const struct file_public *p = t ? &t->files[f->slot % FILES_MAX] : NULL;
    if (p && atomic_load_explicit(&p->reserved, memory_order_acquire) >= end) {
        return true;
    }
    f->sparse |= leaves_hole(f, fd, off);
    if (f->sparse) {
        return false;
    }
    const struct msg question = {.type = MSG_RESERVE, .file = f->id, .slot = f->slot, .value = end};
    struct msg q = question;
    int r = client_ask(&q, NULL, 0, NULL, NULL, -1);
    if (made_room(r)) {
        q = question; // another number: the first one has had its answer
        r = client_ask(&q, NULL, 0, NULL, NULL, -1);
    }
    if (r == -EPIPE) {
        lost_recover(f, fd);
    }
    f->reserved |= r >= 0;
    return r >= 0;
}

// ---- Staged

// Gives back the part of the descriptor's offset that was reserved and not used.
static void give_back(int fd, off_t at, size_t unused) {
    if (at < 0 && unused > 0) {
        os_lseek(fd, -(off_t)unused, SEEK_CUR);
    }
}

// Copies up to `len` bytes at `off`. What staging does not take, the kernel does. How many, or the error if none.
static ssize_t put_staged(struct file *f, int fd, struct cursor *c, size_t len, uint64_t off) {
    size_t done = 0;
    while (done < len) {
        struct cursor before = *c;
        const char *p;
        size_t n = piece(c, len - done, &p);
        ssize_t r = adopt_put(f, off + done, p, n);
        if (r < 0) {
            *c = before;
            if (r == -EIO) { // a copy from a device that has failed after its call: there is nothing to be written
                f->error = f->error ? f->error : -EIO;
                return done > 0 ? (ssize_t)done : r;
            }
            if (r == -EPIPE) {
                lost_recover(f, fd);
            }
            r = file_settle_locked(f, fd);
            ssize_t w = r < 0 ? r : put_native(f, fd, c, len - done, (off_t)(off + done));
            return w < 0 ? (done > 0 ? (ssize_t)done : w) : (ssize_t)done + w;
        }
        c->skip -= n - (size_t)r;
        done += (size_t)r;
        f->bytes_staged += (size_t)r;
    }
    return (ssize_t)done;
}

// Has another process begun to look at the file while we were at it? Whoever does says so before he reads the labels:
// he has read that of the bytes before this, or we see him.
static bool looked_at_since(const struct file *f) {
#if FASTCKPT_BREAK == 18 // canary: bytes that were taken in the middle of their call stay as they were then
    return false;
#endif
    atomic_thread_fence(memory_order_seq_cst);
    return file_looked_at(f);
}

// He may have got these bytes half copied, or not at all, and the engine writes what he got. By the kernel, behind it.
static ssize_t once_more(struct file *f, int fd, struct cursor *c, size_t len, uint64_t off) {
    int r = file_settle_locked(f, fd);
    f->native = true;
    return r < 0 ? r : put_native(f, fd, c, len, (off_t)off);
}

void file_touch(struct file *f) {
    int64_t ns = os_now_ns(CLOCK_REALTIME_COARSE);
    f->mtime = (struct timespec){ns / 1000000000, ns % 1000000000};
}

static void moved_to(struct file *f, uint64_t off) {
    atomic_store_explicit(&f->at, off, memory_order_relaxed);
}

// While nothing is staged, the kernel may write anywhere: where it will be the first MiB, it does at once. A guess that
// is wrong (the offset is shared) costs speed alone.
static bool in_head(const struct file *f, size_t len) {
    return f->staged_end == 0 && len <= NATIVE_HEAD &&
           atomic_load_explicit(&f->at, memory_order_relaxed) <= NATIVE_HEAD - len;
}

// A write of `len` > 0 bytes to a file that is not native. `at` < 0: at the descriptor's offset.
static ssize_t captured(struct file *f, int fd, const struct iovec *iov, int n, size_t len, off_t at) {
    off_t off = at;
    if (at < 0 && in_head(f, len)) {
        ssize_t w = kernel_write(fd, iov, n, at);
        if (w > 0) {
            f->bytes_native += (uint64_t)w;
            moved_to(f, f->at + (uint64_t)w);
        }
        return w;
    }
    // What is written ahead of a FILE must not be staged: libc would write over it by itself when it comes there.
    if (f->sparse || !readable(iov, n) || (at >= 0 && fd_has_stream(f))) {
        return by_kernel(f, fd, iov, n, at);
    }
    if (at < 0) {
        off_t end = os_lseek(fd, (off_t)len, SEEK_CUR);
        if (end < 0) {
            return by_kernel(f, fd, iov, n, at);
        }
        off = end - (off_t)len;
        moved_to(f, (uint64_t)end);
    }
    uint64_t end = (uint64_t)off + len;
    bool odd = end > INT64_MAX || (end > NATIVE_HEAD && !within_limit(end));
    if (odd || (end > NATIVE_HEAD && (!reserved(f, fd, (uint64_t)off, end) || f->native))) {
        give_back(fd, at, len);
        return by_kernel(f, fd, iov, n, at);
    }
    if ((uint64_t)off < f->referred_end && client_refs_overlap(f->id, (uint64_t)off, len)) {
        file_settle_locked(f, fd); // its error is the file's, which the next call says
    }
    for (int i = 0; i < n && len >= ADOPT_MIN; i++) {
        adopt_written(iov[i].iov_len);
    }
    struct cursor c = {iov, 0};
    size_t head = (uint64_t)off < NATIVE_HEAD ? min_u64(len, NATIVE_HEAD - (uint64_t)off) : 0;
    ssize_t done = head > 0 ? put_native(f, fd, &c, head, off) : 0;
    if (done == (ssize_t)head && head < len) {
        struct cursor from = c;
        ssize_t w = put_staged(f, fd, &c, len - head, (uint64_t)off + head);
        if (w > 0 && looked_at_since(f)) {
            w = once_more(f, fd, &from, (size_t)w, (uint64_t)off + head);
        }
        done = w >= 0 ? done + w : head > 0 ? done : w;
    }
    give_back(fd, at, len - (size_t)(done > 0 ? done : 0));
    return done;
}

// Is staging over? A child may have set O_APPEND on the description that it shares.
static bool staging_ends(const struct file *f, int fd) {
    int flags = file_has_spawned(f) ? os_fcntl(fd, F_GETFL, 0) : -1;
    return flags >= 0 && (flags & O_APPEND) != 0;
}

// Under the lock.
static ssize_t write_once(struct file *f, int fd, const struct iovec *iov, int n, off_t at) {
    file_begin(f, fd);
    ssize_t r = file_known_error(f);
    if (r == 0 && !file_is_native(f) && staging_ends(f, fd)) {
        r = file_settle_locked(f, fd);
        f->native = true;
    }
    if (r == 0 && f->closed) {
        r = file_settle_locked(f, fd);
    }
    if (r == 0 && file_is_native(f)) {
        r = kernel_write(fd, iov, n, at);
        if (r > 0) {
            f->bytes_native += (uint64_t)r;
            file_touch(f); // what was staged before has its times set at the end
        }
    } else if (r == 0) {
        ssize_t len = n > 0 && n <= IOV_MAX ? total(iov, n) : -1;
        r = len > 0 ? captured(f, fd, iov, n, (size_t)len, at) : kernel_write(fd, iov, n, at);
        if (r > 0) {
            file_touch(f);
            file_count_write(f, fd);
        }
        // What the program was refused and did not get through later must not replace an older file.
        if (r < 0) {
            f->failed |= r != -EFAULT && r != -EINVAL && r != -EINTR;
        } else if (len > 0) {
            f->failed = r < len;
        }
    }
    return r;
}

static ssize_t any_write(struct file *f, int fd, const struct iovec *iov, int n, off_t at) {
    int64_t begun = shim.config.report ? os_now_ns(CLOCK_MONOTONIC) : 0;
    sigset_t saved;
    lock_take(&f->lock, &saved);
    ssize_t r = write_once(f, fd, iov, n, at);
    if (made_room(r)) {
        r = write_once(f, fd, iov, n, at);
    }
    if (UNLIKELY(atomic_load_explicit(&f->wanted, memory_order_relaxed))) {
        atomic_store(&f->wanted, false);
        if (held_hand_over(f) == -EPIPE) {
            lost_recover(f, fd);
        }
    }
    lock_drop(&f->lock, &saved);
    if (begun) {
        atomic_fetch_add(&file_report.held_ns, (uint64_t)(os_now_ns(CLOCK_MONOTONIC) - begun));
    }
    return r;
}

// ---- The calls

ssize_t file_write(struct file *f, int fd, const void *buf, size_t len) {
    struct iovec iov = {(void *)buf, len};
    return any_write(f, fd, &iov, 1, -1);
}

ssize_t file_pwrite(struct file *f, int fd, const void *buf, size_t len, off_t off) {
    struct iovec iov = {(void *)buf, len};
    return off < 0 ? os_pwrite(fd, buf, len, off) : any_write(f, fd, &iov, 1, off);
}

// The vector itself may lie in memory that is not there, or have lengths that the kernel refuses before it looks at
// what they are of.
static bool vector_fine(const struct iovec *iov, int n) {
    struct iovec whole = {(void *)iov, (size_t)n * sizeof *iov};
    return n > 0 && n <= IOV_MAX && readable(&whole, 1) && total(iov, n) >= 0;
}

ssize_t file_writev(struct file *f, int fd, const struct iovec *iov, int n) {
    return vector_fine(iov, n) ? any_write(f, fd, iov, n, -1) : OS_CALL(SYS_writev, fd, iov, n, 0, 0, 0);
}

ssize_t file_pwritev(struct file *f, int fd, const struct iovec *iov, int n, off_t off) {
    return off >= 0 && vector_fine(iov, n) ? any_write(f, fd, iov, n, off)
                                           : OS_CALL(SYS_pwritev, fd, iov, n, off, 0, 0);
}

void file_before_libc(struct file *f, int fd, off_t to) {
    if (f->staged_end > 0) {
        to = to < 0 ? os_lseek(fd, 0, SEEK_CUR) : to;
        if (to < 0 || (uint64_t)to < f->staged_end) {
            file_settle(f, fd);
        }
    }
}

bool file_reserve(struct file *f, int fd, off_t off, off_t len) {
    off_t end;
    if (off < 0 || len <= 0 || __builtin_add_overflow(off, len, &end) || end <= (off_t)NATIVE_HEAD ||
        !within_limit((uint64_t)end)) {
        return false;
    }
    sigset_t saved;
    lock_take(&f->lock, &saved);
    file_begin(f, fd);
    bool there = !file_is_native(f) && !f->inherited && file_known_error(f) == 0 && !file_has_spawned(f) &&
                 !leaves_hole(f, fd, (uint64_t)off) && reserved(f, fd, (uint64_t)off, (uint64_t)end) && !f->native;
    if (there) {
        file_touch(f);
    }
    lock_drop(&f->lock, &saved);
    return there;
}

static off_t moved(struct file *f, off_t r) {
    if (r >= 0) {
        moved_to(f, (uint64_t)r);
    }
    return r;
}

off_t file_lseek(struct file *f, int fd, off_t off, int whence) {
    if (whence == SEEK_SET || whence == SEEK_CUR) {
        if (f->staged_end > 0 && fd_has_stream(f)) {
            off_t from = whence == SEEK_SET ? 0 : os_lseek(fd, 0, SEEK_CUR), to;
            file_before_libc(f, fd, __builtin_add_overflow(from, off, &to) || to < 0 ? 0 : to);
        }
        return moved(f, os_lseek(fd, off, whence));
    }
    sigset_t saved;
    lock_take(&f->lock, &saved);
    file_begin(f, fd);
    off_t r;
    struct stat st;
    if (whence == SEEK_END && f->staged_end > 0 && !file_has_spawned(f) && os_fstat(fd, &st) == 0) {
        off_t size = (off_t)max_u64((uint64_t)st.st_size, f->staged_end);
        off_t to;
        bool far = __builtin_add_overflow(size, off, &to);
        if (!far && to < (off_t)f->staged_end && fd_has_stream(f)) {
            file_settle_locked(f, fd); // libc may write here
        }
        r = far ? -EINVAL : os_lseek(fd, to, SEEK_SET);
    } else {
        if (whence != SEEK_END || file_has_spawned(f)) { // only the kernel knows, once it has all
            file_settle_locked(f, fd);
        }
        r = os_lseek(fd, off, whence);
    }
    lock_drop(&f->lock, &saved);
    return moved(f, r);
}
