// SPDX-License-Identifier: MIT
//
// fam_stdio: FILE streams mixed with calls on their descriptors, in the current directory. Prints results for a diff
// between a native and a shimmed run.

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BIG (3 << 20)

static unsigned long sum(const char *name) {
    FILE *f = fopen(name, "rb");
    unsigned long s = 5381;
    int c;
    if (f == NULL) {
        return 0;
    }
    while ((c = getc(f)) != EOF) {
        s = s * 33 + (unsigned char)c;
    }
    fclose(f);
    return s;
}

static void look(const char *name) {
    struct stat st;
    int r = lstat(name, &st);
    printf("%-10s %d size %ld mode %o sum %lx\n", name, r, r < 0 ? -1L : (long)st.st_size, r < 0 ? 0 : st.st_mode,
           sum(name));
}

static void fill(FILE *f, size_t n, char c) {
    char block[5000];
    memset(block, c, sizeof block);
    for (; n > 0; n -= n < sizeof block ? n : sizeof block) {
        printf("%zu ", fwrite(block, 1, n < sizeof block ? n : sizeof block, f));
    }
    printf("\n");
}

static void modes(void) {
    static const char *const all[] = {"w", "wb", "r", "r+", "a", "a+", "w+", "wx", "we", "w,ccs=UTF-8", "q", ""};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        errno = 0;
        FILE *f = fopen("modes", all[i]);
        printf("fopen %s: %s\n", all[i], f != NULL ? "ok" : strerrorname_np(errno));
        if (f == NULL) {
            continue;
        }
        errno = 0;
        long at = ftell(f);
        int n = fprintf(f, "%s;", all[i]);
        printf("  tell %ld print %d tell %ld flush %d close-on-exec %d\n", at, n, ftell(f), fflush(f),
               fcntl(fileno(f), F_GETFD));
        printf("  close %d\n", fclose(f));
        look("modes");
    }
}

static void mixed(void) {
    FILE *f = fopen("mixed", "w");
    char *block = malloc(BIG);
    memset(block, 'd', BIG);
    fill(f, 10000, 'a');
    fflush(f);
    printf("write %zd\n", write(fileno(f), block, BIG));
    printf("tell %ld\n", ftell(f));
    printf("seek %d tell %ld\n", fseek(f, 0, SEEK_END), ftell(f));
    fill(f, 20000, 'b');
    printf("seek %d\n", fseek(f, 100, SEEK_SET));
    fputs("header", f);
    printf("seek %d tell %ld\n", fseeko(f, 0, SEEK_END), ftello(f));
    int fd = dup(fileno(f));
    FILE *g = fdopen(fd, "w");
    fputs("through a duplicate", g);
    printf("close the duplicate's %d\n", fclose(g));
    rewind(f);
    fputs("!", f);
    printf("pwrite %zd\n", pwrite(fileno(f), block, 1 << 20, BIG));
    printf("close %d\n", fclose(f));
    look("mixed");
    free(block);
}

static void reopened(void) {
    FILE *f = fopen("first", "w");
    fputs("first", f);
    f = freopen("second", "w", f);
    printf("freopen %d\n", f != NULL);
    fputs("second", f);
    f = freopen("first", "a", f);
    fputs(" more", f);
    errno = 0;
    f = freopen("none/none", "w", f);
    printf("freopen none %d %s\n", f != NULL, strerrorname_np(errno));
    look("first");
    look("second");
    fpos_t pos;
    f = fopen("pos", "w");
    fputs("0123456789", f);
    fgetpos(f, &pos);
    fputs("abc", f);
    printf("fsetpos %d\n", fsetpos(f, &pos));
    fputs("X", f);
    printf("%d\n", fclose(f));
    look("pos");
}

int main(void) {
    umask(022);
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    modes();
    mixed();
    reopened();
    FILE *left = fopen("left", "w"); // exit flushes it
    fputs("left open", left);
    return 0;
}
