// SPDX-License-Identifier: MIT
//
// stdio_save: a C program that saves by fopen, fwrite, fseek, fprintf and fclose.
//   stdio_save PATH MIB

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    if (argc < 3) {
        return 2;
    }
    size_t n = 1 << 20;
    uint32_t *block = malloc(n);
    FILE *f = fopen(argv[1], "wb");
    if (!f || !block) {
        perror(argv[1]);
        return 1;
    }
    fprintf(f, "header %08d\n", 0);
    for (int i = 0; i < atoi(argv[2]); i++) {
        for (size_t k = 0; k < n / 4; k++) {
            block[k] = (uint32_t)(k * 2654435761u + (unsigned)i);
        }
        if (fwrite(block, 1, n, f) != n) {
            perror("fwrite");
            return 1;
        }
        fputc('\n', f);
    }
    long end = ftell(f);
    fseek(f, 0, SEEK_SET);
    fprintf(f, "header %08ld\n", end);
    fseek(f, 0, SEEK_END);
    fputs("tail\n", f);
    free(block);
    if (fclose(f) != 0) {
        perror("fclose");
        return 1;
    }
    printf("%ld\n", end);
    return 0;
}
