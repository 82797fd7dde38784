// SPDX-License-Identifier: MIT
//
// report: sums of file.c as one line of text. Integers only: the log's format knows no fractions.

#include "report.h"

#include "../core/log.h"
#include "../core/os.h"
#include "cuda.h"
#include "file.h"
#include "own.h"

#include <errno.h>
#include <fcntl.h>

#define NS_PER_MS  1000000ull
#define NS_PER_SEC 1000000000

// A number with a fraction of up to three digits: `value` in units of 1 / 10^digits.
struct decimal {
    char text[32];
};

static struct decimal decimal(uint64_t value, unsigned digits) {
    struct decimal d;
    unsigned long scale = digits == 1 ? 10 : digits == 2 ? 100 : 1000;
    unsigned long rest = (unsigned long)value % scale;
    const char *zeros = digits == 1 || rest >= scale / 10 ? "" : rest >= scale / 100 || digits < 3 ? "0" : "00";
    log_format(d.text, sizeof d.text, "%lu.%s%lu", (unsigned long)value / scale, zeros, rest);
    return d;
}

static struct decimal mib(uint64_t bytes) {
    return decimal((bytes * 10 + MIB / 2) / MIB, 1);
}

static struct decimal seconds(uint64_t ns) {
    return decimal((ns + NS_PER_MS / 2) / NS_PER_MS, 3);
}

static struct decimal gib_per_second(uint64_t bytes, uint64_t ns) {
    unsigned __int128 scaled = (unsigned __int128)bytes * 100 * NS_PER_SEC;
    return decimal(ns != 0 ? (uint64_t)((scaled / ns + GIB / 2) / GIB) : 0, 2);
}

#define STDERR     2
#define NOT_KEPT   (-1)
#define BEING_KEPT (-2)
static _Atomic int kept = NOT_KEPT; // handle of the duplicate

void report_keep_stderr(void) {
    int expected = NOT_KEPT;
    if (!atomic_compare_exchange_strong(&kept, &expected, BEING_KEPT)) {
        return;
    }
    int fd = os_fcntl(STDERR, F_DUPFD_CLOEXEC, 0);
    int handle = fd < 0 ? fd : own_add(fd);
    atomic_store(&kept, handle < 0 ? BEING_KEPT : handle); // there may be no stderr: not asked again
}

void report_restore_stderr(void) {
    int handle = atomic_load(&kept);
    if (handle >= 0 && os_fcntl(STDERR, F_GETFD, 0) == -EBADF) {
        int fd = own_pin(handle);
        if (fd >= 0) {
            log_setup(log_level(), fd, "fastckpt");
        }
    }
}

void report_after_fork(void) {
    kept = NOT_KEPT;
    struct file_report *r = &file_report;
    r->files_staged = r->files_captured = r->files_followed = 0;
    r->bytes_staged = r->bytes_native = r->bytes_referred = 0;
    r->held_ns = r->fsync_ns = 0;
    r->first_close_ns = 0;
}

static void print_devices(void) {
    uint64_t bounced = cuda_report.bounced, native = cuda_report.native, adopted = cuda_report.adopted;
    struct decimal referred = mib(file_report.bytes_referred), deferred = mib(cuda_report.deferred);
    if (bounced + native + adopted > 0) {
        bool later = shim.config.cuda == CUDA_DEFER;
        log_error("device copies: %s MiB through pinned memory, %s MiB by the CUDA runtime, %s MiB straight to where "
                  "they stay; %s MiB written without a copy%s%s%s",
                  mib(bounced).text, mib(native).text, mib(adopted).text, referred.text, later ? "; " : "",
                  later ? deferred.text : "", later ? " MiB not waited for" : "");
    } else if (guard_plain() && !shim.forked && cuda_out_of_reach()) {
        log_error("device copies: no dynamic CUDA runtime in this process, they are as they would be natively");
    }
}

void report_print(const struct msg_leave *leave) {
    const struct file_report *r = &file_report;
    unsigned long staged = r->files_staged, captured = r->files_captured, followed = r->files_followed;
    unsigned long files = staged + captured + followed;
    if (!shim.config.report || (shim.forked && files == 0)) {
        return;
    }
    bool hint = r->fsync_ns > 0 && shim.config.fsync == FSYNC_WAIT;
    bool safe = leave->safe_ns > 0; // there are stripes
    log_error("%lu files (%lu staged, %lu captured, %lu followed), %s MiB staged, %s MiB native, "
              "held %s s (fsync %s s), %s%s%sdurable in %s s, %s GiB/s, %u failures%s",
              files, staged, captured, followed, mib(r->bytes_staged).text, mib(r->bytes_native).text,
              seconds(r->held_ns).text, seconds(r->fsync_ns).text, safe ? "safe in " : "",
              safe ? seconds(leave->safe_ns).text : "", safe ? " s, " : "", seconds(leave->durable_ns).text,
              gib_per_second(r->bytes_staged + r->bytes_native, leave->durable_ns).text, leave->failures,
              hint ? " (FASTCKPT_FSYNC=defer would hand the fsyncs over)" : "");
    print_devices();
}
