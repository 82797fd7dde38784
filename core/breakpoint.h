// SPDX-License-Identifier: MIT
//
// breakpoint: places between a record, an act and a mark, where a test lets the engine die (FASTCKPT_BREAK 7) or dawdle
// (14). In what is shipped they are nothing at all.

#ifndef FASTCKPT_BREAKPOINT_H
#define FASTCKPT_BREAKPOINT_H

#if FASTCKPT_BREAK == 7

/** One place. All of them lie in one section, so that none can be forgotten. */
struct break_point {
    const char *name;
    unsigned passed;
};

/** Dies by SIGKILL if FASTCKPT_BREAK_AT, "NAME:K:FILE[,...]", says so: at the K-th passing in one engine, once, since
 *  FILE is made by it, which also tells the test that it was there. */
void break_point_pass(struct break_point *b);
/** Prints the names, one a line. */
void break_points_list(void);

#define BREAK_POINT(text)                                                                                              \
    do {                                                                                                               \
        static struct break_point here __attribute__((section("break_points"), used)) = {text, 0};                     \
        break_point_pass(&here);                                                                                       \
    } while (0)
#elif FASTCKPT_BREAK == 14

/** Sleeps now and then, up to 7 ms: what happens beside each other does so in every order. */
void break_point_dawdle(void);
#define BREAK_POINT(text) break_point_dawdle()
#else
#define BREAK_POINT(text) ((void)0)
#endif

#endif
