// SPDX-License-Identifier: MIT
//
// disks: which disks are behind a directory: through partitions, RAID, LVM and encryption, as /sys tells. For the
// tools.

#ifndef FASTCKPT_DISKS_H
#define FASTCKPT_DISKS_H

#include <stdbool.h>

#define DISKS_MAX     16
#define DISK_NAME_CAP 40

struct disks {
    char names[DISKS_MAX][DISK_NAME_CAP]; // "nvme0n1"; none: not to be found out, or none at all (network, memory)
    int count;
    bool rotating; // one of them turns
};

/** Fills `ret` for the file system that `fd` is on. */
void disks_behind(int fd, struct disks *ret);
/** The name of a disk that both have, or NULL. */
const char *disks_common(const struct disks *a, const struct disks *b);
/** Their names with commas between them; "unknown" without any. Returns `buf`. */
const char *disks_text(const struct disks *d, char *buf, unsigned cap);

#endif
