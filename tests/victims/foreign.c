// SPDX-License-Identifier: MIT
//
// foreign: saves a file, and a program without the shim (LD_PRELOAD removed) writes to the same descriptor: in
// mid-save, or last. The bytes of both must lie where the shared offset puts them.   foreign PATH middle|last MIB

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int fd;

static void block(int mib, unsigned seed) {
    size_t n = 1 << 20;
    uint32_t *b = malloc(n);
    for (int i = 0; i < mib; i++) {
        for (size_t k = 0; k < n / 4; k++) {
            b[k] = (uint32_t)(k * 2654435761u) ^ (seed + (unsigned)i);
        }
        if (write(fd, b, n) != (ssize_t)n) {
            perror("write");
            exit(1);
        }
    }
    free(b);
}

static void stranger(void) {
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fd, 1);
        unsetenv("LD_PRELOAD");
        execl("/bin/sh", "sh", "-c", "echo stranger begins; head -c 3000001 /dev/zero | tr '\\0' s; echo stranger ends",
              (char *)NULL);
        _exit(127);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (status != 0) {
        fprintf(stderr, "the stranger failed: %d\n", status);
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc < 4) {
        return 2;
    }
    fd = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0) {
        perror(argv[1]);
        return 1;
    }
    block(atoi(argv[3]), 1);
    stranger();
    if (strcmp(argv[2], "middle") == 0) {
        block(atoi(argv[3]), 1000);
    }
    printf("%lld\n", (long long)lseek(fd, 0, SEEK_CUR));
    return close(fd) != 0;
}
