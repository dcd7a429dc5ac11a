/*
 * The engine: a single implementation of all calls of a communicator, over any transport (transport.h). A backend opens
 * an endpoint, creates an engine on top of it, and uses the functions below as its own entry points.
 *
 * Each call begins with an exchange of headers (headers.c), by which the ranks agree on the call. Small data is inline
 * in the headers and is combined on the way (payload.c). So in a small call, no rank sends more than 2 ceil(log2 P)
 * messages, including the agreement. Larger data follows with an algorithm of the table (comm/algorithms/). messages.c
 * sends and receives individual messages. failure.c detects failures, and finds out which rank waits for which.
 * leaving.c leaves, aborts, and waits until all ranks have left.
 */
#ifndef LS_COMM_ENGINE_ENGINE_H
#define LS_COMM_ENGINE_ENGINE_H

#include "comm/backend.h"
#include "comm/transport.h"

typedef struct ls_engine ls_engine;

/* Creates an engine. Takes ownership of the endpoint, even on failure. `timeout` is in seconds. Returns NULL on
 * failure. */
ls_engine *ls_engine_new(ls_endpoint *endpoint, double timeout);

/* Implement functions of ls_backend; a state is an engine. */
ls_status ls_engine_begin(void *state, const ls_call *call);
ls_status ls_engine_progress(void *state, bool wait, bool *finished);
ls_status ls_engine_post(void *state, const ls_call *call, void **request);
ls_status ls_engine_test(void *state, void *request, bool wait, bool *finished);
void ls_engine_leave(void *state, ls_leave_reason reason);
ls_status ls_engine_finalize_barrier(void *state); /* for transports on which every peer's state is LS_PEER_REACHED */
bool ls_engine_advance_sends(void *state);
/* Cancels all transfers that use the callers' memory. Called after ls_engine_leave on transports that make no
 * progress on their own. */
void ls_engine_withdraw_contents(void *state);
void ls_engine_abort(void *state, ls_status status, int failed_rank);
int ls_engine_failed_rank(const void *state);
void ls_engine_close(void *state);
void ls_engine_traffic(const void *state, uint64_t *messages, uint64_t *bytes);

/* Returns the name of the algorithm that the latest call used (comm/algorithm.h). */
const char *ls_engine_algorithm(const void *state);

/* Returns the engine's endpoint as a borrowed pointer. */
ls_endpoint *ls_engine_endpoint(const ls_engine *engine);

/* Gathers `bytes` bytes from each rank, in rank order, on all ranks. All ranks call this between calls, as a part of
 * ls_comm_split. */
ls_status ls_engine_exchange(ls_engine *engine, const void *own, void *all, size_t bytes);

/* How this rank's use of the engine ended. */
typedef enum ls_engine_end {
    LS_ENGINE_WORKS = 0, /* or it has left */
    LS_ENGINE_DESERTED,  /* aborted because a rank that other ranks waited for had left */
    LS_ENGINE_FAILED
} ls_engine_end;

ls_engine_end ls_engine_ended(const ls_engine *engine);

/* The call functions of an ls_backend, which are the same for every transport. */
#define LS_ENGINE_CALLS                                                                                                \
    .abort = ls_engine_abort, .advance_sends = ls_engine_advance_sends, .failed_rank = ls_engine_failed_rank,          \
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
