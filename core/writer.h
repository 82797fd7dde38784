// SPDX-License-Identifier: MIT
//
// writer: brings chunks that were handed over to their file: reserves space, grows the file, keeps the order of chunks
// that overlap, fences after a restart. Everything here runs in the event loop; what blocks is a job of io. Names,
// syncing and publishing are commit's.
//
//   handed ──(gate: reserve | grow | fence, nothing of the file in flight)──▶ flying ──▶ written: chunk free
//
// Files are known by their slot in the state; this module keeps per slot only what dies with the engine.

#ifndef FASTCKPT_WRITER_H
#define FASTCKPT_WRITER_H

#include "io.h"
#include "retry.h"

#define FLY_MAX       8                  // chunks of one file given to io at once: io itself keeps 4 in flight a device
#define GROW_BATCH    (256 * CHUNK_SIZE) // the file grows by at most this much at once, only to what is handed over
#define RESERVE_AHEAD (64 * MIB)         // reserved beyond the need, doubled each time up to RESERVE_MOST
#define RESERVE_MOST  (1 * GIB)
#define RESERVE_PART  64 // ... and at most this part of the free space

struct file_run {
    uint32_t head, tail; // chunks handed over, oldest first: chunk + 1, linked by chunk_run.next
    uint32_t flying;
    uint32_t taken; // of all these: out of its client's hands (hands.h)
    uint64_t end;   // of the last byte handed over since everything was in the file
    uint64_t fly_index[FLY_MAX];
    uint64_t fly_number[FLY_MAX];
    bool gate;   // a gate job is in hand: nothing else of this file is started
    bool fence;  // must be fenced before anything else
    bool active; // in the list of files with work
    uint32_t next_active;
    uint64_t want_reserved; // a client waits until this is reserved
    uint64_t ahead;         // next step of reservation
    uint64_t gate_to;       // what the gate job makes
    uint64_t gate_need;     // RESERVE: and what of it is needed now
    int gate_kind;
    int reserve_error; // why want_reserved could not be had (negative errno)
    struct retry retry;
    struct io_job job;
};

struct chunk_run {
    uint32_t next;
    uint32_t parts; // of it in flight
    int error;
    void *memory; // requests of the parts
};

/** Who has what is handed over and not here yet (drain.h, refer.h). */
struct writer_source {
    bool (*held)(void *arg, unsigned slot, uint64_t number); // something of this file, handed over before `number`?
    void (*discard)(void *arg, unsigned slot);
    bool (*has)(void *arg, unsigned chunk); // is this handed over chunk there?
    void *arg;
};
#define WRITER_SOURCES 2

struct writer {
    struct pair *p;
    struct io *io;
    void (*on_change)(void *arg, unsigned slot); // a file's chunks were written, its space reserved, or it failed
    void (*on_free)(void *arg, unsigned chunk);  // a chunk has become free
    void (*on_error)(void *arg, unsigned slot, int error, const char *what);
    void *arg;
    unsigned n_sources;
    struct writer_source source[WRITER_SOURCES];
    uint32_t first_active; // slot + 1
    int64_t wake_ns;       // when the next failed step is due (CLOCK_MONOTONIC); 0: none
    struct file_run run[FILES_MAX];
    struct chunk_run chunk[CHUNKS_MAX];
};

/** `w` is zeroed memory; callbacks and arg are set by the caller. */
void writer_start(struct writer *w, struct pair *p, struct io *io);
/** After a restart: queues every chunk found handed or flying, in the order of numbers; files with chunks in flight are
 *  fenced first, since the kernel may still be finishing the dead engine's writes. */
void writer_rebuild(struct writer *w);
/** What has been handed over of the file ends here (writer_add says it itself). */
void writer_extend(struct writer *w, unsigned slot, const struct msg_hand_over *what);
/** Before the rebuild; in all that is asked of them, the order is no matter. */
void writer_add_source(struct writer *w, struct writer_source s);
/** Is anything of the file that was handed over before `number` on its way to the writer? */
bool writer_awaits(const struct writer *w, unsigned slot, uint64_t number);
/** Is this handed over chunk with one of them? */
bool writer_elsewhere(const struct writer *w, unsigned chunk);
void writer_discard_sources(struct writer *w, unsigned slot);
/** A chunk whose word has become CHUNK_HANDED. */
void writer_add(struct writer *w, unsigned chunk);
/** A client waits for space up to `end` bytes. Call once per question, then writer_reserved each time something has
 *  changed: 1 when it is there, 0 while it is being made, or the error (-ENOSPC ...). */
void writer_reserve(struct writer *w, unsigned slot, uint64_t end);
int writer_reserved(const struct writer *w, unsigned slot, uint64_t end);
/** From here on by the page cache alone, since somebody else may read or write there: a page that he has brought into
 *  the cache beside a direct write to it makes the next fsync EIO, and the file is lost. What is in flight goes on as
 *  it is. */
void writer_buffered(struct file_slot *f);
/** True when every chunk of the file handed over with a number < `number`, and every one that was taken, is in the
 *  kernel's file. */
bool writer_settled(const struct writer *w, unsigned slot, uint64_t number);
/** Throws away what is handed over and not in flight: the file failed or was dropped. */
void writer_discard(struct writer *w, unsigned slot);
/** Starts what can be started. Called once a turn of the loop, and at wake_ns. */
void writer_pump(struct writer *w);
/** Bytes handed over and not written. */
uint64_t writer_bytes(const struct writer *w, unsigned slot);

#endif
