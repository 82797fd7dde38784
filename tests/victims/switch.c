// SPDX-License-Identifier: MIT
//
// switch: a program of root's that becomes somebody else for a while (setfsuid, seteuid), and then touches what is
// root's in a sticky directory while files are on their way: prints what each call said. Judges nothing.
//   switch fs|eff|back
//     fs: the thread alone, by setfsuid; eff: by setegid and seteuid; back: it starts as the other, and comes back

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#define OTHER 12345
#define BYTES (3 << 20)
#define SAY(call)                                                                                                      \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        long r_ = (long)(call);                                                                                        \
        int e_ = errno;                                                                                                \
        printf("%s: %s\n", #call, r_ < 0 ? strerror(e_) : "done");                                                     \
        fflush(stdout);                                                                                                \
    } while (0)

static char bytes[BYTES];

static int begin(const char *name, mode_t mode) {
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, mode);
    if (fd < 0 || write(fd, bytes, sizeof bytes) != BYTES) {
        printf("%s: %s\n", name, strerror(errno));
    }
    return fd;
}

static void save(const char *name, mode_t mode) {
    close(begin(name, mode));
}

// Much that is closed before: what comes behind it is in the queue for a while.
static void keep_busy(void) {
    int fd = open("busy", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    for (int i = 0; i < 40 && write(fd, bytes, sizeof bytes) == BYTES; i++) {
    }
    close(fd);
}

// `kind` is fs or eff.
static void become(const char *kind, uid_t uid) {
    if (strcmp(kind, "fs") == 0) {
        setfsuid(uid);
    } else if (seteuid(0) < 0 || setegid(uid) < 0 || seteuid(uid) < 0) {
        perror("seteuid");
        exit(2);
    }
}

static char fresh[24]; // a name that is no older file's

// As root again: files of root's that are on their way.

static void save_as_root(const char *kind) {
    static int n;
    become(kind, 0);
    save("busy", 0644);
    save("over", 0644);
    save("pending", 0644);
    save("public", 0666);
    snprintf(fresh, sizeof fresh, "fresh%d", ++n);
    save(fresh, 0644);
    become(kind, OTHER);
}

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        save_as_root(kind);                                                                                            \
        SAY(call);                                                                                                     \
    } while (0)

static void touch_what_is_roots(const char *kind, int open_one) {
    struct timespec ts[2] = {{7, 0}, {8, 0}};
    TRY(rename("old", "stolen"));
    TRY(unlink("old"));
    TRY(unlink("pending"));
    TRY(rename("pending", "stolen"));
    TRY(rename("pending", "old"));
    save("mine", 0644);
    TRY(rename("mine", "pending"));
    TRY(unlink(fresh));
    TRY(rename(fresh, "stolen"));
    TRY(rename("mine", fresh));
    TRY(rename("mine", "old"));
    TRY(rename("mine", "over"));
    TRY(rename("mine", "open"));
    TRY(rmdir("folder"));
    TRY(open("old", O_WRONLY | O_TRUNC));
    TRY(open("pending", O_WRONLY | O_TRUNC));
    TRY(open("pending", O_WRONLY | O_CREAT | O_TRUNC, 0644));
    TRY(close(open("public", O_WRONLY | O_CREAT | O_TRUNC, 0644)));
    TRY(close(open("public", O_WRONLY | O_CREAT | O_APPEND, 0644)));
    TRY(close(open("public", O_RDONLY | O_CREAT, 0644)));
    TRY(link("pending", "linked"));
    TRY(chmod("pending", 0666));
    TRY(chown("pending", OTHER, OTHER));
    TRY(utimensat(AT_FDCWD, "pending", ts, 0));
    TRY(truncate("pending", 1));
    TRY(futimens(open_one, ts));
    TRY(fchmod(open_one, 0666));
    TRY(unlink("open"));
    save("mine", 0644);
    SAY(rename("mine", "free"));
    SAY(unlink("free"));
}

static int as_root_first(const char *kind) {
    umask(0);
    save("old", 0644);
    save("over", 0644);
    mkdir("folder", 0755);
    sleep(1); // they are there by now
    int fd = begin("open", 0644);
    touch_what_is_roots(kind, fd);
    become(kind, 0);
    struct stat st;
    if (fstat(fd, &st) == 0) {
        printf("of the open one: %o %ld\n", st.st_mode, (long)(st.st_mtime == 8));
    }
    SAY(write(fd, "x", 1));
    SAY(close(fd));
    SAY(unlink("old"));
    return 0;
}

// The engine is the other's: it may not do what root may.
static int as_other_first(void) {
    if (setresuid(OTHER, OTHER, 0) < 0) {
        return 2;
    }
    keep_busy();
    save("user", 0644);
    if (seteuid(0) < 0) {
        return 2;
    }
    save("roots/new", 0600);
    SAY(unlink("roots/old"));
    SAY(rename("roots/new", "roots/newer"));
    SAY(access("roots/newer", F_OK));
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        return 2;
    }
    memset(bytes, 'x', sizeof bytes);
    return strcmp(argv[1], "back") == 0 ? as_other_first() : as_root_first(argv[1]);
}
