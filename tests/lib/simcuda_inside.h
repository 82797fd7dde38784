// SPDX-License-Identifier: MIT
//
// simcuda: a CUDA runtime for tests, without a GPU, in the place of NVIDIA's libcudart.so.13: the rules that a program
// or a hook can run into (order of streams, captures, registrations, errors) and the time that copies take, and no
// arithmetic. This is what its parts share; what it can be told by environment variables:
//
//   SIMCUDA_TRACE=FILE         a line for every call, as it returns: process.thread number name(what) = error
//   SIMCUDA_SCALE=X            rates of copies, by this factor (1: pageable 5 GB/s, pinned 25, D2D 1000); 0: no wait
//   SIMCUDA_D2H=X              rates of copies to the host, by this factor besides (1)
//   SIMCUDA_MEMORY=MIB         memory of each device (4096)
//   SIMCUDA_PINNED=MIB         what may be pinned (no limit)
//   SIMCUDA_DEVICES=N          how many (1)
//   SIMCUDA_ATTR=A=V,...       what cudaDeviceGetAttribute says, by number
//   SIMCUDA_FAIL=[NAME:]N[:E]  call number N (call N of that name) does nothing but fail, with error E (999)
//   SIMCUDA_FAIL_WORK=N[:E]    copy, set or launch N fails when its turn comes, and with it the context, for good (700)
//
// simcuda.c          every call: trace, last error, failures to order, forks      simcuda_copy.c    copies and fills
// simcuda_memory.c   memory of devices, what the host has pinned                  simcuda_capture.c captures and graphs
// simcuda_stream.c   queues and their order, the clock                            simcuda_event.c   events
// simcuda_device.c   devices, kernels                                             simcuda_driver.c  libcuda.so.1

#ifndef FASTCKPT_SIMCUDA_INSIDE_H
#define FASTCKPT_SIMCUDA_INSIDE_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SIM_DEVICES 8

// ---- every call

/** What the call must return at once; 0: it may go on. The rest of a call is an expression given to RUN. */
cudaError_t sim_begin(const char *call);
/** Makes `e` the thread's last error if it is one, and writes the call into the trace. Returns it. */
cudaError_t sim_end(const char *call, cudaError_t e, const char *format, ...) __attribute__((format(printf, 3, 4)));

#define RUN_AS(call, expression, ...)                                                                                  \
    ({                                                                                                                 \
        cudaError_t error_ = sim_begin(call);                                                                          \
        if (error_ == cudaSuccess) {                                                                                   \
            error_ = (expression);                                                                                     \
        }                                                                                                              \
        sim_end(call, error_, __VA_ARGS__);                                                                            \
    })
#define RUN(expression, ...) RUN_AS(__func__, expression, __VA_ARGS__)
#define RUN_PAIR(expression, ...) RUN_AS(call, expression, __VA_ARGS__)

/** A function and its twin for which stream 0 is the thread's own. The body sees `call`, its name, and `own`. */
#define UNPACK(...) __VA_ARGS__
#define PAIR(name, suffix, arguments, ...)                                                                             \
    static cudaError_t sim_##name(const char *call, bool own, __VA_ARGS__);                                            \
    cudaError_t name(__VA_ARGS__);                                                                                     \
    cudaError_t name##_##suffix(__VA_ARGS__);                                                                          \
    cudaError_t name(__VA_ARGS__) {                                                                                    \
        return sim_##name(#name, false, UNPACK arguments);                                                             \
    }                                                                                                                  \
    cudaError_t name##_##suffix(__VA_ARGS__) {                                                                         \
        return sim_##name(#name "_" #suffix, true, UNPACK arguments);                                                  \
    }                                                                                                                  \
    static cudaError_t sim_##name(const char *call, bool own, __VA_ARGS__)

struct sim {
    pthread_mutex_t lock; // of all that follows, and of streams, events, captures and memory
    pthread_cond_t moved; // something was done, or there is something to do
    cudaError_t broken;   // of the context, for good
    unsigned devices;
    double scale, d2h;
};
extern struct sim sim;

/** The context has failed for good. Lock held. */
void sim_break(cudaError_t e);
/** Shall this piece of work, the next one, fail? */
cudaError_t sim_work_fails(void);
int sim_device(void); // the calling thread's
double sim_now(void); // seconds
void sim_complain(const char *format, ...) __attribute__((format(printf, 1, 2))); // a line on stderr

// ---- memory

enum sim_place { PAGEABLE, PINNED, DEVICE, MANAGED };

struct sim_range {
    enum sim_place place;
    char *base, *engine; // as the program and as the engine have it
    size_t size;
    int device;
    unsigned flags;
    bool allocated; // by us, not only registered
    struct sim_range *next;
};

/** Where [p, p + n) lies: its place and the address that the engine uses; cudaErrorInvalidValue if it is not in one
 *  piece. Lock held. */
cudaError_t sim_where(const void *p, size_t n, enum sim_place *place, char **engine, int *device);
void sim_memory_reset(int device); // lock held
cudaError_t sim_memory_free(int device, void *p);
/** What was pinned is no longer what is mapped there: a device would reach pages that nobody else has. */
bool sim_pages_gone(const char *p, size_t n);
void sim_memory_info(int device, size_t *free, size_t *total); // lock held
cudaError_t sim_memory_take(void **p, size_t n, enum sim_place place);

// ---- work and its order

struct sim_stream;

struct sim_point { // a place in a queue: reached when `done` of the stream is at least `at`
    struct sim_stream *stream;
    uint64_t at;
};

enum sim_kind { NOTHING, COPY, SET, LAUNCH, STAMP, HOST, CALLBACK, RELEASE };
enum sim_direction { H2D, D2H, D2D, H2H, DIRECTIONS };

struct sim_op {
    enum sim_kind kind;
    char *dst; // as the engine has it
    const char *src;
    size_t width, height, dpitch, spitch;
    enum sim_direction direction;
    double rate; // bytes a second
    char value[16]; // SET, LAUNCH: `unit` bytes of it, again and again; height 0: nothing
    size_t unit;
    double *stamp; // STAMP: the time
    void (*host)(void *);
    cudaStreamCallback_t callback;
    cudaStream_t handle;
    void *data;   // of host and callback; RELEASE: the memory
    int device;   // whose engine
    double ready; // when it was queued
    char *pinned; // the host's side of a copy, if pinned
    struct sim_point *before;
    unsigned n_before;
    uint64_t at;
    struct sim_op *next;
};

struct sim_stream {
    unsigned flags;
    int priority, device;
    unsigned id;
    bool gone, per_thread;
    pthread_t thread;
    bool started;
    struct sim_op *first, **last;
    uint64_t queued, done;
    double end; // of its last work
    struct sim_capture *capture;
    struct sim_stream *next;
};

/** The stream that a handle means. `own`: handle 0 is the thread's own stream. Lock held. */
cudaError_t sim_stream(cudaStream_t handle, bool own, struct sim_stream **stream);
/** The same for a call that puts work there: cudaErrorStreamCaptureImplicit for the legacy stream beside a capture. */
cudaError_t sim_stream_for_work(cudaStream_t handle, bool own, struct sim_stream **stream);
const char *sim_stream_name(cudaStream_t handle, bool own); // for the trace
/** Queues a copy of `op`, or adds it to the capture. Lock held. Returns 0, or why it cannot be. */
cudaError_t sim_submit(struct sim_stream *stream, const struct sim_op *op);
/** Queues and waits until it is done. Lock held, given up meanwhile. */
cudaError_t sim_submit_and_wait(struct sim_stream *stream, const struct sim_op *op);
/** Waits for everything queued. Lock held, given up meanwhile. `stream` NULL: for all of the device. */
cudaError_t sim_wait(struct sim_stream *stream, int device);
bool sim_reached(const struct sim_point *point);
void sim_before(struct sim_op *op, struct sim_stream *stream, uint64_t at); // op waits for that point
extern struct sim_stream *sim_streams;
void sim_streams_reset(int device); // lock held

// ---- captures

/** May the calling thread make a potentially unsafe call? cudaErrorStreamCaptureUnsupported if not: then the captures
 *  in the way are invalid. Lock held. */
cudaError_t sim_unsafe(void);
/** Is a blocking stream capturing? Those captures become invalid if `spoil`. Lock held. */
bool sim_capture_in_the_way(int device, bool spoil);
cudaError_t sim_captured(struct sim_stream *stream, const struct sim_op *op);
/** The capture of a stream fails with `e`. Lock held. */
cudaError_t sim_spoil(struct sim_stream *stream, cudaError_t e);
void sim_join(struct sim_stream *stream, struct sim_capture *capture); // a stream that waits for a captured event
bool sim_capture_lives(const struct sim_capture *capture);
void sim_captures_reset(int device);

// ---- what else is reset with the device

void sim_events_reset(int device);

#endif
