// SPDX-License-Identifier: MIT
//
// plugin: a shared object that saves: when it is loaded (PLUGIN_BEGIN names the file), when called, and when it is
// unloaded or the program ends (PLUGIN_END). Tests load it by dlopen, dlmopen, LD_PRELOAD and as a needed library.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int plugin_write(int fd) {
    static char buf[1 << 20];
    memset(buf, 'p', sizeof buf);
    return write(fd, buf, sizeof buf) == sizeof buf && write(fd, buf, sizeof buf) == sizeof buf ? 0 : -1;
}

int plugin_save(const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0) {
        return -1;
    }
    for (int i = 0; i < 3; i++) {
        if (plugin_write(fd) < 0) {
            return -2;
        }
    }
    return close(fd);
}

static void save_for(const char *variable) {
    const char *path = getenv(variable);
    if (path != NULL && plugin_save(path) != 0) {
        _exit(80);
    }
}

__attribute__((constructor)) static void begin(void) {
    save_for("PLUGIN_BEGIN");
}

__attribute__((destructor)) static void end(void) {
    save_for("PLUGIN_END");
}
