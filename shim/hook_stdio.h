// SPDX-License-Identifier: MIT
//
// hook_stdio: what the end of a process needs of the FILE hooks.

#ifndef FASTCKPT_HOOK_STDIO_H
#define FASTCKPT_HOOK_STDIO_H

/** Flushes the FILEs that stand on captured descriptors. Skips those whose lock another thread holds. */
void stdio_flush_captured(void);

#endif
