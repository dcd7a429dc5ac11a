/*
 * Outer steps (ls_outer) in hand-written loops: the mean of the replicas, Nesterov momentum, buffers, frozen
 * parameters, calls that are refused between two outer steps, ranks that are out of step, and the number of bytes sent.
 *
 * ranks: 1 2 3 4 5
 * sanitized: 2 3
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "comm/meter.h"
#include "parallel/parallel.h"
#include "tests/support/numbers.h"

enum { INPUTS = 3, HIDDEN = 4, SAMPLES = 5, STEPS = 3, ROUNDS = 4, MOST = 64 };

/* ---- training ---------------------------------------------------------------------------------------------------- */

static ls_module *make_model(void) {
    ls_seed(7);
    return ls_sequential(ls_nn_linear_with(INPUTS, HIDDEN, &(ls_linear_options){.dtype = LS_F64}), ls_nn_tanh(),
                         ls_nn_linear_with(HIDDEN, 1, &(ls_linear_options){.dtype = LS_F64}));
}

/* Runs a training step on samples that differ between ranks. */
static ls_status train_step(ls_comm *world, ls_module *model, ls_optimizer *optimizer, int step) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_empty(LS_SHAPE(SAMPLES, INPUTS), LS_F64);
    for (int64_t i = 0; i < ls_numel(x); i++) {
        numbers_set(x, i, sin((double)(i + 100 * step + 10000 * ls_comm_rank(world))));
    }
    ls_optimizer_zero_grad(optimizer);
    ls_status status = ls_backward(ls_mean(ls_square(ls_sub(ls_forward(model, x), ls_sum_axes(x, LS_AXES(1), true)))));
    status = status == LS_OK ? ls_optimizer_step(optimizer) : status;
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

/* Copies all parameters of the model into `numbers`, in order. Returns the number of elements. */
static int read_parameters(const ls_module *model, double *numbers) {
    int count = 0;
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        const ls_tensor *parameter = ls_module_parameter(model, i);
        for (int64_t k = 0; k < ls_numel(parameter); k++) {
            numbers[count++] = numbers_get(parameter, k);
        }
    }
    return count;
}

/* Replaces the numbers with their mean over the ranks. */
static ls_status average(ls_comm *world, double *numbers, int count) {
    LS_TRY(ls_comm_allreduce(world, numbers, numbers, (size_t)count, LS_F64, LS_SUM, NULL));
    for (int i = 0; i < count; i++) {
        numbers[i] /= ls_comm_size(world);
    }
    return LS_OK;
}

/* ---- against a computation by hand ------------------------------------------------------------------------------- */

/* Nesterov's method on the parameters after the last outer step, in double precision. */
typedef struct reference {
    double anchor[MOST], velocity[MOST];
} reference;

static ls_status step_reference(ls_comm *world, reference *r, double *local, int count, double rate, double momentum) {
    LS_TRY(average(world, local, count));
    for (int i = 0; i < count; i++) {
        const double g = r->anchor[i] - local[i];
        r->velocity[i] = momentum * r->velocity[i] + g;
        r->anchor[i] -= rate * (g + momentum * r->velocity[i]);
    }
    return LS_OK;
}

/* The last round is shorter: ls_outer_sync ends it. */
static ls_status compare(ls_comm *world, ls_outer_options options, double rate, double momentum) {
    ls_module *model = make_model();
    ls_optimizer *optimizer = ls_adam(model, &(ls_adam_options){.learning_rate = 0.02});
    ls_outer *outer = ls_outer_new(model, world, &options);
    LS_CHECK(outer != NULL);
    LS_CHECK((ls_outer_optimizer(outer) == NULL) == (rate == 1 && momentum == 0));
    reference r = {.velocity = {0}};
    double local[MOST], is[MOST];
    const int count = read_parameters(model, r.anchor);
    for (int step = 0; step < STEPS * ROUNDS - 1; step++) {
        LS_TRY(train_step(world, model, optimizer, step));
        (void)read_parameters(model, local);
        LS_TRY(ls_outer_step(outer));
        (void)read_parameters(model, is);
        if (step % STEPS < STEPS - 1) {
            LS_CHECK(memcmp(is, local, (size_t)count * sizeof *is) == 0);
            continue;
        }
        LS_TRY(step_reference(world, &r, local, count, rate, momentum));
        for (int i = 0; i < count; i++) {
            LS_CHECK(fabs(is[i] - r.anchor[i]) < 1e-14);
        }
        LS_TRY(ranks_have_same_module(world, model));
    }
    LS_TRY(ls_outer_sync(outer));
    (void)read_parameters(model, is);
    LS_TRY(step_reference(world, &r, local, count, rate, momentum));
    for (int i = 0; i < count; i++) {
        LS_CHECK(fabs(is[i] - r.anchor[i]) < 1e-14);
    }
    LS_TRY(ranks_have_same_module(world, model));
    LS_TRY(ls_outer_sync(outer)); /* no step since */
    (void)read_parameters(model, local);
    LS_CHECK(memcmp(is, local, (size_t)count * sizeof *is) == 0);
    ls_outer_free(outer);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

static ls_status by_hand(ls_comm *world) {
    LS_TRY(compare(world, (ls_outer_options){.steps = STEPS}, 0.7, 0.9));
    LS_TRY(compare(world, (ls_outer_options){.steps = STEPS, .learning_rate = 0.5, .momentum = LS_ZERO}, 0.5, 0));
    LS_TRY(compare(world, (ls_outer_options){.steps = STEPS, .learning_rate = 1, .momentum = 0.5}, 1, 0.5));
    return compare(world, (ls_outer_options){.steps = STEPS, .learning_rate = 1, .momentum = LS_ZERO}, 1, 0);
}

/* ---- buffers and frozen parameters ------------------------------------------------------------------------------- */

static ls_status buffers_are_averaged(ls_comm *world) {
    ls_module *model = ls_sequential(ls_nn_linear(INPUTS, 2), ls_nn_batch_norm_1d(2, NULL));
    LS_CHECK(ls_module_add_buffer(ls_module_child(model, 1), "number", ls_zeros(LS_SCALAR, LS_I64)) != NULL);
    ls_outer *outer = ls_outer_new(model, world, &(ls_outer_options){.steps = 2});
    LS_CHECK(outer != NULL);
    /* A buffer that is added later is a cache of this rank. */
    const ls_tensor *cache = ls_module_add_buffer(model, "cache", ls_full(LS_SCALAR, LS_F32, ls_comm_rank(world) + 5));
    LS_CHECK(cache != NULL);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *mean = ls_module_find(model, "1.running_mean"), *number = ls_module_find(model, "1.number");
    LS_CHECK(mean != NULL && number != NULL);
    LS_TRY(ls_copy_into(number, ls_full(LS_SCALAR, LS_I64, ls_comm_rank(world) + 3)));
    double before[2];
    for (int step = 0; step < 2; step++) {
        LS_CHECK(ls_forward(model, ls_full(LS_SHAPE(4, INPUTS), LS_F32, ls_comm_rank(world) + 1)) != NULL);
        before[0] = numbers_get(mean, 0);
        before[1] = numbers_get(mean, 1);
        LS_TRY(ls_outer_step(outer));
    }
    LS_TRY(average(world, before, 2));
    LS_CHECK(fabs(numbers_get(mean, 0) - before[0]) < 1e-6 && fabs(numbers_get(mean, 1) - before[1]) < 1e-6);
    LS_CHECK(ls_item(number) == 3 && ls_item(cache) == ls_comm_rank(world) + 5);
    bool equal = false;
    uint64_t bits = 0;
    const double element = numbers_get(mean, 1);
    memcpy(&bits, &element, sizeof bits);
    LS_TRY(ls_ranks_have_equal(world, (int64_t)(bits >> 1), &equal));
    LS_CHECK(equal);
    LS_TRY(ls_scope_end(scope));
    ls_outer_free(outer);
    ls_module_free(model);
    return LS_OK;
}

static ls_tensor *scale(ls_module *self, ls_tensor *x) {
    return ls_mul(x, ls_module_parameter(self, 0));
}

/* Parameters of integer dtypes have no mean: an outer step gives all ranks the parameters of rank 0. */
static ls_status integers_are_equal(ls_comm *world, double learning_rate, double momentum) {
    static const ls_module_type type = {.name = "Scale", .forward = scale};
    ls_module *model = ls_module_new(&type);
    ls_tensor *factor = ls_module_add_parameter(model, "factor", ls_ones(LS_SHAPE(2), LS_F32));
    ls_tensor *index = ls_module_add_parameter(model, "index", ls_zeros(LS_SHAPE(3), LS_I64));
    LS_CHECK(factor != NULL && index != NULL);
    const ls_outer_options options = {.steps = 1, .learning_rate = learning_rate, .momentum = momentum};
    ls_outer *outer = ls_outer_new(model, world, &options);
    LS_CHECK(outer != NULL);
    LS_TRY(ls_fill(index, ls_comm_rank(world) + 7));
    LS_TRY(ls_outer_step(outer));
    ls_tensor *expected = ls_full(LS_SHAPE(3), LS_I64, 7);
    LS_CHECK(ls_equal(index, expected) && numbers_get(factor, 1) == 1);
    ls_release(expected);
    ls_outer_free(outer);
    ls_module_free(model);
    return LS_OK;
}

/* A parameter that is frozen after some outer steps stays bit-identical, whatever its momentum. */
static ls_status frozen_parameters_stay(ls_comm *world) {
    ls_module *model = make_model();
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1});
    ls_outer *outer = ls_outer_new(model, world, &(ls_outer_options){.steps = 1});
    LS_CHECK(outer != NULL);
    LS_TRY(train_step(world, model, optimizer, 0));
    LS_TRY(ls_outer_step(outer));
    LS_TRY(ls_module_set_requires_grad(ls_module_child(model, 0), false));
    double before[MOST], after[MOST];
    (void)read_parameters(model, before);
    LS_TRY(train_step(world, model, optimizer, 1));
    LS_TRY(ls_outer_step(outer));
    (void)read_parameters(model, after);
    const int frozen = INPUTS * HIDDEN + HIDDEN;
    LS_CHECK(memcmp(before, after, (size_t)frozen * sizeof *before) == 0);
    LS_CHECK(after[frozen] != before[frozen]);
    LS_TRY(ranks_have_same_module(world, model));
    ls_outer_free(outer);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

/* Frozen parameters that are equal on all ranks keep their bits, although their mean may differ by rounding. */
static ls_status frozen_parameters_are_not_rounded(ls_comm *world) {
    ls_module *model = make_model();
    LS_TRY(ls_module_set_requires_grad(model, false));
    LS_TRY(ls_module_set_requires_grad(ls_module_child(model, 2), true));
    ls_outer *outer =
        ls_outer_new(model, world, &(ls_outer_options){.steps = 1, .learning_rate = 1, .momentum = LS_ZERO});
    LS_CHECK(outer != NULL);
    double before[MOST], after[MOST];
    const int count = read_parameters(model, before);
    LS_TRY(ls_outer_step(outer));
    (void)read_parameters(model, after);
    LS_CHECK(count > INPUTS * HIDDEN && memcmp(before, after, INPUTS * HIDDEN * sizeof *before) == 0);
    ls_outer_free(outer);
    ls_module_free(model);
    return LS_OK;
}

/*
 * If only one of two frozen parameters differs between ranks, the other keeps its bits: elements of the last outer
 * step, and elements that all ranks have changed in the same way. Plain averaging leaves gradients unchanged.
 */
static ls_status frozen_parameters_are_separate(ls_comm *world, double rate, double momentum) {
    ls_module *model = make_model();
    ls_outer *outer =
        ls_outer_new(model, world, &(ls_outer_options){.steps = 1, .learning_rate = rate, .momentum = momentum});
    LS_CHECK(outer != NULL);
    ls_scope *scope = ls_scope_begin();
    LS_TRY(ls_backward(ls_sum(ls_forward(model, ls_ones(LS_SHAPE(1, INPUTS), LS_F64)))));
    for (int i = 0; i < 2; i++) { /* unlike ls_module_set_requires_grad, this keeps the gradients */
        LS_TRY(ls_set_requires_grad(ls_module_parameter(model, i), false));
    }
    numbers_set(ls_module_parameter(model, 0), 0, 1e-300);
    LS_TRY(ls_fill(ls_module_parameter(model, 1), ls_comm_rank(world)));
    const ls_tensor *gradient = ls_grad(ls_module_parameter(model, 0));
    double before[MOST], after[MOST];
    (void)read_parameters(model, before);
    const double slope = numbers_get(gradient, 0);
    LS_TRY(ls_outer_step(outer));
    (void)read_parameters(model, after);
    LS_CHECK(memcmp(before, after, INPUTS * HIDDEN * sizeof *before) == 0);
    LS_CHECK(after[INPUTS * HIDDEN] == (ls_comm_size(world) - 1) / 2.0);
    gradient = ls_grad(ls_module_parameter(model, 0));
    LS_CHECK(rate == 1 && momentum == LS_ZERO ? numbers_get(gradient, 0) == slope : gradient == NULL);
    LS_TRY(ls_scope_end(scope));
    ls_outer_free(outer);
    ls_module_free(model);
    return LS_OK;
}

/* A layer that is frozen between two outer steps gets the mean of the ranks' values in the next outer step. */
static ls_status frozen_between_outer_steps(ls_comm *world, double rate, double momentum) {
    ls_module *model = make_model();
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1});
    ls_outer *outer =
        ls_outer_new(model, world, &(ls_outer_options){.steps = 3, .learning_rate = rate, .momentum = momentum});
    LS_CHECK(outer != NULL);
    for (int step = 0; step < 2; step++) {
        LS_TRY(train_step(world, model, optimizer, step));
        LS_TRY(ls_outer_step(outer));
    }
    LS_TRY(ls_module_set_requires_grad(ls_module_child(model, 0), false));
    const int frozen = INPUTS * HIDDEN + HIDDEN;
    double expected[MOST], after[MOST];
    (void)read_parameters(model, expected);
    LS_TRY(average(world, expected, frozen));
    LS_TRY(train_step(world, model, optimizer, 2));
    LS_TRY(ls_outer_step(outer));
    (void)read_parameters(model, after);
    for (int i = 0; i < frozen; i++) {
        LS_CHECK(fabs(after[i] - expected[i]) < 1e-12);
    }
    LS_TRY(ranks_have_same_module(world, model));
    ls_outer_free(outer);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

/* A parameter that was frozen when ls_outer_new was called takes part in outer steps after it is unfrozen. */
static ls_status unfrozen_parameters_move(ls_comm *world) {
    ls_module *model = make_model();
    LS_TRY(ls_module_set_requires_grad(ls_module_child(model, 0), false));
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1});
    ls_outer *outer = ls_outer_new(model, world, &(ls_outer_options){.steps = 1});
    LS_CHECK(outer != NULL);
    double before[MOST], after[MOST];
    for (int step = 0; step < 2; step++) {
        (void)read_parameters(model, before);
        LS_TRY(train_step(world, model, optimizer, step));
        LS_TRY(ls_outer_step(outer));
        (void)read_parameters(model, after);
        LS_CHECK((after[0] != before[0]) == (step == 1));
        LS_TRY(ranks_have_same_module(world, model));
        LS_TRY(ls_module_set_requires_grad(ls_module_child(model, 0), true));
    }
    ls_outer_free(outer);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

/* A data-parallel model whose gradients stay local, and ranks without samples. */
static ls_status inside_data_parallel(ls_comm *world) {
    ls_module *model = ls_data_parallel(make_model(), world, NULL);
    LS_CHECK(ls_outer_new(model, world, NULL) == NULL);
    LS_EXPECT_MESSAGE("pass the model itself");
    LS_TRY(ls_data_parallel_no_sync(model, true));
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1});
    ls_outer *outer = ls_outer_new(model, world, &(ls_outer_options){.steps = 2});
    LS_CHECK(outer != NULL);
    for (int step = 0; step < 4; step++) {
        const bool skips = step == 3 && ls_comm_rank(world) > 0;
        LS_TRY(skips ? ls_data_parallel_skip(model) : train_step(world, model, optimizer, step));
        LS_TRY(ls_outer_step(outer));
        const ls_status expected = step % 2 == 0 && ls_comm_size(world) > 1 ? LS_ERR_STATE : LS_OK;
        LS_CHECK(ls_data_parallel_check(model) == expected);
    }
    LS_TRY(ranks_have_same_module(world, model));
    ls_outer_free(outer);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static ls_status wrong_calls(ls_comm *world) {
    ls_module *model = make_model(), *empty = ls_sequential(ls_nn_tanh(), ls_nn_tanh());
    LS_CHECK(ls_outer_new(NULL, world, NULL) == NULL && ls_outer_new(model, NULL, NULL) == NULL);
    LS_CHECK(ls_outer_new(model, world, &(ls_outer_options){.steps = -1}) == NULL);
    LS_EXPECT_MESSAGE(".steps is -1");
    LS_CHECK(ls_outer_new(model, world, &(ls_outer_options){.learning_rate = LS_ZERO}) == NULL);
    LS_EXPECT_MESSAGE("must be above 0");
    LS_CHECK(ls_outer_new(model, world, &(ls_outer_options){.momentum = 1}) == NULL);
    LS_EXPECT_MESSAGE("momentum");
    LS_CHECK(ls_outer_new(empty, world, NULL) == NULL);
    LS_EXPECT_MESSAGE("no parameters");
    LS_CHECK(ls_outer_step(NULL) == LS_ERR_ARGUMENT && ls_outer_sync(NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_outer_optimizer(NULL) == NULL);
    ls_outer_free(NULL);
    for (int wrong = -1; wrong <= 6 && ls_comm_size(world) > 1; wrong += 7) { /* -1 would fail on any rank */
        const ls_outer_options options = {.steps = ls_comm_rank(world) == 1 ? wrong : 5};
        LS_CHECK(ls_outer_new(model, world, &options) == NULL && ls_error_status() == LS_ERR_MISMATCH);
        LS_EXPECT_MESSAGE("the options differ between the ranks");
    }
    ls_module *sharded = ls_nn_column_parallel(world, INPUTS, 2 * ls_comm_size(world), NULL);
    LS_CHECK(ls_outer_new(sharded, world, NULL) == NULL && ls_error_status() == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE("is sharded over the ranks of the communicator");
    ls_module *zero = ls_data_parallel(make_model(), world, &(ls_data_parallel_options){.zero = 1});
    LS_TRY(ls_data_parallel_no_sync(zero, true));
    if (ls_comm_size(world) > 1) {
        LS_CHECK(ls_outer_new(zero, world, NULL) == NULL && ls_error_status() == LS_ERR_UNSUPPORTED);
        LS_EXPECT_MESSAGE("omit .zero");
    }
    ls_module_free(zero);
    ls_module_free(sharded);
    ls_module_free(empty);
    ls_module_free(model);
    return LS_OK;
}

/* A failure on the last rank alone, or on all ranks: every rank fails, and keeps its parameters. */
static ls_status failures_before_the_copy(ls_comm *world) {
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    for (int halves = 0; halves <= 1; halves++) {
        ls_seed((uint64_t)ls_comm_rank(world));
        ls_module *model = ls_nn_linear_with(INPUTS, 1, &(ls_linear_options){.dtype = halves == 1 ? LS_BF16 : LS_F32});
        const uint64_t before = ls_module_hash(model);
        ls_tensor *alias = last && halves == 0 ? ls_keep(ls_alias(ls_module_parameter(model, 0))) : NULL;
        LS_CHECK(ls_outer_new(model, world, NULL) == NULL);
        LS_CHECK(ls_error_status() == (last || halves == 1 ? LS_ERR_UNSUPPORTED : LS_ERR_MISMATCH));
        LS_EXPECT_MESSAGE(halves == 1 ? "bf16" : "alias");
        ls_release(alias);
        LS_CHECK(ls_module_hash(model) == before);
        ls_module_free(model);
    }
    return ls_comm_barrier(world, NULL);
}

static ls_status refused_between(ls_comm *world) {
    ls_module *model = make_model();
    ls_outer *outer = ls_outer_new(model, world, &(ls_outer_options){.steps = 2});
    LS_CHECK(outer != NULL);
    LS_TRY(ls_outer_step(outer));
    if (ls_comm_size(world) > 1) {
        LS_CHECK(ls_module_hash(model) == 0 && ls_error_status() == LS_ERR_STATE);
        LS_EXPECT_MESSAGE("ls_module_hash: the ranks' parameters differ between two outer steps");
        LS_CHECK(ls_module_save(model, "/dev/null/never.safetensors", NULL) == LS_ERR_STATE);
        LS_EXPECT_MESSAGE("ls_module_save: the ranks' parameters differ between two outer steps");
        LS_CHECK(ls_module_save(ls_module_child(model, 0), "/dev/null/never.safetensors", NULL) == LS_ERR_STATE);
    }
    LS_TRY(ls_outer_sync(outer));
    LS_CHECK(ls_module_hash(model) != 0);
    LS_TRY(ls_outer_step(outer));
    ls_outer_free(outer); /* the replicas are then independent models */
    LS_CHECK(ls_module_hash(model) != 0);
    ls_module_free(model);
    return LS_OK;
}

/* A module that contains the model is refused too. With two outer optimizers, both must have run their outer steps. */
static ls_status refused_around_the_model(ls_comm *world) {
    const ls_status expected = ls_comm_size(world) > 1 ? LS_ERR_STATE : LS_OK;
    ls_module *model = make_model();
    ls_module_retain(model);
    ls_module *wrap = ls_sequential(model, ls_nn_tanh());
    ls_outer *outers[2];
    for (int i = 0; i < 2; i++) {
        outers[i] = ls_outer_new(model, world, &(ls_outer_options){.steps = 9});
        LS_CHECK(wrap != NULL && outers[i] != NULL);
    }
    for (int i = 0; i < 2; i++) {
        LS_TRY(ls_outer_step(outers[i]));
    }
    LS_CHECK((ls_module_hash(wrap) == 0) == (expected != LS_OK));
    LS_TRY(ls_outer_sync(outers[0]));
    LS_CHECK((ls_module_hash(model) == 0) == (expected != LS_OK));
    LS_CHECK((ls_module_hash(wrap) == 0) == (expected != LS_OK));
    LS_TRY(ls_outer_sync(outers[1]));
    LS_CHECK(ls_module_hash(model) != 0 && ls_module_hash(wrap) != 0);
    LS_TRY(ls_outer_step(outers[0]));
    ls_outer_free(outers[0]);
    LS_CHECK(ls_module_hash(wrap) != 0);
    ls_outer_free(outers[1]);
    ls_module_free(wrap);
    ls_module_free(model);
    return LS_OK;
}

/* A layer stays refused until the outer step of each model that contains it, even if it was added to one of the models
 * between two outer steps. */
static ls_status refused_in_two_models(ls_comm *world) {
    ls_module *layer = ls_module_retain(ls_nn_linear(INPUTS, 1)), *relu = ls_module_retain(ls_nn_relu());
    ls_module *models[] = {ls_sequential(layer), make_model()};
    ls_outer *outers[2];
    for (int i = 0; i < 2; i++) {
        outers[i] = ls_outer_new(models[i], world, &(ls_outer_options){.steps = 9});
        LS_CHECK(outers[i] != NULL);
        LS_TRY(ls_outer_step(outers[i]));
    }
    LS_CHECK(ls_module_add_child(models[1], "layer", layer) != NULL);
    LS_CHECK(ls_module_add_child(models[1], "relu", relu) != NULL);
    const bool several = ls_comm_size(world) > 1;
    LS_CHECK((ls_module_hash(relu) == 0) == several);
    ls_outer_free(outers[1]);
    LS_CHECK(ls_module_hash(relu) != 0);
    LS_CHECK((ls_module_hash(layer) == 0) == several && (ls_module_hash(models[1]) == 0) == several);
    ls_outer_free(outers[0]);
    LS_CHECK(ls_module_hash(layer) != 0 && ls_module_hash(models[1]) != 0);
    ls_module_free(models[0]);
    ls_module_free(models[1]);
    ls_module_free(layer);
    ls_module_free(relu);
    return LS_OK;
}

/* The last rank takes an additional step, or has frozen a parameter. The communicator stays usable. */
static ls_status ranks_out_of_step(ls_comm *world, bool freezes) {
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    ls_module *model = make_model();
    ls_outer *outer = ls_outer_new(model, world, &(ls_outer_options){.steps = 9});
    LS_CHECK(outer != NULL);
    LS_TRY(ls_outer_step(outer));
    if (last) {
        LS_TRY(freezes ? ls_module_set_requires_grad(ls_module_child(model, 2), false) : ls_outer_step(outer));
    }
    if (ls_comm_size(world) > 1) {
        LS_CHECK(ls_outer_sync(outer) == LS_ERR_MISMATCH);
        LS_EXPECT_MESSAGE("the ranks have taken different numbers of training steps");
    }
    ls_outer_free(outer);
    ls_module_free(model);
    return ls_comm_barrier(world, NULL);
}

/* A layer that is added later would not be part of the outer steps, so every call is refused. */
static ls_status layer_added_later(ls_comm *world, bool to_model) {
    ls_module *model = make_model();
    ls_outer *outer = ls_outer_new(model, world, NULL);
    LS_CHECK(outer != NULL);
    ls_module *layer = ls_nn_linear_with(64, 64, &(ls_linear_options){.dtype = LS_F64});
    LS_CHECK(ls_module_add_child(to_model ? model : ls_module_child(model, 0), "more", layer) != NULL);
    for (int i = 0; i < 2; i++) {
        LS_CHECK(ls_outer_step(outer) == LS_ERR_STATE);
        LS_EXPECT_MESSAGE("the model's parameters have changed since ls_outer_new: add all layers first");
    }
    ls_outer_free(outer);
    ls_module_free(model);
    return LS_OK;
}

/* After ls_module_load, on all ranks or on rank 0 only, an outer step would mix the loaded weights with the parameters
 * from before. It fails on all ranks. Local SGD only averages. */
static ls_status loads_later(ls_comm *world, bool averages, bool syncs, bool alone) {
    const ls_outer_options options = {
        .steps = 2, .learning_rate = averages ? 1 : 0, .momentum = averages ? LS_ZERO : 0};
    ls_module *model = make_model();
    char path[64];
    snprintf(path, sizeof path, "/tmp/lockstep-outer-%d-%d", (int)getpid(), ls_comm_rank(world));
    LS_TRY(ls_module_save(model, path, NULL));
    for (int steps = 0; steps <= 2; steps++) { /* after ls_outer_new, between outer steps, after an outer step */
        ls_outer *outer = ls_outer_new(model, world, &options);
        for (int i = 0; i < steps; i++) {
            LS_TRY(ls_outer_step(outer));
        }
        LS_TRY(!alone || ls_comm_rank(world) == 0 ? ls_module_load(model, path) : LS_OK);
        LS_TRY(alone ? ls_sync_parameters(model, world, 0) : LS_OK);
        LS_TRY(!syncs && steps % 2 == 0 ? ls_outer_step(outer) : LS_OK); /* only counts */
        const ls_status status = syncs ? ls_outer_sync(outer) : ls_outer_step(outer);
        LS_CHECK(status == (averages ? LS_OK : LS_ERR_STATE));
        if (!averages) {
            LS_EXPECT_MESSAGE("ls_module_load has changed the parameters");
        }
        ls_outer_free(outer);
        outer = ls_outer_new(model, world, &options);
        LS_TRY(ls_outer_step(outer));
        LS_TRY(ls_outer_sync(outer));
        ls_outer_free(outer);
    }
    ls_module_free(model);
    LS_CHECK(remove(path) == 0);
    return LS_OK;
}

static ls_status freed_before(ls_comm *world) {
    ls_module *model = make_model();
    ls_outer *outer = ls_outer_new(model, world, NULL);
    LS_CHECK(outer != NULL);
    ls_outer_free(outer);
    LS_CHECK(ls_outer_step(outer) == LS_ERR_STATE);
    LS_EXPECT_MESSAGE("ls_outer_step: the outer optimizer has already been freed (ls_outer_free)");
    ls_outer_free(outer);
    ls_module_free(model);
    return LS_OK;
}

/* The parameters after the last outer step are counted as optimizer state. */
static ls_status anchors_are_counted(ls_comm *world) {
    ls_memory before, after;
    ls_module *model = make_model();
    const int64_t elements = INPUTS * HIDDEN + HIDDEN + HIDDEN + 1;
    LS_TRY(ls_memory_stats(&before));
    ls_outer *outer = ls_outer_new(model, world, NULL);
    LS_CHECK(outer != NULL);
    LS_TRY(ls_memory_stats(&after));
    LS_CHECK(after.bytes[LS_MEMORY_OPTIMIZER] - before.bytes[LS_MEMORY_OPTIMIZER] >= 8 * elements);
    LS_CHECK(after.bytes[LS_MEMORY_ACTIVATIONS] == before.bytes[LS_MEMORY_ACTIVATIONS]);
    ls_outer_free(outer);
    ls_module_free(model);
    return LS_OK;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

enum { WIDTH = 256, LONG = 32 };

/* Sets *bytes to the bytes of LONG training steps, with outer steps or with ordinary data parallelism. */
static ls_status count_bytes(ls_comm *world, bool rare, int64_t *bytes) {
    ls_seed(5);
    ls_module *model = ls_sequential(ls_nn_linear(WIDTH, WIDTH), ls_nn_tanh(), ls_nn_linear(WIDTH, WIDTH));
    model = rare ? model : ls_data_parallel(model, world, NULL);
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    ls_outer *outer = rare ? ls_outer_new(model, world, &(ls_outer_options){.steps = LONG}) : NULL;
    uint64_t before = 0;
    for (int step = 0; step < 2 * LONG; step++) {
        before = step == LONG ? ls_comm_metered.bytes : before; /* the first steps also compare the ranks */
        ls_scope *scope = ls_scope_begin();
        ls_optimizer_zero_grad(optimizer);
        LS_TRY(ls_backward(ls_mean(ls_square(ls_forward(model, ls_ones(LS_SHAPE(1, WIDTH), LS_F32))))));
        LS_TRY(ls_optimizer_step(optimizer));
        LS_TRY(outer != NULL ? ls_outer_step(outer) : LS_OK);
        LS_TRY(ls_scope_end(scope));
    }
    *bytes = (int64_t)(ls_comm_metered.bytes - before);
    ls_outer_free(outer);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

static ls_status few_bytes(ls_comm *world) {
    int64_t rare = 0, ordinary = 0;
    if (ls_comm_size(world) != 2) {
        return LS_OK;
    }
    LS_TRY(count_bytes(world, true, &rare));
    LS_TRY(count_bytes(world, false, &ordinary));
    LS_CHECK(rare > 0 && 31 * rare <= ordinary);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(by_hand(world));
    LS_TRY(buffers_are_averaged(world));
    LS_TRY(integers_are_equal(world, 0, 0));
    LS_TRY(integers_are_equal(world, 1, LS_ZERO));
    LS_TRY(frozen_parameters_stay(world));
    LS_TRY(frozen_parameters_are_not_rounded(world));
    LS_TRY(frozen_parameters_are_separate(world, 0, 0));
    LS_TRY(frozen_parameters_are_separate(world, 1, LS_ZERO));
    LS_TRY(frozen_between_outer_steps(world, 0, 0));
    LS_TRY(frozen_between_outer_steps(world, 1, LS_ZERO));
    LS_TRY(unfrozen_parameters_move(world));
    LS_TRY(inside_data_parallel(world));
    LS_TRY(wrong_calls(world));
    LS_TRY(failures_before_the_copy(world));
    LS_TRY(refused_between(world));
    LS_TRY(refused_around_the_model(world));
    LS_TRY(refused_in_two_models(world));
    LS_TRY(ranks_out_of_step(world, false));
    LS_TRY(ranks_out_of_step(world, true));
    LS_TRY(layer_added_later(world, false));
    LS_TRY(layer_added_later(world, true));
    LS_TRY(freed_before(world));
    for (int i = 0; i < 8; i++) {
        LS_TRY(loads_later(world, i % 2 == 1, i / 2 % 2 == 1, i < 4));
    }
    LS_TRY(anchors_are_counted(world));
    return few_bytes(world);
}
