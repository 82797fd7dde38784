// SPDX-License-Identifier: MIT
//
// listing: lists directories in every way while files in them are open or just closed, for tests/system/listing.py.
//   listing SCENE    in a directory that holds old.pt, note.txt and sub/; ../slow/ is where a large file goes first, so
//                    that under the shim whatever is saved after it is pending. SLOW: its MiB. WAIT: a command that
//                    returns when all is published (or does nothing).
// What is printed must not depend on the order of a directory's entries. Lines with '#' are for the test alone.

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <wordexp.h>

#define MANY 8192

static void fail(const char *what) {
    perror(what);
    exit(2);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int open_save(const char *name) {
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, name, strlen(name)) < 0) {
        fail(name);
    }
    return fd;
}

static void save(const char *name) {
    close(open_save(name));
}

static void slow_first(void) {
    static char block[1 << 20];
    const char *mib = getenv("SLOW");
    int fd = open("../slow/big.pt", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    memset(block, 'x', sizeof block);
    for (int i = 0; i < atoi(mib != NULL ? mib : "8"); i++) {
        if (write(fd, block, sizeof block) != sizeof block) {
            fail("slow");
        }
    }
    close(fd);
}

static void published(void) {
    const char *command = getenv("WAIT");
    if (command != NULL && system(command) != 0) {
        fail(command);
    }
}

// ---- Lists

struct list {
    int n;
    char *line[MANY];
};

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void add(struct list *l, const char *text) {
    if (l->n < MANY) {
        l->line[l->n++] = strdup(text);
    }
}

static void put(const char *what, struct list *l) {
    qsort(l->line, (size_t)l->n, sizeof *l->line, by_text);
    printf("%s:", what);
    for (int i = 0; i < l->n; i++) {
        printf(" %s", l->line[i]);
        free(l->line[i]);
    }
    printf("\n");
    fflush(stdout);
    l->n = 0;
}

// An entry as text: name, type, and whether stat says the same of a file (of a directory it waits).
static void add_entry(struct list *l, int dirfd, const struct dirent *e) {
    char text[400];
    struct stat st = {.st_ino = e->d_ino};
    int r = e->d_type == DT_DIR ? 0 : fstatat(dirfd, e->d_name, &st, AT_SYMLINK_NOFOLLOW);
    size_t least = offsetof(struct dirent, d_name) + strlen(e->d_name) + 1;
    snprintf(text, sizeof text, "%s/%d%s%s%s", e->d_name, e->d_type, r < 0 ? "/gone" : "",
             r == 0 && st.st_ino != e->d_ino ? "/other-inode" : "",
             e->d_reclen < least || e->d_reclen % 8 != 0 ? "/bad-length" : "");
    add(l, text);
}

static void read_rest(struct list *l, DIR *d) {
    for (;;) {
        errno = 77;
        struct dirent *e = readdir(d);
        if (e == NULL) {
            if (errno != 77) {
                printf("errno %d at the end\n", errno);
            }
            return;
        }
        struct dirent whole = *e; // as some programs do
        (void)whole;
        add_entry(l, dirfd(d), e);
    }
}

static struct list names;

static void list(const char *what, const char *path) {
    DIR *d = opendir(path);
    if (d == NULL) {
        fail(path);
    }
    read_rest(&names, d);
    put(what, &names);
    closedir(d);
}

// ---- Scenes

static void pending(void) {
    slow_first();
    save("a.pt"), save("b.pt"), save("old.pt"), save("sub/deep.pt");
    list("here", "."), list("sub", "sub");
    save("c.pt"), save("b.pt");
    list("again", ".");
    published();
    list("published", ".");
}

static void opened(void) {
    slow_first();
    int a = open_save("a.pt"), b = open_save("old.pt"), c = open_save("sub/x.pt");
    list("open", "."), list("sub", "sub");
    printf("rmdir %d %d\n", rmdir("sub"), errno);
    unlink("sub/x.pt");
    list("sub without", "sub");
    printf("rmdir %d\n", rmdir("sub"));
    close(a);
    list("one closed", ".");
    close(b), close(c);
    list("closed", ".");
}

static void processes(void) {
    slow_first();
    pid_t child = fork();
    if (child == 0) {
        save("child.pt");
        int fd = open_save("open.pt");
        list("child", ".");
        close(fd);
        execl("/bin/sh", "sh", "-c", "echo x > shell.pt; LC_ALL=C ls -a", (char *)NULL);
        _exit(1);
    }
    int status;
    waitpid(child, &status, 0);
    list("parent", ".");
    if (system("LC_ALL=C ls -a; find . -type f | sort") < 0) {
        fail("sh");
    }
}

static void rewound(void) {
    DIR *early = opendir("."); // before anything is pending
    slow_first();
    save("a.pt");
    DIR *d = opendir(".");
    read_rest(&names, d), put("first", &names);
    save("b.pt");
    rewinddir(d), read_rest(&names, d), put("rewound", &names);
    published();
    rewinddir(d), read_rest(&names, d), put("published", &names);
    rewinddir(early), read_rest(&names, early), put("early", &names);
    closedir(early), closedir(d);
}

static void sought(void) {
    slow_first();
    save("a.pt"), save("b.pt"), save("c.pt");
    DIR *d = opendir(".");
    long at[64];
    char name[64][256];
    int n = 0, wrong = 0;
    for (;; n++) {
        at[n] = telldir(d);
        struct dirent *e = readdir(d);
        if (e == NULL) {
            break;
        }
        strcpy(name[n], e->d_name);
        wrong += e->d_off != telldir(d);
    }
    for (int turn = 0; turn < 2; turn++) {
        for (int i = n; i >= 0; i--) {
            seekdir(d, at[i]);
            struct dirent *e = readdir(d);
            wrong += i == n ? e != NULL : e == NULL || strcmp(e->d_name, name[i]) != 0;
        }
        published();
    }
    printf("%d entries, %d wrong\n", n, wrong);
    seekdir(d, at[0]), read_rest(&names, d), put("from the start", &names);
    closedir(d);
}

static void reentrant(void) {
    slow_first();
    save("a.pt"), save("old.pt");
    DIR *d = opendir(".");
    struct dirent e, *got;
    int r;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    while ((r = readdir_r(d, &e, &got)) == 0 && got != NULL) {
        add_entry(&names, dirfd(d), got == &e ? &e : got);
    }
#pragma GCC diagnostic pop
    printf("readdir_r %d\n", r);
    put("readdir_r", &names);
    closedir(d);
}

static int no_notes(const struct dirent *e) {
    errno = EIO; // a filter may
    return strstr(e->d_name, "note") == NULL;
}

static void put_scan(const char *what, int n, struct dirent ***all) {
    printf("%s %d:", what, n);
    for (int i = 0; i < n; i++) {
        printf(" %s/%d", (*all)[i]->d_name, (*all)[i]->d_type);
        free((*all)[i]);
    }
    printf("\n");
    free(*all);
}

static void scanned(void) {
    struct dirent **all = NULL;
    slow_first();
    save("b.pt"), save("a.pt"), save("sub/x.pt");
    int fd = open_save("z.pt"), dir = open(".", O_RDONLY | O_DIRECTORY);
    errno = 55;
    put_scan("all", scandir(".", &all, NULL, alphasort), &all);
    printf("errno %d\n", errno);
    put_scan("filtered", scandir(".", &all, no_notes, versionsort), &all);
    put_scan("at", scandirat(dir, "sub", &all, NULL, alphasort), &all);
    int r = scandir("note.txt", &all, NULL, NULL);
    printf("of a file %d %d\n", r, errno);
    r = scandir("none", &all, NULL, NULL);
    printf("of none %d %d\n", r, errno);
    close(fd);
}

static void put_glob(const char *pattern, int flags) {
    glob_t g;
    memset(&g, 0xa5, sizeof g); // a program need not clear it
    int r = glob(pattern, flags, NULL, &g);
    printf("glob %s %#x: %d", pattern, flags, r);
    for (size_t i = 0; r == 0 && i < g.gl_pathc; i++) {
        printf(" %s", g.gl_pathv[i]);
    }
    printf(" flags %#x fields %d\n", r == 0 ? g.gl_flags : 0, (long)g.gl_opendir == (long)0xa5a5a5a5a5a5a5a5);
    if (r == 0) {
        globfree(&g);
    }
}

static void globbed(void) {
    slow_first();
    save("a.pt"), save("b.pt"), save("sub/x.pt");
    int fd = open_save("z.pt");
    put_glob("*", 0), put_glob("*.pt", GLOB_MARK), put_glob("*/*.pt", 0), put_glob("{a,b,q}.pt", GLOB_BRACE);
    put_glob("a.pt", 0), put_glob("none*", GLOB_NOCHECK), put_glob("none*", 0), put_glob("[ab].pt", GLOB_ERR);
    put_glob("*", GLOB_ONLYDIR);
    close(fd);
    wordexp_t w;
    printf("wordexp %d", wordexp("*.pt sub/*", &w, 0));
    for (size_t i = 0; i < w.we_wordc; i++) {
        printf(" %s", w.we_wordv[i]);
    }
    printf("\n");
    wordfree(&w);
}

static int visited(const char *path, const struct stat *st, int type, struct FTW *f) {
    char text[400];
    (void)f;
    snprintf(text, sizeof text, "%s/%d/%ld", path, type, type == FTW_F ? (long)st->st_size : 0L);
    add(&names, text);
    return 0;
}

static void walked(void) {
    char *const here[] = {".", NULL};
    slow_first();
    save("a.pt"), save("sub/x.pt"), save("old.pt");
    nftw(".", visited, 8, FTW_PHYS), put("nftw", &names);
    save("b.pt");
    FTS *f = fts_open(here, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    for (FTSENT *e; (e = fts_read(f)) != NULL;) {
        add(&names, e->fts_path);
    }
    fts_close(f), put("fts", &names);
    save("c.pt");
    char buf[8192];
    int dir = open(".", O_RDONLY | O_DIRECTORY);
    for (long n; (n = syscall(SYS_getdents64, dir, buf, sizeof buf)) > 0;) {
        for (long at = 0; at < n; at += ((struct dirent *)(buf + at))->d_reclen) {
            add_entry(&names, dir, (struct dirent *)(buf + at));
        }
    }
    put("getdents64", &names);
}

static void by_descriptor(void) {
    slow_first();
    save("a.pt");
    int dir = open(".", O_RDONLY | O_DIRECTORY);
    DIR *d = fdopendir(dup(dir));
    read_rest(&names, d), put("first", &names);
    closedir(d);
    d = fdopendir(dup(dir)); // the offset is shared: nothing is left
    read_rest(&names, d), put("at the end", &names);
    rewinddir(d), read_rest(&names, d), put("rewound", &names);
    closedir(d);
    lseek(dir, 0, SEEK_SET);
    d = fdopendir(dir);
    read_rest(&names, d), put("third", &names);
    closedir(d);
    printf("closed %d\n", close(dir));
}

// A stream's names must be there once each, whatever is published meanwhile.
static void once_each(const char *what, struct list *l) {
    int twice = 0;
    qsort(l->line, (size_t)l->n, sizeof *l->line, by_text);
    for (int i = 1; i < l->n; i++) {
        twice += strcmp(l->line[i], l->line[i - 1]) == 0;
    }
    printf("%s: %d names, %d twice, first %s, last %s\n", what, l->n, twice, l->line[0], l->line[l->n - 1]);
    l->n = 0;
}

static void save_many(int from, int to) {
    char name[64];
    for (int i = from; i < to; i++) {
        snprintf(name, sizeof name, "shard-%05d-of-many-with-a-long-name.pt", i);
        save(name);
    }
}

static void many(void) {
    slow_first(); // 4,700 are there already
    save_many(4600, 4850); // a hundred are replaced
    DIR *d = opendir(".");
    read_rest(&names, d), once_each("many", &names);
    closedir(d);
}

static void quick(void) {
    slow_first();
    save_many(0, 250);
    double best = 1e9;
    for (int i = 0; i < 20; i++) {
        int n = 0;
        double t = now();
        DIR *d = opendir(".");
        while (readdir(d) != NULL) {
            n++;
        }
        closedir(d);
        t = now() - t;
        best = t < best ? t : best;
        if (i == 0 || i == 19) {
            printf("%d entries\n", n);
        }
    }
    printf("#ms %.3f\n", best * 1000);
}

static void between(void) {
    slow_first();
    save_many(0, 40), save("old.pt");
    DIR *d = opendir(".");
    add_entry(&names, dirfd(d), readdir(d));
    published();
    read_rest(&names, d), once_each("between", &names);
    rewinddir(d), read_rest(&names, d), once_each("after", &names);
    closedir(d);
}

static void forked(void) {
    slow_first();
    save("a.pt"), save("b.pt");
    DIR *d = opendir("."), *unread = opendir(".");
    add_entry(&names, dirfd(d), readdir(d));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        read_rest(&names, d), put("child", &names);
        read_rest(&names, unread), put("child's first", &names);
        save("c.pt");
        list("child's own", ".");
        _exit(0);
    }
    waitpid(child, NULL, 0);
    names.n = 0;
    list("parent", ".");
}

static void *lister(void *arg) {
    int *bad = arg;
    for (int i = 0; i < 200; i++) {
        DIR *d = opendir(i % 2 != 0 ? "." : "sub");
        int n = 0;
        while (readdir(d) != NULL) {
            n++;
        }
        *bad += n != (i % 2 != 0 ? 5 + 30 : 2 + 10);
        closedir(d);
    }
    return NULL;
}

static void threads(void) {
    char name[64];
    pthread_t t[4];
    int bad[4] = {0};
    slow_first();
    save_many(0, 30);
    for (int i = 0; i < 10; i++) {
        snprintf(name, sizeof name, "sub/%d.pt", i);
        save(name);
    }
    for (int i = 0; i < 8; i++) {
        i < 4 ? pthread_create(&t[i], NULL, lister, &bad[i]) : pthread_join(t[i - 4], NULL);
    }
    printf("wrong: %d %d %d %d\n", bad[0], bad[1], bad[2], bad[3]);
}

static void streams(void) {
    DIR *d[300]; // more than are helped at a time
    slow_first();
    save("a.pt");
    for (int i = 0; i < 300; i++) {
        d[i] = opendir(".");
    }
    for (int i = 0; i < 300; i++) {
        read_rest(&names, d[i]), put("stream", &names);
        closedir(d[i]);
    }
    list("last", ".");
}

#define SCENE(f)                                                                                                       \
    { #f, f }
static const struct {
    const char *name;
    void (*run)(void);
} scenes[] = {
    SCENE(pending), SCENE(opened),  SCENE(processes),     SCENE(rewound), SCENE(sought), SCENE(reentrant),
    SCENE(scanned), SCENE(globbed), SCENE(walked),        SCENE(many),    SCENE(quick),  SCENE(between),
    SCENE(forked),  SCENE(threads), SCENE(by_descriptor), SCENE(streams),
};

int main(int argc, char **argv) {
    for (size_t i = 0; argc == 2 && i < sizeof scenes / sizeof *scenes; i++) {
        if (strcmp(scenes[i].name, argv[1]) == 0) {
            scenes[i].run();
            return 0;
        }
    }
    fprintf(stderr, "usage: listing SCENE\n");
    return 2;
}
