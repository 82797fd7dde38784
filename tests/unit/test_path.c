// SPDX-License-Identifier: MIT
//
// Proves: paths are normalised by text, globs match as path.h says, and lists of patterns choose as design 4 says.
// How: tables of inputs and results; globs without classes are also held against fnmatch on random short strings.
// Cannot see: symlinks and files, which path never looks at; whether the shim asks with the right path.

#include "core/path.h"
#include "core/util.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

Test(path, normalise) {
    static const char *const rows[][3] = {
        {"/w", "a", "/w/a"},
        {"/w", "/a", "/a"},
        {"/w", "/", "/"},
        {"/w", "", "/w"},
        {"/", "", "/"},
        {"/", "a", "/a"},
        {"/w", "./a", "/w/a"},
        {"/w", "a/.", "/w/a"},
        {"/w", "a//b///c/", "/w/a/b/c"},
        {"/w/x", "../a", "/w/a"},
        {"/w", "../../../a", "/a"},
        {"/w", "..", "/"},
        {"/w", "a/../b", "/w/b"},
        {"/w", "/a/./b/../../c", "/c"},
        {"/w", "...", "/w/..."},
        {"/w", "..a", "/w/..a"},
        {"/w", ".a", "/w/.a"},
        {"/w", "a..", "/w/a.."},
        {"//w//", "a", "/w/a"},
        {"/w", "//a", "/a"},
        {"/w/./v/..", "a", "/w/a"},
        {"/\xc3\xbc", "\xe6\xa8\xa1/\xff", "/\xc3\xbc/\xe6\xa8\xa1/\xff"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char buf[64];
        int n = path_normalise(rows[i][0], rows[i][1], buf, sizeof buf);
        cr_expect_str_eq(buf, rows[i][2], "%s + %s = %s", rows[i][0], rows[i][1], buf);
        cr_expect_eq(n, (int)strlen(buf));
    }
}

Test(path, normalise_keeps_to_its_room) {
    char buf[8];
    for (size_t cap = 0; cap <= 8; cap++) {
        memset(buf, 'Z', sizeof buf);
        int n = path_normalise("/ab", "cde", buf, cap);
        cr_expect_eq(n, cap >= 8 ? 7 : -ENAMETOOLONG, "%zu: %d", cap, n);
        for (size_t i = cap; i < sizeof buf; i++) {
            cr_expect_eq(buf[i], 'Z');
        }
    }
    cr_expect_eq(path_normalise("/ab", "/", buf, 2), 1);
    cr_expect_eq(path_normalise("/ab", "/", buf, 1), -ENAMETOOLONG);
}

Test(path, glob) {
    static const struct {
        const char *pattern, *text;
        bool match;
    } rows[] = {
        {"", "", true},
        {"", "a", false},
        {"*", "", true},
        {"*", "a/b", true},
        {"**", "abc", true},
        {"a*", "a", true},
        {"*a", "ba", true},
        {"*a", "ab", false},
        {"a*b*c", "a-b-b-c", true},
        {"a*b*c", "a-c-b", false},
        {"*ab", "aaab", true},
        {"*.pt", "x.pt.pt", true},
        {"/ckpt/*", "/ckpt/a/b", true},
        {"/ckpt/*", "/ckpt/", true},
        {"/ckpt/*", "/ckpt", false},
        {"?", "a", true},
        {"?", "", false},
        {"?", "/", false},
        {"a?c", "abc", true},
        {"[abc]", "b", true},
        {"[abc]", "d", false},
        {"[a-c]x", "bx", true},
        {"[!a-c]", "d", true},
        {"[!a-c]", "b", false},
        {"[^a-c]", "d", true},
        {"[!a]", "/", false},
        {"[/]", "/", false},
        {"[]a]", "]", true},
        {"[]a]", "a", true},
        {"[!]a]", "b", true},
        {"[!]a]", "]", false},
        {"[a-]", "-", true},
        {"[-a]", "-", true},
        {"[\\]]", "]", true},
        {"[\\a-c]", "b", true},
        {"[c-a]", "b", false},
        {"[a", "[a", true},
        {"[", "[", true},
        {"*[0-9]", "step10", true},
        {"\\*", "*", true},
        {"\\*", "a", false},
        {"\\[a]", "[a]", true},
        {"a\\", "a\\", true},
        {"\\\\", "\\", true},
        {"[\xc3-\xc4]?", "\xc3\xbc", true},
        {"*\xe6\xa8\xa1*", "/x/\xe6\xa8\xa1\xe5\x9e\x8b.pt", true},
        {"\xff*", "\xff\xfe", true},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        bool got = path_glob(rows[i].pattern, strlen(rows[i].pattern), rows[i].text);
        cr_expect_eq(got, rows[i].match, "'%s' on '%s': %d", rows[i].pattern, rows[i].text, got);
    }
    cr_expect(path_glob("abXX", 2, "ab"), "only pattern_len bytes of the pattern count");
}

Test(path, glob_is_fnmatch) {
    srand(20240607);
    for (int round = 0; round < 200000; round++) {
        char p[8], t[8];
        size_t np = (size_t)rand() % 7, nt = (size_t)rand() % 7;
        for (size_t i = 0; i < np; i++) {
            p[i] = "ab*?*"[rand() % 5];
        }
        for (size_t i = 0; i < nt; i++) {
            t[i] = "ab"[rand() % 2];
        }
        p[np] = t[nt] = '\0';
        cr_assert_eq(path_glob(p, np, t), fnmatch(p, t, 0) == 0, "'%s' on '%s'", p, t);
    }
}

Test(path, glob_is_not_exponential, .timeout = 20) {
    static char text[4096], pattern[4096];
    memset(text, 'a', sizeof text - 1);
    for (size_t i = 0; i + 2 < sizeof pattern; i += 2) {
        memcpy(pattern + i, "a*", 2);
    }
    pattern[sizeof pattern - 2] = 'b';
    cr_expect_not(path_glob(pattern, strlen(pattern), text));
}

Test(path, match) {
    static const struct {
        const char *patterns, *path;
        bool match;
    } rows[] = {
        {"", "/ckpt/a", false},
        {":", "/ckpt/a", false},
        {"/ckpt/*", "/ckpt/a", true},
        {"/ckpt/*", "/ckpt/a/b/c.pt", true},
        {"/ckpt/*", "/data/ckpt/a", false},
        {"/ckpt/", "/ckpt/a/b", true},
        {"/ckpt/", "/ckpt", false},
        {"*.pt", "/any/where/m.pt", true},
        {"*.pt", "/any.pt/where", false},
        {"*", "/a/b", true},
        {"ckpt/*", "/home/u/ckpt/x", true},
        {"ckpt/*", "/home/u/myckpt/x", false},
        {"ckpt/*", "/ckpt/x", true},
        {"step_*/model.bin", "/r/step_5/model.bin", true},
        {"step_*/model.bin", "/r/step_5/model.binx", false},
        {"ckpt/", "/r/ckpt/x/y", true},
        {"/a/*::/b/*:", "/b/x", true},
        {"/a/*:/b/*", "/c/x", false},
        {"/ckpt/*:!*.tmp", "/ckpt/a.tmp", false},
        {"!*.tmp:/ckpt/*", "/ckpt/a.tmp", false},
        {"!*.tmp:/ckpt/*", "/ckpt/a.pt", true},
        {"!/ckpt/old/*:/ckpt/*", "/ckpt/old/a", false},
        {"!*.tmp", "/ckpt/a.pt", false},
        {"\\!odd", "/x/!odd", true},
        {"/ckpt/12\\:30/*", "/ckpt/12:30/a", true},
        {"*.\xc3\xa9t\xc3\xa9", "/x/mod\xc3\xa8le.\xc3\xa9t\xc3\xa9", true},
        {"/\xe6\xa8\xa1\xe5\x9e\x8b/*", "/\xe6\xa8\xa1\xe5\x9e\x8b/\xff\xfe", true},
        // what never is a checkpoint
        {"/ckpt/*", "/ckpt/train.log", false},
        {"/ckpt/*", "/ckpt/slurm.out", false},
        {"/ckpt/*", "/ckpt/slurm.err", false},
        {"/ckpt/*", "/ckpt/m.csv", false},
        {"/ckpt/*", "/ckpt/m.jsonl", false},
        {"/ckpt/*", "/ckpt/m.json", true},
        {"/ckpt/*", "/ckpt/x.pid", false},
        {"/ckpt/*", "/ckpt/x.lock", false},
        {"/ckpt/*", "/ckpt/lib.so", false},
        {"/ckpt/*", "/ckpt/lib.so.1.2", false},
        {"/ckpt/*", "/ckpt/m.pyc", false},
        {"/ckpt/*", "/ckpt/m.pyo", false},
        {"/ckpt/*", "/ckpt/m.py", true},
        {"/ckpt/*", "/ckpt/events.out.tfevents.123.host", false},
        {"/ckpt/*", "/ckpt/x.log/model", true},
        {"*", "/ckpt/train.log", false},
        // unless a pattern names it
        {"*.log", "/ckpt/train.log", true},
        {"/ckpt/*:*.log", "/ckpt/train.log", true},
        {"/ckpt/*.log", "/ckpt/train.log", true},
        {"/ckpt/train.log", "/ckpt/train.log", true},
        {"/ckpt/*.py[co]", "/ckpt/m.pyc", true},
        {"*.out", "/ckpt/train.log", false},
        {"train.*", "/ckpt/train.log", false},
        {"events.out.tfevents*", "/ckpt/events.out.tfevents.1", true},
        {"*.log:!/ckpt/*", "/ckpt/train.log", false},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        bool got = path_match(rows[i].patterns, rows[i].path);
        cr_expect_eq(got, rows[i].match, "'%s' on '%s': %d", rows[i].patterns, rows[i].path, got);
    }
}

Test(path, check_patterns) {
    static const struct {
        const char *patterns, *names; // what the line names, NULL: it is good
    } rows[] = {
        {"", NULL},
        {"/ckpt/*", NULL},
        {"::a::", NULL},
        {"!*.tmp:a[0-9]:[]x]:[!]]", NULL},
        {"a\\:b", NULL},
        {"\\[", NULL},
        {"/ok/*:/bad/[a", "'/bad/[a'"},
        {"[", "']'"},
        {"[]", "']'"},
        {"[!]", "']'"},
        {"[a\\]", "']'"},
        {"x:!", "'!'"},
        {"!:x", "'!'"},
        {"a\\", "backslash"},
        {"a/*:../b/*", "'../b/*'"},
        {"./a", "'./a'"},
        {"!/a/../b", "'!/a/../b'"},
        {"/a/.", "'/a/.'"},
        {"/ckpt//*", "'/ckpt//*'"},
        {"/a/.b/..c/*/:!/x/:.d:/", NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char why[256] = "";
        int ret = path_check_patterns(rows[i].patterns, why, sizeof why);
        cr_expect_eq(ret, rows[i].names ? -EINVAL : 0, "'%s': %d", rows[i].patterns, ret);
        cr_expect(!rows[i].names || strstr(why, rows[i].names), "'%s': %s", rows[i].patterns, why);
    }
    static char wide[6000];
    memset(wide, 'a', sizeof wide - 1);
    char why[256];
    cr_expect_eq(path_check_patterns(wide, why, sizeof why), -EINVAL);
    cr_expect_lt(strlen(why), 200);
    wide[3000] = ':';
    cr_expect_eq(path_check_patterns(wide, why, sizeof why), 0);
}

Test(path, base) {
    cr_expect_str_eq(path_base("/a/b"), "b");
    cr_expect_str_eq(path_base("/a/"), "");
    cr_expect_str_eq(path_base("a"), "a");
    cr_expect_str_eq(path_base("/"), "");
}
