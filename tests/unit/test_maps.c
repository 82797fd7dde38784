// SPDX-License-Identifier: MIT
//
// Proves: mappings are found with their file, place and flags, the same by question and by text; which pages have been
// touched, and which are this process's own. How: mappings of each kind, made here. Cannot see kernels without
// PROCMAP_QUERY, on one that has it, but for the text.

#include "../../core/util.h"
#include "../../shim/maps.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define PAGES 1200 // more than are asked for at once
#define LEN   (PAGES * (size_t)MAPS_PAGE)

static int fd;
static struct stat st;

static char *map(int prot, int flags, int of, off_t off) {
    char *p = mmap(NULL, LEN, prot, flags, of, off);
    cr_assert(p != MAP_FAILED);
    return p;
}

static void setup(void) {
    fd = memfd_create("maps", 0);
    cr_assert(fd >= 0 && ftruncate(fd, 3 * LEN) == 0 && fstat(fd, &st) == 0);
}

struct sought {
    uint64_t addr;
    struct maps_area area;
    char name[64];
};

static bool is_it(void *arg, const struct maps_area *a, const char *name) {
    struct sought *s = arg;
    if (s->addr < a->from || s->addr >= a->to) {
        return true;
    }
    s->area = *a;
    strncpy(s->name, name, sizeof s->name - 1);
    return false;
}

static struct maps_area area_of(const void *p) {
    struct maps_area a = {0};
    struct sought s = {.addr = (uintptr_t)p};
    cr_assert_eq(maps_find(p, &a), 0);
    cr_assert_eq(maps_each(is_it, &s), 0);
    cr_expect(a.from == s.area.from && a.to == s.area.to && a.off == s.area.off && a.ino == s.area.ino &&
                  a.major == s.area.major && a.minor == s.area.minor && a.flags == s.area.flags,
              "the text says another thing");
    return a;
}

Test(maps, kinds, .init = setup) {
    struct maps_area a = area_of(map(PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 2 * MAPS_PAGE) + 5 * MAPS_PAGE + 7);
    cr_expect(a.ino == st.st_ino && a.major == major(st.st_dev) && a.minor == minor(st.st_dev));
    cr_expect_eq(a.off, 2 * MAPS_PAGE);
    cr_expect_eq(a.to - a.from, LEN);
    cr_expect_eq(a.flags, MAPS_READ | MAPS_WRITE);
    cr_expect_eq(area_of(map(PROT_READ, MAP_SHARED, fd, 0)).flags, MAPS_READ | MAPS_SHARED);
    cr_expect_eq(area_of(map(PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)).ino, 0);
    cr_expect_gt(area_of((const void *)(uintptr_t)&map).flags & MAPS_EXEC, 0);
    cr_expect_eq(area_of(&a).ino, 0, "the stack");
    char *gone = map(PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(gone, LEN);
    cr_expect_eq(maps_find(gone, &a), -ENOENT);
}

Test(maps, names, .init = setup) {
    struct sought s = {.addr = (uintptr_t)map(PROT_READ, MAP_SHARED, fd, 0)};
    cr_expect_eq(maps_each(is_it, &s), 0);
    cr_expect_str_eq(s.name, "/memfd:maps (deleted)");
    s = (struct sought){.addr = (uintptr_t)map(PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)};
    cr_expect_eq(maps_each(is_it, &s), 0);
    cr_expect_str_eq(s.name, "/dev/zero (deleted)");
}

Test(maps, own_pages, .init = setup) {
    char *p = map(PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    bool own = true;
    cr_expect_eq(maps_run(p, PAGES, &own), PAGES);
    cr_expect_not(own, "never touched");
    for (size_t i = 0; i < PAGES; i++) {
        (void)*(volatile char *)(p + i * MAPS_PAGE);
    }
    cr_expect_eq(maps_run(p, PAGES, &own), PAGES);
    cr_expect_not(own, "read alone");
    p[700 * MAPS_PAGE] = 1;
    p[701 * MAPS_PAGE + 9] = 1;
    cr_expect_eq(maps_run(p, PAGES, &own), 700);
    cr_expect_not(own);
    cr_expect_eq(maps_run(p + 700 * MAPS_PAGE, PAGES - 700, &own), 2);
    cr_expect(own);
    cr_expect_eq(maps_run(p + 702 * MAPS_PAGE, 3, &own), 3);
    cr_expect_not(own);
    madvise(p, LEN, MADV_PAGEOUT);
    cr_expect_eq(maps_run(p + 700 * MAPS_PAGE, 2, &own), 2);
    cr_expect(own, "swapped out, if there is swap");
}

Test(maps, touched) {
    char *p = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool rest = true;
    madvise(p, LEN, MADV_NOHUGEPAGE);
    cr_expect_eq(maps_touched(p, PAGES, &rest), 0);
    cr_expect_not(rest);
    p[0] = p[MAPS_PAGE] = 1;
    cr_expect_eq(maps_touched(p, PAGES, &rest), 2);
    cr_expect_not(rest);
    (void)*(volatile char *)(p + 1100 * MAPS_PAGE); // the zero page
    cr_expect_eq(maps_touched(p, PAGES, &rest), 2);
    cr_expect(rest);
    cr_expect_eq(maps_touched(p, 1100, &rest), 2);
    cr_expect_not(rest);
}

static bool any(void *arg, const struct maps_area *a, const char *name) {
    (void)arg, (void)a, (void)name;
    return true;
}

// The kernel writes each newline in four characters.
Test(maps, a_line_that_is_too_long) {
    char name[251], top[] = "/var/tmp/fastckpt-maps-XXXXXX";
    memset(name, '\n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    cr_assert_not_null(mkdtemp(top));
    int at[12] = {open(top, O_RDONLY | O_DIRECTORY)};
    for (int i = 1; i < 12; i++) {
        cr_assert_eq(mkdirat(at[i - 1], name, 0700), 0);
        at[i] = openat(at[i - 1], name, O_RDONLY | O_DIRECTORY);
    }
    int file = openat(at[11], "file", O_RDWR | O_CREAT, 0600);
    cr_assert(file >= 0 && ftruncate(file, 4096) == 0);
    cr_expect_eq(maps_each(any, NULL), 0);
    void *p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
    cr_expect_neq(p, MAP_FAILED);
    cr_expect_eq(maps_each(any, NULL), -ENAMETOOLONG, "the mappings behind it are not known");
    unlinkat(at[11], "file", 0);
    for (int i = 11; i > 0; i--) {
        unlinkat(at[i - 1], name, AT_REMOVEDIR);
    }
    rmdir(top);
}

Test(maps, sent_later) {
    int on = 1, s = socket(AF_INET, SOCK_STREAM, 0);
    if (s < 0 || setsockopt(s, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) < 0) {
        cr_skip_test("no such sockets here");
    }
    cr_expect(maps_any_direct());
    close(s);
    cr_expect_not(maps_any_direct());
}
