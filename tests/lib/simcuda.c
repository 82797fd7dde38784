// SPDX-License-Identifier: MIT
//
// What every call of the simulated CUDA runtime goes through: failures to order, forks, the end of the process, each
// thread's last error, the trace. And the functions that are about errors.

#include "tests/lib/simcuda_inside.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

struct sim sim = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER, .devices = 1, .scale = 1, .d2h = 1};

struct order { // of a failure
    char name[64];
    unsigned long at;
    cudaError_t error;
    unsigned long count;
};

static struct order fail = {.error = cudaErrorUnknown}, fail_work = {.error = cudaErrorIllegalAddress};
static unsigned long calls;
static int trace = -1;
static pid_t owner; // who made the context
static bool ended;
static __thread cudaError_t last;
static __thread unsigned long number; // of the call that the thread makes

static void read_order(const char *variable, struct order *order) {
    const char *text = getenv(variable);
    if (text == NULL) {
        return;
    }
    unsigned error = order->error;
    if (sscanf(text, "%63[_a-zA-Z0-9]:%lu:%u", order->name, &order->at, &error) < 2 ||
        (order->name[0] >= '0' && order->name[0] <= '9')) {
        order->name[0] = 0;
        if (sscanf(text, "%lu:%u", &order->at, &error) < 1) {
            sim_complain("%s=%s: not [NAME:]N[:ERROR]", variable, text);
            abort();
        }
    }
    order->error = error;
}

static void at_end(void) {
    ended = true;
}

__attribute__((constructor)) static void read_environment(void) {
    read_order("SIMCUDA_FAIL", &fail);
    read_order("SIMCUDA_FAIL_WORK", &fail_work);
    const char *text = getenv("SIMCUDA_TRACE");
    if (text != NULL) {
        trace = open(text, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    }
    text = getenv("SIMCUDA_DEVICES");
    sim.devices = text != NULL ? atoi(text) : 1;
    if (sim.devices > SIM_DEVICES) {
        sim.devices = SIM_DEVICES;
    }
    text = getenv("SIMCUDA_SCALE");
    sim.scale = text != NULL ? atof(text) : 1;
    text = getenv("SIMCUDA_D2H");
    sim.d2h = text != NULL ? atof(text) : 1;
    atexit(at_end);
}

/** Counts the call or piece of work. Returns the error if it is the one that shall fail. */
static cudaError_t turn(struct order *order, const char *name) {
    if (order->at == 0 || (order->name[0] != 0 && strcmp(order->name, name) != 0)) {
        return cudaSuccess;
    }
    return __atomic_add_fetch(&order->count, 1, __ATOMIC_RELAXED) == order->at ? order->error : cudaSuccess;
}

cudaError_t sim_begin(const char *call) {
    number = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    if (owner == 0) {
        owner = getpid();
    }
    if (owner != getpid()) {
        return cudaErrorInitializationError;
    }
    if (ended) {
        return cudaErrorCudartUnloading;
    }
    if (sim.devices == 0) {
        return cudaErrorNoDevice;
    }
    return sim.broken != cudaSuccess ? sim.broken : turn(&fail, call);
}

cudaError_t sim_end(const char *call, cudaError_t e, const char *format, ...) {
    if (e != cudaSuccess) {
        last = e;
    }
    if (trace >= 0) {
        char line[512];
        int n = snprintf(line, sizeof line, "%d.%d %lu %s(", getpid(), gettid(), number, call);
        va_list list;
        va_start(list, format);
        n += vsnprintf(line + n, sizeof line - n - 16, format, list);
        va_end(list);
        if (n > (int)sizeof line - 16) {
            n = sizeof line - 16;
        }
        n += snprintf(line + n, sizeof line - n, ") = %d\n", e);
        if (write(trace, line, n) != n) {
            abort();
        }
    }
    return e;
}

void sim_break(cudaError_t e) {
    if (sim.broken == cudaSuccess) {
        sim.broken = e;
    }
}

cudaError_t sim_work_fails(void) {
    return turn(&fail_work, "");
}

double sim_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

void sim_complain(const char *format, ...) {
    char line[256] = "simcuda: ";
    va_list list;
    va_start(list, format);
    size_t n = strlen(line);
    vsnprintf(line + n, sizeof line - n - 1, format, list);
    va_end(list);
    n = strlen(line);
    line[n] = '\n';
    if (write(STDERR_FILENO, line, n + 1) < 0) {
        abort();
    }
}

// ---------------------------------------------------------------------------------------------------- stubs

#define NAMED 512

/** Where the stubs end, which the build makes of the names that nothing here defines: says so, once for each. */
cudaError_t sim_not_there(const char *name);
cudaError_t sim_not_there(const char *name) {
    static const char *said[NAMED];
    cudaError_t e = sim_begin(name);
    if (e == cudaSuccess) {
        pthread_mutex_lock(&sim.lock);
        unsigned i = 0;
        while (i < NAMED - 1 && said[i] != NULL && said[i] != name) {
            i++;
        }
        bool known = said[i] == name;
        said[i] = name;
        pthread_mutex_unlock(&sim.lock);
        if (!known) {
            sim_complain("no %s here", name);
        }
        e = cudaErrorNotSupported;
    }
    return sim_end(name, e, "?");
}

// ---------------------------------------------------------------------------------------------------- errors

cudaError_t cudaGetLastError(void) {
    cudaError_t e = sim.broken != cudaSuccess ? sim.broken : last;
    last = cudaSuccess;
    number = 0; // it cannot fail
    sim_end(__func__, cudaSuccess, "%d", e);
    return e;
}

cudaError_t cudaPeekAtLastError(void) {
    cudaError_t e = sim.broken != cudaSuccess ? sim.broken : last;
    number = 0; // it cannot fail
    sim_end(__func__, cudaSuccess, "%d", e);
    return e;
}

#define ERRORS(x)                                                                                                      \
    x(cudaSuccess) x(cudaErrorInvalidValue) x(cudaErrorMemoryAllocation) x(cudaErrorInitializationError)               \
    x(cudaErrorCudartUnloading) x(cudaErrorInvalidPitchValue) x(cudaErrorInvalidMemcpyDirection) x(cudaErrorNoDevice)  \
    x(cudaErrorInvalidDevice) x(cudaErrorInvalidResourceHandle) x(cudaErrorIllegalState) x(cudaErrorNotReady)          \
    x(cudaErrorIllegalAddress) x(cudaErrorHostMemoryAlreadyRegistered) x(cudaErrorHostMemoryNotRegistered)             \
    x(cudaErrorLaunchFailure) x(cudaErrorNotSupported) x(cudaErrorStreamCaptureUnsupported)                            \
    x(cudaErrorStreamCaptureInvalidated) x(cudaErrorStreamCaptureMerge) x(cudaErrorStreamCaptureUnmatched)             \
    x(cudaErrorStreamCaptureUnjoined) x(cudaErrorStreamCaptureIsolation) x(cudaErrorStreamCaptureImplicit)             \
    x(cudaErrorCapturedEvent) x(cudaErrorStreamCaptureWrongThread) x(cudaErrorUnknown)

const char *cudaGetErrorName(cudaError_t e) {
    switch (e) {
#define NAME(error) case error: return #error;
        ERRORS(NAME)
    default: return "unrecognized error code";
    }
}

const char *cudaGetErrorString(cudaError_t e) {
    return e == cudaSuccess ? "no error" : cudaGetErrorName(e);
}
