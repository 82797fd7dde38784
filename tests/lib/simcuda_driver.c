// SPDX-License-Identifier: MIT
//
// What of the simulated libcuda.so.1 is more than a stub: PyTorch asks whether a device is in use, and names errors.
// Only the simulated runtime computes; nothing goes by the driver.

#include <stddef.h>

#define VERSION       13020
#define NOT_SUPPORTED 801

int cuInit(unsigned flags);
int cuInit(unsigned flags) {
    (void)flags;
    return 0;
}

int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version) {
    *version = VERSION;
    return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active);
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0;
    *active = device == 0;
    return 0;
}

int cuCtxGetCurrent(void **context);
int cuCtxGetCurrent(void **context) {
    static char one;
    *context = &one;
    return 0;
}

int cuCtxSetCurrent(void *context);
int cuCtxSetCurrent(void *context) {
    (void)context;
    return 0;
}

int cuGetErrorString(int error, const char **text);
int cuGetErrorString(int error, const char **text) {
    *text = error == NOT_SUPPORTED ? "not in the simulated driver" : "?";
    return 0;
}

/** Where the stubs end. */
int sim_not_there(const char *name);
int sim_not_there(const char *name) {
    (void)name;
    return NOT_SUPPORTED;
}
