/*
 * Softmax kernels and class losses compared with plain formulas in double precision.
 *
 * devices: cpu cuda
 */
#include "tests/support/numbers.h"

#include "base/status.h"
#include "tests/support/kernels.h"

/* Calls `check` for both dtypes, many shapes and every axis. */
static void for_axes(void (*check)(const ls_tensor *x, int axis, int64_t width, int64_t inner)) {
    const ls_shape shapes[] = {LS_SHAPE(7),       LS_SHAPE(1, 1),     LS_SHAPE(64, 10), LS_SHAPE(3, 100),
                               LS_SHAPE(5, 4, 6), LS_SHAPE(2, 3, 70), LS_SHAPE(9, 33),  LS_SHAPE(2, 17, 3)};
    for (size_t s = 0; s < 2 * sizeof shapes / sizeof shapes[0]; s++) {
        ls_tensor x = numbers_random(s % 2 == 0 ? LS_F32 : LS_F64, shapes[s / 2], s, 0);
        for (int axis = 0; axis < x.ndim; axis++) {
            check(&x, axis, x.size[axis], x.stride[axis]);
        }
        numbers_free(&x);
    }
}

static ls_shape shape_of(const ls_tensor *x) {
    return ls_shape_make(x->ndim, x->size);
}

/* Computes element `at` of the softmax directly from its definition. */
static double softmax_at(const ls_tensor *x, int64_t at, int64_t width, int64_t inner) {
    const int64_t first = at / (width * inner) * width * inner + at % inner;
    double largest = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < width; i++) {
        largest = fmax(largest, numbers_get(x, first + i * inner));
    }
    for (int64_t i = 0; i < width; i++) {
        sum += exp(numbers_get(x, first + i * inner) - largest);
    }
    return exp(numbers_get(x, at) - largest) / sum;
}

static void check_softmax(const ls_tensor *x, int axis, int64_t width, int64_t inner) {
    ls_tensor y = numbers_new((ls_dtype)x->dtype, shape_of(x));
    ls_tensor l = numbers_new((ls_dtype)x->dtype, shape_of(x));
    assert_int_equal(kernels()->softmax(NULL, &y, x, axis), LS_OK);
    assert_int_equal(kernels()->log_softmax(NULL, &l, x, axis), LS_OK);
    for (int64_t i = 0; i < x->count; i++) {
        const double want = softmax_at(x, i, width, inner);
        numbers_expect("softmax", numbers_get(&y, i), want, numbers_tolerance((ls_dtype)x->dtype));
        numbers_expect("log_softmax", numbers_get(&l, i), log(want), numbers_tolerance((ls_dtype)x->dtype));
    }
    numbers_free(&y);
    numbers_free(&l);
}

static void check_softmax_backward(const ls_tensor *x, int axis, int64_t width, int64_t inner) {
    const ls_dtype dtype = (ls_dtype)x->dtype;
    ls_tensor y = numbers_new(dtype, shape_of(x));
    ls_tensor l = numbers_new(dtype, shape_of(x));
    ls_tensor dy = numbers_random(dtype, shape_of(x), 99, 0);
    ls_tensor dx = numbers_new(dtype, shape_of(x));
    ls_tensor dl = numbers_new(dtype, shape_of(x));
    assert_int_equal(kernels()->softmax(NULL, &y, x, axis), LS_OK);
    assert_int_equal(kernels()->log_softmax(NULL, &l, x, axis), LS_OK);
    assert_int_equal(kernels()->softmax_backward(NULL, &dx, &dy, &y, axis), LS_OK);
    assert_int_equal(kernels()->log_softmax_backward(NULL, &dl, &dy, &l, axis), LS_OK);
    for (int64_t at = 0; at < x->count; at++) {
        const int64_t first = at / (width * inner) * width * inner + at % inner;
        double sum = 0;
        double projection = 0;
        for (int64_t i = 0; i < width; i++) {
            sum += numbers_get(&dy, first + i * inner);
            projection += numbers_get(&dy, first + i * inner) * softmax_at(x, first + i * inner, width, inner);
        }
        const double p = softmax_at(x, at, width, inner);
        const double g = numbers_get(&dy, at);
        numbers_expect("softmax_backward", numbers_get(&dx, at), p * (g - projection), 2 * numbers_tolerance(dtype));
        numbers_expect("log_softmax_backward", numbers_get(&dl, at), g - p * sum, 2 * numbers_tolerance(dtype));
    }
    numbers_free(&y);
    numbers_free(&l);
    numbers_free(&dy);
    numbers_free(&dx);
    numbers_free(&dl);
}

TEST(test_softmax) {
    for_axes(check_softmax);
}

TEST(test_softmax_backward) {
    for_axes(check_softmax_backward);
}

/* Large logits do not overflow, and small logits keep their precision; -inf has probability 0; NaN is not hidden. */
TEST(test_extreme_logits) {
    for (int type = 0; type < 2; type++) {
        const ls_dtype dtype = type == 0 ? LS_F32 : LS_F64;
        ls_tensor x = numbers_new(dtype, LS_SHAPE(3, 3));
        ls_tensor y = numbers_new(dtype, LS_SHAPE(3, 3));
        const double values[] = {1e4, 1e4 + 1, -1e30, -INFINITY, 0, -INFINITY, 1, NAN, 2};
        for (int i = 0; i < 9; i++) {
            numbers_set(&x, i, values[i]);
        }
        assert_int_equal(kernels()->softmax(NULL, &y, &x, 1), LS_OK);
        numbers_expect("softmax", numbers_get(&y, 0), 1 / (1 + exp(1)), 1e-6);
        assert_true(numbers_get(&y, 2) == 0);
        assert_true(numbers_get(&y, 3) == 0 && numbers_get(&y, 4) == 1);
        assert_true(isnan(numbers_get(&y, 6)) && isnan(numbers_get(&y, 8)));
        assert_int_equal(kernels()->log_softmax(NULL, &y, &x, 1), LS_OK);
        numbers_expect("log_softmax", numbers_get(&y, 1), -log1p(exp(-1)), 1e-6);
        numbers_expect("log_softmax", numbers_get(&y, 2), (dtype == LS_F32 ? (double)-1e30F : -1e30) - 1e4, 1e-6);
        assert_true(numbers_get(&y, 5) == -INFINITY);
        assert_true(isnan(numbers_get(&y, 7)));
        numbers_free(&x);
        numbers_free(&y);
    }
}

TEST(test_softmax_refuses_integers) {
    ls_tensor x = numbers_new(LS_I64, LS_SHAPE(3));
    assert_int_equal(kernels()->softmax(NULL, &x, &x, 0), LS_ERR_UNSUPPORTED);
    expect_message("has no kernel for i64");
    numbers_free(&x);
}

TEST(test_empty_softmax) {
    ls_tensor x = numbers_new(LS_F32, LS_SHAPE(0, 3));
    ls_tensor z = numbers_new(LS_F32, LS_SHAPE(3, 0));
    for (int axis = 0; axis < 2; axis++) {
        assert_int_equal(kernels()->softmax(NULL, &x, &x, axis), LS_OK);
        assert_int_equal(kernels()->log_softmax(NULL, &z, &z, axis), LS_OK);
        assert_int_equal(kernels()->softmax_backward(NULL, &z, &z, &z, axis), LS_OK);
    }
    numbers_free(&x);
    numbers_free(&z);
}

/* ---- class losses ------------------------------------------------------------------------------------------------ */

enum { ROWS = 6, CLASSES = 5 };
static const int64_t targets[ROWS] = {0, 4, -100, 2, 2, 4};

typedef struct loss_case {
    ls_dtype dtype;
    bool weighted, ignore;
    double smoothing;
} loss_case;

/* Returns the weight of class c in row i's loss. */
static double share(const loss_case *c, const ls_tensor *weight, int64_t row, int64_t class) {
    if (c->ignore && targets[row] == -100) {
        return 0;
    }
    const double smooth = c->smoothing / CLASSES * (c->weighted ? numbers_get(weight, class) : 1);
    const double hit = (1 - c->smoothing) * (c->weighted ? numbers_get(weight, class) : 1);
    return smooth + (targets[row] == class ? hit : 0);
}

static void check_loss(const loss_case *c) {
    const int64_t rows = c->ignore ? ROWS : 2; /* the first two rows have valid targets */
    ls_tensor logits = numbers_random(c->dtype, LS_SHAPE(rows, CLASSES), 5, 0);
    ls_tensor weight = numbers_random(c->dtype, LS_SHAPE(CLASSES), 6, 4);
    ls_tensor l = numbers_new(c->dtype, LS_SHAPE(rows, CLASSES));
    ls_tensor element = numbers_new(c->dtype, LS_SHAPE(rows));
    ls_tensor row_weight = numbers_new(c->dtype, LS_SHAPE(rows));
    ls_tensor g = numbers_random(c->dtype, LS_SHAPE(rows), 7, 0);
    ls_tensor dl = numbers_random(c->dtype, LS_SHAPE(rows, CLASSES), 8, 0);
    ls_tensor dx = numbers_random(c->dtype, LS_SHAPE(rows, CLASSES), 9, 0);
    ls_tensor target = numbers_new(LS_I64, LS_SHAPE(rows));
    memcpy(target.data, targets, (size_t)rows * sizeof targets[0]);
    const ls_class_loss loss = {.target = &target,
                                .weight = c->weighted ? &weight : NULL,
                                .label_smoothing = c->smoothing,
                                .ignore = c->ignore,
                                .ignore_index = -100};
    assert_int_equal(kernels()->log_softmax(NULL, &l, &logits, 1), LS_OK);
    assert_int_equal(kernels()->nll(NULL, &element, &row_weight, &l, &loss), LS_OK);
    assert_int_equal(kernels()->nll_backward(NULL, &dl, &g, 0.25, &l, &loss), LS_OK);
    assert_int_equal(kernels()->cross_entropy_backward(NULL, &dx, &g, 0.25, &l, &loss), LS_OK);
    const double tolerance = 4 * numbers_tolerance(c->dtype);
    for (int64_t i = 0; i < rows; i++) {
        double want = 0;
        double total = 0;
        for (int64_t k = 0; k < CLASSES; k++) {
            const double q = share(c, &weight, i, k);
            want -= q * numbers_get(&l, i * CLASSES + k);
            total += q;
        }
        const double gi = 0.25 * numbers_get(&g, i);
        numbers_expect("nll", numbers_get(&element, i), want, tolerance);
        const bool ignored = c->ignore && targets[i] == -100;
        numbers_expect("row weight", numbers_get(&row_weight, i),
                       ignored       ? 0
                       : c->weighted ? numbers_get(&weight, targets[i])
                                     : 1,
                       0);
        for (int64_t k = 0; k < CLASSES; k++) {
            const double q = share(c, &weight, i, k);
            const double p = exp(numbers_get(&l, i * CLASSES + k));
            numbers_expect("nll_backward", numbers_get(&dl, i * CLASSES + k), -gi * q, tolerance);
            numbers_expect("cross_entropy_backward", numbers_get(&dx, i * CLASSES + k), gi * (total * p - q),
                           tolerance);
        }
    }
    ls_tensor *all[] = {&logits, &weight, &l, &element, &row_weight, &g, &dl, &dx, &target};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        numbers_free(all[i]);
    }
}

TEST(test_class_losses) {
    for (int way = 0; way < 16; way++) {
        check_loss(&(loss_case){.dtype = (way & 1) != 0 ? LS_F64 : LS_F32,
                                .weighted = (way & 2) != 0,
                                .ignore = (way & 4) != 0,
                                .smoothing = (way & 8) != 0 ? 0.1 : 0});
    }
}

/* One gradient for all rows gives the same result as the same number for each row. */
TEST(test_one_gradient_for_all_rows) {
    ls_tensor logits = numbers_random(LS_F64, LS_SHAPE(4, 3), 5, 0);
    ls_tensor l = numbers_new(LS_F64, LS_SHAPE(4, 3));
    ls_tensor one = numbers_new(LS_F64, LS_SHAPE(1));
    ls_tensor each = numbers_new(LS_F64, LS_SHAPE(4));
    ls_tensor d_one = numbers_new(LS_F64, LS_SHAPE(4, 3));
    ls_tensor d_each = numbers_new(LS_F64, LS_SHAPE(4, 3));
    ls_tensor target = numbers_new(LS_I64, LS_SHAPE(4));
    numbers_set(&one, 0, 3);
    for (int i = 0; i < 4; i++) {
        numbers_set(&each, i, 3);
    }
    const ls_class_loss loss = {.target = &target};
    assert_int_equal(kernels()->log_softmax(NULL, &l, &logits, 1), LS_OK);
    assert_int_equal(kernels()->cross_entropy_backward(NULL, &d_one, &one, 0.5, &l, &loss), LS_OK);
    assert_int_equal(kernels()->cross_entropy_backward(NULL, &d_each, &each, 0.5, &l, &loss), LS_OK);
    assert_memory_equal(d_one.data, d_each.data, 12 * sizeof(double));
    ls_tensor *all[] = {&logits, &l, &one, &each, &d_one, &d_each, &target};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        numbers_free(all[i]);
    }
}

TEST(test_wrong_targets_are_named) {
    ls_tensor l = numbers_new(LS_F32, LS_SHAPE(3, 10));
    ls_tensor element = numbers_new(LS_F32, LS_SHAPE(3));
    ls_tensor target = numbers_new(LS_I64, LS_SHAPE(3));
    ls_class_loss loss = {.target = &target, .ignore = true, .ignore_index = -1};
    const int64_t wrong[] = {10, -2, INT64_MAX, INT64_MIN};
    ((int64_t *)target.data)[0] = -1;
    for (int i = 0; i < 4; i++) {
        ((int64_t *)target.data)[2] = wrong[i];
        assert_int_equal(kernels()->nll(NULL, &element, &element, &l, &loss), LS_ERR_ARGUMENT);
        assert_int_equal(kernels()->nll_backward(NULL, &l, &element, 1, &l, &loss), LS_ERR_ARGUMENT);
        assert_int_equal(kernels()->cross_entropy_backward(NULL, &l, &element, 1, &l, &loss), LS_ERR_ARGUMENT);
    }
    ((int64_t *)target.data)[2] = 10;
    assert_int_equal(kernels()->nll(NULL, &element, &element, &l, &loss), LS_ERR_ARGUMENT);
    assert_string_equal(ls_error_message(),
                        "target[2] of the batch is 10, but there are 10 classes, numbered from 0; correct the "
                        "target, or increase the size of the last layer");
    loss.ignore = false; /* then -1 is not a valid class, either */
    assert_int_equal(kernels()->nll(NULL, &element, &element, &l, &loss), LS_ERR_ARGUMENT);
    expect_message("target[0] of the batch is -1, but there are 10 classes");
    numbers_free(&l);
    numbers_free(&element);
    numbers_free(&target);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_softmax_backward),
        cmocka_unit_test(test_extreme_logits),
        cmocka_unit_test(test_softmax_refuses_integers),
        cmocka_unit_test(test_empty_softmax),
        cmocka_unit_test(test_class_losses),
        cmocka_unit_test(test_one_gradient_for_all_rows),
        cmocka_unit_test(test_wrong_targets_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
