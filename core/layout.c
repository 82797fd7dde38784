// SPDX-License-Identifier: MIT
//
// layout: see layout.h.

#include "layout.h"

#include "io.h"

static struct piece piece(const struct file_slot *f, uint64_t index, uint64_t from, uint64_t to, bool direct) {
    return (struct piece){.mem_off = from,
                          .file_off = index * CHUNK_SIZE + from,
                          .len = to - from,
                          // a direct description refuses unaligned edges: those go by the program's
                          .fd = direct == (f->direct != 0) ? f->fd_own : f->fd_prog,
                          .direct = direct,
                          .device = f->dev};
}

unsigned layout_pieces(const struct file_slot *f, const struct msg_hand_over *what, struct piece out[PIECES_MAX]) {
    unsigned n = 0;
    for (uint32_t i = 0; i < what->n; i++) {
        uint64_t from = what->extent[i].off, to = from + what->extent[i].len;
        uint64_t a = align_up(from, DIRECT_ALIGN), b = align_down(to, DIRECT_ALIGN);
        if (!f->direct || a >= b) {
            out[n++] = piece(f, what->index, from, to, false);
            continue;
        }
        if (from < a) {
            out[n++] = piece(f, what->index, from, a, false);
        }
        out[n++] = piece(f, what->index, a, b, true);
        if (b < to) {
            out[n++] = piece(f, what->index, b, to, false);
        }
    }
    return n;
}
