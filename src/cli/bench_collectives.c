#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "cli/bench.h"

static int rank_before(const ls_bench_call *call) {
    return (call->rank + call->ranks - 1) % call->ranks;
}

static int partner(const ls_bench_call *call) {
    const int other = call->rank ^ 1;
    return other < call->ranks ? other : LS_BENCH_NOBODY;
}

ls_bench_origin ls_bench_origin_of(const ls_bench_collective *collective, const ls_bench_call *call, int part) {
    const int own = collective->own_part ? call->rank : part;
    switch (collective->source) {
    case LS_BENCH_FROM_ROOT:
        return (ls_bench_origin){LS_BENCH_ROOT, own};
    case LS_BENCH_FROM_EACH:
        return (ls_bench_origin){part, collective->own_part ? own : 0};
    case LS_BENCH_FROM_BEFORE:
        return (ls_bench_origin){rank_before(call), part};
    case LS_BENCH_FROM_PARTNER:
        return (ls_bench_origin){partner(call), part};
    default:
        return (ls_bench_origin){LS_BENCH_ALL, own};
    }
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static ls_status run_allgather(const ls_bench_call *call) {
    return ls_comm_allgather(call->comm, call->send, call->receive, call->count, call->dtype, call->work);
}

static ls_status run_allreduce(const ls_bench_call *call) {
    return ls_comm_allreduce(call->comm, call->send, call->receive, call->count, call->dtype, call->reduction,
                             call->work);
}

static ls_status run_alltoall(const ls_bench_call *call) {
    return ls_comm_alltoall(call->comm, call->send, call->receive, call->count, call->dtype, call->work);
}

static ls_status run_barrier(const ls_bench_call *call) {
    return ls_comm_barrier(call->comm, call->work);
}

static ls_status run_broadcast(const ls_bench_call *call) {
    return ls_comm_broadcast(call->comm, call->receive, call->count, call->dtype, LS_BENCH_ROOT, call->work);
}

static ls_status run_gather(const ls_bench_call *call) {
    return ls_comm_gather(call->comm, call->send, call->receive, call->count, call->dtype, LS_BENCH_ROOT, call->work);
}

static ls_status run_reduce(const ls_bench_call *call) {
    return ls_comm_reduce(call->comm, call->send, call->receive, call->count, call->dtype, call->reduction,
                          LS_BENCH_ROOT, call->work);
}

static ls_status run_reduce_scatter(const ls_bench_call *call) {
    return ls_comm_reduce_scatter(call->comm, call->send, call->receive, call->count, call->dtype, call->reduction,
                                  call->work);
}

static ls_status run_scatter(const ls_bench_call *call) {
    return ls_comm_scatter(call->comm, call->send, call->receive, call->count, call->dtype, LS_BENCH_ROOT, call->work);
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

/* The lower rank of a pair sends first, and the higher rank replies. */
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

#define ONE      LS_BENCH_ONE
#define PER_RANK LS_BENCH_ONE_PER_RANK
#define FROM(X)  .source = LS_BENCH_FROM_##X

/* Name, operation, call, parts sent, parts received. */
static const ls_bench_collective collectives[] = {
    {"allgather", LS_OP_ALLGATHER, run_allgather, ONE, PER_RANK, FROM(EACH), .shares = 1},
    {"allreduce", LS_OP_ALLREDUCE, run_allreduce, ONE, ONE, FROM(ALL), .shares = 2, .reduces = true,
     .may_be_in_place = true},
    {"alltoall", LS_OP_ALLTOALL, run_alltoall, PER_RANK, PER_RANK, FROM(EACH), .own_part = true, .shares = 1},
    {"barrier", LS_OP_BARRIER, run_barrier, LS_BENCH_NOTHING, LS_BENCH_NOTHING, FROM(ALL)},
    {"broadcast", LS_OP_BROADCAST, run_broadcast, LS_BENCH_NOTHING, ONE, FROM(ROOT), .in_place = true},
    {"gather", LS_OP_GATHER, run_gather, ONE, PER_RANK, FROM(EACH), .shares = 1, .root_alone_receives = true},
    {"pingpong", LS_OP_SEND, run_pingpong, ONE, ONE, FROM(PARTNER), .both_ways = true},
    {"reduce", LS_OP_REDUCE, run_reduce, ONE, ONE, FROM(ALL), .reduces = true, .root_alone_receives = true},
    {"reduce_scatter", LS_OP_REDUCE_SCATTER, run_reduce_scatter, PER_RANK, ONE, FROM(ALL), .own_part = true,
     .shares = 1, .reduces = true},
    {"scatter", LS_OP_SCATTER, run_scatter, PER_RANK, ONE, FROM(ROOT), .own_part = true, .shares = 1},
    {"sendrecv", LS_OP_SEND, run_sendrecv, ONE, ONE, FROM(BEFORE)},
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
    return ls_fail_null(LS_ERR_ARGUMENT, "lockstep bench: unknown collective '%s'; available: %s", name,
                        ls_bench_names(names, sizeof names));
}
