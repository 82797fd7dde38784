// SPDX-License-Identifier: MIT
//
// client: the session with the engine: its beginning, questions and answers, and the decision that keeper and engine
// are gone. Connections are client_conn.c's, the memory of chunks client_chunks.c's, the wait at exit client_leave.c's.
//
//   NEW ──client_connect──▶ UP ──hang-up, and nobody who knows us──▶ LOST ──files recovered, client_connect──▶ UP
//
// A hang-up alone means little: a program may have closed our descriptors. An engine's death is not even seen: its
// keeper holds the other end. So whoever meets a hang-up takes another connection, and where none can be made because
// nobody listens, or who listens does not know us, both are gone.

#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "../core/labels.h"
#include "../core/log.h"
#include "../core/os.h"
#include "../core/runtime.h"
#include "creds.h"
#include "client_inside.h"
#include "guard.h"
#include "own.h"

#define HELLO_MS 2000 // first contact: beyond, the job goes natively
#define SLOW_NS  (2 * INT64_C(1000000000))
#define ENV_MAX  64

enum { CLIENT_NEW, CLIENT_UP, CLIENT_LOST };

static struct client {
    struct lock lock; // connecting and the change of state
    _Atomic int state;
    _Atomic uint32_t epoch;
    _Atomic int64_t retry_at;   // before it, no new attempt is made; 0: none was refused
    _Atomic int64_t slow_until; // the engine did not answer in time: questions with a limit fail until then; 0: it does
    bool complained;
    uint64_t key;
    uint64_t token;
    uint32_t slot;
    uid_t uid; // of the engine: the one that this process had when it connected
    const struct tables *_Atomic tables; // NULL unless UP
    struct numbers *_Atomic numbers;     // stays mapped for ever: a number may be drawn beside a loss
    _Atomic uint32_t failures_seen;
} client;

bool (*client_on_lost)(void);

bool client_alive(void) {
    return atomic_load_explicit(&client.state, memory_order_acquire) == CLIENT_UP;
}

bool client_acts_for_us(void) {
    return client.uid == 0 || client.uid == creds_euid();
}

const struct tables *client_tables(void) {
    return atomic_load_explicit(&client.tables, memory_order_acquire);
}

unsigned client_slot(void) {
    return client.slot;
}

uint32_t client_epoch(void) {
    return atomic_load_explicit(&client.epoch, memory_order_acquire);
}

uint64_t client_number(void) {
    struct numbers *n = atomic_load_explicit(&client.numbers, memory_order_acquire);
    return n ? number_draw(n) : 0;
}

struct session client_session(void) {
    return (struct session){client.slot, client.token};
}

void client_answered(void) {
    if (UNLIKELY(atomic_load_explicit(&client.slow_until, memory_order_relaxed) != 0)) {
        atomic_store(&client.slow_until, 0);
    }
}

static int64_t now(void) {
    return os_now_ns(CLOCK_MONOTONIC);
}

bool client_owns_fd(int fd) {
    return UNLIKELY(own_is(fd)) && own_still(fd);
}

int client_move_fd(int fd) {
    return own_move(fd);
}

int client_fd_floor(void) {
    return own_floor();
}

// ---- Making connections

// The environment of a new pair: our variables and nothing else of the job's.
static char **engine_env(void) {
    static char *env[ENV_MAX + 1];
    extern char **environ;
    size_t n = 0;
    for (char **e = environ; e && *e && n < ENV_MAX; e++) {
        if (strncmp(*e, "FASTCKPT_", 9) == 0) {
            env[n++] = *e;
        }
    }
    env[n] = NULL;
    return env;
}

// A socket to the engine; starts a pair if `start`.
int client_dial(bool start, char *why, size_t cap) {
    char dir[CONFIG_DIR_MAX];
    int dirfd = runtime_open(shim.config.runtime_dir, dir, sizeof dir, why, cap);
    if (dirfd < 0) {
        return dirfd;
    }
    if (!client.key) {
        client.key = runtime_key();
    }
    int sock = start ? runtime_start(dirfd, dir, client.key, shim_engine_path, engine_env())
                     : runtime_connect(dirfd, client.key);
    os_close(dirfd);
    if (sock < 0) {
        bool no_proc = sock == -ENOENT && os_fstatat(AT_FDCWD, "/proc/self/fd", &(struct stat){0}, 0) < 0;
        bool few = sock == -EMFILE && start && !runtime_has_files();
        const char *what = start ? shim_engine_path : dir;
        const char *hint = no_proc ? " (no /proc)" : few ? " (ulimit -Hn is too low for it)" : "";
        log_format(why, cap, "%s: %s%s", what, log_errno(-sock), hint);
    }
    return sock;
}

void client_lost(uint32_t epoch) {
    sigset_t saved;
    lock_take(&client.lock, &saved);
    bool first = client_alive() && client_epoch() == epoch;
    if (first) {
        atomic_fetch_add(&client.epoch, 1); // first: who meets the rest of it must see that his file is to be recovered
        atomic_store(&client.state, CLIENT_LOST);
        atomic_store(&client.tables, NULL);
    }
    lock_drop(&client.lock, &saved);
    if (!first) {
        return;
    }
    log_error("keeper and engine are gone: what they had not written is written by this process, natively");
    conns_close_idle();
    if (client_on_lost) {
        client_on_lost();
    }
}

// ---- The session

// The descriptors of the first answer: staging, numbers, tables.
static int session_begin(const struct msg *a, const int *fds, int n) {
    if (n != 3) {
        os_close_all(fds, n);
        return -EPROTO;
    }
    struct numbers *num = os_mmap(NULL, NUMBERS_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0);
    struct tables *tab = os_mmap(NULL, sizeof(struct tables), PROT_READ, MAP_SHARED, fds[2], 0);
    os_close(fds[2]);
    int r = os_is_err(num) ? (int)(intptr_t)num : os_is_err(tab) ? (int)(intptr_t)tab : 0;
    if (r == 0 && tab->magic != TABLES_MAGIC) {
        r = -EPROTO;
    }
    if (r < 0) {
        os_close(fds[0]);
        os_close(fds[1]);
        return r;
    }
    r = chunks_begin(fds, a->u.hello.client, a->u.hello.staging_max, tab);
    if (r < 0) {
        return r;
    }
    refs_begin(tab);
    client.slot = a->u.hello.client;
    client.uid = creds_euid();
    client.token = a->u.hello.token;
    atomic_store(&client.failures_seen, atomic_load(&tab->clients[client.slot % CLIENTS_MAX].failures));
    atomic_store(&client.numbers, num);
    atomic_store(&client.tables, tab);
    return 0;
}

static int session_try(char *why, size_t cap) {
    int sock = client_dial(true, why, cap);
    if (sock < 0) {
        return sock;
    }
    struct msg a;
    int fds[MSG_FDS_MAX], n = 0;
    int r = conn_first(sock, &a, fds, &n, now() + HELLO_MS * MS_NS);
    if (r >= 0) {
        r = session_begin(&a, fds, n);
        if (r < 0) {
            conns_close_idle();
        }
    }
    if (r < 0) {
        log_format(why, cap, "the engine's first answer: %s", log_errno(-r));
    }
    return r;
}

// An engine that hangs up at once was about to leave: there is another, or one is started.
static int session_start(char *why, size_t cap) {
    int r = -EPIPE;
    for (int i = 0; i < 3 && (r == -EPIPE || r == -ECONNRESET); i++) {
        r = session_try(why, cap);
    }
    return r;
}

// Under client.lock.
static int connect_locked(void) {
    if (client_alive()) {
        return 0;
    }
    if (now() < atomic_load(&client.retry_at)) {
        return -EAGAIN;
    }
    if (atomic_load(&client.state) == CLIENT_LOST) {
        chunks_end();
        atomic_store(&client.state, CLIENT_NEW);
    }
    char why[300];
    int r = session_start(why, sizeof why);
    if (r < 0) {
        atomic_store(&client.retry_at, now() + SLOW_NS);
        if (!client.complained) {
            log_error("no engine, so this program runs natively: %s", why);
        }
        client.complained = true;
        return r;
    }
    client.complained = false;
    atomic_store(&client.retry_at, 0);
    atomic_store_explicit(&client.state, CLIENT_UP, memory_order_release);
    return 0;
}

static bool slow(void) {
    int64_t until = atomic_load_explicit(&client.slow_until, memory_order_relaxed);
    return UNLIKELY(until != 0) && now() < until;
}

int client_connect(void) {
    if (LIKELY(client_alive())) {
        return slow() ? -ETIMEDOUT : 0;
    }
    int64_t retry = atomic_load(&client.retry_at);
    if (retry != 0 && now() < retry) {
        return -EAGAIN;
    }
    if (atomic_load(&client.state) == CLIENT_LOST && client_on_lost && !client_on_lost()) {
        return -EPIPE; // a file in another thread's hands still needs the memory of the old pair
    }
    sigset_t saved;
    lock_take(&client.lock, &saved);
    int r = connect_locked();
    lock_drop(&client.lock, &saved);
    return r;
}

// ---- Questions and entries

int client_ask(struct msg *q, const int *fds, int nfds, int *fds_out, int *nfds_out, int timeout_ms) {
    if (timeout_ms >= 0 && slow()) {
        return -ETIMEDOUT;
    }
    uint32_t epoch = client_epoch();
    if (!client_alive()) {
        return -EPIPE;
    }
    if (!q->number) {
        q->number = client_number();
    }
    q->magic = MSG_MAGIC;
    int64_t deadline = timeout_ms < 0 ? -1 : now() + timeout_ms * MS_NS;
    for (;;) {
        int r = 0;
        struct conn *c = conn_take(epoch, deadline, &r);
        if (!c) {
            return r;
        }
        r = conn_ask(c, q, fds, nfds, fds_out, nfds_out, deadline);
        conn_put(c, r == -EPIPE);
        if (r == -EPIPE) {
            continue; // asked again under the same number: an engine that has seen it only answers
        }
        if (r == -ETIMEDOUT) {
            atomic_store(&client.slow_until, now() + SLOW_NS);
        }
        for (int i = 0; r == 0 && nfds_out && i < *nfds_out; i++) {
            fds_out[i] = own_high_if(fds_out[i]);
        }
        return r < 0 ? r : q->result;
    }
}

int client_tell(struct msg *m) {
    uint32_t epoch = client_epoch();
    if (!m->number) {
        m->number = client_number();
    }
    m->magic = MSG_MAGIC;
    for (;;) {
        int r = 0;
        struct conn *c = conn_take(epoch, -1, &r);
        if (!c) {
            return r;
        }
        r = conn_send(c, m, NULL, 0, -1);
        conn_put(c, r == -EPIPE);
        if (r != -EPIPE) {
            return r;
        }
    }
}

int client_report_failures(void) {
    const struct tables *t = client_tables();
    if (LIKELY(!t)) {
        return 0;
    }
    uint32_t told = atomic_load_explicit(&t->clients[client.slot % CLIENTS_MAX].failures, memory_order_acquire);
    uint32_t seen = atomic_load_explicit(&client.failures_seen, memory_order_relaxed);
    if (LIKELY(told == seen) || !atomic_compare_exchange_strong(&client.failures_seen, &seen, told)) {
        return 0;
    }
    int n = 0;
    for (;;) {
        struct msg q = {.type = MSG_FAILURES};
        if (client_ask(&q, NULL, 0, NULL, NULL, -1) < 0) {
            return n;
        }
        q.u.text[sizeof q.u.text - 1] = '\0';
        log_error("%s", q.u.text);
        n++;
    }
}

void client_after_fork(void) {
    own_after_fork();
    chunks_after_fork();
    refs_after_fork();
    client.lock = (struct lock){0};
    atomic_store(&client.tables, NULL);
    atomic_store(&client.numbers, NULL);
    atomic_store(&client.state, CLIENT_NEW);
    atomic_store(&client.retry_at, 0);
    atomic_store(&client.slow_until, 0);
    client.key = 0; // the child may be moved to another cgroup
    client.token = 0;
    conns_after_fork();
}
