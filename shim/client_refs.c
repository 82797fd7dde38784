// SPDX-License-Identifier: MIT
//
// client_refs: bytes of this process's arena that were handed over by reference: a note of each until the engine says
// that it is over, so that what it stands for is not changed before, and is found again when keeper and engine are
// killed. What the arena is, and which of it may be used again, is arena.c's.
//
// The lock is held for what reads or writes notes. Files of other threads have theirs beside one's own.

#include <errno.h>
#include <string.h>

#include "../core/os.h"
#include "client_inside.h"
#include "guard.h"
#include "late.h"

struct ref_note {
    uint64_t turn;
    uint64_t number;
    uint64_t file; // 0: its bytes are in the file, or it is free
    uint32_t slot; // the file's
    struct msg_refer what;
};

static struct refs {
    struct lock lock;
    uint32_t epoch;              // of the session
    const struct tables *tables; // stays mapped after a loss
    const char *arena;
    uint64_t next;    // turn
    uint64_t arrived; // turns below this have their bytes, as far as the engine knows
    struct ref_note note[REFS_MAX];
} refs;

static uint64_t over(void) {
    const struct tables *t = refs.tables;
    return t ? atomic_load_explicit(&t->clients[client_slot() % CLIENTS_MAX].refs_done, memory_order_acquire) : 0;
}

void refs_begin(const struct tables *tables) {
    sigset_t saved;
    lock_take(&refs.lock, &saved);
    refs.tables = tables;
    refs.epoch = client_epoch();
    refs.next = refs.arrived = 0;
    memset(refs.note, 0, sizeof refs.note);
    lock_drop(&refs.lock, &saved);
}

void refs_after_fork(void) {
    refs.lock = (struct lock){0};
    refs_begin(NULL);
}

int client_arena(int fd, const void *mem, unsigned *steps, int timeout_ms) {
    struct msg q = {.type = MSG_ARENA, .value = *steps};
    refs.arena = mem;
    int r = client_ask(&q, &fd, fd >= 0, NULL, NULL, timeout_ms);
    *steps = r < 0 ? 0 : (unsigned)q.value;
    return r < 0 ? r : 0;
}

int client_refer(struct msg *m, uint64_t *ret_turn) {
    sigset_t saved;
    lock_take(&refs.lock, &saved);
    bool room = refs.next - over() < REFS_MAX;
    if (room) {
        m->u.refer.turn = *ret_turn = refs.next++;
        m->number = client_number();
        refs.note[*ret_turn % REFS_MAX] = (struct ref_note){*ret_turn, m->number, m->file, m->slot, m->u.refer};
    }
    lock_drop(&refs.lock, &saved);
    return room ? client_tell(m) : -EAGAIN;
}

// ---- Those that are late

void client_refs_arrived(bool (*has)(uint64_t at, uint64_t len)) {
    sigset_t saved;
    struct msg m = {.type = MSG_ARRIVED};
    lock_take(&refs.lock, &saved);
    uint64_t to = max_u64(refs.arrived, over());
    bool late = false; // else the engine does not wait for them
    for (; to < refs.next; to++) {
        const struct msg_refer *what = &refs.note[to % REFS_MAX].what;
        if (what->late && !has(what->at, what->extent.len)) {
            break;
        }
        late |= what->late;
    }
    refs.arrived = to;
    lock_drop(&refs.lock, &saved);
    if (late) {
        m.value = to;
        client_tell(&m);
    }
}

int client_file_lost(uint64_t file, uint32_t slot) {
    struct msg m = {.type = MSG_ARRIVED, .file = file, .slot = slot, .result = -EIO};
    return client_tell(&m);
}

// The next note, from *turn on, of a file that is to have any of these bytes.
static bool next_of_bytes(uint64_t at, uint64_t len, uint64_t *turn, struct ref_note *ret) {
    sigset_t saved;
    bool found = false;
    lock_take(&refs.lock, &saved);
    for (*turn = max_u64(*turn, over()); *turn < refs.next && !found; ++*turn) {
        const struct ref_note *n = &refs.note[*turn % REFS_MAX];
        found = n->file != 0 && n->what.at < at + len && at < n->what.at + n->what.extent.len;
        *ret = *n;
    }
    lock_drop(&refs.lock, &saved);
    return found;
}

void client_refs_lost(uint64_t at, uint64_t len) {
    struct ref_note n;
    for (uint64_t turn = 0; next_of_bytes(at, len, &turn, &n);) {
        client_file_lost(n.file, n.slot);
    }
}

// ---- Until they are over

// Of an older session: before there was a new one, all files of that were recovered.
bool client_ref_over(uint32_t epoch, uint64_t turn) {
    return epoch != refs.epoch || turn < over();
}

static bool on_its_way(const struct ref_note *n, uint64_t file) {
    return n->file == file && n->turn >= over();
}

bool client_refs_overlap(uint64_t file, uint64_t off, uint64_t len) {
    sigset_t saved;
    bool any = false;
    lock_take(&refs.lock, &saved);
    for (uint32_t i = 0; i < REFS_MAX && !any; i++) {
        const struct ref_note *n = &refs.note[i];
        uint64_t from = n->what.index * CHUNK_SIZE + n->what.extent.off;
        any = on_its_way(n, file) && from < off + len && off < from + n->what.extent.len;
    }
    lock_drop(&refs.lock, &saved);
    return any;
}

void client_refs_settled(uint64_t file) {
    sigset_t saved;
    lock_take(&refs.lock, &saved);
    for (uint32_t i = 0; i < REFS_MAX; i++) {
        if (refs.note[i].file == file) {
            refs.note[i].file = 0;
        }
    }
    lock_drop(&refs.lock, &saved);
}

bool refs_next_unwritten(uint64_t file, uint64_t after, struct msg *m, void **mem) {
    sigset_t saved;
    struct ref_note best = {0};
    lock_take(&refs.lock, &saved);
    for (uint32_t i = 0; i < REFS_MAX; i++) {
        const struct ref_note *n = &refs.note[i];
        if (on_its_way(n, file) && n->number > after && (best.file == 0 || n->number < best.number)) {
            best = *n;
        }
    }
    lock_drop(&refs.lock, &saved);
    if (best.file != 0) {
        m->number = best.number;
        m->u.hand_over.n = 1;
        m->u.hand_over.index = best.what.index;
        m->u.hand_over.extent[0] = best.what.extent;
        bool lost = best.what.late && late_wait_for(best.what.at, best.what.extent.len) < 0;
        *mem = lost ? NULL : (char *)refs.arena + best.what.at - best.what.extent.off;
    }
    return best.file != 0;
}
