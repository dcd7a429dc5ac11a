/*
 * Backward passes that reach only a part of the recorded communication. A generator and a discriminator with batch
 * normalization are trained in the usual order: the discriminator on detached samples, then the generator through the
 * same samples. The results equal PyTorch's on one process (tests/fixtures/make_adversarial.py). Forward passes in
 * training mode without a backward pass change nothing. A rank whose loss omits a result that other ranks need still
 * takes part.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <math.h>
#include <stdio.h>

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "base/share.h"
#include "tests/support/elements.h"
#include "tests/support/operations.h"

enum { STEPS = 3, BATCH = 12, NOISE = 4, SIDE = 4, CHANNELS = 6 };

/* ---- the models -------------------------------------------------------------------------------------------------- */

typedef struct gan {
    ls_comm *world;
    ls_module *generator;
    ls_module *discriminator;
    ls_optimizer *of_generator;
    ls_optimizer *of_discriminator;
} gan;

/* Initializes each parameter with a different wave. */
static ls_status fill(const ls_module *model) {
    ls_scope *scope = ls_scope_begin();
    (void)ls_no_grad(true);
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        ls_tensor *parameter = ls_module_parameter(model, i);
        LS_TRY(ls_copy_into(parameter, wave_between(ls_shape_of(parameter), i + 1, -0.5, 0.7)));
    }
    (void)ls_no_grad(false);
    return ls_scope_end(scope);
}

static ls_module *make_generator(void) {
    const ls_conv_transpose_layer_options plain = {.dtype = LS_F64},
                                          doubling = {.stride = LS_SHAPE(2, 2), .dtype = LS_F64};
    const ls_batch_norm_options wide = {.dtype = LS_F64};
    return ls_sequential(ls_nn_conv_transpose_2d(NOISE, CHANNELS, LS_SHAPE(2, 2), &plain),
                         ls_nn_batch_norm_2d(CHANNELS, &wide), ls_nn_relu(),
                         ls_nn_conv_transpose_2d(CHANNELS, 1, LS_SHAPE(2, 2), &doubling), ls_nn_tanh());
}

static ls_module *make_discriminator(void) {
    const ls_conv_layer_options plain = {.dtype = LS_F64}, halving = {.stride = LS_SHAPE(2, 2), .dtype = LS_F64};
    const ls_batch_norm_options wide = {.dtype = LS_F64};
    return ls_sequential(ls_nn_conv_2d(1, CHANNELS, LS_SHAPE(2, 2), &halving), ls_nn_batch_norm_2d(CHANNELS, &wide),
                         ls_nn_leaky_relu(0.2), ls_nn_conv_2d(CHANNELS, 1, LS_SHAPE(2, 2), &plain), ls_nn_flatten());
}

static ls_status make_gan(gan *g, ls_comm *world) {
    const ls_sgd_options options = {.learning_rate = 0.05, .momentum = 0.5};
    *g = (gan){.world = world, .generator = make_generator(), .discriminator = make_discriminator()};
    LS_CHECK(g->generator != NULL && g->discriminator != NULL);
    LS_TRY(fill(g->generator));
    LS_TRY(fill(g->discriminator));
    g->generator = ls_data_parallel(g->generator, world, NULL);
    g->discriminator = ls_data_parallel(g->discriminator, world, NULL);
    g->of_generator = ls_sgd(g->generator, &options);
    g->of_discriminator = ls_sgd(g->discriminator, &options);
    LS_CHECK(g->of_generator != NULL && g->of_discriminator != NULL);
    return LS_OK;
}

static void free_gan(gan *g) {
    ls_optimizer_free(g->of_generator);
    ls_optimizer_free(g->of_discriminator);
    ls_module_free(g->generator);
    ls_module_free(g->discriminator);
}

/* Returns this rank's rows of a wave. */
static ls_tensor *rows(const gan *g, ls_shape shape, int salt, double low, double high) {
    const ls_share share = ls_share_of(shape.size[0], ls_comm_size(g->world), ls_comm_rank(g->world));
    return ls_narrow(wave_between(shape, salt, low, high), 0, share.start, share.count);
}

static ls_tensor *real_of(const gan *g, int step) {
    return rows(g, LS_SHAPE(BATCH, 1, SIDE, SIDE), 20 + step, -1, 1);
}

static ls_tensor *noise_of(const gan *g, int step) {
    return rows(g, LS_SHAPE(BATCH, NOISE, 1, 1), 40 + step, -2, 2);
}

static ls_tensor *judge(const gan *g, ls_tensor *samples, double truth) {
    ls_tensor *logits = ls_forward(g->discriminator, samples);
    return ls_bce_with_logits_loss(logits, ls_full(ls_shape_of(logits), LS_F64, truth), NULL);
}

static ls_status compare_model(const fixture *expected, const char *prefix, const ls_module *model, bool buffers) {
    char name[64];
    const int parameters = ls_module_parameter_count(model);
    for (int i = 0; i < parameters + (buffers ? ls_module_buffer_count(model) : 0); i++) {
        const bool buffer = i >= parameters;
        const ls_tensor *tensor = buffer ? ls_module_buffer(model, i - parameters) : ls_module_parameter(model, i);
        if (!ls_dtype_is_floating(ls_dtype_of(tensor))) {
            continue;
        }
        snprintf(name, sizeof name, "%s.%s", prefix,
                 buffer ? ls_module_buffer_name(model, i - parameters) : ls_module_parameter_name(model, i));
        const fixture *values = fixture_find(expected, name);
        LS_CHECK(values != NULL && ls_numel(tensor) == values->count);
        for (int at = 0; at < values->count; at++) {
            const double is = ((const double *)elements(tensor))[at];
            if (!(fabs(is - values->values[at]) <= 1e-10)) {
                return ls_fail(LS_ERR_INTERNAL, "%s[%d] is %.9g, of PyTorch %.9g", name, at, is, values->values[at]);
            }
        }
    }
    return LS_OK;
}

/* An extra action in each step. */
typedef enum extra {
    NOTHING,
    OUTER_SCOPE,   /* all steps are in one scope, which collects their tapes */
    LEFT_FORWARD,  /* an unused forward pass in training mode, in the scope of the step */
    ENDED_FORWARD, /* an unused forward pass in its own scope */
    SAME_MODEL,    /* an unused forward pass of the discriminator itself, which changes its running statistics */
    GATHERED,      /* the discriminator accumulates both gradients before it averages them */
    EXTRAS
} extra;

static ls_status compare(const gan *g, extra what) {
    fixture *expected = fixtures_load("adversarial.txt");
    ls_status status = compare_model(expected, "generator", g->generator, true);
    status = status == LS_OK ? compare_model(expected, "discriminator", g->discriminator, what != SAME_MODEL) : status;
    fixtures_free(expected);
    return status;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Uses a second discriminator with its own running statistics. */
static ls_status forward_for_nothing(const gan *g, int step) {
    ls_module *model = make_discriminator();
    ls_module *shared = ls_data_parallel(model, g->world, NULL);
    LS_CHECK(shared != NULL && ls_forward(shared, real_of(g, step)) != NULL);
    ls_module_free(shared);
    return LS_OK;
}

static ls_status extra_forward(const gan *g, int step, extra what) {
    if (what == SAME_MODEL) {
        LS_CHECK(ls_forward(g->discriminator, ls_narrow(real_of(g, step), 0, 0, 1)) != NULL);
    }
    if (what == LEFT_FORWARD) {
        return forward_for_nothing(g, step);
    }
    if (what != ENDED_FORWARD) {
        return LS_OK;
    }
    ls_scope *scope = ls_scope_begin();
    LS_TRY(forward_for_nothing(g, step));
    return ls_scope_end(scope);
}

static ls_status train_discriminator(const gan *g, int step, ls_tensor *fake, extra what) {
    ls_optimizer_zero_grad(g->of_discriminator);
    LS_TRY(ls_data_parallel_no_sync(g->discriminator, what == GATHERED));
    LS_TRY(ls_backward(judge(g, real_of(g, step), 1)));
    LS_TRY(extra_forward(g, step, what));
    LS_TRY(ls_data_parallel_no_sync(g->discriminator, false));
    LS_TRY(ls_backward(judge(g, ls_detach(fake), 0)));
    return ls_optimizer_step(g->of_discriminator);
}

static ls_status take_step(const gan *g, int step, extra what) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *fake = ls_forward(g->generator, noise_of(g, step));
    LS_TRY(train_discriminator(g, step, fake, what));
    LS_TRY(extra_forward(g, step, what));
    ls_optimizer_zero_grad(g->of_generator);
    LS_TRY(ls_backward(judge(g, fake, 1)));
    LS_TRY(ls_optimizer_step(g->of_generator));
    return ls_scope_end(scope);
}

static ls_status usual_order(ls_comm *world) {
    for (extra what = NOTHING; what < EXTRAS; what++) {
        gan g;
        LS_TRY(make_gan(&g, world));
        ls_scope *outer = what == OUTER_SCOPE ? ls_scope_begin() : NULL;
        for (int step = 0; step < STEPS; step++) {
            LS_TRY(take_step(&g, step, what));
        }
        LS_TRY(outer != NULL ? ls_scope_end(outer) : LS_OK);
        ls_scope *scope = ls_scope_begin();
        LS_TRY(compare(&g, what));
        LS_TRY(ls_scope_end(scope));
        free_gan(&g);
    }
    return LS_OK;
}

/* ---- the program's own collectives ------------------------------------------------------------------------------- */

enum { COLLECTIVES = 6 };

static ls_tensor *call(ls_comm *world, int number, ls_tensor *x) {
    switch (number) {
    case 0:
        return ls_allreduce(world, x, LS_SUM);
    case 1:
        return ls_allreduce(world, x, LS_MAX);
    case 2:
        return ls_reduce_scatter(world, x, 0, LS_AVG);
    case 3:
        return ls_allgather(world, x, 0);
    case 4:
        return ls_broadcast(world, x, ls_comm_size(world) - 1);
    default:
        return ls_reduce(world, x, LS_SUM, 0);
    }
}

static ls_tensor *leaf(ls_comm *world) {
    ls_tensor *x = wave(LS_SHAPE(2 * ls_comm_size(world), 3), 1 + ls_comm_rank(world));
    return ls_set_requires_grad(x, true) == LS_OK ? x : NULL;
}

/* With several ranks, the last rank's loss does not use the result. */
static ls_tensor *loss_of(ls_comm *world, ls_tensor *y) {
    const int size = ls_comm_size(world);
    return size > 1 && ls_comm_rank(world) == size - 1 ? ls_scalar(0, LS_F64) : ls_sum(ls_square(y));
}

/* Runs backward from a different loss, which does not reach the recorded communication on any rank. */
static ls_status pass_of_another(ls_comm *world, ls_tensor *y) {
    ls_tensor *other = leaf(world);
    LS_TRY(ls_backward(ls_add(ls_sum(ls_detach(y)), ls_sum(other))));
    LS_CHECK(ls_grad(other) != NULL);
    return LS_OK;
}

static ls_status detached_first(ls_comm *world, int number) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = leaf(world), *expected = leaf(world);
    LS_TRY(ls_backward(loss_of(world, call(world, number, expected))));
    ls_tensor *y = call(world, number, x);
    LS_TRY(pass_of_another(world, y));
    LS_CHECK(ls_grad(x) == NULL);
    LS_TRY(ls_backward(loss_of(world, y)));
    LS_CHECK((ls_grad(x) == NULL) == (ls_grad(expected) == NULL)); /* for a broadcast, only the root has a gradient */
    LS_CHECK(ls_grad(x) == NULL || ls_allclose(ls_grad(x), ls_grad(expected), 0, 0));
    return ls_scope_end(scope);
}

/* Only rank 0 keeps the result. The other ranks still take part in its gradient. */
static ls_status kept_on_one_rank(ls_comm *world) {
    ls_scope *scope = ls_scope_begin(), *inner = ls_scope_begin();
    ls_tensor *x = ls_keep(leaf(world)), *y = ls_allreduce(world, x, LS_SUM);
    y = ls_comm_rank(world) == 0 ? ls_keep(y) : NULL;
    LS_TRY(ls_scope_end(inner));
    LS_TRY(pass_of_another(world, x));
    LS_TRY(ls_backward(y != NULL ? ls_sum(y) : ls_scalar(0, LS_F64)));
    LS_CHECK(ls_grad(x) != NULL && ls_allclose(ls_grad(x), ls_ones(ls_shape_of(x), LS_F64), 0, 0));
    return ls_scope_end(scope);
}

/* If no rank can reach the communication, the next pass drops it from the tape. */
static ls_status dropped_by_all(ls_comm *world) {
    ls_scope *scope = ls_scope_begin(), *inner = ls_scope_begin();
    ls_tensor *x = ls_keep(leaf(world));
    (void)ls_allreduce(world, ls_mul(ls_allreduce(world, x, LS_SUM), 2), LS_AVG);
    LS_TRY(ls_scope_end(inner));
    LS_TRY(pass_of_another(world, x));
    LS_CHECK(ls_grad(x) == NULL && ls_backward(ls_scalar(0, LS_F64)) == LS_ERR_STATE);
    (void)ls_scope_end(scope);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    for (int number = 0; number < COLLECTIVES; number++) {
        LS_TRY(detached_first(world, number));
    }
    LS_TRY(kept_on_one_rank(world));
    LS_TRY(dropped_by_all(world));
    LS_TRY(usual_order(world));
    return ls_comm_barrier(world, NULL);
}
