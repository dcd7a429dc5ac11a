/* What goes wrong in a simulated network (comm/transport/simulated): ranks that end or stand still, links that break.
 */
#ifndef LS_TESTS_SIMULATED_FAULTS_H
#define LS_TESTS_SIMULATED_FAULTS_H

#include "comm/transport/simulated/network.h"

/*
 * Ends a rank at a time, now or later, or after it has sent and taken in so many packets (0: when it sends or takes in
 * its first). Killed: ranks that have sent to it, received from it or wait to do so know after notice_ns; what it had
 * under way arrives up to a random moment, all of it or none of it included. Stopped: nobody is told, and all that has
 * left arrives. A stopped rank may be killed later.
 */
void sim_kill(ls_sim_network *network, int rank, uint64_t at_ns);
void sim_stop(ls_sim_network *network, int rank, uint64_t at_ns);
void sim_kill_after(ls_sim_network *network, int rank, uint64_t packets);
void sim_stop_after(ls_sim_network *network, int rank, uint64_t packets);

/* From a time on nothing arrives between two ranks, both of which go on. `noticed`: each sees the other as gone after
 * notice_ns, under the conditions above; otherwise never. */
void sim_cut(ls_sim_network *network, int a, int b, uint64_t at_ns, bool noticed);

/* A rank has no turns in this time, and its own clock stands still, as of a process that is stopped and goes on. Once
 * for each rank. */
void sim_pause(ls_sim_network *network, int rank, uint64_t from_ns, uint64_t until_ns);

/* In this time a rank has its turns that much later than there is something to do. Once for each rank. */
void sim_slow(ls_sim_network *network, int rank, uint64_t from_ns, uint64_t until_ns, uint64_t late_ns);

#endif
