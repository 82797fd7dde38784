// SPDX-License-Identifier: MIT
//
// recover_change: a deletion or a renaming that a pair has left undone. Like the engine at its turn, it touches only
// the inode that was meant: what is under the name by now and is another one stays.

#include "recover_inside.h"

#include "io.h"
#include "log.h"
#include "os.h"
#include "sums.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/** Is `now` what record `i` speaks of? A directory's size and times change with what is in it. */
static bool is_meant(const struct group *g, unsigned i, const struct log_identity *now) {
    const struct pending *p = &g->pending[i];
    const struct log_identity *what = &p->change->what;
    if (!now->ino || !recover_is_inode(g, now, what)) {
        return false;
    }
    return p->change->kind == SLOT_RMDIR || recover_as_recorded(g, i, p->dir_ino, p->name, what, now);
}

/** Has an earlier record, not done yet (by a dry run), brought it there? */
static bool will_be(const struct group *g, unsigned i) {
    const struct pending *p = &g->pending[i];
    for (unsigned k = 0; k < i; k++) {
        if (!g->pending[k].ended && recover_leaves(g, k, p->dir_ino, p->name, &p->change->what)) {
            return true;
        }
    }
    return false;
}

/** What it has changed is durable; a deletion's `to_dir` is its `dir`. */
static int sync_both(int dir, int to_dir) {
    int r = to_dir == dir ? 0 : io_calls.sync_dir(to_dir);
    return r < 0 ? r : io_calls.sync_dir(dir);
}

static int carry_out(const struct pending *p, int dir, int to_dir, bool over) {
    int r;
    if (p->change->kind == SLOT_RENAME) {
        r = io_calls.renameat(dir, p->name, to_dir, p->to, over ? 0 : RENAME_NOREPLACE);
        r = r == -EINVAL && !over ? io_calls.renameat(dir, p->name, to_dir, p->to, 0) : r; // not on this file system
    } else {
        r = io_calls.unlinkat(dir, p->name, p->change->kind == SLOT_RMDIR ? AT_REMOVEDIR : 0);
        r = r == -ENOTEMPTY ? 0 : r; // another process has put something into it
    }
    return r < 0 ? r : sync_both(dir, to_dir);
}

/** What is known of its bytes stays known. */
static void note_moved(const struct group *g, const struct log_identity *was, int to_dir, const char *to) {
    struct log_identity is;
    stripelog_identity(to_dir, to, &is);
    sums_write_moved(g->fd_dir, was, &is.ctime);
}

struct verdict {
    const char *what, *why; // "deleted", "it has changed since"; why may be NULL
    int result;
};

static struct verdict one(struct group *g, unsigned i, bool behind, bool dry, int dir, int to_dir) {
    const struct pending *p = &g->pending[i];
    bool rename = p->change->kind == SLOT_RENAME;
    const char *undone = rename ? "not renamed" : "not deleted";
    struct log_identity now, over = {0};
    stripelog_identity(dir, p->name, &now);
    if (rename) {
        stripelog_identity(to_dir, p->to, &over);
    }
    bool there = is_meant(g, i, &now), later = dry && will_be(g, i);
    if (!there && (rename ? over.ino && recover_is_inode(g, &over, &p->change->what) : !now.ino && !later)) {
        int r = dry ? 0 : sync_both(dir, to_dir); // who did it may have died before that
        return r < 0 ? (struct verdict){undone, log_errno(-r), r}
                     : (struct verdict){rename ? "renamed already" : "deleted already", NULL, 0};
    }
    if (behind) {
        return (struct verdict){undone, "an earlier file could not be recovered", -ECANCELED};
    }
    bool overtaken = rename && !recover_as_recorded(g, i, p->to_ino, p->to, &p->change->over, &over);
    if (!there && !later) { // without what it renames, nothing behind it may count on the new name
        return (struct verdict){"left alone", now.ino ? "it has changed since" : "it is gone",
                                rename && !overtaken ? -ENOENT : 0};
    }
    if (overtaken) {
        return (struct verdict){"left alone", "what it would replace has changed since", -EEXIST};
    }
    if (dry) {
        return (struct verdict){rename ? "to be renamed" : "to be deleted", NULL, 0};
    }
    int r = carry_out(p, dir, to_dir, over.ino != 0);
    if (r == 0 && rename) {
        note_moved(g, &now, to_dir, p->to);
    }
    return r < 0    ? (struct verdict){undone, log_errno(-r), r}
           : rename ? (struct verdict){"renamed", NULL, 0}
                    : (struct verdict){"deleted", NULL, 0};
}

int recover_change(struct group *g, unsigned i, bool behind, bool dry, char *line, size_t cap) {
    const struct pending *p = &g->pending[i];
    bool rename = p->change->kind == SLOT_RENAME;
    int dir = recover_dir(p->dir, p->dir_ino), to_dir = rename && dir >= 0 ? recover_dir(p->to_dir, p->to_ino) : dir;
    struct verdict v;
    if (dir >= 0 && to_dir >= 0) {
        v = one(g, i, behind, dry, dir, to_dir);
    } else if (dir == -ENOENT || dir == -ESTALE || dir == -ENOTDIR) {
        v = (struct verdict){"left alone", "its directory is gone", rename ? -ENOENT : 0};
    } else {
        int r = dir < 0 ? dir : to_dir;
        v = (struct verdict){rename ? "not renamed" : "not deleted", log_errno(-r), r};
    }
    snprintf(line, cap, "%s: %s/%s%s%s%s%s%s%s", v.what, p->dir, p->name, rename ? " to " : "", rename ? p->to_dir : "",
             rename ? "/" : "", rename ? p->to : "", v.why ? ": " : "", v.why ? v.why : "");
    if (rename && to_dir >= 0) {
        os_close(to_dir);
    }
    if (dir >= 0) {
        os_close(dir);
    }
    return v.result;
}
