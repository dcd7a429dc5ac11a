/*
 * Fibers: functions that take turns on one thread, each with its own stack. A fiber runs until it suspends itself or
 * returns. It may be resumed only by the thread that created it.
 */
#ifndef LS_BASE_FIBER_H
#define LS_BASE_FIBER_H

#include <stdbool.h>

typedef struct ls_fiber ls_fiber;

/* Creates a fiber, which returns to the code that resumed it after `run`. Returns ownership to the caller.
 * Returns NULL if out of memory. */
ls_fiber *ls_fiber_new(void (*run)(void *user), void *user);

/* Runs the fiber until it suspends itself (returns true) or ends (returns false). */
bool ls_fiber_resume(ls_fiber *fiber);

/* Suspends the fiber that runs on this thread. */
void ls_fiber_suspend(void);

/* Frees a fiber that has ended, or that has never been resumed. NULL is allowed. */
void ls_fiber_free(ls_fiber *fiber);

#endif
