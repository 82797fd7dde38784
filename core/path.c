// SPDX-License-Identifier: MIT
//
// path: normalising paths and matching them against FASTCKPT_PATHS, by text alone. No system call, no allocation, no
// recursion. What matching a path leads to is the shim's policy, not decided here.

#include "path.h"

#include "log.h"
#include "util.h"

#include <errno.h>
#include <string.h>

#define PATTERN_MAX 4096

// What never is a checkpoint (design 4).
static const char *const builtin[] = {"*.log", "*.out",  "*.err", "*.csv",    "*.jsonl",
                                      "*.pid", "*.lock", "*.so*", "*.py[co]", "events.out.tfevents*"};

const char *path_base(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// Appends the components of `path` to buf[0..len). Returns the new length, or -ENAMETOOLONG.
static int append_components(const char *path, char *buf, size_t len, size_t cap) {
    while (*path) {
        size_t n = strcspn(path, "/");
        if (n == 2 && path[0] == '.' && path[1] == '.') {
            while (len > 0 && buf[--len] != '/') {
            }
        } else if (n > 0 && !(n == 1 && path[0] == '.')) {
            if (len + 1 + n >= cap) {
                return -ENAMETOOLONG;
            }
            buf[len++] = '/';
            memcpy(buf + len, path, n);
            len += n;
        }
        path += n;
        path += *path == '/';
    }
    return (int)len;
}

int path_normalise(const char *cwd, const char *path, char *buf, size_t cap) {
    int len = 0;
    if (path[0] != '/') {
        len = append_components(cwd, buf, 0, cap);
        if (len < 0) {
            return len;
        }
    }
    len = append_components(path, buf, (size_t)len, cap);
    if (len < 0 || cap < 2) {
        return -ENAMETOOLONG;
    }
    if (len == 0) {
        buf[len++] = '/';
    }
    buf[len] = '\0';
    return len;
}

// The length of the bracket expression at p[0] == '[' with its ']', or 0 if it does not end. ']' in first place, and
// whatever stands behind a backslash, is a member.
static size_t bracket_len(const char *p, const char *end) {
    const char *q = p + 1;
    q += q < end && (*q == '!' || *q == '^');
    for (bool first = true; q < end; q++, first = false) {
        if (*q == ']' && !first) {
            return (size_t)(q + 1 - p);
        }
        if (*q == '\\' && ++q == end) {
            break;
        }
    }
    return 0;
}

static unsigned char bracket_member(const char **q) {
    if (**q == '\\') {
        (*q)++;
    }
    return (unsigned char)*(*q)++;
}

// `p` is a whole bracket expression of `len` bytes.
static bool bracket_matches(const char *p, size_t len, unsigned char c) {
    const char *q = p + 1;
    const char *last = p + len - 1; // at ']'
    bool negated = *q == '!' || *q == '^';
    q += negated;
    bool hit = false;
    while (q < last) {
        unsigned char low = bracket_member(&q);
        unsigned char high = low;
        if (q + 1 < last && *q == '-') {
            q++;
            high = bracket_member(&q);
        }
        hit = hit || (low <= c && c <= high);
    }
    return hit != negated && c != '/'; // as '?': only '*' crosses a '/'
}

// Matches one element of the pattern at `p` against `c`; returns how long the element is, 0 if it does not match.
static size_t match_one(const char *p, const char *end, char c) {
    switch (*p) {
    case '?':
        return c != '/' ? 1 : 0;
    case '[': {
        size_t n = bracket_len(p, end);
        if (n > 0) {
            return bracket_matches(p, n, (unsigned char)c) ? n : 0;
        }
        break; // never ends: a literal
    }
    case '\\':
        if (p + 1 < end) {
            return p[1] == c ? 2 : 0;
        }
        break;
    default:
        break;
    }
    return *p == c ? 1 : 0;
}

// Only the last '*' needs to be gone back to: what an earlier one could give, this one can take as well.
static bool glob(const char *p, size_t len, const char *text, bool prefix) {
    const char *end = p + len;
    const char *star = NULL;
    const char *retry = NULL;
    for (;;) {
        if (p < end && *p == '*') {
            star = ++p;
            retry = text;
            continue;
        }
        if (p == end && (*text == '\0' || prefix)) {
            return true;
        }
        size_t n = p < end && *text ? match_one(p, end, *text) : 0;
        if (n > 0) {
            p += n;
            text++;
        } else if (star && *retry) {
            p = star;
            text = ++retry;
        } else {
            return false;
        }
    }
}

bool path_glob(const char *pattern, size_t pattern_len, const char *text) {
    return glob(pattern, pattern_len, text, false);
}

// The length of the first pattern of a list: up to a ':' that no backslash quotes.
static size_t element_len(const char *list) {
    size_t n = 0;
    while (list[n] && list[n] != ':') {
        n += list[n] == '\\' && list[n + 1] ? 2 : 1;
    }
    return n;
}

static bool element_matches(const char *p, size_t len, const char *path) {
    if (!memchr(p, '/', len)) {
        return path_glob(p, len, path_base(path));
    }
    bool prefix = p[len - 1] == '/'; // "/ckpt/" can match no file itself: everything below is meant
    if (*p == '/') {
        return glob(p, len, path, prefix);
    }
    for (const char *at = path; at; at = strchr(at, '/')) {
        at += *at == '/';
        if (glob(p, len, at, prefix)) {
            return true;
        }
    }
    return false;
}

// Whether the pattern names what a built-in exclusion would take away: its last component falls under an exclusion
// that the path falls under, too.
static bool names_excluded(const char *p, size_t len, const char *base) {
    const char *slash = memrchr(p, '/', len);
    size_t skip = slash ? (size_t)(slash + 1 - p) : 0;
    char last[PATTERN_MAX];
    if (len - skip >= sizeof last) {
        return false;
    }
    memcpy(last, p + skip, len - skip);
    last[len - skip] = '\0';
    for (size_t i = 0; i < ARRAY_LEN(builtin); i++) {
        size_t n = strlen(builtin[i]);
        if (path_glob(builtin[i], n, base) && (path_glob(builtin[i], n, last) || strcmp(builtin[i], last) == 0)) {
            return true;
        }
    }
    return false;
}

static bool excluded(const char *base) {
    for (size_t i = 0; i < ARRAY_LEN(builtin); i++) {
        if (path_glob(builtin[i], strlen(builtin[i]), base)) {
            return true;
        }
    }
    return false;
}

bool path_match(const char *patterns, const char *path) {
    const char *base = path_base(path);
    bool is_excluded = excluded(base);
    bool captured = false;
    for (const char *p = patterns; *p;) {
        size_t len = element_len(p);
        bool negated = *p == '!';
        const char *body = p + negated;
        size_t body_len = len - negated;
        if (body_len > 0 && (negated || !captured) && element_matches(body, body_len, path)) {
            if (negated) {
                return false;
            }
            captured = !is_excluded || names_excluded(body, body_len, base);
        }
        p += len;
        p += *p == ':';
    }
    return captured;
}

// Has it a component that no normalised path has: ".", ".." or, in the middle, an empty one?
static bool in_vain(const char *p, size_t len) {
    size_t skip = *p == '!';
    for (const char *end = p + len, *at = p + skip, *next; at < end; at = next + 1) {
        next = memchr(at, '/', (size_t)(end - at));
        next = next ? next : end;
        size_t n = (size_t)(next - at);
        bool dots = (n == 1 || n == 2) && at[0] == '.' && at[n - 1] == '.';
        if (dots || (n == 0 && at > p + skip)) {
            return true;
        }
    }
    return false;
}

// What is wrong with a pattern, or NULL.
static const char *element_fault(const char *p, size_t len) {
    if (len > PATTERN_MAX) {
        return "is longer than a path can be";
    }
    if (len == 1 && *p == '!') {
        return "excludes nothing";
    }
    if (in_vain(p, len)) {
        return "matches nothing: it is compared with absolute paths, without '.', '..' and '//'";
    }
    const char *end = p + len;
    while (p < end) {
        if (*p == '\\') {
            if (p + 1 == end) {
                return "ends in a backslash that quotes nothing";
            }
            p += 2;
        } else if (*p == '[') {
            size_t n = bracket_len(p, end);
            if (n == 0) {
                return "has a '[' without its ']'";
            }
            p += n;
        } else {
            p++;
        }
    }
    return NULL;
}

int path_check_patterns(const char *patterns, char *why, size_t cap) {
    for (const char *p = patterns; *p;) {
        size_t len = element_len(p);
        const char *fault = element_fault(p, len);
        if (fault) {
            char shown[81];
            size_t n = min_u64(len, sizeof shown - 1);
            memcpy(shown, p, n);
            shown[n] = '\0';
            log_format(why, cap, "the pattern '%s'%s %s", shown, n < len ? "..." : "", fault);
            return -EINVAL;
        }
        p += len;
        p += *p == ':';
    }
    return 0;
}
