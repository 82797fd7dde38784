// SPDX-License-Identifier: MIT
//
// Proves: with stripes, all processes or the machine may die at any operation (of a chunk's way to the stripe, of a
//         record, of the drain, a publish, a deletion, a renaming, a restart of the engine): after a recovery the names
//         are a state of the programs' history, each file whole, with all in it that was safe or durable (P3, P4); what
//         an fsync had promised is there; a second recovery finds nothing to do.
// How:    the engine's modules on the simulated disk, two stripes; at each operation of many histories either all die
//         at once, or power is cut: what was not synced, of stripes, logs, files and names, is undone, in part or torn.
//         Then recover_stripes, for real. SIM_RUNS=n makes more of them, SIM_SEED=n others.
// Cannot see: a death in the middle of the recovery (tests/system/recover.py); times and owners.

#include "crash_oracle.h"

#include "core/recover.h"

static unsigned last_seed, runs_factor, first_seed, recovered_lines, checked;
static char stripe_dir[2][144], lines[8192];
static int alive_dir[2];

// ---- What is there after a recovery

/** Which file has these bytes? */
static unsigned whose(int fd, bool *whole) {
    static unsigned char buf[SIM_BLOCK];
    struct stat s;
    fstat(fd, &s);
    for (unsigned id = 1; id <= world.n_slots; id++) {
        uint64_t size = world.small[id] ? 5000 : CHUNK_SIZE + 4796;
        unsigned n = world.small[id] ? 2 : ARRAY_LEN(blocks_of_save), right = 0;
        for (unsigned i = 0; i < n; i++) {
            memset(buf, 0, sizeof buf);
            cr_assert_geq(pread(fd, buf, sizeof buf, (off_t)blocks_of_save[i] * SIM_BLOCK), 0);
            bool same = sim_hash(buf) == (world.small[id] ? hash_of_small : hash_of_save)(id, blocks_of_save[i]);
            if (i == 0 && !same) {
                break; // every file begins with its own
            }
            right += same;
        }
        if (right > 0) {
            *whole = right == n && (uint64_t)s.st_size == size;
            return id;
        }
    }
    *whole = false;
    unsigned id = sim_known_id(fd); // torn: one that its program made itself, and has not closed
    return id ? id : SIM_INODES - 1;
}

static unsigned read_names(struct sim_entry entries[SIM_NAMES]) {
    unsigned n = 0;
    for (unsigned dir = 0; dir < DIRS; dir++) {
        DIR *d = fdopendir(openat(world.dirfd[dir], ".", O_RDONLY | O_DIRECTORY));
        for (struct dirent *e; (e = readdir(d));) {
            if (e->d_name[0] == '.' && strncmp(e->d_name, ".fastckpt", 9) != 0) {
                continue;
            }
            cr_assert_lt(n, SIM_NAMES);
            int fd = openat(world.dirfd[dir], e->d_name, O_RDONLY);
            entries[n] = (struct sim_entry){.dir = dir};
            snprintf(entries[n].name, SIM_NAME, "%.31s", e->d_name);
            entries[n].id = whose(fd, &entries[n].whole);
            close(fd);
            n++;
        }
        closedir(d);
    }
    return n;
}

static void say(const char *line) {
    recovered_lines++;
    size_t at = strlen(lines);
    snprintf(lines + at, sizeof lines - at, "%s; ", line);
}

static void end_of(const char *what, const struct sim_entry *entries, unsigned n) {
    static char text[4000];
    show(entries, n, text, sizeof text);
    cr_assert_fail("seed %u, operation %u%s: %s (safe %u, durable %u):%s; recovery: %s", last_seed, sim_steps,
                   world.was_cut ? "" : ", at the end", what, world.safe, world.durable, text, lines);
}

static bool was_promised(const struct client *cl, const struct step *s) {
    const struct file_slot *f = file_at(cl->slot);
    return s && s->act == SAVE_SYNC && cl->phase == 5 && f->state == FILE_OPEN && f->safe == SAFE_OPEN &&
           f->safe_to >= cl->number;
}

/** All have died. */
static void check_after_death(void) {
    struct sim_entry entries[SIM_NAMES];
    struct state *st = world.p.st;
    for (unsigned i = 0; i < STRIPES_MAX; i++) {
        st->fd_stripe_log[i] > 0 ? close(st->fd_stripe_log[i]) : 0;
        st->fd_stripe_log[i] = 0;
    }
    lines[0] = '\0';
    int left = recover_stripes(st->config.stripes, false, true, say);
    unsigned n = read_names(entries), at_least = max_u64(world.safe, world.durable);
    checked++;
    if (left != 0) {
        end_of("not all was recovered", entries, n);
    }
    for (unsigned i = 0; i < n; i++) {
        if (world.synced[entries[i].id] && !entries[i].whole) {
            end_of("a file is torn", entries, n);
        }
    }
    bool good = false;
    for (unsigned upto = at_least; upto <= world.n_events && !good; upto++) {
        good = is_prefix(entries, n, upto);
    }
    if (!good) {
        end_of("no state of the history", entries, n);
    }
    for (unsigned i = 0; i < CLIENTS; i++) {
        const struct client *cl = &world.client[i];
        const struct step *s = cl->at < world.n_steps ? &world.step[cl->at] : NULL;
        if (was_promised(cl, s)) {
            const struct sim_entry *x = find(entries, n, s->dir, s->name);
            if (!x || x->id != cl->id || !x->whole) {
                end_of("what an fsync has promised is not there", entries, n);
            }
        }
    }
    unsigned before = recovered_lines;
    if (recover_stripes(st->config.stripes, false, true, say) != 0 || recovered_lines != before) {
        end_of("a second recovery had something to do", entries, n);
    }
}

// ---- Histories

static void histories(void) {
    static const char *const names[] = {"a", "b", "latest"};
    static const enum act acts[] = {SAVE, SMALL, SAVE_SYNC, FOLLOW, UNLINK, RENAME, SAVE, UNLINK};
    char fresh[SIM_NAME];
    put_old(0, "latest");
    put_old(2, "a");
    for (unsigned i = 0; i < 8; i++) {
        enum act act = acts[sim_random(ARRAY_LEN(acts))];
        unsigned name = sim_random(3), dir = sim_random(DIRS);
        snprintf(fresh, sizeof fresh, "f%u", i);
        add_step(act, (dir + name) % CLIENTS, dir, act == FOLLOW ? fresh : names[name]);
        if (act == RENAME) {
            struct step *s = &world.step[world.n_steps - 1];
            s->to_dir = dir < 2 ? sim_random(2) : dir;
            strcpy(s->to, sim_random(2) ? fresh : names[(name + CLIENTS + dir - s->to_dir) % CLIENTS]);
        }
    }
}

static void one_run(unsigned seed, unsigned at, unsigned death, bool machine) {
    last_seed = seed;
    empty_dir(alive_dir[0]);
    empty_dir(alive_dir[1]);
    world_reset(seed % 2 ? SIM_JOURNAL : SIM_DIRS, seed + 1);
    sim_keep_alive(alive_dir, 2);
    histories();
    world.cut = death == 0;
    world.restarts_most = 1;
    sim_die_at(death ? death : at);
    tier.die_next = death ? at : 0;
    world_run();
    if (world.was_cut && machine) {
        sim_cut_now(world.dirfd);
    }
    check_after_death();
}

/** Every operation of a few histories, before some of them a death of the engine. SIM_RUNS=1: every fourth. */
static void every_operation(bool machine, unsigned histories_most) {
    unsigned cuts = 0, step = runs_factor > 1 ? 1 : 4;
    for (unsigned seed = first_seed; seed < first_seed + histories_most * runs_factor; seed++) {
        for (unsigned at = 1 + seed % step;; at += step) {
            unsigned death = sim_random(4) == 0 && at > 8 ? at - at / 3 : 0;
            one_run(seed, at, death, machine);
            if (!world.was_cut) {
                break;
            }
            cuts++;
        }
    }
    cr_log_info("%u deaths, %u lines", cuts, recovered_lines);
    cr_assert_gt(cuts, 10 * histories_most, "only %u deaths", cuts);
    cr_assert_gt(recovered_lines, cuts / 4, "only %u lines of recoveries in %u deaths", recovered_lines, cuts);
}

static void set_up(void) {
    struct config c = {.staging = 64 * MIB, .direct = DIRECT_OFF};
    log_setup(LOG_ERROR, open("/dev/null", O_WRONLY), "unit");
    make_places();
    for (unsigned i = 0; i < 2; i++) {
        char alive[80];
        snprintf(stripe_dir[i], sizeof stripe_dir[i], "%s/stripe", place[i]);
        snprintf(alive, sizeof alive, "alive");
        mkdir(stripe_dir[i], 0700);
        alive_dir[i] = make_dir(place[i], alive);
    }
    snprintf(c.stripes, sizeof c.stripes, "%s:%s", stripe_dir[0], stripe_dir[1]);
    cr_assert_eq(state_create(&world.p, &c), 0);
    cr_assert_eq(state_map_staging(&world.p), 0);
    world.dirfd[0] = make_dir(place[0], "0");
    world.dirfd[1] = make_dir(place[0], "1");
    world.dirfd[2] = make_dir(place[1], "2");
    runs_factor = getenv("SIM_RUNS") ? (unsigned)atoi(getenv("SIM_RUNS")) : 1;
    first_seed = getenv("SIM_SEED") ? (unsigned)atoi(getenv("SIM_SEED")) * 1000000 : 0;
    tier.on = true;
}

static void remove_below(const char *at) {
    char command[160];
    snprintf(command, sizeof command, "rm -rf '%s'", at);
    cr_assert_eq(system(command), 0);
}

static void tear_down(void) {
    remove_below(place[0]);
    umount2(place[1], MNT_DETACH);
    remove_below(place[1]);
}

TestSuite(crash_stripes, .init = set_up, .fini = tear_down, .timeout = 3000);

Test(crash_stripes, all_die) {
    every_operation(false, 2);
}

Test(crash_stripes, power_cut) {
    every_operation(true, 6);
}
