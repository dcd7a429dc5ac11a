/*
 * Ranks as processes that a test forks itself, to kill, stop or leave alone: process_start of processes.h with a
 * communicator. Each rank joins over a fresh file:// store and backend shm (or LOCKSTEP_TEST_BACKEND), without ls_init,
 * and fails when its function left shared memory behind.
 */
#ifndef LS_TESTS_SUPPORT_FORKS_H
#define LS_TESTS_SUPPORT_FORKS_H

#include <lockstep/comm.h>

#include "tests/support/processes.h"

enum { LS_FORKS_MAX = 8 };

/* What a rank does: NULL or what went wrong. `world` is NULL where joining failed. */
typedef const char *ls_fork_function(ls_comm *world, int rank, const void *argument);

typedef struct ls_forks {
    int size;
    double timeout; /* of the communicator, in seconds */
    ls_fork_function *function;
    const void *argument;
    char folder[64]; /* of the store */
    pid_t processes[LS_FORKS_MAX];
} ls_forks;

/* Starts `size` ranks, without those of `absent` (a bit per rank). */
void ls_forks_start(ls_forks *forks, int size, unsigned absent, double timeout, ls_fork_function *function,
                    const void *argument);

/* Whether a descriptor or a mapping of shared memory is left in this process. */
bool ls_forks_hold_memory(void);

/* Starts one of the absent ranks after all. */
void ls_forks_start_late(ls_forks *forks, int rank);

/* Waits for one rank: its exit status, or minus the signal that ended it. */
int ls_forks_wait(ls_forks *forks, int rank);

/* Ends the ranks that are left and removes the store. */
void ls_forks_end(ls_forks *forks);

/* Starts `size` ranks and waits for them; whether all succeeded. */
bool ls_forks_run(int size, double timeout, ls_fork_function *function, const void *argument);

#endif
