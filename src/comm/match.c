#include "comm/match.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/agreement.h"

static bool fits(const ls_match_header *header, const ls_call *call) {
    return (call->root == LS_ANY_RANK || header->from == call->root) && header->tag == call->tag;
}

/* Turns a receive from any rank into a receive of this message. */
static void name_sender(ls_match *match, const ls_match_header *header, ls_call *call) {
    if (call->root == LS_ANY_RANK) {
        call->root = header->from;
        match->latest_sender = header->from;
    }
    if (call->source != NULL) {
        *call->source = header->from;
    }
}

static bool agrees(const ls_match_header *header, const ls_call *call) {
    return header->count == call->count && header->dtype == call->dtype;
}

static ls_status fail_refused(const ls_match_header *header, const ls_call *call) {
    char name[64];
    return ls_fail(LS_ERR_MISMATCH, "%s: rank %d sent %zu %s with tag %d, but this rank expects %zu %s",
                   ls_call_describe(call->operation, call->sequence, name, sizeof name), header->from, header->count,
                   ls_dtype_name(header->dtype), header->tag, call->count, ls_dtype_name(call->dtype));
}

/* Checks the header received from a sender before this rank allocates or writes memory for the message. */
static ls_status check_header(const ls_match_header *header) {
    const ls_call_header call = {.operation = LS_OP_SEND,
                                 .dtype = (int32_t)header->dtype,
                                 .tag = header->tag,
                                 .count = header->count,
                                 .bytes = header->bytes};
    char why[LS_HEADER_WHY];
    return ls_call_header_is_sound(&call, 1, why)
               ? LS_OK
               : ls_fail(LS_ERR_PEER, "ls_comm_recv: rank %d sent an invalid header: %s", header->from, why);
}

static void remove_message(ls_match *match, ls_match_message *message) {
    ls_match_message **link = &match->messages;
    while (*link != message) {
        link = &(*link)->next;
    }
    *link = message->next;
    if (message->header.held && message->content != NULL) {
        match->kept -= message->header.bytes;
        ls_free(message->content);
    }
    ls_free(message);
}

static void remove_receipt(ls_match *match, ls_match_receipt *receipt) {
    ls_match_receipt **link = &match->receipts;
    while (*link != receipt) {
        link = &(*link)->next;
    }
    *link = receipt->next;
    receipt->next = match->spare;
    match->spare = receipt;
}

static void copy(void *to, const void *from, size_t bytes) {
    if (bytes != 0) {
        memcpy(to, from, bytes);
    }
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static ls_match_receipt *find_receipt(const ls_match *match, const ls_match_header *header) {
    ls_match_receipt *receipt = match->receipts;
    while (receipt != NULL && (receipt->claimed || !fits(header, &receipt->call))) {
        receipt = receipt->next;
    }
    return receipt;
}

static ls_status keep(ls_match *match, const ls_match_header *header, ls_match_target *target) {
    const bool empty = header->remote || header->held;
    ls_match_message *message = ls_allocate(sizeof *message + (empty ? 0 : header->bytes));
    if (message == NULL) {
        return ls_fail_memory("ls_comm_send", sizeof *message + header->bytes);
    }
    *message = (ls_match_message){.header = *header, .complete = header->remote, .latest_sender = match->latest_sender};
    message->content = empty ? NULL : (unsigned char *)(message + 1);
    ls_match_message **link = &match->messages;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = message;
    *target = (ls_match_target){.into = message->content, .message = message};
    return LS_OK;
}

ls_status ls_match_offer(ls_match *match, const ls_match_header *header, ls_match_target *target) {
    LS_TRY(check_header(header));
    ls_match_receipt *receipt = find_receipt(match, header);
    if (receipt == NULL) {
        return keep(match, header, target);
    }
    receipt->claimed = true;
    receipt->refused = !agrees(header, &receipt->call);
    receipt->header = *header;
    name_sender(match, header, &receipt->call);
    *target = (ls_match_target){.into = receipt->refused ? NULL : receipt->call.receive, .receipt = receipt};
    if (header->remote) {
        LS_TRY(match->fetch(match->context, header, &receipt->call, receipt->refused));
        receipt->arrived = true;
    }
    return LS_OK;
}

bool ls_match_wants(const ls_match_target *target) {
    return target->message == NULL || target->message->receipt != NULL;
}

ls_status ls_match_place(ls_match *match, ls_match_target *target) {
    ls_match_message *message = target->message;
    if (message == NULL) {
        return LS_OK;
    }
    if (message->receipt != NULL) {
        ls_match_receipt *receipt = message->receipt;
        *target = (ls_match_target){.into = receipt->refused ? NULL : receipt->call.receive, .receipt = receipt};
        remove_message(match, message);
        return LS_OK;
    }
    message->content = ls_allocate(message->header.bytes);
    if (message->content == NULL) {
        return ls_fail_memory("ls_comm_send", message->header.bytes);
    }
    match->kept += message->header.bytes;
    target->into = message->content;
    return LS_OK;
}

void ls_match_complete(ls_match *match, ls_match_target *target) {
    ls_match_message *message = target->message;
    if (message == NULL) {
        target->receipt->arrived = true;
        return;
    }
    message->complete = true;
    if (message->receipt != NULL) {
        if (!message->receipt->refused) {
            copy(message->receipt->call.receive, message->content, message->header.bytes);
        }
        message->receipt->arrived = true;
        remove_message(match, message);
    }
}

ls_status ls_match_send_self(ls_match *match, int rank, const ls_call *call) {
    const ls_match_header header = {
        .from = rank, .tag = call->tag, .dtype = call->dtype, .count = call->count, .bytes = call->count * call->width};
    ls_match_target target;
    LS_TRY(ls_match_offer(match, &header, &target));
    if (target.into != NULL) {
        copy(target.into, call->send, header.bytes);
    }
    ls_match_complete(match, &target);
    return LS_OK;
}

/* ---- receives ---------------------------------------------------------------------------------------------------- */

/* Returns the first match among `message` and the messages after it; NULL if there is none. */
static ls_match_message *find_fitting(ls_match_message *message, const ls_call *call) {
    while (message != NULL && (message->receipt != NULL || !fits(&message->header, call))) {
        message = message->next;
    }
    return message;
}

/* Returns the turn of the sender: ranks after the latest sender come first, cyclically. */
static uint32_t turn_of(int latest_sender, const ls_match_message *message) {
    const uint32_t from = (uint32_t)message->header.from;
    return message->header.from > latest_sender ? from : from | UINT32_C(1) << 31;
}

/*
 * Chooses the message of a receive from any rank. The latest sender with the tag matters only while other messages with
 * the tag wait, so these messages remember it. The oldest of them has seen every receive that any of them has seen.
 */
static ls_match_message *choose_message(ls_match_message *oldest, const ls_call *call) {
    ls_match_message *best = oldest;
    for (ls_match_message *message = oldest; message != NULL; message = find_fitting(message->next, call)) {
        const uint32_t turn = turn_of(oldest->latest_sender, message);
        best = turn < turn_of(oldest->latest_sender, best) ? message : best; /* each sender's first message */
    }
    const int sender = best->header.from;
    for (ls_match_message *message = oldest; message != NULL; message = find_fitting(message->next, call)) {
        message->latest_sender = sender;
    }
    return best;
}

static ls_match_message *find_message(const ls_match *match, const ls_call *call) {
    ls_match_message *first = find_fitting(match->messages, call);
    return call->root != LS_ANY_RANK || first == NULL ? first : choose_message(first, call);
}

/* Delivers a complete message to `receive`, and removes the message. */
static ls_status take(ls_match *match, ls_match_message *message, const ls_call *receive) {
    const ls_match_header header = message->header;
    const bool wanted = agrees(&header, receive);
    ls_status status = LS_OK;
    ls_call call = *receive;
    name_sender(match, &header, &call);
    if (header.remote) {
        status = match->fetch(match->context, &header, &call, !wanted);
    } else if (wanted) {
        copy(call.receive, message->content, header.bytes);
    }
    remove_message(match, message);
    return status != LS_OK || wanted ? status : fail_refused(&header, &call);
}

ls_status ls_match_receive(ls_match *match, const ls_call *call, ls_match_receipt **result) {
    *result = NULL;
    ls_match_message *message = find_message(match, call);
    if (message != NULL && message->complete) {
        return take(match, message, call);
    }
    ls_match_receipt *receipt = match->spare;
    if (receipt != NULL) {
        match->spare = receipt->next;
    } else {
        receipt = ls_allocate(sizeof *receipt);
        if (receipt == NULL) {
            return ls_fail_memory("ls_comm_recv", sizeof *receipt);
        }
    }
    *receipt = (ls_match_receipt){.call = *call};
    ls_match_receipt **link = &match->receipts;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = receipt;
    if (message != NULL) {
        message->receipt = receipt;
        receipt->claimed = true;
        receipt->refused = !agrees(&message->header, call);
        receipt->header = message->header;
        name_sender(match, &message->header, &receipt->call);
    }
    *result = receipt;
    return LS_OK;
}

ls_status ls_match_end(ls_match *match, ls_match_receipt *receipt) {
    const ls_match_receipt ended = *receipt;
    remove_receipt(match, receipt);
    return ended.refused ? fail_refused(&ended.header, &ended.call) : LS_OK;
}

void ls_match_cancel(ls_match *match, ls_match_receipt *receipt) {
    remove_receipt(match, receipt);
}

/* Returns true if the message is from `from`, which may be LS_ANY_RANK, and no receive has claimed it. */
static bool waits(const ls_match_message *message, int from) {
    return message->receipt == NULL && message->header.tag >= 0 &&
           (from == LS_ANY_RANK || message->header.from == from);
}

/* Returns true if an earlier such message has the same tag. */
static bool is_repeated(const ls_match *match, const ls_match_message *message, int from) {
    const ls_match_message *other = match->messages;
    while (other != message && (!waits(other, from) || other->header.tag != message->header.tag)) {
        other = other->next;
    }
    return other != message;
}

const char *ls_match_describe_waiting(const ls_match *match, int from, int tag, char *text, size_t capacity) {
    char tags[160] = "";
    size_t length = 0;
    int count = 0;
    for (const ls_match_message *message = match->messages; message != NULL; message = message->next) {
        if (!waits(message, from) || is_repeated(match, message, from)) {
            continue;
        }
        if (length >= sizeof tags - 24) {
            snprintf(tags + length, sizeof tags - length, ", ...");
            count++;
            break;
        }
        length +=
            (size_t)snprintf(tags + length, sizeof tags - length, "%s%d", count == 0 ? "" : ", ", message->header.tag);
        count++;
    }
    text[0] = '\0';
    if (count != 0 && tag >= 0) {
        snprintf(text, capacity, "; %s %s%s %s here, none with tag %d",
                 count == 1 ? "a message with tag" : "messages with tags", tags, from == LS_ANY_RANK ? "" : " from it",
                 count == 1 ? "waits" : "wait", tag);
    }
    return text;
}

ls_status ls_match_fail_silent(const ls_match *match, const ls_call *call, double seconds) {
    char name[64];
    char waiting[224];
    char sender[24] = "no rank";
    if (call->root != LS_ANY_RANK) {
        snprintf(sender, sizeof sender, "rank %d", call->root);
    }
    return ls_fail(LS_ERR_TIMEOUT, "%s: %s sent %s with tag %d within %g s%s",
                   ls_call_describe(call->operation, call->sequence, name, sizeof name), sender,
                   call->root == LS_ANY_RANK ? "a message" : "nothing", call->tag, seconds,
                   ls_match_describe_waiting(match, call->root, call->tag, waiting, sizeof waiting));
}

void ls_match_free(ls_match *match) {
    while (match->messages != NULL) {
        remove_message(match, match->messages);
    }
    while (match->receipts != NULL) {
        remove_receipt(match, match->receipts);
    }
    while (match->spare != NULL) {
        ls_match_receipt *next = match->spare->next;
        ls_free(match->spare);
        match->spare = next;
    }
}
