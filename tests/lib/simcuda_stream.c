// SPDX-License-Identifier: MIT
//
// Streams of the simulated CUDA runtime: a queue and a thread each. The order between queues is a list of points that
// a piece of work waits for: the legacy stream's waits for all blocking streams and they for it, and events. Copies
// take an engine, one a direction and device, for as long as the clock says.

#include "tests/lib/simcuda_inside.h"

#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#define BLOCKING(s) (((s)->flags & cudaStreamNonBlocking) == 0)

struct engine { // serves in the order of arrival
    pthread_mutex_t lock;
    pthread_cond_t moved;
    unsigned long next, served;
    double until;
};

struct sim_stream *sim_streams;
static struct sim_stream *legacy[SIM_DEVICES];
static __thread struct sim_stream *own_stream[SIM_DEVICES];
static struct engine engines[SIM_DEVICES][DIRECTIONS] = {
    [0 ... SIM_DEVICES - 1] = {
        [0 ... DIRECTIONS - 1] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0}}};

// ---------------------------------------------------------------------------------------------------- doing the work

static void move(const struct sim_op *op) {
    for (size_t row = 0; row < op->height; row++) {
        memmove(op->dst + row * op->dpitch, op->src + row * op->spitch, op->width);
    }
}

static void set(const struct sim_op *op) {
    for (size_t row = 0; row < op->height; row++) {
        char *p = op->dst + row * op->dpitch;
        if (op->unit == 1) {
            memset(p, op->value[0], op->width);
        } else {
            for (size_t i = 0; i + op->unit <= op->width; i += op->unit) {
                memcpy(p + i, op->value, op->unit);
            }
        }
    }
}

static void sleep_until(double t) {
    if (t > sim_now()) {
        struct timespec ts = {.tv_sec = t, .tv_nsec = (t - (time_t)t) * 1e9};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
    }
}

static void take_engine(struct engine *e) {
    pthread_mutex_lock(&e->lock);
    unsigned long turn = e->next++;
    while (e->served != turn) {
        pthread_cond_wait(&e->moved, &e->lock);
    }
    pthread_mutex_unlock(&e->lock);
}

static void leave_engine(struct engine *e) {
    pthread_mutex_lock(&e->lock);
    e->served++;
    pthread_cond_broadcast(&e->moved);
    pthread_mutex_unlock(&e->lock);
}

/** On the clock a copy begins when it could, not when this machine came to it: so many small ones take what they
 *  should. Returns when it ended. */
static double paced(const struct sim_op *op, double ready) {
    struct engine *e = &engines[op->device][op->direction];
    take_engine(e);
    double from = e->until > ready ? e->until : ready;
    if (op->pinned != NULL && sim_pages_gone(op->pinned, op->width)) {
        sim_complain("%p is pinned, but its pages were taken away: a copy went nowhere", op->pinned);
    } else {
        move(op);
    }
    double end = sim_now();
    if (sim.scale > 0) {
        double wanted = from + op->width * op->height / (op->rate * sim.scale);
        sleep_until(wanted);
        end = wanted > end ? wanted : end;
    }
    e->until = end;
    leave_engine(e);
    return end;
}

/** Returns when it ended, on the clock. */
static double carry_out(const struct sim_op *op, double ready) {
    switch (op->kind) {
    case COPY: return paced(op, ready);
    case SET:
    case LAUNCH: set(op); break;
    case STAMP: *op->stamp = sim_now(); break;
    case HOST: op->host(op->data); break;
    case CALLBACK: op->callback(op->handle, sim.broken, op->data); break;
    case RELEASE:
        pthread_mutex_lock(&sim.lock);
        sim_memory_free(op->device, op->data);
        pthread_mutex_unlock(&sim.lock);
        break;
    case NOTHING: break;
    }
    return sim_now();
}

bool sim_reached(const struct sim_point *point) {
    return point->stream->done >= point->at;
}

static bool may_begin(const struct sim_op *op, double *ready) {
    for (unsigned i = 0; i < op->n_before; i++) {
        if (!sim_reached(&op->before[i])) {
            return false;
        }
        if (op->before[i].stream->end > *ready) {
            *ready = op->before[i].stream->end;
        }
    }
    return true;
}

/** One piece of work. Lock held, given up meanwhile. */
static void next_op(struct sim_stream *s) {
    struct sim_op *op = s->first;
    double ready = op->ready > s->end ? op->ready : s->end;
    while (!may_begin(op, &ready)) {
        pthread_cond_wait(&sim.moved, &sim.lock);
    }
    bool work = op->kind == COPY || op->kind == SET || op->kind == LAUNCH || op->kind == HOST;
    cudaError_t e = work && op->kind != HOST && sim.broken == cudaSuccess ? sim_work_fails() : cudaSuccess;
    if (e != cudaSuccess) {
        sim_break(e);
    }
    if (!work || sim.broken == cudaSuccess) {
        pthread_mutex_unlock(&sim.lock);
        double end = carry_out(op, ready);
        pthread_mutex_lock(&sim.lock);
        s->end = end;
    }
    s->done = op->at;
    s->first = op->next;
    if (s->first == NULL) {
        s->last = &s->first;
    }
    free(op->before);
    free(op);
    pthread_cond_broadcast(&sim.moved);
}

static void *serve(void *arg) {
    struct sim_stream *s = arg;
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
    prctl(PR_SET_NAME, "simcuda", 0ul, 0ul, 0ul);
    pthread_mutex_lock(&sim.lock);
    while (s->first != NULL || !s->gone) {
        if (s->first != NULL) {
            next_op(s);
        } else {
            pthread_cond_wait(&sim.moved, &sim.lock);
        }
    }
    pthread_mutex_unlock(&sim.lock);
    return NULL;
}

/** The stream's thread: takes no signal of the program. */
static cudaError_t start(struct sim_stream *s) {
    sigset_t all, was;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    s->started = pthread_create(&s->thread, NULL, serve, s) == 0;
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    if (s->started) {
        pthread_detach(s->thread);
    }
    return s->started ? cudaSuccess : cudaErrorUnknown;
}

// ---------------------------------------------------------------------------------------------------- queues

void sim_before(struct sim_op *op, struct sim_stream *stream, uint64_t at) {
    if (stream->done >= at) {
        return;
    }
    op->before = realloc(op->before, (op->n_before + 1) * sizeof *op->before);
    op->before[op->n_before++] = (struct sim_point){stream, at};
}

cudaError_t sim_submit(struct sim_stream *s, const struct sim_op *op) {
    if (s->capture != NULL) {
        return sim_captured(s, op);
    }
    if (!s->started && start(s) != cudaSuccess) {
        return cudaErrorUnknown;
    }
    struct sim_op *new = malloc(sizeof *new);
    *new = *op;
    new->before = NULL;
    new->n_before = 0;
    for (unsigned i = 0; i < op->n_before; i++) {
        sim_before(new, op->before[i].stream, op->before[i].at);
    }
    if (s == legacy[s->device]) {
        for (struct sim_stream *other = sim_streams; other != NULL; other = other->next) {
            if (other != s && other->device == s->device && BLOCKING(other)) {
                sim_before(new, other, other->queued);
            }
        }
    } else if (BLOCKING(s) && legacy[s->device] != NULL) {
        sim_before(new, legacy[s->device], legacy[s->device]->queued);
    }
    new->device = s->device;
    new->ready = sim_now();
    new->at = ++s->queued;
    new->next = NULL;
    *s->last = new;
    s->last = &new->next;
    pthread_cond_broadcast(&sim.moved);
    return cudaSuccess;
}

static void wait_for(struct sim_stream *s, uint64_t at) {
    while (s->done < at) {
        pthread_cond_wait(&sim.moved, &sim.lock);
    }
}

cudaError_t sim_submit_and_wait(struct sim_stream *s, const struct sim_op *op) {
    cudaError_t e = sim_submit(s, op);
    if (e == cudaSuccess && s->capture == NULL) {
        wait_for(s, s->queued);
        e = sim.broken;
    }
    return e;
}

cudaError_t sim_wait(struct sim_stream *stream, int device) {
    if (stream != NULL && stream != legacy[stream->device]) {
        wait_for(stream, stream->queued);
    } else {
        // The legacy stream is behind all blocking ones.
        for (struct sim_stream *s = sim_streams; s != NULL; s = s->next) {
            if (s->device == device && (stream == NULL || BLOCKING(s))) {
                wait_for(s, s->queued);
            }
        }
    }
    return sim.broken;
}

static struct sim_stream *make(unsigned flags, int priority, int device) {
    static unsigned ids;
    struct sim_stream *s = calloc(1, sizeof *s);
    *s = (struct sim_stream){.flags = flags, .priority = priority, .device = device, .id = ++ids, .next = sim_streams};
    s->last = &s->first;
    sim_streams = s;
    return s;
}

cudaError_t sim_stream(cudaStream_t handle, bool own, struct sim_stream **stream) {
    int device = sim_device();
    if (legacy[device] == NULL) {
        legacy[device] = make(0, 0, device);
    }
    if (handle == cudaStreamPerThread || (handle == NULL && own)) {
        if (own_stream[device] == NULL || own_stream[device]->gone) {
            own_stream[device] = make(0, 0, device);
            own_stream[device]->per_thread = true;
        }
        *stream = own_stream[device];
        return cudaSuccess;
    }
    if (handle == NULL || handle == cudaStreamLegacy) {
        *stream = legacy[device];
        return cudaSuccess;
    }
    for (struct sim_stream *s = sim_streams; s != NULL; s = s->next) {
        if (s == (struct sim_stream *)handle && !s->gone) {
            *stream = s;
            return cudaSuccess;
        }
    }
    return cudaErrorInvalidResourceHandle;
}

cudaError_t sim_stream_for_work(cudaStream_t handle, bool own, struct sim_stream **stream) {
    cudaError_t e = sim_stream(handle, own, stream);
    if (e == cudaSuccess && *stream == legacy[(*stream)->device] && sim_capture_in_the_way((*stream)->device, true)) {
        e = cudaErrorStreamCaptureImplicit;
    }
    return e;
}

const char *sim_stream_name(cudaStream_t handle, bool own) {
    static __thread char name[32];
    if (handle == cudaStreamPerThread || (handle == NULL && own)) {
        return "stream=own";
    }
    if (handle == NULL || handle == cudaStreamLegacy) {
        return "stream=legacy";
    }
    const char digits[] = "0123456789abcdef";
    char *end = stpcpy(name, "stream=");
    for (int shift = 44; shift >= 0; shift -= 4) {
        *end++ = digits[(uintptr_t)handle >> shift & 15];
    }
    *end = 0;
    return name;
}

void sim_streams_reset(int device) {
    for (struct sim_stream *s = sim_streams; s != NULL; s = s->next) {
        s->gone |= s->device == device && s != legacy[device];
    }
    pthread_cond_broadcast(&sim.moved);
}

// ---------------------------------------------------------------------------------------------------- calls

static cudaError_t create(cudaStream_t *stream, unsigned flags, int priority) {
    if (stream == NULL || (flags & ~cudaStreamNonBlocking) != 0) {
        return cudaErrorInvalidValue;
    }
    pthread_mutex_lock(&sim.lock);
    *stream = (cudaStream_t)make(flags, priority > 0 ? 0 : priority < -5 ? -5 : priority, sim_device());
    pthread_mutex_unlock(&sim.lock);
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return RUN(create(stream, 0, 0), "%s", stream != NULL ? sim_stream_name(*stream, false) : "");
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return RUN(create(stream, flags, 0), "%s flags=%u", stream != NULL ? sim_stream_name(*stream, false) : "", flags);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    return RUN(create(stream, flags, priority), "%s flags=%u priority=%d",
               stream != NULL ? sim_stream_name(*stream, false) : "", flags, priority);
}

/** Returns at once: what is queued is still done. */
static cudaError_t destroy(cudaStream_t handle) {
    struct sim_stream *s = NULL;
    pthread_mutex_lock(&sim.lock);
    cudaError_t e = sim_stream(handle, false, &s);
    if (e == cudaSuccess && (handle == NULL || handle == cudaStreamLegacy || handle == cudaStreamPerThread)) {
        e = cudaErrorInvalidResourceHandle;
    }
    if (e == cudaSuccess && s->capture != NULL) {
        sim_spoil(s, cudaErrorStreamCaptureInvalidated);
        s->capture = NULL;
    }
    if (e == cudaSuccess) {
        s->gone = true;
        pthread_cond_broadcast(&sim.moved);
    }
    pthread_mutex_unlock(&sim.lock);
    return e;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return RUN(destroy(stream), "%s", sim_stream_name(stream, false));
}

static cudaError_t synchronize(cudaStream_t handle, bool own, bool wait) {
    struct sim_stream *s;
    pthread_mutex_lock(&sim.lock);
    cudaError_t e = sim_stream_for_work(handle, own, &s);
    if (e == cudaSuccess && s->capture != NULL) {
        e = sim_spoil(s, cudaErrorStreamCaptureUnsupported);
    }
    if (e == cudaSuccess) {
        e = sim_unsafe();
    }
    if (e == cudaSuccess && wait) {
        e = sim_wait(s, s->device);
    }
    if (e == cudaSuccess && !wait) {
        for (struct sim_stream *o = sim_streams; o != NULL; o = o->next) {
            bool counts = o == s || (s == legacy[s->device] && BLOCKING(o) && o->device == s->device);
            if (counts && o->done < o->queued) {
                e = cudaErrorNotReady;
            }
        }
    }
    pthread_mutex_unlock(&sim.lock);
    return e;
}

PAIR(cudaStreamSynchronize, ptsz, (stream), cudaStream_t stream) {
    return RUN_PAIR(synchronize(stream, own, true), "%s", sim_stream_name(stream, own));
}

PAIR(cudaStreamQuery, ptsz, (stream), cudaStream_t stream) {
    return RUN_PAIR(synchronize(stream, own, false), "%s", sim_stream_name(stream, own));
}

static cudaError_t synchronize_device(void) {
    pthread_mutex_lock(&sim.lock);
    cudaError_t e = sim_unsafe();
    if (e == cudaSuccess && sim_capture_in_the_way(sim_device(), true)) {
        e = cudaErrorStreamCaptureUnsupported;
    }
    if (e == cudaSuccess) {
        e = sim_wait(NULL, sim_device());
    }
    pthread_mutex_unlock(&sim.lock);
    return e;
}

cudaError_t cudaDeviceSynchronize(void) {
    return RUN(synchronize_device(), "%d", sim_device());
}

/** Some of a stream's properties; NULL: not asked for. */
static cudaError_t look(cudaStream_t handle, bool own, unsigned *flags, int *priority, unsigned long long *id,
                        int *device) {
    struct sim_stream *s = NULL;
    pthread_mutex_lock(&sim.lock);
    cudaError_t e = sim_stream(handle, own, &s);
    if (e == cudaSuccess) {
        flags != NULL ? *flags = s->flags : 0;
        priority != NULL ? *priority = s->priority : 0;
        id != NULL ? *id = s->id : 0;
        device != NULL ? *device = s->device : 0;
    }
    pthread_mutex_unlock(&sim.lock);
    return e;
}

PAIR(cudaStreamGetFlags, ptsz, (stream, flags), cudaStream_t stream, unsigned *flags) {
    return RUN_PAIR(look(stream, own, flags, NULL, NULL, NULL), "%s", sim_stream_name(stream, own));
}

PAIR(cudaStreamGetPriority, ptsz, (stream, priority), cudaStream_t stream, int *priority) {
    return RUN_PAIR(look(stream, own, NULL, priority, NULL, NULL), "%s", sim_stream_name(stream, own));
}

PAIR(cudaStreamGetId, ptsz, (stream, id), cudaStream_t stream, unsigned long long *id) {
    return RUN_PAIR(look(stream, own, NULL, NULL, id, NULL), "%s", sim_stream_name(stream, own));
}

PAIR(cudaStreamGetDevice, ptsz, (stream, device), cudaStream_t stream, int *device) {
    return RUN_PAIR(look(stream, own, NULL, NULL, NULL, device), "%s", sim_stream_name(stream, own));
}

/** Host functions: they may make no call of CUDA, and none of the checks here says so. */
static cudaError_t run_host(cudaStream_t handle, bool own, const struct sim_op *op) {
    struct sim_stream *s = NULL;
    pthread_mutex_lock(&sim.lock);
    cudaError_t e = sim_stream_for_work(handle, own, &s);
    if (e == cudaSuccess) {
        e = sim_submit(s, op);
    }
    pthread_mutex_unlock(&sim.lock);
    return e;
}

PAIR(cudaLaunchHostFunc, ptsz, (stream, fn, data), cudaStream_t stream, cudaHostFn_t fn, void *data) {
    return RUN_PAIR(run_host(stream, own, &(struct sim_op){.kind = HOST, .host = fn, .data = data}), "%s",
                    sim_stream_name(stream, own));
}

PAIR(cudaStreamAddCallback, ptsz, (stream, fn, data, flags), cudaStream_t stream, cudaStreamCallback_t fn, void *data,
     unsigned flags) {
    return RUN_PAIR(run_host(stream, own,
                             &(struct sim_op){.kind = CALLBACK, .callback = fn, .handle = stream, .data = data}),
                    "%s flags=%u", sim_stream_name(stream, own), flags);
}
