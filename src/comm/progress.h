/*
 * The communicators with unfinished work, each belonging to the thread that uses it.
 *
 * A rank may wait on one communicator for another rank that itself waits for this rank on another communicator. So a
 * rank that waits also advances the work of the other communicators that its thread uses. When all work of a
 * communicator has finished, its thread removes the communicator from the list at its next poll, whether or not the
 * program has waited for that work.
 */
#ifndef LS_COMM_PROGRESS_H
#define LS_COMM_PROGRESS_H

#include "comm/poll.h"
#include "comm/record.h"

/* Called when work begins on a communicator that is not in the list, or when a listed communicator has no work left. */
void ls_comm_opened(ls_comm *comm);
void ls_comm_closed(ls_comm *comm);

/* Declares that this thread uses the communicator from now on; called before the communicator is accessed. */
void ls_comm_use_slowly(ls_comm *comm);
static inline void ls_comm_use(ls_comm *comm) {
    if (comm->open != NULL) {
        ls_comm_use_slowly(comm);
    }
}

/* Returns true if this thread has unfinished work on another communicator. */
bool ls_comm_has_others_slowly(const ls_comm *comm);
static inline bool ls_comm_has_others(const ls_comm *comm) {
    const int open = atomic_load_explicit(&ls_comm_open_count, memory_order_relaxed);
    return __builtin_expect(open != comm->listed, 0) && ls_comm_has_others_slowly(comm);
}

/* Calls `move` for each such communicator. */
void ls_comm_move_others(const ls_comm *comm, void (*move)(ls_comm *other));

/* Calls `move` for each driven communicator with unfinished work that no thread uses. For the progress thread. */
void ls_comm_move_driven(void (*move)(ls_comm *comm));

/*
 * Returns how often a driven communicator was added to the list or ls_comm_wake_driver was called. ls_comm_await_opened
 * sleeps as long as this count equals `count`, for at most a second.
 */
uint32_t ls_comm_count_opened(void);
void ls_comm_await_opened(uint32_t count);
void ls_comm_wake_driver(void);

#endif
