/*
 * Data-parallel training with buckets in flight on a simulated network (comm/transport/simulated). Each rank is a
 * thread; one thread runs at a time, until it waits for the network, so a seed determines the order of all events.
 * Every successful pass is bit-identical to averaging at once. Ranks pause, die and stop, or fail in their own loss:
 * the other ranks fail with the name of the rank, or continue with equal models. A failing seed is printed, and
 * LOCKSTEP_ENGINE_SEED=N runs only this seed; LOCKSTEP_ENGINE_SEEDS=N runs N seeds of each kind.
 *
 * devices: cpu
 * cost: 10
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "base/hash.h"
#include "base/wait.h"
#include "comm/engine/engine.h"
#include "comm/record.h"
#include "comm/transport/simulated/state.h"
#include "parallel/parallel.h"
#include "tests/simulated/calls.h"
#include "tests/simulated/faults.h"
#include "tests/support/seeds.h"
#include "tests/support/unit.h"

/* The communicators of a world: of the module, and the two of its buckets. */
enum { MOST_RANKS = 5, NETWORKS = 3, PASSES = 4, INPUTS = 5, WIDTH = 24, OUTPUTS = 3 };

#define TIMEOUT_S 0.02
#define POLL_NS   UINT64_C(20000) /* until a rank that polls has its next turn */

typedef enum fault { NONE, PAUSES, DIES, STOPS, FAILS } fault;

typedef struct rank_state {
    struct world *world;
    pthread_t thread;
    pthread_cond_t resumed;
    int rank;
    int splits;
    bool over; /* the rank's program has ended */
    bool dead;
    int passes; /* number of successful passes */
    uint64_t hashes[PASSES];
    sim_result result; /* result of the first pass that failed */
} rank_state;

typedef struct world {
    uint64_t seed;
    int size;
    ls_dtype dtype; /* of the gradients on the wire */
    size_t bucket_bytes;
    ls_overlap_mode overlap;
    fault fault;
    int victim;
    int bad_pass; /* FAILS: the victim has no loss in this pass */
    uint64_t at_ns;
    ls_sim_network *networks[NETWORKS];
    uint64_t trace[NETWORKS]; /* hashes of all events */
    uint64_t ended_ns;        /* time at which the last rank ended its program */
    pthread_mutex_t lock;
    pthread_cond_t resumed;
    rank_state *turn; /* the rank whose turn it is; NULL: run_world has the turn */
    rank_state ranks[MOST_RANKS];
} world;

static _Thread_local rank_state *self;

/* ---- turns ------------------------------------------------------------------------------------------------------- */

static bool are_over(const world *w) {
    bool over = true;
    for (int rank = 0; rank < w->size; rank++) {
        over = over && (w->ranks[rank].over || w->ranks[rank].dead);
    }
    return over;
}

/* Ends the victim on all networks at once, when the time has come. */
static void make_fault(world *w) {
    const bool ends = w->fault == DIES || w->fault == STOPS;
    if (!ends || ls_sim_now(w->networks[0]) < w->at_ns || w->ranks[w->victim].over) {
        return;
    }
    for (int k = 0; k < NETWORKS; k++) {
        if (w->fault == DIES) {
            sim_kill(w->networks[k], w->victim, 0);
        } else {
            sim_stop(w->networks[k], w->victim, 0);
        }
    }
    w->ranks[w->victim].dead = true;
    w->at_ns = UINT64_MAX;
}

/* Returns the rank with the next turn; NULL: all ranks have ended, or nothing can happen. */
static rank_state *next_rank(world *w) {
    while (!are_over(w)) {
        make_fault(w);
        const int rank = ls_sim_next_of(w->networks, NETWORKS);
        if (rank < 0) {
            return NULL;
        }
        if (!w->ranks[rank].over && !w->ranks[rank].dead) {
            return &w->ranks[rank];
        }
    }
    return NULL;
}

/* Gives the turn to a rank, or to run_world if `to` is NULL. */
static void give_turn(world *w, rank_state *to) {
    pthread_mutex_lock(&w->lock);
    w->turn = to;
    pthread_cond_signal(to != NULL ? &to->resumed : &w->resumed);
    pthread_mutex_unlock(&w->lock);
}

static void wait_for_turn(world *w, rank_state *r) {
    pthread_mutex_lock(&w->lock);
    while (w->turn != r) {
        pthread_cond_wait(r != NULL ? &r->resumed : &w->resumed, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
}

/* Ends this rank's turn, and waits for its next turn. Often, no other thread has a turn in between. */
static void yield_turn(rank_state *r) {
    rank_state *next = next_rank(r->world);
    if (next != r) {
        give_turn(r->world, next);
        wait_for_turn(r->world, r);
    }
}

/* ---- a backend over the simulated network ------------------------------------------------------------------------ */

static ls_status own_progress(ls_endpoint *endpoint, uint64_t wait_ns, bool *moved) {
    LS_TRY(ls_sim_transport.progress(endpoint, wait_ns, moved));
    if (wait_ns == 0 || *moved) {
        return self->dead ? ls_fail(LS_ERR_INTERNAL, "this rank is dead") : LS_OK;
    }
    if (!self->dead) {
        yield_turn(self);
    }
    return self->dead ? ls_fail(LS_ERR_INTERNAL, "this rank is dead") : ls_sim_transport.progress(endpoint, 0, moved);
}

/* The linker substitutes this function for ls_wait_pause, which a rank calls to wait for several communicators. */
bool __real_ls_wait_pause(ls_wait *wait);
bool __wrap_ls_wait_pause(ls_wait *wait);
bool __wrap_ls_wait_pause(ls_wait *wait) {
    if (self == NULL) {
        return __real_ls_wait_pause(wait);
    }
    if (wait->limit_ns != 0 && wait->awake.ns >= wait->limit_ns) {
        return false;
    }
    if (self->dead) {
        wait->awake.ns += POLL_NS;
        return true;
    }
    ls_sim_network *network = self->world->networks[0]; /* a packet from another network also ends the pause */
    const uint64_t paused_ns = ls_sim_now(network);
    ls_sim_wait(network, self->rank, POLL_NS);
    yield_turn(self);
    wait->awake.ns += ls_sim_now(network) - paused_ns;
    return true;
}

static ls_engine *open_engine(world *w, int network, int rank) {
    static ls_transport transport;
    transport = ls_sim_transport;
    transport.progress = own_progress;
    ls_endpoint *endpoint = ls_sim_endpoint(w->networks[network], rank);
    endpoint->transport = &transport;
    return ls_engine_new(endpoint, TIMEOUT_S);
}

/* All splits are of all ranks, in the same order. */
static ls_status own_split(void *state, const ls_join_context *join, const int *ranks, void **result) {
    (void)state;
    (void)ranks;
    if (join == NULL || join->size != self->world->size || self->splits == NETWORKS - 1) {
        return ls_fail(LS_ERR_INTERNAL, "an unexpected ls_comm_split");
    }
    *result = open_engine(self->world, ++self->splits, join->rank);
    return *result != NULL ? LS_OK : ls_error_status();
}

static const ls_backend backend = {
    .name = "simulated", .close = ls_engine_close, .leave = ls_engine_leave, .split = own_split, LS_ENGINE_CALLS};

static ls_comm *open_comm(rank_state *r) {
    const ls_join_context join = {.rank = r->rank,
                                  .size = r->world->size,
                                  .local_rank = r->rank,
                                  .local_size = r->world->size,
                                  .prefix = "",
                                  .timeout = TIMEOUT_S};
    ls_comm *comm = ls_comm_make(&backend, &join);
    if (comm != NULL) {
        comm->state = open_engine(r->world, 0, r->rank);
    }
    return comm;
}

/* ---- the program of a rank --------------------------------------------------------------------------------------- */

static ls_module *make(const world *w, ls_comm *comm) {
    ls_seed(3);
    ls_module *model = ls_sequential(ls_nn_linear(INPUTS, WIDTH), ls_nn_tanh(), ls_nn_linear(WIDTH, WIDTH),
                                     ls_nn_tanh(), ls_nn_linear(WIDTH, OUTPUTS));
    return ls_data_parallel(
        model, comm,
        &(ls_data_parallel_options){.overlap = w->overlap, .bucket_bytes = w->bucket_bytes, .reduce_dtype = w->dtype});
}

static ls_status run_pass(const rank_state *r, ls_module *model, int pass) {
    const world *w = r->world;
    const int64_t samples = 1 + (r->rank + pass) % 3;
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_sin(ls_mul(ls_add(ls_arange(LS_SHAPE(samples, INPUTS), LS_F32), 7 * pass), r->rank + 1));
    ls_tensor *y = ls_forward(model, x);
    if (w->fault == FAILS && r->rank == w->victim && pass == w->bad_pass) {
        y = ls_reshape(y, LS_SHAPE(99));
    }
    const ls_status status = ls_backward(ls_mean(ls_square(y)));
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

static ls_status hash_gradients(ls_module *model, uint64_t *hash) {
    *hash = LS_HASH_START;
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        LS_TRY(ls_hash_elements("test", ls_grad(ls_module_parameter(model, i)), hash));
    }
    return LS_OK;
}

static ls_status train(rank_state *r, ls_module *model) {
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1});
    ls_status status = LS_OK;
    for (int pass = 0; pass < PASSES && status == LS_OK; pass++) {
        ls_optimizer_zero_grad(optimizer);
        status = run_pass(r, model, pass);
        if (status == LS_OK) {
            status = hash_gradients(model, &r->hashes[r->passes++]);
            status = status == LS_OK ? ls_optimizer_step(optimizer) : status;
        } else if (!r->result.over) {
            sim_note_failure(&r->result, status);
            status = r->world->fault == FAILS ? LS_OK : status; /* the program continues */
        }
    }
    ls_optimizer_free(optimizer);
    return status;
}

static void *run_rank(void *argument) {
    rank_state *r = argument;
    self = r;
    wait_for_turn(r->world, r);
    ls_comm *comm = open_comm(r);
    ls_module *model = comm != NULL ? make(r->world, comm) : NULL;
    const ls_status status = model != NULL ? train(r, model) : ls_error_status();
    if (status != LS_OK && !r->result.over) {
        sim_note_failure(&r->result, status);
    }
    ls_module_free(model);
    ls_comm_free(comm);
    r->over = true;
    give_turn(r->world, r->dead ? NULL : next_rank(r->world));
    return NULL;
}

/* ---- the world --------------------------------------------------------------------------------------------------- */

/* Runs all ranks to completion. Returns false on a deadlock: no rank can make progress, but some rank has not finished.
 */
static bool run_world(world *w) {
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->resumed, NULL);
    for (int k = 0; k < NETWORKS; k++) {
        w->networks[k] = ls_sim_new(&(ls_sim_options){.ranks = w->size,
                                                      .seed = w->seed * NETWORKS + (uint64_t)k,
                                                      .latency_ns = 2000,
                                                      .overhead_ns = 300,
                                                      .bytes_per_ns = 2,
                                                      .most_delay_ns = w->seed % 3 == 0 ? 0 : 30000,
                                                      .most_start_ns = 20000,
                                                      .notice_ns = 50000});
        if (w->fault == PAUSES) {
            sim_pause(w->networks[k], w->victim, w->at_ns, w->at_ns + (uint64_t)(TIMEOUT_S * 0.5e9));
        }
    }
    for (int rank = 0; rank < w->size; rank++) {
        rank_state *r = &w->ranks[rank];
        r->world = w;
        r->rank = rank;
        pthread_cond_init(&r->resumed, NULL);
        assert_int_equal(pthread_create(&r->thread, NULL, run_rank, r), 0);
    }
    give_turn(w, next_rank(w));
    wait_for_turn(w, NULL);
    const bool ended = are_over(w);
    w->ended_ns = ls_sim_now(w->networks[0]);
    for (int k = 0; k < NETWORKS; k++) {
        w->trace[k] = ls_sim_trace(w->networks[k]);
    }
    for (int rank = 0; rank < w->size; rank++) {
        rank_state *r = &w->ranks[rank];
        while (!r->over) { /* the rank is dead, or no event is left: all its further calls fail */
            r->dead = true;
            give_turn(w, r);
            wait_for_turn(w, NULL);
        }
        pthread_join(r->thread, NULL);
        pthread_cond_destroy(&r->resumed);
    }
    for (int k = 0; k < NETWORKS; k++) {
        ls_sim_free(w->networks[k]);
    }
    pthread_cond_destroy(&w->resumed);
    pthread_mutex_destroy(&w->lock);
    return ended;
}

/* ---- seeds ------------------------------------------------------------------------------------------------------- */

static world *make_world(uint64_t seed) {
    static const ls_dtype dtypes[] = {LS_F32, LS_BF16};
    uint64_t random = seed;
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->seed = seed;
    w->size = 2 + (int)call_draw(&random, MOST_RANKS - 1);
    w->dtype = dtypes[call_draw(&random, 2)];
    w->overlap = LS_OVERLAP_ON;
    w->bucket_bytes = (size_t)1 << call_draw(&random, 12);
    w->victim = (int)call_draw(&random, (uint64_t)w->size);
    w->bad_pass = (int)call_draw(&random, PASSES);
    w->at_ns = call_draw(&random, 900000);
    return w;
}

/* Returns the hashes of the gradients that averaging at once gives, for the ranks and dtype of a world. */
static const uint64_t *expected(const world *like) {
    static uint64_t hashes[MOST_RANKS + 1][LS_DTYPE_COUNT][PASSES];
    uint64_t *own = hashes[like->size][like->dtype];
    if (own[0] == 0) {
        world *w = make_world(1);
        w->size = like->size;
        w->dtype = like->dtype;
        w->overlap = LS_OVERLAP_OFF;
        assert_true(run_world(w));
        assert_int_equal(w->ranks[0].passes, PASSES);
        memcpy(own, w->ranks[0].hashes, sizeof w->ranks[0].hashes);
        free(w);
    }
    return own;
}

static void check_bits(const world *w, const rank_state *r, const uint64_t *hashes) {
    if (memcmp(r->hashes, hashes, (size_t)r->passes * sizeof *hashes) != 0) {
        fail_msg("seed %llu: rank %d of %d has other gradients", (unsigned long long)w->seed, r->rank, w->size);
    }
}

/* If no rank pauses, dies or stops, no wait lasts until the timeout, so all passes take less time than the timeout. */
static void check_time(const world *w) {
    if (w->fault != PAUSES && w->ended_ns > (uint64_t)(TIMEOUT_S * 1e9)) {
        fail_msg("seed %llu: the passes take %llu ns", (unsigned long long)w->seed, (unsigned long long)w->ended_ns);
    }
}

/* Counts worlds. `failed` is the number of worlds in which some rank did not complete all passes. */
typedef struct tally {
    int worlds;
    int failed;
} tally;

static void check_whole(uint64_t seed, void *context) {
    world *w = make_world(seed);
    tally *all = context;
    w->fault = seed % 4 == 0 ? PAUSES : NONE;
    if (!run_world(w)) {
        fail_msg("seed %llu: nothing can happen any more", (unsigned long long)seed);
    }
    for (int rank = 0; rank < w->size; rank++) {
        const rank_state *r = &w->ranks[rank];
        if (r->passes < PASSES) {
            fail_msg("seed %llu: rank %d of %d: %s", (unsigned long long)seed, rank, w->size, r->result.text);
        }
        check_bits(w, r, expected(w));
    }
    check_time(w);
    all->worlds++;
    free(w);
}

static bool names(const rank_state *r, int victim) {
    char name[32];
    snprintf(name, sizeof name, "rank %d", victim);
    return strstr(r->result.text, name) != NULL;
}

static void check_dead(uint64_t seed, void *context) {
    world *w = make_world(seed);
    tally *all = context;
    w->fault = seed % 3 == 0 ? STOPS : DIES;
    if (!run_world(w)) {
        fail_msg("seed %llu: nothing can happen any more", (unsigned long long)seed);
    }
    int failed = 0, named = 0;
    for (int rank = 0; rank < w->size; rank++) {
        const rank_state *r = &w->ranks[rank];
        check_bits(w, r, expected(w));
        if (r->dead || r->passes == PASSES) {
            continue;
        }
        /* A rank that sees the end of the victim leaves, which another rank may see first. If the victim is silent, a
         * rank may name a rank that waits for the victim on another communicator. */
        const bool late = w->fault == STOPS && r->result.status == LS_ERR_TIMEOUT;
        const bool known = late || r->result.status == LS_ERR_PEER;
        if (!known || !(late || names(r, w->victim) || strstr(r->result.text, " left ") != NULL)) {
            fail_msg("seed %llu: rank %d of %d ends, but rank %d says: %s", (unsigned long long)seed, w->victim,
                     w->size, rank, r->result.text);
        }
        failed++;
        named += names(r, w->victim);
    }
    if (failed > 0 && named == 0) {
        fail_msg("seed %llu: rank %d of %d ends, but no rank names it", (unsigned long long)seed, w->victim, w->size);
    }
    all->worlds++;
    all->failed += failed > 0;
    free(w);
}

/* One rank has no loss in one pass: all ranks fail in this pass with its name, and then continue with equal models. */
static void check_failing(uint64_t seed, void *context) {
    world *w = make_world(seed);
    tally *all = context;
    w->fault = FAILS;
    if (!run_world(w)) {
        fail_msg("seed %llu: nothing can happen any more", (unsigned long long)seed);
    }
    char name[48];
    snprintf(name, sizeof name, "rank %d failed: ls_reshape", w->victim);
    for (int rank = 0; rank < w->size; rank++) {
        const rank_state *r = &w->ranks[rank];
        const bool told = rank == w->victim || strstr(r->result.text, name) != NULL;
        if (!r->result.over || !told || r->passes != PASSES - 1) {
            fail_msg("seed %llu: rank %d has no loss in pass %d, but rank %d ended %d passes and says: %s",
                     (unsigned long long)seed, w->victim, w->bad_pass, rank, r->passes, r->result.text);
        }
        check_bits(w, r, w->ranks[0].hashes);
    }
    check_time(w);
    all->worlds++;
    free(w);
}

TEST(buckets_have_the_bits_of_averaging_at_once) {
    tally all = {0};
    (void)seeds_run(60, check_whole, &all);
    assert_true(all.worlds > 0);
}

TEST(a_rank_that_ends_is_named) {
    tally all = {0};
    const bool many = seeds_run(60, check_dead, &all);
    assert_true(!many || all.failed > all.worlds / 2);
}

TEST(a_rank_that_fails_is_named) {
    tally all = {0};
    (void)seeds_run(60, check_failing, &all);
    assert_true(all.worlds > 0);
}

TEST(a_seed_repeats_all_events) {
    for (int seed = 1; seed <= 20; seed++) {
        world *first = make_world((uint64_t)seed), *second = make_world((uint64_t)seed);
        first->fault = second->fault = (fault)(seed % (FAILS + 1));
        assert_true(run_world(first) && run_world(second));
        assert_memory_equal(first->trace, second->trace, sizeof first->trace);
        free(first);
        free(second);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_have_the_bits_of_averaging_at_once),
        cmocka_unit_test(a_rank_that_ends_is_named),
        cmocka_unit_test(a_rank_that_fails_is_named),
        cmocka_unit_test(a_seed_repeats_all_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
