// SPDX-License-Identifier: MIT
//
// drain: the way of a chunk through the stripes, between hand-over and writer. It goes to the stripe that is free
// first, with a checksum, and from there to the file, oldest first: from staging while it is there, else read back.
// Where staging is short, chunks that are on a stripe leave it. A file that is being written waits, while there is room
// on the stripes: what is in flight to the target would hold up its program's reservations. For everybody else a chunk
// is on its way until the writer has brought it to the file: settle, sync and publish wait for that.
//
//   handed ──▶ held ──(write, checksum)──▶ striped ──(its turn)──▶ passed: writer's ──▶ in the file: place free
//                └──(no place anywhere)──────────────────▲          ▲
//                       striped ──(spilled: not in staging)──(read) ┘
//
// All of it is in the state's items, and survives the engine.

#ifndef FASTCKPT_DRAIN_H
#define FASTCKPT_DRAIN_H

#include "lend.h"
#include "stripes.h"
#include "writer.h"

#define DRAIN_DEPTH   8  // chunks at the writer for one device
#define DRAIN_READS   4  // read back at once
#define DRAIN_TARGETS 64 // devices counted apart

/** What of an item dies with the engine. */
struct item_run {
    uint32_t next;       // in its file's list: item + 1
    uint32_t next_fresh; // among those that wait for a place: item + 1
    uint8_t parts;       // checksum and write in hand
    bool fresh, direct, reading, dead;
    uint32_t chunk; // read into, + 1
    uint32_t crc;
    int error;
    struct drain *d;
    struct io_req req;
    struct io_job job;
};

struct drain_file {
    uint32_t head, tail; // items that the writer has not, oldest first: item + 1
    unsigned passed;     // that it has
    unsigned kept;       // in the file, and still on a stripe
    unsigned busy;       // of a dead file, still in hand
    int64_t last_ns;     // of the last hand-over (CLOCK_MONOTONIC)
    bool hurry;          // somebody waits for it
    bool full;           // the stripes had no room for it
    bool active;         // in the list of files with items
};

struct drain {
    struct pair *p;
    struct io *io;
    struct lend *lend;
    struct writer *w;
    struct stripes stripes;
    struct item_run *run; // ITEMS_MAX; NULL: no stripes
    unsigned n_free; // of the items below the state's items_high; those from there on are free as well
    uint32_t *free;
    uint32_t item_of[CHUNKS_MAX]; // + 1
    uint32_t fresh, fresh_last;   // + 1
    unsigned spilled;             // chunks on a stripe and not in staging
    unsigned reads;
    unsigned n_active;
    uint32_t active[FILES_MAX];
    unsigned passed_to[DRAIN_TARGETS];
    int64_t next_ns; // FASTCKPT_DRAIN_RATE: nothing is passed before (CLOCK_MONOTONIC)
    int64_t wake_ns; // when the pump is due again; 0: when something changes
    struct drain_file file[FILES_MAX];
};

/** `d` is zeroed memory. Without stripes in the configuration everything below does nothing. */
void drain_start(struct drain *d, struct pair *p, struct io *io, struct lend *l, struct writer *w);
/** After a restart, before the writer's rebuild: the items of the state, and chunks that were handed over and had none
 *  yet. */
void drain_rebuild(struct drain *d);
/** A chunk whose word has become CHUNK_HANDED. False: there are no stripes, it is the writer's at once. */
bool drain_add(struct drain *d, unsigned chunk);
/** The writer is done with a chunk, which has become free. */
void drain_freed(struct drain *d, unsigned chunk);
/** Somebody waits for this file. */
void drain_hurry(struct drain *d, unsigned slot);
/** Something happens to the file that its chunks do not say: the stripes are no way to have it back. */
void drain_unsafe(struct drain *d, unsigned slot);
/** Its chunks leave the stripes: it is durable, or nobody wants it. */
void drain_release(struct drain *d, unsigned slot);
/** Throws away what the writer does not have: the file failed or was dropped. */
void drain_discard(struct drain *d, unsigned slot);
/** Is anything of the file in hand here? */
bool drain_busy(const struct drain *d, unsigned slot);
/** Bytes handed over that the writer does not have. */
uint64_t drain_bytes(const struct drain *d, unsigned slot);
/** Starts what can be started. Called once a turn of the loop, and at wake_ns. */
void drain_pump(struct drain *d);

#endif
