// SPDX-License-Identifier: MIT
//
// stdio_more: the ways in which C programs write a file by stdio, each a mode, and what their calls return.
//   stdio_more MODE PATH     fprintf | putc | patch | fileno | setvbuf | freopen | wide | update

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#define MIB (1ul << 20)

static char *block; // 1 MiB

static void fill(uint32_t seed) {
    for (size_t k = 0; k < MIB / 4; k++) {
        ((uint32_t *)(void *)block)[k] = (uint32_t)(k * 2654435761u + seed);
    }
}

static void many(FILE *f, int mib, uint32_t seed) {
    for (int i = 0; i < mib; i++) {
        fill(seed + (uint32_t)i);
        if (fwrite(block, 1, MIB, f) != MIB) {
            perror("fwrite");
            exit(1);
        }
    }
}

static void do_fprintf(FILE *f) {
    long n = 0;
    for (int i = 0; i < 60000; i++) {
        n += fprintf(f, "tree %d: leaf=%.6f split=%s\n", i, i / 7.0, i % 3 ? "left" : "right");
    }
    printf("%ld %ld\n", n, ftell(f));
}

static void do_putc(FILE *f) {
    for (unsigned i = 0; i < 2 * MIB; i++) {
        putc_unlocked((int)(i * 31 >> 3 & 255), f);
    }
    fputc_unlocked('x', f);
    fputs_unlocked("tail\n", f);
    printf("%ld %d\n", ftell(f), ferror_unlocked(f));
}

// Far back, behind bytes that have left libc's buffer; then on at the end.
static void do_patch(FILE *f) {
    fputs("header 00000000\n", f);
    many(f, 3, 1);
    long end = ftell(f);
    printf("%d", fseek(f, 7, SEEK_SET));
    fprintf(f, "%08ld", end);
    printf(" %ld", ftell(f));
    printf(" %d", fseeko(f, (off_t)(2 * MIB + 5), SEEK_SET));
    fwrite("patched", 1, 7, f);
    fpos_t pos;
    printf(" %d", fseek(f, 0, SEEK_END));
    printf(" %d", fgetpos(f, &pos));
    fputs("tail", f);
    rewind(f);
    fputs("HEADER", f);
    printf(" %d %ld\n", fsetpos(f, &pos), ftell(f));
    fputs("TAIL", f);
}

static void do_fileno(FILE *f) {
    int fd = fileno(f);
    many(f, 2, 1);
    fputs("before\n", f);
    fflush(f);
    fill(77);
    printf("%zd", write(fd, block, MIB));
    printf(" %zd", write(fd, "direct\n", 7));
    fseek(f, 0, SEEK_END);
    many(f, 1, 9);
    fflush(f);
    printf(" %zd", pwrite(fd, "pwritten", 8, MIB + 3));
    printf(" %ld", (long)lseek(fd, 0, SEEK_CUR));
    fputs("after\n", f);
    printf(" %ld\n", ftell(f));
}

static void do_setvbuf(FILE *f) {
    static char own[300000];
    printf("%d", setvbuf(f, own, _IOFBF, sizeof own));
    many(f, 1, 1);
    for (int i = 0; i < 100000; i++) {
        fprintf(f, "%d\n", i);
    }
    printf(" %ld", ftell(f));
    fflush(f);
    printf(" %d", setvbuf(f, NULL, _IONBF, 0));
    fputs("unbuffered\n", f);
    many(f, 2, 5);
    printf(" %d", setvbuf(f, NULL, _IOLBF, 0));
    fputs("line\nrest", f);
    printf(" %ld\n", ftell(f));
}

// The same FILE on another name, in another mode, and on the same name again.
static FILE *do_freopen(FILE *f, const char *path) {
    char second[4096];
    snprintf(second, sizeof second, "%s.second", path);
    many(f, 2, 1);
    f = freopen(second, "w", f);
    many(f, 3, 4);
    fputs("second\n", f);
    f = freopen(path, "a", f);
    fputs("appended\n", f);
    printf("%ld", ftell(f));
    f = freopen(second, "r", f);
    fseek(f, -7, SEEK_END);
    printf(" %zu", fread(block, 1, 100, f));
    f = freopen(second, "r+", f);
    fseek(f, 100, SEEK_SET);
    fputs("patched", f);
    printf(" %ld\n", ftell(f));
    f = freopen("/dev/null", "w", f);
    return freopen(path, "a", f);
}

static void do_wide(FILE *f) {
    int n = 0;
    for (int i = 0; i < 50000; i++) {
        n += fwprintf(f, L"zeile %d %ls\n", i, L"abcdefghijklmnopqrstuvwxyz");
    }
    fputws(L"ende\n", f);
    printf("%d %d\n", n, fwide(f, 0));
}

static FILE *do_update(FILE *f, const char *path) {
    fclose(f);
    f = fopen(path, "w+");
    many(f, 2, 1);
    fseek(f, 1000, SEEK_SET);
    printf("%zu", fread(block, 1, 5000, f));
    fseek(f, 0, SEEK_CUR);
    fputs("in the middle", f);
    fseek(f, 0, SEEK_END);
    printf(" %ld\n", ftell(f));
    fputs("end", f);
    return f;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        return 2;
    }
    block = malloc(MIB);
    FILE *f = fopen(argv[2], "wb");
    if (f == NULL || block == NULL) {
        perror(argv[2]);
        return 1;
    }
    const struct {
        const char *name;
        void (*run)(FILE *);
    } modes[] = {{"fprintf", do_fprintf}, {"putc", do_putc},       {"patch", do_patch},
                 {"fileno", do_fileno},   {"setvbuf", do_setvbuf}, {"wide", do_wide}};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(argv[1], modes[i].name) == 0) {
            modes[i].run(f);
        }
    }
    f = strcmp(argv[1], "freopen") == 0  ? do_freopen(f, argv[2])
        : strcmp(argv[1], "update") == 0 ? do_update(f, argv[2])
                                         : f;
    free(block);
    if (fclose(f) != 0) {
        perror("fclose");
        return 1;
    }
    return 0;
}
