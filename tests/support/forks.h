/*
 * Ranks as processes that a test forks itself, to kill, stop or leave alone. Each joins over a fresh file:// store and
 * a backend of shm, without ls_init.
 */
#ifndef LS_TESTS_SUPPORT_FORKS_H
#define LS_TESTS_SUPPORT_FORKS_H

#include <lockstep/comm.h>
#include <sys/types.h>

enum { LS_FORKS_MAX = 8 };

typedef struct ls_forks {
    int size;
    double timeout;  /* of the communicator, in seconds */
    char folder[64]; /* of the store */
    pid_t processes[LS_FORKS_MAX];
} ls_forks;

/* What a rank does; its result is the process's exit status. `world` is NULL where joining failed. */
typedef int ls_fork_function(ls_comm *world, int rank, const void *argument);

/* Starts `size` ranks. */
void ls_forks_start(ls_forks *forks, int size, double timeout, ls_fork_function *function, const void *argument);

/* The same without the ranks of `absent` (a bit per rank). */
void ls_forks_start_some(ls_forks *forks, int size, unsigned absent, double timeout, ls_fork_function *function,
                         const void *argument);

/* Waits for one rank and returns its wait status. */
int ls_forks_wait(ls_forks *forks, int rank);

/* Ends the ranks that are left and removes the store. */
void ls_forks_end(ls_forks *forks);

#endif
