// SPDX-License-Identifier: MIT
//
// config: the FASTCKPT_* environment variables: one table that parses them, prints --help and documents them. No
// variable is read anywhere else. No malloc: values are copied into the struct.

#ifndef FASTCKPT_CONFIG_H
#define FASTCKPT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONFIG_PATHS_MAX 16384 // bytes of FASTCKPT_PATHS, terminator included
#define CONFIG_DIR_MAX   4096
#define CONFIG_STRIPES_MAX 8192 // bytes of FASTCKPT_STRIPES, terminator included
#define STRIPES_MAX      16   // directories in it

enum config_fsync { FSYNC_WAIT, FSYNC_DEFER };
enum config_exit { EXIT_WAIT, EXIT_LEAVE };
enum config_io { IO_AUTO, IO_URING, IO_THREADS };
enum config_direct { DIRECT_AUTO, DIRECT_OFF };
enum config_crc { CRC_AUTO, CRC_OFF };
enum config_cuda { CUDA_AUTO, CUDA_BOUNCE, CUDA_OFF, CUDA_DEFER };

struct config {
    char paths[CONFIG_PATHS_MAX]; // colon-separated patterns; empty: nothing is captured
    uint64_t staging;             // bytes; 0: a quarter of available memory
    int fsync;                    // enum config_fsync
    int exit;                     // enum config_exit
    int io;                       // enum config_io
    int direct;                   // enum config_direct
    int copy_threads;             // 1 to 8; 0: auto
    int crc;                      // enum config_crc
    int cuda;                     // enum config_cuda
    uint64_t cuda_scratch;        // bytes
    int log;                      // enum log_level
    int report;                   // 0 or 1
    uint64_t retry;               // seconds; 0: no retry
    char stripes[CONFIG_STRIPES_MAX]; // colon-separated absolute paths; empty: none
    uint64_t drain_rate;          // bytes a second; 0: no limit
    int async_shared;             // 0 or 1
    int disable;                  // 0 or 1
    char runtime_dir[CONFIG_DIR_MAX]; // empty: the default of runtime.h
    char engine[CONFIG_DIR_MAX];      // path of the fastckpt binary; empty: beside the library
};

/** One row of the table. */
struct config_var {
    const char *name;    // without the FASTCKPT_ prefix
    const char *values;  // "wait|defer", "size", "0|1", "directory", ...
    const char *def;     // printed default
    const char *help;    // one line
};

extern const struct config_var config_vars[];
extern const size_t config_vars_count;

/**
 * Fills `c` from `envp` (NULL: the process's environment). Returns 0, or -EINVAL with one clear line in `why` (not
 * terminated by a newline) that names the variable, the value and what is allowed; `c` is then the defaults with
 * `disable` set: the job runs natively. Sizes accept K, M, G, T (powers of 1024).
 */
int config_load(struct config *c, char *const envp[], char *why, size_t cap);

/** A size in bytes with K, M, G or T (powers of 1024). 0, -EINVAL or -ERANGE. */
int config_size(const char *s, uint64_t *ret);

/** Writes the table as text for --help to `fd`, one variable a paragraph. */
void config_help(int fd);

/** The next of the directories with ':' between them: *dir and *len, which *list passes over. False: there is none. */
bool config_next_dir(const char **list, const char **dir, size_t *len);

#endif
