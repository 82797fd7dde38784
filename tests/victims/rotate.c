// SPDX-License-Identifier: MIT
//
// rotate: training jobs reduced to their saves, with the calls that each framework makes and the rotation that keeps
// the last few: hf, dcp, orbax, lightning, deepspeed; 1 or more ranks, which meet before the marker is written.
//
//   rotate KIND [-r RANKS] [-n SAVES] [-k KEEP] [-s SIZE] [-t MS between] DIR      prints "begin N", "closed N",
//   "failed ..." rotate KIND -c [-r RANKS] [-k KEEP] [-L N] [-E N] [-l] DIR                     checks; prints "last N"
//   or "bad REASON"
//     -m: prints "held N SECONDS", without what it takes to make up the bytes
//     -L: save N or a later one is complete. -E: the program has ended after save N. -l: deletions may come late

#include "rotate.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const kinds[KINDS] = {"hf", "dcp", "orbax", "lightning", "deepspeed"};
static struct options opt = {.ranks = 1, .saves = 10, .keep = 2, .first = 1, .size = 1536 << 10};
static pthread_barrier_t *barrier;
static uint64_t *buffer;
static double filled; // seconds spent in making up bytes
static bool measuring;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- What a save consists of

void place_of(const struct options *o, int k, char *buf, size_t cap) {
    static const char *const format[KINDS] = {"checkpoint-%d", "step-%d", "%d", "epoch=%d.ckpt", "global_step%d"};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(buf, cap, format[o->kind], k);
#pragma GCC diagnostic pop
}

static void add(struct part parts[PARTS_MAX], int *n, const char *place, const char *name, int rank, const char *how) {
    struct part *p = &parts[(*n)++];
    *p = (struct part){.rank = rank, .captured = strchr(how, 'c') != NULL, .big = strchr(how, 'b') != NULL};
    snprintf(p->path, sizeof p->path, "%s%s%s", place, *name ? "/" : "", name);
}

int parts_of(const struct options *o, int k, struct part parts[PARTS_MAX]) {
    char d[64], name[64];
    int n = 0;
    place_of(o, k, d, sizeof d);
    if (o->kind == HF) {
        add(parts, &n, d, "config.json", 0, "c");
        add(parts, &n, d, "model.safetensors", 0, "b"); // O_EXCL and a raw rename: followed
        add(parts, &n, d, "optimizer.pt", 0, "cb");
    } else if (o->kind == DEEPSPEED) {
        add(parts, &n, d, "mp_rank_00_model_states.pt", 0, "cb");
    } else if (o->kind == LIGHTNING) {
        add(parts, &n, d, "", 0, "cb");
    }
    for (int r = 0; r < o->ranks && o->kind != LIGHTNING; r++) {
        static const char *const format[KINDS] = {"rng_state_%d.pth", "__%d_0.distcp", "ocdbt.process_%d", "",
                                                  "zero_pp_rank_%d_optim_states.pt"};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(name, sizeof name, format[o->kind], r);
#pragma GCC diagnostic pop
        add(parts, &n, d, name, r, o->kind == HF ? "c" : o->kind == ORBAX ? "b" : "cb");
    }
    if (o->kind == ORBAX) {
        add(parts, &n, d, "_METADATA", 0, "c");
        add(parts, &n, d, "commit_success.txt", 0, "c");
    } else if (o->kind == DCP || o->kind == HF) {
        add(parts, &n, d, o->kind == HF ? "trainer_state.json" : ".metadata", 0, "c");
    }
    return n;
}

uint64_t sum_of(const uint64_t *w, size_t n) {
    uint64_t a = 1, b = 2;
    for (size_t i = 0; i < n; i++) {
        a = (a ^ w[i]) * 0x100000001b3ull;
        b = b * 31 + a;
    }
    return a ^ b;
}

// ---- Writing

static void failed(int k, const char *what, const char *path) {
    dprintf(1, "failed %d %s %s %s\n", k, what, path, strerrorname_np(errno));
}

static size_t fill(const struct part *p, int k, int part) {
    size_t size = p->big ? opt.size : 1000 + (size_t)(part * 136);
    size_t words = size / 8;
    uint64_t x = (uint64_t)k * 0x9e3779b97f4a7c15ull + (uint64_t)part + 1;
    for (size_t i = sizeof(struct head) / 8; i < words; i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        buffer[i] = x;
    }
    struct head *h = (void *)buffer;
    *h = (struct head){ROTATE_MAGIC, (uint64_t)k, (uint64_t)part, words * 8, 0};
    h->sum = sum_of(buffer + sizeof *h / 8, words - sizeof *h / 8);
    return words * 8;
}

static int write_all(int fd, const char *data, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, data + done, size - done < 700000 ? size - done : 700000);
        if (n < 0) {
            return -1;
        }
        done += (size_t)n;
    }
    return 0;
}

/** Writes part `i` of save k under `path`, as `flags` say, with or without fsync. */
static void write_part(const struct part *p, int k, int i, const char *path, int flags, bool sync) {
    double began = now();
    size_t size = fill(p, k, i);
    filled += now() - began;
    int fd = open(path, flags | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) {
        failed(k, "open", path);
        return;
    }
    if (write_all(fd, (const char *)buffer, size) < 0) {
        failed(k, "write", path);
    }
    if (sync && fsync(fd) < 0) {
        failed(k, "fsync", path);
    }
    if (close(fd) < 0) {
        failed(k, "close", path);
    }
}

/** safetensors: a temporary by O_EXCL, renamed by a system call that no hook sees, before it is closed. */
static void write_renamed_raw(const struct part *p, int k, int i) {
    char tmp[256];
    double began = now();
    size_t size = fill(p, k, i);
    filled += now() - began;
    snprintf(tmp, sizeof tmp, "%.*s/.tmp%06d", (int)(strrchr(p->path, '/') - p->path), p->path, k);
    int fd = open(tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || write_all(fd, (const char *)buffer, size) < 0) {
        failed(k, "write", tmp);
    }
    long ret;
    register long flags __asm__("r10") = (long)p->path;
    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "a"(SYS_renameat), "D"(AT_FDCWD), "S"(tmp), "d"(AT_FDCWD), "r"(flags)
                     : "rcx", "r11", "memory");
    errno = (int)-ret;
    if (ret < 0) {
        failed(k, "rename", tmp);
    }
    if (close(fd) < 0) {
        failed(k, "close", p->path);
    }
}

/** Lightning: everything into a temporary elsewhere, made O_EXCL, closed, opened again; then renamed. */
static void write_and_move(const struct part *p, int k, int i) {
    char tmp[64];
    snprintf(tmp, sizeof tmp, "../tmp/tmp%08d", k);
    close(open(tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    write_part(p, k, i, tmp, O_WRONLY | O_TRUNC, false);
    if (rename(tmp, p->path) < 0 || chmod(p->path, 0644) < 0) {
        failed(k, "rename", p->path);
    }
}

static void sync_dir(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fsync(fd);
    close(fd);
}

/** As shutil.rmtree with ignore_errors. */
static void remove_tree(const char *path) {
    DIR *d = opendir(path);
    if (!d) {
        unlink(path);
        return;
    }
    int fd = dirfd(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            unlinkat(fd, e->d_name, 0);
        }
    }
    closedir(d);
    rmdir(path);
}

static void meet(void) {
    pthread_barrier_wait(barrier);
}

/** Orbax writes into a directory of another name, and renames that. */
static void in_tmp(const struct part *p, int k, char *buf, size_t cap) {
    const char *slash = strchr(p->path, '/');
    if (opt.kind == ORBAX) {
        snprintf(buf, cap, "%d.orbax-checkpoint-tmp%s", k, slash ? slash : "");
    } else {
        snprintf(buf, cap, "%s", p->path);
    }
}

static void write_one(const struct part *p, int k, int i) {
    char path[200], tmp[220];
    in_tmp(p, k, path, sizeof path);
    if (opt.kind == LIGHTNING) {
        write_and_move(p, k, i);
    } else if (opt.kind == HF && !p->captured) {
        write_renamed_raw(p, k, i);
    } else if (opt.kind == ORBAX && !p->captured) {
        write_part(p, k, i, path, O_RDWR | O_TRUNC, true);
        snprintf(tmp, sizeof tmp, "%d.orbax-checkpoint-tmp", k);
        sync_dir(tmp);
    } else if (strstr(path, "/.metadata")) {
        snprintf(tmp, sizeof tmp, "%s.tmp", path);
        write_part(p, k, i, tmp, O_WRONLY | O_TRUNC, true);
        if (rename(tmp, path) < 0) {
            failed(k, "rename", path);
        }
    } else {
        write_part(p, k, i, path, O_WRONLY | O_TRUNC, opt.kind == DCP);
    }
}

static bool is_marker(const char *path) {
    return strstr(path, "/.metadata") || strstr(path, "/trainer_state") || strstr(path, "/commit_success") ||
           strstr(path, "/_METADATA");
}

/** What rank 0 does when all have written. */
static void finish(int k) {
    char place[64], tmp[64], text[64];
    place_of(&opt, k, place, sizeof place);
    if (opt.kind == ORBAX) {
        snprintf(tmp, sizeof tmp, "%d.orbax-checkpoint-tmp", k);
        if (rename(tmp, place) < 0) {
            failed(k, "rename", place);
        }
    } else if (opt.kind == DEEPSPEED) {
        int fd = open("latest", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        int n = snprintf(text, sizeof text, "global_step%d\n", k);
        if (fd < 0 || write(fd, text, (size_t)n) != n || close(fd) < 0) {
            failed(k, "write", "latest");
        }
    }
    dprintf(1, "closed %d\n", k);
    if (k - opt.keep >= opt.first) {
        place_of(&opt, k - opt.keep, place, sizeof place);
        remove_tree(place);
    }
}

static void save(int rank, int k) {
    struct part parts[PARTS_MAX];
    char dir[64];
    int n = parts_of(&opt, k, parts);
    double began = now() - filled;
    if (rank == 0) {
        dprintf(1, "begin %d\n", k);
        place_of(&opt, k, dir, sizeof dir);
        if (opt.kind == ORBAX) {
            snprintf(dir, sizeof dir, "%d.orbax-checkpoint-tmp", k);
        }
        if (opt.kind != LIGHTNING && mkdir(dir, 0755) < 0) {
            failed(k, "mkdir", dir);
        }
    }
    meet();
    for (int i = 0; i < n; i++) {
        if (parts[i].rank == rank && !is_marker(parts[i].path)) {
            write_one(&parts[i], k, i);
        }
    }
    meet();
    for (int i = 0; i < n && rank == 0; i++) {
        if (is_marker(parts[i].path)) {
            write_one(&parts[i], k, i);
        }
    }
    if (rank == 0) {
        finish(k);
        if (measuring) {
            dprintf(1, "held %d %.6f\n", k, now() - filled - began);
        }
    }
    if (opt.pause_ms) {
        nanosleep(&(struct timespec){opt.pause_ms / 1000, opt.pause_ms % 1000 * 1000000L}, NULL);
    }
}

static int run(void) {
    pthread_barrierattr_t shared;
    barrier = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(barrier, &shared, (unsigned)opt.ranks);
    buffer = malloc(opt.size + 4096);
    int rank = 0;
    for (int r = 1; r < opt.ranks && rank == 0; r++) {
        rank = fork() == 0 ? r : 0;
    }
    if (rank) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    for (int k = opt.first; k < opt.first + opt.saves; k++) {
        save(rank, k);
    }
    while (rank == 0 && wait(NULL) > 0) {
    }
    return 0;
}

int main(int argc, char **argv) {
    int c, at_least = 0, exactly = 0;
    bool checking = false, late = false;
    while (opt.kind < KINDS && argc > 2 && strcmp(kinds[opt.kind], argv[1]) != 0) {
        opt.kind++;
    }
    if (argc < 3 || opt.kind == KINDS) {
        return 2;
    }
    while ((c = getopt(argc - 1, argv + 1, "r:n:k:s:t:mcL:E:l")) != -1) {
        switch (c) {
        case 'r':
            opt.ranks = atoi(optarg);
            break;
        case 'n':
            opt.saves = atoi(optarg);
            break;
        case 'k':
            opt.keep = atoi(optarg);
            break;
        case 's':
            opt.size = strtoul(optarg, NULL, 0);
            break;
        case 't':
            opt.pause_ms = atoi(optarg);
            break;
        case 'm':
            measuring = true;
            break;
        case 'c':
            checking = true;
            break;
        case 'L':
            at_least = atoi(optarg);
            break;
        case 'E':
            exactly = atoi(optarg);
            break;
        case 'l':
            late = true;
            break;
        default:
            return 2;
        }
    }
    opt.dir = argv[1 + optind];
    if (opt.ranks > 16 || !opt.dir || chdir(opt.dir) < 0) {
        return 2;
    }
    return checking ? check(&opt, at_least, exactly, late) : run();
}
