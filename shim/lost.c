// SPDX-License-Identifier: MIT
//
// lost: see lost.h. Nothing here asks the engine: there is none. What staging holds is still mapped, and the engine's
// last words on each chunk stand in the tables.

#include "lost.h"

#include <errno.h>
#include <fcntl.h>

#include "../core/log.h"
#include "../core/os.h"
#include "client.h"
#include "fdtable.h"
#include "file_inside.h"
#include "own.h"

#define CLOSED_MAX 64 // closed files remembered by name
#define DIRS_MAX   64 // directories kept; beyond, a file of another directory cannot be published without an engine
#define FENCE_LEN  4096
#define DIR_TEXT   128 // of a directory, for a line; a longer one is cut off in front

// ---- Directories: one descriptor for all open files of a directory

static struct dir {
    dev_t dev;
    ino_t ino;
    uint32_t refs;
    int own;
} dirs[DIRS_MAX];
static struct lock dirs_lock;

bool lost_keep_dir(struct file *f, int dirfd, dev_t dev, ino_t ino) {
    bool taken = false;
    f->dir = -1;
    sigset_t saved;
    lock_take(&dirs_lock, &saved);
    int empty = -1;
    for (int i = 0; i < DIRS_MAX && f->dir < 0; i++) {
        struct dir *d = &dirs[i];
        if (d->refs > 0 && d->dev == dev && d->ino == ino) {
            d->refs++;
            f->dir = i;
        } else if (d->refs == 0 && empty < 0) {
            empty = i;
        }
    }
    if (f->dir < 0 && empty >= 0) {
        int own = own_adopt(dirfd, dev, ino);
        if (own >= 0) {
            dirs[empty] = (struct dir){.dev = dev, .ino = ino, .refs = 1, .own = own};
            f->dir = empty;
            taken = true;
        }
    }
    lock_drop(&dirs_lock, &saved);
    return taken;
}

void lost_drop_dir(struct file *f) {
    if (f->dir < 0) {
        return;
    }
    sigset_t saved;
    lock_take(&dirs_lock, &saved);
    if (--dirs[f->dir].refs == 0) {
        own_drop(dirs[f->dir].own);
    }
    lock_drop(&dirs_lock, &saved);
    f->dir = -1;
}

bool lost_in_dir(const struct file *f, dev_t dev, ino_t ino) {
    const struct dir *d = f->dir >= 0 ? &dirs[f->dir] : NULL;
    return d != NULL && d->refs > 0 && d->dev == dev && d->ino == ino;
}

int lost_pin_dir(const struct file *f) {
    return f->dir >= 0 ? own_pin(dirs[f->dir].own) : -EBADF;
}

void lost_unpin_dir(const struct file *f) {
    own_unpin(dirs[f->dir].own);
}

static void directory_of(const struct file *f, char ret[DIR_TEXT]) {
    int dirfd = lost_pin_dir(f);
    ret[0] = '\0';
    if (dirfd >= 0) {
        log_directory(dirfd, ret, DIR_TEXT);
        lost_unpin_dir(f);
    }
}

// ---- Names of closed files

static struct closed {
    _Atomic uint64_t id;
    uint32_t slot;
    const char *what; // happened to it
    char dir[DIR_TEXT];
    char name[NAME_CAP];
} closed[CLOSED_MAX];
static _Atomic uint32_t closed_next;
static _Atomic uint32_t owed_error; // 1: closed files were lost and the program has not been told

// Its directory is the caller's to fill in, and then its id.
static struct closed *note(uint32_t slot, const char *name, const char *what) {
    struct closed *c = &closed[atomic_fetch_add(&closed_next, 1) % CLOSED_MAX];
    atomic_store(&c->id, 0);
    c->slot = slot;
    c->what = what;
    log_format(c->name, sizeof c->name, "%s", name);
    return c;
}

void lost_note_closed(const struct file *f) {
    struct closed *c = note(f->slot, f->name, "closed but not yet published");
    directory_of(f, c->dir);
    atomic_store(&c->id, f->id);
}

void lost_note_renamed(uint64_t id, uint32_t slot, int dirfd, const char *name) {
    struct closed *c = note(slot, name, "to be renamed");
    log_directory(dirfd, c->dir, sizeof c->dir);
    atomic_store(&c->id, id);
}

static void tell_closed(void) {
    for (int i = 0; i < CLOSED_MAX; i++) {
        struct closed *c = &closed[i];
        uint64_t id = atomic_exchange(&c->id, 0);
        if (id != 0 && client_was_pending(id, c->slot)) {
            atomic_store(&owed_error, 1);
            const char *unless = shim.config.stripes[0] ? ", unless it is on the stripes: fastckpt recover" : "";
            log_error("lost: %s%s was %s when keeper and engine were both killed; its old content stays%s", c->dir,
                      c->name, c->what, unless);
        }
    }
}

bool lost_owed(void) {
    return UNLIKELY(atomic_load_explicit(&owed_error, memory_order_relaxed));
}

int lost_error(void) {
    return UNLIKELY(atomic_load_explicit(&owed_error, memory_order_relaxed)) && atomic_exchange(&owed_error, 0) ? -EIO
                                                                                                                : 0;
}

// ---- Recovery

// A descriptor of our own on the file behind `fd`, or an error if that is another file by now.
static int dup_of(const struct file *f, int fd) {
    int r = os_fcntl(fd, F_DUPFD_CLOEXEC, own_floor());
    if (r < 0) {
        r = os_fcntl(fd, F_DUPFD_CLOEXEC, 3);
    }
    struct stat st;
    if (r >= 0 && (os_fstat(r, &st) < 0 || st.st_dev != f->dev || st.st_ino != f->ino)) {
        os_close(r);
        return -EBADF;
    }
    return r;
}

// The same through the program's `fd` or any other that is known. Of our own, since the program may close its one, and
// open another file under that number, while we write.
static int borrow_fd(const struct file *f, int fd) {
    int r = fd >= 0 ? dup_of(f, fd) : -EBADF;
    for (int i = 0; r < 0 && i < fd_limit(); i++) {
        if (fd_peek(i) == f) {
            r = dup_of(f, i);
        }
    }
    return r;
}

static int write_extents(int fd, uint64_t index, const struct extent *e, uint32_t n, const char *mem) {
    for (uint32_t i = 0; i < n; i++) {
        int r = os_pwrite_all(fd, mem + e[i].off, e[i].len, (off_t)(index * CHUNK_SIZE + e[i].off));
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

// What was handed over, in the order of the numbers, then what is held.
static int write_back(struct file *f, int fd) {
    struct msg m = {0};
    void *mem;
    int err = 0;
    while (err == 0 && client_next_unwritten(f->id, m.number, &m, &mem)) {
        err = mem ? write_extents(fd, m.u.hand_over.index, m.u.hand_over.extent, m.u.hand_over.n, mem) : -EIO;
    }
    for (uint32_t i = 0; i < f->n_held && err == 0; i++) {
        const struct held *h = &f->held[i];
        err = write_extents(fd, h->index, h->extent, h->n, h->mem);
    }
    return err;
}

static void say_lost(const struct file *f, const char *how, int err) {
    char dir[DIR_TEXT];
    directory_of(f, dir);
    log_error("lost: %s%s%s%s", dir, f->name, how, err < 0 ? log_errno(-err) : "");
}

void lost_recover(struct file *f, int fd) {
    f->epoch = client_epoch();
    if (f->lost || f->id == 0 || f->closed) {
        return;
    }
    f->lost = true;
    f->native = true;
    bool staged = !f->followed && (f->staged_end > 0 || f->bytes_staged > 0);
    int own = staged ? borrow_fd(f, fd) : -1;
    if (staged && own < 0) {
        f->error = f->error ? f->error : -EIO;
        say_lost(f, ": no descriptor of it is left to write its last bytes", 0);
    } else if (staged && client_only_striped(f->id, f->slot)) {
        f->error = f->error ? f->error : -EIO;
        say_lost(f, ": a part of it was on the stripes only", 0);
        os_close(own);
    } else if (staged) {
        struct stat st;
        uint64_t end = f->staged_end;
        if (os_fstat(own, &st) == 0) {
            end = max_u64(end, (uint64_t)st.st_size);
        }
        // The dead engine's direct writes may still be on their way: this waits for them. Its own result is no matter.
        os_fallocate(own, FALLOC_FL_KEEP_SIZE, (off_t)align_up(end, FENCE_LEN), FENCE_LEN);
        int r = write_back(f, own);
        if (r < 0) {
            f->error = f->error ? f->error : r;
            say_lost(f, ": writing its last bytes: ", r);
        }
        os_close(own);
    }
    f->n_held = 0; // the memory goes with the old session
    f->staged_end = 0;
}

// ---- Publishing without an engine

// Gives the unnamed inode the name, in one step for whoever looks.
static int link_over(const struct file *f, int fd, int dirfd) {
    if (f->hidden[0]) {
        return os_renameat2(dirfd, f->hidden, dirfd, f->name, 0);
    }
    char proc[40];
    log_format(proc, sizeof proc, "/proc/self/fd/%d", fd);
    int r = os_linkat(AT_FDCWD, proc, dirfd, f->name, AT_SYMLINK_FOLLOW);
    if (r != -EEXIST) {
        return r;
    }
    char temp[80];
    log_format(temp, sizeof temp, ".fastckpt-%d-%llx", os_getpid(), (unsigned long long)f->id);
    r = os_linkat(AT_FDCWD, proc, dirfd, temp, AT_SYMLINK_FOLLOW);
    if (r < 0) {
        return r;
    }
    r = os_renameat2(dirfd, temp, dirfd, f->name, 0);
    if (r < 0) {
        os_unlinkat(dirfd, temp, 0);
    }
    return r;
}

static int sync_dir(int dirfd) {
    int fd = os_openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0) {
        return fd;
    }
    int r = os_fsync(fd);
    os_close(fd);
    return r;
}

static int publish(struct file *f, int fd) {
    struct stat st;
    struct timespec ts[2];
    file_times(f, fd, ts);
    if (file_engine_changes(f) && !file_has_spawned(f) && os_fstat(fd, &st) == 0) {
        os_ftruncate(fd, st.st_size); // gives back what the engine had reserved beyond the end
    }
    if (f->times_set || file_engine_changes(f)) {
        os_utimensat(fd, NULL, ts, 0);
    }
    int r = os_fsync(fd);
    if (r < 0) {
        return r;
    }
    int dirfd = lost_pin_dir(f);
    if (dirfd < 0) {
        return dirfd;
    }
    r = link_over(f, fd, dirfd);
    r = r < 0 ? r : sync_dir(dirfd);
    lost_unpin_dir(f);
    return r;
}

int lost_publish(struct file *f, int fd) {
    if (f->followed || f->published || f->dropped) {
        return file_known_error(f);
    }
    int err = file_known_error(f);
    if (err == 0 && !f->failed) {
        int own = borrow_fd(f, fd);
        err = own < 0 ? own : publish(f, own);
        if (own >= 0) {
            os_close(own);
        }
    }
    if (err < 0) {
        say_lost(f, " is not published, its old content stays: ", err);
    }
    f->published = err == 0;
    return err;
}

void lost_after_fork(void) {
    for (int i = 0; i < DIRS_MAX; i++) {
        dirs[i].refs = 0; // the descriptors are closed by own_after_fork
    }
    for (int i = 0; i < CLOSED_MAX; i++) {
        atomic_store(&closed[i].id, 0);
    }
    atomic_store(&owed_error, 0);
    dirs_lock = (struct lock){0};
}

bool lost_recover_all(void) {
    tell_closed();
    return file_recover_all();
}
