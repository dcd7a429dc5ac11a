/*
 * Recurrent layers: values and gradients compared with PyTorch's, PyTorch's weights, sequences of several lengths
 * compared with separate sequences, the order of axes, dtypes, dropout between layers, empty inputs, refusals.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/nn.h>

#include "tests/support/elements.h"
#include "tests/support/operations.h"

enum { N = 3, LENGTH = 4, IN = 2, HIDDEN = 3 };

typedef ls_module *constructor(int64_t in, int64_t hidden, const ls_recurrent_options *options);

static const struct kind {
    const char *name;
    constructor *make;
    int states;
} kinds[] = {{"rnn", ls_nn_rnn, 1}, {"relu", ls_nn_rnn_relu, 1}, {"lstm", ls_nn_lstm, 2}, {"gru", ls_nn_gru, 1}};
enum { KINDS = 4 };

static ls_module *make(const struct kind *kind, ls_recurrent_options options) {
    ls_module *module = kind->make(IN, HIDDEN, &options);
    assert_non_null(module);
    return module;
}

/* Initializes parameters as in make_recurrent.py. */
static void put_waves(ls_module *module) {
    const bool before = ls_no_grad(true);
    for (int i = 0; i < ls_module_parameter_count(module); i++) {
        ls_tensor *parameter = ls_module_parameter(module, i);
        ls_tensor *values = wave_between(ls_shape_of(parameter), 5 + i, -0.8, 0.8);
        assert_int_equal(ls_copy_into(parameter, ls_to(values, ls_dtype_of(parameter))), LS_OK);
    }
    (void)ls_no_grad(before);
}

/* Stores all results of a call: y, h and, for the LSTM, c. */
static void call(ls_module *module, const struct kind *kind, ls_tensor *x, ls_tensor *const *states, ls_tensor *lengths,
                 ls_tensor **outputs) {
    ls_tensor *inputs[4] = {x};
    for (int i = 0; i < kind->states; i++) {
        inputs[1 + i] = states != NULL ? states[i] : NULL;
    }
    inputs[1 + kind->states] = lengths;
    if (ls_forward_many(module, inputs, kind->states + 2, outputs, kind->states + 1) != LS_OK) {
        fail_msg("%s: %s", kind->name, ls_error_message());
    }
}

static ls_tensor *in_one(ls_tensor *const *outputs, int count) {
    ls_tensor *parts[3];
    for (int i = 0; i < count; i++) {
        parts[i] = ls_reshape(outputs[i], LS_SHAPE(-1));
    }
    return ls_concat(parts, count, 0);
}

static ls_tensor *lengths_from(const int64_t *lengths, int64_t count) {
    return ls_from(LS_SHAPE(count), LS_I64, lengths);
}

static void expect_near(const char *what, ls_tensor *a, ls_tensor *b, double most) {
    const double apart = ls_item(ls_max(ls_abs(ls_sub(ls_to(ls_detach(a), LS_F64), ls_to(ls_detach(b), LS_F64)))));
    if (!(apart <= most)) {
        fail_msg("%s: %g apart", what, apart);
    }
}

/* ---- PyTorch ----------------------------------------------------------------------------------------------------- */

/* Compares double precision with PyTorch, then f32 and bf16 with double precision. */
static void check_fixture(const fixture *pytorch, const struct kind *kind, const char *variant, int count,
                          ls_recurrent_options options, const int64_t *lengths) {
    char name[64];
    snprintf(name, sizeof name, "%s/%s", kind->name, variant);
    ls_tensor *wide = NULL, *wide_gradient = NULL;
    ls_scope *scope = ls_scope_begin();
    for (int way = 0; way < 3; way++) {
        const ls_dtype dtype = way == 0 ? LS_F64 : way == 1 ? LS_F32 : LS_BF16;
        options.dtype = dtype;
        ls_module *module = make(kind, options);
        put_waves(module);
        ls_tensor *inputs[32] = {wave(LS_SHAPE(N, LENGTH, IN), 1)}, *given[3], *outputs[3];
        int inputs_count = 1;
        for (int i = 0; i < kind->states && count > 0; i++) {
            inputs[inputs_count++] = wave(LS_SHAPE(N, count, HIDDEN), 2 + i);
            given[i] = ls_to(inputs[1 + i], dtype);
        }
        call(module, kind, ls_to(inputs[0], dtype), count > 0 ? given : NULL,
             lengths != NULL ? lengths_from(lengths, N) : NULL, outputs);
        ls_tensor *all = in_one(outputs, kind->states + 1);
        for (int i = 0; i < ls_module_parameter_count(module); i++) {
            inputs[inputs_count++] = ls_module_parameter(module, i);
        }
        if (way == 0) {
            check_against(pytorch, name, all, inputs, inputs_count, NULL, 0);
            wide = all;
            wide_gradient = ls_grad(inputs[0]);
        } else {
            ls_tensor *weight = ls_to(wave_between(ls_shape_of(all), 99, -2, 2), dtype);
            assert_int_equal(ls_backward(ls_sum(ls_mul(all, weight))), LS_OK);
            expect_near(name, all, wide, way == 1 ? 1e-5 : 0.06);
            expect_near(name, ls_grad(inputs[0]), wide_gradient, way == 1 ? 1e-4 : 0.6);
        }
        ls_module_free(module);
    }
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

TEST(test_agrees_with_pytorch) {
    fixture *pytorch = fixtures_load("recurrent.txt");
    for (int i = 0; i < KINDS; i++) {
        check_fixture(pytorch, &kinds[i], "plain", 0, (ls_recurrent_options){.no_bias = true}, NULL);
        check_fixture(pytorch, &kinds[i], "layers", 2, (ls_recurrent_options){.layers = 2}, NULL);
        check_fixture(pytorch, &kinds[i], "lengths", 4, (ls_recurrent_options){.layers = 2, .bidirectional = true},
                      (const int64_t[]){3, 4, 1});
    }
    fixtures_free(pytorch);
}

TEST(test_loads_weights_of_pytorch) {
    const ls_recurrent_options options = {.layers = 2, .bidirectional = true};
    ls_module *loaded = make(&kinds[2], options), *own = make(&kinds[2], options);
    assert_int_equal(ls_module_load(loaded, LS_FIXTURES "/pytorch_lstm.safetensors"), LS_OK);
    ls_scope *scope = ls_scope_begin();
    put_waves(own);
    for (int i = 0; i < ls_module_parameter_count(own); i++) {
        assert_string_equal(ls_module_parameter_name(own, i), ls_module_parameter_name(loaded, i));
        assert_true(ls_allclose(ls_module_parameter(own, i), ls_module_parameter(loaded, i), 1e-6, 1e-7));
    }
    assert_int_equal(ls_module_parameter_count(own), 16);
    assert_string_equal(ls_module_parameter_name(own, 6), "bias_ih_l0_reverse");
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_module_free(loaded);
    ls_module_free(own);
}

/* All parameters are uniform in +-1/sqrt(hidden). */
TEST(test_starts_as_pytorch) {
    ls_seed(3);
    ls_module *module = ls_nn_gru(30, 64, &(ls_recurrent_options){.layers = 2});
    ls_scope *scope = ls_scope_begin();
    for (int i = 0; i < ls_module_parameter_count(module); i++) {
        ls_tensor *parameter = ls_detach(ls_module_parameter(module, i));
        const double largest = ls_item(ls_max(ls_abs(parameter)));
        assert_true(largest <= 0.125 && largest > 0.12);
        assert_true(fabs(ls_item(ls_var(parameter)) - 0.125 * 0.125 / 3) < 1e-3);
    }
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_module_free(module);
}

/* ---- lengths, axes ----------------------------------------------------------------------------------------------- */

/* Sequences of several lengths, one of them empty, give the same results in a batch as alone, for any padding. */
static void test_lengths(void **state) {
    (void)state;
    const int64_t lengths[] = {4, 0, 2};
    for (int k = 0; k < KINDS; k++) {
        ls_scope *scope = ls_scope_begin();
        ls_module *module =
            make(&kinds[k], (ls_recurrent_options){.dtype = LS_F64, .layers = 2, .bidirectional = true});
        ls_tensor *x = wave(LS_SHAPE(N, LENGTH, IN), 1), *outputs[3], *alone[3];
        ls_tensor *states[] = {wave(LS_SHAPE(N, 4, HIDDEN), 2), wave(LS_SHAPE(N, 4, HIDDEN), 3)};
        call(module, &kinds[k], x, states, ls_to(lengths_from(lengths, N), LS_I32), outputs);
        for (int i = 0; i < N; i++) {
            ls_tensor *own = ls_narrow(ls_narrow(x, 0, i, 1), 1, 0, lengths[i]);
            ls_tensor *own_states[] = {ls_narrow(states[0], 0, i, 1), ls_narrow(states[1], 0, i, 1)};
            call(module, &kinds[k], own, own_states, NULL, alone);
            ls_tensor *y = ls_narrow(outputs[0], 0, i, 1);
            if (lengths[i] > 0) {
                expect_near("y", ls_narrow(y, 1, 0, lengths[i]), alone[0], 1e-14);
            }
            assert_true(ls_item(ls_sum(ls_abs(ls_narrow(y, 1, lengths[i], LENGTH - lengths[i])))) == 0);
            for (int s = 1; s <= kinds[k].states; s++) {
                expect_near("state", ls_narrow(outputs[s], 0, i, 1), alone[s], 1e-14);
            }
        }
        assert_int_equal(ls_backward(ls_sum(in_one(outputs, kinds[k].states + 1))), LS_OK);
        ls_tensor *behind = ls_narrow(ls_select(ls_grad(x), 0, 2), 0, 2, 2);
        assert_true(ls_item(ls_sum(ls_abs(behind))) == 0);
        ls_module_free(module);
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

TEST(test_time_first) {
    for (int k = 0; k < KINDS; k++) {
        ls_scope *scope = ls_scope_begin();
        ls_module *module[2];
        ls_tensor *outputs[2][3];
        for (int way = 0; way < 2; way++) {
            module[way] = make(
                &kinds[k],
                (ls_recurrent_options){.dtype = LS_F64, .layers = 2, .bidirectional = true, .time_first = way == 1});
            put_waves(module[way]);
            ls_tensor *x = wave(LS_SHAPE(N, LENGTH, IN), 1);
            ls_tensor *states[] = {wave(LS_SHAPE(N, 4, HIDDEN), 2), wave(LS_SHAPE(N, 4, HIDDEN), 3)};
            if (way == 1) {
                x = ls_transpose(x, 0, 1);
                states[0] = ls_transpose(states[0], 0, 1);
                states[1] = ls_transpose(states[1], 0, 1);
            }
            call(module[way], &kinds[k], x, states, lengths_from((const int64_t[]){1, 4, 3}, N), outputs[way]);
        }
        for (int i = 0; i <= kinds[k].states; i++) {
            assert_true(ls_equal(outputs[0][i], ls_transpose(outputs[1][i], 0, 1)));
        }
        ls_module_free(module[0]);
        ls_module_free(module[1]);
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

/* Processes a sequence in two halves. The second half begins with the final states of the first. */
static void test_states_go_on(void **state) {
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        ls_scope *scope = ls_scope_begin();
        ls_module *module = make(&kinds[k], (ls_recurrent_options){.dtype = LS_F64, .layers = 3});
        ls_tensor *x = wave(LS_SHAPE(N, LENGTH, IN), 1), *whole[3], *first[3], *second[3];
        call(module, &kinds[k], x, NULL, NULL, whole);
        call(module, &kinds[k], ls_narrow(x, 1, 0, 2), NULL, NULL, first);
        call(module, &kinds[k], ls_narrow(x, 1, 2, 2), first + 1, NULL, second);
        expect_near("y", ls_concat((ls_tensor *[]){first[0], second[0]}, 2, 1), whole[0], 1e-14);
        for (int i = 1; i <= kinds[k].states; i++) {
            expect_near("state", second[i], whole[i], 1e-14);
        }
        assert_true(ls_equal(ls_forward(module, x), whole[0]));
        ls_module_free(module);
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

/* ---- dropout, empty inputs --------------------------------------------------------------------------------------- */

/* Dropout acts only between layers, and only in training. */
SCOPED_TEST(test_dropout) {
    ls_module *module = make(&kinds[2], (ls_recurrent_options){.dtype = LS_F64, .layers = 2, .dropout = 1});
    ls_module *plain = make(&kinds[2], (ls_recurrent_options){.dtype = LS_F64, .layers = 2});
    ls_module *one = make(&kinds[2], (ls_recurrent_options){.dtype = LS_F64, .dropout = 1});
    put_waves(module);
    put_waves(plain);
    put_waves(one);
    ls_tensor *x = wave(LS_SHAPE(N, LENGTH, IN), 1), *outputs[3], *kept[3];
    call(module, &kinds[2], x, NULL, NULL, outputs);
    call(plain, &kinds[2], x, NULL, NULL, kept);
    assert_true(ls_equal(ls_narrow(outputs[1], 1, 0, 1), ls_narrow(kept[1], 1, 0, 1)));
    assert_false(ls_equal(outputs[0], kept[0]));
    ls_tensor *other = ls_forward(module, ls_mul(x, 0.5)); /* the second layer gets nothing that depends on x */
    assert_true(ls_equal(outputs[0], other));
    ls_tensor *training = ls_forward(one, x); /* no dropout after the last layer */
    ls_module_train(one, false);
    assert_true(ls_equal(ls_forward(one, x), training));
    ls_module_train(module, false);
    assert_true(ls_equal(ls_forward(module, x), kept[0]));
    ls_module_free(module);
    ls_module_free(plain);
    ls_module_free(one);
}

TEST(test_nothing) {
    for (int k = 0; k < KINDS; k++) {
        ls_scope *scope = ls_scope_begin();
        ls_module *module = make(&kinds[k], (ls_recurrent_options){.layers = 2, .bidirectional = true});
        ls_tensor *outputs[3], *states[2] = {ls_randn(LS_SHAPE(N, 4, HIDDEN), LS_F32)};
        states[1] = states[0];
        call(module, &kinds[k], ls_zeros(LS_SHAPE(0, LENGTH, IN), LS_F32), NULL, NULL, outputs);
        assert_int_equal(ls_size(outputs[0], 0), 0);
        assert_int_equal(ls_size(outputs[0], 2), 2 * HIDDEN);
        assert_int_equal(ls_backward(ls_sum(outputs[0])), LS_OK);
        assert_true(ls_item(ls_sum(ls_grad(ls_module_find(module, "weight_hh_l0")))) == 0);
        call(module, &kinds[k], ls_zeros(LS_SHAPE(N, 0, IN), LS_F32), states, NULL, outputs);
        assert_true(ls_equal(outputs[1], states[0]));
        assert_int_equal(ls_backward(ls_sum(outputs[1])), LS_OK);
        call(module, &kinds[k], ls_zeros(LS_SHAPE(N, 0, IN), LS_F32), states, ls_zeros(LS_SHAPE(N), LS_I64), outputs);
        assert_true(ls_equal(outputs[1], states[0]));
        const bool before = ls_no_grad(true);
        call(module, &kinds[k], ls_ones(LS_SHAPE(N, LENGTH, IN), LS_F32), NULL, NULL, outputs);
        (void)ls_no_grad(before);
        assert_false(ls_requires_grad(outputs[0]));
        ls_module_free(module);
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

/* As in ls_relu, gradients do not become 0 after NaN, which would hide it. */
TEST(test_relu_of_nan) {
    for (int k = 0; k < 2; k++) {
        ls_scope *scope = ls_scope_begin();
        ls_module *module = ls_nn_rnn_relu(1, 1, &(ls_recurrent_options){.dtype = k == 0 ? LS_F32 : LS_F64});
        ls_tensor *x = ls_full(LS_SHAPE(1, 1, 1), k == 0 ? LS_F32 : LS_F64, (double)NAN);
        assert_int_equal(ls_backward(ls_sum(ls_forward(module, x))), LS_OK);
        assert_true(ls_item(ls_grad(ls_module_find(module, "bias_ih_l0"))) == 1);
        ls_module_free(module);
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static ls_tensor *ask(ls_module *module, ls_tensor *x, ls_tensor *h, ls_tensor *c, ls_tensor *lengths) {
    ls_tensor *y = NULL;
    (void)ls_forward_many(module, (ls_tensor *[]){x, h, c, lengths}, 4, &y, 1);
    return y;
}

#define REFUSED(expression, status, words)                                                                             \
    scope = ls_scope_begin();                                                                                          \
    x = ls_ones(LS_SHAPE(2, 4, 3), LS_F32);                                                                            \
    h = ls_zeros(LS_SHAPE(2, 1, 5), LS_F32);                                                                           \
    check_refused_in(scope, expression, status, words);

TEST(test_refusals) {
    ls_scope *scope;
    ls_tensor *x, *h;
    ls_module *module = ls_nn_lstm(3, 5, NULL);
    REFUSED(ls_forward(module, ls_select(x, 0, 0)), LS_ERR_SHAPE, "LSTM: x is [4, 3], but must be [n, length, 3]")
    REFUSED(ls_forward(module, ls_to(x, LS_F64)), LS_ERR_SHAPE, "f64")
    REFUSED(ask(module, x, ls_transpose(h, 0, 1), h, NULL), LS_ERR_SHAPE, "LSTM: h is [1, 2, 5], but must be [2, 1, 5]")
    REFUSED(ask(module, x, h, NULL, NULL), LS_ERR_ARGUMENT, "LSTM: c is NULL: pass both h and c")
    REFUSED(ask(module, x, NULL, NULL, h), LS_ERR_SHAPE, "LSTM: the lengths are a tensor of f32")
    REFUSED(ask(module, ls_narrow(x, 1, 0, 0), NULL, NULL, lengths_from((const int64_t[]){0, -7}, 2)), LS_ERR_ARGUMENT,
            "LSTM: the lengths contain -7, but x has 0 steps")
    REFUSED(ask(module, ls_narrow(x, 1, 0, 0), NULL, NULL, lengths_from((const int64_t[]){5, 0}, 2)), LS_ERR_ARGUMENT,
            "LSTM: the lengths contain 5, but x has 0 steps")
    REFUSED(ask(module, x, NULL, NULL, ls_zeros(LS_SHAPE(3), LS_I64)), LS_ERR_SHAPE,
            "the lengths are [3], but must be [2]")
    REFUSED(ask(module, x, NULL, NULL, lengths_from((const int64_t[]){4, 5}, 2)), LS_ERR_ARGUMENT,
            "LSTM: lengths[1] is 5, but x has 4 steps")
    REFUSED(ask(module, x, NULL, NULL, lengths_from((const int64_t[]){-1, 4}, 2)), LS_ERR_ARGUMENT,
            "LSTM: lengths[0] is -1, but x has 4 steps")
    REFUSED(ask(module, NULL, NULL, NULL, NULL), LS_ERR_ARGUMENT, "LSTM: x is NULL")
    ls_module_free(module);
    module = ls_nn_gru(3, 5, NULL);
    REFUSED(ask(module, x, h, NULL, NULL), LS_ERR_ARGUMENT, "GRU: takes x, h and lengths")
    ls_module_free(module);
    assert_null(ls_nn_rnn(3, 0, NULL));
    expect_message("ls_nn_rnn: 3 inputs and a hidden width of 0");
    assert_null(ls_nn_gru(3, 5, &(ls_recurrent_options){.layers = 65}));
    expect_message("ls_nn_gru: 65 layers: must be from 1 to 64");
    assert_null(ls_nn_lstm(3, 5, &(ls_recurrent_options){.dropout = 1.5}));
    expect_message("dropout");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agrees_with_pytorch),
        cmocka_unit_test(test_loads_weights_of_pytorch),
        cmocka_unit_test(test_starts_as_pytorch),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_time_first),
        cmocka_unit_test(test_states_go_on),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_relu_of_nan),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
