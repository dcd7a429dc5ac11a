/*
 * Ranks as forked processes, so that a test can kill, stop or leave them: process_start of processes.h with a
 * communicator. Each rank joins over a new file:// store and backend shm (or LOCKSTEP_TEST_BACKEND), without ls_init. A
 * rank fails if its function leaves shared memory behind.
 */
#ifndef LS_TESTS_SUPPORT_FORKS_H
#define LS_TESTS_SUPPORT_FORKS_H

#include <lockstep/comm.h>

#include "tests/support/processes.h"

enum { LS_FORKS_MAX = 8 };

/* The function of a rank. Returns NULL, or an error message. `world` is NULL if joining failed. */
typedef const char *ls_fork_function(ls_comm *world, int rank, const void *argument);

typedef struct ls_forks {
    int size;
    double timeout; /* of the communicator, in seconds */
    ls_fork_function *function;
    const void *argument;
    char folder[64]; /* of the store */
    pid_t processes[LS_FORKS_MAX];
} ls_forks;

/* Starts `size` ranks, except the ranks in `absent` (one bit per rank). */
void ls_forks_start(ls_forks *forks, int size, unsigned absent, double timeout, ls_fork_function *function,
                    const void *argument);

/* Returns whether this process still has a descriptor or a mapping of shared memory. */
bool ls_forks_hold_memory(void);

/* Starts one of the absent ranks. */
void ls_forks_start_late(ls_forks *forks, int rank);

/* Waits for one rank. Returns its exit status, or the negated number of the signal that killed it. */
int ls_forks_wait(ls_forks *forks, int rank);

/* Kills the remaining ranks and removes the store. */
void ls_forks_end(ls_forks *forks);

/* Starts `size` ranks, waits for them, and returns whether all succeeded. */
bool ls_forks_run(int size, double timeout, ls_fork_function *function, const void *argument);

#endif
