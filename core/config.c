// SPDX-License-Identifier: MIT
//
// config: the table of FASTCKPT_* variables, from which the parser, the defaults and --help are made. What a setting
// leads to is not decided here, and no other file reads the environment for settings.

#include "config.h"

#include "log.h"
#include "os.h"
#include "path.h"
#include "util.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define PREFIX      "FASTCKPT_"
#define SECONDS_MAX 86400

// name, field of struct config, values, default, help. `values` says how a value is read: words with '|' between them
// are numbered from 0 (the enums of config.h), the others are kinds of their own (parse_value).
#define TABLE(ROW)                                                                                                     \
    ROW(PATHS, paths, "patterns", "",                                                                                  \
        "Files to capture: globs over absolute paths, colon-separated. '*' crosses '/', a pattern without '/' "        \
        "matches the last component, one that begins with none matches at any depth, '!' in front excludes. "          \
        "Recommended: a directory, as in '/ckpt/*'.")                                                                  \
    ROW(STAGING, staging, "size", "0",                                                                                 \
        "Memory for bytes on their way to the disk, for all processes of a job on a node. Takes K, M, G, T. "          \
        "0: a quarter of the available memory.")                                                                       \
    ROW(FSYNC, fsync, "wait|defer", "wait",                                                                            \
        "What fsync does on a captured file. wait: returns when the bytes are durable. defer: returns at once; "       \
        "names still change in order, each when its bytes are durable.")                                               \
    ROW(EXIT, exit, "wait|leave", "wait",                                                                              \
        "What a process does when it ends. wait: until its files are durable. leave: goes at once.")                   \
    ROW(RETRY, retry, "seconds", "60",                                                                                 \
        "How long a closed file that meets a full disk, a quota or an I/O error is tried again, while its bytes are "  \
        "still in staging. What was closed after it waits. 0: it fails at once.")                                      \
    ROW(STRIPES, stripes, "directories", "",                                                                           \
        "Up to 16 directories, colon-separated, on a file system each. What is written behind a file's first MiB "     \
        "goes to all of them at once, and from there to the file, so that a save larger than the staging memory is "   \
        "held up by these disks, not by the one that the file is on.")                                                 \
    ROW(DRAIN_RATE, drain_rate, "size", "0",                                                                           \
        "Bytes a second, at most, from the stripes to the files. Takes K, M, G, T. 0: no limit.")                      \
    ROW(IO, io, "auto|uring|threads", "auto", "How the engine writes. auto: io_uring, or else threads.")               \
    ROW(DIRECT, direct, "auto|off", "auto", "Direct I/O. auto: where the file system is known to do it well.")         \
    ROW(COPY_THREADS, copy_threads, "auto|1|2|3|4|5|6|7|8", "auto",                                                    \
        "How many threads of the job copy a large write, the writing one included. auto: one for each CPU that it "    \
        "may use, at most 4. Only where the program has threads of its own.")                                          \
    ROW(CRC, crc, "auto|off", "auto",                                                                                  \
        "auto: the checksums of torch.save are computed by CPU instructions made for it. off: by torch.")              \
    ROW(CUDA, cuda, "auto|bounce|off|defer", "auto",                                                                   \
        "How large copies from a CUDA device to ordinary memory are done. bounce: in slices through pinned memory. "   \
        "auto: straight to where they stay, if they are going to be saved. off: by the CUDA runtime alone. defer: as " \
        "auto, but they are not waited for: by way of scratch memory on the device.")                                  \
    ROW(CUDA_SCRATCH, cuda_scratch, "size", "1G",                                                                      \
        "With FASTCKPT_CUDA=defer: how much memory of the device that is. A copy waits for what does not fit. Takes "  \
        "K, M, G, T. Given back when the program's own allocation fails.")                                             \
    ROW(LOG, log, "error|info|debug", "info", "How much is printed on stderr and in the engine's log.")                \
    ROW(REPORT, report, "0|1", "0", "1: each process prints a summary of its saves at its end.")                       \
    ROW(ASYNC_SHARED, async_shared, "0|1", "0",                                                                        \
        "In a job of several nodes on a shared file system, 0: close returns when the file is published, 1: at once.") \
    ROW(RUNTIME_DIR, runtime_dir, "directory", "",                                                                     \
        "Where socket, lock and log of the engine are. Default: /tmp/fastckpt-UID, else /dev/shm/fastckpt-UID.")       \
    ROW(ENGINE, engine, "file", "", "Path of the fastckpt program. Default: beside the library.")                      \
    ROW(DISABLE, disable, "0|1", "0", "1: the library does nothing.")

#define PUBLIC_ROW(NAME, field, values, def, help) {#NAME, values, def, help},
const struct config_var config_vars[] = {TABLE(PUBLIC_ROW)};
const size_t config_vars_count = ARRAY_LEN(config_vars);

struct field {
    size_t offset;
    size_t size;
};
#define FIELD_ROW(NAME, field, values, def, help) {offsetof(struct config, field), sizeof(((struct config *)0)->field)},
static const struct field fields[] = {TABLE(FIELD_ROW)};
_Static_assert(ARRAY_LEN(fields) == ARRAY_LEN(config_vars), "one field a variable");

// The place of `value` among words with '|' between them, or -1.
static int word_index(const char *words, const char *value) {
    size_t len = strlen(value);
    for (int i = 0;; i++) {
        size_t n = strcspn(words, "|");
        if (n == len && memcmp(words, value, n) == 0) {
            return i;
        }
        if (words[n] == '\0') {
            return -1;
        }
        words += n + 1;
    }
}

// The digits at the start of `s`. How many bytes are left behind them, or an error.
static int parse_number(const char *s, uint64_t *ret) {
    uint64_t v = 0;
    const char *p = s;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, (uint64_t)(*p - '0'), &v)) {
            return -ERANGE;
        }
    }
    *ret = v;
    return p == s ? -EINVAL : (int)strlen(p);
}

int config_size(const char *s, uint64_t *ret) {
    uint64_t v = 0;
    int left = parse_number(s, &v);
    if (left < 0) {
        return left;
    }
    const char *p = s + strlen(s) - left;
    static const char units[] = "kKmMgGtT";
    const char *unit = *p ? strchr(units, *p) : NULL;
    if (unit) {
        unsigned shift = 10 * (unsigned)((unit - units) / 2 + 1);
        if (v > UINT64_MAX >> shift) {
            return -ERANGE;
        }
        v <<= shift;
        p++;
    }
    *ret = v;
    return *p ? -EINVAL : 0;
}

static int bad(const struct config_var *var, const char *value, const char *must, char *why, size_t cap) {
    log_format(why, cap, PREFIX "%s must be %s, not '%s'", var->name, must, value);
    return -EINVAL;
}

// Are these absolute paths with ':' between them, at most STRIPES_MAX, each once? None is fine.
static bool directories(const char *list) {
    unsigned n = 0;
    for (const char *p = list; *p; n++) {
        size_t len = strcspn(p, ":");
        if (*p != '/' || len >= CONFIG_DIR_MAX / 2 || n == STRIPES_MAX || (p[len] == ':' && !p[len + 1])) {
            return false;
        }
        for (const char *q = list; q < p; q += strcspn(q, ":") + 1) {
            if (strcspn(q, ":") == len && memcmp(q, p, len) == 0) {
                return false;
            }
        }
        p += len + (p[len] == ':');
    }
    return true;
}

static int parse_text(const struct config_var *var, const char *value, char *to, size_t size, char *why, size_t cap) {
    if (strlen(value) >= size) {
        log_format(why, cap, PREFIX "%s is longer than %zu bytes", var->name, size - 1);
        return -EINVAL;
    }
    if (strcmp(var->values, "patterns") == 0) {
        char fault[256];
        if (path_check_patterns(value, fault, sizeof fault) < 0) {
            log_format(why, cap, PREFIX "%s: %s", var->name, fault);
            return -EINVAL;
        }
    } else if (strcmp(var->values, "directories") == 0) {
        if (!directories(value)) {
            return bad(var, value, "1 to 16 different absolute paths with ':' between them", why, cap);
        }
    } else if (*value && *value != '/') {
        return bad(var, value, "an absolute path", why, cap);
    }
    memcpy(to, value, strlen(value) + 1);
    return 0;
}

static int parse_value(struct config *c, size_t row, const char *value, char *why, size_t cap) {
    const struct config_var *var = &config_vars[row];
    char *to = (char *)c + fields[row].offset;
    if (strchr(var->values, '|')) {
        int index = word_index(var->values, value);
        if (index < 0) {
            return bad(var, value, var->values, why, cap);
        }
        assert(fields[row].size == sizeof index);
        memcpy(to, &index, sizeof index);
        return 0;
    }
    if (strcmp(var->values, "size") == 0) {
        uint64_t size;
        if (config_size(value, &size) < 0) {
            return bad(var, value, "a size such as 800M or 4G", why, cap);
        }
        assert(fields[row].size == sizeof size);
        memcpy(to, &size, sizeof size);
        return 0;
    }
    if (strcmp(var->values, "seconds") == 0) {
        uint64_t seconds;
        if (parse_number(value, &seconds) != 0 || seconds > SECONDS_MAX) {
            return bad(var, value, "a whole number of seconds, at most 86400", why, cap);
        }
        assert(fields[row].size == sizeof seconds);
        memcpy(to, &seconds, sizeof seconds);
        return 0;
    }
    return parse_text(var, value, to, fields[row].size, why, cap);
}

static void set_defaults(struct config *c) {
    for (size_t i = 0; i < config_vars_count; i++) { // all there is; the pages behind short texts stay untouched
        char why[128];
        int err = parse_value(c, i, config_vars[i].def, why, sizeof why);
        assert(err == 0);
        (void)err;
    }
}

// The value of FASTCKPT_`name`, the first one as for getenv; NULL if unset or empty.
static const char *lookup(char *const envp[], const char *name) {
    size_t n = strlen(name);
    for (; envp && *envp; envp++) {
        const char *e = *envp;
        if (strncmp(e, PREFIX, strlen(PREFIX)) == 0 && strncmp(e + strlen(PREFIX), name, n) == 0 &&
            e[strlen(PREFIX) + n] == '=') {
            const char *value = e + strlen(PREFIX) + n + 1;
            return *value ? value : NULL;
        }
    }
    return NULL;
}

/** The value may hold anything; what is shown of it may not break the line, nor speak to the terminal. */
static void one_line(char *why) {
    for (; *why; why++) {
        *why = (unsigned char)*why < ' ' || *why == 0x7f ? '?' : *why;
    }
}

int config_load(struct config *c, char *const envp[], char *why, size_t cap) {
    if (!envp) {
        envp = environ;
    }
    set_defaults(c);
    for (size_t i = 0; i < config_vars_count; i++) {
        const char *value = lookup(envp, config_vars[i].name);
        int err = value ? parse_value(c, i, value, why, cap) : 0;
        if (err < 0) {
            one_line(why);
            set_defaults(c);
            c->disable = 1;
            return err;
        }
    }
    return 0;
}

// Writes `text` in lines of at most 76 bytes behind an indent of 4.
static void write_wrapped(int fd, const char *text) {
    while (*text) {
        size_t n = strlen(text);
        if (n > 76) {
            for (n = 76; n > 0 && text[n] != ' '; n--) {
            }
            n = n ? n : strlen(text);
        }
        os_write(fd, "    ", 4);
        os_write(fd, text, n);
        os_write(fd, "\n", 1);
        text += n;
        text += *text == ' ';
    }
}

void config_help(int fd) {
    for (size_t i = 0; i < config_vars_count; i++) {
        const struct config_var *v = &config_vars[i];
        char head[160];
        int n = log_format(head, sizeof head, "%s" PREFIX "%s=%s  (default: %s)\n", i ? "\n" : "", v->name, v->values,
                           *v->def ? v->def : "none");
        os_write(fd, head, min_u64((uint64_t)n, sizeof head - 1));
        write_wrapped(fd, v->help);
    }
}

bool config_next_dir(const char **list, const char **dir, size_t *len) {
    bool any = **list != '\0';
    *dir = *list;
    *len = strcspn(*list, ":");
    *list += *len + ((*list)[*len] == ':');
    return any;
}
