// SPDX-License-Identifier: MIT
//
// maps: see maps.h. By PROCMAP_QUERY where there is one, else by the text of /proc/self/maps; pages by
// /proc/self/pagemap, which shows everybody these bits of his own.

#include "maps.h"

#include "../core/os.h"
#include "../core/util.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

// Newer than the C library's headers may be.
struct procmap_query {
    uint64_t size, query_flags, query_addr;
    uint64_t vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode;
    uint32_t dev_major, dev_minor, vma_name_size, build_id_size;
    uint64_t vma_name_addr, build_id_addr;
};
#define QUERY _IOWR('f', 17, struct procmap_query)

static int open_own(const char *path) {
    return os_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
}

// ---- Mappings

static int query(int fd, const void *addr, struct maps_area *ret) {
    struct procmap_query q = {.size = sizeof q, .query_addr = (uintptr_t)addr};
    int r = (int)OS_CALL(SYS_ioctl, fd, QUERY, &q, 0, 0, 0);
    if (r >= 0) {
        *ret = (struct maps_area){q.vma_start, q.vma_end,   q.vma_offset,
                                  q.inode,     q.dev_major, q.dev_minor, (unsigned)q.vma_flags & 15};
    }
    return r;
}

static const char *number(const char *p, unsigned base, uint64_t *ret) {
    *ret = 0;
    for (;; p++) {
        unsigned digit = *p >= 'a' && *p <= 'f' ? (unsigned)(*p - 'a') + 10 : base;
        digit = *p >= '0' && *p <= '9' ? (unsigned)(*p - '0') : digit;
        if (digit >= base) {
            return p;
        }
        *ret = *ret * base + digit;
    }
}

/** "from-to rwxp offset major:minor inode      name" */
static const char *parse(const char *p, struct maps_area *a) {
    uint64_t major, minor;
    *a = (struct maps_area){0};
    p = number(p, 16, &a->from) + 1;
    p = number(p, 16, &a->to) + 1;
    a->flags = (p[0] == 'r' ? MAPS_READ : 0) | (p[1] == 'w' ? MAPS_WRITE : 0) | (p[2] == 'x' ? MAPS_EXEC : 0) |
               (p[3] == 's' ? MAPS_SHARED : 0);
    p = number(p + 5, 16, &a->off) + 1;
    p = number(p, 16, &major) + 1;
    p = number(p, 16, &minor) + 1;
    p = number(p, 10, &a->ino);
    a->major = (uint32_t)major;
    a->minor = (uint32_t)minor;
    return p + strspn(p, " ");
}

#define LINE_MAX_ 4400 // a path of 4095 bytes and what stands before it

int maps_each(bool (*each)(void *arg, const struct maps_area *a, const char *name), void *arg) {
    char buf[2 * LINE_MAX_];
    size_t have = 0;
    int fd = open_own("/proc/self/maps");
    ssize_t n = fd;
    bool more = true;
    while (more && n >= 0 && (n = os_read(fd, buf + have, sizeof buf - 1 - have)) > 0) {
        have += (size_t)n;
        buf[have] = '\0';
        char *line = buf, *end;
        while (more && (end = strchr(line, '\n'))) {
            struct maps_area a;
            *end = '\0';
            const char *name = parse(line, &a);
            more = each(arg, &a, name);
            line = end + 1;
        }
        have = (size_t)(buf + have - line);
        memmove(buf, line, have);
        n = more && have == sizeof buf - 1 ? -ENAMETOOLONG : n; // a line that does not end
    }
    if (fd >= 0) {
        os_close(fd);
    }
    return n < 0 ? (int)n : 0;
}

struct wanted {
    uint64_t addr;
    struct maps_area *ret;
    bool found;
};

static bool is_wanted(void *arg, const struct maps_area *a, const char *name) {
    struct wanted *w = arg;
    (void)name;
    w->found = w->addr >= a->from && w->addr < a->to;
    *w->ret = w->found ? *a : *w->ret;
    return !w->found;
}

int maps_find(const void *addr, struct maps_area *ret) {
    int fd = open_own("/proc/self/maps");
    int r = fd;
    if (fd >= 0) {
        r = query(fd, addr, ret);
        os_close(fd);
    }
    if (r == -ENOTTY || r == -EINVAL) { // an older kernel
        struct wanted w = {(uintptr_t)addr, ret, false};
        r = maps_each(is_wanted, &w);
        r = r < 0 ? r : w.found ? 0 : -ENOENT;
    }
    return r < 0 ? r : 0;
}

static bool sends_later(int fd) {
    int on = 0;
    socklen_t len = sizeof on;
    return OS_CALL(SYS_getsockopt, fd, SOL_SOCKET, SO_ZEROCOPY, &on, &len, 0) >= 0 && on != 0;
}

bool maps_any_direct(void) {
    char buf[4096];
    int dir = os_openat(AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    bool any = dir < 0;
    long n = 0;
    while (!any && (n = OS_CALL(SYS_getdents64, dir, buf, sizeof buf, 0, 0, 0)) > 0) {
        for (long at = 0; at < n && !any; at += ((struct os_dirent *)(buf + at))->len) {
            uint64_t fd;
            const char *name = ((struct os_dirent *)(buf + at))->name;
            int flags = number(name, 10, &fd) > name ? os_fcntl((int)fd, F_GETFL, 0) : -1;
            any = flags >= 0 && ((flags & O_DIRECT) != 0 || sends_later((int)fd));
        }
    }
    if (dir >= 0) {
        os_close(dir);
    }
    return any || n < 0;
}

// ---- Pages

#define BATCH 512

static enum maps_page page_is(uint64_t entry) {
    bool there = entry >> 62 != 0;        // present, or swapped out
    return !there ? PAGE_ABSENT : entry >> 61 & 1 ? PAGE_SHARED : PAGE_OWN;
}

/** Calls `each` for pages from `addr` on until it returns false. How many it has said true of, or an error. */
static int64_t walk(const void *addr, uint64_t n, bool (*each)(void *arg, enum maps_page page), void *arg) {
    uint64_t entries[BATCH];
    uint64_t done = 0;
    int fd = open_own("/proc/self/pagemap");
    int64_t r = fd;
    bool more = fd >= 0;
    while (more && done < n) {
        off_t at = (off_t)(((uintptr_t)addr / MAPS_PAGE + done) * sizeof entries[0]);
        ssize_t got = os_pread(fd, entries, min_u64(n - done, BATCH) * sizeof entries[0], at);
        if (got <= 0) {
            r = got < 0 ? got : -EIO;
            break;
        }
        for (size_t i = 0; more && i < (size_t)got / sizeof entries[0]; i++) {
            more = each(arg, page_is(entries[i]));
            done += more;
        }
    }
    if (fd >= 0) {
        os_close(fd);
    }
    return r < 0 ? r : (int64_t)done;
}

static bool is_alike(void *arg, enum maps_page page) {
    int *first = arg;
    bool own = page == PAGE_OWN;
    *first = *first < 0 ? own : *first;
    return *first == own;
}

int64_t maps_run(const void *addr, uint64_t n, bool *own) {
    int first = -1;
    int64_t r = sysconf(_SC_PAGESIZE) == MAPS_PAGE ? walk(addr, n, is_alike, &first) : -EOPNOTSUPP;
    *own = first == 1;
    return r;
}

static bool is_touched(void *arg, enum maps_page page) {
    (void)arg;
    return page != PAGE_ABSENT;
}

static bool is_absent(void *arg, enum maps_page page) {
    (void)arg;
    return page == PAGE_ABSENT;
}

int64_t maps_touched(const void *addr, uint64_t n, bool *rest) {
    int64_t first = sysconf(_SC_PAGESIZE) == MAPS_PAGE ? walk(addr, n, is_touched, NULL) : -EOPNOTSUPP;
    if (first < 0) {
        return first;
    }
    uint64_t left = n - (uint64_t)first;
    int64_t r = walk((const char *)addr + (uint64_t)first * MAPS_PAGE, left, is_absent, NULL);
    *rest = r < (int64_t)left;
    return r < 0 ? r : first;
}
