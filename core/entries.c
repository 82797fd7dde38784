// SPDX-License-Identifier: MIT
//
// entries: what each entry does when its turn has come, in the order of numbers, and when one that waits is answered.
// Doing an entry twice is harmless: the engine may have died after the deed and before the slot was freed.

#include "engine.h"
#include "log.h"
#include "names.h"
#include "os.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

enum verdict { DONE, WAIT };

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

/** Descriptors pass from the entry to a file slot: both record them for a moment, none is closed. */
static void keep_fds(struct entry *en, const struct file_slot *f) {
    for (int k = 0; k < MSG_FDS_MAX; k++) {
        if (en->fds[k] == f->fd_prog || en->fds[k] == f->fd_dir) {
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

static enum verdict answer(struct engine *e, struct entry *en, int result, const int *fds, int nfds) {
    bool same = e->p.st->conns[en->conn].client == en->client;
    bool quiet = en->msg.type == MSG_SYNC && en->msg.scope & SYNC_QUIET;
    if (same && !en->canceled && !quiet) {
        entries_reply(e, en->conn, &en->msg, result, fds, nfds);
    }
    return DONE;
}

static enum verdict say(struct engine *e, struct entry *en, int result) {
    return answer(e, en, result, NULL, 0);
}

// ---- Chunks

static enum verdict do_borrow(struct engine *e, struct entry *en) {
    struct msg_chunks *c = &en->msg.u.chunks;
    unsigned n = lend_take(&e->lend, en->client, en->msg.number, c->n, entries_borrowers(e), c->chunk);
    if (n == 0 && !lend_hopeless(&e->lend)) {
        return WAIT;
    }
    c->n = n;
    return say(e, en, n ? 0 : -EAGAIN);
}

static bool lent_to(struct engine *e, unsigned chunk, unsigned client) {
    if (chunk >= CHUNKS_MAX) {
        return false;
    }
    uint64_t w = chunk_load(&e->p, chunk);
    return chunk_word_state(w) == CHUNK_LENT && chunk_word_client(w) == client;
}

static enum verdict do_return(struct engine *e, struct entry *en) {
    const struct msg_chunks *c = &en->msg.u.chunks;
    for (uint32_t i = 0; i < c->n && i < BORROW_MAX; i++) {
        if (lent_to(e, c->chunk[i], en->client)) {
            chunk_store(&e->p, c->chunk[i], CHUNK_FREE, 0, 0);
            lend_give(&e->lend, c->chunk[i]);
        }
    }
    return DONE;
}

static enum verdict do_hand_over(struct engine *e, struct entry *en) {
    const struct msg_hand_over *h = &en->msg.u.hand_over;
    struct file_slot *f = files_find(e, &en->msg);
    if (!lent_to(e, h->chunk, en->client)) {
        if (h->chunk < CHUNKS_MAX &&
            chunk_load(&e->p, h->chunk) == chunk_word(CHUNK_HANDED, en->client, en->msg.number)) {
            return DONE; // carried out before a restart: writer_rebuild has it
        }
        if (e->p.st->conns[en->conn].fd > 0 && e->p.st->conns[en->conn].client == en->client) {
            log_error("process %d handed over a chunk that it has not borrowed", e->p.st->clients[en->client].pid);
            intake_drop_conn(e, en->conn);
        }
        return DONE;
    }
    if (!f || f->client != en->client || f->dropped || f->error || f->flags & OPEN_FOLLOWED) {
        chunk_store(&e->p, h->chunk, CHUNK_FREE, 0, 0);
        lend_give(&e->lend, h->chunk);
        return DONE;
    }
    struct chunk_slot *cs = &e->p.st->chunks[h->chunk];
    cs->file = (uint32_t)(f - e->p.st->files);
    cs->file_id = f->id;
    cs->what = *h;
    chunk_store(&e->p, h->chunk, CHUNK_HANDED, en->client, en->msg.number);
    writer_add(&e->writer, h->chunk);
    return DONE;
}

// ---- Files

static enum verdict do_open(struct engine *e, struct entry *en) {
    if (files_crowded(en)) {
        return e->commit.n_queue > 0 ? WAIT : say(e, en, -EMFILE);
    }
    int slot = files_open(e, en);
    if (slot >= 0) {
        en->msg.slot = (uint32_t)slot;
        en->msg.file = en->msg.number;
        keep_fds(en, &e->p.st->files[slot]);
    }
    return say(e, en, slot < 0 ? slot : 0);
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
        return say(e, en, -ESTALE);
    }
    unsigned slot = (unsigned)(f - e->p.st->files);
    if (en->state == ENTRY_RECORDED) {
        writer_reserve(&e->writer, slot, en->msg.value);
    }
    int r = writer_reserved(&e->writer, slot, en->msg.value);
    en->msg.value = r > 0 ? f->reserved : en->msg.value;
    return r == 0 ? WAIT : say(e, en, r > 0 ? 0 : r);
}

static enum verdict do_settle(struct engine *e, struct entry *en) {
    struct file_slot *f = files_find(e, &en->msg);
    if (!f) {
        return say(e, en, 0); // published and gone: as settled as can be
    }
    unsigned slot = (unsigned)(f - e->p.st->files);
    if (!f->error && !writer_settled(&e->writer, slot, en->msg.number)) {
        return WAIT;
    }
    return say(e, en, f->error);
}

static struct file_slot *find_inode(struct engine *e, int fd) {
    struct stat s;
    if (fd <= 0 || os_fstat(fd, &s) < 0) {
        return NULL;
    }
    for (unsigned i = 0; i < e->files_high; i++) {
        struct file_slot *f = &e->p.st->files[i];
        if (f->state == FILE_OPEN && f->ino == s.st_ino && f->dev == s.st_dev) {
            return f;
        }
    }
    return NULL;
}

static enum verdict do_sync(struct engine *e, struct entry *en) {
    bool inode = en->msg.scope & SYNC_INODE;
    struct file_slot *f = inode ? find_inode(e, en->fds[0]) : files_find(e, &en->msg);
    if (!f || (f->client != en->client && !inode)) {
        return say(e, en, f ? -ESTALE : 0);
    }
    unsigned slot = (unsigned)(f - e->p.st->files);
    bool publish = en->msg.scope & SYNC_PUBLISH && !(f->flags & OPEN_FOLLOWED) && !f->dropped;
    f->log |= (en->msg.scope & SYNC_LOG) != 0;
    if (en->msg.scope & SYNC_LOG && !publish) {
        return say(e, en, 0); // it replaces an older file: its name moves at close
    }
    if (en->state == ENTRY_RECORDED && !f->error) {
        if (publish && !f->linked) {
            f->shared |= f->client != en->client;
            f->close_flags |= en->msg.scope & SYNC_SPAWNED ? CLOSE_SPAWNED : 0;
            commit_publish(&e->commit, slot, en->msg.number);
        } else {
            commit_sync(&e->commit, slot, en->msg.number);
        }
    }
    if (f->error || f->dropped) {
        return say(e, en, f->error);
    }
    if (f->synced < en->msg.number || (publish && !f->done)) {
        return WAIT;
    }
    return say(e, en, 0);
}

static enum verdict do_drop(struct engine *e, struct entry *en) {
    struct file_slot *f = files_find(e, &en->msg);
    if (f && f->client == en->client && !f->linked) {
        f->dropped = 1;
        names_remove(&e->p, (unsigned)(f - e->p.st->files));
        writer_discard(&e->writer, (unsigned)(f - e->p.st->files));
    }
    return say(e, en, 0);
}

static struct file_slot *find_name(struct engine *e, uint64_t dev, uint64_t ino, const char *name) {
    struct file_slot *best = NULL;
    for (unsigned i = 0; i < e->files_high; i++) {
        struct file_slot *f = &e->p.st->files[i];
        if (f->state != FILE_FREE && f->dir_ino == ino && f->dir_dev == dev && !f->error && !f->dropped &&
            !(f->flags & OPEN_FOLLOWED) && !f->done && strcmp(f->name, name) == 0 && (!best || best->id < f->id)) {
            best = f;
        }
    }
    return best;
}

static enum verdict do_lend(struct engine *e, struct entry *en) {
    struct msg_lend *l = &en->msg.u.lend;
    struct stat s;
    if (os_fstat(en->fds[0], &s) < 0) {
        return say(e, en, -EBADF);
    }
    struct file_slot *f = find_name(e, s.st_dev, s.st_ino, l->name);
    if (!f) {
        return say(e, en, -ENOENT);
    }
    unsigned slot = (unsigned)(f - e->p.st->files);
    if (l->flags & LEND_SETTLE && !writer_settled(&e->writer, slot, en->msg.number)) {
        return WAIT;
    }
    if (l->flags & LEND_SETTLE && f->state == FILE_OPEN) {
        writer_buffered(f); // who has it may write by the page cache: direct writes beside that end in EIO at fsync
    }
    l->state = f->state == FILE_OPEN ? NAME_OPEN : NAME_PENDING;
    l->client = f->client;
    // What is settled may have been truncated since: the kernel knows.
    l->size = writer_settled(&e->writer, slot, en->msg.number) ? 0 : f->size_end;
    bool times = f->state == FILE_CLOSED && (f->size_end > 0 || f->close_flags & CLOSE_TIMES);
    l->mtime = times ? f->mtime : (struct timespec){0};
    en->msg.file = f->id;
    en->msg.slot = slot;
    return answer(e, en, 0, &f->fd_own, 1);
}

// ---- Waiting for others

struct dir_id {
    uint64_t dev, ino;
};

static bool in_dir(const struct file_slot *f, const void *arg) {
    const struct dir_id *d = arg;
    return f->dir_ino == d->ino && f->dir_dev == d->dev && !(f->flags & OPEN_FOLLOWED);
}

static bool of_client(const struct file_slot *f, const void *arg) {
    return f->client == *(const unsigned *)arg;
}

static bool of_root(const struct file_slot *f, const void *arg) {
    return f->root == *(const unsigned *)arg;
}

static enum verdict do_wait(struct engine *e, struct entry *en) {
    unsigned left, client = en->client;
    struct stat s;
    struct dir_id d = {0};
    switch (en->msg.scope) {
    case WAIT_DIR:
        if (os_fstat(en->fds[0], &s) == 0) {
            d = (struct dir_id){s.st_dev, s.st_ino};
        }
        left = commit_before(&e->commit, en->msg.number, in_dir, &d);
        break;
    case WAIT_CLIENT:
        left = commit_before(&e->commit, en->msg.number, of_client, &client);
        left = left > en->msg.value ? left : 0;
        break;
    default:
        left = commit_before(&e->commit, en->msg.number, NULL, NULL);
        break;
    }
    if (left > 0) {
        return WAIT;
    }
    // Behind a failure nothing that deletes or replaces is executed (P6).
    bool behind = en->msg.scope == WAIT_ALL && !e->p.st->clients[client].tool &&
                  en->msg.number <= e->p.st->fail_fence && en->msg.number > e->p.st->fail_from;
    return say(e, en, behind ? -EIO : 0);
}

static enum verdict do_leave(struct engine *e, struct entry *en) {
    struct client_slot *cl = &e->p.st->clients[en->client];
    cl->leaving = 1;
    unsigned client = en->client, left = 0;
    if (en->state == ENTRY_RECORDED) {
        clients_adopt(e, client, en->msg.number);
    }
    if (en->msg.u.leave.wait && cl->root == client) {
        bool last = clients_count(e) <= 1;
        left = commit_before(&e->commit, en->msg.number, last ? NULL : of_root, &client);
    }
    if (left > 0) {
        return WAIT;
    }
    en->msg.u.leave.failures = cl->failures;
    bool saved = cl->first_close_ns > 0 && cl->last_publish_ns > cl->first_close_ns;
    en->msg.u.leave.durable_ns = saved ? (uint64_t)(cl->last_publish_ns - cl->first_close_ns) : 0;
    return say(e, en, 0);
}

static enum verdict do_exec(struct engine *e, struct entry *en) {
    e->p.st->clients[en->client].exec = 1;
    return DONE;
}

static enum verdict do_cancel(struct engine *e, struct entry *en) {
    for (unsigned k = 0; k < e->n_waiting; k++) {
        struct entry *other = entry_at(e, e->waiting[k]);
        if (other->client == en->client && other->msg.number == en->msg.value) {
            other->canceled = 1;
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
    [MSG_OPEN] = do_open,   [MSG_BORROW] = do_borrow, [MSG_RESERVE] = do_reserve, [MSG_HAND_OVER] = do_hand_over,
    [MSG_CLOSE] = do_close, [MSG_SETTLE] = do_settle, [MSG_SYNC] = do_sync,       [MSG_DROP] = do_drop,
    [MSG_WAIT] = do_wait,   [MSG_LEND] = do_lend,     [MSG_RETURN] = do_return,   [MSG_EXEC] = do_exec,
    [MSG_LEAVE] = do_leave, [MSG_CANCEL] = do_cancel,
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

extern _Atomic uint64_t engine_serving; // engine.c: for blame

static void carry_out(struct engine *e, unsigned index) {
    struct entry *en = entry_at(e, index);
    atomic_store_explicit(&engine_serving, en->msg.number, memory_order_relaxed);
    enum verdict v = DONE;
    if (skipped(e, en->msg.number)) {
        say(e, en, -EIO);
    } else if (deeds[en->msg.type]) {
        v = deeds[en->msg.type](e, en);
    }
    atomic_store_explicit(&engine_serving, 0, memory_order_relaxed);
    if (v == DONE) {
        entries_free(e, index);
    } else {
        atomic_store(&en->state, ENTRY_WAITING);
        e->waiting[e->n_waiting++] = index;
    }
    e->progress = true;
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

unsigned entries_borrowers(const struct engine *e) {
    unsigned n = 0;
    for (unsigned k = 0; k < e->n_waiting; k++) {
        n += e->p.st->entries[e->waiting[k]].msg.type == MSG_BORROW;
    }
    return n;
}

void entries_forget_client(struct engine *e, unsigned client) {
    for (unsigned k = 0; k < e->n_waiting; k++) {
        struct entry *en = entry_at(e, e->waiting[k]);
        if (en->client == client) {
            en->canceled = 1;
        }
    }
}

bool entries_at_once(struct engine *e, unsigned conn, const struct msg *m, int *fds, int nfds) {
    struct msg a;
    unsigned client = e->p.st->conns[conn].client;
    switch (m->type) {
    case MSG_HELLO:
        clients_hello(e, conn, m, fds, nfds);
        return true;
    case MSG_STATUS:
        a = (struct msg){.type = MSG_STATUS, .number = m->number};
        clients_status(e, &a.u.status);
        entries_reply(e, conn, &a, 0, NULL, 0);
        return true;
    case MSG_FAILURES: {
        struct state *st = e->p.st;
        a = (struct msg){.type = MSG_FAILURES, .number = m->number};
        bool tool = client < CLIENTS_MAX && st->clients[client].tool;
        for (unsigned i = 0; i < FAILURES_MAX; i++) {
            struct failure *x = &st->failures[i];
            if (x->text[0] && (tool ? !(x->fetched & 2) : x->client == client && !(x->fetched & 1))) {
                log_format(a.u.text, sizeof a.u.text, "%s", x->text);
                entries_reply(e, conn, &a, 0, NULL, 0);
                x->fetched |= tool ? 2 : 1; // last: an engine that dies here says it twice, never not at all
                st->failures_shown += tool;
                return true;
            }
        }
        entries_reply(e, conn, &a, -ENOENT, NULL, 0);
        return true;
    }
    default:
        return false;
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
        if (entry_at(e, i)->state != ENTRY_FREE) { // waiting ones too: asking twice is harmless
            unsigned at = e->n_inbox++;
            uint64_t number = entry_at(e, i)->msg.number;
            while (at > 0 && entry_at(e, e->inbox[at - 1])->msg.number > number) {
                e->inbox[at] = e->inbox[at - 1];
                at--;
            }
            e->inbox[at] = i;
            e->read_in[i] = e->pass;
            atomic_store(&entry_at(e, i)->state, ENTRY_RECORDED);
        }
    }
}
