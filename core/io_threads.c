// SPDX-License-Identifier: MIT
//
// io_threads: worker threads, a pool per device, so that a slow one holds nobody else. They run jobs and make the
// writes that no ring makes. Nothing is decided here: what to do and in which order comes from the caller.
//
//   event loop ── queue (pool lock) ──▶ worker: run ── done list (done_lock), eventfd ──▶ event loop

#include "io_inside.h"
#include "util.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#define THREADS_MAX (IO_WORKERS_DEVICE + IO_DEPTH) // so that neither jobs nor writes can take the other's workers
#define STACK_SIZE  (1 * MIB)

struct reqs {
    struct io_req *head, *tail;
};
struct jobs {
    struct io_job *head, *tail;
};

struct pool {
    struct io_threads *owner;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct reqs writes;
    struct jobs jobs;
    unsigned writes_queued, writes_running;
    unsigned jobs_queued, jobs_running;
    bool job_last; // with few threads, jobs and writes take turns
    bool stop;
    unsigned idle; // waiting, woken but not yet running, or just made
    unsigned count;
    pthread_t threads[THREADS_MAX];
};

struct io_threads {
    int event_fd;
    pthread_mutex_t done_lock;
    struct reqs done_writes;
    struct jobs done_jobs;
    struct io_slots slots; // the event loop's alone
    struct pool pools[IO_DEVICES_MAX];
};

static _Thread_local uint64_t current_number;

void io_serve(uint64_t number) {
    current_number = number;
}

uint64_t io_current_number(void) {
    return current_number;
}

// ---- Lists

static void push_req(struct reqs *q, struct io_req *req) {
    req->next = NULL;
    if (q->head) {
        q->tail->next = req;
    } else {
        q->head = req;
    }
    q->tail = req;
}

static struct io_req *pop_req(struct reqs *q) {
    struct io_req *req = q->head;
    assert(req);
    q->head = req->next;
    return req;
}

static void push_job(struct jobs *q, struct io_job *job) {
    job->next = NULL;
    if (q->head) {
        q->tail->next = job;
    } else {
        q->head = job;
    }
    q->tail = job;
}

static struct io_job *pop_job(struct jobs *q) {
    struct io_job *job = q->head;
    assert(job);
    q->head = job->next;
    return job;
}

// ---- Workers

/** Puts a finished write or job where the event loop finds it. Who fills an empty list signals, others
 *  ride along; each list for itself, as they are taken one after the other. */
static void finish(struct io_threads *t, struct io_req *req, struct io_job *job) {
    pthread_mutex_lock(&t->done_lock);
    bool first = req ? !t->done_writes.head : !t->done_jobs.head;
    if (req) {
        push_req(&t->done_writes, req);
    } else {
        push_job(&t->done_jobs, job);
    }
    pthread_mutex_unlock(&t->done_lock);
    if (first) {
        eventfd_write(t->event_fd, 1);
    }
}

static unsigned runnable_writes(const struct pool *p) {
    return (unsigned)min_u64(p->writes_queued, IO_DEPTH - p->writes_running);
}

static unsigned runnable_jobs(const struct pool *p) {
    return (unsigned)min_u64(p->jobs_queued, IO_WORKERS_DEVICE - p->jobs_running);
}

static unsigned runnable(const struct pool *p) {
    return runnable_writes(p) + runnable_jobs(p);
}

static void run_write(struct pool *p) {
    struct io_req *req = pop_req(&p->writes);
    p->writes_queued--;
    p->writes_running++;
    pthread_mutex_unlock(&p->lock);
    current_number = req->number;
    req->result = io_calls.pwrite_all(req->fd, req->buf, req->len, req->off);
    current_number = 0;
    finish(p->owner, req, NULL);
    pthread_mutex_lock(&p->lock);
    p->writes_running--;
}

static void run_job(struct pool *p) {
    struct io_job *job = pop_job(&p->jobs);
    p->jobs_queued--;
    p->jobs_running++;
    pthread_mutex_unlock(&p->lock);
    current_number = job->number;
    job->run(job);
    current_number = 0;
    finish(p->owner, NULL, job);
    pthread_mutex_lock(&p->lock);
    p->jobs_running--;
}

/** Runs one piece of work. Called, and returns, with the pool's lock held; runs without it. */
static void run_one(struct pool *p) {
    unsigned writes = runnable_writes(p), jobs = runnable_jobs(p);
    assert(writes + jobs > 0);
    bool job = jobs && (!writes || !p->job_last);
    p->job_last = job;
    if (job) {
        run_job(p);
    } else {
        run_write(p);
    }
}

static void *worker(void *arg) {
    struct pool *p = arg;
    pthread_setname_np(pthread_self(), "fastckpt-io");
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!runnable(p) && !p->stop) {
            pthread_cond_wait(&p->wake, &p->lock);
        }
        if (!runnable(p)) {
            break;
        }
        p->idle--;
        run_one(p);
        p->idle++;
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/** Signals are the event loop's. Those of faults stay open: a blocked one kills without running the handler that
 *  writes down whom to blame. */
static void worker_signals(sigset_t *set) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP};
    sigfillset(set);
    for (size_t i = 0; i < ARRAY_LEN(faults); i++) {
        sigdelset(set, faults[i]);
    }
}

/** One thread more for `p`, whose lock is held. A refusal (EAGAIN: a limit on processes) means to go on with those that
 *  there are. */
static void add_thread(struct pool *p) {
    sigset_t blocked, old;
    worker_signals(&blocked);
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0) {
        return;
    }
    pthread_attr_setstacksize(&attr, STACK_SIZE);
    pthread_sigmask(SIG_SETMASK, &blocked, &old);
    if (pthread_create(&p->threads[p->count], &attr, worker, p) == 0) {
        p->count++;
        p->idle++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
}

/** Sees to it that somebody does what was just queued. Called with the lock, which it gives back. */
static void engage(struct pool *p) {
    if (runnable(p) > p->idle && p->count < THREADS_MAX) {
        add_thread(p);
    }
    if (p->count == 0) {
        while (runnable(p)) { // not one thread to be had: slow is better than lost
            run_one(p);
        }
    }
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

// ---- The backend

static int threads_open(void **ret, int event_fd, char *why, size_t cap) {
    (void)why;
    (void)cap;
    struct io_threads *t = calloc(1, sizeof *t);
    if (!t) {
        return -ENOMEM;
    }
    t->event_fd = event_fd;
    pthread_mutex_init(&t->done_lock, NULL);
    for (unsigned i = 0; i < IO_DEVICES_MAX; i++) {
        t->pools[i].owner = t;
        pthread_mutex_init(&t->pools[i].lock, NULL);
        pthread_cond_init(&t->pools[i].wake, NULL);
    }
    *ret = t;
    return 0;
}

static void threads_close(void *b) {
    struct io_threads *t = b;
    for (unsigned i = 0; i < IO_DEVICES_MAX; i++) {
        struct pool *p = &t->pools[i];
        pthread_mutex_lock(&p->lock);
        p->stop = true;
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
        for (unsigned k = 0; k < p->count; k++) {
            pthread_join(p->threads[k], NULL);
        }
        pthread_cond_destroy(&p->wake);
        pthread_mutex_destroy(&p->lock);
    }
    pthread_mutex_destroy(&t->done_lock);
    free(t);
}

static int threads_write(void *b, struct io_req *req) {
    struct io_threads *t = b;
    struct pool *p = &t->pools[io_slot(&t->slots, req->device)];
    pthread_mutex_lock(&p->lock);
    push_req(&p->writes, req);
    p->writes_queued++;
    engage(p);
    return 0;
}

static struct io_req *threads_reap(void *b) {
    struct io_threads *t = b;
    pthread_mutex_lock(&t->done_lock);
    struct io_req *list = t->done_writes.head;
    t->done_writes.head = NULL;
    pthread_mutex_unlock(&t->done_lock);
    return list;
}

void io_threads_job(void *b, struct io_job *job) {
    struct io_threads *t = b;
    struct pool *p = &t->pools[io_slot(&t->slots, job->device)];
    pthread_mutex_lock(&p->lock);
    push_job(&p->jobs, job);
    p->jobs_queued++;
    engage(p);
}

struct io_job *io_threads_reap_jobs(void *b) {
    struct io_threads *t = b;
    pthread_mutex_lock(&t->done_lock);
    struct io_job *list = t->done_jobs.head;
    t->done_jobs.head = NULL;
    pthread_mutex_unlock(&t->done_lock);
    return list;
}

const struct io_backend io_threads_backend = {
    .name = "threads",
    .open = threads_open,
    .close = threads_close,
    .write = threads_write,
    .reap = threads_reap,
};
