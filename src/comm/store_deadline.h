/*
 * comm/store*: the dictionary through which ranks find each other. This header: points in time by which a call must
 * be done, on the monotonic clock, so that several waits in a row share one limit.
 */
#ifndef LS_COMM_STORE_DEADLINE_H
#define LS_COMM_STORE_DEADLINE_H

#include <stdbool.h>
#include <stdint.h>

#include <lockstep/base.h>

typedef uint64_t ls_deadline; /* nanoseconds of ls_clock_ns */

#define LS_DEADLINE_NEVER UINT64_MAX

#define LS_REPORT_SECONDS 5.0 /* between two sentences about whom everybody waits for */

static inline ls_deadline ls_deadline_after(double seconds) {
    return seconds >= 1e9 ? LS_DEADLINE_NEVER : ls_clock_ns() + (uint64_t)((seconds > 0 ? seconds : 0) * 1e9);
}

static inline bool ls_deadline_passed(ls_deadline deadline) {
    return ls_clock_ns() >= deadline;
}

/* What is left, for poll(): rounded up so that a wait of this length passes the deadline; at most a minute. */
static inline int ls_deadline_milliseconds(ls_deadline deadline) {
    const uint64_t now = ls_clock_ns();
    const uint64_t left = deadline > now ? deadline - now : 0;
    return left > 60000000000U ? 60000 : (int)((left + 999999U) / 1000000U);
}

#endif
