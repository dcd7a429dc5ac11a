/* Data that is inline in the headers of a call: what a rank contributes, how the data of two blocks of ranks is
 * combined, and where the data of all ranks is stored. */
#include <string.h>

#include "base/status.h"
#include "comm/algorithms/table.h"
#include "comm/engine/inside.h"
#include "comm/pieces.h"
#include "comm/reduce.h"
#include "comm/reduce_kernels.h"

static void copy(void *to, const void *from, size_t bytes) {
    if (bytes != 0 && to != from) {
        memcpy(to, from, bytes);
    }
}

/* Returns the number of elements that a rank contributes to the blocks of all ranks. */
static size_t block_count(const ls_engine *engine, int rank) {
    const ls_call *call = &engine->call;
    return call->operation == LS_OP_ALLGATHERV ? call->receive_counts[rank]
           : call->operation == LS_OP_ALLTOALL ? call->count * (size_t)engine->size
                                               : call->count;
}

static size_t root_bytes(const ls_engine *engine) {
    const ls_call *call = &engine->call;
    if (call->operation == LS_OP_BROADCAST) {
        return call->count * call->width;
    }
    if (call->operation == LS_OP_SCATTER) {
        return call->count * call->width * (size_t)engine->size;
    }
    size_t elements = 0; /* for scatterv: the parts, which follow a table of the counts */
    for (int rank = 0; rank < engine->size; rank++) {
        elements += call->send_counts[rank];
    }
    return elements * call->width + (size_t)engine->size * sizeof(uint64_t);
}

size_t ls_payload_bytes(const ls_engine *engine, int first, int last) {
    const ls_call *call = &engine->call;
    size_t bytes = 0;
    switch (engine->payload) {
    case LS_PAYLOAD_SUM:
        return ls_reduced_count(engine) * ls_reduce_find(call->dtype, call->reduction)->accumulator;
    case LS_PAYLOAD_BLOCKS:
        for (int rank = first; rank < last; rank++) {
            bytes += block_count(engine, rank) * call->width;
        }
        return bytes;
    case LS_PAYLOAD_ROOT:
        if (call->root < first || call->root >= last) {
            return 0;
        }
        return call->operation == LS_OP_SCATTERV && engine->rank != call->root ? SIZE_MAX : root_bytes(engine);
    case LS_PAYLOAD_MISMATCH:
        return sizeof(ls_count_mismatch);
    default:
        return 0;
    }
}

/* Returns true if the total size of `count` elements of `width` bytes for each of `ranks` ranks is at most `most`
 * bytes. */
static bool fits(size_t count, size_t width, size_t ranks, size_t most) {
    return width == 0 || count <= most / width / ranks;
}

bool ls_payload_fits(const ls_engine *engine) {
    const ls_call *call = &engine->call;
    const size_t size = (size_t)engine->size;
    switch (call->operation) {
    case LS_OP_ALLOC:
    case LS_OP_ALLREDUCE:
    case LS_OP_REDUCE:
    case LS_OP_REDUCE_SCATTER:
    case LS_OP_REDUCE_SCATTERV:
        return size > 1 && fits(ls_reduced_count(engine), ls_reduce_find(call->dtype, call->reduction)->accumulator, 1,
                                engine->shape.inline_most);
    case LS_OP_BROADCAST:
        return size > 1 && fits(call->count, call->width, 1, engine->shape.inline_most);
    case LS_OP_ALLGATHER:
    case LS_OP_SPLIT:
        return size > 1 && fits(call->count, call->width, size, engine->shape.inline_most);
    case LS_OP_ALLGATHERV:
        return size > 1 && fits(call->total, call->width, 1, engine->shape.inline_most);
    case LS_OP_ALLTOALL:
        return fits(call->count, call->width, size * size, LS_INLINE_MOST);
    case LS_OP_SCATTERV:
        return engine->rank != call->root || root_bytes(engine) <= LS_INLINE_MOST;
    case LS_OP_GATHERV:
    case LS_OP_ALLTOALLV:
        return false;
    default: /* barrier, gather, scatter */
        return fits(call->count, call->width, size, LS_INLINE_MOST);
    }
}

static ls_payload payload_of(ls_operation operation) {
    if (!ls_flows[operation].moves) {
        return LS_PAYLOAD_SUM;
    }
    return operation == LS_OP_BROADCAST || operation == LS_OP_SCATTER || operation == LS_OP_SCATTERV
               ? LS_PAYLOAD_ROOT
               : LS_PAYLOAD_BLOCKS;
}

/* Initializes this rank's packet with room for this number of bytes of data, which the caller fills in. */
static void fill(ls_engine *engine, bool has_payload, size_t bytes) {
    ls_envelope *own = ls_packet_envelope(ls_headers_packet(engine));
    *own = (ls_envelope){.groups = 1, .has_payload = has_payload, .bytes = bytes};
    *ls_packet_groups(ls_headers_packet(engine)) =
        (ls_call_group){.call = ls_call_header_of(&engine->call), .callers = 1, .ranks = {engine->rank}};
    ls_headers_packet(engine)->bytes = sizeof *own + sizeof(ls_call_group) + bytes;
}

/* ---- the data that a rank contributes ---------------------------------------------------------------------------- */

static void put_sum(const ls_engine *engine, unsigned char *data) {
    const ls_call *call = &engine->call;
    const ls_reduce_kernel *kernel = ls_reduce_find(call->dtype, call->reduction);
    const bool cut = call->operation == LS_OP_REDUCE_SCATTERV;
    for (int rank = 0; rank < (cut ? engine->size : 1); rank++) {
        const size_t count = cut ? call->send_counts[rank] : ls_reduced_count(engine);
        const size_t at = cut ? call->send_displacements[rank] : 0;
        const unsigned char *from = count != 0 ? (const unsigned char *)call->send + at * call->width : NULL;
        if (count != 0 && kernel->widen != NULL) {
            kernel->widen(data, from, count);
        } else {
            copy(data, from, count * kernel->accumulator);
        }
        data += count * kernel->accumulator;
    }
}

static void put_root(const ls_engine *engine, unsigned char *data) {
    const ls_call *call = &engine->call;
    if (call->operation != LS_OP_SCATTERV) {
        copy(data, call->send, root_bytes(engine));
        return;
    }
    unsigned char *at = data + (size_t)engine->size * sizeof(uint64_t);
    for (int rank = 0; rank < engine->size; rank++) {
        const uint64_t count = call->send_counts[rank];
        memcpy(data + (size_t)rank * sizeof count, &count, sizeof count);
        copy(at, (const unsigned char *)call->send + call->send_displacements[rank] * call->width, count * call->width);
        at += count * call->width;
    }
}

void ls_payload_begin(ls_engine *engine) {
    const ls_call *call = &engine->call;
    const int rank = engine->rank;
    engine->payload = engine->algorithm->run == NULL ? payload_of(call->operation) : LS_PAYLOAD_NONE;
    const bool waits =
        call->operation == LS_OP_SCATTERV && rank != call->root; /* this rank does not know the count of its part */
    const size_t bytes = waits ? 0 : ls_payload_bytes(engine, rank, rank + 1);
    fill(engine, engine->payload != LS_PAYLOAD_NONE && !waits, bytes);
    unsigned char *data = ls_packet_data(ls_headers_packet(engine));
    if (engine->payload == LS_PAYLOAD_SUM) {
        put_sum(engine, data);
    } else if (engine->payload == LS_PAYLOAD_BLOCKS) {
        copy(data, call->send, bytes);
    } else if (engine->payload == LS_PAYLOAD_ROOT && rank == call->root) {
        put_root(engine, data);
    }
}

void ls_payload_begin_mismatch(ls_engine *engine, const ls_count_mismatch *mismatch) {
    engine->payload = LS_PAYLOAD_MISMATCH;
    fill(engine, false, sizeof *mismatch);
    memcpy(ls_packet_data(ls_headers_packet(engine)), mismatch, sizeof *mismatch);
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

static void join_mismatches(unsigned char *own, const unsigned char *other, bool before) {
    ls_count_mismatch first;
    memcpy(&first, before ? other : own, sizeof first);
    const bool others = (first.from >= 0) == before;
    if (others) {
        memcpy(own, other, sizeof first);
    }
}

ls_status ls_payload_check(const ls_engine *engine, const ls_packet *packet, int from, int first, int last) {
    const size_t expected = ls_payload_bytes(engine, first, last);
    const size_t bytes = ls_packet_envelope(packet)->bytes;
    if (expected == SIZE_MAX || bytes == expected) {
        return LS_OK;
    }
    char name[64];
    return ls_fail(LS_ERR_PEER, "%s: rank %d sent %zu bytes of data instead of %zu", ls_engine_call_name(engine, name),
                   from, bytes, expected);
}

void ls_payload_join(const ls_engine *engine, ls_packet *into, const ls_packet *other, bool before) {
    ls_envelope *envelope = ls_packet_envelope(into);
    const size_t bytes = ls_packet_envelope(other)->bytes;
    unsigned char *data = ls_packet_data(into);
    const unsigned char *more = ls_packet_data(other);
    switch (engine->payload) {
    case LS_PAYLOAD_SUM:
        ls_reduce_find(engine->call.dtype, engine->call.reduction)
            ->combine(data, before ? more : data, before ? data : more, ls_reduced_count(engine));
        break;
    case LS_PAYLOAD_BLOCKS:
        if (before) {
            memmove(data + bytes, data, envelope->bytes);
        }
        copy(before ? data : data + envelope->bytes, more, bytes);
        envelope->bytes += bytes;
        break;
    case LS_PAYLOAD_ROOT:
        copy(data, more, bytes);
        envelope->bytes += bytes;
        break;
    case LS_PAYLOAD_MISMATCH:
        join_mismatches(data, more, before);
        break;
    default:
        break;
    }
}

/* ---- where the data is stored ------------------------------------------------------------------------------------ */

static void deliver_sum(const ls_engine *engine, const unsigned char *data) {
    const ls_call *call = &engine->call;
    const ls_reduce_kernel *kernel = ls_reduce_find(call->dtype, call->reduction);
    size_t at = 0;
    if (call->operation == LS_OP_REDUCE && engine->rank != call->root) {
        return;
    }
    for (int rank = 0; rank < engine->rank && call->operation == LS_OP_REDUCE_SCATTERV; rank++) {
        at += call->send_counts[rank];
    }
    at = call->operation == LS_OP_REDUCE_SCATTER ? call->count * (size_t)engine->rank : at;
    const int divisor = call->reduction == LS_AVG ? engine->size : 1;
    data += at * kernel->accumulator;
    if (call->count != 0 && kernel->finish != NULL) {
        kernel->finish(call->receive, data, call->count, divisor);
    } else {
        copy(call->receive, data, call->count * kernel->accumulator);
    }
}

static void deliver_blocks(const ls_engine *engine, const unsigned char *data) {
    const ls_call *call = &engine->call;
    const size_t part = call->operation == LS_OP_ALLTOALL ? (size_t)engine->rank * call->count * call->width : 0;
    for (int from = 0; from < engine->size; from++) {
        const ls_piece piece = ls_piece_received(call, engine->rank, from);
        if (piece.count != 0) {
            copy((unsigned char *)call->receive + piece.at * call->width, data + part, piece.count * call->width);
        }
        data += block_count(engine, from) * call->width;
    }
}

/* For scatterv: the parts follow the table of counts. */
static ls_status deliver_cut(ls_engine *engine, const unsigned char *data, size_t bytes) {
    const ls_call *call = &engine->call;
    const size_t table = (size_t)engine->size * sizeof(uint64_t);
    size_t at = table;
    uint64_t count = 0;
    bool sound = bytes >= table;
    for (int rank = 0; sound && rank <= engine->rank; rank++) {
        at += count * call->width;
        memcpy(&count, data + (size_t)rank * sizeof count, sizeof count);
        sound = count <= bytes / call->width && at + count * call->width <= bytes;
    }
    if (!sound || count != call->count) {
        char name[64];
        ls_failure_blame(engine, call->root);
        return ls_fail(LS_ERR_PEER, "%s: rank %d sent an invalid table of counts", ls_engine_call_name(engine, name),
                       call->root);
    }
    copy(call->receive, data + at, count * call->width);
    return LS_OK;
}

ls_status ls_payload_deliver(ls_engine *engine) {
    const ls_call *call = &engine->call;
    const unsigned char *data = ls_packet_data(ls_headers_packet(engine));
    const size_t bytes = ls_packet_envelope(ls_headers_packet(engine))->bytes;
    switch (engine->payload) {
    case LS_PAYLOAD_SUM:
        deliver_sum(engine, data);
        return LS_OK;
    case LS_PAYLOAD_BLOCKS:
        deliver_blocks(engine, data);
        return LS_OK;
    case LS_PAYLOAD_ROOT:
        if (call->operation == LS_OP_SCATTERV) {
            return deliver_cut(engine, data, bytes);
        }
        copy(call->receive,
             data + (call->operation == LS_OP_SCATTER ? (size_t)engine->rank * call->count * call->width : 0),
             call->count * call->width);
        return LS_OK;
    default:
        return LS_OK;
    }
}
