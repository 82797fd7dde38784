// SPDX-License-Identifier: MIT
//
// Copies and sets of the simulated CUDA runtime: what lies where, what is refused, at which rate, and who waits.

#include "tests/lib/simcuda_inside.h"

#define GB 1e9

static const char *const directions[DIRECTIONS] = {"H2D", "D2H", "D2D", "H2H"};
static const char *const places[] = {"pageable", "pinned", "device", "managed"};

struct copy {
    struct sim_op op;
    enum sim_place dst, src;
    const char *said; // for the trace
    char text[24];
};

/** Does a pointer that lies there fit what the program says of it? */
static bool fits(enum sim_place place, bool device) {
    return place == MANAGED || (place == DEVICE) == device;
}

static cudaError_t kind_fits(const struct copy *c, enum cudaMemcpyKind kind) {
    switch (kind) {
    case cudaMemcpyHostToHost: return fits(c->src, false) && fits(c->dst, false) ? cudaSuccess : cudaErrorInvalidValue;
    case cudaMemcpyHostToDevice: return fits(c->src, false) && fits(c->dst, true) ? cudaSuccess : cudaErrorInvalidValue;
    case cudaMemcpyDeviceToHost: return fits(c->src, true) && fits(c->dst, false) ? cudaSuccess : cudaErrorInvalidValue;
    case cudaMemcpyDeviceToDevice: return fits(c->src, true) && fits(c->dst, true) ? cudaSuccess
                                                                                  : cudaErrorInvalidValue;
    case cudaMemcpyDefault: return cudaSuccess;
    default: return cudaErrorInvalidMemcpyDirection;
    }
}

/** Fills `c`. Lock held. */
static cudaError_t examine(struct copy *c, void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                           size_t height, enum cudaMemcpyKind kind) {
    char *from, *to;
    int device;
    if (dpitch < width || spitch < width) {
        return cudaErrorInvalidPitchValue;
    }
    cudaError_t e = sim_where(dst, dpitch * (height - 1) + width, &c->dst, &to, &device);
    if (e == cudaSuccess) {
        e = sim_where(src, spitch * (height - 1) + width, &c->src, &from, &device);
    }
    if (e == cudaSuccess) {
        e = kind_fits(c, kind);
    }
    if (e != cudaSuccess) {
        return e;
    }
    bool to_device = c->dst >= DEVICE, from_device = c->src >= DEVICE;
    enum sim_direction direction = from_device ? (to_device ? D2D : D2H) : to_device ? H2D : H2H;
    enum sim_place host = from_device ? c->dst : c->src;
    c->op = (struct sim_op){.kind = COPY, .dst = to, .src = from, .width = width, .height = height, .dpitch = dpitch,
                            .spitch = spitch, .direction = direction};
    c->op.rate = direction == D2D || direction == H2H ? 1000 * GB : host == PINNED ? 25 * GB : 5 * GB;
    c->op.rate *= direction == D2H ? sim.d2h : 1;
    c->op.pinned = host == PINNED && direction == D2H ? to : host == PINNED && direction == H2D ? from : NULL;
    char *end = stpcpy(c->text, directions[direction]);
    if (direction == D2H || direction == H2D) {
        stpcpy(stpcpy(end, " "), places[host]);
    }
    c->said = c->text;
    return cudaSuccess;
}

/** `now`: the call returns when the bytes are there. It does so in any case if the host's side is pageable. */
static cudaError_t copy(struct copy *c, void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                        size_t height, enum cudaMemcpyKind kind, cudaStream_t handle, bool own, bool now) {
    struct sim_stream *s = NULL;
    pthread_mutex_lock(&sim.lock);
    cudaError_t e = now ? sim_unsafe() : cudaSuccess;
    if (e == cudaSuccess) {
        e = sim_stream_for_work(handle, own, &s);
    }
    if (e == cudaSuccess && width * height > 0) {
        e = examine(c, dst, dpitch, src, spitch, width, height, kind);
        bool pageable = e == cudaSuccess && (c->dst == PAGEABLE || c->src == PAGEABLE);
        if (pageable && s->capture != NULL) {
            e = sim_spoil(s, cudaErrorStreamCaptureUnsupported);
        }
        if (e == cudaSuccess) {
            e = (now || pageable ? sim_submit_and_wait : sim_submit)(s, &c->op);
        }
    }
    pthread_mutex_unlock(&sim.lock);
    return e;
}

#define COPY_OF(...) copy(&c, __VA_ARGS__)
#define COPY_FORMAT  "%s %zu %s %p <- %p"
#define SAID         (c.said != NULL ? c.said : "-")

PAIR(cudaMemcpyAsync, ptsz, (dst, src, n, kind, stream), void *dst, const void *src, size_t n,
     enum cudaMemcpyKind kind, cudaStream_t stream) {
    struct copy c = {.said = NULL};
    return RUN_PAIR(COPY_OF(dst, n, src, n, n, 1, kind, stream, own, false), COPY_FORMAT, SAID, n,
                    sim_stream_name(stream, own), dst, src);
}

PAIR(cudaMemcpy, ptds, (dst, src, n, kind), void *dst, const void *src, size_t n, enum cudaMemcpyKind kind) {
    struct copy c = {.said = NULL};
    return RUN_PAIR(COPY_OF(dst, n, src, n, n, 1, kind, NULL, own, true), COPY_FORMAT, SAID, n,
                    sim_stream_name(NULL, own), dst, src);
}

PAIR(cudaMemcpy2DAsync, ptsz, (dst, dpitch, src, spitch, width, height, kind, stream), void *dst, size_t dpitch,
     const void *src, size_t spitch, size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    struct copy c = {.said = NULL};
    return RUN_PAIR(COPY_OF(dst, dpitch, src, spitch, width, height, kind, stream, own, false), COPY_FORMAT, SAID,
                    width * height, sim_stream_name(stream, own), dst, src);
}

PAIR(cudaMemcpy2D, ptds, (dst, dpitch, src, spitch, width, height, kind), void *dst, size_t dpitch, const void *src,
     size_t spitch, size_t width, size_t height, enum cudaMemcpyKind kind) {
    struct copy c = {.said = NULL};
    return RUN_PAIR(COPY_OF(dst, dpitch, src, spitch, width, height, kind, NULL, own, true), COPY_FORMAT, SAID,
                    width * height, sim_stream_name(NULL, own), dst, src);
}

cudaError_t cudaMemcpyPeer(void *dst, int to, const void *src, int from, size_t n) {
    struct copy c = {.said = NULL};
    return RUN(COPY_OF(dst, n, src, n, n, 1, cudaMemcpyDeviceToDevice, NULL, false, true), COPY_FORMAT " %d <- %d",
               SAID, n, "stream=legacy", dst, src, to, from);
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int to, const void *src, int from, size_t n, cudaStream_t stream) {
    struct copy c = {.said = NULL};
    return RUN(COPY_OF(dst, n, src, n, n, 1, cudaMemcpyDeviceToDevice, stream, false, false), COPY_FORMAT " %d <- %d",
               SAID, n, sim_stream_name(stream, false), dst, src, to, from);
}

/** Never waits for the device. */
static cudaError_t set(void *p, size_t pitch, int value, size_t width, size_t height, cudaStream_t handle, bool own,
                       bool unsafe) {
    struct sim_stream *s = NULL;
    enum sim_place place;
    char *engine;
    int device;
    if (pitch < width) {
        return cudaErrorInvalidPitchValue;
    }
    pthread_mutex_lock(&sim.lock);
    cudaError_t e = unsafe ? sim_unsafe() : cudaSuccess;
    if (e == cudaSuccess) {
        e = sim_stream_for_work(handle, own, &s);
    }
    if (e == cudaSuccess && width * height > 0) {
        e = sim_where(p, pitch * (height - 1) + width, &place, &engine, &device);
        if (e == cudaSuccess && place == PAGEABLE) {
            e = cudaErrorInvalidValue;
        }
        if (e == cudaSuccess) {
            e = sim_submit(s, &(struct sim_op){.kind = SET, .dst = engine, .width = width, .height = height,
                                               .dpitch = pitch, .unit = 1, .value = {value}});
        }
    }
    pthread_mutex_unlock(&sim.lock);
    return e;
}

PAIR(cudaMemsetAsync, ptsz, (p, value, n, stream), void *p, int value, size_t n, cudaStream_t stream) {
    return RUN_PAIR(set(p, n, value, n, 1, stream, own, false), "%p %d %zu %s", p, value, n,
                    sim_stream_name(stream, own));
}

PAIR(cudaMemset, ptds, (p, value, n), void *p, int value, size_t n) {
    return RUN_PAIR(set(p, n, value, n, 1, NULL, own, true), "%p %d %zu", p, value, n);
}

PAIR(cudaMemset2DAsync, ptsz, (p, pitch, value, width, height, stream), void *p, size_t pitch, int value, size_t width,
     size_t height, cudaStream_t stream) {
    return RUN_PAIR(set(p, pitch, value, width, height, stream, own, false), "%p %d %zu x %zu %s", p, value, width,
                    height, sim_stream_name(stream, own));
}

PAIR(cudaMemset2D, ptds, (p, pitch, value, width, height), void *p, size_t pitch, int value, size_t width,
     size_t height) {
    return RUN_PAIR(set(p, pitch, value, width, height, NULL, own, true), "%p %d %zu x %zu", p, value, width, height);
}
