// SPDX-License-Identifier: MIT
//
// chunks: the entries by which bytes change hands: BORROW, RETURN, HAND_OVER, and ARENA, REFER, ARRIVED. Who gets
// chunks is lend's to say, what becomes of their bytes drain's and writer's; of an arena's, refer's.

#include "breakpoint.h"
#include "engine.h"
#include "log.h"

#include <errno.h>

enum verdict chunks_borrow(struct engine *e, struct entry *en) {
    struct msg_chunks *c = &en->msg.u.chunks;
    unsigned n = lend_take(&e->lend, en->client, en->msg.number, c->n, c->chunk);
    if (n == 0 && !lend_hopeless(&e->lend)) {
        return WAIT;
    }
    lend_unask(&e->lend, en->client);
    c->n = n;
    return entries_say(e, en, n ? 0 : -EAGAIN);
}

static bool lent_to(struct engine *e, unsigned chunk, unsigned client) {
    uint64_t w = chunk_load(&e->p, chunk);
#if FASTCKPT_BREAK == 17 // canary: what was taken out of its hands is written once more, over what others wrote there
    if (chunk_word_state(w) == CHUNK_TAKEN && chunk_word_client(w) == client) {
        return true;
    }
#endif
    return chunk_word_state(w) == CHUNK_LENT && chunk_word_client(w) == client;
}

enum verdict chunks_return(struct engine *e, struct entry *en) {
    const struct msg_chunks *c = &en->msg.u.chunks;
    for (uint32_t i = 0; i < c->n && i < BORROW_MAX; i++) {
        lend_give_back(&e->lend, c->chunk[i], en->client);
    }
    return DONE;
}

static void cut_off(struct engine *e, const struct entry *en, const char *what) {
    struct conn_slot *cs = &e->p.st->conns[en->conn];
    if (cs->fd > 0 && cs->client == en->client) {
        log_error("process %d %s", e->p.st->clients[en->client].pid, what);
        intake_drop_conn(e, en->conn);
    }
}

/** The file that the sender's bytes are for; NULL: nobody wants them. */
static struct file_slot *wanted_by(struct engine *e, const struct entry *en) {
    struct file_slot *f = files_find(e, &en->msg);
    return f && f->client == en->client && !f->dropped && !f->error && !(f->flags & OPEN_FOLLOWED) ? f : NULL;
}

enum verdict chunks_hand_over(struct engine *e, struct entry *en) {
    const struct msg_hand_over *h = &en->msg.u.hand_over;
    struct file_slot *f = wanted_by(e, en);
    if (!lent_to(e, h->chunk, en->client)) {
        // Taken out of its hands (hands.h): what others wrote there since stays. Or carried out before a restart.
        if (lend_give_back(&e->lend, h->chunk, en->client) ||
            chunk_load(&e->p, h->chunk) == chunk_word(CHUNK_HANDED, en->client, en->msg.number)) {
            return DONE;
        }
        cut_off(e, en, "handed over a chunk that it has not borrowed");
        return DONE;
    }
    if (!f) {
        lend_give_back(&e->lend, h->chunk, en->client);
        return DONE;
    }
    struct chunk_slot *cs = &e->p.st->chunks[h->chunk];
    cs->file = (uint32_t)(f - e->p.st->files);
    cs->file_id = f->id;
    cs->what = *h;
    cs->taken = TAKEN_NOT;
    chunk_store(&e->p, h->chunk, CHUNK_HANDED, en->client, en->msg.number);
    BREAK_POINT("chunk-handed");
    if (!drain_add(&e->drain, h->chunk)) {
        writer_add(&e->writer, h->chunk);
    }
    return DONE;
}

enum verdict chunks_arena(struct engine *e, struct entry *en) {
    unsigned steps = (unsigned)en->msg.value;
    int r = refer_arena(&e->refer, en->client, &en->fds[0], &steps);
    if (r == -EBUSY && !en->canceled) {
        return WAIT;
    }
    en->msg.value = steps;
    return entries_say(e, en, r);
}

enum verdict chunks_refer(struct engine *e, struct entry *en) {
    const struct file_slot *f = wanted_by(e, en);
    if (refer_add(&e->refer, en->client, &en->msg, f) < 0) {
        cut_off(e, en, "referred to what is not in its arena");
    }
    return DONE;
}

/** Of a file that is gone by now, nobody waits for the bytes that will not come. */
enum verdict chunks_arrived(struct engine *e, struct entry *en) {
    struct file_slot *f = en->msg.result < 0 ? wanted_by(e, en) : NULL;
    if (f) {
        unsigned slot = (unsigned)(f - e->p.st->files);
        commit_fail_disk(&e->commit, slot, en->msg.result, "copying it from the device");
        writer_discard(&e->writer, slot);
        e->progress = true;
    }
    refer_arrived(&e->refer, en->client, en->msg.value);
    return DONE;
}
