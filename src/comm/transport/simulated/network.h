/*
 * A network that is a model: a transport (comm/transport.h) on a virtual clock, of one to thousands of
 * ranks in one thread. `lockstep bench --simulate` tells by it what the engine would take on a large cluster, and tests
 * (tests/simulated has faults) run the engine on it. Everything that happens follows from the options and the calls.
 *
 * Time is that of LogGP (Alexandrov and others, "LogGP: incorporating long messages into the LogP model", SPAA 1995).
 * What travels are packets: a message up to the endpoint's `eager` bytes is one; a larger one is three, an
 * announcement, the receiver's answer once there is a receive for it, and the content. A packet takes `overhead_ns` of
 * its sender's processor, then bytes / bytes_per_ns on its sender's link, where one follows the other (and what has
 * none does not wait), then `latency_ns` and a random delay, and at last `overhead_ns` of its receiver's processor.
 * Receivers' links are not modelled unless `both_links` asks for it. A send has ended when its content has left. So, on
 * an idle network, from the send to the end of the receive:
 *
 *     eager:  2 overhead + bytes / bytes_per_ns + latency
 *     larger: 6 overhead + bytes / bytes_per_ns + 3 latency
 *
 * Nothing blocks: `progress` with a time to wait returns at once, and that time is then when ls_sim_next gives the rank
 * its turn at the latest. In its turn a rank does what it can; its processor's time goes on by overheads, past the
 * clock of the network. Packets are taken in by `progress` alone, as where a process must look at its sockets.
 *
 * Wrong use of the transport is LS_ERR_INTERNAL from the entry, or from the next `progress`: a peer that is none, an
 * open transfer used again, a channel that receives from any rank and from named ones, memory of a send that was
 * written to before the send had ended. Where memory is short nothing
 * happens any more, and ls_sim_has_memory tells.
 */
#ifndef LS_COMM_TRANSPORT_SIMULATED_NETWORK_H
#define LS_COMM_TRANSPORT_SIMULATED_NETWORK_H

#include <stdio.h>

#include "comm/transport.h"

/* A time that never comes. */
#define LS_SIM_NEVER UINT64_MAX

typedef struct ls_sim_options {
    int ranks;
    uint64_t seed;
    uint64_t latency_ns;
    uint64_t overhead_ns;
    double bytes_per_ns;    /* 0: content takes no time */
    size_t eager;           /* 0: LS_TRANSPORT_LEAST_EAGER */
    uint64_t most_delay_ns; /* each packet takes up to this longer; those of one channel and pair keep their order */
    uint64_t most_start_ns; /* each rank has its first turn after up to this */
    uint64_t notice_ns;     /* from a rank's end until its peers can know; up to most_delay_ns longer */
    size_t most_content;    /* what is larger travels without its content: its receiver's memory stays as it is; 0: all
                               content travels */
    bool both_links;        /* receivers' links too take one content after the other */
    int machine_ranks;      /* the first so many are on one machine, and so on; 0: nobody knows. Time is as without */
    FILE *log;              /* a line for every event; NULL: none */
} ls_sim_options;

typedef struct ls_sim_network ls_sim_network;

/* Every rank has its first turn near time 0. The caller owns the network, and the network its endpoints. NULL: memory.
 */
ls_sim_network *ls_sim_new(const ls_sim_options *options);

/* Does not touch transfers. NULL is allowed. */
void ls_sim_free(ls_sim_network *network);

/* A rank's endpoint, until ls_sim_free; `close` ends it for the other ranks. */
ls_endpoint *ls_sim_endpoint(ls_sim_network *network, int rank);

/*
 * Goes on to the next time when a rank has something to do (a packet came, its send has left, its wait is over) and
 * returns the rank, whose turn it is; -1: nothing will happen any more. Each rank comes once by itself, to begin.
 */
int ls_sim_next(ls_sim_network *network);

/* A rank whose turn it is has its next one after that time of its own clock at the latest: what `progress` does with a
 * time to wait, for those who call it with none. */
void ls_sim_wait(ls_sim_network *network, int rank, uint64_t wait_ns);

/* The network's clock: the time of the latest turn. */
uint64_t ls_sim_now(const ls_sim_network *network);

/* The time up to which a rank's processor is busy, on the same clock, which `now_ns` of its endpoint is not: that one
 * stands still while the rank is paused. */
uint64_t ls_sim_time_of(const ls_sim_network *network, int rank);

/* Whether a rank goes on: it is neither dead nor stopped. Where it ended in the middle of its turn, what it still did
 * then had no effect. */
bool ls_sim_is_alive(const ls_sim_network *network, int rank);

/* Whether there was always memory for what was to happen. */
bool ls_sim_has_memory(const ls_sim_network *network);

/* What has gone between a rank and ranks of other machines. */
typedef struct ls_sim_outside {
    uint64_t messages; /* that it has sent, and */
    uint64_t sent;     /* bytes of them; */
    uint64_t received; /* bytes that were sent to it */
} ls_sim_outside;

ls_sim_outside ls_sim_count_outside(const ls_sim_network *network, int rank);

/* A hash of all events so far: equal for equal runs. */
uint64_t ls_sim_trace(const ls_sim_network *network);

/* How many events there were. */
uint64_t ls_sim_events(const ls_sim_network *network);

/* What a rank waits for: "at 1200 ns receives from 3 on channel 1, sends 64 bytes to 2 on channel 0". */
void ls_sim_describe(const ls_sim_network *network, int rank, char *text, size_t room);

#endif
