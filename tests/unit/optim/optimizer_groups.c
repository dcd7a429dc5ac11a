/*
 * Groups of parameters, clipping of gradients, and refusals of optimizers.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/parameters.h"

/* ---- groups ------------------------------------------------------------------------------------------------------ */

/* Runs one step, and returns the decrease of element 0 of the parameter. */
static double fall(ls_optimizer *optimizer, ls_tensor *parameter, int index) {
    const double before = numbers_get(parameter, 0);
    ls_optimizer_zero_grad(optimizer);
    give_gradient(parameter, 0, index);
    assert_int_equal(ls_optimizer_step(optimizer), LS_OK);
    return before - numbers_get(parameter, 0);
}

TEST(test_groups_differ) {
    ls_module *model = make_model(LS_F64);
    ls_tensor *p[PARAMETERS];
    for (int i = 0; i < PARAMETERS; i++) {
        p[i] = ls_module_parameter(model, i);
    }
    ls_optimizer *optimizer = ls_sgd(NULL, &(ls_sgd_options){.learning_rate = 0.5, .weight_decay = 0.25});
    assert_int_equal(ls_optimizer_group_count(optimizer), 0);
    assert_int_equal(ls_optimizer_add_group(optimizer, &p[0], 1, NULL), LS_OK);
    assert_int_equal(
        ls_optimizer_add_group(optimizer, &p[1], 2, &(ls_group_options){.learning_rate = 0.1, .weight_decay = LS_ZERO}),
        LS_OK);
    assert_int_equal(ls_optimizer_add_group(optimizer, &p[3], 1, &(ls_group_options){.weight_decay = 2}), LS_OK);
    assert_int_equal(ls_optimizer_add_group(optimizer, NULL, 0, NULL), LS_OK);
    assert_int_equal(ls_optimizer_add_group(optimizer, &p[4], 1, &(ls_group_options){.learning_rate = LS_ZERO}), LS_OK);
    assert_int_equal(ls_optimizer_group_count(optimizer), 5);
    double start[PARAMETERS];
    double g[PARAMETERS];
    for (int i = 0; i < PARAMETERS; i++) {
        start[i] = numbers_get(p[i], 0);
        g[i] = gradient_at(LS_F64, 0, i, 0);
    }
    numbers_expect("group 0", fall(optimizer, p[0], 0), 0.5 * (g[0] + 0.25 * start[0]), 1e-14);
    numbers_expect("group 1", fall(optimizer, p[1], 1), 0.1 * g[1], 1e-14);
    numbers_expect("group 1", fall(optimizer, p[2], 2), 0.1 * g[2], 1e-14);
    numbers_expect("group 2", fall(optimizer, p[3], 3), 0.5 * (g[3] + 2 * start[3]), 1e-14);
    assert_true(fall(optimizer, p[4], 4) == 0); /* frozen */
    assert_int_equal(ls_optimizer_set_learning_rate(optimizer, 1, 0.2), LS_OK);
    numbers_expect("group 1 at its new rate", fall(optimizer, p[1], 1), 0.2 * g[1], 1e-14);
    assert_true(ls_optimizer_learning_rate(optimizer, 0) == 0.5);
    assert_int_equal(ls_optimizer_set_learning_rate(optimizer, -1, 0), LS_OK);
    for (int i = 0; i < 4; i++) {
        assert_true(ls_optimizer_learning_rate(optimizer, i) == 0);
        assert_true(fall(optimizer, p[i], i) == 0);
    }
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

/* ls_muon's groups: one for matrices, one for other parameters. On request, matrices belong to AdamW's group, too. */
TEST(test_groups_of_muon) {
    ls_module *model = ls_sequential(ls_nn_linear(3, 4), ls_nn_linear(4, 2));
    ls_tensor *p[4];
    for (int i = 0; i < 4; i++) {
        p[i] = ls_module_parameter(model, i);
    }
    const ls_muon_options options = {.learning_rate = 0.1, .adamw.learning_rate = 0.01};
    ls_optimizer *optimizer = ls_muon(model, &options);
    assert_int_equal(ls_optimizer_group_count(optimizer), 2);
    assert_true(ls_optimizer_learning_rate(optimizer, 0) == 0.1);
    assert_true(ls_optimizer_learning_rate(optimizer, 1) == 0.01);
    ls_optimizer_free(optimizer);

    optimizer = ls_muon(NULL, &options);
    assert_int_equal(ls_optimizer_add_group(optimizer, p, 2, NULL), LS_ERR_SHAPE);
    expect_message(
        "ls_muon: parameter 1 is [4], but the group also has matrices: put the parameter in a separate group");
    assert_int_equal(ls_optimizer_group_count(optimizer), 0);
    assert_int_equal(ls_optimizer_add_group(optimizer, &p[0], 1, NULL), LS_OK);
    assert_int_equal(ls_optimizer_add_group(optimizer, &p[1], 1, NULL), LS_OK);
    assert_int_equal(ls_optimizer_add_group(optimizer, &p[2], 2, &(ls_group_options){.adamw = true}), LS_OK);
    assert_true(ls_optimizer_learning_rate(optimizer, 0) == 0.1);
    assert_true(ls_optimizer_learning_rate(optimizer, 1) == 0.01);
    assert_true(ls_optimizer_learning_rate(optimizer, 2) == 0.01);
    const double before = numbers_get(p[2], 0);
    give_gradient(p[2], 0, 0);
    assert_int_equal(ls_optimizer_step(optimizer), LS_OK);
    const double sign = gradient_at(LS_F32, 0, 0, 0) > 0 ? 1 : -1; /* Adam's first step, and its weight decay */
    numbers_expect("a matrix of AdamW's", numbers_get(p[2], 0), before * (1 - 1e-4) - 0.01 * sign, 1e-6);
    ls_optimizer_free(optimizer);

    optimizer = ls_adamw(NULL, NULL);
    assert_int_equal(ls_optimizer_add_group(optimizer, p, 1, &(ls_group_options){.adamw = true}), LS_ERR_ARGUMENT);
    expect_message("ls_adamw: .adamw of a group is supported by ls_muon only");
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

TEST(test_no_parameter_is_in_two_groups) {
    ls_module *model = make_model(LS_F32);
    ls_tensor *first = ls_module_parameter(model, 0);
    ls_tensor *second = ls_module_parameter(model, 1);
    ls_optimizer *optimizer = ls_adam(model, NULL);
    assert_int_equal(ls_optimizer_add_group(optimizer, &second, 1, NULL), LS_ERR_ARGUMENT);
    expect_message("ls_adam: parameter 0 is in a group already");
    assert_int_equal(ls_optimizer_group_count(optimizer), 1);
    ls_optimizer_free(optimizer);

    optimizer = ls_adam(NULL, NULL);
    expect_error(ls_optimizer_step(optimizer), LS_ERR_STATE, "ls_optimizer_step: the optimizer has no parameters");
    ls_tensor *const twice[] = {first, second, first};
    assert_int_equal(ls_optimizer_add_group(optimizer, twice, 3, NULL), LS_ERR_ARGUMENT);
    expect_message("parameter 2 is in a group already");
    assert_int_equal(ls_optimizer_group_count(optimizer), 0);
    assert_int_equal(ls_optimizer_add_group(optimizer, twice, 2, NULL), LS_OK);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

TEST(test_zero_grad) {
    ls_module *model = make_model(LS_F32);
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 1});
    ls_tensor *parameter = ls_module_parameter(model, 1);
    give_gradient(parameter, 0, 1);
    give_gradient(parameter, 1, 1); /* without zero_grad they accumulate */
    const float sum = (float)gradient_at(LS_F32, 0, 1, 5) + (float)gradient_at(LS_F32, 1, 1, 5);
    assert_true(numbers_get(ls_grad(parameter), 5) == (double)sum);
    ls_optimizer_zero_grad(optimizer);
    assert_null(ls_grad(parameter));
    const uint64_t before = ls_module_hash(model);
    assert_int_equal(ls_optimizer_step(optimizer), LS_OK);
    assert_true(ls_module_hash(model) == before);
    give_gradient(parameter, 0, 1);
    assert_true(numbers_get(ls_grad(parameter), 5) == gradient_at(LS_F32, 0, 1, 5));
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

/* ---- clipping ---------------------------------------------------------------------------------------------------- */

static double norm_of_gradients(const ls_module *model) {
    double squares = 0;
    for (int i = 0; i < PARAMETERS; i++) {
        const ls_tensor *gradient = ls_grad(ls_module_parameter(model, i));
        for (int64_t at = 0; gradient != NULL && at < ls_numel(gradient); at++) {
            squares += numbers_get(gradient, at) * numbers_get(gradient, at);
        }
    }
    return sqrt(squares);
}

TEST(test_clip_by_norm) {
    for (int type = 0; type < 2; type++) {
        const ls_dtype dtype = type == 0 ? LS_F32 : LS_F64;
        const double tolerance = 10 * numbers_tolerance(dtype);
        ls_module *model = make_model(dtype);
        double norm = -1;
        assert_int_equal(ls_clip_grad_norm(model, 1, &norm), LS_OK); /* no gradients yet */
        assert_true(norm == 0);
        for (int i = 0; i < PARAMETERS; i++) {
            if (i != 1) {
                give_gradient(ls_module_parameter(model, i), 0, i);
            }
        }
        const double whole = norm_of_gradients(model);
        assert_int_equal(ls_clip_grad_norm(model, 2 * whole, &norm), LS_OK);
        numbers_expect("norm", norm, whole, tolerance);
        assert_true(norm_of_gradients(model) == whole); /* small enough: unchanged */
        assert_int_equal(ls_clip_grad_norm(model, 0.5, NULL), LS_OK);
        numbers_expect("clipped norm", norm_of_gradients(model), 0.5 * whole / (whole + 1e-6), tolerance);
        numbers_expect("direction", numbers_get(ls_grad(ls_module_parameter(model, 3)), 7),
                       gradient_at(dtype, 0, 3, 7) * 0.5 / (whole + 1e-6), tolerance);
        assert_null(ls_grad(ls_module_parameter(model, 1)));
        ls_tensor *gradient = ls_grad(ls_module_parameter(model, 0)); /* a single NaN makes all gradients NaN */
        ls_scope *scope = ls_scope_begin();
        assert_int_equal(ls_copy_into(gradient, ls_mul(gradient, (double)NAN)), LS_OK);
        assert_int_equal(ls_scope_end(scope), LS_OK);
        assert_int_equal(ls_clip_grad_norm(model, 1, &norm), LS_OK);
        assert_true(isnan(norm));
        assert_true(isnan(numbers_get(ls_grad(ls_module_parameter(model, 3)), 7)));
        ls_module_free(model);
    }
}

TEST(test_clip_refuses_16_bit_gradients) {
    const ls_dtype dtypes[] = {LS_BF16, LS_F16};
    for (int i = 0; i < 2; i++) {
        ls_module *model = ls_nn_linear_with(2, 2, &(ls_linear_options){.dtype = dtypes[i]});
        assert_int_equal(ls_clip_grad_norm(model, 1, NULL), LS_OK); /* no gradients yet */
        ls_scope *scope = ls_scope_begin();
        assert_int_equal(ls_backward(ls_sum(ls_forward(model, ls_ones(LS_SHAPE(1, 2), dtypes[i])))), LS_OK);
        assert_int_equal(ls_scope_end(scope), LS_OK);
        assert_int_equal(ls_clip_grad_norm(model, 1, NULL), LS_ERR_UNSUPPORTED);
        expect_message(dtypes[i] == LS_BF16
                           ? "ls_clip_grad_norm: the gradient of weight is bf16, but must be f32 or f64"
                           : "ls_clip_grad_norm: the gradient of weight is f16, but must be f32 or f64");
        assert_int_equal(ls_clip_grad_value(model, 1), LS_ERR_UNSUPPORTED);
        expect_message(dtypes[i] == LS_BF16
                           ? "ls_clip_grad_value: the gradient of weight is bf16, but must be f32 or f64: keep"
                           : "ls_clip_grad_value: the gradient of weight is f16, but must be f32 or f64: keep");
        ls_module_free(model);
    }
}

TEST(test_clip_by_value) {
    ls_module *model = make_model(LS_F64);
    give_gradient(ls_module_parameter(model, 3), 0, 3);
    assert_int_equal(ls_clip_grad_value(model, 0.3), LS_OK);
    int clipped = 0;
    for (int64_t at = 0; at < sizes[3]; at++) {
        const double was = gradient_at(LS_F64, 0, 3, at);
        clipped += fabs(was) > 0.3;
        assert_true(numbers_get(ls_grad(ls_module_parameter(model, 3)), at) == fmax(-0.3, fmin(0.3, was)));
    }
    assert_in_range(clipped, 1, sizes[3] - 1);
    assert_null(ls_grad(ls_module_parameter(model, 0)));
    ls_module_free(model);
}

/* ---- wrong input ------------------------------------------------------------------------------------------------- */

static void expect_refused(ls_optimizer *optimizer, const char *reason) {
    assert_null(optimizer);
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    expect_message(reason);
}

TEST(test_wrong_options) {
    ls_module *model = make_model(LS_F32);
    expect_refused(ls_sgd(model, &(ls_sgd_options){.learning_rate = -1}), "ls_sgd: learning_rate is -1");
    expect_refused(ls_sgd(model, &(ls_sgd_options){.learning_rate = NAN}), "learning_rate is nan");
    expect_refused(ls_sgd(model, &(ls_sgd_options){.momentum = -0.5}), "momentum is -0.5");
    expect_refused(ls_sgd(model, &(ls_sgd_options){.weight_decay = -2}), "weight_decay is -2");
    expect_refused(ls_sgd(model, &(ls_sgd_options){.nesterov = true}), "Nesterov needs a momentum above 0 (is 0)");
    expect_refused(ls_sgd(model, &(ls_sgd_options){.nesterov = true, .momentum = 0.9, .dampening = 0.1}),
                   "no dampening (is 0.1)");
    expect_refused(ls_adam(model, &(ls_adam_options){.beta1 = 1}), "ls_adam: beta1 is 1");
    expect_refused(ls_adamw(model, &(ls_adam_options){.beta2 = -0.1}), "ls_adamw: beta2 is -0.1");
    expect_refused(ls_adam(model, &(ls_adam_options){.epsilon = -1e-8}), "epsilon is -1e-08");
    expect_refused(ls_rmsprop(model, &(ls_rmsprop_options){.alpha = -1}), "ls_rmsprop: alpha is -1");
    expect_refused(ls_rmsprop(model, &(ls_rmsprop_options){.momentum = -1}), "momentum is -1");
    expect_refused(ls_adagrad(model, &(ls_adagrad_options){.initial_sum = -1}), "ls_adagrad: initial_sum is -1");
    expect_refused(ls_adagrad(model, &(ls_adagrad_options){.learning_rate_decay = -1}), "learning_rate_decay is -1");
    expect_refused(ls_adadelta(model, &(ls_adadelta_options){.rho = 1.5}), "ls_adadelta: rho is 1.5");
    expect_refused(ls_adadelta(model, &(ls_adadelta_options){.epsilon = -1}), "ls_adadelta: epsilon is -1");
    expect_refused(ls_nadam(model, &(ls_nadam_options){.beta1 = 1}), "ls_nadam: beta1 is 1");
    expect_refused(ls_nadam(model, &(ls_nadam_options){.epsilon = -1}), "ls_nadam: epsilon is -1");
    expect_refused(ls_nadam(model, &(ls_nadam_options){.momentum_decay = -1}), "ls_nadam: momentum_decay is -1");
    expect_refused(ls_radam(model, &(ls_radam_options){.beta2 = 1}), "ls_radam: beta2 is 1");
    expect_refused(ls_radam(model, &(ls_radam_options){.epsilon = -1}), "ls_radam: epsilon is -1");
    expect_refused(ls_lion(model, &(ls_lion_options){.beta2 = -1}), "ls_lion: beta2 is -1");
    expect_refused(ls_lion(model, &(ls_lion_options){.weight_decay = -1}), "ls_lion: weight_decay is -1");
    expect_refused(ls_lamb(model, &(ls_lamb_options){.beta1 = -1}), "ls_lamb: beta1 is -1");
    expect_refused(ls_lamb(model, &(ls_lamb_options){.epsilon = -1}), "ls_lamb: epsilon is -1");
    expect_refused(ls_muon(model, &(ls_muon_options){.momentum = 1}), "ls_muon: momentum is 1");
    expect_refused(ls_muon(model, &(ls_muon_options){.epsilon = -1}), "ls_muon: epsilon is -1");
    expect_refused(ls_muon(model, &(ls_muon_options){.iterations = 100}), "ls_muon: iterations is 100");
    expect_refused(ls_muon(model, &(ls_muon_options){.b = INFINITY}), "ls_muon: b is inf");
    expect_refused(ls_muon(model, &(ls_muon_options){.rates = (ls_muon_rates)5}), "5 is not an ls_muon_rates");
    expect_refused(ls_muon(model, &(ls_muon_options){.learning_rate = -1}), "ls_muon: learning_rate is -1");
    expect_refused(ls_muon(model, &(ls_muon_options){.adamw.beta1 = 2}), "ls_adamw: beta1 is 2");
    expect_refused(ls_muon(model, &(ls_muon_options){.adamw.learning_rate = -1}), "ls_adamw: learning_rate is -1");
    ls_module_free(model);
}

TEST(test_wrong_calls) {
    ls_module *model = make_model(LS_F32);
    ls_tensor *first = ls_module_parameter(model, 0);
    ls_optimizer *optimizer = ls_sgd(NULL, NULL);
    ls_tensor *plain = ls_ones(LS_SHAPE(2), LS_F32);
    ls_tensor *half = ls_ones(LS_SHAPE(2), LS_BF16);
    ls_tensor *none = NULL;
    assert_int_equal(ls_set_requires_grad(half, true), LS_OK);
    assert_int_equal(ls_optimizer_add_group(optimizer, &plain, 1, NULL), LS_ERR_ARGUMENT);
    expect_message("does not require a gradient");
    assert_int_equal(ls_optimizer_add_group(optimizer, &half, 1, NULL), LS_ERR_UNSUPPORTED);
    expect_message("bf16");
    assert_int_equal(ls_optimizer_add_group(optimizer, &none, 1, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_add_group(optimizer, NULL, 1, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_add_group(optimizer, &first, -1, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_add_group(NULL, &first, 1, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_add_group(optimizer, &first, 1, &(ls_group_options){.learning_rate = -1}),
                     LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_add_group(optimizer, &first, 1, &(ls_group_options){.weight_decay = -1}),
                     LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_group_count(optimizer), 0);
    assert_int_equal(ls_optimizer_add_group(optimizer, &first, 1, NULL), LS_OK);
    assert_int_equal(ls_optimizer_set_learning_rate(optimizer, 1, 0.1), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_set_learning_rate(optimizer, -2, 0.1), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_set_learning_rate(optimizer, 0, -0.1), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_set_learning_rate(NULL, 0, 0.1), LS_ERR_ARGUMENT);
    assert_true(ls_optimizer_learning_rate(optimizer, 0) == 1e-3);
    assert_true(ls_optimizer_learning_rate(optimizer, 1) == 0 && ls_optimizer_learning_rate(NULL, 0) == 0);
    assert_int_equal(ls_optimizer_step(NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_group_count(NULL), 0);
    ls_optimizer_zero_grad(NULL);
    ls_optimizer_free(NULL);
    assert_int_equal(ls_clip_grad_norm(NULL, 1, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_clip_grad_norm(model, 0, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_clip_grad_norm(model, NAN, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_clip_grad_value(NULL, 1), LS_ERR_ARGUMENT);
    assert_int_equal(ls_clip_grad_value(model, -1), LS_ERR_ARGUMENT);
    ls_optimizer_free(optimizer);
    ls_release(plain);
    ls_release(half);
    ls_module_free(model);
    double norm = -1;
    expect_error(ls_clip_grad_value(model, 1), LS_ERR_STATE, "the module was freed");
    expect_error(ls_clip_grad_norm(model, 1, &norm), LS_ERR_STATE, "the module was freed");
    assert_true(norm == -1);
}

/* A parameter without requires_grad is not changed, but its neighbors are. */
TEST(test_frozen_parameters) {
    ls_module *model = make_model(LS_F64);
    assert_int_equal(ls_set_requires_grad(ls_module_parameter(model, 1), false), LS_OK);
    ls_optimizer *optimizer = ls_adamw(model, NULL);
    const double before[] = {numbers_get(ls_module_parameter(model, 0), 0),
                             numbers_get(ls_module_parameter(model, 1), 0),
                             numbers_get(ls_module_parameter(model, 2), 0)};
    give_gradient(ls_module_parameter(model, 0), 0, 0);
    give_gradient(ls_module_parameter(model, 2), 0, 2);
    assert_int_equal(ls_optimizer_step(optimizer), LS_OK);
    assert_true(numbers_get(ls_module_parameter(model, 0), 0) != before[0]);
    assert_true(numbers_get(ls_module_parameter(model, 1), 0) == before[1]);
    assert_true(numbers_get(ls_module_parameter(model, 2), 0) != before[2]);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups_differ),
        cmocka_unit_test(test_groups_of_muon),
        cmocka_unit_test(test_no_parameter_is_in_two_groups),
        cmocka_unit_test(test_zero_grad),
        cmocka_unit_test(test_clip_by_norm),
        cmocka_unit_test(test_clip_refuses_16_bit_gradients),
        cmocka_unit_test(test_clip_by_value),
        cmocka_unit_test(test_wrong_options),
        cmocka_unit_test(test_wrong_calls),
        cmocka_unit_test(test_frozen_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
