#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "cli/bench.h"

/* ---- bus bandwidth / algorithm bandwidth ----------------------------------------------------------------------- */

static double once(int ranks) {
    (void)ranks;
    return 1.0;
}

static double twice_others(int ranks) {
    return 2.0 * (ranks - 1) / ranks;
}

/* ---- where results come from ----------------------------------------------------------------------------------- */

static ls_bench_origin from_root(int rank, int part) {
    (void)rank;
    return (ls_bench_origin){LS_BENCH_ROOT, part};
}

static ls_bench_origin from_all(int rank, int part) {
    (void)rank;
    return (ls_bench_origin){LS_BENCH_ALL, part};
}

/* ---- calls ----------------------------------------------------------------------------------------------------- */

static ls_status run_allreduce(const ls_bench_call *call) {
    return ls_comm_allreduce(call->comm, call->send, call->receive, call->count, call->dtype, call->reduction, NULL);
}

static ls_status run_barrier(const ls_bench_call *call) {
    return ls_comm_barrier(call->comm, NULL);
}

static ls_status run_broadcast(const ls_bench_call *call) {
    return ls_comm_broadcast(call->comm, call->receive, call->count, call->dtype, LS_BENCH_ROOT, NULL);
}

static const ls_bench_collective collectives[] = {
    {.name = "allreduce",
     .send = LS_BENCH_ONE,
     .receive = LS_BENCH_ONE,
     .reduces = true,
     .bus_factor = twice_others,
     .run = run_allreduce,
     .origin = from_all},
    {.name = "barrier", .bus_factor = once, .run = run_barrier, .origin = from_all},
    {.name = "broadcast",
     .receive = LS_BENCH_ONE,
     .in_place = true,
     .bus_factor = once,
     .run = run_broadcast,
     .origin = from_root},
};
enum { COLLECTIVES = sizeof collectives / sizeof collectives[0] };

const char *ls_bench_names(char *text, size_t capacity) {
    size_t length = 0;
    text[0] = '\0';
    for (size_t i = 0; i < COLLECTIVES && length < capacity; i++) {
        length += (size_t)snprintf(text + length, capacity - length, "%s%s", i == 0 ? "" : ", ", collectives[i].name);
    }
    return text;
}

/* all-reduce, all_reduce and allreduce are one name. */
static bool is_same_name(const char *left, const char *right) {
    for (;;) {
        left += strspn(left, "-_");
        right += strspn(right, "-_");
        if (*left != *right) {
            return false;
        }
        if (*left == '\0') {
            return true;
        }
        left++;
        right++;
    }
}

const ls_bench_collective *ls_bench_find(const char *name) {
    for (size_t i = 0; i < COLLECTIVES; i++) {
        if (is_same_name(name, collectives[i].name)) {
            return &collectives[i];
        }
    }
    char names[256];
    return ls_fail_null(LS_ERR_ARGUMENT, "lockstep bench: there is no collective '%s'; there are: %s", name,
                        ls_bench_names(names, sizeof names));
}
