/*
 * The guard: a small process that survives if the launcher is killed with SIGKILL. It kills the processes that the
 * launcher can no longer end, and exits. The ranks themselves die with the launcher, through their parent-death signal,
 * but processes started by ranks do not. The guard finds them by the mark of the launch in their environment.
 */
#ifndef LS_CLI_GUARD_H
#define LS_CLI_GUARD_H

#include <lockstep/base.h>
#include <sys/types.h>

typedef struct ls_guard {
    pid_t pid; /* 0 if there is no guard */
    int pipe;  /* the guard wakes up when this end is closed */
} ls_guard;

/* Starts a guard that watches the processes whose environment contains `mark`. Borrows `mark` until the guard ends. */
ls_status ls_guard_start(ls_guard *guard, const char *mark);

/* Ends the guard. Does nothing if there is no guard. */
void ls_guard_stop(ls_guard *guard);

/* Forgets a guard that another process has ended and waited for. */
void ls_guard_forget(ls_guard *guard);

#endif
