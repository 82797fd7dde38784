// SPDX-License-Identifier: MIT
//
// tool: see tool.h: how engines are found and asked, and `wait`.

#include "tool_inside.h"

#include "labels.h"
#include "log.h"
#include "os.h"
#include "protocol.h"
#include "runtime.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINE_EVERY_NS 10000000000ll
#define ANSWER_MS     5000 // an engine that is stopped must not hold `status`

volatile sig_atomic_t tool_interrupts;

void tool_on_interrupt(int sig) {
    (void)sig;
    tool_interrupts++;
}

/** Takes one datagram. False: it is not the answer to question *m (an engine that dies after it has answered lets the
 *  next one answer again). True: *m is the answer, `fds` are its descriptors; *ret is its result, or -EPIPE. */
static bool take_answer(const struct link *l, struct msg *m, int fds[MSG_FDS_MAX], int *nfds, int *ret) {
    struct msg a = {0};
    ssize_t len = msg_recv(l->sock, &a, fds, nfds, MSG_CMSG_CLOEXEC);
    if (len <= 0) {
        *ret = -EPIPE;
        return true;
    }
    if (len < (ssize_t)offsetof(struct msg, u) || a.number != m->number || a.type != m->type) {
        os_close_all(fds, *nfds);
        *nfds = 0;
        return false;
    }
    *m = a;
    *ret = m->result;
    return true;
}

static int send_question(const struct link *l, struct msg *m, const int *fds, int nfds) {
    m->magic = MSG_MAGIC;
    m->number = l->numbers ? number_draw(l->numbers) : 0; // a hello has none
    return msg_send(l->sock, m, fds, nfds, 0);
}

int tool_ask(const struct link *l, struct msg *m, int *fds, int *nfds) {
    int r = send_question(l, m, fds, fds ? *nfds : 0);
    if (r < 0 && !(r == -EPIPE && m->type == MSG_HELLO)) { // who is turned away is told so before it has asked
        return r;
    }
    int got[MSG_FDS_MAX], n = 0;
    struct pollfd p = {.fd = l->sock, .events = POLLIN};
    do {
        if (os_poll(&p, 1, ANSWER_MS) == 0) {
            return -ETIMEDOUT;
        }
    } while (!take_answer(l, m, got, &n, &r));
    if (fds) {
        memcpy(fds, got, sizeof got);
        *nfds = n;
    }
    return r;
}

int tool_link_open(struct link *l, int dirfd, uint64_t key) {
    l->sock = runtime_connect(dirfd, key);
    if (l->sock < 0) {
        return l->sock;
    }
    struct msg m = {.type = MSG_HELLO, .u.hello = {.magic = MSG_MAGIC, .pid = getpid(), .tool = 1}};
    int fds[MSG_FDS_MAX] = {os_pidfd_open(getpid())}, nfds = 1;
    int own = fds[0];
    int r = tool_ask(l, &m, fds, &nfds);
    os_close(own);
    if (r == 0 && nfds == 3) {
        void *page = mmap(NULL, NUMBERS_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0);
        l->numbers = page == MAP_FAILED ? NULL : page;
    }
    os_close_all(fds, r == 0 ? nfds : 0);
    if (r < 0 || !l->numbers) {
        os_close(l->sock);
        return r < 0 ? r : -EPROTO;
    }
    return 0;
}

void tool_link_close(struct link *l) {
    os_close(l->sock);
    munmap(l->numbers, NUMBERS_PAGE);
}

unsigned tool_find_engines(const struct config *c, int *ret_dir, uint64_t *keys) {
    char path[CONFIG_DIR_MAX], why[256] = "";
    *ret_dir = runtime_open(c->runtime_dir, path, sizeof path, why, sizeof why);
    if (*ret_dir < 0) {
        log_error("%s", why);
        return 0;
    }
    unsigned n = 0;
    uint64_t own = runtime_key();
    DIR *d = opendir(path);
    struct dirent *e;
    while (d && (e = readdir(d))) {
        char *end;
        if (strncmp(e->d_name, "engine-", 7) != 0) {
            continue;
        }
        uint64_t key = strtoull(e->d_name + 7, &end, 16);
        if (strcmp(end, ".sock") == 0 && n < ENGINES_MAX) {
            keys[n++] = key;
            if (key == own) {
                keys[n - 1] = keys[0];
                keys[0] = key;
            }
        }
    }
    if (d) {
        closedir(d);
    }
    return n;
}

// ---- wait

static void progress(const struct link *side, bool terminal) {
    struct msg m = {.type = MSG_STATUS};
    if (tool_ask(side, &m, NULL, NULL) == 0) {
        fprintf(stderr, "%sfastckpt: %u files, %.1f MiB to go%s", terminal ? "\r\033[K" : "", m.u.status.pending_files,
                (double)m.u.status.pending_bytes / MIB, terminal ? "" : "\n");
        fflush(stderr);
    }
}

/** Waits for the answer on `l` while telling how far it is. */
static int wait_one(const struct link *l, const struct link *side, bool safe) {
    struct msg m = {.type = MSG_WAIT, .scope = safe ? WAIT_ALL_SAFE : WAIT_ALL};
    int r = send_question(l, &m, NULL, 0);
    bool terminal = isatty(2), told = false, said = false;
    int64_t next = os_now_ns(CLOCK_MONOTONIC) + (terminal ? 1000000000ll : LINE_EVERY_NS);
    while (r == 0) {
        struct pollfd p = {.fd = l->sock, .events = POLLIN};
        int ready = os_poll(&p, 1, 200);
        if (tool_interrupts >= 2) {
            return 130;
        }
        if (tool_interrupts == 1 && !said) {
            fprintf(stderr, "%sfastckpt: waiting for files to become %s; Ctrl-C again to stop waiting\n",
                    told && terminal ? "\r\033[K" : "", safe ? "safe" : "durable");
            said = true;
        }
        int n = 0, fds[MSG_FDS_MAX];
        if (ready > 0 && take_answer(l, &m, fds, &n, &r)) {
            break;
        }
        if (os_now_ns(CLOCK_MONOTONIC) > next) {
            progress(side, terminal);
            told = true;
            next += terminal ? 200000000ll : LINE_EVERY_NS;
        }
    }
    if (told && terminal) {
        fprintf(stderr, "\r\033[K");
    }
    return r < 0;
}

bool tool_tell_silent(uint64_t key, int r) {
    if (r != -ETIMEDOUT && r != -EMFILE) {
        return false;
    }
    fprintf(stderr, "fastckpt: engine %016lx %s\n", (unsigned long)key,
            r == -EMFILE ? "has no descriptor left to be asked with" : "does not answer: is it stopped?");
    return true;
}

/** As tool_link_open; an engine without a descriptor for us has one when some of its files are durable. */
static int open_patiently(struct link *l, int dir, uint64_t key) {
    int r;
    while ((r = tool_link_open(l, dir, key)) == -EMFILE && !tool_interrupts) {
        os_sleep_ms(100);
    }
    return r;
}

int tool_wait(const struct config *c, bool safe) {
    uint64_t keys[ENGINES_MAX];
    int dir = -1, result = 0;
    unsigned n = tool_find_engines(c, &dir, keys);
    signal(SIGINT, tool_on_interrupt);
    for (unsigned i = 0; i < n; i++) {
        struct link l = {0}, side = {0};
        int r = open_patiently(&l, dir, keys[i]);
        if (r < 0) {
            result |= tool_tell_silent(keys[i], r);
            continue;
        }
        r = open_patiently(&side, dir, keys[i]);
        result |= tool_tell_silent(keys[i], r);
        if (r == 0) {
            r = wait_one(&l, &side, safe);
            struct msg m = {.type = MSG_STATUS};
            if (r == 0 && tool_ask(&side, &m, NULL, NULL) == 0 && m.u.status.failures > 0) {
                fprintf(stderr, "fastckpt: %u files have failed: see `fastckpt status`\n", m.u.status.failures);
                r = 1;
            }
            result = r > result ? r : result;
            tool_link_close(&side);
        }
        tool_link_close(&l);
    }
    return result;
}
