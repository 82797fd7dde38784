// SPDX-License-Identifier: MIT
//
// Proves: names of C++ functions and the interpreter's dump become the text that the line of a failure shows.
// How:    tables of symbols and of dumps, in pieces of every length, against what must come out.
// Cannot see: the walk over the stack and the interpreter itself (tests/system/callsite.py).

#include "shim/callsite_text.h"

#include <criterion/criterion.h>
#include <string.h>

Test(callsite, demangle) {
    static const struct {
        const char *symbol, *text;
    } rows[] = {
        {"main", "main"},
        {"H5FD_open", "H5FD_open"},
        {"_Z4savePKc", "save"},
        {"_ZN6caffe29serialize19PyTorchStreamWriter5setupERKNSt7__cxx1112basic_stringIcEE",
         "caffe2::serialize::PyTorchStreamWriter::setup"},
        {"_ZN6caffe29serialize6WriterC1ERKSs", "caffe2::serialize::Writer::Writer"},
        {"_ZN1a1bD2Ev", "a::b::~b"},
        {"_ZNK1a1bE", "a::b"},
        {"_ZNSt6threadC4Ev", "std::thread::thread"},
        {"_ZN1aIiE1bEv", "a"},
        {"_Z", "_Z"},
        {"_ZN", "_ZN"},
        {"_Z999999999999999999999x", "_Z999999999999999999999x"},
        {"_ZN5shortE", "short"},
        {"_ZN9shortE", "_ZN9shortE"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char buf[72];
        callsite_demangle(rows[i].symbol, buf, sizeof buf);
        cr_expect_str_eq(buf, rows[i].text, "%s: %s", rows[i].symbol, buf);
        for (size_t cap = 1; cap < sizeof buf; cap++) {
            memset(buf, 'x', sizeof buf);
            callsite_demangle(rows[i].symbol, buf, cap);
            cr_expect_lt(strnlen(buf, sizeof buf), cap, "%s in %zu", rows[i].symbol, cap);
        }
    }
}

Test(callsite, passed) {
    cr_expect(callsite_is_passed("libc.so.6"));
    cr_expect(callsite_is_passed("libstdc++.so.6"));
    cr_expect(callsite_is_passed("ld-linux-x86-64.so.2"));
    cr_expect(callsite_is_passed("libasan.so.8"));
    cr_expect(!callsite_is_passed("libcudart.so.12"));
    cr_expect(!callsite_is_passed("train"));
    cr_expect(!callsite_is_passed(""));
}

static void dump(struct callsite_frames *f, const char *text, size_t piece) {
    memset(f, 0, sizeof *f);
    for (size_t at = 0, n = strlen(text); at < n; at += piece) {
        callsite_frames_add(f, text + at, n - at < piece ? n - at : piece);
    }
}

Test(callsite, frames) {
    static const char torch[] =
        "Stack (most recent call first):\n"
        "  File \"/usr/lib/python3/dist-packages/torch/serialization.py\", line 287 in __init__\n"
        "  File \"/usr/lib/python3/dist-packages/torch/serialization.py\", line 441 in save\n"
        "  File \"/home/u/train.py\", line 17 in save\n"
        "  File \"/home/u/train.py\", line 30 in <module>\n";
    struct callsite_frames f;
    for (size_t piece = 1; piece < sizeof torch; piece++) {
        dump(&f, torch, piece);
        cr_expect_str_eq(f.inner, "serialization.py:287 in __init__");
        cr_expect_str_eq(f.outer, "/home/u/train.py:17 in save");
    }
    dump(&f, "Stack (most recent call first):\n  File \"train.py\", line 3 in <module>\n", 7);
    cr_expect_str_eq(f.inner, "train.py:3 in <module>");
    cr_expect_str_eq(f.outer, "");
    dump(&f, "  <no Python frame>\n  File \"x\n  ...\n", 100);
    cr_expect_str_eq(f.inner, "");
}

Test(callsite, frames_of_any_length) {
    char text[1200];
    struct callsite_frames f;
    for (size_t len = 0; len < 1000; len += 7) {
        memset(text, 'd', sizeof text);
        memcpy(text, "  File \"/", 9);
        strcpy(text + 9 + len, "/a.py\", line 5 in f\n");
        dump(&f, text, 50);
        cr_expect_lt(strlen(f.inner), sizeof f.inner);
        cr_expect(len > 300 || strstr(f.inner, "a.py:5 in f"), "%zu: %s", len, f.inner);
    }
}
