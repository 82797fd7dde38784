// SPDX-License-Identifier: MIT
//
// bench_save: a program that saves files, driven line by line so that scripts/bench can let a native and a captured
// process take turns. Each command is answered by one line: the seconds it took, or "error TEXT".
//
//   bench_save MIB [COMMAND ARG...]    MIB: size of a save; COMMAND: returns when all that was closed is durable
//   memcpy             copy the source into memory that is resident
//   save PATH          open, write in one call, close
//   sync PATH          open, write in one call, fsync, close
//   durable PATH       save, then COMMAND: two numbers, held and until durable
//   files DIR N        N files of 1 KiB: open, write, close
//   files_sync DIR N   the same with an fsync each
//   files_durable DIR N    files, then COMMAND: two numbers
//   quit

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SMALL 1024

extern char **environ;

static char *source, *target;
static size_t size;
static char **durable_command;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/** Memory that is resident and holds nothing a device could compress. */
static char *make_resident(size_t bytes) {
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i + sizeof(x) <= bytes; i += sizeof(x)) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(p + i, &x, sizeof(x));
    }
    return p;
}

static int save(const char *path, const char *from, size_t bytes, int sync) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return -errno;
    int result = 0;
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(fd, from + done, bytes - done);
        if (n < 0) {
            result = -errno;
            break;
        }
        done += (size_t)n;
    }
    if (!result && sync && fsync(fd))
        result = -errno;
    if (close(fd) && !result)
        result = -errno;
    return result;
}

static int save_files(const char *dir, long n, int sync) {
    char path[4096];
    for (long i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%s/%ld.bin", dir, i);
        int result = save(path, source, SMALL, sync);
        if (result)
            return result;
    }
    return 0;
}

static int wait_durable(void) {
    pid_t pid;
    int status;
    if (!durable_command)
        return -EINVAL;
    int result = posix_spawn(&pid, durable_command[0], NULL, NULL, durable_command, environ);
    if (result)
        return -result;
    if (waitpid(pid, &status, 0) < 0)
        return -errno;
    return status ? -EIO : 0;
}

/** Runs one command; fills the seconds held and, for those that wait, until durable. */
static int run_command(const char *verb, const char *path, long n, double *held, double *durable) {
    double start = now();
    int result = -EINVAL;
    *durable = 0;
    if (!strcmp(verb, "memcpy")) {
        if (!target) {
            target = make_resident(size);
            start = now();
        }
        if (target)
            memcpy(target, source, size);
        result = target ? 0 : -ENOMEM;
    } else if (!strcmp(verb, "save") || !strcmp(verb, "durable")) {
        result = save(path, source, size, 0);
    } else if (!strcmp(verb, "sync")) {
        result = save(path, source, size, 1);
    } else if (!strncmp(verb, "files", 5)) {
        result = save_files(path, n, !strcmp(verb, "files_sync"));
    }
    *held = now() - start;
    if (!result && strstr(verb, "durable")) {
        result = wait_durable();
        *durable = now() - start;
    }
    return result;
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    size = strtoull(argv[1], NULL, 10) << 20;
    durable_command = argc > 2 ? argv + 2 : NULL;
    source = make_resident(size);
    if (!source)
        return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    char line[4400], verb[32], path[4096];
    while (fgets(line, sizeof(line), stdin)) {
        long n = 0;
        path[0] = 0;
        if (sscanf(line, "%31s %4095s %ld", verb, path, &n) < 1 || !strcmp(verb, "quit"))
            break;
        double held, durable;
        int result = run_command(verb, path, n, &held, &durable);
        if (result)
            printf("error %s\n", strerror(-result));
        else
            printf("%.9f %.9f\n", held, durable);
    }
    return 0;
}
