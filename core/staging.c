// SPDX-License-Identifier: MIT
//
// staging: the memory that chunks live in, and how much more of it there may be. Also linked into the preloaded library
// (window and map): no malloc, no stdio, no call that is interposed. Which chunk is whose is not known here.

#include "staging.h"

#include "os.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

// Newer than the C library's headers may be.
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define SMALL_PAGE 4096u // a stride: with larger pages, some are touched twice

// ---- Memory

int staging_create(uint64_t max) {
    assert(max > 0 && max % STAGING_STEP == 0);
    int fd = os_memfd("fastckpt-staging", MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd == -EINVAL) { // before Linux 6.3
        fd = os_memfd("fastckpt-staging", MFD_ALLOW_SEALING);
    }
    if (fd < 0) {
        return fd;
    }
    int ret = os_ftruncate(fd, (off_t)max);
    if (ret >= 0) {
        ret = os_fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    }
    if (ret < 0) {
        os_close(fd);
        return ret;
    }
    return fd;
}

void *staging_window(uint64_t max) {
    uint64_t len = max + HUGE_PAGE;
    char *p = os_mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (os_is_err(p)) {
        return NULL;
    }
    uint64_t before = align_up((uintptr_t)p, HUGE_PAGE) - (uintptr_t)p;
    if (before > 0) {
        os_munmap(p, before);
    }
    if (before < HUGE_PAGE) {
        os_munmap(p + before + max, HUGE_PAGE - before);
    }
    return p + before;
}

int staging_map(void *window, int fd, uint64_t off, uint64_t len, int client) {
    assert((uintptr_t)window % HUGE_PAGE == 0 && off % HUGE_PAGE == 0 && len % HUGE_PAGE == 0);
    char *want = (char *)window + off;
    void *p = os_mmap(want, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)off);
    if (os_is_err(p)) {
        return (int)(intptr_t)p;
    }
    int ret = os_madvise(want, len, MADV_DONTDUMP);
    if (ret >= 0 && client) {
        ret = os_madvise(want, len, MADV_DONTFORK);
    }
    return ret < 0 ? ret : 0;
}

/** madvise that an interruption does not stop. */
static int advise(char *addr, uint64_t len, int advice) {
    int ret;
    int tries = 0;
    do {
        ret = os_madvise(addr, len, advice);
    } while (ret == -EINTR || (ret == -EAGAIN && ++tries < 3));
    return ret < 0 ? ret : 0;
}

/** Reading a hole of a memfd puts a page there as well, and harms no content. SIGBUS where there is no memory. */
static void touch_all(const char *addr, uint64_t len) {
    for (uint64_t i = 0; i < len; i += SMALL_PAGE) {
        (void)*(const volatile char *)(addr + i);
    }
}

static int populate_small(char *addr, uint64_t len) {
    int ret = advise(addr, len, MADV_POPULATE_WRITE);
    if (ret == -EINVAL) { // before Linux 5.14
        touch_all(addr, len);
        ret = 0;
    }
    return ret;
}

int staging_populate(void *addr, uint64_t len, int *huge) {
    assert((uintptr_t)addr % HUGE_PAGE == 0 && len % HUGE_PAGE == 0);
    *huge = 1;
    // One failure ends the attempt: where memory is fragmented, each further one costs a compaction.
    for (uint64_t i = 0; i < len && *huge; i += HUGE_PAGE) {
        char *p = (char *)addr + i;
        int ret = populate_small(p, SMALL_PAGE); // collapsing wants a page to begin with
        if (ret < 0) {
            return ret;
        }
        if (advise(p, HUGE_PAGE, MADV_COLLAPSE) < 0) {
            *huge = 0;
        }
    }
    return populate_small(addr, len);
}

int staging_release(void *window, int fd, uint64_t off, uint64_t len) {
    assert(off % HUGE_PAGE == 0 && len % HUGE_PAGE == 0);
    int ret = os_fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)len);
    int ret2 = os_madvise((char *)window + off, len, MADV_DONTNEED);
    return ret < 0 ? ret : ret2 < 0 ? ret2 : 0;
}

// ---- Room

#define PATH_CAP  4096
#define TEXT_CAP  8192
#define NO_LIMIT  UINT64_MAX
#define V1_LIMITS (1ull << 60) // v1 writes "none" as the largest multiple of a page below 2^63

/** a + b + c into `buf`; 0, or -ENAMETOOLONG. */
static int join(char *buf, size_t cap, const char *a, const char *b, const char *c) {
    size_t la = strlen(a), lb = strlen(b), lc = strlen(c);
    if (la + lb + lc >= cap) {
        return -ENAMETOOLONG;
    }
    memcpy(buf, a, la);
    memcpy(buf + la, b, lb);
    memcpy(buf + la + lb, c, lc + 1);
    return 0;
}

static uint64_t parse_u64(const char *s) {
    uint64_t v = 0;
    while (*s == ' ' || *s == '\t') {
        s++;
    }
    for (; *s >= '0' && *s <= '9'; s++) {
        uint64_t digit = (uint64_t)(*s - '0');
        v = v > (UINT64_MAX - digit) / 10 ? UINT64_MAX : v * 10 + digit;
    }
    return v;
}

/** The number behind `key`, which begins a line and includes its separator. `none` where there is no such line. */
static uint64_t find_value(const char *text, const char *key, uint64_t none) {
    size_t len = strlen(key);
    for (const char *line = text; line;) {
        if (strncmp(line, key, len) == 0) {
            return parse_u64(line + len);
        }
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    return none;
}

/** The number in the file dir/name; `none` for "max" or where it cannot be read. */
static uint64_t read_value(const char *dir, const char *name, uint64_t none) {
    char path[PATH_CAP], text[64];
    if (join(path, sizeof path, dir, name, "") < 0 || os_read_file(path, text, sizeof text) <= 0) {
        return none;
    }
    return text[0] >= '0' && text[0] <= '9' ? parse_u64(text) : none;
}

/** Page cache that the kernel drops before it refuses memory to the group. */
static uint64_t read_inactive(const char *dir, const char *key, const char *key_alone) {
    char path[PATH_CAP], text[TEXT_CAP];
    if (join(path, sizeof path, dir, "/memory.stat", "") < 0 || os_read_file(path, text, sizeof text) <= 0) {
        return 0;
    }
    uint64_t v = find_value(text, key, NO_LIMIT);
    return v != NO_LIMIT ? v : find_value(text, key_alone, 0);
}

/** What one group of either version still allows. */
static uint64_t group_room(const char *dir) {
    uint64_t limit = min_u64(read_value(dir, "/memory.max", NO_LIMIT), read_value(dir, "/memory.high", NO_LIMIT));
    uint64_t used = 0, cache = 0;
    if (limit != NO_LIMIT) {
        used = read_value(dir, "/memory.current", 0);
        cache = read_inactive(dir, "inactive_file ", "inactive_file ");
    } else {
        limit = read_value(dir, "/memory.limit_in_bytes", NO_LIMIT);
        if (limit >= V1_LIMITS) {
            return NO_LIMIT;
        }
        used = read_value(dir, "/memory.usage_in_bytes", 0);
        cache = read_inactive(dir, "total_inactive_file ", "inactive_file ");
    }
    used -= min_u64(used, cache);
    return limit - min_u64(limit, used);
}

/** Whether the directory is there: a group may lack the controller's files where those above it have them. */
static int is_group(const char *dir) {
    int fd = os_openat(AT_FDCWD, dir, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0) {
        return 0;
    }
    os_close(fd);
    return 1;
}

/**
 * Room in the group `group` ("/a/b") of the hierarchy mounted at `mount`, and in all above it. In a container whose
 * mount shows only its own part, the path's first components are missing there: the longest tail that exists is meant.
 */
static uint64_t hierarchy_room(const char *mount, const char *group) {
    char dir[PATH_CAP];
    uint64_t room = group_room(mount);
    while (group && group[0] == '/' && group[1]) {
        if (join(dir, sizeof dir, mount, group, "") < 0) {
            return room;
        }
        if (!strstr(group, "/..") && is_group(dir)) {
            break;
        }
        group = strchr(group + 1, '/');
    }
    if (!group || group[0] != '/' || !group[1]) {
        return room;
    }
    for (size_t root = strlen(mount); strlen(dir) > root; *strrchr(dir, '/') = '\0') {
        room = min_u64(room, group_room(dir));
    }
    return room;
}

/** Whether the comma-separated list [s, end) has the member "memory". */
static int lists_memory(const char *s, const char *end) {
    static const char word[] = "memory";
    size_t len = sizeof word - 1;
    while (s < end) {
        const char *comma = memchr(s, ',', (size_t)(end - s));
        const char *stop = comma ? comma : end;
        if ((size_t)(stop - s) == len && memcmp(s, word, len) == 0) {
            return 1;
        }
        s = stop + 1;
    }
    return 0;
}

/** Room by one line of /proc/self/cgroup, "number:controllers:path", terminated. */
static uint64_t line_room(const char *line, const char *cgroup_root) {
    char mount[PATH_CAP];
    const char *list = strchr(line, ':');
    const char *path = list ? strchr(list + 1, ':') : NULL;
    if (!path) {
        return NO_LIMIT;
    }
    path++;
    if (lists_memory(list + 1, path - 1)) {
        return join(mount, sizeof mount, cgroup_root, "/memory", "") < 0 ? NO_LIMIT : hierarchy_room(mount, path);
    }
    if (path - list != 2) { // another controller of v1; v2's line has an empty list
        return NO_LIMIT;
    }
    uint64_t room = hierarchy_room(cgroup_root, path);
    if (join(mount, sizeof mount, cgroup_root, "/unified", "") == 0) {
        room = min_u64(room, hierarchy_room(mount, path));
    }
    return room;
}

uint64_t staging_room_at(const char *proc, const char *cgroup_root) {
    char path[PATH_CAP], text[TEXT_CAP];
    // Unknown means none: to be killed for memory is worse than to write without staging.
    if (join(path, sizeof path, proc, "/meminfo", "") < 0 || os_read_file(path, text, sizeof text) <= 0) {
        return 0;
    }
    uint64_t room = find_value(text, "MemAvailable:", 0) * KIB;
    if (join(path, sizeof path, proc, "/self/cgroup", "") < 0 || os_read_file(path, text, sizeof text) <= 0) {
        return room;
    }
    for (char *line = text; line && *line;) {
        char *end = strchr(line, '\n');
        if (end) {
            *end = '\0';
        }
        room = min_u64(room, line_room(line, cgroup_root));
        line = end ? end + 1 : NULL;
    }
    return room;
}

uint64_t staging_room(void) {
    return staging_room_at("/proc", "/sys/fs/cgroup");
}

uint64_t staging_budget(uint64_t want) {
    uint64_t budget = want ? want : staging_room() / 4;
    budget = align_down(budget, STAGING_STEP);
    return min_u64(max_u64(budget, STAGING_STEP), CHUNKS_MAX * CHUNK_SIZE);
}
