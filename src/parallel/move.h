/*
 * Moving parts of tensors between ranks. A tensor is split along an axis into one part per rank, or parts of all ranks
 * are concatenated along an axis. Gradients use the same moves: a gather's gradient is scattered, a scatter's gathered,
 * an all-gather's scattered and summed, and an exchange's exchanged back.
 */
#ifndef LS_PARALLEL_MOVE_H
#define LS_PARALLEL_MOVE_H

#include "parallel/meeting.h"

typedef enum ls_move_kind {
    LS_MOVE_GATHER,    /* whole tensors, concatenated on the root */
    LS_MOVE_SCATTER,   /* parts of the root's tensor */
    LS_MOVE_ALLGATHER, /* whole tensors, concatenated on every rank */
    LS_MOVE_REDUCE,    /* parts of every rank's tensor, each reduced over ranks (reduce_scatter) */
    LS_MOVE_EXCHANGE   /* the tensors of all ranks, concatenated along one axis and split along another or the same */
} ls_move_kind;

typedef struct ls_move {
    const char *name; /* name of the call, for messages */
    ls_comm *comm;
    ls_move_kind kind;
    int root;
    ls_reduction reduction;
    const ls_tensor *from; /* the tensor to send, any strides; NULL: none */
    int from_axis;         /* axis along which it is split */
    ls_tensor *to;         /* the tensor to receive, dense; NULL: none */
    int to_axis;           /* axis along which it is concatenated */
    ls_parts gathered;     /* each rank's contribution to the whole */
    ls_parts scattered;    /* each rank's share of the result */
} ls_move;

/* Executes the move. Collective. Kind, root, reduction and parts must be equal on all ranks. */
ls_status ls_move_carry_out(const ls_move *move);

/* Returns the move that the ranks have agreed on. `name` is the name of the call. */
ls_move ls_move_of(const char *name, const ls_agreement *agreement, ls_move_kind kind, const ls_tensor *from,
                   ls_tensor *to);

/* Sets the starts of parts whose lengths are set. Returns the end of the last part, at most INT64_MAX. */
int64_t ls_parts_lay_out(ls_parts parts, int ranks);

#endif
