// SPDX-License-Identifier: MIT
//
// Proves: a listing read from the engine's memfd knows exactly its names and gives those that are to be shown, as
// dirents; what is no such memfd is refused; a stream gives each entry once, by its positions too. How: memfds made by
// hand. Cannot see: whether the engine tells the right names, and readdir's hooks (tests/system/listing.py).

#include "shim/listing.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t record(char *at, const char *name, enum name_state state, uint64_t ino) {
    size_t len = align_up(offsetof(struct list_record, name) + strlen(name) + 1, 8);
    struct list_record *r = (struct list_record *)at;
    memset(r, 0, len);
    *r = (struct list_record){.ino = ino, .state = state, .len = (uint16_t)len, .type = DT_REG};
    memcpy(r->name, name, strlen(name));
    return len;
}

static struct listing *read_bytes(const void *bytes, size_t len) {
    int fd = memfd_create("test", 0);
    cr_assert_eq(write(fd, bytes, len), (ssize_t)len);
    struct listing *l = listing_read(fd);
    close(fd);
    return l;
}

static char bytes[1 << 20] __attribute__((aligned(8)));

Test(listing, names_and_entries) {
    size_t len = 0;
    char name[NAME_CAP];
    for (int i = 0; i < 3000; i++) {
        snprintf(name, sizeof name, "file-%d", i);
        len += record(bytes + len, name,
                      i % 3 == 0   ? NAME_OPEN
                      : i % 3 == 1 ? NAME_PENDING
                                   : NAME_NONE,
                      (uint64_t)i + 1);
    }
    struct listing *l = read_bytes(bytes, len);
    cr_assert_not_null(l);
    cr_expect_eq(listing_count(l), 2000);
    for (int i = 0; i < 3000; i++) {
        snprintf(name, sizeof name, "file-%d", i);
        cr_expect(listing_knows(l, name), "%s", name);
    }
    cr_expect_not(listing_knows(l, "file-3000"));
    cr_expect_not(listing_knows(l, ""));
    for (uint64_t i = 0; i < 2000; i++) {
        const struct dirent *e = listing_entry(l, i);
        uint64_t at;
        snprintf(name, sizeof name, "file-%d", (int)(i / 2 * 3 + i % 2));
        cr_expect_str_eq(e->d_name, name);
        cr_expect_eq(e->d_ino, i / 2 * 3 + i % 2 + 1);
        cr_expect_eq(e->d_type, DT_REG);
        cr_expect(listing_is_position(e->d_off, &at) && at == i + 1);
    }
    listing_free(l);
}

Test(listing, positions) {
    uint64_t at;
    cr_expect(listing_is_position(listing_position(0), &at) && at == 0);
    cr_expect(listing_is_position(listing_position(FILES_MAX), &at) && at == FILES_MAX);
    for (size_t i = 0; i < 5; i++) {
        static const off_t kernels[] = {0, 1, 512, INT64_MAX, -1};
        cr_expect_not(listing_is_position(kernels[i], &at));
    }
}

Test(listing, what_is_none) {
    size_t len = record(bytes, "a", NAME_OPEN, 1);
    struct list_record *r = (struct list_record *)bytes;
    cr_expect_null(read_bytes(bytes, 0));
    cr_expect_null(read_bytes(bytes, len - 8));
    cr_expect_null(read_bytes(bytes, len + 8)); // a record of no length
    for (uint16_t bad = 0; bad < 100; bad++) {
        r->len = bad;
        struct listing *l = read_bytes(bytes, len);
        cr_expect_eq(l != NULL, bad == len, "length %u", bad);
        listing_free(l);
    }
    r->len = (uint16_t)len;
    memset(r->name, 'x', len - offsetof(struct list_record, name)); // not terminated
    cr_expect_null(read_bytes(bytes, len));
    cr_expect_null(listing_read(-1));
}

Test(listing, a_stream) {
    static char dirs[300];
    size_t len = record(bytes, "a", NAME_OPEN, 1);
    len += record(bytes + len, "b", NAME_PENDING, 2);
    struct listing *l = read_bytes(bytes, len);
    int n = 0;
    while (n < 300 && stream_add((DIR *)&dirs[n], false)) {
        n++;
    }
    cr_expect(n > 200 && n < 300);
    cr_expect_eq(streams_count, (uint32_t)n);
    struct stream *s = stream_find((DIR *)&dirs[7]);
    cr_assert_not_null(s);
    cr_expect_null(stream_find((DIR *)&dirs[n]));
    cr_expect_null(stream_find(NULL));
    cr_expect_str_eq(stream_next(s, l)->d_name, "a");
    cr_expect_str_eq(stream_next(s, l)->d_name, "b");
    cr_expect_null(stream_next(s, l));
    cr_expect_null(stream_next(s, l));
    s->at = 1;
    cr_expect_str_eq(stream_next(s, l)->d_name, "b");
    stream_drop(s);
    cr_expect_null(stream_find((DIR *)&dirs[7]));
    cr_expect(stream_add((DIR *)&dirs[299], true), "the place is free again");
    s = stream_find((DIR *)&dirs[299]);
    cr_expect_null(stream_next(s, l), "read before: only the kernel's rest");
    listing_free(l);
}
