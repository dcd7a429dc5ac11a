/*
 * The engine: every call of a communicator, once, over any transport (transport.h). A backend opens an endpoint, makes
 * an engine of it and has the entries below as its own.
 *
 * Each call begins with rounds (rounds.c): ranks tell each other along a tree, or a butterfly where their number is a
 * power of two, what they call, and what is small of its data travels along and is combined on the way (carried.c). So
 * a small call takes at most 2 ceil(log2 P) messages of any rank, agreement included. What is large follows when all is
 * agreed, straight between those who have and want it (exchange.c, reduction.c). messages.c sends and receives.
 * failure.c is how ranks leave, fail and find out for whom they wait in vain.
 */
#ifndef LS_COMM_COLLECTIVE_ENGINE_H
#define LS_COMM_COLLECTIVE_ENGINE_H

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
void ls_engine_give_up(void *state, ls_status status);
void ls_engine_close(void *state);

/* The endpoint of an engine, lent. */
ls_endpoint *ls_engine_endpoint(const ls_engine *engine);

/* The number of the call that this rank made last. */
uint64_t ls_engine_sequence(const ls_engine *engine);

#endif
