// SPDX-License-Identifier: MIT
//
// stdio_big: large fwrites among everything else that C programs do with a FILE, each mode a way of mixing them, and
// what the calls return.
//   stdio_big MODE PATH     between | jumps | kinds | items | threads | again | stdout | limit | space

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (1l << 20)
#define POOL (8 * MIB)

static unsigned char *pool;

static void fill(void) {
    for (long k = 0; k < POOL / 4; k++) {
        ((uint32_t *)(void *)pool)[k] = (uint32_t)k * 2654435761u + 77;
    }
}

static void say_place(FILE *f) {
    struct stat st;
    long at = ftell(f);
    fstat(fileno(f), &st);
    printf(" @%ld/%ld/%ld", at, (long)lseek(fileno(f), 0, SEEK_CUR), (long)st.st_size);
}

// `n` bytes from `from` on.
static void big(FILE *f, long n, long from) {
    errno = 0;
    printf(" %zu", fwrite(pool + from, 1, (size_t)n, f));
    say_place(f);
}

static void do_between(FILE *f) {
    fputs("header", f);
    big(f, 2 * MIB + 3, 0);
    fprintf(f, "%030d\n", 7);
    big(f, 3 * MIB + 5, 1);
    printf(" %zd", write(fileno(f), "by the descriptor", 17));
    say_place(f);
    printf(" %zu", fwrite_unlocked(pool, 1, MIB + 1, f));
    say_place(f);
    fputc('x', f);
    printf(" %zd", write(fileno(f), pool, 2 * MIB)); // before the x
    say_place(f);
    big(f, 65535, 3);
    big(f, 65536, 3);
    fputs("tail", f);
    printf(" %d", fflush(f));
    say_place(f);
}

static void do_jumps(FILE *f) {
    big(f, 3 * MIB, 0);
    printf(" %d", fseek(f, 5, SEEK_SET));
    fputs("patched", f);
    printf(" %d", fseek(f, 2 * MIB - 3, SEEK_SET));
    big(f, 100000, 9);
    printf(" %d", fseek(f, 0, SEEK_END));
    big(f, 2 * MIB + 1, 5);
    printf(" %d", fseek(f, 1000, SEEK_CUR)); // a hole
    big(f, MIB, 2);
    printf(" %d", fseek(f, 9 * MIB, SEEK_SET));
    say_place(f);
    big(f, MIB, 2);
    printf(" %ld", (long)lseek(fileno(f), 4 * MIB, SEEK_SET)); // behind the FILE's back
    fputs("where the descriptor is", f);
    say_place(f);
    printf(" %d", fseek(f, 0, SEEK_END));
    printf(" %zd", pwrite(fileno(f), pool, 200000, 12 * MIB)); // ahead of it
    big(f, 3 * MIB, 2);
    rewind(f);
    fputs("HEADER", f);
}

static void do_kinds(FILE *f) {
    static char own[300000];
    const struct {
        char *buf;
        int mode;
        size_t size;
    } kinds[] = {{NULL, _IONBF, 0}, {NULL, _IOLBF, 0}, {own, _IOFBF, sizeof own}, {own, _IOLBF, 100},
                 {own, _IOFBF, 77}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        printf(" %d", setvbuf(f, kinds[i].buf, kinds[i].mode, kinds[i].size));
        big(f, MIB + 12345, (long)i);
        fputs("a line\nand more", f);
        big(f, 70000, (long)i);
        big(f, 500001, (long)i);
        fflush(f);
    }
}

static void do_items(FILE *f) {
    printf(" %zu %zu", fwrite(pool, 0, 7, f), fwrite(pool, 7, 0, f));
    printf(" %zu", fwrite(pool, 24, 100003, f));
    printf(" %zu", fwrite(pool, 5 * MIB, 1, f));
    printf(" %zu", fwrite_unlocked(pool, 8, 123456, f));
    say_place(f);
}

// Each record is whole, so all threads together write what one would.
static void *records(void *arg) {
    FILE *f = arg;
    for (int i = 0; i < 8; i++) {
        flockfile(f);
        fputs("[", f);
        fwrite(pool, 1, 300001, f);
        fputs("]", f);
        funlockfile(f);
        fwrite(pool + MIB, 1, 70001, f);
    }
    return NULL;
}

static void *wholes(void *arg) {
    for (int i = 0; i < 16; i++) {
        fwrite(pool + 3, 1, 200003, arg);
    }
    return NULL;
}

static void with_threads(FILE *f, void *(*run)(void *)) {
    pthread_t t[4];
    for (int i = 0; i < 4; i++) {
        pthread_create(&t[i], NULL, run, f);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
    }
    say_place(f);
}

static void do_threads(FILE *f) {
    with_threads(f, wholes);
    records(f);
}

// After what was saved: to be read and changed, to be added to.
static void do_again(FILE *f, const char *path) {
    char word[8] = "";
    big(f, 3 * MIB, 0);
    fclose(f);
    f = fopen(path, "r+");
    printf(" %zu", fread(word, 1, 7, f));
    ungetc('q', f);
    printf(" %d", fseek(f, 0, SEEK_CUR));
    big(f, 100000, 4);
    printf(" %d", fseek(f, 2 * MIB, SEEK_SET));
    printf(" %zu", fread(word, 1, 7, f));
    big(f, 2 * MIB, 6);
    fclose(f);
    f = fopen(path, "a+");
    printf(" %zu", fread(word, 1, 7, f));
    big(f, MIB, 8);
    fputs("end", f);
    fclose(f);
}

static void do_stdout(FILE *f) {
    big(f, 2 * MIB, 0);
    printf("\n");
    fflush(stdout);
    dup2(fileno(f), 1);
    printf("to the file\n");
    fwrite(pool, 1, 2 * MIB + 1, stdout);
    printf("and on\n");
    fflush(stdout);
    lseek(1, MIB + 5, SEEK_SET);
    printf("back\n");
    fflush(stdout);
    lseek(1, 0, SEEK_END);
    fwrite(pool, 1, MIB, stdout);
    fflush(stdout);
}

static void do_limit(FILE *f) {
    struct rlimit was, now;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &was);
    now = was;
    now.rlim_cur = 3 * MIB + 1000;
    setrlimit(RLIMIT_FSIZE, &now);
    for (int i = 0; i < 3; i++) {
        errno = 0;
        printf(" %zu", fwrite(pool, 12, 100000, f));
        printf(" %s %d", strerror(errno), ferror(f));
        say_place(f);
    }
    setrlimit(RLIMIT_FSIZE, &was);
    clearerr(f);
    big(f, 2 * MIB, 1);
    printf(" %d", ferror(f));
}

// numpy's way: the space of each large array first.
static void do_space(FILE *f) {
    for (int i = 0; i < 4; i++) {
        fprintf(f, "array %d\n", i);
        fflush(f);
        long at = ftell(f);
        printf(" %d", fallocate(fileno(f), FALLOC_FL_KEEP_SIZE, at, i == 3 ? 64 : 5 * MIB));
        say_place(f);
        big(f, i == 3 ? 64 : 5 * MIB, i);
    }
    errno = 0;
    printf(" %d %s", fallocate(fileno(f), FALLOC_FL_KEEP_SIZE, -1, 5), strerror(errno));
    printf(" %d %s", fallocate(fileno(f), FALLOC_FL_KEEP_SIZE, MIB, 0), strerror(errno));
}

int main(int argc, char **argv) {
    const struct {
        const char *name;
        void (*run)(FILE *);
    } modes[] = {{"between", do_between}, {"jumps", do_jumps},   {"kinds", do_kinds}, {"items", do_items},
                 {"threads", do_threads}, {"stdout", do_stdout}, {"limit", do_limit}, {"space", do_space}};
    FILE *f = argc > 2 ? fopen(argv[2], "wb") : NULL;
    pool = malloc(POOL);
    if (f == NULL || pool == NULL) {
        perror(argc > 2 ? argv[2] : "MODE PATH");
        return 1;
    }
    fill();
    if (strcmp(argv[1], "again") == 0) {
        do_again(f, argv[2]);
        f = NULL;
    }
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(argv[1], modes[i].name) == 0) {
            modes[i].run(f);
        }
    }
    free(pool);
    if (f != NULL && fclose(f) != 0) {
        perror("fclose");
        return 1;
    }
    printf("\n");
    return 0;
}
