/*
 * Messages that a rank sends without waiting for completion: notices of failures and of leaving. Also withdraws the
 * program's messages in progress when a rank leaves.
 */
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/engine/inside.h"

/* ---- messages sent without waiting for completion ---------------------------------------------------------------- */

/* Stays allocated until the transport no longer uses it. */
struct ls_engine_notice {
    struct ls_engine_notice *next;
    ls_transfer transfer;
    _Alignas(16) unsigned char data[];
};

void ls_engine_drop_notices(ls_engine *engine, bool all) {
    for (ls_engine_notice **link = &engine->words; *link != NULL;) {
        ls_engine_notice *notice = *link;
        if (all || notice->transfer.ended) {
            *link = notice->next;
            ls_free(notice);
        } else {
            link = &notice->next;
        }
    }
}

void ls_engine_notify(ls_engine *engine, int to, ls_channel channel, const void *data, size_t bytes) {
    ls_engine_notice *notice = ls_allocate(sizeof *notice + bytes);
    if (notice == NULL) {
        return; /* the ranks learn of it later, when this rank has exited */
    }
    memcpy(notice->data, data, bytes);
    notice->transfer = (ls_transfer){.peer = to, .channel = (int)channel, .data = notice->data, .bytes = bytes};
    notice->next = engine->words;
    engine->words = notice;
    (void)engine->endpoint->transport->send(engine->endpoint, &notice->transfer);
}

/* ---- the program's messages when a rank leaves ------------------------------------------------------------------- */

void ls_messages_say_left(ls_engine *engine, int to, ls_leave_reason reason) {
    const ls_call_header header = {.operation = LS_MESSAGE_LEFT, .reduction = (int32_t)reason, .root = engine->rank};
    ls_engine_notify(engine, to, LS_CHANNEL_MESSAGES, &header, sizeof header);
}

static void withdraw(ls_engine *engine, ls_transfer *transfer) {
    if (!transfer->ended) {
        engine->endpoint->transport->withdraw(engine->endpoint, transfer);
        transfer->ended = true;
    }
}

void ls_engine_withdraw_contents(void *state) {
    ls_engine *engine = state;
    for (ls_message_request *asked = engine->requests; asked != NULL; asked = asked->next) {
        if (asked->receipt == NULL && asked->began) {
            withdraw(engine, &asked->content);
        }
    }
    for (ls_message_arrival *arrival = engine->arrivals; arrival != NULL; arrival = arrival->next) {
        withdraw(engine, &arrival->content);
    }
}

void ls_messages_withdraw(ls_engine *engine) {
    for (ls_message_request *asked = engine->requests; asked != NULL; asked = asked->next) {
        if (asked->receipt == NULL && asked->began) {
            withdraw(engine, &asked->envelope);
        }
    }
    ls_engine_withdraw_contents(engine);
}
