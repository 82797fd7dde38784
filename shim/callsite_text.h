// SPDX-License-Identifier: MIT
//
// callsite_text: the pure half of callsite: names of functions and frames of Python as text.

#ifndef FASTCKPT_CALLSITE_TEXT_H
#define FASTCKPT_CALLSITE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/** "_ZN6caffe29serialize6Writer5setupEv" becomes "caffe2::serialize::Writer::setup". What is more complicated
 *  (templates, operators) is left off at the end, or the name stays as it is. */
void callsite_demangle(const char *symbol, char *buf, size_t cap);

/** Of libc, the loader, the C++ library or a sanitizer: the call came through it, not from it. `module` is a file
 *  name. */
bool callsite_is_passed(const char *module);

/** Frames of Python, as the interpreter's dump brings them, innermost first. */
struct callsite_frames {
    char line[400];  // the line that is arriving
    size_t len;
    char inner[110]; // "serialization.py:283 in __init__"
    char outer[110]; // the innermost that is not of an installed package, if `inner` is
    bool library;    // `inner` is
};

/** Takes the next bytes of the dump. */
void callsite_frames_add(struct callsite_frames *f, const char *text, size_t len);

#endif
