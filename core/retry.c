// SPDX-License-Identifier: MIT
//
// retry: see retry.h.

#include "retry.h"

#include "log.h"
#include "os.h"

#include <errno.h>
#include <string.h>

static int64_t limit_ns(const struct state *st) {
    return (int64_t)st->config.retry * 1000000000;
}

bool retry_heals(int error) {
    return error == -ENOSPC || error == -EDQUOT || error == -EIO;
}

bool retry_allowed(const struct state *st, const struct file_slot *f, int error) {
    if (!retry_heals(error) || limit_ns(st) == 0 || f->error || f->dropped) {
        return false;
    }
    return !f->retry_ns || (f->state == FILE_CLOSED && os_now_ns(CLOCK_MONOTONIC) < f->retry_ns + limit_ns(st));
}

bool retry_later(const struct state *st, struct file_slot *f, struct retry *r, int error) {
    int64_t now = os_now_ns(CLOCK_MONOTONIC);
    if (r->at_ns && !r->probe && retry_heals(error) && !f->error && !f->dropped) {
        return true; // was in flight beside the one that failed first
    }
    if (!retry_allowed(st, f, error)) {
        return false;
    }
    if (!f->retry_ns) {
        f->retry_ns = now;
        if (f->retried++ == 0) { // chunk after chunk may meet it
            log_error("retrying for %lu s: %s: %s", (unsigned long)st->config.retry, f->name, log_errno(-error));
        }
    }
    f->retry_error = error;
    r->step_ns = r->step_ns ? (r->step_ns * 2 < RETRY_MOST_NS ? r->step_ns * 2 : RETRY_MOST_NS) : RETRY_FIRST_NS;
    int64_t end = f->retry_ns + limit_ns(st); // once more at the very end
    r->at_ns = now + r->step_ns < end ? now + r->step_ns : end;
    return true;
}

void retry_done(struct file_slot *f, struct retry *r) {
    if (r->probe) {
        if (f->retried == 1 || retry_seconds(f) > 0) {
            log_info("%s: the retry has succeeded after %u s", f->name, retry_seconds(f));
        }
        f->retry_ns = 0;
        *r = (struct retry){0};
    }
}

unsigned retry_seconds(const struct file_slot *f) {
    return f->retry_ns ? (unsigned)((os_now_ns(CLOCK_MONOTONIC) - f->retry_ns) / 1000000000) : 0;
}

void retry_tell(const struct file_slot *f, struct status *s) {
    if (f->retry_ns && f->state == FILE_CLOSED && (s->retrying++ == 0 || retry_seconds(f) > s->retry_seconds)) {
        s->retry_seconds = retry_seconds(f);
        s->retry_error = f->retry_error;
        memcpy(s->retry, f->name, sizeof s->retry);
    }
}

bool retry_early(const struct retry *r, int64_t *wake_ns) {
    if (r->at_ns == 0 || os_now_ns(CLOCK_MONOTONIC) >= r->at_ns) {
        return false;
    }
    *wake_ns = *wake_ns == 0 || r->at_ns < *wake_ns ? r->at_ns : *wake_ns;
    return true;
}
