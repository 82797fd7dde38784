// SPDX-License-Identifier: MIT
//
// disks: see disks.h. Whatever /sys or /proc does not tell is left out. A loop device counts as a disk of its own.

#include "disks.h"

#include "log.h"
#include "os.h"
#include "path.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define DEPTH_MAX 8 // of devices on devices

static void add(struct disks *d, const char *name, const char *dir) {
    for (int i = 0; i < d->count; i++) {
        if (strcmp(d->names[i], name) == 0) {
            return;
        }
    }
    if (d->count == DISKS_MAX) {
        return;
    }
    snprintf(d->names[d->count++], DISK_NAME_CAP, "%s", name);
    char path[4200], text[8];
    snprintf(path, sizeof path, "%s/queue/rotational", dir);
    d->rotating |= os_read_file(path, text, sizeof text) > 0 && text[0] == '1';
}

/** The disks below the block device of the /sys directory `dir`. */
static void descend(struct disks *d, const char *dir, int depth) {
    char path[4200], real[4096];
    if (depth == DEPTH_MAX || !realpath(dir, real)) {
        return;
    }
    struct stat st;
    snprintf(path, sizeof path, "%s/partition", real);
    if (os_fstatat(AT_FDCWD, path, &st, 0) == 0) { // the disk is the directory above
        *strrchr(real, '/') = '\0';
    }
    snprintf(path, sizeof path, "%s/slaves", real);
    DIR *below = opendir(path);
    struct dirent *e;
    bool some = false;
    while (below && (e = readdir(below))) {
        if (e->d_name[0] != '.') {
            char next[4500];
            snprintf(next, sizeof next, "%s/%s", path, e->d_name);
            descend(d, next, depth + 1);
            some = true;
        }
    }
    if (below) {
        closedir(below);
    }
    if (!some) {
        add(d, path_base(real), real);
    }
}

/** The device that mountinfo names for the mount of `fd`: btrfs and others have numbers of their own in st_dev. */
static bool mounted_device(int fd, dev_t *ret) {
    char path[64], line[4400], source[1024];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *f = fopen(path, "re");
    int mount = -1;
    while (f && fgets(line, sizeof line, f)) {
        sscanf(line, "mnt_id: %d", &mount);
    }
    if (f) {
        fclose(f);
    }
    f = mount < 0 ? NULL : fopen("/proc/self/mountinfo", "re");
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *behind = strstr(line, " - ");
        struct stat st;
        if (atoi(line) == mount && behind && sscanf(behind, " - %*s %1023s", source) == 1 && source[0] == '/' &&
            os_fstatat(AT_FDCWD, source, &st, 0) == 0 && S_ISBLK(st.st_mode)) {
            *ret = st.st_rdev;
            found = true;
        }
    }
    if (f) {
        fclose(f);
    }
    return found;
}

void disks_behind(int fd, struct disks *ret) {
    *ret = (struct disks){0};
    struct stat st;
    if (os_fstat(fd, &st) < 0) {
        return;
    }
    dev_t dev = st.st_dev;
    if (major(dev) == 0 && !mounted_device(fd, &dev)) {
        return;
    }
    char path[64];
    snprintf(path, sizeof path, "/sys/dev/block/%u:%u", major(dev), minor(dev));
    descend(ret, path, 0);
}

const char *disks_common(const struct disks *a, const struct disks *b) {
    for (int i = 0; i < a->count; i++) {
        for (int k = 0; k < b->count; k++) {
            if (strcmp(a->names[i], b->names[k]) == 0) {
                return a->names[i];
            }
        }
    }
    return NULL;
}

const char *disks_text(const struct disks *d, char *buf, unsigned cap) {
    unsigned at = (unsigned)log_format(buf, cap, "%s", d->count ? "" : "unknown");
    for (int i = 0; i < d->count && at < cap; i++) {
        at += (unsigned)log_format(buf + at, cap - at, "%s%s", i ? "," : "", d->names[i]);
    }
    return buf;
}
