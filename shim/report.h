// SPDX-License-Identifier: MIT
//
// report: the line of FASTCKPT_REPORT=1 at the end of a process, and a way to stderr for it: coreutils and others close
// theirs before our destructor runs.

#ifndef FASTCKPT_REPORT_H
#define FASTCKPT_REPORT_H

#include "../core/protocol.h"

/** Prints it, if asked for. A forked child without files says nothing. */
void report_print(const struct msg_leave *leave);

/** Keeps a duplicate of stderr. Called at a capture; the first one does it. */
void report_keep_stderr(void);

/** At the end of a process: lines go to the duplicate if stderr has been closed. */
void report_restore_stderr(void);

/** Fork handler of the child: its sums begin anew. */
void report_after_fork(void);

#endif
