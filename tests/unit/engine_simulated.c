/*
 * The engine of collectives on a simulated network (tests/simulated): every call at many numbers of ranks gives the
 * right bits with no more messages than promised; ranks that disagree are all told; when a rank dies or stops, every
 * other one fails in time with its name. A seed that fails is printed, and LOCKSTEP_ENGINE_SEED=N runs that one alone;
 * LOCKSTEP_ENGINE_SEEDS=N so many seeds with faults instead of the usual number. LOCKSTEP_TEST_LONG=1: more of all.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/collective/engine.h"
#include "comm/reduce.h"
#include "tests/simulated/driver.h"
#include "tests/support/reference.h"
#include "tests/support/unit.h"

enum { MESSAGE_RING = LS_OP_COUNT, OPERATIONS, RESULTS = 16 };

#define TIMEOUT_S  2.0
#define PATIENCE   UINT64_C(100000000)
#define MOST_BYTES ((size_t)200000) /* of a rank's buffer */

/* ---- calls that all ranks describe alike ------------------------------------------------------------------------- */

typedef struct plan {
    int operation;
    ls_dtype dtype;
    ls_reduction reduction;
    size_t count;
    int root;
    uint64_t seed;
} plan;

typedef struct world {
    sim_network *network;
    int size;
    uint64_t seed;
    int calls;    /* of each rank */
    int odd_rank; /* calls something else at odd_call; -1: none does */
    int odd_call;
    bool faulty; /* calls may fail */
    int levels;
    struct rank_state *ranks;
    struct {
        int call; /* 1 + its index */
        unsigned char *data;
    } results[RESULTS]; /* of calls that reduce, on all ranks */
} world;

typedef struct rank_state {
    world *world;
    ls_engine *engine;
    int rank;
    int done; /* calls */
    bool begun;
    bool over; /* a call has failed */
    plan plan;
    ls_call call;
    void *request[2];
    unsigned char *send;
    unsigned char *receive;
    size_t *counts[4];
    size_t receive_bytes;
    uint64_t messages;
    ls_status status;
    char message[LS_ERROR_CAPACITY];
} rank_state;

static uint64_t number(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static bool is_long(void) {
    return getenv("LOCKSTEP_TEST_LONG") != NULL;
}

static uint64_t draw(uint64_t *state, uint64_t most) {
    *state = reference_mix(*state + UINT64_C(0x632be59bd9b4e019));
    return *state % most;
}

static bool reduces(int operation) {
    return operation == LS_OP_ALLREDUCE || operation == LS_OP_REDUCE || operation == LS_OP_REDUCE_SCATTER ||
           operation == LS_OP_REDUCE_SCATTERV;
}

static plan plan_of(const world *w, int index) {
    uint64_t state = w->seed * 1000003 + (uint64_t)index;
    plan p = {.seed = draw(&state, 1u << 30), .dtype = (ls_dtype)draw(&state, LS_DTYPE_COUNT)};
    do {
        p.operation = (int)draw(&state, OPERATIONS);
    } while (p.operation == LS_OP_ALLOC || p.operation == LS_OP_SPLIT || p.operation == LS_OP_SEND ||
             p.operation == LS_OP_RECV);
    do {
        p.reduction = (ls_reduction)draw(&state, LS_REDUCTION_COUNT);
    } while (reduces(p.operation) && !reference_reduces(p.dtype, p.reduction));
    p.root = (int)draw(&state, (uint64_t)w->size);
    static const size_t sizes[] = {0, 1, 2, 3, 7, 16, 100, 1000, 4000, 20000};
    p.count = sizes[draw(&state, sizeof sizes / sizeof *sizes)];
    if (w->size >= 1000 && !is_long()) { /* a million messages take seconds */
        p.operation = p.operation == LS_OP_ALLTOALL || p.operation == LS_OP_ALLTOALLV ? LS_OP_ALLGATHER : p.operation;
        p.count = p.count % 3;
    }
    const bool per_rank =
        p.operation != LS_OP_BROADCAST && p.operation != LS_OP_ALLREDUCE && p.operation != LS_OP_REDUCE;
    while (p.count * 16 * (per_rank ? (size_t)w->size : 1) > MOST_BYTES) {
        p.count /= 2;
    }
    p.count = p.operation == LS_OP_BARRIER ? 0 : p.count;
    return p;
}

/* Elements that `from` gives `to` in calls with counts per rank: none now and then. */
static size_t part_of(const plan *p, int from, int to) {
    const uint64_t random = reference_mix(p->seed ^ (uint64_t)from << 20 ^ (uint64_t)to);
    switch (p->operation) {
    case LS_OP_GATHERV:
        return to == p->root ? reference_mix(p->seed + (uint64_t)from) % (p->count + 1) : 0;
    case LS_OP_SCATTERV:
        return from == p->root ? random % (p->count + 1) : 0;
    case LS_OP_ALLGATHERV:
        return reference_mix(p->seed + (uint64_t)from) % (p->count + 1);
    case LS_OP_REDUCE_SCATTERV:
        return reference_mix(p->seed + (uint64_t)to) % (p->count + 1);
    default:
        return random % 3 == 0 ? 0 : random % (p->count + 1);
    }
}

static size_t width_of(const plan *p) {
    return reduces(p->operation) ? reference_width(p->dtype, p->reduction) : ls_dtype_size(p->dtype);
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static size_t lay_out(size_t *counts, size_t *places, const plan *p, int size, int rank, bool out) {
    size_t at = 0;
    for (int other = 0; other < size; other++) {
        counts[other] = out ? part_of(p, rank, other) : part_of(p, other, rank);
        places[other] = at;
        at += counts[other];
    }
    return at;
}

static void set_counts(rank_state *r, size_t *sent, size_t *received) {
    const plan *p = &r->plan;
    ls_call *call = &r->call;
    const int size = r->world->size;
    const bool root = r->rank == p->root;
    const size_t all_sent = lay_out(r->counts[0], r->counts[1], p, size, r->rank, true);
    const size_t all_received = lay_out(r->counts[2], r->counts[3], p, size, r->rank, false);
    switch (p->operation) {
    case LS_OP_GATHERV:
        call->count = part_of(p, r->rank, p->root);
        *sent = call->count;
        *received = root ? all_received : 0;
        break;
    case LS_OP_SCATTERV:
        call->count = part_of(p, p->root, r->rank);
        *received = call->count;
        *sent = root ? all_sent : 0;
        break;
    case LS_OP_ALLGATHERV:
        call->count = part_of(p, r->rank, 0);
        *sent = call->count;
        *received = all_received;
        call->total = all_received;
        call->layout = 1;
        break;
    case LS_OP_REDUCE_SCATTERV:
        call->count = part_of(p, 0, r->rank);
        *sent = all_sent;
        *received = call->count;
        call->total = all_sent;
        call->layout = 1;
        break;
    default:
        call->count = 0;
        *sent = all_sent;
        *received = all_received;
        break;
    }
    const bool cuts = p->operation == LS_OP_ALLTOALLV || p->operation == LS_OP_REDUCE_SCATTERV ||
                      (p->operation == LS_OP_SCATTERV && root);
    const bool assembles =
        p->operation == LS_OP_ALLTOALLV || p->operation == LS_OP_ALLGATHERV || (p->operation == LS_OP_GATHERV && root);
    call->send_counts = cuts ? r->counts[0] : NULL;
    call->send_displacements = cuts ? r->counts[1] : NULL;
    call->receive_counts = assembles ? r->counts[2] : NULL;
    call->receive_displacements = assembles ? r->counts[3] : NULL;
}

static bool varies(int operation) {
    return operation == LS_OP_GATHERV || operation == LS_OP_SCATTERV || operation == LS_OP_ALLGATHERV ||
           operation == LS_OP_REDUCE_SCATTERV || operation == LS_OP_ALLTOALLV;
}

/* Elements that a rank sends, and receives, in a call without counts per rank. */
static void even_counts(const rank_state *r, size_t *sent, size_t *received) {
    const plan *p = &r->plan;
    const size_t all = p->count * (size_t)r->world->size;
    const bool root = r->rank == p->root;
    *sent = *received = p->count;
    switch (p->operation) {
    case LS_OP_REDUCE:
        *received = root ? p->count : 0;
        break;
    case LS_OP_GATHER:
        *received = root ? all : 0;
        break;
    case LS_OP_ALLGATHER:
        *received = all;
        break;
    case LS_OP_SCATTER:
        *sent = root ? all : 0;
        break;
    case LS_OP_REDUCE_SCATTER:
        *sent = all;
        break;
    case LS_OP_ALLTOALL:
        *sent = *received = all;
        break;
    default:
        break;
    }
}

static void fill(rank_state *r, size_t sent) {
    const plan *p = &r->plan;
    const size_t width = width_of(p);
    if (reduces(p->operation)) {
        reference_fill(&(reference){p->dtype, p->reduction, p->seed}, r->rank, sent, r->send);
        return;
    }
    const bool cuts = p->operation == LS_OP_SCATTER || p->operation == LS_OP_SCATTERV ||
                      p->operation == LS_OP_ALLTOALL || p->operation == LS_OP_ALLTOALLV;
    if (!cuts) {
        reference_send(p->seed, p->dtype, r->rank, -1, sent, r->send);
        return;
    }
    size_t at = 0;
    for (int to = 0; to < r->world->size && at < sent; to++) {
        const size_t count = varies(p->operation) ? part_of(p, r->rank, to) : p->count;
        reference_send(p->seed, p->dtype, r->rank, to, count, r->send + at * width);
        at += count;
    }
}

/* What a call reduces to, all of it. */
static const unsigned char *result_of(const rank_state *r) {
    world *w = r->world;
    const plan *p = &r->plan;
    const int slot = r->done % RESULTS;
    if (w->results[slot].call != r->done + 1) {
        const reference reduced = {p->dtype, p->reduction, p->seed};
        size_t count = p->operation == LS_OP_REDUCE_SCATTER ? p->count * (size_t)w->size : p->count;
        for (int to = 0; p->operation == LS_OP_REDUCE_SCATTERV && to < w->size; to++) {
            count = (to == 0 ? 0 : count) + part_of(p, 0, to);
        }
        free(w->results[slot].data);
        w->results[slot].data = malloc(count * width_of(p) + 1);
        w->results[slot].call = r->done + 1;
        reference_reduce(&reduced, w->size, 0, count, w->results[slot].data);
    }
    return w->results[slot].data;
}

/* What a rank must have received. */
static void expect(const rank_state *r, unsigned char *wanted) {
    const plan *p = &r->plan;
    const int size = r->world->size;
    const size_t width = width_of(p);
    const size_t count = r->receive_bytes / width;
    size_t first = p->operation == LS_OP_REDUCE_SCATTER ? p->count * (size_t)r->rank : 0;
    for (int to = 0; p->operation == LS_OP_REDUCE_SCATTERV && to < r->rank; to++) {
        first += part_of(p, 0, to);
    }
    if (reduces(p->operation)) {
        memcpy(wanted, result_of(r) + first * width, count * width);
        return;
    }
    size_t at = 0;
    for (int from = 0; from < size && at < count; from++) {
        const bool from_root =
            p->operation == LS_OP_BROADCAST || p->operation == LS_OP_SCATTER || p->operation == LS_OP_SCATTERV;
        const bool ring = p->operation == MESSAGE_RING;
        if ((from_root && from != p->root) || (ring && from != (r->rank + size - 1) % size)) {
            continue;
        }
        const bool whole = p->operation == LS_OP_BROADCAST || p->operation == LS_OP_GATHER ||
                           p->operation == LS_OP_GATHERV || p->operation == LS_OP_ALLGATHER ||
                           p->operation == LS_OP_ALLGATHERV || ring;
        const size_t part = varies(p->operation) ? part_of(p, from, r->rank) : p->count;
        reference_send(p->seed, p->dtype, from, whole ? -1 : r->rank, part, wanted + at * width);
        at += part;
    }
}

static void prepare(rank_state *r) {
    const world *w = r->world;
    r->plan = plan_of(w, r->done);
    if (r->rank == w->odd_rank && r->done == w->odd_call) {
        r->plan.operation = r->plan.operation == LS_OP_BARRIER ? LS_OP_ALLREDUCE : LS_OP_BARRIER;
        r->plan.dtype = LS_F32;
        r->plan.reduction = LS_SUM;
        r->plan.count = r->plan.operation == LS_OP_BARRIER ? 0 : 3;
    }
    const plan *p = &r->plan;
    const size_t width = width_of(p);
    size_t sent = 0;
    size_t received = 0;
    r->call = (ls_call){.operation = (ls_operation)p->operation,
                        .dtype = p->dtype,
                        .reduction = reduces(p->operation) ? p->reduction : (ls_reduction)0,
                        .root = p->root,
                        .count = p->count,
                        .width = width,
                        .sequence = (uint64_t)r->done + 1};
    const bool rooted = p->operation == LS_OP_BROADCAST || p->operation == LS_OP_REDUCE ||
                        p->operation == LS_OP_GATHER || p->operation == LS_OP_GATHERV ||
                        p->operation == LS_OP_SCATTER || p->operation == LS_OP_SCATTERV;
    r->call.root = rooted ? p->root : 0;
    for (int i = 0; i < 4 && varies(p->operation); i++) {
        r->counts[i] = calloc((size_t)w->size, sizeof(size_t));
    }
    if (varies(p->operation)) {
        set_counts(r, &sent, &received);
    } else {
        even_counts(r, &sent, &received);
    }
    r->receive_bytes = received * width;
    r->send = malloc(sent * width + 1);
    r->receive = malloc(received * width + 1);
    memset(r->receive, 0xa5, received * width + 1);
    fill(r, sent);
    if (p->operation == LS_OP_BROADCAST) {
        if (r->rank == p->root) {
            memcpy(r->receive, r->send, r->receive_bytes);
        }
        r->call.send = r->call.receive = r->receive;
    } else {
        r->call.send = r->send;
        r->call.receive = r->receive;
    }
}

static void discard(rank_state *r) {
    free(r->send);
    free(r->receive);
    r->send = r->receive = NULL;
    for (int i = 0; i < 4; i++) {
        free(r->counts[i]);
        r->counts[i] = NULL;
    }
}

/* ---- a rank's turn ----------------------------------------------------------------------------------------------- */

static ls_status begin_ring(rank_state *r) {
    const int size = r->world->size;
    ls_call send = r->call;
    ls_call receive = r->call;
    send.operation = LS_OP_SEND;
    send.root = (r->rank + 1) % size;
    send.tag = receive.tag = 7;
    receive.operation = LS_OP_RECV;
    receive.root = (r->rank + size - 1) % size;
    LS_TRY(ls_engine_post(r->engine, &send, &r->request[0]));
    return ls_engine_post(r->engine, &receive, &r->request[1]);
}

static ls_status begin(rank_state *r) {
    prepare(r);
    r->begun = true;
    r->messages = ls_engine_endpoint(r->engine)->messages;
    return r->plan.operation == MESSAGE_RING ? begin_ring(r) : ls_engine_begin(r->engine, &r->call);
}

static ls_status go_on(rank_state *r, bool *finished) {
    if (r->plan.operation != MESSAGE_RING) {
        return ls_engine_progress(r->engine, false, finished);
    }
    *finished = true;
    for (int i = 0; i < 2; i++) {
        bool ended = r->request[i] == NULL;
        if (!ended) {
            const ls_status status = ls_engine_test(r->engine, r->request[i], false, &ended);
            r->request[i] = ended || status != LS_OK ? NULL : r->request[i];
            LS_TRY(status);
        }
        *finished = *finished && ended;
    }
    return LS_OK;
}

static void verify(const rank_state *r) {
    unsigned char *wanted = malloc(r->receive_bytes + 1);
    memset(wanted, 0xa5, r->receive_bytes + 1);
    expect(r, wanted);
    const int same = memcmp(wanted, r->receive, r->receive_bytes + 1);
    free(wanted);
    if (same != 0) {
        fail_msg("seed %llu: %d ranks, call %d (%s of %zu, root %d) is wrong on rank %d",
                 (unsigned long long)r->world->seed, r->world->size, r->done, ls_operation_name(r->call.operation),
                 r->plan.count, r->plan.root, r->rank);
    }
}

/* A small call takes no more messages than this. */
static void count_messages(const rank_state *r) {
    const size_t bytes = width_of(&r->plan) * r->plan.count * (size_t)r->world->size;
    const bool direct = r->plan.operation == MESSAGE_RING || r->plan.operation == LS_OP_ALLTOALLV ||
                        r->plan.operation == LS_OP_GATHERV || r->plan.operation == LS_OP_ALLTOALL;
    const uint64_t sent = ls_engine_endpoint(r->engine)->messages - r->messages;
    if (!r->world->faulty && !direct && bytes <= 1024 && sent > (uint64_t)(2 * r->world->levels)) {
        fail_msg("seed %llu: %d ranks, call %d (%s): rank %d sent %llu messages", (unsigned long long)r->world->seed,
                 r->world->size, r->done, ls_operation_name(r->call.operation), r->rank, (unsigned long long)sent);
    }
}

static void note_failure(rank_state *r, ls_status status) {
    r->status = status;
    snprintf(r->message, sizeof r->message, "%s", ls_error_message());
    const bool odd = r->done == r->world->odd_call && r->world->odd_rank >= 0 && status == LS_ERR_MISMATCH;
    if (!odd && !r->world->faulty) {
        fail_msg("seed %llu: rank %d of %d, call %d: %s", (unsigned long long)r->world->seed, r->rank, r->world->size,
                 r->done, r->message);
    }
    r->over = !odd;
    discard(r); /* the engine uses the memory no more: it has ended */
    r->begun = false;
    r->done++;
}

static bool step(void *state, int rank) {
    rank_state *r = state;
    (void)rank;
    for (bool moved = true; moved && !r->over && r->done < r->world->calls;) {
        bool finished = false;
        ls_status status = r->begun ? LS_OK : begin(r);
        status = status == LS_OK ? go_on(r, &finished) : status;
        if (status != LS_OK) {
            note_failure(r, status);
            continue;
        }
        if (finished) {
            verify(r);
            count_messages(r);
            discard(r);
            r->begun = false;
            r->done++;
            continue;
        }
        ls_endpoint *endpoint = ls_engine_endpoint(r->engine);
        moved = false;
        assert_int_equal(endpoint->transport->progress(endpoint, PATIENCE, &moved), LS_OK);
    }
    return r->over || r->done == r->world->calls;
}

/* ---- worlds ------------------------------------------------------------------------------------------------------ */

static void open_world(world *w, const sim_options *options) {
    w->network = sim_new(options);
    w->size = options->ranks;
    w->ranks = calloc((size_t)w->size, sizeof *w->ranks);
    while (1 << w->levels < w->size) {
        w->levels++;
    }
    for (int rank = 0; rank < w->size; rank++) {
        w->ranks[rank] = (rank_state){.world = w, .rank = rank};
        w->ranks[rank].engine = ls_engine_new(sim_endpoint(w->network, rank), TIMEOUT_S);
        assert_non_null(w->ranks[rank].engine);
    }
}

static void close_world(world *w) {
    for (int rank = 0; rank < w->size; rank++) {
        ls_engine_close(w->ranks[rank].engine);
        discard(&w->ranks[rank]);
    }
    sim_free(w->network);
    for (int i = 0; i < RESULTS; i++) {
        free(w->results[i].data);
    }
    free(w->ranks);
}

static sim_outcome run_world(world *w) {
    return sim_run(w->network, step, w->ranks, sizeof *w->ranks, 0);
}

static sim_options options_of(int ranks, uint64_t seed) {
    return (sim_options){.ranks = ranks,
                         .seed = seed,
                         .latency_ns = 2000,
                         .overhead_ns = 300,
                         .bytes_per_ns = 12,
                         .eager = seed % 2 == 0 ? 4096 : 65536,
                         .most_delay_ns = seed % 3 == 0 ? 20000 : 0,
                         .most_start_ns = 5000,
                         .notice_ns = 100000};
}

static void check_world(int ranks, uint64_t seed, int calls, int odd_call) {
    const sim_options options = options_of(ranks, seed);
    world w = {.size = ranks,
               .seed = seed,
               .calls = calls,
               .odd_rank = odd_call >= 0 ? (int)(seed % (uint64_t)ranks) : -1,
               .odd_call = odd_call};
    while (odd_call >= 0 && plan_of(&w, w.odd_call).operation == MESSAGE_RING) {
        w.odd_call = ++w.calls - 1; /* sends and receives are not compared */
    }
    open_world(&w, &options);
    const sim_outcome outcome = run_world(&w);
    if (!outcome.finished) {
        fail_msg("seed %llu, %d ranks: not finished: %s", (unsigned long long)seed, ranks, outcome.text);
    }
    for (int rank = 0; rank < ranks && odd_call >= 0 && ranks > 1; rank++) {
        assert_int_equal(w.ranks[rank].status, LS_ERR_MISMATCH);
        assert_non_null(strstr(w.ranks[rank].message, "ranks called different things"));
    }
    close_world(&w);
}

static void right_bits(void **state) {
    (void)state;
    const bool all = is_long();
    for (int ranks = 1; ranks <= 64; ranks++) {
        check_world(ranks, (uint64_t)ranks * 17, (ranks <= 16 ? 20 : 5) * (all ? 3 : 1), -1);
    }
    static const int many[] = {100, 256, 1000, 1024};
    for (size_t i = 0; i < sizeof many / sizeof *many; i++) {
        check_world(many[i], (uint64_t)many[i], all ? 4 : 10, -1);
    }
}

static void disagreement(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= (is_long() ? 64 : 20); ranks++) {
        check_world(ranks, (uint64_t)ranks * 31, 6, 2);
    }
    check_world(200, 1000, 3, 1);
}

/* One rank dies, or stops, at some moment: all others end with its name, or have made all calls. */
static void check_fault(uint64_t seed) {
    uint64_t random = seed;
    const int ranks = 2 + (int)draw(&random, 40);
    const int victim = (int)draw(&random, (uint64_t)ranks);
    const bool dies = draw(&random, 2) == 0;
    const sim_options options = options_of(ranks, seed);
    world w = {.seed = seed, .calls = 12, .odd_rank = -1, .faulty = true};
    open_world(&w, &options);
    const uint64_t at = draw(&random, 300);
    if (dies) {
        sim_kill_after(w.network, victim, at);
    } else {
        sim_stop_after(w.network, victim, at);
    }
    const sim_outcome outcome = run_world(&w);
    if (!outcome.finished) {
        fail_msg("seed %llu, %d ranks, rank %d %s after %llu packets: not finished: %s", (unsigned long long)seed,
                 ranks, victim, dies ? "dies" : "stops", (unsigned long long)at, outcome.text);
    }
    char name[32];
    snprintf(name, sizeof name, "rank %d ", victim);
    for (int rank = 0; rank < ranks; rank++) {
        const rank_state *r = &w.ranks[rank];
        if (rank == victim || !r->over) {
            continue;
        }
        const ls_status wanted = dies ? LS_ERR_PEER : LS_ERR_TIMEOUT;
        if (r->status != wanted || strstr(r->message, name) == NULL) {
            fail_msg("seed %llu, %d ranks, rank %d %s after %llu packets, but rank %d says: %s",
                     (unsigned long long)seed, ranks, victim, dies ? "dies" : "stops", (unsigned long long)at, rank,
                     r->message);
        }
    }
    close_world(&w);
}

static void faults(void **state) {
    (void)state;
    const uint64_t one = number("LOCKSTEP_ENGINE_SEED", 0);
    if (one != 0) {
        check_fault(one);
        return;
    }
    const uint64_t seeds = number("LOCKSTEP_ENGINE_SEEDS", is_long() ? 2000 : 500);
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        check_fault(seed);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_bits),
        cmocka_unit_test(disagreement),
        cmocka_unit_test(faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
