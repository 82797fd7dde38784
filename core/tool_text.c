// SPDX-License-Identifier: MIT
//
// tool_text: see tool_text.h. No state.

#include "tool_text.h"

#include "util.h"

#include <stdio.h>

/** How many bytes the UTF-8 character at `s` has; 0 if it is none. Strict enough for names of files. */
static int character(const unsigned char *s) {
    int n = *s < 0x80 ? 1 : *s >= 0xc2 && *s < 0xe0 ? 2 : (*s & 0xf0) == 0xe0 ? 3 : *s >= 0xf0 && *s < 0xf5 ? 4 : 0;
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return n;
}

void text_json(const char *s) {
    putchar('"');
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        int n = character(p);
        if (*p == '"' || *p == '\\') {
            printf("\\%c", *p);
        } else if (n == 0 || *p < ' ' || *p == 0x7f) {
            printf("\\u%04x", *p);
        } else {
            printf("%.*s", n, (const char *)p);
        }
        p += n ? n : 1;
    }
    putchar('"');
}

const char *text_size(uint64_t bytes, char *buf, size_t cap) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
    double v = (double)bytes / KIB;
    size_t unit = 0;
    for (; v >= 1000 && unit + 1 < ARRAY_LEN(units); unit++) {
        v /= KIB;
    }
    snprintf(buf, cap, "%.1f %s", v, units[unit]);
    return buf;
}

const char *text_line(const char *s, char *buf, size_t cap) {
    snprintf(buf, cap, "%s", s);
    for (char *p = buf; *p; p++) {
        *p = (unsigned char)*p < ' ' || *p == 0x7f ? '?' : *p;
    }
    return buf;
}
