/*
 * The agreement of the ranks before a differentiable collective. Before any element moves, each rank sends the others
 * an offer: its call, the properties of its tensor, and whether the rank computes a gradient of the tensor, which it
 * does not under ls_no_grad. The exchange has these effects:
 * - Ranks learn the shapes of the other tensors.
 * - Ranks that disagree get an error.
 * - A rank whose tensor is NULL because of a failure notifies the others, because they would otherwise wait.
 * - Either all ranks record the call on their tapes, or none does.
 * - A small tensor is sent inside its offer.
 * - If a tensor must be equal on all ranks, ranks with different fingerprints of this tensor get an error.
 *
 * A collective is a `static const ls_collective`. Its public function fills in an ls_proposal and passes both to
 * ls_meet.
 */
#ifndef LS_PARALLEL_MEETING_H
#define LS_PARALLEL_MEETING_H

#include "autograd/op.h"
#include "parallel/fingerprint.h"
#include "parallel/parallel.h"

/* Which ranks supply a tensor. */
typedef enum ls_bringers {
    LS_BRING_EQUAL, /* every rank, all with the same shape */
    LS_BRING_ALL,   /* every rank; shapes may differ along the axes of the call */
    LS_BRING_ROOT   /* only the root */
} ls_bringers;

typedef enum ls_collective_kind {
    LS_MEET_ALLREDUCE = 1,
    LS_MEET_REDUCE,
    LS_MEET_REDUCE_SCATTER,
    LS_MEET_BROADCAST,
    LS_MEET_GATHER,
    LS_MEET_ALLGATHER,
    LS_MEET_SCATTER,
    LS_MEET_ALLTOALL,
    LS_MEET_SHARING,
    LS_MEET_ADDING,
    LS_MEET_JOINING,
    LS_MEET_KINDS
} ls_collective_kind;

typedef struct ls_collective {
    ls_op op; /* the operation; its rules get the ls_meeting through ls_meeting_of */
    ls_collective_kind kind;
    ls_bringers bringers;
    bool reduces; /* has a reduction */
    int axes;     /* number of axes, 0 to 2 */
    bool rooted;
} ls_collective;

/* The arguments of one call. Fields that the call does not use are 0. */
typedef struct ls_proposal {
    ls_comm *comm;
    ls_tensor *tensor;
    ls_reduction reduction;
    int root;
    int axis[2];
    int64_t count; /* elements along the second axis that this rank receives */
    /* A tensor that must be equal on all ranks: `tensor`, or a contiguous tensor of the same dtype or of integers. NULL
     * checks nothing. Only for calls that do not use `count`. */
    const ls_tensor *replica;
    const char *replica_name; /* call and name, for the error message */
    const char *remedy;       /* how the program makes the tensor equal */
} ls_proposal;

enum { LS_OFFER_WANTS = 1, LS_OFFER_FAILED = 2, LS_OFFER_EMPTY = 4, LS_OFFER_CARRIES = 8, LS_OFFER_CHECKS = 16 };

#define LS_OFFER_ROOM (LS_MAX_DIMS * sizeof(int64_t))

/* The data that a rank sends to the other ranks. Small enough for one cell of shared memory. */
typedef struct ls_offer {
    uint8_t kind;
    uint8_t dtype;
    int8_t ndim;
    uint8_t state; /* LS_OFFER_... */
    uint8_t reduction;
    uint8_t axes;  /* two axes, four bits each; see ls_offer_axis */
    uint16_t root; /* the lower bits of the root's rank */
    union {
        int64_t count;
        ls_fingerprint fingerprint; /* of the replica, if LS_OFFER_CHECKS is set */
    };
    union {
        int64_t size[LS_MAX_DIMS];
        unsigned char room[LS_OFFER_ROOM]; /* after the sizes, the elements, if they fit */
    };
} ls_offer;

/* The offers of up to this number of ranks need no allocation. */
#define LS_FEW_RANKS 16

/* One part per rank along an axis: start and length. */
typedef struct ls_parts {
    int64_t *start;
    int64_t *length;
} ls_parts;

typedef struct ls_flight ls_flight; /* move.h */

/* The result of the exchange, which is the context of the call and of its node. */
typedef struct ls_agreement {
    int references;
    ls_flight *flight; /* the flight of a call that does not wait, which a backward pass may complete; or NULL */
    size_t bytes;
    ls_comm *comm; /* held */
    ls_reduction reduction;
    int root;
    int axis[2];
    /* Each rank's contribution to the whole, set by the shape rule. No memory is allocated if the call has no axes. */
    ls_parts gathered;
    ls_parts scattered; /* each rank's share of the result; set in the same way */
    int64_t rows[];
} ls_agreement;

/* One call, from its offers to its completion. */
typedef struct ls_meeting {
    ls_op_parameters parameters; /* first member: the parameters of the call's rules */
    const ls_collective *what;
    const ls_proposal *proposal;
    ls_comm *comm;
    int rank;
    int size;
    int root;
    ls_flight *flight;
    ls_tensor *dense; /* the tensor's elements, contiguous: on the tensor's device if ls_meeting_device returns one,
                         otherwise on the host; NULL if this rank supplies no tensor */
    bool wanted;      /* a rank requires a gradient, so all ranks record the call */
    bool carried;     /* the offers of at most LS_FEW_RANKS ranks contain all elements */
    ls_offer own;
    ls_offer *offers; /* of all ranks */
    ls_offer few[LS_FEW_RANKS];
} ls_meeting;

/*
 * Exchanges the offers with the other ranks, and applies the operation. If a rank has failed before, returns NULL on
 * every rank, with the cause as the error.
 */
ls_tensor *ls_meet(const ls_collective *what, const ls_proposal *proposal);

/*
 * Does the same with the caller's flight. If the flight does not wait, only starts the call: the caller keeps the
 * flight until ls_flight_end, and gets a reference in *agreement.
 */
ls_tensor *ls_meet_by(const ls_collective *what, const ls_proposal *proposal, ls_flight *flight,
                      ls_agreement **agreement);

/*
 * Returns the device on which tensors like this one are reduced or moved. Returns NULL if the elements are in the
 * offers, or are staged through host memory.
 */
const ls_device *ls_meeting_device(const ls_meeting *meeting, const ls_tensor *tensor, ls_reduction reduction);

/* Returns the exchange of a call, for shape and forward rules. */
static inline const ls_meeting *ls_meeting_of(const ls_op_call *call) {
    return (const ls_meeting *)(const void *)call->parameters;
}

static inline int ls_offer_axis(const ls_offer *offer, int i) {
    return offer->axes >> (4 * i) & 15;
}

/* Returns the elements inside an offer. */
static inline const void *ls_offer_elements(const ls_offer *offer) {
    return offer->room + (size_t)offer->ndim * sizeof(int64_t);
}

/*
 * Returns the device of the result: the input's device, or the thread's device if this rank supplies no tensor. Returns
 * NULL on failure.
 */
static inline const ls_device *ls_call_device(const ls_op_call *call) {
    const ls_tensor *input = call->input_count > 0 ? call->inputs[0] : NULL;
    return input != NULL ? ls_tensor_device(input) : ls_device_default();
}

/* Returns the agreement of a call, for shape, forward and backward rules. */
static inline ls_agreement *ls_call_agreement(const ls_op_call *call) {
    return call->parameters->context;
}
static inline const ls_agreement *ls_node_agreement(const ls_node *node) {
    return node->parameters.context;
}

/*
 * The `hold` rule of every collective, and the rules of collectives whose gradient communicates. A pass that reaches
 * the node begins only while the communicator is open, and the ranks agree on whether a gradient reaches the node.
 */
void ls_agreement_hold(void *agreement, bool hold);
ls_status ls_node_check_comm(ls_node *node);
ls_status ls_node_agree(ls_node *node, ls_reach *reach);
/* The second part of such an `agree` rule. `most` is the maximum reach over the ranks. */
ls_status ls_node_agreed(const ls_node *node, ls_reach *reach, ls_reach most);
ls_status ls_check_backward_comm(const char *name, const ls_comm *comm);
#define LS_HOLDS_COMM_AGREES(rule)                                                                                     \
    .communicates = true, .agree = (rule), .hold = ls_agreement_hold, .complete = ls_node_check_comm
#define LS_HOLDS_COMM LS_HOLDS_COMM_AGREES(ls_node_agree)

/* Returns a result as this thread should see it: without history while ls_no_grad is on, even if the tape has
 * recorded it. */
ls_tensor *ls_as_seen(ls_tensor *result);

#endif
