/*
 * In-place changes by the library between a forward and a backward pass. After such a change, ls_backward refuses to
 * use the lost values. Correct programs are not refused. autograd_changed_rows.c checks that every operation knows its
 * inputs and outputs; ranks/changed.c tests calls that communicate.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <lockstep/lockstep.h>

#include "tests/support/files.h"
#include "tests/support/toy_ops.h"

#define GRAD(leaf, i) ls_at(ls_grad(leaf), (const int64_t[]){i})

/* A model with one parameter, "w", of four numbers, which requires a gradient. */
static ls_tensor *pass_through(ls_module *self, ls_tensor *input) {
    (void)self;
    return input;
}

static ls_module *one_parameter(void) {
    static const ls_module_type type = {.name = "Numbers", .forward = pass_through};
    ls_module *model = ls_module_new(&type);
    assert_non_null(ls_module_add_parameter(model, "w", ls_full(LS_SHAPE(4), LS_F64, 2)));
    model = ls_module_finish(model);
    assert_int_equal(ls_backward(ls_sum(ls_module_find(model, "w"))), LS_OK);
    return model;
}

static void expect_change(ls_tensor *loss, const char *operation, const char *by) {
    char expected[200];
    snprintf(expected, sizeof expected, "ls_backward: %s [4] that was later modified in place (by %s)", operation, by);
    assert_int_equal(ls_backward(loss), LS_ERR_STATE);
    expect_message(expected);
}

/* ---- calls that change their arguments --------------------------------------------------------------------------- */

static ls_status by_fill(ls_tensor *w) {
    return ls_fill(w, 3);
}

static ls_status by_copy(ls_tensor *w) {
    return ls_copy_into(w, ls_scalar(3, LS_F64));
}

static ls_status by_part(ls_tensor *w) {
    return ls_fill(ls_narrow(w, 0, 1, 1), 3);
}

static ls_status by_alias(ls_tensor *w) {
    return ls_fill(ls_reshape(ls_alias(w), LS_SHAPE(2, 2)), 3);
}

static ls_status by_hand(ls_tensor *w) {
    ((double *)elements(w))[0] = 3;
    ls_mark_changed(NULL);
    ls_mark_changed(w);
    return LS_OK;
}

static ls_status by_initialiser(ls_tensor *w) {
    return ls_nn_init_uniform(w, 0, 1);
}

typedef struct change {
    ls_status (*function)(ls_tensor *w);
    const char *by;
} change;

static const change changes[] = {
    {by_fill, "ls_fill"},  {by_copy, "ls_copy_into"},    {by_part, "ls_fill"},
    {by_alias, "ls_fill"}, {by_hand, "ls_mark_changed"}, {by_initialiser, "ls_copy_into"},
};
enum { CHANGES = sizeof changes / sizeof *changes };

TEST(test_calls_on_tensors) {
    for (int i = 0; i < CHANGES; i++) {
        ls_tensor *w = toy_leaf(LS_SHAPE(4), LS_F64, 2);
        ls_tensor *loss = ls_sum(ls_square(w));
        const bool before = ls_no_grad(true);
        assert_int_equal(changes[i].function(w), LS_OK);
        (void)ls_no_grad(before);
        expect_change(loss, "ls_square saved a tensor", changes[i].by);
        assert_null(ls_grad(w));
    }
}

/* A result whose gradient depends on itself is changed through a tensor without history. */
TEST(test_results) {
    ls_tensor *w = toy_leaf(LS_SHAPE(4), LS_F64, 2);
    ls_tensor *y = ls_exp(w);
    assert_int_equal(ls_fill(ls_detach(y), 0), LS_OK);
    expect_change(ls_sum(y), "ls_exp saved its result", "ls_fill");
}

/* ---- optimizers -------------------------------------------------------------------------------------------------- */

static ls_status bowl(void *argument, double *loss) {
    ls_tensor *value = ls_sum(ls_square(argument));
    *loss = ls_item(value);
    return ls_backward(value);
}

TEST(test_optimizers) {
    for (int kind = 0; kind < 8; kind++) {
        ls_module *model = one_parameter();
        ls_optimizer *const all[] = {ls_sgd(model, NULL),
                                     ls_adam(model, NULL),
                                     ls_adamw(model, NULL),
                                     ls_rmsprop(model, NULL),
                                     ls_adagrad(model, NULL),
                                     ls_lbfgs(model, NULL),
                                     ls_lbfgs(model, &(ls_lbfgs_options){.strong_wolfe = true}),
                                     ls_conjugate_gradient(model, NULL)};
        static const char *const names[] = {"ls_sgd",     "ls_adam",  "ls_adamw", "ls_rmsprop",
                                            "ls_adagrad", "ls_lbfgs", "ls_lbfgs", "ls_conjugate_gradient"};
        ls_tensor *w = ls_module_find(model, "w");
        ls_tensor *loss = ls_sum(ls_square(w));
        double value;
        assert_int_equal(
            kind < 5 ? ls_optimizer_step(all[kind]) : ls_optimizer_step_closure(all[kind], bowl, w, &value), LS_OK);
        expect_change(loss, "ls_square saved a tensor", names[kind]);
        for (int i = 0; i < 8; i++) {
            ls_optimizer_free(all[i]);
        }
        ls_module_free(model);
    }
}

/* ---- modules ----------------------------------------------------------------------------------------------------- */

TEST(test_loading) {
    ls_module *model = one_parameter();
    const char *path = test_path("changed.safetensors");
    assert_int_equal(ls_module_save(model, path, NULL), LS_OK);
    ls_tensor *loss = ls_sum(ls_square(ls_module_find(model, "w")));
    assert_int_equal(ls_module_load(model, path), LS_OK);
    expect_change(loss, "ls_square saved a tensor", "ls_copy_into");
    ls_module_free(model);
}

/* In training, the running statistics change, so results computed from the earlier values have no valid gradient. */
TEST(test_running_statistics) {
    ls_tensor *x = toy_leaf(LS_SHAPE(3, 4), LS_F64, 2);
    ls_tensor *mean = ls_zeros(LS_SHAPE(4), LS_F64), *variance = ls_ones(LS_SHAPE(4), LS_F64);
    ls_tensor *weight = toy_leaf(LS_SHAPE(4), LS_F64, 1);
    ls_tensor *evaluated = ls_sum(ls_batch_norm(x, mean, variance, weight, NULL, false, 0.1, 1e-5));
    ls_tensor *first = ls_sum(ls_batch_norm(x, mean, variance, NULL, NULL, true, 0.1, 1e-5));
    ls_tensor *second = ls_sum(ls_batch_norm(x, mean, variance, NULL, NULL, true, 0.1, 1e-5));
    expect_change(evaluated, "ls_batch_norm saved a tensor", "ls_batch_norm");
    assert_int_equal(ls_backward(first), LS_OK); /* has its own statistics */
    assert_int_equal(ls_backward(second), LS_OK);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

TEST(test_clipped_gradients) {
    for (int value = 0; value < 2; value++) {
        ls_module *model = one_parameter();
        ls_tensor *w = ls_module_find(model, "w");
        ls_tensor *loss = ls_sum(ls_mul(w, ls_grad(w)));
        assert_int_equal(value == 1 ? ls_clip_grad_value(model, 0.1) : ls_clip_grad_norm(model, 0.1, NULL), LS_OK);
        expect_change(loss, "ls_mul saved a tensor", value == 1 ? "ls_clip_grad_value" : "ls_clip_grad_norm");
        ls_module_free(model);
    }
}

/* A gradient used in a computation: the backward pass may add to it only after all its readers have finished. */
TEST(test_gradients_that_a_pass_changes) {
    ls_module *model = one_parameter();
    ls_tensor *w = ls_module_find(model, "w");
    assert_int_equal(ls_backward(ls_sum(ls_mul(w, ls_grad(w)))), LS_OK);
    assert_true(GRAD(w, 3) == 2);
    ls_tensor *loss = ls_sum(ls_mul(ls_mul(w, ls_grad(w)),
                                    w)); /* the outer product adds to the gradient before the inner product reads it */
    expect_change(loss, "ls_mul saved a tensor", "ls_backward");
    ls_tensor *copy = ls_clone(ls_grad(w));
    loss = ls_sum(ls_mul(ls_mul(w, copy), w));
    const double before = GRAD(w, 0);
    assert_int_equal(ls_backward(loss), LS_OK);
    assert_true(GRAD(w, 0) == before + 2 * 2 * ls_at(copy, (const int64_t[]){0}));
    ls_module_free(model);
}

/* A product whose backward pass would overwrite its own input with the gradient. */
TEST(test_a_gradient_into_itself) {
    ls_tensor *w = toy_leaf(LS_SHAPE(2, 2), LS_F64, 3);
    assert_int_equal(ls_backward(ls_sum(w)), LS_OK);
    assert_int_equal(ls_backward(ls_sum(ls_matmul(w, ls_grad(w)))), LS_ERR_STATE);
    expect_message("ls_matmul was given the gradient [2, 2] of a leaf");
    assert_int_equal(ls_backward(ls_sum(ls_matmul(w, ls_clone(ls_grad(w))))), LS_OK);
    assert_true(ls_at(ls_grad(w), (const int64_t[]){1, 0}) == 3);
}

/* ---- accepted programs ------------------------------------------------------------------------------------------- */

TEST(test_values_that_no_gradient_needs) {
    ls_tensor *w = toy_leaf(LS_SHAPE(4), LS_F64, 2);
    ls_tensor *x = ls_ones(LS_SHAPE(4), LS_F64);
    ls_tensor *loss = ls_sum(ls_add(ls_mul(w, 3), x));
    ls_tensor *constant = ls_sum(ls_mul(w, x)); /* reads only x: x itself requires no gradient */
    const bool before = ls_no_grad(true);
    assert_int_equal(ls_fill(w, 7), LS_OK);
    assert_int_equal(ls_backward(constant), LS_OK);
    assert_int_equal(ls_fill(x, 7), LS_OK);
    assert_int_equal(ls_backward(loss), LS_OK);
    (void)ls_no_grad(before);
    assert_true(GRAD(w, 1) == 4);
}

TEST(test_copies_may_change) {
    ls_tensor *w = toy_leaf(LS_SHAPE(4), LS_F64, 2);
    ls_tensor *loss = ls_sum(ls_square(ls_clone(w)));
    const bool before = ls_no_grad(true);
    assert_int_equal(ls_fill(w, 7), LS_OK);
    (void)ls_no_grad(before);
    assert_int_equal(ls_backward(loss), LS_OK);
    assert_true(GRAD(w, 1) == 4);
}

/*
 * Parameters are adjacent in memory, but a change of one parameter does not affect the others, and moving them is not a
 * change.
 */
TEST(test_neighbours_in_a_flat_buffer) {
    ls_module *model =
        ls_sequential(ls_nn_linear(4, 3), ls_nn_tanh(), ls_nn_linear(3, 2), ls_nn_batch_norm_1d(2, NULL));
    ls_tensor *x = ls_rand(LS_SHAPE(5, 4), LS_F32);
    ls_tensor *loss = ls_mean(ls_square(ls_forward(model, x)));
    ls_optimizer *optimizer = ls_sgd(model, NULL); /* moves the parameters now, between the passes */
    const bool before = ls_no_grad(true);
    assert_int_equal(ls_fill(ls_module_find(model, "0.weight"), 7), LS_OK); /* x requires no gradient */
    assert_int_equal(ls_fill(ls_module_find(model, "0.bias"), 7), LS_OK);
    assert_int_equal(ls_fill(ls_module_find(model, "2.bias"), 7), LS_OK);
    (void)ls_no_grad(before);
    assert_int_equal(ls_backward(loss), LS_OK);
    loss = ls_mean(ls_square(ls_forward(model, x)));
    (void)ls_no_grad(true);
    assert_int_equal(ls_fill(ls_module_find(model, "2.weight"), 7), LS_OK);
    (void)ls_no_grad(before);
    assert_int_equal(ls_backward(loss), LS_ERR_STATE);
    expect_message("ls_linear saved a tensor [2, 3]");
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

/* A change before the parameters move is still detected afterwards. */
TEST(test_a_change_before_laying_out) {
    ls_module *model = one_parameter();
    ls_tensor *w = ls_module_find(model, "w");
    ls_tensor *loss = ls_sum(ls_square(w));
    const bool before = ls_no_grad(true);
    assert_int_equal(ls_fill(w, 7), LS_OK);
    (void)ls_no_grad(before);
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    expect_change(loss, "ls_square saved a tensor", "ls_fill");
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

/* Several passes before a step, and a kept tape that is walked twice. */
TEST(test_gathering_over_passes) {
    ls_module *model =
        ls_sequential(ls_nn_linear(4, 3), ls_nn_relu(), ls_nn_batch_norm_1d(3, NULL), ls_nn_linear(3, 2));
    ls_optimizer *optimizer = ls_adam(model, NULL);
    for (int step = 0; step < 3; step++) {
        ls_tensor *losses[3];
        ls_optimizer_zero_grad(optimizer);
        for (int i = 0; i < 3; i++) {
            losses[i] = ls_mean(ls_square(ls_forward(model, ls_rand(LS_SHAPE(5, 4), LS_F32))));
        }
        for (int i = 2; i >= 0; i--) {
            assert_int_equal(ls_backward_with(losses[i], &(ls_backward_options){.keep_tape = true}), LS_OK);
            assert_int_equal(ls_backward(losses[i]), LS_OK);
        }
        assert_int_equal(ls_optimizer_step(optimizer), LS_OK);
    }
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

static ls_status step_hook(ls_tensor *leaf, void *user) {
    (void)leaf;
    return ls_optimizer_step(user);
}

/* The optimizer steps as soon as a gradient is complete: at this point, the pass no longer needs the parameter. */
TEST(test_steps_during_the_pass) {
    ls_module *model = ls_sequential(ls_nn_linear_with(4, 4, &(ls_linear_options){.no_bias = true}), ls_nn_tanh(),
                                     ls_nn_linear_with(4, 4, &(ls_linear_options){.no_bias = true}));
    ls_optimizer *optimizers[2];
    for (int i = 0; i < 2; i++) {
        ls_tensor *parameter = ls_module_parameter(model, i);
        optimizers[i] = ls_sgd(NULL, NULL);
        assert_int_equal(ls_optimizer_add_group(optimizers[i], &parameter, 1, NULL), LS_OK);
        assert_int_equal(ls_add_grad_hook(parameter, step_hook, optimizers[i]), LS_OK);
    }
    const uint64_t hash = ls_module_hash(model);
    assert_int_equal(ls_backward(ls_mean(ls_square(ls_forward(model, ls_rand(LS_SHAPE(3, 4), LS_F32))))), LS_OK);
    assert_true(ls_module_hash(model) != hash);
    ls_optimizer_free(optimizers[0]);
    ls_optimizer_free(optimizers[1]);
    ls_module_free(model);
}

int main(void) {
#define CHANGE_TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        CHANGE_TEST(test_calls_on_tensors),
        CHANGE_TEST(test_results),
        CHANGE_TEST(test_optimizers),
        CHANGE_TEST(test_loading),
        CHANGE_TEST(test_running_statistics),
        CHANGE_TEST(test_clipped_gradients),
        CHANGE_TEST(test_gradients_that_a_pass_changes),
        CHANGE_TEST(test_a_gradient_into_itself),
        CHANGE_TEST(test_values_that_no_gradient_needs),
        CHANGE_TEST(test_copies_may_change),
        CHANGE_TEST(test_neighbours_in_a_flat_buffer),
        CHANGE_TEST(test_a_change_before_laying_out),
        CHANGE_TEST(test_gathering_over_passes),
        CHANGE_TEST(test_steps_during_the_pass),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
