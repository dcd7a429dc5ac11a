/* What the simulated network is made of: for network.c, which has the clock and the ends of ranks, and endpoint.c,
 * which is the transport. */
#ifndef LS_TESTS_SIMULATED_STATE_H
#define LS_TESTS_SIMULATED_STATE_H

#include "comm/transport/arrivals.h"
#include "tests/simulated/network.h"
#include "tests/simulated/queue.h"

typedef enum sim_packet_kind {
    SIM_WHOLE,    /* a small message */
    SIM_ANNOUNCE, /* a large message waits for its receive */
    SIM_CLEAR,    /* it has one */
    SIM_CONTENT,  /* of a large message */
    SIM_LEFT,     /* to the sender itself: what it sends is on its way */
    SIM_GONE      /* `from` has ended, or its link is lost */
} sim_packet_kind;

typedef struct sim_packet {
    struct sim_packet *next; /* in an inbox */
    sim_packet_kind kind;
    int from;
    int to;
    int channel;
    uint64_t number;                 /* of the message */
    uint64_t left_ns;                /* when it was on its way as a whole */
    const struct sim_packet *packet; /* SIM_LEFT: what has left */
    size_t bytes;                    /* of the message */
    _Alignas(16) unsigned char data[];
} sim_packet;

/* One end of a pair of ranks: what it has sent to the other one, and knows of it. */
typedef struct sim_link {
    uint64_t last_ns[LS_TRANSPORT_CHANNELS]; /* when the latest message of a channel arrives */
    uint64_t latest_ns;                      /* and of all packets */
    uint64_t cut_ns;                         /* nothing arrives at the other one from then on */
    uint64_t lost_ns;                        /* from when on this end can notice that */
    bool reached;                            /* there is a connection: the other one's end is noticed */
    bool told;                               /* and was, or will be */
    bool gone;                               /* and is known */
} sim_link;

typedef struct sim_list {
    ls_transfer *first;
    ls_transfer **end; /* where the next one goes; NULL: nothing was ever added */
} sim_list;

/* A part of the time. */
typedef struct sim_span {
    uint64_t from_ns;
    uint64_t until_ns;
} sim_span;

typedef struct sim_rank {
    ls_endpoint endpoint;
    sim_network *network;
    uint64_t busy_ns;     /* its processor's time */
    uint64_t link_ns;     /* when its link is idle */
    uint64_t deadline_ns; /* when its wait is over, on its own clock */
    uint64_t timer_ns;    /* the first SIM_TIMER of it that counts */
    bool called;          /* it will have a turn */
    sim_span pause;
    sim_span slow;
    uint64_t late_ns;

    sim_packet *inbox;
    sim_packet **inbox_end;
    ls_arrivals arrivals;
    sim_list outgoing; /* sends that have not ended */
    sim_list incoming; /* receives whose content was asked for */
    bool changed;      /* a transfer has ended since the latest `progress` */
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
} sim_rank;

struct sim_network {
    sim_options options;
    sim_rank *ranks;
    sim_link **links; /* of rank a to rank b: a * ranks + b; NULL until needed */
    sim_queue queue;
    uint64_t now_ns;
    uint64_t draws;
    uint64_t messages;
    uint64_t trace;
    uint64_t events;
};

extern const ls_transport sim_transport;

/* Memory that is there, cleared; and grown, not cleared. */
void *sim_allocate(size_t count, size_t size);
void *sim_reallocate(void *memory, size_t size);

/* A random number from 0 to below `bound`. */
uint64_t sim_draw(sim_network *network, uint64_t bound);

/* The end of a pair that rank `rank` has, made where it is not there yet. */
sim_link *sim_link_of(sim_network *network, int rank, int peer);

/* `rank` has a connection to `peer` now. */
void sim_reach(sim_network *network, int rank, int peer);

/* Whether what a rank does has an effect. */
bool sim_runs(const sim_rank *rank);

/* A rank gets its turn as soon as it can, not before `at_ns`. */
void sim_call(sim_rank *rank, uint64_t at_ns);

/* A rank's own clock. */
uint64_t sim_own_ns(const sim_rank *rank, uint64_t at_ns);

/* Counts a packet that a rank has sent or taken in, which may be its last. */
void sim_count_packet(sim_rank *rank);

/* A closed rank's peers can know from `at_ns` on. */
void sim_closes(sim_rank *rank, uint64_t at_ns);

/* The send or receive under way that has this number; NULL: none. */
ls_transfer *sim_list_find(const sim_list *list, uint64_t number);
void sim_list_add(sim_list *list, ls_transfer *transfer);
/* False: it is not there. */
bool sim_list_remove(sim_list *list, const ls_transfer *transfer);

/* Keeps a failure for the rank's next `progress`, unless there is one. */
void sim_fails(sim_rank *rank, ls_status status, const char *format, ...) LS_PRINTF(3, 4);

/* Whether two times, the second perhaps SIM_NEVER, add up to one that comes: the sum, or SIM_NEVER. */
static inline uint64_t sim_later(uint64_t at_ns, uint64_t by_ns) {
    return by_ns > SIM_NEVER - at_ns ? SIM_NEVER : at_ns + by_ns;
}

#endif
