/* Messages that a rank sends without waiting for completion: notices of failures and of leaving. */
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/engine/inside.h"

/* Stays allocated until the transport no longer uses it. */
struct ls_engine_notice {
    struct ls_engine_notice *next;
    ls_transfer transfer;
    _Alignas(16) unsigned char data[];
};

void ls_engine_drop_notices(ls_engine *engine, bool all) {
    for (ls_engine_notice **link = &engine->notices; *link != NULL;) {
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
    notice->next = engine->notices;
    engine->notices = notice;
    (void)engine->endpoint->transport->send(engine->endpoint, &notice->transfer);
}

void ls_messages_say_left(ls_engine *engine, int to, ls_leave_reason reason) {
    const ls_call_header header = {.operation = LS_MESSAGE_LEFT, .reduction = (int32_t)reason, .root = engine->rank};
    ls_engine_notify(engine, to, LS_CHANNEL_MESSAGES, &header, sizeof header);
}
