// SPDX-License-Identifier: MIT
//
// Proves: log's formatter agrees with snprintf on the conversions it knows, and a line is one write, cut and clean.
// How: a table of formats run through both; lines are caught in a pipe. errno's texts are held against glibc's.
// Cannot see: whether it is safe in a signal handler (it makes one system call and uses its own stack only).

#include "core/log.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SAME(cap, ...)                                                                                                 \
    do {                                                                                                               \
        char a[256], b[256];                                                                                           \
        memset(a, 'Z', sizeof a);                                                                                      \
        memset(b, 'Z', sizeof b);                                                                                      \
        int na = log_format(a, cap, __VA_ARGS__), nb = snprintf(b, cap, __VA_ARGS__);                                  \
        cr_expect_eq(na, nb, "%d, not %d: %s", na, nb, #__VA_ARGS__);                                                  \
        cr_expect_arr_eq(a, b, sizeof a, #__VA_ARGS__);                                                                \
    } while (0)

#pragma GCC diagnostic ignored "-Wformat-truncation"
#pragma GCC diagnostic ignored "-Wformat-zero-length"

Test(log, format_is_snprintf) {
    SAME(256, "");
    SAME(256, "plain");
    SAME(256, "%d %i %u %x", -1, 0, 42u, 0xbeefu);
    SAME(256, "%d %d", INT_MIN, INT_MAX);
    SAME(256, "%ld %lu %lx", LONG_MIN, ULONG_MAX, ULONG_MAX);
    SAME(256, "%lld %llu %llx", LLONG_MIN, ULLONG_MAX, 1ull << 63);
    SAME(256, "%zd %zu %zx", (ssize_t)-5, SIZE_MAX, (size_t)0);
    SAME(256, "%s|%s|%c|%%", "a", "", 'x');
    SAME(256, "%s %d %s %d", "na\xc3\xafve", 1, "two", 3);
    SAME(256, "100%%");
    SAME(5, "%s", "12345");
    SAME(6, "%s", "12345");
    SAME(1, "%d", 12345);
    SAME(3, "%%%%%%");
}

Test(log, edges) {
    cr_expect_eq(log_format(NULL, 0, "%s-%d", "abc", 7), 5);
    char b[64];
    const char *volatile none = NULL;
    cr_expect_eq(log_format(b, sizeof b, "%s", none), 6);
    cr_expect_str_eq(b, "(null)");
    const char *volatile unknown = "a %d b %f c %s"; // behind one that it does not know nothing is read
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
    log_format(b, sizeof b, unknown, 1, 2.0, "x");
    cr_expect_str_eq(b, "a 1 b %f c %s");
    unknown = "x%";
    log_format(b, sizeof b, unknown);
    cr_expect_str_eq(b, "x%");
#pragma GCC diagnostic pop
}

static int pipe_log(enum log_level level) {
    int p[2];
    cr_assert_eq(pipe2(p, O_NONBLOCK), 0);
    log_setup(level, p[1], "pre");
    return p[0];
}

Test(log, lines) {
    char b[4096];
    int in = pipe_log(LOG_INFO);
    cr_expect_eq(log_level(), LOG_INFO);
    errno = 77;
    log_error("one %d", 1);
    log_info("two");
    log_debug("three");
    cr_expect_eq(errno, 77);
    ssize_t n = read(in, b, sizeof b);
    cr_expect_eq(n, 20);
    cr_expect_eq(memcmp(b, "pre: one 1\npre: two\n", 20), 0);
    log_setup(LOG_ERROR, log_fd(), "pre");
    log_info("no");
    cr_expect_eq(read(in, b, sizeof b), -1);
}

Test(log, a_line_stays_one_line) {
    char b[4096], text[3000];
    int in = pipe_log(LOG_DEBUG);
    log_error("name 'a\nfastckpt: forged\x1b[2J\x7f' \xc3\xa9");
    ssize_t n = read(in, b, sizeof b);
    cr_assert_gt(n, 0);
    b[n] = '\0';
    cr_expect_str_eq(b, "pre: name 'a?fastckpt: forged?[2J?' \xc3\xa9\n");
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    log_error("%s", text);
    n = read(in, b, sizeof b);
    cr_expect_eq(n, 1000);
    cr_expect_eq(b[n - 1], '\n');
    log_setup(LOG_ERROR, -1, "pre");
    errno = 3;
    log_error("nowhere to go");
    cr_expect_eq(errno, 3);
}

Test(log, errno_texts_are_glibcs) {
    for (int e = 0; e < 134; e++) {
        const char *text = log_errno(e), *glibc = strerrordesc_np(e);
        cr_expect(strcmp(text, "Unknown error") == 0 || (glibc && strcmp(text, glibc) == 0), "%d: %s", e, text);
    }
    static const int must[] = {EIO, ENOSPC, EDQUOT, EROFS, EACCES, EPERM, ENOENT, ENAMETOOLONG, ENOMEM, EMFILE};
    for (size_t i = 0; i < sizeof must / sizeof *must; i++) {
        cr_expect_str_neq(log_errno(must[i]), "Unknown error", "%d", must[i]);
    }
    cr_expect_str_eq(log_errno(-1), "Unknown error");
}

Test(log, directories) {
    char buf[16];
    int fd = open("/usr/bin", O_PATH | O_DIRECTORY);
    log_directory(fd, buf, sizeof buf);
    cr_expect_str_eq(buf, "/usr/bin/");
    log_directory(fd, buf, 10);
    cr_expect_str_eq(buf, "/usr/bin/");
    log_directory(fd, buf, 9); // its end, as much as there is room for
    cr_expect_str_eq(buf, ".../bin/");
    close(fd);
    log_directory(fd, buf, sizeof buf);
    cr_expect_str_eq(buf, "");
}
