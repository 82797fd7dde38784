// SPDX-License-Identifier: MIT
//
// saver: a training job reduced to its saves. Each file describes itself (sequence number, length, checksum), so that
// "whole" is seen from the file alone, after any kill or power cut. Prints "begin SEQ NAME" before the open and "closed
// SEQ NAME" when close has returned 0 ("failed SEQ NAME ERRNO" else); with -f "synced SEQ NAME" when fsync has.
//
//   saver [-p NAME, %d is the number] [-s SIZE] [-n COUNT] [-k KEEP] [-f] [-t MS between] [-w PIECE] [-F FIRST]
//         [-l FILE: the number is written into this small file after each save] [-d MS between pieces]
//   saver -c FILE...   one line a file: "whole SEQ SIZE NAME", "torn WHY NAME", "absent NAME"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x5641535f544b4346ull

struct head {
    uint64_t magic, seq, size, sum; // sum over all bytes behind the head
};

static struct {
    const char *name, *latest;
    size_t size, piece;
    int count, keep, sync, pause, gap, first;
} opt = {.name = "ckpt-%d.pt", .size = 16 << 20, .piece = 4 << 20, .count = 10, .first = 1};

static char *(*fetch)(const void *buf, size_t size); // cuda_saver.c: what is written, from elsewhere; to be freed

static uint64_t sum_words(const uint64_t *w, size_t n) {
    uint64_t a = 1, b = 2, c = 3, d = 4;
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        a = (a ^ w[i]) * 0x100000001b3ull;
        b = (b ^ w[i + 1]) * 0x100000001b3ull;
        c = (c ^ w[i + 2]) * 0x100000001b3ull;
        d = (d ^ w[i + 3]) * 0x100000001b3ull;
    }
    for (; i < n; i++) {
        a = (a ^ w[i]) * 0x100000001b3ull;
    }
    return a ^ b << 1 ^ c << 2 ^ d << 3;
}

static void nap(int ms) {
    struct timespec ts = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&ts, NULL);
}

static void name_of(char *buf, size_t cap, int seq) {
    // The name is the test's own text.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(buf, cap, opt.name, seq);
#pragma GCC diagnostic pop
}

static void fill(uint64_t *buf, int seq) {
    uint64_t x = (uint64_t)seq * 0x9e3779b97f4a7c15ull + 99;
    for (size_t i = sizeof(struct head) / 8; i < opt.size / 8; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        buf[i] = x;
    }
    struct head *h = (void *)buf;
    *h = (struct head){MAGIC, (uint64_t)seq, opt.size, 0};
    h->sum = sum_words(buf + sizeof *h / 8, opt.size / 8 - sizeof *h / 8);
}

static int put(int fd, const char *buf, size_t size) {
    for (size_t done = 0; done < size;) {
        size_t want = size - done < opt.piece ? size - done : opt.piece;
        ssize_t n = write(fd, buf + done, want);
        if (n < 0) {
            return -1;
        }
        done += (size_t)n;
        if (opt.gap) {
            nap(opt.gap);
        }
    }
    return 0;
}

static int save(const char *name, const void *buf, size_t size, int seq, int sync) {
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        return -1;
    }
    char *fetched = fetch ? fetch(buf, size) : NULL;
    int r = put(fd, fetched ? fetched : buf, size), why = errno;
    free(fetched);
    if (r < 0) {
        close(fd);
        errno = why;
        return -1;
    }
    if (sync) {
        if (fsync(fd) != 0) {
            int err = errno;
            close(fd);
            errno = err;
            return -1;
        }
        dprintf(1, "synced %d %s\n", seq, name);
    }
    return close(fd);
}

static int run(void) {
    uint64_t *buf = malloc(opt.size + 64);
    char name[4096];
    int failed = 0;
    for (int seq = opt.first; seq < opt.first + opt.count; seq++) {
        name_of(name, sizeof name, seq);
        fill(buf, seq);
        dprintf(1, "begin %d %s\n", seq, name);
        if (save(name, buf, opt.size, seq, opt.sync) != 0) {
            dprintf(1, "failed %d %s %s\n", seq, name, strerrorname_np(errno));
            failed = 1;
            continue;
        }
        dprintf(1, "closed %d %s\n", seq, name);
        if (opt.latest) {
            char text[32];
            int n = snprintf(text, sizeof text, "%d\n", seq);
            if (save(opt.latest, text, (size_t)n, seq, 0) != 0) {
                dprintf(1, "failed %d %s %s\n", seq, opt.latest, strerrorname_np(errno));
                failed = 1;
            }
        }
        if (opt.keep && seq - opt.keep >= 1) {
            name_of(name, sizeof name, seq - opt.keep);
            if (unlink(name) != 0 && errno != ENOENT) {
                dprintf(1, "unlink %d %s %s\n", seq - opt.keep, name, strerrorname_np(errno));
            }
        }
        if (opt.pause) {
            nap(opt.pause);
        }
    }
    free(buf);
    return failed;
}

static int check(const char *name) {
    int fd = open(name, O_RDONLY);
    if (fd < 0) {
        printf("absent %s\n", name);
        return 1;
    }
    struct stat st;
    struct head h = {0};
    const char *why = NULL;
    if (fstat(fd, &st) != 0 || pread(fd, &h, sizeof h, 0) != sizeof h) {
        why = "short-head";
    } else if (h.magic != MAGIC) {
        why = "bad-head";
    } else if ((uint64_t)st.st_size != h.size) {
        why = "wrong-size";
    } else {
        char *buf = malloc(h.size);
        size_t got = 0;
        ssize_t n;
        while (got < h.size && (n = pread(fd, buf + got, h.size - got, (off_t)got)) > 0) {
            got += (size_t)n;
        }
        if (got != h.size || sum_words((uint64_t *)(void *)(buf + sizeof h), (h.size - sizeof h) / 8) != h.sum) {
            why = "bad-sum";
        }
        free(buf);
    }
    close(fd);
    if (why) {
        printf("torn %s(size=%lld,seq=%llu) %s\n", why, (long long)st.st_size, (unsigned long long)h.seq, name);
        return 1;
    }
    printf("whole %llu %llu %s\n", (unsigned long long)h.seq, (unsigned long long)h.size, name);
    return 0;
}

static size_t size_of(const char *s) {
    char *end;
    size_t v = strtoul(s, &end, 0);
    return *end == 'K' ? v << 10 : *end == 'M' ? v << 20 : *end == 'G' ? v << 30 : v;
}

int main(int argc, char **argv) {
    int c, bad = 0;
    while ((c = getopt(argc, argv, "p:s:n:k:ft:w:F:l:d:c")) != -1) {
        switch (c) {
        case 'p':
            opt.name = optarg;
            break;
        case 's':
            opt.size = size_of(optarg) & ~7ul;
            break;
        case 'n':
            opt.count = atoi(optarg);
            break;
        case 'k':
            opt.keep = atoi(optarg);
            break;
        case 'f':
            opt.sync = 1;
            break;
        case 't':
            opt.pause = atoi(optarg);
            break;
        case 'w':
            opt.piece = size_of(optarg);
            break;
        case 'F':
            opt.first = atoi(optarg);
            break;
        case 'l':
            opt.latest = optarg;
            break;
        case 'd':
            opt.gap = atoi(optarg);
            break;
        case 'c':
            for (int i = optind; i < argc; i++) {
                bad |= check(argv[i]);
            }
            return bad;
        default:
            return 2;
        }
    }
    return run();
}
