/*
 * The table of operations: what each call of lockstep/comm.h sends and receives. The public calls check their arguments
 * by it (calls.c), messages describe calls by it (operation.c), and all algorithms and backends take from it which rank
 * sends which piece to which rank. A piece is the data that one rank sends to another, in elements of the call's width.
 */
#ifndef LS_COMM_PIECES_H
#define LS_COMM_PIECES_H

#include "comm/backend.h"

typedef struct ls_piece {
    size_t count;
    size_t at; /* where it begins in the buffer */
} ls_piece;

/* What all ranks of a call must give alike, besides dtype, reduction and root. */
typedef enum ls_agreed_count {
    LS_AGREED_COUNT = 0, /* the count of elements */
    LS_AGREED_TOTAL,     /* the sum of counts; ls_call.total */
    LS_AGREED_NOTHING    /* each rank may have a count of its own */
} ls_agreed_count;

/* Buffers that overlap must be in place. */
typedef enum ls_in_place {
    LS_IN_PLACE_OWN = 0,  /* the part that a rank sends to itself begins at the same address in both buffers */
    LS_IN_PLACE_OR_START, /* that, or the two buffers begin at the same address */
    LS_IN_PLACE_NEVER
} ls_in_place;

/* One operation. Zero fields suit a call without elements, root and reduction, such as a barrier. */
typedef struct ls_flow {
    const char *name;    /* of the public call: "ls_comm_allreduce" */
    const char *root_is; /* "to" or "from" the root, in messages; NULL if there is no root */
    bool typed;          /* has elements of a dtype */
    bool reduces;        /* has a reduction */
    bool moves;          /* the call only moves data */
    bool to_root;        /* the root alone receives */
    bool from_root;      /* the root alone sends */
    bool cuts;           /* the send buffer has a part for each rank; otherwise all ranks are sent the same elements */
    bool assembles;      /* the receive buffer has a part for each rank; otherwise all ranks send the same elements */
    bool keeps_self;     /* no rank sends anything to itself */
    bool uneven;         /* the parts have counts, which are arrays of the call */
    ls_agreed_count agreed;
    ls_in_place in_place;
} ls_flow;

extern const ls_flow ls_flows[LS_OP_COUNT];

/* Whether the call reduces, and every rank gets the whole result. */
static inline bool ls_reduces_to_all(ls_operation operation) {
    return operation == LS_OP_ALLREDUCE || operation == LS_OP_ALLOC;
}

static inline ls_piece ls_piece_part(const size_t *counts, const size_t *displacements, size_t count, int rank) {
    return counts != NULL ? (ls_piece){counts[rank], displacements[rank]} : (ls_piece){count, count * (size_t)rank};
}

/* The piece that `rank` sends to `to`: the offset is in its `send`. Known for this rank itself; for others if counts
 * are equal. */
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
