/*
 * The protocol of ls_comm_monitored_barrier, over sends and receives between all pairs of ranks. It never waits: the
 * caller polls, and says when its timeout has passed.
 *
 * The barriers of a communicator are numbered, and each message has the number of its barrier. A rank tells all other
 * ranks, in this order:
 *
 * - ENTERED: it has entered the barrier.
 * - READY: it knows that all ranks have entered. Its own timeout no longer ends the barrier.
 * - or GAVE_UP: its timeout has passed, with the ranks that have not entered; or another rank has given up.
 *
 * The barrier has succeeded on a rank that has received READY from all ranks. A rank whose timeout has passed never
 * says READY for this barrier, so no rank succeeds. A rank that enters a barrier late finds the message GAVE_UP of the
 * other ranks, or messages of their later barriers. Messages of earlier barriers are dropped.
 */
#ifndef LS_COMM_MONITOR_H
#define LS_COMM_MONITOR_H

#include "comm/backend.h"

typedef struct ls_monitor ls_monitor;

/* The sends and receives of a communicator: as ls_backend.post, and ls_backend.test without a wait. */
typedef struct ls_monitor_network {
    void *context;
    ls_status (*post)(void *context, const ls_call *call, void **request);
    ls_status (*test)(void *context, void *request, bool *finished);
} ls_monitor_network;

typedef enum ls_monitor_state {
    LS_MONITOR_WAITS = 0, /* for ranks that have not entered */
    LS_MONITOR_READY,     /* all ranks have entered, but some have not said READY */
    LS_MONITOR_PASSED,
    LS_MONITOR_FAILED
} ls_monitor_state;

/* Returns NULL and sets an error if memory is exhausted. */
ls_monitor *ls_monitor_new(int rank, int size);

/* Frees the monitor. Its sends and receives must have ended: the communicator's state is closed. NULL is allowed. */
void ls_monitor_free(ls_monitor *monitor);

/* Begins the next barrier, with a timeout of `seconds`, and returns its number, from 1. */
uint64_t ls_monitor_enter(ls_monitor *monitor, double seconds, const bool *contested);

/*
 * Advances the barrier. With `expired`, the rank gives up if ranks that have not entered are still missing. Fails if a
 * send or receive fails, and then the communicator is not usable.
 */
ls_status ls_monitor_move(ls_monitor *monitor, const ls_monitor_network *network, bool expired);

ls_monitor_state ls_monitor_state_of(const ls_monitor *monitor);

/* Returns true if no rank in this barrier needs anything more from this rank, as far as this rank knows. */
bool ls_monitor_is_settled(const ls_monitor *monitor);

/* Lists the ranks that this rank waits for. */
ls_rank_list ls_monitor_awaited(const ls_monitor *monitor);

/* After a failure: sets the error LS_ERR_TIMEOUT, which names the late ranks. Returns it. */
ls_status ls_monitor_fail(const ls_monitor *monitor);

#endif
