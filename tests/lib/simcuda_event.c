// SPDX-License-Identifier: MIT
//
// Events of the simulated CUDA runtime: a point in the queue of a stream, or in a capture.

#include "tests/lib/simcuda_inside.h"

struct event {
    unsigned flags;
    int device;
    bool gone;
    struct sim_point at; // stream NULL: never recorded
    struct sim_capture *capture; // it was last recorded in
    double *stamp; // the newest; older ones may still be written
    struct event *next;
};

static struct event *events;

static struct event *event_of(cudaEvent_t handle) {
    for (struct event *e = events; e != NULL; e = e->next) {
        if (e == (struct event *)handle && !e->gone) {
            return e;
        }
    }
    return NULL;
}

void sim_events_reset(int device) {
    for (struct event *e = events; e != NULL; e = e->next) {
        e->gone |= e->device == device;
    }
}

static cudaError_t create(cudaEvent_t *handle, unsigned flags) {
    bool lacks = (flags & cudaEventInterprocess) != 0 && (flags & cudaEventDisableTiming) == 0;
    if (handle == NULL || flags > 7 || lacks) {
        return cudaErrorInvalidValue;
    }
    struct event *e = calloc(1, sizeof *e);
    pthread_mutex_lock(&sim.lock);
    *e = (struct event){.flags = flags, .device = sim_device(), .next = events};
    events = e;
    pthread_mutex_unlock(&sim.lock);
    *handle = (cudaEvent_t)e;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return RUN(create(event, 0), "%p", event != NULL ? (void *)*event : NULL);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    return RUN(create(event, flags), "%p flags=%u", event != NULL ? (void *)*event : NULL, flags);
}

static cudaError_t destroy(cudaEvent_t handle) {
    pthread_mutex_lock(&sim.lock);
    struct event *e = event_of(handle);
    if (e != NULL) {
        e->gone = true;
    }
    pthread_mutex_unlock(&sim.lock);
    return e != NULL ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return RUN(destroy(event), "%p", (void *)event);
}

static cudaError_t record(cudaEvent_t handle, cudaStream_t stream, bool own) {
    struct sim_stream *s = NULL;
    pthread_mutex_lock(&sim.lock);
    struct event *e = event_of(handle);
    cudaError_t error = e != NULL ? sim_stream_for_work(stream, own, &s) : cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess && s->device != e->device) {
        error = cudaErrorInvalidResourceHandle;
    }
    if (error == cudaSuccess) {
        double *stamp = malloc(sizeof *stamp); // the queue may outlive the event
        struct sim_capture *capture = s->capture;
        error = sim_submit(s, &(struct sim_op){.kind = STAMP, .stamp = stamp});
        if (error == cudaSuccess) {
            e->stamp = stamp;
            e->at = (struct sim_point){s, s->queued};
            e->capture = capture;
        }
    }
    pthread_mutex_unlock(&sim.lock);
    return error;
}

PAIR(cudaEventRecord, ptsz, (event, stream), cudaEvent_t event, cudaStream_t stream) {
    return RUN_PAIR(record(event, stream, own), "%p %s", (void *)event, sim_stream_name(stream, own));
}

PAIR(cudaEventRecordWithFlags, ptsz, (event, stream, flags), cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    return RUN_PAIR(record(event, stream, own), "%p %s flags=%u", (void *)event, sim_stream_name(stream, own), flags);
}

static cudaError_t ask(cudaEvent_t handle, bool wait) {
    pthread_mutex_lock(&sim.lock);
    struct event *e = event_of(handle);
    cudaError_t error = e != NULL ? sim_unsafe() : cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess && e->capture != NULL) {
        error = cudaErrorCapturedEvent;
    }
    if (error == cudaSuccess && e->at.stream != NULL) {
        struct sim_point at = e->at; // as it is now: it may be recorded again meanwhile
        while (wait && !sim_reached(&at)) {
            pthread_cond_wait(&sim.moved, &sim.lock);
        }
        error = sim.broken != cudaSuccess ? sim.broken : sim_reached(&at) ? cudaSuccess : cudaErrorNotReady;
    }
    pthread_mutex_unlock(&sim.lock);
    return error;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return RUN(ask(event, false), "%p", (void *)event);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return RUN(ask(event, true), "%p", (void *)event);
}

static cudaError_t wait_for_event(cudaStream_t stream, cudaEvent_t handle, bool own) {
    struct sim_stream *s = NULL;
    pthread_mutex_lock(&sim.lock);
    struct event *e = event_of(handle);
    cudaError_t error = e != NULL ? sim_stream_for_work(stream, own, &s) : cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess && e->capture != NULL && sim_capture_lives(e->capture)) {
        if (s->capture == NULL) {
            sim_join(s, e->capture);
        } else if (s->capture != e->capture) {
            error = sim_spoil(s, cudaErrorStreamCaptureMerge);
        }
    } else if (error == cudaSuccess && s->capture != NULL && e->at.stream != NULL) {
        error = sim_spoil(s, cudaErrorStreamCaptureIsolation);
    } else if (error == cudaSuccess && e->at.stream != NULL) {
        struct sim_op op = {.kind = NOTHING};
        sim_before(&op, e->at.stream, e->at.at);
        error = sim_submit(s, &op);
        free(op.before);
    }
    pthread_mutex_unlock(&sim.lock);
    return error;
}

PAIR(cudaStreamWaitEvent, ptsz, (stream, event, flags), cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    return RUN_PAIR(wait_for_event(stream, event, own), "%s %p flags=%u", sim_stream_name(stream, own), (void *)event,
                    flags);
}

static cudaError_t elapsed(float *ms, cudaEvent_t from, cudaEvent_t to) {
    pthread_mutex_lock(&sim.lock);
    struct event *a = event_of(from), *b = event_of(to);
    cudaError_t error = cudaSuccess;
    if (a == NULL || b == NULL || a->at.stream == NULL || b->at.stream == NULL || a->capture != NULL ||
        b->capture != NULL || ((a->flags | b->flags) & cudaEventDisableTiming) != 0) {
        error = cudaErrorInvalidResourceHandle;
    } else if (!sim_reached(&a->at) || !sim_reached(&b->at)) {
        error = cudaErrorNotReady;
    } else {
        *ms = (*b->stamp - *a->stamp) * 1e3;
    }
    pthread_mutex_unlock(&sim.lock);
    return error;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    return RUN(elapsed(ms, from, to), "%p %p", (void *)from, (void *)to);
}
