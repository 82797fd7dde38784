// SPDX-License-Identifier: MIT
//
// Proves: what an engine opens of a stripe outlives an exec, by which it may become a keeper; of one that cannot be
//         opened no file stays, whichever descriptor is missing; and a pair that leaves takes its files with it, but
//         for the logs if one of them cannot be emptied durably.
// How: a stripe in /tmp, with fewer descriptors to be had than it takes.
// Cannot see: places, and disks that fail (test_crash_stripes, tests/system/stripes.py).

#include "core/io.h"
#include "core/os.h"
#include "core/stripes.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static char top[64], dir[128];
static struct pair p;
static struct stripes s;

static void setup(void) {
    strcpy(top, "/tmp/fastckpt-stripes-XXXXXX");
    cr_assert(mkdtemp(top));
    snprintf(dir, sizeof dir, "%s/fastckpt-%u", top, (unsigned)geteuid());
}

static void teardown(void) {
    char command[160];
    snprintf(command, sizeof command, "rm -r %s", top);
    cr_expect_eq(system(command), 0);
}

/** A new pair opens its stripe. Has it got it? */
static bool start(void) {
    free(p.st);
    p.st = calloc(1, sizeof *p.st);
    cr_assert(p.st);
    p.st->generation = 1;
    strcpy(p.st->config.stripes, top);
    s = (struct stripes){0};
    stripes_start(&s, &p, NULL);
    return s.end == 1;
}

static unsigned files(void) {
    unsigned n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        n += e->d_name[0] != '.';
    }
    if (d) {
        closedir(d);
    }
    return n;
}

static void limit(int fds) {
    struct rlimit r;
    getrlimit(RLIMIT_NOFILE, &r);
    r.rlim_cur = fds < 0 ? r.rlim_max : (rlim_t)fds;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &r), 0);
}

Test(stripes, opened_for_good, .init = setup, .fini = teardown) {
    cr_assert(start());
    const int fds[] = {p.st->fd_stripe[0], p.st->fd_stripe_log[0], p.st->fd_stripe_dir[0]};
    for (unsigned i = 0; i < ARRAY_LEN(fds); i++) {
        cr_expect_gt(fds[i], 2);
        cr_expect_eq(fcntl(fds[i], F_GETFD), 0, "descriptor %u is closed by an exec", i);
    }
    cr_expect_eq(files(), 2);
    stripes_leave(p.st);
    cr_expect_eq(files(), 0);
}

static int refused_fsync(int fd) {
    (void)fd;
    return -EIO;
}

Test(stripes, a_log_that_is_not_emptied_for_good_stays, .init = setup, .fini = teardown) {
    for (unsigned out = 0; out < 2; out++) {
        cr_assert(start());
        p.st->log_out = out;
        io_calls.fsync = refused_fsync;
        stripes_leave(p.st);
        cr_expect_eq(files(), 1, "the log");
        io_calls.fsync = io_calls_kernel.fsync;
        stripes_leave(p.st);
        cr_expect_eq(files(), 0);
    }
}

Test(stripes, nothing_stays_of_one_that_is_not_opened, .init = setup, .fini = teardown) {
    int low = dup(0);
    unsigned refused = 0;
    close(low);
    for (int n = 0; refused < 10; n++) {
        limit(low + n);
        bool opened = start();
        limit(-1);
        if (opened) {
            break;
        }
        refused++;
        cr_expect_eq(files(), 0, "with %d descriptors", n);
        cr_expect(p.st->fd_stripe[0] == 0 && p.st->fd_stripe_log[0] == 0 && p.st->fd_stripe_dir[0] == 0);
        cr_expect_eq(dup(0), low, "all are closed again");
        close(low);
    }
    cr_expect(refused >= 3 && refused < 10, "directory, log and places: %u", refused);
}
