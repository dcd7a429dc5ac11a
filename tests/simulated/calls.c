#include "tests/simulated/calls.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/reference.h"

/* ---- plans ------------------------------------------------------------------------------------------------------- */

uint64_t call_draw(uint64_t *state, uint64_t most) {
    *state = reference_mix(*state + UINT64_C(0x632be59bd9b4e019));
    return *state % most;
}

bool call_reduces(const call_plan *plan) {
    return plan->operation == LS_OP_ALLREDUCE || plan->operation == LS_OP_REDUCE ||
           plan->operation == LS_OP_REDUCE_SCATTER || plan->operation == LS_OP_REDUCE_SCATTERV;
}

call_plan call_plan_draw(uint64_t seed, int size, size_t most_bytes, bool all) {
    uint64_t state = seed;
    call_plan p = {.seed = call_draw(&state, 1u << 30), .dtype = (ls_dtype)call_draw(&state, LS_DTYPE_COUNT)};
    do {
        p.operation = (int)call_draw(&state, CALL_OPERATIONS);
    } while (p.operation == LS_OP_ALLOC || p.operation == LS_OP_SPLIT ||
             (p.operation != CALL_RING && !ls_operation_is_collective((uint32_t)p.operation)));
    do {
        p.reduction = (ls_reduction)call_draw(&state, LS_REDUCTION_COUNT);
    } while (call_reduces(&p) && !reference_reduces(p.dtype, p.reduction));
    p.root = (int)call_draw(&state, (uint64_t)size);
    static const size_t sizes[] = {0, 1, 2, 3, 7, 16, 100, 1000, 4000, 20000};
    p.count = sizes[call_draw(&state, sizeof sizes / sizeof *sizes)];
    if (size >= 1000 && !all) { /* a million messages take seconds */
        p.operation = p.operation == LS_OP_ALLTOALL || p.operation == LS_OP_ALLTOALLV ? LS_OP_ALLGATHER : p.operation;
        p.count = p.count % 3;
    }
    const bool per_rank =
        p.operation != LS_OP_BROADCAST && p.operation != LS_OP_ALLREDUCE && p.operation != LS_OP_REDUCE;
    while (p.count * 16 * (per_rank ? (size_t)size : 1) > most_bytes) {
        p.count /= 2;
    }
    p.count = p.operation == LS_OP_BARRIER ? 0 : p.count;
    return p;
}

/* Returns the number of elements sent from rank `from` to rank `to` in calls with counts per rank; may be 0. */
static size_t part_of(const call_plan *p, int from, int to) {
    const uint64_t random = reference_mix(p->seed ^ (uint64_t)from << 20 ^ (uint64_t)to);
    switch (p->operation) {
    case LS_OP_GATHERV:
        return to == p->root ? reference_mix(p->seed + (uint64_t)from) % (p->count + 1) : 0;
    case LS_OP_SCATTERV:
        return from == p->root ? random % (p->count + 1) : 0;
    case LS_OP_ALLGATHERV:
        return reference_mix(p->seed + (uint64_t)from) % (p->count + 1);
    case LS_OP_REDUCE_SCATTERV:
        return reference_mix(p->seed + (uint64_t)to) % (p->count + 1);
    default:
        return random % 3 == 0 ? 0 : random % (p->count + 1);
    }
}

size_t call_width(const call_plan *p) {
    return call_reduces(p) ? reference_width(p->dtype, p->reduction) : ls_dtype_size(p->dtype);
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static size_t lay_out(size_t *counts, size_t *places, const call_plan *p, int size, int rank, bool out) {
    size_t at = 0;
    for (int other = 0; other < size; other++) {
        counts[other] = out ? part_of(p, rank, other) : part_of(p, other, rank);
        places[other] = at;
        at += counts[other];
    }
    return at;
}

static void set_counts(call_side *r, size_t *sent, size_t *received) {
    const call_plan *p = &r->plan;
    ls_call *call = &r->call;
    const int size = r->size;
    const bool root = r->rank == p->root;
    const size_t all_sent = lay_out(r->counts[0], r->counts[1], p, size, r->rank, true);
    const size_t all_received = lay_out(r->counts[2], r->counts[3], p, size, r->rank, false);
    switch (p->operation) {
    case LS_OP_GATHERV:
        call->count = part_of(p, r->rank, p->root);
        *sent = call->count;
        *received = root ? all_received : 0;
        break;
    case LS_OP_SCATTERV:
        call->count = part_of(p, p->root, r->rank);
        *received = call->count;
        *sent = root ? all_sent : 0;
        break;
    case LS_OP_ALLGATHERV:
        call->count = part_of(p, r->rank, 0);
        *sent = call->count;
        *received = all_received;
        call->total = all_received;
        call->layout = 1;
        break;
    case LS_OP_REDUCE_SCATTERV:
        call->count = part_of(p, 0, r->rank);
        *sent = all_sent;
        *received = call->count;
        call->total = all_sent;
        call->layout = 1;
        break;
    default:
        call->count = 0;
        *sent = all_sent;
        *received = all_received;
        break;
    }
    const bool cuts = p->operation == LS_OP_ALLTOALLV || p->operation == LS_OP_REDUCE_SCATTERV ||
                      (p->operation == LS_OP_SCATTERV && root);
    const bool assembles =
        p->operation == LS_OP_ALLTOALLV || p->operation == LS_OP_ALLGATHERV || (p->operation == LS_OP_GATHERV && root);
    call->send_counts = cuts ? r->counts[0] : NULL;
    call->send_displacements = cuts ? r->counts[1] : NULL;
    call->receive_counts = assembles ? r->counts[2] : NULL;
    call->receive_displacements = assembles ? r->counts[3] : NULL;
}

static bool varies(int operation) {
    return operation == LS_OP_GATHERV || operation == LS_OP_SCATTERV || operation == LS_OP_ALLGATHERV ||
           operation == LS_OP_REDUCE_SCATTERV || operation == LS_OP_ALLTOALLV;
}

/* Computes the numbers of elements that a rank sends and receives in a call without counts per rank. */
static void even_counts(const call_side *r, size_t *sent, size_t *received) {
    const call_plan *p = &r->plan;
    const size_t all = p->count * (size_t)r->size;
    const bool root = r->rank == p->root;
    *sent = *received = p->count;
    switch (p->operation) {
    case LS_OP_REDUCE:
        *received = root ? p->count : 0;
        break;
    case LS_OP_GATHER:
        *received = root ? all : 0;
        break;
    case LS_OP_ALLGATHER:
        *received = all;
        break;
    case LS_OP_SCATTER:
        *sent = root ? all : 0;
        break;
    case LS_OP_REDUCE_SCATTER:
        *sent = all;
        break;
    case LS_OP_ALLTOALL:
        *sent = *received = all;
        break;
    default:
        break;
    }
}

static void fill(call_side *r, size_t sent) {
    const call_plan *p = &r->plan;
    const size_t width = call_width(p);
    if (call_reduces(p)) {
        reference_fill(&(reference){p->dtype, p->reduction, p->seed}, r->rank, sent, r->send);
        return;
    }
    const bool cuts = p->operation == LS_OP_SCATTER || p->operation == LS_OP_SCATTERV ||
                      p->operation == LS_OP_ALLTOALL || p->operation == LS_OP_ALLTOALLV;
    if (!cuts) {
        reference_send(p->seed, p->dtype, r->rank, -1, sent, r->send);
        return;
    }
    size_t at = 0;
    for (int to = 0; to < r->size && at < sent; to++) {
        const size_t count = varies(p->operation) ? part_of(p, r->rank, to) : p->count;
        reference_send(p->seed, p->dtype, r->rank, to, count, r->send + at * width);
        at += count;
    }
}

unsigned char *call_reduce(const call_plan *p, int size) {
    const reference reduced = {p->dtype, p->reduction, p->seed};
    size_t count = p->operation == LS_OP_REDUCE_SCATTER ? p->count * (size_t)size : p->count;
    for (int to = 0; p->operation == LS_OP_REDUCE_SCATTERV && to < size; to++) {
        count = (to == 0 ? 0 : count) + part_of(p, 0, to);
    }
    unsigned char *data = malloc(count * call_width(p) + 1);
    reference_reduce(&reduced, size, 0, count, data);
    return data;
}

void call_side_expect(const call_side *r, const unsigned char *reduced, unsigned char *wanted) {
    const call_plan *p = &r->plan;
    const int size = r->size;
    const size_t width = call_width(p);
    const size_t count = r->receive_bytes / width;
    size_t first = p->operation == LS_OP_REDUCE_SCATTER ? p->count * (size_t)r->rank : 0;
    for (int to = 0; p->operation == LS_OP_REDUCE_SCATTERV && to < r->rank; to++) {
        first += part_of(p, 0, to);
    }
    if (call_reduces(p)) {
        memcpy(wanted, reduced + first * width, count * width);
        return;
    }
    size_t at = 0;
    for (int from = 0; from < size && at < count; from++) {
        const bool from_root =
            p->operation == LS_OP_BROADCAST || p->operation == LS_OP_SCATTER || p->operation == LS_OP_SCATTERV;
        const bool ring = p->operation == CALL_RING;
        if ((from_root && from != p->root) || (ring && from != (r->rank + size - 1) % size)) {
            continue;
        }
        const bool whole = p->operation == LS_OP_BROADCAST || p->operation == LS_OP_GATHER ||
                           p->operation == LS_OP_GATHERV || p->operation == LS_OP_ALLGATHER ||
                           p->operation == LS_OP_ALLGATHERV || ring;
        const size_t part = varies(p->operation) ? part_of(p, from, r->rank) : p->count;
        reference_send(p->seed, p->dtype, from, whole ? -1 : r->rank, part, wanted + at * width);
        at += part;
    }
}

void call_side_begin(call_side *r, const call_plan *plan, int size, int rank, uint64_t sequence) {
    *r = (call_side){.plan = *plan, .size = size, .rank = rank};
    const call_plan *p = &r->plan;
    const size_t width = call_width(p);
    size_t sent = 0;
    size_t received = 0;
    r->call = (ls_call){.operation = (ls_operation)p->operation,
                        .dtype = p->dtype,
                        .reduction = call_reduces(p) ? p->reduction : (ls_reduction)0,
                        .root = p->root,
                        .count = p->count,
                        .width = width,
                        .sequence = sequence};
    const bool rooted = p->operation == LS_OP_BROADCAST || p->operation == LS_OP_REDUCE ||
                        p->operation == LS_OP_GATHER || p->operation == LS_OP_GATHERV ||
                        p->operation == LS_OP_SCATTER || p->operation == LS_OP_SCATTERV;
    r->call.root = rooted ? p->root : 0;
    for (int i = 0; i < 4 && varies(p->operation); i++) {
        r->counts[i] = calloc((size_t)size, sizeof(size_t));
    }
    if (varies(p->operation)) {
        set_counts(r, &sent, &received);
    } else {
        even_counts(r, &sent, &received);
    }
    r->receive_bytes = received * width;
    r->send = malloc(sent * width + 1);
    r->receive = malloc(received * width + 1);
    memset(r->receive, 0xa5, received * width + 1);
    fill(r, sent);
    if (p->operation == LS_OP_BROADCAST) {
        if (r->rank == p->root) {
            memcpy(r->receive, r->send, r->receive_bytes);
        }
        r->call.send = r->call.receive = r->receive;
    } else {
        r->call.send = r->send;
        r->call.receive = r->receive;
    }
}

void call_side_end(call_side *r) {
    free(r->send);
    free(r->receive);
    r->send = r->receive = NULL;
    for (int i = 0; i < 4; i++) {
        free(r->counts[i]);
        r->counts[i] = NULL;
    }
}

bool call_side_is_right(const call_side *r, const unsigned char *reduced) {
    unsigned char *wanted = malloc(r->receive_bytes + 1);
    memset(wanted, 0xa5, r->receive_bytes + 1);
    call_side_expect(r, reduced, wanted);
    const bool same = memcmp(wanted, r->receive, r->receive_bytes + 1) == 0;
    free(wanted);
    return same;
}
