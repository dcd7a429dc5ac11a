/* Calls to a rank's transport that cannot fail in these tests. */
#ifndef LS_TESTS_SIMULATED_ENTRIES_H
#define LS_TESTS_SIMULATED_ENTRIES_H

#include "comm/transport/simulated/network.h"
#include "tests/support/unit.h"

static inline void sim_send(ls_sim_network *network, int from, ls_transfer *transfer) {
    ls_endpoint *endpoint = ls_sim_endpoint(network, from);
    assert_int_equal(endpoint->transport->send(endpoint, transfer), LS_OK);
}

static inline void sim_receive(ls_sim_network *network, int to, ls_transfer *transfer) {
    ls_endpoint *endpoint = ls_sim_endpoint(network, to);
    assert_int_equal(endpoint->transport->receive(endpoint, transfer), LS_OK);
}

/* Makes progress, and sets how long the rank waits afterwards; 0 means not at all. Returns whether any progress was
 * made. */
static inline bool sim_progress(ls_sim_network *network, int rank, uint64_t wait_ns) {
    bool moved = false;
    ls_endpoint *endpoint = ls_sim_endpoint(network, rank);
    assert_int_equal(endpoint->transport->progress(endpoint, wait_ns, &moved), LS_OK);
    return moved;
}

#endif
