// SPDX-License-Identifier: MIT
//
// tables: the memory that the engine writes and every client maps read-only, and the one page that both write. Layout
// and the pure functions on single words; who changes a word, and when, is said at each field. No system calls.
//
// Three memory objects are given to a client when it says hello:
//   numbers  one page, read and write for all: where entry numbers are drawn. Behind it: labels.h
//   tables   struct tables below: the engine writes, clients read
//   staging  the chunks (staging.h): clients map only those that they have borrowed

#ifndef FASTCKPT_TABLES_H
#define FASTCKPT_TABLES_H

#include "util.h"

#define CHUNK_SIZE   (4 * MIB) // chunk k of a file covers bytes [k * CHUNK_SIZE, (k + 1) * CHUNK_SIZE)
#define NATIVE_HEAD  (1 * MIB) // offsets below this are written by the program itself, never staged (design 3)
#define CHUNKS_MAX   16384     // 64 GiB of staging
#define FILES_MAX    4096      // files known to one engine: open, followed or pending
#define CLIENTS_MAX  256
#define NAMES_SLOTS  16384 // a power of two, four times FILES_MAX
#define REFS_MAX     1024  // references of one client that are not written yet: 4 GiB of its arena
#define BORROW_MAX   16    // chunks one message lends
#define NAME_CAP     256   // longest file name (255) and its terminator
#define TABLES_MAGIC 0x31746b6366ull

struct numbers {
    _Atomic uint64_t next; // last number drawn; the first one is 1. Outlives the engine: it is recorded by none.
};

/** Draws an entry number: the entry's place in the order of all clients. To be drawn inside the call, before anything
 *  that another process could notice, and sent at once (design 7, Order). */
static inline uint64_t number_draw(struct numbers *n) {
    return atomic_fetch_add_explicit(&n->next, 1, memory_order_seq_cst) + 1;
}

// A chunk's word: state, owner and the number of the message by which it came into this state, changed by one store.
enum chunk_state {
    CHUNK_ABSENT = 0, // no memory behind it
    CHUNK_FREE,       // resident, in nobody's hands
    CHUNK_LENT,       // a client fills it. number: the borrow message
    CHUNK_HANDED,     // handed over, not yet on its way. number: the hand-over message
    CHUNK_FLYING,     // being written by the engine. number: the hand-over message
    CHUNK_TAKEN,      // its client's as when it was lent, but its bytes are in the file (hands.h). number: as in FLYING
};

#define CHUNK_NUMBER_MASK ((1ull << 48) - 1) // what a chunk's word holds of a number
static inline uint64_t chunk_word(enum chunk_state s, unsigned client, uint64_t number) {
    return (uint64_t)s | (uint64_t)(client & 0xfff) << 4 | number << 16;
}
static inline enum chunk_state chunk_word_state(uint64_t w) {
    return (enum chunk_state)(w & 0xf);
}
static inline unsigned chunk_word_client(uint64_t w) {
    return (unsigned)(w >> 4) & 0xfff;
}
/** The low 48 bits of the number. */
static inline uint64_t chunk_word_number(uint64_t w) {
    return w >> 16;
}

// A slot of the names table: hash of (directory's device and inode, name), state, file slot; 0 is empty.
// ABSENT: it is going to be deleted, or to be renamed away. NO_DIR: so is the directory; hashed with an empty name.
// Hashed with an empty name is also the inode of a file. OPEN, PENDING: it is going to get its first name; ABSENT: to
// lose it.
// NOT_DIR: never in the table; the answer for a path that leads through a file.
enum name_state { NAME_NONE = 0, NAME_OPEN, NAME_PENDING, NAME_FOLLOWED, NAME_ABSENT, NAME_NO_DIR, NAME_NOT_DIR };

#define NAME_HASH_MASK 0xffffffffff000000ull // 40 bits of hash, 8 of state, 16 of file slot
static inline uint64_t name_hash(uint64_t dev, uint64_t ino, const char *name, size_t len) {
    uint64_t h = fnv1a(FNV1A_INIT, &dev, sizeof dev);
    h = fnv1a(h, &ino, sizeof ino);
    h = fnv1a(h, name, len);
    h &= NAME_HASH_MASK;
    return h ? h : 1ull << 24; // never 0, so that a slot in use is never 0
}
static inline uint64_t name_word(uint64_t hash, enum name_state s, unsigned file) {
    return (hash & NAME_HASH_MASK) | (uint64_t)s << 16 | (file & 0xffff);
}
static inline enum name_state name_word_state(uint64_t w) {
    return (enum name_state)((w >> 16) & 0xff);
}
/** Open or pending: its directory does not show the name yet, and of an inode the kernel says that it has none. */
static inline bool name_word_hidden(uint64_t w) {
    return w && (name_word_state(w) == NAME_OPEN || name_word_state(w) == NAME_PENDING);
}
static inline unsigned name_word_file(uint64_t w) {
    return (unsigned)(w & 0xffff);
}

/** What clients see of a file: read at every write, so that errors and reserved space need no message. */
struct file_public {
    _Atomic uint64_t id;       // the file's id (number of its open entry); 0: slot free. Written last when taken.
    _Atomic uint64_t reserved; // bytes up to which space is reserved: a staged write may go this far
    _Atomic int32_t error;     // negative errno once the file has failed, else 0; never cleared while the slot is taken
    _Atomic uint32_t links;    // the kernel's count of its links is right: it has got its name while it is open, or
                               // another process has deleted that
    _Atomic uint32_t looked;   // another process has it open: from the owner's next write on, all goes to the kernel
    _Atomic uint32_t striped; // chunks of it that are on a stripe and nowhere else
};

/** What a client sees of itself. */
struct client_public {
    _Atomic uint64_t token;    // as given by hello; 0: slot free
    _Atomic uint32_t failures; // files of this client that failed after their close; ask MSG_FAILURES for the text
    _Atomic uint32_t pending;  // files of this client closed and not yet published: close waits beyond a bound
    _Atomic uint64_t refs_done; // references of it with a turn below this are in their files, or nobody wants them
};

struct tables {
    uint64_t magic;
    _Atomic uint32_t
        names_count; // names that are open, pending or absent, and followed ones until they are synced. Rises before
                     // a slot is filled, falls after it is emptied: 0 means that every name is native. One more while
                     // a device is broken
    _Atomic uint32_t ways_gone;          // directories and symlinks that are going to be deleted: paths lead elsewhere
    _Atomic uint32_t generation;         // rises with each new engine of the pair: for status and tests
    _Atomic uint64_t names[NAMES_SLOTS]; // open addressing, linear probing; emptied slots hold NAME_GONE
    _Atomic uint64_t chunks[CHUNKS_MAX];
    struct file_public files[FILES_MAX];
    struct client_public clients[CLIENTS_MAX];
};

#define NAME_GONE 0xffull // a tombstone: probing goes on, it matches nothing

/** Looks up `hash`. Returns the slot's word, or 0. Safe beside the engine's stores: a word is read once. */
static inline uint64_t names_find(const struct tables *t, uint64_t hash) {
    for (size_t i = 0; i < NAMES_SLOTS; i++) {
        uint64_t w = atomic_load_explicit(&t->names[((hash >> 24) + i) & (NAMES_SLOTS - 1)], memory_order_acquire);
        if (w == 0) {
            return 0;
        }
        if (w != NAME_GONE && (w & NAME_HASH_MASK) == (hash & NAME_HASH_MASK)) {
            return w;
        }
    }
    return 0;
}

#endif
