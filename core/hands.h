// SPDX-License-Identifier: MIT
//
// hands: the bytes of an open file that its client has put into a chunk and not handed over yet. Another process that
// opens the file is to see them, and what it writes there is to stay. So the engine takes them: it reads the client's
// labels (labels.h) and gives the writer what they say, as if it had been handed over; the chunk stays the client's,
// who may be filling it on. A hand-over of it counts no more: what its label did not say then, the client writes by the
// kernel, since behind the copy it sees that the file is looked at.
//
//   lent ──(taken)──▶ handed ──▶ flying ──▶ taken ──(handed over, given back, or its client is gone)──▶ free
//
// No client can make more of its labels than bytes of its own open files in chunks of its own.

#ifndef FASTCKPT_HANDS_H
#define FASTCKPT_HANDS_H

#include "writer.h"

/** Takes what the client of this open file holds of it. file_public.looked is set, and what was handed over is in the
 *  file. Returns how many chunks the writer has got; 0: all of the file is there, or an error (-ENOMEM). */
int hands_take(struct pair *p, struct writer *w, unsigned slot);
/** The end of the last of these bytes; 0: there are none. */
uint64_t hands_end(const struct pair *p, unsigned slot);

#endif
