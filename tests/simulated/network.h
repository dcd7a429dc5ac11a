/*
 * A network that is a model: a transport (comm/transport.h) on a virtual clock, for tests of the engine with one to a
 * thousand ranks in one thread. Everything that happens follows from the options and the calls, so a seed that fails
 * fails again.
 *
 * Time is that of LogGP (Alexandrov and others, "LogGP: incorporating long messages into the LogP model", SPAA 1995).
 * What travels are packets: a message up to the endpoint's `eager` bytes is one; a larger one is three, an
 * announcement, the receiver's answer once there is a receive for it, and the content. A packet takes `overhead_ns` of
 * its sender's processor, then bytes / bytes_per_ns on its sender's link, where one follows the other, then
 * `latency_ns` and a random delay, and at last `overhead_ns` of its receiver's processor. Receivers' links are not
 * modelled. A send has ended when its content has left. So, on an idle network, from the send to the end of the
 * receive:
 *
 *     eager:  2 overhead + bytes / bytes_per_ns + latency
 *     larger: 6 overhead + bytes / bytes_per_ns + 3 latency
 *
 * Nothing blocks: `progress` with a time to wait returns at once, and that time is then when sim_next gives the rank
 * its turn at the latest. In its turn a rank does what it can; its processor's time goes on by overheads, past the
 * clock of the network. Packets are taken in by `progress` alone, as where a process must look at its sockets.
 *
 * Wrong use of the transport is LS_ERR_INTERNAL from the entry, or from the next `progress`: a peer that is none, an
 * open transfer used again, a channel that receives from any rank and from named ones, memory of a send that was
 * written to before the send had ended. What a test cannot go on without (memory) aborts it.
 */
#ifndef LS_TESTS_SIMULATED_NETWORK_H
#define LS_TESTS_SIMULATED_NETWORK_H

#include <stdio.h>

#include "comm/transport.h"

/* A time that never comes. */
#define SIM_NEVER UINT64_MAX

typedef struct sim_options {
    int ranks;
    uint64_t seed;
    uint64_t latency_ns;
    uint64_t overhead_ns;
    double bytes_per_ns;    /* 0: content takes no time */
    size_t eager;           /* 0: LS_TRANSPORT_LEAST_EAGER */
    uint64_t most_delay_ns; /* each packet takes up to this longer; those of one channel and pair keep their order */
    uint64_t most_start_ns; /* each rank has its first turn after up to this */
    uint64_t notice_ns;     /* from a rank's end until its peers can know; up to most_delay_ns longer */
    FILE *log;              /* a line for every event; NULL: none */
} sim_options;

typedef struct sim_network sim_network;

/* Every rank has its first turn near time 0. The caller owns the network, and the network its endpoints. */
sim_network *sim_new(const sim_options *options);

/* Does not touch transfers. NULL is allowed. */
void sim_free(sim_network *network);

/* A rank's endpoint, until sim_free; `close` ends it for the other ranks. */
ls_endpoint *sim_endpoint(sim_network *network, int rank);

/*
 * Goes on to the next time when a rank has something to do (a packet came, its send has left, its wait is over) and
 * returns the rank, whose turn it is; -1: nothing will happen any more. Each rank comes once by itself, to begin.
 */
int sim_next(sim_network *network);

/* A rank whose turn it is has its next one after that time of its own clock at the latest: what `progress` does with a
 * time to wait, for those who call it with none. */
void sim_wait(sim_network *network, int rank, uint64_t wait_ns);

/* The network's clock: the time of the latest turn. */
uint64_t sim_now(const sim_network *network);

/* The time up to which a rank's processor is busy, on the same clock, which `now_ns` of its endpoint is not: that one
 * stands still while the rank is paused. */
uint64_t sim_time_of(const sim_network *network, int rank);

/* Whether a rank goes on: it is neither dead nor stopped. Where it ended in the middle of its turn, what it still did
 * then had no effect. */
bool sim_is_alive(const sim_network *network, int rank);

/*
 * Ends a rank at a time, now or later, or after it has sent and taken in so many packets (0: when it sends or takes in
 * its first). Killed: ranks that have sent to it, received from it or wait to do so know after notice_ns; what it had
 * under way arrives up to a random moment, all of it or none of it included. Stopped: nobody is told, and all that has
 * left arrives. A stopped rank may be killed later.
 */
void sim_kill(sim_network *network, int rank, uint64_t at_ns);
void sim_stop(sim_network *network, int rank, uint64_t at_ns);
void sim_kill_after(sim_network *network, int rank, uint64_t packets);
void sim_stop_after(sim_network *network, int rank, uint64_t packets);

/* From a time on nothing arrives between two ranks, both of which go on. `noticed`: each sees the other as gone after
 * notice_ns, under the conditions above; otherwise never. */
void sim_cut(sim_network *network, int a, int b, uint64_t at_ns, bool noticed);

/* A rank has no turns in this time, and its own clock stands still, as of a process that is stopped and goes on. Once
 * for each rank. */
void sim_pause(sim_network *network, int rank, uint64_t from_ns, uint64_t until_ns);

/* In this time a rank has its turns that much later than there is something to do. Once for each rank. */
void sim_slow(sim_network *network, int rank, uint64_t from_ns, uint64_t until_ns, uint64_t late_ns);

/* A hash of all events so far: equal for equal runs. */
uint64_t sim_trace(const sim_network *network);

/* How many events there were. */
uint64_t sim_events(const sim_network *network);

/* What a rank waits for: "at 1200 ns receives from 3 on channel 1, sends 64 bytes to 2 on channel 0". */
void sim_describe(const sim_network *network, int rank, char *text, size_t room);

#endif
