/* Assignment of this machine's cores to ranks. */
#ifndef LS_CLI_CORES_H
#define LS_CLI_CORES_H

#include <lockstep/base.h>
#include <sched.h>

typedef struct ls_cores {
    int threads;     /* number of threads of each rank: cores / ranks, at least 1 */
    size_t set_size; /* size of a rank's set in bytes */
    cpu_set_t *sets; /* one set per rank, or NULL if the ranks are not bound */
} ls_cores;

/*
 * Divides the cores that this process may use among `ranks` ranks. A rank gets neighboring cores. If there are more
 * ranks than cores, divides hardware threads instead. If there are more ranks than hardware threads, the same number of
 * neighboring ranks shares each thread, because the kernel may otherwise leave a thread idle too long for ranks that
 * wait for each other. If the numbers do not divide evenly, no rank is bound.
 */
ls_status ls_cores_share(ls_cores *cores, int ranks, bool bind);

/* Returns the cores of a rank, or NULL if the rank is not bound. */
const cpu_set_t *ls_cores_of_rank(const ls_cores *cores, int rank);

void ls_cores_release(ls_cores *cores);

#endif
