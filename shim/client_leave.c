// SPDX-License-Identifier: MIT
//
// client_leave: the last word of a process, and the wait for its files at exit: with progress, and an end at the second
// SIGINT or SIGTERM. The only place in the shim that touches signal handlers, and it puts them back.

#include <errno.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>

#include "../core/log.h"
#include "../core/os.h"
#include "client_inside.h"

#define LINE_NS    (10 * INT64_C(1000000000)) // between lines where nobody watches
#define REWRITE_NS (INT64_C(1000000000) / 2)  // on a terminal
#define QUIET_NS   INT64_C(1000000000)        // a terminal is left alone that long
#define SLICE_MS   100
#define STATUS_MS  1000

static _Atomic int interrupts;

static void count_interrupt(int sig) {
    (void)sig;
    atomic_fetch_add(&interrupts, 1);
}

struct watch {
    struct sigaction old_int, old_term;
    bool got_int, got_term;
    bool tty;
    bool drawn;   // there is a line to be wiped
    int told;     // interrupts that the user has been answered
    int64_t next; // when to say something again
};

// A signal that the program ignores (nohup) stays ignored.
static bool watch_signal(int sig, struct sigaction *old) {
    struct sigaction sa = {.sa_handler = count_interrupt};
    sigemptyset(&sa.sa_mask);
    if (sigaction(sig, NULL, old) < 0 || (!(old->sa_flags & SA_SIGINFO) && old->sa_handler == SIG_IGN)) {
        return false;
    }
    return sigaction(sig, &sa, NULL) == 0;
}

static void watch_begin(struct watch *w) {
    struct termios t;
    *w = (struct watch){0};
    atomic_store(&interrupts, 0);
    w->got_int = watch_signal(SIGINT, &w->old_int);
    w->got_term = watch_signal(SIGTERM, &w->old_term);
    w->tty = OS_CALL(SYS_ioctl, log_fd(), TCGETS, &t, 0, 0, 0) == 0;
    w->next = os_now_ns(CLOCK_MONOTONIC) + (w->tty ? QUIET_NS : LINE_NS);
}

static void wipe(struct watch *w) {
    static const char clear[] = "\r\033[K";
    if (w->drawn) {
        os_write(log_fd(), clear, sizeof clear - 1);
        w->drawn = false;
    }
}

static void watch_end(struct watch *w) {
    wipe(w);
    if (w->got_int) {
        sigaction(SIGINT, &w->old_int, NULL);
    }
    if (w->got_term) {
        sigaction(SIGTERM, &w->old_term, NULL);
    }
}

// The text of what is left, or "" when the engine has no time for it.
static void progress_text(char *buf, size_t cap) {
    struct msg q = {.type = MSG_STATUS};
    buf[0] = '\0';
    if (client_ask(&q, NULL, 0, NULL, NULL, STATUS_MS) >= 0) {
        log_format(buf, cap, "%u files, %llu MiB to go", q.u.status.pending_files,
                   (unsigned long long)((q.u.status.pending_bytes + MIB - 1) / MIB));
    }
}

static void show_progress(struct watch *w) {
    int64_t now = os_now_ns(CLOCK_MONOTONIC);
    if (now < w->next) {
        return;
    }
    w->next = now + (w->tty ? REWRITE_NS : LINE_NS);
    char text[100];
    progress_text(text, sizeof text);
    if (!w->tty) {
        log_error("%s", text[0] ? text : "waiting for the engine");
    } else if (text[0]) {
        char line[140];
        int n = log_format(line, sizeof line, "\r\033[Kfastckpt: %s", text);
        os_write(log_fd(), line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
        w->drawn = true;
    }
}

// True when the user wants to wait no longer.
static bool ended(struct watch *w) {
    int n = atomic_load(&interrupts);
    if (n > w->told) {
        wipe(w);
        if (n == 1) {
            log_error("files are still being written; the engine goes on with them. Press again to leave now");
        }
        w->told = n;
    }
    return n >= 2;
}

// 0: answered; -EINTR, -EPIPE.
static int wait_answer(struct conn *c, struct msg *q) {
    struct watch w;
    int r = 0;
    if (!q->u.leave.wait) { // a moment: a signal ends the process as ever, and what it has handed over is safe
        while (r == 0) {
            r = conn_receive(c, q, NULL, NULL, SLICE_MS);
        }
        return r < 0 ? r : 0;
    }
    watch_begin(&w);
    while (r == 0) {
        r = conn_receive(c, q, NULL, NULL, SLICE_MS);
        if (r == 0) {
            show_progress(&w);
            r = ended(&w) ? -EINTR : 0;
        }
    }
    watch_end(&w);
    return r < 0 ? r : 0;
}

int client_leave(bool wait, struct msg_leave *ret) {
    struct msg q = {.magic = MSG_MAGIC, .type = MSG_LEAVE, .number = client_number()};
    q.u.leave.wait = wait;
    uint32_t epoch = client_epoch();
    int r = -EPIPE;
    while (client_alive()) {
        struct conn *c = conn_take(epoch, -1, &r);
        if (!c) {
            break;
        }
        struct msg a = q;
        r = conn_send(c, &a, NULL, 0, -1);
        if (r == 0) {
            r = wait_answer(c, &a);
        }
        conn_put(c, r == -EPIPE);
        if (r != -EPIPE) {
            q = r == 0 ? a : q;
            break;
        }
    }
    if (r == -EINTR) {
        struct msg cancel = {.type = MSG_CANCEL, .value = q.number};
        client_tell(&cancel);
    }
    *ret = q.u.leave;
    return r < 0 ? r : q.result;
}
