// SPDX-License-Identifier: MIT
//
// listing: see listing.h. Which names, and how they are packed into a memory object.

#include "listing.h"

#include "names.h"
#include "os.h"
#include "publish.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

struct walk {
    const struct pair *p;
    uint64_t dev, ino; // of the directory
    bool (*visit)(const struct listing_name *n, void *arg);
    void *arg;
};

// What the slot says of one of its names, if it is in this directory and the slot has the last word about it.
static bool visit_name(const struct walk *w, const struct file_slot *f, uint64_t dev, uint64_t ino, const char *name) {
    struct listing_name n = {name, NAME_NONE, f->ino, DT_REG};
    if (ino != w->ino || dev != w->dev || names_latest(w->p, dev, ino, name, &n.state) != f) {
        return true;
    }
    bool kernels = n.state != NAME_OPEN && n.state != NAME_PENDING && n.state != NAME_ABSENT;
    return kernels || w->visit(&n, w->arg);
}

// A shadow's own name, and that of a publish over an older file, may stand in the directory at any moment.
static bool visit_hidden(const struct walk *w, const struct file_slot *f) {
    char step[PUBLISH_STEP_CAP];
    if (f->kind != SLOT_FILE || f->flags & OPEN_FOLLOWED || f->dir_ino != w->ino || f->dir_dev != w->dev) {
        return true;
    }
    publish_step(f, step);
    struct listing_name n = {f->flags & OPEN_HIDDEN ? f->hidden : step, NAME_ABSENT, f->ino, DT_REG};
    return w->visit(&n, w->arg);
}

// A directory that is deleted has no entry at all, for whoever is in it or has it open.
static bool visit_dots(const struct walk *w, const struct file_slot *f) {
    if (f->kind != SLOT_RMDIR || f->ino != w->ino || f->dev != w->dev) {
        return true;
    }
    struct listing_name dot = {".", NAME_ABSENT, f->ino, DT_DIR}, dots = {"..", NAME_ABSENT, f->dir_ino, DT_DIR};
    return w->visit(&dot, w->arg) && w->visit(&dots, w->arg);
}

bool listing_each(const struct pair *p, unsigned slots, uint64_t dir_dev, uint64_t dir_ino,
                  bool (*visit)(const struct listing_name *n, void *arg), void *arg) {
    struct walk w = {p, dir_dev, dir_ino, visit, arg};
    for (unsigned i = 0; i < slots; i++) {
        const struct file_slot *f = &p->st->files[i];
        if (f->state == FILE_FREE) {
            continue;
        }
        bool silent = f->error || f->dropped, to = f->kind == SLOT_RENAME;
        if (!visit_hidden(&w, f) || (!silent && !visit_dots(&w, f)) ||
            (!silent && !visit_name(&w, f, f->dir_dev, f->dir_ino, f->name)) ||
            (!silent && to && !visit_name(&w, f, f->to_dev, f->to_ino, f->to))) {
            return false;
        }
    }
    return true;
}

struct packer {
    int fd, err;
    size_t used;
    char buf[16 * KIB] __attribute__((aligned(8)));
};

static bool flush(struct packer *k) {
    for (size_t at = 0; at < k->used && k->err == 0;) {
        ssize_t n = os_write(k->fd, k->buf + at, k->used - at);
        k->err = n > 0 ? 0 : n < 0 ? (int)n : -EIO;
        at += n > 0 ? (size_t)n : 0;
    }
    k->used = 0;
    return k->err == 0;
}

static bool pack(const struct listing_name *n, void *arg) {
    struct packer *k = arg;
    size_t name = strlen(n->name) + 1, len = align_up(offsetof(struct list_record, name) + name, 8);
    if (k->fd < 0) {
        k->fd = os_memfd("fastckpt-names", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        k->err = k->fd < 0 ? k->fd : 0;
    }
    if (k->err < 0 || (k->used + len > sizeof k->buf && !flush(k))) {
        return false;
    }
    struct list_record *r = (struct list_record *)(k->buf + k->used);
    memset(r, 0, len);
    *r = (struct list_record){.ino = n->ino, .state = n->state, .len = (uint16_t)len, .type = n->type};
    memcpy(r->name, n->name, name);
    k->used += len;
    return true;
}

int listing_make(const struct pair *p, unsigned slots, int fd) {
    struct stat s;
    int r = os_fstat(fd, &s);
    if (r < 0) {
        return r;
    }
    struct packer k;
    k.fd = -ENOENT;
    k.err = 0;
    k.used = 0;
    if (listing_each(p, slots, s.st_dev, s.st_ino, pack, &k) && k.fd >= 0 && flush(&k)) {
        k.err = os_fcntl(k.fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    }
    if (k.err < 0 && k.fd >= 0) {
        os_close(k.fd);
    }
    return k.err < 0 ? k.err : k.fd;
}
