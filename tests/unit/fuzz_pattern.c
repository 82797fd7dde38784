// SPDX-License-Identifier: MIT
//
// Proves: path_glob says what a simple recursive matcher says; path_match, path_normalise and the parser of all
//         FASTCKPT_* values never leave their buffers, and what they accept is in range.
// How:    libFuzzer (clang -fsanitize=fuzzer,address,undefined): the input is a pattern and a text, or an environment.
// Cannot see: whether the rules are the wanted ones (test_path.c, test_policy.c, test_config.c).

#include "core/config.h"
#include "core/path.h"

#include <stdlib.h>
#include <string.h>

static void must(int ok) {
    if (!ok) {
        abort();
    }
}

static unsigned budget; // the simple matcher is exponential: beyond this the input is left

/** One member or range of a set at `p`. */
static bool in_range(const char **p, const char *end, unsigned char c) {
    unsigned char lo, hi;
    *p += **p == '\\' && *p + 1 < end;
    lo = hi = (unsigned char)*(*p)++;
    if (*p + 1 < end && **p == '-' && (*p)[1] != ']') {
        (*p)++;
        *p += **p == '\\' && *p + 1 < end;
        hi = (unsigned char)*(*p)++;
    }
    return lo <= c && c <= hi;
}

static bool simple(const char *p, const char *end, const char *t) {
    if (budget == 0) {
        return false;
    }
    budget--;
    if (p == end) {
        return *t == '\0';
    }
    if (*p == '*') {
        return simple(p + 1, end, t) || (*t && simple(p, end, t + 1));
    }
    if (*p == '?') {
        return *t && *t != '/' && simple(p + 1, end, t + 1);
    }
    p += *p == '\\' && p + 1 < end;
    return *t == *p && simple(p + 1, end, t + 1);
}

/** Sets have corners that the documentation leaves open: they are only run, not compared. */
static void compare(const char *pattern, const char *text) {
    size_t len = strlen(pattern);
    bool got = path_glob(pattern, len, text);
    budget = 20000;
    bool want = simple(pattern, pattern + len, text);
    if (budget > 0 && !strchr(pattern, '[')) {
        must(got == want);
    }
}

static void check_set(const char *pattern, const char *text) {
    size_t len = strlen(pattern);
    if (len < 4 || pattern[0] != '[' || strchr("!^]", pattern[1]) || !text[0] || text[0] == '/' || text[1] ||
        strchr(pattern + 1, ']') != pattern + len - 1 || strpbrk(pattern + 1, "[\\")) {
        return;
    }
    bool in = false;
    for (const char *p = pattern + 1; p < pattern + len - 1;) {
        in |= in_range(&p, pattern + len - 1, (unsigned char)text[0]);
    }
    must(path_glob(pattern, len, text) == in);
}

static void check_config(char *value, unsigned which) {
    static struct config c;
    char line[4200], why[300] = "", *env[] = {line, NULL};
    size_t at = strlen("FASTCKPT_"), n = strlen(config_vars[which % config_vars_count].name);
    memcpy(line, "FASTCKPT_", at);
    memcpy(line + at, config_vars[which % config_vars_count].name, n);
    line[at + n] = '=';
    strncpy(line + at + n + 1, value, 4000);
    line[at + n + 4001] = '\0';
    int r = config_load(&c, env, why, sizeof why);
    must(memchr(c.paths, '\0', sizeof c.paths) && memchr(c.runtime_dir, '\0', sizeof c.runtime_dir));
    must(r == 0 || (why[0] && !strchr(why, '\n') && c.disable));
    must(c.fsync <= FSYNC_DEFER && c.exit <= EXIT_LEAVE && c.io <= IO_THREADS && c.direct <= DIRECT_OFF);
    must((c.report == 0 || c.report == 1) && (c.disable == 0 || c.disable == 1));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2 || size > 4096) {
        return 0;
    }
    char *text = malloc(size), out[300], why[300] = "";
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    size_t first = strlen(text);
    const char *second = first + 1 < size ? text + first + 1 : ""; // behind the first 0
    compare(text, second);
    check_set(text, second);
    int n = path_normalise("/a/b", text, out, sizeof out);
    if (n >= 0) {
        must((size_t)n < sizeof out && strlen(out) == (size_t)n && out[0] == '/' && !strstr(out, "//"));
        must(n == 1 || out[n - 1] != '/');
        path_match(second, out);
        must(path_normalise("/", out, out, sizeof out) == n); // normal already
    }
    if (path_check_patterns(text, why, sizeof why) < 0) {
        must(why[0] != '\0'); // config makes one line of it
    }
    check_config(text, data[0]);
    free(text);
    return 0;
}
