// SPDX-License-Identifier: MIT
//
// main: the fastckpt command: reads its arguments and calls what does the work. `run` sets the environment and becomes
// the program: no parent process, so signals and the exit code are the program's.

#include "benchdir.h"
#include "breakpoint.h"
#include "config.h"
#include "doctor.h"
#include "keeper.h"
#include "recover.h"
#include "tool.h"
#include "util.h"
#include "verify.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static int usage(int status) {
    FILE *out = status ? stderr : stdout;
    fprintf(out, "usage: fastckpt run [options] -- command [argument...]   runs the command under fastckpt\n"
                 "       fastckpt status [--json] [--watch]               what is pending, what has failed\n"
                 "       fastckpt wait [--safe]                           until everything closed so far is durable,\n"
                 "                                                        or safe on the stripes\n"
                 "       fastckpt recover [--dry-run | --discard] [directory...]\n"
                 "                                               files that a killed pair left on stripes\n"
                 "       fastckpt verify [--stripes D:D] file...          are they still what was saved by stripes\n"
                 "       fastckpt doctor [--json] [directory...] [-- command]   what it can do here, and remedies\n"
                 "       fastckpt bench [--json] [--size 256M] directory...     how fast directories are written\n"
                 "       fastckpt --help\n");
    if (!status) {
        fprintf(out, "\nEach option of run sets one variable: --paths P is FASTCKPT_PATHS=P, --fsync defer is\n"
                     "FASTCKPT_FSYNC=defer, --report 1 is FASTCKPT_REPORT=1.\n\n");
        fflush(out);
        config_help(1);
    }
    return status;
}

/** An argument that the command does not take. Returns the exit status. */
static int refuse(const char *verb, const char *arg) {
    fprintf(stderr, "fastckpt: %s does not take '%s': see fastckpt --help\n", verb, arg);
    return 2;
}

static int load_config(struct config *c) {
    char why[512] = "";
    if (config_load(c, NULL, why, sizeof why) < 0) {
        fprintf(stderr, "fastckpt: %s\n", why);
        return -1;
    }
    return 0;
}

/** "--async-shared" → "FASTCKPT_ASYNC_SHARED" if the table has it. */
static bool option_variable(const char *option, char *name, size_t cap) {
    char upper[64] = "";
    size_t len = strlen(option);
    for (size_t i = 0; i < len && i + 1 < sizeof upper; i++) {
        char ch = option[i];
        upper[i] = ch == '-' ? '_' : ch >= 'a' && ch <= 'z' ? (char)(ch - 'a' + 'A') : '?';
    }
    for (size_t i = 0; i < config_vars_count; i++) {
        if (strcmp(config_vars[i].name, upper) == 0) {
            snprintf(name, cap, "FASTCKPT_%s", upper);
            return true;
        }
    }
    return false;
}

/** Sets the variable of the option argv[*at], and passes over it and its value. */
static int set_option(int argc, char **argv, int *at) {
    char *option = argv[(*at)++] + 2, *value, name[80];
    if ((value = strchr(option, '='))) {
        *value++ = '\0';
    }
    if (!option_variable(option, name, sizeof name)) {
        refuse(argv[1], option - 2);
        return -1;
    }
    if (!value && *at == argc) {
        fprintf(stderr, "fastckpt: --%s needs a value\n", option);
        return -1;
    }
    return setenv(name, value ? value : argv[(*at)++], 1);
}

static int set_options(int argc, char **argv, int *at) {
    while (*at < argc && strncmp(argv[*at], "--", 2) == 0) {
        if (argv[*at][2] == '\0') {
            ++*at;
            return 0; // "--": the command follows
        }
        if (set_option(argc, argv, at) < 0) {
            return -1;
        }
    }
    return 0;
}

/** Options, which become the configuration, and at least one argument behind them, from `*at` on. 0, or the exit
 *  status, after a line or the usage. */
static int begin(int argc, char **argv, int *at, struct config *c) {
    if (set_options(argc, argv, at) < 0) {
        return 2;
    }
    if (*at >= argc) {
        return usage(2);
    }
    return load_config(c) < 0 ? 2 : 0;
}

static int preload(const char *argv0) {
    char path[4096], value[8192];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 32);
    if (n <= 0 && (!realpath(argv0, path) || strlen(path) > sizeof path - 32)) { // no /proc here
        fprintf(stderr, "fastckpt: where this program lies cannot be found out without /proc: call it by its path\n");
        return -1;
    }
    path[n > 0 ? (size_t)n : strlen(path)] = '\0';
    strcpy(strrchr(path, '/') + 1, "libfastckpt.so");
    if (access(path, R_OK) < 0) {
        fprintf(stderr, "fastckpt: %s: %s\n", path, strerror(errno));
        return -1;
    }
    const char *old = getenv("LD_PRELOAD");
    bool more = old && *old; // ours comes before what the user preloads, not instead of it
    if ((size_t)snprintf(value, sizeof value, "%s%s%s", path, more ? ":" : "", more ? old : "") >= sizeof value) {
        return -1;
    }
    return setenv("LD_PRELOAD", value, 1);
}

static int run(int argc, char **argv) {
    int at = 2;
    static struct config c;
    int refused = begin(argc, argv, &at, &c);
    if (refused) {
        return refused;
    }
    if (!c.paths[0]) {
        fprintf(stderr, "fastckpt: no --paths and no FASTCKPT_PATHS: nothing will be captured\n");
    }
    if (preload(argv[0]) < 0) {
        return 126;
    }
    execvp(argv[at], argv + at);
    fprintf(stderr, "fastckpt: %s: %s\n", argv[at], strerror(errno));
    return errno == ENOENT ? 127 : 126;
}

/** serve --dir DIR --key HEX, or serve --resume FD: for the shim and for an orphaned engine, not for people. */
static int serve(int argc, char **argv) {
    static struct config c;
    const char *dir = "";
    unsigned long key = 0;
    for (int i = 2; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--resume") == 0 && *value) {
            return keeper_serve_resume(atoi(value));
        }
        if (strcmp(argv[i], "--dir") == 0) {
            dir = value;
        } else if (strcmp(argv[i], "--key") == 0) {
            key = strtoul(value, NULL, 16);
        } else {
            return refuse("serve", argv[i]);
        }
    }
    if (!key) {
        fprintf(stderr, "fastckpt: serve is called by the library: it needs --dir and --key\n");
        return 2;
    }
    return load_config(&c) < 0 ? 2 : keeper_serve(dir, key, &c);
}

/** Options, and directories, which are moved to the front of argv + 2. Their number, or -1. `*at`: behind "--", or
 *  argc. */
static int read_arguments(int argc, char **argv, bool *json, uint64_t *size, int *at) {
    int n = 0;
    for (*at = 2; *at < argc;) {
        char *arg = argv[*at];
        if (strcmp(arg, "--") == 0) {
            ++*at;
            break;
        }
        if (strcmp(arg, "--json") == 0) {
            *json = true;
            ++*at;
        } else if (size && strcmp(arg, "--size") == 0) {
            if (*at + 1 >= argc || config_size(argv[*at + 1], size) < 0) {
                fprintf(stderr, "fastckpt: --size needs a size, as 256M\n");
                return -1;
            }
            *at += 2;
        } else if (strncmp(arg, "--", 2) != 0) {
            argv[2 + n++] = arg;
            ++*at;
        } else if (set_option(argc, argv, at) < 0) {
            return -1;
        }
    }
    return n;
}

static int status(int argc, char **argv) {
    static struct config c;
    bool json = false, watch = false;
    for (int i = 2; i < argc; i++) {
        bool j = strcmp(argv[i], "--json") == 0, w = strcmp(argv[i], "--watch") == 0;
        json |= j;
        watch |= w;
        if (!j && !w) {
            return refuse("status", argv[i]);
        }
    }
    if (load_config(&c) < 0) {
        return 2;
    }
    return watch ? tool_watch(&c, json) : tool_status(&c, json);
}

/** wait [--safe] */
static int wait_all(int argc, char **argv) {
    static struct config c;
    bool safe = false;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--safe") != 0) {
            return refuse("wait", argv[i]);
        }
        safe = true;
    }
    return load_config(&c) < 0 ? 2 : tool_wait(&c, safe);
}

static int run_doctor(int argc, char **argv) {
    static struct config c;
    struct doctor_request rq = {0};
    char why[512] = "";
    int at;
    rq.n_dirs = read_arguments(argc, argv, &rq.json, NULL, &at);
    if (rq.n_dirs < 0) {
        return 2;
    }
    rq.dirs = argv + 2;
    rq.command = at < argc ? argv + at : NULL;
    rq.config_fault = config_load(&c, NULL, why, sizeof why) < 0 ? why : NULL;
    return doctor(&c, &rq);
}

static int run_bench(int argc, char **argv) {
    static struct config c;
    struct bench_request rq = {.size = 256 * MIB};
    int at;
    rq.n_dirs = read_arguments(argc, argv, &rq.json, &rq.size, &at);
    rq.dirs = argv + 2;
    if (rq.n_dirs > 0 && at < argc) {
        return refuse("bench", argv[at]);
    }
    if (rq.n_dirs == 0) {
        return usage(2);
    }
    return rq.n_dirs < 0 || load_config(&c) < 0 ? 2 : bench_directories(&c, &rq);
}

static void say(const char *line) {
    puts(line);
}

/** Says what is not as whoever asks for a recovery may think. Returns how many of the directories cannot be looked
 *  into. */
static unsigned look_at_stripes(const char *dirs) {
    unsigned bad = 0;
    const char *d;
    size_t len;
    while (config_next_dir(&dirs, &d, &len)) {
        int n = recover_logs(d, len);
        if (n < 0) {
            fprintf(stderr, "fastckpt: %.*s: %s\n", (int)len, d, strerror(-n));
        } else if (n == 0) {
            fprintf(stderr, "fastckpt: %.*s: no logs of user %u are there: nothing to recover\n", (int)len, d,
                    (unsigned)geteuid());
        }
        bad += n < 0;
    }
    return bad;
}

/** recover [--dry-run | --discard] [DIR...]: without directories, those of FASTCKPT_STRIPES. */
static int recover(int argc, char **argv) {
    static struct config c;
    char list[CONFIG_STRIPES_MAX] = "";
    enum recover_how how = RECOVER_USED;
    for (int i = 2; i < argc; i++) {
        bool dry = strcmp(argv[i], "--dry-run") == 0, discard = strcmp(argv[i], "--discard") == 0;
        if (dry || discard) {
            how |= dry ? RECOVER_DRY : RECOVER_DISCARD;
            continue;
        }
        size_t len = strlen(list);
        if (argv[i][0] == '-' || (size_t)snprintf(list + len, sizeof list - len, "%s%s", len ? ":" : "", argv[i]) >=
                                     sizeof list - len) {
            return refuse("recover", argv[i]);
        }
    }
    if (load_config(&c) < 0) {
        return 2;
    }
    if (!list[0] && !c.stripes[0]) {
        fprintf(stderr, "fastckpt: no directory and no FASTCKPT_STRIPES: nowhere to look\n");
        return 2;
    }
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) { // a log takes three
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    const char *dirs = list[0] ? list : c.stripes;
    unsigned bad = look_at_stripes(dirs);
    return (recover_stripes(dirs, how & RECOVER_DRY ? how & ~RECOVER_DISCARD : how, say) > 0) | (bad > 0);
}

static int verify(int argc, char **argv) {
    static struct config c;
    int at = 2, refused = begin(argc, argv, &at, &c);
    if (refused) {
        return refused;
    }
    if (!c.stripes[0]) {
        fprintf(stderr, "fastckpt: no --stripes and no FASTCKPT_STRIPES: nowhere to look\n");
        return 2;
    }
    return (int)verify_files(c.stripes, argv + at, argc - at);
}

int main(int argc, char **argv) {
    const char *verb = argc > 1 ? argv[1] : "";
    if (argc > 2 && (strcmp(argv[2], "--help") == 0 || strcmp(argv[2], "-h") == 0)) {
        return usage(0);
    }
    if (strcmp(verb, "run") == 0) {
        return run(argc, argv);
    }
    if (strcmp(verb, "recover") == 0) {
        return recover(argc, argv);
    }
    if (strcmp(verb, "verify") == 0) {
        return verify(argc, argv);
    }
    if (strcmp(verb, "serve") == 0) {
        return serve(argc, argv);
    }
    if (strcmp(verb, "status") == 0) {
        return status(argc, argv);
    }
    if (strcmp(verb, "wait") == 0) {
        return wait_all(argc, argv);
    }
    if (strcmp(verb, "doctor") == 0) {
        return run_doctor(argc, argv);
    }
    if (strcmp(verb, "bench") == 0) {
        return run_bench(argc, argv);
    }
#if FASTCKPT_BREAK == 7
    if (strcmp(verb, "break-points") == 0) {
        break_points_list();
        return 0;
    }
#endif
    bool help = strcmp(verb, "--help") == 0 || strcmp(verb, "help") == 0 || strcmp(verb, "-h") == 0;
    return usage(help ? 0 : 2);
}
