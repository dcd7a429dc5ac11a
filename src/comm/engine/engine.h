/*
 * The engine: every call of a communicator, once, over any transport (transport.h). A backend opens an endpoint,
 * creates an engine over it, and uses the functions below as its own entries.
 *
 * Each call begins with an exchange of headers (headers.c), by which the ranks agree on the call. Small data is inline
 * in the headers and is combined on the way (payload.c). So a small call takes at most 2 ceil(log2 P) messages of any
 * rank, agreement included. Larger data follows by an algorithm of the table (comm/algorithms/). messages.c sends and
 * receives single messages. failure.c detects failures, and finds out which rank waits for which. leaving.c waits until
 * all ranks have left.
 */
#ifndef LS_COMM_ENGINE_ENGINE_H
#define LS_COMM_ENGINE_ENGINE_H

#include "comm/backend.h"
#include "comm/transport.h"

typedef struct ls_engine ls_engine;

/* Creates an engine. Takes ownership of the endpoint, also on failure. `timeout` is in seconds. Returns NULL on
 * failure. */
ls_engine *ls_engine_new(ls_endpoint *endpoint, double timeout);

/* Entries of ls_backend; a state is an engine. */
ls_status ls_engine_begin(void *state, const ls_call *call);
ls_status ls_engine_progress(void *state, bool wait, bool *finished);
ls_status ls_engine_post(void *state, const ls_call *call, void **request);
ls_status ls_engine_test(void *state, void *request, bool wait, bool *finished);
void ls_engine_leave(void *state, ls_leave_reason reason);
ls_status ls_engine_finalize_barrier(void *state); /* for transports on which every peer is LS_PEER_REACHED */
/* Withdraws all transfers into or out of memory of the callers: after ls_engine_leave, over a transport that moves
 * nothing by itself. */
void ls_engine_withdraw_contents(void *state);
void ls_engine_abort(void *state, ls_status status, int failed_rank);
int ls_engine_failed_rank(const void *state);
void ls_engine_close(void *state);
void ls_engine_traffic(const void *state, uint64_t *messages, uint64_t *bytes);

/* Returns the name of the algorithm of the latest call (comm/algorithm.h). */
const char *ls_engine_algorithm(const void *state);

/* The endpoint of an engine, lent. */
ls_endpoint *ls_engine_endpoint(const ls_engine *engine);

/* Gathers `bytes` of each rank, in rank order, on all ranks. All ranks call it between calls, as a part of
 * ls_comm_split. */
ls_status ls_engine_exchange(ls_engine *engine, const void *own, void *all, size_t bytes);

/* Whether this rank gave up. */
typedef enum ls_engine_end {
    LS_ENGINE_WORKS = 0, /* or it has left */
    LS_ENGINE_DESERTED,  /* because a rank had left that others waited for */
    LS_ENGINE_FAILED
} ls_engine_end;

ls_engine_end ls_engine_ended(const ls_engine *engine);

/* The entries of an ls_backend by which it makes calls: the same over every transport. */
#define LS_ENGINE_CALLS                                                                                                \
    .abort = ls_engine_abort, .failed_rank = ls_engine_failed_rank,                                                    \
    .begin = {[LS_OP_BARRIER] = ls_engine_begin,        [LS_OP_BROADCAST] = ls_engine_begin,                           \
              [LS_OP_ALLREDUCE] = ls_engine_begin,      [LS_OP_REDUCE] = ls_engine_begin,                              \
              [LS_OP_GATHER] = ls_engine_begin,         [LS_OP_GATHERV] = ls_engine_begin,                             \
              [LS_OP_ALLGATHER] = ls_engine_begin,      [LS_OP_ALLGATHERV] = ls_engine_begin,                          \
              [LS_OP_SCATTER] = ls_engine_begin,        [LS_OP_SCATTERV] = ls_engine_begin,                            \
              [LS_OP_REDUCE_SCATTER] = ls_engine_begin, [LS_OP_REDUCE_SCATTERV] = ls_engine_begin,                     \
              [LS_OP_ALLTOALL] = ls_engine_begin,       [LS_OP_ALLTOALLV] = ls_engine_begin,                           \
              [LS_OP_SPLIT] = ls_engine_begin},                                                                        \
    .progress = ls_engine_progress, .post = ls_engine_post, .test = ls_engine_test, .traffic = ls_engine_traffic,      \
    .algorithm_name = ls_engine_algorithm

#endif
