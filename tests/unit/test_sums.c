// SPDX-License-Identifier: MIT
//
// Proves: what is written down of a file is found again by its inode, whatever is torn before and behind it, with the
//         ranges that its chunks say and the rest read, without what a later chunk has changed or a truncation has cut
//         off; a rename is followed; and the two files never take more than twice SUMS_MOST and a record.
// How: records of real files, in a directory that is damaged in many places.
// Cannot see: several pairs that append at one time; what an engine knows of a file (tests/system/verify.py).

#include "core/os.h"
#include "core/sums.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char top[64], dir[128], file[128];
static int32_t dirs[STRIPES_MAX];
static int fd;

static void setup(void) {
    strcpy(top, "/tmp/fastckpt-sums-XXXXXX");
    cr_assert(mkdtemp(top));
    snprintf(dir, sizeof dir, "%s/fastckpt-%u", top, (unsigned)geteuid());
    snprintf(file, sizeof file, "%s/file", top);
    cr_assert_eq(mkdir(dir, 0700), 0);
    dirs[2] = open(dir, O_PATH | O_CLOEXEC);
    fd = open(file, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    cr_assert(dirs[2] > 0 && fd > 0);
}

static void teardown(void) {
    char command[160];
    close(fd);
    close(dirs[2]);
    snprintf(command, sizeof command, "rm -r %s", top);
    cr_expect_eq(system(command), 0);
}

static struct stat state_of(int f) {
    struct stat st;
    cr_assert_eq(fstat(f, &st), 0);
    return st;
}

static struct log_part part(uint64_t index, uint32_t off, uint32_t len, uint32_t crc) {
    return (struct log_part){.index = index, .n = 1, .crc = crc, .extent = {{off, len}}};
}

static const struct sum_range *range_at(const struct sums_known *k, uint64_t off) {
    for (uint32_t i = 0; i < k->n; i++) {
        if (k->range[i].off == off) {
            return &k->range[i];
        }
    }
    return NULL;
}

static void append_bytes(const char *bytes, size_t len) {
    char path[160];
    snprintf(path, sizeof path, "%s/sums", dir);
    int f = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    cr_assert_eq(write(f, bytes, len), (ssize_t)len);
    close(f);
}

TestSuite(sums, .init = setup, .fini = teardown);

Test(sums, ranges) {
    cr_assert_eq(ftruncate(fd, 9 * MIB), 0);
    struct log_part p[] = {part(0, MIB, 2 * MIB, 11),       part(1, 0, CHUNK_SIZE, 22),
                           part(1, 4096, 8, 33),            part(2, 0, CHUNK_SIZE, 44),
                           {.index = 0, .n = 2, .crc = 55, .extent = {{3 * MIB, 16}, {3 * MIB + 32, 16}}}};
    sums_write(dirs, fd, p, ARRAY_LEN(p), SUM_LOOSE);
    struct sums s;
    cr_assert_eq(sums_read(&s, top), 0);
    struct stat st = state_of(fd);
    bool exact = false;
    const struct sums_known *k = sums_find(&s, &st, &exact);
    cr_assert(k && exact);
    cr_expect_eq(k->flags, SUM_LOOSE);
    uint64_t covered = 0;
    for (uint32_t i = 0; i < k->n; i++) {
        covered += k->range[i].len;
    }
    cr_expect_eq(covered, 9 * MIB, "what no chunk says is read: %lu", covered);
    cr_expect_eq(range_at(k, MIB)->crc, 11);
    cr_expect_eq(range_at(k, CHUNK_SIZE + 4096)->crc, 33);
    cr_expect(range_at(k, 3 * MIB)->more && !range_at(k, 3 * MIB + 32)->more);
    cr_expect_eq(range_at(k, 3 * MIB + 32)->crc, 55);
    for (uint32_t i = 0; i < k->n; i++) { // of a chunk that was changed later, of one that was cut off
        cr_expect(k->range[i].crc != 22 && k->range[i].crc != 44);
    }
    static char zeros[16];
    cr_expect_eq(range_at(k, 3 * MIB + 16)->crc, libdeflate_crc32(0, zeros, 16));
    sums_free(&s);
}

Test(sums, whose) {
    bool exact = false;
    struct sums s;
    cr_expect_eq(sums_read(&s, "/nowhere:/at/all"), -ENOENT);
    struct stat st = state_of(fd), other = state_of(dirs[2]);
    cr_expect_null(sums_find(&s, &st, &exact));
    sums_write(dirs, fd, NULL, 0, 0);
    cr_assert_eq(sums_read(&s, top), 0);
    cr_expect(sums_find(&s, &st, &exact) && exact);
    cr_expect_null(sums_find(&s, &other, &exact));
    st.st_dev++; // after a reboot
    cr_expect(sums_find(&s, &st, &exact) && exact);
    st.st_ctim.tv_nsec ^= 1;
    cr_expect(sums_find(&s, &st, &exact) && !exact);
    sums_free(&s);
}

Test(sums, renamed) {
    struct sums s;
    bool exact = false;
    sums_write(dirs, fd, NULL, 0, 0);
    struct stat st = state_of(fd);
    struct log_identity from = {.dev = st.st_dev, .ino = st.st_ino, .ctime = st.st_ctim};
    st.st_ctim.tv_sec += 5;
    sums_write_moved(dirs, &from, &st.st_ctim);
    st.st_ctim.tv_sec += 5;
    sums_write_moved(dirs, &from, &st.st_ctim); // from what it was not any more
    cr_assert_eq(sums_read(&s, top), 0);
    cr_expect(sums_find(&s, &st, &exact) && !exact);
    st.st_ctim.tv_sec -= 5;
    cr_expect(sums_find(&s, &st, &exact) && exact);
    sums_free(&s);
}

Test(sums, torn_ones) {
    struct stat st[8];
    char name[160];
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "%s/f%d", top, i);
        int f = open(name, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        sums_write(dirs, f, NULL, 0, 0);
        st[i] = state_of(f);
        close(f);
        append_bytes("torn record", (size_t)i); // any length
    }
    snprintf(name, sizeof name, "%s/sums", dir);
    int f = open(name, O_RDWR | O_CLOEXEC);
    cr_assert_eq(pwrite(f, "?", 1, 60), 1); // in the body of the first
    close(f);
    struct sums s;
    bool exact;
    cr_assert_eq(sums_read(&s, top), 0);
    for (int i = 0; i < 8; i++) {
        cr_expect_eq(sums_find(&s, &st[i], &exact) != NULL, i > 0, "number %d", i);
    }
    sums_free(&s);
}

Test(sums, bounded) {
    static struct log_part p[8192]; // a record of 0.2 MB
    for (uint32_t i = 0; i < ARRAY_LEN(p); i++) {
        p[i] = part(i, 0, 1, i);
    }
    cr_assert_eq(ftruncate(fd, (off_t)(CHUNK_SIZE * ARRAY_LEN(p))), 0);
    struct stat kept, st = state_of(fd);
    static const char *const names[] = {"sums", "sums.old"};
    for (int i = 0; i < 120; i++) {
        sums_write(dirs, fd, p, ARRAY_LEN(p), 0);
        for (size_t k = 0; k < ARRAY_LEN(names); k++) {
            char path[160];
            snprintf(path, sizeof path, "%s/%s", dir, names[k]);
            cr_expect(stat(path, &kept) < 0 || kept.st_size <= (off_t)SUMS_MOST);
        }
    }
    cr_expect_gt(kept.st_size, (off_t)SUMS_MOST / 2, "the old one has %ld bytes", (long)kept.st_size);
    struct sums s;
    bool exact = false;
    cr_assert_eq(sums_read(&s, top), 0);
    cr_expect(sums_find(&s, &st, &exact) && exact);
    cr_expect(s.n > 40 && s.n < 110, "%zu of 120 are left", s.n);
    sums_free(&s);
}
