// SPDX-License-Identifier: MIT
//
// tool: see tool.h.

#include "tool.h"

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

#define ENGINES_MAX   64
#define LINE_EVERY_NS 10000000000ll
#define WATCH_MS      1000
#define ANSWER_MS     5000 // an engine that is stopped must not hold `status`

struct link {
    int sock;
    struct numbers *numbers;
};

static volatile sig_atomic_t interrupts; // Ctrl-C so far

static void on_interrupt(int sig) {
    (void)sig;
    interrupts++;
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
        while (*nfds > 0) {
            os_close(fds[--*nfds]);
        }
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

/** `fds` (NULL: none) go with the question, `*nfds` of them; those of the answer come back. */
static int ask(const struct link *l, struct msg *m, int *fds, int *nfds) {
    int r = send_question(l, m, fds, fds ? *nfds : 0);
    if (r < 0) {
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

static int link_open(struct link *l, int dirfd, uint64_t key) {
    l->sock = runtime_connect(dirfd, key);
    if (l->sock < 0) {
        return l->sock;
    }
    struct msg m = {.type = MSG_HELLO, .u.hello = {.magic = MSG_MAGIC, .pid = getpid(), .tool = 1}};
    int fds[MSG_FDS_MAX] = {os_pidfd_open(getpid())}, nfds = 1;
    int own = fds[0];
    int r = ask(l, &m, fds, &nfds);
    os_close(own);
    if (r == 0 && nfds == 3) {
        void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0);
        l->numbers = page == MAP_FAILED ? NULL : page;
    }
    for (int i = 0; i < nfds && r == 0; i++) {
        os_close(fds[i]);
    }
    if (r < 0 || !l->numbers) {
        os_close(l->sock);
        return r < 0 ? r : -EPROTO;
    }
    return 0;
}

/** Keys of all engines of this user, the one of our own surroundings first. */
static unsigned find_engines(const struct config *c, int *ret_dir, uint64_t *keys) {
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

static void print_json(const struct status *s) {
    printf("{\"keeper_pid\": %d, \"engine_pid\": %d, \"clients\": %u, \"pending_files\": %u, \"pending_bytes\": %lu, "
           "\"staging_bytes\": %lu, \"staging_used\": %lu, \"published_files\": %lu, \"failures\": %u, "
           "\"restarts\": %u, \"written_bytes\": %lu, \"retrying\": %u, \"broken\": %u, \"backend\": \"%s\"}\n",
           s->keeper_pid, s->engine_pid, s->clients, s->pending_files, (unsigned long)s->pending_bytes,
           (unsigned long)s->staging_bytes, (unsigned long)s->staging_used, (unsigned long)s->published_files,
           s->failures, s->restarts, (unsigned long)s->written_bytes, s->retrying, s->broken, s->backend);
}

static void print_text(const struct status *s) {
    printf("engine %d (keeper %d, %s%s)\n", s->engine_pid, s->keeper_pid, s->backend,
           s->restarts ? ", was restarted" : "");
    printf("  clients    %u\n", s->clients);
    printf("  pending    %u files, %.1f MiB\n", s->pending_files, (double)s->pending_bytes / MIB);
    printf("  published  %lu files, %.1f MiB written\n", (unsigned long)s->published_files,
           (double)s->written_bytes / MIB);
    printf("  staging    %.0f of %.0f MiB in use\n", (double)s->staging_used / MIB, (double)s->staging_bytes / MIB);
    printf("  failures   %u\n", s->failures);
    if (s->retrying) {
        printf("  retrying   %u files, for %u s: %s: %s\n", s->retrying, s->retry_seconds, s->retry,
               log_errno(-s->retry_error));
    }
    if (s->broken) {
        printf("  broken     %s%s\n", s->broken_text, s->broken > 1 ? "; and others" : "");
    }
    if (s->note[0]) {
        printf("  note       %s\n", s->note);
    }
}

static unsigned print_failures(const struct link *l) {
    unsigned n = 0;
    for (;;) {
        struct msg m = {.type = MSG_FAILURES};
        if (ask(l, &m, NULL, NULL) < 0) {
            return n;
        }
        printf("  failed     %s\n", m.u.text);
        n++;
    }
}

int tool_status(const struct config *c, bool json) {
    uint64_t keys[ENGINES_MAX];
    int dir = -1, shown = 0, silent = 0;
    unsigned failed = 0, n = find_engines(c, &dir, keys);
    for (unsigned i = 0; i < n; i++) {
        struct link l = {0};
        int r = link_open(&l, dir, keys[i]);
        if (r < 0) {
            if (r == -ETIMEDOUT) {
                fprintf(stderr, "fastckpt: engine %016lx does not answer: is it stopped?\n", (unsigned long)keys[i]);
                silent++;
            }
            continue;
        }
        struct msg m = {.type = MSG_STATUS};
        if (ask(&l, &m, NULL, NULL) == 0) {
            failed += m.u.status.failures;
            shown++;
            if (json) {
                print_json(&m.u.status);
            } else {
                print_text(&m.u.status);
                print_failures(&l);
            }
        }
        os_close(l.sock);
    }
    if (!shown && json) {
        print_json(&(struct status){0});
    } else if (!shown && !silent) {
        printf("no engine is running\n");
    }
    return failed > 0 || silent > 0;
}

// ---- status --watch

/** What one engine had written when it was last asked. */
struct sample {
    uint64_t key, written;
    int64_t at_ns;
};

/** Bytes a second since the last time; negative the first time, or after another engine has taken its place. */
static double sample_rate(struct sample *all, unsigned *n, uint64_t key, uint64_t written) {
    struct sample *s = all;
    while (s < all + *n && s->key != key) {
        s++;
    }
    int64_t now = os_now_ns(CLOCK_MONOTONIC);
    double rate = -1;
    if (s < all + *n) {
        rate = written < s->written ? -1 : (double)(written - s->written) * 1e9 / (double)(now - s->at_ns);
    } else if (*n < ENGINES_MAX) {
        ++*n;
    } else {
        return -1;
    }
    *s = (struct sample){key, written, now};
    return rate;
}

static void print_rate(const struct status *s, double rate, bool json) {
    double left = s->pending_bytes == 0 ? 0 : rate > 0 ? (double)s->pending_bytes / rate : -1;
    if (json) {
        printf("{\"engine_pid\": %d, \"pending_files\": %u, \"pending_bytes\": %lu, \"failures\": %u", s->engine_pid,
               s->pending_files, (unsigned long)s->pending_bytes, s->failures);
        rate < 0 ? printf(", \"bytes_per_second\": null") : printf(", \"bytes_per_second\": %.0f", rate);
        left < 0 ? printf(", \"seconds_left\": null}\n") : printf(", \"seconds_left\": %.1f}\n", left);
        return;
    }
    printf("engine %d: %u files pending, %.1f MiB to go", s->engine_pid, s->pending_files,
           (double)s->pending_bytes / MIB);
    rate < 0 ? 0 : printf(", %.1f MiB/s", rate / MIB);
    left <= 0 ? 0 : printf(", %.1f s left", left);
    s->failures ? printf(", %u have failed", s->failures) : 0;
    printf("\n");
}

int tool_watch(const struct config *c, bool json) {
    struct sample samples[ENGINES_MAX];
    unsigned sampled = 0;
    signal(SIGINT, on_interrupt);
    while (!interrupts) {
        uint64_t keys[ENGINES_MAX];
        int dir = -1, shown = 0;
        unsigned n = find_engines(c, &dir, keys);
        for (unsigned i = 0; i < n; i++) {
            struct link l = {0};
            struct msg m = {.type = MSG_STATUS};
            if (link_open(&l, dir, keys[i]) < 0) {
                continue;
            }
            if (ask(&l, &m, NULL, NULL) == 0) {
                const struct status *s = &m.u.status;
                print_rate(s, sample_rate(samples, &sampled, keys[i], s->written_bytes), json);
                shown++;
            }
            os_close(l.sock);
        }
        if (!shown && !json) {
            printf("no engine is running\n");
        }
        if (dir >= 0) {
            os_close(dir);
        }
        fflush(stdout);
        os_sleep_ms(WATCH_MS);
    }
    return 0;
}

// ---- wait

static void progress(const struct link *side, bool terminal) {
    struct msg m = {.type = MSG_STATUS};
    if (ask(side, &m, NULL, NULL) == 0) {
        fprintf(stderr, "%sfastckpt: %u files, %.1f MiB to go%s", terminal ? "\r\033[K" : "", m.u.status.pending_files,
                (double)m.u.status.pending_bytes / MIB, terminal ? "" : "\n");
        fflush(stderr);
    }
}

/** Waits for the answer on `l` while telling how far it is. */
static int wait_one(const struct link *l, const struct link *side) {
    struct msg m = {.type = MSG_WAIT, .scope = WAIT_ALL};
    int r = send_question(l, &m, NULL, 0);
    bool terminal = isatty(2), told = false, said = false;
    int64_t next = os_now_ns(CLOCK_MONOTONIC) + (terminal ? 1000000000ll : LINE_EVERY_NS);
    while (r == 0) {
        struct pollfd p = {.fd = l->sock, .events = POLLIN};
        int ready = os_poll(&p, 1, 200);
        if (interrupts >= 2) {
            return 130;
        }
        if (interrupts == 1 && !said) {
            fprintf(stderr, "%sfastckpt: waiting for files to become durable; Ctrl-C again to stop waiting\n",
                    told && terminal ? "\r\033[K" : "");
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

int tool_wait(const struct config *c) {
    uint64_t keys[ENGINES_MAX];
    int dir = -1, result = 0;
    unsigned n = find_engines(c, &dir, keys);
    signal(SIGINT, on_interrupt);
    for (unsigned i = 0; i < n; i++) {
        struct link l = {0}, side = {0};
        if (link_open(&l, dir, keys[i]) < 0) {
            continue;
        }
        if (link_open(&side, dir, keys[i]) == 0) {
            int r = wait_one(&l, &side);
            struct msg m = {.type = MSG_STATUS};
            if (r == 0 && ask(&side, &m, NULL, NULL) == 0 && m.u.status.failures > 0) {
                fprintf(stderr, "fastckpt: %u files have failed: see `fastckpt status`\n", m.u.status.failures);
                r = 1;
            }
            result = r > result ? r : result;
            os_close(side.sock);
        }
        os_close(l.sock);
    }
    return result;
}
