/* Runs one function for every rank of a simulated network, in turns. */
#ifndef LS_COMM_TRANSPORT_SIMULATED_DRIVER_H
#define LS_COMM_TRANSPORT_SIMULATED_DRIVER_H

#include "comm/transport/simulated/network.h"

/* A rank's turn: does what can be done, and asks `progress` until nothing moves. True: this rank is done, and has no
 * more turns. */
typedef bool ls_sim_step(void *state, int rank);

typedef struct ls_sim_outcome {
    bool finished;     /* all ranks that are alive are done */
    int unfinished;    /* how many of those alive are not */
    uint64_t ended_ns; /* the latest time that any rank came to: finished, when the last one was done */
    char text[1024];   /* not finished: which ranks, and what they wait for */
} ls_sim_outcome;

/*
 * Gives ranks their turns until all that are alive are done, nothing can happen any more, or a turn would be later
 * than `limit_ns` (0: no limit). The state of rank r is at states + r * size. Once for each network.
 */
ls_sim_outcome ls_sim_run(ls_sim_network *network, ls_sim_step *step, void *states, size_t size, uint64_t limit_ns);

#endif
