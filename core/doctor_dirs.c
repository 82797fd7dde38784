// SPDX-License-Identifier: MIT
//
// doctor_dirs: what a directory offers: names, unnamed files, direct I/O, reservation, order, space, disks. Tried on a
// small file that is gone at the end, as the library and the engine would go about it.

#include "disks.h"
#include "doctor_inside.h"
#include "fs.h"
#include "io.h"
#include "log.h"
#include "os.h"
#include "staging.h"
#include "tool_text.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define DIRS_MAX   64
#define SMALL_FILE 8192

static const char on_disk[] = "a directory on ext4 or xfs";

static void file_name(char *buf, size_t cap) {
    log_format(buf, cap, ".fastckpt-doctor-%d", os_getpid());
}

/** A file without a name, or where there are none with a hidden one, which `*named` says. */
static int make_file(int dir, bool *named) {
    int fd = os_openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    *named = fd == -EOPNOTSUPP || fd == -EISDIR || fd == -ENOENT || fd == -EINVAL;
    if (*named) {
        char name[64];
        file_name(name, sizeof name);
        fd = os_openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    }
    return fd;
}

static void say_names(struct doctor *d, const char *where, int dir, int fd, bool named) {
    char name[64];
    file_name(name, sizeof name);
    int r = named ? 0 : io_calls.link_fd(fd, dir, name);
    os_unlinkat(dir, name, 0);
    if (named) {
        doctor_say(d, FOUND_NOTE, where, "O_TMPFILE", on_disk,
                   "none: a file has a hidden name (.fastckpt-*) until it is complete");
    } else if (r < 0) {
        doctor_say(d, FOUND_BAD, where, "O_TMPFILE", "mount /proc in the job's container",
                   "an unnamed file cannot be given a name: %s", log_errno(-r));
    } else {
        doctor_say(d, FOUND_OK, where, "O_TMPFILE", NULL, "works, and so does giving the file a name");
    }
}

/** The alignment that the file system asks for, 0 if it does not say (before Linux 6.1). */
static unsigned direct_alignment(int fd) {
#ifdef STATX_DIOALIGN
    struct statx sx = {0};
    if (OS_CALL(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx, 0) == 0 && (sx.stx_mask & STATX_DIOALIGN)) {
        return (unsigned)max_u64(sx.stx_dio_mem_align, sx.stx_dio_offset_align);
    }
#else
    (void)fd;
#endif
    return 0;
}

static int write_direct(int fd) {
    char path[64];
    log_format(path, sizeof path, "/proc/self/fd/%d", fd);
    int own = os_openat(AT_FDCWD, path, O_RDWR | O_DIRECT | O_CLOEXEC, 0);
    void *buf = aligned_alloc(4096, 4096);
    int r = own < 0 ? own : buf ? 0 : -ENOMEM;
    if (r == 0) {
        memset(buf, 1, 4096);
        r = os_pwrite_all(own, buf, 4096, 4096);
    }
    free(buf);
    if (own >= 0) {
        os_close(own);
    }
    return r;
}

static void say_direct(struct doctor *d, const char *where, int fd) {
    unsigned align = direct_alignment(fd);
    int r = write_direct(fd);
    char said[48] = "";
    if (align) {
        log_format(said, sizeof said, ", aligned to %u bytes", align);
    }
    if (d->c->direct == DIRECT_OFF) {
        doctor_say(d, FOUND_NOTE, where, "O_DIRECT", "unset FASTCKPT_DIRECT", "not used: FASTCKPT_DIRECT=off");
    } else if (r < 0) {
        doctor_say(d, FOUND_WARN, where, "O_DIRECT", on_disk, "refused (%s): written through the page cache%s",
                   log_errno(-r), said);
    } else if (!io_known_fs(fd)) {
        doctor_say(d, FOUND_WARN, where, "O_DIRECT", on_disk,
                   "not used on this file system: written through the page cache");
    } else {
        doctor_say(d, FOUND_OK, where, "O_DIRECT", NULL, "works%s", said);
    }
}

static void say_reservation(struct doctor *d, const char *where, int fd) {
    int r = os_fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, SMALL_FILE);
    if (r < 0) {
        doctor_say(d, FOUND_WARN, where, "fallocate", on_disk, "%s: a full disk is noticed late, after close",
                   log_errno(-r));
    } else {
        doctor_say(d, FOUND_OK, where, "fallocate", NULL, "reserves space");
    }
    struct stat st;
    if (os_fstat(fd, &st) == 0) {
        bool order = io_keeps_order(fd, st.st_dev);
        doctor_say(d, order ? FOUND_OK : FOUND_WARN, where, "order of names",
                   "xfs, or ext4 with its journal on the disk (and /sys mounted)",
                   order ? "kept by the journal" : "no journal that keeps it: a directory is synced for each of them");
    }
}

static void say_space(struct doctor *d, const char *where, int dir) {
    struct statvfs v;
    if (fstatvfs(dir, &v) < 0) { // O_PATH will do
        doctor_say(d, FOUND_UNKNOWN, where, "space", NULL, "%s", log_errno(errno));
        return;
    }
    uint64_t bytes = (uint64_t)v.f_bavail * v.f_frsize;
    char text[24], need[24];
    text_size(bytes, text, sizeof text);
    uint64_t budget = staging_budget(d->c->staging);
    if (bytes == 0 || (v.f_files && v.f_favail == 0)) {
        doctor_say(d, FOUND_BAD, where, "space", "free some", bytes ? "no inode is free" : "none is free");
    } else if (bytes < budget) {
        doctor_say(d, FOUND_NOTE, where, "space", "free some: a save over an old file needs room for both",
                   "%s free, less than staging holds (%s)", text, text_size(budget, need, sizeof need));
    } else {
        doctor_say(d, FOUND_OK, where, "space", NULL, "%s free", text);
    }
}

/** What takes a file to find out. */
static void say_files(struct doctor *d, const char *where, int dir) {
    bool named;
    int fd = make_file(dir, &named);
    if (fd < 0) {
        const char *remedy = fd == -EROFS    ? "mount it to be written"
                             : fd == -ENOSPC ? "free some space"
                                             : "a directory that this user may write";
        doctor_say(d, FOUND_BAD, where, "directory", remedy, "no file can be made in it: %s", log_errno(-fd));
        return;
    }
    say_names(d, where, dir, fd, named);
    say_direct(d, where, fd);
    say_reservation(d, where, fd);
    os_close(fd);
}

static void say_directory(struct doctor *d, const char *where, struct disks *disks) {
    *disks = (struct disks){0};
    int dir = os_openat(AT_FDCWD, where, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    if (dir < 0) {
        doctor_say(d, FOUND_BAD, where, "directory", "make it", "%s", log_errno(-dir));
        return;
    }
    const struct fs_type *t = fs_of(dir);
    unsigned traits = t ? t->traits : 0;
    if (traits & FS_NATIVE) {
        doctor_say(d, FOUND_BAD, where, "file system", on_disk, "%s: files here are never captured", t->name);
        os_close(dir);
        return;
    }
    const char *note =
        traits & FS_NETWORK ? ", shared: in a job of several nodes close waits (FASTCKPT_ASYNC_SHARED)" : "";
    doctor_say(d,
               !t      ? FOUND_UNKNOWN
               : *note ? FOUND_NOTE
                       : FOUND_OK,
               where, "file system", NULL, "%s%s", t ? t->name : "unknown", note);
    say_files(d, where, dir);
    say_space(d, where, dir);
    disks_behind(dir, disks);
    char names[256];
    disks_text(disks, names, sizeof names);
    bool here = disks->count > 0;
    doctor_say(d,
               here                  ? FOUND_OK
               : traits & FS_NETWORK ? FOUND_NOTE
                                     : FOUND_UNKNOWN,
               where, "disk", NULL, "%s%s",
               here                  ? names
               : traits & FS_NETWORK ? "none of this machine"
                                     : "unknown",
               disks->rotating ? " (rotating)" : "");
    os_close(dir);
}

void doctor_directories(struct doctor *d, char *const *dirs, int n) {
    struct disks *disks = calloc(DIRS_MAX, sizeof *disks);
    for (int i = 0; disks && i < n && i < DIRS_MAX; i++) {
        say_directory(d, dirs[i], &disks[i]);
        for (int k = 0; k < i; k++) {
            const char *common = disks_common(&disks[i], &disks[k]);
            if (common) {
                doctor_say(d, FOUND_WARN, dirs[i], "disk", "directories on disks of their own, or one of the two",
                           "%s is also behind %s: together they are no faster than one", common, dirs[k]);
                break;
            }
        }
    }
    free(disks);
}
