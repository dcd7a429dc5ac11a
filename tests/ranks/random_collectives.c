/*
 * Random programs: sequences of calls on the world and on communicators split from it, of any size, root and reduction,
 * waiting or as work that each rank waits for in an order of its own. All ranks draw the same program from its seed and
 * compute by themselves what they must receive. LOCKSTEP_TEST_SEED and LOCKSTEP_TEST_PROGRAMS choose others.
 */
#include "tests/support/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROGRAMS = 300, STEPS = 14, GROUPS = 3, RANKS_MOST = 8 };

typedef enum kind {
    BARRIER,
    BROADCAST,
    REDUCE,
    ALLREDUCE,
    REDUCE_SCATTER,
    REDUCE_SCATTERV,
    GATHER,
    GATHERV,
    ALLGATHER,
    ALLGATHERV,
    SCATTER,
    SCATTERV,
    ALLTOALL,
    ALLTOALLV,
    MESSAGE,
    KINDS
} kind;

static const char *const kind_names[KINDS] = {"barrier",         "broadcast", "reduce",   "allreduce", "reduce_scatter",
                                              "reduce_scatterv", "gather",    "gatherv",  "allgather", "allgatherv",
                                              "scatter",         "scatterv",  "alltoall", "alltoallv", "message"};

/* One call of a program, as one rank makes it. */
typedef struct step {
    kind what;
    uint64_t seed;
    ls_comm *comm;
    int rank;
    int size;
    int root;
    int other; /* message: from root to other */
    size_t count;
    bool later;
    ls_reduction reduction;
    int32_t *send;
    int32_t *receive;
    int32_t *expected;
    size_t sent; /* elements of the buffers */
    size_t received;
    size_t out[RANKS_MOST];
    size_t in[RANKS_MOST];
    ls_work *works[2];
} step;

/* ---- chance --------------------------------------------------------------------------------------------------------
 */

static uint64_t mix(uint64_t x) {
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t draw(uint64_t *state, uint64_t below) {
    *state = mix(*state);
    return *state % below;
}

static int32_t value(const step *s, int from, int to, size_t i) {
    return (int32_t)(mix(s->seed + i * 1000003 + (uint64_t)from * 101 + (uint64_t)(to + 1) * 7) % 2001) - 1000;
}

/* How many elements go from one rank to another where that varies. */
static size_t varied(const step *s, int from, int to) {
    return mix(s->seed ^ (uint64_t)(from * 64 + to + 5)) % (s->count + 1);
}

/* ---- what is sent, and what must be received -----------------------------------------------------------------------
 */

static bool reduces(kind what) {
    return what >= REDUCE && what <= REDUCE_SCATTERV;
}

static bool cuts(kind what) {
    return what >= SCATTER && what <= ALLTOALLV;
}

static bool has_counts(kind what) {
    return what == GATHERV || what == ALLGATHERV || what == SCATTERV || what == ALLTOALLV || what == REDUCE_SCATTERV;
}

/* Elements that `from` sends to `to`; those that a reduction gives to `to`. */
static size_t piece(const step *s, int from, int to) {
    const bool to_root = s->what == REDUCE || s->what == GATHER || s->what == GATHERV;
    const bool from_root = s->what == BROADCAST || s->what == SCATTER || s->what == SCATTERV || s->what == MESSAGE;
    if (s->what == BARRIER || (to_root && to != s->root) || (from_root && from != s->root) ||
        (s->what == MESSAGE && to != s->other)) {
        return 0;
    }
    if (!has_counts(s->what)) {
        return s->count;
    }
    const bool by_receiver = s->what == REDUCE_SCATTERV || s->what == SCATTERV;
    return s->what == ALLTOALLV ? varied(s, from, to) : varied(s, by_receiver ? to : from, 0);
}

static int32_t combine(ls_reduction reduction, int32_t a, int32_t b) {
    if (reduction == LS_MIN) {
        return a < b ? a : b;
    }
    return reduction == LS_BXOR ? (a ^ b) : a + b;
}

static int32_t reduced(const step *s, size_t i) {
    int32_t result = value(s, 0, -1, i);
    for (int rank = 1; rank < s->size; rank++) {
        result = combine(s->reduction, result, value(s, rank, -1, i));
    }
    return result;
}

static void fill_sent(step *s) {
    const bool parts = cuts(s->what);
    const bool scatters = s->what == REDUCE_SCATTER || s->what == REDUCE_SCATTERV;
    size_t at = 0;
    for (int to = 0; to < s->size; to++) {
        s->out[to] = piece(s, s->rank, to);
        for (size_t i = 0; i < s->out[to] && parts; i++) {
            s->send[at + i] = value(s, s->rank, to, i);
        }
        at += parts || scatters ? s->out[to] : 0;
    }
    s->sent = at;
    if (!parts) {
        s->sent = scatters ? at : has_counts(s->what) ? varied(s, s->rank, 0) : s->count;
        for (size_t i = 0; i < s->sent; i++) {
            s->send[i] = value(s, s->rank, -1, i);
        }
    }
}

static void fill_expected(step *s) {
    size_t at = 0;
    if (reduces(s->what)) {
        size_t before = 0;
        for (int rank = 0; rank < s->rank && s->what >= REDUCE_SCATTER; rank++) {
            before += piece(s, 0, rank);
        }
        s->received = piece(s, 0, s->rank);
        for (size_t i = 0; i < s->received; i++) {
            s->expected[i] = reduced(s, before + i);
        }
        return;
    }
    for (int from = 0; from < s->size; from++) {
        s->in[from] = piece(s, from, s->rank);
        for (size_t i = 0; i < s->in[from]; i++) {
            s->expected[at + i] = value(s, from, cuts(s->what) ? s->rank : -1, i);
        }
        at += s->in[from];
    }
    s->received = at;
}

/* ---- making the calls ----------------------------------------------------------------------------------------------
 */

static ls_status begin_broadcast(step *s, ls_work **work) {
    memcpy(s->receive, s->rank == s->root ? s->send : s->receive, s->count * sizeof *s->send);
    return ls_comm_broadcast(s->comm, s->receive, s->count, LS_I32, s->root, work);
}

static ls_status begin_message(step *s, ls_work **work) {
    if (s->rank == s->root) {
        LS_TRY(
            ls_comm_send(s->comm, s->send, s->count, LS_I32, s->other, 3, s->root == s->other ? &s->works[1] : work));
    }
    return s->rank == s->other ? ls_comm_recv(s->comm, s->receive, s->count, LS_I32, s->root, 3, work) : LS_OK;
}

static ls_status begin_counted(step *s, ls_work **work) {
    const bool root = s->rank == s->root;
    switch (s->what) {
    case GATHERV:
        return ls_comm_gatherv(s->comm, s->send, s->sent, s->receive, root ? s->in : NULL, NULL, LS_I32, s->root, work);
    case ALLGATHERV:
        return ls_comm_allgatherv(s->comm, s->send, s->receive, s->in, NULL, LS_I32, work);
    case SCATTERV:
        return ls_comm_scatterv(s->comm, s->send, root ? s->out : NULL, NULL, s->receive, s->received, LS_I32, s->root,
                                work);
    case ALLTOALLV:
        return ls_comm_alltoallv(s->comm, s->send, s->out, NULL, s->receive, s->in, NULL, LS_I32, work);
    default:
        return ls_comm_reduce_scatterv(s->comm, s->send, s->receive, s->out, LS_I32, s->reduction, work);
    }
}

static ls_status begin(step *s, ls_work **work) {
    switch (s->what) {
    case BARRIER:
        return ls_comm_barrier(s->comm, work);
    case BROADCAST:
        return begin_broadcast(s, work);
    case REDUCE:
        return ls_comm_reduce(s->comm, s->send, s->receive, s->count, LS_I32, s->reduction, s->root, work);
    case ALLREDUCE:
        return ls_comm_allreduce(s->comm, s->send, s->receive, s->count, LS_I32, s->reduction, work);
    case REDUCE_SCATTER:
        return ls_comm_reduce_scatter(s->comm, s->send, s->receive, s->count, LS_I32, s->reduction, work);
    case GATHER:
        return ls_comm_gather(s->comm, s->send, s->receive, s->count, LS_I32, s->root, work);
    case ALLGATHER:
        return ls_comm_allgather(s->comm, s->send, s->receive, s->count, LS_I32, work);
    case SCATTER:
        return ls_comm_scatter(s->comm, s->send, s->receive, s->count, LS_I32, s->root, work);
    case ALLTOALL:
        return ls_comm_alltoall(s->comm, s->send, s->receive, s->count, LS_I32, work);
    case MESSAGE:
        return begin_message(s, work);
    default:
        return begin_counted(s, work);
    }
}

static ls_status make_step(step *s) {
    const size_t most = (s->count + 1) * (size_t)s->size;
    s->send = calloc(most, sizeof *s->send);
    s->receive = calloc(most, sizeof *s->receive);
    s->expected = calloc(most, sizeof *s->expected);
    LS_CHECK(s->send != NULL && s->receive != NULL && s->expected != NULL);
    fill_sent(s);
    fill_expected(s);
    return begin(s, s->later ? &s->works[0] : NULL);
}

/* Waits for the call, and looks at what it gave. */
static ls_status end_step(step *s) {
    LS_TRY(ls_work_wait(s->works[0]));
    LS_TRY(ls_work_wait(s->works[1]));
    if (memcmp(s->receive, s->expected, s->received * sizeof *s->receive) != 0) {
        return ls_fail(LS_ERR_INTERNAL, "%s of %zu on %d ranks, root %d: wrong result", kind_names[s->what], s->count,
                       s->size, s->root);
    }
    free(s->send);
    free(s->receive);
    free(s->expected);
    return LS_OK;
}

/* ---- programs ------------------------------------------------------------------------------------------------------
 */

/* Ends the first `count` steps, each rank in an order of its own. */
static ls_status end_steps(step *steps, int count, uint64_t seed, int rank) {
    uint64_t own = mix(seed + (uint64_t)rank * 7919);
    while (count > 0) {
        const int chosen = (int)draw(&own, (uint64_t)count);
        LS_TRY(end_step(&steps[chosen]));
        steps[chosen] = steps[--count];
    }
    return LS_OK;
}

static size_t draw_count(uint64_t *state) {
    static const size_t scales[] = {1, 4, 30, 400, 6000, 40000};
    return draw(state, scales[draw(state, 6)] + 1);
}

static step draw_step(uint64_t *state, ls_comm *comm) {
    static const ls_reduction reductions[] = {LS_SUM, LS_MIN, LS_BXOR};
    step s = {.comm = comm, .rank = ls_comm_rank(comm), .size = ls_comm_size(comm)};
    s.what = (kind)draw(state, KINDS);
    s.seed = draw(state, UINT64_MAX);
    s.root = (int)draw(state, 840);
    s.other = (int)draw(state, 840);
    s.count = draw_count(state);
    s.later = draw(state, 2) == 0;
    s.reduction = reductions[draw(state, 3)];
    if (comm != NULL) { /* another draw would leave ranks without this communicator behind */
        s.root %= s.size;
        s.other %= s.size;
    }
    return s;
}

static ls_status run_program(ls_comm *world, uint64_t seed) {
    uint64_t state = seed;
    const int rank = ls_comm_rank(world);
    ls_comm *groups[GROUPS] = {world, NULL, NULL};
    for (int i = 1; i < GROUPS; i++) {
        const uint64_t way = draw(&state, UINT64_MAX);
        const int color = (int)(mix(way + (uint64_t)rank) % 3) - 1;
        LS_TRY(ls_comm_split(world, color, (int)(mix(way - (uint64_t)rank) % 100), &groups[i]));
    }
    step open[STEPS];
    int opened = 0;
    int current = 0;
    for (int i = 0; i < STEPS; i++) {
        const int next = draw(&state, 3) == 0 ? (int)draw(&state, GROUPS) : current;
        if (next != current) { /* work on one communicator moves only in calls on that one */
            LS_TRY(end_steps(open, opened, seed, rank));
            opened = 0;
            current = next;
        }
        open[opened] = draw_step(&state, groups[current]);
        if (groups[current] != NULL) {
            LS_TRY(make_step(&open[opened]));
            opened++;
        }
    }
    LS_TRY(end_steps(open, opened, seed, rank));
    for (int i = 1; i < GROUPS; i++) {
        ls_comm_free(groups[i]);
    }
    return LS_OK;
}

static uint64_t number(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text == NULL ? otherwise : strtoull(text, NULL, 10);
}

ls_status rank_test(ls_comm *world) {
    const uint64_t first = number("LOCKSTEP_TEST_SEED", 20260101);
    const uint64_t programs = number("LOCKSTEP_TEST_PROGRAMS", PROGRAMS);
    if (ls_comm_rank(world) == 0) {
        printf("seeds %llu to %llu\n", (unsigned long long)first, (unsigned long long)(first + programs - 1));
    }
    for (uint64_t seed = first; seed < first + programs; seed++) {
        const ls_status status = run_program(world, seed);
        if (status != LS_OK) {
            return ls_fail(status, "seed %llu: %s", (unsigned long long)seed, ls_error_message());
        }
    }
    return ls_comm_barrier(world, NULL);
}
