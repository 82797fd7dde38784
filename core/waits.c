// SPDX-License-Identifier: MIT
//
// waits: the entries that wait for others: until what was closed before is durable, or safe; the end of a process.

#include "engine.h"

#include <errno.h>

struct dir_id {
    uint64_t dev, ino;
};

static bool in_dir(const struct file_slot *f, const void *arg) {
    const struct dir_id *d = arg;
    bool to = f->kind == SLOT_RENAME && f->to_ino == d->ino && f->to_dev == d->dev;
    return to || (f->dir_ino == d->ino && f->dir_dev == d->dev && !(f->flags & OPEN_FOLLOWED));
}

struct unsafe_in {
    bool (*match)(const struct file_slot *f, const void *arg); // NULL: all
    const void *arg;
};

static bool is_unsafe_in(const struct file_slot *f, const void *arg) {
    const struct unsafe_in *u = arg;
    return !safe_is(f) && (!u->match || u->match(f, u->arg));
}

/** Files still to become safe, of those that `match` accepts. */
static unsigned unsafe_before(struct engine *e, const struct entry *en,
                              bool (*match)(const struct file_slot *, const void *), const void *arg) {
    const struct unsafe_in u = {match, arg};
    safe_hurry(&e->safe, en->msg.number);
    return commit_before(&e->commit, en->msg.number, is_unsafe_in, &u);
}

static bool is_stuck(const struct file_slot *f, const void *arg) {
    (void)arg;
    return f->retry_ns != 0;
}

static bool of_client(const struct file_slot *f, const void *arg) {
    return f->client == *(const unsigned *)arg;
}

static bool of_root(const struct file_slot *f, const void *arg) {
    return f->root == *(const unsigned *)arg;
}

static bool to_publish(const struct file_slot *f, const struct dir_id *d) {
    bool named = f->flags & OPEN_FOLLOWED || f->linked || f->dropped || f->unnamed || f->error;
    return f->state == FILE_OPEN && !named && in_dir(f, d);
}

/** What is captured and open in this directory, whoever's, gets its name now: it may not later. False: not yet, since
 *  not all of it is in its file. */
static bool publish_open(struct engine *e, struct entry *en, const struct dir_id *d) {
    bool all = true;
    for (unsigned i = 0; i < e->files_high; i++) {
        const struct file_slot *f = &e->p.st->files[i];
        all &= !to_publish(f, d) || f->client == en->client || views_look(e, i);
    }
    for (unsigned i = 0; all && i < e->files_high; i++) {
        struct file_slot *f = &e->p.st->files[i];
        if (to_publish(f, d)) {
            f->shared |= f->client != en->client;
            f->close_flags |= CLOSE_SPAWNED;
            commit_publish(&e->commit, i, en->msg.number);
        }
    }
    en->begun = all;
    e->progress |= all; // as in do_sync
    return all;
}

unsigned waits_own(const struct engine *e, const struct entry *en) {
    unsigned client = en->client;
    return commit_before(&e->commit, en->msg.number, of_client, &client);
}

enum verdict waits_for(struct engine *e, struct entry *en) {
    unsigned left;
    const struct dir_id d = {en->msg.u.wait.dev, en->msg.u.wait.ino};
    switch (en->msg.scope) {
    case WAIT_DIR:
    case WAIT_DIR_SAFE:
        if (en->msg.value && !en->begun && !publish_open(e, en, &d)) {
            return WAIT;
        }
        left = en->msg.scope == WAIT_DIR
                   ? commit_before(&e->commit, en->msg.number + (en->msg.value != 0), in_dir, &d)
                   : unsafe_before(e, en, in_dir, &d);
        break;
    case WAIT_ALL_SAFE:
        left = unsafe_before(e, en, NULL, NULL);
        break;
    case WAIT_CLIENT:
        left = waits_own(e, en);
        left = left > en->msg.value ? left : 0;
        break;
    case WAIT_SPACE:
        left = commit_before(&e->commit, en->msg.number, NULL, NULL) + files_leaving(e);
        left = commit_before(&e->commit, en->msg.number, is_stuck, NULL) ? 0 : left; // it is what lacks space, too
        break;
    default:
        left = commit_before(&e->commit, en->msg.number, NULL, NULL);
        break;
    }
    if (left > 0) {
        return WAIT;
    }
    // Behind a failure nothing that deletes or replaces is executed (P6).
    bool change = en->msg.scope == WAIT_CHANGE, all = en->msg.scope == WAIT_ALL || change;
    bool behind = all && !e->p.st->clients[en->client].tool && state_behind_failure(e->p.st, en->msg.number);
    behind |= change && state_broken(e->p.st);
    return entries_say(e, en, behind ? -EIO : 0);
}

enum verdict waits_leave(struct engine *e, struct entry *en) {
    struct client_slot *cl = &e->p.st->clients[en->client];
    cl->leaving = 1;
    unsigned client = en->client, left = 0;
    if (!en->begun) {
        en->begun = 1;
        clients_adopt(e, client, en->msg.number);
    }
    if (en->msg.u.leave.wait && cl->root == client) {
        bool all = cl->pid == 1 || clients_count(e) <= 1; // with PID 1 its namespace ends, and the engine in it
        left = commit_before(&e->commit, en->msg.number, all ? NULL : of_root, &client);
    }
    if (left > 0) {
        return WAIT;
    }
    en->msg.u.leave.failures = cl->failures;
    bool saved = cl->first_close_ns > 0 && cl->last_publish_ns > cl->first_close_ns;
    en->msg.u.leave.durable_ns = saved ? (uint64_t)(cl->last_publish_ns - cl->first_close_ns) : 0;
    bool safe = saved && e->safe.on && cl->last_safe_ns > cl->first_close_ns;
    en->msg.u.leave.safe_ns = safe ? (uint64_t)(cl->last_safe_ns - cl->first_close_ns) : 0;
    return entries_say(e, en, 0);
}
