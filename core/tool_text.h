// SPDX-License-Identifier: MIT
//
// tool_text: how the command's tools print: strings of JSON, sizes. Only to stdout.

#ifndef FASTCKPT_TOOL_TEXT_H
#define FASTCKPT_TOOL_TEXT_H

#include <stddef.h>
#include <stdint.h>

/** `s` as a string of JSON, quotes included. A byte that belongs to no UTF-8 character (names of files may have any) is
 *  written as the character of that number. */
void text_json(const char *s);

/** `bytes` in words: "812.0 MiB", "3.4 GiB". Returns `buf`, of 24 bytes or more. */
const char *text_size(uint64_t bytes, char *buf, size_t cap);

/** `s` for a terminal: whatever could break the line or speak to the terminal is a '?'. Returns `buf`. */
const char *text_line(const char *s, char *buf, size_t cap);

#endif
