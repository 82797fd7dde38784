// SPDX-License-Identifier: MIT
//
// state: all that must survive a death of the engine, in one memfd that only keeper and engine map. Fixed tables, links
// by slot number, no pointers. A slot is filled first and its `state` stored last, so a new engine finds every slot
// either complete or free; whatever it redoes from here must be harmless when done twice.
//
// Descriptors: keeper and engine share one descriptor table (clone(CLONE_FILES)); a number is recorded here after it is
// installed and struck out before it is closed, so every descriptor not found here at a restart is litter. 0 is "none":
// 0 to 2 are /dev/null. What lives only in an engine's own memory (requests in flight, lists) is not here.

#ifndef FASTCKPT_STATE_H
#define FASTCKPT_STATE_H

#include "config.h"
#include "protocol.h"

#define CONNS_MAX    1024
#define ENTRIES_MAX  8192
#define FAILURES_MAX 64
#define BROKEN_MAX   8
#define BROKEN_NAMES 16
#define TARGETS_MAX  8
#define ITEMS_MAX    65536 // chunks on their way through stripes: 256 GiB
#define STATE_MAGIC  0x7374617465312e30ull
#define NO_CLIENT    0xffffffffu

struct client_slot {
    _Atomic uint32_t used;
    uint32_t root; // slot of the outermost shimmed ancestor that was a client when this one came; its own if none
    int32_t pid, pidfd;
    int32_t ancestors[16]; // pids at its hello, the parent first; 0 behind the last
    uint64_t token;
    uint32_t tool;    // the fastckpt command
    uint32_t leaving; // said LEAVE: open files count as closed
    uint32_t exec;    // said EXEC: open files are published when the process is gone
    uint32_t dead;    // the process is gone; the slot goes when its files are done
    uint32_t failures_read;
    uint32_t failures;
    int64_t first_close_ns, last_publish_ns, last_safe_ns; // CLOCK_MONOTONIC
};

struct conn_slot {
    _Atomic int32_t fd; // stored last; 0: free
    uint32_t client;    // NO_CLIENT before hello
};

enum entry_state { ENTRY_FREE = 0, ENTRY_RECORDED };

struct entry {
    _Atomic uint32_t state;
    uint32_t conn; // slot to answer on; its fd may be gone by then
    uint32_t client;
    uint32_t canceled;
    uint32_t made; // before a restart it has made a slot, this one + 1: the rest is its answer
    int32_t fds[MSG_FDS_MAX];
    uint32_t begun;          // this engine has queued what it asks for: from here on it only waits
    uint32_t after_removals; // RESERVE without space: 1: waits for queued deletions, 2: has been asked for again
    struct msg msg;
};

/** Was it handed over by its client, or taken out of its hands (hands.h), and is it still there? */
enum taken { TAKEN_NOT = 0, TAKEN_HELD, TAKEN_BACK };

struct chunk_slot {       // valid while the chunk's word is handed or flying
    uint32_t file;        // slot
    uint32_t last_client; // who has it mapped: it gets it again
    uint64_t file_id;
    uint32_t taken;       // enum taken
    struct msg_hand_over what;
};

enum file_state { FILE_FREE = 0, FILE_OPEN, FILE_CLOSED };

/** What is done at a slot's turn in the commit queue. All but FILE are closed from the start, and hold the inode that
 *  is meant: a name that is another's by then is left alone. The stripes' logs have these numbers. */
enum slot_kind {
    SLOT_FILE = 0, // a file gets its name
    SLOT_UNLINK,   // `name` is deleted. fd_own: the inode, O_PATH
    SLOT_RMDIR,    // likewise a directory
    SLOT_RENAME,   // `name` becomes `to`. fd_own: the inode, to be synced first if it is not a captured file's
};

/** Would it be had without us? YES: by a record on the stripes; MAKING: perhaps. AS_IS: it is durable under its name.
 *  OPEN: by a record of what it was at an fsync; that it has been closed is not recorded. */
enum safe_state { SAFE_NO = 0, SAFE_MAKING, SAFE_YES, SAFE_AS_IS, SAFE_OPEN };

struct file_slot {
    _Atomic uint32_t state;
    uint32_t kind; // enum slot_kind
    uint32_t client, root;
    uint32_t flags;            // OPEN_* of the open message
    uint64_t id;               // number of the open entry
    int32_t fd_prog;           // the program's description
    int32_t fd_own;            // our own description of the same inode, direct if `direct`
    int32_t fd_dir;            // its directory, O_PATH
    int32_t error;             // negative errno: failed, never published
    uint64_t dev, ino;         // of the inode
    uint64_t dir_dev, dir_ino; // of the directory
    int32_t fd_to;             // RENAME: the directory of `to`, O_PATH. FILE: the older file, open for writing as it
                               // would be natively: a watcher hears of its close behind the publish
    uint32_t base;             // RENAME of a captured file: its slot,
    uint64_t base_id;          // ... and id; 0: none
    uint64_t to_dev, to_ino;   // RENAME
    uint64_t over_dev, over_ino; // RENAME: of the inode that it replaces, held by fd_prog; 0: none
    uint64_t publish;          // place in the commit queue: number of the close or sync entry; 0: not in it
    uint64_t sync_wanted;      // sync everything up to this number ...
    uint64_t synced;           // ... done up to this number
    uint32_t linked;           // the name points to this inode
    uint32_t done;             // link and directory are durable
    uint32_t tried;            // its turn has come once: what is under its name may not be durable
    uint32_t temporary;        // it may have a hidden name, between the two steps of a replacement
    uint32_t dropped;          // the name was deleted: never published, nor written any more
    uint32_t unnamed;          // likewise by another process, while its own goes on writing
    uint32_t log;              // SYNC_LOG
    uint32_t shared;           // SYNC_INODE: linked for another process, its own does not know
    uint32_t counted;          // among its client's pending files (tables.h)
    uint32_t way;              // UNLINK, RMDIR: of what a path can lead through, a symlink or a directory
    uint32_t over;             // its name was another slot's before, or is another's behind it (names.c)
    uint32_t taken;            // closed, and taken back by a program (LEND_WRITE): length and times are its own again
    uint32_t safe;             // enum safe_state
    uint32_t was_safe;         // before it was durable
    uint64_t safe_to;          // an fsync up to this number needs no more than the stripes have
    uint32_t unsafe;           // the stripes do not have all of it
    uint32_t loose;            // the program may have changed bytes behind its chunks
    struct timespec summed;    // ctime when its checksums were written down (sums.h). RENAME: before it was renamed
    uint32_t refs;             // references to arenas that are QUEUED; counted again at a restart
    uint32_t direct;           // direct writes work here (ext4, xfs)
    uint32_t close_flags;      // CLOSE_*
    uint64_t size_made;        // kernel size as we last made it
    uint64_t size_end;         // end of the last byte handed over
    uint64_t reserved;         // space is reserved up to here
    uint64_t reserve_tried;    // and was asked for up to here: what fails for lack of space keeps what it got
    int64_t retry_ns;          // when a step failed that is being tried again (CLOCK_MONOTONIC); 0: none
    int32_t retry_error;       // with what
    uint32_t retried;          // how often that has begun
    struct timespec atime, mtime, opened, closed;
    char name[NAME_CAP];
    char hidden[NAME_CAP];
    char to[NAME_CAP];
    char where[WHERE_CAP];
};

// A chunk on its way through the stripes (stripes.h). HELD: in staging, perhaps on its way to a stripe. STRIPED: on it,
// and in staging if `chunk`. PASSED: the writer's, which brings it to the file. LITTER: a place on a stripe that a dead
// engine's write may still reach: used by none as long as the pair lives. KEPT: in the file too, until that is durable
// and has its name; without a device: only its checksum is kept.
enum item_state { ITEM_FREE = 0, ITEM_HELD, ITEM_STRIPED, ITEM_PASSED, ITEM_LITTER, ITEM_KEPT };

struct stripe_item {
    _Atomic uint32_t state;
    uint32_t file;    // slot
    uint64_t file_id;
    uint64_t number;  // of the hand-over
    uint32_t client;
    uint32_t chunk;   // of staging, + 1; 0: it is on the stripe only
    int32_t device;   // which stripe; -1: none
    uint32_t place;   // ... and where in it, in chunks
    uint32_t crc;     // of its extents, one after the other
    uint32_t summed;  // crc is known
    uint32_t spilled; // has been on the stripe only: counted in file_public.striped
    struct msg_hand_over what;
};

// Bytes of a client's arena that a file is to have (refer.h). QUEUED: perhaps being copied into a chunk. PASSED: by it
// on their way to the file, as any other chunk. DONE: nobody wants them.
enum ref_state { REF_NONE = 0, REF_QUEUED, REF_PASSED, REF_DONE };

struct ref {
    _Atomic uint32_t state;
    uint32_t file; // slot
    uint64_t file_id;
    uint64_t number; // of its message
    uint32_t chunk;  // copied into, + 1; 0: none yet
    struct msg_refer what;
};

struct arena_slot {     // one a client
    int32_t fd;         // 0: none
    uint32_t steps;     // of STAGING_STEP, granted
    uint64_t dev, ino;
    uint64_t size;      // bytes of it that may be referred to, at most
    uint64_t done;      // references below it are over
    uint64_t arrived;   // and below this, all have their bytes in it
    struct ref ref[REFS_MAX]; // the others, by turn
};

struct failure {
    uint32_t client;
    uint64_t fetched[2]; // by its client, by the fastckpt command: numbers of the questions; 0: not yet
    char text[FAILURE_CAP];
};

/** A device on which something has failed for good (broken.h). */
struct broken {
    _Atomic uint64_t dev; // stored last; 0: free
    uint64_t since;       // the last number drawn when something failed
    uint64_t size;        // bytes of the largest file that has failed
    int64_t since_ns;     // CLOCK_MONOTONIC, of the first failure
    int32_t error;
    uint32_t followed; // what failed last was a followed file
    uint32_t proved;   // since then a file's bytes have become durable there, if not under its name
    uint32_t n_names;
    uint64_t names[BROKEN_NAMES]; // hashes of what has failed: a ring
    char where[128];              // the directory of what failed first
};

struct target {
    uint64_t dev, written;
};

struct state {
    uint64_t magic;
    struct config config;
    uint64_t key;
    uint64_t staging_max;
    int32_t keeper_pid, engine_pid;
    // base descriptors, open for as long as the pair lives
    int32_t fd_state, fd_staging, fd_numbers, fd_tables, fd_tables_ro, fd_listen, fd_lock, fd_log, fd_dir, fd_binary;
    int32_t fd_keeper; // pidfd of the keeper
    int32_t fd_stripe[STRIPES_MAX]; // a file on each stripe, direct where that works; 0: none there
    int32_t fd_stripe_log[STRIPES_MAX], fd_stripe_dir[STRIPES_MAX];
    char stripe_id[48];     // what their names begin with
    uint64_t log_end, log_number, log_epoch; // of the logs, which are all the same (stripelog.h)
    uint32_t log_out;       // a bit for each that could not be written
    uint32_t log_bad;       // none can: nothing is safe any more
    uint32_t items_high;    // items below it may have been used; those above are free
    _Atomic uint32_t sums_dirty; // of what is written down of published files (sums.h), something is not durable
    int64_t recovery_from, recovery_to; // CLOCK_REALTIME: when recoveries of this pair have made files of older ones
    uint32_t generation;
    uint32_t plain;         // after three crashes in a minute: threads, one entry at a time
    _Atomic uint64_t blame; // number of the entry whose thread crashed, written by the dying thread
    uint64_t blamed[8];     // entries named once: a ring
    uint32_t n_blamed;      // so many so far
    uint64_t skip[8]; // entries named twice: their file is failed
    uint32_t n_skip;
    // Entries behind the first that failed, up to the fence, delete and replace nothing (failure behind failure). Noted
    // by the loop and by the worker that publishes. 0: nothing has failed.
    _Atomic uint64_t fail_from, fail_fence;
    struct broken broken[BROKEN_MAX];
    uint8_t steps[CHUNKS_MAX / 16]; // 1: this step of staging has memory
    // counters for status
    uint64_t published, written_bytes, striped_bytes[STRIPES_MAX];
    struct target targets[TARGETS_MAX]; // devices that files are on; those beyond are not counted apart
    uint32_t failures_total, failures_shown;
    uint32_t n_failures; // ring position
    char note[200];
    struct failure failures[FAILURES_MAX];
    struct client_slot clients[CLIENTS_MAX];
    struct conn_slot conns[CONNS_MAX];
    struct entry entries[ENTRIES_MAX];
    struct file_slot files[FILES_MAX];
    struct chunk_slot chunks[CHUNKS_MAX];
    struct stripe_item items[ITEMS_MAX];
    struct arena_slot arenas[CLIENTS_MAX];
};

/** The process-local view of the pair's memory: mapped again by each engine. */
struct pair {
    struct state *st;
    struct tables *t;
    struct numbers *numbers;
    char *window; // staging, mapped whole
};

/** Makes the memory of a new pair (keeper, once) and fills `p` but the window. Descriptors are recorded. 0 or an error.
 */
int state_create(struct pair *p, const struct config *c);
/** Maps the memory of an existing pair from its state's descriptor. */
int state_attach(struct pair *p, int fd_state);
/** Maps staging (engine). */
int state_map_staging(struct pair *p);

/** Strikes a recorded descriptor out and closes it; 0 is ignored. */
void state_close_fd(int32_t *recorded);
/** A closed file is safe, or durable: the last of its client's. */
void state_safe_now(struct state *st, struct file_slot *f);
/** Sorts numbers of items by the order in which they were handed over. */
void state_sort_items(const struct state *st, uint32_t *items, uint32_t n);
/** Bytes have reached a file on `dev`. */
void state_count(struct state *st, uint64_t dev, uint64_t bytes);
/** An entry has crashed the engine. True: for the second time, it is to be skipped from now on. */
bool state_blame(struct state *st, uint64_t number);
/** Closes every descriptor that is not recorded, but `keep` (-1: none). A new engine's first act. */
void state_close_litter(const struct pair *p);

/** Entries after `number`, up to `fence`, are behind a failure. One range for all failures, which only grows: what is
 *  behind the first may still be queued when the second is known. */
static inline void state_fail(struct state *st, uint64_t number, uint64_t fence) {
    uint64_t from = atomic_load(&st->fail_from), to = atomic_load(&st->fail_fence);
    while ((from == 0 || number < from) && !atomic_compare_exchange_weak(&st->fail_from, &from, number)) {
    }
    while (fence > to && !atomic_compare_exchange_weak(&st->fail_fence, &to, fence)) {
    }
}
/** Was it queued behind a failure? Then it deletes and replaces nothing (P6). */
static inline bool state_behind_failure(const struct state *st, uint64_t number) {
    return number > st->fail_from && number <= st->fail_fence;
}

/** Is any device broken? Then nothing is deleted or replaced, on whichever. */
static inline bool state_broken(const struct state *st) {
    for (unsigned i = 0; i < BROKEN_MAX; i++) {
        if (atomic_load_explicit(&st->broken[i].dev, memory_order_relaxed)) {
            return true;
        }
    }
    return false;
}

static inline uint64_t chunk_load(const struct pair *p, unsigned c) {
    return atomic_load_explicit(&p->t->chunks[c], memory_order_acquire);
}
static inline void chunk_store(struct pair *p, unsigned c, enum chunk_state s, unsigned client, uint64_t number) {
    atomic_store_explicit(&p->t->chunks[c], chunk_word(s, client, number), memory_order_release);
}

#endif
