// SPDX-License-Identifier: MIT
//
// listing: what the engine knows of a directory's names (MSG_LIST), as readdir's hooks want it, and the directory
// streams that are helped by it. Hooks no symbol, asks nobody, allocates by mmap.
//
// A helped stream first gives the kernel's entries, without the names that the listing knows, then the listing's own.
// So a name that is published between the two is given once.

#ifndef FASTCKPT_LISTING_H
#define FASTCKPT_LISTING_H

#include "../core/protocol.h"

#include <dirent.h>
#include <sys/types.h>

struct listing; // of one directory, not changed once it is made

/** Reads the engine's memfd of struct list_records. NULL: no memory, or it is not such a memfd. */
struct listing *listing_read(int fd);
void listing_free(struct listing *l); // NULL is ignored
/** Does it know the name, in any state? Then it speaks for it, and the kernel's entry is not given. */
bool listing_knows(const struct listing *l, const char *name);
/** Entries to be given. */
uint64_t listing_count(const struct listing *l);
/** Entry `i` < listing_count, as readdir returns one: d_off is the position behind it. */
struct dirent *listing_entry(const struct listing *l, uint64_t i);

/** Positions among a listing's entries, for telldir and seekdir; no file system gives such ones: they are negative. */
static inline off_t listing_position(uint64_t i) {
    return (off_t)(INT64_MIN / 2 + (int64_t)i);
}
static inline bool listing_is_position(off_t pos, uint64_t *ret_i) {
    *ret_i = (uint64_t)pos - (uint64_t)(INT64_MIN / 2);
    return *ret_i <= FILES_MAX;
}

#define STREAM_KERNEL (-1)

enum stream_state { STREAM_ASK, STREAM_ASKING, STREAM_ASKED };

/** A directory stream that was opened or rewound while some name was not the kernel's. */
struct stream {
    _Atomic(DIR *) dir;             // NULL: free. Stored last
    _Atomic int state;              // enum stream_state: the engine is asked at the first read
    _Atomic bool read_before;       // its descriptor was not at the beginning: only the kernel's rest is given
    _Atomic int64_t at;             // STREAM_KERNEL, or the listing's next entry
    _Atomic(struct listing *) list; // NULL: nothing to add
};

/** How many there are: readdir's first question. */
extern _Atomic uint32_t streams_count;

/** A place for `dir`. False: all are taken. */
bool stream_add(DIR *dir, bool read_before);
/** The one of `dir`, or NULL. It is its program's matter that `dir` is not closed meanwhile. */
struct stream *stream_find(const DIR *dir);
void stream_drop(struct stream *s);
/** The listing's next entry, once the kernel has no more; NULL at the end. Each is given to one thread. */
struct dirent *stream_next(struct stream *s, const struct listing *l);

#endif
