// SPDX-License-Identifier: MIT
//
// callsite_text: see callsite_text.h. No state, no system calls.

#include "callsite_text.h"

#include "../core/log.h"
#include "../core/path.h"
#include "../core/util.h"

#include <string.h>

static size_t digits(const char **p) {
    size_t n = 0;
    while (**p >= '0' && **p <= '9' && n < 1000) {
        n = n * 10 + (size_t)(*(*p)++ - '0');
    }
    return n;
}

// The Itanium ABI's simple names: _Z <len> <name>, and _ZN [qualifiers] (<len> <name>)+ ...
void callsite_demangle(const char *symbol, char *buf, size_t cap) {
    const char *p = symbol, *end = symbol + strlen(symbol), *last = NULL;
    size_t n = 0, last_len = 0;
    if (strncmp(p, "_ZN", 3) == 0) {
        for (p += 3; *p == 'K' || *p == 'V' || *p == 'r' || *p == 'R' || *p == 'O'; p++) {
        }
        if (strncmp(p, "St", 2) == 0) {
            n = (size_t)log_format(buf, cap, "std");
            p += 2;
        }
    } else if (strncmp(p, "_Z", 2) == 0) {
        p += 2;
    } else {
        log_format(buf, cap, "%s", symbol);
        return;
    }
    while (*p >= '1' && *p <= '9') {
        size_t len = digits(&p);
        if (len > (size_t)(end - p) || n + len + 3 > cap) {
            break;
        }
        n += (size_t)log_format(buf + n, cap - n, n ? "::" : "");
        memcpy(buf + n, p, len);
        buf[n += len] = '\0';
        last = p;
        last_len = len;
        p += len;
        if (symbol[2] != 'N') {
            break;
        }
    }
    if (n == 0) {
        log_format(buf, cap, "%s", symbol);
    } else if (last != NULL && (*p == 'C' || *p == 'D') && n + last_len + 4 <= cap) { // constructor, destructor
        n += (size_t)log_format(buf + n, cap - n, *p == 'C' ? "::" : "::~");
        memcpy(buf + n, last, last_len);
        buf[n + last_len] = '\0';
    }
}

bool callsite_is_passed(const char *module) {
    static const char *const passed[] = {"libc.so", "libc-",    "ld-",      "libstdc++.so", "libc++.so", "libpthread",
                                         "libasan", "libtsan.", "libubsan", "libeatmydata", "libfastckpt"};
    for (size_t i = 0; i < ARRAY_LEN(passed); i++) {
        if (strncmp(module, passed[i], strlen(passed[i])) == 0) {
            return true;
        }
    }
    return false;
}

// One line: `  File "/x/train.py", line 17 in save`.
static void add_line(struct callsite_frames *f) {
    const char *name = strstr(f->line, "File \""), *end = name != NULL ? strstr(name, "\", line ") : NULL;
    if (end == NULL) {
        return;
    }
    char file[200], text[sizeof f->inner];
    name += strlen("File \"");
    size_t len = min_u64((uint64_t)(end - name), sizeof file - 1);
    memcpy(file, end - len, len); // the end of a long one
    file[len] = '\0';
    end += strlen("\", line ");
    size_t number = strcspn(end, " ");
    char line[16];
    log_format(line, sizeof line, "%s", end);
    line[min_u64(number, sizeof line - 1)] = '\0';
    bool library = strstr(file, "-packages/") != NULL || strstr(file, "/lib/python") != NULL || file[0] == '<';
    const char *shown = strlen(file) > 60 ? path_base(file) : file;
    log_format(text, sizeof text, "%s:%s%s", library ? path_base(file) : shown, line, end + number);
    if (f->inner[0] == '\0') {
        memcpy(f->inner, text, sizeof text);
        f->library = library;
    } else if (f->library && !library && f->outer[0] == '\0') {
        memcpy(f->outer, text, sizeof text);
    }
}

void callsite_frames_add(struct callsite_frames *f, const char *text, size_t len) {
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\n') {
            f->line[f->len] = '\0';
            add_line(f);
            f->len = 0;
        } else if (f->len < sizeof f->line - 1) {
            f->line[f->len++] = text[i];
        }
    }
}
