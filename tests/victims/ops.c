// SPDX-License-Identifier: MIT
//
// ops: a program made of its arguments: each is one call, done in order, its result printed as a line ("write=8388608",
// "close=EIO"). Tests run the same list natively and under the shim and compare the lines and the files.
//
//   o:SLOT:FLAGS:MODE:PATH  open; FLAGS of r w b(oth) c t x a s(ync) d(irect) n(ofollow); MODE octal
//   O:SLOT:DSLOT:FLAGS:MODE:PATH  openat          D:SLOT:PATH  open a directory
//   w:SLOT:SIZE:SEED  one write      W:…  writes until all is written      p:SLOT:OFF:SIZE:SEED  one pwrite
//   v:SLOT:N:SIZE:SEED  writev of N pieces        l:SLOT:OFF:set|cur|end  lseek     d:SLOT:SLOT2  dup
//   f:SLOT fsync   F:SLOT fdatasync   c:SLOT close   t:SLOT:SIZE ftruncate   z:SLOT fstat (size)   h:SLOT:OCTAL fchmod
//   S:PATH stat   u:PATH unlink   m:OLD:NEW rename   k:PATH mkdir   C:PATH chdir   U:OCTAL umask   H:OLD:NEW link
//   a:PATH access   M:OCTAL:PATH chmod   K:SIZE:PATH truncate   P:PATH lstat   Y:TARGET:PATH symlink   V:PATH rmdir
//   A:SIZE:MS allocate and touch, taking MS   R: free it   X:COMMAND system()   s:MS sleep   y:TEXT print   i: wait
//   L:n|f|l:VALUE setrlimit   G:SIGNAL ignore   N: open /dev/null until it fails   B:SLOT close N's last   e:CODE _exit
//   T: milliseconds since the last T (printed as "ms=", for the reader, not for comparing)   q:SECONDS alarm
//   r:SLOT:OFF:SIZE pread and print a checksum    E:COUNT:SIZE:PATTERN  COUNT files of SIZE by open, write, close

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 64
#define UNIT  (64ul << 20)

static int slots[SLOTS];
static char *mem;
static size_t mem_len;
static int last_null = -1;

static void say(const char *op, long long r) {
    char line[512];
    int n = r < 0 ? snprintf(line, sizeof line, "%s=%s\n", op, strerrorname_np(errno))
                  : snprintf(line, sizeof line, "%s=%lld\n", op, r);
    if (write(1, line, (size_t)n) != n) {
        _exit(97);
    }
}

static unsigned long long number(const char *s) {
    char *end;
    unsigned long long v = strtoull(s, &end, 0);
    switch (*end) {
    case 'K':
        return v << 10;
    case 'M':
        return v << 20;
    case 'G':
        return v << 30;
    }
    return v;
}

/** A source of `len` bytes that depends on `seed`; beyond 64 MiB the same 64 MiB of memory are mapped again. */
static char *source(size_t len, unsigned long long seed) {
    static char *at;
    static size_t at_len;
    static unsigned long long at_seed;
    if (at && at_len >= len && at_seed == seed) {
        return at;
    }
    if (at) {
        munmap(at, at_len);
    }
    size_t unit = len < UNIT ? (len + 4095) & ~4095ul : UNIT;
    size_t total = (len + unit - 1) / unit * unit;
    at = mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    mmap(at, unit, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    for (size_t o = unit; o < total; o += unit) { // old size 0: a second mapping of the same pages
        if (mremap(at, 0, unit, MREMAP_MAYMOVE | MREMAP_FIXED, at + o) == MAP_FAILED) {
            _exit(98);
        }
    }
    uint64_t x = seed * 0x9e3779b97f4a7c15ull + 1;
    for (size_t i = 0; i < unit / 8; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        ((uint64_t *)(void *)at)[i] = x;
    }
    at_len = total;
    at_seed = seed;
    return at;
}

static int flags_of(const char *s) {
    int f = strchr(s, 'b') ? O_RDWR : strchr(s, 'w') ? O_WRONLY : O_RDONLY;
    static const struct {
        char c;
        int f;
    } bits[] = {{'c', O_CREAT}, {'t', O_TRUNC},  {'x', O_EXCL},    {'a', O_APPEND},
                {'s', O_SYNC},  {'d', O_DIRECT}, {'n', O_NOFOLLOW}};
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
        f |= strchr(s, bits[i].c) ? bits[i].f : 0;
    }
    return f;
}

static long long write_all(int fd, const char *p, size_t len) {
    size_t done = 0;
    while (done < len) {
        ssize_t n = write(fd, p + done, len - done);
        if (n < 0) {
            return n;
        }
        done += (size_t)n;
    }
    return (long long)done;
}

static long long checksum(int fd, off_t off, size_t len) {
    uint64_t h = 0xcbf29ce484222325ull;
    char *buf = malloc(len + 8);
    ssize_t n = pread(fd, buf, len, off);
    if (n < 0) {
        return n;
    }
    for (ssize_t i = 0; i < n; i++) {
        h = (h ^ (unsigned char)buf[i]) * 0x100000001b3ull;
    }
    free(buf);
    return (long long)(h >> 2);
}

static long long many(char **a) {
    long long done = 0;
    for (unsigned long long i = 0; i < number(a[1]); i++) {
        char path[4096];
        // The pattern is the test's own text.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(path, sizeof path, a[3], (int)i);
#pragma GCC diagnostic pop
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (fd < 0) {
            return -1;
        }
        size_t len = number(a[2]);
        if (write_all(fd, source(len + 4096, 7) + i % 4096, len) < 0 || close(fd) != 0) {
            return -1;
        }
        done++;
    }
    return done;
}

static long long limit(const char *which, const char *value) {
    int r = *which == 'n' ? RLIMIT_NOFILE : *which == 'f' ? RLIMIT_FSIZE : RLIMIT_MEMLOCK;
    struct rlimit l;
    getrlimit((__rlimit_resource_t)r, &l);
    l.rlim_cur = number(value);
    return setrlimit((__rlimit_resource_t)r, &l);
}

static long long fill_table(void) {
    long long n = 0;
    int fd;
    while ((fd = open("/dev/null", O_RDONLY)) >= 0) {
        last_null = fd;
        n++;
    }
    return n;
}

static long long elapsed(void) {
    static struct timespec last;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long long ms = last.tv_sec ? (now.tv_sec - last.tv_sec) * 1000 + (now.tv_nsec - last.tv_nsec) / 1000000 : 0;
    last = now;
    return ms;
}

static long long print_stat(const char *path) {
    struct stat st;
    if (stat(path, &st) != 0) {
        return -1;
    }
    char line[256];
    int n = snprintf(line, sizeof line, "mode=%o nlink=%d uid=%d gid=%d ", st.st_mode, (int)st.st_nlink, (int)st.st_uid,
                     (int)st.st_gid);
    return write(1, line, (size_t)n) < 0 ? -1 : (long long)st.st_size;
}

static long long data_op(char **a) {
    int fd = a[1] && *a[1] ? slots[atoi(a[1]) % SLOTS] : -1;
    struct iovec iov[1024];
    struct stat st;
    switch (a[0][0]) {
    case 'w':
        return write(fd, source(number(a[2]), number(a[3])), number(a[2]));
    case 'W':
        return write_all(fd, source(number(a[2]), number(a[3])), number(a[2]));
    case 'p':
        return pwrite(fd, source(number(a[3]), number(a[4])), number(a[3]), (off_t)number(a[2]));
    case 'v': {
        size_t n = number(a[2]), each = number(a[3]);
        char *p = source(n * each, number(a[4]));
        for (size_t i = 0; i < n && i < 1024; i++) {
            iov[i].iov_base = p + i * each;
            iov[i].iov_len = each;
        }
        return writev(fd, iov, (int)n);
    }
    case 'l':
        return lseek(fd, (off_t)strtoll(a[2], NULL, 0),
                     a[3][0] == 's' ? SEEK_SET : a[3][0] == 'c' ? SEEK_CUR : SEEK_END);
    case 'd':
        return (slots[atoi(a[2]) % SLOTS] = dup(fd)) < 0 ? -1 : 0;
    case 'f':
        return fsync(fd);
    case 'F':
        return fdatasync(fd);
    case 'c':
        return close(fd);
    case 't':
        return ftruncate(fd, (off_t)number(a[2]));
    case 'z':
        return fstat(fd, &st) != 0 ? -1 : (long long)st.st_size;
    case 'h':
        return fchmod(fd, (mode_t)strtoul(a[2], NULL, 8));
    case 'r':
        return checksum(fd, (off_t)number(a[2]), number(a[3]));
    }
    errno = ENOTSUP;
    return -1;
}

static long long by_name(char **a) {
    struct stat st;
    switch (a[0][0]) {
    case 'a':
        return access(a[1], R_OK);
    case 'M':
        return chmod(a[2], (mode_t)strtoul(a[1], NULL, 8));
    case 'K':
        return truncate(a[2], (off_t)number(a[1]));
    case 'P':
        return lstat(a[1], &st) != 0 ? -1 : (long long)st.st_size;
    case 'Y':
        return symlink(a[1], a[2]);
    case 'V':
        return rmdir(a[1]);
    }
    return -2;
}

static long long name_op(char **a) {
    switch (a[0][0]) {
    case 'o':
        slots[atoi(a[1]) % SLOTS] = open(a[4], flags_of(a[2]), (mode_t)strtoul(a[3], NULL, 8));
        return slots[atoi(a[1]) % SLOTS] < 0 ? -1 : 0;
    case 'O':
        slots[atoi(a[1]) % SLOTS] =
            openat(slots[atoi(a[2]) % SLOTS], a[5], flags_of(a[3]), (mode_t)strtoul(a[4], NULL, 8));
        return slots[atoi(a[1]) % SLOTS] < 0 ? -1 : 0;
    case 'D':
        slots[atoi(a[1]) % SLOTS] = open(a[2], O_RDONLY | O_DIRECTORY);
        return slots[atoi(a[1]) % SLOTS] < 0 ? -1 : 0;
    case 'S':
        return print_stat(a[1]);
    case 'u':
        return unlink(a[1]);
    case 'm':
        return rename(a[1], a[2]);
    case 'H':
        return link(a[1], a[2]);
    case 'k':
        return mkdir(a[1], 0777);
    case 'C':
        return chdir(a[1]);
    case 'U':
        umask((mode_t)strtoul(a[1], NULL, 8));
        return 0;
    case 'E':
        return many(a);
    }
    return by_name(a);
}

static long long self_op(char **a) {
    char c;
    struct timespec ts;
    switch (a[0][0]) {
    case 'A':
        mem_len = number(a[1]);
        mem = mmap(NULL, mem_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t i = 0; mem != MAP_FAILED && i < mem_len; i += 4096) {
            mem[i] = 1;
            if (a[2] && i % (1 << 20) == 0) {
                usleep((useconds_t)(number(a[2]) * 1000 / (mem_len >> 20)));
            }
        }
        return mem == MAP_FAILED ? -1 : 0;
    case 'R':
        return munmap(mem, mem_len);
    case 'X':
        return system(a[1]);
    case 's':
        ts = (struct timespec){(time_t)(number(a[1]) / 1000), (long)(number(a[1]) % 1000) * 1000000};
        return nanosleep(&ts, NULL);
    case 'y':
        return 0;
    case 'i':
        while (read(0, &c, 1) == 1 && c != '\n') {
        }
        return 0;
    case 'L':
        return limit(a[1], a[2]);
    case 'G':
        return signal(atoi(a[1]), SIG_IGN) == SIG_ERR ? -1 : 0;
    case 'N':
        return fill_table();
    case 'B':
        return close(last_null);
    case 'q':
        return alarm((unsigned)number(a[1]));
    case 'T':
        return elapsed();
    case 'e':
        _exit(atoi(a[1]));
    }
    return -2;
}

int main(int argc, char **argv) {
    static const char *const names[256] = {
        ['o'] = "open",   ['O'] = "openat",    ['D'] = "opendir",   ['w'] = "write", ['W'] = "writes", ['p'] = "pwrite",
        ['v'] = "writev", ['l'] = "lseek",     ['d'] = "dup",       ['f'] = "fsync", ['F'] = "fdatasync",
        ['c'] = "close",  ['t'] = "ftruncate", ['z'] = "size",      ['h'] = "fchmod", ['r'] = "sum",   ['S'] = "stat",
        ['u'] = "unlink", ['m'] = "rename",    ['H'] = "link",      ['k'] = "mkdir", ['C'] = "chdir",  ['U'] = "umask",
        ['E'] = "files",  ['A'] = "allocate",  ['R'] = "free",      ['X'] = "system", ['s'] = NULL,    ['i'] = NULL,
        ['L'] = "limit",  ['G'] = "ignore",    ['N'] = "table",     ['B'] = "room",  ['T'] = "ms",     ['q'] = NULL,
        ['a'] = "access", ['M'] = "chmod",     ['K'] = "truncate",  ['P'] = "lstat", ['V'] = "rmdir",
        ['Y'] = "symlink"};
    for (int i = 1; i < argc; i++) {
        char *text = strdup(argv[i]), *a[8] = {0}, *rest = text;
        int most = argv[i][0] == 'o' ? 5 : argv[i][0] == 'O' ? 6 : argv[i][0] == 'X' || argv[i][0] == 'y' ? 2 : 7;
        for (int n = 0; n < most && rest; n++) {
            a[n] = n == most - 1 ? rest : strsep(&rest, ":");
        }
        if (argv[i][0] == 'y') {
            dprintf(1, "%s\n", a[1]);
            continue;
        }
        errno = 0;
        long long r = name_op(a);
        r = r == -2 ? self_op(a) : r;
        r = r == -2 ? data_op(a) : r;
        if (names[(unsigned char)argv[i][0]]) {
            say(names[(unsigned char)argv[i][0]], r);
        }
        free(text);
    }
    return 0;
}
