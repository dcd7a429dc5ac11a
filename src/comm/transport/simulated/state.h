/* What the simulated network is made of: for network.c, which has the clock and the ends of ranks, and endpoint.c,
 * which is the transport. */
#ifndef LS_COMM_TRANSPORT_SIMULATED_STATE_H
#define LS_COMM_TRANSPORT_SIMULATED_STATE_H

#include "comm/transport/arrivals.h"
#include "comm/transport/simulated/network.h"
#include "comm/transport/simulated/queue.h"

typedef enum ls_sim_packet_kind {
    LS_SIM_WHOLE,    /* a small message */
    LS_SIM_ANNOUNCE, /* a large message waits for its receive */
    LS_SIM_CLEAR,    /* it has one */
    LS_SIM_CONTENT,  /* of a large message */
    LS_SIM_LEFT,     /* to the sender itself: what it sends is on its way */
    LS_SIM_GONE      /* `from` has ended, or its link is lost */
} ls_sim_packet_kind;

typedef struct ls_sim_packet {
    struct ls_sim_packet *next; /* in an inbox */
    ls_sim_packet_kind kind;
    int from;
    int to;
    int channel;
    uint64_t number;                    /* of the message */
    uint64_t left_ns;                   /* when it was on its way as a whole */
    const struct ls_sim_packet *packet; /* LS_SIM_LEFT: what has left */
    size_t bytes;                       /* of the message */
    bool waited;                        /* for the receiver's link: options.both_links */
    bool hollow;                        /* its content does not travel: options.most_content */
    _Alignas(16) unsigned char data[];
} ls_sim_packet;

/* One end of a pair of ranks: what it has sent to the other one, and knows of it. */
typedef struct ls_sim_link {
    uint64_t last_ns[LS_TRANSPORT_CHANNELS];  /* when the latest message of a channel arrives */
    uint64_t latest_ns;                       /* and of all packets */
    uint64_t whole_ns[LS_TRANSPORT_CHANNELS]; /* options.both_links: as last_ns, once the receiver's link has it */
    uint64_t cut_ns;                          /* nothing arrives at the other one from then on */
    uint64_t lost_ns;                         /* from when on this end can notice that */
    bool reached;                             /* there is a connection: the other one's end is noticed */
    bool told;                                /* and was, or will be */
    bool gone;                                /* and is known */
} ls_sim_link;

typedef struct ls_sim_list {
    ls_transfer *first;
    ls_transfer **end; /* where the next one goes; NULL: nothing was ever added */
} ls_sim_list;

/* A part of the time. */
typedef struct ls_sim_span {
    uint64_t from_ns;
    uint64_t until_ns;
} ls_sim_span;

typedef struct ls_sim_rank {
    ls_endpoint endpoint;
    ls_sim_network *network;
    uint64_t machine;
    ls_sim_outside outside;
    uint64_t busy_ns;     /* its processor's time */
    uint64_t link_ns;     /* when its link is idle */
    uint64_t taken_ns;    /* options.both_links: when what comes to it has come */
    uint64_t deadline_ns; /* when its wait is over, on its own clock */
    uint64_t timer_ns;    /* the first LS_SIM_TIMER of it that counts */
    bool called;          /* it will have a turn */
    ls_sim_span pause;
    ls_sim_span slow;
    uint64_t late_ns;

    ls_sim_packet *inbox;
    ls_sim_packet **inbox_end;
    ls_arrivals arrivals;
    ls_sim_list outgoing; /* sends that have not ended */
    ls_sim_list incoming; /* receives whose content was asked for */
    bool changed;         /* a transfer has ended since the latest `progress` */
    bool any[LS_TRANSPORT_CHANNELS];
    bool named[LS_TRANSPORT_CHANNELS];
    ls_status failure; /* for the next `progress` */
    char message[256];

    uint64_t packets; /* sent and taken in */
    uint64_t most_packets;
    bool most_silent; /* it stops after them, not dies */
    uint64_t dies_ns;
    bool closed;
    uint64_t sends_until_ns; /* closed: what leaves later is lost */
    bool gone;               /* its peers can know that it ended */
} ls_sim_rank;

struct ls_sim_network {
    ls_sim_options options;
    ls_sim_rank *ranks;
    ls_sim_link **links; /* of rank a to rank b: a * ranks + b; NULL until needed */
    ls_sim_queue queue;
    uint64_t now_ns;
    uint64_t draws;
    uint64_t messages;
    uint64_t trace;
    uint64_t events;
    bool no_memory;    /* something was lost: no more events */
    ls_sim_link spare; /* where there is no memory for one */
};

extern const ls_transport ls_sim_transport;

/* Cleared memory; NULL, and the network does not go on. */
void *ls_sim_allocate(ls_sim_network *network, size_t size);

/* A random number from 0 to below `bound`. */
uint64_t ls_sim_draw(ls_sim_network *network, uint64_t bound);

/* The end of a pair that rank `rank` has, made where it is not there yet. */
ls_sim_link *ls_sim_link_of(ls_sim_network *network, int rank, int peer);

/* `rank` has a connection to `peer` now. */
void ls_sim_reach(ls_sim_network *network, int rank, int peer);

/* How long a packet takes on a link. */
uint64_t ls_sim_link_ns(const ls_sim_network *network, const ls_sim_packet *packet);

/* Whether what a rank does has an effect. */
bool ls_sim_runs(const ls_sim_rank *rank);

/* A rank gets its turn as soon as it can, not before `at_ns`. */
void ls_sim_call(ls_sim_rank *rank, uint64_t at_ns);

/* A rank's own clock. */
uint64_t ls_sim_own_ns(const ls_sim_rank *rank, uint64_t at_ns);

/* A rank ends then: as one that dies, or, silent, as one that stops. */
void ls_sim_end_at(ls_sim_network *network, int rank, uint64_t at_ns, bool silent);

/* Counts a packet that a rank has sent or taken in, which may be its last. */
void ls_sim_count_packet(ls_sim_rank *rank);

/* A closed rank's peers can know from `at_ns` on. */
void ls_sim_closes(ls_sim_rank *rank, uint64_t at_ns);

/* The send or receive under way that has this number; NULL: none. */
ls_transfer *ls_sim_list_find(const ls_sim_list *list, uint64_t number);
void ls_sim_list_add(ls_sim_list *list, ls_transfer *transfer);
/* False: it is not there. */
bool ls_sim_list_remove(ls_sim_list *list, const ls_transfer *transfer);

/* Keeps a failure for the rank's next `progress`, unless there is one. */
void ls_sim_fails(ls_sim_rank *rank, ls_status status, const char *format, ...) LS_PRINTF(3, 4);

/* Whether two times, the second perhaps LS_SIM_NEVER, add up to one that comes: the sum, or LS_SIM_NEVER. */
static inline uint64_t ls_sim_later(uint64_t at_ns, uint64_t by_ns) {
    return by_ns > LS_SIM_NEVER - at_ns ? LS_SIM_NEVER : at_ns + by_ns;
}

#endif
