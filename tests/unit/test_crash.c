// SPDX-License-Identifier: MIT
//
// Proves: after a power cut at any operation, names are a state of the programs' history, in the order of numbers, each
//         file whole (P3, P4); also when the engine died at any operation before; and with a device that fails, for a
//         while or for good, at no point of a rotation is there no complete checkpoint, and nothing torn.
// How:    writer, commit and publish on the simulated disk: every operation is followed by power cuts, after which
//         unsynced bytes and names are there, are not, or in part. All ways of small histories, many of long ones by
//         chance. SIM_RUNS=n makes more of them, SIM_SEED=n others.
// Cannot see: messages, clients and their deaths (tests/system/); file systems whose directories keep no order at all.

#include "crash_oracle.h"

static bool failing; // a device fails: prefixes of the history say nothing, files that failed are not in it
static unsigned checked, last_failed, runs_factor, first_seed;

// ---- What must be true of a directory after a power cut

static bool is_followed(unsigned id) {
    for (unsigned i = 0; i < world.n_events; i++) {
        if (world.event[i].id == id) {
            return world.event[i].followed;
        }
    }
    return true; // not closed yet: it has a name, so the program made it
}

/** Save k of a rotation is files k.0 and k.1 in directories 0 and 2; `best` is the last that is complete. */
static unsigned complete_saves(const struct sim_entry *entries, unsigned n) {
    unsigned complete = 0;
    for (unsigned k = 1; k <= 9; k++) {
        char a[8], b[8];
        snprintf(a, sizeof a, "%u.0", k);
        snprintf(b, sizeof b, "%u.1", k);
        const struct sim_entry *x = find(entries, n, 0, a), *y = find(entries, n, 2, b);
        complete += x && y && x->whole && y->whole;
    }
    return complete;
}

static bool ever_complete;

static void check_failing(const struct sim_entry *entries, unsigned n) {
    char text[2000];
    for (unsigned i = 0; i < n; i++) {
        const struct sim_entry *x = &entries[i];
        if (!x->whole && !is_followed(x->id) && !is_hidden(x)) {
            show(entries, n, text, sizeof text);
            cr_assert_fail("seed %u, operation %u: %s is torn:%s", last_failed, sim_steps, x->name, text);
        }
    }
    if (ever_complete && complete_saves(entries, n) == 0) {
        show(entries, n, text, sizeof text);
        cr_assert_fail("seed %u, operation %u: no complete checkpoint:%s", last_failed, sim_steps, text);
    }
}

static void check(const struct sim_entry *entries, unsigned n) {
    checked++;
    if (failing) {
        check_failing(entries, n);
        return;
    }
    for (unsigned upto = world.durable; upto <= world.n_events; upto++) {
        if (is_prefix(entries, n, upto)) {
            return;
        }
    }
    char text[2000];
    show(entries, n, text, sizeof text);
    cr_assert_fail("seed %u, operation %u: no state of the history (durable %u):%s", last_failed, sim_steps,
                   world.durable, text);
}

static void on_step(void) {
    sim_power_cut(check);
    struct sim_entry now[SIM_NAMES];
    unsigned n = 0;
    for (unsigned i = 0; failing && i < world.durable; i++) { // what the engine has said to be durable
        const struct event *e = &world.event[i];
        if (e->id && !e->failed) {
            now[n] = (struct sim_entry){.dir = e->dir, .id = e->id, .whole = true};
            strcpy(now[n++].name, e->name);
        }
    }
    ever_complete |= failing && complete_saves(now, n) > 0;
}

// ---- Histories

static void add_by_chance(unsigned steps) {
    static const char *const names[] = {"a", "b", "latest"};
    char fresh[SIM_NAME];
    for (unsigned i = 0; i < steps; i++) {
        enum act act = (enum act)sim_random(6);
        unsigned name = sim_random(3), dir = sim_random(DIRS);
        snprintf(fresh, sizeof fresh, "f%u", i);
        // A name belongs to one program: what two do to one name at once has no order.
        add_step(act, (dir + name) % CLIENTS, dir, act == FOLLOW ? fresh : names[name]);
        if (act == RENAME) { // within a device, to a name of this program's or to a new one
            struct step *s = &world.step[world.n_steps - 1];
            s->to_dir = dir < 2 ? sim_random(2) : dir;
            strcpy(s->to, sim_random(2) ? fresh : names[(name + CLIENTS + dir - s->to_dir) % CLIENTS]);
        }
    }
}

static void add_rotation(unsigned saves, unsigned keep) {
    char name[SIM_NAME];
    for (unsigned k = 1; k <= saves; k++) {
        snprintf(name, sizeof name, "%u.0", k);
        add_step(SAVE, 0, 0, name);
        snprintf(name, sizeof name, "%u.1", k);
        add_step(k % 2 ? SAVE : SMALL, 0, 2, name);
        add_step(SMALL, 0, 1, "latest");
        if (k > keep) {
            snprintf(name, sizeof name, "%u.0", k - keep);
            add_step(UNLINK, 0, 0, name);
            snprintf(name, sizeof name, "%u.1", k - keep);
            add_step(UNLINK, 0, 2, name);
        }
    }
}

static void set_up(void) {
    struct config c = {.staging = 64 * MIB};
    log_setup(LOG_ERROR, open("/dev/null", O_WRONLY), "unit");
    cr_assert_eq(state_create(&world.p, &c), 0);
    cr_assert_eq(state_map_staging(&world.p), 0);
    make_places();
    world.dirfd[0] = make_dir(place[0], "0");
    world.dirfd[1] = make_dir(place[0], "1");
    world.dirfd[2] = make_dir(place[1], "2");
    runs_factor = getenv("SIM_RUNS") ? (unsigned)atoi(getenv("SIM_RUNS")) : 1;
    first_seed = getenv("SIM_SEED") ? (unsigned)atoi(getenv("SIM_SEED")) * 1000000 : 0;
    sim_on_step = on_step;
}

static void tear_down(void) {
    static const char *const dirs[] = {"0", "1", "2"};
    for (unsigned i = 0; i < DIRS; i++) {
        char path[128];
        empty_dir(world.dirfd[i]);
        snprintf(path, sizeof path, "%s/%s", place[i / 2], dirs[i]);
        rmdir(path);
    }
    rmdir(place[0]);
    umount2(place[1], MNT_DETACH); // its descriptors are still open
    rmdir(place[1]);
}

TestSuite(crash, .init = set_up, .fini = tear_down, .timeout = 3000);

/** All went well: nothing failed, and the running system has the end of the history. */
static void check_end(void) {
    struct sim_entry now[SIM_NAMES];
    unsigned n = sim_now(now);
    sim_power_cut(check);
    cr_assert_eq(world.p.st->failures_total, 0, "seed %u: %s", last_failed, world.p.st->failures[0].text);
    cr_assert(is_prefix(now, n, world.n_events), "seed %u: the end is not there", last_failed);
    cr_assert_eq(world.durable, world.n_events, "seed %u: not all is durable", last_failed);
}

static void small_history(unsigned which) {
    static const struct {
        enum act act;
        unsigned dir;
        const char *name;
    } steps[][2] = {
        {{SMALL, 0, "a"}, {SMALL, 0, "latest"}},  {{SMALL, 0, "a"}, {SMALL, 1, "b"}},
        {{SMALL, 2, "a"}, {SMALL, 0, "latest"}},  {{SMALL, 0, "latest"}, {SMALL, 0, "latest"}},
        {{SAVE, 0, "latest"}, {SMALL, 0, "b"}},   {{SAVE_SYNC, 0, "a"}, {SMALL, 1, "latest"}},
        {{FOLLOW, 0, "f"}, {SMALL, 0, "latest"}}, {{SAVE, 1, "a"}, {UNLINK, 0, "latest"}},
    };
    put_old(0, "latest");
    for (unsigned i = 0; i < 2; i++) {
        bool same = strcmp(steps[which][0].name, steps[which][1].name) == 0; // a name belongs to one program
        add_step(steps[which][i].act, same ? 0 : i, steps[which][i].dir, steps[which][i].name);
    }
}

Test(crash, every_way_of_small_histories) {
    unsigned runs = 0;
    for (unsigned which = 0; which < 8; which++) {
        for (unsigned order = 0; order < 2; order++) {
            unsigned way = 0;
            do {
                world_reset((enum sim_order)order, which + 1);
                small_history(which);
                sim_enumerate(way == 0);
                last_failed = way;
                world_run();
                check_end();
                way++;
            } while (sim_next() && way < 100 * runs_factor);
            runs += way;
        }
    }
    cr_assert_gt(runs, 500, "only %u ways", runs);
    cr_assert_gt(checked, 30000, "only %u power cuts", checked);
}

static void by_chance(unsigned runs, unsigned steps, unsigned deaths) {
    for (unsigned i = 0; i < runs * runs_factor; i++) {
        unsigned seed = last_failed = first_seed + i;
        world_reset(seed % 2 ? SIM_JOURNAL : SIM_DIRS, seed + 1);
        world.p.st->plain = seed % 7 == 0;
        put_old(0, "latest");
        put_old(2, "a");
        add_by_chance(steps);
        world.restarts_most = deaths;
        sim_die_at(deaths ? 1 + sim_random(60) : 0);
        world_run();
        check_end();
    }
    cr_assert_gt(checked, 200 * runs, "only %u power cuts", checked);
}

Test(crash, histories_by_chance) {
    by_chance(60, 16, 0);
}

Test(crash, engine_dies) {
    by_chance(120, 10, 3);
}

Test(crash, a_device_fails) {
    unsigned with_failures = 0, healed = 0, runs = 150 * runs_factor;
    failing = true;
    for (unsigned i = 0; i < runs; i++) {
        unsigned seed = last_failed = first_seed + i;
        ever_complete = false;
        world_reset(seed % 2 ? SIM_JOURNAL : SIM_DIRS, seed + 1);
        world.heeds = seed % 4 == 0; // the others delete old saves as long as they are let
        add_rotation(6, 2);
        world.restarts_most = seed % 3;
        sim_die_at(seed % 3 ? 30 + sim_random(100) : 0);
        unsigned from = 20 + sim_random(120), length = sim_random(3) ? 1 + sim_random(30) : 100000;
        sim_fail_device(sim_device(sim_random(3)), from, from + length);
        world_run();
        with_failures += world.p.st->failures_total > 0;
        healed += world.p.st->failures_total > 0 && !state_broken(world.p.st);
        cr_assert_eq(world.p.t->names_count, state_broken(world.p.st), "seed %u: clients are not told", seed);
    }
    cr_assert_gt(with_failures, runs / 4, "only %u runs of %u had a failure", with_failures, runs);
    cr_assert_gt(healed, runs / 20, "only in %u runs of %u the disk was trusted again", healed, runs);
}
