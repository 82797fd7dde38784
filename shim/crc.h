// SPDX-License-Identifier: MIT
//
// crc: the checksum of zip files (that of zlib's crc32) of large memory: by the CPU's own instructions, in parts by
// several threads. Pure functions.

#ifndef FASTCKPT_CRC_H
#define FASTCKPT_CRC_H

#include <stddef.h>
#include <stdint.h>

/** The checksum of `len` bytes: what zlib's crc32(0, p, len) returns. Large memory is shared with helpers. */
uint32_t crc_of(const void *p, size_t len);

/** The checksum of A followed by B, from theirs and crc_shift(length of B). */
uint32_t crc_join(uint32_t a, uint32_t b, uint32_t shift);
/** What `len` bytes behind it do to a checksum: x^(8 len) modulo the polynomial. */
uint32_t crc_shift(uint64_t len);

#endif
