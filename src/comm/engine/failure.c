/*
 * How ranks leave and fail, and how waiting ranks learn of it. Ranks that are connected to a rank detect its exit. A
 * rank that aborts notifies the ranks at distances of powers of two, with the reason and the failed rank. Each rank
 * that is notified for the first time does the same, so all ranks know after log2 P messages.
 *
 * A rank that has waited longer than the timeout queries the rank that it waits for. The queried rank answers with the
 * rank that it is itself waiting for, which is then queried, and so on. The last rank of this chain, which does not
 * answer or waits for no rank, has failed.
 */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/engine/inside.h"
#include "comm/waiting.h"

#define LEAST_TOLD_NS UINT64_C(20000000) /* shorter waits are not logged */
#define ANSWER_NS     UINT64_C(1000000000)
#define ON_ITS_WAY_NS UINT64_C(100000000)

enum {
    MOST_ANSWERS = 64,
    MOST_PERIODS = 3, /* how often a native collective gets another timeout if all ranks answer */
    MORE_CAPACITY = 224,
    ALL_TOLD = 64 /* in a communicator of at most this size, a leaving rank notifies all ranks */
};

/* ---- notices to other ranks -------------------------------------------------------------------------------------- */

/* Returns true if the cyclic distance of the ranks is a power of two. */
static bool is_neighbour(const ls_engine *engine, int rank) {
    const int up = (rank - engine->rank + engine->size) % engine->size;
    const int down = engine->size - up;
    return (up & (up - 1)) == 0 || (down & (down - 1)) == 0;
}

bool ls_failure_tells(const ls_engine *engine, int rank) {
    const ls_peer_state state = engine->endpoint->transport->peer(engine->endpoint, rank);
    const bool all = engine->size <= ALL_TOLD || (engine->failure.teller < 0 && ls_native_is_running(engine));
    const bool near = all || is_neighbour(engine, rank);
    return rank != engine->rank && (state == LS_PEER_REACHED || (state == LS_PEER_UNKNOWN && near));
}

/* Allocates nothing, because memory may be exhausted. */
void ls_failure_notify_revoked(ls_engine *engine) {
    const ls_transport *transport = engine->endpoint->transport;
    for (int rank = 0; rank < engine->size; rank++) {
        if (ls_failure_tells(engine, rank)) {
            engine->failure.telling[rank] = (ls_transfer){.peer = rank,
                                                          .channel = LS_CHANNEL_NOTICES,
                                                          .data = &engine->failure.revoked,
                                                          .bytes = sizeof engine->failure.revoked};
            (void)transport->send(engine->endpoint, &engine->failure.telling[rank]);
        }
    }
}

/* ---- notices from other ranks ------------------------------------------------------------------------------------ */

static ls_status receive_next(ls_engine *engine) {
    engine->failure.notice = (ls_transfer){.peer = -1,
                                           .channel = LS_CHANNEL_NOTICES,
                                           .data = &engine->failure.heard,
                                           .bytes = sizeof engine->failure.heard,
                                           .receives = true};
    return engine->endpoint->transport->receive(engine->endpoint, &engine->failure.notice);
}

ls_status ls_failure_open(ls_engine *engine) {
    const size_t size = (size_t)engine->size;
    ls_engine_failure *self = &engine->failure;
    self->asked = -1;
    self->waits_for = -1;
    self->failed_rank = -1;
    self->teller = -1;
    self->departed = ls_allocate_zeroed(3 * size, 1);
    self->telling = ls_allocate_zeroed(size, sizeof *self->telling);
    if (self->departed == NULL || self->telling == NULL) {
        return ls_fail_memory("ls_comm_open", size * sizeof *self->telling);
    }
    self->answered = self->departed + size;
    self->unknown = self->answered + size;
    return engine->size == 1 ? LS_OK : receive_next(engine);
}

void ls_failure_free(ls_engine *engine) {
    ls_free(engine->failure.departed);
    ls_free(engine->failure.telling);
}

void ls_failure_desert(ls_engine *engine, int rank, ls_leave_reason reason) {
    engine->failure.deserted = true;
    engine->failure.departed[rank] = (unsigned char)(1 + reason);
}

/* Returns a rank with which the call has a transfer in progress, preferably a rank that must send: with `turn` 0 the
 * last such rank, with higher turns the other ranks in turn. Returns -1 if there is no such rank. */
static int awaited_by_call(const ls_engine *engine, unsigned turn) {
    unsigned count[2] = {0};
    const ls_transfer *transfer;
    for (int next = 0; (transfer = ls_transfers_next(engine, &next)) != NULL;) {
        count[transfer->receives]++;
    }
    const bool receives = count[1] > 0;
    unsigned before = count[receives] > 0 ? count[receives] - 1 - turn % count[receives] : 0;
    for (int next = 0; (transfer = ls_transfers_next(engine, &next)) != NULL;) {
        if (transfer->receives == receives && before-- == 0) {
            return transfer->peer;
        }
    }
    return -1;
}

static int awaited_by(const ls_engine *engine, const ls_engine_wait *wait) {
    return wait->request != NULL ? wait->call->root : awaited_by_call(engine, 0);
}

/* Answers a query. A rank that waits for several ranks names a different rank each time: ranks that wait for each
 * other may be waiting for further ranks, too, and a chain of such answers eventually leaves every cycle that it can
 * leave. */
static void answer(ls_engine *engine, int to) {
    const int in_call = ls_engine_is_calling(engine) ? awaited_by_call(engine, engine->failure.named++) : -1;
    const int awaited =
        engine->failure.waits_in_call || engine->failure.waits_for < 0 ? in_call : engine->failure.waits_for;
    const ls_notice notice = {
        .kind = LS_NOTICE_ANSWERED, .status = ls_native_is_running(engine), .failed_rank = awaited};
    ls_engine_notify(engine, to, LS_CHANNEL_NOTICES, &notice, sizeof notice);
}

static void hear(ls_engine *engine, int from, const ls_notice *notice) {
    engine->failure.unknown[from] = 0;
    switch (notice->kind) {
    case LS_NOTICE_REVOKED:
        if (engine->failure.revoked.kind == 0) {
            engine->failure.revoked = *notice;
            engine->failure.teller = from;
            if (notice->failed_rank < 0 || notice->failed_rank >= engine->size) {
                engine->failure.revoked.failed_rank = from;
            }
            engine->failure.revoked.text[sizeof engine->failure.revoked.text - 1] = '\0';
            ls_failure_notify_revoked(engine);
        }
        break;
    case LS_NOTICE_LEFT:
        engine->failure.departed[from] = (unsigned char)(1 + (notice->status & 7));
        break;
    case LS_NOTICE_ASKED:
        answer(engine, from);
        break;
    case LS_NOTICE_ANSWERED:
        engine->failure.answered[from] = 1;
        if (from == engine->failure.asked && notice->status == 1) {
            engine->failure.more_ns =
                engine->timeout_ns + ANSWER_NS; /* time for the other rank to find the silent rank */
        }
        if (from == engine->failure.asked && notice->failed_rank >= 0 && notice->failed_rank < engine->size) {
            engine->failure.next_asked = notice->failed_rank;
        }
        break;
    default:
        break;
    }
}

ls_status ls_failure_hear(ls_engine *engine) {
    ls_engine_drop_notices(engine, false);
    while (engine->failure.notice.ended) {
        const ls_notice notice = engine->failure.heard;
        const int from = engine->failure.notice.peer;
        const size_t bytes = engine->failure.notice.bytes;
        LS_TRY(receive_next(engine));
        if (bytes == sizeof notice) {
            hear(engine, from, &notice);
        }
    }
    return LS_OK;
}

/* ---- waits that cannot succeed ----------------------------------------------------------------------------------- */

static const char *name_of(const ls_engine_wait *wait, char name[64]) {
    return ls_call_describe(wait->call->operation, wait->call->sequence, name, 64);
}

static const char *describe_waiting(const ls_engine *engine, const ls_engine_wait *wait, char text[MORE_CAPACITY]) {
    text[0] = '\0';
    return wait->request == NULL || wait->request->receipt == NULL
               ? text
               : ls_match_describe_waiting(ls_messages_match(engine), wait->call->root, wait->call->tag, text,
                                           MORE_CAPACITY);
}

int ls_failure_rank(const ls_engine *engine) {
    return engine->failure.failed_rank >= 0 ? engine->failure.failed_rank : engine->endpoint->blamed - 1;
}

static ls_status fail_by(ls_engine *engine, int failed_rank, ls_status status) {
    engine->failure.failed_rank = failed_rank;
    return status;
}

static ls_status fail_revoked(ls_engine *engine, const ls_call *call) {
    char name[64];
    ls_call_describe(call->operation, call->sequence, name, sizeof name);
    engine->failure.deserted = engine->failure.revoked.deserted != 0;
    return fail_by(engine, engine->failure.revoked.failed_rank,
                   ls_fail(engine->failure.revoked.status == LS_ERR_TIMEOUT ? LS_ERR_TIMEOUT : LS_ERR_PEER, "%s: %s",
                           name, engine->failure.revoked.text));
}

ls_status ls_failure_check_revoked(ls_engine *engine, const ls_call *call) {
    if (engine->failure.revoked.kind == 0) {
        return LS_OK;
    }
    return ls_operation_is_collective(call->operation) && call->sequence >= engine->failure.revoked.sequence
               ? fail_revoked(engine, call)
               : LS_OK;
}

static bool is_gone(const ls_engine *engine, int peer) {
    return peer >= 0 && peer != engine->rank &&
           engine->endpoint->transport->peer(engine->endpoint, peer) == LS_PEER_GONE;
}

static ls_status fail_gone(ls_engine *engine, const ls_engine_wait *wait, int rank) {
    if (engine->failure.revoked.kind != 0) { /* the reason why it ended */
        return fail_revoked(engine, wait->call);
    }
    char name[64];
    char waiting[MORE_CAPACITY];
    return fail_by(engine, rank,
                   ls_fail(LS_ERR_PEER, "%s: rank %d has ended, or its connection broke%s", name_of(wait, name), rank,
                           describe_waiting(engine, wait, waiting)));
}

/* Returns why the rank has left, plus 1; 0 if it has not left. */
static unsigned char reason_of(const ls_engine *engine, int rank) {
    const unsigned char left = ls_messages_left(engine, rank);
    return left != 0 ? left : engine->failure.departed[rank];
}

/* A rank closed its endpoint after a receive had claimed its message, and before all of the message had arrived. */
static ls_status fail_interrupted(ls_engine *engine, const ls_engine_wait *wait, int rank, ls_leave_reason reason) {
    char name[64];
    engine->failure.deserted = true;
    return fail_by(engine, rank,
                   ls_fail(LS_ERR_PEER, "%s: rank %d %s in the middle of this call", name_of(wait, name), rank,
                           reason == LS_LEAVE_FREED ? "left" : ls_leave_describe(reason)));
}

/* All data from a rank that has exited has already arrived, so a wait for more cannot succeed. */
static ls_status check_awaited(ls_engine *engine, const ls_engine_wait *wait) {
    if (wait->request != NULL && is_gone(engine, wait->call->root)) {
        const int rank = wait->call->root;
        const unsigned char why = engine->failure.revoked.kind == 0 ? reason_of(engine, rank) : 0;
        return why != 0 ? fail_interrupted(engine, wait, rank, (ls_leave_reason)(why - 1))
                        : fail_gone(engine, wait, rank);
    }
    const ls_transfer *transfer;
    for (int next = 0; wait->request == NULL && (transfer = ls_transfers_next(engine, &next)) != NULL;) {
        if (transfer->peer >= 0 && is_gone(engine, transfer->peer)) {
            return fail_gone(engine, wait, transfer->peer);
        }
    }
    return LS_OK;
}

/* A rank that exits without having left revokes the communicator, but not the calls that it has made: their data
 * arrives first. */
static ls_status check_others(ls_engine *engine, const ls_engine_wait *wait) {
    if ((engine->failure.revoked.kind == 0 && engine->endpoint->gone == engine->failure.gone) ||
        ls_engine_now(engine) - *wait->since_ns < ON_ITS_WAY_NS) {
        return LS_OK;
    }
    if (engine->failure.revoked.kind != 0) {
        return fail_revoked(engine, wait->call);
    }
    int known = 0;
    for (int rank = 0; rank < engine->size; rank++) {
        if (is_gone(engine, rank) && engine->failure.departed[rank] == 0 && engine->failure.unknown[rank] == 0) {
            return fail_gone(engine, wait, rank);
        }
        known += is_gone(engine, rank);
    }
    engine->failure.gone = known;
    return LS_OK;
}

/* A rank that has left no longer answers posted messages. */
static ls_status check_left(ls_engine *engine, const ls_engine_wait *wait) {
    const ls_message_request *asked = wait->request;
    const int peer = awaited_by(engine, wait);
    if (peer < 0) {
        return LS_OK;
    }
    const bool has_left = engine->failure.departed[peer] != 0 && is_gone(engine, peer); /* all its data has arrived */
    const unsigned char why = has_left        ? engine->failure.departed[peer]
                              : asked != NULL ? ls_messages_left(engine, peer)
                                              : 0;
    if (why == 0 || (asked != NULL && asked->receipt != NULL && asked->receipt->claimed)) {
        return LS_OK;
    }
    char name[64];
    char waiting[MORE_CAPACITY];
    engine->failure.deserted = true;
    return fail_by(engine, peer,
                   ls_fail(LS_ERR_PEER, "%s: rank %d %s%s", name_of(wait, name), peer,
                           ls_leave_describe((ls_leave_reason)(why - 1)), describe_waiting(engine, wait, waiting)));
}

static bool is_from_any(const ls_engine_wait *wait) {
    return wait->request != NULL && wait->call->root == LS_ANY_RANK;
}

/* Returns true if the rank can still send messages. */
static bool may_send(const ls_engine *engine, int rank) {
    return rank != engine->rank && ls_messages_left(engine, rank) == 0 && !is_gone(engine, rank);
}

/* A receive from any rank fails if no other rank can still send messages. */
static ls_status check_senders(ls_engine *engine, const ls_engine_wait *wait) {
    int rank = 0;
    while (rank < engine->size && !may_send(engine, rank)) {
        rank++;
    }
    if (rank < engine->size || engine->size == 1) {
        return LS_OK;
    }
    const int first = engine->rank == 0 ? 1 : 0;
    const unsigned char why = reason_of(engine, first);
    if (why == 0) {
        return fail_gone(engine, wait, first);
    }
    char name[64];
    char waiting[MORE_CAPACITY];
    engine->failure.deserted = true;
    return fail_by(engine, first,
                   ls_fail(LS_ERR_PEER, "%s: rank %d %s%s%s", name_of(wait, name), first,
                           ls_leave_describe((ls_leave_reason)(why - 1)),
                           engine->size > 2 ? ", and all other ranks have left, too" : "",
                           describe_waiting(engine, wait, waiting)));
}

static ls_status fail_silent(ls_engine *engine, const ls_engine_wait *wait, int blamed) {
    const double seconds = (double)engine->timeout_ns * 1e-9;
    const bool around = engine->failure.asked >= 0 &&
                        engine->failure.next_asked == engine->rank; /* the awaited rank waits for this rank */
    char name[64];
    name_of(wait, name);
    engine->failure.message_timed_out = wait->request != NULL;
    if (wait->request == NULL || blamed != wait->call->root) {
        return fail_by(engine, blamed,
                       ls_fail(LS_ERR_TIMEOUT,
                               "%s: rank %d did not make this call, or did not proceed with it, within %g s", name,
                               blamed, seconds));
    }
    const ls_status status =
        wait->request->receipt != NULL
            ? ls_match_fail_silent(ls_messages_match(engine), wait->call, seconds)
            : ls_fail(LS_ERR_TIMEOUT, "%s: rank %d did not receive the message with tag %d within %g s%s", name, blamed,
                      wait->call->tag, seconds, around && wait->call->waits ? "; " LS_SENDS_FIRST : "");
    return fail_by(engine, blamed, status);
}

static void put_question(ls_engine *engine, int to) {
    const ls_notice question = {.kind = LS_NOTICE_ASKED, .failed_rank = -1};
    if (engine->endpoint->transport->peer(engine->endpoint, to) == LS_PEER_UNKNOWN) {
        engine->failure.unknown[to] = 1;
    }
    ls_engine_notify(engine, to, LS_CHANNEL_NOTICES, &question, sizeof question);
}

static void ask(ls_engine *engine, int peer) {
    engine->failure.asked = peer;
    engine->failure.next_asked = -1;
    engine->failure.more_ns = 0;
    engine->failure.asked_ns = ls_engine_now(engine);
    engine->failure.answers++;
    put_question(engine, peer);
}

static void ask_all(ls_engine *engine) {
    memset(engine->failure.answered, 0, (size_t)engine->size);
    for (int rank = 0; rank < engine->size; rank++) {
        if (rank != engine->rank) {
            put_question(engine, rank);
        }
    }
    engine->failure.asked = engine->rank; /* no rank in particular */
    engine->failure.asked_ns = ls_engine_now(engine);
}

/* After the timeout of a native collective, it is unknown which rank it waits for, so all ranks are queried. If all
 * answer, the collective is merely slow. A rank that has left had already finished this call. */
static ls_status check_network(ls_engine *engine, const ls_engine_wait *wait) {
    const double seconds = (double)engine->timeout_ns * 1e-9;
    const uint64_t longest = ANSWER_NS < engine->timeout_ns ? ANSWER_NS : engine->timeout_ns;
    ls_rank_list silent = {.count = 0};
    char name[64];
    if (engine->failure.asked < 0) {
        ask_all(engine);
        return LS_OK;
    }
    for (int rank = 0; rank < engine->size; rank++) {
        const bool has_left =
            engine->failure.departed[rank] != 0 || (engine->failure.unknown[rank] != 0 && is_gone(engine, rank));
        if (rank != engine->rank && engine->failure.answered[rank] == 0 && !has_left) {
            ls_rank_list_add(&silent, rank);
        }
    }
    if (silent.count == 0 && engine->failure.answers < MOST_PERIODS) {
        engine->failure.answers++;
        engine->failure.asked = -1;
        *wait->since_ns = ls_engine_now(engine);
        return LS_OK;
    }
    if (silent.count == 0) {
        return ls_fail(LS_ERR_TIMEOUT,
                       "%s: the network's collective did not finish within %g s, although all ranks take part",
                       name_of(wait, name), seconds * (MOST_PERIODS + 1));
    }
    if (ls_engine_now(engine) - engine->failure.asked_ns < longest) {
        return LS_OK;
    }
    return fail_by(engine, silent.first,
                   ls_fail(LS_ERR_TIMEOUT, "%s: %s did not proceed with this call within %g s", name_of(wait, name),
                           silent.text, seconds));
}

/* After the timeout, queries the ranks along the chain of waits. */
static ls_status check_silence(ls_engine *engine, const ls_engine_wait *wait) {
    const uint64_t now = ls_engine_now(engine);
    if (wait->request == NULL && ls_native_is_running(engine)) {
        return now - *wait->since_ns > engine->timeout_ns ? check_network(engine, wait) : LS_OK;
    }
    const int awaited = awaited_by(engine, wait);
    const bool from_any = is_from_any(wait);
    if (now - *wait->since_ns <= engine->timeout_ns || (awaited < 0 && !from_any) || wait->call->untimed) {
        ls_failure_forget_query(engine);
        return LS_OK;
    }
    if (from_any) {
        return fail_silent(engine, wait, awaited);
    }
    if (engine->failure.asked < 0 && awaited != engine->rank) {
        ask(engine, awaited);
        return LS_OK;
    }
    const bool around = engine->failure.next_asked == engine->rank;
    const bool circle = (around && wait->request != NULL) ||
                        engine->failure.answers > MOST_ANSWERS + 2 * engine->size; /* then of others */
    const int next = around && !circle ? awaited_by_call(engine, engine->failure.named++) : engine->failure.next_asked;
    if (next >= 0 && next != engine->rank && !circle && engine->failure.asked >= 0) {
        ask(engine, next);
        return LS_OK;
    }
    const uint64_t longest = ANSWER_NS < engine->timeout_ns ? ANSWER_NS : engine->timeout_ns;
    if (awaited != engine->rank && !circle && now - engine->failure.asked_ns < longest + engine->failure.more_ns) {
        return LS_OK;
    }
    return fail_silent(engine, wait, around || engine->failure.asked < 0 ? awaited : engine->failure.asked);
}

/* Returns true if an earlier transfer with the same rank is in progress. */
static bool with_earlier(const ls_engine *engine, const ls_transfer *transfer) {
    const ls_transfer *earlier;
    for (int next = 0; (earlier = ls_transfers_next(engine, &next)) != transfer;) {
        if (earlier->peer == transfer->peer) {
            return true;
        }
    }
    return false;
}

static void tell_log(const ls_engine *engine, const ls_engine_wait *wait) {
    const uint64_t waited_ns = ls_engine_now(engine) - *wait->since_ns;
    if (waited_ns < LEAST_TOLD_NS || wait->call->untimed) { /* this runs at every poll */
        return;
    }
    ls_rank_list awaited = {.count = 0};
    char waiting[MORE_CAPACITY];
    /* A rank whose headers are awaited has at least made the previous call. */
    bool begun = wait->request != NULL || !ls_transfers_exist(engine);
    const ls_transfer *transfer;
    for (int next = 0; wait->request == NULL && (transfer = ls_transfers_next(engine, &next)) != NULL;) {
        if (transfer->peer >= 0 && !with_earlier(engine, transfer)) {
            ls_rank_list_add(&awaited, transfer->peer);
            begun = begun || transfer->channel != LS_CHANNEL_HEADERS;
        }
    }
    const bool network = wait->request == NULL && ls_native_is_running(engine);
    for (int rank = 0; is_from_any(wait) && rank < engine->size; rank++) {
        if (may_send(engine, rank)) {
            ls_rank_list_add(&awaited, rank);
        }
    }
    if (wait->request != NULL && !is_from_any(wait)) {
        ls_rank_list_add(&awaited, wait->call->root);
    } else if (network) {
        awaited.count = snprintf(awaited.text, sizeof awaited.text, "the network's own collective");
    }
    const ls_call *latest = begun ? &engine->call : ls_engine_previous_call(engine);
    if (awaited.count != 0) {
        ls_comm_tell_waiting(&(ls_waiting){.call = wait->call,
                                           .knows_latest = latest->sequence != 0 && !network,
                                           .latest = latest->operation,
                                           .latest_sequence = latest->sequence,
                                           .awaited = &awaited,
                                           .waited_ns = waited_ns,
                                           .told_ns = wait->told_ns,
                                           .more = describe_waiting(engine, wait, waiting)});
    }
}

ls_status ls_failure_check(ls_engine *engine, const ls_engine_wait *wait) {
    engine->failure.waits_for = awaited_by(engine, wait);
    engine->failure.waits_in_call = wait->request == NULL;
    LS_TRY(ls_call_check_threads(wait->call));
    LS_TRY(check_left(engine, wait));
    LS_TRY(check_awaited(engine, wait));
    LS_TRY(check_others(engine, wait));
    LS_TRY(is_from_any(wait) ? check_senders(engine, wait) : LS_OK);
    tell_log(engine, wait);
    return check_silence(engine, wait);
}

ls_status ls_failure_check_open(const ls_engine *engine, const ls_call *call) {
    if (!engine->failure.ended) {
        return LS_OK;
    }
    char name[64];
    return ls_fail(LS_ERR_STATE, "%s: an earlier failed call has aborted this communicator",
                   ls_call_describe(call->operation, call->sequence, name, sizeof name));
}
