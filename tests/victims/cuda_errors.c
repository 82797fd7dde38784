// SPDX-License-Identifier: MIT
//
// cuda_errors NAME: asks a CUDA runtime for its rules about errors, captures, forks and ends, and the simulated one for
// failures to order.

#include "cuda_rules.h"

#include <sys/wait.h>

static char *device, *pinned;
static char host[MIB];

static void begin(void) {
    OK(cudaMalloc((void **)&device, MIB));
    OK(cudaHostAlloc((void **)&pinned, MIB, 0));
}

static cudaStream_t stream_with(unsigned flags) {
    cudaStream_t s;
    OK(cudaStreamCreateWithFlags(&s, flags));
    return s;
}

static enum cudaStreamCaptureStatus status(cudaStream_t s) {
    enum cudaStreamCaptureStatus status;
    OK(cudaStreamIsCapturing(s, &status));
    return status;
}

/** Ends the capture, which must be one that is still valid, or not. */
static void end(cudaStream_t s, cudaError_t wanted) {
    cudaGraph_t graph;
    MUST(cudaStreamEndCapture(s, &graph), wanted);
    MUST(graph != NULL, wanted == cudaSuccess);
    MUST(status(s), cudaStreamCaptureStatusNone);
}

// ---------------------------------------------------------------------------------------------------- captures

static void captured(void) {
    begin();
    cudaStream_t s = stream_with(cudaStreamNonBlocking);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t n;
    memset(pinned, 0, MIB);
    OK(cudaMemset(device, 3, MIB));
    OK(cudaDeviceSynchronize()); // s does not wait for it
    MUST(cudaStreamBeginCapture(0, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    MUST(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal), cudaErrorIllegalState);
    MUST(status(s), cudaStreamCaptureStatusActive);
    OK(cudaMemcpyAsync(pinned, device, MIB, cudaMemcpyDeviceToHost, s));
    OK(cudaMemsetAsync(device, 4, MIB, s));
    OK(cudaStreamEndCapture(s, &graph));
    OK(cudaGraphGetNodes(graph, NULL, &n));
    MUST(n, 2);
    OK(cudaStreamSynchronize(s));
    MUST(pinned[5], 0); // nothing was done
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, s));
    OK(cudaStreamSynchronize(s));
    MUST(pinned[5], 3);
    OK(cudaGraphLaunch(exec, s));
    OK(cudaStreamSynchronize(s));
    MUST(pinned[5], 4);
}

/** Calls that a capturing thread may not make, each of which spoils it. */
static void forbidden(void) {
    begin();
    cudaStream_t s = stream_with(cudaStreamNonBlocking);
    cudaEvent_t e;
    void *p;
    OK(cudaEventCreate(&e));
    for (int i = 0; i < 8; i++) {
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
        cudaError_t (*const none)(void) = cudaDeviceSynchronize;
        cudaError_t got = i == 0   ? cudaMalloc(&p, 4096)
                          : i == 1 ? cudaStreamSynchronize(s)
                          : i == 2 ? cudaStreamQuery(s)
                          : i == 3 ? none()
                          : i == 4 ? cudaMemcpyAsync(host, device, MIB, cudaMemcpyDeviceToHost, s) // pageable
                          : i == 5 ? cudaHostRegister(host, MIB, 0)
                          : i == 6 ? cudaEventQuery(e)
                                   : cudaMemcpy(host, device, MIB, cudaMemcpyDeviceToHost);
        MUST(got, cudaErrorStreamCaptureUnsupported);
        MUST(status(s), cudaStreamCaptureStatusInvalidated);
        MUST(cudaMemsetAsync(device, 1, 10, s), cudaErrorStreamCaptureInvalidated);
        end(s, cudaErrorStreamCaptureInvalidated);
    }
    MUST(cudaStreamEndCapture(s, NULL), cudaErrorIllegalState);
}

/** The legacy stream beside the capture of a blocking stream, and of another one. */
static void implicit(void) {
    enum cudaStreamCaptureStatus status_of;
    begin();
    cudaStream_t s = stream_with(0), t = stream_with(cudaStreamNonBlocking);
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    MUST(cudaStreamIsCapturing(0, &status_of), cudaErrorStreamCaptureImplicit);
    MUST(cudaGetLastError(), cudaErrorStreamCaptureImplicit);
    MUST(status(s), cudaStreamCaptureStatusActive); // a question spoils nothing
    MUST(cudaMemcpyAsync(host, device, MIB, cudaMemcpyDeviceToHost, 0), cudaErrorStreamCaptureImplicit);
    MUST(status(s), cudaStreamCaptureStatusInvalidated);
    end(s, cudaErrorStreamCaptureInvalidated);
    OK(cudaStreamBeginCapture(t, cudaStreamCaptureModeRelaxed));
    OK(cudaMemcpyAsync(host, device, MIB, cudaMemcpyDeviceToHost, 0));
    OK(cudaStreamIsCapturing(0, &status_of));
    end(t, cudaSuccess);
}

struct other {
    enum cudaStreamCaptureMode mode; // of the thread
    cudaError_t wanted;
};

static void *asks(void *arg) {
    const struct other *o = arg;
    enum cudaStreamCaptureMode mode = o->mode;
    void *p;
    cudaStream_t s = stream_with(cudaStreamNonBlocking);
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    MUST(mode, cudaStreamCaptureModeGlobal);
    MUST(cudaMalloc(&p, 4096), o->wanted);
    MUST(cudaStreamSynchronize(s), o->wanted);
    OK(cudaMemcpyAsync(pinned, device, MIB, cudaMemcpyDeviceToHost, s)); // has its place in an order: never unsafe
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    MUST(mode, o->mode);
    return NULL;
}

/** What another thread may do beside a capture. */
static void threads(void) {
    begin();
    cudaStream_t s = stream_with(cudaStreamNonBlocking);
    for (int capture = cudaStreamCaptureModeGlobal; capture <= cudaStreamCaptureModeRelaxed; capture++) {
        for (int mode = cudaStreamCaptureModeGlobal; mode <= cudaStreamCaptureModeRelaxed; mode++) {
            int spoils = capture == cudaStreamCaptureModeGlobal && mode == cudaStreamCaptureModeGlobal;
            struct other o = {mode, spoils ? cudaErrorStreamCaptureUnsupported : cudaSuccess};
            OK(cudaStreamBeginCapture(s, capture));
            in_thread(asks, &o);
            end(s, spoils ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
        }
    }
    // The capturing thread itself, relaxed for the moment.
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    void *p;
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    OK(cudaMalloc(&p, 4096));
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    end(s, cudaSuccess);
}

static void *ends(void *s) {
    cudaGraph_t graph;
    MUST(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureWrongThread);
    return NULL;
}

/** A second stream joins a capture by an event; what has nothing to do with it may not. */
static void joined(void) {
    begin();
    cudaStream_t s = stream_with(cudaStreamNonBlocking), t = stream_with(cudaStreamNonBlocking);
    cudaEvent_t e, before;
    OK(cudaEventCreate(&e));
    OK(cudaEventCreate(&before));
    OK(cudaEventRecord(before, t));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    OK(cudaEventRecord(e, s));
    OK(cudaStreamWaitEvent(t, e, 0));
    MUST(status(t), cudaStreamCaptureStatusActive);
    MUST(cudaEventSynchronize(e), cudaErrorCapturedEvent);
    end(s, cudaSuccess);
    MUST(status(t), cudaStreamCaptureStatusNone);
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    MUST(cudaStreamWaitEvent(s, before, 0), cudaErrorStreamCaptureIsolation);
    end(s, cudaErrorStreamCaptureInvalidated);
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    in_thread(ends, s);
    end(s, cudaSuccess);
}

// ---------------------------------------------------------------------------------------------------- errors

static void *asks_last(void *arg) {
    (void)arg;
    MUST(cudaPeekAtLastError(), cudaSuccess);
    MUST(cudaFree(host), cudaErrorInvalidValue);
    return NULL;
}

static void last(void) {
    begin();
    MUST(cudaMemcpy(host, device, MIB, 77), cudaErrorInvalidMemcpyDirection);
    in_thread(asks_last, NULL);
    OK(cudaDeviceSynchronize());
    MUST(cudaPeekAtLastError(), cudaErrorInvalidMemcpyDirection);
    MUST(cudaGetLastError(), cudaErrorInvalidMemcpyDirection);
    MUST(cudaGetLastError(), cudaSuccess);
    TRUE(strcmp(cudaGetErrorName(cudaErrorNotReady), "cudaErrorNotReady") == 0);
}

/** SIMCUDA_FAIL_WORK=2: the second piece of work fails, and everything after it. */
static void sticky(void) {
    begin();
    cudaStream_t s = stream_with(0);
    memset(pinned, 9, MIB);
    OK(cudaMemsetAsync(device, 1, MIB, s));
    OK(cudaMemcpyAsync(pinned, device, MIB, cudaMemcpyDeviceToHost, s));
    MUST(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
    MUST(pinned[0], 9);
    MUST(cudaGetLastError(), cudaErrorIllegalAddress);
    MUST(cudaGetLastError(), cudaErrorIllegalAddress);
    void *p;
    MUST(cudaMalloc(&p, 4096), cudaErrorIllegalAddress);
    MUST(cudaMemcpyAsync(host, device, MIB, cudaMemcpyDeviceToHost, s), cudaErrorIllegalAddress);
}

/** SIMCUDA_FAIL=cudaStreamSynchronize:2:46 */
static void ordered(void) {
    begin();
    OK(cudaStreamSynchronize(0));
    MUST(cudaStreamSynchronize(0), cudaErrorDevicesUnavailable);
    MUST(cudaGetLastError(), cudaErrorDevicesUnavailable);
    OK(cudaStreamSynchronize(0));
}

/** SIMCUDA_FAIL=3: the third call of all. */
static void third(void) {
    begin();
    MUST(cudaStreamSynchronize(0), cudaErrorUnknown);
    OK(cudaStreamSynchronize(0));
}

static void reset(void) {
    begin();
    cudaStream_t s = stream_with(0);
    struct cudaPointerAttributes a;
    OK(cudaHostRegister(host, MIB, 0));
    OK(cudaDeviceReset());
    MUST(cudaFree(device), cudaErrorInvalidValue);
    MUST(cudaStreamQuery(s), cudaErrorInvalidResourceHandle);
    OK(cudaPointerGetAttributes(&a, host));
    MUST(a.type, cudaMemoryTypeUnregistered);
    begin();
    OK(cudaMemcpy(host, device, MIB, cudaMemcpyDeviceToHost));
}

static void stub(void) {
    cudaGraph_t graph;
    for (int i = 0; i < 3; i++) {
        MUST(cudaGraphCreate(&graph, 0), cudaErrorNotSupported);
    }
    MUST(cudaGetLastError(), cudaErrorNotSupported);
}

/** SIMCUDA_DEVICES=2. */
static void devices(void) {
    int n;
    begin();
    cudaStream_t s = stream_with(0);
    cudaEvent_t e;
    struct cudaPointerAttributes a;
    OK(cudaGetDeviceCount(&n));
    MUST(n, 2);
    MUST(cudaSetDevice(2), cudaErrorInvalidDevice);
    OK(cudaSetDevice(1));
    OK(cudaEventCreate(&e));
    MUST(cudaEventRecord(e, s), cudaErrorInvalidResourceHandle);
    OK(cudaEventRecord(e, 0));
    OK(cudaPointerGetAttributes(&a, device));
    MUST(a.device, 0);
    OK(cudaMemcpyAsync(host, device, MIB, cudaMemcpyDeviceToHost, s));
}

// ---------------------------------------------------------------------------------------------------- processes

static void forks(void) {
    void *p;
    int got;
    pid_t pid = fork();
    if (pid == 0) {
        _exit(cudaMalloc(&p, 4096)); // nobody has used the device before
    }
    MUST(waitpid(pid, &got, 0), pid);
    MUST(WEXITSTATUS(got), cudaSuccess);
    begin();
    pid = fork();
    if (pid == 0) {
        _exit(cudaMemcpy(host, device, MIB, cudaMemcpyDeviceToHost) * 10 + cudaGetLastError());
    }
    MUST(waitpid(pid, &got, 0), pid);
    MUST(WEXITSTATUS(got), cudaErrorInitializationError * 11);
    OK(cudaMemcpy(host, device, MIB, cudaMemcpyDeviceToHost));
}

static int late;

static void at_the_end(int status, void *arg) {
    (void)status, (void)arg;
    if (late) {
        printf("%d\n", cudaFree(device));
        fflush(stdout);
    }
}

/** Before any library has begun: so it is called after all of them have ended. */
static void before_all(void) {
    on_exit(at_the_end, NULL);
}

__attribute__((section(".preinit_array"), used)) static void (*const first)(void) = before_all;

static void unloading(void) {
    begin();
    late = 1;
}

int main(int argc, char **argv) {
    static const struct rule rules[] = {
        {"captured", captured}, {"forbidden", forbidden}, {"implicit", implicit}, {"threads", threads},
        {"joined", joined}, {"last", last}, {"sticky", sticky}, {"ordered", ordered}, {"third", third},
        {"reset", reset}, {"stub", stub}, {"devices", devices}, {"forks", forks}, {"unloading", unloading},
        {NULL, NULL}};
    return argc < 2 ? 2 : run_rule(rules, argv[1]);
}
