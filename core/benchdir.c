// SPDX-License-Identifier: MIT
//
// benchdir: see benchdir.h. Which measurements are made, the table, and what follows from it for the settings.

#include "benchdir.h"

#include "benchdir_run.h"
#include "disks.h"
#include "fs.h"
#include "log.h"
#include "os.h"
#include "tool_text.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/statvfs.h>

#define DIRS_MAX     16
#define ENGINE_CHUNK (4 * MIB) // as the engine writes
#define ENGINE_DEPTH 4
#define CLEARLY      1.15 // less is noise
#define WORTH        0.1  // of the fastest one's rate

static const struct cell {
    uint64_t chunk;
    unsigned depth;
    bool direct;
    bool threads; // else what FASTCKPT_IO says
} cells[] = {
    {1 * MIB, 1, true, false},
    {1 * MIB, 4, true, false},
    {1 * MIB, 8, true, false},
    {4 * MIB, 1, true, false},
    {ENGINE_CHUNK, ENGINE_DEPTH, true, false},
    {4 * MIB, 8, true, false},
    {4 * MIB, 4, true, true},
    {4 * MIB, 4, false, true},
};
enum { CELL_ENGINE = 4, CELL_BEST = 6, CELL_THREADS = 6, CELL_BUFFERED = 7, CELLS = 8 };

struct bench_dir {
    const char *path;
    int fd;
    const char *fault; // why it was not measured, or NULL
    int error;
    bool known; // a file system on which the engine writes directly
    struct disks disks;
    double rate[CELLS]; // bytes a second; 0: not possible
    double fsync, create;
    double together;                // in the set
    const struct bench_dir *shares; // a faster one on the same disk
    bool worth;
};

struct bench {
    const struct config *c;
    const struct bench_request *rq;
    struct bench_dir dirs[DIRS_MAX];
    int n;
    double together; // of those that are worth it
};

static void on_interrupt(int sig) {
    (void)sig;
    bench_interrupt();
}

// ---- Measuring

/** The rate that the engine reaches alone. */
static double engine_rate(const struct bench *b, const struct bench_dir *d) {
    bool direct = d->known && b->c->direct == DIRECT_AUTO && d->rate[CELL_ENGINE] > 0;
    return d->rate[!direct ? CELL_BUFFERED : b->c->io == IO_THREADS ? CELL_THREADS : CELL_ENGINE];
}

static bool has_room(const struct bench *b, const struct bench_dir *d) {
    struct statvfs v;
    return fstatvfs(d->fd, &v) < 0 || (uint64_t)v.f_bavail * v.f_frsize > b->rq->size + b->rq->size / 8;
}

static void measure(const struct bench *b, struct bench_dir *d) {
    for (int i = 0; i < CELLS && !bench_interrupted() && !d->fault; i++) {
        struct bench_lane lane = {.dir = d->fd, .direct = cells[i].direct};
        struct bench_shape shape = {.io = cells[i].threads ? IO_THREADS : b->c->io,
                                    .chunk = cells[i].chunk,
                                    .depth = cells[i].depth,
                                    .size = b->rq->size};
        int r = bench_write(&lane, 1, &shape);
        d->error = r < 0 ? r : lane.error;
        d->rate[i] = d->error < 0 ? 0 : lane.rate;
        if (d->error == -EINVAL && cells[i].direct) {
            d->error = 0; // no direct I/O here: the cell stays empty
        } else if (d->error < 0) {
            d->fault = log_errno(-d->error);
        }
    }
    if (!d->fault && !bench_interrupted()) {
        bench_small(d->fd, &d->fsync, &d->create);
    }
}

static void open_dir(const struct bench *b, struct bench_dir *d) {
    d->fd = os_openat(AT_FDCWD, d->path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    if (d->fd < 0) {
        d->error = d->fd;
        d->fault = log_errno(-d->fd);
        return;
    }
    const struct fs_type *t = fs_of(d->fd);
    d->known = t && (t->traits & FS_DIRECT);
    disks_behind(d->fd, &d->disks);
    if (!t || (t->traits & FS_NATIVE)) {
        d->fault = "no file system on which files are captured";
    } else if (!has_room(b, d)) {
        d->fault = "too little space: see --size";
    }
}

/** Those together that are worth it, each as the engine would write to it. */
static void measure_set(struct bench *b) {
    struct bench_lane lanes[DIRS_MAX];
    struct bench_dir *of[DIRS_MAX];
    int n = 0;
    for (int i = 0; i < b->n; i++) {
        struct bench_dir *d = &b->dirs[i];
        if (d->worth) {
            of[n] = d;
            lanes[n++] = (struct bench_lane){.dir = d->fd, .direct = engine_rate(b, d) != d->rate[CELL_BUFFERED]};
        }
    }
    struct bench_shape shape = {.io = b->c->io, .chunk = ENGINE_CHUNK, .depth = ENGINE_DEPTH, .size = b->rq->size};
    if (n < 2 || bench_interrupted() || bench_write(lanes, n, &shape) < 0) {
        return;
    }
    for (int i = 0; i < n; i++) {
        of[i]->together = lanes[i].rate;
        b->together += lanes[i].rate;
    }
}

/** Worth a stripe: the fastest of those on one disk, if it adds something beside the fastest of all. */
static void choose(struct bench *b) {
    double best = 0;
    for (int i = 0; i < b->n; i++) {
        best = engine_rate(b, &b->dirs[i]) > best ? engine_rate(b, &b->dirs[i]) : best;
    }
    for (int i = 0; i < b->n; i++) {
        struct bench_dir *d = &b->dirs[i];
        double rate = engine_rate(b, d);
        for (int k = 0; k < b->n && !d->fault; k++) {
            const struct bench_dir *o = &b->dirs[k];
            double its = engine_rate(b, o);
            if (k != i && !o->fault && disks_common(&d->disks, &o->disks) && (its > rate || (its == rate && k < i))) {
                d->shares = o;
            }
        }
        d->worth = !d->fault && !d->shares && rate > 0 && rate >= WORTH * best;
    }
}

// ---- Saying it

static double gib(double rate) {
    return rate / (double)GIB;
}

static void print_cell(double rate) {
    if (rate > 0) {
        printf(" %7.3f", gib(rate));
    } else {
        printf(" %7s", "-");
    }
}

static void print_ms(double seconds) {
    if (seconds >= 0) {
        printf(" %8.2f", seconds * 1000);
    } else {
        printf(" %8s", "-");
    }
}

static void print_table(const struct bench *b) {
    char path[4096], names[256];
    printf("GiB/s until it is on the disk, at most %.0f MiB or a second each; by chunk and writes in flight\n\n",
           (double)b->rq->size / MIB);
    printf("    1M x1   1M x4   1M x8   4M x1   4M x4   4M x8 threads  cached fsync ms small ms\n");
    for (int i = 0; i < b->n; i++) {
        const struct bench_dir *d = &b->dirs[i];
        if (d->fault) {
            printf("%s: not measured: %s\n", text_line(d->path, path, sizeof path), d->fault);
            continue;
        }
        printf("%s (%s)\n ", text_line(d->path, path, sizeof path), disks_text(&d->disks, names, sizeof names));
        for (int k = 0; k < CELLS; k++) {
            print_cell(d->rate[k]);
        }
        print_ms(d->fsync);
        print_ms(d->create);
        printf("\n");
    }
    printf("\nthreads: 4M x4 without io_uring. cached: 4M x4 through the page cache, and fsync. fsync: after 4 KiB. "
           "small: a file of 1 KiB,\nmade, synced, removed.\n");
}

/** 0 where nothing was measured. */
static double sum(const struct bench *b, int cell, bool known_only) {
    double s = 0;
    for (int i = 0; i < b->n; i++) {
        s += b->dirs[i].worth && (b->dirs[i].known || !known_only) ? b->dirs[i].rate[cell] : 0;
    }
    return s;
}

/** "off" where the page cache is clearly faster than direct I/O. Only where the engine would use that. */
static bool cached_is_better(const struct bench *b) {
    double direct = sum(b, CELL_ENGINE, true);
    return direct > 0 && sum(b, CELL_BUFFERED, true) > CLEARLY * direct;
}

static bool threads_are_better(const struct bench *b) {
    double ring = sum(b, CELL_ENGINE, true);
    return b->c->io != IO_THREADS && ring > 0 && sum(b, CELL_THREADS, true) > CLEARLY * ring;
}

static void print_settings(const struct bench *b) {
    char path[4096], other[4096];
    printf("\nto use:\n");
    int worth = 0;
    for (int i = 0; i < b->n; i++) {
        const struct bench_dir *d = &b->dirs[i];
        text_line(d->path, path, sizeof path);
        if (d->worth) {
            worth++;
            printf("  %s: %.3f GiB/s alone", path, gib(engine_rate(b, d)));
            d->together > 0 ? printf(", %.3f in the set\n", gib(d->together)) : printf("\n");
        } else if (d->shares) {
            printf("  not %s: on the same disk as %s\n", path, text_line(d->shares->path, other, sizeof other));
        } else if (!d->fault) {
            printf("  not %s: %.3f GiB/s add nothing\n", path, gib(engine_rate(b, d)));
        }
    }
    if (worth > 1) {
        printf("  the %d together: %.3f GiB/s\n", worth, gib(b->together));
    }
    printf("  FASTCKPT_DIRECT=%s", cached_is_better(b) ? "off" : "auto");
    printf("  FASTCKPT_IO=%s\n", threads_are_better(b) ? "threads" : "auto");
}

static void print_number(const char *key, double v, bool there) {
    printf(", \"%s\": ", key);
    there ? (void)printf("%.4f", v) : (void)printf("null");
}

static void print_json(const struct bench *b) {
    printf("{\"unit\": \"GiB/s\", \"size\": %llu, \"directories\": [", (unsigned long long)b->rq->size);
    for (int i = 0; i < b->n; i++) {
        const struct bench_dir *d = &b->dirs[i];
        char names[256];
        printf("%s\n  {\"directory\": ", i ? "," : "");
        text_json(d->path);
        printf(", \"fault\": ");
        d->fault ? text_json(d->fault) : (void)printf("null");
        printf(", \"disks\": ");
        text_json(disks_text(&d->disks, names, sizeof names));
        for (int k = 0; k < CELLS; k++) {
            char key[32];
            snprintf(key, sizeof key, "%lluM_x%u", (unsigned long long)(cells[k].chunk / MIB), cells[k].depth);
            print_number(k == CELL_THREADS    ? "threads"
                         : k == CELL_BUFFERED ? "cached"
                                              : key,
                         gib(d->rate[k]), d->rate[k] > 0);
        }
        print_number("fsync_ms", d->fsync * 1000, !d->fault && d->fsync >= 0);
        print_number("small_ms", d->create * 1000, !d->fault && d->create >= 0);
        print_number("alone", gib(engine_rate(b, d)), !d->fault);
        print_number("in_the_set", gib(d->together), d->together > 0);
        printf(", \"worth\": %s}", d->worth ? "true" : "false");
    }
    printf("\n], \"together\": ");
    b->together > 0 ? printf("%.4f", gib(b->together)) : printf("null");
    printf(", \"direct\": \"%s\", \"io\": \"%s\"}\n", cached_is_better(b) ? "off" : "auto",
           threads_are_better(b) ? "threads" : "auto");
}

int bench_directories(const struct config *c, const struct bench_request *rq) {
    static struct bench b;
    if (rq->n_dirs > DIRS_MAX || rq->size < BENCH_DEPTH_MAX * BENCH_CHUNK_MAX) {
        fprintf(stderr, "fastckpt: bench takes at most %d directories, and a --size of at least 32M\n", DIRS_MAX);
        return 2;
    }
    signal(SIGINT, on_interrupt);
    b = (struct bench){.c = c, .rq = rq, .n = rq->n_dirs};
    int faults = 0;
    for (int i = 0; i < b.n; i++) {
        b.dirs[i].path = rq->dirs[i];
        open_dir(&b, &b.dirs[i]);
        measure(&b, &b.dirs[i]);
        faults += b.dirs[i].fault != NULL;
    }
    choose(&b);
    measure_set(&b);
    if (bench_interrupted()) {
        return 130;
    }
    if (rq->json) {
        print_json(&b);
    } else {
        print_table(&b);
        print_settings(&b);
    }
    return faults > 0;
}
