/* The state of the simulated network, for network.c, which implements the clock and the exits of ranks, and for
 * endpoint.c, which implements the transport. */
#ifndef LS_COMM_TRANSPORT_SIMULATED_STATE_H
#define LS_COMM_TRANSPORT_SIMULATED_STATE_H

#include "comm/transport/arrivals.h"
#include "comm/transport/simulated/network.h"
#include "comm/transport/simulated/queue.h"

typedef enum ls_sim_packet_kind {
    LS_SIM_WHOLE,    /* a small message */
    LS_SIM_ANNOUNCE, /* a large message waits for its receive */
    LS_SIM_CLEAR,    /* the large message has a receive */
    LS_SIM_CONTENT,  /* the content of a large message */
    LS_SIM_LEFT,     /* to the sender itself: the content has left it */
    LS_SIM_GONE      /* `from` has exited, or the connection to it is lost */
} ls_sim_packet_kind;

typedef struct ls_sim_packet {
    struct ls_sim_packet *next; /* the next packet in an inbox */
    ls_sim_packet_kind kind;
    int from;
    int to;
    int channel;
    uint64_t number;                    /* number of the message */
    uint64_t left_ns;                   /* time at which the last byte left the sender */
    const struct ls_sim_packet *packet; /* LS_SIM_LEFT only: the packet that has left */
    size_t bytes;                       /* bytes of the message */
    bool waited;                        /* the packet has waited for the receiver's link (options.both_links) */
    bool hollow;                        /* the packet has no content (options.most_content) */
    _Alignas(16) unsigned char data[];
} ls_sim_packet;

/* The state that a rank keeps per peer: what the rank has sent to the peer, and what it knows about the peer. */
typedef struct ls_sim_link {
    uint64_t last_ns[LS_TRANSPORT_CHANNELS];  /* arrival time of the latest message on each channel */
    uint64_t latest_ns;                       /* arrival time of the latest packet */
    uint64_t whole_ns[LS_TRANSPORT_CHANNELS]; /* for options.both_links: last_ns after the wait for the link */
    uint64_t cut_ns;                          /* after this time, nothing arrives at the peer */
    uint64_t lost_ns;                         /* after this time, this rank can detect the loss of the connection */
    bool reached;                             /* there is a connection: this rank detects the peer's exit */
    bool told;                                /* the notification of the peer's exit has been queued */
    bool gone;                                /* this rank knows that the peer has exited */
} ls_sim_link;

typedef struct ls_sim_list {
    ls_transfer *first;
    ls_transfer **end; /* where the next transfer is added; NULL if none has ever been added */
} ls_sim_list;

/* An interval of time, without its end. */
typedef struct ls_sim_span {
    uint64_t from_ns;
    uint64_t until_ns;
} ls_sim_span;

typedef struct ls_sim_rank {
    ls_endpoint endpoint;
    ls_sim_network *network;
    uint64_t machine;
    ls_sim_outside outside;
    uint64_t busy_ns;     /* time until which the processor is busy */
    uint64_t link_ns;     /* time from which the rank's link is idle */
    uint64_t taken_ns;    /* for options.both_links: time from which the link is idle for incoming content */
    uint64_t deadline_ns; /* time at which the rank's wait ends, on the rank's own clock */
    uint64_t timer_ns;    /* time of the earliest LS_SIM_TIMER of the rank; later ones are ignored */
    bool called;          /* a turn of the rank is queued */
    ls_sim_span pause;
    ls_sim_span slow;
    uint64_t late_ns;

    ls_sim_packet *inbox;
    ls_sim_packet **inbox_end;
    ls_arrivals arrivals;
    ls_sim_list outgoing; /* sends that have not ended */
    ls_sim_list incoming; /* receives whose content has been requested */
    bool changed;         /* a transfer has ended since the latest `progress` */
    bool any[LS_TRANSPORT_CHANNELS];
    bool named[LS_TRANSPORT_CHANNELS];
    ls_status failure; /* returned by the next `progress` */
    char message[256];

    uint64_t packets; /* number of packets that the rank has sent or received */
    uint64_t most_packets;
    bool most_silent; /* after most_packets packets, the rank stops silently instead of dying */
    uint64_t dies_ns;
    bool closed;
    uint64_t sends_until_ns; /* after close: packets that leave later are lost */
    bool gone;               /* the peers can detect the rank's exit */
} ls_sim_rank;

struct ls_sim_network {
    ls_sim_options options;
    ls_sim_rank *ranks;
    ls_sim_link **links; /* links[a * ranks + b] is rank a's state for peer b; NULL until needed */
    ls_sim_queue queue;
    uint64_t now_ns;
    uint64_t draws;
    uint64_t messages;
    uint64_t trace;
    uint64_t events;
    bool no_memory;    /* memory was exhausted and something was lost, so there are no more events */
    ls_sim_link spare; /* used if there is no memory for a link */
};

extern const ls_transport ls_sim_transport;

/* Allocates zeroed memory. If out of memory, returns NULL, and the network has no more events. */
void *ls_sim_allocate(ls_sim_network *network, size_t size);

/* Returns a random number from 0 to bound - 1. */
uint64_t ls_sim_draw(ls_sim_network *network, uint64_t bound);

/* Returns rank `rank`'s state for `peer`, creating it if necessary. */
ls_sim_link *ls_sim_link_of(ls_sim_network *network, int rank, int peer);

/* Connects `rank` to `peer`: from now on, `rank` detects the exit of `peer`. */
void ls_sim_reach(ls_sim_network *network, int rank, int peer);

/* Returns the time that a packet takes on a link, in ns. */
uint64_t ls_sim_link_ns(const ls_sim_network *network, const ls_sim_packet *packet);

/* Returns true if the rank is alive and its endpoint is open; otherwise, its actions have no effect. */
bool ls_sim_runs(const ls_sim_rank *rank);

/* Queues a turn of the rank, as early as possible but not before `at_ns`. */
void ls_sim_call(ls_sim_rank *rank, uint64_t at_ns);

/* Returns the time of the rank's own clock at network time `at_ns`. */
uint64_t ls_sim_own_ns(const ls_sim_rank *rank, uint64_t at_ns);

/* Ends a rank at `at_ns`. If `silent` is true, the rank stops without its peers detecting this; otherwise it dies. */
void ls_sim_end_at(ls_sim_network *network, int rank, uint64_t at_ns, bool silent);

/* Counts a packet that a rank has sent or received. The rank may die or stop after this packet. */
void ls_sim_count_packet(ls_sim_rank *rank);

/* Allows the peers of a rank that has closed its endpoint to detect its exit from `at_ns` on. */
void ls_sim_closes(ls_sim_rank *rank, uint64_t at_ns);

/* Returns the transfer in progress with this number, or NULL. */
ls_transfer *ls_sim_list_find(const ls_sim_list *list, uint64_t number);

/* Records a failure, which the rank's next `progress` returns. Keeps an earlier failure. */
void ls_sim_fails(ls_sim_rank *rank, ls_status status, const char *format, ...) LS_PRINTF(3, 4);

/* Returns the sum of two times, or LS_SIM_NEVER if `by_ns` is LS_SIM_NEVER or the sum overflows. */
static inline uint64_t ls_sim_later(uint64_t at_ns, uint64_t by_ns) {
    return by_ns > LS_SIM_NEVER - at_ns ? LS_SIM_NEVER : at_ns + by_ns;
}

#endif
