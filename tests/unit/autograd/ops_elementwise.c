/*
 * Arithmetic, comparisons and ls_where: values, broadcasting, dtypes, gradients in edge cases, empty tensors, refusals.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>

#include "tensor/device.h"
#include "tests/support/operations.h"

static const double nan_value = (double)NAN;

#define VALUES(...) ((const double[]){__VA_ARGS__})

/* Makes a tensor of any dtype with these values. */
static ls_tensor *numbers(ls_shape shape, ls_dtype dtype, const double *values) {
    return ls_to(ls_from(shape, LS_F64, values), dtype);
}

static ls_tensor *leaky(ls_tensor *x) {
    return ls_leaky_relu(x, 0.1);
}

static ls_tensor *elu(ls_tensor *x) {
    return ls_elu(x, 2);
}

static ls_tensor *clamp(ls_tensor *x) {
    return ls_clamp(x, -0.5, 1);
}

TEST(test_functions_of_one_tensor) {
    const struct {
        ls_tensor *(*function)(ls_tensor *);
        double at[4]; /* values at -1, 0, 0.5 and 2 */
    } cases[] = {
        {ls_neg, {1, 0, -0.5, -2}},
        {ls_abs, {1, 0, 0.5, 2}},
        {ls_sqrt, {nan_value, 0, 0.7071067811865476, 1.4142135623730951}},
        {ls_square, {1, 0, 0.25, 4}},
        {ls_exp, {0.36787944117144233, 1, 1.6487212707001282, 7.38905609893065}},
        {ls_log, {nan_value, -(double)INFINITY, -0.6931471805599453, 0.6931471805599453}},
        {ls_log1p, {-(double)INFINITY, 0, 0.4054651081081644, 1.0986122886681098}},
        {ls_sin, {-0.8414709848078965, 0, 0.479425538604203, 0.9092974268256817}},
        {ls_cos, {0.5403023058681398, 1, 0.8775825618903728, -0.4161468365471424}},
        {ls_tanh, {-0.7615941559557649, 0, 0.46211715726000973, 0.9640275800758169}},
        {ls_erf, {-0.8427007929497149, 0, 0.5204998778130465, 0.9953222650189527}},
        {ls_sigmoid, {0.2689414213699951, 0.5, 0.6224593312018546, 0.8807970779778823}},
        {ls_relu, {0, 0, 0.5, 2}},
        {leaky, {-0.1, 0, 0.5, 2}},
        {elu, {-1.2642411176571153, 0, 0.5, 2}},
        {ls_gelu, {-0.15865525393145707, 0, 0.34573123063700656, 1.9544997361036416}},
        {ls_gelu_tanh, {-0.15880800939172324, 0, 0.34571400982514394, 1.954597694087775}},
        {ls_silu, {-0.2689414213699951, 0, 0.3112296656009273, 1.7615941559557646}},
        {ls_softplus, {0.31326168751822286, 0.6931471805599453, 0.9740769841801067, 2.1269280110429727}},
        {clamp, {-0.5, 0, 0.5, 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_BF16, LS_F16};
        for (int k = 0; k < 4; k++) {
            ls_scope *scope = ls_scope_begin();
            ls_tensor *x = numbers(LS_SHAPE(4), dtypes[k], VALUES(-1, 0, 0.5, 2));
            check_values(cases[i].function(x), LS_SHAPE(4), dtypes[k], cases[i].at);
            assert_int_equal(ls_scope_end(scope), LS_OK);
        }
    }
}

SCOPED_TEST(test_functions_of_integers) {
    ls_tensor *x = numbers(LS_SHAPE(3), LS_I32, VALUES(-2, 0, 9));
    check_values(ls_neg(x), LS_SHAPE(3), LS_I32, VALUES(2, 0, -9));
    check_values(ls_abs(x), LS_SHAPE(3), LS_I32, VALUES(2, 0, 9));
    check_values(ls_square(x), LS_SHAPE(3), LS_I32, VALUES(4, 0, 81));
    check_values(ls_relu(x), LS_SHAPE(3), LS_I32, VALUES(0, 0, 9));
    check_values(ls_clamp(x, -1, 5), LS_SHAPE(3), LS_I32, VALUES(-1, 0, 5));
    check_values(ls_clamp(x, -1, 5.5), LS_SHAPE(3), LS_F32, VALUES(-1, 0, 5.5));
    check_values(ls_sqrt(ls_abs(x)), LS_SHAPE(3), LS_F32, VALUES(1.41421356, 0, 3));
    check_values(ls_exp(numbers(LS_SHAPE(1), LS_BOOL, VALUES(1))), LS_SHAPE(1), LS_F32, VALUES(2.718281828));
}

SCOPED_TEST(test_functions_of_two_tensors) {
    ls_tensor *a = numbers(LS_SHAPE(2, 1), LS_F32, VALUES(2, 3));
    ls_tensor *b = numbers(LS_SHAPE(3), LS_F32, VALUES(1, 2, 4));
    const ls_shape both = LS_SHAPE(2, 3);
    check_values(ls_add(a, b), both, LS_F32, VALUES(3, 4, 6, 4, 5, 7));
    check_values(ls_sub(a, b), both, LS_F32, VALUES(1, 0, -2, 2, 1, -1));
    check_values(ls_mul(a, b), both, LS_F32, VALUES(2, 4, 8, 3, 6, 12));
    check_values(ls_div(a, b), both, LS_F32, VALUES(2, 1, 0.5, 3, 1.5, 0.75));
    check_values(ls_pow(a, b), both, LS_F32, VALUES(2, 4, 16, 3, 9, 81));
    check_values(ls_maximum(a, b), both, LS_F32, VALUES(2, 2, 4, 3, 3, 4));
    check_values(ls_minimum(a, b), both, LS_F32, VALUES(1, 2, 2, 1, 2, 3));
    check_values(ls_sub(ls_scalar(1, LS_F32), b), LS_SHAPE(3), LS_F32, VALUES(0, -1, -3));
    check_values(ls_add(a, 1), LS_SHAPE(2, 1), LS_F32, VALUES(3, 4));
    check_values(ls_sub(b, 0.5), LS_SHAPE(3), LS_F32, VALUES(0.5, 1.5, 3.5));
    check_values(ls_mul(b, -2), LS_SHAPE(3), LS_F32, VALUES(-2, -4, -8));
    check_values(ls_div(b, 4), LS_SHAPE(3), LS_F32, VALUES(0.25, 0.5, 1));
    check_values(ls_pow(b, 0.5), LS_SHAPE(3), LS_F32, VALUES(1, 1.41421356, 2));
    check_values(ls_maximum(b, 2.5), LS_SHAPE(3), LS_F32, VALUES(2.5, 2.5, 4));
    check_values(ls_minimum(b, 2.5), LS_SHAPE(3), LS_F32, VALUES(1, 2, 2.5));
    check_values(ls_add(ls_transpose(ls_add(a, b), 0, 1), ls_reshape(b, LS_SHAPE(3, 1))), LS_SHAPE(3, 2), LS_F32,
                 VALUES(4, 5, 6, 7, 10, 11));
}

TEST(test_result_dtypes) {
    const struct {
        ls_dtype a;
        int a_ndim;
        ls_dtype b;
        int b_ndim;
        ls_dtype sum;
    } cases[] = {
        {LS_F32, 1, LS_F64, 1, LS_F64},    {LS_F32, 1, LS_F64, 0, LS_F32},  {LS_F32, 0, LS_F64, 0, LS_F64},
        {LS_I64, 1, LS_F32, 1, LS_F32},    {LS_I64, 1, LS_F16, 0, LS_F16},  {LS_BF16, 1, LS_F16, 1, LS_F32},
        {LS_BF16, 1, LS_BF16, 1, LS_BF16}, {LS_BF16, 1, LS_F32, 1, LS_F32}, {LS_F16, 1, LS_I64, 1, LS_F16},
        {LS_U8, 1, LS_I32, 1, LS_I32},     {LS_I32, 1, LS_I64, 0, LS_I32},  {LS_I32, 1, LS_I64, 1, LS_I64},
        {LS_BOOL, 1, LS_U8, 1, LS_U8},     {LS_BOOL, 1, LS_I64, 0, LS_I64}, {LS_BOOL, 1, LS_BOOL, 1, LS_BOOL},
        {LS_I64, 1, LS_F64, 0, LS_F64},    {LS_F16, 0, LS_F64, 1, LS_F64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *a = ls_ones((ls_shape){cases[i].a_ndim, {2}}, cases[i].a);
        ls_tensor *b = ls_ones((ls_shape){cases[i].b_ndim, {2}}, cases[i].b);
        const ls_shape shape = {cases[i].a_ndim > cases[i].b_ndim ? cases[i].a_ndim : cases[i].b_ndim, {2}};
        const double sum = cases[i].sum == LS_BOOL ? 1 : 2;
        check_values(ls_add(a, b), shape, cases[i].sum, VALUES(sum, sum));
        check_values(ls_add(b, a), shape, cases[i].sum, VALUES(sum, sum));
        check_values(ls_where(ls_ones(LS_SCALAR, LS_BOOL), a, b), shape, cases[i].sum, VALUES(1, 1));
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

SCOPED_TEST(test_numbers_and_dtypes) {
    const ls_shape one = LS_SHAPE(1);
    ls_tensor *i64 = numbers(one, LS_I64, VALUES(7)), *u8 = numbers(one, LS_U8, VALUES(7));
    ls_tensor *yes = numbers(one, LS_BOOL, VALUES(1)), *bf16 = numbers(one, LS_BF16, VALUES(7));
    check_values(ls_add(i64, 2), one, LS_I64, VALUES(9));
    check_values(ls_add(i64, 0.5), one, LS_F32, VALUES(7.5));
    check_values(ls_mul(u8, 3), one, LS_U8, VALUES(21));
    check_values(ls_maximum(yes, 3), one, LS_I64, VALUES(3));
    check_values(ls_add(bf16, 0.1), one, LS_BF16, VALUES(7.1));
    check_values(ls_add(numbers(one, LS_F32, VALUES(1)), 1e-3), one, LS_F32, VALUES(1.001));
    check_values(ls_div(i64, 2), one, LS_F32, VALUES(3.5));
    check_values(ls_div(i64, u8), one, LS_F32, VALUES(1));
    check_values(ls_pow(i64, 10), one, LS_I64, VALUES(282475249));
    check_values(ls_pow(i64, u8), one, LS_I64, VALUES(823543));
    check_values(ls_pow(i64, 0.5), one, LS_F32, VALUES(2.6457513));
    check_values(ls_pow(bf16, 2), one, LS_BF16, VALUES(49));
}

SCOPED_TEST(test_bool_arithmetic) {
    ls_tensor *a = numbers(LS_SHAPE(4), LS_BOOL, VALUES(0, 0, 1, 1));
    ls_tensor *b = numbers(LS_SHAPE(4), LS_BOOL, VALUES(0, 1, 0, 1));
    check_values(ls_add(a, b), LS_SHAPE(4), LS_BOOL, VALUES(0, 1, 1, 1));
    check_values(ls_mul(a, b), LS_SHAPE(4), LS_BOOL, VALUES(0, 0, 0, 1));
    check_values(ls_maximum(a, b), LS_SHAPE(4), LS_BOOL, VALUES(0, 1, 1, 1));
    check_values(ls_minimum(a, b), LS_SHAPE(4), LS_BOOL, VALUES(0, 0, 0, 1));
    check_values(ls_add(a, 1), LS_SHAPE(4), LS_I64, VALUES(1, 1, 2, 2));
}

SCOPED_TEST(test_comparisons) {
    const ls_shape three = LS_SHAPE(3);
    const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_BF16, LS_F16, LS_I64, LS_I32, LS_U8};
    for (int i = 0; i < 7; i++) {
        ls_tensor *a = numbers(three, dtypes[i], VALUES(1, 2, 3));
        ls_tensor *b = numbers(three, dtypes[6 - i], VALUES(2, 2, 2));
        check_values(ls_eq(a, b), three, LS_BOOL, VALUES(0, 1, 0));
        check_values(ls_ne(a, b), three, LS_BOOL, VALUES(1, 0, 1));
        check_values(ls_lt(a, b), three, LS_BOOL, VALUES(1, 0, 0));
        check_values(ls_le(a, b), three, LS_BOOL, VALUES(1, 1, 0));
        check_values(ls_gt(a, b), three, LS_BOOL, VALUES(0, 0, 1));
        check_values(ls_ge(a, b), three, LS_BOOL, VALUES(0, 1, 1));
        check_values(ls_lt(a, 2.5), three, LS_BOOL, VALUES(1, 1, 0));
        check_values(ls_eq(a, 3), three, LS_BOOL, VALUES(0, 0, 1));
        check_values(ls_ge(ls_reshape(a, LS_SHAPE(3, 1)), b), LS_SHAPE(3, 3), LS_BOOL,
                     VALUES(0, 0, 0, 1, 1, 1, 1, 1, 1));
    }
    ls_tensor *y = numbers(three, LS_F32, VALUES(1, nan_value, 3));
    assert_int_equal(ls_set_requires_grad(y, true), LS_OK);
    check_values(ls_eq(y, y), three, LS_BOOL, VALUES(1, 0, 1));
    check_values(ls_ne(y, y), three, LS_BOOL, VALUES(0, 1, 0));
    assert_false(ls_requires_grad(ls_gt(y, 1)));
}

SCOPED_TEST(test_where) {
    ls_tensor *condition = numbers(LS_SHAPE(3), LS_U8, VALUES(0, 2, 1));
    ls_tensor *a = leaf_from(LS_SHAPE(2, 1), VALUES(1, 2)), *b = leaf_from(LS_SCALAR, VALUES(9));
    ls_tensor *y = ls_where(condition, a, b);
    check_values(y, LS_SHAPE(2, 3), LS_F64, VALUES(9, 1, 1, 9, 2, 2));
    assert_int_equal(ls_backward(ls_sum(y)), LS_OK);
    check_values(ls_grad(a), LS_SHAPE(2, 1), LS_F64, VALUES(2, 2));
    check_values(ls_grad(b), LS_SCALAR, LS_F64, VALUES(2));
}

/* A 16-bit leaf gets a 16-bit gradient, and a sum of mixed dtypes gives each input a gradient in its dtype. */
TEST(test_gradients_in_the_dtypes_of_the_inputs) {
    const ls_dtype dtypes[] = {LS_BF16, LS_F16, LS_F32};
    for (int i = 0; i < 3; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = numbers(LS_SHAPE(2), dtypes[i], VALUES(1, 2));
        ls_tensor *w = numbers(LS_SHAPE(2, 2), LS_F32, VALUES(1, 2, 3, 4));
        assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
        assert_int_equal(ls_set_requires_grad(w, true), LS_OK);
        ls_tensor *y = ls_mul(ls_square(x), w);
        check_values(y, LS_SHAPE(2, 2), LS_F32, VALUES(1, 8, 3, 16));
        assert_int_equal(ls_backward(ls_sum(y)), LS_OK);
        check_values(ls_grad(x), LS_SHAPE(2), dtypes[i], VALUES(8, 24));
        check_values(ls_grad(w), LS_SHAPE(2, 2), LS_F32, VALUES(1, 4, 1, 4));
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

SCOPED_TEST(test_gradients_at_the_edges) {
    ls_tensor *a = leaf_from(LS_SHAPE(3), VALUES(1, 2, 3)), *b = leaf_from(LS_SHAPE(3), VALUES(2, 2, 2));
    assert_int_equal(ls_backward(ls_sum(ls_maximum(a, b))),
                     LS_OK); /* a tie shares the gradient equally, as in PyTorch */
    check_values(ls_grad(a), LS_SHAPE(3), LS_F64, VALUES(0, 0.5, 1));
    check_values(ls_grad(b), LS_SHAPE(3), LS_F64, VALUES(1, 0.5, 0));
    ls_tensor *z = leaf_from(LS_SHAPE(2), VALUES(0, 2)), *p = leaf_from(LS_SHAPE(2), VALUES(0, 3));
    assert_int_equal(ls_backward(ls_sum(ls_pow(z, p))), LS_OK);
    check_values(ls_grad(z), LS_SHAPE(2), LS_F64, VALUES(0, 12));
    check_values(ls_grad(p), LS_SHAPE(2), LS_F64, VALUES(0, 5.545177444479562));
    ls_tensor *x = leaf_from(LS_SHAPE(3), VALUES(-2, 0, 2));
    assert_int_equal(ls_backward(ls_sum(ls_add(ls_abs(x), ls_relu(x)))), LS_OK);
    check_values(ls_grad(x), LS_SHAPE(3), LS_F64, VALUES(-1, 0, 2));
}

SCOPED_TEST(test_empty_tensors) {
    ls_tensor *x = leaf_from(LS_SHAPE(0, 3), VALUES(0)), *bias = leaf_from(LS_SHAPE(3), VALUES(1, 2, 3));
    ls_tensor *y = ls_exp(ls_mul(ls_add(x, bias), 2));
    check_values(y, LS_SHAPE(0, 3), LS_F64, NULL);
    assert_int_equal(ls_backward(ls_sum(y)), LS_OK);
    check_values(ls_grad(x), LS_SHAPE(0, 3), LS_F64, NULL);
    check_values(ls_grad(bias), LS_SHAPE(3), LS_F64, VALUES(0, 0, 0));
    check_values(ls_gt(x, bias), LS_SHAPE(0, 3), LS_BOOL, NULL);
}

SCOPED_TEST(test_refusals) {
    check_refused(ls_add(ls_ones(LS_SHAPE(3, 4), LS_F32), ls_ones(LS_SHAPE(5), LS_F32)), LS_ERR_SHAPE,
                  "ls_add: [3, 4] does not broadcast with [5]: sizes 4 and 5 of the last axis differ");
    check_refused(ls_lt(ls_ones(LS_SHAPE(3, 4), LS_F32), ls_ones(LS_SHAPE(2, 4), LS_F32)), LS_ERR_SHAPE,
                  "ls_lt: [3, 4] does not broadcast with [2, 4]: sizes 3 and 2 of axis -2 differ");
    ls_tensor *yes = ls_ones(LS_SHAPE(2), LS_BOOL);
    check_refused(ls_sub(yes, yes), LS_ERR_SHAPE, "ls_sub: both tensors are bool");
    check_refused(ls_neg(ls_ones(LS_SHAPE(2), LS_BOOL)), LS_ERR_SHAPE, "ls_neg: the tensor is bool");
    check_refused(ls_pow(ls_ones(LS_SHAPE(2), LS_I64), -1), LS_ERR_ARGUMENT, "ls_pow: exponent -1");
    ls_tensor *x = ls_ones(LS_SHAPE(2), LS_F32);
    check_refused(ls_where(x, x, x), LS_ERR_SHAPE, "ls_where: the condition is a tensor of f32");
    ls_scope *scope = ls_scope_begin(); /* the scope stores the failure of the first operation */
    ls_tensor *bad = ls_add(ls_ones(LS_SHAPE(2), LS_F32), ls_ones(LS_SHAPE(3), LS_F32));
    check_refused_in(scope, ls_exp(ls_mul(ls_add(bad, 1), bad)), LS_ERR_SHAPE,
                     "ls_add: [2] does not broadcast with [3]");
}

TEST(test_numbers_on_the_left) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_arange(LS_SHAPE(3), LS_F32), *n = ls_arange(LS_SHAPE(3), LS_I32),
              *u = ls_arange(LS_SHAPE(3), LS_U8);
    ls_tensor *bools = ls_gt(n, 0), *one = ls_scalar(3, LS_I32), *halves = ls_arange(LS_SHAPE(3), LS_BF16);
    const ls_shape three = LS_SHAPE(3);
    check_values(ls_sub(1, x), three, LS_F32, VALUES(1, 0, -1));
    check_values(ls_add(0.5, x), three, LS_F32, VALUES(0.5, 1.5, 2.5));
    check_values(ls_mul(3.0F, x), three, LS_F32, VALUES(0, 3, 6));
    check_values(ls_div(6, ls_add(x, 1)), three, LS_F32, VALUES(6, 3, 2));
    check_values(ls_pow(2, x), three, LS_F32, VALUES(1, 2, 4));
    check_values(ls_sub(1, n), three, LS_I32, VALUES(1, 0, -1));
    check_values(ls_sub(2.5, u), three, LS_F32, VALUES(2.5, 1.5, 0.5));
    check_values(ls_sub(1, u), three, LS_U8, VALUES(1, 0, 255));
    check_values(ls_sub(-1, u), three, LS_U8, VALUES(255, 254, 253));
    check_values(ls_sub(1U, bools), three, LS_I64, VALUES(1, 0, 0));
    check_values(ls_div(6, ls_add(n, 1)), three, LS_F32, VALUES(6, 3, 2));
    check_values(ls_sub(10UL, one), LS_SCALAR, LS_I32, VALUES(7));
    check_values(ls_sub(0.5, halves), three, LS_BF16, VALUES(0.5, -0.5, -1.5));
    check_values(ls_div(-1, ls_full(LS_SHAPE(1), LS_U8, 2)), LS_SHAPE(1), LS_F32, VALUES(-0.5));
    check_values(ls_div(5000000000LL, ls_ones(LS_SHAPE(1), LS_I32)), LS_SHAPE(1), LS_F32, VALUES(5e9));
    check_values(ls_sub(1.0, ls_scalar(0.5, LS_BF16)), LS_SCALAR, LS_BF16, VALUES(0.5));
    const int64_t large = ((int64_t)1 << 60) + 1;
    ls_tensor *exact = ls_sub(large, ls_ones(LS_SHAPE(1), LS_I64));
    assert_true(*(const int64_t *)elements(exact) == large - 1);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    scope = ls_scope_begin();
    check_refused_in(scope, ls_sub(300, ls_zeros(LS_SHAPE(1), LS_U8)), LS_ERR_ARGUMENT,
                     "ls_sub: 300 does not fit into u8");
    scope = ls_scope_begin();
    check_refused_in(scope, ls_mul(UINT64_MAX, ls_zeros(LS_SHAPE(1), LS_I64)), LS_ERR_ARGUMENT,
                     "ls_mul: 18446744073709551615");
    scope = ls_scope_begin();
    check_refused_in(scope, ls_div(1, (ls_tensor *)NULL), LS_ERR_ARGUMENT, "ls_div: argument 2 is NULL");
    ls_tensor *ones = ls_ones(LS_SHAPE(2), LS_F64), *kept = ls_sub(1, ones); /* without a scope */
    assert_true(ls_at(kept, (const int64_t[]){1}) == 0);
    ls_release(kept);
    ls_release(ones);
}

SCOPED_TEST(test_devices_do_not_mix) {
    ls_tensor *here = ls_ones(LS_SHAPE(2), LS_F32), *there = ls_ones(LS_SHAPE(2), LS_F32);
    const ls_device *device = ls_tensor_device(here);
    ls_device other = *device;
    other.name = "elsewhere";
    there->storage->device = &other;
    char words[80];
    snprintf(words, sizeof words, "ls_add: argument 2 is on elsewhere, but the arguments before it are on %s",
             device->name);
    check_refused(ls_add(here, there), LS_ERR_ARGUMENT, words);
    there->storage->device = device;
    ls_release(here);
    ls_release(there);
}

TEST(test_clamp_with_odd_bounds) {
    const ls_dtype dtypes[] = {LS_F32, LS_F64};
    for (int k = 0; k < 2; k++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = numbers(LS_SHAPE(4), dtypes[k], VALUES(-2, 0, 2, nan_value));
        check_values(ls_clamp(x, 1, -1), LS_SHAPE(4), dtypes[k], VALUES(-1, -1, -1, nan_value));
        const double *all_nan = VALUES(nan_value, nan_value, nan_value, nan_value);
        check_values(ls_clamp(x, nan_value, 1), LS_SHAPE(4), dtypes[k], all_nan);
        check_values(ls_clamp(x, -1, nan_value), LS_SHAPE(4), dtypes[k], all_nan);
        assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
        assert_int_equal(ls_backward(ls_sum(ls_clamp(x, -1, 1))), LS_OK);
        check_values(ls_grad(x), LS_SHAPE(4), dtypes[k], VALUES(0, 1, 0, 0));
        ls_zero_grad(x);
        assert_int_equal(ls_backward(ls_sum(ls_clamp(x, -2, 0))), LS_OK); /* at the limits, as in PyTorch */
        check_values(ls_grad(x), LS_SHAPE(4), dtypes[k], VALUES(0, 0, 0, 0));
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

/* 2^24 + 1 is odd; f32 would round it to 2^24. */
TEST(test_power_with_an_exponent_beyond_f32) {
    const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_BF16};
    for (int k = 0; k < 3; k++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = numbers(LS_SHAPE(3), dtypes[k], VALUES(-1, 0, 1));
        assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
        check_values(ls_pow(x, 16777217), LS_SHAPE(3), dtypes[k], VALUES(-1, 0, 1));
        check_values(ls_pow(x, ls_full(LS_SCALAR, LS_I64, 16777217)), LS_SHAPE(3), dtypes[k], VALUES(-1, 0, 1));
        ls_tensor *y = ls_pow(x, 16777217.0);
        check_values(y, LS_SHAPE(3), dtypes[k], VALUES(-1, 0, 1));
        assert_int_equal(ls_backward(ls_sum(y)), LS_OK);
        assert_true(ls_at(ls_grad(x), (const int64_t[]){0}) > 16e6); /* -1 to an even power */
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

SCOPED_TEST(test_full_refuses_what_a_dtype_cannot_hold) {
    static const struct {
        ls_dtype dtype;
        double value;
        const char *words;
    } cases[] = {
        {LS_I64, 1.5, "ls_full: 1.5 does not fit into i64"}, {LS_U8, 300, "ls_full: 300 does not fit into u8"},
        {LS_U8, -1, "ls_full: -1 does not fit into u8"},     {LS_I32, 2147483648.0, "does not fit into i32"},
        {LS_I64, (double)INFINITY, "does not fit into i64"}, {LS_BOOL, 2, "ls_full: 2 does not fit into bool"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_refused(ls_full(LS_SHAPE(2), cases[i].dtype, cases[i].value), LS_ERR_ARGUMENT, cases[i].words);
    }
    ls_tensor *filled = ls_full(LS_SHAPE(1), LS_I64, -7);
    ls_scope *inner = ls_scope_begin();
    expect_error(ls_fill(filled, 1.5), LS_ERR_ARGUMENT, "ls_fill: 1.5 does not fit into i64");
    assert_int_equal(ls_scope_end(inner), LS_ERR_ARGUMENT);
    check_values(filled, LS_SHAPE(1), LS_I64, VALUES(-7));
    check_refused(ls_scalar(0.5, LS_I32), LS_ERR_ARGUMENT, "ls_scalar: 0.5 does not fit into i32");
}

/* A number outside the range of an integer dtype is compared exactly. With u8, negative numbers follow PyTorch. */
SCOPED_TEST(test_numbers_that_integers_do_not_hold) {
    ls_tensor *x = numbers(LS_SHAPE(3), LS_U8, VALUES(0, 7, 255));
    check_values(ls_add(x, -1), LS_SHAPE(3), LS_U8, VALUES(255, 6, 254));
    check_values(ls_sub(x, -1), LS_SHAPE(3), LS_U8, VALUES(1, 8, 0));
    check_values(ls_mul(x, 300.0), LS_SHAPE(3), LS_F32, VALUES(0, 2100, 76500));
    check_values(ls_maximum(x, -1), LS_SHAPE(3), LS_U8, VALUES(0, 7, 255));
    check_values(ls_minimum(x, -1), LS_SHAPE(3), LS_U8, VALUES(0, 0, 0));
    check_values(ls_eq(x, -1), LS_SHAPE(3), LS_BOOL, VALUES(0, 0, 0));
    check_values(ls_eq(x, 300), LS_SHAPE(3), LS_BOOL, VALUES(0, 0, 0));
    check_values(ls_ge(x, 256), LS_SHAPE(3), LS_BOOL, VALUES(0, 0, 0));
    check_values(ls_le(x, -1), LS_SHAPE(3), LS_BOOL, VALUES(0, 0, 0));
    check_values(ls_gt(x, -1), LS_SHAPE(3), LS_BOOL, VALUES(1, 1, 1));
    ls_tensor *y = numbers(LS_SHAPE(2), LS_I32, VALUES(INT32_MAX, INT32_MIN));
    check_values(ls_eq(y, 0x1p31), LS_SHAPE(2), LS_BOOL, VALUES(0, 0));
    check_values(ls_add(y, 0x1p32), LS_SHAPE(2), LS_F32, VALUES(0x1p32 + 0x1p31, 0x1p31));
}

static ls_tensor *with_300(ls_tensor *x, int operation) {
    return operation == 0   ? ls_add(x, 300)
           : operation == 1 ? ls_sub(x, 300L)
           : operation == 2 ? ls_mul(x, (short)300)
           : operation == 3 ? ls_maximum(x, 300LL)
                            : ls_minimum(x, 300UL);
}

SCOPED_TEST(test_numbers_that_do_not_fit_are_refused) {
    static const char *const names[] = {"ls_add", "ls_sub", "ls_mul", "ls_maximum", "ls_minimum"};
    for (int i = 0; i < 5; i++) {
        char expected[64];
        snprintf(expected, sizeof expected, "%s: 300 does not fit into u8", names[i]);
        check_refused(with_300(ls_ones(LS_SHAPE(2), LS_U8), i), LS_ERR_ARGUMENT, expected);
    }
    check_refused(ls_mul(ls_ones(LS_SHAPE(2), LS_I32), 3000000000), LS_ERR_ARGUMENT,
                  "ls_mul: 3000000000 does not fit into i32");
    check_refused(ls_add(ls_ones(LS_SHAPE(2), LS_I32), INT64_MIN), LS_ERR_ARGUMENT, "does not fit into i32");
    check_refused(ls_add(ls_ones(LS_SHAPE(2), LS_I64), UINT64_MAX), LS_ERR_ARGUMENT,
                  "ls_add: 18446744073709551615 does not fit into i64");
    check_refused(ls_pow(ls_ones(LS_SHAPE(2), LS_I64), UINT64_MAX), LS_ERR_ARGUMENT, "does not fit into i64");
    check_refused(ls_add((ls_tensor *)NULL, 1), LS_ERR_ARGUMENT, "ls_add: argument 1 is NULL");
    check_refused(ls_eq((ls_tensor *)NULL, 1), LS_ERR_ARGUMENT, "argument 1 is NULL");
    check_refused(ls_add(ls_ones(LS_SHAPE(2), LS_I64), NULL), LS_ERR_ARGUMENT, "argument 2 is NULL");
}

/* The type of a number, not its value, determines the result's dtype. */
SCOPED_TEST(test_the_type_of_a_number) {
    const ls_shape one = LS_SHAPE(1);
    enum { TWO = 2 } two = TWO;
    const ls_dtype dtypes[] = {LS_I64, LS_I32, LS_U8, LS_BOOL};
    for (int i = 0; i < 4; i++) {
        ls_tensor *x = numbers(one, dtypes[i], VALUES(1));
        const ls_dtype kept = dtypes[i] == LS_BOOL ? LS_I64 : dtypes[i];
        check_values(ls_mul(x, 2.0), one, LS_F32, VALUES(2));
        check_values(ls_mul(x, 2.0F), one, LS_F32, VALUES(2));
        check_values(ls_mul(x, 2.0L), one, LS_F32, VALUES(2));
        check_values(ls_mul(x, 2.5), one, LS_F32, VALUES(2.5));
        check_values(ls_add(x, 1e20), one, LS_F32, VALUES(1e20));
        check_values(ls_mul(x, 3e9), one, LS_F32, VALUES(3e9));
        check_values(ls_maximum(x, 2.0), one, LS_F32, VALUES(2));
        check_values(ls_pow(x, 2.0), one, LS_F32, VALUES(1));
        check_values(ls_pow(x, -1.0), one, LS_F32, VALUES(1));
        check_values(ls_div(x, 2), one, LS_F32, VALUES(0.5));
        check_values(ls_div(x, SIZE_MAX), one, LS_F32, VALUES(0x1p-64));
        check_values(ls_mul(x, 2), one, kept, VALUES(2));
        check_values(ls_mul(x, two), one, kept, VALUES(2));
        check_values(ls_mul(x, TWO), one, kept, VALUES(2));
        check_values(ls_mul(x, true), one, kept, VALUES(1));
        check_values(ls_mul(x, (bool)true), one, kept, VALUES(1));
        check_values(ls_mul(x, 'A'), one, kept, VALUES(65));
        check_values(ls_mul(x, (char)65), one, kept, VALUES(65));
        check_values(ls_mul(x, (signed char)65), one, kept, VALUES(65));
        check_values(ls_mul(x, (unsigned char)65), one, kept, VALUES(65));
        check_values(ls_mul(x, (unsigned short)65), one, kept, VALUES(65));
        check_values(ls_mul(x, 65U), one, kept, VALUES(65));
        check_values(ls_mul(x, sizeof(int)), one, kept, VALUES(4));
        check_values(ls_mul(x, (const int64_t){7}), one, kept, VALUES(7));
        check_values(ls_mul(x, (uint64_t)7), one, kept, VALUES(7));
        check_values(ls_pow(x, 2), one, kept, VALUES(1));
        check_values(ls_sub(x, 1), one, kept, VALUES(0));
    }
    for (int i = 0; i < 4; i++) {
        const ls_dtype floating[] = {LS_F32, LS_F64, LS_BF16, LS_F16};
        ls_tensor *x = numbers(one, floating[i], VALUES(1));
        check_values(ls_mul(x, 2), one, floating[i], VALUES(2));
        check_values(ls_add(x, 2UL), one, floating[i], VALUES(3));
        check_values(ls_div(x, 2), one, floating[i], VALUES(0.5));
    }
    check_values(ls_mul(ls_ones(one, LS_F64), UINT64_MAX), one, LS_F64, VALUES(0x1p64));
}

static int64_t whole(ls_tensor *x) {
    assert_non_null(x);
    assert_int_equal(ls_dtype_of(x), LS_I64);
    return *(const int64_t *)elements(x);
}

/* Beyond 2^53, neighboring integers are equal as doubles. */
SCOPED_TEST(test_integers_of_64_bits_are_exact) {
    const int64_t large = ((int64_t)1 << 53) + 1;
    ls_tensor *one = ls_ones(LS_SHAPE(1), LS_I64);
    ls_tensor *x = ls_from(LS_SHAPE(1), LS_I64, &large);
    assert_int_equal(whole(ls_mul(one, large)), large);
    assert_int_equal(whole(ls_add(one, large)), large + 1);
    assert_int_equal(whole(ls_add(one, (uint64_t)large)), large + 1);
    assert_int_equal(whole(ls_sub(one, large)), 1 - large);
    assert_int_equal(whole(ls_maximum(one, large)), large);
    assert_int_equal(whole(ls_minimum(ls_full(LS_SHAPE(1), LS_I64, 0x1p60), large)), large);
    assert_int_equal(whole(ls_mul(ls_ones(LS_SHAPE(1), LS_BOOL), large)), large);
    assert_int_equal(whole(ls_add(one, INT64_MAX - 1)), INT64_MAX);
    assert_int_equal(whole(ls_sub(ls_zeros(LS_SHAPE(1), LS_I64), INT64_MIN + 1)), INT64_MAX);
    check_values(ls_eq(x, large), LS_SHAPE(1), LS_BOOL, VALUES(1));
    check_values(ls_eq(x, large - 1), LS_SHAPE(1), LS_BOOL, VALUES(0));
    check_values(ls_gt(x, large - 1), LS_SHAPE(1), LS_BOOL, VALUES(1));
    check_values(ls_ne(x, (uint64_t)large), LS_SHAPE(1), LS_BOOL, VALUES(0));
    check_values(ls_lt(x, UINT64_MAX), LS_SHAPE(1), LS_BOOL, VALUES(1));
    check_values(ls_le(x, large), LS_SHAPE(1), LS_BOOL, VALUES(1));
    check_values(ls_ge(x, large + 1), LS_SHAPE(1), LS_BOOL, VALUES(0));
    check_values(ls_eq(x, (double)large), LS_SHAPE(1), LS_BOOL, VALUES(0)); /* the double is 2^53 */
    check_values(ls_lt(ls_ones(LS_SHAPE(1), LS_I32), large), LS_SHAPE(1), LS_BOOL, VALUES(1));
    check_values(ls_gt(x, (double)(large - 1) - 0.5), LS_SHAPE(1), LS_BOOL, VALUES(1));
}

SCOPED_TEST(test_integer_powers_are_exact) {
    const int64_t three_to_the_39 = 4052555153018976267;
    ls_tensor *base = ls_full(LS_SHAPE(1), LS_I64, 3), *exponent = ls_full(LS_SHAPE(1), LS_I64, 39);
    assert_int_equal(*(int64_t *)elements(ls_pow(base, 39)), three_to_the_39);
    assert_int_equal(*(int64_t *)elements(ls_pow(base, exponent)), three_to_the_39);
    check_values(ls_pow(base, 3), LS_SHAPE(1), LS_I64, VALUES(27));
    const int64_t odd = ((int64_t)1 << 53) + 1; /* not representable as a double */
    check_values(ls_pow(ls_full(LS_SHAPE(1), LS_I64, -1), odd), LS_SHAPE(1), LS_I64, VALUES(-1));
    check_values(ls_pow(ls_ones(LS_SHAPE(1), LS_BOOL), INT64_MAX), LS_SHAPE(1), LS_I64, VALUES(1));
    check_values(ls_pow(ls_full(LS_SHAPE(1), LS_U8, 2), 300), LS_SHAPE(1), LS_U8, VALUES(0));
    ls_tensor *x = numbers(LS_SHAPE(3), LS_U8, VALUES(2, 20, 255));
    check_values(ls_pow(x, 2), LS_SHAPE(3), LS_U8, VALUES(4, 144, 1));
    check_values(ls_pow(x, 0), LS_SHAPE(3), LS_U8, VALUES(1, 1, 1));
    ls_tensor *signs = numbers(LS_SHAPE(4), LS_I32, VALUES(1, -1, 2, 0));
    ls_tensor *negative = numbers(LS_SHAPE(4), LS_I32, VALUES(-3, -3, -3, -3));
    check_values(ls_pow(signs, negative), LS_SHAPE(4), LS_I32, VALUES(1, -1, 0, 0));
}

/* Without a scope, all intermediate tensors must be freed, or else the sanitizer reports them. */
TEST(test_without_a_scope) {
    ls_tensor *x = ls_ones(LS_SHAPE(2), LS_BF16), *n = ls_ones(LS_SHAPE(2), LS_I32);
    ls_tensor *y = ls_add(x, n), *c = ls_lt(n, 1.5);
    check_values(y, LS_SHAPE(2), LS_BF16, VALUES(2, 2));
    check_values(c, LS_SHAPE(2), LS_BOOL, VALUES(1, 1));
    ls_release(x);
    ls_release(n);
    ls_release(y);
    ls_release(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_functions_of_one_tensor),
        cmocka_unit_test(test_functions_of_integers),
        cmocka_unit_test(test_functions_of_two_tensors),
        cmocka_unit_test(test_result_dtypes),
        cmocka_unit_test(test_numbers_and_dtypes),
        cmocka_unit_test(test_bool_arithmetic),
        cmocka_unit_test(test_comparisons),
        cmocka_unit_test(test_where),
        cmocka_unit_test(test_gradients_in_the_dtypes_of_the_inputs),
        cmocka_unit_test(test_gradients_at_the_edges),
        cmocka_unit_test(test_empty_tensors),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_numbers_on_the_left),
        cmocka_unit_test(test_devices_do_not_mix),
        cmocka_unit_test(test_clamp_with_odd_bounds),
        cmocka_unit_test(test_power_with_an_exponent_beyond_f32),
        cmocka_unit_test(test_full_refuses_what_a_dtype_cannot_hold),
        cmocka_unit_test(test_numbers_that_integers_do_not_hold),
        cmocka_unit_test(test_numbers_that_do_not_fit_are_refused),
        cmocka_unit_test(test_the_type_of_a_number),
        cmocka_unit_test(test_integers_of_64_bits_are_exact),
        cmocka_unit_test(test_integer_powers_are_exact),
        cmocka_unit_test(test_without_a_scope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
