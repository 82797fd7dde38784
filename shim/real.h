// SPDX-License-Identifier: MIT
//
// real: the next definition of every hooked symbol (libc's, or another preload's), and what every hook needs to call
// it. A hook is declared under its own C name and given the symbol by an assembler label: glibc's headers declare
// many of these functions nonnull, and the compiler would drop our checks of a program's NULL. Makes no decision.

#ifndef FASTCKPT_REAL_H
#define FASTCKPT_REAL_H

#if defined(_FILE_OFFSET_BITS) && _FILE_OFFSET_BITS == 64 && __SIZEOF_LONG__ != 8
#error "the LFS twins share bodies: 64-bit only"
#endif

#include "../core/os.h"
#include "../core/util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <linux/openat2.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <utime.h>
#include <wordexp.h>

#undef fwrite_unlocked // <stdio.h> may have a macro of that name

typedef int clone_main(void *);
typedef int dir_filter(const struct dirent *);
typedef int dir_order(const struct dirent **, const struct dirent **);
typedef int glob_error(const char *, int);
typedef int ftw_visit(const char *, const struct stat *, int);
typedef int nftw_visit(const char *, const struct stat *, int, struct FTW *);
typedef int fts_order(const FTSENT **, const FTSENT **);

struct aiocb;
struct mmsghdr;
struct mount_attr;
struct msghdr;
struct sigevent;
struct sockaddr;
struct statfs;
struct statvfs;

/** Pointers, filled once by real_resolve; NULL before it, and for what this libc does not have. */
struct real {
#define HOOKS_ALL
#define HOOK(name, ret, params) ret(*name) params;
#include "hooks.h"
};
extern struct real real;

#define HOOKS_ALL
#define HOOK(name, ret, params) __attribute__((visibility("default"))) ret hook_##name params __asm__(#name);
#include "hooks.h"

/** For HOOK_ALIAS, at the end of the file that defines `target`. */
#define HOOK_TWIN(name, target)                                                                                        \
    extern __typeof__(hook_##target) hook_##name __asm__(#name) __attribute__((alias(#target), visibility("defaul"     \
                                                                                                          "t")));

/** Looks up everything in the table. Called by the constructor. */
void real_resolve(void);
/** Looks up one symbol into `*slot`, for a hook that is called before the constructor. NULL if there is none. */
void *real_lookup(const char *name, void *slot);

/** The real function, looked up now if the constructor has not run. May be NULL. */
#define REAL(name)                                                                                                     \
    (LIKELY(real.name != NULL) ? real.name : (__typeof__(real.name))real_lookup(#name, (void *)&real.name))

/** The end of a hook: an internal result becomes libc's: errno is set by failures only. */
static inline long hook_ret(long r) {
    if (UNLIKELY(r < 0 && r >= -4095)) {
        errno = (int)-r;
        return -1;
    }
    return r;
}

#define RAW_PAD(nr, a, b, c, d, e, f, ...) OS_CALL(nr, a, b, c, d, e, f)
/** A system call with up to six arguments. */
#define RAW(nr, ...) RAW_PAD(nr, __VA_ARGS__, 0, 0, 0, 0, 0, 0)

/** The real function; `raw` (an internal result) where it is not known yet, so before our constructor: no dlsym then,
 *  which might allocate while an allocator starts. */
#define NATIVE_OR(name, raw, ...) (LIKELY(real.name != NULL) ? (long)real.name(__VA_ARGS__) : hook_ret(raw))
/** The same for functions whose arguments are those of system call `nr`. */
#define NATIVE(name, nr, ...) NATIVE_OR(name, RAW(nr, __VA_ARGS__), __VA_ARGS__)

#endif
