/* Runs a function for every rank of a simulated network. The ranks take turns. */
#ifndef LS_COMM_TRANSPORT_SIMULATED_DRIVER_H
#define LS_COMM_TRANSPORT_SIMULATED_DRIVER_H

#include "comm/transport/simulated/network.h"

/* A rank's turn: does everything that the rank can do, and calls `progress` until nothing progresses. Returns true
 * if the rank is done and needs no more turns. */
typedef bool ls_sim_step(void *state, int rank);

typedef struct ls_sim_outcome {
    bool finished;     /* all ranks that are alive are done */
    int unfinished;    /* number of ranks that are alive and not done */
    uint64_t ended_ns; /* the latest time of any rank's processor, in ns; if `finished`, the time when the last rank was
                          done */
    char text[1024];   /* if not finished: the ranks that are not done, and what they wait for */
} ls_sim_outcome;

/* Lets the ranks take turns until all ranks that are alive are done, no event is left, or the next turn would be later
 * than `limit_ns` (0 disables the limit). The state of rank r is at states + r * size. May be called only once per
 * network. */
ls_sim_outcome ls_sim_run(ls_sim_network *network, ls_sim_step *step, void *states, size_t size, uint64_t limit_ns);

#endif
