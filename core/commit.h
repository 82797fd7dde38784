// SPDX-License-Identifier: MIT
//
// commit: what happens to a file once its bytes are in the kernel: times, fsync, its name, the directory's sync, all in
// the order of numbers; and what happens when one of these fails. One queue for all clients of the engine.
//
//   closed ──(settled)──▶ syncing: many at once ──▶ synced ──(all before it linked)──▶ linked ──▶ directory synced:
//   done
//
// Small files on one journal are only written out where it says synced: durable when the directory is.
//
// Bytes are writer's concern; who is told is engine's.

#ifndef FASTCKPT_COMMIT_H
#define FASTCKPT_COMMIT_H

#include "writer.h"

#define PUBLISH_BATCH 256 // names changed by one publish job, with one sync a directory
#define SYNC_BATCH    128 // small files of one job: their writeback is started together, one journal commit serves all
#define GATHER        64  // closed files that are enough for a job: each costs a commit of the journal
#define GATHER_NS     10000000 // after which fewer are
#define SYNC_JOBS     64  // in hand at once
#define SYNC_SMALL    4   // of small files: what comes meanwhile forms the next batches

struct commit_run {
    bool syncing;
    bool queued;
    bool publishing;
    uint64_t sync_to; // number that the sync job in hand serves
    uint64_t written; // written out up to this number: durable when its name is, see publish_with_name
    struct retry retry;
};

/** Files that one sync job makes durable, or writes out. */
struct sync_batch {
    struct io_job job;
    struct commit *c;
    bool used, small, write_out;
    unsigned n;
    uint32_t slots[SYNC_BATCH];
    int result[SYNC_BATCH];
};

struct commit {
    struct pair *p;
    struct io *io;
    struct writer *w;
    void (*on_done)(void *arg, unsigned slot); // published and durable, failed, dropped, or fsynced: look at the slot
    void *arg;
    // In a worker, behind the names that a job has made and before anybody is told. NULL: nothing to do.
    void (*on_named)(struct state *st, const uint32_t *slots, unsigned n, const int *result);
    unsigned n_queue, n_syncs;
    uint32_t queue[FILES_MAX]; // slots by publish number
    uint32_t syncs[FILES_MAX]; // slots with an fsync wanted and no publish
    struct io_job publish_job;
    struct sync_batch sync_batches[SYNC_JOBS];
    unsigned n_batch, n_named; // files in hand; those before the one that is to be tried again
    int64_t wake_ns;           // when that one is due (CLOCK_MONOTONIC); 0: none
    bool publishing;
    bool hurry;                // somebody waits: nothing is gathered
    int64_t writing_since, naming_since; // files are gathered since then; 0: none
    bool held; // nothing is published: while a recovery works (engine.c)
    uint32_t batch[PUBLISH_BATCH];
    int batch_result[PUBLISH_BATCH];
    struct commit_run run[FILES_MAX];
};

void commit_start(struct commit *c, struct pair *p, struct io *io, struct writer *w);
/** After a restart: queues what the state says. Every step is repeated; each is harmless when done twice. */
void commit_rebuild(struct commit *c);
/** Puts the file into the commit queue at `number` (of its close, or of a sync that publishes). */
void commit_publish(struct commit *c, unsigned slot, uint64_t number);
/** The file's bytes shall be durable: file_slot.synced >= number says so. */
void commit_sync(struct commit *c, unsigned slot, uint64_t number);
/** Has a closed file its length and times? From here on nothing changes its inode but the program. Else that is done
 *  before others; ask again when something has changed. */
bool commit_prepared(struct commit *c, unsigned slot);
/** Starts what can be started. Called once a turn of the loop, and at wake_ns. */
void commit_pump(struct commit *c);
/** Files still to be published with a number < `number`: any (NULL), or those that `match` accepts. */
unsigned commit_before(const struct commit *c, uint64_t number, bool (*match)(const struct file_slot *, const void *),
                       const void *arg);
/** Marks the file as failed, once: it is never published and what is queued behind it deletes and replaces nothing. */
void commit_fail(struct commit *c, unsigned slot, int error, const char *what);
/** The same for a step of its disk's: the device may be broken (broken.h). */
void commit_fail_disk(struct commit *c, unsigned slot, int error, const char *what);
/** Removes a dropped or failed file from the queue. */
void commit_forget(struct commit *c, unsigned slot);

#endif
