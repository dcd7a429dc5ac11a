/* The transfers of a call. Algorithms and the exchange of headers begin them; the engine waits for their completion. */
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/engine/inside.h"

void ls_transfers_clear(ls_engine *engine) {
    engine->transfers.count = 0;
}

bool ls_transfers_exist(const ls_engine *engine) {
    return engine->transfers.count != 0;
}

const ls_transfer *ls_transfers_next(const ls_engine *engine, int *next) {
    for (int i = *next; i < engine->transfers.count; i++) {
        if (!engine->transfers.list[i].ended) {
            *next = i + 1;
            return &engine->transfers.list[i];
        }
    }
    return NULL;
}

uint64_t ls_transfers_progress(const ls_engine *engine) {
    uint64_t sum = 0;
    for (int i = 0; i < engine->transfers.count; i++) {
        sum += engine->transfers.list[i].moved + engine->transfers.list[i].ended;
    }
    return sum;
}

ls_segment *ls_transfers_find_ended(ls_engine *engine) {
    bool waits[LS_ENGINE_SEGMENTS] = {false};
    for (int i = 0; i < engine->transfers.count; i++) {
        if (engine->transfers.slots[i].segment != NULL && !engine->transfers.list[i].ended) {
            waits[engine->transfers.slots[i].segment - engine->segments] = true;
        }
    }
    for (int segment = 0; segment < LS_ENGINE_SEGMENTS; segment++) {
        if (engine->segments[segment].stage != NULL && !waits[segment]) {
            return &engine->segments[segment];
        }
    }
    return NULL;
}

ls_status ls_transfers_end(ls_engine *engine, const ls_segment *segment) {
    int used = 0;
    for (int i = 0; i < engine->transfers.count; i++) {
        const ls_transfer *transfer = &engine->transfers.list[i];
        ls_transfer_slot *slot = &engine->transfers.slots[i];
        if (slot->segment == segment && slot->counts && transfer->bytes != slot->room) {
            char name[64];
            ls_failure_blame(engine, transfer->peer);
            return ls_fail(LS_ERR_PEER, "%s: rank %d sent %zu bytes of data instead of %zu",
                           ls_engine_call_name(engine, name), transfer->peer, transfer->bytes, slot->room);
        }
        slot->segment = slot->segment == segment ? NULL : slot->segment;
        used = slot->segment != NULL ? i + 1 : used;
    }
    engine->transfers.count = used;
    return LS_OK;
}

void ls_transfers_withdraw(ls_engine *engine) {
    for (int i = 0; i < engine->transfers.count; i++) {
        if (!engine->transfers.list[i].ended) {
            engine->endpoint->transport->withdraw(engine->endpoint, &engine->transfers.list[i]);
        }
    }
    engine->transfers.count = 0;
}

const char *ls_engine_call_name(const ls_engine *engine, char name[64]) {
    return ls_call_describe(engine->call.operation, engine->call.sequence, name, 64);
}

ls_status ls_engine_name_failure(const ls_call *call, ls_status status) {
    if (status == LS_OK) {
        return LS_OK;
    }
    char message[LS_ERROR_CAPACITY];
    char name[64];
    strncpy(message, ls_error_message(), sizeof message - 1);
    message[sizeof message - 1] = '\0';
    return ls_fail(status, "%s: %s", ls_call_describe(call->operation, call->sequence, name, sizeof name), message);
}

static ls_transfer *add_transfer(ls_engine *engine, int peer, ls_channel channel, void *data, size_t bytes,
                                 bool receives) {
    const int segment = (int)(engine->segment - engine->segments);
    const bool data_of_segment = channel == LS_CHANNEL_DATA && segment > 0;
    int at = 0;
    while (at < engine->transfers.count && engine->transfers.slots[at].segment != NULL) {
        at++;
    }
    engine->transfers.count += at == engine->transfers.count;
    engine->transfers.slots[at] =
        (ls_transfer_slot){.segment = engine->segment, .room = bytes, .counts = receives && channel == LS_CHANNEL_DATA};
    engine->transfers.list[at] =
        (ls_transfer){.peer = peer,
                      .channel = data_of_segment ? LS_CHANNEL_SEGMENTS + segment - 1 : (int)channel,
                      .data = data,
                      .bytes = bytes,
                      .receives = receives,
                      .of_user = channel == LS_CHANNEL_DATA};
    return &engine->transfers.list[at];
}

ls_transfer *ls_engine_transfer(ls_engine *engine) {
    return add_transfer(engine, -1, LS_CHANNEL_DATA, NULL, 0, false);
}

ls_status ls_engine_send(ls_engine *engine, int to, ls_channel channel, const void *data, size_t bytes) {
    ls_transfer *transfer = add_transfer(engine, to, channel, (void *)(uintptr_t)data, bytes, false);
    return ls_engine_name_failure(&engine->call, engine->endpoint->transport->send(engine->endpoint, transfer));
}

ls_status ls_engine_receive(ls_engine *engine, int from, ls_channel channel, void *data, size_t bytes,
                            ls_transfer **transfer) {
    ls_transfer *made = add_transfer(engine, from, channel, data, bytes, true);
    if (transfer != NULL) {
        *transfer = made;
    }
    return ls_engine_name_failure(&engine->call, engine->endpoint->transport->receive(engine->endpoint, made));
}

ls_status ls_engine_scratch(ls_engine *engine, size_t bytes) {
    if (bytes <= engine->transfers.scratch_bytes) {
        return LS_OK;
    }
    unsigned char *grown = ls_allocate_aligned(bytes, 64);
    char name[64];
    if (grown == NULL) {
        return ls_fail_memory(ls_engine_call_name(engine, name), bytes);
    }
    ls_free(engine->scratch);
    engine->scratch = grown;
    engine->transfers.scratch_bytes = bytes;
    return LS_OK;
}
