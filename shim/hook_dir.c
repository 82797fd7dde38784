// SPDX-License-Identifier: MIT
//
// hook_dir: directory streams. While some name is not the kernel's, a stream is helped (listing.h): at its first read
// the engine is asked for the directory's names, which takes no time of a disk. With nothing pending it costs one load
// at the open and one a read. Never fails a listing.

#include "listing.h"
#include "namecalls.h"
#include "real.h"

#include <string.h>

static void *missing(void) {
    hook_ret(-ENOSYS);
    return NULL;
}

static __attribute__((noinline)) void watch(DIR *dir) {
    if (guard_foreign()) {
        return;
    }
    int fd = dirfd(dir);
    if (!stream_add(dir, os_lseek(fd, 0, SEEK_CUR) > 0)) {
        names_before_list(fd, ".");
    }
}

DIR *hook_opendir(const char *path) {
    bool native = LIKELY(names_native());
    int r = native ? 0 : names_no_directory(AT_FDCWD, path);
    if (UNLIKELY(r < 0)) {
        hook_ret(r);
        return NULL;
    }
    DIR *dir = REAL(opendir) != NULL ? real.opendir(path) : missing();
    if (UNLIKELY(!native) && dir != NULL) {
        watch(dir);
    }
    return dir;
}

DIR *hook_fdopendir(int fd) {
    DIR *dir = REAL(fdopendir) != NULL ? real.fdopendir(fd) : missing();
    if (UNLIKELY(!names_native()) && dir != NULL) {
        watch(dir);
    }
    return dir;
}

static struct listing *ask(DIR *dir) {
    struct msg q = {.type = MSG_LIST};
    int fd = dirfd(dir), got[MSG_FDS_MAX], n = 0;
    if (!client_alive() && client_connect() < 0) {
        return NULL;
    }
    int r = client_ask(&q, &fd, 1, got, &n, -1); // as a question for one of its names waits
    struct listing *l = r == 0 && n == 1 ? listing_read(got[0]) : NULL;
    if (r != -EPIPE && l == NULL && (r < 0 || n > 0)) {
        names_before_list(fd, "."); // the engine or we have no room for it
    }
    while (r == 0 && n > 0) {
        os_close(got[--n]);
    }
    return l;
}

// What there is to add to a stream; asked for at its first read. NULL: nothing.
static struct listing *listing_of(struct stream *s, DIR *dir) {
    if (LIKELY(atomic_load(&s->state) == STREAM_ASKED)) {
        return atomic_load(&s->list);
    }
    if (guard_foreign()) {
        return NULL;
    }
    int state = STREAM_ASK;
    while (!atomic_compare_exchange_strong(&s->state, &state, STREAM_ASKING)) {
        if (state == STREAM_ASKED) {
            return atomic_load(&s->list);
        }
        os_sleep_ms(1); // another thread has just begun to read the same stream
        state = STREAM_ASK;
    }
    struct listing *l = NULL;
    if (!names_native()) {
        guard_depth++;
        l = ask(dir);
        guard_depth--;
    }
    // The old one, of before a rewinddir, went on existing until now: its last entry was still the program's.
    listing_free(atomic_exchange(&s->list, l));
    atomic_store(&s->state, STREAM_ASKED);
    return l;
}

// The helped stream of `dir`, or NULL: the call is the kernel's alone.
static inline struct stream *helped(const DIR *dir) {
    return LIKELY(atomic_load_explicit(&streams_count, memory_order_relaxed) == 0) ? NULL : stream_find(dir);
}

static __attribute__((noinline)) struct dirent *read_helped(struct stream *s, DIR *dir) {
    int saved = errno;
    struct listing *l = listing_of(s, dir);
    while (l == NULL || atomic_load(&s->at) == STREAM_KERNEL) {
        errno = 0;
        struct dirent *e = real.readdir(dir);
        if (e == NULL && errno != 0) {
            return NULL;
        }
        errno = saved;
        if (l == NULL || (e != NULL && !listing_knows(l, e->d_name))) {
            return e;
        }
        if (e == NULL) {
            break;
        }
    }
    return stream_next(s, l);
}

struct dirent *hook_readdir(DIR *dir) {
    if (UNLIKELY(REAL(readdir) == NULL)) {
        return missing();
    }
    struct stream *s = helped(dir);
    return LIKELY(s == NULL) ? real.readdir(dir) : read_helped(s, dir);
}

static __attribute__((noinline)) int read_helped_r(struct stream *s, DIR *dir, struct dirent *e, struct dirent **ret) {
    struct listing *l = listing_of(s, dir);
    while (l == NULL || atomic_load(&s->at) == STREAM_KERNEL) {
        int r = real.readdir_r(dir, e, ret);
        if (r != 0 || l == NULL || (*ret != NULL && !listing_knows(l, e->d_name))) {
            return r;
        }
        if (*ret == NULL) {
            break;
        }
    }
    const struct dirent *own = stream_next(s, l);
    *ret = own != NULL ? memcpy(e, own, own->d_reclen) : NULL;
    return 0;
}

int hook_readdir_r(DIR *dir, struct dirent *e, struct dirent **ret) {
    if (UNLIKELY(REAL(readdir_r) == NULL)) {
        return ENOSYS;
    }
    struct stream *s = helped(dir);
    return LIKELY(s == NULL) ? real.readdir_r(dir, e, ret) : read_helped_r(s, dir, e, ret);
}

long hook_telldir(DIR *dir) {
    struct stream *s = helped(dir);
    int64_t at = LIKELY(s == NULL) ? STREAM_KERNEL : atomic_load(&s->at);
    if (UNLIKELY(at != STREAM_KERNEL)) {
        return (long)listing_position((uint64_t)at);
    }
    return REAL(telldir) != NULL ? real.telldir(dir) : hook_ret(-ENOSYS);
}

void hook_seekdir(DIR *dir, long pos) {
    struct stream *s = helped(dir);
    uint64_t i;
    if (UNLIKELY(s != NULL)) {
        bool ours = listing_is_position(pos, &i);
        atomic_store(&s->at, ours ? (int64_t)i : STREAM_KERNEL);
        atomic_store(&s->read_before, false);
        if (ours) {
            return;
        }
    }
    if (REAL(seekdir) != NULL) {
        real.seekdir(dir, pos);
    }
}

void hook_rewinddir(DIR *dir) {
    struct stream *s = helped(dir);
    if (REAL(rewinddir) != NULL) {
        real.rewinddir(dir);
    }
    if (UNLIKELY(s != NULL)) {
        atomic_store(&s->at, STREAM_KERNEL);
        atomic_store(&s->read_before, false);
        atomic_store(&s->state, STREAM_ASK);
    } else if (UNLIKELY(!names_native()) && dir != NULL) {
        watch(dir);
    }
}

int hook_closedir(DIR *dir) {
    struct stream *s = helped(dir);
    if (UNLIKELY(s != NULL)) {
        stream_drop(s); // first: another thread may be given this address at once
    }
    return REAL(closedir) != NULL ? real.closedir(dir) : (int)hook_ret(-ENOSYS);
}

#define HOOKS_DIR
#define HOOK_ALIAS HOOK_TWIN
#include "hooks.h"
