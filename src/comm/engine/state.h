/* The state of an engine: see inside.h for the functions of its files. */
#ifndef LS_COMM_ENGINE_STATE_H
#define LS_COMM_ENGINE_STATE_H

#include "comm/agreement.h"
#include "comm/algorithm.h"
#include "comm/engine/engine.h"
#include "comm/match.h"
#include "comm/pieces.h"

enum {
    LS_INLINE_MOST = 32 << 10,         /* maximum inline data in bytes, of all ranks of a call */
    LS_INLINE_MOST_SHARED = 256 << 10, /* for some calls if ranks share cores: see algorithms/cost.c */
    LS_ENGINE_GROUPS = 6,              /* maximum number of different calls in the message about a mismatch */
    LS_ENGINE_LISTED = 9,              /* maximum number of ranks that the message lists for each call */
    LS_ENGINE_WINDOW = 16,             /* maximum concurrent peers of a direct exchange, per direction */
    LS_ENGINE_STEP = 2,                /* levels of a tree per step */
    LS_ENGINE_STEP_POLLED = 5,         /* levels of a tree per step if ranks take turns on the cores */
    LS_ENGINE_CHILDREN = 144,          /* maximum number of children in a tree: 31 for each 5 of 24 levels, 15 for 4 */
    LS_ENGINE_ABOVE = LS_ENGINE_CHILDREN,        /* index of the parent or a partner, which follows the children */
    LS_ENGINE_PARTNERS = LS_ENGINE_CHILDREN + 1, /* maximum number of ranks with which a rank exchanges headers */
    LS_ENGINE_TRANSFERS = 160,                   /* maximum number of concurrent transfers of a call */
    LS_ENGINE_KEPT = 32 << 20,                   /* bytes of unexpected messages */
    LS_ENGINE_SEGMENTS = 4                       /* concurrent pipeline segments of a buffer, each on its own channel */
};

_Static_assert(LS_ENGINE_CHILDREN < LS_ENGINE_TRANSFERS &&
                   2 * LS_ENGINE_WINDOW * LS_ENGINE_SEGMENTS <= LS_ENGINE_TRANSFERS,
               "transfers of a call");

/* The longest time between two checks for failures. */
#define LS_ENGINE_LOOK_NS UINT64_C(20000000)

typedef enum ls_channel {
    LS_CHANNEL_HEADERS = 0,
    LS_CHANNEL_DATA,     /* data of calls, unless it is inline */
    LS_CHANNEL_MESSAGES, /* headers of sends, with small data inline, from any rank */
    LS_CHANNEL_CONTENTS, /* larger data of sends */
    LS_CHANNEL_NOTICES,  /* from any rank: failures, and queries about which rank waits for which */
    LS_CHANNEL_SEGMENTS  /* second segment's equivalent of LS_CHANNEL_DATA; further segments follow */
} ls_channel;

_Static_assert((int)LS_CHANNEL_SEGMENTS + LS_ENGINE_SEGMENTS - 1 <= (int)LS_TRANSPORT_CHANNELS,
               "a channel for each segment");

/* Ranks that make the same call. */
typedef struct ls_call_group {
    ls_call_header call;
    int32_t callers;
    int32_t ranks[LS_ENGINE_LISTED]; /* the first callers */
} ls_call_group;

/* The contents of a message in the header exchange: the calls of a block of ranks, and their combined inline data.
 * It is followed by `groups` groups and then the data. */
typedef struct ls_envelope {
    uint32_t groups;      /* 0 if the sender makes no more calls, for `reason`; `others` is then unused */
    uint32_t others;      /* number of callers whose calls did not fit among the groups */
    uint16_t has_payload; /* 1: the data is inline */
    uint16_t refused;     /* 1: the network cannot execute the part of at least one rank */
    uint32_t reason;      /* an ls_leave_reason */
    uint64_t balance;     /* 0 over all ranks if all counts match: see counts.c */
    uint64_t bytes;       /* of data */
} ls_envelope;

/* An envelope in memory, with everything that follows it: `bytes` bytes in total. */
typedef struct ls_packet {
    unsigned char *memory;
    size_t bytes;
} ls_packet;

static inline ls_envelope *ls_packet_envelope(const ls_packet *packet) {
    return (ls_envelope *)(void *)packet->memory;
}
static inline ls_call_group *ls_packet_groups(const ls_packet *packet) {
    return (ls_call_group *)(void *)(packet->memory + sizeof(ls_envelope));
}
static inline unsigned char *ls_packet_data(const ls_packet *packet) {
    return packet->memory + sizeof(ls_envelope) + ls_packet_envelope(packet)->groups * sizeof(ls_call_group);
}

/* Receives of data and contents have exactly the size of the message; only packets and notices may be shorter than
 * their buffers. */
_Static_assert(LS_INLINE_MOST_SHARED < LS_TRANSPORT_LEAST_EXACT / 2, "packets are small");

/* Maximum size in bytes of a packet without its data. */
enum { LS_PACKET_HEADERS_MOST = sizeof(ls_envelope) + LS_ENGINE_GROUPS * sizeof(ls_call_group) };

/* The next part of a call, which runs when all its transfers have finished. Sets `*finished` at the end of the call. */
typedef ls_status ls_engine_stage(ls_engine *engine, bool *finished);

/* A block of ranks whose first rank sends to this rank in the tree up, or receives the result from this rank. */
typedef struct ls_child_block {
    int rank; /* the first rank of the block */
    int last; /* one past the last rank */
} ls_child_block;

/* The inline data of a call. */
typedef enum ls_payload {
    LS_PAYLOAD_NONE = 0,
    LS_PAYLOAD_SUM,     /* accumulators, which each step reduces */
    LS_PAYLOAD_BLOCKS,  /* the data of each rank, in rank order */
    LS_PAYLOAD_ROOT,    /* the data of the root */
    LS_PAYLOAD_MISMATCH /* the ls_count_mismatch of the first rank with a mismatch */
} ls_payload;

typedef struct ls_algorithm ls_algorithm; /* algorithms/table.h */

/* The position of this rank in recursive halving: see algorithms/rabenseifner.c. */
typedef struct ls_halving {
    int root;            /* root from which ranks are numbered */
    int rank;            /* this rank's number, counted from the root */
    int positions;       /* number of parts of the vector: the size of the first block */
    int first;           /* first rank of this rank's block */
    int width;           /* size of the block, a power of two */
    int levels;          /* log2 of width */
    int before;          /* size of the previous block; 0 if there is none */
    int after;           /* size of the next block; 0 if there is none */
    size_t start;        /* number of elements in the buffer before this segment */
    size_t count;        /* elements in this segment; in a reduce_scatter(v), in the buffer */
    unsigned char *held; /* accumulators that this rank holds */
    unsigned char *room; /* scratch memory after them */
} ls_halving;

/* A pipeline segment: a part of a buffer that progresses independently. Calls without segments use the first
 * segment. */
typedef struct ls_segment {
    ls_engine_stage *stage; /* runs when the segment's transfers have finished; NULL if the segment is idle */
    int step;
    ls_halving halving; /* of recursive halving */
} ls_segment;

/* A transfer of the call. */
typedef struct ls_transfer_slot {
    ls_segment *segment; /* segment that waits for the transfer; NULL if the slot is free */
    size_t room;         /* size of the transfer in bytes when it began */
    bool counts;         /* true for a receive of data, which must have exactly `room` bytes */
} ls_transfer_slot;

/* Mismatched counts of two ranks: `to` expects `wanted` elements, but `from` sends `sent`. */
typedef struct ls_count_mismatch {
    int64_t from; /* -1 if there is none */
    int64_t to;
    uint64_t sent;
    uint64_t wanted;
} ls_count_mismatch;

/* Memory that is sent or received into. */
typedef struct ls_stretch {
    unsigned char *data;
    size_t bytes;
} ls_stretch;

static inline ls_stretch ls_stretch_of(const void *buffer, size_t at, size_t count, size_t width) {
    return count == 0 ? (ls_stretch){NULL, 0}
                      : (ls_stretch){(unsigned char *)(uintptr_t)buffer + at * width, count * width};
}

/* The data that each pair of ranks exchanges in a direct exchange. */
typedef struct ls_traffic {
    ls_stretch (*sent)(const ls_engine *engine, int to);
    ls_stretch (*received)(const ls_engine *engine, int from);
} ls_traffic;

/* Kinds of notices about failures, on LS_CHANNEL_NOTICES. */
typedef enum ls_notice_kind {
    LS_NOTICE_REVOKED = 1,
    LS_NOTICE_LEFT, /* status: an ls_leave_reason */
    LS_NOTICE_ASKED,
    LS_NOTICE_ANSWERED
} ls_notice_kind;

typedef struct ls_notice {
    uint32_t kind;
    int32_t status;      /* REVOKED: LS_ERR_PEER or LS_ERR_TIMEOUT; ANSWERED: 1 during a native collective */
    int32_t failed_rank; /* REVOKED: the rank that failed first, or -1; ANSWERED: the rank that the sender waits for, or
                            -1 */
    uint32_t deserted;   /* REVOKED: 1 if `failed_rank` has left */
    uint64_t sequence;   /* REVOKED: number of the failed call or of the next call */
    char text[384];      /* REVOKED: the reason, without the name of the call */
} ls_notice;

typedef struct ls_engine_notice ls_engine_notice; /* notices.c */

/* A posted send or receive. */
typedef struct ls_message_request {
    struct ls_message_request *next;
    ls_call call;
    ls_match_receipt *receipt; /* for a receive */
    ls_transfer envelope;      /* for a send */
    ls_transfer content;       /* for a large send */
    bool began;                /* for a send: both transfers are set */
    uint64_t seen;             /* value of ls_messages_progress for the other rank at the latest poll */
    uint64_t since_ns;
    uint64_t told_ns;
    _Alignas(16) unsigned char packet[LS_TRANSPORT_LEAST_EAGER];
} ls_message_request;

/* A message whose content is arriving, or is held back by the sender. */
typedef struct ls_message_arrival {
    struct ls_message_arrival *next;
    ls_transfer content;
    ls_match_target target;
    size_t bytes;  /* size in bytes that the content must have */
    void *refused; /* memory for content that no receive accepts */
} ls_message_arrival;

/* How this rank takes part in the exchange of headers. Determined when the engine is created. */
typedef struct ls_header_shape {
    bool butterfly; /* the number of ranks is a power of two */
    int levels;
    bool shares_cores;  /* more than four ranks share a machine with fewer cores */
    bool takes_turns;   /* in addition, these ranks poll while they wait, so they take turns on the cores */
    size_t inline_most; /* LS_INLINE_MOST, or LS_INLINE_MOST_SHARED */
    int tree_levels;   /* number of lowest levels that use trees, before and after recursive doubling among their roots:
                          all levels if the number of ranks is not a power of two or if ranks share cores, otherwise the
                          levels within a machine if there are several machines */
    int tree_steps;    /* number of steps up the tree to a root */
    int tree_messages; /* messages that one rank receives in these steps if all blocks are complete */
} ls_header_shape;

/* engine.c: the call in progress */
typedef struct ls_engine_running {
    ls_call before; /* the previous call */
    bool calling;
    uint64_t since_ns; /* time when the call last progressed */
    uint64_t told_ns;
} ls_engine_running;

/* transfers.c: the transfers of the call */
typedef struct ls_engine_transfers {
    ls_transfer list[LS_ENGINE_TRANSFERS];
    ls_transfer_slot slots[LS_ENGINE_TRANSFERS]; /* one for each transfer */
    int count;                                   /* number of slots that are or were in use */
    size_t scratch_bytes;
} ls_engine_transfers;

/* headers.c */
typedef struct ls_engine_headers {
    int level;
    int parent; /* -1 if this rank is a root */
    int child_count;
    ls_child_block children[LS_ENGINE_CHILDREN]; /* nearest first */
    int down_parent;                             /* the tree down differs from the tree up if ranks take turns */
    int down_last; /* one past the last rank that gets the result through this rank, including this rank */
    int down_count;
    ls_child_block down[LS_ENGINE_CHILDREN]; /* nearest first */
    unsigned char *memory;                   /* of all packets */
    ls_packet own;                           /* packet of the block of ranks that this rank has heard from */
    ls_packet bare;                          /* the result without its data */
    ls_packet incoming[LS_ENGINE_PARTNERS];  /* from the children; [LS_ENGINE_ABOVE]: from the parent or a partner */
    ls_transfer *coming[LS_ENGINE_PARTNERS]; /* into `incoming` */
    ls_engine_stage *agreed;                 /* the stage after the agreement */
    ls_engine_stage *unbalanced;             /* the stage if the ranks' counts do not match */
} ls_engine_headers;

/* messages.c */
typedef struct ls_engine_messages {
    ls_match match;
    ls_message_request *requests;
    ls_message_request *spare;
    ls_message_arrival *arrivals;
    ls_message_arrival *held; /* for each rank, in the order of sending */
    size_t kept_most;         /* LS_ENGINE_KEPT, unless set by tests */
    ls_transfer message;      /* receives from any rank */
    unsigned char *message_memory;
    bool listens;        /* `message` is in progress */
    uint64_t *taken;     /* one per rank: number of messages received from it */
    unsigned char *left; /* one per rank: 0, or 1 + the ls_leave_reason if the rank sends no more messages */
} ls_engine_messages;

/* failure.c and leaving.c */
typedef struct ls_engine_failure {
    ls_transfer notice;
    ls_notice heard;
    ls_notice revoked;       /* the reason for the revocation; kind 0 if not revoked */
    int teller;              /* rank that sent the notice; -1 for this rank or none */
    bool ended;              /* this rank has left or aborted */
    bool failed;             /* this rank has aborted */
    bool deserted;           /* this rank aborted because another rank had left */
    unsigned char *departed; /* one per rank: 0, or 1 + the ls_leave_reason if the rank has left */
    int gone;                /* number of ranks that have exited, as far as checked */
    ls_transfer *telling;    /* one per rank: sends `revoked` */
    int failed_rank;         /* rank of the latest failure; -1 if none */
    int waits_for;           /* the rank that this rank waits for; -1 if none */
    bool waits_in_call;      /* this rank waits in a call, not for a message */
    unsigned named;          /* how often this rank has named, in answers, a rank that it waits for in a call */
    int asked;               /* the rank that was queried about which rank it waits for; -1 if none */
    bool message_timed_out;  /* the failure is the timeout of a send or receive */
    int next_asked;          /* the answer of the queried rank; -1 if none */
    int answers; /* number of answers so far; during a native collective, number of rounds in which all ranks answered
                  */
    unsigned char *answered; /* one per rank: the rank has answered since all ranks were queried */
    unsigned char *unknown;  /* one per rank: the rank was queried when its state was unknown, and has not answered. It
                                may have left before, without notifying this rank; if it died, other ranks know */
    uint64_t asked_ns;
    uint64_t more_ns; /* additional time for the queried rank */
} ls_engine_failure;

/* rabenseifner.c */
typedef struct ls_engine_rabenseifner {
    size_t *places;   /* for reduce_scatter(v): start of each position, in elements */
    size_t part;      /* elements per segment */
    size_t part_room; /* size in bytes of the scratch memory for one segment */
} ls_engine_rabenseifner;

/* spread_out.c */
typedef struct ls_engine_spread_out {
    const ls_traffic *traffic;
    ls_engine_stage *exchanged;
} ls_engine_spread_out;

/* counts.c: one per rank, allocated on first use */
typedef struct ls_engine_counts {
    uint64_t *own;
    uint64_t *found;
} ls_engine_counts;

/* The first members are facts, which all files of the engine and all algorithms read. Each of the other members is
 * private to the files in the comment of its type; other files use the functions of inside.h.
 * scripts/structure checks this, as far as names show it.
 */
struct ls_engine {
    ls_endpoint *endpoint;
    int rank;
    int size;
    ls_place place; /* set from the endpoint, like timeout_ns */
    uint64_t timeout_ns;
    ls_header_shape shape;
    ls_algorithm_setting settings[LS_OP_COUNT]; /* LOCKSTEP_ALGORITHM */
    size_t part_wanted; /* set by tests: size of a segment in bytes; 0 selects ls_segment_count */
    bool dry;           /* only inline data is read or written; used by `lockstep bench --simulate` */

    ls_call call;                  /* in progress, or the latest */
    const ls_algorithm *algorithm; /* of the call */
    ls_payload payload;            /* of the call: see payload.c */
    unsigned char *scratch;        /* see ls_engine_scratch */
    ls_segment segments[LS_ENGINE_SEGMENTS];
    ls_segment *segment; /* the segment that runs: its stage sets what the segment does next */

    ls_engine_running running;
    ls_engine_transfers transfers;
    ls_engine_headers headers;
    ls_engine_messages messages;
    ls_engine_failure failure;
    ls_engine_notice *notices; /* notices.c: in progress */
    ls_engine_counts counts;
    ls_engine_rabenseifner rabenseifner;
    ls_engine_spread_out spread_out;
    int machine;          /* hierarchical.c: the machine whose blocks are being shared */
    const void **sources; /* direct_reduction.c: one per rank */
};

#endif
