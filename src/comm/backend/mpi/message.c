/* Sends and receives: a packet says what is sent and holds what is small; larger content follows it. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/backend/mpi/mpi.h"

#define LOOKS_PER_ENVELOPE 16
#define LOOKS_PER_REPEAT   32 /* of those that no receive waits for */
#define LOOKS_ANYWAY       128

/* ---- what arrives --------------------------------------------------------------------------------------------------
 */

ls_status ls_mpi_begin_content(ls_mpi *mpi, const ls_match_header *header, const ls_match_target *target, int kind,
                               int early) {
    ls_mpi_arrival *arrival = mpi->spare_arrival;
    mpi->spare_arrival = NULL;
    if (arrival == NULL) {
        arrival = ls_allocate(sizeof *arrival);
    }
    if (arrival == NULL) {
        return ls_mpi_give_up(mpi, ls_fail_memory("ls_comm_recv", sizeof *arrival));
    }
    *arrival = (ls_mpi_arrival){.next = mpi->arrivals, .target = *target, .early = early};
    mpi->arrivals = arrival;
    void *into = target->into;
    if (into == NULL) {
        arrival->refused = ls_allocate(header->bytes);
        into = arrival->refused;
    }
    if (into == NULL) {
        return ls_mpi_give_up(mpi, ls_fail_memory("ls_comm_recv", header->bytes));
    }
    return ls_mpi_take(mpi, header->from, kind, into, header->bytes, &arrival->open);
}

static ls_status take_packet(ls_mpi *mpi, const ls_mpi_packet *packet) {
    if (packet->header.operation == LS_MPI_LEFT) {
        ls_mpi_hear_left(mpi, &packet->header, LS_MPI_HEARD_SENDS);
        return LS_OK;
    }
    const ls_match_header header = ls_mpi_packet_message(packet);
    ls_match_target target;
    const ls_status status = ls_match_offer(&mpi->match, &header, &target);
    if (status != LS_OK) {
        return ls_mpi_give_up(mpi, status); /* the message is lost */
    }
    if (!ls_mpi_packet_is_eager(&packet->header, mpi->room)) {
        LS_TRY(ls_mpi_begin_content(mpi, &header, &target, LS_MPI_CONTENTS, -1));
        return ls_mpi_heed(mpi, &packet->header, &header);
    }
    if (target.into != NULL && header.bytes != 0) {
        memcpy(target.into, packet->data, header.bytes);
    }
    ls_match_complete(&mpi->match, &target);
    return LS_OK;
}

static ls_status end_contents(ls_mpi *mpi) {
    for (ls_mpi_arrival **link = &mpi->arrivals; *link != NULL;) {
        ls_mpi_arrival *arrival = *link;
        if (arrival->open != 0) {
            link = &arrival->next;
            continue;
        }
        const int early = arrival->early;
        ls_match_complete(&mpi->match, &arrival->target);
        *link = arrival->next;
        ls_free(arrival->refused);
        ls_free(mpi->spare_arrival);
        mpi->spare_arrival = arrival;
        LS_TRY(early >= 0 ? ls_mpi_expect(mpi, early) : LS_OK);
    }
    return LS_OK;
}

/* Looks how far contents are. */
static ls_status take_contents(ls_mpi *mpi, bool *moved) {
    LS_TRY(ls_mpi_poll(mpi, moved));
    return end_contents(mpi);
}

/* Looks for the next packet, and asks for it only now: when the last one came, who waited for that had other things to
 * do first. */
static ls_status look_for_envelope(ls_mpi *mpi, bool *moved) {
    bool ready = false;
    if (!mpi->held) {
        LS_TRY(mpi->envelopes->asked ? LS_OK : ls_mpi_box_ask(mpi, mpi->envelopes));
        LS_TRY(ls_mpi_box_look(mpi, mpi->envelopes, &mpi->held));
        LS_TRY(mpi->held ? ls_mpi_box_check(mpi, mpi->envelopes, -1) : LS_OK);
    }
    if (mpi->held) {
        LS_TRY(ls_mpi_await_repeats(mpi, &mpi->envelopes->packet.header, &ready));
    }
    if (!ready) {
        return LS_OK;
    }
    mpi->held = false;
    *moved = true;
    LS_TRY(take_packet(mpi, &mpi->envelopes->packet));
    return mpi->arrivals != NULL ? take_contents(mpi, moved) : LS_OK;
}

/* Whether this look is one in so many since something moved. A rank that sends again and again between its looks never
 * comes to many of those, so some of all looks are such too. */
static bool is_due(const ls_mpi *mpi, unsigned looks) {
    return mpi->idle % looks == looks - 1 || mpi->message_looks % LOOKS_ANYWAY == 0;
}

ls_status ls_mpi_poll_messages(ls_mpi *mpi, bool *moved) {
    const bool arriving = mpi->arrivals != NULL;
    mpi->message_looks++;
    if (arriving) {
        LS_TRY(take_contents(mpi, moved));
    }
    if (is_due(mpi, LOOKS_PER_REPEAT)) {
        LS_TRY(ls_mpi_find_repeats(mpi, moved));
    }
    return mpi->envelopes != NULL && (!arriving || is_due(mpi, LOOKS_PER_ENVELOPE)) ? look_for_envelope(mpi, moved)
                                                                                    : LS_OK;
}

/* Messages are taken in from the first send or receive on. */
static ls_status open_envelopes(ls_mpi *mpi) {
    ls_mpi_mailbox *envelopes = ls_allocate_zeroed(1, sizeof *envelopes);
    if (envelopes == NULL) {
        return ls_mpi_give_up(mpi, ls_fail_memory("ls_comm_recv", sizeof *envelopes));
    }
    mpi->envelopes = envelopes;
    return ls_mpi_box_open(mpi, envelopes, LS_MPI_MESSAGES, -1);
}

/* ---- what is posted ------------------------------------------------------------------------------------------------
 */

static bool has_finished(const ls_mpi_request *asked) {
    return asked->receipt != NULL ? ls_match_arrived(asked->receipt) : asked->open == 0;
}

static void end_request(ls_mpi *mpi, ls_mpi_request *asked) {
    ls_mpi_request **link = &mpi->requests;
    while (*link != asked) {
        link = &(*link)->next;
    }
    *link = asked->next;
    asked->next = mpi->spare;
    mpi->spare = asked;
}

/* A new request, on the list of those that are under way. */
static ls_mpi_request *make_request(ls_mpi *mpi, const ls_call *call) {
    ls_mpi_request *asked = mpi->spare;
    if (asked != NULL) {
        mpi->spare = asked->next;
    } else {
        asked = ls_allocate(sizeof *asked);
        if (asked == NULL) {
            return NULL;
        }
    }
    asked->next = mpi->requests;
    asked->call = *call;
    asked->open = 0;
    asked->receipt = NULL;
    asked->waited_ns = 0;
    asked->told_ns = 0;
    mpi->requests = asked;
    return asked;
}

static void free_requests(ls_mpi_request *list) {
    while (list != NULL) {
        ls_mpi_request *next = list->next;
        ls_free(list);
        list = next;
    }
}

/* Sends an envelope with so much data. One that announces repeats lives on beyond the send, until it is received. */
static ls_status give_envelope(ls_mpi *mpi, int to, const ls_mpi_packet *packet, size_t data, size_t *open) {
    if (packet->header.layout == 0) {
        return ls_mpi_give(mpi, to, LS_MPI_MESSAGES, packet, sizeof packet->header + data, open);
    }
    ls_mpi_row *row = &mpi->rows[to];
    row->envelope = packet->header;
    return ls_mpi_announce(mpi, to, &row->envelope, &row->unheard);
}

static ls_status begin_send(ls_mpi *mpi, ls_mpi_request *asked) {
    const ls_call *call = &asked->call;
    const size_t bytes = call->count * call->width;
    ls_call_header *envelope = &asked->packet.header;
    *envelope = (ls_call_header){.operation = LS_OP_SEND,
                                 .dtype = (int32_t)call->dtype,
                                 .root = mpi->rank,
                                 .tag = call->tag,
                                 .count = call->count,
                                 .bytes = bytes};
    const int kind = ls_mpi_repeats(mpi, call->root, envelope);
    if (kind != 0) {
        return ls_mpi_give(mpi, call->root, kind, call->send, bytes, &asked->open);
    }
    const size_t data = ls_mpi_packet_is_eager(envelope, mpi->room) ? bytes : 0;
    if (data != 0) {
        memcpy(asked->packet.data, call->send, data);
    }
    LS_TRY(give_envelope(mpi, call->root, &asked->packet, data, &asked->open));
    return data == bytes ? LS_OK : ls_mpi_give(mpi, call->root, LS_MPI_CONTENTS, call->send, bytes, &asked->open);
}

/* Looks once at all that was posted, and at what others sent: less often while this rank only sends. */
static ls_status poll(ls_mpi *mpi, bool *moved) {
    if (mpi->arrivals == NULL) {
        LS_TRY(ls_mpi_poll(mpi, moved));
    }
    const bool expects = mpi->match.receipts != NULL || mpi->arrivals != NULL;
    return expects || mpi->idle % LOOKS_PER_ENVELOPE == LOOKS_PER_ENVELOPE - 1 ? ls_mpi_poll_messages(mpi, moved)
                                                                               : LS_OK;
}

ls_status ls_mpi_post(void *state, const ls_call *call, void **request) {
    ls_mpi *mpi = state;
    bool moved = false;
    *request = NULL;
    if (mpi->ended) {
        char name[64];
        return ls_fail(LS_ERR_STATE, "%s: an earlier call has ended this communicator",
                       ls_call_describe(call->operation, call->sequence, name, sizeof name));
    }
    if (call->operation == LS_OP_SEND && call->root == mpi->rank) {
        return ls_match_send_self(&mpi->match, mpi->rank, call);
    }
    if (mpi->envelopes == NULL) {
        LS_TRY(open_envelopes(mpi));
    }
    ls_mpi_request *asked = make_request(mpi, call);
    if (asked == NULL) {
        return ls_mpi_give_up(mpi, ls_fail_memory("ls_comm_send", sizeof *asked));
    }
    ls_mpi_reset_idle(mpi);
    ls_status status =
        call->operation == LS_OP_SEND ? begin_send(mpi, asked) : ls_match_receive(&mpi->match, call, &asked->receipt);
    if (status == LS_OK && asked->receipt != NULL && !asked->receipt->claimed) {
        status = ls_mpi_expect(mpi, call->root);
    }
    if (status == LS_OK && !has_finished(asked)) {
        status = poll(mpi, &moved);
    }
    if (status != LS_OK || (asked->receipt == NULL && asked->open == 0)) {
        end_request(mpi, asked);
        return status;
    }
    *request = asked;
    return LS_OK;
}

enum { MORE_CAPACITY = 224 };

/* What else is to be said of a receive: which other messages wait. */
static const char *describe_waiting(const ls_mpi *mpi, const ls_mpi_request *asked, char text[MORE_CAPACITY]) {
    text[0] = '\0';
    return asked->receipt == NULL
               ? text
               : ls_match_describe_waiting(&mpi->match, asked->call.root, asked->call.tag, text, MORE_CAPACITY);
}

static ls_status fail_left(const ls_mpi *mpi, const ls_mpi_request *asked) {
    const ls_call *call = &asked->call;
    char name[64];
    char waiting[MORE_CAPACITY];
    return ls_fail(LS_ERR_PEER, "%s: rank %d %s%s",
                   ls_call_describe(call->operation, call->sequence, name, sizeof name), call->root,
                   ls_leave_describe((ls_leave_reason)mpi->reasons[call->root]), describe_waiting(mpi, asked, waiting));
}

static ls_status fail_silent(const ls_mpi *mpi, const ls_mpi_request *asked) {
    const ls_call *call = &asked->call;
    const double seconds = (double)mpi->timeout_ns * 1e-9;
    char name[64];
    return asked->receipt != NULL
               ? ls_match_fail_silent(&mpi->match, call, seconds)
               : ls_fail(LS_ERR_TIMEOUT, "%s: rank %d did not receive the message with tag %d within %g s",
                         ls_call_describe(call->operation, call->sequence, name, sizeof name), call->root, call->tag,
                         seconds);
}

/* Tells the log whom this rank waits for. */
static void tell_log(const ls_mpi *mpi, ls_mpi_request *asked) {
    if (asked->waited_ns < LS_MPI_LEAST_TOLD_NS) { /* this is asked at every look */
        return;
    }
    char waiting[MORE_CAPACITY];
    ls_rank_list partner = {.count = 0};
    ls_rank_list_add(&partner, asked->call.root);
    ls_comm_tell_waiting(&(ls_waiting){.call = &asked->call,
                                       .awaited = &partner,
                                       .waited_ns = asked->waited_ns,
                                       .told_ns = &asked->told_ns,
                                       .more = describe_waiting(mpi, asked, waiting),
                                       .knows_latest = mpi->call.sequence != 0,
                                       .latest = mpi->call.operation,
                                       .latest_sequence = mpi->call.sequence});
}

/* Looks for reasons to give up what was posted. */
static ls_status look(ls_mpi *mpi, ls_mpi_request *asked) {
    const ls_call *call = &asked->call;
    /* What a rank sent before it left has arrived before the news, but for content that may be on its way. */
    const bool left =
        (mpi->left[call->root] & LS_MPI_HEARD_SENDS) != 0 && (asked->receipt == NULL || !asked->receipt->claimed);
    if (!left && asked->waited_ns <= mpi->timeout_ns) {
        tell_log(mpi, asked);
        return LS_OK;
    }
    mpi->deserted = left;
    return ls_mpi_give_up(mpi, left ? fail_left(mpi, asked) : fail_silent(mpi, asked));
}

static ls_status wait_for(ls_mpi *mpi, ls_mpi_request *asked, bool wait) {
    for (;;) {
        bool moved = false;
        LS_TRY(poll(mpi, &moved));
        if (has_finished(asked)) {
            return LS_OK;
        }
        if (moved) {
            ls_mpi_reset_idle(mpi);
        } else {
            ls_mpi_pause(mpi, &asked->waited_ns);
            LS_TRY(look(mpi, asked));
        }
        if (!wait) {
            return LS_OK;
        }
    }
}

ls_status ls_mpi_test(void *state, void *request, bool wait, bool *finished) {
    ls_mpi *mpi = state;
    ls_mpi_request *asked = request;
    ls_status status = wait_for(mpi, asked, wait);
    *finished = status == LS_OK && has_finished(asked);
    if (*finished && asked->receipt != NULL) {
        status = ls_match_end(&mpi->match, asked->receipt);
    }
    if (status != LS_OK || *finished) {
        end_request(mpi, asked);
    }
    return status;
}

void ls_mpi_free_messages(ls_mpi *mpi) {
    free_requests(mpi->requests);
    free_requests(mpi->spare);
    ls_free(mpi->envelopes);
    ls_free(mpi->spare_arrival);
    while (mpi->arrivals != NULL) {
        ls_mpi_arrival *next = mpi->arrivals->next;
        ls_free(mpi->arrivals->refused);
        ls_free(mpi->arrivals);
        mpi->arrivals = next;
    }
    ls_match_free(&mpi->match);
}
