// SPDX-License-Identifier: MIT
//
// engine_fd: the descriptions by which the engine holds a file: the program's, and one of its own. Opens and replaces
// them; which one a write takes is layout.c's.

#include "engine.h"
#include "log.h"
#include "os.h"

#include <errno.h>
#include <fcntl.h>

int files_description(const struct config *c, int fd, bool followed, uint32_t *direct, bool *ret_ours) {
    char path[64];
    log_format(path, sizeof path, "/proc/self/fd/%d", fd);
    bool can = !followed && c->direct == DIRECT_AUTO && io_known_fs(fd);
    int own = can ? os_openat(AT_FDCWD, path, O_RDWR | O_DIRECT | O_NONBLOCK, 0) : -EINVAL;
    *direct = own >= 0;
    // A followed one is only synced: held for writing, it would seem to be written by somebody (shim/shadow.c), and
    // could not be executed.
    static const int modes[] = {O_RDONLY, O_RDWR, O_WRONLY};
    for (size_t i = !followed; own < 0 && i < ARRAY_LEN(modes); i++) {
        own = os_openat(AT_FDCWD, path, modes[i] | O_NONBLOCK, 0);
    }
    *ret_ours = own >= 0;
    if (own < 0 && os_fcntl(fd, F_GETFL, 0) & O_PATH) {
        return own; // nothing could be synced by it
    }
    return own < 0 ? os_fcntl(fd, F_DUPFD, 3) : own; // 0444 files: then both are one description
}

void files_part_from_program(struct engine *e, const struct file_slot *f) {
    uint32_t direct;
    bool ours;
    int fd = files_description(&e->p.st->config, f->fd_own, true, &direct, &ours);
    if (fd >= 0) {
        if (ours) {
            OS_CALL(SYS_dup3, fd, f->fd_prog, 0, 0, 0, 0);
        }
        os_close(fd);
    }
}
