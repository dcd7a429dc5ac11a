/*
 * How ranks leave and fail, and how waiting ranks learn of it. Ranks that are connected to a rank detect its exit. A
 * rank that aborts notifies the ranks at distances of powers of two, with the reason and the failed rank, and each rank
 * that is notified for the first time does the same, so all ranks know after log2 P messages. A rank that has waited
 * longer than the timeout queries the rank that it waits for, which answers with the rank that it is waiting for
 * itself, and so on. The rank at the end of the chain, which does not answer or waits for no rank, has failed.
 */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/engine/inside.h"

#define LEAST_TOLD_NS UINT64_C(20000000) /* shorter waits are not logged */
#define ANSWER_NS     UINT64_C(1000000000)
#define ON_ITS_WAY_NS UINT64_C(100000000)

enum {
    MOST_ANSWERS = 64,
    MOST_PERIODS = 3, /* maximum duration of a native collective, in timeouts, while all ranks answer */
    MORE_CAPACITY = 224,
    ALL_TOLD = 64 /* in a communicator of at most this size, a leaving rank notifies all ranks */
};

/* ---- leaving and aborting ---------------------------------------------------------------------------------------- */

/* Returns true if the cyclic distance of the ranks is a power of two. */
static bool is_neighbour(const ls_engine *engine, int rank) {
    const int up = (rank - engine->rank + engine->size) % engine->size;
    const int down = engine->size - up;
    return (up & (up - 1)) == 0 || (down & (down - 1)) == 0;
}

/* Returns true if this rank notifies the other rank. These are its neighbors, and ranks that are connected to this
 * rank and would detect its exit. During a native collective, all ranks are notified: any rank may be the only one
 * still waiting, and neighbors that have left would not notify it. */
static bool is_told(const ls_engine *engine, int rank) {
    const ls_peer_state state = engine->endpoint->transport->peer(engine->endpoint, rank);
    const bool all = engine->size <= ALL_TOLD || (engine->teller < 0 && ls_native_is_running(engine));
    const bool near = all || is_neighbour(engine, rank);
    return rank != engine->rank && (state == LS_PEER_REACHED || (state == LS_PEER_UNKNOWN && near));
}

/* Allocates nothing, because memory may be exhausted. */
static void tell_revoked(ls_engine *engine) {
    const ls_transport *transport = engine->endpoint->transport;
    for (int rank = 0; rank < engine->size; rank++) {
        if (is_told(engine, rank)) {
            engine->telling[rank] = (ls_transfer){
                .peer = rank, .channel = LS_CHANNEL_NOTICES, .data = &engine->revoked, .bytes = sizeof engine->revoked};
            (void)transport->send(engine->endpoint, &engine->telling[rank]);
        }
    }
}

/* Withdraws all transfers; the caller may then free their buffers. */
static void withdraw_all(ls_engine *engine) {
    const ls_transport *transport = engine->endpoint->transport;
    for (int i = 0; i < engine->transfer_count; i++) {
        if (!engine->transfers[i].ended) {
            transport->withdraw(engine->endpoint, &engine->transfers[i]);
        }
    }
    engine->transfer_count = 0;
    ls_messages_withdraw(engine);
}

/* Revokes the communicator with this thread's error, and notifies the other ranks. */
static void revoke(ls_engine *engine, ls_status status, int failed_rank) {
    const char *reason = strstr(ls_error_message(), ": ");
    reason = reason != NULL ? reason + 2 : ls_error_message();
    engine->ended = true;
    if (engine->revoked.kind != 0) {
        return;
    }
    engine->revoked = (ls_notice){.kind = LS_NOTICE_REVOKED,
                                  .status = status == LS_ERR_TIMEOUT ? LS_ERR_TIMEOUT : LS_ERR_PEER,
                                  .failed_rank = failed_rank,
                                  .deserted = engine->deserted,
                                  .sequence = engine->call.sequence + (engine->calling ? 0 : 1)};
    if (failed_rank < 0 || failed_rank == engine->rank || status == LS_ERR_MEMORY) {
        engine->revoked.failed_rank = engine->rank;
        snprintf(engine->revoked.text, sizeof engine->revoked.text, "rank %d gave up: %.300s", engine->rank, reason);
    } else {
        snprintf(engine->revoked.text, sizeof engine->revoked.text, "%.380s", reason);
    }
    tell_revoked(engine);
}

ls_status ls_failure_abort(ls_engine *engine, ls_status status, int failed_rank) {
    ls_saved_error cause;
    ls_error_save(&cause);
    cause.status = status;
    if (engine->ended) {
        return status;
    }
    engine->failed = true;
    revoke(engine, status, failed_rank);
    withdraw_all(engine);
    (void)ls_error_put_back(&cause);
    return status;
}

void ls_engine_abort(void *state, ls_status status, int failed_rank) {
    (void)ls_failure_abort(state, status, failed_rank);
}

int ls_engine_failed_rank(const void *state) {
    const ls_engine *engine = state;
    const int failed_rank = engine->revoked.kind != 0 ? engine->revoked.failed_rank : -1;
    const bool finalized = failed_rank >= 0 && (engine->departed[failed_rank] == 1 + LS_LEAVE_FINALIZED ||
                                                engine->left[failed_rank] == 1 + LS_LEAVE_FINALIZED);
    return finalized ? engine->rank : failed_rank;
}

void ls_failure_leave(ls_engine *engine, ls_leave_reason reason) {
    const ls_envelope envelope = {.groups = 0, .reason = (uint32_t)reason};
    int partners[LS_ENGINE_PARTNERS];
    if (engine->ended) {
        return;
    }
    if (engine->calling) { /* the other ranks are still in this call */
        char name[64];
        (void)ls_fail(LS_ERR_PEER, "%s: rank %d left during this call", ls_engine_call_name(engine, name),
                      engine->rank);
        engine->deserted = true;
        revoke(engine, LS_ERR_PEER, engine->rank);
        if (reason != LS_LEAVE_FREED) { /* otherwise the endpoint closes at once */
            withdraw_all(engine);
        }
        return;
    }
    engine->ended = true;
    const int count = ls_headers_partners(engine, partners);
    for (int i = 0; i < count; i++) {
        ls_engine_notify(engine, partners[i], LS_CHANNEL_HEADERS, &envelope, sizeof envelope);
    }
    const ls_notice notice = {.kind = LS_NOTICE_LEFT, .status = (int32_t)reason};
    for (int rank = 0; rank < engine->size; rank++) {
        if (is_told(engine, rank)) {
            ls_messages_say_left(engine, rank, reason);
            ls_engine_notify(engine, rank, LS_CHANNEL_NOTICES, &notice, sizeof notice);
        }
    }
}

void ls_engine_leave(void *state, ls_leave_reason reason) {
    ls_failure_leave(state, reason);
}

/* ---- notices from other ranks ------------------------------------------------------------------------------------ */

static ls_status receive_next(ls_engine *engine) {
    engine->notice = (ls_transfer){.peer = -1,
                                   .channel = LS_CHANNEL_NOTICES,
                                   .data = &engine->heard,
                                   .bytes = sizeof engine->heard,
                                   .receives = true};
    return engine->endpoint->transport->receive(engine->endpoint, &engine->notice);
}

ls_status ls_failure_listen(ls_engine *engine) {
    return engine->size == 1 ? LS_OK : receive_next(engine);
}

/* Returns a rank with which the call has a transfer in progress, preferably a rank that must send: with `turn` 0 the
 * last such rank, then the others in turn. Returns -1 if there is none. */
static int awaited_by_call(const ls_engine *engine, unsigned turn) {
    int count[2] = {0};
    for (int i = 0; i < engine->transfer_count; i++) {
        count[engine->transfers[i].receives] += !engine->transfers[i].ended;
    }
    const bool receives = count[1] > 0;
    int left = count[receives] > 0 ? (int)(turn % (unsigned)count[receives]) : 0;
    for (int i = engine->transfer_count; i-- > 0;) {
        const ls_transfer *transfer = &engine->transfers[i];
        if (!transfer->ended && transfer->receives == receives && left-- == 0) {
            return transfer->peer;
        }
    }
    return -1;
}

static int awaited_by(const ls_engine *engine, const ls_engine_wait *wait) {
    return wait->request != NULL ? wait->call->root : awaited_by_call(engine, 0);
}

/* Answers a query. A rank that waits for several ranks names a different rank each time: ranks that wait for each
 * other may be waiting for others, too, and a chain of such answers eventually leaves every cycle that it can leave. */
static void answer(ls_engine *engine, int to) {
    const int in_call = engine->calling ? awaited_by_call(engine, engine->named++) : -1;
    const int awaited = engine->waits_in_call || engine->waits_for < 0 ? in_call : engine->waits_for;
    const ls_notice notice = {
        .kind = LS_NOTICE_ANSWERED, .status = ls_native_is_running(engine), .failed_rank = awaited};
    ls_engine_notify(engine, to, LS_CHANNEL_NOTICES, &notice, sizeof notice);
}

static void hear(ls_engine *engine, int from, const ls_notice *notice) {
    engine->unknown[from] = 0;
    switch (notice->kind) {
    case LS_NOTICE_REVOKED:
        if (engine->revoked.kind == 0) {
            engine->revoked = *notice;
            engine->teller = from;
            if (notice->failed_rank < 0 || notice->failed_rank >= engine->size) {
                engine->revoked.failed_rank = from;
            }
            engine->revoked.text[sizeof engine->revoked.text - 1] = '\0';
            tell_revoked(engine);
        }
        break;
    case LS_NOTICE_LEFT:
        engine->departed[from] = (unsigned char)(1 + (notice->status & 7));
        break;
    case LS_NOTICE_ASKED:
        answer(engine, from);
        break;
    case LS_NOTICE_ANSWERED:
        engine->answered[from] = 1;
        if (from == engine->asked && notice->status == 1) {
            engine->more_ns = engine->timeout_ns + ANSWER_NS; /* time for the other rank to find the silent rank */
        }
        if (from == engine->asked && notice->failed_rank >= 0 && notice->failed_rank < engine->size) {
            engine->next_asked = notice->failed_rank;
        }
        break;
    default:
        break;
    }
}

ls_status ls_failure_hear(ls_engine *engine) {
    ls_engine_drop_notices(engine, false);
    while (engine->notice.ended) {
        const ls_notice notice = engine->heard;
        const int from = engine->notice.peer;
        const size_t bytes = engine->notice.bytes;
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
               : ls_match_describe_waiting(&engine->match, wait->call->root, wait->call->tag, text, MORE_CAPACITY);
}

int ls_failure_rank(const ls_engine *engine) {
    return engine->failed_rank >= 0 ? engine->failed_rank : engine->endpoint->blamed - 1;
}

static ls_status fail_by(ls_engine *engine, int failed_rank, ls_status status) {
    engine->failed_rank = failed_rank;
    return status;
}

static ls_status fail_revoked(ls_engine *engine, const ls_call *call) {
    char name[64];
    ls_call_describe(call->operation, call->sequence, name, sizeof name);
    engine->deserted = engine->revoked.deserted != 0;
    return fail_by(engine, engine->revoked.failed_rank,
                   ls_fail(engine->revoked.status == LS_ERR_TIMEOUT ? LS_ERR_TIMEOUT : LS_ERR_PEER, "%s: %s", name,
                           engine->revoked.text));
}

ls_status ls_failure_check_revoked(ls_engine *engine, const ls_call *call) {
    if (engine->revoked.kind == 0) {
        return LS_OK;
    }
    return ls_operation_is_collective(call->operation) && call->sequence >= engine->revoked.sequence
               ? fail_revoked(engine, call)
               : LS_OK;
}

static bool is_gone(const ls_engine *engine, int peer) {
    return peer >= 0 && peer != engine->rank &&
           engine->endpoint->transport->peer(engine->endpoint, peer) == LS_PEER_GONE;
}

static ls_status fail_gone(ls_engine *engine, const ls_engine_wait *wait, int rank) {
    if (engine->revoked.kind != 0) { /* the reason why it ended */
        return fail_revoked(engine, wait->call);
    }
    char name[64];
    char waiting[MORE_CAPACITY];
    return fail_by(engine, rank,
                   ls_fail(LS_ERR_PEER, "%s: rank %d has ended, or its connection broke%s", name_of(wait, name), rank,
                           describe_waiting(engine, wait, waiting)));
}

/* All data from a rank that has exited has already arrived, so a wait for more cannot succeed. */
static ls_status check_awaited(ls_engine *engine, const ls_engine_wait *wait) {
    if (wait->request != NULL && is_gone(engine, wait->call->root)) {
        return fail_gone(engine, wait, wait->call->root);
    }
    for (int i = 0; wait->request == NULL && i < engine->transfer_count; i++) {
        const ls_transfer *transfer = &engine->transfers[i];
        if (!transfer->ended && transfer->peer >= 0 && is_gone(engine, transfer->peer)) {
            return fail_gone(engine, wait, transfer->peer);
        }
    }
    return LS_OK;
}

/* A rank that exits without having left revokes the communicator, but not the calls that it has made: their data
 * arrives first. */
static ls_status check_others(ls_engine *engine, const ls_engine_wait *wait) {
    if ((engine->revoked.kind == 0 && engine->endpoint->gone == engine->gone) ||
        ls_engine_now(engine) - wait->since_ns < ON_ITS_WAY_NS) {
        return LS_OK;
    }
    if (engine->revoked.kind != 0) {
        return fail_revoked(engine, wait->call);
    }
    int known = 0;
    for (int rank = 0; rank < engine->size; rank++) {
        if (is_gone(engine, rank) && engine->departed[rank] == 0 && engine->unknown[rank] == 0) {
            return fail_gone(engine, wait, rank);
        }
        known += is_gone(engine, rank);
    }
    engine->gone = known;
    return LS_OK;
}

/* A rank that has left no longer answers posted messages. */
static ls_status check_left(ls_engine *engine, const ls_engine_wait *wait) {
    const ls_message_request *asked = wait->request;
    const int peer = awaited_by(engine, wait);
    if (peer < 0) {
        return LS_OK;
    }
    const bool has_left = engine->departed[peer] != 0 && is_gone(engine, peer); /* all its data has arrived */
    const unsigned char why = has_left ? engine->departed[peer] : asked != NULL ? engine->left[peer] : 0;
    if (why == 0 || (asked != NULL && asked->receipt != NULL && asked->receipt->claimed)) {
        return LS_OK;
    }
    char name[64];
    char waiting[MORE_CAPACITY];
    engine->deserted = true;
    return fail_by(engine, peer,
                   ls_fail(LS_ERR_PEER, "%s: rank %d %s%s", name_of(wait, name), peer,
                           ls_leave_describe((ls_leave_reason)(why - 1)), describe_waiting(engine, wait, waiting)));
}

static bool is_from_any(const ls_engine_wait *wait) {
    return wait->request != NULL && wait->call->root == LS_ANY_RANK;
}

/* Returns true if the rank can still send messages. */
static bool may_send(const ls_engine *engine, int rank) {
    return rank != engine->rank && engine->left[rank] == 0 && !is_gone(engine, rank);
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
    const unsigned char why = engine->left[first] != 0 ? engine->left[first] : engine->departed[first];
    if (why == 0) {
        return fail_gone(engine, wait, first);
    }
    char name[64];
    char waiting[MORE_CAPACITY];
    engine->deserted = true;
    return fail_by(engine, first,
                   ls_fail(LS_ERR_PEER, "%s: rank %d %s%s%s", name_of(wait, name), first,
                           ls_leave_describe((ls_leave_reason)(why - 1)),
                           engine->size > 2 ? ", and all other ranks have left, too" : "",
                           describe_waiting(engine, wait, waiting)));
}

static ls_status fail_silent(ls_engine *engine, const ls_engine_wait *wait, int blamed) {
    const double seconds = (double)engine->timeout_ns * 1e-9;
    char name[64];
    name_of(wait, name);
    if (wait->request == NULL || blamed != wait->call->root) {
        return fail_by(engine, blamed,
                       ls_fail(LS_ERR_TIMEOUT,
                               "%s: rank %d did not make this call, or did not proceed with it, within %g s", name,
                               blamed, seconds));
    }
    const ls_status status =
        wait->request->receipt != NULL
            ? ls_match_fail_silent(&engine->match, wait->call, seconds)
            : ls_fail(LS_ERR_TIMEOUT, "%s: rank %d did not receive the message with tag %d within %g s", name, blamed,
                      wait->call->tag, seconds);
    return fail_by(engine, blamed, status);
}

static void put_question(ls_engine *engine, int to) {
    const ls_notice question = {.kind = LS_NOTICE_ASKED, .failed_rank = -1};
    if (engine->endpoint->transport->peer(engine->endpoint, to) == LS_PEER_UNKNOWN) {
        engine->unknown[to] = 1;
    }
    ls_engine_notify(engine, to, LS_CHANNEL_NOTICES, &question, sizeof question);
}

static void ask(ls_engine *engine, int peer) {
    engine->asked = peer;
    engine->next_asked = -1;
    engine->more_ns = 0;
    engine->asked_ns = ls_engine_now(engine);
    engine->answers++;
    put_question(engine, peer);
}

static void ask_all(ls_engine *engine) {
    memset(engine->answered, 0, (size_t)engine->size);
    for (int rank = 0; rank < engine->size; rank++) {
        if (rank != engine->rank) {
            put_question(engine, rank);
        }
    }
    engine->asked = engine->rank; /* no rank in particular */
    engine->asked_ns = ls_engine_now(engine);
}

/* After the timeout of a native collective, it is unknown which rank it waits for, so all ranks are queried. If all
 * answer, the collective is merely slow. A rank that has left had already finished this call. */
static ls_status check_network(ls_engine *engine, const ls_engine_wait *wait) {
    const double seconds = (double)engine->timeout_ns * 1e-9;
    const uint64_t longest = ANSWER_NS < engine->timeout_ns ? ANSWER_NS : engine->timeout_ns;
    ls_rank_list silent = {.count = 0};
    char name[64];
    if (engine->asked < 0) {
        ask_all(engine);
        return LS_OK;
    }
    for (int rank = 0; rank < engine->size; rank++) {
        const bool has_left = engine->departed[rank] != 0 || (engine->unknown[rank] != 0 && is_gone(engine, rank));
        if (rank != engine->rank && engine->answered[rank] == 0 && !has_left) {
            ls_rank_list_add(&silent, rank);
        }
    }
    if (silent.count == 0 && engine->answers < MOST_PERIODS) {
        engine->answers++;
        engine->asked = -1;
        engine->since_ns = ls_engine_now(engine);
        return LS_OK;
    }
    if (silent.count == 0) {
        return ls_fail(LS_ERR_TIMEOUT,
                       "%s: the network's collective did not finish within %g s, although all ranks take part",
                       name_of(wait, name), seconds * (MOST_PERIODS + 1));
    }
    if (ls_engine_now(engine) - engine->asked_ns < longest) {
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
        return now - wait->since_ns > engine->timeout_ns ? check_network(engine, wait) : LS_OK;
    }
    const int awaited = awaited_by(engine, wait);
    const bool from_any = is_from_any(wait);
    if (now - wait->since_ns <= engine->timeout_ns || (awaited < 0 && !from_any) || wait->call->untimed) {
        engine->asked = -1;
        engine->answers = 0;
        return LS_OK;
    }
    if (from_any) {
        return fail_silent(engine, wait, awaited);
    }
    if (engine->asked < 0 && awaited != engine->rank) {
        ask(engine, awaited);
        return LS_OK;
    }
    const bool around = engine->next_asked == engine->rank;
    const bool circle =
        (around && wait->request != NULL) || engine->answers > MOST_ANSWERS + 2 * engine->size; /* then of others */
    const int next = around && !circle ? awaited_by_call(engine, engine->named++) : engine->next_asked;
    if (next >= 0 && next != engine->rank && !circle && engine->asked >= 0) {
        ask(engine, next);
        return LS_OK;
    }
    const uint64_t longest = ANSWER_NS < engine->timeout_ns ? ANSWER_NS : engine->timeout_ns;
    if (awaited != engine->rank && !circle && now - engine->asked_ns < longest + engine->more_ns) {
        return LS_OK;
    }
    return fail_silent(engine, wait, around || engine->asked < 0 ? awaited : engine->asked);
}

/* Returns true if an earlier transfer with the same rank is in progress. */
static bool with_earlier(const ls_engine *engine, int transfer) {
    for (int i = 0; i < transfer; i++) {
        if (!engine->transfers[i].ended && engine->transfers[i].peer == engine->transfers[transfer].peer) {
            return true;
        }
    }
    return false;
}

static void tell_log(const ls_engine *engine, const ls_engine_wait *wait) {
    const uint64_t waited_ns = ls_engine_now(engine) - wait->since_ns;
    if (waited_ns < LEAST_TOLD_NS || wait->call->untimed) { /* this runs at every poll */
        return;
    }
    ls_rank_list awaited = {.count = 0};
    char waiting[MORE_CAPACITY];
    /* A rank whose headers are awaited has at least made the previous call. */
    bool begun = wait->request != NULL || engine->transfer_count == 0;
    for (int i = 0; wait->request == NULL && i < engine->transfer_count; i++) {
        if (!engine->transfers[i].ended && engine->transfers[i].peer >= 0 && !with_earlier(engine, i)) {
            ls_rank_list_add(&awaited, engine->transfers[i].peer);
            begun = begun || engine->transfers[i].channel != LS_CHANNEL_HEADERS;
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
    const ls_call *latest = begun ? &engine->call : &engine->before;
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
    engine->waits_for = awaited_by(engine, wait);
    engine->waits_in_call = wait->request == NULL;
    LS_TRY(ls_call_check_threads(wait->call));
    LS_TRY(check_left(engine, wait));
    LS_TRY(check_awaited(engine, wait));
    LS_TRY(check_others(engine, wait));
    LS_TRY(is_from_any(wait) ? check_senders(engine, wait) : LS_OK);
    tell_log(engine, wait);
    return check_silence(engine, wait);
}

ls_status ls_failure_check_open(const ls_engine *engine, const ls_call *call) {
    if (!engine->ended) {
        return LS_OK;
    }
    char name[64];
    return ls_fail(LS_ERR_STATE, "%s: an earlier failed call has aborted this communicator",
                   ls_call_describe(call->operation, call->sequence, name, sizeof name));
}
