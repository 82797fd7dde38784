// SPDX-License-Identifier: MIT
//
// proc: processes that begin, end, split, lose their descriptors or are interrupted while they save. `proc MODE` does
// one of them in the current directory and prints what it saw; a test compares that and the files with a native run.
// Each mode is a function below, with what it does above it; the table of them is at the end.

#include "proc_rig.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static const char *self, *arg;

static void plain(void) {
    save("m.bin", 9 * MIB + 17 * 8, 1);
    save("latest", 4096, 2);
}

// In mid-save, children by vfork that move descriptors about and exec.
static void vforks(void) {
    int fd = create("m.bin");
    for (unsigned i = 0; i < 12; i++) {
        put(fd, i * MIB, MIB, 1);
        pid_t pid = vfork();
        if (pid == 0) {
            close(0);
            dup2(fd, 9);
            close(fd);
            close_range(10, ~0u, 0);
            execl(i % 3 == 2 ? "/nonexistent" : "/bin/true", "true", NULL);
            _exit(i % 3 == 2 && errno == ENOENT ? 0 : 3);
        }
        reap("vfork", pid);
    }
    say("close %d\n", close(fd));
}

// A child that writes into the file through its standard output, between our own writes.
static void spawn(void) {
    int fd = create("m.bin");
    put(fd, 0, 6 * MIB, 1);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    posix_spawn_file_actions_addopen(&actions, 5, "spawned.bin", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (int i = 0; i < 3; i++) {
        pid_t pid;
        char *argv[] = {"sh", "-c", "echo one; head -c 2000000 /dev/zero; echo two >&5", NULL};
        int r = i == 1 ? posix_spawnp(&pid, "sh", &actions, NULL, argv, environ)
                       : posix_spawn(&pid, "/bin/sh", &actions, NULL, argv, environ);
        say("spawn %d\n", r);
        reap("spawn", pid);
        put(fd, 0, 3 * MIB, (unsigned)i);
    }
    pid_t pid;
    char *argv[] = {"none", NULL};
    say("spawn none %d\n", posix_spawn(&pid, "/nonexistent", NULL, NULL, argv, environ));
    finish(fd);
}

static int inherited;

static int clone_child(void *how) {
    if (strcmp(how, "exec") == 0) {
        execl("/bin/true", "true", NULL);
        _exit(3);
    }
    save("child.bin", 5 * MIB, 7);
    if (put(inherited, 0, 2 * MIB, 8) < 0) {
        _exit(4);
    }
    _exit(0);
}

// glibc's clone, which runs no fork handlers: one child with our memory that execs, one with a copy that saves.
static void clones(void) {
    char *stack = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    inherited = create("m.bin");
    put(inherited, 0, 6 * MIB, 1);
    reap("clone vm", clone(clone_child, stack + MIB, CLONE_VM | CLONE_VFORK | SIGCHLD, "exec"));
    put(inherited, 6 * MIB, 3 * MIB, 1);
    reap("clone", clone(clone_child, stack + MIB, SIGCHLD, "save"));
    put(inherited, 9 * MIB, 3 * MIB, 1);
    finish(inherited);
}

// A fork that no library sees.
static void rawfork(void) {
    inherited = create("m.bin");
    put(inherited, 0, 6 * MIB, 1);
    pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        clone_child("save");
    }
    reap("raw fork", pid);
    put(inherited, 9 * MIB, 3 * MIB, 1);
    finish(inherited);
    save("after.bin", 3 * MIB, 3);
}

static atomic_int stop;

static void *saving(void *number) {
    unsigned n = (unsigned)(uintptr_t)number;
    for (unsigned k = 0; !stop || k == 0; k++) {
        char path[32];
        snprintf(path, sizeof path, "t%u.bin", n);
        save(path, 2 * MIB + n * 8, n);
    }
    return NULL;
}

// forks in a process of 8 threads in mid-save: a child opens, writes, closes and execs within 20 s. `proc fork8 COUNT`
static void fork8(void) {
    pthread_t t[8];
    for (uintptr_t i = 0; i < 8; i++) {
        pthread_create(&t[i], NULL, saving, (void *)i);
    }
    for (int i = 0; i < atoi(arg); i++) {
        char path[32];
        snprintf(path, sizeof path, "c%d.bin", i);
        pid_t pid = fork();
        if (pid == 0) {
            alarm(20);
            save(path, 2 * MIB, 50);
            execl("/bin/true", "true", NULL);
            _exit(3);
        }
        reap("fork", pid);
    }
    stop = 1;
    for (int i = 0; i < 8; i++) {
        pthread_join(t[i], NULL);
    }
}

// execs that fail, in mid-save and between saves.
static void badexec(void) {
    save("a.bin", 5 * MIB, 1);
    int fd = create("m.bin");
    put(fd, 0, 5 * MIB, 1);
    say("exec %d %s\n", execl("/nonexistent", "x", NULL), strerrorname_np(errno));
    put(fd, 5 * MIB, 3 * MIB, 1);
    char *argv[] = {"x", NULL}, *envp[] = {NULL};
    say("exec %d %s\n", execve(".", argv, envp), strerrorname_np(errno));
    say("exec %d %s\n", execvp("no-such-program", argv), strerrorname_np(errno));
    put(fd, 8 * MIB, 3 * MIB, 1);
    say("close %d\n", close(fd));
    save("b.bin", 5 * MIB, 1);
}

// The program replaces itself with a file open; it goes on with the descriptor. `proc execopen` → `proc go-on FD`.
static void execopen(void) {
    save("before.bin", 6 * MIB, 9);
    int fd = create("m.bin"), gone = open("gone.bin", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    put(fd, 0, 6 * MIB, 1);
    put(gone, 0, 6 * MIB, 1);
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    execl(self, "proc", "go-on", number, NULL);
}

static void go_on(void) {
    int fd = atoi(arg);
    say("at %ld\n", (long)lseek(fd, 0, SEEK_CUR));
    put(fd, 6 * MIB, 3 * MIB, 1);
    struct stat st;
    fstat(fd, &st);
    say("size %ld\n", (long)st.st_size);
    say("close %d\n", close(fd));
    save("after.bin", 6 * MIB, 2);
}

// A daemon of the old kind: fork, setsid, fork, close all, and a save before, in between and after.
static void daemonise(void) {
    save("a.bin", 5 * MIB, 1);
    int back[2], fd = create("open.bin");
    put(fd, 0, 3 * MIB, 2);
    if (pipe(back) < 0) {
        _exit(93);
    }
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        if (fork() != 0) {
            _exit(0);
        }
        put(fd, 3 * MIB, 3 * MIB, 2);
        dup2(back[1], 3 == back[1] ? 3 : 700);
        for (int i = 3; i < 1024; i++) {
            if (i != 700) {
                close(i);
            }
        }
        save("b.bin", 5 * MIB, 3);
        if (write(700, "x", 1) != 1) {
            _exit(94);
        }
        _exit(0);
    }
    reap("daemon", pid);
    close(back[1]);
    char c;
    say("said %zd\n", read(back[0], &c, 1));
    put(fd, 6 * MIB, MIB, 2);
    say("close %d\n", close(fd));
}

static atomic_int handled;

static void save_in_handler(int sig) {
    (void)sig;
    int kept = errno;
    if (handled < 20) {
        char path[] = "h00.bin";
        path[1] = (char)('0' + handled / 10), path[2] = (char)('0' + handled % 10);
        save(path, 2 * MIB, 100);
        handled++;
    }
    errno = kept;
}

// A signal handler that saves, whatever the main program is doing.
static void handler(void) {
    struct sigaction sa = {.sa_handler = save_in_handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &sa, NULL);
    struct itimerval every = {{0, 3000}, {0, 3000}}, none = {0};
    setitimer(ITIMER_REAL, &every, NULL);
    while (handled < 20) {
        save("m.bin", 6 * MIB, 1);
        save("n.bin", 3 * MIB, 2);
    }
    setitimer(ITIMER_REAL, &none, NULL);
    struct stat st;
    say("m.bin %d\n", stat("m.bin", &st));
}

static void *exits(void *how) {
    save("m.bin", 6 * MIB, 1);
    (void)how;
    exit(5);
}

// exit from another thread, while the main one waits with a file open.
static void exit_thread(void) {
    int fd = create("open.bin");
    put(fd, 0, 3 * MIB, 1);
    pthread_t t;
    pthread_create(&t, NULL, exits, NULL);
    pthread_join(t, NULL);
}

// Ends of all kinds, after a save; the open file has to be there too where the program says goodbye.
static void ends(void) {
    save("m.bin", 6 * MIB, 1);
    bool dies = strcmp(arg, "abort") == 0 || strcmp(arg, "term") == 0 || strcmp(arg, "segv") == 0;
    if (!dies) {
        put(create("open.bin"), 0, 3 * MIB, 1);
    }
    if (strcmp(arg, "abort") == 0) {
        abort();
    } else if (strcmp(arg, "term") == 0) {
        kill(getpid(), SIGTERM);
        pause();
    } else if (strcmp(arg, "segv") == 0) {
        raise(SIGSEGV);
    } else if (strcmp(arg, "quick") == 0) {
        quick_exit(6);
    } else if (strcmp(arg, "_Exit") == 0) {
        _Exit(7);
    } else if (strcmp(arg, "_exit") == 0) {
        _exit(8);
    } else if (strcmp(arg, "group") == 0) {
        syscall(SYS_exit_group, 9);
    } else if (strcmp(arg, "thread") == 0) {
        pthread_exit(NULL);
    }
    exit(10);
}

// A plugin opened in one of three ways saves a file of its own, and writes into one of ours between our writes.
static void plugin(void) {
    const char *kind = strchr(arg, ':');
    char path[4096];
    snprintf(path, sizeof path, "%s", kind + 1);
    void *lib = *arg == 'm'   ? dlmopen(LM_ID_NEWLM, path, RTLD_NOW)
                : *arg == 'b' ? dlopen(path, RTLD_NOW | RTLD_DEEPBIND)
                              : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int (*save_by)(const char *) = lib != NULL ? (int (*)(const char *))dlsym(lib, "plugin_save") : NULL;
    int (*write_by)(int) = lib != NULL ? (int (*)(int))dlsym(lib, "plugin_write") : NULL;
    if (save_by == NULL || write_by == NULL) {
        say("%s\n", dlerror());
        return;
    }
    say("save %d\n", save_by("plugin.bin"));
    int fd = create("m.bin");
    put(fd, 0, 6 * MIB, 1);
    say("write %d\n", write_by(fd));
    put(fd, 8 * MIB, 3 * MIB, 1);
    finish(fd);
    struct stat st;
    int r = stat("m.bin", &st);
    say("size %d %ld\n", r, (long)st.st_size);
    // Unhooked, it is a stranger: it sees the name when it is published.
    say("again %d\n", save_by(*arg == 'o' ? "m.bin" : "plugin.bin"));
    say("dlclose %d\n", dlclose(lib));
}

static const struct {
    const char *name;
    void (*run)(void);
} modes[] = {
    {"plain", plain},     {"vfork", vforks},        {"spawn", spawn},     {"clone", clones},
    {"rawfork", rawfork}, {"fork8", fork8},         {"badexec", badexec}, {"execopen", execopen},
    {"go-on", go_on},     {"daemonise", daemonise}, {"handler", handler}, {"exit-thread", exit_thread},
    {"ends", ends},       {"plugin", plugin},
};

int main(int argc, char **argv) {
    self = argv[0];
    arg = argc > 2 ? argv[2] : "";
    for (size_t i = 0; argc > 1 && i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(argv[1], modes[i].name) == 0) {
            modes[i].run();
            return 0;
        }
    }
    return 99;
}
