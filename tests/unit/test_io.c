// SPDX-License-Identifier: MIT
//
// Proves: both backends write the right bytes and report the right errors, keep a device's order and its depth, and run
// jobs in workers. How: real files on a disk; the calls replaced by slow, counting or failing ones where timing
// matters. Cannot see: durability, a device that fails or is slow by itself, the engine's own loop.

#include "io_rig.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>

#define PIECE (64 * KIB)

static const int backends[] = {IO_URING, IO_THREADS};

static void check_bytes(int backend, int flags, size_t len) {
    enum { FILES = 3, PIECES = 24 }; // more than IO_DEPTH on each of two devices
    char *dir = rig_dir();
    struct io *io = rig_open(backend);
    int fds[FILES];
    struct io_req reqs[FILES][PIECES];
    for (int f = 0; f < FILES; f++) {
        char name[8];
        snprintf(name, sizeof name, "f%d", f);
        fds[f] = rig_file(dir, name, flags);
    }
    rig_done_count = 0;
    for (int i = 0; i < PIECES; i++) {
        for (int f = 0; f < FILES; f++) {
            void *buf = rig_bytes(len, (uint64_t)(f * 100 + i));
            reqs[f][i] = rig_req(fds[f], buf, len, (off_t)len * i, (uint64_t)(f == 2));
            io_write(io, &reqs[f][i]);
        }
    }
    rig_drain(io);
    cr_assert_eq(rig_done_count, FILES * PIECES);
    for (int f = 0; f < FILES; f++) {
        fcntl(fds[f], F_SETFL, 0);
        for (int i = 0; i < PIECES; i++) {
            cr_assert_eq(reqs[f][i].result, 0, "%d", reqs[f][i].result);
            cr_assert_eq(reqs[f][i].arg, &reqs[f][i]);
            char got[16];
            cr_assert_eq(pread(fds[f], got, sizeof got, (off_t)len * i), (ssize_t)sizeof got);
            void *whole = malloc(len);
            cr_assert_eq(pread(fds[f], whole, len, (off_t)len * i), (ssize_t)len);
            cr_assert_eq(memcmp(whole, reqs[f][i].buf, len), 0, "file %d, piece %d", f, i);
            free(whole);
            free((void *)reqs[f][i].buf);
        }
        close(fds[f]);
    }
    io_close(io);
    rig_remove(dir);
}

Test(io, uring_direct_bytes, .timeout = 60) {
    check_bytes(IO_URING, O_DIRECT, PIECE);
}
Test(io, uring_buffered_bytes, .timeout = 60) {
    check_bytes(IO_URING, 0, 10007);
}
Test(io, threads_direct_bytes, .timeout = 60) {
    check_bytes(IO_THREADS, O_DIRECT, PIECE);
}
Test(io, threads_buffered_bytes, .timeout = 60) {
    check_bytes(IO_THREADS, 0, 10007);
}

Test(io, whole_chunks, .timeout = 60) {
    for (size_t b = 0; b < ARRAY_LEN(backends); b++) {
        char *dir = rig_dir();
        struct io *io = rig_open(backends[b]);
        int fd = rig_file(dir, "f", O_DIRECT);
        void *buf = rig_bytes(4 * MIB, 5);
        struct io_req reqs[6];
        for (int i = 0; i < 6; i++) {
            reqs[i] = rig_req(fd, buf, 4 * MIB, (off_t)(4 * MIB) * i, 1);
            io_write(io, &reqs[i]);
        }
        rig_drain(io);
        fcntl(fd, F_SETFL, 0);
        for (int i = 0; i < 6; i++) {
            cr_assert_eq(reqs[i].result, 0);
            rig_expect(fd, (off_t)(4 * MIB) * i, buf, 4 * MIB);
        }
        struct stat st;
        fstat(fd, &st);
        cr_assert_eq(st.st_size, 24 * (off_t)MIB);
        io_close(io);
        close(fd);
        free(buf);
        rig_remove(dir);
    }
}

Test(io, many_devices, .timeout = 60) { // more than there are slots: the last ones share
    char *dir = rig_dir();
    for (size_t b = 0; b < ARRAY_LEN(backends); b++) {
        struct io *io = rig_open(backends[b]);
        int fd = rig_file(dir, "f", O_DIRECT);
        void *buf = rig_bytes(4096, 3);
        static struct io_req reqs[100];
        for (int i = 0; i < 100; i++) {
            reqs[i] = rig_req(fd, buf, 4096, 4096 * i, (uint64_t)i * 1001);
            io_write(io, &reqs[i]);
        }
        rig_drain(io);
        for (int i = 0; i < 100; i++) {
            cr_assert_eq(reqs[i].result, 0);
            rig_expect(fd, 4096 * i, buf, 4096);
        }
        io_close(io);
        close(fd);
    }
    rig_remove(dir);
}

Test(io, errors, .timeout = 60) {
    char *dir = rig_dir();
    for (size_t b = 0; b < ARRAY_LEN(backends); b++) {
        struct io *io = rig_open(backends[b]);
        close(rig_file(dir, "f", 0));
        char path[300];
        snprintf(path, sizeof path, "%s/f", dir);
        int ro = open(path, O_RDONLY), ro_direct = open(path, O_RDONLY | O_DIRECT), full = open("/dev/full", O_WRONLY);
        int direct = open(path, O_WRONLY | O_DIRECT);
        cr_assert(ro >= 0 && ro_direct >= 0 && full >= 0 && direct >= 0);
        char *buf = rig_bytes(8192, 1);
        struct io_req reqs[] = {
            rig_req(ro, buf, 4096, 0, 1),     rig_req(ro_direct, buf, 4096, 0, 1),  rig_req(full, buf, 4096, 0, 1),
            rig_req(9999, buf, 4096, 0, 1),   rig_req(direct, buf + 1, 4096, 0, 1), rig_req(direct, NULL, 4096, 0, 1),
            rig_req(direct, buf, 4096, 0, 1),
        };
        int want[] = {-EBADF, -EBADF, -ENOSPC, -EBADF, -EINVAL, -EFAULT, 0};
        for (size_t i = 0; i < ARRAY_LEN(reqs); i++) {
            io_write(io, &reqs[i]);
        }
        rig_drain(io);
        for (size_t i = 0; i < ARRAY_LEN(reqs); i++) {
            // Some disks take any alignment: then a misaligned write is simply made.
            cr_assert(reqs[i].result == want[i] || (want[i] == -EINVAL && reqs[i].result == 0), "%zu: %d, not %d", i,
                      reqs[i].result, want[i]);
        }
        io_close(io);
        close(ro), close(ro_direct), close(full), close(direct);
    }
    rig_remove(dir);
}

Test(io, short_write_goes_on, .timeout = 60) { // the file size limit cuts the write, its rest gives the error
    char *dir = rig_dir();
    signal(SIGXFSZ, SIG_IGN);
    for (size_t b = 0; b < ARRAY_LEN(backends); b++) {
        struct io *io = rig_open(backends[b]);
        int fd = rig_file(dir, b ? "b" : "a", O_DIRECT);
        struct rlimit limit = {PIECE / 2, RLIM_INFINITY};
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        void *buf = rig_bytes(PIECE, 9);
        struct io_req req = rig_req(fd, buf, PIECE, 0, 1);
        io_write(io, &req);
        rig_drain(io);
        limit.rlim_cur = RLIM_INFINITY;
        setrlimit(RLIMIT_FSIZE, &limit);
        cr_assert_eq(req.result, -EFBIG, "%d", req.result);
        fcntl(fd, F_SETFL, 0);
        rig_expect(fd, 0, buf, PIECE / 2);
        io_close(io);
        close(fd);
    }
    rig_remove(dir);
}

// ---- With calls of our own: threads only

static atomic_int calls, fail_at, running, most_running;
static atomic_int finished[64];
static atomic_bool gate;

/** One more is running: for the most that ever were. */
static void run_in(void) {
    int now = ++running;
    int most = most_running;
    while (now > most && !atomic_compare_exchange_weak(&most_running, &most, now)) {
    }
}

static int counting_write(int fd, const void *buf, size_t len, off_t off) {
    int n = ++calls;
    if (n == fail_at) {
        return -EIO;
    }
    return io_calls_kernel.pwrite_all(fd, buf, len, off);
}

Test(io, nth_call_fails, .timeout = 60) {
    char *dir = rig_dir();
    int fd = rig_file(dir, "f", 0);
    char buf[100] = "x";
    io_calls.pwrite_all = counting_write;
    struct io *io = rig_open(IO_THREADS);
    for (int n = 1, failures = 1; failures; n++) {
        struct io_req reqs[20];
        calls = 0;
        fail_at = n;
        for (int i = 0; i < 20; i++) {
            reqs[i] = rig_req(fd, buf, sizeof buf, 100 * i, 1);
            io_write(io, &reqs[i]);
        }
        rig_drain(io);
        failures = 0;
        for (int i = 0; i < 20; i++) {
            cr_assert(reqs[i].result == 0 || reqs[i].result == -EIO);
            failures += reqs[i].result != 0;
        }
        cr_assert_eq(failures, n <= 20);
        cr_assert_eq(calls, 20);
    }
    io_close(io);
    rig_remove(dir);
}

static int slow_write(int fd, const void *buf, size_t len, off_t off) {
    (void)fd, (void)buf, (void)len;
    int unfinished = 0;
    for (int i = 0; i < off; i++) {
        unfinished += !finished[i];
    }
    // In order: when this one is in flight, at most IO_DEPTH - 1 of those before it are not finished.
    cr_assert_lt(unfinished, IO_DEPTH);
    run_in();
    usleep((useconds_t)(1000 + off % 3 * 700));
    running--;
    finished[off] = 1;
    return 0;
}

Test(io, order_and_depth, .timeout = 60) {
    io_calls.pwrite_all = slow_write;
    struct io *io = rig_open(IO_THREADS);
    struct io_req reqs[64];
    for (int i = 0; i < 64; i++) {
        reqs[i] = rig_req(0, "", 1, i, 1);
        io_write(io, &reqs[i]);
        cr_assert_eq(io_pending(io), (unsigned)i + 1);
    }
    rig_drain(io);
    cr_assert_eq(most_running, IO_DEPTH);
    io_close(io);
}

static int gated_write(int fd, const void *buf, size_t len, off_t off) {
    (void)buf, (void)len, (void)off;
    while (fd == 1 && !gate) {
        usleep(500);
    }
    return 0;
}

static void gated_job(struct io_job *job) {
    run_in();
    while (!gate) {
        usleep(500);
    }
    running--;
    job->result = 1;
}

static unsigned jobs_done;
static void count_job(struct io_job *job) {
    jobs_done++;
    job->arg = job;
}

Test(io, slow_device_holds_nobody, .timeout = 60) {
    io_calls.pwrite_all = gated_write;
    struct io *io = rig_open(IO_THREADS);
    struct io_req stuck[10], quick[10];
    struct io_job jobs[20];
    for (int i = 0; i < 20; i++) {
        jobs[i] = (struct io_job){.run = gated_job, .done = count_job, .device = 1};
        io_job(io, &jobs[i]);
    }
    for (int i = 0; i < 10; i++) {
        stuck[i] = rig_req(1, "", 1, 0, 1);
        io_write(io, &stuck[i]);
    }
    for (int i = 0; i < 10; i++) {
        quick[i] = rig_req(2, "", 1, 0, 2);
        io_write(io, &quick[i]);
    }
    struct io_req beside = rig_req(2, "", 1, 0, 3);
    io_write(io, &beside);
    while (io_pending(io) > 30) { // all but device 1's come through
        struct pollfd p = {.fd = io_event_fd(io), .events = POLLIN};
        cr_assert_eq(poll(&p, 1, 10000), 1);
        io_reap(io);
    }
    cr_assert(beside.arg && quick[9].arg && !stuck[0].arg && jobs_done == 0);
    for (int i = 0; i < 5000 && running < IO_WORKERS_DEVICE; i++) {
        usleep(1000);
    }
    usleep(20000); // a ninth would show itself now
    gate = true;
    rig_drain(io);
    cr_assert_eq(most_running, IO_WORKERS_DEVICE);
    cr_assert_eq(jobs_done, 20);
    io_close(io);
}

// ---- Jobs

struct seen {
    pid_t tid;
    char name[16];
    uint64_t number;
    sigset_t blocked;
};

static void look_around(struct io_job *job) {
    struct seen *s = job->arg;
    s->tid = (pid_t)syscall(SYS_gettid);
    pthread_getname_np(pthread_self(), s->name, sizeof s->name);
    s->number = io_current_number();
    pthread_sigmask(SIG_SETMASK, NULL, &s->blocked);
    job->result = -ENOTTY;
}

static pid_t done_tid;
static void note_tid(struct io_job *job) {
    (void)job;
    done_tid = (pid_t)syscall(SYS_gettid);
}

Test(io, jobs_run_in_workers, .timeout = 60) {
    for (size_t b = 0; b < ARRAY_LEN(backends); b++) {
        struct io *io = rig_open(backends[b]);
        struct seen s = {0};
        struct io_job job = {.run = look_around, .done = note_tid, .arg = &s, .device = 5, .number = 1234567};
        io_job(io, &job);
        rig_drain(io);
        cr_assert_eq(job.result, -ENOTTY);
        cr_assert_neq(s.tid, getpid());
        cr_assert_str_eq(s.name, "fastckpt-io");
        cr_assert_eq(s.number, 1234567);
        cr_assert_eq(io_current_number(), 0);
        cr_assert(sigismember(&s.blocked, SIGTERM) && sigismember(&s.blocked, SIGINT));
        cr_assert(!sigismember(&s.blocked, SIGSEGV) && !sigismember(&s.blocked, SIGABRT));
        sigset_t mine;
        pthread_sigmask(SIG_SETMASK, NULL, &mine);
        cr_assert(!sigismember(&mine, SIGTERM));
        cr_assert_eq(done_tid, getpid());
        io_close(io);
    }
}

static struct io *chain_io;
static void chain_done(struct io_req *req) {
    if (++rig_done_count < 50) {
        io_write(chain_io, req); // submitted again by its own done()
    }
}

Test(io, done_may_submit, .timeout = 60) {
    char *dir = rig_dir();
    for (size_t b = 0; b < ARRAY_LEN(backends); b++) {
        chain_io = rig_open(backends[b]);
        rig_done_count = 0;
        struct io_req req = rig_req(rig_file(dir, "f", O_DIRECT), rig_bytes(4096, 1), 4096, 0, 1);
        req.done = chain_done;
        io_write(chain_io, &req);
        rig_drain(chain_io);
        cr_assert_eq(rig_done_count, 50);
        struct pollfd p = {.fd = io_event_fd(chain_io), .events = POLLIN};
        cr_assert_eq(poll(&p, 1, 0), 0, "readable with nothing to do");
        io_close(chain_io);
    }
    rig_remove(dir);
}

static void sleepy_job(struct io_job *job) {
    usleep(20000);
    job->result = 1;
}

Test(io, close_waits, .timeout = 60) {
    char *dir = rig_dir();
    io_close(NULL);
    for (size_t b = 0; b < ARRAY_LEN(backends); b++) {
        struct io *io = rig_open(backends[b]);
        int fd = rig_file(dir, "f", O_DIRECT);
        void *buf = rig_bytes(PIECE, 4);
        struct io_job jobs[20];
        struct io_req reqs[20];
        jobs_done = rig_done_count = 0;
        for (int i = 0; i < 20; i++) {
            jobs[i] = (struct io_job){.run = sleepy_job, .done = count_job, .device = 1};
            reqs[i] = rig_req(fd, buf, PIECE, (off_t)PIECE * i, 1);
            io_job(io, &jobs[i]);
            io_write(io, &reqs[i]);
        }
        io_close(io);
        cr_assert_eq(jobs_done, 20);
        cr_assert_eq(rig_done_count, 20);
        close(fd);
    }
    rig_remove(dir);
}
