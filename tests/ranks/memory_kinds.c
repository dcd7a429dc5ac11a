/*
 * Tensor memory by kind on several ranks: gradients and buckets of ls_data_parallel and ls_reducer, the table of
 * ls_timer over ranks, and the memory budget of a trial, whose error reaches every rank.
 *
 * ranks: 1 2 3
 * devices: cpu
 */
#include "tests/support/training.h"

/* The bytes of the parameters of training.h in f64. Each parameter begins at a multiple of 64 bytes. */
enum { WEIGHTS = 8 * (6 * TRAINING_INPUTS + 8 + 24 + 8), TAIL = 1024 };

static ls_memory stats(void) {
    ls_memory memory;
    return ls_memory_stats(&memory) == LS_OK ? memory : (ls_memory){.total = -1};
}

static int64_t grown(const ls_memory *before, ls_memory_kind kind) {
    return stats().bytes[kind] - before->bytes[kind];
}

static ls_status same_bytes(const ls_memory *before) {
    for (int i = 0; i < LS_MEMORY_KINDS; i++) {
        LS_CHECK(grown(before, (ls_memory_kind)i) == 0);
    }
    return LS_OK;
}

/* ---- kinds ------------------------------------------------------------------------------------------------------- */

static ls_module *make_model(void) {
    const ls_linear_options layer = {.dtype = LS_F64};
    ls_seed(TRAINING_SEED);
    return ls_sequential(ls_nn_linear_with(TRAINING_INPUTS, 6, &layer), ls_nn_tanh(),
                         ls_nn_linear_with(6, TRAINING_CLASSES, &layer));
}

/* Gradients that are sent in place lie in the communicator's memory, and are counted once. */
static ls_status gradients_in_place(ls_comm *world) {
    const ls_memory before = stats();
    ls_module *model = ls_data_parallel(make_model(), world, NULL);
    LS_CHECK(model != NULL);
    LS_CHECK(grown(&before, LS_MEMORY_PARAMETERS) == WEIGHTS && grown(&before, LS_MEMORY_BUCKETS) == 0);
    const int64_t gradients =
        grown(&before, LS_MEMORY_GRADIENTS); /* includes the numbers that are sent after the gradients */
    LS_CHECK(gradients >= WEIGHTS && gradients <= WEIGHTS + TAIL);
    ls_optimizer *optimizer = ls_adam(model, NULL);
    LS_CHECK(grown(&before, LS_MEMORY_OPTIMIZER) == 2 * WEIGHTS);
    LS_CHECK(grown(&before, LS_MEMORY_GRADIENTS) == gradients && grown(&before, LS_MEMORY_ACTIVATIONS) == 0);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return same_bytes(&before);
}

static ls_status gradients_of_16_bits(ls_comm *world) {
    const ls_memory before = stats();
    ls_module *model = ls_data_parallel(ls_sequential(ls_nn_linear(30, 10)), world,
                                        &(ls_data_parallel_options){.reduce_dtype = LS_BF16});
    LS_CHECK(model != NULL);
    const int64_t weights = 4 * (304 + 16);
    LS_CHECK(grown(&before, LS_MEMORY_PARAMETERS) == weights && grown(&before, LS_MEMORY_GRADIENTS) == weights);
    LS_CHECK(grown(&before, LS_MEMORY_BUCKETS) == weights / 2);
    ls_module_free(model);
    return same_bytes(&before);
}

/* With .zero, the state is sharded over the ranks. Its shards are padded. */
static ls_status sharded_state(ls_comm *world) {
    const ls_memory before = stats();
    ls_module *model = ls_data_parallel(make_model(), world, &(ls_data_parallel_options){.zero = 1});
    ls_optimizer *optimizer = ls_adam(model, NULL);
    LS_CHECK(optimizer != NULL);
    int64_t all = grown(&before, LS_MEMORY_OPTIMIZER);
    LS_CHECK(ls_comm_size(world) == 1 || all < 2 * WEIGHTS);
    LS_TRY(ls_comm_allreduce(world, &all, &all, 1, LS_I64, LS_SUM, NULL));
    const int64_t numbers = 6 * TRAINING_INPUTS + 6 + 6 * TRAINING_CLASSES + TRAINING_CLASSES;
    LS_CHECK(all >= 2 * 8 * numbers && all <= 2 * WEIGHTS + 2 * 4 * 64 * ls_comm_size(world));
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return same_bytes(&before);
}

/* From stage 2 on, a rank keeps only its own shard of the gradients, in stage 3 also only its own shard of the
 * layers' parameters. */
static ls_status sharded_gradients(ls_comm *world, int stage) {
    const ls_memory before = stats();
    const int64_t ranks = ls_comm_size(world), layer = 4 * (64 * 64 + 64), gap = 64 * ranks;
    ls_seed(TRAINING_SEED);
    ls_module *model = ls_data_parallel(ls_sequential(ls_nn_linear(64, 64), ls_nn_tanh(), ls_nn_linear(64, 64)), world,
                                        &(ls_data_parallel_options){.zero = stage});
    ls_optimizer *optimizer = ls_adam(model, NULL);
    LS_CHECK(optimizer != NULL);
    LS_CHECK(grown(&before, LS_MEMORY_PARAMETERS) <= 2 * layer);
    LS_CHECK(ranks == 1 || grown(&before, LS_MEMORY_GRADIENTS) == 0);
    for (int step = 0; step < 2; step++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = ls_ones(LS_SHAPE(2, 64), LS_F32);
        LS_TRY(ls_backward(ls_mean(ls_square(ls_forward(model, x)))));
        LS_TRY(ls_optimizer_step(optimizer));
        LS_TRY(ls_scope_end(scope));
        const int64_t gradients = grown(&before, LS_MEMORY_GRADIENTS),
                      parameters = grown(&before, LS_MEMORY_PARAMETERS);
        int64_t sums[] = {gradients, parameters};
        LS_TRY(ls_comm_allreduce(world, sums, sums, 2, LS_I64, LS_SUM, NULL));
        LS_CHECK(sums[0] >= 2 * layer && sums[0] <= 2 * layer + 4 * gap);
        LS_CHECK(stage == 3 ? sums[1] >= 2 * layer && sums[1] <= 2 * layer + 4 * gap : parameters == 2 * layer);
    }
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return same_bytes(&before);
}

static ls_status reducers(ls_comm *world) {
    const ls_memory before = stats();
    ls_tensor *a = ls_ones(LS_SHAPE(10), LS_F32), *b = ls_ones(LS_SHAPE(7), LS_F32);
    ls_reducer *reducer = ls_reducer_new(world, &(ls_reducer_options){.bucket_bytes = 1000});
    LS_CHECK(reducer != NULL);
    LS_TRY(ls_reducer_add(reducer, a));
    LS_TRY(ls_reducer_add(reducer, b));
    LS_TRY(ls_reducer_finish(reducer));
    LS_CHECK(grown(&before, LS_MEMORY_BUCKETS) == 68 && grown(&before, LS_MEMORY_ACTIVATIONS) == 68);
    ls_reducer_free(reducer);
    ls_release(a);
    ls_release(b);
    return same_bytes(&before);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static ls_status peaks_over_ranks(ls_comm *world) {
    const ls_memory before = stats();
    ls_callback *timer = ls_timer(&(ls_timer_options){.no_table = true});
    training t;
    LS_TRY(training_begin(&t, &(training_plan){.callbacks = &timer, .callback_count = 1}, world));
    LS_TRY(ls_trial_run(t.trial, 2));
    double sum = 0, least, mean, largest;
    for (int i = 0; i <= LS_MEMORY_KINDS; i++) {
        ls_timer_memory_over_ranks(timer, (ls_memory_kind)i, &least, &mean, &largest);
        LS_CHECK(least >= 0 && least <= mean && mean <= largest);
        sum += i < LS_MEMORY_KINDS ? mean : 0;
        LS_TRY(same_on_all(world, mean));
    }
    LS_CHECK(fabs(sum - mean) <= 1e-6 * mean);
    ls_timer_memory_over_ranks(timer, LS_MEMORY_OPTIMIZER, &least, NULL, &largest);
    LS_CHECK(least == WEIGHTS && largest == WEIGHTS); /* one momentum per parameter */
    ls_timer_memory_over_ranks(timer, LS_MEMORY_DATA, &least, NULL, &largest);
    LS_CHECK(least >= TRAINING_SAMPLES * (8 * TRAINING_INPUTS + 8));
    training_end(&t);
    return same_bytes(&before);
}

/* ---- budgets ----------------------------------------------------------------------------------------------------- */

static ls_status run_with(ls_comm *world, int64_t limit, double *peak) {
    ls_callback *timer = ls_timer(&(ls_timer_options){.no_table = true});
    training t;
    LS_TRY(training_prepare(&t, &(training_plan){.global_batch = 12}, world));
    t.trial = ls_trial_new(&(ls_trial_options){.model = t.model,
                                               .optimizer = t.optimizer,
                                               .criterion = ls_criterion_cross_entropy,
                                               .train = t.train,
                                               .memory_limit = limit,
                                               .callbacks = &timer,
                                               .callback_count = 1,
                                               .quiet = true});
    LS_CHECK(t.trial != NULL);
    const ls_status status = ls_trial_run(t.trial, 1);
    ls_timer_memory_over_ranks(timer, LS_MEMORY_KINDS, NULL, NULL, peak);
    training_end(&t);
    return status;
}

static ls_status budgets(ls_comm *world) {
    const int rank = ls_comm_rank(world), last = ls_comm_size(world) - 1;
    double peak = 0, none;
    char text[160];
    LS_TRY(run_with(world, 0, &peak));
    LS_TRY(run_with(world, (int64_t)peak + 100000, &none));
    LS_CHECK(run_with(world, 1, &none) == LS_ERR_MEMORY);
    LS_EXPECT_MESSAGE("ls_trial_run: before the first step, training needs ");
    snprintf(text, sizeof text, "(parameters %d, gradients ", WEIGHTS);
    LS_EXPECT_MESSAGE(text);
    LS_EXPECT_MESSAGE(", but .memory_limit is 1: use a smaller model");

    /* only one rank has a limit */
    LS_CHECK(run_with(world, rank == last ? 2 : 0, &none) == LS_ERR_MEMORY);
    snprintf(text, sizeof text, "rank %d failed: ls_trial_run: before the first step, training needs ", last);
    LS_EXPECT_MESSAGE(rank == last ? "ls_trial_run: before the first step, training needs " : text);
    LS_EXPECT_MESSAGE(", but .memory_limit is 2: use a smaller model");
    return LS_OK;
}

/* A step that needs much memory on the last rank. */
static ls_status big_step(ls_trial_state *state, void *user) {
    (void)user;
    if (ls_comm_rank(state->comm) == ls_comm_size(state->comm) - 1) {
        LS_CHECK(ls_zeros(LS_SHAPE(1000, 1000), LS_F64) != NULL);
    }
    return LS_OK;
}

static ls_status first_step(ls_comm *world) {
    const ls_memory before = stats();
    const int rank = ls_comm_rank(world), last = ls_comm_size(world) - 1;
    ls_callback *callback = ls_callback_new(&(ls_callback_hooks){.on_criterion = big_step}, NULL);
    training t;
    LS_TRY(training_prepare(&t, &(training_plan){.global_batch = 12}, world));
    t.trial = ls_trial_new(&(ls_trial_options){.model = t.model,
                                               .optimizer = t.optimizer,
                                               .criterion = ls_criterion_cross_entropy,
                                               .train = t.train,
                                               .memory_limit = 8000000,
                                               .callbacks = &callback,
                                               .callback_count = 1,
                                               .quiet = true});
    LS_CHECK(t.trial != NULL);
    LS_CHECK(ls_trial_run(t.trial, 1) == LS_ERR_MEMORY);
    char text[80];
    snprintf(text, sizeof text, "rank %d failed: ls_trial_run: the first step needed ", last);
    LS_EXPECT_MESSAGE(rank == last ? "ls_trial_run: the first step needed " : text);
    LS_EXPECT_MESSAGE(", but .memory_limit is 8000000: make batches smaller");
    training_end(&t);
    return same_bytes(&before);
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(gradients_in_place(world));
    LS_TRY(gradients_of_16_bits(world));
    LS_TRY(sharded_state(world));
    LS_TRY(sharded_gradients(world, 2));
    LS_TRY(sharded_gradients(world, 3));
    LS_TRY(reducers(world));
    LS_TRY(peaks_over_ranks(world));
    LS_TRY(budgets(world));
    LS_TRY(first_step(world));
    return ls_comm_barrier(world, NULL);
}
