/*
 * Faults in a simulated network (comm/transport/simulated): ranks that die or stop, and broken links. Also the errors
 * of the other ranks.
 */
#ifndef LS_TESTS_SIMULATED_FAULTS_H
#define LS_TESTS_SIMULATED_FAULTS_H

#include <stdbool.h>

#include <lockstep/base.h>

#include "base/status.h"
#include "comm/transport/simulated/network.h"

/*
 * Kills or stops a rank at a time, or after it has sent and received a number of packets (0 means at the first).
 * Killed: ranks that have sent to it, received from it or wait for it are notified after notice_ns. Its messages in
 * flight arrive up to a random time, so all or none may arrive. Stopped: no rank is notified, and everything that was
 * sent arrives. A stopped rank may be killed later.
 */
void sim_kill(ls_sim_network *network, int rank, uint64_t at_ns);
void sim_stop(ls_sim_network *network, int rank, uint64_t at_ns);
void sim_kill_after(ls_sim_network *network, int rank, uint64_t packets);
void sim_stop_after(ls_sim_network *network, int rank, uint64_t packets);

/* Kills a random rank after a random number of packets, below `most_packets`. Returns the rank. */
int sim_kill_one(ls_sim_network *network, uint64_t seed, uint64_t most_packets);

/*
 * From this time on, nothing arrives between the two ranks, which both continue. With `noticed`, each considers the
 * other dead after notice_ns, under the conditions above; otherwise never.
 */
void sim_cut(ls_sim_network *network, int a, int b, uint64_t at_ns, bool noticed);

/*
 * Between from_ns and until_ns, the rank has no turns and its clock stops, like a process that is stopped and
 * continued. Call this function at most once per rank.
 */
void sim_pause(ls_sim_network *network, int rank, uint64_t from_ns, uint64_t until_ns);

/* Delays each turn of the rank between from_ns and until_ns by late_ns. Call this function at most once per rank. */
void sim_slow(ls_sim_network *network, int rank, uint64_t from_ns, uint64_t until_ns, uint64_t late_ns);

/* The error of a rank. */
typedef struct sim_result {
    bool over; /* the rank's calls have failed */
    ls_status status;
    char text[LS_ERROR_CAPACITY];
} sim_result;

/* Stores this status and the message of this thread. */
void sim_note_failure(sim_result *result, ls_status status);

/* Fails the test unless the error of this rank is LS_ERR_PEER and names the rank that died. */
void sim_expect_blame(const sim_result *result, uint64_t seed, int rank, int victim);

#endif
