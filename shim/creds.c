// SPDX-License-Identifier: MIT
//
// creds: see creds.h. The uid is read from /proc: setfsuid(-1) would say it faster, but a filter of system calls may
// kill who makes that call.

#include "creds.h"

#include "../core/os.h"

#include <string.h>

#define STATUS_BYTES 512 // "Uid:" is the ninth line

// The fourth number behind "Uid:" of the calling thread. False: it cannot be told.
static bool fsuid(uid_t *ret) {
    char text[STATUS_BYTES];
    const char *p = os_read_file("/proc/thread-self/status", text, sizeof text) > 0 ? strstr(text, "\nUid:") : NULL;
    for (int i = 0; i < 4 && p != NULL; i++) {
        p = strchr(p + 1, '\t');
    }
    if (p == NULL || p[1] < '0' || p[1] > '9') {
        return false;
    }
    *ret = 0;
    for (p++; *p >= '0' && *p <= '9'; p++) {
        *ret = *ret * 10 + (uid_t)(*p - '0');
    }
    return *p == '\n';
}

bool creds_own(uid_t owner) {
    uid_t uid;
    return fsuid(&uid) && uid == owner;
}

uid_t creds_euid(void) {
    return (uid_t)OS_CALL(SYS_geteuid, 0, 0, 0, 0, 0, 0);
}
