// SPDX-License-Identifier: MIT
//
// path: text of paths only: normalising and matching. Makes no system call; looks at no file.

#ifndef FASTCKPT_PATH_H
#define FASTCKPT_PATH_H

#include <stdbool.h>
#include <stddef.h>

/**
 * Makes `path` absolute against `cwd` (itself absolute) and removes `//`, `.` and `..` by text (design 4: "as given").
 * Returns the length, or -ENAMETOOLONG if `cap` is too small.
 */
int path_normalise(const char *cwd, const char *path, char *buf, size_t cap);

/** Glob match over whole strings: `*` matches any bytes, `/` included; `?`, `[a-z]` and `[!a-z]` one byte but `/`;
 *  backslash quotes. Linear in practice (one point of backtracking), no recursion. */
bool path_glob(const char *pattern, size_t pattern_len, const char *text);

/**
 * Decides whether the absolute, normalised `path` is captured by the colon-separated `patterns` (design 4): a pattern
 * without `/` matches the last component; `!` in front excludes and wins; a relative pattern with `/` is matched at any
 * depth; what the built-in list excludes (logs, locks, ...) counts only if a pattern names it: the last component of
 * that pattern is itself matched by the built-in exclusion. A pattern that ends in `/` means everything below; a
 * backslash in front of `:` keeps it from ending the pattern.
 */
bool path_match(const char *patterns, const char *path);

/** Checks a pattern list: 0, or -EINVAL with one clear line in `why`. */
int path_check_patterns(const char *patterns, char *why, size_t cap);

/** The last component within `path` ("" when it ends in '/'). */
const char *path_base(const char *path);

#endif
