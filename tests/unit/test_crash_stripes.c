// SPDX-License-Identifier: MIT
//
// Proves: with stripes, all processes or the machine may die at any operation (of a chunk's way to the stripe, of a
//         record, of the drain, a publish, a deletion, a renaming, a restart of the engine): after a recovery the names
//         are a state of the programs' history, each file whole, with all in it that was safe or durable (P3, P4); what
//         an fsync had promised is there; a second recovery finds nothing to do, and the stripes are empty. A recovery
//         that dies at any of its own operations, or is met by a power cut there, comes to the same in the end.
// How:    the engine's modules and recovery on the simulated disk, two stripes; at each operation of many histories
//         either all die at once, or power is cut: what was not synced, of stripes, logs, files and names, is undone,
//         in part or torn. Then recover_stripes: once, or so often as it has operations, dying at each, from the same
//         state every time. SIM_RUNS=n makes more of them, SIM_SEED=n others (tests/long/simdisk.py).
// Cannot see: times and owners; a file system without unnamed files.

#include "crash_oracle.h"

#include "core/recover.h"

static unsigned last_seed, runs_factor, first_seed, recovered_lines, checked;
static unsigned dying; // the operation at which the recovery dies; 0: at none
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

static int by_name(const void *a, const void *b) {
    const struct sim_entry *x = a, *y = b;
    return x->dir != y->dir ? (int)x->dir - (int)y->dir : strcmp(x->name, y->name);
}

static unsigned read_names(struct sim_entry entries[SIM_NAMES]) {
    unsigned n = 0;
    memset(entries, 0, SIM_NAMES * sizeof *entries);
    for (unsigned dir = 0; dir < DIRS; dir++) {
        DIR *d = fdopendir(openat(world.dirfd[dir], ".", O_RDONLY | O_DIRECTORY));
        for (struct dirent *e; (e = readdir(d));) {
            if (e->d_name[0] == '.' && strncmp(e->d_name, ".fastckpt", 9) != 0) {
                continue;
            }
            cr_assert_lt(n, SIM_NAMES);
            int fd = openat(world.dirfd[dir], e->d_name, O_RDONLY);
            entries[n] = (struct sim_entry){.dir = dir};
            snprintf(entries[n].name, SIM_NAME, "%.63s", e->d_name);
            entries[n].id = whose(fd, &entries[n].whole);
            close(fd);
            n++;
        }
        closedir(d);
    }
    qsort(entries, n, sizeof *entries, by_name);
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
    cr_assert_fail("seed %u, operation %u%s, of recovery %u: %s (safe %u, durable %u):%s; recovery: %s", last_seed,
                   sim_steps, world.was_cut ? "" : ", at the end", dying, what, world.safe, world.durable, text, lines);
}

static bool was_promised(const struct client *cl, const struct step *s) {
    const struct file_slot *f = file_at(cl->slot);
    return s && s->act == SAVE_SYNC && cl->phase == 5 && f->state == FILE_OPEN && f->safe == SAFE_OPEN &&
           f->safe_to >= cl->number;
}

/** What a history must have at least: what was safe, or durable; as long as no recovery has ended, only the latter. */
static void check_names(const struct sim_entry *entries, unsigned n, unsigned at_least) {
    bool good = false;
    for (unsigned i = 0; i < n; i++) {
        if (world.synced[entries[i].id] && !entries[i].whole) {
            end_of("a file is torn", entries, n);
        }
    }
    for (unsigned upto = at_least; upto <= world.n_events && !good; upto++) {
        good = is_prefix(entries, n, upto);
    }
    if (!good) {
        end_of("no state of the history", entries, n);
    }
}

static void check_promises(const struct sim_entry *entries, unsigned n) {
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
}

static bool only_sums(int dirfd) {
    bool only = true;
    DIR *d = fdopendir(openat(dirfd, ".", O_RDONLY | O_DIRECTORY));
    for (struct dirent *e; (e = readdir(d));) {
        only &= e->d_name[0] == '.' || strncmp(e->d_name, "sums", 4) == 0;
    }
    closedir(d);
    return only;
}

// ---- Recoveries

#define DIRS_ALL (DIRS + 2) // and what two stripes have of this user's

static int all_dirs[DIRS_ALL];
static bool was_open[1024];

/** Descriptors that are open now, or (`since`) closes those that were opened since, but for the simulated disk's own:
 *  what the kernel does for a process that dies. */
static void descriptors(bool since) {
    DIR *d = opendir("/proc/self/fd");
    memset(was_open, 0, since ? 0 : sizeof was_open);
    for (struct dirent *e; (e = readdir(d));) {
        int fd = atoi(e->d_name);
        if (e->d_name[0] == '.' || fd == dirfd(d)) {
            continue;
        }
        cr_assert_lt(fd, 1024);
        if (since && !was_open[fd] && !sim_is_own(fd)) {
            close(fd);
        }
        was_open[fd] = true;
    }
    closedir(d);
}

/** One recovery, which dies at its operation number `at` (0: never). False: it died. */
static bool recover_once(unsigned at, int *left) {
    *left = -1;
    descriptors(false);
    if (setjmp(sim_death)) {
        descriptors(true);
        return false;
    }
    sim_die_at(at ? sim_steps + at : 0);
    *left = recover_stripes(world.p.st->config.stripes, RECOVER_USED, say);
    sim_die_at(0);
    return true;
}

/** All have died: what is open of the stripes is closed, and their names belong to what a power cut may undo. */
static void begin_recovery(void) {
    struct state *st = world.p.st;
    memcpy(all_dirs, world.dirfd, sizeof world.dirfd);
    for (unsigned i = 0; i < 2; i++) {
        all_dirs[DIRS + i] = st->fd_stripe_dir[i];
        sim_know_dir(st->fd_stripe_dir[i]);
    }
    for (unsigned i = 0; i < STRIPES_MAX; i++) {
        st->fd_stripe_log[i] > 0 ? close(st->fd_stripe_log[i]) : 0;
        st->fd_stripe_log[i] = 0;
    }
    lines[0] = '\0';
}

/** All have died, and some recoveries then. Now one is let come to its end. What is there then; a power cut behind it
 *  changes nothing. */
static unsigned check_recovery(struct sim_entry entries[SIM_NAMES]) {
    static struct sim_entry later[SIM_NAMES];
    int left, again;
    recover_once(0, &left);
    sim_settle_ghosts();
    unsigned n = read_names(entries);
    checked++;
    if (left != 0) {
        end_of("not all was recovered", entries, n);
    }
    check_names(entries, n, max_u64(world.safe, world.durable));
    check_promises(entries, n);
    for (unsigned i = 0; i < n; i++) {
        if (strncmp(entries[i].name, ".fastckpt-recover", 17) == 0) {
            end_of("a recovery has left something", entries, n);
        }
    }
    if (!only_sums(all_dirs[DIRS]) || !only_sums(all_dirs[DIRS + 1])) {
        end_of("the stripes are not empty", entries, n);
    }
    unsigned before = recovered_lines;
    sim_cut_now(all_dirs);
    recover_once(0, &again);
    if (again != 0 || recovered_lines != before) {
        end_of("a second recovery had something to do", entries, n);
    }
    unsigned m = read_names(later);
    check_names(later, m, max_u64(world.safe, world.durable));
    check_promises(later, m);
    if (!only_sums(all_dirs[DIRS]) || !only_sums(all_dirs[DIRS + 1])) {
        end_of("the stripes are not empty after the power cut", later, m);
    }
    return n;
}

/** A recovery dies at its operation number `at`, by itself or with the machine; with luck the next one dies, too. */
static bool die_in_recovery(unsigned at, bool machine) {
    static struct sim_entry entries[SIM_NAMES];
    int left;
    for (unsigned k = 0; k < 2; k++) {
        if (recover_once(at, &left)) {
            return k > 0;
        }
        if (machine) {
            sim_cut_now(all_dirs);
        }
        check_names(entries, read_names(entries), world.durable);
        at = 1 + sim_random(30);
        if (sim_random(3)) {
            return true;
        }
    }
    return true;
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

/** Of the outcome, what no power cut may take: not what a program made itself and nobody has synced yet. How many. */
static unsigned without_early(struct sim_entry *entries, unsigned n) {
    unsigned kept = 0, upto = (unsigned)max_u64(world.safe, world.durable);
    for (unsigned i = 0; i < n; i++) {
        if (has_event(&entries[i]) && !is_early(&entries[i], upto)) {
            entries[kept++] = entries[i];
        }
    }
    return kept;
}

/** Up to the death of all at operation `at`; before it, at `death` (0: none), one of the engine. */
static void run_to_death(unsigned seed, unsigned at, unsigned death, bool machine) {
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
    begin_recovery();
    sim_rename_only(seed % 3 == 0);
}

/** Every operation of a few histories, before some of them a death of the engine. SIM_RUNS=1: every fourth. */
static void every_operation(bool machine, unsigned histories_most) {
    static struct sim_entry entries[SIM_NAMES];
    unsigned cuts = 0, step = runs_factor > 1 ? 1 : 4;
    for (unsigned seed = first_seed; seed < first_seed + histories_most * runs_factor; seed++) {
        for (unsigned at = 1 + seed % step;; at += step) {
            unsigned death = sim_random(4) == 0 && at > 8 ? at - at / 3 : 0;
            run_to_death(seed, at, death, machine);
            check_recovery(entries);
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

/** Of a few deaths of a few histories: the recovery dies at each of its operations, from the same state each time.
 *  SIM_RUNS=1: at every third. */
static void every_operation_of_recovery(bool machine, unsigned histories_most, unsigned apart) {
    static struct sim_entry whole[SIM_NAMES], entries[SIM_NAMES];
    unsigned deaths = 0, in_recovery = 0, step = runs_factor > 1 ? 1 : 3;
    for (unsigned seed = first_seed; seed < first_seed + histories_most * runs_factor; seed++) {
        unsigned at = 20 + 7 * (seed % 5);
        do {
            dying = 0;
            run_to_death(seed, at, 0, machine);
            unsigned n = without_early(whole, check_recovery(whole));
            bool died = world.was_cut;
            deaths += died;
            for (dying = 1 + at % step; died; dying += step) {
                run_to_death(seed, at, 0, machine);
                if (!die_in_recovery(dying, machine || dying / step % 2)) {
                    break;
                }
                in_recovery++;
                unsigned m = without_early(entries, check_recovery(entries));
                if (m != n || memcmp(entries, whole, n * sizeof *whole) != 0) {
                    end_of("another outcome than without a death in between", entries, m);
                }
            }
            at += apart;
        } while (world.was_cut);
    }
    dying = 0;
    cr_log_info("%u deaths, %u of recoveries", deaths, in_recovery);
    cr_assert_gt(in_recovery * step, 15 * deaths, "only %u deaths of recoveries in %u states", in_recovery, deaths);
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

Test(crash_stripes, recovery_dies) {
    every_operation_of_recovery(false, 2, 70);
}

Test(crash_stripes, recovery_dies_after_power_cut) {
    every_operation_of_recovery(true, 2, 70);
}
