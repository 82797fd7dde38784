// SPDX-License-Identifier: MIT
//
// Proves: the runtime directory is checked, cgroups are cut, and an engine is found or started once, without a trace.
// How: real directories; a small Python program in the engine's place, started by several processes at the same time.
// Cannot see: the real engine; other users (peers of another uid, when run by one user); other namespaces.

#include "core/os.h"
#include "core/runtime.h"
#include "core/util.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

Test(runtime, cut_cgroup) {
    static const char *const rows[][2] = {
        {"0::/slurm/uid_0/job_1/step_0/user/task_0\n", "0::/slurm/uid_0/job_1/step_0\n"},
        {"0::/system.slice/slurmstepd.scope/job_123/step_batch/user/task_0\n",
         "0::/system.slice/slurmstepd.scope/job_123/step_batch\n"},
        {"0::/job_1/step_0\n", "0::/job_1/step_0\n"},
        {"0::/job_1/step_0/\n", "0::/job_1/step_0\n"},
        {"0::/job_1/step_0/task_1", "0::/job_1/step_0"},
        {"4:memory:/slurm/uid_5/job_9/step_0/task_3\n3:cpuset:/slurm/uid_5/job_9/step_0\n0::/\n",
         "4:memory:/slurm/uid_5/job_9/step_0\n3:cpuset:/slurm/uid_5/job_9/step_0\n0::/\n"},
        {"0::/\n", "0::/\n"},
        {"", ""},
        {"\n\n", "\n\n"},
        {"junk", "junk"},
        {"0::/job_1\n", "0::/job_1\n"},
        {"0::/job_1/task/step_0/x\n", "0::/job_1/task/step_0/x\n"},
        {"0::/myjob_1/step_0/x\n", "0::/myjob_1/step_0/x\n"},
        {"0::/job_x/step_0/y\n", "0::/job_x/step_0/y\n"},
        {"0::/job_1/step_\n", "0::/job_1/step_\n"},
        {"0::/job_1/steps_0/a\n", "0::/job_1/steps_0/a\n"},
        {"0::/job_1/x\n1:a:/step_0/y\n", "0::/job_1/x\n1:a:/step_0/y\n"},
        {"0::/job_1\n1:a:/step_0/y\n", "0::/job_1\n1:a:/step_0/y\n"},
        {"0::/kubepods/pod1/\xc3\xbc\n", "0::/kubepods/pod1/\xc3\xbc\n"},
        {"0::/job_1/job_2/step_3/t\n", "0::/job_1/job_2/step_3\n"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char text[256];
        strcpy(text, rows[i][0]);
        runtime_cut_cgroup(text);
        cr_expect_str_eq(text, rows[i][1], "%s -> %s", rows[i][0], text);
    }
}

Test(runtime, key_and_name) {
    uint64_t key = runtime_key();
    cr_expect_eq(runtime_key(), key);
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        _exit(runtime_key() == key ? 0 : 1);
    }
    waitpid(pid, &status, 0);
    cr_expect_eq(status, 0, "the same in a child");
    char buf[64];
    runtime_name(0x1a, ".sock", buf, sizeof buf);
    cr_expect_str_eq(buf, "engine-000000000000001a.sock");
    runtime_name(UINT64_MAX, ".log", buf, sizeof buf);
    cr_expect_str_eq(buf, "engine-ffffffffffffffff.log");
}

static char top[] = "/tmp/fastckpt-rt-XXXXXX";
static char dir[128], binary[128];
static int dirfd_;

static void make_dir(void) {
    char path[4096], why[256];
    cr_assert_not_null(mkdtemp(top));
    snprintf(dir, sizeof dir, "%s/a-directory-whose-name-is-so-long-that-no-sun_path-could-hold-it-with-the-rest", top);
    dirfd_ = runtime_open(dir, path, sizeof path, why, sizeof why);
    cr_assert_geq(dirfd_, 0, "%s", why);
    cr_assert_str_eq(path, dir);
    snprintf(binary, sizeof binary, "%s/engine", top);
}

static void remove_dir(void) {
    char command[256];
    snprintf(command, sizeof command, "for p in $(cat %s/pid 2>/dev/null); do kill $p; done; rm -rf %s", dir, top);
    signal(SIGCHLD, SIG_DFL); // else system() cannot learn how it ended
    cr_expect_eq(system(command), 0);
}

Test(runtime, directory, .init = make_dir, .fini = remove_dir) {
    char path[4096], why[256] = "";
    struct stat st;
    cr_expect_eq(stat(dir, &st), 0);
    cr_expect_eq(st.st_mode & 07777, 0700);
    cr_expect_eq(fcntl(dirfd_, F_GETFD), FD_CLOEXEC);
    cr_expect(fcntl(dirfd_, F_GETFL) & O_PATH);
    static const mode_t bad[] = {0701, 0710, 0740, 0777};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        chmod(dir, bad[i]);
        why[0] = '\0';
        cr_expect_eq(runtime_open(dir, path, sizeof path, why, sizeof why), -EPERM);
        cr_expect(strstr(why, dir) && strstr(why, "0700"), "%s", why);
    }
    chmod(dir, 0700);
    char file[256];
    snprintf(file, sizeof file, "%s/file", dir);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    cr_expect_eq(runtime_open(file, path, sizeof path, why, sizeof why), -ENOTDIR);
    cr_expect(strstr(why, file), "%s", why);
    snprintf(file, sizeof file, "%s/none/none", dir);
    cr_expect_eq(runtime_open(file, path, sizeof path, why, sizeof why), -ENOENT);
    cr_expect_eq(runtime_open(dir, path, 8, why, sizeof why), -ENAMETOOLONG);
    if (geteuid() == 0) {
        cr_expect_eq(chown(dir, 12345, 12345), 0);
        cr_expect_eq(runtime_open(dir, path, sizeof path, why, sizeof why), -EPERM);
        cr_expect_eq(chown(dir, 0, 0), 0);
    }
}

Test(runtime, directory_whatever_the_umask, .init = make_dir, .fini = remove_dir) {
    char sub[256], path[4096], why[256];
    struct stat st;
    snprintf(sub, sizeof sub, "%s/sub", dir);
    umask(0777);
    int fd = runtime_open(sub, path, sizeof path, why, sizeof why);
    cr_expect_geq(fd, 0);
    cr_expect_eq(fstat(fd, &st), 0);
    cr_expect_eq(st.st_mode & 07777, 0700);
    umask(022);
}

Test(runtime, default_directory) {
    char path[4096], why[256], want[64];
    int fd = runtime_open("", path, sizeof path, why, sizeof why);
    cr_expect_geq(fd, 0, "%s", why);
    snprintf(want, sizeof want, "fastckpt-%u", geteuid());
    cr_expect(strstr(path, want), "%s", path);
}

Test(runtime, connect_to_none_and_to_a_dead_one, .init = make_dir, .fini = remove_dir) {
    cr_expect_eq(runtime_connect(dirfd_, 7), -ENOENT);
    char here[] = ".", name[64];
    cr_assert_eq(chdir(dir), 0);
    runtime_name(7, ".sock", name, sizeof name);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    strcpy(a.sun_path, name);
    int l = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    cr_assert_eq(bind(l, (void *)&a, sizeof a), 0);
    cr_expect_eq(runtime_connect(dirfd_, 7), -ECONNREFUSED);
    cr_assert_eq(listen(l, 5), 0);
    int c = runtime_connect(dirfd_, 7);
    cr_expect_geq(c, 0);
    cr_expect_eq(fcntl(c, F_GETFD), FD_CLOEXEC);
    struct timeval tv;
    socklen_t len = sizeof tv;
    cr_expect_eq(getsockopt(c, SOL_SOCKET, SO_SNDTIMEO, &tv, &len), 0);
    cr_expect(tv.tv_sec == 0 && tv.tv_usec == 0, "later sends wait as long as they must");
    cr_expect_eq(chdir(here), 0);
}

// An "engine": says how it was called, goes to the background, listens for a while.
static void write_engine(const char *before_bind) {
    FILE *f = fopen(binary, "w");
    cr_assert_not_null(f);
    fprintf(f,
            "#!/usr/bin/python3 -S\n"
            "import os, socket, sys, time\n"
            "assert sys.argv[1:3] == ['serve', '--dir'] and sys.argv[4] == '--key', sys.argv\n"
            "assert 'LD_PRELOAD' not in os.environ and os.environ['MARK'] == 'x'\n"
            "os.chdir(sys.argv[3])\n"
            "open('starts', 'a').write('%%d\\n' %% os.getppid())\n"
            "%s\n"
            "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
            "s.bind('engine-' + sys.argv[5] + '.sock')\n"
            "s.listen(50)\n"
            "pid = os.fork()\n"
            "if pid: open('pid', 'w').write(str(pid)); os._exit(0)\n"
            "os.setsid()\n"
            "time.sleep(20)\n",
            before_bind);
    fclose(f);
    chmod(binary, 0755);
}

static char *const env[] = {"LD_PRELOAD=/nonexistent.so", "MARK=x", "LD_PRELOADX=y", "PATH=/usr/bin:/bin", NULL};

static int starts(void) {
    char file[256], text[256] = "";
    snprintf(file, sizeof file, "%s/starts", dir);
    int n = 0;
    if (os_read_file(file, text, sizeof text) > 0) {
        for (char *p = text; *p; p++) {
            n += *p == '\n';
        }
    }
    return n;
}

static volatile int got_child;
static void on_child(int sig) {
    (void)sig;
    got_child = 1;
}

Test(runtime, start_leaves_no_trace, .init = make_dir, .fini = remove_dir) {
    write_engine("");
    signal(SIGCHLD, on_child);
    sigset_t before, after;
    sigemptyset(&before);
    sigaddset(&before, SIGUSR1);
    sigprocmask(SIG_SETMASK, &before, NULL);
    errno = 55;
    int c = runtime_start(dirfd_, dir, 0xabc, binary, env);
    cr_expect_geq(c, 0, "%d", c);
    cr_expect_eq(errno, 55);
    cr_expect_eq(fcntl(c, F_GETFD), FD_CLOEXEC);
    sigprocmask(SIG_SETMASK, NULL, &after);
    cr_expect(sigismember(&after, SIGUSR1) && !sigismember(&after, SIGINT) && !sigismember(&after, SIGCHLD));
    usleep(20000);
    cr_expect_eq(got_child, 0, "the job sees no SIGCHLD");
    cr_expect_eq(waitpid(-1, NULL, WNOHANG | __WALL), -1);
    cr_expect_eq(errno, ECHILD, "and has no child");
    int again = runtime_start(dirfd_, dir, 0xabc, "/nonexistent", env);
    cr_expect_geq(again, 0, "the second one connects");
    cr_expect_eq(starts(), 1);
}

Test(runtime, start_while_the_job_ignores_sigchld, .init = make_dir, .fini = remove_dir) {
    write_engine("");
    signal(SIGCHLD, SIG_IGN);
    int c = runtime_start(dirfd_, dir, 1, binary, env);
    cr_expect_geq(c, 0, "%d", c);
}

Test(runtime, many_start_one, .init = make_dir, .fini = remove_dir) {
    write_engine("time.sleep(0.3)");
    enum { N = 12 };
    pid_t pids[N];
    for (int i = 0; i < N; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            int64_t begun = os_now_ns(CLOCK_MONOTONIC);
            int r = runtime_start(dirfd_, dir, 0xdef, binary, env);
            bool waited = os_now_ns(CLOCK_MONOTONIC) - begun > 1900000000; // where Python needs that long to begin
            _exit(r >= 0 || (r == -ETIMEDOUT && waited) ? 0 : 1);
        }
    }
    for (int i = 0; i < N; i++) {
        int status = -1;
        waitpid(pids[i], &status, 0);
        cr_expect_eq(status, 0);
    }
    cr_expect_eq(starts(), 1);
}

Test(runtime, a_stale_socket_file_does_not_hinder, .init = make_dir, .fini = remove_dir) {
    write_engine("os.unlink('engine-' + sys.argv[5] + '.sock')");
    int l = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    cr_assert_eq(chdir(dir), 0);
    runtime_name(5, ".sock", a.sun_path, sizeof a.sun_path);
    cr_assert_eq(bind(l, (void *)&a, sizeof a), 0);
    close(l);
    int c = runtime_start(dirfd_, dir, 5, binary, env);
    cr_expect_geq(c, 0, "%d", c);
}

Test(runtime, failing_starts, .init = make_dir, .fini = remove_dir) {
    cr_expect_eq(runtime_start(dirfd_, dir, 1, "/nonexistent/fastckpt", env), -ENOENT);
    cr_expect_eq(runtime_start(dirfd_, dir, 1, "/etc", env), -EACCES);
    cr_expect_eq(runtime_start(dirfd_, dir, 1, "/bin/false", env), -EIO);
    cr_expect_eq(runtime_start(dirfd_, dir, 1, "/bin/true", env), -ENOENT, "it ended well but nobody listens");
    cr_expect_eq(waitpid(-1, NULL, WNOHANG | __WALL), -1);
    cr_expect_eq(runtime_start(dirfd_, dir, 1, "/bin/true", NULL), -ENOENT, "no environment");
}

Test(runtime, a_held_lock_is_waited_for_two_seconds, .init = make_dir, .fini = remove_dir) {
    char file[256];
    snprintf(file, sizeof file, "%s/engine-0000000000000001.start", dir);
    int fd = open(file, O_CREAT | O_RDWR, 0600);
    cr_assert_eq(os_flock(fd, 2), 0);
    int64_t start = os_now_ns(CLOCK_MONOTONIC);
    cr_expect_eq(runtime_start(dirfd_, dir, 1, "/bin/true", env), -ETIMEDOUT);
    int64_t took = os_now_ns(CLOCK_MONOTONIC) - start;
    cr_expect(took > 1900000000 && took < 4000000000, "%ld", (long)took);
}
