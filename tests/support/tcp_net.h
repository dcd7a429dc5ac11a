/* Endpoints of the transport over TCP on loopback, all in one process, each used by the test or by a thread of it. */
#ifndef LS_TESTS_SUPPORT_TCP_NET_H
#define LS_TESTS_SUPPORT_TCP_NET_H

#include "comm/transport/tcp/link.h"

enum { TCP_NET_MOST = 5 };

#define TCP_NET_LONGEST 60.0 /* seconds that no test waits */

/* An entry of a list of tests; the test fails where it leaves a descriptor open, or closes one too many. */
#define TCP_NET_TEST(name) cmocka_unit_test_setup_teardown(name, tcp_net_note_descriptors, tcp_net_compare_descriptors)

int tcp_net_note_descriptors(void **state);
int tcp_net_compare_descriptors(void **state);

typedef struct tcp_net {
    int size;
    ls_key key;
    ls_tcp_peer_info peer_infos[TCP_NET_MOST];
    int listeners[TCP_NET_MOST]; /* -1: an endpoint has it, or nobody */
    ls_endpoint *ends[TCP_NET_MOST];
} tcp_net;

/* All listen; each is on a machine of its own, as far as they know, so that none reads another's memory; or they are on
 * so many. */
void tcp_net_listen(tcp_net *net, int size);
void tcp_net_listen_on(tcp_net *net, int size, int machines);

/* Opens one that listens. */
void tcp_net_open(tcp_net *net, int rank);

/* Both, of all ranks. */
void tcp_net_start(tcp_net *net, int size);

/* Closes one at once; it is no error if it is closed. */
void tcp_net_close(tcp_net *net, int rank);

/* Closes all that there is. */
void tcp_net_end(tcp_net *net);

/* Each endpoint moves what it can. */
void tcp_net_turn(tcp_net *net);

/* The same, and fails the test when it is asked after `limit`. */
void tcp_net_turn_until(tcp_net *net, double limit);

/* Moves all until something is so; the block that follows is run before each look. */
#define TCP_NET_UNTIL(net, condition)                                                                                  \
    for (const double tcp_net_limit_ = ls_clock_seconds() + TCP_NET_LONGEST; !(condition);                             \
         tcp_net_turn_until(net, tcp_net_limit_))

/* What byte `at` of message `number` is. */
static inline unsigned char tcp_net_byte(uint64_t number, size_t at) {
    return (unsigned char)(number * 37 + at * 11 + (at >> 8) * 3 + (at >> 16));
}

/* A message of exactly so much memory, so that checkers see every step outside; filled in, or cleared. */
ls_transfer tcp_net_message(int peer, int channel, size_t bytes, uint64_t number);
ls_transfer tcp_net_room(int peer, int channel, size_t bytes);

/* Whether that is what message `number` of so many bytes holds. */
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

/* ---- a rank, or somebody who is none, played by hand ---------------------------------------------------------------
 */

/* Connects to a rank. */
int tcp_net_call(const tcp_net *net, int rank);

/* Reads so many bytes while the endpoints move; whether they came before the end. */
bool tcp_net_hear(tcp_net *net, int socket, void *bytes, size_t size);

/* Writes all of it. */
void tcp_net_tell(int socket, const void *bytes, size_t size);

/* Connects to a rank as `as`, which has no endpoint, and says hello; `as` sends there, and reads nothing. */
int tcp_net_enter(tcp_net *net, int rank, int as);

/* Waits until a rank has connected to `as`, which has a listener and no endpoint, and hears its hello; `as` reads there
 * what the rank sends. */
int tcp_net_accept(tcp_net *net, int as, ls_tcp_hello *hello);

#endif
