/* Which rank gets which cores of this machine. */
#ifndef LS_CLI_CORES_H
#define LS_CLI_CORES_H

#include <lockstep/base.h>
#include <sched.h>

typedef struct ls_cores {
    int threads;     /* for each rank: cores / ranks, at least 1 */
    size_t set_size; /* bytes of one rank's set */
    cpu_set_t *sets; /* rank after rank; NULL: ranks are not bound */
} ls_cores;

/*
 * Shares the cores that this process may use among `ranks`: neighbouring cores to one rank. Where there are more ranks
 * than cores it shares hardware threads. Where there are more ranks than those, as many neighbouring ranks share each
 * as share any other (the kernel may leave one idle too long for ranks that wait for each other); where that does not
 * come out even, nobody is bound.
 */
ls_status ls_cores_share(ls_cores *cores, int ranks, bool bind);

/* The cores of a rank; NULL where it is not bound. */
const cpu_set_t *ls_cores_of_rank(const ls_cores *cores, int rank);

void ls_cores_release(ls_cores *cores);

#endif
