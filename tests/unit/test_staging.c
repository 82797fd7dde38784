// SPDX-License-Identifier: MIT
//
// Proves: staging memory is sealed, aligned, resident when said so, given back when released; and what room there is by
// cgroups v1 and v2. How: mincore, smaps and st_blocks of a real memfd; trees of small files in place of /proc and
// /sys/fs/cgroup. Cannot see: kernels without MADV_COLLAPSE, fragmented memory, a limit that is really hit.

#include "core/staging.h"
#include "io_rig.h"

#include <stdarg.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define MAX (256 * MIB)

static int fd;
static char *window;

static void set_up(void) {
    fd = staging_create(MAX);
    cr_assert_geq(fd, 0);
    window = staging_window(MAX);
    cr_assert(window);
}

TestSuite(staging, .init = set_up, .timeout = 60);
TestSuite(room, .timeout = 60);

static uint64_t resident_in_file(void) {
    struct stat st;
    cr_assert_eq(fstat(fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

/** The field `key` (kB) of the mapping that begins at `addr`, in bytes; with "VmFlags:" 1 if it has `flag`. */
static uint64_t smaps(const void *addr, const char *key, const char *flag) {
    FILE *f = fopen("/proc/self/smaps", "r");
    cr_assert(f);
    char line[512], want[32];
    snprintf(want, sizeof want, "%lx-", (unsigned long)(uintptr_t)addr);
    bool inside = false;
    uint64_t value = 0;
    while (fgets(line, sizeof line, f)) {
        if (strchr(line, '-') && strspn(line, "0123456789abcdef") == strcspn(line, "-")) {
            inside = strncmp(line, want, strlen(want)) == 0;
        } else if (inside && strncmp(line, key, strlen(key)) == 0) {
            value = flag ? strstr(line, flag) != NULL : strtoull(line + strlen(key), NULL, 10) * KIB;
        }
    }
    fclose(f);
    return value;
}

Test(staging, sealed_and_empty) {
    struct stat st;
    cr_assert_eq(fstat(fd, &st), 0);
    cr_assert_eq(st.st_size, (off_t)MAX);
    cr_assert_eq(st.st_blocks, 0);
    cr_assert(ftruncate(fd, MAX / 2) == -1 && errno == EPERM);
    cr_assert(ftruncate(fd, MAX * 2) == -1 && errno == EPERM);
    cr_assert(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == -1 && errno == EPERM);
    cr_assert_eq(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
}

Test(staging, window_aligned_without_memory) {
    cr_assert_eq((uintptr_t)window % HUGE_PAGE, 0);
    cr_assert_eq(smaps(window, "Size:", NULL), MAX);
    cr_assert_eq(smaps(window, "Rss:", NULL), 0);
    cr_assert_null(staging_window(1ull << 60));
}

Test(staging, maps_at_its_place) {
    cr_assert_eq(staging_map(window, fd, STAGING_STEP, STAGING_STEP, 0), 0);
    char *p = window + STAGING_STEP;
    cr_assert_eq(pwrite(fd, "hello", 5, STAGING_STEP + 10), 5);
    cr_assert_eq(memcmp(p + 10, "hello", 5), 0);
    cr_assert_eq(smaps(p, "VmFlags:", " dd"), 1, "would be dumped");
    cr_assert_eq(smaps(p, "VmFlags:", " dc"), 0, "would not be inherited");
    char *second = staging_window(MAX); // a client's
    cr_assert_eq(staging_map(second, fd, STAGING_STEP, CHUNK_SIZE, 1), 0);
    cr_assert_eq(memcmp(second + STAGING_STEP + 10, "hello", 5), 0);
    cr_assert_eq(smaps(second + STAGING_STEP, "VmFlags:", " dc"), 1, "would be inherited");
    second[STAGING_STEP + 10] = 'H';
    cr_assert_eq(p[10], 'H');
    cr_assert_eq(staging_map(window, 9999, 0, STAGING_STEP, 0), -EBADF);
}

Test(staging, populate_makes_resident) {
    int huge = -1;
    cr_assert_eq(staging_map(window, fd, 0, STAGING_STEP, 0), 0);
    cr_assert_eq(pwrite(fd, "kept", 4, 3 * MIB), 4);
    cr_assert_eq(staging_populate(window, STAGING_STEP, &huge), 0);
    cr_assert_eq(resident_in_file(), STAGING_STEP);
    cr_assert_eq(memcmp(window + 3 * MIB, "kept", 4), 0);
    unsigned char in_core[STAGING_STEP / 4096];
    cr_assert_eq(mincore(window, STAGING_STEP, in_core), 0);
    for (size_t i = 0; i < sizeof in_core; i++) {
        cr_assert(in_core[i] & 1, "page %zu", i);
    }
    cr_assert_eq(smaps(window, "Rss:", NULL), STAGING_STEP, "not in the page table");
    cr_assert(huge == 0 || huge == 1);
    uint64_t by_huge = smaps(window, "ShmemPmdMapped:", NULL);
    cr_assert_eq(huge, by_huge == STAGING_STEP, "huge %d, but %llu bytes", huge, (unsigned long long)by_huge);
    cr_log_info("huge pages: %d", huge);
}

Test(staging, populate_again_is_harmless) {
    int huge;
    cr_assert_eq(staging_map(window, fd, 0, STAGING_STEP, 0), 0);
    cr_assert_eq(staging_populate(window, STAGING_STEP, &huge), 0);
    memset(window, 'x', STAGING_STEP);
    cr_assert_eq(staging_populate(window, STAGING_STEP, &huge), 0);
    for (size_t i = 0; i < STAGING_STEP; i += 4096) {
        cr_assert_eq(window[i], 'x');
    }
}

Test(staging, release_gives_back) {
    int huge;
    cr_assert_eq(staging_map(window, fd, 0, 2 * STAGING_STEP, 0), 0);
    cr_assert_eq(staging_populate(window, 2 * STAGING_STEP, &huge), 0);
    memset(window, 'x', 2 * STAGING_STEP);
    cr_assert_eq(staging_release(window, fd, 0, STAGING_STEP), 0);
    cr_assert_eq(resident_in_file(), STAGING_STEP);
    cr_assert_eq(smaps(window, "Rss:", NULL), STAGING_STEP);
    cr_assert_eq(window[STAGING_STEP], 'x');
    cr_assert_eq(window[0], 0); // taken anew
    struct stat st;
    fstat(fd, &st);
    cr_assert_eq(st.st_size, (off_t)MAX);
}

Test(staging, budget_rounds) {
    cr_assert_eq(staging_budget(1), STAGING_STEP);
    cr_assert_eq(staging_budget(STAGING_STEP), STAGING_STEP);
    cr_assert_eq(staging_budget(2 * STAGING_STEP - 1), STAGING_STEP);
    cr_assert_eq(staging_budget(GIB), GIB);
    cr_assert_eq(staging_budget(UINT64_MAX), CHUNKS_MAX * CHUNK_SIZE);
    uint64_t by_default = staging_budget(0);
    cr_assert(by_default >= STAGING_STEP && by_default % STAGING_STEP == 0);
    cr_assert_leq(by_default, max_u64(staging_room() / 3, STAGING_STEP)); // a quarter; room moves meanwhile
}

// ---- Room, by trees of small files

static char root[256];

static void file(const char *path, const char *fmt, ...) {
    char command[600], full[512];
    snprintf(full, sizeof full, "%s/%s", root, path);
    snprintf(command, sizeof command, "mkdir -p \"$(dirname '%s')\"", full);
    cr_assert_eq(system(command), 0);
    FILE *f = fopen(full, "w");
    cr_assert(f, "%s", full);
    va_list ap;
    va_start(ap, fmt);
    vfprintf(f, fmt, ap);
    va_end(ap);
    fclose(f);
}

static void v2(const char *group, const char *max, const char *high, uint64_t current, uint64_t inactive) {
    char path[300];
    snprintf(path, sizeof path, "cg%s/memory.max", group);
    file(path, "%s\n", max);
    snprintf(path, sizeof path, "cg%s/memory.high", group);
    file(path, "%s\n", high);
    snprintf(path, sizeof path, "cg%s/memory.current", group);
    file(path, "%llu\n", (unsigned long long)current);
    snprintf(path, sizeof path, "cg%s/memory.stat", group);
    file(path, "anon 123\nfile 999\nactive_file 5\ninactive_file %llu\nslab 7\n", (unsigned long long)inactive);
}

static void v1(const char *group, uint64_t limit, uint64_t usage, uint64_t inactive, uint64_t total_inactive) {
    char path[300];
    snprintf(path, sizeof path, "cg/memory%s/memory.limit_in_bytes", group);
    file(path, "%llu\n", (unsigned long long)limit);
    snprintf(path, sizeof path, "cg/memory%s/memory.usage_in_bytes", group);
    file(path, "%llu\n", (unsigned long long)usage);
    snprintf(path, sizeof path, "cg/memory%s/memory.stat", group);
    file(path, "cache 1\ninactive_file %llu\ntotal_cache 2\ntotal_inactive_file %llu\n", (unsigned long long)inactive,
         (unsigned long long)total_inactive);
}

/** A machine with 100 GiB available, and the text of /proc/self/cgroup. */
static void machine(const char *cgroup) {
    if (root[0]) {
        rig_remove(root); // the machine before
    }
    snprintf(root, sizeof root, "%s", rig_dir());
    file("proc/meminfo", "MemTotal:  209715200 kB\nMemFree:  1 kB\nMemAvailable:   104857600 kB\nBuffers: 3 kB\n");
    file("proc/self/cgroup", "%s", cgroup);
}

static void expect_room(uint64_t want) {
    char proc[300], cg[300];
    snprintf(proc, sizeof proc, "%s/proc", root);
    snprintf(cg, sizeof cg, "%s/cg", root);
    uint64_t got = staging_room_at(proc, cg);
    cr_assert_eq(got, want, "room %llu, not %llu", (unsigned long long)got, (unsigned long long)want);
}

#define NONE_V1 9223372036854771712ull

Test(room, machine_alone) {
    machine("0::/\n");
    expect_room(100 * GIB);
    machine("");
    expect_room(100 * GIB);
    rig_remove(root);
}

Test(room, unknown_is_none) {
    cr_assert_eq(staging_room_at("/nonexistent", "/nonexistent"), 0);
}

Test(room, v2_page_cache_counts) {
    machine("0::/job\n");
    v2("/job", "1073741824", "max", 1000 * MIB, 900 * MIB);
    expect_room(924 * MIB);
    v2("/job", "1073741824", "max", 1000 * MIB, 0);
    expect_room(24 * MIB);
    v2("/job", "1073741824", "max", 2 * GIB, 0); // over its limit
    expect_room(0);
    v2("/job", "0", "max", 0, 0);
    expect_room(0);
    rig_remove(root);
}

Test(room, v2_high_and_nested) {
    machine("0::/a/b/c\n");
    v2("/a", "max", "4294967296", GIB, 0); // 3 GiB by memory.high
    v2("/a/b", "8589934592", "max", GIB, 0);
    v2("/a/b/c", "max", "max", GIB, 0);
    expect_room(3 * GIB);
    v2("/a/b", "8589934592", "1610612736", GIB, 100 * MIB);
    expect_room(612 * MIB);
    v2("/a/b/c", "1258291200", "max", 1024 * MIB, 0);
    expect_room(176 * MIB);
    rig_remove(root);
}

Test(room, v2_leaf_without_controller) {
    machine("0::/a/leaf\n");
    v2("/a", "1073741824", "max", 0, 0);
    file("cg/a/leaf/cgroup.procs", "1\n");
    expect_room(GIB);
    rig_remove(root);
}

Test(room, v2_container) { // the mount shows the container's part only, the path is the host's, or leads out of it
    machine("0::/docker/0123/sub\n");
    v2("", "2147483648", "max", GIB, 0);
    expect_room(GIB);
    v2("/sub", "536870912", "max", 0, 0);
    expect_room(512 * MIB);
    file("proc/self/cgroup", "0::/../other\n");
    expect_room(GIB);
    rig_remove(root);
}

Test(room, v1_nested_and_total) {
    machine("5:cpu,cpuacct:/x\n4:hugetlb,memory:/slurm/job_1\n1:name=systemd:/y\n0::/\n");
    v1("", NONE_V1, 50 * GIB, 0, 0);
    expect_room(100 * GIB);
    v1("/slurm", 8 * GIB, 6 * GIB, 1, GIB); // the total counts, the group's own cache is part of it
    v1("/slurm/job_1", 16 * GIB, 6 * GIB, 0, 0);
    expect_room(3 * GIB);
    v1("/slurm/job_1", 6 * GIB + 5 * MIB, 6 * GIB, 0, 0);
    expect_room(5 * MIB);
    rig_remove(root);
}

Test(room, v1_container) {
    machine("4:memory:/docker/0123\n");
    v1("", 400 * MIB, 398 * MIB, 350 * MIB, 350 * MIB);
    expect_room(352 * MIB);
    rig_remove(root);
}

Test(room, hybrid) { // memory in v1's hands, an empty v2 beside it; and v2's memory at /unified
    machine("4:memory:/a\n0::/a\n");
    v1("/a", GIB, 0, 0, 0);
    file("cg/unified/a/cgroup.procs", "1\n");
    expect_room(GIB);
    machine("0::/a\n");
    v2("/unified/a", "536870912", "max", 0, 0);
    expect_room(512 * MIB);
    rig_remove(root);
}

Test(room, here) { // the real files: a sane number, quickly
    uint64_t room = staging_room();
    cr_assert(room > 0 && room < 1ull << 50, "%llu", (unsigned long long)room);
}
