// SPDX-License-Identifier: MIT
//
// odd_names: calls by name, with odd paths, modes and flags as well, on a file in each state that the shim knows: open
// and captured, closed, closed over an older one, followed, deleted, behind a symlink, not the shim's at all.

#include "odd_rig.h"

#include <dirent.h>
#include <sys/inotify.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <utime.h>

#define FCHMODAT2 452 // newer than many headers
#define SETXATTRAT 463
#define GETXATTRAT 464
#define LISTXATTRAT 465
#define REMOVEXATTRAT 466

enum { OPEN, CLOSED, GONE, OVER, FOLLOWED, LINKED, PLAIN, STATES };

static const char *const states[] = {"open", "closed", "gone", "over", "followed", "linked", "plain"};
static int states_asked = STATES; // the first so many
static int held;

static void make_old(const char *name) {
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0640);
    if (write(fd, "old", 3) != 3 || close(fd) < 0) {
        show(name, -1);
    }
}

static void prepare(int state) {
    held = -1;
    if (state == OVER || state == GONE) {
        make_old("n");
    }
    if (state == LINKED) {
        held = symlink("t", "n") < 0 ? -1 : begin("t");
    } else if (state == FOLLOWED) {
        held = open("n", O_RDWR | O_CREAT, 0644);
        if (write(held, block, 5000) != 5000) {
            show("n", -1);
        }
    } else if (state == PLAIN) {
        close((int)syscall(SYS_openat, AT_FDCWD, "n", O_WRONLY | O_CREAT, 0644));
    } else if (state == GONE) {
        unlink("n");
    } else {
        held = begin("n");
    }
    if (held >= 0 && state != OPEN && state != FOLLOWED) {
        close(held);
        held = -1;
    }
}

static void finish(void) {
    if (held >= 0) {
        show_fd(held);
        close(held);
    }
    for (const char *const *n = (const char *[]){"n", "t", "m", NULL}; *n != NULL; n++) {
        show_left(*n);
        unlink(*n);
        rmdir(*n);
    }
    errno = 0;
}

// A call on the name `n`, in each state.
#define N(call)                                                                                                        \
    do {                                                                                                               \
        for (int state = 0; state < states_asked; state++) {                                                           \
            prepare(state);                                                                                            \
            errno = 0;                                                                                                 \
            long r_ = (long)(call);                                                                                    \
            printf("[%s] ", states[state]);                                                                            \
            show_call(#call, r_);                                                                                      \
            finish();                                                                                                  \
        }                                                                                                              \
    } while (0)

// 0 for a descriptor.
static int closing(long fd) {
    return fd < 0 ? -1 : close((int)fd);
}

static long stream(const char *path, const char *mode) {
    FILE *fp = fopen(path, mode);
    long at = fp == NULL ? -1 : ftell(fp);
    return fp == NULL ? -1 : fclose(fp) < 0 ? -1 : at;
}

static long bind_to(const char *path) {
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    strcpy(un.sun_path, path);
    int s = socket(AF_UNIX, SOCK_STREAM, 0), r = bind(s, (struct sockaddr *)&un, sizeof un), e = errno;
    close(s);
    errno = e;
    return r;
}

static void names1(void) {
    N(closing(open("n", O_RDONLY))); N(closing(open("n", O_RDONLY | O_DIRECTORY))); N(closing(open("n/", O_RDONLY)));
    N(closing(open("n/.", O_RDONLY))); N(closing(open("n/x", O_RDONLY)));
    N(closing(open("n", O_WRONLY | O_CREAT | O_EXCL, 0600))); N(closing(open("n", O_RDONLY | O_CREAT | O_EXCL, 0600)));
    N(closing(open("n", O_RDONLY | O_NOFOLLOW))); N(closing(open("n", O_PATH)));
    N(closing(open("n", O_PATH | O_NOFOLLOW))); N(closing(open("n", O_RDWR | O_TMPFILE, 0600)));
    N(closing(open("n", O_RDONLY | O_TRUNC))); N(closing(open("n", O_WRONLY)));
    N(closing(open("n", O_RDWR | O_APPEND))); N(closing(open("n", O_ACCMODE)));
    N(closing(open("n", O_ACCMODE | O_CREAT | O_TRUNC, 0600)));
    N(closing(open("n", O_RDONLY | O_CREAT | O_DIRECTORY, 0600))); N(closing(open("n", O_WRONLY | O_DIRECTORY)));
    N(closing(open("n/", O_WRONLY | O_CREAT | O_TRUNC, 0600)));
    N(closing(open("n/", O_WRONLY | O_CREAT | O_EXCL, 0600)));
    N(closing(open("n/x", O_WRONLY | O_CREAT | O_TRUNC, 0600))); N(closing(open("n", O_WRONLY | O_TRUNC | O_NOFOLLOW)));
    N(closing(open("n", O_WRONLY | O_TRUNC | O_DIRECT))); N(closing(open("n", O_WRONLY | O_CREAT | O_TRUNC, 0)));
    N(closing(open("n", O_WRONLY | O_CREAT | O_TRUNC | O_NOATIME, 0644))); N(closing(creat("n", 0600)));
    N(closing(syscall(SYS_openat2, AT_FDCWD, "n", (uint64_t[]){O_RDONLY, 0, 0}, 24)));
    N(closing(syscall(SYS_openat2, AT_FDCWD, "n", (uint64_t[]){O_RDONLY, 0600, 0}, 24)));
    N(closing(syscall(SYS_openat2, AT_FDCWD, "n", (uint64_t[]){O_RDONLY, 0, 0}, 5)));
    N(closing(syscall(SYS_openat2, AT_FDCWD, "n", (uint64_t[]){O_WRONLY | O_TRUNC, 0, 8}, 24)));
    N(closing(syscall(SYS_openat2, AT_FDCWD, "n", (uint64_t[]){1ull << 40, 0, 0}, 24)));
    N(closing(syscall(SYS_openat2, AT_FDCWD, "n", (uint64_t[]){O_WRONLY | O_CREAT | O_TRUNC, 0644, 0}, 24)));
    N(closing(syscall(SYS_openat2, AT_FDCWD, "n", (uint64_t[]){O_RDONLY, 0, 4}, 24)));
    N(fopen("n", "q") == NULL ? -1 : 0); N(fopen("n", "") == NULL ? -1 : 0); N(stat("n", BAD(stat)));
    N(stat("n", AS(stat))); N(stat("n/", AS(stat))); N(stat("n/.", AS(stat))); N(stat("n/x", AS(stat)));
    N(lstat("n", AS(stat))); N(lstat("n/", AS(stat))); N(fstatat(AT_FDCWD, "n", AS(stat), 0x77));
    N(fstatat(99, "n", AS(stat), 0)); N(fstatat(dirf, "n", AS(stat), 0)); N(stat(long_name, AS(stat)));
    N(stat("", AS(stat))); N(statx(AT_FDCWD, "n", 0x77, 0xfff, AS(statx)));
    N(statx(AT_FDCWD, "n", 0, 0xfff, BAD(statx)));
    N(statx(AT_FDCWD, "n", AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, 0xfff, AS(statx)));
    N(statx(AT_FDCWD, "n/", 0, 0xfff, AS(statx))); N(statx(99, "n", 0, 0xfff, AS(statx)));
    N(statx(AT_FDCWD, "n", 0x6000, 0xfff, AS(statx))); N(statx(AT_FDCWD, "n", 0, 0x80000000, AS(statx)));
    N(access("n", 0)); N(access("n", 8)); N(access("n", -1)); N(access("n", R_OK | W_OK)); N(access("n", X_OK));
    N(access("n/", 0)); N(access("n/x", 0)); N(faccessat(AT_FDCWD, "n", R_OK, 77));
    N(faccessat(AT_FDCWD, "n", R_OK, AT_SYMLINK_NOFOLLOW)); N(faccessat(AT_FDCWD, "n", X_OK, AT_EACCESS));
    N(faccessat(99, "n", 0, 0)); N(euidaccess("n", X_OK)); N(eaccess("n", 8));
    N(syscall(SYS_faccessat2, AT_FDCWD, "n", 0, 0x77)); N(syscall(SYS_faccessat, AT_FDCWD, "n", 8));
    N(syscall(SYS_access, "n", 8)); N(truncate("n", -1)); N(truncate("n", LLONG_MAX)); N(truncate("n", 0));
    N(truncate("n", 100)); N(truncate("n", 4 << 20)); N(truncate("n/", 0)); N(truncate("n/x", 0)); N(truncate("", 0));
    N(truncate(long_name, 0));
    N(stream("n", "r")); N(stream("n", "r+")); N(stream("n", "a")); N(stream("n", "wx")); N(stream("n/", "w"));
    N(stream("n", "w,ccs=UTF-8")); N(stream("n", "w,ccs=nonsense")); N(stream("n", "wm")); N(stream("n", "wb+ce"));
}

static void metas(void) {
    N(chmod("n", 0600)); N(chmod("n", 0177777)); N(chmod("n/", 0600)); N(fchmodat(AT_FDCWD, "n", 0600, 77));
    N(fchmodat(AT_FDCWD, "n", 0600, AT_SYMLINK_NOFOLLOW)); N(fchmodat(99, "n", 0600, 0)); N(lchmod("n", 0600));
    N(syscall(FCHMODAT2, AT_FDCWD, "n", 0600, 0)); N(syscall(FCHMODAT2, AT_FDCWD, "n", 0600, AT_SYMLINK_NOFOLLOW));
    N(syscall(FCHMODAT2, AT_FDCWD, "n", 0600, 77)); N(chown("n", -1, -1)); N(chown("n", 5, 5)); N(chown("n/", -1, -1));
    N(lchown("n", -1, -1)); N(fchownat(AT_FDCWD, "n", -1, -1, 77));
    N(fchownat(AT_FDCWD, "n", -1, -1, AT_SYMLINK_NOFOLLOW)); N((chmod("n", 06755), chown("n", getuid(), getgid())));
    N(utimensat(AT_FDCWD, "n", TIMES(5, 6), 0)); N(utimensat(AT_FDCWD, "n", TIMES(5, 6), AT_SYMLINK_NOFOLLOW));
    N(utimensat(AT_FDCWD, "n", TIMES(-5, 6), 0)); N(utimensat(AT_FDCWD, "n", TIMES(5, 1000000000), 0));
    N(utimensat(AT_FDCWD, "n", TIMES(5, 6), 77)); N(utimensat(AT_FDCWD, "n", (void *)wild, 0));
    N(utimensat(AT_FDCWD, "n", NULL, 0)); N(utimensat(AT_FDCWD, "n/", TIMES(5, 6), 0));
    N(utimensat(AT_FDCWD, "n", TIMES(UTIME_OMIT, UTIME_OMIT), 0));
    N(utimensat(AT_FDCWD, "nothing", TIMES(UTIME_OMIT, UTIME_OMIT), 0)); N(utimensat(99, "n", TIMES(5, 6), 0));
    N(utimes("n", TVS(5, 6))); N(utimes("n", TVS(-5, 6))); N(utimes("n", TVS(5, 1000000))); N(utimes("n", NULL));
    N(lutimes("n", TVS(5, 6))); N(lutimes("n", TVS(5, 6000000))); N(utime("n", NULL));
    N(utime("n", &(struct utimbuf){5, 6})); N(futimesat(AT_FDCWD, "n", TVS(5, 6))); N(futimesat(AT_FDCWD, "n", NULL));
    N(futimesat(dirf, "n/", TVS(5, 6))); N(syscall(SYS_futimesat, AT_FDCWD, "n", TVS(5, 6)));
    N(syscall(SYS_utimes, "n", TVS(5, 6))); N(syscall(SYS_utime, "n", (long[]){5, 6}));
    N(setxattr("n", "user.x", "v", 1, 0)); N(setxattr("n", "user.x", "v", 1, 77)); N(setxattr("n", "x", "v", 1, 0));
    N(setxattr("n", "user.x", wild, 1, 0)); N(setxattr("n", "trusted.x", "v", 1, 0));
    N(lsetxattr("n", "user.x", "v", 1, 0)); N(getxattr("n", "user.x", out, 9)); N(lgetxattr("n", "user.x", out, 9));
    N(listxattr("n", out, 9)); N(llistxattr("n", out, 9)); N(removexattr("n", "user.x"));
    N(lremovexattr("n", "user.x")); N(syscall(SYS_lsetxattr, "n", "user.x", "v", 1, 0));
    N(syscall(SYS_setxattr, "n", "user.x", "v", 1, 0)); N(syscall(SYS_getxattr, "n", "user.x", out, 9));
    N(syscall(SYS_lgetxattr, "n", "user.x", out, 9)); N(syscall(SYS_llistxattr, "n", out, 9));
    N(syscall(SYS_removexattr, "n", "user.x")); N(syscall(SYS_lremovexattr, "n", "user.x"));
    N(syscall(SETXATTRAT, AT_FDCWD, "n", 0, "user.x", (uint64_t[]){(uint64_t)(uintptr_t)"v", 1}, 16));
    N(syscall(GETXATTRAT, AT_FDCWD, "n", 0, "user.x", (uint64_t[]){(uint64_t)(uintptr_t)block, 9}, 16));
    N(syscall(LISTXATTRAT, AT_FDCWD, "n", 0, out, 9)); N(syscall(REMOVEXATTRAT, AT_FDCWD, "n", 0, "user.x"));
    N(readlink("n", out, 9)); N(readlink("n", block, 0)); N(readlink("n", wild, 9)); N(readlink("n/", out, 9));
    N(readlink("n/x", out, 9)); N(readlinkat(99, "n", out, 9)); N(readlinkat(dirf, "n", out, 9));
    N(realpath("n", NULL) == NULL ? -1 : 0); N(realpath("n/", NULL) == NULL ? -1 : 0);
}

static void changes(void) {
    N(realpath("n/.", NULL) == NULL ? -1 : 0); N(realpath("n/..", NULL) == NULL ? -1 : 0);
    N(realpath("n/x", NULL) == NULL ? -1 : 0); N(realpath("./n", NULL) == NULL ? -1 : 0); N(chdir("n")); N(chdir("n/"));
    N(opendir("n") == NULL ? -1 : 0); N(opendir("n/") == NULL ? -1 : 0); N(statfs("n", AS(statfs)));
    N(statfs("n", BAD(statfs))); N(statfs("n/", AS(statfs))); N(statvfs("n", AS(statvfs)));
    N(pathconf("n", _PC_NAME_MAX)); N(pathconf("n", 9999)); N(pathconf("n/x", _PC_NAME_MAX));
    N(pathconf("n", _PC_LINK_MAX)); N(syscall(SYS_chdir, "n")); N(mkdir("n", 0700)); N(mkdir("n/", 0700));
    N(mkdir("n/x", 0700)); N(rmdir("n")); N(rmdir("n/")); N(rmdir("n/x")); N(unlink("n")); N(unlink("n/"));
    N(unlink("n/x")); N(remove("n")); N(remove("n/")); N(unlinkat(AT_FDCWD, "n", AT_REMOVEDIR));
    N(unlinkat(AT_FDCWD, "n", 77)); N(unlinkat(99, "n", 0)); N(unlinkat(dirf, "n", 0)); N(symlink("x", "n"));
    N(symlink("", "n")); N(symlink("x", "n/")); N(symlink("x", "n/x")); N(link("n", "n")); N(link("n", "m"));
    N(link("n/", "m")); N(link("n", "m/")); N(link("n", "nothing/m")); N(linkat(AT_FDCWD, "n", AT_FDCWD, "m", 77));
    N(linkat(AT_FDCWD, "n", AT_FDCWD, "m", AT_SYMLINK_FOLLOW)); N(link("nothing", "n")); N(link("d", "n"));
    N(mknod("n", S_IFREG | 0600, 0)); N(mknod("n", 0170000, 0)); N(mkfifo("n", 0600)); N(mkfifo("n/", 0600));
    N(mkfifo("n/x", 0600)); N(bind_to("n")); N(execve("n", ARGS)); N(rename("n", "m")); N(rename("n", "n"));
    N(rename("n/", "m")); N(rename("n", "m/")); N(rename("n", "d")); N(rename("n", "d/")); N(rename("d", "n"));
    N(rename("n", "")); N(rename("", "n")); N(rename("n", long_name)); N(rename("n/x", "m")); N(rename("n", "n/x"));
    N(rename("n", ".")); N(rename("n", "d/..")); N(rename("nothing", "n"));
    N(renameat2(AT_FDCWD, "n", AT_FDCWD, "m", 99)); N(renameat2(AT_FDCWD, "n", AT_FDCWD, "m", RENAME_EXCHANGE));
    N(renameat2(AT_FDCWD, "n", AT_FDCWD, "m", RENAME_NOREPLACE));
    N(renameat2(AT_FDCWD, "n", AT_FDCWD, "ro", RENAME_NOREPLACE));
    N(renameat2(AT_FDCWD, "n", AT_FDCWD, "d", RENAME_NOREPLACE));
    N(renameat2(AT_FDCWD, "n", AT_FDCWD, "m", RENAME_NOREPLACE | RENAME_EXCHANGE)); N(renameat(99, "n", AT_FDCWD, "m"));
    N(renameat(AT_FDCWD, "n", 99, "m")); N(renameat(dirf, "n", dirf, "m"));
    N(renameat2(AT_FDCWD, "n", AT_FDCWD, "n", RENAME_NOREPLACE));
    N(renameat2(AT_FDCWD, "n", AT_FDCWD, "n", RENAME_EXCHANGE)); N(inotify_add_watch(inotify_init(), "n", 0));
    N(inotify_add_watch(inotify_init(), "n", IN_MODIFY | IN_ONLYDIR)); N(inotify_add_watch(99, "n", IN_MODIFY));
    N(inotify_add_watch(inotify_init(), "n", IN_MODIFY));
    N(name_to_handle_at(AT_FDCWD, "n", BAD(file_handle), (int[]){0}, 0));
    N(name_to_handle_at(AT_FDCWD, "n", memset(out, 0, 8), (int[]){0}, 0));
    N(name_to_handle_at(AT_FDCWD, "n", memset(out, 0, 8), (int[]){0}, 77));
    N(syscall(SYS_getdents, dirf, out, 4096) > 0);
}

int main(int argc, char **argv) {
    states_asked = argc > 3 ? atoi(argv[3]) : STATES;
    const struct group groups[] = {{"names", names1}, {"names", metas}, {"changes", changes}, {NULL, NULL}};
    return run_groups(argc, argv, groups);
}
