/*
 * Native collectives: after the ranks have agreed on the call, as for every call, each rank starts the network
 * library's own collective. A call begins only after the previous call has ended, so all ranks start native collectives
 * in call order. MPI requires all ranks to agree on whether a reduction is in place, but here each rank decides alone.
 * Therefore no MPI reduction is in place: a rank whose call is in place sends from a copy.
 */
#include <string.h>

#include "base/status.h"
#include "comm/algorithms/table.h"
#include "comm/reduce_kernels.h"

bool ls_native_refuses(const ls_engine *engine) {
    const ls_endpoint *endpoint = engine->endpoint;
    return engine->algorithm->id == LS_ALGORITHM_NATIVE && engine->call.stream == NULL &&
           !endpoint->transport->can_make(endpoint, &engine->call);
}

/* Returns the number of bytes that this rank receives as the result of a reduction. */
static size_t result_bytes(const ls_engine *engine) {
    const ls_call *call = &engine->call;
    return call->operation == LS_OP_REDUCE && engine->rank != call->root ? 0 : call->count * call->width;
}

static bool overlaps(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    const uintptr_t from = (uintptr_t)a;
    const uintptr_t to = (uintptr_t)b;
    return a_bytes != 0 && b_bytes != 0 && from < to + b_bytes && to < from + a_bytes;
}

/* Ensures that a reduction does not send from memory that it receives into, and clears `receive` on a rank that
 * receives nothing. */
static ls_status separate(ls_engine *engine) {
    ls_call *call = &engine->call;
    const size_t bytes = ls_reduced_count(engine) * call->width;
    call->receive = result_bytes(engine) != 0 ? call->receive : NULL;
    if (call->stream != NULL || (engine->endpoint->transport->in_place && call->send == call->receive)) {
        return LS_OK;
    }
    if (!overlaps(call->send, bytes, call->receive, result_bytes(engine))) {
        return LS_OK;
    }
    LS_TRY(ls_engine_scratch(engine, bytes));
    memcpy(engine->scratch, call->send, bytes);
    call->send = engine->scratch;
    return LS_OK;
}

/* Returns the number of bytes that this rank sends. */
static size_t bytes_given(const ls_engine *engine) {
    const ls_call *call = &engine->call;
    size_t elements = 0;
    if (!ls_flows[call->operation].moves) {
        return ls_reduced_count(engine) * call->width;
    }
    if (!ls_flows[call->operation].cuts) {
        return ls_flows[call->operation].from_root && engine->rank != call->root ? 0 : call->count * call->width;
    }
    for (int to = 0; to < engine->size; to++) {
        elements += ls_piece_sent(call, engine->rank, to).count;
    }
    return elements * call->width;
}

static ls_status end(ls_engine *engine, bool *finished) {
    const ls_call *call = &engine->call;
    if (call->reduction == LS_AVG && call->stream == NULL && result_bytes(engine) != 0 &&
        !ls_flows[call->operation].moves) {
        ls_reduce_find(call->dtype, LS_AVG)->finish(call->receive, call->receive, call->count, engine->size);
    }
    *finished = true;
    return LS_OK;
}

ls_status ls_native_run(ls_engine *engine, bool *finished) {
    ls_transfer *transfer = ls_engine_transfer(engine);
    (void)finished;
    engine->segment->stage = end;
    ls_failure_forget_query(engine);
    LS_TRY(ls_flows[engine->call.operation].moves ? LS_OK : separate(engine));
    LS_TRY(ls_engine_name_failure(&engine->call,
                                  engine->endpoint->transport->collective(engine->endpoint, &engine->call, transfer)));
    engine->endpoint->messages++;
    engine->endpoint->bytes += bytes_given(engine);
    return LS_OK;
}

bool ls_native_is_running(const ls_engine *engine) {
    const ls_transfer *transfer;
    for (int next = 0; ls_engine_is_calling(engine) && (transfer = ls_transfers_next(engine, &next)) != NULL;) {
        if (transfer->peer < 0) {
            return true;
        }
    }
    return false;
}
