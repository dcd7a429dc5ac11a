/*
 * The protocol of ls_comm_monitored_barrier, over sends and receives between all pairs of ranks. It never waits: the
 * caller polls, and reports when its timeout has passed.
 *
 * The barriers of a communicator are numbered, and each message contains the number of its barrier. A rank sends these
 * messages to all other ranks, in this order:
 *
 * - ENTERED: it has entered the barrier.
 * - READY: it knows that all ranks have entered. Its own timeout no longer ends the barrier.
 * - GAVE_UP, instead of READY: its timeout has passed (the message lists the ranks that have not entered), or another
 *   rank has given up.
 *
 * The barrier has succeeded on a rank that has received READY from all ranks. A rank whose timeout has passed never
 * sends READY for this barrier, so no rank succeeds. A rank that enters a barrier late receives the other ranks'
 * GAVE_UP messages, or messages of their later barriers. Messages of earlier barriers are dropped.
 */
#ifndef LS_COMM_MONITOR_H
#define LS_COMM_MONITOR_H

#include "comm/backend.h"

typedef struct ls_monitor ls_monitor;

/* The sends and receives of a communicator. They work like ls_backend.post, and ls_backend.test without waiting. */
typedef struct ls_monitor_network {
    void *context;
    ls_status (*post)(void *context, const ls_call *call, void **request);
    ls_status (*test)(void *context, void *request, bool *finished);
} ls_monitor_network;

typedef enum ls_monitor_state {
    LS_MONITOR_WAITS = 0, /* some ranks have not entered */
    LS_MONITOR_READY,     /* all ranks have entered, but some have not sent READY */
    LS_MONITOR_PASSED,
    LS_MONITOR_FAILED
} ls_monitor_state;

/* Creates a monitor. Returns NULL and sets an error if out of memory. */
ls_monitor *ls_monitor_new(int rank, int size);

/* Frees the monitor. Its sends and receives must have ended, that is, the communicator's state must be closed. NULL
 * is allowed. */
void ls_monitor_free(ls_monitor *monitor);

/* Begins the next barrier, with a timeout of `seconds`, and returns its number, from 1. */
uint64_t ls_monitor_enter(ls_monitor *monitor, double seconds, const bool *contested);

/*
 * Advances the barrier. With `expired`, gives up if some ranks have not entered. Fails if a send or receive fails; the
 * communicator is then unusable.
 */
ls_status ls_monitor_move(ls_monitor *monitor, const ls_monitor_network *network, bool expired);

ls_monitor_state ls_monitor_state_of(const ls_monitor *monitor);

/* Returns true if, as far as this rank knows, no rank in this barrier needs anything more from it. */
bool ls_monitor_is_settled(const ls_monitor *monitor);

/* Lists the ranks that this rank waits for. */
ls_rank_list ls_monitor_awaited(const ls_monitor *monitor);

/* After a failure: sets the error LS_ERR_TIMEOUT, which names the late ranks. Returns the status. */
ls_status ls_monitor_fail(const ls_monitor *monitor);

#endif
