/* What the files of the engine share: see engine.h. */
#ifndef LS_COMM_ENGINE_INSIDE_H
#define LS_COMM_ENGINE_INSIDE_H

#include "comm/agreement.h"
#include "comm/algorithm.h"
#include "comm/engine/engine.h"
#include "comm/match.h"
#include "comm/pieces.h"

enum {
    LS_INLINE_MOST = 32 << 10,            /* data of all ranks of a call up to this size travels in the rounds, */
    LS_INLINE_MOST_SHARED = 256 << 10,    /* or this one, of some calls, where ranks share cores: see choice.c */
    LS_ENGINE_GROUPS = 6,                 /* different calls that a disagreement names */
    LS_ENGINE_LISTED = 9,                 /* and ranks of each */
    LS_ENGINE_WINDOW = 16,                /* ranks that an exchange has messages under way with, in either direction */
    LS_ENGINE_STEP = 2,                   /* levels of a tree in a step, */
    LS_ENGINE_STEP_POLLED = 5,            /* or so many, where ranks take turns */
    LS_ENGINE_CHILDREN = 144,             /* of a rank in a tree, at most: 31 for each five of 24 levels, 15 for four */
    LS_ENGINE_ABOVE = LS_ENGINE_CHILDREN, /* the place, behind those of children, of the parent or a partner */
    LS_ENGINE_PARTNERS = LS_ENGINE_CHILDREN + 1, /* that a rank has rounds with */
    LS_ENGINE_TRANSFERS = 160,                   /* of a call at once, at most */
    LS_ENGINE_KEPT = 32 << 20,                   /* bytes of messages that no receive waits for yet */
    LS_ENGINE_SEGMENTS = 4 /* parts of a buffer on their way at once, each on a channel of its own */
};

_Static_assert(LS_ENGINE_CHILDREN < LS_ENGINE_TRANSFERS &&
                   2 * LS_ENGINE_WINDOW * LS_ENGINE_SEGMENTS <= LS_ENGINE_TRANSFERS,
               "transfers of a call");

/* At most between two looks for reasons to give up. */
#define LS_ENGINE_LOOK_NS UINT64_C(20000000)

typedef enum ls_channel {
    LS_CHANNEL_HEADERS = 0,
    LS_CHANNEL_DATA,     /* of calls, outside of rounds */
    LS_CHANNEL_MESSAGES, /* sends, with what is small of their data, from any rank */
    LS_CHANNEL_CONTENTS, /* data of sends */
    LS_CHANNEL_NOTICES,  /* failures, and questions about who waits for whom; from any rank */
    LS_CHANNEL_SEGMENTS  /* as LS_CHANNEL_DATA, of the second segment; others follow */
} ls_channel;

_Static_assert((int)LS_CHANNEL_SEGMENTS + LS_ENGINE_SEGMENTS - 1 <= (int)LS_TRANSPORT_CHANNELS,
               "a channel for each segment");

/* Ranks that call the same. */
typedef struct ls_call_group {
    ls_call_header call;
    int32_t callers;
    int32_t ranks[LS_ENGINE_LISTED]; /* the first of them */
} ls_call_group;

/* What a round sends: what a block of ranks calls, and their data combined. `groups` groups follow, then the data. */
typedef struct ls_envelope {
    uint32_t groups;      /* 0: the sender makes no more calls, for `reason`; `others` is unused then */
    uint32_t others;      /* callers of what has no room among the groups */
    uint16_t has_payload; /* whether the data travels in the rounds */
    uint16_t refused;     /* whether the network cannot make what one of the ranks calls */
    uint32_t reason;      /* an ls_leave_reason */
    uint64_t balance;     /* 0 in the end where all counts fit: see counts.c */
    uint64_t bytes;       /* of data */
} ls_envelope;

/* An envelope in memory; `bytes` is all of it. */
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

/* Bytes of a packet without its data. */
enum { LS_PACKET_HEADERS_MOST = sizeof(ls_envelope) + LS_ENGINE_GROUPS * sizeof(ls_call_group) };

/* What comes when all transfers of the call have ended. */
typedef ls_status ls_engine_stage(ls_engine *engine, bool *finished);

/* A block of ranks, of which the first tells this rank up a tree, or has the result from it. */
typedef struct ls_child_block {
    int rank; /* the first */
    int last; /* one behind the last */
} ls_child_block;

/* How data travels in the rounds of a call. */
typedef enum ls_payload {
    LS_PAYLOAD_NONE = 0,
    LS_PAYLOAD_SUM,    /* accumulators, reduced on the way */
    LS_PAYLOAD_BLOCKS, /* what each rank has, one after the other */
    LS_PAYLOAD_ROOT,   /* what the root has */
    LS_PAYLOAD_MISFIT  /* the first ls_misfit that a rank has */
} ls_payload;

typedef struct ls_algorithm ls_algorithm; /* algorithms/table.h */

/* Where this rank is in a reduction or broadcast by halves: see halving.c. */
typedef struct ls_halving {
    int root;            /* from which ranks are counted */
    int rank;            /* this one, so counted */
    int positions;       /* parts that the vector is cut into: ranks of the first block */
    int first;           /* of this rank's block */
    int width;           /* ranks of it, a power of two */
    int levels;          /* log2 of it */
    int before;          /* ranks of the block before it; 0: there is none */
    int after;           /* and of the one behind it */
    size_t start;        /* elements of the buffer before those that this is about */
    size_t count;        /* of these; of a reduce_scatter(v): of all */
    unsigned char *held; /* accumulators of what this rank holds */
    unsigned char *room; /* of the scratch memory, behind it */
} ls_halving;

/* What a call does next, or a part of it that goes on by itself. */
typedef struct ls_segment {
    ls_engine_stage *stage; /* when its transfers have ended; NULL: it has nothing to do */
    int step;
    ls_halving halving; /* of a reduction or broadcast by halves */
} ls_segment;

/* A transfer of the call. */
typedef struct ls_transfer_slot {
    ls_segment *segment; /* which waits for it; NULL: it has ended, and the slot is free */
    size_t room;         /* the bytes it was begun with */
    bool counts;         /* a receive of data, which must fill the room */
} ls_transfer_slot;

/* Counts of two ranks that do not fit: `to` wants another number of elements than `from` sends. */
typedef struct ls_misfit {
    int64_t from; /* -1: none */
    int64_t to;
    uint64_t sent;
    uint64_t wanted;
} ls_misfit;

/* A piece of memory that is sent, or received into. */
typedef struct ls_stretch {
    unsigned char *data;
    size_t bytes;
} ls_stretch;

static inline ls_stretch ls_stretch_of(const void *buffer, size_t at, size_t count, size_t width) {
    return count == 0 ? (ls_stretch){NULL, 0}
                      : (ls_stretch){(unsigned char *)(uintptr_t)buffer + at * width, count * width};
}

/* What goes between two ranks in an exchange. */
typedef struct ls_traffic {
    ls_stretch (*sent)(const ls_engine *engine, int to);
    ls_stretch (*received)(const ls_engine *engine, int from);
} ls_traffic;

/* Who is heard of when ranks fail: travels on LS_CHANNEL_NOTICES. */
typedef enum ls_notice_kind {
    LS_NOTICE_REVOKED = 1,
    LS_NOTICE_LEFT, /* status: an ls_leave_reason */
    LS_NOTICE_ASKED,
    LS_NOTICE_ANSWERED
} ls_notice_kind;

typedef struct ls_notice {
    uint32_t kind;
    int32_t status;      /* REVOKED: LS_ERR_PEER or LS_ERR_TIMEOUT; ANSWERED: 1 in a call that the network makes */
    int32_t failed_rank; /* REVOKED: the rank that is to blame first, -1 where it is none; ANSWERED: whom the sender
                        waits for, -1: nobody */
    uint32_t deserted;   /* REVOKED: 1 where `failed_rank` is to blame because it has left */
    uint64_t sequence;   /* REVOKED: the number of the call that failed, or of the next */
    char text[384];      /* REVOKED: why, without the call's name */
} ls_notice;

typedef struct ls_engine_notice ls_engine_notice; /* notices.c */

/* A send or receive that was posted. */
typedef struct ls_message_request {
    struct ls_message_request *next;
    ls_call call;
    ls_match_receipt *receipt; /* a receive's */
    ls_transfer envelope;      /* a send's */
    ls_transfer content;       /* a send's, where it is large */
    bool began;                /* a send: both are set */
    uint64_t seen;             /* ls_messages_progress of its rank, when it was looked at last */
    uint64_t since_ns;
    uint64_t told_ns;
    _Alignas(16) unsigned char packet[LS_TRANSPORT_LEAST_EAGER];
} ls_message_request;

/* A message whose content is arriving, or held back at its sender. */
typedef struct ls_message_arrival {
    struct ls_message_arrival *next;
    ls_transfer content;
    ls_match_target target;
    size_t bytes;  /* that it must have */
    void *refused; /* where content goes that nobody wants */
} ls_message_arrival;

struct ls_engine {
    ls_endpoint *endpoint;
    int rank;
    int size;
    ls_place place; /* of the endpoint, as the next */
    uint64_t timeout_ns;
    bool dry; /* what is too large for the rounds is neither read nor written: `lockstep bench --simulate` */

    /* the call in progress, see engine.c */
    ls_call call;
    ls_call before; /* the one before it */
    bool calling;
    ls_segment segments[LS_ENGINE_SEGMENTS];
    ls_segment *segment; /* whose turn it is; others than the first have one only where a buffer goes in parts */
    ls_transfer transfers[LS_ENGINE_TRANSFERS];
    ls_transfer_slot slots[LS_ENGINE_TRANSFERS]; /* one for each */
    int transfer_count;                          /* of these that are in use, or were */
    uint64_t since_ns;                           /* when something of it moved last */
    uint64_t told_ns;

    /* rounds */
    ls_payload payload;
    bool butterfly; /* the number of ranks is a power of two */
    int level;
    int levels;
    bool shares_cores;  /* more than four ranks are on one machine that has fewer cores, */
    bool takes_turns;   /* and who of these waits polls, so all take turns on the cores */
    size_t inline_most; /* LS_INLINE_MOST, or LS_INLINE_MOST_SHARED */
    int tree_levels;   /* of these, the first, that go up a tree before, and down one after, the butterfly of its roots:
                            all, where the number of ranks is no power of two or they share cores; else those within a
                            machine, where there are several */
    int tree_steps;    /* in which a root hears of so many levels */
    int tree_messages; /* and messages of them, where all blocks are whole */
    int parent;        /* up that tree; -1: this rank is a root */
    int child_count;
    ls_child_block children[LS_ENGINE_CHILDREN]; /* the nearest first */
    int down_parent;                             /* down the tree, which is another one where ranks take turns */
    int down_last; /* one behind the ranks that get the result through this one, itself included */
    int down_count;
    ls_child_block down[LS_ENGINE_CHILDREN]; /* the nearest first */
    unsigned char *memory;                   /* of all packets */
    ls_packet own;                           /* of the block of ranks that this one knows of */
    ls_packet bare;                          /* the result without its data */
    ls_packet incoming[LS_ENGINE_PARTNERS];  /* from each child; the last: from the parent or a partner */
    ls_transfer *coming[LS_ENGINE_PARTNERS]; /* into these */
    ls_engine_stage *agreed;                 /* what comes when all call the same */
    ls_engine_stage *unbalanced;             /* the stage if counts of the ranks differ */

    /* exchange.c, reduction.c, halving.c and doubling.c */
    const ls_algorithm *algorithm;              /* of the call */
    ls_algorithm_setting settings[LS_OP_COUNT]; /* LOCKSTEP_ALGORITHM */
    size_t *places;     /* halving.c, of reduce_scatter(v): where each position begins, in elements */
    size_t part_wanted; /* by tests: bytes of a part; 0: what choice.c says */
    size_t part;        /* halving.c: elements of each part that goes by itself */
    size_t part_room;   /* bytes of scratch memory for one */
    const ls_traffic *traffic;
    ls_engine_stage *exchanged;
    int machine; /* whose blocks are given on: exchange.c */
    unsigned char *scratch;
    size_t scratch_bytes;
    const void **sources; /* one per rank */
    uint64_t *counts;     /* counts.c: one per rank, made when first needed, as the next */
    uint64_t *found;

    /* messages.c */
    ls_match match;
    ls_message_request *requests;
    ls_message_request *spare;
    ls_message_arrival *arrivals;
    ls_message_arrival *held; /* in the order in which they were sent, rank by rank */
    size_t kept_most;         /* LS_ENGINE_KEPT, or what a test wants */
    ls_transfer message;      /* where messages of any rank arrive */
    unsigned char *message_memory;
    bool listens;        /* it is under way */
    uint64_t *taken;     /* one per rank: messages that came from it */
    unsigned char *left; /* as `departed`: who sends no more messages */

    /* failure.c */
    ls_transfer notice;
    ls_notice heard;
    ls_notice revoked;       /* why this communicator is no more; kind 0: it is */
    int teller;              /* who told of it; -1: this rank, or nobody */
    bool ended;              /* this rank has left or given up */
    bool failed;             /* it has given up, */
    bool deserted;           /* because another had left */
    unsigned char *departed; /* one per rank: 0, or 1 + the ls_leave_reason of one that left */
    int gone;                /* peers that are gone and had left */
    ls_transfer *telling;    /* one per rank: of `revoked` */
    ls_engine_notice *words; /* on their way, and nobody waits for them */
    int failed_rank;         /* of the failure that was found last */
    int waits_for;           /* the rank that this one waits for, as it found last; -1: none */
    bool waits_in_call;      /* and not for a message */
    unsigned named;          /* how often it has named one of those that it waits for in a call */
    int asked;               /* whom this rank has asked for whom it waits; -1: nobody */
    int next_asked;          /* what that one answered; -1: nothing, or nobody */
    int answers;             /* so far; of a call that the network makes: times that all have answered */
    unsigned char *answered; /* one per rank: whether it has, since all were asked */
    unsigned char *unknown;  /* one per rank: it was asked when nothing was known of it, and has said nothing since. It
                                may have left before without telling this rank; if it died, others know */
    uint64_t asked_ns;
    uint64_t more_ns; /* that whoever was asked is given beside the time for an answer */
};

/* Bytes of the largest packet. */
static inline size_t ls_engine_packet_room(const ls_engine *engine) {
    return LS_PACKET_HEADERS_MOST + engine->inline_most;
}

static inline uint64_t ls_engine_now(const ls_engine *engine) {
    return engine->endpoint->transport->now_ns(engine->endpoint);
}

/* ---- transfers.c ------------------------------------------------------------------------------------------------- */

/* Begin transfers of the call; the next stage comes when all of them have ended. */
ls_status ls_engine_send(ls_engine *engine, int to, ls_channel channel, const void *data, size_t bytes);
ls_status ls_engine_receive(ls_engine *engine, int from, ls_channel channel, void *data, size_t bytes,
                            ls_transfer **transfer);

/* The same for what the transport is about to begin: with no rank in particular. */
ls_transfer *ls_engine_transfer(ls_engine *engine);

/* Scratch memory of at least so many bytes, in engine->scratch. */
ls_status ls_engine_scratch(ls_engine *engine, size_t bytes);

/* Puts the name of a call before what a transport says: it names none. Returns `status`. */
ls_status ls_engine_name_failure(const ls_call *call, ls_status status);

/* Writes the name of the call in progress. Returns `name`. */
const char *ls_engine_call_name(const ls_engine *engine, char name[64]);

/* ---- rounds.c ---------------------------------------------------------------------------------------------------- */

/* Begins the rounds of the call with the data in engine->own; `agreed` is the stage after them. */
ls_status ls_headers_begin(ls_engine *engine, ls_engine_stage *agreed);

/* Finds the shape of the rounds from the endpoint, rank, size and place: all from `butterfly` to `down` above. */
void ls_headers_find_shape(ls_engine *engine);

/* The ranks that receive from this one in rounds, who hear of it there when it leaves; returns how many. */
int ls_headers_partners(const ls_engine *engine, int partners[LS_ENGINE_PARTNERS]);

/* ---- carried.c --------------------------------------------------------------------------------------------------- */

/* Returns true if the data of the call is small enough to be inline. Ranks that agree on a call get the same answer;
 * exception: in a scatterv, only the root knows. The others get true, and the envelope says whether it has data. */
bool ls_payload_fits(const ls_engine *engine);

/* Puts the envelope of this rank alone, for data of so many bytes, into engine->own; the data is the caller's to fill.
 */
void ls_payload_fill(ls_engine *engine, bool carried, size_t bytes);

/* Puts this rank's envelope and data into engine->own. */
void ls_payload_begin(ls_engine *engine);

/* LS_ERR_PEER where a packet that rank `from` sent, of the ranks from `first` to before `last`, which call the same as
 * this one, has not the data that it must have. */
ls_status ls_payload_check(const ls_engine *engine, const ls_packet *packet, int from, int first, int last);

/* Joins the data of `other`, of ranks next to those of `into` and `before` them or behind, where all call the same. */
void ls_payload_join(const ls_engine *engine, ls_packet *into, const ls_packet *other, bool before);

/* Bytes of data of the ranks from `first` to before `last`; SIZE_MAX: only the sender knows. */
size_t ls_payload_bytes(const ls_engine *engine, int first, int last);

/* Puts the data of all ranks where the call wants it. */
ls_status ls_payload_deliver(ls_engine *engine);

/* ---- counts.c ---------------------------------------------------------------------------------------------------- */

/* What this rank adds to the balance of the call. */
uint64_t ls_counts_balance(const ls_engine *engine);

/* The stage after rounds with a balance that is not 0: finds out whose counts do not fit, and fails. */
ls_status ls_counts_find(ls_engine *engine, bool *finished);

/* ---- algorithms/ --------------------------------------------------------------------------------------------------
 */

/* Elements of each part that an all-reduce by halves is cut into: where machines have several ranks, so that their link
 * carries some parts while they reduce others; else the vector is one part. */
size_t ls_segment_count(const ls_engine *engine);

/* Moves the traffic between all ranks, with direct exchange. `exchanged` is the next stage. */
ls_status ls_direct_begin(ls_engine *engine, const ls_traffic *traffic, ls_engine_stage *exchanged);

/* Returns true if the network cannot make this rank's part of a call that is to use algorithm "native". */
bool ls_native_refuses(const ls_engine *engine);

/* Returns true while a native collective of this rank runs. */
bool ls_native_is_running(const ls_engine *engine);

/* ---- direct_reduction.c
 * ------------------------------------------------------------------------------------------------- */

/* Whether each rank gets a part of what the call reduces. */
static inline bool ls_reduction_scatters(const ls_engine *engine) {
    return engine->call.operation == LS_OP_REDUCE_SCATTER || engine->call.operation == LS_OP_REDUCE_SCATTERV;
}

/* Elements of a rank's send buffer in a reduction. */
size_t ls_reduced_count(const ls_engine *engine);

/* The part of the send buffer that `rank` is to have of a reduce_scatter(v), and that it reduces of other reductions
 * by shares. */
ls_piece ls_reduced_by(const ls_engine *engine, int rank);

/* Reduces by direct exchange: ls_direct_run for calls that reduce. */
ls_status ls_direct_reduce(ls_engine *engine, bool *finished);

/* ---- messages.c -------------------------------------------------------------------------------------------------- */

/* Looks at what has come of messages, and has ended; `*moved` becomes true when something did. */
ls_status ls_messages_move(ls_engine *engine, bool *moved);

/* Begins to take messages in. */
ls_status ls_messages_listen(ls_engine *engine);

/* How far messages from and to a rank are: a number that changes where one of them moves. */
uint64_t ls_messages_progress(const ls_engine *engine, int peer);

bool ls_messages_has_ended(const ls_message_request *asked);

/* Gives back a request that has ended, or failed with `status`; what became of it. */
ls_status ls_messages_end(ls_engine *engine, ls_message_request *asked, ls_status status);

void ls_messages_free(ls_engine *engine);

/* ---- notices.c --------------------------------------------------------------------------------------------------- */

/* The operation in the header of a message by which a rank says that it sends no more messages; `reduction` is the
 * reason. */
#define LS_MESSAGE_LEFT ((uint32_t)LS_OP_COUNT)

/* Sends a copy of the data; no caller waits for the end. If memory is exhausted, sends nothing: the receiver learns of
 * it when this rank is gone. */
void ls_engine_notify(ls_engine *engine, int to, ls_channel channel, const void *data, size_t bytes);

/* Frees the notices that have ended, or all. */
void ls_engine_drop_notices(ls_engine *engine, bool all);

/* Tells a rank, after all messages to it, that there are no more. */
void ls_messages_say_left(ls_engine *engine, int to, ls_leave_reason reason);

/* Withdraws all messages that are under way into or out of memory that is not the engine's, and their headers. */
void ls_messages_withdraw(ls_engine *engine);

/* ---- failure.c --------------------------------------------------------------------------------------------------- */

/* Somebody waits: of a call, or of what was posted. */
typedef struct ls_engine_wait {
    const ls_call *call;
    const ls_message_request *request; /* NULL: the call */
    uint64_t since_ns;
    uint64_t *told_ns;
} ls_engine_wait;

/* The failure of `call` where another rank has told that it gave up. */
ls_status ls_failure_check_revoked(ls_engine *engine, const ls_call *call);

/* Reads notices that came. */
ls_status ls_failure_listen(ls_engine *engine);
ls_status ls_failure_hear(ls_engine *engine);

/* Reasons to give up waiting: a rank that is gone, has left, or is silent for too long. */
ls_status ls_failure_check(ls_engine *engine, const ls_engine_wait *wait);

/* LS_OK while the communicator works. */
ls_status ls_failure_check_open(const ls_engine *engine, const ls_call *call);

/* Ends the communicator with this thread's error, of `status`, which it returns, and tells the others. `failed_rank`:
 * which rank is to blame, -1: none. */
ls_status ls_failure_abort(ls_engine *engine, ls_status status, int failed_rank);

/* The rank to blame for the failure that was found last, here or by the transport; -1: none. */
int ls_failure_rank(const ls_engine *engine);

/* Tells those who may wait for this rank that it makes no more calls. */
void ls_failure_leave(ls_engine *engine, ls_leave_reason reason);

#endif
