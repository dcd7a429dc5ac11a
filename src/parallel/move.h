/*
 * Moving parts of tensors between ranks: what a tensor has along an axis is cut into one part per rank, or parts of all
 * ranks are put together along an axis. Forwards and backwards are the same moves: a gather's gradient is scattered, a
 * scatter's gathered, an all-gather's scattered and summed, an exchange's exchanged back.
 */
#ifndef LS_PARALLEL_MOVE_H
#define LS_PARALLEL_MOVE_H

#include "parallel/meeting.h"

typedef enum ls_move_kind {
    LS_MOVE_GATHER,    /* whole tensors, put together on the root */
    LS_MOVE_SCATTER,   /* parts of the root's tensor */
    LS_MOVE_ALLGATHER, /* whole tensors, put together on every rank */
    LS_MOVE_REDUCE,    /* parts of every rank's tensor, each reduced over ranks (reduce_scatter) */
    LS_MOVE_EXCHANGE   /* the tensors of all ranks put together along one axis and cut along another, or the same */
} ls_move_kind;

typedef struct ls_move {
    const char *name; /* of the call, for messages */
    ls_comm *comm;
    ls_move_kind kind;
    int root;
    ls_reduction reduction;
    const ls_tensor *from; /* what this rank sends, any strides; NULL: nothing */
    int from_axis;         /* that it is cut along */
    ls_tensor *to;         /* what this rank gets, dense; NULL: nothing */
    int to_axis;           /* that it is put together along */
    ls_parts gathered;     /* what each rank brings to the whole */
    ls_parts scattered;    /* what each rank gets of it */
} ls_move;

/* Carries it out. Collective; all ranks agree on kind, root, reduction and parts. */
ls_status ls_move_carry_out(const ls_move *move);

/* The move that the ranks have agreed on; `name` is that of the call. */
ls_move ls_move_of(const char *name, const ls_agreement *agreement, ls_move_kind kind, const ls_tensor *from,
                   ls_tensor *to);

/* Sets the starts of parts whose lengths are set. Returns the end of the last; INT64_MAX: that or more. */
int64_t ls_parts_lay_out(ls_parts parts, int ranks);

#endif
