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

/* One part per rank along an axis: where it begins and how long it is. Four rows of one I64 tensor hold two of these,
 * so that a node can keep them; see ls_plan_new. */
typedef struct ls_parts {
    const int64_t *start;
    const int64_t *length;
} ls_parts;

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

/* Room for the parts that ranks bring and those that they get, all lengths 0. The caller holds the reference. */
ls_tensor *ls_plan_new(const char *call, int ranks);

/* The lengths, to be set, and the parts, once ls_plan_lay_out has set the starts. */
int64_t *ls_plan_gathered(ls_tensor *plan);
int64_t *ls_plan_scattered(ls_tensor *plan);
void ls_plan_lay_out(ls_tensor *plan);
ls_parts ls_plan_gathered_parts(const ls_tensor *plan);
ls_parts ls_plan_scattered_parts(const ls_tensor *plan);

/* The end of the last part. */
int64_t ls_plan_gathered_total(const ls_tensor *plan);
int64_t ls_plan_scattered_total(const ls_tensor *plan);

#endif
