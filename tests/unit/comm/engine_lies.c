/*
 * The engine of collectives against a malicious rank: an endpoint of the simulated network (comm/transport/simulated)
 * that the test drives. First it sends the messages of a correct rank, which checks the test itself. Then it changes
 * one field, and every engine must fail and name it. Then a fuzzer changes the messages, and no engine may hang or
 * access memory out of bounds.
 *
 * devices: cpu
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/algorithms/table.h"
#include "comm/engine/engine.h"
#include "comm/engine/inside.h"
#include "comm/reduce_kernels.h"
#include "comm/transport/simulated/driver.h"
#include "tests/support/fuzz.h"
#include "tests/support/unit.h"

enum { MOST_RANKS = 6, MOST_SAID = 16, ROOM = 50000, PATIENCE = 100000000 };

/* Engines request forged sizes from the allocator, which must return NULL instead of aborting. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}

typedef struct said {
    int to;
    int channel;
    size_t bytes;
    unsigned char data[ROOM];
    ls_transfer transfer;
} said;

typedef struct world world;

typedef struct rank_state {
    world *world;
    int rank;
    ls_engine *engine;
    ls_call call;
    void *request;
    bool begun;
    bool over;
    ls_status status;
    char message[LS_ERROR_CAPACITY];
    unsigned char send[ROOM];
    unsigned char receive[ROOM];
    size_t counts[MOST_RANKS];
    size_t places[MOST_RANKS];
} rank_state;

struct world {
    ls_sim_network *network;
    int size;
    int liar;
    rank_state ranks[MOST_RANKS];
    said said[MOST_SAID];
    int said_count;
};

static world w; /* large */

/* ---- the calls --------------------------------------------------------------------------------------------------- */

typedef struct kind {
    ls_operation operation;
    size_t count;
    int root;
} kind;

static const kind kinds[] = {
    {LS_OP_BARRIER, 0, 0},     {LS_OP_ALLREDUCE, 5, 0}, {LS_OP_ALLREDUCE, 12000, 0}, {LS_OP_BROADCAST, 9, 0},
    {LS_OP_BROADCAST, 9, 1},   {LS_OP_ALLGATHER, 7, 0}, {LS_OP_ALLTOALL, 3, 0},      {LS_OP_GATHER, 4, 1},
    {LS_OP_REDUCE, 6, 0},      {LS_OP_SCATTER, 3, 1},   {LS_OP_SCATTERV, 3, 0},      {LS_OP_SCATTERV, 3, 1},
    {LS_OP_ALLTOALL, 4000, 0}, {LS_OP_GATHERV, 3, 0},   {LS_OP_RECV, 11, 0},         {LS_OP_RECV, 2000, 0},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void fill_call(rank_state *r, const kind *k) {
    ls_call *call = &r->call;
    const bool reduces = k->operation == LS_OP_ALLREDUCE || k->operation == LS_OP_REDUCE;
    *call = (ls_call){.operation = k->operation,
                      .dtype = k->operation == LS_OP_BARRIER ? (ls_dtype)0 : LS_F32,
                      .reduction = reduces ? LS_SUM : (ls_reduction)0,
                      .root = k->root,
                      .count = k->count,
                      .width = k->operation == LS_OP_BARRIER ? ls_dtype_size((ls_dtype)0) : sizeof(float),
                      .sequence = 1,
                      .send = k->operation == LS_OP_BROADCAST ? r->receive : r->send,
                      .receive = r->receive};
    for (int rank = 0; rank < w.size; rank++) {
        r->counts[rank] = k->count;
        r->places[rank] = (size_t)rank * k->count;
    }
    if (k->operation == LS_OP_SCATTERV && r->rank == k->root) {
        call->send_counts = r->counts;
        call->send_displacements = r->places;
    }
    if (k->operation == LS_OP_GATHERV && r->rank == k->root) {
        call->receive_counts = r->counts;
        call->receive_displacements = r->places;
    }
    if (k->operation == LS_OP_RECV) {
        call->root = w.liar;
        call->tag = 7;
    }
}

/* ---- the messages of the malicious rank -------------------------------------------------------------------------- */

static unsigned char *say(int to, int channel, size_t bytes) {
    assert_true(w.said_count < MOST_SAID && bytes <= ROOM);
    said *one = &w.said[w.said_count++];
    one->to = to;
    one->channel = channel;
    one->bytes = bytes;
    memset(one->data, 0, bytes);
    return one->data;
}

/*
 * Sends the envelope that a correct rank sends in this call. Its data, and the data of other ranks, are zeros. The
 * malicious rank speaks for ranks `first` to `last` - 1.
 */
static void say_envelope(int to, int first, int last) {
    ls_engine *model = w.ranks[w.liar].engine; /* never runs; only its message formats are used */
    const ls_packet *packet = ls_headers_packet(model);
    unsigned char *memory = packet->memory;
    model->call = w.ranks[w.liar].call;
    model->algorithm = ls_algorithm_select(model);
    ls_payload_begin(model);
    ls_envelope *envelope = ls_packet_envelope(packet);
    envelope->balance = ls_counts_balance(model);
    ls_call_group *group = ls_packet_groups(packet);
    size_t bytes = ls_payload_bytes(model, first, last);
    const bool all = last - first == w.size;
    if (all && ls_flows[model->call.operation].to_root && model->call.root != to) {
        bytes = 0;
    }
    if (bytes == SIZE_MAX) { /* a table of counts, and the data that is split */
        bytes = (size_t)w.size * (sizeof(uint64_t) + model->call.count * sizeof(float));
    }
    bytes = model->payload == LS_PAYLOAD_NONE ? 0 : bytes;
    envelope->has_payload = model->payload != LS_PAYLOAD_NONE && (all || envelope->has_payload);
    envelope->bytes = bytes;
    envelope->balance = all ? 0 : envelope->balance;
    group->callers = last - first;
    for (int i = 0; i < last - first; i++) {
        group->ranks[i] = first + i;
    }
    const size_t header = sizeof *envelope + sizeof *group;
    unsigned char *data = say(to, LS_CHANNEL_HEADERS, header + bytes);
    memcpy(data, memory, header);
    if (model->call.operation == LS_OP_SCATTERV && bytes != 0) {
        for (int rank = 0; rank < w.size; rank++) {
            const uint64_t count = model->call.count;
            memcpy(data + header + (size_t)rank * sizeof count, &count, sizeof count);
        }
    }
}

static void say_message(int to) {
    const ls_call *call = &w.ranks[w.liar].call;
    const size_t bytes = call->count * call->width;
    const bool small = bytes <= LS_TRANSPORT_LEAST_EAGER - sizeof(ls_call_header);
    const ls_call_header header = {.operation = LS_OP_SEND,
                                   .dtype = (int32_t)call->dtype,
                                   .root = w.liar,
                                   .tag = call->tag,
                                   .count = call->count,
                                   .bytes = bytes};
    memcpy(say(to, LS_CHANNEL_MESSAGES, sizeof header + (small ? bytes : 0)), &header, sizeof header);
    if (!small) {
        say(to, LS_CHANNEL_CONTENTS, bytes);
    }
}

static void say_all(const kind *k) {
    for (int to = 0; to < w.size; to++) {
        if (to == w.liar) {
            continue;
        }
        if (k->operation == LS_OP_RECV) {
            say_message(to);
            continue;
        }
        if (w.liar == 0 && w.size == 3) {
            say_envelope(to, 0, w.size);
        } else if (to == 0) {
            say_envelope(to, w.liar, w.liar + 1);
        }
        const size_t bytes = k->count * sizeof(float);
        if (k->operation == LS_OP_ALLREDUCE && bytes > LS_INLINE_MOST) { /* even shares, twice */
            say(to, LS_CHANNEL_DATA, bytes / (size_t)w.size);
            say(to, LS_CHANNEL_DATA, bytes / (size_t)w.size);
        } else if (k->operation == LS_OP_ALLTOALL && bytes * (size_t)(w.size * w.size) > LS_INLINE_MOST) {
            say(to, LS_CHANNEL_DATA, bytes);
        } else if (k->operation == LS_OP_GATHERV && to == k->root) {
            say(to, LS_CHANNEL_DATA, bytes);
        }
    }
}

static void say_notice(ls_notice notice) {
    memcpy(say(w.liar == 0 ? 1 : 0, LS_CHANNEL_NOTICES, sizeof notice), &notice, sizeof notice);
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

static void lie(void) {
    ls_endpoint *endpoint = ls_sim_endpoint(w.network, w.liar);
    bool moved = false;
    for (int i = 0; i < w.said_count; i++) {
        said *one = &w.said[i];
        one->transfer = (ls_transfer){.peer = one->to, .channel = one->channel, .data = one->data, .bytes = one->bytes};
        assert_int_equal(endpoint->transport->send(endpoint, &one->transfer), LS_OK);
    }
    assert_int_equal(endpoint->transport->progress(endpoint, 0, &moved), LS_OK);
}

static void note(rank_state *r, ls_status status, bool finished) {
    r->status = status;
    r->over = finished || status != LS_OK;
    if (status != LS_OK) {
        snprintf(r->message, sizeof r->message, "%s", ls_error_message());
        r->request = NULL;
    }
}

static void begin(rank_state *r) {
    r->begun = true;
    if (r->call.operation == LS_OP_RECV) {
        const ls_status status = ls_engine_post(r->engine, &r->call, &r->request);
        note(r, status, r->request == NULL);
        return;
    }
    note(r, ls_engine_begin(r->engine, &r->call), false);
}

static bool step(void *state, int rank) {
    rank_state *r = state;
    if (rank == w.liar) {
        lie();
        return true;
    }
    if (!r->begun) {
        begin(r);
    }
    if (!r->over) {
        bool finished = false;
        const ls_status status = r->request != NULL ? ls_engine_test(r->engine, r->request, false, &finished)
                                                    : ls_engine_progress(r->engine, false, &finished);
        note(r, status, finished);
    }
    ls_sim_wait(w.network, rank, PATIENCE);
    return r->over;
}

static void open_world(int size, int liar, const kind *k) {
    w.size = size;
    w.liar = liar;
    w.said_count = 0;
    w.network = ls_sim_new(&(ls_sim_options){
        .ranks = size, .seed = 3, .latency_ns = 2000, .overhead_ns = 300, .bytes_per_ns = 12, .eager = 65536});
    for (int rank = 0; rank < size; rank++) {
        rank_state *r = &w.ranks[rank];
        memset(r, 0, sizeof *r);
        r->world = &w;
        r->rank = rank;
        fill_call(r, k);
        if (rank != liar) {
            r->engine = ls_engine_new(ls_sim_endpoint(w.network, rank), 2.0);
            assert_non_null(r->engine);
        }
    }
    static ls_engine model;
    static ls_endpoint endpoint; /* of a network without native collectives */
    model = (ls_engine){.endpoint = &endpoint, .rank = liar, .size = size};
    assert_true(ls_headers_open(&model));
    memset(ls_headers_packet(&model)->memory, 0, ls_engine_packet_room(&model));
    w.ranks[liar].engine = &model;
    say_all(k);
}

static void run_world(const char *what) {
    const ls_sim_outcome outcome = ls_sim_run(w.network, step, w.ranks, sizeof *w.ranks, UINT64_C(60000000000));
    if (!outcome.finished) {
        fail_msg("%s: not finished: %s", what, outcome.text);
    }
    for (int rank = 0; rank < w.size; rank++) {
        if (rank != w.liar) {
            ls_engine_close(w.ranks[rank].engine);
        }
    }
    ls_headers_free(w.ranks[w.liar].engine);
    ls_sim_free(w.network);
}

/* ---- correct messages -------------------------------------------------------------------------------------------- */

static const int worlds[][2] = {{2, 1}, {2, 0}, {3, 1}, {3, 2}, {3, 0}}; /* size, liar */
enum { WORLDS = sizeof worlds / sizeof *worlds };

TEST(truth) {
    for (int i = 0; i < WORLDS * KINDS; i++) {
        const kind *k = &kinds[i % KINDS];
        const int *of = worlds[i / KINDS];
        open_world(of[0], of[1], k);
        if (of[0] == 2 && of[1] == 0 && k->operation != LS_OP_RECV) { /* the partner rank in a butterfly exchange */
            w.said_count = 0;
            say_envelope(1, 0, 1);
            for (int times = 0; times < 2 && k->operation == LS_OP_ALLREDUCE && k->count == 12000; times++) {
                say(1, LS_CHANNEL_DATA, k->count * sizeof(float) / 2);
            }
            if (k->operation == LS_OP_ALLTOALL && k->count == 4000) {
                say(1, LS_CHANNEL_DATA, k->count * sizeof(float));
            }
        }
        char what[96];
        snprintf(what, sizeof what, "%s of %zu, root %d, %d ranks, rank %d by hand", ls_operation_name(k->operation),
                 k->count, k->root, of[0], of[1]);
        run_world(what);
        for (int rank = 0; rank < of[0]; rank++) {
            if (rank != of[1] && w.ranks[rank].status != LS_OK) {
                fail_msg("%s: rank %d: %s", what, rank, w.ranks[rank].message);
            }
        }
    }
}

/* ---- one field --------------------------------------------------------------------------------------------------- */

#define ENVELOPE(field) offsetof(ls_envelope, field), sizeof(((ls_envelope *)NULL)->field)
#define GROUP(field)    sizeof(ls_envelope) + offsetof(ls_call_group, field), sizeof(((ls_call_group *)NULL)->field)
#define CALL(field)     sizeof(ls_envelope) + offsetof(ls_call_group, call.field), sizeof(((ls_call_header *)NULL)->field)
#define MESSAGE(field)  offsetof(ls_call_header, field), sizeof(((ls_call_header *)NULL)->field)

typedef struct change {
    size_t at;
    size_t width;
    uint64_t value;
} change;

static const change round_changes[] = {
    {ENVELOPE(groups), 0},
    {ENVELOPE(groups), 2},
    {ENVELOPE(groups), 7},
    {ENVELOPE(groups), UINT32_MAX},
    {ENVELOPE(others), 1},
    {ENVELOPE(others), UINT32_MAX},
    {ENVELOPE(bytes), 1},
    {ENVELOPE(bytes), UINT64_MAX},
    {ENVELOPE(has_payload), 2},
    {GROUP(callers), 0},
    {GROUP(callers), 2000},
    {GROUP(callers), UINT32_MAX},
    {GROUP(callers), INT32_MAX},
    {GROUP(ranks[0]), UINT32_MAX},
    {GROUP(ranks[0]), 3},
    {CALL(operation), LS_OP_COUNT},
    {CALL(operation), UINT32_MAX},
    {CALL(operation), LS_OP_SPLIT},
    {CALL(dtype), UINT32_MAX},
    {CALL(dtype), LS_DTYPE_COUNT},
    {CALL(reduction), UINT32_MAX},
    {CALL(reduction), LS_REDUCTION_COUNT},
    {CALL(root), UINT32_MAX},
    {CALL(root), 3},
    {CALL(layout), 12345},
    {CALL(agreed), UINT64_MAX},
    {CALL(sequence), 0},
    {CALL(sequence), UINT64_MAX},
    {CALL(count), 1},
    {CALL(bytes), UINT64_MAX},
};

static const change message_changes[] = {
    {MESSAGE(operation), 0},      {MESSAGE(operation), UINT32_MAX}, {MESSAGE(dtype), UINT32_MAX},
    {MESSAGE(dtype), LS_I32},     {MESSAGE(dtype), LS_F64},         {MESSAGE(tag), UINT32_MAX},
    {MESSAGE(count), 10},         {MESSAGE(count), UINT64_MAX},     {MESSAGE(bytes), 1},
    {MESSAGE(bytes), UINT64_MAX}, {MESSAGE(bytes), 4095},
};

/* Returns whether the message of a mismatch names the rank: in the list of calls if there is one. */
static bool names_caller(const char *message, int rank) {
    char digits[16];
    char name[16];
    snprintf(digits, sizeof digits, "%d", rank);
    snprintf(name, sizeof name, "rank %d", rank);
    const char *calls = strstr(message, "made different calls: ");
    if (calls == NULL) {
        return strstr(message, name) != NULL ||
               strstr(message, "the counts of the ranks do not match") != NULL; /* the rank is unknown */
    }
    for (const char *at = calls + sizeof "made different calls: " - 1; at != NULL; at = strchr(at, ';')) {
        const char *end = strstr(at, " called ");
        const char *found = strstr(at, digits);
        if (end != NULL && found != NULL && found < end) {
            return true;
        }
        at = end == NULL ? at : end;
    }
    return false;
}

/*
 * The victim fails and names the malicious rank, and so do ranks that had not yet made the call. With -1, all ranks are
 * victims.
 */
static void expect_failure_of(const char *what, int victim) {
    run_world(what);
    for (int rank = 0; rank < w.size; rank++) {
        const rank_state *r = &w.ranks[rank];
        if (rank == w.liar || (victim >= 0 && rank != victim && r->status == LS_OK)) {
            continue;
        }
        char name[16];
        snprintf(name, sizeof name, "rank %d", w.liar);
        const bool named = r->status == LS_ERR_PEER ? strstr(r->message, name) != NULL
                                                    : r->status == LS_ERR_MISMATCH && names_caller(r->message, w.liar);
        if (!named || strstr(r->message, "gave up") != NULL) {
            fail_msg("%s: rank %d of %d, rank %d by hand: status %d: %s", what, rank, w.size, w.liar, (int)r->status,
                     r->message);
        }
    }
}

static void expect_failure(const char *what) {
    expect_failure_of(what, -1);
}

static void put(const change *c) {
    unsigned char value[8];
    memcpy(value, &c->value, sizeof value);
    memcpy(w.said[0].data + c->at, value, c->width);
}

/* Simulates worlds in which every engine receives the changed message. */
TEST(changed_fields) {
    char what[96];
    for (size_t i = 0; i < sizeof round_changes / sizeof *round_changes; i++) {
        for (int k = 0; k < KINDS; k++) {
            if (kinds[k].operation == LS_OP_RECV) {
                continue;
            }
            for (int size = 2; size <= 3; size++) {
                open_world(size, 1, &kinds[k]);
                put(&round_changes[i]);
                snprintf(what, sizeof what, "change %zu of a round of kind %d", i, k);
                expect_failure(what);
            }
        }
    }
    for (size_t i = 0; i < sizeof message_changes / sizeof *message_changes; i++) {
        for (int k = KINDS - 2; k < KINDS; k++) {
            open_world(2, 1, &kinds[k]);
            put(&message_changes[i]);
            snprintf(what, sizeof what, "change %zu of a message of kind %d", i, k);
            expect_failure(what);
        }
    }
}

/* ---- other false messages ---------------------------------------------------------------------------------------- */

/* Sends less or more data than the call has. */
TEST(wrong_sizes) {
    char what[96];
    for (int k = 0; k < KINDS; k++) {
        for (int which = 0; which < 8; which++) {
            for (int more = -1; more <= 1; more += 2) {
                open_world(2 + which / 4, 1 + which / 4, &kinds[k]);
                if (which % 4 < w.said_count) {
                    w.said[which % 4].bytes = (size_t)((int)w.said[which % 4].bytes + more);
                    snprintf(what, sizeof what, "message %d of kind %d, %d bytes more", which % 4, k, more);
                    expect_failure_of(what, w.said[which % 4].to);
                } else {
                    run_world("the truth");
                }
            }
        }
    }
}

/* Declares data as an inline payload although this call sends it separately, and counts that cannot differ. */
TEST(other_ways) {
    for (int i = 0; i < WORLDS; i++) {
        if (worlds[i][0] == 2 && worlds[i][1] == 0) {
            continue;
        }
        open_world(worlds[i][0], worlds[i][1], &kinds[2]);
        for (int m = 0; m < w.said_count; m++) {
            if (w.said[m].channel == LS_CHANNEL_HEADERS) {
                ((ls_envelope *)(void *)w.said[m].data)->has_payload = 1;
            }
        }
        expect_failure("a large call is said to be carried");
        open_world(worlds[i][0], worlds[i][1], &kinds[1]);
        for (int m = 0; m < w.said_count; m++) {
            if (w.said[m].channel == LS_CHANNEL_HEADERS) {
                ((ls_envelope *)(void *)w.said[m].data)->balance = 5;
            }
        }
        expect_failure("a balance of a call without counts");
    }
    open_world(3, 0, &kinds[1]);
    for (int m = 0; m < w.said_count; m++) {
        ((ls_call_group *)(void *)(w.said[m].data + sizeof(ls_envelope)))->call.sequence = 2;
    }
    expect_failure("all are said to call another");
}

TEST(notices) {
    static const uint64_t culprits[] = {0, 1, 2, 77, INT32_MAX, UINT32_MAX, 0x80000000};
    for (uint32_t kind_of = 0; kind_of < 7; kind_of++) {
        for (size_t i = 0; i < sizeof culprits / sizeof *culprits; i++) {
            open_world(2 + (int)(i % 2), 1, &kinds[1]);
            ls_notice notice = {.kind = kind_of == 6 ? UINT32_MAX : kind_of, .sequence = i % 3};
            const uint32_t word = (uint32_t)culprits[i];
            memcpy(&notice.failed_rank, &word, sizeof word);
            memcpy(&notice.status, &word, sizeof word);
            memset(notice.text, 'x', sizeof notice.text);
            w.said_count = i % 2 == 0 ? w.said_count : 0;
            say_notice(notice);
            run_world("a notice");
        }
    }
}

/* A message that no rank expects, and then silence: queries about it do not count as progress of the receive. */
TEST(another_tag) {
    for (int i = 0; i < WORLDS; i++) {
        open_world(worlds[i][0], worlds[i][1], &kinds[KINDS - 2]);
        for (int m = 0; m < w.said_count; m++) {
            ((ls_call_header *)(void *)w.said[m].data)->tag = 8;
        }
        run_world("a message with another tag");
        for (int rank = 0; rank < w.size; rank++) {
            assert_true(rank == w.liar || w.ranks[rank].status == LS_ERR_TIMEOUT);
        }
    }
}

/* ---- any field --------------------------------------------------------------------------------------------------- */

static void fuzz_one(uint64_t seed, void *argument) {
    (void)argument;
    const int *of = worlds[fuzz_below(WORLDS)];
    open_world(of[0], of[1], &kinds[seed % KINDS]);
    for (size_t i = fuzz_below(3); i > 0; i--) {
        ls_notice notice = {.kind = (uint32_t)fuzz_below(5), .failed_rank = (int32_t)fuzz_below(3)};
        say_notice(notice);
    }
    for (size_t times = 1 + fuzz_below(3); times > 0 && w.said_count > 0; times--) {
        said *one = &w.said[fuzz_below((size_t)w.said_count)];
        /* the fields are at the beginning */
        one->bytes = fuzz_mutate(one->data, fuzz_below(2) == 0 && one->bytes > 128 ? 128 : one->bytes, ROOM);
    }
    run_world("a fuzzer's lie");
}

TEST(mutations) {
    assert_true(fuzz_run("engine lies", 4000, fuzz_one, NULL) > 0);
}

/* Ranks 2 and 3 of six are combined before rank 0 has the data of either, so rank 2's description of its data is
 * checked first. */
static void data_of_a_pair(void **state) {
    static const kind calls[] = {{LS_OP_ALLGATHER, 500, 0}, {LS_OP_SCATTERV, 3, 3}, {LS_OP_BROADCAST, 9, 3}};
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        open_world(6, 2, &calls[i]);
        said *one = &w.said[0];
        ls_envelope envelope;
        memcpy(&envelope, one->data, sizeof envelope);
        one->bytes += LS_INLINE_MOST - envelope.bytes;
        envelope.bytes = LS_INLINE_MOST;
        envelope.has_payload = 1;
        memcpy(one->data, &envelope, sizeof envelope);
        expect_failure_of("more data than a rank has", -1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(truth),      cmocka_unit_test(changed_fields), cmocka_unit_test(wrong_sizes),
        cmocka_unit_test(other_ways), cmocka_unit_test(notices),        cmocka_unit_test(another_tag),
        cmocka_unit_test(mutations),  cmocka_unit_test(data_of_a_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
