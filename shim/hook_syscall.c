// SPDX-License-Identifier: MIT
//
// hook_syscall: syscall(), by which programs reach calls that their libc has no name for, and allocators those that
// must not be cancelled. A call that touches something of ours goes to the hook of its name; every other one, and all
// of them before our constructor, straight on: one compare and one load. Decides nothing else.
//
// Its C signature has seven longs: that is how a variadic call passes them on the processors that core/os.h knows. So
// it goes on by a jump, and a child that it makes may return as from libc's own.

#include "arena.h"
#include "capture.h"
#include "client.h"
#include "hook_inside.h"
#include "namecalls.h"
#include "shim.h"

#include <limits.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/statvfs.h>

#define NOT_OURS LONG_MIN

// Newer than the headers that this may be compiled with; the same on every processor.
enum {
    NR_FCHMODAT2 = 452,
    NR_SETXATTRAT = 463,
    NR_GETXATTRAT,
    NR_LISTXATTRAT,
    NR_REMOVEXATTRAT,
    NR_FILE_GETATTR = 468,
    NR_FILE_SETATTR,
};

enum group {
    GROUP_NONE,
    GROUP_FD,    // the first argument is a descriptor: ours if that is captured
    GROUP_INODE, // the same, and if anything is captured or pending anywhere: it may be that, or the directory of it
    GROUP_FDS,   // so are others
    GROUP_OPEN,  // makes a descriptor of a name
    GROUP_NAME,  // ours if anything is captured or pending anywhere
    GROUP_OTHER, // always looked at
};

#if defined(SYS_open) // x86-64 has the older ones as well
#define OLD_NUMBERS                                                                                                    \
    [SYS_open] = GROUP_OPEN, [SYS_creat] = GROUP_OPEN, [SYS_dup2] = GROUP_OTHER, [SYS_rename] = GROUP_NAME,            \
    [SYS_link] = GROUP_NAME, [SYS_unlink] = GROUP_NAME, [SYS_rmdir] = GROUP_NAME, [SYS_mkdir] = GROUP_NAME,            \
    [SYS_symlink] = GROUP_NAME, [SYS_stat] = GROUP_NAME, [SYS_lstat] = GROUP_NAME, [SYS_access] = GROUP_NAME,          \
    [SYS_chmod] = GROUP_NAME, [SYS_chown] = GROUP_NAME, [SYS_lchown] = GROUP_NAME, [SYS_utime] = GROUP_NAME,           \
    [SYS_utimes] = GROUP_NAME, [SYS_readlink] = GROUP_NAME, [SYS_mknod] = GROUP_NAME, [SYS_fork] = GROUP_OTHER,        \
    [SYS_futimesat] = GROUP_NAME, [SYS_getdents] = GROUP_NAME,
#else
#define OLD_NUMBERS
#endif

static const unsigned char groups[512] = {
    OLD_NUMBERS
    // descriptors
    [SYS_write] = GROUP_FD, [SYS_pwrite64] = GROUP_FD, [SYS_writev] = GROUP_FD, [SYS_pwritev] = GROUP_FD,
    [SYS_pwritev2] = GROUP_FD, [SYS_lseek] = GROUP_FD, [SYS_ftruncate] = GROUP_FD, [SYS_fallocate] = GROUP_FD,
    [SYS_fdatasync] = GROUP_FD, [SYS_sync_file_range] = GROUP_FD, [SYS_fchmod] = GROUP_INODE, [SYS_fchown] = GROUP_FD,
    [SYS_fsetxattr] = GROUP_FD, [SYS_flock] = GROUP_INODE, [SYS_ioctl] = GROUP_FD, [SYS_fstat] = GROUP_INODE,
    [SYS_fcntl] = GROUP_INODE, [SYS_dup] = GROUP_FD, [SYS_sendfile] = GROUP_FDS, [SYS_copy_file_range] = GROUP_FDS,
    [SYS_splice] = GROUP_FDS, [SYS_mmap] = GROUP_FDS, [SYS_dup3] = GROUP_OTHER, [SYS_close] = GROUP_OTHER,
    [SYS_close_range] = GROUP_OTHER, [SYS_fsync] = GROUP_OTHER, [SYS_syncfs] = GROUP_OTHER, [SYS_sync] = GROUP_OTHER,
    [SYS_sendmsg] = GROUP_OTHER, [SYS_sendmmsg] = GROUP_OTHER, [SYS_umount2] = GROUP_OTHER, [SYS_mount] = GROUP_OTHER,
    [NR_FSCONFIG] = GROUP_OTHER, [NR_MOUNT_SETATTR] = GROUP_OTHER,
    // names
    [SYS_openat] = GROUP_OPEN, [SYS_openat2] = GROUP_OPEN, [SYS_renameat] = GROUP_NAME, [SYS_renameat2] = GROUP_NAME,
    [SYS_linkat] = GROUP_NAME, [SYS_unlinkat] = GROUP_NAME, [SYS_mkdirat] = GROUP_NAME, [SYS_symlinkat] = GROUP_NAME,
    [SYS_newfstatat] = GROUP_NAME, [SYS_statx] = GROUP_NAME, [SYS_faccessat] = GROUP_NAME,
    [SYS_faccessat2] = GROUP_NAME, [SYS_fchmodat] = GROUP_NAME, [SYS_fchownat] = GROUP_NAME,
    [SYS_utimensat] = GROUP_NAME, [SYS_truncate] = GROUP_NAME, [SYS_readlinkat] = GROUP_NAME,
    [SYS_mknodat] = GROUP_NAME, [SYS_statfs] = GROUP_NAME, [SYS_getdents64] = GROUP_NAME,
    [SYS_setxattr] = GROUP_NAME, [SYS_getxattr] = GROUP_NAME, [SYS_listxattr] = GROUP_NAME, [SYS_bind] = GROUP_NAME,
    [SYS_lsetxattr] = GROUP_NAME, [SYS_lgetxattr] = GROUP_NAME, [SYS_llistxattr] = GROUP_NAME,
    [SYS_removexattr] = GROUP_NAME, [SYS_lremovexattr] = GROUP_NAME, [SYS_chdir] = GROUP_NAME,
    [SYS_getcwd] = GROUP_NAME, [SYS_inotify_add_watch] = GROUP_NAME, [SYS_fanotify_mark] = GROUP_NAME,
    [SYS_name_to_handle_at] = GROUP_NAME, [NR_FCHMODAT2] = GROUP_NAME, [NR_SETXATTRAT] = GROUP_NAME,
    [NR_GETXATTRAT] = GROUP_NAME, [NR_LISTXATTRAT] = GROUP_NAME, [NR_REMOVEXATTRAT] = GROUP_NAME,
    [NR_FILE_GETATTR] = GROUP_NAME, [NR_FILE_SETATTR] = GROUP_NAME,
    // processes
    [SYS_clone] = GROUP_OTHER, [SYS_clone3] = GROUP_OTHER, [SYS_execve] = GROUP_OTHER, [SYS_execveat] = GROUP_OTHER,
    [SYS_exit_group] = GROUP_OTHER, [SYS_madvise] = GROUP_OTHER, [SYS_mremap] = GROUP_OTHER,
    [SYS_process_madvise] = GROUP_OTHER,
};

#define P(x) ((void *)(x)) // an argument that is a pointer

static bool known(long fd) {
    return fd_peek((int)fd) != NULL;
}

static long on_descriptor(long nr, long a, long b, long c, long d, long e, long f) {
    switch (nr) {
    case SYS_write: return hook_write((int)a, P(b), (size_t)c);
    case SYS_pwrite64: return hook_pwrite((int)a, P(b), (size_t)c, d);
    case SYS_writev: return hook_writev((int)a, P(b), (int)c);
    case SYS_pwritev: return hook_pwritev((int)a, P(b), (int)c, d);
    case SYS_pwritev2: return hook_pwritev2((int)a, P(b), (int)c, d, (int)f);
    case SYS_lseek: return hook_lseek((int)a, b, (int)c);
    case SYS_ftruncate: return hook_ftruncate((int)a, b);
    case SYS_fallocate: return hook_fallocate((int)a, (int)b, c, d);
    case SYS_fdatasync: return hook_fdatasync((int)a);
    case SYS_sync_file_range: return hook_sync_file_range((int)a, b, c, (unsigned)d);
    case SYS_fchmod: return hook_fchmod((int)a, (mode_t)b);
    case SYS_fchown: return hook_fchown((int)a, (uid_t)b, (gid_t)c);
    case SYS_fsetxattr: return hook_fsetxattr((int)a, P(b), P(c), (size_t)d, (int)e);
    case SYS_flock: return hook_flock((int)a, (int)b);
    case SYS_ioctl: return hook_ioctl((int)a, (unsigned long)b, c);
    case SYS_fstat: return hook_fstat((int)a, P(b));
    case SYS_fcntl: return hook_fcntl((int)a, (int)b, c);
    case SYS_dup: return hook_dup((int)a);
    default: return NOT_OURS;
    }
}

static long on_descriptors(long nr, long a, long b, long c, long d, long e, long f) {
    switch (nr) {
    case SYS_sendfile: return known(a) || known(b) ? hook_sendfile((int)a, (int)b, P(c), (size_t)d) : NOT_OURS;
    case SYS_copy_file_range:
        return known(a) || known(c) ? hook_copy_file_range((int)a, P(b), (int)c, P(d), (size_t)e, (unsigned)f)
                                    : NOT_OURS;
    case SYS_splice:
        return known(a) || known(c) ? hook_splice((int)a, P(b), (int)c, P(d), (size_t)e, (unsigned)f) : NOT_OURS;
    case SYS_mmap:
        return known(e) ? (long)hook_mmap(P(a), (size_t)b, (int)c, (int)d, (int)e, f) : NOT_OURS;
    default: return NOT_OURS;
    }
}

static long opens(long nr, long a, long b, long c, long d, const void *caller) {
    long r = CAPTURE_NATIVE;
    switch (nr) {
#if defined(SYS_open)
    case SYS_open: r = hook_open_slow(AT_FDCWD, P(a), (int)b, (mode_t)c, caller); break;
    case SYS_creat: r = hook_open_slow(AT_FDCWD, P(a), O_WRONLY | O_CREAT | O_TRUNC, (mode_t)b, caller); break;
#endif
    case SYS_openat: r = hook_open_slow((int)a, P(b), (int)c, (mode_t)d, caller); break;
    case SYS_openat2: r = hook_openat2_slow((int)a, P(b), P(c), (size_t)d, caller); break;
    default: break;
    }
    return r != CAPTURE_NATIVE ? hook_ret(r) : NOT_OURS;
}

#if defined(SYS_open)
static long old_name(long nr, long a, long b, long c) {
    switch (nr) {
    case SYS_rename: return hook_rename(P(a), P(b));
    case SYS_link: return hook_link(P(a), P(b));
    case SYS_unlink: return hook_unlink(P(a));
    case SYS_rmdir: return hook_rmdir(P(a));
    case SYS_mkdir: return hook_mkdir(P(a), (mode_t)b);
    case SYS_symlink: return hook_symlink(P(a), P(b));
    case SYS_stat: return hook_stat(P(a), P(b));
    case SYS_lstat: return hook_lstat(P(a), P(b));
    case SYS_access: return hook_access(P(a), (int)b);
    case SYS_chmod: return hook_chmod(P(a), (mode_t)b);
    case SYS_chown: return hook_chown(P(a), (uid_t)b, (gid_t)c);
    case SYS_lchown: return hook_lchown(P(a), (uid_t)b, (gid_t)c);
    case SYS_utime: return hook_utime(P(a), P(b));
    case SYS_utimes: return hook_utimes(P(a), P(b));
    case SYS_readlink: return hook_readlink(P(a), P(b), (size_t)c);
    case SYS_mknod: return hook_mknod(P(a), (mode_t)b, (dev_t)c);
    case SYS_futimesat: return hook_futimesat((int)a, P(b), P(c));
    case SYS_getdents: names_before_list((int)a, "."); return NOT_OURS;
    default: return NOT_OURS;
    }
}
#endif

static long attr_by_name(long nr, long a, long b, long c, long d, long e) {
    switch (nr) {
    case SYS_setxattr: return hook_setxattr(P(a), P(b), P(c), (size_t)d, (int)e);
    case SYS_lsetxattr: return hook_lsetxattr(P(a), P(b), P(c), (size_t)d, (int)e);
    case SYS_getxattr: return hook_getxattr(P(a), P(b), P(c), (size_t)d);
    case SYS_lgetxattr: return hook_lgetxattr(P(a), P(b), P(c), (size_t)d);
    case SYS_listxattr: return hook_listxattr(P(a), P(b), (size_t)c);
    case SYS_llistxattr: return hook_llistxattr(P(a), P(b), (size_t)c);
    case SYS_removexattr: return hook_removexattr(P(a), P(b));
    case SYS_lremovexattr: return hook_lremovexattr(P(a), P(b));
    case NR_FCHMODAT2: case NR_SETXATTRAT: case NR_GETXATTRAT: case NR_LISTXATTRAT: case NR_REMOVEXATTRAT:
    case NR_FILE_GETATTR: case NR_FILE_SETATTR:
        names_publish((int)a, P(b), true); // its error is for the kernel to find
        return NOT_OURS;
    default:
#if defined(SYS_open)
        return old_name(nr, a, b, c);
#else
        return NOT_OURS;
#endif
    }
}

static long by_name(long nr, long a, long b, long c, long d, long e) {
    switch (nr) {
    case SYS_renameat: return hook_renameat((int)a, P(b), (int)c, P(d));
    case SYS_renameat2: return hook_renameat2((int)a, P(b), (int)c, P(d), (unsigned)e);
    case SYS_linkat: return hook_linkat((int)a, P(b), (int)c, P(d), (int)e);
    case SYS_unlinkat: return hook_unlinkat((int)a, P(b), (int)c);
    case SYS_mkdirat: return hook_mkdirat((int)a, P(b), (mode_t)c);
    case SYS_symlinkat: return hook_symlinkat(P(a), (int)b, P(c));
    case SYS_newfstatat: return hook_fstatat((int)a, P(b), P(c), (int)d);
    case SYS_statx: return hook_statx((int)a, P(b), (int)c, (unsigned)d, P(e));
    case SYS_faccessat: return hook_faccessat((int)a, P(b), (int)c, 0);
    case SYS_faccessat2: return hook_faccessat((int)a, P(b), (int)c, (int)d);
    case SYS_fchmodat: return hook_fchmodat((int)a, P(b), (mode_t)c, 0);
    case SYS_fchownat: return hook_fchownat((int)a, P(b), (uid_t)c, (gid_t)d, (int)e);
    case SYS_utimensat: // without a name it is futimens, which libc's own refuses
        return b == 0 && d == 0 ? hook_futimens((int)a, P(c)) : hook_utimensat((int)a, P(b), P(c), (int)d);
    case SYS_truncate: return hook_truncate(P(a), b);
    case SYS_readlinkat: return hook_readlinkat((int)a, P(b), P(c), (size_t)d);
    case SYS_mknodat: return hook_mknodat((int)a, P(b), (mode_t)c, (dev_t)d);
    case SYS_statfs: return hook_statfs(P(a), P(b));
    case SYS_getdents64: return hook_getdents64((int)a, P(b), (size_t)c);
    case SYS_chdir: return hook_chdir(P(a));
    case SYS_getcwd: return names_cwd_gone() ? hook_ret(-ENOENT) : NOT_OURS;
    case SYS_fanotify_mark: return hook_fanotify_mark((int)a, (unsigned)b, (uint64_t)c, (int)d, P(e));
    case SYS_bind: return hook_bind((int)a, P(b), (unsigned)c);
    case SYS_inotify_add_watch: return hook_inotify_add_watch((int)a, P(b), (uint32_t)c);
    case SYS_name_to_handle_at: return hook_name_to_handle_at((int)a, P(b), P(c), P(d), (int)e);
    default: return attr_by_name(nr, a, b, c, d, e);
    }
}

// A copy of this process, as fork makes it. One that shares memory, descriptors or has a stack of its own is not
// touched: it returns to where only its maker knows.
static long copies(long nr, long a, long b) {
    struct clone_args args = {.flags = (uint64_t)a, .stack = (uint64_t)b};
    if (nr == SYS_clone3 && !hook_fetch(&args, P(a), min_u64((uint64_t)b, sizeof args))) {
        return NOT_OURS;
    }
    args.flags &= CLONE_VM | CLONE_FILES;
#if defined(SYS_fork)
    args.flags = nr == SYS_fork ? 0 : args.flags;
    args.stack = nr == SYS_fork ? 0 : args.stack;
#endif
    return args.flags == 0 && args.stack == 0 ? 1 : NOT_OURS;
}

static long forks(long nr, long a, long b, long c, long d, long e) {
    shim_before_fork();
    long r = OS_CALL(nr, a, b, c, d, e, 0);
    if (r == 0) {
        shim_after_fork_in_child();
    } else {
        shim_after_fork_in_parent();
    }
    return hook_ret(r);
}

static long others(long nr, long a, long b, long c, long d, long e) {
    switch (nr) {
    case SYS_dup3: return hook_dup3((int)a, (int)b, (int)c);
    case SYS_close: return known(a) || client_owns_fd((int)a) ? hook_close((int)a) : NOT_OURS;
    case SYS_close_range: return hook_close_range((unsigned)a, (unsigned)b, (int)c);
    case SYS_fsync: return known(a) || !names_native() ? hook_fsync((int)a) : NOT_OURS;
    case SYS_syncfs: return names_native() ? NOT_OURS : hook_syncfs((int)a);
    case SYS_sync: return names_native() ? NOT_OURS : (hook_sync(), 0);
    case SYS_sendmsg: return fd_limit() == 0 ? NOT_OURS : hook_sendmsg((int)a, P(b), (int)c);
    case SYS_sendmmsg: return fd_limit() == 0 ? NOT_OURS : hook_sendmmsg((int)a, P(b), (unsigned)c, (int)d);
    case SYS_execve: return hook_execve(P(a), P(b), P(c));
    case SYS_execveat: return hook_execveat((int)a, P(b), P(c), P(d), (int)e);
    case SYS_exit_group: hook__exit((int)a); return 0;
    case SYS_umount2: return hook_umount2(P(a), (int)b);
    case SYS_mount: return hook_mount(P(a), P(b), P(c), (unsigned long)d, P(e));
    case NR_MOUNT_SETATTR: return hook_mount_setattr((int)a, P(b), (unsigned)c, P(d), (size_t)e);
    case NR_FSCONFIG: return hook_fsconfig((int)a, (unsigned)b, P(c), P(d), (int)e);
    case SYS_madvise: return arena_in_use() ? hook_madvise(P(a), (size_t)b, (int)c) : NOT_OURS;
    case SYS_process_madvise:
        return arena_in_use() ? hook_process_madvise((int)a, P(b), (size_t)c, (int)d, (unsigned)e) : NOT_OURS;
    case SYS_mremap:
        return arena_in_use() ? (long)hook_mremap(P(a), (size_t)b, (size_t)c, (int)d, P(e)) : NOT_OURS;
#if defined(SYS_open)
    case SYS_dup2: return hook_dup2((int)a, (int)b);
    case SYS_fork:
#endif
    case SYS_clone:
    case SYS_clone3: return copies(nr, a, b) == NOT_OURS ? NOT_OURS : forks(nr, a, b, c, d, e);
    default: return NOT_OURS;
    }
}

static __attribute__((noinline)) long route(long nr, long a, long b, long c, long d, long e, long f,
                                            const void *caller) {
    switch ((enum group)groups[nr]) {
    case GROUP_FD: return known(a) ? on_descriptor(nr, a, b, c, d, e, f) : NOT_OURS;
    case GROUP_INODE: // a lock on what may be ours later is noted
        return known(a) || !names_native() || (nr == SYS_fcntl && hook_locks((int)b))
                   ? on_descriptor(nr, a, b, c, d, e, f)
                   : NOT_OURS;
    case GROUP_FDS: return on_descriptors(nr, a, b, c, d, e, f);
    case GROUP_OPEN: return opens(nr, a, b, c, d, caller);
    case GROUP_NAME: return names_native() ? NOT_OURS : by_name(nr, a, b, c, d, e);
    case GROUP_OTHER: return others(nr, a, b, c, d, e);
    default: return NOT_OURS;
    }
}

long hook_syscall(long nr, long a, long b, long c, long d, long e, long f) {
    if (UNLIKELY((unsigned long)nr < sizeof groups && groups[nr] != GROUP_NONE) &&
        atomic_load_explicit(&shim.ready, memory_order_acquire)) {
        long r = route(nr, a, b, c, d, e, f, __builtin_return_address(0));
        if (r != NOT_OURS) {
            return r;
        }
    }
    if (LIKELY(real.syscall != NULL)) {
        return real.syscall(nr, a, b, c, d, e, f);
    }
    return hook_ret(OS_CALL(nr, a, b, c, d, e, f));
}

#define HOOKS_SYSCALL
#define HOOK_ALIAS HOOK_TWIN
#include "hooks.h"
