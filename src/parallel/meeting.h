/*
 * How the ranks of a differentiable collective meet. Before anything moves, each shows the others what it calls, with
 * which tensor, and whether it wants a gradient: one exchange of small offers. So shapes travel, ranks that disagree
 * are told so, a rank whose tensor could not be made tells the others instead of leaving them to wait, and all ranks
 * record the call on their tapes or none does. A tensor of a few bytes travels inside its offer.
 *
 * A collective is one `static const ls_collective` row; its public function fills in an ls_proposal and hands both to
 * ls_meet.
 */
#ifndef LS_PARALLEL_MEETING_H
#define LS_PARALLEL_MEETING_H

#include "autograd/op.h"
#include "parallel/parallel.h"

/* Whose tensor the call is about. */
typedef enum ls_bringers {
    LS_BRING_EQUAL, /* every rank brings one, all of one shape */
    LS_BRING_ALL,   /* every rank brings one; shapes may differ along the axes of the call */
    LS_BRING_ROOT   /* the root alone */
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
    ls_op op; /* its rules get the ls_meeting from ls_meeting_of */
    ls_collective_kind kind;
    ls_bringers bringers;
    bool reduces; /* has a reduction */
    int axes;     /* how many axes it has: 0 to 2 */
    bool rooted;
} ls_collective;

/* The arguments of one call. Fields that the call does not have are 0. */
typedef struct ls_proposal {
    ls_comm *comm;
    ls_tensor *tensor;
    ls_reduction reduction;
    int root;
    int axis[2];
    int64_t count; /* of elements along the second axis that this rank is to get */
} ls_proposal;

enum { LS_OFFER_WANTS = 1, LS_OFFER_FAILED = 2, LS_OFFER_EMPTY = 4, LS_OFFER_CARRIES = 8 };

#define LS_OFFER_ROOM (LS_MAX_DIMS * sizeof(int64_t))

/* What a rank shows the others. It is small enough for one cell of shared memory. */
typedef struct ls_offer {
    uint8_t kind;
    uint8_t dtype;
    int8_t ndim;
    uint8_t state; /* LS_OFFER_... */
    uint8_t reduction;
    uint8_t axes;  /* two of them, four bits each; see ls_offer_axis */
    uint16_t root; /* its lower bits */
    int64_t count;
    union {
        int64_t size[LS_MAX_DIMS];
        unsigned char room[LS_OFFER_ROOM]; /* behind the sizes: the elements, where they fit */
    };
} ls_offer;

/* Offers of so many ranks need no memory of their own. */
#define LS_FEW_RANKS 16

/* One part per rank along an axis: where it begins and how long it is. */
typedef struct ls_parts {
    int64_t *start;
    int64_t *length;
} ls_parts;

/* What the ranks have agreed on: the context of the call and of its node. */
typedef struct ls_agreement {
    int references;
    size_t bytes;
    ls_comm *comm; /* held */
    ls_reduction reduction;
    int root;
    int axis[2];
    ls_parts gathered;  /* what each rank brings to the whole; for the shape rule to set. No room without axes */
    ls_parts scattered; /* what each rank gets of it; the same */
    int64_t rows[];
} ls_agreement;

/* One call, between the offers and its end. */
typedef struct ls_meeting {
    ls_op_parameters parameters; /* first: what the rules of the call are given */
    const ls_collective *what;
    ls_comm *comm;
    int rank;
    int size;
    int root;
    ls_tensor *dense; /* the tensor's elements, contiguous: where ls_meeting_device has one, on the
                         tensor's device, else on the host; NULL where this rank brings none */
    bool wanted;      /* somebody wants a gradient: all ranks record the call */
    bool carried;     /* all elements are in the offers, of at most LS_FEW_RANKS ranks */
    ls_offer own;
    ls_offer *offers; /* of all ranks */
    ls_offer few[LS_FEW_RANKS];
} ls_meeting;

/* Meets the other ranks and applies the operation. NULL on every rank when any failed before the meeting, with the
 * reason. */
ls_tensor *ls_meet(const ls_collective *what, const ls_proposal *proposal);

/* The device on which the ranks' tensors, such as this one, are reduced or moved; NULL: they are in the offers, or go
 * by way of the host. */
const ls_device *ls_meeting_device(const ls_meeting *meeting, const ls_tensor *tensor, ls_reduction reduction);

/* In shape and forward rules. */
static inline const ls_meeting *ls_meeting_of(const ls_op_call *call) {
    return (const ls_meeting *)(const void *)call->parameters;
}

static inline int ls_offer_axis(const ls_offer *offer, int i) {
    return offer->axes >> (4 * i) & 15;
}

/* The elements that an offer carries. */
static inline const void *ls_offer_elements(const ls_offer *offer) {
    return offer->room + (size_t)offer->ndim * sizeof(int64_t);
}

/* The device of the result: the input's, the thread's where this rank brings none. NULL: failed. */
static inline const ls_device *ls_call_device(const ls_op_call *call) {
    const ls_tensor *input = call->input_count > 0 ? call->inputs[0] : NULL;
    return input != NULL ? ls_tensor_device(input) : ls_device_default();
}

/* In shape and forward rules, and in backward rules. */
static inline ls_agreement *ls_call_agreement(const ls_op_call *call) {
    return call->parameters->context;
}
static inline const ls_agreement *ls_node_agreement(const ls_node *node) {
    return node->parameters.context;
}

/* The rule `hold` of every collective, and those of one whose gradient communicates: a pass that comes to its node
 * begins only while the communicator is open, and the ranks agree whether a gradient reaches it. */
void ls_agreement_hold(void *agreement, bool hold);
ls_status ls_node_check_comm(ls_node *node);
ls_status ls_node_agree(ls_node *node, ls_reach *reach);
/* The rest of such a rule: `most` is the greatest reach over the ranks. */
ls_status ls_node_agreed(const ls_node *node, ls_reach *reach, ls_reach most);
ls_status ls_check_backward_comm(const char *name, const ls_comm *comm);
#define LS_HOLDS_COMM_AGREES(rule)                                                                                     \
    .communicates = true, .agree = (rule), .hold = ls_agreement_hold, .complete = ls_node_check_comm
#define LS_HOLDS_COMM LS_HOLDS_COMM_AGREES(ls_node_agree)

/* A result as this thread is to see it: without history while ls_no_grad is on, although the tape may know it. */
ls_tensor *ls_as_seen(ls_tensor *result);

#endif
