/*
 * Who sends what to whom in the calls that only move data: one description for every algorithm and backend, instead of
 * one per call. A piece is what one rank sends to another, in elements of the call's width.
 */
#ifndef LS_COMM_PIECES_H
#define LS_COMM_PIECES_H

#include "comm/backend.h"

typedef struct ls_piece {
    size_t count;
    size_t at; /* where it begins in the buffer */
} ls_piece;

/* The shape of a call; of one that reduces, who brings and who gets what. */
typedef struct ls_flow {
    bool moves;      /* the call only moves data */
    bool to_root;    /* the root alone receives */
    bool from_root;  /* the root alone sends */
    bool cuts;       /* each rank is sent a part of its own, else all are sent the same */
    bool assembles;  /* what comes from each rank is a part, else it is the whole */
    bool keeps_self; /* nothing goes from a rank to itself */
} ls_flow;

extern const ls_flow ls_flows[LS_OP_COUNT];

/* Whether the call reduces, and every rank gets the whole result. */
static inline bool ls_reduces_to_all(ls_operation operation) {
    return operation == LS_OP_ALLREDUCE || operation == LS_OP_ALLOC;
}

static inline ls_piece ls_piece_part(const size_t *counts, const size_t *displacements, size_t count, int rank) {
    return counts != NULL ? (ls_piece){counts[rank], displacements[rank]} : (ls_piece){count, count * (size_t)rank};
}

/* What `rank` sends to `to`: the place is in its `send`. Known for this rank itself; for others where counts are equal.
 */
static inline ls_piece ls_piece_sent(const ls_call *call, int rank, int to) {
    const ls_flow *flow = &ls_flows[call->operation];
    if ((flow->to_root && to != call->root) || (flow->from_root && rank != call->root) ||
        (flow->keeps_self && rank == to)) {
        return (ls_piece){0, 0};
    }
    return flow->cuts ? ls_piece_part(call->send_counts, call->send_displacements, call->count, to)
                      : (ls_piece){call->count, 0};
}

/* What `rank` receives from `from`: the place is in its `receive`. */
static inline ls_piece ls_piece_received(const ls_call *call, int rank, int from) {
    const ls_flow *flow = &ls_flows[call->operation];
    if ((flow->to_root && rank != call->root) || (flow->from_root && from != call->root) ||
        (flow->keeps_self && rank == from)) {
        return (ls_piece){0, 0};
    }
    return flow->assembles ? ls_piece_part(call->receive_counts, call->receive_displacements, call->count, from)
                           : (ls_piece){call->count, 0};
}

#endif
