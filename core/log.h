// SPDX-License-Identifier: MIT
//
// log: one line to the user or to the engine's log file, made without malloc or stdio and sent by one write(2), so that
// it is safe inside a hook, a signal handler and a forked child. Knows nothing of what it reports.

#ifndef FASTCKPT_LOG_H
#define FASTCKPT_LOG_H

#include <stdarg.h>
#include <stddef.h>

enum log_level { LOG_ERROR = 0, LOG_INFO = 1, LOG_DEBUG = 2 };

/** Lines above `level` are dropped. `fd` receives the lines (2 at start); `prefix` (static storage) begins each. */
void log_setup(enum log_level level, int fd, const char *prefix);
enum log_level log_level(void);
int log_fd(void);

/** Formats one line ("prefix: text\n") and writes it; errno is kept. The format knows %s %d %i %u %x %c %% with the
 *  length modifiers l, ll, z; nothing else. Lines are cut at 1,000 bytes. */
void log_line(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** snprintf's contract for the same small set of conversions; always terminates. Also used for names and messages. */
int log_format(char *buf, size_t cap, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int log_vformat(char *buf, size_t cap, const char *fmt, va_list ap) __attribute__((format(printf, 3, 0)));

/** The text of an errno value (positive) without locale or allocation: "No space left on device". */
const char *log_errno(int err);

/** The path of the directory behind `fd` with a '/' behind it, for a line: its end if it is long, "" without /proc. */
void log_directory(int fd, char *buf, size_t cap);

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif
