// SPDX-License-Identifier: MIT
//
// Proves: names are made absolute from any directory, matched as given and by their directory's own path, and found
// behind symlinks; what has no place is refused. How: real directories and links in a temporary directory, a list of
// rows. Cannot see: what capture.c makes of a match, names in other mount namespaces.

#include "shim/policy.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char top[PATH_MAX];

static void make_tree(void) {
    char tmpl[] = "/tmp/fastckpt-policy-XXXXXX", real[PATH_MAX];
    cr_assert(mkdtemp(tmpl) != NULL && realpath(tmpl, real) != NULL);
    snprintf(top, sizeof top, "%s", real);
    cr_assert_eq(chdir(top), 0);
    cr_assert_eq(mkdir("ckpt", 0755), 0);
    cr_assert_eq(mkdir("ckpt/deep", 0755), 0);
    cr_assert_eq(mkdir("other", 0755), 0);
    cr_assert_eq(symlink("ckpt", "alias"), 0);
    cr_assert_eq(symlink("../ckpt/target", "other/link"), 0);
    cr_assert_eq(symlink("link", "other/again"), 0);
    cr_assert_eq(symlink("loop", "other/loop"), 0);
    cr_assert_eq(symlink("/proc/self/fd/0", "other/magic"), 0);
}

static void remove_tree(void) {
    char command[PATH_MAX + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", top);
    cr_assert_eq(chdir("/"), 0);
    cr_assert_eq(system(command), 0);
}

TestSuite(policy, .init = make_tree, .fini = remove_tree);

Test(policy, text_is_absolute_and_normal) {
    char buf[PATH_MAX], want[PATH_MAX + 32];
    cr_assert_gt(policy_text(AT_FDCWD, "/a//b/./c/../d", buf, sizeof buf), 0);
    cr_assert_str_eq(buf, "/a/b/d");
    snprintf(want, sizeof want, "%s/ckpt/x", top);
    cr_assert_gt(policy_text(AT_FDCWD, "./ckpt/deep/../x", buf, sizeof buf), 0);
    cr_assert_str_eq(buf, want);
    int dir = open("ckpt", O_PATH | O_DIRECTORY);
    cr_assert_gt(policy_text(dir, "x", buf, sizeof buf), 0);
    cr_assert_str_eq(buf, want);
    cr_assert_gt(policy_text(AT_FDCWD, "alias/x", buf, sizeof buf), 0);
    snprintf(want, sizeof want, "%s/alias/x", top);
    cr_assert_str_eq(buf, want, "as given: links are not followed");
    cr_assert_lt(policy_text(999, "x", buf, sizeof buf), 0);
    close(dir);
}

Test(policy, text_of_a_removed_directory_has_no_match) {
    cr_assert_eq(mkdir("gone", 0755), 0);
    cr_assert_eq(chdir("gone"), 0);
    cr_assert_eq(rmdir("../gone"), 0);
    cr_assert_not(policy_match("x", AT_FDCWD, "x"));
    cr_assert_eq(chdir(top), 0);
}

Test(policy, match_as_given_and_by_directory) {
    char pattern[PATH_MAX + 16];
    snprintf(pattern, sizeof pattern, "%s/ckpt/*", top);
    int ckpt = open("alias", O_PATH | O_DIRECTORY), root = open("/", O_PATH | O_DIRECTORY);
    cr_expect(policy_match(pattern, AT_FDCWD, "ckpt/a.pt"));
    cr_expect(policy_match(pattern, AT_FDCWD, "ckpt/deep/a.pt"));
    cr_expect_not(policy_match(pattern, AT_FDCWD, "alias/a.pt"));
    cr_expect(policy_match_in(pattern, ckpt, "a.pt"));
    cr_expect_not(policy_match_in(pattern, ckpt, "a.log"));
    cr_expect(policy_match_in("/x*", root, "xyz"));
    cr_expect_not(policy_match(pattern, AT_FDCWD, "other/a.pt"));
    cr_expect_not(policy_match("", AT_FDCWD, "ckpt/a.pt"));
    close(ckpt);
    close(root);
}

Test(policy, place_of_a_name) {
    static const struct {
        const char *path;
        bool follow;
        const char *dir, *name; // dir NULL: no place
    } rows[] = {
        {"ckpt/x", true, "ckpt", "x"},
        {"x", true, ".", "x"},
        {"/x", true, "/", "x"},
        {"ckpt//deep/../x", true, "ckpt", "x"},
        {"alias/x", true, "ckpt", "x"},
        {"other/link", true, "ckpt", "target"}, // what it points to need not exist
        {"other/link", false, "other", "link"},
        {"other/again", true, "ckpt", "target"},
        {"other/loop", false, "other", "loop"},
        {"other/loop", true, NULL, NULL},
        {"other/magic", false, "other", "magic"},
        {"other/magic", true, NULL, NULL}, // a link of /proc is no text
        {"ckpt/", true, NULL, NULL},
        {"ckpt/.", true, NULL, NULL},
        {"ckpt/..", true, NULL, NULL},
        {"", true, NULL, NULL},
        {"/", true, NULL, NULL},
        {"none/x", true, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct place p;
        struct stat st;
        int r = place_find(&p, AT_FDCWD, rows[i].path, rows[i].follow, NULL);
        if (rows[i].dir == NULL) {
            cr_expect_lt(r, 0, "'%s' has no place", rows[i].path);
            continue;
        }
        cr_assert_eq(r, 0, "'%s': %d", rows[i].path, r);
        cr_assert_eq(stat(rows[i].dir, &st), 0);
        cr_expect_str_eq(p.name, rows[i].name);
        cr_expect(p.dev == st.st_dev && p.ino == st.st_ino, "'%s' is elsewhere", rows[i].path);
        cr_expect_eq(fcntl(p.dir, F_GETFD), FD_CLOEXEC);
        place_close(&p);
    }
}

Test(policy, place_of_a_long_name) {
    char name[NAME_CAP + 2];
    struct place p;
    for (size_t i = 0; i < sizeof name; i++) {
        name[i] = 'n';
    }
    name[NAME_CAP] = '\0';
    cr_expect_eq(place_find(&p, AT_FDCWD, name, true, NULL), -ENAMETOOLONG);
    name[NAME_CAP - 1] = '\0';
    cr_expect_eq(place_find(&p, AT_FDCWD, name, true, NULL), 0);
    place_close(&p);
}
