// SPDX-License-Identifier: MIT
//
// fs: see fs.h. Also linked into the preloaded library: one system call each, no state.

#include "fs.h"

#include "os.h"
#include "util.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

// Magic numbers that linux/magic.h lacks, or does not have everywhere: as in statfs(2) and the file systems' sources.
static const struct fs_type types[] = {
    {EXT4_SUPER_MAGIC, "ext4", FS_DIRECT | FS_HOLES},
    {XFS_SUPER_MAGIC, "xfs", FS_DIRECT | FS_HOLES},
    {BTRFS_SUPER_MAGIC, "btrfs", FS_HOLES | FS_LOG},
    {F2FS_SUPER_MAGIC, "f2fs", 0},
    {OVERLAYFS_SUPER_MAGIC, "overlay", 0},
    {0x2FC12FC1, "zfs", 0},
    {MSDOS_SUPER_MAGIC, "vfat", 0},
    {0x2011BAB0, "exfat", 0},
    {0xCA451A4E, "bcachefs", 0},
    {TMPFS_MAGIC, "tmpfs", FS_NATIVE},
    {0x858458F6, "ramfs", FS_NATIVE},
    {PROC_SUPER_MAGIC, "proc", FS_NATIVE},
    {SYSFS_MAGIC, "sysfs", FS_NATIVE},
    {DEBUGFS_MAGIC, "debugfs", FS_NATIVE},
    {TRACEFS_MAGIC, "tracefs", FS_NATIVE},
    {CGROUP_SUPER_MAGIC, "cgroup", FS_NATIVE},
    {CGROUP2_SUPER_MAGIC, "cgroup2", FS_NATIVE},
    {HUGETLBFS_MAGIC, "hugetlbfs", FS_NATIVE},
    {DEVPTS_SUPER_MAGIC, "devpts", FS_NATIVE},
    {0x65735546, "FUSE", FS_NATIVE},
    {0x6969, "NFS", FS_NETWORK},
    {0x0BD00BD0, "Lustre", FS_NETWORK},
    {0x517B, "SMB", FS_NETWORK},
    {0xFF534D42, "CIFS", FS_NETWORK},
    {0xFE534D42, "SMB2", FS_NETWORK},
    {0x47504653, "GPFS", FS_NETWORK},
    {0x00C36400, "Ceph", FS_NETWORK},
    {0x19830326, "BeeGFS", FS_NETWORK},
    {0x5346414F, "AFS", FS_NETWORK},
    {0xAAD7AAEA, "PanFS", FS_NETWORK},
    {0x01161970, "GFS2", FS_NETWORK},
    {0x7461636F, "OCFS2", FS_NETWORK},
};

const struct fs_type *fs_of(int fd) {
    static const struct fs_type unknown = {0, "unknown", 0};
    struct statfs s;
    if (OS_CALL(SYS_fstatfs, fd, &s, 0, 0, 0, 0) < 0) {
        return NULL;
    }
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        if (types[i].magic == (uint32_t)s.f_type) {
            return &types[i];
        }
    }
    return &unknown;
}

bool fs_dir_only_grows(int dir) {
    struct statx x;
    return OS_CALL(SYS_statx, dir, "", AT_EMPTY_PATH, 0, &x, 0) == 0 && (x.stx_attributes & STATX_ATTR_APPEND) != 0;
}
