// SPDX-License-Identifier: MIT
//
// odd_fds: calls on the descriptor of a captured file with arguments that the kernel refuses, or that few programs try:
// writes, seeks, sizes, copies, duplicates, locks, requests, mappings.

#include "odd_rig.h"

#include <linux/fiemap.h>
#include <linux/fs.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>

#define LOCK(type, whence, start) &(struct flock){.l_type = type, .l_whence = whence, .l_start = start}

// Does the kernel have extents of what has been written?
static long extents_of(int fd) {
    struct fiemap m = {.fm_length = ~0ull, .fm_flags = FIEMAP_FLAG_SYNC};
    int r = ioctl(fd, FS_IOC_FIEMAP, &m);
    return r < 0 ? r : m.fm_mapped_extents > 0;
}

static long lock_type(int fd, short whence, off_t start) {
    struct flock l = {.l_type = F_WRLCK, .l_whence = whence, .l_start = start};
    int r = fcntl(fd, F_GETLK, &l);
    return r < 0 ? r : l.l_type;
}

static long events_of(int fd) {
    struct pollfd p = {fd, POLLIN | POLLOUT, 0};
    return poll(&p, 1, 0) < 0 ? -1 : p.revents;
}

static void writes(void) {
    F(write(fd, wild, 10)); F(write(fd, null, 0)); F(write(fd, null, 10)); F(write(fd, block, SIZE_MAX));
    F(write(fd, wild, 2 << 20)); F(write(fd, wild, 0)); F(pwrite(fd, block, 10, -1));
    F(pwrite(fd, block, 10, LLONG_MAX)); F(pwrite(fd, block, 10, LLONG_MAX - 5)); F(pwrite(fd, wild, 10, 1 << 20));
    F(pwrite(fd, block, SIZE_MAX, 0)); F(pwrite(fd, block, 0, 1ll << 44)); F(pwrite(fd, block, 0, -1));
    F(writev(fd, IOV({block, 5}), -1)); F(writev(fd, IOV({block, 5}), 1025)); F(writev(fd, (void *)null, 0));
    F(writev(fd, (void *)null, 1)); F(writev(fd, (void *)wild, 2));
    F(writev(fd, IOV({block, SSIZE_MAX}, {out, 100}), 2));
    F(writev(fd, IOV({block, -1}), 1)); F(writev(fd, IOV({wild, 100}, {out, 9}), 2));
    F(writev(fd, IOV({wild, 0}, {out, 9}), 2)); F(pwritev(fd, IOV({out, 100}), 1, -1));
    F(pwritev(fd, IOV({out, 100}), 1, LLONG_MAX)); F(pwritev(fd, IOV({out, 100}), -1, 0));
    F(pwritev(fd, IOV({out, 100}), 0, -1)); F(pwritev(fd, (void *)null, 0, 0));
    F(pwritev2(fd, IOV({out, 100}), 1, -1, 0)); F(pwritev2(fd, IOV({out, 100}), 1, -2, 0));
    F(pwritev2(fd, IOV({out, 100}), 1, 5, 0x80000000)); F(pwritev2(fd, IOV({out, 100}), 1, -1, RWF_APPEND));
    F(pwritev2(fd, IOV({out, 100}), 1, 5, RWF_APPEND)); F(pwritev2(fd, IOV({out, 100}), 1, 5, RWF_DSYNC));
    F(pwritev2(fd, IOV({out, 100}), 1, 2 << 20, RWF_NOWAIT)); F(pwritev2(fd, IOV({out, 100}), 1, 5, RWF_HIPRI));
    F(pwritev2(fd, (void *)wild, 1, 5, 0)); F(read(fd, block, 5)); F(pread(fd, block, 5, 0));
    F(readv(fd, IOV({block, 5}), 1)); F(preadv2(fd, IOV({block, 5}), 1, -1, 0)); F(readahead(fd, 0, 5));
    F(read(fd, wild, 5)); F(lseek(fd, 0, 7)); F(lseek(fd, -1, SEEK_SET)); F(lseek(fd, LLONG_MAX, SEEK_CUR));
    F(lseek(fd, LLONG_MAX, SEEK_SET)); F(lseek(fd, LLONG_MAX, SEEK_END)); F(lseek(fd, -(4 << 20), SEEK_END));
    F(lseek(fd, 1ll << 44, SEEK_SET)); F(lseek(fd, 3 << 20, SEEK_DATA)); F(lseek(fd, 3 << 20, SEEK_HOLE));
    F(lseek(fd, 0, SEEK_DATA)); F(lseek(fd, 0, SEEK_HOLE)); F(lseek(fd, -1, SEEK_DATA));
    F(lseek(fd, 2 << 20, SEEK_HOLE)); F(lseek(fd, 0, -1)); F(ftruncate(fd, -1)); F(ftruncate(fd, LLONG_MAX));
    F(ftruncate(fd, 0)); F(ftruncate(fd, 4 << 20)); F(fallocate(fd, 0, 0, 0)); F(fallocate(fd, 0, -1, 5));
    F(fallocate(fd, 0, 5, -1)); F(fallocate(fd, 0x8000, 0, 5)); F(fallocate(fd, FALLOC_FL_PUNCH_HOLE, 0, 5));
    F(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 0)); F(fallocate(fd, FALLOC_FL_KEEP_SIZE, -1, 5));
    F(fallocate(fd, FALLOC_FL_KEEP_SIZE, 5, LLONG_MAX));
    F(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 2 << 20));
    F(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 4096, 1 << 20)); F(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 5, 9));
    F(fallocate(fd, FALLOC_FL_ZERO_RANGE, 5, 2 << 20)); F(fallocate(fd, FALLOC_FL_INSERT_RANGE, 4096, 4096));
    F(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, 3 << 20)); F(fallocate(fd, FALLOC_FL_INSERT_RANGE, 4 << 20, 4096));
    F(posix_fallocate(fd, 0, 0)); F(posix_fallocate(fd, -1, 5)); F(posix_fallocate(fd, 0, 4 << 20));
    F(posix_fadvise(fd, 0, 0, 99)); F(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
    F(posix_fadvise(fd, 0, -1, POSIX_FADV_DONTNEED)); F(fsync(-1)); F(fsync(99)); F(fdatasync(99)); F(syncfs(99));
    F(sync_file_range(fd, 0, 0, 99)); F(sync_file_range(fd, -1, 0, SYNC_FILE_RANGE_WRITE));
    F(sync_file_range(fd, 0, -1, SYNC_FILE_RANGE_WRITE)); F(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE));
    F(sync_file_range(fd, LLONG_MAX, 5, SYNC_FILE_RANGE_WRITE)); F(sync_file_range(fd, 0, 0, 0));
    F(sync_file_range(99, 0, 0, 0));
}

static void copies(void) {
    F(sendfile(fd, fd, NULL, 10)); F(sendfile(fd, 99, NULL, 10)); F(sendfile(99, fd, NULL, 10));
    F(sendfile(fd, dirf, NULL, 10)); F(sendfile(fd, pipes[0], NULL, 10)); F(sendfile(fd, ro, (void *)wild, 10));
    F(sendfile(fd, ro, OFF(-1), 10)); F(sendfile(fd, ro, OFF(LLONG_MAX), 10)); F(sendfile(fd, ro, OFF(5000), 10));
    F(sendfile(fd, ro, OFF(4990), 100)); F(sendfile(fd, ro, NULL, 0)); F(sendfile(fd, ro, OFF(0), SIZE_MAX));
    F(sendfile(fd, nullf, NULL, 5)); F(sendfile(fd, ro, OFF(0), 100)); F(sendfile(sockf, fd, NULL, 5));
    F(sendfile(nullf, fd, NULL, 5)); F(sendfile(ro, fd, NULL, 5)); F(sendfile(ro, ro, NULL, 5));
    F(sendfile(fd, ro, OFF(LLONG_MAX - 3), 10)); F(sendfile(fd, sockf, NULL, 5));
    F(copy_file_range(fd, NULL, fd, NULL, 10, 0)); F(copy_file_range(99, NULL, fd, NULL, 10, 0));
    F(copy_file_range(ro, NULL, 99, NULL, 10, 0)); F(copy_file_range(ro, NULL, fd, NULL, 10, 1));
    F(copy_file_range(dirf, NULL, fd, NULL, 10, 0)); F(copy_file_range(pipes[0], NULL, fd, NULL, 10, 0));
    F(copy_file_range(nullf, NULL, fd, NULL, 10, 0)); F(copy_file_range(ro, NULL, dirf, NULL, 10, 0));
    F(copy_file_range(ro, NULL, ro, NULL, 10, 0)); F(copy_file_range(ro, OFF(-1), fd, NULL, 10, 0));
    F(copy_file_range(ro, OFF(0), fd, OFF(-1), 10, 0)); F(copy_file_range(ro, OFF(LLONG_MAX), fd, NULL, 10, 0));
    F(copy_file_range(ro, OFF(0), fd, OFF(LLONG_MAX), 10, 0));
    F(copy_file_range(ro, OFF(0), fd, OFF(LLONG_MAX - 5), 10, 0));
    F(copy_file_range(ro, (void *)wild, fd, NULL, 10, 0)); F(copy_file_range(ro, NULL, fd, (void *)wild, 10, 0));
    F(copy_file_range(ro, OFF(5000), fd, NULL, 10, 0)); F(copy_file_range(ro, OFF(4990), fd, NULL, 100, 0));
    F(copy_file_range(ro, OFF(0), fd, NULL, 0, 0)); F(copy_file_range(ro, OFF(0), fd, OFF(1 << 20), 5000, 0));
    F(copy_file_range(ro, OFF(0), fd, NULL, SIZE_MAX, 0)); F(copy_file_range(ro, OFF(1ll << 44), fd, OFF(0), 10, 0));
    F(copy_file_range(99, NULL, fd, NULL, 0, 1)); F(copy_file_range(ro, NULL, fd, NULL, 0, 1));
    F(copy_file_range(dirf, NULL, fd, NULL, 0, 0)); F(copy_file_range(fd, NULL, ro, NULL, 10, 0));
    F(copy_file_range(fd, NULL, fd, NULL, 0, 0)); F(copy_file_range(sockf, NULL, fd, NULL, 10, 0));
    F(copy_file_range(fd, OFF(-1), fd, NULL, 10, 0)); F(copy_file_range(fd, NULL, dirf, NULL, 10, 0));
    F(copy_file_range(fd, NULL, pipes[1], NULL, 10, 0)); F(copy_file_range(ro, OFF(0), fd, OFF(-1), 0, 0));
    F(copy_file_range(fd, OFF(0), fd, OFF(5), 10, 1)); F(copy_file_range(ro, OFF(LLONG_MAX - 2), fd, OFF(0), 10, 0));
    F(splice(pipes[0], NULL, fd, NULL, 0, 0)); F(splice(ro, NULL, fd, NULL, 10, 0));
    F(splice(99, NULL, fd, NULL, 10, 0)); F(splice(pipes[0], OFF(0), fd, NULL, 10, 0));
    F(splice(pipes[0], NULL, fd, OFF(-1), 10, SPLICE_F_NONBLOCK));
    F(splice(pipes[0], NULL, fd, (void *)wild, 10, SPLICE_F_NONBLOCK)); F(splice(pipes[0], NULL, fd, NULL, 10, 0x800));
    F(splice(pipes[0], NULL, fd, NULL, 10, SPLICE_F_NONBLOCK)); F(splice(fd, NULL, pipes[1], NULL, 10, 0));
    F(tee(fd, pipes[1], 10, 0)); F(vmsplice(fd, IOV({block, 10}), 1, 0));
}

static void descs(void) {
    F(dup2(fd, -1)); F(dup2(fd, 1 << 30)); F(dup2(99, fd)); F(dup2(-1, fd)); F(dup3(fd, fd, 0)); F(dup3(fd, 60, 5));
    F(dup3(fd, -1, 0)); F(dup3(99, fd, 0)); F(dup(99)); F(dup2(fd, fd)); F(dup3(ro, fd, 7)); F(close_range(5, 4, 0));
    F(close_range(90, 99, 77)); F(close(-1)); F(close(99)); F(fcntl(fd, F_DUPFD, -1)); F(fcntl(fd, F_DUPFD, 1 << 30));
    F(fcntl(99, F_DUPFD, 3)); F(fcntl(fd, F_GETFL)); F(fcntl(fd, F_SETFL, 0)); F(fcntl(fd, F_SETFL, O_NONBLOCK));
    F((fcntl(fd, F_SETFL, O_APPEND), fcntl(fd, F_GETFL))); F(fcntl(fd, F_SETFL, O_DIRECT));
    F(fcntl(fd, F_SETFL, O_NOATIME)); F(fcntl(fd, F_SETFL, O_ASYNC)); F(fcntl(fd, F_GETFD));
    F(fcntl(fd, F_SETFD, FD_CLOEXEC)); F(fcntl(fd, 9999)); F(fcntl(fd, -1)); F(fcntl(fd, F_GETLEASE));
    F(fcntl(fd, F_SETLEASE, F_RDLCK)); F(fcntl(fd, F_SETLEASE, F_UNLCK)); F(fcntl(fd, F_SETLEASE, 77));
    F(fcntl(fd, F_SETLK, LOCK(F_WRLCK, 0, 0))); F(fcntl(fd, F_SETLK, LOCK(F_RDLCK, 0, 0)));
    F(fcntl(fd, F_SETLK, LOCK(77, 0, 0))); F(fcntl(fd, F_SETLK, LOCK(F_WRLCK, 9, 0)));
    F(fcntl(fd, F_SETLK, LOCK(F_WRLCK, 0, -5))); F(fcntl(fd, F_SETLK, LOCK(F_WRLCK, SEEK_END, -5)));
    F(fcntl(fd, F_SETLK, wild)); F(fcntl(fd, F_SETLK, null)); F(fcntl(fd, F_GETLK, LOCK(F_WRLCK, 0, 0)));
    F(fcntl(fd, F_GETLK, LOCK(F_UNLCK, 0, 0))); F(fcntl(fd, F_GETLK, wild));
    F(fcntl(fd, F_OFD_SETLK, LOCK(F_WRLCK, 0, 0)));
    F(fcntl(fd, F_OFD_SETLK, &(struct flock){.l_type = F_WRLCK, .l_pid = 5}));
    F(fcntl(fd, F_OFD_GETLK, LOCK(F_WRLCK, 0, 0))); F(fcntl(fd, F_SETLK, LOCK(F_UNLCK, 0, 0)));
    F(fcntl(fd, F_ADD_SEALS, 1)); F(fcntl(fd, F_GET_SEALS)); F(fcntl(fd, F_SETPIPE_SZ, 4096));
    F(fcntl(fd, F_GETPIPE_SZ)); F(fcntl(fd, F_SET_RW_HINT, (uint64_t[]){2}));
    F(fcntl(fd, F_GET_RW_HINT, (uint64_t[]){2})); F(fcntl(fd, F_SET_RW_HINT, wild));
    F(fcntl(fd, F_SET_RW_HINT, (uint64_t[]){77})); F(fcntl(fd, F_NOTIFY, DN_MODIFY)); F(fcntl(fd, F_SETSIG, 99));
    F(fcntl(fd, F_SETOWN, 1 << 30)); F(fcntl(fd, F_GETOWN)); F(fcntl(fd, F_GETSIG)); F(flock(fd, 0)); F(flock(fd, 99));
    F(flock(fd, LOCK_SH | LOCK_EX)); F(flock(fd, LOCK_UN)); F(flock(fd, LOCK_EX | LOCK_NB)); F(flock(99, LOCK_EX));
    F(lockf(fd, 99, 0)); F(lockf(fd, F_LOCK, -(4 << 20))); F(lockf(fd, F_TEST, 0)); F(lockf(fd, F_TLOCK, 100));
    F(lockf(fd, F_ULOCK, 0)); F(lockf(99, F_TLOCK, 0)); F(ioctl(fd, 0x1234567, 0)); F(ioctl(fd, FIONREAD, (int[]){0}));
    F(ioctl(fd, FIONREAD, wild)); F(ioctl(fd, FIGETBSZ, (int[]){0})); F(ioctl(fd, FIGETBSZ, wild));
    F(ioctl(fd, FICLONE, ro)); F(ioctl(fd, FICLONE, 99)); F(ioctl(ro, FICLONE, fd)); F(ioctl(fd, TCGETS, wild));
    F(ioctl(fd, FIOASYNC, wild)); F(ioctl(fd, FS_IOC_GETFLAGS, (long[]){0})); F(ioctl(fd, FS_IOC_SETFLAGS, wild));
    F(ioctl(fd, FIBMAP, (int[]){0})); F(ioctl(fd, FS_IOC_FIEMAP, wild)); F(ioctl(fd, FIDEDUPERANGE, wild));
    F(ioctl(fd, FS_IOC_GETVERSION, (long[]){0}) );
    F(mmap(NULL, 0, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
    F(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
    F(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 5) == MAP_FAILED ? -1 : 0);
    F(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -1 : 0);
    F(mmap(NULL, 4096, PROT_READ, 0, fd, 0) == MAP_FAILED ? -1 : 0);
    F(epoll_ctl(epoll_create1(0), EPOLL_CTL_ADD, fd, &(struct epoll_event){0}));
    F(extents_of(fd)); F(lock_type(fd, SEEK_END, -5)); F(events_of(fd));
}

int main(int argc, char **argv) {
    const struct group groups[] = {{"writes", writes}, {"copies", copies}, {"descriptors", descs}, {NULL, NULL}};
    return run_groups(argc, argv, groups);
}
