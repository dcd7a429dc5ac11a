/*
 * A simulated network: a transport (comm/transport.h) with a virtual clock, for one to thousands of ranks in a single
 * thread. `lockstep bench --simulate` uses it to estimate how fast the engine would be on a large cluster. Tests run
 * the engine on it (tests/simulated adds faults). All events are determined by the options and the calls.
 *
 * The timing model is LogGP (Alexandrov and others, "LogGP: incorporating long messages into the LogP model", SPAA
 * 1995). A message of up to the endpoint's `eager` bytes is one packet. A larger message consists of three packets: an
 * announcement, the receiver's answer when there is a receive for the message, and the content. A packet takes these
 * times, in this order:
 *  - `overhead_ns` of the sender's processor;
 *  - bytes / bytes_per_ns on the sender's link, which sends one content after another. Packets without content do not
 *    wait for the link;
 *  - `latency_ns` and a random delay;
 *  - `overhead_ns` of the receiver's processor.
 *
 * Receivers' links are modeled only if `both_links` is true. A send ends when its content has left. On an idle network,
 * the time from the send to the end of the receive is:
 *  - eager: 2 overhead + bytes / bytes_per_ns + latency
 *  - larger: 6 overhead + bytes / bytes_per_ns + 3 latency
 *
 * Nothing blocks. `progress` with a wait time returns at once, and ls_sim_next gives the rank its next turn after this
 * time at the latest. In its turn, a rank does everything that it can do. Overheads advance the time of its processor
 * beyond the clock of the network. Only `progress` receives packets, as in a process that must poll its sockets.
 *
 * Incorrect use of the transport fails with LS_ERR_INTERNAL, at once or from the next `progress`:
 *  - a peer that does not exist;
 *  - a transfer that is used again before it has ended;
 *  - a channel that receives both from any rank and from given ranks;
 *  - memory of a send that is modified before the send has ended.
 *
 * If memory is exhausted, there are no more events, and ls_sim_has_memory returns false.
 */
#ifndef LS_COMM_TRANSPORT_SIMULATED_NETWORK_H
#define LS_COMM_TRANSPORT_SIMULATED_NETWORK_H

#include <stdio.h>

#include "comm/transport.h"

/* A time that is never reached. */
#define LS_SIM_NEVER UINT64_MAX

typedef struct ls_sim_options {
    int ranks;
    uint64_t seed;
    uint64_t latency_ns;
    uint64_t overhead_ns;
    double bytes_per_ns;    /* transfer rate of a link; 0 means that content takes no time */
    size_t eager;           /* 0: LS_TRANSPORT_LEAST_EAGER */
    uint64_t most_delay_ns; /* largest random delay of a packet; messages of one channel between two ranks keep their
                               order */
    uint64_t most_start_ns; /* maximum random delay before a rank's first turn */
    uint64_t notice_ns;     /* time from a rank's exit until its peers detect it; up to most_delay_ns is added */
    size_t most_content; /* messages with more bytes have no content, and the receiver's memory stays unchanged; 0 means
                            that all messages have content */
    bool both_links;     /* receivers' links, too, transmit one content after another */
    int machine_ranks;   /* ranks per machine, in rank order; 0 if unknown. Does not affect times */
    FILE *log;           /* receives a line for every event; NULL disables the log */
} ls_sim_options;

typedef struct ls_sim_network ls_sim_network;

/* Creates a network in which every rank has its first turn near time 0. The network owns its endpoints. Returns
 * ownership of the network to the caller, who frees it with ls_sim_free. Returns NULL if out of memory. */
ls_sim_network *ls_sim_new(const ls_sim_options *options);

/* Frees a network, which may be NULL. Does not access transfers. */
void ls_sim_free(ls_sim_network *network);

/* Returns a rank's endpoint, which is valid until ls_sim_free. To the other ranks, `close` is the exit of the rank. */
ls_endpoint *ls_sim_endpoint(ls_sim_network *network, int rank);

/*
 * Advances the network to the next time at which a rank has something to do: a packet has arrived, a send has left, or
 * a wait has ended. Returns this rank, which then has its turn, or -1 if no event is left. In addition, each rank has
 * one turn at its start.
 */
int ls_sim_next(ls_sim_network *network);

/*
 * Same as ls_sim_next for several networks of the same ranks, which then have one clock: a wait on one network ends
 * only after the earlier events of all networks. Pass the same networks to all calls, from the start.
 */
int ls_sim_next_of(ls_sim_network *const *networks, int count);

/* Sets the latest time of the next turn for the rank that currently has its turn: `wait_ns` from now, on the rank's
 * own clock. `progress` with a wait time does the same. */
void ls_sim_wait(ls_sim_network *network, int rank, uint64_t wait_ns);

/* Returns the network's clock: the time of the latest turn, in ns. */
uint64_t ls_sim_now(const ls_sim_network *network);

/* Returns the time until which a rank's processor is busy, on the network's clock. This clock differs from `now_ns`
 * of the rank's endpoint, which does not advance while the rank is paused. */
uint64_t ls_sim_time_of(const ls_sim_network *network, int rank);

/* Returns true if a rank is neither dead nor stopped. If a rank exits during its turn, its later actions in this
 * turn have no effect. */
bool ls_sim_is_alive(const ls_sim_network *network, int rank);

/* Returns false if memory was ever exhausted. */
bool ls_sim_has_memory(const ls_sim_network *network);

/* The traffic between a rank and ranks on other machines. */
typedef struct ls_sim_outside {
    uint64_t messages; /* number of messages that the rank has sent */
    uint64_t sent;     /* bytes of these messages */
    uint64_t received; /* number of bytes that were sent to the rank */
} ls_sim_outside;

ls_sim_outside ls_sim_count_outside(const ls_sim_network *network, int rank);

/* Returns a hash of all events so far. Identical runs have identical hashes. */
uint64_t ls_sim_trace(const ls_sim_network *network);

/* Returns the number of events so far. */
uint64_t ls_sim_events(const ls_sim_network *network);

/* Writes what a rank waits for: "rank 1 at 1200 ns, receives from rank 3 on channel 1 (8 bytes), sends to rank 2 on
 * channel 0 (64 bytes)". */
void ls_sim_describe(const ls_sim_network *network, int rank, char *text, size_t room);

#endif
