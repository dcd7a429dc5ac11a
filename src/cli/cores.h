/* Assigns the cores of this machine to ranks. */
#ifndef LS_CLI_CORES_H
#define LS_CLI_CORES_H

#include <lockstep/base.h>
#include <sched.h>

typedef struct ls_cores {
    int threads;     /* of each rank: cores / ranks, at least 1 */
    size_t set_size; /* bytes of the set of one rank */
    cpu_set_t *sets; /* one set per rank; NULL if the ranks are not bound */
} ls_cores;

/*
 * Divides the cores that this process may use among `ranks` ranks. A rank gets neighboring cores. With more ranks than
 * cores, it divides hardware threads. With more ranks than hardware threads, the same number of neighboring ranks
 * shares each thread, because the kernel may leave one idle too long for ranks that wait for each other. If the numbers
 * do not divide evenly, no rank is bound.
 */
ls_status ls_cores_share(ls_cores *cores, int ranks, bool bind);

/* Returns the cores of a rank, or NULL if the rank is not bound. */
const cpu_set_t *ls_cores_of_rank(const ls_cores *cores, int rank);

void ls_cores_release(ls_cores *cores);

#endif
