// SPDX-License-Identifier: MIT
//
// writer_source: who has what is handed over and is not the writer's yet. Asked by the writer alone.

#include "writer.h"

#include <assert.h>

void writer_add_source(struct writer *w, struct writer_source s) {
    assert(w->n_sources < WRITER_SOURCES);
    w->source[w->n_sources++] = s;
}

bool writer_awaits(const struct writer *w, unsigned slot, uint64_t number) {
    for (unsigned i = 0; i < w->n_sources; i++) {
        if (w->source[i].held(w->source[i].arg, slot, number)) {
            return true;
        }
    }
    return false;
}

bool writer_elsewhere(const struct writer *w, unsigned chunk) {
    for (unsigned i = 0; i < w->n_sources; i++) {
        if (w->source[i].has(w->source[i].arg, chunk)) {
            return true;
        }
    }
    return false;
}

void writer_discard_sources(struct writer *w, unsigned slot) {
    for (unsigned i = 0; i < w->n_sources; i++) {
        w->source[i].discard(w->source[i].arg, slot);
    }
}
