// SPDX-License-Identifier: MIT
//
// stripelog: what is on the stripes, as records that outlive keeper, engine and machine. Each stripe of an engine has
// a file of places (ENGINE.N.data) and the same log (ENGINE.N.log), locked while its pair lives: whichever stripe is
// lost, the others can still name what is missing. Format, append, scan; who is safe is safe.c's, what is done with a
// log that nobody holds is recover's.
//
// A log begins with START, is valid up to the first record that is torn, of another engine or out of number, and is
// begun again under a higher epoch when all that is in it has ended.

#ifndef FASTCKPT_STRIPELOG_H
#define FASTCKPT_STRIPELOG_H

#include "config.h"
#include "protocol.h"

#include <sys/stat.h>

#define STRIPELOG_MAGIC 0x32676f6c6b636366ull

enum log_type {
    LOG_START = 1, // struct log_start
    LOG_SAFE,      // struct log_safe: from here on a file can be had from the stripes
    LOG_REDO,      // struct log_redo: a recovery is about to give a name to an inode
    LOG_END,       // struct log_end: what SAFE or CHANGE says needs nothing any more
    LOG_CHANGE,    // struct log_change: a deletion or a renaming, behind what was recorded before it
};

struct log_head {
    uint64_t magic, engine, number; // numbers rise by one
    uint32_t type;
    uint32_t crc; // over the whole record with this field 0
    uint64_t len; // of the record with its head, a multiple of 8
};

struct log_start {
    uint64_t epoch;
    uint32_t stripes; // a bit for each that this engine has
    uint32_t pad;
};

/** Of a file. Numbers of inodes are given again: the time of birth belongs to them (0: the file system keeps none).
 *  ino 0: there is none; size and other times 0: it has no name yet, and which inode it is alone counts. */
struct log_identity {
    uint64_t dev, ino, size;
    struct timespec ctime, mtime, born;
};

struct log_safe {
    uint64_t id;
    uint64_t size;
    uint64_t dir_ino;
    struct log_identity shadow;   // dev 0: which inode it is
    struct log_identity replaced; // what was under the name
    uint32_t mode, uid, gid, times;
    struct timespec atime, mtime; // with `times`
    uint32_t n_parts, n_native, xattrs_len, pad;
    char name[NAME_CAP];
    char dir[CONFIG_DIR_MAX];
    // behind it: parts, native ranges each with its bytes, xattrs: each padded to 8 bytes
};

struct log_part { // one chunk on a stripe
    uint32_t device, place, crc, n;
    uint64_t index;
    struct extent extent[EXTENTS_MAX];
};

struct log_native { // bytes that the program wrote itself, in the record
    uint64_t off, len;
};

struct log_change {
    uint64_t id;
    uint64_t dir_ino, to_ino;        // of the directories of `name` and of `to`
    struct log_identity what, over;  // the inode that is meant; RENAME: what is under `to`
    uint32_t kind, pad;              // enum slot_kind
    // behind it, terminated and each padded to 8 bytes: name, its directory's path, to, its directory's path
};

struct log_redo {
    uint64_t id;
    struct log_identity made;
};

struct log_end {
    uint64_t id;
};

/** A record being made: grows as it needs; `failed`: there was no memory. */
struct log_buf {
    char *mem;
    size_t len, cap;
    bool failed;
};

void stripelog_begin(struct log_buf *b, uint32_t type);
/** Adds `len` bytes, padded to 8; NULL: zeros. Where they are, until the next call; NULL: no memory. */
void *stripelog_add(struct log_buf *b, const void *data, size_t len);
/** Completes the record that was begun. 0 or -ENOMEM. */
int stripelog_finish(struct log_buf *b, uint64_t engine, uint64_t number);
void stripelog_free(struct log_buf *b);

/** The record at `*at` of a log of `len` bytes, if it is whole and number `number` of `engine` (0: whichever begins);
 *  `*at` moves behind it. NULL: the log ends here. */
const struct log_head *stripelog_next(const char *mem, size_t len, size_t *at, uint64_t *engine, uint64_t number);

/** CRC of what a place holds of a chunk. */
uint32_t stripelog_crc(const char *chunk, const struct extent *e, uint32_t n);

/** What is under a name now. */
void stripelog_identity(int dirfd, const char *name, struct log_identity *id);
/** The same of what has been asked already: without its birth. */
struct log_identity stripelog_identity_of(const struct stat *s);
/** Which inode is behind a descriptor, and nothing else of it. */
struct log_identity stripelog_inode(int fd);
/** Is it the same inode? */
bool stripelog_is_inode(const struct log_identity *a, const struct log_identity *b);

/** Opens this user's directory in the stripe directory `dir` (`len` bytes). A descriptor, or an error: -EPERM if it is
 *  another user's, who may have made it to be believed. */
int stripelog_open_dir(const char *dir, size_t len);

/** Locks a log for as long as its description is open. 0, or -EAGAIN: its engine lives. One that is open for reading
 *  only: against its engine, not against others that read. */
int stripelog_lock(int fd);
/** Empties a log, durably: it speaks of nothing any more. 0 or an error. Blocks. */
int stripelog_empty(int fd);

#endif
