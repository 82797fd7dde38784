// SPDX-License-Identifier: MIT
//
// Proves: every FASTCKPT_* variable is read as its row says, and a bad value gives one line and a native job.
// How: a table of environments with the field that must come out; the help text is caught in a pipe.
// Cannot see: what the shim and the engine make of the settings.

#include "core/config.h"
#include "core/log.h"
#include "core/util.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct config c;
static char why[400];

static int load(const char *var) {
    char *envp[] = {"HOME=/root", (char *)var, NULL};
    why[0] = '\0';
    return config_load(&c, envp, why, sizeof why);
}

static void expect_defaults(int disable) {
    cr_expect_str_eq(c.paths, "");
    cr_expect_eq(c.staging, 0);
    cr_expect_eq(c.fsync, FSYNC_WAIT);
    cr_expect_eq(c.exit, EXIT_WAIT);
    cr_expect_eq(c.io, IO_AUTO);
    cr_expect_eq(c.direct, DIRECT_AUTO);
    cr_expect_eq(c.copy_threads, 0);
    cr_expect_eq(c.crc, CRC_AUTO);
    cr_expect_eq(c.cuda, CUDA_AUTO);
    cr_expect_eq(c.log, LOG_INFO);
    cr_expect_eq(c.report, 0);
    cr_expect_eq(c.retry, 60);
    cr_expect_str_eq(c.stripes, "");
    cr_expect_eq(c.drain_rate, 0);
    cr_expect_eq(c.async_shared, 0);
    cr_expect_eq(c.disable, disable);
    cr_expect_str_eq(c.runtime_dir, "");
    cr_expect_str_eq(c.engine, "");
}

Test(config, defaults) {
    char *none[] = {NULL};
    memset(&c, 0xff, sizeof c);
    cr_expect_eq(config_load(&c, none, why, sizeof why), 0);
    expect_defaults(0);
    cr_expect_eq(load("FASTCKPT_FSYNC="), 0, "empty is unset");
    expect_defaults(0);
    cr_expect_eq(load("FASTCKPT_FSYNCX=bad"), 0);
    cr_expect_eq(load("XFASTCKPT_FSYNC=bad"), 0);
    cr_expect_eq(load("FASTCKPT_FSYNC"), 0);
    expect_defaults(0);
}

Test(config, words) {
    static const struct {
        const char *var;
        int *field;
        int value;
    } rows[] = {
        {"FASTCKPT_FSYNC=wait", &c.fsync, FSYNC_WAIT},
        {"FASTCKPT_FSYNC=defer", &c.fsync, FSYNC_DEFER},
        {"FASTCKPT_EXIT=wait", &c.exit, EXIT_WAIT},
        {"FASTCKPT_EXIT=leave", &c.exit, EXIT_LEAVE},
        {"FASTCKPT_IO=auto", &c.io, IO_AUTO},
        {"FASTCKPT_IO=uring", &c.io, IO_URING},
        {"FASTCKPT_IO=threads", &c.io, IO_THREADS},
        {"FASTCKPT_DIRECT=auto", &c.direct, DIRECT_AUTO},
        {"FASTCKPT_DIRECT=off", &c.direct, DIRECT_OFF},
        {"FASTCKPT_COPY_THREADS=auto", &c.copy_threads, 0},
        {"FASTCKPT_COPY_THREADS=1", &c.copy_threads, 1},
        {"FASTCKPT_COPY_THREADS=8", &c.copy_threads, 8},
        {"FASTCKPT_CRC=auto", &c.crc, CRC_AUTO},
        {"FASTCKPT_CRC=off", &c.crc, CRC_OFF},
        {"FASTCKPT_CUDA=auto", &c.cuda, CUDA_AUTO},
        {"FASTCKPT_CUDA=bounce", &c.cuda, CUDA_BOUNCE},
        {"FASTCKPT_CUDA=off", &c.cuda, CUDA_OFF},
        {"FASTCKPT_LOG=error", &c.log, LOG_ERROR},
        {"FASTCKPT_LOG=info", &c.log, LOG_INFO},
        {"FASTCKPT_LOG=debug", &c.log, LOG_DEBUG},
        {"FASTCKPT_REPORT=1", &c.report, 1},
        {"FASTCKPT_REPORT=0", &c.report, 0},
        {"FASTCKPT_ASYNC_SHARED=1", &c.async_shared, 1},
        {"FASTCKPT_DISABLE=1", &c.disable, 1},
        {"FASTCKPT_DISABLE=0", &c.disable, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        cr_expect_eq(load(rows[i].var), 0, "%s: %s", rows[i].var, why);
        cr_expect_eq(*rows[i].field, rows[i].value, "%s", rows[i].var);
    }
}

Test(config, sizes) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } rows[] = {
        {"0", 0},           {"1", 1},        {"800M", 800 * MIB},
        {"4G", 4 * GIB},    {"4g", 4 * GIB}, {"16k", 16384},
        {"2T", 2048 * GIB}, {"007", 7},      {"18446744073709551615", UINT64_MAX},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char var[64];
        log_format(var, sizeof var, "FASTCKPT_STAGING=%s", rows[i].text);
        cr_expect_eq(load(var), 0, "%s", why);
        cr_expect_eq(c.staging, rows[i].bytes, "%s", var);
    }
}

Test(config, seconds) {
    cr_expect_eq(load("FASTCKPT_RETRY=0"), 0);
    cr_expect_eq(c.retry, 0);
    cr_expect_eq(load("FASTCKPT_RETRY=86400"), 0);
    cr_expect_eq(c.retry, 86400);
}

Test(config, texts) {
    cr_expect_eq(load("FASTCKPT_PATHS=/ckpt/*:!*.tmp"), 0);
    cr_expect_str_eq(c.paths, "/ckpt/*:!*.tmp");
    cr_expect_eq(load("FASTCKPT_PATHS=/m\xc3\xb6\xff/a=b*"), 0);
    cr_expect_str_eq(c.paths, "/m\xc3\xb6\xff/a=b*");
    cr_expect_eq(load("FASTCKPT_RUNTIME_DIR=/run/x"), 0);
    cr_expect_str_eq(c.runtime_dir, "/run/x");
    cr_expect_eq(load("FASTCKPT_STRIPES=/nvme0/ck:/nvme1/ck"), 0);
    cr_expect_str_eq(c.stripes, "/nvme0/ck:/nvme1/ck");
    cr_expect_eq(load("FASTCKPT_STRIPES=/0:/1:/2:/3:/4:/5:/6:/7:/8:/9:/a:/b:/c:/d:/e:/f"), 0);
    cr_expect_eq(load("FASTCKPT_DRAIN_RATE=200M"), 0);
    cr_expect_eq(c.drain_rate, 200 * MIB);
    cr_expect_eq(load("FASTCKPT_ENGINE=/opt/fastckpt"), 0);
    cr_expect_str_eq(c.engine, "/opt/fastckpt");
}

Test(config, bad_values) {
    static const struct {
        const char *var, *names, *allowed;
    } rows[] = {
        {"FASTCKPT_FSYNC=sync", "'sync'", "wait|defer"},
        {"FASTCKPT_FSYNC=wai", "'wai'", "wait|defer"},
        {"FASTCKPT_FSYNC=waitx", "'waitx'", "wait|defer"},
        {"FASTCKPT_FSYNC=wait|defer", "'wait|defer'", "wait|defer"},
        {"FASTCKPT_FSYNC=WAIT", "'WAIT'", "wait|defer"},
        {"FASTCKPT_EXIT=1", "'1'", "wait|leave"},
        {"FASTCKPT_IO=libaio", "'libaio'", "auto|uring|threads"},
        {"FASTCKPT_STRIPES=nvme", "'nvme'", "absolute paths"},
        {"FASTCKPT_STRIPES=/a:b", "'/a:b'", "absolute paths"},
        {"FASTCKPT_STRIPES=/a:", "'/a:'", "absolute paths"},
        {"FASTCKPT_STRIPES=/a:/b:/a", "'/a:/b:/a'", "different"},
        {"FASTCKPT_STRIPES=/0:/1:/2:/3:/4:/5:/6:/7:/8:/9:/a:/b:/c:/d:/e:/f:/g", "STRIPES", "1 to 16"},
        {"FASTCKPT_DIRECT=on", "'on'", "auto|off"},
        {"FASTCKPT_LOG=2", "'2'", "error|info|debug"},
        {"FASTCKPT_REPORT=yes", "'yes'", "0|1"},
        {"FASTCKPT_ASYNC_SHARED=2", "'2'", "0|1"},
        {"FASTCKPT_DISABLE=true", "'true'", "0|1"},
        {"FASTCKPT_STAGING=lots", "'lots'", "size"},
        {"FASTCKPT_RETRY=-1", "'-1'", "seconds"},
        {"FASTCKPT_RETRY=1m", "'1m'", "seconds"},
        {"FASTCKPT_RETRY=soon", "'soon'", "seconds"},
        {"FASTCKPT_RETRY=86401", "'86401'", "86400"},
        {"FASTCKPT_RETRY=99999999999999999999", "'9999", "seconds"},
        {"FASTCKPT_STAGING=4GB", "'4GB'", "size"},
        {"FASTCKPT_STAGING=-1", "'-1'", "size"},
        {"FASTCKPT_STAGING=1.5G", "'1.5G'", "size"},
        {"FASTCKPT_STAGING= 4G", "' 4G'", "size"},
        {"FASTCKPT_STAGING=G", "'G'", "size"},
        {"FASTCKPT_STAGING=18446744073709551616", "'1844", "size"},
        {"FASTCKPT_STAGING=16777216T", "'16777216T'", "size"},
        {"FASTCKPT_RUNTIME_DIR=run", "'run'", "absolute"},
        {"FASTCKPT_ENGINE=./fastckpt", "'./fastckpt'", "absolute"},
        {"FASTCKPT_PATHS=/a/[b", "'/a/[b'", "FASTCKPT_PATHS"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char *envp[] = {"FASTCKPT_REPORT=1", "FASTCKPT_IO=uring", (char *)rows[i].var, NULL};
        if (strncmp(rows[i].var, envp[0], 15) == 0 || strncmp(rows[i].var, envp[1], 11) == 0) {
            envp[0] = envp[1] = "X=y"; // the first one counts
        }
        why[0] = '\0';
        cr_expect_eq(config_load(&c, envp, why, sizeof why), -EINVAL, "%s", rows[i].var);
        cr_expect(strstr(why, rows[i].names), "%s: %s", rows[i].var, why);
        cr_expect(strstr(why, rows[i].allowed), "%s: %s", rows[i].var, why);
        cr_expect_eq(strncmp(why, rows[i].var, strcspn(rows[i].var, "=")), 0, "%s", why);
        cr_expect_null(strchr(why, '\n'));
        expect_defaults(1);
    }
}

Test(config, too_long) {
    static char var[2 * CONFIG_PATHS_MAX] = "FASTCKPT_PATHS=";
    size_t at = strlen(var);
    for (size_t n = 0; n < CONFIG_PATHS_MAX; n++) {
        var[at + n] = n % 100 == 99 ? ':' : 'a';
    }
    cr_expect_eq(load(var), -EINVAL);
    cr_expect(strstr(why, "16383"), "%s", why);
    var[at + CONFIG_PATHS_MAX - 1] = '\0';
    cr_expect_eq(load(var), 0, "%s", why);
    static char dir[2 * CONFIG_DIR_MAX] = "FASTCKPT_RUNTIME_DIR=/";
    memset(dir + strlen(dir), 'a', CONFIG_DIR_MAX);
    cr_expect_eq(load(dir), -EINVAL);
    expect_defaults(1);
}

Test(config, the_first_of_two_counts_and_null_is_the_environment) {
    char *envp[] = {"FASTCKPT_IO=uring", "FASTCKPT_IO=bad", NULL};
    cr_expect_eq(config_load(&c, envp, why, sizeof why), 0);
    cr_expect_eq(c.io, IO_URING);
    clearenv();
    cr_expect_eq(config_load(&c, NULL, why, sizeof why), 0, "no environment at all");
    setenv("FASTCKPT_IO", "threads", 1);
    cr_expect_eq(config_load(&c, NULL, why, sizeof why), 0);
    cr_expect_eq(c.io, IO_THREADS);
}

Test(config, help_has_every_variable) {
    int p[2];
    static char text[32768];
    cr_assert_eq(pipe(p), 0);
    config_help(p[1]);
    close(p[1]);
    size_t len = 0;
    for (ssize_t n; (n = read(p[0], text + len, sizeof text - 1 - len)) > 0;) {
        len += (size_t)n;
    }
    for (size_t i = 0; i < config_vars_count; i++) {
        char head[128];
        log_format(head, sizeof head, "FASTCKPT_%s=%s", config_vars[i].name, config_vars[i].values);
        cr_expect(strstr(text, head), "%s", head);
    }
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        cr_expect_leq(strlen(line), 80, "%s", line);
    }
}
