// SPDX-License-Identifier: MIT
//
// hook_mount: calls that are refused as long as anybody has files open: a file system that is taken away or becomes
// read-only. Natively nothing of a closed file is open any more; here the engine has it until its name is durable. So
// what is on its way arrives first. Whose file systems these are is not asked: what is in the queue goes in order.

#include "client.h"
#include "hook_inside.h"
#include "namecalls.h"

#include <sys/mount.h>

#define HELD_NS         200000000ll // for what the engine closes a little later than it says
#define CMD_RECONFIGURE 7           // of fsconfig; newer than the headers that this may be compiled with

int64_t hook_let_go(void) {
    if (guard_depth != 0 || (names_native() && !client_alive()) || guard_foreign()) {
        return 0;
    }
    guard_depth++;
    names_wait(WAIT_SPACE); // closed is what was published, and what was deleted, too
    guard_depth--;
    return os_now_ns(CLOCK_MONOTONIC) + HELD_NS;
}

bool hook_held(long r, int refusal, int64_t until, int saved) {
    if (LIKELY(r >= 0 || errno != refusal || until == 0) || os_now_ns(CLOCK_MONOTONIC) > until) {
        return false;
    }
    errno = saved;
    os_sleep_ms(1);
    return true;
}

int hook_umount(const char *path) {
    int r;
    HOOK_WHEN_LET_GO(r, EBUSY, NATIVE_OR(umount, RAW(SYS_umount2, path, 0), path));
    return r;
}

int hook_umount2(const char *path, int flags) {
    int r;
    HOOK_WHEN_LET_GO(r, EBUSY, NATIVE(umount2, SYS_umount2, path, flags));
    return r;
}

int hook_mount(const char *from, const char *path, const char *type, unsigned long flags, const void *data) {
    int r;
    if (LIKELY((flags & (MS_REMOUNT | MS_RDONLY)) != (MS_REMOUNT | MS_RDONLY))) {
        return (int)NATIVE(mount, SYS_mount, from, path, type, flags, data);
    }
    HOOK_WHEN_LET_GO(r, EBUSY, NATIVE(mount, SYS_mount, from, path, type, flags, data));
    return r;
}

int hook_mount_setattr(int dirfd, const char *path, unsigned flags, struct mount_attr *attr, size_t size) {
    int r;
    HOOK_WHEN_LET_GO(r, EBUSY, NATIVE(mount_setattr, NR_MOUNT_SETATTR, dirfd, path, flags, attr, size));
    return r;
}

int hook_fsconfig(int fd, unsigned cmd, const char *key, const void *value, int aux) {
    int r;
    if (LIKELY(cmd != CMD_RECONFIGURE)) {
        return (int)NATIVE(fsconfig, NR_FSCONFIG, fd, cmd, key, value, aux);
    }
    HOOK_WHEN_LET_GO(r, EBUSY, NATIVE(fsconfig, NR_FSCONFIG, fd, cmd, key, value, aux));
    return r;
}

#define HOOKS_MOUNT
#define HOOK_ALIAS HOOK_TWIN
#include "hooks.h"
