/*
 * Loss scaling: gradients are unscaled, steps that overflow are skipped, and the scale changes as in PyTorch.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>

/* A model with two parameters of 33 and 3 numbers, and an optimizer with state. */
typedef struct setting {
    ls_module *model;
    ls_optimizer *optimizer;
} setting;

static setting make(void) {
    setting s;
    ls_seed(5);
    s.model = ls_nn_linear(11, 3);
    s.optimizer = ls_adam(s.model, &(ls_adam_options){.learning_rate = 0.01});
    assert_non_null(s.optimizer);
    return s;
}

static void release(setting *s) {
    ls_optimizer_free(s->optimizer);
    ls_module_free(s->model);
}

/* Runs backward from the scaled mean square of the output for normally distributed numbers, multiplied by `factor`. */
static void go_backwards(const setting *s, const ls_grad_scaler *scaler, double factor) {
    ls_scope *scope = ls_scope_begin();
    ls_optimizer_zero_grad(s->optimizer);
    ls_tensor *x = ls_randn(LS_SHAPE(4, 11), LS_F32);
    ls_tensor *loss = ls_mul(ls_mean(ls_square(ls_forward(s->model, x))), factor);
    assert_int_equal(ls_backward(scaler != NULL ? ls_grad_scaler_scale(scaler, loss) : loss), LS_OK);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

static void step(const setting *s, ls_grad_scaler *scaler, double factor) {
    go_backwards(s, scaler, factor);
    assert_int_equal(ls_grad_scaler_step(scaler, s->optimizer), LS_OK);
    assert_int_equal(ls_grad_scaler_update(scaler), LS_OK);
}

/* Scales are powers of two, so training is bit-identical to training without scaling. */
TEST(test_scaled_training_is_the_same) {
    setting plain = make(), scaled = make();
    ls_grad_scaler *scaler = ls_grad_scaler_new(NULL);
    assert_true(ls_grad_scaler_get_scale(scaler) == 65536);
    for (int i = 0; i < 3; i++) {
        ls_seed((uint64_t)i);
        go_backwards(&plain, NULL, 1);
        assert_int_equal(ls_optimizer_step(plain.optimizer), LS_OK);
        ls_seed((uint64_t)i);
        go_backwards(&scaled, scaler, 1);
        if (i == 1) { /* in two calls, between which gradients are unscaled */
            assert_int_equal(ls_grad_scaler_unscale(scaler, scaled.optimizer), LS_OK);
            for (int k = 0; k < 2; k++) {
                assert_true(ls_equal(ls_grad(ls_module_parameter(scaled.model, k)),
                                     ls_grad(ls_module_parameter(plain.model, k))));
            }
        }
        assert_int_equal(ls_grad_scaler_step(scaler, scaled.optimizer), LS_OK);
        assert_int_equal(ls_grad_scaler_update(scaler), LS_OK);
    }
    assert_true(ls_module_hash(plain.model) == ls_module_hash(scaled.model));
    assert_int_equal(ls_grad_scaler_skipped(scaler), 0);
    ls_grad_scaler_free(scaler);
    release(&plain);
    release(&scaled);
}

/* One of 36 gradients overflows, at any index. */
TEST(test_overflow_is_skipped) {
    const float bad[] = {INFINITY, -INFINITY, NAN, 3e38F};
    setting s = make();
    ls_grad_scaler *scaler = ls_grad_scaler_new(&(ls_grad_scaler_options){.initial_scale = 0.5});
    step(&s, scaler, 1);
    for (int64_t i = 0; i < 36; i++) {
        const uint64_t before = ls_module_hash(s.model);
        const ls_named *tensors;
        int count;
        go_backwards(&s, scaler, 1);
        ls_tensor *gradient = ls_grad(ls_module_parameter(s.model, i < 33 ? 0 : 1));
        ls_scope *scope = ls_scope_begin();
        ls_tensor *spoilt = ls_to_device(ls_full(LS_SHAPE(1), LS_F32, (double)bad[i % 4]), ls_default_device());
        const int64_t at = i < 33 ? i : i - 33;
        ls_tensor *place = ls_narrow(ls_reshape(ls_detach(gradient), LS_SHAPE(ls_numel(gradient))), 0, at, 1);
        assert_int_equal(ls_copy_into(place, spoilt), LS_OK);
        assert_int_equal(ls_scope_end(scope), LS_OK);
        assert_int_equal(ls_grad_scaler_step(scaler, s.optimizer), LS_OK);
        assert_int_equal(ls_grad_scaler_skipped(scaler), i + 1);
        assert_true(ls_module_hash(s.model) == before);
        assert_int_equal(ls_optimizer_state(s.optimizer, &tensors, &count), LS_OK);
        for (int k = 0; k < count; k++) {
            assert_true(strstr(tensors[k].name, "step") == NULL || ls_item(tensors[k].tensor) == 1);
        }
        assert_int_equal(ls_grad_scaler_update(scaler), LS_OK);
        assert_true(ls_grad_scaler_get_scale(scaler) == ldexp(0.5, -(int)i - 1));
    }
    ls_grad_scaler_free(scaler);
    release(&s);
}

/* The sequence that changes the scale: 1 is a step, 0 a skipped step. */
TEST(test_scale_grows_and_falls) {
    const ls_grad_scaler_options options = {
        .initial_scale = 8, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 3};
    static const struct {
        int good;
        double scale;
    } steps[] = {{1, 8}, {1, 8},   {1, 32},  {1, 32},  {1, 32}, {0, 8}, {1, 8}, {1, 8},
                 {0, 2}, {0, 0.5}, {1, 0.5}, {1, 0.5}, {1, 2},  {1, 2}, {1, 2}, {1, 8}};
    setting s = make();
    ls_grad_scaler *scaler = ls_grad_scaler_new(&options);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        step(&s, scaler, steps[i].good ? 1 : (double)INFINITY);
        if (ls_grad_scaler_get_scale(scaler) != steps[i].scale) {
            fail_msg("behind step %zu the scale is %g, not %g", i, ls_grad_scaler_get_scale(scaler), steps[i].scale);
        }
    }
    assert_int_equal(ls_grad_scaler_skipped(scaler), 3);
    ls_grad_scaler_free(scaler);
    release(&s);
}

/* The scale never becomes Inf, and if it would become 0, there is an error. */
TEST(test_scale_stays_a_number) {
    setting s = make();
    ls_grad_scaler *scaler =
        ls_grad_scaler_new(&(ls_grad_scaler_options){.initial_scale = 0x1p126, .growth_interval = 1});
    for (int i = 0; i < 3; i++) {
        step(&s, scaler, 0x1p-126);
        assert_true(ls_grad_scaler_get_scale(scaler) == 0x1p127);
    }
    ls_grad_scaler_free(scaler);
    scaler = ls_grad_scaler_new(&(ls_grad_scaler_options){.initial_scale = 0x1p-125});
    step(&s, scaler, (double)NAN);
    go_backwards(&s, scaler, (double)NAN);
    assert_int_equal(ls_grad_scaler_step(scaler, s.optimizer), LS_OK);
    expect_error(ls_grad_scaler_update(scaler), LS_ERR_STATE, "the scale is not the cause");
    ls_grad_scaler_free(scaler);
    release(&s);
}

/* One scaler for several optimizers: the scale decreases if any of them overflows, and the others take their steps. */
TEST(test_two_optimizers) {
    setting a = make(), b = make();
    ls_grad_scaler *scaler = ls_grad_scaler_new(&(ls_grad_scaler_options){.growth_interval = 1});
    const uint64_t before = ls_module_hash(a.model);
    go_backwards(&a, scaler, 1);
    go_backwards(&b, scaler, (double)INFINITY);
    assert_int_equal(ls_grad_scaler_step(scaler, a.optimizer), LS_OK);
    assert_int_equal(ls_grad_scaler_step(scaler, b.optimizer), LS_OK);
    assert_int_equal(ls_grad_scaler_update(scaler), LS_OK);
    assert_true(ls_module_hash(a.model) != before && ls_module_hash(b.model) == before);
    assert_true(ls_grad_scaler_get_scale(scaler) == 32768);
    for (int i = 0; i < 3; i++) {
        go_backwards(&a, scaler, 1);
        go_backwards(&b, scaler, 1);
        assert_int_equal(ls_grad_scaler_unscale(scaler, b.optimizer), LS_OK);
        assert_int_equal(ls_grad_scaler_step(scaler, a.optimizer), LS_OK);
        assert_int_equal(ls_grad_scaler_step(scaler, b.optimizer), LS_OK);
        assert_int_equal(ls_grad_scaler_update(scaler), LS_OK);
    }
    assert_true(ls_grad_scaler_get_scale(scaler) == 32768 * 8);
    ls_grad_scaler_free(scaler);
    release(&a);
    release(&b);
}

/* Gradients that f16 would round to zero, below 2^-25, in the operands of the backward pass. */
TEST(test_small_gradients_survive) {
    for (int scaled = 0; scaled < 2; scaled++) {
        setting s = make();
        ls_grad_scaler *scaler = ls_grad_scaler_new(NULL);
        (void)ls_autocast(LS_F16);
        go_backwards(&s, scaled ? scaler : NULL, 1e-8);
        (void)ls_autocast(LS_F32);
        assert_int_equal(scaled ? ls_grad_scaler_unscale(scaler, s.optimizer) : LS_OK, LS_OK);
        ls_scope *scope = ls_scope_begin();
        const double largest = ls_item(ls_max(ls_abs(ls_detach(ls_grad(ls_module_parameter(s.model, 0))))));
        assert_true(scaled ? largest > 1e-10 && largest < 1e-7 : largest == 0);
        assert_int_equal(ls_scope_end(scope), LS_OK);
        ls_grad_scaler_free(scaler);
        release(&s);
    }
}

TEST(test_state) {
    setting s = make();
    const ls_grad_scaler_options options = {.growth_interval = 3};
    ls_grad_scaler *scaler = ls_grad_scaler_new(&options), *other = ls_grad_scaler_new(&options);
    const ls_named *tensors;
    int count;
    step(&s, scaler, (double)INFINITY);
    step(&s, scaler, 1);
    step(&s, scaler, 1);
    assert_int_equal(ls_grad_scaler_state(scaler, &tensors, &count), LS_OK);
    assert_int_equal(count, 3);
    assert_string_equal(tensors[0].name, "scale");
    assert_string_equal(tensors[1].name, "_growth_tracker");
    assert_int_equal(ls_grad_scaler_set_state(other, tensors, count), LS_OK);
    assert_int_equal(ls_grad_scaler_skipped(other), 1);
    step(&s, other, 1); /* the third */
    assert_true(ls_grad_scaler_get_scale(other) == 65536);
    assert_int_equal(ls_grad_scaler_set_state(other, tensors, 2), LS_ERR_FORMAT);
    for (int i = 0; i < 3; i++) {
        const double wrong[] = {0, (double)INFINITY, (double)NAN};
        ls_tensor *scale = ls_scalar(wrong[i], LS_F64);
        ls_named given[] = {{.name = "scale", .tensor = scale}, tensors[1], tensors[2]};
        assert_int_equal(ls_grad_scaler_set_state(other, given, 3), LS_ERR_FORMAT);
        expect_message("ls_grad_scaler_set_state: scale");
        ls_release(scale);
    }
    assert_true(ls_grad_scaler_get_scale(other) == 65536);
    ls_grad_scaler_free(scaler);
    ls_grad_scaler_free(other);
    release(&s);
}

TEST(test_wrong_order) {
    setting s = make();
    ls_grad_scaler *scaler = ls_grad_scaler_new(NULL);
    expect_error(ls_grad_scaler_update(scaler), LS_ERR_STATE,
                 "there was no ls_grad_scaler_unscale or ls_grad_scaler_step");
    go_backwards(&s, scaler, 1);
    assert_int_equal(ls_grad_scaler_unscale(scaler, s.optimizer), LS_OK);
    expect_error(ls_grad_scaler_unscale(scaler, s.optimizer), LS_ERR_STATE, "already been divided by the scale");
    assert_int_equal(ls_grad_scaler_step(scaler, s.optimizer), LS_OK);
    expect_error(ls_grad_scaler_step(scaler, s.optimizer), LS_ERR_STATE, "has stepped since");
    expect_error(ls_grad_scaler_unscale(scaler, s.optimizer), LS_ERR_STATE, "already been divided by the scale");
    assert_int_equal(ls_grad_scaler_update(scaler), LS_OK);
    ls_optimizer *descent = ls_lbfgs(s.model, NULL);
    expect_error(ls_grad_scaler_step(scaler, descent), LS_ERR_STATE, "ls_lbfgs evaluates the loss itself");
    expect_error(ls_grad_scaler_unscale(scaler, descent), LS_ERR_STATE, "ls_lbfgs evaluates the loss itself");
    ls_optimizer_free(descent);
    ls_grad_scaler_free(scaler);
    release(&s);
}

TEST(test_wrong_input) {
    static const struct {
        ls_grad_scaler_options options;
        const char *says;
    } wrong[] = {{{.initial_scale = -1}, "initial_scale"},
                 {{.initial_scale = (double)NAN}, "initial_scale"},
                 {{.growth_factor = 0.5}, "growth_factor"},
                 {{.backoff_factor = 1}, "backoff_factor"},
                 {{.backoff_factor = -0.5}, "backoff_factor"},
                 {{.growth_interval = -1}, "growth_interval"},
                 {{.growth_factor = (double)INFINITY}, "growth_factor"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_null(ls_grad_scaler_new(&wrong[i].options));
        assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
        expect_message(wrong[i].says);
    }
    setting s = make();
    ls_grad_scaler *scaler = ls_grad_scaler_new(NULL);
    const ls_named *tensors;
    int count;
    ls_scope *scope = ls_scope_begin();
    assert_null(ls_grad_scaler_scale(NULL, ls_scalar(1, LS_F32)));
    assert_int_not_equal(ls_scope_end(scope), LS_OK);
    scope = ls_scope_begin();
    assert_null(ls_grad_scaler_scale(scaler, NULL));
    assert_int_not_equal(ls_scope_end(scope), LS_OK);
    assert_int_not_equal(ls_grad_scaler_step(NULL, s.optimizer), LS_OK);
    assert_int_not_equal(ls_grad_scaler_step(scaler, NULL), LS_OK);
    assert_int_not_equal(ls_grad_scaler_unscale(NULL, NULL), LS_OK);
    assert_int_not_equal(ls_grad_scaler_update(NULL), LS_OK);
    assert_int_equal(ls_grad_scaler_state(NULL, &tensors, &count), LS_ERR_ARGUMENT);
    assert_int_equal(ls_grad_scaler_set_state(NULL, NULL, 0), LS_ERR_ARGUMENT);
    assert_true(ls_grad_scaler_get_scale(NULL) == 1 && ls_grad_scaler_skipped(NULL) == 0);
    ls_grad_scaler_free(NULL);
    ls_grad_scaler_free(scaler);
    release(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scaled_training_is_the_same),
        cmocka_unit_test(test_overflow_is_skipped),
        cmocka_unit_test(test_scale_grows_and_falls),
        cmocka_unit_test(test_scale_stays_a_number),
        cmocka_unit_test(test_two_optimizers),
        cmocka_unit_test(test_small_gradients_survive),
        cmocka_unit_test(test_state),
        cmocka_unit_test(test_wrong_order),
        cmocka_unit_test(test_wrong_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
