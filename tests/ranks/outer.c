/*
 * Outer steps (ls_outer) in hand-written loops: the mean of the replicas, Nesterov momentum, buffers, frozen
 * parameters, and the number of bytes sent.
 *
 * ranks: 1 2 3 4 5
 * sanitized: 2 3
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <math.h>

#include <lockstep/lockstep.h>

#include "comm/meter.h"
#include "parallel/parallel.h"
#include "tests/support/numbers.h"
#include "tests/support/outer.h"

enum { SAMPLES = 5, STEPS = 3, ROUNDS = 4, MOST = 64 };

/* ---- training ---------------------------------------------------------------------------------------------------- */

/* Runs a training step on samples that differ between ranks. */
static ls_status train_step(ls_comm *world, ls_module *model, ls_optimizer *optimizer, int step) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_empty(LS_SHAPE(SAMPLES, OUTER_INPUTS), LS_F64);
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
    ls_module *model = outer_model();
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
    ls_module *model = ls_sequential(ls_nn_linear(OUTER_INPUTS, 2), ls_nn_batch_norm_1d(2, NULL));
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
        LS_CHECK(ls_forward(model, ls_full(LS_SHAPE(4, OUTER_INPUTS), LS_F32, ls_comm_rank(world) + 1)) != NULL);
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
    ls_module *model = outer_model();
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
    const int frozen = OUTER_INPUTS * OUTER_HIDDEN + OUTER_HIDDEN;
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
    ls_module *model = outer_model();
    LS_TRY(ls_module_set_requires_grad(model, false));
    LS_TRY(ls_module_set_requires_grad(ls_module_child(model, 2), true));
    ls_outer *outer =
        ls_outer_new(model, world, &(ls_outer_options){.steps = 1, .learning_rate = 1, .momentum = LS_ZERO});
    LS_CHECK(outer != NULL);
    double before[MOST], after[MOST];
    const int count = read_parameters(model, before);
    LS_TRY(ls_outer_step(outer));
    (void)read_parameters(model, after);
    LS_CHECK(count > OUTER_INPUTS * OUTER_HIDDEN &&
             memcmp(before, after, OUTER_INPUTS * OUTER_HIDDEN * sizeof *before) == 0);
    ls_outer_free(outer);
    ls_module_free(model);
    return LS_OK;
}

/*
 * If only one of two frozen parameters differs between ranks, the other keeps its bits: elements of the last outer
 * step, and elements that all ranks have changed in the same way. Plain averaging leaves gradients unchanged.
 */
static ls_status frozen_parameters_are_separate(ls_comm *world, double rate, double momentum) {
    ls_module *model = outer_model();
    ls_outer *outer =
        ls_outer_new(model, world, &(ls_outer_options){.steps = 1, .learning_rate = rate, .momentum = momentum});
    LS_CHECK(outer != NULL);
    ls_scope *scope = ls_scope_begin();
    LS_TRY(ls_backward(ls_sum(ls_forward(model, ls_ones(LS_SHAPE(1, OUTER_INPUTS), LS_F64)))));
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
    LS_CHECK(memcmp(before, after, OUTER_INPUTS * OUTER_HIDDEN * sizeof *before) == 0);
    LS_CHECK(after[OUTER_INPUTS * OUTER_HIDDEN] == (ls_comm_size(world) - 1) / 2.0);
    gradient = ls_grad(ls_module_parameter(model, 0));
    LS_CHECK(rate == 1 && momentum == LS_ZERO ? numbers_get(gradient, 0) == slope : gradient == NULL);
    LS_TRY(ls_scope_end(scope));
    ls_outer_free(outer);
    ls_module_free(model);
    return LS_OK;
}

/* A layer that is frozen between two outer steps gets the mean of the ranks' values in the next outer step. */
static ls_status frozen_between_outer_steps(ls_comm *world, double rate, double momentum) {
    ls_module *model = outer_model();
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1});
    ls_outer *outer =
        ls_outer_new(model, world, &(ls_outer_options){.steps = 3, .learning_rate = rate, .momentum = momentum});
    LS_CHECK(outer != NULL);
    for (int step = 0; step < 2; step++) {
        LS_TRY(train_step(world, model, optimizer, step));
        LS_TRY(ls_outer_step(outer));
    }
    LS_TRY(ls_module_set_requires_grad(ls_module_child(model, 0), false));
    const int frozen = OUTER_INPUTS * OUTER_HIDDEN + OUTER_HIDDEN;
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
    ls_module *model = outer_model();
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
    ls_module *model = ls_data_parallel(outer_model(), world, NULL);
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
    return few_bytes(world);
}
