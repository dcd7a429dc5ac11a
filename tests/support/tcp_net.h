/* Endpoints of the TCP transport on the loopback interface, all in one process, each used by the test or by one of
 * its threads. */
#ifndef LS_TESTS_SUPPORT_TCP_NET_H
#define LS_TESTS_SUPPORT_TCP_NET_H

#include "comm/transport/tcp/link.h"

enum { TCP_NET_MOST = 5 };

#define TCP_NET_LONGEST 60.0 /* seconds; longer than any wait in a test */

/* An entry of a list of tests. The test fails if it leaves a descriptor open, or closes a foreign descriptor. */
#define TCP_NET_TEST(name) cmocka_unit_test_setup_teardown(name, tcp_net_note_descriptors, tcp_net_compare_descriptors)

int tcp_net_note_descriptors(void **state);
int tcp_net_compare_descriptors(void **state);

typedef struct tcp_net {
    int size;
    ls_key key;
    ls_tcp_peer_info peer_infos[TCP_NET_MOST];
    int listeners[TCP_NET_MOST]; /* -1 if an endpoint owns the listener, or it was closed */
    ls_endpoint *ends[TCP_NET_MOST];
} tcp_net;

/*
 * Makes all ranks listen. Each rank reports a separate machine, so that no rank reads another's memory. With
 * `machines`, all ranks share this number of machines instead.
 */
void tcp_net_listen(tcp_net *net, int size);
void tcp_net_listen_on(tcp_net *net, int size, int machines);

/* Opens the endpoint of a rank that listens. */
void tcp_net_open(tcp_net *net, int rank);

/* Makes all ranks listen, and opens their endpoints. */
void tcp_net_start(tcp_net *net, int size);

/* Closes an endpoint at once. It may already be closed. */
void tcp_net_close(tcp_net *net, int rank);

/* Closes all endpoints and listeners. */
void tcp_net_end(tcp_net *net);

/* Lets each endpoint make the progress that is possible. */
void tcp_net_turn(tcp_net *net);

/* Does the same, but fails the test after the time `limit`. */
void tcp_net_turn_until(tcp_net *net, double limit);

/* Runs all endpoints until the condition holds. The block that follows runs before each check. */
#define TCP_NET_UNTIL(net, condition)                                                                                  \
    for (const double tcp_net_limit_ = ls_clock_seconds() + TCP_NET_LONGEST; !(condition);                             \
         tcp_net_turn_until(net, tcp_net_limit_))

/* Returns byte `at` of message `number`. */
static inline unsigned char tcp_net_byte(uint64_t number, size_t at) {
    return (unsigned char)(number * 37 + at * 11 + (at >> 8) * 3 + (at >> 16));
}

/*
 * Makes a message whose memory has the exact size, so that sanitizers detect out-of-bounds accesses. A message to send
 * is filled; a message to receive is cleared.
 */
ls_transfer tcp_net_message(int peer, int channel, size_t bytes, uint64_t number);
ls_transfer tcp_net_room(int peer, int channel, size_t bytes);

/* Returns whether the transfer contains message `number` with this number of bytes. */
bool tcp_net_holds(const ls_transfer *receive, uint64_t number, size_t bytes);

static inline ls_status tcp_net_send(tcp_net *net, int rank, ls_transfer *send) {
    return net->ends[rank]->transport->send(net->ends[rank], send);
}

static inline ls_status tcp_net_receive(tcp_net *net, int rank, ls_transfer *receive) {
    return net->ends[rank]->transport->receive(net->ends[rank], receive);
}

static inline void tcp_net_withdraw(tcp_net *net, int rank, ls_transfer *transfer) {
    net->ends[rank]->transport->withdraw(net->ends[rank], transfer);
}

static inline bool tcp_net_is_gone(const tcp_net *net, int rank, int peer) {
    return net->ends[rank]->transport->peer(net->ends[rank], peer) == LS_PEER_GONE;
}

/* ---- a rank, or a foreign process, driven by hand ---------------------------------------------------------------- */

/* Connects to a rank. */
int tcp_net_call(const tcp_net *net, int rank);

/* Reads `size` bytes while the endpoints make progress. Returns whether they arrived before the connection was
 * closed. */
bool tcp_net_hear(tcp_net *net, int socket, void *bytes, size_t size);

/* Writes all bytes. */
void tcp_net_tell(int socket, const void *bytes, size_t size);

/* Returns the hello of `rank` for `other`. */
ls_tcp_hello tcp_net_hello(const ls_key *key, const ls_tcp_peer_info *peer_infos, int size, int rank, int other);

/*
 * Connects to a rank as rank `as`, which has no endpoint, and sends its hello. Returns a socket, on which `as` sends.
 */
int tcp_net_enter(tcp_net *net, int rank, int as);

/*
 * Waits until a rank has connected to `as`, which has a listener but no endpoint, and reads the rank's hello. Returns a
 * socket, on which the rank sends to `as`.
 */
int tcp_net_accept(tcp_net *net, int as, ls_tcp_hello *hello);

#endif
