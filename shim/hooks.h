// SPDX-License-Identifier: MIT
//
// hooks: the one table of exported symbols; read by #include with the macros defined differently (real.h, real.c, and
// at the end of each hook_*.c for its aliases). No guard, on purpose.
//   HOOK(name, return type, (parameters))   has a body hook_NAME and a pointer real.NAME to the next definition
//   HOOK_ALIAS(name, target)                same ABI on 64-bit, so it shares target's body and real pointer
// Lines stand in the section of the file that defines them: a reader wants HOOKS_ALL or one section, and gets only
// that. tests/system/exports.sh holds this table against libc's symbols.

#ifndef HOOK
#define HOOK(name, ret, params)
#endif
#ifndef HOOK_ALIAS
#define HOOK_ALIAS(name, target)
#endif

#if defined(HOOKS_ALL) || defined(HOOKS_OPEN) // hook_open.c
HOOK(open, int, (const char *path, int flags, ...))
HOOK_ALIAS(open64, open)
HOOK_ALIAS(__open, open)
HOOK_ALIAS(__open64, open)
HOOK(openat, int, (int dirfd, const char *path, int flags, ...))
HOOK_ALIAS(openat64, openat)
HOOK(openat2, int, (int dirfd, const char *path, const struct open_how *how, size_t size))
HOOK(creat, int, (const char *path, mode_t mode))
HOOK_ALIAS(creat64, creat)
HOOK(__open_2, int, (const char *path, int flags))
HOOK_ALIAS(__open64_2, __open_2)
HOOK(__openat_2, int, (int dirfd, const char *path, int flags))
HOOK_ALIAS(__openat64_2, __openat_2)
HOOK(mkstemp, int, (char *tmpl))
HOOK_ALIAS(mkstemp64, mkstemp)
HOOK(mkostemp, int, (char *tmpl, int flags))
HOOK_ALIAS(mkostemp64, mkostemp)
HOOK(mkstemps, int, (char *tmpl, int suffix))
HOOK_ALIAS(mkstemps64, mkstemps)
HOOK(mkostemps, int, (char *tmpl, int suffix, int flags))
HOOK_ALIAS(mkostemps64, mkostemps)
HOOK(mkdtemp, char *, (char *tmpl))
#endif

#if defined(HOOKS_ALL) || defined(HOOKS_STDIO) // hook_stdio.c
HOOK(fopen, FILE *, (const char *path, const char *mode))
HOOK_ALIAS(fopen64, fopen)
HOOK_ALIAS(_IO_fopen, fopen)
HOOK(fdopen, FILE *, (int fd, const char *mode))
HOOK_ALIAS(_IO_fdopen, fdopen)
HOOK(freopen, FILE *, (const char *path, const char *mode, FILE *fp))
HOOK_ALIAS(freopen64, freopen)
HOOK(fclose, int, (FILE * fp))
HOOK_ALIAS(_IO_fclose, fclose)
HOOK(fflush, int, (FILE * fp))
HOOK_ALIAS(_IO_fflush, fflush)
HOOK(fflush_unlocked, int, (FILE * fp))
HOOK(fwrite, size_t, (const void *data, size_t size, size_t count, FILE *fp))
HOOK_ALIAS(_IO_fwrite, fwrite)
HOOK(fwrite_unlocked, size_t, (const void *data, size_t size, size_t count, FILE *fp))
HOOK(fseek, int, (FILE * fp, long off, int whence))
HOOK_ALIAS(fseeko, fseek)
HOOK_ALIAS(fseeko64, fseek)
HOOK(rewind, void, (FILE * fp))
HOOK(fsetpos, int, (FILE * fp, const fpos_t *pos))
HOOK_ALIAS(fsetpos64, fsetpos)
HOOK_ALIAS(_IO_fsetpos, fsetpos)
HOOK_ALIAS(_IO_fsetpos64, fsetpos)
HOOK(dprintf, int, (int fd, const char *format, ...))
HOOK(vdprintf, int, (int fd, const char *format, va_list ap))
HOOK(__dprintf_chk, int, (int fd, int chk, const char *format, ...))
HOOK(__vdprintf_chk, int, (int fd, int chk, const char *format, va_list ap))
#endif

#if defined(HOOKS_ALL) || defined(HOOKS_FD) // hook_fd.c
HOOK(close, int, (int fd))
HOOK_ALIAS(__close, close)
HOOK(close_range, int, (unsigned first, unsigned last, int flags))
HOOK(closefrom, void, (int first))
HOOK(dup, int, (int fd))
HOOK(dup2, int, (int from, int to))
HOOK_ALIAS(__dup2, dup2)
HOOK(dup3, int, (int from, int to, int flags))
HOOK(fcntl, int, (int fd, int cmd, ...))
HOOK_ALIAS(fcntl64, fcntl)
HOOK_ALIAS(__fcntl, fcntl)
HOOK(flock, int, (int fd, int op))
HOOK(lockf, int, (int fd, int cmd, off_t len))
HOOK_ALIAS(lockf64, lockf)
HOOK(ioctl, int, (int fd, unsigned long request, ...))
HOOK(pipe2, int, (int fds[2], int flags))
HOOK(mmap, void *, (void *addr, size_t len, int prot, int flags, int fd, off_t off))
HOOK_ALIAS(mmap64, mmap)
HOOK(madvise, int, (void *addr, size_t len, int advice))
HOOK(process_madvise, ssize_t, (int pidfd, const struct iovec *iov, size_t n, int advice, unsigned flags))
HOOK(mremap, void *, (void *addr, size_t len, size_t new_len, int flags, ...))
#endif

#if defined(HOOKS_ALL) || defined(HOOKS_WRITE) // hook_write.c
HOOK(write, ssize_t, (int fd, const void *buf, size_t len))
HOOK_ALIAS(__write, write)
HOOK(pwrite, ssize_t, (int fd, const void *buf, size_t len, off_t off))
HOOK_ALIAS(pwrite64, pwrite)
HOOK_ALIAS(__pwrite64, pwrite)
HOOK(writev, ssize_t, (int fd, const struct iovec *iov, int n))
HOOK(pwritev, ssize_t, (int fd, const struct iovec *iov, int n, off_t off))
HOOK_ALIAS(pwritev64, pwritev)
HOOK(pwritev2, ssize_t, (int fd, const struct iovec *iov, int n, off_t off, int flags))
HOOK_ALIAS(pwritev64v2, pwritev2)
HOOK(sendfile, ssize_t, (int out, int in, off_t *off, size_t len))
HOOK_ALIAS(sendfile64, sendfile)
HOOK(copy_file_range, ssize_t, (int in, off_t *in_off, int out, off_t *out_off, size_t len, unsigned flags))
HOOK(splice, ssize_t, (int in, off_t *in_off, int out, off_t *out_off, size_t len, unsigned flags))
HOOK(lseek, off_t, (int fd, off_t off, int whence))
HOOK_ALIAS(lseek64, lseek)
HOOK_ALIAS(__lseek, lseek)
HOOK(ftruncate, int, (int fd, off_t len))
HOOK_ALIAS(ftruncate64, ftruncate)
HOOK(fallocate, int, (int fd, int mode, off_t off, off_t len))
HOOK_ALIAS(fallocate64, fallocate)
HOOK(posix_fallocate, int, (int fd, off_t off, off_t len))
HOOK_ALIAS(posix_fallocate64, posix_fallocate)
HOOK(fsync, int, (int fd))
HOOK(fdatasync, int, (int fd))
HOOK(sync_file_range, int, (int fd, off_t off, off_t len, unsigned flags))
HOOK(syncfs, int, (int fd))
HOOK(sync, void, (void))
#endif

#if defined(HOOKS_ALL) || defined(HOOKS_STAT) // hook_stat.c
HOOK(stat, int, (const char *path, struct stat *st))
HOOK_ALIAS(stat64, stat)
HOOK(lstat, int, (const char *path, struct stat *st))
HOOK_ALIAS(lstat64, lstat)
HOOK(fstat, int, (int fd, struct stat *st))
HOOK_ALIAS(fstat64, fstat)
HOOK(fstatat, int, (int dirfd, const char *path, struct stat *st, int flags))
HOOK_ALIAS(fstatat64, fstatat)
HOOK(__xstat, int, (int ver, const char *path, struct stat *st))
HOOK_ALIAS(__xstat64, __xstat)
HOOK(__lxstat, int, (int ver, const char *path, struct stat *st))
HOOK_ALIAS(__lxstat64, __lxstat)
HOOK(__fxstat, int, (int ver, int fd, struct stat *st))
HOOK_ALIAS(__fxstat64, __fxstat)
HOOK(__fxstatat, int, (int ver, int dirfd, const char *path, struct stat *st, int flags))
HOOK_ALIAS(__fxstatat64, __fxstatat)
HOOK(statx, int, (int dirfd, const char *path, int flags, unsigned mask, struct statx *stx))
HOOK(access, int, (const char *path, int mode))
HOOK(faccessat, int, (int dirfd, const char *path, int mode, int flags))
HOOK(euidaccess, int, (const char *path, int mode))
HOOK_ALIAS(eaccess, euidaccess)
#endif

#if defined(HOOKS_ALL) || defined(HOOKS_ATTR) // hook_attr.c
HOOK(truncate, int, (const char *path, off_t len))
HOOK_ALIAS(truncate64, truncate)
HOOK(chmod, int, (const char *path, mode_t mode))
HOOK(fchmod, int, (int fd, mode_t mode))
HOOK(fchmodat, int, (int dirfd, const char *path, mode_t mode, int flags))
HOOK(lchmod, int, (const char *path, mode_t mode))
HOOK(chown, int, (const char *path, uid_t uid, gid_t gid))
HOOK(lchown, int, (const char *path, uid_t uid, gid_t gid))
HOOK(fchown, int, (int fd, uid_t uid, gid_t gid))
HOOK(fchownat, int, (int dirfd, const char *path, uid_t uid, gid_t gid, int flags))
HOOK(utime, int, (const char *path, const struct utimbuf *times))
HOOK(utimes, int, (const char *path, const struct timeval times[2]))
HOOK(lutimes, int, (const char *path, const struct timeval times[2]))
HOOK(futimes, int, (int fd, const struct timeval times[2]))
HOOK(futimesat, int, (int dirfd, const char *path, const struct timeval times[2]))
HOOK(futimens, int, (int fd, const struct timespec times[2]))
HOOK(utimensat, int, (int dirfd, const char *path, const struct timespec times[2], int flags))
HOOK(setxattr, int, (const char *path, const char *name, const void *value, size_t len, int flags))
HOOK(lsetxattr, int, (const char *path, const char *name, const void *value, size_t len, int flags))
HOOK(fsetxattr, int, (int fd, const char *name, const void *value, size_t len, int flags))
HOOK(getxattr, ssize_t, (const char *path, const char *name, void *value, size_t len))
HOOK(lgetxattr, ssize_t, (const char *path, const char *name, void *value, size_t len))
HOOK(listxattr, ssize_t, (const char *path, char *list, size_t len))
HOOK(llistxattr, ssize_t, (const char *path, char *list, size_t len))
HOOK(removexattr, int, (const char *path, const char *name))
HOOK(lremovexattr, int, (const char *path, const char *name))
#endif

#if defined(HOOKS_ALL) || defined(HOOKS_NAMES) // hook_names.c
HOOK(rename, int, (const char *from, const char *to))
HOOK(renameat, int, (int fromdir, const char *from, int todir, const char *to))
HOOK(renameat2, int, (int fromdir, const char *from, int todir, const char *to, unsigned flags))
HOOK(unlink, int, (const char *path))
HOOK(unlinkat, int, (int dirfd, const char *path, int flags))
HOOK(remove, int, (const char *path))
HOOK(rmdir, int, (const char *path))
HOOK(link, int, (const char *from, const char *to))
HOOK(linkat, int, (int fromdir, const char *from, int todir, const char *to, int flags))
HOOK(symlink, int, (const char *target, const char *path))
HOOK(symlinkat, int, (const char *target, int dirfd, const char *path))
HOOK(mkdir, int, (const char *path, mode_t mode))
HOOK(mkdirat, int, (int dirfd, const char *path, mode_t mode))
#endif

#if defined(HOOKS_ALL) || defined(HOOKS_DIR) // hook_dir.c
HOOK(opendir, DIR *, (const char *path))
HOOK(fdopendir, DIR *, (int fd))
HOOK(readdir, struct dirent *, (DIR * dir))
HOOK_ALIAS(readdir64, readdir)
HOOK(readdir_r, int, (DIR * dir, struct dirent *e, struct dirent **ret))
HOOK_ALIAS(readdir64_r, readdir_r)
HOOK(telldir, long, (DIR * dir))
HOOK(seekdir, void, (DIR * dir, long pos))
HOOK(rewinddir, void, (DIR * dir))
HOOK(closedir, int, (DIR * dir))
#endif

#if defined(HOOKS_ALL) || defined(HOOKS_WALK) // hook_walk.c
HOOK(getdents64, ssize_t, (int fd, void *buf, size_t len))
HOOK(getdirentries, ssize_t, (int fd, char *buf, size_t len, off_t *base))
HOOK_ALIAS(getdirentries64, getdirentries)
HOOK(scandir, int, (const char *path, struct dirent ***list, dir_filter *filter, dir_order *order))
HOOK_ALIAS(scandir64, scandir)
HOOK(scandirat, int, (int dirfd, const char *path, struct dirent ***list, dir_filter *filter, dir_order *order))
HOOK_ALIAS(scandirat64, scandirat)
HOOK(glob, int, (const char *pattern, int flags, glob_error *err, glob_t *ret))
HOOK_ALIAS(glob64, glob)
HOOK(wordexp, int, (const char *words, wordexp_t *ret, int flags))
HOOK(ftw, int, (const char *path, ftw_visit *visit, int fds))
HOOK_ALIAS(ftw64, ftw)
HOOK(nftw, int, (const char *path, nftw_visit *visit, int fds, int flags))
HOOK_ALIAS(nftw64, nftw)
HOOK(fts_open, FTS *, (char *const *paths, int options, fts_order *order))
HOOK_ALIAS(fts64_open, fts_open)
#endif

#if defined(HOOKS_ALL) || defined(HOOKS_WHERE) // hook_where.c
HOOK(readlink, ssize_t, (const char *path, char *buf, size_t len))
HOOK(readlinkat, ssize_t, (int dirfd, const char *path, char *buf, size_t len))
HOOK(__readlink_chk, ssize_t, (const char *path, char *buf, size_t len, size_t cap))
HOOK(__readlinkat_chk, ssize_t, (int dirfd, const char *path, char *buf, size_t len, size_t cap))
HOOK(realpath, char *, (const char *path, char *buf))
HOOK(__realpath_chk, char *, (const char *path, char *buf, size_t cap))
HOOK(canonicalize_file_name, char *, (const char *path))
HOOK(chdir, int, (const char *path))
HOOK(getcwd, char *, (char *buf, size_t len))
HOOK(__getcwd_chk, char *, (char *buf, size_t len, size_t cap))
HOOK(getwd, char *, (char *buf))
HOOK(__getwd_chk, char *, (char *buf, size_t cap))
HOOK(get_current_dir_name, char *, (void))
HOOK(statfs, int, (const char *path, struct statfs *st))
HOOK_ALIAS(statfs64, statfs)
HOOK_ALIAS(__statfs, statfs)
HOOK(statvfs, int, (const char *path, struct statvfs *st))
HOOK_ALIAS(statvfs64, statvfs)
HOOK(pathconf, long, (const char *path, int name))
HOOK(name_to_handle_at, int, (int dirfd, const char *path, struct file_handle *h, int *mount, int flags))
HOOK(inotify_add_watch, int, (int fd, const char *path, uint32_t mask))
HOOK(fanotify_mark, int, (int fd, unsigned flags, uint64_t mask, int dirfd, const char *path))
HOOK(ftok, key_t, (const char *path, int id))
HOOK(dlopen, void *, (const char *path, int mode))
HOOK(dlmopen, void *, (long space, const char *path, int mode))
HOOK(bind, int, (int fd, const struct sockaddr *addr, unsigned len))
HOOK(mknod, int, (const char *path, mode_t mode, dev_t dev))
HOOK(mknodat, int, (int dirfd, const char *path, mode_t mode, dev_t dev))
HOOK(__xmknod, int, (int ver, const char *path, mode_t mode, dev_t *dev))
HOOK(__xmknodat, int, (int ver, int dirfd, const char *path, mode_t mode, dev_t *dev))
HOOK(mkfifo, int, (const char *path, mode_t mode))
HOOK(mkfifoat, int, (int dirfd, const char *path, mode_t mode))
#endif

#if defined(HOOKS_ALL) || defined(HOOKS_MOUNT) // hook_mount.c
HOOK(umount, int, (const char *path))
HOOK(umount2, int, (const char *path, int flags))
HOOK(mount, int, (const char *from, const char *path, const char *type, unsigned long flags, const void *data))
HOOK(mount_setattr, int, (int dirfd, const char *path, unsigned flags, struct mount_attr *attr, size_t size))
HOOK(fsconfig, int, (int fd, unsigned cmd, const char *key, const void *value, int aux))
#endif

#if defined(HOOKS_ALL) || defined(HOOKS_PASS) // hook_pass.c
HOOK(aio_read, int, (struct aiocb * cb))
HOOK_ALIAS(aio_read64, aio_read)
HOOK(aio_write, int, (struct aiocb * cb))
HOOK_ALIAS(aio_write64, aio_write)
HOOK(aio_fsync, int, (int op, struct aiocb *cb))
HOOK_ALIAS(aio_fsync64, aio_fsync)
HOOK(lio_listio, int, (int mode, struct aiocb *const list[], int n, struct sigevent *sig))
HOOK_ALIAS(lio_listio64, lio_listio)
HOOK(sendmsg, ssize_t, (int fd, const struct msghdr *msg, int flags))
HOOK(sendmmsg, int, (int fd, struct mmsghdr *list, unsigned n, int flags))
#endif

#if defined(HOOKS_ALL) || defined(HOOKS_SYSCALL) // hook_syscall.c
HOOK(syscall, long, (long nr, long a, long b, long c, long d, long e, long f))
#endif

#if defined(HOOKS_ALL) || defined(HOOKS_PROCESS) // hook_process.c
HOOK(execve, int, (const char *path, char *const argv[], char *const envp[]))
HOOK(execv, int, (const char *path, char *const argv[]))
HOOK(execvp, int, (const char *file, char *const argv[]))
HOOK(execvpe, int, (const char *file, char *const argv[], char *const envp[]))
HOOK(execl, int, (const char *path, const char *arg, ...))
HOOK(execlp, int, (const char *file, const char *arg, ...))
HOOK(execle, int, (const char *path, const char *arg, ...))
HOOK(fexecve, int, (int fd, char *const argv[], char *const envp[]))
HOOK(execveat, int, (int dirfd, const char *path, char *const argv[], char *const envp[], int flags))
HOOK(posix_spawn, int, (pid_t * pid, const char *path, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attr, char *const argv[], char *const envp[]))
HOOK(posix_spawnp, int, (pid_t * pid, const char *file, const posix_spawn_file_actions_t *actions,
                         const posix_spawnattr_t *attr, char *const argv[], char *const envp[]))
HOOK(system, int, (const char *command))
HOOK(popen, FILE *, (const char *command, const char *mode))
HOOK_ALIAS(_IO_popen, popen)
HOOK(wait, pid_t, (int *status))
HOOK(waitpid, pid_t, (pid_t pid, int *status, int options))
HOOK(wait3, pid_t, (int *status, int options, struct rusage *usage))
HOOK(wait4, pid_t, (pid_t pid, int *status, int options, struct rusage *usage))
HOOK(waitid, int, (int type, unsigned id, siginfo_t *info, int options))
HOOK_ALIAS(__wait, wait)
HOOK_ALIAS(__waitpid, waitpid)
HOOK(_Fork, pid_t, (void))
HOOK(clone, int, (clone_main * fn, void *stack, int flags, void *arg, void *ptid, void *tls, void *ctid))
HOOK_ALIAS(__clone, clone)
HOOK(daemon, int, (int nochdir, int noclose))
HOOK(posix_spawn_file_actions_addopen, int,
     (posix_spawn_file_actions_t * actions, int fd, const char *path, int flags, mode_t mode))
HOOK(pidfd_spawn, int, (int *pidfd, const char *path, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attr, char *const argv[], char *const envp[]))
HOOK(pidfd_spawnp, int, (int *pidfd, const char *file, const posix_spawn_file_actions_t *actions,
                         const posix_spawnattr_t *attr, char *const argv[], char *const envp[]))
HOOK(_exit, void, (int status))
HOOK_ALIAS(_Exit, _exit)
HOOK(quick_exit, void, (int status))
#endif

#if defined(HOOKS_ALL) || defined(HOOKS_TORCH) // hook_torch.c: not libc's but PyTorch's
HOOK(mz_zip_writer_add_mem_ex_v2, int,
     (void *zip, const char *name, const void *buf, size_t len, const void *comment, uint16_t comment_len,
      unsigned flags, uint64_t full_len, uint32_t crc, time_t *when, const char *extra, unsigned extra_len,
      const char *central, unsigned central_len))
#endif

#if defined(HOOKS_ALL) || defined(HOOKS_CUDA) // hook_cuda.c: the CUDA runtime's; int is cudaError_t, void * a stream
HOOK(cudaMemcpy, int, (void *dst, const void *src, size_t len, int kind))
HOOK(cudaMemcpy_ptds, int, (void *dst, const void *src, size_t len, int kind))
HOOK(cudaMemcpyAsync, int, (void *dst, const void *src, size_t len, int kind, void *stream))
HOOK(cudaMemcpyAsync_ptsz, int, (void *dst, const void *src, size_t len, int kind, void *stream))
HOOK(cudaDeviceReset, int, (void))
HOOK(cudaHostRegister, int, (void *p, size_t len, unsigned flags))
HOOK(cudaMalloc, int, (void **p, size_t len))
HOOK(cudaMallocManaged, int, (void **p, size_t len, unsigned flags))
HOOK(cudaMallocPitch, int, (void **p, size_t *pitch, size_t width, size_t height))
HOOK(cudaMallocHost, int, (void **p, size_t len))
HOOK(cudaHostAlloc, int, (void **p, size_t len, unsigned flags))
HOOK(cudaMallocAsync, int, (void **p, size_t len, void *stream))
HOOK(cudaMallocAsync_ptsz, int, (void **p, size_t len, void *stream))
HOOK(cudaMallocFromPoolAsync, int, (void **p, size_t len, void *pool, void *stream))
HOOK(cudaMallocFromPoolAsync_ptsz, int, (void **p, size_t len, void *pool, void *stream))
#endif

#undef HOOK
#undef HOOK_ALIAS
#undef HOOKS_ALL
#undef HOOKS_OPEN
#undef HOOKS_STDIO
#undef HOOKS_FD
#undef HOOKS_WRITE
#undef HOOKS_STAT
#undef HOOKS_ATTR
#undef HOOKS_NAMES
#undef HOOKS_DIR
#undef HOOKS_WALK
#undef HOOKS_WHERE
#undef HOOKS_MOUNT
#undef HOOKS_PASS
#undef HOOKS_SYSCALL
#undef HOOKS_PROCESS
#undef HOOKS_TORCH
#undef HOOKS_CUDA
