// SPDX-License-Identifier: MIT
//
// protocol: the messages between a client (the shim in a job, or the fastckpt command) and the engine. Layouts, limits,
// checks of what arrives, and send/receive of one datagram with its descriptors. Knows nothing of what a message means.
//
// An entry is one SEQPACKET datagram: a struct msg, cut behind its body. Its number (tables.h) is its place in the
// order of all clients and its identity: an engine that meets the number again after a restart only answers again.
// Names travel as (directory descriptor, last component), never as paths. An answer repeats its question's number.
//
// Who sends descriptors, in this order:
//   HELLO   question: pidfd of the sender.  answer: staging (read-write), numbers (read-write), tables (read-only)
//   OPEN    question: the program's description (write-only is enough), its directory (O_PATH), with OPEN_REPLACES the
//           older file, open for writing
//   LEND    question: the directory (O_PATH).  answer: the file (O_PATH, since to close another
//           would drop the client's record locks)
//   LIST    question: the directory.  answer: a memfd of struct list_records; none if there is nothing to say
//   REMOVE  question: the directory, and the inode under the name, if there is one (all O_PATH)
//   ARENA   question: the arena, a memfd sealed against resizing, the first time
//   RENAME  question: both directories, and the inode under the old name, if there is one (all O_PATH)

#ifndef FASTCKPT_PROTOCOL_H
#define FASTCKPT_PROTOCOL_H

#include "tables.h"

#include <sys/types.h>
#include <time.h>

#define MSG_MAGIC   0x6b636636u // changes with every change of a layout: both files come from one build
#define MSG_FDS_MAX 3
#define EXTENTS_MAX 16
#define WHERE_CAP   240 // where the program opened a file, as text
#define STATUS_DEVICES 24 // stripes and targets
#define FAILURE_CAP 720 // the line that reports a failure

enum msg_type {
    MSG_NONE = 0,
    MSG_HELLO,     // answered: who are we, where is the memory
    MSG_OPEN,      // answered: a file is captured (or followed); until the answer it is native
    MSG_BORROW,    // answered: chunks to fill; waits until there is at least one
    MSG_RESERVE,   // answered: space up to an offset, or -ENOSPC, -EDQUOT
    MSG_HAND_OVER, // a filled chunk
    MSG_REFER,     // bytes of the sender's arena, as good as a chunk handed over
    MSG_ARRIVED,   // bytes that it referred to ahead of their arrival are there, or will never be
    MSG_CLOSE,     // the program's last descriptor goes: to be published in the order of numbers
    MSG_SETTLE,    // answered: everything handed over so far is in the kernel's file
    MSG_SYNC,      // answered: the file's bytes are durable; with SYNC_PUBLISH its name too
    MSG_DROP,      // answered: the name was deleted; the file is never published
    MSG_REMOVE,    // answered: the name is going to be deleted, at this entry's place in the order
    MSG_RENAME,    // answered: likewise renamed
    MSG_LIST,      // answered: the names of a directory that the kernel does not show, or not as they are
    MSG_WAIT,      // answered: everything closed before (of a scope) is durable
    MSG_LEND,      // answered: the inode behind a captured or pending name
    MSG_ARENA,     // answered: how large the sender's arena may be
    MSG_RETURN,    // chunks borrowed and not used
    MSG_EXEC,      // the client's image is replaced: its open files are published when its process is gone
    MSG_LEAVE,     // answered: the process ends; open files count as closed. Outermost client: when its tree is durable
    MSG_CANCEL,    // the sender no longer waits for the entry with this number
    MSG_FAILURES,  // answered: text of one failure of this client not yet fetched
    MSG_STATUS,    // answered: struct status
    MSG_TYPES
};

enum {
    OPEN_FOLLOWED = 1, // native inode under its own name: sync it in order; else a shadow
    OPEN_REPLACES = 2, // the name held an older file when it was opened
    OPEN_HIDDEN = 4,   // no O_TMPFILE here: the shadow has the hidden name `hidden` in the same directory
};
enum {
    CLOSE_SPAWNED = 1, // this client started a process while the file was open: a stranger may hold it
    CLOSE_TIMES = 2,   // the program set the times itself
    CLOSE_ABORT = 4,   // do not publish: the client met an error that it has reported to the program
    CLOSE_KEEP = 8     // space in it without bytes stays: the program has asked for it, or may be writing there
};
enum {
    SYNC_PUBLISH = 1, // publish now and go on natively (release)
    SYNC_SPAWNED = 2, // as CLOSE_SPAWNED
    SYNC_QUIET = 4,   // not answered: nobody waits
    SYNC_KEEP = 64,   // as CLOSE_KEEP
    SYNC_INODE = 16,  // of the file that the descriptor is of, whoever captured it: it goes on being captured
    SYNC_SAFE = 32,   // it is enough that it is safe on the stripes, and it goes on as it was; with SYNC_PUBLISH, under
                      // its name. -EOPNOTSUPP: not with this file
    SYNC_LOG = 8
};                        // it is a log (design 4): published as it stands when its process dies
enum {
    LEND_SETTLE = 1, // content will be read: settle first
    LEND_WRITE = 2   // it will be changed. A pending file: from here on the engine gives it its name, no more
};
enum {
    REMOVE_DIR = 1, // a directory; it is empty but for names that are going to be deleted
    REMOVE_EMPTY = 2
};                                                               // ... and has none of these either
// SPACE: and has given back its space. CHANGE: all, before the sender deletes or replaces something by itself.
// *_SAFE: what is safe on the stripes need not be durable yet.
enum wait_scope { WAIT_ALL, WAIT_DIR, WAIT_CLIENT, WAIT_SPACE, WAIT_CHANGE, WAIT_ALL_SAFE, WAIT_DIR_SAFE };

struct msg_hello {
    uint32_t magic;       // MSG_MAGIC
    int32_t pid;          // of the sender, in its own pid namespace (the engine's too: the key holds the namespace)
    uint32_t tool;        // 1: the fastckpt command: may ask STATUS and WAIT, owns no files
    uint32_t client;      // answer, and question of a further connection: the client's slot
    uint64_t token;       // likewise: 0 asks for a new client
    uint64_t staging_max; // answer: bytes of address space that the chunks may take
};

struct msg_open {
    uint32_t flags; // OPEN_*
    char name[NAME_CAP];
    char hidden[NAME_CAP]; // with OPEN_HIDDEN
    char where[WHERE_CAP]; // where the program opened it, for the line that reports a failure; may be empty
};

struct msg_chunks { // BORROW: n = how many are wanted (answer: given). RETURN: given back
    uint32_t n;
    uint32_t chunk[BORROW_MAX];
};

struct extent { // bytes of a chunk, offsets within it; sorted, disjoint, not touching
    uint32_t off;
    uint32_t len;
};

struct msg_hand_over {
    uint32_t chunk; // the staging chunk
    uint32_t n;     // extents used, 1 to EXTENTS_MAX
    uint64_t index; // which chunk of the file
    struct extent extent[EXTENTS_MAX];
};

struct msg_refer {
    uint64_t turn; // counts the sender's references; see client_public.refs_done
    uint64_t at;   // of the first byte in the arena
    uint64_t index; // which chunk of the file
    struct extent extent;
    uint32_t late;  // the bytes are on their way to the arena: ARRIVED says when they are there
    uint32_t pad;
};

struct msg_close {
    uint32_t flags; // CLOSE_*
    uint32_t pad;
    uint64_t size;                // end of the last byte that was staged (0: none): the file is at least this long
    struct timespec atime, mtime; // to be the file's: of the last write, or as the program set them
};

struct msg_lend {    // question: name, flags. Answer: the rest
    uint32_t flags;  // LEND_*
    uint32_t state;  // enum name_state
    uint32_t client; // who captured it
    uint32_t taken;  // a program has opened it to write since it was closed; or may have, for it was only renamed
    uint64_t size;         // as known to the engine: at least what is handed over
    struct timespec mtime; // zero: the kernel's
    char name[NAME_CAP];
};

struct msg_change { // REMOVE: name, flags. RENAME: name to `to`
    uint32_t flags; // REMOVE_*
    uint32_t pad;
    char name[NAME_CAP];
    char to[NAME_CAP];
};

/** One name in the answer to LIST; they stand one after the other. Shaped as getdents64's: a reader can be given its
 *  address. */
struct list_record {
    uint64_t ino;
    int64_t state; // NAME_OPEN or NAME_PENDING; NAME_ABSENT: not to be shown
    uint16_t len;  // of the record, a multiple of 8
    uint8_t type;  // DT_*
    char name[];   // terminated
};

struct status_device { // a disk that the engine writes to
    uint64_t dev;      // st_dev
    uint64_t written;  // bytes since the engine's pair began
    uint32_t stripe;   // number in FASTCKPT_STRIPES, from 1 on; 0: a target
    uint32_t unused;   // a stripe that has failed
    char where[64];    // a stripe's directory, from its end if it is long; of a target: empty
};

struct status {
    int32_t keeper_pid, engine_pid;
    uint32_t clients, pending_files, failures, restarts;
    uint64_t pending_bytes; // closed and not yet published: bytes still in staging
    uint64_t staging_bytes; // resident
    uint64_t staging_used;  // lent, handed over or in flight
    uint64_t published_files;
    uint64_t written_bytes;
    char backend[16];       // "uring" or "threads"
    char note[200];         // why a slower way was taken; may be empty
    uint32_t safe_files;    // pending ones that would be had from the stripes
    uint32_t n_devices;     // that can be asked for
    uint64_t behind_bytes;  // handed over, and not in the kernel's file yet: of open files, too
    uint64_t striped_bytes; // of these: on stripes, and not in staging any more
    struct status_device device; // that with the number (`slot`) asked for. Only number 0 has the sums, too
    uint32_t retrying;      // closed files with a failed step that is tried again
    uint32_t retry_seconds; // since the first of these failures
    char retry[NAME_CAP];   // the file that it held up
    int32_t retry_error;    // and its errno, negative
    uint32_t broken;        // devices on which something has failed: nothing is deleted or replaced
    char broken_text[320];  // the first of them: which, why, since when, until when
};

struct msg_wait { // WAIT_DIR, WAIT_DIR_SAFE: the directory, as stat says: who asks may have no descriptor left
    uint64_t dev, ino;
};

struct msg_leave { // question: wait (0: do not). Answer: the rest
    uint32_t wait;
    uint32_t failures;
    uint64_t durable_ns; // from the first close of this client to the last publish of its files
    uint64_t safe_ns;    // likewise until the last of them was safe; 0: without stripes
};

struct msg {
    uint32_t magic;
    uint16_t type;  // enum msg_type
    uint16_t scope; // WAIT: enum wait_scope. SYNC: SYNC_*
    uint64_t number;
    uint64_t file;  // id of the file, 0 if none
    uint32_t slot;  // its slot
    int32_t result; // answers: 0 or a negative errno. ARRIVED: why the bytes of this file will never be there, or 0
    uint64_t value; // RESERVE: offset wanted / reserved. ARENA: steps of STAGING_STEP wanted in all / granted.
                    // ARRIVED: references with a turn below this have their bytes. CANCEL: the number. WAIT answer:
                    // what is left. WAIT with WAIT_DIR: 1: what is open in it gets its name as well. STATUS: failures
                    // read. REMOVE answer: 1: do it natively (a directory), or what was open under the name has lost
                    // it, whatever the result is (a file)
    union {
        struct msg_hello hello;
        struct msg_open open;
        struct msg_chunks chunks;
        struct msg_hand_over hand_over;
        struct msg_refer refer;
        struct msg_close close;
        struct msg_lend lend;
        struct msg_change change;
        struct msg_wait wait;
        struct msg_leave leave;
        struct status status;
        char text[FAILURE_CAP]; // FAILURES
    } u;
};

/** Bytes of a datagram of `type` (question or answer): the head and its body. */
size_t msg_bytes(unsigned type);

/** Checks a datagram of `len` bytes from a stranger: magic, type, exact length, terminated names of one component,
 *  extents in order and in range. 0, or -EPROTO. Whether its numbers make sense for the sender, the engine checks. */
int msg_check(const struct msg *m, size_t len);

/** The part of it that is about a chunk: extents in order and in range. */
bool msg_hand_over_valid(const struct msg_hand_over *h);

/** Sends `m` with `nfds` descriptors. `flags` as of sendmsg (MSG_NOSIGNAL is added). 0, or an error:
 *  -EAGAIN (MSG_DONTWAIT), -EPIPE / -ECONNRESET (nobody there), -ETOOMANYREFS / -EMFILE (descriptors: back-pressure) */
int msg_send(int sock, const struct msg *m, const int *fds, int nfds, int flags);

/** Receives one datagram. Fills `fds` (close-on-exec only with MSG_CMSG_CLOEXEC in `flags`) and `*nfds`. Returns its
 *  length, 0 at hang-up, or an error: -EMFILE (no room for its descriptors), -EPROTO (longer, or more descriptors, than
 *  any message has). With MSG_PEEK the datagram stays; the descriptors are new ones each time.
 *  Of a peer that has gone with an answer unread the kernel says ECONNRESET, once, before what it has sent: that is
 *  passed over, so its last words are heard. */
ssize_t msg_recv(int sock, struct msg *m, int *fds, int *nfds, int flags);

/** Removes the datagram that was peeked at, with its descriptors. */
void msg_consume(int sock);

#endif
