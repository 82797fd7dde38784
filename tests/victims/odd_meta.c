// SPDX-License-Identifier: MIT
//
// odd_meta: calls that ask what a captured file is, or change it, by its descriptor, its name and its link in /proc,
// with odd arguments as well: modes, owners, times, attributes, statx, the *at forms with an empty path.

#include "odd_rig.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <sys/inotify.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <utime.h>

#define FCHMODAT2 452 // newer than many headers
#define SETXATTRAT 463

// What a name says of its file: size, and whether there is one link.
static long size_of(const char *path) {
    struct stat st;
    struct statx x;
    int r = stat(path, &st) < 0 || statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &x) < 0 ? -1 : 0;
    bool same = r == 0 && (off_t)x.stx_size == st.st_size && x.stx_nlink == st.st_nlink;
    return r < 0 ? r : same ? st.st_size * 10 + (long)st.st_nlink : -2;
}

static long link_of(const char *path) {
    struct stat st;
    return lstat(path, &st) < 0 ? -1 : st.st_size * 1000000 + st.st_mode;
}

static long time_of(const char *path) {
    struct stat st;
    return stat(path, &st) < 0 ? -1 : st.st_mtime + st.st_atime;
}

static long done(int fd, long r) {
    int e = errno;
    close(fd);
    errno = e;
    return r;
}

// The size that another description of the file has.
static long end_of(const char *path, int flags) {
    int fd = open(path, flags);
    struct stat st;
    return fd < 0 ? -1 : done(fd, flags & O_PATH ? fstat(fd, &st) < 0 ? -1 : st.st_size : lseek(fd, 0, SEEK_END));
}

static long got(const char *path, off_t at) {
    int fd = open(path, O_RDWR);
    long r = fd < 0 ? -1 : pread(fd, out, 100, at);
    return fd < 0 ? r : done(fd, r <= 0 ? r : out[0] + out[r - 1] + r);
}

static long put(const char *path, int flags, off_t at) {
    int fd = open(path, flags, 0600);
    return fd < 0 ? -1 : done(fd, at < 0 ? write(fd, "xyz", 3) : pwrite(fd, "xyz", 3, at));
}

static long by_stream(const char *path, const char *mode) {
    FILE *fp = fopen(path, mode);
    if (fp == NULL) {
        return -1;
    }
    long n = mode[0] == 'r' ? (long)fread(out, 1, 1 << 20, fp) : fputs("stream", fp);
    fseek(fp, 0, SEEK_END);
    n += ftell(fp);
    return fclose(fp) < 0 ? -1 : n;
}

// By the directory of the links, and by a link to a link.
static long by_dirfd(int fd, bool text) {
    char name[16];
    struct stat st;
    int dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY);
    snprintf(name, sizeof name, "%d", fd);
    long r = text ? readlinkat(dir, name, out, PATH_MAX) : fstatat(dir, name, &st, 0);
    return done(dir, r < 0 ? r : text ? out[r - 1] : st.st_size);
}

static long by_link(long (*call)(const char *path)) {
    long r = symlink(proc, "g") < 0 ? -1 : call("g");
    return r;
}

// Bytes that come behind times that were set.
static long then(int fd, long r) {
    struct stat st;
    return r < 0 ? r : fstat(fd, &st) < 0 ? -1 : r * 10 + (st.st_mtime < LONG_AGO);
}

static long cut(const char *path) {
    return truncate(path, 1 << 20);
}

static long says(int fd) {
    struct statx x;
    return statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &x) < 0 ? -1 : (long)x.stx_size * 10 + x.stx_nlink;
}

static void metas1(void) {
    F(fchmod(fd, 07777)); F(fchmod(fd, 0)); F(fchmod(fd, 0177777)); F(fchmod(99, 0)); F(fchown(fd, -1, -1));
    F(fchown(fd, 5, -1)); F(fchown(fd, -1, 7)); F((fchmod(fd, 06755), fchown(fd, getuid(), -1)));
    F((fchmod(fd, 06755), write(fd, block, 5))); F((fchmod(fd, 06755), write(fd, block, 2 << 20)));
    F(futimens(fd, TIMES(5, 6))); F(futimens(fd, TIMES(-1, 6))); F(futimens(fd, TIMES(0, 1000000000)));
    F(futimens(fd, (void *)wild)); F(futimens(fd, NULL)); F(futimens(fd, TIMES(UTIME_OMIT, UTIME_OMIT)));
    F(futimens(fd, TIMES(UTIME_OMIT, 7))); F(futimens(fd, TIMES(UTIME_NOW, 7))); F(futimens(99, TIMES(1, 2)));
    F(futimes(fd, TVS(5, 1000000))); F(futimes(fd, TVS(-1, 0))); F(futimes(fd, TVS(5, 6)));
    F(futimesat(dirf, "f", TVS(5, 6))); F(futimesat(dirf, "f", TVS(5, 1000000)));
    F(utimensat(fd, null, TIMES(5, 6), 0)); F(utimensat(fd, "", TIMES(5, 6), AT_EMPTY_PATH));
    F(utimensat(fd, "", TIMES(5, 6), 0)); F(utimensat(AT_FDCWD, null, TIMES(5, 6), 0));
    F(utimensat(fd, "x", TIMES(5, 6), 0)); F(utimensat(AT_FDCWD, "f", TIMES(5, 6), 77));
    F(utimensat(AT_FDCWD, "f", TIMES(5, -6), 0)); F(utimensat(AT_FDCWD, "f", (void *)wild, 0));
    F(syscall(SYS_utimensat, fd, null, TIMES(5, 6), 0));
    F(syscall(SYS_utimensat, fd, null, TIMES(5, 6), AT_SYMLINK_NOFOLLOW));
    F(futimens(fd, (struct timespec[2]){{1ll << 40, 5}, {1ll << 40, 5}}));
    F(futimens(fd, (struct timespec[2]){{-5, 5}, {-6, 5}})); F((futimens(fd, TIMES(5, 6)), write(fd, block, 2 << 20)));
    F((futimens(fd, TIMES(5, 6)), write(fd, block, 0))); F((futimens(fd, TIMES(5, 6)), ftruncate(fd, 3 << 20)));
    F((futimens(fd, TIMES(5, 6)), fsync(fd))); F((futimens(fd, TIMES(5, 6)), fchmod(fd, 0600)));
    F((futimens(fd, TIMES(5, 6)), fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 4 << 20)));
    F(fsetxattr(fd, "user.x", "v", 1, 0)); F(fsetxattr(fd, "user.x", "v", 1, 99));
    F(fsetxattr(fd, "user.x", "v", 1, XATTR_REPLACE)); F(fsetxattr(fd, "x", "v", 1, 0));
    F(fsetxattr(fd, "", "v", 1, 0)); F(fsetxattr(fd, "user.x", wild, 1, 0)); F(fsetxattr(fd, wild, "v", 1, 0));
    F(fsetxattr(fd, "user.x", block, 1 << 20, 0)); F(fsetxattr(fd, "trusted.x", "v", 1, 0));
    F(fsetxattr(fd, "security.x", "v", 1, 0)); F(fgetxattr(fd, "user.x", out, 5)); F(flistxattr(fd, null, 0));
    F(fremovexattr(fd, "user.x")); F((fsetxattr(fd, "user.x", "value", 5, 0), fgetxattr(fd, "user.x", out, 2)));
    F(setxattr("f", "user.x", "v", 1, 0)); F(setxattr(proc, "user.x", "v", 1, 0));
    F(lsetxattr("f", "user.x", "v", 1, 0)); F(lsetxattr(proc, "user.x", "v", 1, 0));
    F((setxattr("f", "user.x", "v", 1, 0), getxattr("f", "user.x", out, 9)));
    F((setxattr("f", "user.x", "v", 1, 0), lgetxattr("f", "user.x", out, 9)));
    F((setxattr("f", "user.x", "v", 1, 0), removexattr("f", "user.x"))); F(removexattr("f", "user.x"));
    F(getxattr("f", "user.x", out, 9)); F(listxattr("f", out, 100)); F(llistxattr("f", wild, 100));
    F(getxattr("f", "nons", out, 9)); F(getxattr("f", wild, out, 9)); F(setxattr("f", "user.x", "v", 1, 77));
    F(fstat(fd, BAD(stat))); F(fstat(99, AS(stat))); F(fstatfs(fd, BAD(statfs))); F(fstatfs(fd, AS(statfs)));
    F(fstatvfs(fd, AS(statvfs))); F(fchdir(fd)); F(fpathconf(fd, _PC_NAME_MAX)); F(fpathconf(fd, 9999));
    F(fdopendir(fd) == NULL ? -1 : 0); F(syscall(SYS_getdents64, fd, out, 4096)); F(openat(fd, "x", O_RDONLY));
}

static void metas2(void) {
    F(openat(fd, "x", O_WRONLY | O_CREAT | O_TRUNC, 0600)); F(openat(fd, "", O_RDONLY));
    F(fstatat(fd, "x", AS(stat), 0)); F(fstatat(fd, "", AS(stat), 0)); F(fstatat(fd, "", AS(stat), AT_EMPTY_PATH));
    F(fstatat(fd, null, AS(stat), AT_EMPTY_PATH)); F(fstatat(fd, "", BAD(stat), AT_EMPTY_PATH));
    F(fstatat(fd, "", AS(stat), 0x77)); F(fexecve(fd, ARGS)); F(mkdirat(fd, "x", 0700)); F(unlinkat(fd, "x", 0));
    F(unlinkat(fd, "x", 99)); F(renameat(fd, "x", AT_FDCWD, "g")); F(renameat(AT_FDCWD, "f", fd, "x"));
    F(renameat2(AT_FDCWD, "f", AT_FDCWD, "g", 99)); F(readlinkat(fd, "", out, 9)); F(readlinkat(fd, "x", out, 9));
    F(faccessat(fd, "", W_OK, AT_EMPTY_PATH)); F(faccessat(fd, "", 9, AT_EMPTY_PATH)); F(faccessat(fd, "x", 0, 0));
    F(fchmodat(fd, "", 0600, 0)); F(fchmodat(fd, "", 0600, AT_EMPTY_PATH)); F(fchmodat(fd, "x", 0600, 0));
    F(fchmodat(AT_FDCWD, "f", 0600, AT_SYMLINK_NOFOLLOW)); F(fchmodat(AT_FDCWD, "f", 0600, 99));
    F(fchownat(fd, "", -1, -1, AT_EMPTY_PATH)); F(fchownat(fd, "", -1, -1, 0)); F(fchownat(fd, "", -1, -1, 77));
    F(linkat(fd, "", AT_FDCWD, "g", 0)); F(linkat(fd, "", AT_FDCWD, "f", AT_EMPTY_PATH)); F(symlinkat("x", fd, "y"));
    F(statx(fd, "", AT_EMPTY_PATH, STATX_ALL, AS(statx))); F(statx(fd, "", 0, STATX_ALL, AS(statx)));
    F(statx(fd, null, AT_EMPTY_PATH, STATX_ALL, AS(statx))); F(statx(fd, "", AT_EMPTY_PATH, 0x80000000, AS(statx)));
    F(statx(fd, "", AT_EMPTY_PATH | 0x10, STATX_ALL, AS(statx)));
    F(statx(fd, "", AT_EMPTY_PATH, STATX_ALL, BAD(statx)));
    F(statx(AT_FDCWD, "f", AT_STATX_FORCE_SYNC | AT_STATX_DONT_SYNC, STATX_ALL, AS(statx)));
    F(statx(AT_FDCWD, "f", 0, STATX_ALL, BAD(statx))); F(statx(AT_FDCWD, "f", 0, 0x80000000, AS(statx)));
    F(mknodat(fd, "x", S_IFREG, 0)); F(syscall(FCHMODAT2, fd, "", 0600, AT_EMPTY_PATH));
    F(syscall(FCHMODAT2, AT_FDCWD, "f", 0600, 0)); F(syscall(SYS_faccessat2, fd, "", R_OK, AT_EMPTY_PATH));
    F(syscall(SETXATTRAT, AT_FDCWD, "f", 0, "user.x", block, 16)); F(open(proc, O_RDONLY) >= 0);
    F(open(proc, O_NOFOLLOW | O_RDONLY)); F(open(proc, O_RDONLY | O_DIRECTORY));
    F(open(proc, O_WRONLY | O_CREAT | O_EXCL, 0600)); F(truncate(proc, 5)); F(truncate(proc, 2 << 20));
    F(truncate(proc, 4 << 20)); F(truncate(proc, -1)); F(chmod(proc, 0600)); F(fchmodat(AT_FDCWD, proc, 0600, 0));
    F(chown(proc, -1, -1)); F(lchown(proc, -1, -1)); F(utimensat(AT_FDCWD, proc, TIMES(5, 6), 0));
    F(utimes(proc, TVS(5, 6))); F(utime(proc, &(struct utimbuf){5, 6}));
    F((utimes(proc, TVS(5, 6)), write(fd, block, 100))); F(access(proc, R_OK)); F(access(proc, X_OK));
    F(faccessat(AT_FDCWD, proc, W_OK, AT_EACCESS)); F(link(proc, "g"));
    F(linkat(AT_FDCWD, proc, AT_FDCWD, "g", AT_SYMLINK_FOLLOW)); F(rename(proc, "g")); F(rename("f", proc));
    F(unlink(proc)); F(rmdir(proc)); F(mkdir(proc, 0700)); F(symlink("x", proc));
    F(setxattr(proc, "user.x", "v", 1, 0)); F(getxattr(proc, "user.x", out, 9)); F(statfs(proc, AS(statfs)));
    F(pathconf(proc, _PC_NAME_MAX)); F(chdir(proc)); F(opendir(proc) == NULL ? -1 : 0); F(execve(proc, ARGS));
    F(readlink(proc, out, 0)); F(readlink(proc, wild, 9)); F(readlink(proc, out, 3));
    F(inotify_add_watch(inotify_init(), proc, IN_MODIFY));
    F(name_to_handle_at(AT_FDCWD, proc, memset(out, 0, 8), (int[]){0}, AT_SYMLINK_FOLLOW));
}

static void links(void) {
    F(says(fd)); F(size_of(proc)); F(size_of("f")); F(link_of(proc)); F(end_of(proc, O_RDONLY));
    F(end_of(proc, O_PATH)); F(end_of(proc, O_RDONLY | O_NOFOLLOW));
    F(end_of(proc, O_RDONLY | O_DIRECTORY)); F(got(proc, 5));
    F(got(proc, (1 << 20) + 50)); F(put(proc, O_WRONLY, 1 << 20)); F(put(proc, O_WRONLY | O_APPEND, -1));
    F(put(proc, O_WRONLY | O_TRUNC, -1)); F(put(proc, O_WRONLY | O_CREAT | O_EXCL, -1));
    F(put(proc, O_RDWR | O_CREAT, -1)); F((put(proc, O_WRONLY, 1 << 20), write(fd, block, 100000)));
    F(by_stream(proc, "w")); F(by_stream(proc, "a")); F(by_stream(proc, "r")); F(by_dirfd(fd, false));
    F(by_dirfd(fd, true)); F(by_link(size_of)); F(by_link(link_of) > 0); F(by_link(cut)); F(by_link(time_of) > 0);
    F((futimens(fd, TIMES(5, 6)), then(fd, splice(pipes[0], NULL, fd, NULL, 10, 0))));
    F((futimens(fd, TIMES(5, 6)), then(fd, pwritev2(fd, IOV({block, 9}), 1, 5, RWF_DSYNC))));
    F((futimens(fd, TIMES(5, 6)), then(fd, sendfile(fd, ro, OFF(0), 100))));
    F((futimens(fd, TIMES(5, 6)), then(fd, copy_file_range(ro, OFF(0), fd, OFF(9), 100, 0))));
    F((lseek(fd, (1 << 20) + 9, SEEK_SET), dprintf(fd, "%s", "printed"))); F(dprintf(fd, "%s", "printed"));
    F((futimens(fd, TIMES(5, 6)), time_of(proc))); F((futimens(fd, TIMES(5, 6)), time_of("f")));
    F((utimes(proc, TVS(5, 6)), time_of("f"))); F((unlink("f"), size_of(proc))); F((unlink("f"), end_of(proc, O_RDWR)));
}

int main(int argc, char **argv) {
    const struct group groups[] = {{"meta", metas1}, {"meta", metas2}, {"links", links}, {NULL, NULL}};
    return run_groups(argc, argv, groups);
}
