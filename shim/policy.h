// SPDX-License-Identifier: MIT
//
// policy: does a name that a program uses match FASTCKPT_PATHS (design 4: the absolute path as given, and again with
// its directory resolved)? And the place behind a name: its directory and last component, symlinks followed. Holds no
// state.

#ifndef FASTCKPT_POLICY_H
#define FASTCKPT_POLICY_H

#include "../core/tables.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <time.h>

/** Makes `path` (relative to `dirfd`, which may be AT_FDCWD) absolute and normal, by text. Its length, or an error. */
int policy_text(int dirfd, const char *path, char *buf, size_t cap);

/** Does the path as given match `patterns`? No system call for an absolute path. */
bool policy_match(const char *patterns, int dirfd, const char *path);

/** Does `name` in the directory open as `dir` match, by the directory's own path? */
bool policy_match_in(const char *patterns, int dir, const char *name);

/** Where a name lives. `dir` is an O_PATH descriptor, closed by place_close. */
struct place {
    int dir;
    bool linked; // the path ended in a symlink, which was followed
    dev_t dev;   // of the directory
    ino_t ino;
    mode_t mode; // of the directory
    char name[NAME_CAP];
};

/** Is what stands at this place no symlink any more, whatever the kernel says? */
typedef bool place_stop(const struct place *p);

/**
 * Finds the directory and last component of `path`; with `follow`, of what a symlink there points to (which need not
 * exist), up to where `stop` (or NULL) says so. 0, or an error: then there is no such directory, or no last component
 * ("a/", ".", "/"), or it leads through /proc: the call is native.
 */
int place_find(struct place *p, int dirfd, const char *path, bool follow, place_stop *stop);
void place_close(struct place *p);
/** Is it in /proc, whose links are no text? */
bool place_in_proc(const struct place *p);

#endif
