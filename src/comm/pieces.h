/*
 * The table of operations: what each call of lockstep/comm.h sends and receives. It is used to check the arguments of
 * public calls (calls.c), to describe calls in messages (operation.c), and by all algorithms and backends to determine
 * which rank sends which piece to which rank. A piece is the data that one rank sends to another, in elements of the
 * call's width.
 */
#ifndef LS_COMM_PIECES_H
#define LS_COMM_PIECES_H

#include "comm/backend.h"

typedef struct ls_piece {
    size_t count;
    size_t at; /* offset in the buffer */
} ls_piece;

/* The value that must be equal on all ranks of a call, in addition to dtype, reduction and root. */
typedef enum ls_agreed_count {
    LS_AGREED_COUNT = 0, /* the count of elements */
    LS_AGREED_TOTAL,     /* the sum of the counts, ls_call.total */
    LS_AGREED_NOTHING    /* the counts may differ between ranks */
} ls_agreed_count;

/* The rule for overlapping buffers, which must be in place. */
typedef enum ls_in_place {
    LS_IN_PLACE_OWN = 0,  /* the part that a rank sends to itself begins at the same address in both buffers */
    LS_IN_PLACE_OR_START, /* as LS_IN_PLACE_OWN, or the two buffers begin at the same address */
    LS_IN_PLACE_NEVER
} ls_in_place;

/* One operation. All fields are zero for a call without elements, root and reduction, such as a barrier. */
typedef struct ls_flow {
    const char *name;    /* name of the public call: "ls_comm_allreduce" */
    const char *root_is; /* "to" or "from" (the root), for messages; NULL if there is no root */
    bool typed;          /* the call has elements of a dtype */
    bool reduces;        /* has a reduction */
    bool moves;          /* the call only moves data, without reducing it */
    bool to_root;        /* the root alone receives */
    bool from_root;      /* the root alone sends */
    bool cuts;           /* true: the send buffer has one part per rank; false: all ranks are sent the same elements */
    bool assembles;  /* true: the receive buffer has one part per rank; false: all ranks contribute the same number of
                        elements */
    bool keeps_self; /* no rank sends to itself */
    bool uneven;     /* the parts have individual counts, in arrays of the call */
    ls_agreed_count agreed;
    ls_in_place in_place;
} ls_flow;

extern const ls_flow ls_flows[LS_OP_COUNT];

/* Returns true if the call is a reduction whose whole result every rank receives. */
static inline bool ls_reduces_to_all(ls_operation operation) {
    return operation == LS_OP_ALLREDUCE || operation == LS_OP_ALLOC;
}

static inline ls_piece ls_piece_part(const size_t *counts, const size_t *displacements, size_t count, int rank) {
    return counts != NULL ? (ls_piece){counts[rank], displacements[rank]} : (ls_piece){count, count * (size_t)rank};
}

/* Returns the piece that `rank` sends to `to`, as an offset into `send` of `rank`. Known for this rank; for other
 * ranks only if counts are equal. */
static inline ls_piece ls_piece_sent(const ls_call *call, int rank, int to) {
    const ls_flow *flow = &ls_flows[call->operation];
    if ((flow->to_root && to != call->root) || (flow->from_root && rank != call->root) ||
        (flow->keeps_self && rank == to)) {
        return (ls_piece){0, 0};
    }
    return flow->cuts ? ls_piece_part(call->send_counts, call->send_displacements, call->count, to)
                      : (ls_piece){call->count, 0};
}

/* Returns the piece that `rank` receives from `from`, as an offset into `receive` of `rank`. */
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
