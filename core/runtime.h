// SPDX-License-Identifier: MIT
//
// runtime: where the pair of keeper and engine is found: the runtime directory, the key in the socket's name, the start
// on demand. Used by the shim and by the command. Holds no state but descriptors it returns.

#ifndef FASTCKPT_RUNTIME_H
#define FASTCKPT_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct config;

/**
 * Opens the runtime directory (`dir` if not empty; else /tmp/fastckpt-UID, else /dev/shm/fastckpt-UID), made with mode
 * 0700 if missing. It must be a directory of ours with no rights for others: else -EPERM and one clear line in `why`.
 * Returns a descriptor (O_PATH|O_CLOEXEC) that the caller owns; the path is put into `path`.
 */
int runtime_open(const char *dir, char *path, size_t path_cap, char *why, size_t why_cap);

/** The key: user, pid namespace, cgroup namespace and cgroup, its path cut behind Slurm's job_N/step_N (design 7). */
uint64_t runtime_key(void);
/** The part of runtime_key that cuts: rewrites the text of /proc/self/cgroup in place. For tests too. */
void runtime_cut_cgroup(char *text);

/** Names in the runtime directory: "engine-KEY.sock", ".lock", ".log". */
void runtime_name(uint64_t key, const char *suffix, char *buf, size_t cap);

/** Connects to the engine of `key`. A connected socket, close-on-exec, or an error (-ENOENT, -ECONNREFUSED: none).
 *  The peer must be of our uid: else -EPERM. */
int runtime_connect(int dirfd, uint64_t key);

/** Descriptors without which no pair is started: it has some 25 itself, two a process, and three a pending file. */
#define RUNTIME_FILES_MIN 128
/** Does this process's hard limit, which a pair would have, allow for as many? */
bool runtime_has_files(void);

/**
 * Connects, starting a pair if there is none: under an flock in the directory, `binary` (absolute path) is run as
 * `serve` in a process that the caller cannot reap by accident (no exit signal), and has bound its socket when it
 * exits. Only system calls; safe in a hook. The socket, or an error (-EMFILE: without runtime_has_files, too).
 */
int runtime_start(int dirfd, const char *dir_path, uint64_t key, const char *binary, char *const envp[]);

#endif
