#include "comm/engine/engine.h"

#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/algorithms/table.h"
#include "comm/engine/inside.h"

#define LINGER_NS UINT64_C(200000000) /* for the last messages */

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

ls_engine *ls_engine_new(ls_endpoint *endpoint, double timeout) {
    const ls_algorithm_list algorithms = ls_engine_algorithms(NULL);
    ls_engine *engine = ls_allocate_zeroed(1, sizeof *engine);
    if (engine == NULL) {
        (void)ls_fail_memory("ls_comm_open", sizeof *engine);
    }
    if (engine == NULL || ls_algorithm_read(&algorithms, engine->settings) != LS_OK) {
        ls_free(engine);
        endpoint->transport->close(endpoint, 0, NULL, NULL);
        return NULL;
    }
    engine->endpoint = endpoint;
    engine->rank = endpoint->rank;
    engine->size = endpoint->size;
    engine->place = endpoint->place;
    engine->timeout_ns = (uint64_t)(timeout * 1e9);
    engine->sources = ls_allocate_zeroed((size_t)engine->size, sizeof *engine->sources);
    if (!ls_headers_open(engine) || !ls_messages_open(engine) || engine->sources == NULL) {
        (void)ls_fail_memory("ls_comm_open", ls_engine_packet_room(engine));
    } else if (ls_failure_open(engine) == LS_OK) {
        return engine;
    }
    ls_failure_end(engine);
    ls_engine_close(engine);
    return NULL;
}

/* Called when the network no longer uses any memory of the engine. */
static void discard(void *owner) {
    ls_engine *engine = owner;
    ls_messages_free(engine);
    ls_engine_drop_notices(engine, true);
    ls_failure_free(engine);
    ls_headers_free(engine);
    ls_counts_free(engine);
    ls_rabenseifner_free(engine);
    ls_free(engine->scratch);
    ls_free(engine->sources);
    ls_free(engine);
}

void ls_engine_close(void *state) {
    ls_engine *engine = state;
    if (!ls_failure_has_ended(engine)) {
        ls_failure_leave(engine, LS_LEAVE_FREED);
    }
    engine->endpoint->transport->close(engine->endpoint, LINGER_NS, discard, engine);
}

ls_endpoint *ls_engine_endpoint(const ls_engine *engine) {
    return engine->endpoint;
}

void ls_engine_traffic(const void *state, uint64_t *messages, uint64_t *bytes) {
    const ls_engine *engine = state;
    *messages = engine->endpoint->messages;
    *bytes = engine->endpoint->bytes;
}

const char *ls_engine_algorithm(const void *state) {
    const ls_algorithm *algorithm = ((const ls_engine *)state)->algorithm;
    return algorithm != NULL ? ls_algorithm_name(algorithm->id) : NULL;
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

/* If a call fails for any reason except a mismatch, aborts, because this rank cannot continue. */
static ls_status settle(ls_engine *engine, ls_status status) {
    if (status != LS_OK && status != LS_ERR_MISMATCH && !ls_failure_has_ended(engine)) {
        status = ls_failure_abort(engine, status, ls_failure_rank(engine));
    }
    engine->running.calling = engine->running.calling && status == LS_OK;
    return status;
}

/* The stage after the agreement, for a call whose data was not inline. */
static ls_status run_algorithm(ls_engine *engine, bool *finished) {
    const bool refused =
        engine->algorithm->id == LS_ALGORITHM_NATIVE && ls_packet_envelope(ls_headers_packet(engine))->refused != 0;
    if (refused || engine->algorithm->run == NULL) { /* a scatterv without inline data: only the root knew the size */
        engine->algorithm = ls_algorithm_direct();
    }
    return engine->algorithm->run(engine, finished);
}

static ls_status begin(ls_engine *engine) {
    engine->algorithm = ls_algorithm_select(engine);
    ls_payload_begin(engine);
    ls_envelope *own = ls_packet_envelope(ls_headers_packet(engine));
    own->balance = ls_counts_balance(engine);
    own->refused = ls_native_refuses(engine);
    LS_TRY(engine->algorithm->prepare != NULL ? engine->algorithm->prepare(engine) : LS_OK);
    return ls_headers_begin(engine, run_algorithm, ls_counts_find);
}

ls_status ls_engine_begin(void *state, const ls_call *call) {
    ls_engine *engine = state;
    LS_TRY(ls_failure_check_open(engine, call));
    engine->running.before = engine->call;
    engine->call = *call;
    engine->call.algorithm = ls_algorithm_number(engine->settings[call->operation]);
    engine->running.calling = true;
    ls_failure_blame(engine, -1);
    ls_transfers_clear(engine);
    engine->segment = engine->segments;
    for (int segment = 0; segment < LS_ENGINE_SEGMENTS; segment++) {
        engine->segments[segment].stage = NULL;
    }
    engine->running.since_ns = ls_engine_now(engine);
    engine->running.told_ns = 0;
    return settle(engine, begin(engine));
}

/* Runs stages until one has to wait for transfers. */
static ls_status advance(ls_engine *engine, bool *finished) {
    for (ls_segment *segment = ls_transfers_find_ended(engine); segment != NULL;
         segment = ls_transfers_find_ended(engine)) {
        LS_TRY(ls_transfers_end(engine, segment));
        engine->segment = segment;
        LS_TRY(segment->stage(engine, finished));
        if (*finished) {
            engine->running.calling = false;
            return LS_OK;
        }
    }
    return LS_OK;
}

static ls_status look(ls_engine *engine, const ls_call *call, uint64_t wait_ns, bool *moved) {
    LS_TRY(ls_engine_name_failure(call, engine->endpoint->transport->progress(engine->endpoint, wait_ns, moved)));
    LS_TRY(ls_failure_hear(engine));
    LS_TRY(ls_failure_check_revoked(engine, call));
    return ls_messages_move(engine, moved);
}

static ls_status move(ls_engine *engine, bool wait, bool *finished) {
    uint64_t wait_ns = 0;
    for (;;) {
        bool moved = false;
        const uint64_t before = ls_transfers_progress(engine);
        LS_TRY(look(engine, &engine->call, wait_ns, &moved));
        if (ls_transfers_progress(engine) != before || ls_transfers_find_ended(engine) != NULL) {
            engine->running.since_ns = ls_engine_now(engine);
            LS_TRY(advance(engine, finished));
        }
        if (*finished) {
            return LS_OK;
        }
        LS_TRY(ls_failure_check(engine, &(ls_engine_wait){.call = &engine->call,
                                                          .since_ns = &engine->running.since_ns,
                                                          .told_ns = &engine->running.told_ns}));
        if (!wait) {
            return LS_OK;
        }
        wait_ns = moved ? 0 : LS_ENGINE_LOOK_NS;
    }
}

ls_status ls_engine_progress(void *state, bool wait, bool *finished) {
    *finished = false;
    return settle(state, move(state, wait, finished));
}

ls_status ls_engine_exchange(ls_engine *engine, const void *own, void *all, size_t bytes) {
    bool finished = false;
    const ls_call call = {.operation = LS_OP_SPLIT,
                          .dtype = LS_U8,
                          .count = bytes,
                          .width = 1,
                          .send = own,
                          .receive = all,
                          .sequence = engine->call.sequence};
    ls_status status = ls_engine_begin(engine, &call);
    while (status == LS_OK && !finished) {
        status = ls_engine_progress(engine, true, &finished);
    }
    return status;
}

/* ---- posted messages --------------------------------------------------------------------------------------------- */

ls_status ls_engine_post(void *state, const ls_call *call, void **request) {
    ls_engine *engine = state;
    ls_message_request *asked = NULL;
    bool ended = false;
    *request = NULL;
    LS_TRY(ls_failure_check_open(engine, call));
    if (call->operation == LS_OP_SEND && call->root == engine->rank) {
        return ls_messages_send_self(engine, call);
    }
    const ls_status status = ls_messages_post(engine, call, &asked, &ended);
    if (status != LS_OK && status != LS_ERR_MISMATCH) {
        return ls_failure_abort(engine, status, ls_failure_rank(engine));
    }
    if (status != LS_OK || ended) {
        return ls_messages_end(engine, asked, status);
    }
    *request = asked;
    return LS_OK;
}

ls_status ls_engine_test(void *state, void *request, bool wait, bool *finished) {
    ls_engine *engine = state;
    ls_message_request *asked = request;
    uint64_t wait_ns = 0;
    ls_status status = LS_OK;
    *finished = ls_messages_has_ended(asked);
    while (!*finished && status == LS_OK) {
        bool moved = false;
        status = look(engine, &asked->call, wait_ns, &moved);
        *finished = status == LS_OK && ls_messages_has_ended(asked);
        ls_messages_name_sender(asked);
        if (status == LS_OK && !*finished) {
            const uint64_t seen = ls_messages_progress(engine, asked->call.root); /* without notices of failures */
            asked->since_ns = seen != asked->seen ? ls_engine_now(engine) : asked->since_ns;
            asked->seen = seen;
            status = ls_failure_check(engine, &(ls_engine_wait){.call = &asked->call,
                                                                .request = asked,
                                                                .since_ns = &asked->since_ns,
                                                                .told_ns = &asked->told_ns});
        }
        if (!wait) {
            break;
        }
        wait_ns = moved ? 0 : LS_ENGINE_LOOK_NS;
    }
    if (status != LS_OK && !ls_failure_has_ended(engine)) {
        status = ls_failure_abort(engine, status, ls_failure_rank(engine));
    }
    return *finished || status != LS_OK ? ls_messages_end(engine, asked, status) : LS_OK;
}
