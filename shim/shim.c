// SPDX-License-Identifier: MIT
//
// shim: constructor, fork handlers and destructor of the preloaded library. Decides whether this process takes part at
// all; what it then does is in the hooks. Nothing here runs while a program's own code does.

#include "shim.h"

#include "../core/log.h"
#include "../core/os.h"
#include "../core/path.h"
#include "arena.h"
#include "callsite.h"
#include "client.h"
#include "cuda.h"
#include "file.h"
#include "hook_stdio.h"
#include "late.h"
#include "lost.h"
#include "namecalls.h"
#include "real.h"
#include "report.h"
#include "shared.h"
#include "workers.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/auxv.h>

char shim_engine_path[4096];

void shim_before_fork(void) {
    atomic_fetch_add(&shim.spawned, 1);
    file_hand_over_all();
    do {
        late_settle();
    } while (!arena_before_fork());
}

void shim_after_fork_in_parent(void) {
    arena_after_fork(false);
}

void shim_after_fork_in_child(void) {
    shim.pid = os_getpid();
    shim.forked = true;
    workers_begin(shim.config.copy_threads);
    report_after_fork();
    names_after_fork();
    callsite_after_fork();
    cuda_after_fork();
    client_after_fork();
    late_after_fork();
    arena_after_fork(true);
    file_after_fork();
}

// The engine's binary: as configured, else "fastckpt" beside this library.
static void find_engine(void) {
    Dl_info info = {0};
    char real_path[4096];
    if (shim.config.engine[0] != '\0') {
        log_format(shim_engine_path, sizeof shim_engine_path, "%s", shim.config.engine);
        return;
    }
    if (dladdr(shim_engine_path, &info) == 0 || info.dli_fname == NULL) {
        return;
    }
    // The loader has the path as LD_PRELOAD gave it; it may be relative, and the program may change its directory.
    int fd = os_openat(AT_FDCWD, info.dli_fname, O_PATH | O_CLOEXEC, 0);
    char link[32];
    log_format(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = fd < 0 ? fd : os_readlinkat(AT_FDCWD, link, real_path, sizeof real_path - 1);
    if (fd >= 0) {
        os_close(fd);
    }
    if (n <= 0) {
        return;
    }
    real_path[n] = '\0';
    char *base = strrchr(real_path, '/');
    if (base != NULL) {
        base[1] = '\0';
        log_format(shim_engine_path, sizeof shim_engine_path, "%sfastckpt", real_path);
    }
}

__attribute__((constructor)) static void begin(int argc, char **argv, char **envp) {
    (void)argc;
    (void)argv;
    char why[256];
    int saved = errno;
    shim.pid = os_getpid();
    real_resolve();
    log_setup(LOG_ERROR, 2, "fastckpt");
    // A setuid program takes no orders from its caller's environment.
    shared_init(envp);
    int r = getauxval(AT_SECURE) ? -1 : config_load(&shim.config, envp, why, sizeof why);
    if (r == 0) {
        log_setup((enum log_level)shim.config.log, 2, "fastckpt");
        r = shim.config.disable || shim.config.paths[0] == '\0' ? -1 : 0;
    } else if (!getauxval(AT_SECURE)) {
        log_error("%s; this program runs natively", why);
    }
    if (r == 0 && (r = path_check_patterns(shim.config.paths, why, sizeof why)) < 0) {
        log_error("%s; this program runs natively", why);
    }
    if (r == 0) {
        find_engine();
        callsite_start();
        workers_begin(shim.config.copy_threads);
        pthread_atfork(shim_before_fork, shim_after_fork_in_parent, shim_after_fork_in_child);
        atomic_store_explicit(&shim.ready, true, memory_order_release);
    }
    errno = saved;
}

// Does this process hold an unnamed file that it has not opened itself? `cmd > file` as a shell's last command is an
// exec: what the shell captured is the program's standard output now, published when it ends.
static bool inherited_shadow(void) {
    struct stat st;
    for (int fd = 0; fd < 16; fd++) {
        if (os_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 0) {
            return true;
        }
    }
    return false;
}

void shim_leave(bool flush) {
    static _Atomic int left; // the pid that has
    if (!atomic_load(&shim.ready) || guard_foreign() || atomic_exchange(&left, shim.pid) == shim.pid) {
        return;
    }
    int saved = errno;
    struct msg_leave leave = {0};
    if (flush) {
        stdio_flush_captured();
    }
    if (client_tables() == NULL && atomic_load(&shim.spawned) > 0) {
        names_look_soon(); // what it has started may have saved, and have gone without waiting
        names_look();
    }
    guard_depth++;
    atomic_store(&shim.ready, false); // what other destructors open now is native
    report_restore_stderr();
    late_end();
    file_close_all();
    if (client_tables() == NULL && inherited_shadow()) {
        client_connect(); // an image before this one captured it: only who asks can wait for it
    }
    if (client_tables() != NULL) {
        client_report_failures();
        client_leave(shim.config.exit == EXIT_WAIT && !shim.forked, &leave);
        client_report_failures();
    }
    if (lost_error() < 0) { // no close or fsync came after the loss: the end of the process says it
        log_error("closed files were lost: %s", log_errno(EIO));
    }
    report_print(&leave);
    guard_depth--;
    errno = saved;
}

__attribute__((destructor)) static void end(void) {
    shim_leave(true);
}
