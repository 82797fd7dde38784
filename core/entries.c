// SPDX-License-Identifier: MIT
//
// entries: what each entry does when its turn has come, in the order of numbers, and when one that waits is answered.
// Doing an entry twice is harmless: the engine may have died after the deed and before the slot was freed.

#include "breakpoint.h"
#include "engine.h"
#include "log.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>

static struct entry *entry_at(struct engine *e, unsigned i) {
    return &e->p.st->entries[i];
}

void entries_free(struct engine *e, unsigned index) {
    struct entry *en = entry_at(e, index);
    for (int k = 0; k < MSG_FDS_MAX; k++) {
        state_close_fd(&en->fds[k]);
    }
    atomic_store_explicit(&en->state, ENTRY_FREE, memory_order_release);
    e->free_entries[e->n_free_entries++] = index;
}

void entries_keep_fds(struct entry *en, const struct file_slot *f) {
    for (int k = 0; k < MSG_FDS_MAX; k++) {
        int fd = en->fds[k];
        if (fd == f->fd_prog || fd == f->fd_own || fd == f->fd_dir || fd == f->fd_to) {
            en->fds[k] = 0;
        }
    }
}

void entries_reply(struct engine *e, unsigned conn, struct msg *m, int result, const int *fds, int nfds) {
    int fd = e->p.st->conns[conn].fd;
    if (fd <= 0) {
        return; // the asker is gone
    }
    m->magic = MSG_MAGIC;
    m->result = result;
    int r = msg_send(fd, m, fds, nfds, MSG_DONTWAIT);
    if (r < 0 && r != -EPIPE && r != -ECONNRESET) {
        log_error("an answer could not be sent: %s", log_errno(-r));
    }
}

enum verdict entries_answer_fds(struct engine *e, struct entry *en, int result, const int *fds, int nfds) {
    bool same = e->p.st->conns[en->conn].client == en->client;
    bool quiet = en->msg.type == MSG_SYNC && en->msg.scope & SYNC_QUIET;
    if (same && !en->canceled && !quiet) {
        entries_reply(e, en->conn, &en->msg, result, fds, nfds);
    }
    return DONE;
}

enum verdict entries_say(struct engine *e, struct entry *en, int result) {
    return entries_answer_fds(e, en, result, NULL, 0);
}

// ---- Files

static enum verdict do_open(struct engine *e, struct entry *en) {
    if (files_crowded(en)) {
        return e->commit.n_queue > 0 ? WAIT : entries_say(e, en, -EMFILE);
    }
    int slot = files_open(e, en);
    if (slot >= 0) {
        en->msg.slot = (uint32_t)slot;
        en->msg.file = en->msg.number;
        entries_keep_fds(en, &e->p.st->files[slot]);
    }
    return entries_say(e, en, slot < 0 ? slot : 0);
}

static enum verdict do_close(struct engine *e, struct entry *en) {
    struct file_slot *f = files_find(e, &en->msg);
    if (f && f->client == en->client) {
        files_close(e, (unsigned)(f - e->p.st->files), &en->msg);
    }
    return DONE;
}

static enum verdict do_reserve(struct engine *e, struct entry *en) {
    struct file_slot *f = files_find(e, &en->msg);
    if (!f || f->client != en->client) {
        return entries_say(e, en, -ESTALE);
    }
    unsigned slot = (unsigned)(f - e->p.st->files);
    if (!en->begun) {
        en->begun = 1;
        writer_reserve(&e->writer, slot, en->msg.value);
    }
    int r = writer_reserved(&e->writer, slot, en->msg.value);
    if ((r == -ENOSPC || r == -EDQUOT) && en->after_removals < 2) { // what is to be deleted makes room first
        bool room = changes_before(e, en->msg.number) == 0;
        if (room && en->after_removals == 0) {
            return entries_say(e, en, r);
        }
        en->after_removals = room ? 2 : 1;
        if (room) {
            writer_reserve(&e->writer, slot, en->msg.value);
            e->progress = true;
        }
        return WAIT;
    }
    en->msg.value = r > 0 ? f->reserved : en->msg.value;
    return r == 0 ? WAIT : entries_say(e, en, r > 0 ? 0 : r);
}

static enum verdict do_settle(struct engine *e, struct entry *en) {
    struct file_slot *f = files_find(e, &en->msg);
    if (!f) {
        return entries_say(e, en, 0); // published and gone: as settled as can be
    }
    unsigned slot = (unsigned)(f - e->p.st->files);
    views_expose(e, slot);
    if (f->client != en->client && !views_look(e, slot)) { // a child of its program has it
        return WAIT;
    }
    if (!f->error && !views_settled(e, slot, en->msg.number)) {
        return WAIT;
    }
    if (f->state == FILE_CLOSED) { // its process goes on writing it while it ends: nothing is cut off any more
        f->close_flags |= CLOSE_SPAWNED;
        if (e->commit.run[slot].syncing) {
            return WAIT;
        }
    }
    return entries_say(e, en, f->error);
}

static enum verdict do_sync(struct engine *e, struct entry *en) {
    bool inode = en->msg.scope & SYNC_INODE;
    struct file_slot *f = inode ? files_of_inode(e, en->fds[0]) : files_find(e, &en->msg);
    if (!f || (f->client != en->client && !inode)) {
        return entries_say(e, en, f ? -ESTALE : 0);
    }
    unsigned slot = (unsigned)(f - e->p.st->files);
    bool publish = en->msg.scope & SYNC_PUBLISH && !(f->flags & OPEN_FOLLOWED) && !f->dropped && !f->unnamed;
    f->log |= (en->msg.scope & SYNC_LOG) != 0;
    if (en->msg.scope & SYNC_LOG && !publish) {
        return entries_say(e, en, 0); // it replaces an older file: its name moves at close
    }
    if (en->msg.scope & SYNC_SAFE) {
        int r = safe_sync(&e->safe, slot, en->msg.number, publish);
        e->progress |= !en->begun;
        en->begun = 1;
        return r == -EAGAIN ? WAIT : entries_say(e, en, f->error ? f->error : r);
    }
    drain_unsafe(&e->drain, slot); // it is settled, and perhaps native from here on
    f->loose |= !publish;          // else its checksums are written down before
    if (inode && f->client != en->client && !en->begun && !f->error && !views_look(e, slot)) {
        return WAIT;
    }
    if (!en->begun && !f->error) {
        en->begun = 1;
        e->progress = true; // commit has something to do, perhaps in a turn that only looks for answers
        if (publish && !f->linked) {
            f->shared |= f->client != en->client;
            if (f->shared) { // its name shows what it holds: nothing may be staged any more
                atomic_store(&e->p.t->files[slot].looked, 1);
            }
            f->close_flags |= en->msg.scope & SYNC_SPAWNED ? CLOSE_SPAWNED : 0;
            f->close_flags |= en->msg.scope & SYNC_KEEP ? CLOSE_KEEP : 0;
            commit_publish(&e->commit, slot, en->msg.number);
        } else {
            commit_sync(&e->commit, slot, en->msg.number);
        }
    }
    if (f->error || f->dropped) {
        return entries_say(e, en, f->error);
    }
    // A new name comes behind all that was closed before. What replaces an older file has no name yet; but what its
    // program closed before this fsync, under the same name above all, is there when it returns.
    bool behind = f->flags & OPEN_REPLACES && waits_own(e, en) > 0;
    if (f->synced < en->msg.number || (publish && !f->done) || behind) {
        drain_hurry(&e->drain, slot);
        return WAIT;
    }
    return entries_say(e, en, 0);
}

static enum verdict do_drop(struct engine *e, struct entry *en) {
    struct file_slot *f = files_find(e, &en->msg);
    if (f && f->client == en->client && !f->linked) {
        f->dropped = 1;
        files_unname(e, (unsigned)(f - e->p.st->files));
        writer_discard(&e->writer, (unsigned)(f - e->p.st->files));
    }
    return entries_say(e, en, 0);
}

// ---- Processes

static enum verdict do_exec(struct engine *e, struct entry *en) {
    e->p.st->clients[en->client].exec = 1;
    return DONE;
}

static enum verdict do_cancel(struct engine *e, struct entry *en) {
    for (unsigned k = 0; k < e->n_waiting; k++) {
        struct entry *other = entry_at(e, e->waiting[k]);
        if (other->client == en->client && other->msg.number == en->msg.value) {
            other->canceled = 1;
            if (other->msg.type == MSG_BORROW) {
                lend_unask(&e->lend, en->client);
            }
        }
    }
    for (unsigned i = 0; i < e->files_high; i++) { // an open that nobody waits for any more: the file is native
        struct file_slot *f = &e->p.st->files[i];
        if (f->state == FILE_OPEN && f->id == en->msg.value && f->client == en->client) {
            f->dropped = 1;
            files_release(e, i);
        }
    }
    return DONE;
}

static enum verdict (*const deeds[MSG_TYPES])(struct engine *, struct entry *) = {
    [MSG_OPEN] = do_open,                   [MSG_BORROW] = chunks_borrow,           [MSG_RESERVE] = do_reserve,
    [MSG_HAND_OVER] = chunks_hand_over,     [MSG_CLOSE] = do_close,                 [MSG_SETTLE] = do_settle,
    [MSG_SYNC] = do_sync,                   [MSG_DROP] = do_drop,                   [MSG_WAIT] = waits_for,
    [MSG_LEND] = views_lend,                [MSG_RETURN] = chunks_return,           [MSG_EXEC] = do_exec,
    [MSG_LEAVE] = waits_leave,               [MSG_CANCEL] = do_cancel,               [MSG_REMOVE] = changes_remove,
    [MSG_RENAME] = changes_rename,          [MSG_LIST] = views_list,                [MSG_ARENA] = chunks_arena,
    [MSG_REFER] = chunks_refer,             [MSG_ARRIVED] = chunks_arrived,
};

// ---- Turns

static bool skipped(const struct engine *e, uint64_t number) {
    for (unsigned i = 0; i < e->p.st->n_skip; i++) {
        if (e->p.st->skip[i] == number) {
            return true;
        }
    }
    return false;
}

/** What nobody is answered must not vanish silently: a file without these bytes, or never closed. */
static void fail_skipped(struct engine *e, const struct entry *en) {
    struct file_slot *f = files_find(e, &en->msg);
    bool close = en->msg.type == MSG_CLOSE;
    if (en->msg.type == MSG_ARRIVED) { // who waits for it would wait for ever
        refer_arrived(&e->refer, en->client, en->msg.value);
    }
    if (!f || f->client != en->client || !(close || en->msg.type == MSG_HAND_OVER || en->msg.type == MSG_REFER)) {
        return;
    }
    unsigned slot = (unsigned)(f - e->p.st->files);
    if (close) {
        atomic_store(&f->state, FILE_CLOSED);
    }
    commit_fail(&e->commit, slot, -EIO, "it crashed the engine twice");
    if (close) {
        files_release(e, slot);
    }
}

static void carry_out(struct engine *e, unsigned index) {
    struct entry *en = entry_at(e, index);
    atomic_store_explicit(&engine_serving, en->msg.number, memory_order_relaxed);
    enum verdict v = DONE;
#if FASTCKPT_BREAK == 6 // entries that nobody is answered and that kill the engine each time
    const struct file_slot *f = files_find(e, &en->msg);
    const char *poison = en->msg.type == MSG_CLOSE ? "close.pt" : en->msg.type == MSG_HAND_OVER ? "hand.pt" : "";
    if (f && strcmp(f->name, poison) == 0 && !skipped(e, en->msg.number)) {
        raise(SIGSEGV);
    }
#endif
    if (skipped(e, en->msg.number)) {
        fail_skipped(e, en);
        entries_say(e, en, -EIO);
    } else if (en->made) {
        en->msg.slot = en->made - 1;
        en->msg.file = en->msg.number;
        entries_say(e, en, 0);
    } else if (deeds[en->msg.type]) {
        v = deeds[en->msg.type](e, en);
    }
    atomic_store_explicit(&engine_serving, 0, memory_order_relaxed);
    BREAK_POINT("entry-carried-out");
    if (v == DONE) {
        entries_free(e, index);
    } else {
        e->waiting[e->n_waiting++] = index;
    }
    e->progress = true;
}

void entries_enter(struct engine *e, unsigned index) {
    uint64_t number = entry_at(e, index)->msg.number;
    unsigned at = e->n_inbox++;
    while (at > 0 && entry_at(e, e->inbox[at - 1])->msg.number > number) {
        e->inbox[at] = e->inbox[at - 1];
        at--;
    }
    e->inbox[at] = index;
    e->read_in[index] = e->pass;
}

void entries_turn(struct engine *e) {
    unsigned n = e->n_inbox, done = 0;
    // In the order of numbers; one that is not due yet (read in this pass) holds back those behind it.
    while (done < n && e->pass >= e->read_in[e->inbox[done]] + 2) {
        carry_out(e, e->inbox[done++]);
    }
    memmove(e->inbox, e->inbox + done, (n - done) * sizeof e->inbox[0]);
    e->n_inbox = n - done;
}

void entries_answer(struct engine *e) {
    unsigned n = e->n_waiting;
    e->n_waiting = 0;
    for (unsigned k = 0; k < n; k++) {
        unsigned index = e->waiting[k];
        struct entry *en = entry_at(e, index);
        if (en->canceled || deeds[en->msg.type](e, en) == DONE) {
            entries_free(e, index);
        } else {
            e->waiting[e->n_waiting++] = index;
        }
    }
}

void entries_forget_client(struct engine *e, unsigned client) {
    for (unsigned k = 0; k < e->n_waiting; k++) {
        struct entry *en = entry_at(e, e->waiting[k]);
        if (en->client == client) {
            en->canceled = 1;
        }
    }
}

/** A slot that this entry has made has its descriptors, which the entry must not close, and may come to its end before
 *  the entry's turn: it must not be made again. */
static void find_made(struct engine *e, struct entry *en) {
    int slot = en->made ? -EEXIST : files_made_before(e, en->msg.number);
    if (slot >= 0) {
        en->made = (uint32_t)slot + 1;
        entries_keep_fds(en, &e->p.st->files[slot]);
    }
}

void entries_rebuild(struct engine *e) {
    for (unsigned i = ENTRIES_MAX; i-- > 0;) {
        struct entry *en = entry_at(e, i);
        if (en->state == ENTRY_FREE) {
            e->free_entries[e->n_free_entries++] = i;
        }
    }
    for (unsigned i = 0; i < ENTRIES_MAX; i++) {
        if (entry_at(e, i)->state != ENTRY_FREE) { // that waited, too: asking twice is harmless
            entry_at(e, i)->begun = 0;
            entries_enter(e, i);
            find_made(e, entry_at(e, i));
        }
    }
}
