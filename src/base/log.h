/* Internal functions of the log: the rank in this thread's lines, and a limit for lines that outsiders can cause. */
#ifndef LS_BASE_LOG_H
#define LS_BASE_LOG_H

#include <lockstep/base.h>

/* Sets the rank that the lines of this thread name; -1 removes it. */
void ls_log_set_rank(int rank);

/*
 * Limits the log lines about an event that outsiders can cause as often as they like: at most 10 lines per period, then
 * one line with the number of lines that were left out. A zeroed struct is ready for use.
 */
typedef struct ls_log_limit {
    uint64_t until; /* the end of the period, on ls_clock_ns */
    int passed;     /* lines that were logged in the period */
    int64_t hidden; /* lines that were left out, and not reported yet */
} ls_log_limit;

#define LS_LOG_PERIOD 5.0 /* seconds */

/* Returns true if the caller should log its line. Otherwise counts the line as left out. */
bool ls_log_limit_pass(ls_log_limit *limit);

/* Returns the number of lines that were left out, for the caller to log, once the period has ended; 0 before. */
int64_t ls_log_limit_hidden(ls_log_limit *limit);

#endif
