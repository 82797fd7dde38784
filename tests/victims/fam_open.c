// SPDX-License-Identifier: MIT
//
// fam_open: every way of opening a file, with good and bad arguments, in the current directory. Prints results, errno,
// the bytes that are there afterwards and the mode, for a diff between a native and a shimmed run. Nothing that varies.

#include "fam_rig.h"

#include <stdlib.h>
#include <sys/resource.h>

extern int __open_2(const char *, int);
extern int __openat_2(int, const char *, int);
extern int __open64(const char *, int, ...);

// What a name holds: size, mode, links, first bytes.
static void look(const char *name) {
    struct stat st;
    char buf[16] = "";
    if (stat(name, &st) < 0) {
        show(name, -1);
        return;
    }
    int fd = open(name, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, buf, sizeof buf - 1);
    if (fd >= 0) {
        close(fd);
    }
    printf("%-28s size %ld mode %o links %lu read %zd '%s'\n", name, (long)st.st_size, st.st_mode,
           (unsigned long)st.st_nlink, n, buf);
}

static void put(int fd, const char *text) {
    show("  write", fd < 0 ? -2 : (int)write(fd, text, strlen(text)));
    show("  flags", fd < 0 ? -2 : fcntl(fd, F_GETFL) & ~O_LARGEFILE);
    show("  close", fd < 0 ? -2 : close(fd));
}

static void modes(void) {
    static const struct {
        const char *name;
        int flags;
    } rows[] = {{"wct", O_WRONLY | O_CREAT | O_TRUNC},
                {"wt", O_WRONLY | O_TRUNC},
                {"wc", O_WRONLY | O_CREAT},
                {"w", O_WRONLY},
                {"rw", O_RDWR},
                {"rwct", O_RDWR | O_CREAT | O_TRUNC},
                {"wcx", O_WRONLY | O_CREAT | O_EXCL},
                {"wca", O_WRONLY | O_CREAT | O_APPEND},
                {"wcta", O_WRONLY | O_CREAT | O_TRUNC | O_APPEND},
                {"wct_sync", O_WRONLY | O_CREAT | O_TRUNC | O_SYNC},
                {"wct_nofollow", O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW},
                {"wct_dir", O_WRONLY | O_CREAT | O_TRUNC | O_DIRECTORY}};
    for (int pass = 0; pass < 3; pass++) {
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            errno = 0;
            int fd = open(rows[i].name, rows[i].flags, 0640);
            show(rows[i].name, fd);
            put(fd, pass == 0 ? "first" : pass == 1 ? "2nd" : "third time");
            look(rows[i].name);
        }
    }
}

static void siblings(void) {
    int fd = open64("s1", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    put(fd, "open64");
    fd = openat(AT_FDCWD, "s2", O_WRONLY | O_CREAT | O_TRUNC, 0666);
    put(fd, "openat");
    fd = openat64(AT_FDCWD, "s3", O_WRONLY | O_CREAT | O_TRUNC, 0666);
    put(fd, "openat64");
    fd = creat("s4", 0604);
    put(fd, "creat");
    fd = creat64("s4", 0604);
    put(fd, "creat64");
    fd = __open_2("s4", O_WRONLY | O_TRUNC);
    put(fd, "__open_2");
    fd = __openat_2(AT_FDCWD, "s3", O_WRONLY | O_TRUNC);
    put(fd, "__openat_2");
    fd = __open64("s5", O_WRONLY | O_CREAT, 0600);
    put(fd, "__open64");
    char t1[] = "tmpXXXXXX", t2[] = "tmpXXXXXX.bin";
    fd = mkstemp(t1);
    put(fd, "mkstemp");
    look(fd >= 0 ? t1 + 9 : t1); // an empty name
    unlink(t1);
    fd = mkostemps(t2, 4, O_CLOEXEC);
    put(fd, "mkostemps");
    unlink(t2);
    for (const char *n = "s1\0s2\0s3\0s4\0s5\0"; *n != '\0'; n += strlen(n) + 1) {
        look(n);
    }
}

static void errors(void) {
    char name[300];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    int w = O_WRONLY | O_CREAT | O_TRUNC;
    show("long name", open(name, w, 0666));
    show("empty", open("", w, 0666));
    show("dot", open(".", w, 0666));
    show("slash", open("none/", w, 0666));
    show("null", open((const char *)(name + sizeof name - 1), w, 0666));
    show("no directory", open("none/x", w, 0666));
    show("a file as directory", open("s1/x", w, 0666));
    show("bad dirfd", openat(99, "x", w, 0666));
    show("dirfd of a file", openat(0, "x", w, 0666));
    show("directory", mkdir("dir", 0755));
    show("open it", open("dir", w, 0666));
    show("read-only", open("none", O_RDONLY));
    show("symlink", symlink("target", "link"));
    int fd = open("link", w, 0666);
    put(fd, "through a link");
    look("target");
    look("link");
    show("loop", symlink("loop", "loop"));
    show("open loop", open("loop", w, 0666));
    show("nofollow", open("link", w | O_NOFOLLOW, 0666));
    show("excl on a link", open("link", w | O_EXCL, 0666));
    show("hard link", link("target", "hard"));
    fd = open("hard", w, 0666);
    put(fd, "both");
    look("target");
    fd = open("/dev/null", w, 0666);
    put(fd, "gone");
    show("access none", access("none", R_OK));
}

static void limits(void) {
    struct rlimit was, few;
    getrlimit(RLIMIT_NOFILE, &was);
    few = was;
    few.rlim_cur = 3;
    setrlimit(RLIMIT_NOFILE, &few);
    show("no descriptor", open("limit", O_WRONLY | O_CREAT | O_TRUNC, 0666));
    setrlimit(RLIMIT_NOFILE, &was);
    look("limit");
}

int main(void) {
    umask(022);
    modes();
    siblings();
    errors();
    limits();
    return 0;
}
