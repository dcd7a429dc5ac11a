/* Checks and completes public calls according to the table of operations (pieces.h). */
#include "comm/check.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/pieces.h"
#include "comm/record.h"
#include "comm/reduce.h"
#include "comm/reduce_kernels.h"

/* Returns the element size in bytes, or 0 with an error set. */
static inline size_t check_type(const ls_flow *flow, const ls_call *call) {
    const bool valid = (unsigned)call->dtype < LS_DTYPE_COUNT;
    if (flow->reduces) {
        if (valid && (unsigned)call->reduction < LS_REDUCTION_COUNT) {
            const ls_reduce_kernel *kernel = ls_reduce_find(call->dtype, call->reduction);
            if (kernel->combine != NULL) {
                return kernel->width;
            }
        }
        (void)ls_reduce_check(flow->name, call->dtype, call->reduction);
        return 0;
    }
    if (!valid) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: %d is not a dtype", flow->name, (int)call->dtype);
        return 0;
    }
    return ls_dtype_size(call->dtype);
}

static ls_status check_rank(const char *name, const ls_comm *comm, const char *what, int rank) {
    if (rank < 0 || rank >= comm->size) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %s %d is not one of the %d ranks", name, what, rank, comm->size);
    }
    return LS_OK;
}

static ls_status fail_size(const char *name, size_t parts, size_t count, size_t width) {
    return ls_fail(LS_ERR_ARGUMENT, "%s: %zu times %zu elements of %zu bytes are more than memory can hold", name,
                   parts, count, width);
}

static ls_status fail_null(const char *name, size_t elements) {
    return ls_fail(LS_ERR_ARGUMENT, "%s: the buffer for %zu elements is NULL", name, elements);
}

static ls_status fail_overlap(const char *name) {
    return ls_fail(LS_ERR_ARGUMENT,
                   "%s: the send and receive buffers overlap; pass separate buffers, or call it in place", name);
}

static inline bool overlap(const void *send, size_t sent, const void *receive, size_t received) {
    const uintptr_t from = (uintptr_t)send, to = (uintptr_t)receive;
    return from < to + received && to < from + sent && sent != 0 && received != 0;
}

/* Returns true if the call is in place, given the byte offsets of this rank's part in both buffers. */
static inline bool in_place(const ls_flow *flow, const ls_call *call, size_t own_sent, size_t own_received) {
    return flow->in_place != LS_IN_PLACE_NEVER &&
           ((uintptr_t)call->send + own_sent == (uintptr_t)call->receive + own_received ||
            (flow->in_place == LS_IN_PLACE_OR_START && call->send == call->receive));
}

/* ---- parts of equal counts --------------------------------------------------------------------------------------- */

static inline ls_status check_even(const ls_flow *flow, const ls_comm *comm, const ls_call *call, bool sends,
                                   bool receives) {
    const size_t size = (size_t)comm->size, rank = (size_t)comm->rank;
    const size_t sent_parts = flow->cuts ? size : 1, received_parts = flow->assembles ? size : 1;
    size_t bytes = 0;
    if (__builtin_mul_overflow(call->count, call->width, &bytes) || bytes > SIZE_MAX / 2 / size) {
        return fail_size(flow->name, sent_parts > received_parts ? sent_parts : received_parts, call->count,
                         call->width);
    }
    if (bytes == 0) {
        return LS_OK;
    }
    if (sends && call->send == NULL) {
        return fail_null(flow->name, sent_parts * call->count);
    }
    if (receives && call->receive == NULL) {
        return fail_null(flow->name, received_parts * call->count);
    }
    if (sends && receives && overlap(call->send, sent_parts * bytes, call->receive, received_parts * bytes) &&
        !in_place(flow, call, flow->cuts ? rank * bytes : 0, flow->assembles ? rank * bytes : 0)) {
        return fail_overlap(flow->name);
    }
    return LS_OK;
}

/* ---- parts with counts ------------------------------------------------------------------------------------------- */

/* One buffer of a call. Sizes are in elements. */
typedef struct call_side {
    const size_t *counts; /* counts of the parts; NULL if the buffer is not divided */
    const size_t *displacements;
    size_t end;     /* of the last part */
    size_t own;     /* offset of this rank's part */
    bool scattered; /* a part is neither before nor after all parts of lower ranks, so parts may overlap */
} call_side;

static ls_status measure(const char *name, const ls_comm *comm, const ls_call *call, call_side *side) {
    size_t total = 0, begin = SIZE_MAX;
    if (side->counts == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the counts are NULL", name);
    }
    for (int rank = 0; rank < comm->size; rank++) {
        const size_t offset = side->displacements != NULL ? side->displacements[rank] : total;
        const size_t count = side->counts[rank];
        size_t last = 0;
        if (__builtin_add_overflow(offset, count, &last) || last > SIZE_MAX / 2 / call->width) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: %zu elements of %zu bytes for rank %d are more than memory can hold",
                           name, count, call->width, rank);
        }
        total += count;
        side->own = rank == comm->rank ? offset : side->own;
        if (count != 0) {
            side->scattered = side->scattered || (offset < side->end && last > begin);
            side->end = last > side->end ? last : side->end;
            begin = offset < begin ? offset : begin;
        }
    }
    return LS_OK;
}

/* The range of a part in its buffer, in elements. */
typedef struct range {
    size_t begin, end;
    int rank;
} range;

static int compare_parts(const void *a, const void *b) {
    const size_t x = ((const range *)a)->begin, y = ((const range *)b)->begin;
    return x < y ? -1 : x > y;
}

static ls_status fail_parts(const char *name, const range *first, const range *second) {
    return ls_fail(LS_ERR_ARGUMENT,
                   "%s: the parts of ranks %d and %d overlap in the receive buffer, at elements %zu to %zu and %zu to "
                   "%zu: pass displacements without overlaps",
                   name, first->rank, second->rank, first->begin, first->end - 1, second->begin, second->end - 1);
}

/* Parts of a receive buffer may not overlap: the order in which they arrive would decide the result. */
static ls_status check_parts(const char *name, const ls_comm *comm, const call_side *side) {
    if (!side->scattered) {
        return LS_OK;
    }
    range *parts = ls_allocate_for(name, (size_t)comm->size, sizeof *parts);
    LS_TRY(ls_made(parts));
    size_t count = 0;
    for (int rank = 0; rank < comm->size; rank++) {
        const size_t begin = side->displacements[rank], end = begin + side->counts[rank];
        if (end > begin) {
            parts[count++] = (range){begin, end, rank};
        }
    }
    qsort(parts, count, sizeof *parts, compare_parts);
    ls_status status = LS_OK;
    for (size_t i = 1; i < count && status == LS_OK; i++) {
        status = parts[i].begin >= parts[i - 1].end ? LS_OK : fail_parts(name, &parts[i - 1], &parts[i]);
    }
    ls_free(parts);
    return status;
}

/* Sets this rank's count, and the hash and the sum of all counts, with which ranks check that they passed the same
 * counts. */
static void hash_counts(const ls_comm *comm, const size_t *counts, ls_call *call) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325) + comm->check * UINT64_C(0x9e3779b97f4a7c15);
    for (int rank = 0; rank < comm->size; rank++) {
        hash = (hash ^ counts[rank]) * UINT64_C(0x100000001b3);
        hash ^= hash >> 29;
        call->total += counts[rank];
    }
    call->layout = (uint32_t)(hash >> 32 ^ hash) | 1U;
    call->count = counts[comm->rank];
}

static ls_status check_buffer(const char *name, size_t count, size_t width, const void *buffer) {
    if (count > SIZE_MAX / 2 / width) {
        return fail_size(name, 1, count, width);
    }
    return buffer != NULL || count == 0 ? LS_OK : fail_null(name, count);
}

/* Returns true if a buffer of `bytes` bytes overlaps a part of the buffer `parted`, except its own part if the call
 * is in place. */
static bool overlaps_part(const ls_comm *comm, const void *buffer, size_t bytes, const void *parted,
                          const call_side *side, size_t width) {
    size_t total = 0;
    for (int rank = 0; rank < comm->size; rank++) {
        const size_t offset = side->displacements != NULL ? side->displacements[rank] : total;
        const unsigned char *part = (const unsigned char *)parted + offset * width;
        total += side->counts[rank];
        if (overlap(buffer, bytes, part, side->counts[rank] * width) && (rank != comm->rank || part != buffer)) {
            return true;
        }
    }
    return false;
}

static ls_status check_uneven(const ls_flow *flow, const ls_comm *comm, ls_call *call, bool sends, bool receives) {
    const size_t width = call->width;
    if (!sends) {
        call->send_counts = call->send_displacements = NULL;
    }
    if (!receives) {
        call->receive_counts = call->receive_displacements = NULL;
    }
    call_side sent = {.counts = call->send_counts, .displacements = call->send_displacements};
    call_side received = {.counts = call->receive_counts, .displacements = call->receive_displacements};
    LS_TRY(flow->cuts && sends ? measure(flow->name, comm, call, &sent) : LS_OK);
    LS_TRY(flow->assembles && receives ? measure(flow->name, comm, call, &received) : LS_OK);
    LS_TRY(check_parts(flow->name, comm, &received));
    if (flow->agreed == LS_AGREED_TOTAL) {
        hash_counts(comm, flow->cuts ? sent.counts : received.counts, call);
    }
    sent.end = flow->cuts ? sent.end : call->count;
    received.end = flow->assembles ? received.end : call->count;
    LS_TRY(sends ? check_buffer(flow->name, sent.end, width, call->send) : LS_OK);
    LS_TRY(receives ? check_buffer(flow->name, received.end, width, call->receive) : LS_OK);
    if (!sends || !receives) {
        return LS_OK;
    }
    bool fails = false;
    if (flow->moves && flow->cuts != flow->assembles) {
        fails = flow->cuts ? overlaps_part(comm, call->receive, received.end * width, call->send, &sent, width)
                           : overlaps_part(comm, call->send, sent.end * width, call->receive, &received, width);
    } else {
        fails = overlap(call->send, sent.end * width, call->receive, received.end * width) &&
                !in_place(flow, call, sent.own * width, received.own * width);
    }
    return fails ? fail_overlap(flow->name) : LS_OK;
}

/* ---- all calls --------------------------------------------------------------------------------------------------- */

ls_status ls_call_check(const ls_comm *comm, ls_call *call) {
    const ls_flow *flow = &ls_flows[call->operation];
    if (comm == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the communicator is NULL", flow->name);
    }
    if (!flow->typed) {
        return LS_OK;
    }
    call->width = check_type(flow, call);
    if (call->width == 0) {
        return ls_error_status();
    }
    call->any_order = flow->reduces && comm->any_order;
    bool sends = true, receives = true;
    if (flow->root_is != NULL) {
        LS_TRY(check_rank(flow->name, comm, "root", call->root));
        sends = !flow->from_root || comm->rank == call->root;
        receives = !flow->to_root || comm->rank == call->root;
        call->receive = receives ? call->receive : NULL;
    }
    return flow->uneven ? check_uneven(flow, comm, call, sends, receives)
                        : check_even(flow, comm, call, sends, receives);
}

ls_status ls_message_check(const ls_comm *comm, ls_call *call, const void *buffer) {
    const ls_flow *flow = &ls_flows[call->operation];
    if (comm == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the communicator is NULL", flow->name);
    }
    call->width = check_type(flow, call);
    if (call->width == 0) {
        return ls_error_status();
    }
    LS_TRY(call->operation == LS_OP_RECV_ANY ? LS_OK : check_rank(flow->name, comm, "partner", call->root));
    LS_TRY(check_buffer(flow->name, call->count, call->width, buffer));
    return call->tag >= 0 ? LS_OK : ls_fail(LS_ERR_ARGUMENT, "%s: tag %d is negative", flow->name, call->tag);
}
