// SPDX-License-Identifier: MIT
//
// zip_writer: a library with the zip writer's function that PyTorch exports and calls by its symbol. It writes nothing
// but says, in a line, what it was called with. Compiled in several ways, for tests/system/torch_crc.py:
//   -DNAME=x    what it calls itself in the line
//   -DKNOWS     with the constructor that tells a PyTorch which takes checksums, from 2.6 on
//   -DNO_WRITER calls the function of a library that it needs

#include <stdint.h>
#include <stdio.h>
#include <time.h>

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)

int mz_zip_writer_add_mem_ex_v2(void *zip, const char *name, const void *buf, size_t len, const void *comment,
                                uint16_t comment_len, unsigned flags, uint64_t full_len, uint32_t crc, time_t *when,
                                const char *extra, unsigned extra_len, const char *central, unsigned central_len);

#ifndef NO_WRITER
int mz_zip_writer_add_mem_ex_v2(void *zip, const char *name, const void *buf, size_t len, const void *comment,
                                uint16_t comment_len, unsigned flags, uint64_t full_len, uint32_t crc, time_t *when,
                                const char *extra, unsigned extra_len, const char *central, unsigned central_len) {
    (void)buf;
    return snprintf(zip, 200, "%s %s %zu %s %u flags %x full %llu crc %x %d %s %u %s %u", TEXT(NAME), name, len,
                    (const char *)comment, comment_len, flags, (unsigned long long)full_len, crc, when == NULL, extra,
                    extra_len, central, central_len);
}
#endif

#ifdef KNOWS
void KNOWS(void);
void KNOWS(void) {
}
#endif

// The line, in `out`, of a call through the table of imported functions.
int call(char *out, const void *buf, size_t len, unsigned flags, uint32_t crc) {
    return mz_zip_writer_add_mem_ex_v2(out, "data/0", buf, len, "comment", 7, flags, 0, crc, NULL, "extra", 5, "centre",
                                       6);
}

// The same from eight other places.
#define OTHER(n)                                                                                                       \
    int call_##n(char *out, const void *buf, size_t len);                                                              \
    int call_##n(char *out, const void *buf, size_t len) {                                                             \
        return 1 + mz_zip_writer_add_mem_ex_v2(out, #n, buf, len, "", 0, 0, 0, 0, NULL, "", 0, "", 0);                 \
    }
OTHER(0) OTHER(1) OTHER(2) OTHER(3) OTHER(4) OTHER(5) OTHER(6) OTHER(7) OTHER(8) OTHER(9)
