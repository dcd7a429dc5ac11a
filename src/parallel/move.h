/*
 * Moves parts of tensors between ranks. A tensor is split along an axis into one part per rank, or the parts of all
 * ranks are concatenated along an axis. Gradients use the same moves: the gradient of a gather is scattered, of a
 * scatter gathered, of an all-gather scattered and summed, and of an exchange exchanged back.
 */
#ifndef LS_PARALLEL_MOVE_H
#define LS_PARALLEL_MOVE_H

#include "parallel/meeting.h"

typedef enum ls_move_kind {
    LS_MOVE_GATHER,    /* whole tensors, concatenated on the root */
    LS_MOVE_SCATTER,   /* parts of the root's tensor */
    LS_MOVE_ALLGATHER, /* whole tensors, concatenated on every rank */
    LS_MOVE_REDUCE,    /* parts of every rank's tensor, each reduced over ranks (reduce_scatter) */
    LS_MOVE_EXCHANGE   /* the tensors of all ranks, concatenated along one axis and split along the same or a different
                          axis */
} ls_move_kind;

typedef struct ls_move {
    const char *name; /* name of the call, for messages */
    ls_comm *comm;
    ls_move_kind kind;
    int root;
    ls_reduction reduction;
    const ls_tensor *from; /* the tensor to send, with any strides; NULL if there is none */
    int from_axis;         /* axis along which `from` is split */
    ls_tensor *to;         /* the tensor to receive, dense; NULL if there is none */
    int to_axis;           /* axis along which `to` is concatenated */
    ls_parts gathered;     /* each rank's contribution to the whole */
    ls_parts scattered;    /* each rank's share of the result */
} ls_move;

/* The elements that the communicator sends or receives: in the tensor, or packed, one part after another. */
typedef struct ls_packed_side {
    ls_host_view view;
    ls_tensor *packed; /* on the tensor's device; NULL if the elements are in the tensor */
    size_t *counts;    /* elements for or from each rank */
    size_t *places;
    size_t bytes; /* size of the memory for counts and offsets */
} ls_packed_side;

/* A collective call from its start to its completion. All members except `waits` are initially zero. */
struct ls_flight {
    bool waits;          /* the start also waits for completion */
    bool failed;         /* a backward pass has completed the call with an error */
    ls_host_view result; /* used if the call is not a move */
    ls_move move;        /* used if the call is a move; comm is NULL before the start and after the completion */
    ls_packed_side from;
    ls_packed_side to;
    /* The following members are set only between the start and the completion of a call that does not wait. */
    ls_work *work; /* NULL if the elements are in the offers */
    const char *name;
    ls_tensor *held[3]; /* input, output and dense elements of the call, or NULL */
    uint32_t version;   /* version of the input's storage at the start */
};

/* Returns the last argument for the communicator call. */
static inline ls_work **ls_flight_work(ls_flight *flight) {
    return flight->waits ? NULL : &flight->work;
}

/*
 * Waits for the call, whose start returned `status`, and stores the result. Returns the first error. Fails with
 * LS_ERR_STATE if the program has changed the input between the start and the completion. Does nothing if the call has
 * already completed.
 */
ls_status ls_flight_end(ls_flight *flight, ls_status status);

/*
 * The last step of a forward rule, whose start of the call returned `status`. Completes the call if the start waits or
 * has failed. Otherwise holds the tensors until ls_flight_end.
 */
ls_status ls_flight_begun(const ls_op_call *call, ls_status status);

/*
 * Starts the move. The caller passes the returned status to ls_flight_end, even after a failure. Collective. Kind,
 * root, reduction and parts must be equal on all ranks.
 */
ls_status ls_move_start(const ls_move *move, ls_flight *flight);

/* Executes the move: starts it, and waits for its completion. */
ls_status ls_move_carry_out(const ls_move *move);

/* Returns the move that the ranks have agreed on. `name` is the name of the call. */
ls_move ls_move_of(const char *name, const ls_agreement *agreement, ls_move_kind kind, const ls_tensor *from,
                   ls_tensor *to);

/* Sets the starts of parts whose lengths are already set. Returns the end of the last part, at most INT64_MAX. */
int64_t ls_parts_lay_out(ls_parts parts, int ranks);

#endif
