// SPDX-License-Identifier: MIT
//
// Captures of the simulated CUDA runtime: which calls they forbid whom, what makes them invalid, and graphs, as far as
// to be launched: the work of a capture in the order in which it was captured.

#include "tests/lib/simcuda_inside.h"

#include <unistd.h>

struct sim_capture {
    unsigned long long id;
    enum cudaStreamCaptureMode mode;
    pid_t thread;
    bool invalid, ended;
    struct sim_stream *origin;
    struct sim_op *ops; // these are the graph's afterwards
    size_t n;
    struct sim_capture *next;
};

struct graph {
    struct sim_op *ops;
    size_t n;
};

static struct sim_capture *captures; // ended ones, too: events refer to them
static __thread enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

bool sim_capture_lives(const struct sim_capture *c) {
    return !c->ended;
}

cudaError_t sim_unsafe(void) {
    cudaError_t e = cudaSuccess;
    for (struct sim_capture *c = captures; c != NULL; c = c->next) {
        bool mine = c->thread == gettid() && c->mode != cudaStreamCaptureModeRelaxed;
        bool global = thread_mode == cudaStreamCaptureModeGlobal && c->mode == cudaStreamCaptureModeGlobal;
        if (!c->ended && thread_mode != cudaStreamCaptureModeRelaxed && (mine || global)) {
            c->invalid = true;
            e = cudaErrorStreamCaptureUnsupported;
        }
    }
    return e;
}

bool sim_capture_in_the_way(int device, bool spoil) {
    bool yes = false;
    for (struct sim_stream *s = sim_streams; s != NULL; s = s->next) {
        if (s->device == device && s->capture != NULL && (s->flags & cudaStreamNonBlocking) == 0) {
            s->capture->invalid |= spoil;
            yes = true;
        }
    }
    return yes;
}

cudaError_t sim_spoil(struct sim_stream *s, cudaError_t e) {
    if (s->capture->invalid) {
        return cudaErrorStreamCaptureInvalidated;
    }
    s->capture->invalid = true;
    return e;
}

cudaError_t sim_captured(struct sim_stream *s, const struct sim_op *op) {
    struct sim_capture *c = s->capture;
    if (c->invalid) {
        return cudaErrorStreamCaptureInvalidated;
    }
    c->ops = realloc(c->ops, (c->n + 1) * sizeof *c->ops);
    c->ops[c->n] = *op;
    c->ops[c->n].before = NULL;
    c->ops[c->n++].n_before = 0;
    return cudaSuccess;
}

void sim_join(struct sim_stream *s, struct sim_capture *c) {
    s->capture = c;
}

static void end(struct sim_capture *c) {
    c->ended = true;
    for (struct sim_stream *s = sim_streams; s != NULL; s = s->next) {
        if (s->capture == c) {
            s->capture = NULL;
        }
    }
}

void sim_captures_reset(int device) {
    for (struct sim_capture *c = captures; c != NULL; c = c->next) {
        if (c->origin->device == device) {
            end(c);
        }
    }
}

// ---------------------------------------------------------------------------------------------------- calls

static cudaError_t begin(cudaStream_t handle, bool own, enum cudaStreamCaptureMode mode) {
    static unsigned long long ids;
    struct sim_stream *s = NULL;
    pthread_mutex_lock(&sim.lock);
    cudaError_t e = sim_stream(handle, own, &s);
    bool legacy = handle == cudaStreamLegacy || (handle == NULL && !own);
    if (e == cudaSuccess && legacy) {
        e = cudaErrorStreamCaptureUnsupported;
    } else if (e == cudaSuccess && s->capture != NULL) {
        e = cudaErrorIllegalState;
    } else if (e == cudaSuccess && (unsigned)mode > cudaStreamCaptureModeRelaxed) {
        e = cudaErrorInvalidValue;
    }
    if (e == cudaSuccess) {
        struct sim_capture *c = calloc(1, sizeof *c);
        *c = (struct sim_capture){.id = ++ids, .mode = mode, .thread = gettid(), .origin = s, .next = captures};
        captures = c;
        s->capture = c;
    }
    pthread_mutex_unlock(&sim.lock);
    return e;
}

PAIR(cudaStreamBeginCapture, ptsz, (stream, mode), cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    return RUN_PAIR(begin(stream, own, mode), "%s mode=%d", sim_stream_name(stream, own), mode);
}

static cudaError_t end_capture(cudaStream_t handle, bool own, cudaGraph_t *graph) {
    struct sim_stream *s = NULL;
    pthread_mutex_lock(&sim.lock);
    cudaError_t e = sim_stream(handle, own, &s);
    struct sim_capture *c = e == cudaSuccess ? s->capture : NULL;
    if (e == cudaSuccess && c == NULL) {
        e = cudaErrorIllegalState;
    } else if (e == cudaSuccess && c->origin != s) {
        e = sim_spoil(s, cudaErrorStreamCaptureUnmatched);
    } else if (e == cudaSuccess && c->mode != cudaStreamCaptureModeRelaxed && c->thread != gettid()) {
        e = cudaErrorStreamCaptureWrongThread;
    } else if (e == cudaSuccess) {
        struct graph *g = NULL;
        if (c->invalid) {
            e = cudaErrorStreamCaptureInvalidated;
        } else {
            g = calloc(1, sizeof *g);
            *g = (struct graph){c->ops, c->n};
        }
        end(c);
        if (graph != NULL) {
            *graph = (cudaGraph_t)g;
        }
    }
    pthread_mutex_unlock(&sim.lock);
    return e;
}

PAIR(cudaStreamEndCapture, ptsz, (stream, graph), cudaStream_t stream, cudaGraph_t *graph) {
    return RUN_PAIR(end_capture(stream, own, graph), "%s", sim_stream_name(stream, own));
}

static cudaError_t status_of(cudaStream_t handle, bool own, enum cudaStreamCaptureStatus *status,
                             unsigned long long *id) {
    struct sim_stream *s = NULL;
    if (status == NULL) {
        return cudaErrorInvalidValue;
    }
    pthread_mutex_lock(&sim.lock);
    cudaError_t e = sim_stream(handle, own, &s);
    bool legacy = handle == cudaStreamLegacy || (handle == NULL && !own);
    if (e == cudaSuccess && legacy && sim_capture_in_the_way(s->device, false)) {
        e = cudaErrorStreamCaptureImplicit; // the capture stays valid
    } else if (e == cudaSuccess) {
        *status = s->capture == NULL ? cudaStreamCaptureStatusNone
                  : s->capture->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
        if (id != NULL && s->capture != NULL) {
            *id = s->capture->id;
        }
    }
    pthread_mutex_unlock(&sim.lock);
    return e;
}

PAIR(cudaStreamIsCapturing, ptsz, (stream, status), cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    return RUN_PAIR(status_of(stream, own, status, NULL), "%s status=%d", sim_stream_name(stream, own),
                    status != NULL ? (int)*status : -1);
}

PAIR(cudaStreamGetCaptureInfo, ptsz, (stream, status, id, graph, nodes, edges, n), cudaStream_t stream,
     enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes,
     const cudaGraphEdgeData **edges, size_t *n) {
    graph != NULL ? *graph = NULL : NULL;
    nodes != NULL ? *nodes = NULL : NULL;
    edges != NULL ? *edges = NULL : NULL;
    n != NULL ? *n = 0 : 0;
    return RUN_PAIR(status_of(stream, own, status, id), "%s status=%d", sim_stream_name(stream, own),
                    status != NULL ? (int)*status : -1);
}

static cudaError_t exchange(enum cudaStreamCaptureMode *mode) {
    if (mode == NULL || (unsigned)*mode > cudaStreamCaptureModeRelaxed) {
        return cudaErrorInvalidValue;
    }
    enum cudaStreamCaptureMode was = thread_mode;
    thread_mode = *mode;
    *mode = was;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    int wanted = mode != NULL ? (int)*mode : -1;
    return RUN(exchange(mode), "%d was %d", wanted, mode != NULL ? (int)*mode : -1);
}

// ---------------------------------------------------------------------------------------------------- graphs

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    return RUN(graph == NULL ? cudaErrorInvalidValue : (*exec = (cudaGraphExec_t)graph, cudaSuccess), "%p flags=%llu",
               (void *)graph, flags);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
    return RUN(graph == NULL ? cudaErrorInvalidValue : (*exec = (cudaGraphExec_t)graph, cudaSuccess), "%p flags=%llu",
               (void *)graph, flags);
}

static cudaError_t launch(const struct graph *g, cudaStream_t stream, bool own) {
    struct sim_stream *s = NULL;
    if (g == NULL) {
        return cudaErrorInvalidValue;
    }
    pthread_mutex_lock(&sim.lock);
    cudaError_t e = sim_stream_for_work(stream, own, &s);
    for (size_t i = 0; e == cudaSuccess && i < g->n; i++) {
        e = sim_submit(s, &g->ops[i]);
    }
    pthread_mutex_unlock(&sim.lock);
    return e;
}

PAIR(cudaGraphLaunch, ptsz, (exec, stream), cudaGraphExec_t exec, cudaStream_t stream) {
    return RUN_PAIR(launch((struct graph *)exec, stream, own), "%p %s", (void *)exec, sim_stream_name(stream, own));
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n) {
    return RUN(graph == NULL || nodes != NULL ? cudaErrorInvalidValue
                                              : (*n = ((struct graph *)graph)->n, cudaSuccess), "%p", (void *)graph);
}

// A graph and what was made of it share their work: it stays.
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    return RUN(graph == NULL ? cudaErrorInvalidValue : cudaSuccess, "%p", (void *)graph);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    return RUN(exec == NULL ? cudaErrorInvalidValue : cudaSuccess, "%p", (void *)exec);
}
