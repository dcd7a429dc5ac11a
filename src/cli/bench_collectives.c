#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "cli/bench.h"

/* ---- bus bandwidth / algorithm bandwidth ----------------------------------------------------------------------- */

static double once(int ranks) {
    (void)ranks;
    return 1.0;
}

static double others(int ranks) {
    return (double)(ranks - 1) / ranks;
}

static double twice_others(int ranks) {
    return 2.0 * others(ranks);
}

/*
 * ---- origin of results ---------------------------------------------------------------------------------------------
 */

static ls_bench_origin from_root(const ls_bench_call *call, int part) {
    (void)call;
    return (ls_bench_origin){LS_BENCH_ROOT, part};
}

static ls_bench_origin own_from_root(const ls_bench_call *call, int part) {
    (void)part;
    return (ls_bench_origin){LS_BENCH_ROOT, call->rank};
}

static ls_bench_origin from_all(const ls_bench_call *call, int part) {
    (void)call;
    return (ls_bench_origin){LS_BENCH_ALL, part};
}

static ls_bench_origin own_from_all(const ls_bench_call *call, int part) {
    (void)part;
    return (ls_bench_origin){LS_BENCH_ALL, call->rank};
}

/* Part `part` of the result is the data that rank `part` sent. */
static ls_bench_origin from_each(const ls_bench_call *call, int part) {
    (void)call;
    return (ls_bench_origin){part, 0};
}

/* Part `part` of the result is the part for this rank of the data that rank `part` sent. */
static ls_bench_origin own_from_each(const ls_bench_call *call, int part) {
    return (ls_bench_origin){part, call->rank};
}

static int rank_before(const ls_bench_call *call) {
    return (call->rank + call->ranks - 1) % call->ranks;
}

static ls_bench_origin from_before(const ls_bench_call *call, int part) {
    return (ls_bench_origin){rank_before(call), part};
}

/* Returns the other rank of the pair. With an odd number of ranks, the last rank has no partner. */
static int partner(const ls_bench_call *call) {
    const int other = call->rank ^ 1;
    return other < call->ranks ? other : LS_BENCH_NOBODY;
}

static ls_bench_origin from_partner(const ls_bench_call *call, int part) {
    return (ls_bench_origin){partner(call), part};
}

/* ---- calls ----------------------------------------------------------------------------------------------------- */

static ls_status run_allgather(const ls_bench_call *call) {
    return ls_comm_allgather(call->comm, call->send, call->receive, call->count, call->dtype, NULL);
}

static ls_status run_allreduce(const ls_bench_call *call) {
    return ls_comm_allreduce(call->comm, call->send, call->receive, call->count, call->dtype, call->reduction, NULL);
}

static ls_status run_alltoall(const ls_bench_call *call) {
    return ls_comm_alltoall(call->comm, call->send, call->receive, call->count, call->dtype, NULL);
}

static ls_status run_barrier(const ls_bench_call *call) {
    return ls_comm_barrier(call->comm, NULL);
}

static ls_status run_broadcast(const ls_bench_call *call) {
    return ls_comm_broadcast(call->comm, call->receive, call->count, call->dtype, LS_BENCH_ROOT, NULL);
}

static ls_status run_gather(const ls_bench_call *call) {
    return ls_comm_gather(call->comm, call->send, call->receive, call->count, call->dtype, LS_BENCH_ROOT, NULL);
}

static ls_status run_reduce(const ls_bench_call *call) {
    return ls_comm_reduce(call->comm, call->send, call->receive, call->count, call->dtype, call->reduction,
                          LS_BENCH_ROOT, NULL);
}

static ls_status run_reduce_scatter(const ls_bench_call *call) {
    return ls_comm_reduce_scatter(call->comm, call->send, call->receive, call->count, call->dtype, call->reduction,
                                  NULL);
}

static ls_status run_scatter(const ls_bench_call *call) {
    return ls_comm_scatter(call->comm, call->send, call->receive, call->count, call->dtype, LS_BENCH_ROOT, NULL);
}

/* Every rank sends to the next rank and receives from the previous rank, as in nccl-tests. */
static ls_status run_sendrecv(const ls_bench_call *call) {
    ls_work *sending = NULL;
    LS_TRY(ls_comm_send(call->comm, call->send, call->count, call->dtype, (call->rank + 1) % call->ranks, 0, &sending));
    const ls_status received =
        ls_comm_recv(call->comm, call->receive, call->count, call->dtype, rank_before(call), 0, NULL);
    const ls_status sent = ls_work_wait(sending);
    return received != LS_OK ? received : sent;
}

/* The lower rank of a pair sends first, the higher rank answers. */
static ls_status run_pingpong(const ls_bench_call *call) {
    const int other = partner(call);
    if (other == LS_BENCH_NOBODY) {
        return LS_OK;
    }
    if (call->rank < other) {
        LS_TRY(ls_comm_send(call->comm, call->send, call->count, call->dtype, other, 0, NULL));
    }
    LS_TRY(ls_comm_recv(call->comm, call->receive, call->count, call->dtype, other, 0, NULL));
    return call->rank < other ? LS_OK : ls_comm_send(call->comm, call->send, call->count, call->dtype, other, 0, NULL);
}

static const ls_bench_collective collectives[] = {
    {.name = "allgather",
     .operation = LS_OP_ALLGATHER,
     .send = LS_BENCH_ONE,
     .receive = LS_BENCH_ONE_PER_RANK,
     .bus_factor = others,
     .run = run_allgather,
     .origin = from_each},
    {.name = "allreduce",
     .operation = LS_OP_ALLREDUCE,
     .send = LS_BENCH_ONE,
     .receive = LS_BENCH_ONE,
     .may_be_in_place = true,
     .reduces = true,
     .bus_factor = twice_others,
     .run = run_allreduce,
     .origin = from_all},
    {.name = "alltoall",
     .operation = LS_OP_ALLTOALL,
     .send = LS_BENCH_ONE_PER_RANK,
     .receive = LS_BENCH_ONE_PER_RANK,
     .bus_factor = others,
     .run = run_alltoall,
     .origin = own_from_each},
    {.name = "barrier", .operation = LS_OP_BARRIER, .bus_factor = once, .run = run_barrier, .origin = from_all},
    {.name = "broadcast",
     .operation = LS_OP_BROADCAST,
     .receive = LS_BENCH_ONE,
     .in_place = true,
     .bus_factor = once,
     .run = run_broadcast,
     .origin = from_root},
    {.name = "gather",
     .operation = LS_OP_GATHER,
     .send = LS_BENCH_ONE,
     .receive = LS_BENCH_ONE_PER_RANK,
     .root_alone_receives = true,
     .bus_factor = others,
     .run = run_gather,
     .origin = from_each},
    {.name = "pingpong",
     .operation = LS_OP_SEND,
     .send = LS_BENCH_ONE,
     .receive = LS_BENCH_ONE,
     .both_ways = true,
     .bus_factor = once,
     .run = run_pingpong,
     .origin = from_partner},
    {.name = "reduce",
     .operation = LS_OP_REDUCE,
     .send = LS_BENCH_ONE,
     .receive = LS_BENCH_ONE,
     .root_alone_receives = true,
     .reduces = true,
     .bus_factor = once,
     .run = run_reduce,
     .origin = from_all},
    {.name = "reduce_scatter",
     .operation = LS_OP_REDUCE_SCATTER,
     .send = LS_BENCH_ONE_PER_RANK,
     .receive = LS_BENCH_ONE,
     .reduces = true,
     .bus_factor = others,
     .run = run_reduce_scatter,
     .origin = own_from_all},
    {.name = "scatter",
     .operation = LS_OP_SCATTER,
     .send = LS_BENCH_ONE_PER_RANK,
     .receive = LS_BENCH_ONE,
     .bus_factor = others,
     .run = run_scatter,
     .origin = own_from_root},
    {.name = "sendrecv",
     .operation = LS_OP_SEND,
     .send = LS_BENCH_ONE,
     .receive = LS_BENCH_ONE,
     .bus_factor = once,
     .run = run_sendrecv,
     .origin = from_before},
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

/* Compares names without "-" and "_", so all-reduce, all_reduce and allreduce are the same. */
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
