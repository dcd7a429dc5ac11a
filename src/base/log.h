/* Internal functions of the log: the rank in this thread's lines, and a limit for log lines that outsiders can
 * trigger. */
#ifndef LS_BASE_LOG_H
#define LS_BASE_LOG_H

#include <lockstep/base.h>

/* Sets the rank that this thread's log lines show; -1 removes it. */
void ls_log_set_rank(int rank);
bool ls_log_has_rank(void);

/*
 * Limits the log lines about an event that outsiders can trigger as often as they like: at most 10 lines per period,
 * then one line with the number of suppressed lines. A zeroed struct is ready for use.
 */
typedef struct ls_log_limit {
    uint64_t until; /* end of the period, in time of ls_clock_ns */
    int passed;     /* lines that were logged in the period */
    int64_t hidden; /* lines that were suppressed, but not yet reported */
} ls_log_limit;

#define LS_LOG_PERIOD 5.0 /* seconds */

/* Returns true if the caller should log its line. Otherwise counts the line as suppressed. */
bool ls_log_limit_pass(ls_log_limit *limit);

/* After the end of the period, returns the number of suppressed lines, for the caller to log. Returns 0 before. */
int64_t ls_log_limit_hidden(ls_log_limit *limit);

#endif
