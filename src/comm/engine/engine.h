/*
 * The engine: every call of a communicator, once, over any transport (transport.h). A backend opens an endpoint, makes
 * an engine of it and has the entries below as its own.
 *
 * Each call begins with rounds (rounds.c): ranks tell each other along a tree, or a butterfly where their number is a
 * power of two, what they call, and what is small of its data travels along and is combined on the way (carried.c). So
 * a small call takes at most 2 ceil(log2 P) messages of any rank, agreement included. What is large follows when all is
 * agreed, straight between those who have and want it (exchange.c); reductions and broadcasts go by halves or by
 * shares, all-gathers by doubling (choice.c, halving.c, reduction.c, doubling.c). messages.c sends and receives.
 * failure.c is how ranks leave, fail and find out for whom they wait in vain, leaving.c how they wait for all to leave.
 */
#ifndef LS_COMM_ENGINE_ENGINE_H
#define LS_COMM_ENGINE_ENGINE_H

#include "comm/backend.h"
#include "comm/transport.h"

typedef struct ls_engine ls_engine;

/* An engine over an endpoint, which it takes over, also where it fails. `timeout` in seconds. NULL and an error. */
ls_engine *ls_engine_new(ls_endpoint *endpoint, double timeout);

/* Entries of ls_backend; a state is an engine. */
ls_status ls_engine_begin(void *state, const ls_call *call);
ls_status ls_engine_progress(void *state, bool wait, bool *finished);
ls_status ls_engine_post(void *state, const ls_call *call, void **request);
ls_status ls_engine_test(void *state, void *request, bool wait, bool *finished);
void ls_engine_leave(void *state, ls_leave_reason reason);
ls_status ls_engine_finalize_barrier(void *state); /* where whoever leaves tells all: every peer is LS_PEER_REACHED */
/* After ls_engine_leave, over a transport that moves nothing by itself: what is under way into or out of the callers'
 * memory, which is theirs again, is taken back. */
void ls_engine_withdraw_contents(void *state);
void ls_engine_abort(void *state, ls_status status);
int ls_engine_failed_rank(const void *state);
void ls_engine_close(void *state);
void ls_engine_traffic(const void *state, uint64_t *messages, uint64_t *bytes);

/* How the latest call was made: "rounds", "halves", "shares", "machines" or "network", as in
 * docs/reference/communication.md. */
const char *ls_engine_algorithm(const void *state);

/* The endpoint of an engine, lent. */
ls_endpoint *ls_engine_endpoint(const ls_engine *engine);

/* Gives every rank so many `bytes` of each, in the order of ranks: between calls, by all ranks, as a part of
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
