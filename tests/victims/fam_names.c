// SPDX-License-Identifier: MIT
//
// fam_names: calls by name on files just saved, in the current directory: stat's families, the *at forms, rename,
// unlink, links, times, attributes, listings. Prints results for a diff between a native and a shimmed run.

#include "fam_rig.h"

#include <dirent.h>
#include <ftw.h>
#include <glob.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <utime.h>

#define PIECE (2 << 20)

static void save(int dirfd, const char *name, char c) {
    char *block = malloc(PIECE);
    memset(block, c, PIECE);
    int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_TRUNC, 0664);
    if (fd < 0 || write(fd, block, PIECE) != PIECE || close(fd) < 0) {
        show(name, -1);
    }
    free(block);
}

static void print_stat(const char *what, int r, const struct stat *st) {
    if (r < 0) {
        show(what, r);
        return;
    }
    printf("%-24s size %ld mode %o links %lu\n", what, (long)st->st_size, st->st_mode, (unsigned long)st->st_nlink);
}

static void look(int dirfd, const char *name) {
    struct stat st;
    struct statx x;
    print_stat(name, fstatat(dirfd, name, &st, 0), &st);
    print_stat(" lstat", fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW), &st);
    int r = statx(dirfd, name, 0, STATX_BASIC_STATS, &x);
    show(" statx", r < 0 ? r : (long)x.stx_size);
    show(" access", faccessat(dirfd, name, R_OK | W_OK, 0));
    int fd = openat(dirfd, name, O_RDONLY);
    char c[2] = "";
    show(" read", fd < 0 ? -1 : read(fd, c, 1));
    printf(" first '%s' end %ld\n", c, fd < 0 ? -1L : (long)lseek(fd, 0, SEEK_END));
    if (fd >= 0) {
        close(fd);
    }
}

static int skip_dots(const struct dirent *d) {
    return d->d_name[0] != '.';
}

static void list(const char *path) {
    struct dirent **all;
    int n = scandir(path, &all, skip_dots, alphasort);
    printf("%s:", path);
    for (int i = 0; i < n; i++) {
        printf(" %s", all[i]->d_name);
        free(all[i]);
    }
    printf("\n");
    free(n >= 0 ? all : NULL);
    DIR *d = opendir(path);
    int count = 0;
    while (d != NULL && readdir(d) != NULL) {
        count++;
    }
    show(" entries", d != NULL ? count : -1);
    if (d != NULL) {
        closedir(d);
    }
    glob_t g;
    show(" glob", glob("*", 0, NULL, &g) == 0 ? (long)g.gl_pathc : -1);
    globfree(&g);
}

static int visit(const char *path, const struct stat *st, int type, struct FTW *f) {
    (void)path;
    (void)f;
    return type == FTW_F && st->st_size < 0;
}

static void renames(void) {
    int dir = open(".", O_RDONLY | O_DIRECTORY);
    save(AT_FDCWD, "a.tmp", 'a');
    show("rename", rename("a.tmp", "a"));
    look(AT_FDCWD, "a");
    save(dir, "b.tmp", 'b');
    show("renameat over", renameat(dir, "b.tmp", dir, "a"));
    look(dir, "a");
    save(dir, "c", 'c');
    show("noreplace", renameat2(dir, "c", dir, "a", RENAME_NOREPLACE));
    show("exchange", renameat2(dir, "c", dir, "a", RENAME_EXCHANGE));
    look(dir, "a");
    look(dir, "c");
    show("missing", rename("missing", "a"));
    show("mkdir", mkdir("7.tmp", 0755));
    save(AT_FDCWD, "7.tmp/shard", 's');
    show("rename directory", rename("7.tmp", "7"));
    look(AT_FDCWD, "7/shard");
    show("rmdir full", rmdir("7"));
    save(AT_FDCWD, "d", 'd');
    show("rename to itself", rename("d", "d"));
    show("into a directory", rename("d", "7"));
    show("mkdir on a file", mkdir("d", 0755));
    show("symlink on a file", symlink("x", "d"));
    show("excl on a file", open("d", O_WRONLY | O_CREAT | O_EXCL, 0644));
    close(dir);
}

static void removals(void) {
    save(AT_FDCWD, "r1", '1');
    show("unlink", unlink("r1"));
    look(AT_FDCWD, "r1");
    show("unlink again", unlink("r1"));
    save(AT_FDCWD, "r2", '2');
    show("remove", remove("r2"));
    int fd = open("r3", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    show("unlink open", unlink("r3"));
    show("write", write(fd, "gone", 4));
    show("close", close(fd));
    look(AT_FDCWD, "r3");
    fd = open("r4", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    show("write", write(fd, "kept", 4));
    show("rename open", rename("r4", "r5"));
    show("write", write(fd, " on", 3));
    show("close", close(fd));
    look(AT_FDCWD, "r5");
    save(AT_FDCWD, "r6", '6');
    show("link", link("r6", "r7"));
    look(AT_FDCWD, "r7");
    show("unlink one", unlink("r6"));
    look(AT_FDCWD, "r7");
    show("rmdir a file", rmdir("r7"));
}

static void attributes(void) {
    char buf[16] = "";
    struct stat st;
    save(AT_FDCWD, "t", 't');
    show("chmod", chmod("t", 0604));
    show("setxattr", setxattr("t", "user.k", "v", 1, 0));
    show("getxattr", getxattr("t", "user.k", buf, sizeof buf));
    show("listxattr", listxattr("t", NULL, 0) > 0);
    struct timeval tv[2] = {{10, 20}, {30, 40}};
    show("utimes", utimes("t", tv));
    stat("t", &st);
    printf("%ld.%ld %s\n", (long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec, buf);
    save(AT_FDCWD, "t", 'T'); // over it: keeps mode and attributes
    look(AT_FDCWD, "t");
    show("getxattr", getxattr("t", "user.k", buf, sizeof buf));
    struct utimbuf ub = {1, 2};
    show("utime", utime("t", &ub));
    show("utimensat", utimensat(AT_FDCWD, "t", (struct timespec[2]){{5, 6}, {0, UTIME_OMIT}}, 0));
    stat("t", &st);
    printf("%ld %ld\n", (long)st.st_mtime, (long)st.st_atime);
    show("truncate", truncate("t", 100));
    look(AT_FDCWD, "t");
    show("symlink", symlink("t", "sl"));
    look(AT_FDCWD, "sl");
    show("readlink", readlink("sl", buf, sizeof buf));
    save(AT_FDCWD, "sl", 'l');
    look(AT_FDCWD, "t");
}

int main(void) {
    umask(022);
    renames();
    removals();
    attributes();
    list(".");
    list("7");
    show("nftw", nftw(".", visit, 8, FTW_PHYS));
    return 0;
}
