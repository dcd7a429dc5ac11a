/*
 * A model sharded into pipeline stages has the same losses, gradients and training results as the unsharded model, with
 * either schedule.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "nn/module.h"
#include "tensor/scope.h"

enum { BATCH = 11, IN = 6, HIDDEN = 9, OUT = 3 };

static const ls_linear_options in_f64 = {.dtype = LS_F64};
static const ls_parallel_linear_options parts_in_f64 = {.dtype = LS_F64};

static ls_module *make_model(void) {
    ls_seed(3);
    return ls_sequential(ls_nn_linear_with(IN, HIDDEN, &in_f64), ls_nn_relu(),
                         ls_nn_linear_with(HIDDEN, HIDDEN, &in_f64), ls_nn_tanh(),
                         ls_nn_linear_with(HIDDEN, HIDDEN, &in_f64), ls_nn_linear_with(HIDDEN, OUT, &in_f64));
}

static double factor = 0.75;

/* `user` is the factor. */
static ls_tensor *criterion(ls_tensor *output, ls_tensor *target, void *user) {
    return ls_mul(ls_mse_loss(output, target, LS_LOSS_MEAN), *(const double *)user);
}

/*
 * Checks that every parameter of the stage, and its gradient, equal those with the same name in the whole model, and
 * that the stages together contain all parameters.
 */
static ls_status compare(ls_comm *stages, const ls_module *stage, const ls_module *whole) {
    int64_t count = ls_module_parameter_count(stage);
    LS_TRY(ls_comm_allreduce(stages, &count, &count, 1, LS_I64, LS_SUM, NULL));
    LS_CHECK(count == ls_module_parameter_count(whole));
    for (int i = 0; i < ls_module_parameter_count(stage); i++) {
        ls_tensor *own = ls_module_parameter(stage, i);
        ls_tensor *other = ls_module_find(whole, ls_module_parameter_name(stage, i));
        LS_CHECK(other != NULL && ls_grad(own) != NULL);
        LS_CHECK(ls_allclose(own, other, 1e-11, 1e-12));
        LS_CHECK(ls_allclose(ls_grad(own), ls_grad(other), 1e-11, 1e-12));
    }
    return LS_OK;
}

static ls_status step_whole(ls_module *whole, ls_tensor *x, ls_tensor *y, double *loss) {
    ls_tensor *value = criterion(ls_forward(whole, x), y, &factor);
    LS_TRY(ls_backward(value));
    *loss = ls_item(value);
    return LS_OK;
}

/*
 * Runs three training steps and compares them with the unsharded model. `data` connects the ranks of the same stage,
 * each with a part of the batch; it may be NULL.
 */
static ls_status train(ls_comm *stages, ls_comm *data, const ls_pipeline_options *options) {
    ls_scope *scope = ls_scope_begin();
    ls_module *whole = make_model();
    ls_module *pipeline = ls_pipeline(make_model(), stages, options);
    LS_CHECK(pipeline != NULL);
    ls_optimizer *optimizers[] = {ls_adam(whole, NULL), ls_adam(pipeline, NULL)};
    const int64_t parts = data != NULL ? ls_comm_size(data) : 1;
    const int64_t rows = BATCH / parts;
    for (int step = 0; step < 3; step++) {
        ls_tensor *x = ls_randn(LS_SHAPE(parts * rows, IN), LS_F64);
        ls_tensor *y = ls_randn(LS_SHAPE(parts * rows, OUT), LS_F64);
        const int64_t start = data != NULL ? rows * ls_comm_rank(data) : 0;
        double loss = 0;
        double right = 0;
        ls_optimizer_zero_grad(optimizers[0]);
        ls_optimizer_zero_grad(optimizers[1]);
        LS_TRY(step_whole(whole, x, y, &right));
        LS_TRY(ls_pipeline_backward(pipeline, ls_narrow(x, 0, start, rows), ls_narrow(y, 0, start, rows), criterion,
                                    ls_comm_rank(stages) == ls_comm_size(stages) - 1 ? &factor : NULL, &loss));
        if (data != NULL) {
            LS_TRY(ls_sync_gradients(pipeline, data));
            LS_TRY(ls_comm_allreduce(data, &loss, &loss, 1, LS_F64, LS_AVG, NULL));
        }
        LS_CHECK(fabs(loss - right) < 1e-12);
        LS_TRY(compare(stages, pipeline, whole));
        LS_TRY(ls_optimizer_step(optimizers[0]));
        LS_TRY(ls_optimizer_step(optimizers[1]));
        const bool before = ls_no_grad(true);
        LS_CHECK(
            ls_allclose(ls_forward(pipeline, ls_comm_rank(stages) == 0 ? x : y), ls_forward(whole, x), 1e-11, 1e-11));
        (void)ls_no_grad(before);
    }
    ls_optimizer_free(optimizers[0]);
    ls_optimizer_free(optimizers[1]);
    ls_module_free(whole);
    ls_module_free(pipeline);
    return ls_scope_end(scope);
}

static ls_status schedules_and_cuts(ls_comm *world) {
    static const int cut[] = {2, 3, 4, 5}; /* for up to 5 ranks; one stage consists of an activation only */
    LS_CHECK(ls_comm_size(world) <= 5);
    ls_tensor *sample = ls_ones(LS_SHAPE(4, IN), LS_F64);
    const ls_pipeline_options options[] = {
        {0},
        {.schedule = LS_PIPELINE_GPIPE, .micro_batches = 3},
        {.micro_batches = 1, .cut = cut},
        {.micro_batches = 5, .cut = cut, .schedule = LS_PIPELINE_GPIPE},
        {.micro_batches = 50},
        {.sample = sample},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        LS_TRY(train(world, NULL, &options[i]));
    }
    ls_release(sample);
    return LS_OK;
}

/* To balance the stages, rank 0 runs all layers. Its buffers and random state must not change. */
static ls_status measurement_leaves_no_trace(ls_comm *world) {
    if (ls_comm_size(world) > 3) {
        return LS_OK;
    }
    ls_scope *scope = ls_scope_begin();
    ls_seed(5);
    ls_tensor *sample = ls_randn(LS_SHAPE(16, IN), LS_F32);
    ls_module *norm = ls_nn_batch_norm_1d(IN, NULL);
    ls_module *model = ls_sequential(norm, ls_nn_dropout(0.5), ls_nn_linear(IN, OUT));
    LS_CHECK(ls_module_retain(norm) == norm);
    const ls_random_state before = ls_random_get_state();
    ls_module *pipeline = ls_pipeline(model, world, &(ls_pipeline_options){.sample = sample});
    LS_CHECK(pipeline != NULL);
    const ls_random_state after = ls_random_get_state();
    LS_CHECK(memcmp(&before, &after, sizeof before) == 0);
    LS_CHECK(ls_module_buffer_count(norm) == 2);
    for (int64_t i = 0; i < IN; i++) {
        LS_CHECK(ls_at(ls_module_find(norm, "running_mean"), &i) == 0);
        LS_CHECK(ls_at(ls_module_find(norm, "running_var"), &i) == 1);
    }
    ls_module_free(pipeline);
    ls_module_free(norm);
    return ls_scope_end(scope);
}

/* Stages over pairs of ranks. Each pair has half of the batch. */
static ls_status with_divided_data(ls_comm *world) {
    if (ls_comm_size(world) != 4) {
        return LS_OK;
    }
    ls_comm *stages = NULL;
    ls_comm *data = NULL;
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) / 2, 0, &stages));
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) % 2, 0, &data));
    LS_TRY(train(stages, data, NULL));
    ls_comm_free(stages);
    ls_comm_free(data);
    return LS_OK;
}

/* Computes gradients of several pipelines with these numbers of rows per batch, accumulated over `steps` steps. */
static ls_status uneven_steps(ls_comm *stages, ls_comm *data, const int64_t *rows, int steps, bool skips) {
    ls_scope *scope = ls_scope_begin();
    ls_module *whole = make_model();
    ls_module *pipeline = ls_pipeline(make_model(), stages, NULL);
    LS_CHECK(pipeline != NULL);
    const int64_t mine = rows[ls_comm_rank(data)];
    int64_t all = 0;
    int64_t start = 0;
    for (int i = 0; i < ls_comm_size(data); i++) {
        all += rows[i];
        start += i < ls_comm_rank(data) ? rows[i] : 0;
    }
    for (int step = 0; step < steps; step++) {
        ls_tensor *x = ls_randn(LS_SHAPE(all, IN), LS_F64);
        ls_tensor *y = ls_randn(LS_SHAPE(all, OUT), LS_F64);
        double right = 0;
        LS_TRY(step_whole(whole, x, y, &right));
        if (!skips || mine > 0) {
            LS_TRY(ls_pipeline_backward(pipeline, ls_narrow(x, 0, start, mine), ls_narrow(y, 0, start, mine), criterion,
                                        &factor, NULL));
        }
    }
    LS_TRY(ls_sync_gradients(pipeline, data));
    LS_TRY(compare(stages, pipeline, whole));
    ls_module_free(whole);
    ls_module_free(pipeline);
    return ls_scope_end(scope);
}

/* Steps with different distributions of the batch cannot be corrected afterwards, so all ranks get an error. */
static ls_status steps_that_differ(ls_comm *stages, ls_comm *data) {
    ls_scope *scope = ls_scope_begin();
    ls_module *pipeline = ls_pipeline(make_model(), stages, NULL);
    for (int step = 0; step < 2; step++) {
        const int64_t rows = ls_comm_rank(data) == step ? 6 : 2;
        LS_TRY(ls_pipeline_backward(pipeline, ls_randn(LS_SHAPE(rows, IN), LS_F64),
                                    ls_randn(LS_SHAPE(rows, OUT), LS_F64), criterion, &factor, NULL));
    }
    LS_CHECK(ls_sync_gradients(pipeline, data) == LS_ERR_STATE);
    LS_EXPECT_MESSAGE("call ls_sync_gradients after each ls_pipeline_backward");
    ls_module_free(pipeline);
    return ls_scope_end(scope);
}

/* Shares of different sizes, or empty. */
static ls_status with_uneven_data(ls_comm *world) {
    const int size = ls_comm_size(world);
    if (size < 2 || size > 4) {
        return LS_OK;
    }
    ls_comm *stages = NULL; /* for two of four ranks, or for one */
    ls_comm *data = NULL;
    const int width = size == 4 ? 2 : 1;
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) / width, 0, &stages));
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) % width, 0, &data));
    for (int steps = 1; steps <= 3; steps += 2) {
        LS_TRY(uneven_steps(stages, data, (const int64_t[]){6, 2, 3}, steps, false));
        LS_TRY(uneven_steps(stages, data, (const int64_t[]){0, 5, 1}, steps, true));
    }
    LS_TRY(steps_that_differ(stages, data));
    ls_comm_free(stages);
    ls_comm_free(data);
    return LS_OK;
}

static ls_tensor *sum_criterion(ls_tensor *output, ls_tensor *target, void *user) {
    (void)user;
    return ls_mse_loss(output, target, LS_LOSS_SUM);
}

static ls_tensor *root_criterion(ls_tensor *output, ls_tensor *target, void *user) {
    (void)user;
    return ls_sqrt(ls_mse_loss(output, target, LS_LOSS_MEAN));
}

static ls_tensor *ignoring_criterion(ls_tensor *output, ls_tensor *target, void *user) {
    (void)user;
    const ls_class_loss_options options = {.ignore = true, .ignore_index = 1};
    return ls_cross_entropy(output, ls_argmax(target, 1, false), &options);
}

static ls_tensor *sum_of_means(ls_tensor *output, ls_tensor *target, void *user) {
    (void)user;
    return ls_add(ls_mean(ls_sum_axes(ls_square(ls_sub(output, target)), LS_AXES(1), false)), ls_mean(output));
}

/* With one sample per micro-batch, the divisor of the first term is a whole number: the weight of a class. */
static ls_tensor *weighted_and_mean(ls_tensor *output, ls_tensor *target, void *user) {
    (void)user;
    const double weights[OUT] = {1, 2, 3};
    const ls_class_loss_options options = {.weight = ls_from(LS_SHAPE(OUT), LS_F64, weights)};
    return ls_add(ls_cross_entropy(output, ls_argmax(target, 1, false), &options), ls_mean(output));
}

static ls_tensor *no_loss(ls_tensor *output, ls_tensor *target, void *user) {
    (void)output;
    (void)target;
    (void)user;
    return NULL;
}

/* A criterion returns NULL without an error message: the other stages still get a reason. */
static ls_status silent_criterion(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_module *pipeline = ls_pipeline(make_model(), world, NULL);
    ls_tensor *x = ls_ones(LS_SHAPE(BATCH, IN), LS_F64);
    ls_tensor *y = ls_ones(LS_SHAPE(BATCH, OUT), LS_F64);
    (void)ls_error_set(LS_OK, "%s", "");
    const ls_status status = ls_pipeline_backward(pipeline, x, y, no_loss, NULL, NULL);
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    LS_CHECK(status == (last ? LS_ERR_ARGUMENT : LS_ERR_MISMATCH));
    LS_EXPECT_MESSAGE("the criterion returned NULL without an error");
    ls_module_free(pipeline);
    (void)ls_scope_end(scope);
    return LS_OK;
}

static ls_tensor *return_input(ls_tensor *input, void *user) {
    (void)user;
    return input;
}

/* The criterion is checked even if the last stage returns its input. */
static ls_status stage_without_layers(ls_comm *world) {
    ls_module *layers[64] = {ls_nn_linear_with(IN, OUT, &in_f64)};
    const int size = ls_comm_size(world);
    for (int i = 1; i < size; i++) {
        layers[i] = ls_nn_function("same", return_input, NULL);
    }
    ls_scope *scope = ls_scope_begin();
    ls_module *pipeline = ls_pipeline(ls_sequential_of(layers, size), world, NULL);
    ls_tensor *x = ls_ones(LS_SHAPE(BATCH, IN), LS_F64), *y = ls_ones(LS_SHAPE(BATCH, OUT), LS_F64);
    LS_CHECK(ls_pipeline_backward(pipeline, x, y, sum_criterion, NULL, NULL) != LS_OK);
    LS_EXPECT_MESSAGE("must be a mean over the samples");
    ls_module_free(pipeline);
    (void)ls_scope_end(scope);
    return LS_OK;
}

/* All stages refuse a criterion whose value over micro-batches would differ from its value over all samples. */
static ls_status criteria(ls_comm *world) {
    static const struct {
        ls_criterion criterion;
        bool good;
        int micro_batches;
        ls_pipeline_schedule schedule;
    } cases[] = {
        {.criterion = sum_criterion},
        {.criterion = root_criterion},
        {.criterion = ignoring_criterion},
        {.criterion = weighted_and_mean, .micro_batches = BATCH},
        {.criterion = weighted_and_mean, .micro_batches = BATCH, .schedule = LS_PIPELINE_GPIPE},
        {.criterion = sum_of_means, .good = true},
        /* micro-batches of different sizes, all on the tape */
        {.criterion = sum_of_means, .good = true, .micro_batches = 3, .schedule = LS_PIPELINE_GPIPE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_module *pipeline =
            ls_pipeline(make_model(), world,
                        &(ls_pipeline_options){.micro_batches = cases[i].micro_batches, .schedule = cases[i].schedule});
        ls_seed(4);
        ls_tensor *x = ls_randn(LS_SHAPE(BATCH, IN), LS_F64);
        ls_tensor *y = ls_randn(LS_SHAPE(BATCH, OUT), LS_F64);
        const ls_status status = ls_pipeline_backward(pipeline, x, y, cases[i].criterion, NULL, NULL);
        LS_CHECK((status == LS_OK) == cases[i].good);
        LS_CHECK(cases[i].good || strstr(ls_error_message(), "must be a mean over the samples") != NULL);
        ls_module_free(pipeline);
        (void)ls_scope_end(scope);
    }
    return LS_OK;
}

/* Every stage is sharded over a pair of ranks, whose communication runs per micro-batch. */
static ls_status with_divided_layers(ls_comm *world) {
    if (ls_comm_size(world) != 4) {
        return LS_OK;
    }
    ls_comm *stages = NULL;
    ls_comm *pair = NULL;
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) % 2, 0, &stages));
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) / 2, 0, &pair));
    for (int schedule = LS_PIPELINE_1F1B; schedule <= LS_PIPELINE_GPIPE; schedule++) {
        ls_scope *scope = ls_scope_begin();
        ls_seed(4);
        ls_module *whole =
            ls_sequential(ls_nn_linear_with(IN, HIDDEN, &in_f64), ls_nn_linear_with(HIDDEN, IN, &in_f64),
                          ls_nn_linear_with(IN, HIDDEN, &in_f64), ls_nn_linear_with(HIDDEN, OUT, &in_f64));
        ls_seed(4);
        ls_module *pipeline =
            ls_pipeline(ls_sequential(ls_nn_column_parallel(pair, IN, HIDDEN, &parts_in_f64),
                                      ls_nn_row_parallel(pair, HIDDEN, IN, &parts_in_f64),
                                      ls_nn_column_parallel(pair, IN, HIDDEN, &parts_in_f64),
                                      ls_nn_row_parallel(pair, HIDDEN, OUT, &parts_in_f64)),
                        stages, &(ls_pipeline_options){.cut = (int[]){2}, .schedule = (ls_pipeline_schedule)schedule});
        ls_tensor *x = ls_randn(LS_SHAPE(BATCH, IN), LS_F64);
        ls_tensor *y = ls_randn(LS_SHAPE(BATCH, OUT), LS_F64);
        double loss = 0;
        double right = 0;
        LS_TRY(step_whole(whole, x, y, &right));
        LS_TRY(ls_pipeline_backward(pipeline, x, y, criterion, &factor, &loss));
        LS_CHECK(fabs(loss - right) < 1e-12);
        const char *name = ls_comm_rank(stages) == 0 ? "1.bias" : "3.bias";
        LS_CHECK(ls_allclose(ls_grad(ls_module_find(pipeline, name)), ls_grad(ls_module_find(whole, name)), 1e-11, 0));
        ls_module_free(whole);
        ls_module_free(pipeline);
        LS_TRY(ls_scope_end(scope));
    }
    ls_comm_free(stages);
    ls_comm_free(pair);
    return LS_OK;
}

static ls_status wrong_input(ls_comm *world) {
    LS_CHECK(ls_pipeline(NULL, world, NULL) == NULL);
    LS_CHECK(ls_pipeline(make_model(), world, &(ls_pipeline_options){.micro_batches = -1}) == NULL);
    LS_EXPECT_MESSAGE(".micro_batches is -1");
    LS_CHECK(ls_pipeline(ls_nn_linear(2, 2), world, NULL) == NULL);
    LS_EXPECT_MESSAGE("Linear");
    if (ls_comm_size(world) > 1) {
        LS_CHECK(ls_pipeline(make_model(), world, &(ls_pipeline_options){.cut = (int[]){9, 9, 9, 9}}) == NULL);
    }
    for (int k = 0; k < 3 && ls_comm_size(world) > 1; k++) { /* options that differ between ranks */
        const bool differs = ls_comm_rank(world) == 1;
        const ls_pipeline_options options = {.micro_batches = k == 0 && differs ? 3 : 2,
                                             .schedule = k == 1 && differs ? LS_PIPELINE_GPIPE : LS_PIPELINE_1F1B,
                                             .cut = k == 2 && differs ? (int[]){2, 3, 4, 5} : (int[]){1, 2, 3, 4}};
        LS_CHECK(ls_pipeline(make_model(), world, &options) == NULL && ls_error_status() == LS_ERR_MISMATCH);
        LS_EXPECT_MESSAGE("the options differ between the ranks");
    }
    LS_CHECK(ls_pipeline_backward(NULL, NULL, NULL, criterion, &factor, NULL) == LS_ERR_ARGUMENT);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *narrow = ls_ones(LS_SHAPE(4, IN + 1), LS_F64); /* the layers refuse it: all ranks get an error */
    LS_CHECK(ls_pipeline(make_model(), world, &(ls_pipeline_options){.sample = narrow}) == NULL);
    LS_CHECK(ls_comm_rank(world) == 0 || strstr(ls_error_message(), "rank 0 could not measure") != NULL);
    ls_module *pipeline = ls_pipeline(make_model(), world, NULL);
    ls_tensor *x = ls_ones(LS_SHAPE(4, IN), LS_F64);
    ls_tensor *y = ls_ones(LS_SHAPE(3, OUT), LS_F64);
    LS_CHECK(ls_pipeline_backward(pipeline, x, y, criterion, &factor, NULL) == LS_ERR_SHAPE);
    LS_EXPECT_MESSAGE("input and target have 4 and 3 samples");
    ls_module_free(pipeline);
    (void)ls_scope_end(scope);
    return LS_OK;
}

static ls_tensor *constant_criterion(ls_tensor *output, ls_tensor *target, void *user) {
    (void)target;
    (void)user;
    return ls_mean(ls_detach(output));
}

/* Depends on a parameter of the criterion, but not on the output. `user` is the parameter. */
static ls_tensor *unrelated_criterion(ls_tensor *output, ls_tensor *target, void *user) {
    return ls_add(ls_mse_loss(ls_detach(output), target, LS_LOSS_MEAN), ls_mean(ls_square(user)));
}

/* Returns whether no stage has a gradient. */
static bool no_gradients(const ls_module *pipeline) {
    bool none = true;
    for (int i = 0; i < ls_module_parameter_count(pipeline); i++) {
        none = none && ls_grad(ls_module_parameter(pipeline, i)) == NULL;
    }
    return none;
}

/*
 * Without recording on one rank or on all ranks, each rank fails, and no rank has gradients. A step with a NULL input
 * in between also fails on all ranks. Then a step succeeds.
 */
static ls_status without_recording(ls_comm *world) {
    const int size = ls_comm_size(world), rank = ls_comm_rank(world);
    for (int off = 0; off <= size; off++) { /* the rank, or all ranks */
        ls_scope *scope = ls_scope_begin();
        ls_module *pipeline = ls_pipeline(make_model(), world, NULL);
        ls_tensor *x = ls_ones(LS_SHAPE(BATCH, IN), LS_F64), *y = ls_ones(LS_SHAPE(BATCH, OUT), LS_F64);
        const bool own = off == rank || off == size;
        (void)ls_no_grad(own);
        const ls_status status = ls_pipeline_backward(pipeline, x, y, criterion, &factor, NULL);
        (void)ls_no_grad(false);
        LS_CHECK(status == (own ? LS_ERR_STATE : LS_ERR_MISMATCH));
        LS_EXPECT_MESSAGE("recording is off on stage");
        LS_CHECK(no_gradients(pipeline));
        LS_CHECK(ls_scope_end(scope) != LS_OK); /* the scope reports the failed call */
        scope = ls_scope_begin();
        x = ls_ones(LS_SHAPE(BATCH, IN), LS_F64), y = ls_ones(LS_SHAPE(BATCH, OUT), LS_F64);
        LS_CHECK(ls_pipeline_backward(pipeline, rank == 0 ? NULL : x, y, criterion, &factor, NULL) != LS_OK);
        LS_EXPECT_MESSAGE("rank 0's input is NULL");
        LS_CHECK(ls_scope_end(scope) != LS_OK);
        x = ls_ones(LS_SHAPE(BATCH, IN), LS_F64), y = ls_ones(LS_SHAPE(BATCH, OUT), LS_F64);
        LS_TRY(ls_pipeline_backward(pipeline, x, y, criterion, &factor, NULL));
        LS_CHECK(ls_module_parameter_count(pipeline) == 0 || !no_gradients(pipeline));
        ls_module_free(pipeline);
        ls_release(x);
        ls_release(y);
    }
    return LS_OK;
}

static ls_status constant_loss(ls_comm *world) {
    ls_tensor *x = ls_ones(LS_SHAPE(BATCH, IN), LS_F64), *y = ls_ones(LS_SHAPE(BATCH, OUT), LS_F64);
    ls_tensor *parameter = ls_ones(LS_SHAPE(2), LS_F64);
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    LS_TRY(ls_set_requires_grad(parameter, true));
    for (int k = 0; k < 2; k++) {
        ls_module *pipeline = ls_pipeline(make_model(), world, NULL);
        LS_CHECK(ls_pipeline_backward(pipeline, x, y, k == 0 ? constant_criterion : unrelated_criterion, parameter,
                                      NULL) == (last ? LS_ERR_STATE : LS_ERR_MISMATCH));
        LS_EXPECT_MESSAGE(k == 0 ? "the criterion's loss has no history"
                                 : "the criterion's loss does not depend on the output");
        ls_module_free(pipeline);
    }
    ls_release(x);
    ls_release(y);
    ls_release(parameter);
    return LS_OK;
}

/* The tape before the pipeline would be used up by the first micro-batch. The pipeline stays usable. */
static ls_status input_with_history(ls_comm *world) {
    const bool first = ls_comm_rank(world) == 0;
    ls_module *pipeline = ls_pipeline(make_model(), world, NULL);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *leaf = ls_ones(LS_SHAPE(BATCH, IN), LS_F64), *y = ls_ones(LS_SHAPE(BATCH, OUT), LS_F64);
    LS_TRY(ls_set_requires_grad(leaf, true));
    ls_tensor *x = ls_square(leaf);
    LS_CHECK(ls_pipeline_backward(pipeline, x, y, criterion, &factor, NULL) ==
             (first ? LS_ERR_UNSUPPORTED : LS_ERR_MISMATCH));
    LS_EXPECT_MESSAGE("rank 0's input has a history");
    LS_TRY(ls_pipeline_backward(pipeline, leaf, y, criterion, &factor, NULL));
    LS_CHECK(!first || ls_grad(leaf) != NULL);
    LS_CHECK(ls_scope_end(scope) != LS_OK); /* the scope reports the failed call */
    ls_module_free(pipeline);
    return LS_OK;
}

/* ---- stages that fail in mid-step -------------------------------------------------------------------------------- */

/* The number of calls that this rank's trap lets pass; negative: all. */
static _Thread_local int passes;

static ls_status spring(const char *where) {
    return passes < 0 || passes-- > 0 ? LS_OK : ls_fail(LS_ERR_ARGUMENT, "trap in the %s", where);
}

static ls_tensor *trap_forward(ls_module *self, ls_tensor *input) {
    (void)self;
    return spring("forward pass") == LS_OK ? input : ls_scope_failed();
}

static ls_status trap_backward(ls_tensor *parameter, void *user) {
    (void)parameter;
    (void)user;
    return spring("backward pass");
}

enum { TRAPS = 5, BATCHES = 4, SMALL = 8, LARGE = 8000 };

/* A layer and a trap for each stage. */
static ls_module *make_trapped(int stages) {
    static const ls_module_type trap = {.name = "Trap", .forward = trap_forward};
    ls_module *layers[2 * TRAPS];
    for (int i = 0; i < 2 * stages; i++) {
        layers[i] = i % 2 == 0 ? ls_nn_linear_with(IN, IN, &in_f64) : ls_module_new(&trap);
    }
    return ls_sequential_of(layers, 2 * stages);
}

/* Runs one step in which stage `failing` fails after some calls. All stages get the error, in this step or in the
 * next. */
static ls_status fail_once(ls_comm *world, ls_pipeline_schedule schedule, int failing, bool backwards, int number,
                           int64_t samples) {
    static const int cut[] = {2, 4, 6, 8};
    const int rank = ls_comm_rank(world);
    char name[64];
    (void)snprintf(name, sizeof name, "stage %d (rank %d)", failing, failing);
    ls_module *pipeline =
        ls_pipeline(make_trapped(ls_comm_size(world)), world,
                    &(ls_pipeline_options){.schedule = schedule, .cut = cut, .micro_batches = BATCHES});
    LS_CHECK(pipeline != NULL);
    if (backwards) {
        LS_TRY(ls_add_grad_hook(ls_module_parameter(pipeline, 0), trap_backward, NULL));
    }
    passes = rank == failing ? number : -1;
    ls_tensor *x = ls_ones(LS_SHAPE(samples, IN), LS_F64);
    double loss = 0;
    ls_status status = ls_pipeline_backward(pipeline, x, x, criterion, &factor, &loss);
    LS_CHECK(status == LS_OK ? backwards && rank > failing : rank == failing || status == LS_ERR_MISMATCH);
    LS_CHECK(status == LS_OK || strstr(ls_error_message(), rank == failing ? "trap" : name) != NULL);
    status = ls_pipeline_backward(pipeline, x, x, criterion, &factor, &loss);
    LS_CHECK(status == LS_ERR_STATE || (status == LS_ERR_MISMATCH && rank > failing));
    LS_EXPECT_MESSAGE("an earlier step of this pipeline failed on stage");
    LS_CHECK(strstr(ls_error_message(), name) != NULL && strstr(ls_error_message(), "trap in the") != NULL);
    ls_module_free(pipeline);
    ls_release(x);
    return LS_OK;
}

/* With large gradients, stage s + 1 sends a gradient when stage s accepts it (the rendezvous protocol). */
static ls_status failures(ls_comm *world) {
    for (int failing = 0; failing < ls_comm_size(world); failing++) {
        for (int number = 0; number < 2 * BATCHES; number++) { /* of the passes: forward passes, and backward passes */
            for (int way = 0; way < 4; way++) {
                const bool backwards = way % 2 == 1;
                const ls_pipeline_schedule schedule = way < 2 ? LS_PIPELINE_1F1B : LS_PIPELINE_GPIPE;
                if (backwards || number < BATCHES) {
                    LS_TRY(fail_once(world, schedule, failing, backwards, number, number % 2 == 0 ? LARGE : SMALL));
                }
            }
        }
    }
    return train(world, NULL, NULL); /* the communicator is still usable */
}

/* The same without gradients. */
static ls_status failures_of_forward(ls_comm *world) {
    for (int failing = 0; failing < ls_comm_size(world); failing++) {
        ls_scope *scope = ls_scope_begin();
        ls_module *pipeline = ls_pipeline(make_trapped(ls_comm_size(world)), world, NULL);
        ls_tensor *x = ls_ones(LS_SHAPE(8, IN), LS_F64);
        passes = ls_comm_rank(world) == failing ? 0 : -1;
        LS_CHECK(ls_forward(pipeline, x) == NULL);
        passes = -1;
        ls_module_free(pipeline);
        LS_CHECK(ls_scope_end(scope) != LS_OK);
    }
    return LS_OK;
}

/* If rank 0 has no input because a call failed, every rank fails, and the next call uses the same input on all ranks.
 */
static ls_status forward_without_input(ls_comm *world) {
    ls_module *pipeline = ls_pipeline(make_model(), world, NULL);
    for (int k = 0; k < 2; k++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = k == 0 ? NULL : ls_ones(LS_SHAPE(BATCH, IN), LS_F64);
        LS_CHECK((ls_forward(pipeline, ls_comm_rank(world) == 0 ? x : NULL) != NULL) == (k == 1));
        LS_CHECK((ls_scope_end(scope) == LS_OK) == (k == 1));
    }
    ls_module_free(pipeline);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(schedules_and_cuts(world));
    LS_TRY(measurement_leaves_no_trace(world));
    LS_TRY(with_divided_data(world));
    LS_TRY(with_uneven_data(world));
    LS_TRY(criteria(world));
    LS_TRY(silent_criterion(world));
    LS_TRY(with_divided_layers(world));
    LS_TRY(wrong_input(world));
    LS_TRY(without_recording(world));
    LS_TRY(constant_loss(world));
    LS_TRY(input_with_history(world));
    LS_TRY(stage_without_layers(world));
    LS_TRY(failures(world));
    LS_TRY(failures_of_forward(world));
    LS_TRY(forward_without_input(world));
    return ls_comm_barrier(world, NULL);
}
