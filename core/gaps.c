// SPDX-License-Identifier: MIT
//
// gaps: see gaps.h.

#include "gaps.h"

#include "util.h"

#include <errno.h>
#include <stdlib.h>

int gaps_start(struct gaps *g, uint64_t most) {
    *g = (struct gaps){.said = calloc(most + 1, sizeof *g->said)};
    return g->said ? 0 : -ENOMEM;
}

void gaps_add(struct gaps *g, uint64_t from, uint64_t to) {
    g->said[g->n++] = (struct gap){from, to};
}

static int by_start(const void *a, const void *b) {
    uint64_t x = ((const struct gap *)a)->from, y = ((const struct gap *)b)->from;
    return x < y ? -1 : x > y;
}

bool gaps_next(struct gaps *g, uint64_t size, struct gap *gap) {
    if (g->next == 0 && g->n > 0) {
        qsort(g->said, g->n, sizeof *g->said, by_start);
    }
    while (g->next <= g->n) {
        const struct gap *r = &g->said[g->next++];
        bool last = r == g->said + g->n; // behind the last one the file goes on to its end
        *gap = (struct gap){g->at, last ? size : min_u64(r->from, size)};
        g->at = last ? size : max_u64(g->at, r->to);
        if (gap->from < gap->to) {
            return true;
        }
    }
    return false;
}

void gaps_free(struct gaps *g) {
    free(g->said);
    *g = (struct gaps){0};
}
