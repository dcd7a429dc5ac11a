/* Internal side of the log: the rank that this thread's lines carry, and lines that others can cause. */
#ifndef LS_BASE_LOG_H
#define LS_BASE_LOG_H

#include <lockstep/base.h>

/* Lines of this thread carry `rank` from here on; -1: none. */
void ls_log_set_rank(int rank);

/*
 * Bounds what is logged of something that others can bring about as often as they like: some lines in a while, then
 * only how many were left out. Zero is a fresh one.
 */
typedef struct ls_log_limit {
    uint64_t until; /* the end of this while, on ls_clock_ns */
    int passed;     /* lines in it */
    int64_t hidden; /* lines left out since the last that was told */
} ls_log_limit;

#define LS_LOG_WHILE 5.0 /* seconds */

/* Whether one more is to be logged now; else it is counted. */
bool ls_log_limit_pass(ls_log_limit *limit);

/* How many were left out, to be told now that the while is over; 0: none, or it is not over. */
int64_t ls_log_limit_hidden(ls_log_limit *limit);

#endif
