// SPDX-License-Identifier: MIT
//
// tool_status: `status` and `status --watch`: what engines say of themselves, for people and for programs.

#include "tool_inside.h"

#include "log.h"
#include "os.h"
#include "tool_text.h"

#include <errno.h>
#include <stdio.h>
#include <sys/sysmacros.h>

#define WATCH_MS  1000
#define SAMPLE_MS 500

/** What an engine says, and of each of its devices. */
struct told {
    struct status s;
    struct status_device devices[STATUS_DEVICES];
};

static int ask(const struct link *l, struct told *t) {
    *t = (struct told){0};
    for (unsigned i = 0; i == 0 || i < t->s.n_devices; i++) {
        struct msg m = {.type = MSG_STATUS, .slot = i};
        int r = tool_ask(l, &m, NULL, NULL);
        if (r < 0) {
            return r;
        }
        if (i == 0) {
            t->s = m.u.status;
            t->s.n_devices = t->s.n_devices < STATUS_DEVICES ? t->s.n_devices : STATUS_DEVICES;
        }
        t->devices[i] = m.u.status.device;
    }
    return 0;
}

static void json_devices(const struct told *t) {
    printf("\"devices\": [");
    for (unsigned i = 0; i < t->s.n_devices; i++) {
        const struct status_device *d = &t->devices[i];
        printf("%s{\"device\": \"%u:%u\", \"stripe\": %u, \"written_bytes\": %lu, ", i ? ", " : "", major(d->dev),
               minor(d->dev), d->stripe, (unsigned long)d->written);
        printf("\"failed\": %s, \"where\": ", d->unused ? "true" : "false");
        text_json(d->where);
        printf("}");
    }
    printf("]");
}

static void print_json(const struct told *t) {
    const struct status *s = &t->s;
    printf("{\"keeper_pid\": %d, \"engine_pid\": %d, \"clients\": %u, \"pending_files\": %u, \"pending_bytes\": %lu, "
           "\"staging_bytes\": %lu, \"staging_used\": %lu, \"published_files\": %lu, \"failures\": %u, "
           "\"restarts\": %u, \"written_bytes\": %lu, \"retrying\": %u, \"broken\": %u, \"backend\": \"%s\", "
           "\"safe_files\": %u, \"behind_bytes\": %lu, \"striped_bytes\": %lu, ",
           s->keeper_pid, s->engine_pid, s->clients, s->pending_files, (unsigned long)s->pending_bytes,
           (unsigned long)s->staging_bytes, (unsigned long)s->staging_used, (unsigned long)s->published_files,
           s->failures, s->restarts, (unsigned long)s->written_bytes, s->retrying, s->broken, s->backend,
           s->safe_files, (unsigned long)s->behind_bytes, (unsigned long)s->striped_bytes);
    json_devices(t);
    printf("}\n");
}

// ---- Rates

/** What one engine had written when it was last asked. */
struct sample {
    uint64_t key;
    int64_t at_ns;
    struct told told;
};

struct rates {
    bool known;
    double all;         // bytes a second into files
    double left;        // seconds; negative: not known
    double device[STATUS_DEVICES];
};

static double per_second(uint64_t before, uint64_t now, double seconds) {
    return now < before ? 0 : (double)(now - before) / seconds;
}

static struct rates rates_between(const struct sample *x, const struct told *told, int64_t now_ns) {
    const struct status *now = &told->s, *before = &x->told.s;
    double seconds = (double)(now_ns - x->at_ns) / 1e9;
    struct rates r = {.left = now->behind_bytes ? -1 : 0};
    if (x->at_ns == 0 || now_ns <= x->at_ns || now->written_bytes < before->written_bytes) {
        return r; // the first time, or another engine has taken its place
    }
    r.known = true;
    r.all = per_second(before->written_bytes, now->written_bytes, seconds);
    r.left = r.all > 0 ? (double)now->behind_bytes / r.all : r.left;
    for (unsigned i = 0; i < now->n_devices; i++) {
        for (unsigned k = 0; k < before->n_devices; k++) {
            const struct status_device *d = &told->devices[i], *was = &x->told.devices[k];
            bool same = was->dev == d->dev && was->stripe == d->stripe;
            r.device[i] = same ? per_second(was->written, d->written, seconds) : r.device[i];
        }
    }
    return r;
}

/** Compares with the last time, and remembers this one. */
static struct rates sample(struct sample *all, unsigned *n, uint64_t key, const struct told *t) {
    struct sample *x = all;
    while (x < all + *n && x->key != key) {
        x++;
    }
    if (x == all + *n) {
        if (*n == ENGINES_MAX) {
            return (struct rates){.left = -1};
        }
        *x = (struct sample){.key = key};
        ++*n;
    }
    int64_t now = os_now_ns(CLOCK_MONOTONIC);
    struct rates r = rates_between(x, t, now);
    x->at_ns = now;
    x->told = *t;
    return r;
}

// ---- status

static bool has_stripes(const struct told *t) {
    return t->s.n_devices > 0 && t->devices[0].stripe;
}

static void print_devices(const struct told *t, const struct rates *r) {
    for (unsigned i = 0; i < t->s.n_devices; i++) {
        const struct status_device *d = &t->devices[i];
        char line[80], name[32];
        snprintf(name, sizeof name, d->stripe ? "stripe %u" : "target", d->stripe);
        printf("  %-10s ", name);
        d->stripe ? printf("%s, ", text_line(d->where, line, sizeof line))
                  : printf("device %u:%u, ", major(d->dev), minor(d->dev));
        printf("%.1f MiB written", (double)d->written / MIB);
        r->known ? printf(", %.1f MiB/s", r->device[i] / MIB) : 0;
        printf("%s\n", d->unused ? ", has failed: takes no more" : "");
    }
}

static void print_text(const struct told *t, const struct rates *r) {
    const struct status *s = &t->s;
    bool stripes = has_stripes(t);
    printf("engine %d (keeper %d, %s%s)\n", s->engine_pid, s->keeper_pid, s->backend,
           s->restarts ? ", was restarted" : "");
    printf("  clients    %u\n", s->clients);
    printf("  pending    %u files, %.1f MiB\n", s->pending_files, (double)s->pending_bytes / MIB);
    if (stripes) {
        printf("  safe       %u of them, on the stripes\n", s->safe_files);
    }
    if (s->behind_bytes) {
        printf("  behind     %.1f MiB", (double)s->behind_bytes / MIB);
        stripes ? printf(", %.1f MiB of it on the stripes only", (double)s->striped_bytes / MIB) : 0;
        r->known ? printf(", %.1f MiB/s", r->all / MIB) : 0;
        r->left > 0 ? printf(", %.1f s left", r->left) : 0;
        printf("\n");
    }
    printf("  published  %lu files, %.1f MiB written\n", (unsigned long)s->published_files,
           (double)s->written_bytes / MIB);
    print_devices(t, r);
    printf("  staging    %.0f of %.0f MiB in use\n", (double)s->staging_used / MIB, (double)s->staging_bytes / MIB);
    printf("  failures   %u\n", s->failures);
    if (s->retrying) {
        printf("  retrying   %u files, for %u s: %s: %s\n", s->retrying, s->retry_seconds, s->retry,
               log_errno(-s->retry_error));
    }
    if (s->broken) {
        printf("  broken     %s%s\n", s->broken_text, s->broken > 1 ? "; and others" : "");
    }
    if (s->note[0]) {
        printf("  note       %s\n", s->note);
    }
}

static unsigned print_failures(const struct link *l) {
    unsigned n = 0;
    for (;;) {
        struct msg m = {.type = MSG_FAILURES};
        if (tool_ask(l, &m, NULL, NULL) < 0) {
            return n;
        }
        printf("  failed     %s\n", m.u.text);
        n++;
    }
}

/** One engine's block. For people, and with something on its way, it is asked twice: so there is a rate. */
static bool show(const struct link *l, bool json, unsigned *failed) {
    struct sample first = {0};
    struct told told;
    if (ask(l, &told) < 0) {
        return false;
    }
    if (!json && told.s.behind_bytes) {
        first = (struct sample){.at_ns = os_now_ns(CLOCK_MONOTONIC), .told = told};
        os_sleep_ms(SAMPLE_MS);
        if (ask(l, &told) < 0) {
            return false;
        }
    }
    *failed += told.s.failures;
    if (json) {
        print_json(&told);
    } else {
        struct rates r = rates_between(&first, &told, os_now_ns(CLOCK_MONOTONIC));
        print_text(&told, &r);
        print_failures(l);
    }
    return true;
}

int tool_status(const struct config *c, bool json) {
    uint64_t keys[ENGINES_MAX];
    int dir = -1, shown = 0, silent = 0;
    unsigned failed = 0, n = tool_find_engines(c, &dir, keys);
    for (unsigned i = 0; i < n; i++) {
        struct link l = {0};
        int r = tool_link_open(&l, dir, keys[i]);
        silent += tool_tell_silent(keys[i], r);
        if (r == 0) {
            shown += show(&l, json, &failed);
            tool_link_close(&l);
        }
    }
    if (!shown && json) {
        print_json(&(struct told){0});
    } else if (!shown && !silent) {
        printf("no engine is running\n");
    }
    return failed > 0 || silent > 0;
}

// ---- status --watch

static void print_rate(const struct told *t, const struct rates *r, bool json) {
    const struct status *s = &t->s;
    if (json) {
        printf("{\"engine_pid\": %d, \"pending_files\": %u, \"pending_bytes\": %lu, \"failures\": %u, "
               "\"safe_files\": %u, \"behind_bytes\": %lu",
               s->engine_pid, s->pending_files, (unsigned long)s->pending_bytes, s->failures, s->safe_files,
               (unsigned long)s->behind_bytes);
        r->known ? printf(", \"bytes_per_second\": %.0f", r->all) : printf(", \"bytes_per_second\": null");
        r->left < 0 ? printf(", \"seconds_left\": null, ") : printf(", \"seconds_left\": %.1f, ", r->left);
        json_devices(t);
        printf("}\n");
        return;
    }
    printf("engine %d: %u files pending", s->engine_pid, s->pending_files);
    has_stripes(t) ? printf(", %u of them safe", s->safe_files) : 0;
    printf(", %.1f MiB to go", (double)s->behind_bytes / MIB);
    r->known ? printf(", %.1f MiB/s", r->all / MIB) : 0;
    for (unsigned i = 0; i < s->n_devices && r->known; i++) {
        t->devices[i].stripe ? printf(", stripe %u %.1f", t->devices[i].stripe, r->device[i] / MIB) : 0;
    }
    r->left > 0 ? printf(", %.1f s left", r->left) : 0;
    s->failures ? printf(", %u have failed", s->failures) : 0;
    printf("\n");
}

int tool_watch(const struct config *c, bool json) {
    static struct sample samples[ENGINES_MAX];
    unsigned sampled = 0;
    signal(SIGINT, tool_on_interrupt);
    while (!tool_interrupts) {
        uint64_t keys[ENGINES_MAX];
        int dir = -1, shown = 0;
        unsigned n = tool_find_engines(c, &dir, keys);
        for (unsigned i = 0; i < n; i++) {
            struct link l = {0};
            struct told told;
            if (tool_link_open(&l, dir, keys[i]) < 0) {
                continue;
            }
            if (ask(&l, &told) == 0) {
                const struct rates r = sample(samples, &sampled, keys[i], &told);
                print_rate(&told, &r, json);
                shown++;
            }
            tool_link_close(&l);
        }
        if (!shown && json) {
            print_rate(&(struct told){0}, &(struct rates){.left = -1}, true);
        } else if (!shown) {
            printf("no engine is running\n");
        }
        if (dir >= 0) {
            os_close(dir);
        }
        fflush(stdout);
        os_sleep_ms(WATCH_MS);
    }
    return 0;
}
