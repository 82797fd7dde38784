// SPDX-License-Identifier: MIT
//
// threads_save: eight threads save eight files at once, each with its own pattern and sizes that are no multiple of
// anything.   threads_save PREFIX MIB

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define THREADS 8

static const char *prefix;
static size_t mib;

static void *save(void *arg) {
    uintptr_t id = (uintptr_t)arg;
    size_t len = (mib << 20) + id * 12347;
    unsigned char *buf = malloc(len);
    uint64_t x = id + 1;
    for (size_t i = 0; i < len; i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        buf[i] = (unsigned char)(x >> 56);
    }
    char name[4096];
    snprintf(name, sizeof name, "%s%d", prefix, (int)id);
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    size_t done = 0, piece = 100003 * (id + 1);
    while (fd >= 0 && done < len) {
        ssize_t n = write(fd, buf + done, len - done < piece ? len - done : piece);
        if (n <= 0) {
            break;
        }
        done += (size_t)n;
    }
    free(buf);
    return (void *)(intptr_t)(fd < 0 || done != len || close(fd) != 0);
}

int main(int argc, char **argv) {
    pthread_t t[THREADS];
    int bad = 0;
    if (argc < 3) {
        return 2;
    }
    prefix = argv[1];
    mib = (size_t)atoi(argv[2]);
    for (uintptr_t i = 0; i < THREADS; i++) {
        pthread_create(&t[i], NULL, save, (void *)i);
    }
    for (int i = 0; i < THREADS; i++) {
        void *r;
        pthread_join(t[i], &r);
        bad |= r != NULL;
    }
    return bad;
}
