// SPDX-License-Identifier: MIT
//
// Proves: where io_uring or threads are refused, io says why and the same bytes arrive by a slower way. How: a seccomp
// filter in the test's own process makes io_uring_setup, io_uring_enter or clone fail, before or after io_open.
// Cannot see: old kernels, and ENOMEM by `ulimit -l` where the kernel charges rings to the cgroup (Linux >= 5.12).

#include "io_rig.h"

#include <sys/resource.h>

static struct io_req reqs[16];
static void *bytes;

static void submit_all(struct io *io, int fd, uint64_t device) {
    bytes = rig_bytes(16 * 4096, 11);
    rig_done_count = 0;
    for (int i = 0; i < 16; i++) {
        reqs[i] = rig_req(fd, (char *)bytes + 4096 * i, 4096, 4096 * i, device);
        io_write(io, &reqs[i]);
    }
}

static void expect_all(struct io *io, int fd) {
    rig_drain(io);
    cr_assert_eq(rig_done_count, 16);
    for (int i = 0; i < 16; i++) {
        cr_assert_eq(reqs[i].result, 0, "%d", reqs[i].result);
    }
    rig_expect(fd, 0, bytes, 16 * 4096);
    free(bytes);
}

static void check_refused_setup(int err, const char *word) {
    char *dir = rig_dir();
    int fd = rig_file(dir, "f", O_DIRECT);
    rig_refuse(SYS_io_uring_setup, -1, err);
    for (int want = IO_AUTO; want <= IO_URING; want++) {
        struct io *io = NULL;
        char why[256];
        cr_assert_eq(io_open(&io, want, why, sizeof why), 0);
        cr_assert_str_eq(io_name(io), "threads");
        cr_assert(strstr(why, word), "%s", why);
        submit_all(io, fd, 1);
        expect_all(io, fd);
        io_close(io);
    }
    rig_remove(dir);
}

Test(io_refused, eperm, .timeout = 60) {
    check_refused_setup(EPERM, "not permitted");
}
Test(io_refused, enosys, .timeout = 60) {
    check_refused_setup(ENOSYS, "has none");
}
Test(io_refused, enomem, .timeout = 60) {
    check_refused_setup(ENOMEM, "memory");
}
Test(io_refused, einval, .timeout = 60) {
    check_refused_setup(EINVAL, "too old");
}

Test(io_refused, memlock_zero, .timeout = 60) {
    char *dir = rig_dir();
    int fd = rig_file(dir, "f", O_DIRECT);
    struct rlimit none = {0, 0};
    cr_assert_eq(setrlimit(RLIMIT_MEMLOCK, &none), 0);
    bool root = geteuid() == 0;
    cr_assert(!root || seteuid(65534) == 0); // the limit does not bind root
    struct io *io = NULL;
    char why[256];
    cr_assert_eq(io_open(&io, IO_AUTO, why, sizeof why), 0);
    cr_assert_eq(strcmp(io_name(io), "threads") == 0, why[0] != '\0', "%s: '%s'", io_name(io), why);
    submit_all(io, fd, 1);
    expect_all(io, fd);
    io_close(io);
    cr_assert(!root || seteuid(0) == 0);
    rig_remove(dir);
}

Test(io_refused, further_ring, .timeout = 60) {
    char *dir = rig_dir();
    int fd = rig_file(dir, "f", O_DIRECT);
    struct io *io = rig_open(IO_URING);
    submit_all(io, fd, 1);
    expect_all(io, fd);
    rig_refuse(SYS_io_uring_setup, -1, ENOMEM);
    submit_all(io, fd, 2); // its ring cannot be made
    expect_all(io, fd);
    submit_all(io, fd, 1); // the first device's goes on
    expect_all(io, fd);
    io_close(io);
    rig_remove(dir);
}

static void check_refused_enter(int err) {
    char *dir = rig_dir();
    int fd = rig_file(dir, "f", O_DIRECT);
    struct io *io = rig_open(IO_URING);
    submit_all(io, fd, 1);
    rig_refuse(SYS_io_uring_enter, -1, err); // with writes in flight, and more waiting
    expect_all(io, fd);
    submit_all(io, fd, 1);
    expect_all(io, fd);
    submit_all(io, fd, 2);
    expect_all(io, fd);
    io_close(io);
    rig_remove(dir);
}

Test(io_refused, enter_eperm, .timeout = 60) {
    check_refused_enter(EPERM);
}
Test(io_refused, enter_eagain_for_ever, .timeout = 60) {
    check_refused_enter(EAGAIN);
}

static pid_t ran_in;
static void note_tid(struct io_job *job) {
    ran_in = (pid_t)syscall(SYS_gettid);
    job->result = (int)io_current_number();
}
static unsigned jobs_done;
static void count_job(struct io_job *job) {
    (void)job;
    jobs_done++;
}

Test(io_refused, no_threads, .timeout = 60) {
    char *dir = rig_dir();
    int fd = rig_file(dir, "f", 0);
    struct io *io = rig_open(IO_THREADS);
    rig_refuse(SYS_clone, SYS_clone3, EAGAIN);
    struct io_job jobs[20];
    for (int i = 0; i < 20; i++) {
        jobs[i] = (struct io_job){.run = note_tid, .done = count_job, .device = 1, .number = 55};
        io_job(io, &jobs[i]);
        cr_assert_eq(jobs_done, 0, "done() outside of io_reap");
    }
    submit_all(io, fd, 1);
    expect_all(io, fd);
    cr_assert_eq(jobs_done, 20);
    cr_assert_eq(jobs[19].result, 55);
    cr_assert_eq(ran_in, getpid());
    io_close(io);
    rig_remove(dir);
}

Test(io_refused, no_further_threads, .timeout = 60) { // one worker does everything in turn
    char *dir = rig_dir();
    int fd = rig_file(dir, "f", 0);
    struct io *io = rig_open(IO_THREADS);
    struct io_job jobs[20];
    for (int i = 0; i < 20; i++) {
        jobs[i] = (struct io_job){.run = note_tid, .done = count_job, .device = 1, .number = 55};
    }
    io_job(io, &jobs[0]);
    rig_refuse(SYS_clone, SYS_clone3, EAGAIN);
    for (int i = 1; i < 20; i++) {
        io_job(io, &jobs[i]);
    }
    submit_all(io, fd, 1);
    expect_all(io, fd);
    cr_assert_eq(jobs_done, 20);
    cr_assert_neq(ran_in, getpid());
    io_close(io);
    rig_remove(dir);
}
