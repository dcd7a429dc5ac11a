/* The communication cost of this thread: the time in calls and waits (nested ones count once), and the bytes. */
#ifndef LS_COMM_METER_H
#define LS_COMM_METER_H

#include <lockstep/base.h>

typedef struct ls_comm_meter {
    int users;      /* number of callers that want the time measured; 0 disables the measurement */
    uint64_t calls; /* number of calls on communicators, including sends and receives; always counted */
    uint64_t bytes; /* size of the elements in these calls: see ls_timer_bytes; always counted */
    int depth;      /* nesting depth: a call may make further calls */
    uint64_t nanoseconds;
} ls_comm_meter;

extern _Thread_local ls_comm_meter ls_comm_metered __attribute__((visibility("hidden"), tls_model("initial-exec")));

/* Begins a call. ls_comm_meter_end takes the result when the call ends. */
static inline uint64_t ls_comm_meter_begin(void) {
    if (__builtin_expect(ls_comm_metered.users == 0, 1)) {
        return 0;
    }
    return ls_comm_metered.depth++ == 0 ? ls_clock_ns() : 0;
}

static inline void ls_comm_meter_end(uint64_t began) {
    if (__builtin_expect(ls_comm_metered.users == 0, 1)) {
        return;
    }
    ls_comm_metered.depth--;
    ls_comm_metered.nanoseconds += began != 0 ? ls_clock_ns() - began : 0;
}

#endif
