/*
 * The guard: a small process that outlives a launcher killed with SIGKILL for as long as it takes to end what the
 * launcher can no longer end. The ranks themselves die with the launcher (their death signal); what they started does
 * not, and is found by the launch's mark in its environment.
 */
#ifndef LS_CLI_GUARD_H
#define LS_CLI_GUARD_H

#include <lockstep/base.h>
#include <sys/types.h>

typedef struct ls_guard {
    pid_t pid; /* 0: none */
    int pipe;  /* the guard wakes when this end is closed */
} ls_guard;

/* Starts a guard over the processes whose environment holds `mark`, text that must live as long as the guard. */
ls_status ls_guard_start(ls_guard *guard, const char *mark);

/* Ends it and leaves no trace. Without one it does nothing. */
void ls_guard_stop(ls_guard *guard);

/* For a guard that somebody else ended and that has been waited for. */
void ls_guard_forget(ls_guard *guard);

#endif
