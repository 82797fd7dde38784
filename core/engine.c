// SPDX-License-Identifier: MIT
//
// engine: the loop, the start on memory that an earlier engine may have left, and the crash handler. What entries do is
// in the files beside this one (see engine.h).

#include "engine.h"

#include "breakpoint.h"
#include "keeper.h"
#include "log.h"
#include "names.h"
#include "os.h"
#include "recover.h"
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

_Atomic uint64_t engine_serving;
static struct engine *the_engine; // one a process: for signal handlers and a line of a recovery

// ---- Signals

/** Writes the entry that this thread was serving into the state, then dies as it would have. */
static void on_crash(int sig) {
    uint64_t number = io_current_number();
    if (!number) {
        number = atomic_load(&engine_serving);
    }
    atomic_store(&the_engine->p.st->blame, number);
    signal(sig, SIG_DFL);
    raise(sig);
}

static void on_end(int sig) {
    (void)sig;
    the_engine->leave_soon = 1;
}

static void set_signals(void) {
    static const int crash[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    static const int end[] = {SIGTERM, SIGHUP, SIGINT};
    for (size_t i = 0; i < ARRAY_LEN(crash); i++) {
        sigaction(crash[i], &(struct sigaction){.sa_handler = on_crash, .sa_flags = (int)SA_RESETHAND}, NULL);
    }
    for (size_t i = 0; i < ARRAY_LEN(end); i++) {
        sigaction(end[i], &(struct sigaction){.sa_handler = on_end}, NULL);
    }
    signal(SIGPIPE, SIG_IGN);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

// ---- Callbacks of the modules below

static void writer_changed(void *arg, unsigned slot) {
    (void)slot;
    ((struct engine *)arg)->progress = true;
}

static void writer_freed(void *arg, unsigned chunk) {
    struct engine *e = arg;
    drain_freed(&e->drain, chunk);
    lend_give(&e->lend, chunk);
    e->progress = true;
}

static void writer_failed(void *arg, unsigned slot, int error, const char *what) {
    struct engine *e = arg;
    commit_fail_disk(&e->commit, slot, error, what);
    e->progress = true;
}

static void commit_finished(void *arg, unsigned slot) {
    files_done(arg, slot);
}

static void lend_changed(void *arg) {
    ((struct engine *)arg)->progress = true;
}

// ---- Start

static int start_modules(struct engine *e) {
    struct state *st = e->p.st;
    char why[160] = "";
    int r = io_open(&e->io, st->plain ? IO_THREADS : st->config.io, why, sizeof why);
    if (r < 0) {
        return r;
    }
    if (why[0]) {
        log_format(st->note, sizeof st->note, "%s", why);
        log_error("%s", why);
    }
    e->lend.arg = e->writer.arg = e->commit.arg = e;
    e->lend.on_change = lend_changed;
    e->writer.on_change = writer_changed;
    e->writer.on_free = writer_freed;
    e->writer.on_error = writer_failed;
    e->commit.on_done = commit_finished;
    lend_start(&e->lend, &e->p, e->io);
    writer_start(&e->writer, &e->p, e->io);
    drain_start(&e->drain, &e->p, e->io, &e->lend, &e->writer);
    refer_start(&e->refer, &e->p, e->io, &e->drain);
    commit_start(&e->commit, &e->p, e->io, &e->writer);
    e->safe.on_change = lend_changed;
    e->safe.arg = e;
    safe_start(&e->safe, &e->p, e->io, &e->drain, &e->commit);
    return 0;
}

/** The entry that has been named by two crashes is not served a third time: its file fails, loudly. */
static void fail_skipped(struct engine *e) {
    for (unsigned i = 0; i < e->p.st->n_skip; i++) {
        for (unsigned slot = 0; slot < FILES_MAX; slot++) {
            struct file_slot *f = &e->p.st->files[slot];
            if (f->state != FILE_FREE && f->id == e->p.st->skip[i] && !f->error) {
                commit_fail(&e->commit, slot, -EIO, "it crashed the engine twice");
            }
        }
    }
}

static void rebuild(struct engine *e) {
    lend_rebuild(&e->lend);
    files_rebuild(e);
    if (e->p.st->generation == 1) {
        entries_rebuild(e);
        return;
    }
    BREAK_POINT("restart-files");
    refer_rebuild(&e->refer);
    BREAK_POINT("restart-refs");
    drain_rebuild(&e->drain);
    BREAK_POINT("restart-items");
    writer_rebuild(&e->writer);
    BREAK_POINT("restart-chunks");
    names_rebuild(&e->p);
    commit_rebuild(&e->commit);
    BREAK_POINT("restart-queue");
    clients_rebuild(e);
    entries_rebuild(e);
    fail_skipped(e);
    BREAK_POINT("restart-rebuilt");
    log_info("engine %d goes on after a restart (generation %u)", getpid(), e->p.st->generation);
}

/** What the line speaks of has been made by now. */
static void say_recovered(const char *line) {
    log_error("%s", line);
    the_engine->p.st->recovery_to = os_now_ns(CLOCK_REALTIME);
}

/** What a pair that was killed has left on the stripes: beside everything else, by a worker. Nothing of this pair's is
 *  published meanwhile: it is later. */
static void recover_run(struct io_job *job) {
    struct state *st = ((struct engine *)job->arg)->p.st;
    if (!st->recovery_from) {
        st->recovery_from = os_now_ns(CLOCK_REALTIME);
    }
    job->result = recover_stripes(st->config.stripes, 0, say_recovered);
}

static void recover_done(struct io_job *job) {
    struct engine *e = job->arg;
    struct state *st = e->p.st;
    e->commit.held = false;
    if (job->result > 0 && !st->note[0]) {
        log_format(st->note, sizeof st->note,
                   "%d files on the stripes could not be recovered: fastckpt recover --dry-run names them",
                   job->result);
    }
    free(job);
}

static void start_recovery(struct engine *e) {
    struct io_job *job = e->drain.run ? calloc(1, sizeof *job) : NULL;
    if (job) {
        *job = (struct io_job){.run = recover_run, .done = recover_done, .arg = e, .device = 0};
        e->commit.held = true;
        io_job(e->io, job);
    }
}

static int start(struct engine *e, int fd_state) {
    int r = state_attach(&e->p, fd_state);
    if (r == 0) {
        r = state_map_staging(&e->p);
    }
    if (r < 0) {
        return r;
    }
    struct state *st = e->p.st;
    st->engine_pid = getpid();
    st->generation++;
    atomic_store(&e->p.t->generation, st->generation);
    log_setup((enum log_level)st->config.log, st->fd_log, "fastckpt engine");
    the_engine = e;
    set_signals();
    if (st->generation > 1) {
        BREAK_POINT("restart-attached");
        state_close_litter(&e->p); // before anything of ours is opened
        BREAK_POINT("restart-tidied");
    }
    r = start_modules(e);
    if (r < 0) {
        return r;
    }
    rebuild(e);
    start_recovery(e);
    e->pass = 1;
    return intake_start(e);
}

// ---- The loop

static bool is_idle(const struct engine *e) {
    if (e->n_inbox || e->n_waiting || e->commit.n_queue || io_pending(e->io) || files_any(e)) {
        return false;
    }
    for (unsigned i = 0; i < CLIENTS_MAX; i++) {
        if (e->p.st->clients[i].used && !e->p.st->clients[i].tool) {
            return false;
        }
    }
    for (unsigned i = 0; i < CONNS_MAX; i++) { // who has connected says hello in a moment
        if (e->p.st->conns[i].fd > 0 && e->p.st->conns[i].client == NO_CLIENT) {
            return false;
        }
    }
    return true;
}

/** Nobody needs us: take the lock under which pairs are started, look once more, and take the socket away. */
static bool may_leave(struct engine *e) {
    char name[64];
    runtime_name(e->p.st->key, ".start", name, sizeof name);
    int lock = os_openat(e->p.st->fd_dir, name, O_RDWR | O_CREAT, 0600);
    if (lock == -ENOENT) {
        return true; // the runtime directory was deleted: nobody can find us any more
    }
    if (lock < 0 || os_flock(lock, LOCK_EX | LOCK_NB) < 0) {
        os_close(lock);
        return false;
    }
    struct pollfd waiting = {.fd = e->p.st->fd_listen, .events = POLLIN};
    if (os_poll(&waiting, 1, 0) != 0) {
        os_close(lock);
        return false;
    }
    runtime_name(e->p.st->key, ".sock", name, sizeof name);
    os_unlinkat(e->p.st->fd_dir, name, 0);
    stripes_leave(e->p.st);
    log_info("nothing left to do: leaving%s",
             clients_untold(e->p.st) ? "; nobody but this log has been told of what failed" : "");
    return true; // the lock goes with the process
}

static bool idle_turn(struct engine *e, int64_t now) {
    if (!is_idle(e)) {
        e->idle_since_ns = 0;
        return false;
    }
    if (e->idle_since_ns == 0) {
        e->idle_since_ns = now;
    }
    bool untold = clients_untold(e->p.st);
    int64_t idle = now - e->idle_since_ns;
    if (untold && idle > IDLE_LEAVE_NS) {
        e->lend.last_use_ns = 0; // staying for `fastckpt status` takes no memory
    }
    return (e->leave_soon || idle > (untold ? IDLE_UNTOLD_NS : IDLE_LEAVE_NS)) && may_leave(e);
}

static bool keeper_is_gone(const struct engine *e) {
    struct pollfd p = {.fd = e->p.st->fd_keeper, .events = POLLIN};
    return os_poll(&p, 1, 0) > 0;
}

/** Milliseconds until a step that has failed is due again, or the stripes, at most 200. */
static int until_due(const struct engine *e) {
    const int64_t wake[] = {e->writer.wake_ns, e->commit.wake_ns, e->drain.wake_ns, e->safe.wake_ns};
    int64_t at = 0;
    for (size_t i = 0; i < ARRAY_LEN(wake); i++) {
        at = wake[i] > 0 && (at == 0 || wake[i] < at) ? wake[i] : at;
    }
    int64_t ms = at == 0 ? 200 : (at - os_now_ns(CLOCK_MONOTONIC) + 999999) / 1000000;
    return ms > 200 ? 200 : ms > 0 ? (int)ms : 0;
}

static int turn_timeout(const struct engine *e) {
    if (e->n_inbox || e->progress) {
        return 0;
    }
    for (unsigned i = 0; i < e->clients_high; i++) {
        if (e->dying[i] && !e->p.st->clients[i].dead) {
            return 0;
        }
    }
    return until_due(e);
}

#if FASTCKPT_BREAK == 9 // nothing gets its name before somebody waits for it: what is queued stays queued
static bool publish_is_awaited(const struct engine *e) {
    for (unsigned k = 0; k < e->n_waiting; k++) {
        unsigned type = e->p.st->entries[e->waiting[k]].msg.type;
        if (type != MSG_BORROW && type != MSG_SETTLE && type != MSG_LEND) {
            return true;
        }
    }
    return false;
}
#endif

/** For a file or a name. Not who has closed more files than may be pending: many at once are what serves it best. */
static bool somebody_waits(const struct engine *e) {
    for (unsigned k = 0; k < e->n_waiting; k++) {
        const struct msg *m = &e->p.st->entries[e->waiting[k]].msg;
        if (m->type != MSG_WAIT || m->scope != WAIT_CLIENT || m->value < 2 * GATHER) {
            return true;
        }
    }
    return false;
}

static void turn(struct engine *e) {
    entries_turn(e);
    clients_turn(e);
#if FASTCKPT_BREAK == 9
    e->commit.held = !publish_is_awaited(e);
#endif
    if (e->progress || until_due(e) == 0) {
        e->progress = false;
        refer_pump(&e->refer);
        drain_pump(&e->drain);
        writer_pump(&e->writer);
        safe_pump(&e->safe);
        e->commit.hurry = somebody_waits(e);
        commit_pump(&e->commit);
        files_release_turn(e);
        entries_answer(e);
    }
    sums_pump(&e->sums, e->p.st, e->io);
    lend_pump(&e->lend, os_now_ns(CLOCK_MONOTONIC));
}

int engine_run(int fd_state) {
    struct engine *e = calloc(1, sizeof *e);
    if (!e || start(e, fd_state) < 0) {
        log_error("the engine cannot start");
        return 2;
    }
    int64_t checked = 0;
    for (;;) {
        intake_turn(e, turn_timeout(e));
        turn(e);
        int64_t now = os_now_ns(CLOCK_MONOTONIC);
        if (now - checked < 100000000) {
            continue;
        }
        checked = now;
        if (keeper_is_gone(e)) {
            keeper_resume(e->p.st); // becomes a keeper itself; returns only if that fails
        }
        keeper_rotate_log(e->p.st);
        if (idle_turn(e, now)) {
            return 0;
        }
    }
}
