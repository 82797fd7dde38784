// SPDX-License-Identifier: MIT
//
// views: the entries that look behind a name: the inode of a captured one (LEND), what a directory will hold (LIST).
// They change nothing but what makes a file ready to be seen.

#include "engine.h"
#include "hands.h"
#include "listing.h"
#include "log.h"
#include "names.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>

/** The file whose bytes a slot's inode has: its own, or, of a rename, that of the captured file that is renamed. NULL:
 *  it has all of them. */
static struct file_slot *file_behind(struct engine *e, struct file_slot *f) {
    if (f->kind == SLOT_FILE) {
        return f;
    }
    struct file_slot *base = &e->p.st->files[f->base % FILES_MAX];
    return f->base_id && base->state != FILE_FREE && base->id == f->base_id ? base : NULL;
}

void views_expose(struct engine *e, unsigned slot) {
    drain_unsafe(&e->drain, slot);
    e->p.st->files[slot].loose = 1;
}

bool views_settled(struct engine *e, unsigned slot, uint64_t number) {
    bool settled = writer_settled(&e->writer, slot, number);
    if (!settled) {
        drain_hurry(&e->drain, slot);
    }
    return settled;
}

bool views_look(struct engine *e, unsigned slot) {
    struct file_slot *f = &e->p.st->files[slot];
    if (f->state != FILE_OPEN || f->flags & OPEN_FOLLOWED) {
        return true;
    }
    atomic_store(&e->p.t->files[slot].looked, 1); // first: its client stages no further call of its program's
    views_expose(e, slot);
    if (!views_settled(e, slot, UINT64_MAX)) {
        return false;
    }
    writer_buffered(f); // who has it may write by the page cache: direct writes beside that end in EIO at fsync
    int taken = hands_take(&e->p, &e->writer, slot);
    e->progress |= taken > 0; // the writer has got them
    if (taken < 0) {
        log_error("%s: what its program holds of it cannot be seen: %s", f->name, log_errno(-taken));
    }
    return taken <= 0;
}

/** By O_PATH: the client closes it, and another descriptor's close would drop record locks of its. */
static enum verdict lend_inode(struct engine *e, struct entry *en, const struct file_slot *named) {
    char path[32];
    log_format(path, sizeof path, "/proc/self/fd/%d", named->fd_own);
    int fd = os_openat(AT_FDCWD, path, O_PATH, 0);
    entries_answer_fds(e, en, fd < 0 ? fd : 0, &fd, fd >= 0);
    os_close(fd); // nothing happens where there is none
    return DONE;
}

enum verdict views_lend(struct engine *e, struct entry *en) {
    struct msg_lend *l = &en->msg.u.lend;
    struct stat s;
    if (os_fstat(en->fds[0], &s) < 0) {
        return entries_say(e, en, -EBADF);
    }
    enum name_state state;
    struct file_slot *named = names_latest(&e->p, s.st_dev, s.st_ino, l->name, &state);
    if (!named || (state != NAME_OPEN && state != NAME_PENDING) || named->error || named->dropped || named->done) {
        return entries_say(e, en, -ENOENT);
    }
    struct file_slot *f = file_behind(e, named);
    l->state = state;
    l->taken = 0;
    l->client = named->client;
    if (!f) { // renamed, and none that was captured: whether somebody has it open to write is to be asked of the kernel
        l->taken = named->kind == SLOT_RENAME;
        l->size = 0;
        l->mtime = (struct timespec){0};
        return lend_inode(e, en, named);
    }
    unsigned slot = (unsigned)(f - e->p.st->files);
    if (l->flags & LEND_SETTLE && !(views_settled(e, slot, en->msg.number) && views_look(e, slot))) {
        return WAIT;
    }
    f->close_flags |= l->flags & LEND_WRITE && f->state == FILE_OPEN ? CLOSE_SPAWNED : 0;
    if (l->flags & LEND_WRITE && f->state == FILE_CLOSED) {
        if (!f->error && !commit_prepared(&e->commit, slot)) {
            return WAIT;
        }
        f->taken = 1;
        views_expose(e, slot);
    }
    // What is settled may have been truncated since: the kernel knows.
    l->size = writer_settled(&e->writer, slot, en->msg.number) ? 0 : e->writer.run[slot].end;
    l->size = max_u64(l->size, f->state == FILE_OPEN ? hands_end(&e->p, slot) : 0);
    bool times = f->state == FILE_CLOSED && !f->taken && (f->size_end > 0 || f->close_flags & CLOSE_TIMES);
    l->mtime = times ? f->mtime : (struct timespec){0};
    l->taken = f->taken;
    en->msg.file = f->id;
    en->msg.slot = slot;
    return lend_inode(e, en, named);
}

enum verdict views_list(struct engine *e, struct entry *en) {
    int fd = listing_make(&e->p, e->files_high, en->fds[0]);
    entries_answer_fds(e, en, fd == -ENOENT || fd >= 0 ? 0 : fd, &fd, fd >= 0);
    os_close(fd); // nothing happens where there is none
    return DONE;
}
