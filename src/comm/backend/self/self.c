/* Backend self: a world of one rank. Each call finishes as soon as it begins. Messages from the rank to itself are
 * kept until it receives them. */
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/match.h"
#include "comm/pieces.h"
#include "comm/reduce.h"

static ls_status self_open(const ls_join_context *join, void **state) {
    if (join->size != 1) {
        return ls_fail(LS_ERR_UNSUPPORTED, "ls_comm_open: backend self supports one rank only, not %d ranks",
                       join->size);
    }
    *state = ls_allocate_zeroed(1, sizeof(ls_match));
    return *state != NULL ? LS_OK : ls_fail_memory("ls_comm_open", sizeof(ls_match));
}

static void self_close(void *state) {
    ls_match_free(state);
    ls_free(state);
}

static ls_status self_nothing(void *state, const ls_call *call) {
    (void)state;
    (void)call;
    return LS_OK;
}

/* Reduces instead of merely copying, because a logical reduction converts its input to 0 and 1. */
static ls_status self_reduce(void *state, const ls_call *call) {
    (void)state;
    const ls_reduce_task task = {.dtype = call->dtype,
                                 .reduction = call->reduction,
                                 .ranks = 1,
                                 .sources = &call->send,
                                 .copies = 1,
                                 .destinations = (void *const *)&call->receive,
                                 .count = call->count};
    ls_reduce_buffers(&task);
    return LS_OK;
}

static ls_status self_exchange(void *state, const ls_call *call) {
    (void)state;
    const ls_piece sent = ls_piece_sent(call, 0, 0);
    const ls_piece received = ls_piece_received(call, 0, 0);
    if (sent.count != received.count) {
        char name[64];
        return ls_fail(LS_ERR_MISMATCH, "%s: rank 0 sends itself %zu elements, but expects %zu",
                       ls_call_describe(call->operation, call->sequence, name, sizeof name), sent.count,
                       received.count);
    }
    const unsigned char *from = (const unsigned char *)call->send + sent.at * call->width;
    unsigned char *to = (unsigned char *)call->receive + received.at * call->width;
    if (sent.count != 0 && to != from) {
        memcpy(to, from, sent.count * call->width);
    }
    return LS_OK;
}

static ls_status self_progress(void *state, bool wait, bool *finished) {
    (void)state;
    (void)wait;
    *finished = true;
    return LS_OK;
}

static ls_status self_post(void *state, const ls_call *call, void **request) {
    *request = NULL;
    return call->operation == LS_OP_SEND ? ls_match_send_self(state, 0, call)
                                         : ls_match_receive(state, call, (ls_match_receipt **)request);
}

/* With `wait`, fails instead of waiting, because no other rank can send the message. */
static ls_status self_test(void *state, void *request, bool wait, bool *finished) {
    ls_match_receipt *receipt = request;
    *finished = ls_match_arrived(receipt);
    if (*finished) {
        return ls_match_end(state, receipt);
    }
    if (wait) {
        char name[64];
        ls_call_describe(receipt->call.operation, receipt->call.sequence, name, sizeof name);
        const int tag = receipt->call.tag;
        ls_match_cancel(state, receipt);
        return ls_fail(LS_ERR_STATE,
                       "%s: rank 0 is waiting for a message from itself with tag %d, which it has not sent", name, tag);
    }
    return LS_OK;
}

static ls_status self_split(void *state, const ls_join_context *join, const int *ranks, void **result) {
    (void)state;
    (void)ranks;
    return join == NULL ? LS_OK : self_open(join, result);
}

const ls_backend ls_backend_self = {
    .name = "self",
    .open = self_open,
    .close = self_close,
    .begin = {[LS_OP_BARRIER] = self_nothing,
              [LS_OP_BROADCAST] = self_nothing,
              [LS_OP_ALLREDUCE] = self_reduce,
              [LS_OP_REDUCE] = self_reduce,
              [LS_OP_REDUCE_SCATTER] = self_reduce,
              [LS_OP_REDUCE_SCATTERV] = self_reduce,
              [LS_OP_GATHER] = self_exchange,
              [LS_OP_GATHERV] = self_exchange,
              [LS_OP_ALLGATHER] = self_exchange,
              [LS_OP_ALLGATHERV] = self_exchange,
              [LS_OP_SCATTER] = self_exchange,
              [LS_OP_SCATTERV] = self_exchange,
              [LS_OP_ALLTOALL] = self_exchange,
              [LS_OP_ALLTOALLV] = self_exchange,
              [LS_OP_SPLIT] = self_exchange},
    .progress = self_progress,
    .post = self_post,
    .test = self_test,
    .split = self_split,
};
