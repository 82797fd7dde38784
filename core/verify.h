// SPDX-License-Identifier: MIT
//
// verify: are published files still what was saved? By the checksums that the stripes keep of them (sums.h), and by
// nothing in the files themselves. Several readers, past the page cache where that can be done. Blocks.

#ifndef FASTCKPT_VERIFY_H
#define FASTCKPT_VERIFY_H

enum verify_result { VERIFY_WHOLE = 0, VERIFY_TORN = 1, VERIFY_UNSURE = 3 }; // exit codes; 2: bad usage

/** `stripes` as in FASTCKPT_STRIPES. Prints a line for each of `n` files: whole, torn, partly (no part that has a
 *  checksum is torn) or unknown, with the reason. TORN: at least one is; UNSURE: at least one is partly or unknown. */
enum verify_result verify_files(const char *stripes, char *const *files, int n);

#endif
