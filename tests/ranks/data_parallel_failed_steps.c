/*
 * ls_data_parallel_step fails on all ranks, and leaves no gradients, if a call in the function of one rank has failed,
 * although the function returns a loss, if the function of one rank does not run the module, or if the batch, its input
 * or the function is NULL on one rank. The next step works, and the ranks keep equal models.
 *
 * ranks: 1 2 3
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <math.h>

#include <lockstep/lockstep.h>

enum { INPUTS = 3, SAMPLES = 2, SLICES = 2 };

static ls_tensor *mean_output(const ls_batch *batch, void *user) {
    return ls_mean(ls_forward(user, batch->input));
}

/* A function must not end the scopes of the step. */
static ls_tensor *end_thread(const ls_batch *batch, void *user) {
    ls_thread_end();
    return mean_output(batch, user);
}

/* The loss does not use the tensor of the failed call. */
static ls_tensor *fail_in_call(const ls_batch *batch, void *user) {
    (void)ls_add(ls_ones(LS_SHAPE(2), LS_F32), ls_ones(LS_SHAPE(3), LS_F32));
    return mean_output(batch, user);
}

static ls_tensor *fail_before_open_scope(const ls_batch *batch, void *user) {
    (void)ls_add(ls_ones(LS_SHAPE(2), LS_F32), ls_ones(LS_SHAPE(3), LS_F32));
    (void)ls_scope_begin();
    return mean_output(batch, user);
}

static ls_tensor *fail_in_open_scope(const ls_batch *batch, void *user) {
    (void)ls_scope_begin();
    return fail_in_call(batch, user);
}

/* The following functions do not run the module. */
static ls_tensor *return_nothing(const ls_batch *batch, void *user) {
    (void)batch, (void)user;
    return NULL;
}

static ls_tensor *fail_before_module(const ls_batch *batch, void *user) {
    (void)batch, (void)user;
    return ls_add(ls_ones(LS_SHAPE(2), LS_F32), ls_ones(LS_SHAPE(3), LS_F32));
}

static ls_tensor *constant_loss(const ls_batch *batch, void *user) {
    (void)user;
    return ls_mean(batch->input);
}

/* The module's input is NULL because of a failure. */
static ls_tensor *fail_in_input(const ls_batch *batch, void *user) {
    return ls_mean(ls_forward(user, fail_before_module(batch, user)));
}

static ls_tensor *fail_after_evaluation(const ls_batch *batch, void *user) {
    const bool before = ls_no_grad(true);
    (void)mean_output(batch, user);
    (void)ls_no_grad(before);
    return fail_before_module(batch, user);
}

/* The scope of the forward pass ends before the backward pass. */
static ls_tensor *fail_after_scope(const ls_batch *batch, void *user) {
    ls_scope *scope = ls_scope_begin();
    (void)mean_output(batch, user);
    (void)ls_scope_end(scope);
    return fail_before_module(batch, user);
}

/* The second and third steps fail. With `shares`, the ranks exchange their shares in each forward pass. */
static ls_status fails_in(ls_comm *world, bool shares, ls_loss_function function, ls_status expected,
                          const char *text) {
    const bool fails = ls_comm_rank(world) == ls_comm_size(world) - 1;
    ls_seed(1);
    ls_module *inner = shares ? ls_sequential(ls_nn_dropout(0.1), ls_nn_linear(INPUTS, 1)) : ls_nn_linear(INPUTS, 1);
    ls_module *model = ls_data_parallel(inner, world, NULL);
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1});
    LS_CHECK(optimizer != NULL);
    ls_batch batch = {.input = ls_ones(LS_SHAPE(SAMPLES, INPUTS), LS_F32), .count = SAMPLES};
    for (int i = 0; i < 5; i++) {
        const bool failing = i == 1 || i == 2;
        ls_optimizer_zero_grad(optimizer);
        const ls_status status = ls_data_parallel_step(model, &batch, failing && fails ? function : mean_output, model);
        if (failing) {
            LS_CHECK(status == (fails ? expected : LS_ERR_MISMATCH));
            LS_EXPECT_MESSAGE(text);
            LS_CHECK(ls_grad(ls_module_parameter(model, 0)) == NULL);
            continue;
        }
        LS_TRY(status);
        LS_TRY(ls_optimizer_step(optimizer));
    }
    LS_TRY(ls_data_parallel_check(model));
    ls_release(batch.input);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

static ls_status fails_everywhere(ls_comm *world, ls_loss_function function, ls_status expected, const char *text) {
    LS_TRY(fails_in(world, false, function, expected, text));
    return fails_in(world, true, function, expected, text);
}

typedef enum missing_argument { BATCH, INPUT, FUNCTION, COUNT, MISSING_ARGUMENTS } missing_argument;

/* In the second and third steps, one rank misses an argument. */
static ls_status misses_argument(ls_comm *world, missing_argument missing, int shards, int64_t samples) {
    static const char *const texts[] = {"the batch is NULL", "the input of the batch is NULL", "the function is NULL",
                                        "the batch has .count = 0, but its input is"};
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    ls_module *model = ls_data_parallel(ls_nn_linear(INPUTS, 1), world, &(ls_data_parallel_options){.shards = shards});
    LS_CHECK(model != NULL);
    ls_tensor *input = ls_full(LS_SHAPE(samples, INPUTS), LS_F32, rank + 1);
    for (int i = 0; i < 5; i++) {
        const bool failing = i == 1 || i == 2, misses = failing && rank == size - 1;
        const ls_batch batch = {.input = misses && missing == INPUT ? NULL : input,
                                .first = rank * samples,
                                .count = misses && missing == COUNT ? 0 : samples,
                                .global_count = size * samples};
        ls_module_zero_grad(model);
        const ls_status status = ls_data_parallel_step(model, misses && missing == BATCH ? NULL : &batch,
                                                       misses && missing == FUNCTION ? NULL : mean_output, model);
        if (failing) {
            LS_CHECK(status == (misses ? LS_ERR_ARGUMENT : LS_ERR_MISMATCH));
            LS_EXPECT_MESSAGE(texts[missing]);
        } else {
            LS_TRY(status);
        }
        ls_tensor *gradient = ls_grad(ls_module_parameter(model, 0));
        LS_CHECK(failing || samples == 0 ? gradient == NULL : gradient != NULL);
        LS_CHECK(gradient == NULL || fabs(ls_at(gradient, (const int64_t[]){0, 0}) - (size + 1) / 2.0) < 1e-6);
    }
    ls_release(input);
    ls_module_free(model);
    return LS_OK;
}

static ls_status arguments_are_missing(ls_comm *world) {
    for (missing_argument missing = 0; missing < MISSING_ARGUMENTS; missing++) {
        LS_TRY(misses_argument(world, missing, 0, SAMPLES));
        LS_TRY(misses_argument(world, missing, SLICES * ls_comm_size(world), SLICES * SAMPLES));
        LS_TRY(missing != INPUT && missing != COUNT ? misses_argument(world, missing, 0, 0) : LS_OK);
    }
    return LS_OK;
}

/*
 * The loss of rank 1 has two terms, and the loss of the other ranks has one; rank 0 has no samples. The step fails on
 * all ranks, and the ranks stay in step.
 */
static ls_status different_terms(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    if (ls_comm_size(world) < 3) {
        return LS_OK;
    }
    ls_module *model = ls_data_parallel(ls_nn_linear(INPUTS, 1), world, NULL);
    LS_CHECK(model != NULL);
    LS_TRY(ls_data_parallel_no_sync(model, true));
    for (int step = 0; step < 3; step++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *output = rank > 0 ? ls_forward(model, ls_ones(LS_SHAPE(SAMPLES, INPUTS), LS_F32)) : NULL;
        ls_tensor *loss = rank > 0 ? ls_mean(output) : NULL;
        loss = rank == 1 && step == 1 ? ls_add(loss, ls_sum(output)) : loss;
        const ls_status status = rank > 0 ? ls_backward(loss) : ls_data_parallel_skip(model);
        LS_CHECK(status == (step == 1 ? LS_ERR_MISMATCH : LS_OK));
        (void)!ls_scope_end(scope);
        LS_TRY(ls_comm_barrier(world, NULL));
    }
    ls_module_free(model);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(fails_everywhere(world, end_thread, LS_ERR_STATE, "ls_thread_end: "));
    LS_TRY(fails_everywhere(world, fail_in_call, LS_ERR_SHAPE, "ls_add: "));
    LS_TRY(fails_everywhere(world, fail_before_open_scope, LS_ERR_SHAPE, "ls_add: "));
    LS_TRY(fails_everywhere(world, fail_in_open_scope, LS_ERR_SHAPE, "ls_add: "));
    LS_TRY(fails_everywhere(world, return_nothing, LS_ERR_ARGUMENT, "the loss is NULL"));
    LS_TRY(fails_everywhere(world, fail_before_module, LS_ERR_SHAPE, "ls_add: "));
    LS_TRY(fails_everywhere(world, fail_in_input, LS_ERR_SHAPE, "ls_add: "));
    LS_TRY(fails_everywhere(world, fail_after_evaluation, LS_ERR_SHAPE, "ls_add: "));
    LS_TRY(fails_everywhere(world, fail_after_scope, LS_ERR_SHAPE, "ls_add: "));
    LS_TRY(fails_everywhere(world, constant_loss, LS_ERR_STATE, "the loss has no history"));
    LS_TRY(arguments_are_missing(world));
    LS_TRY(different_terms(world));
    return ls_comm_barrier(world, NULL);
}
