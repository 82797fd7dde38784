// SPDX-License-Identifier: MIT
//
// refer: bytes that a client hands over without a copy: where they are in its arena, a memory object of its own. Each
// reference is copied into a chunk here, at its place within the chunk, and is from there on like any chunk that was
// handed over. By pread: no client can make the engine fault, and there is nothing to map again after a restart.
//
//   queued ──(a chunk that no client gets; copied by a worker)──▶ passed: drain's or writer's ──▶ done
//
// All of it is in the state's arenas, and survives the engine. A client's references are copied, and passed, in the
// order of its turns; what overlaps other bytes of the same file that are on their way, its client settles first.

#ifndef FASTCKPT_REFER_H
#define FASTCKPT_REFER_H

#include "drain.h"

#define REFER_KEPT 4 // free chunks that are lent to none while there are arenas

struct refer_run;

struct refer {
    struct pair *p;
    struct io *io;
    struct lend *lend;
    struct writer *w;
    struct drain *drain;
    uint32_t copying[FILES_MAX]; // of each file
    struct refer_client {
        struct refer_run *run; // REFS_MAX; NULL: no arena
        unsigned copying;
        uint64_t end;           // turns below it have been seen
        uint64_t to_copy, to_pass; // all below it are, or were, or never came
    } client[CLIENTS_MAX];
};

/** `r` is zeroed memory. What the drain has been started with is used, too. */
void refer_start(struct refer *r, struct pair *p, struct io *io, struct drain *d);
/** After a restart, behind lend's rebuild and before the drain's. */
void refer_rebuild(struct refer *r);
/** A client's arena: `*fd` is its memfd if it has none yet (which becomes the state's, and 0 here). `*steps`, in: how
 *  large it is to be; out: may be. 0; -EBUSY: not yet, ask again when something has changed; or an error. */
int refer_arena(struct refer *r, unsigned client, int32_t *fd, unsigned *steps);
/** A reference, as `m` says it, for `f` (NULL: nobody wants it). One that was added before is passed over. 0, or
 *  -EPROTO. */
int refer_add(struct refer *r, unsigned client, const struct msg *m, const struct file_slot *f);
/** All references of `client` with a turn below `turn` have their bytes in its arena: those that were made ahead of
 *  that (msg_refer.late) are copied from here on. If it dies before, their files fail. */
void refer_arrived(struct refer *r, unsigned client, uint64_t turn);
/** Is anything of the file being copied? */
bool refer_busy(const struct refer *r, unsigned slot);
/** Bytes of the file that are referred to, and in no chunk yet. */
uint64_t refer_bytes(const struct refer *r, unsigned slot);
/** `client` is gone, and has no file any more: its arena goes. False: not yet. */
bool refer_end(struct refer *r, unsigned client);
/** Starts what can be started. Called once a turn of the loop. */
void refer_pump(struct refer *r);

#endif
