/*
 * Convolution and pooling compared with PyTorch (tests/fixtures/make_images.py) and, for larger sizes, with plain
 * loops; refusals; 16-bit floats.
 *
 * devices: cpu shadow cuda teams
 */
#include <lockstep/convolution.h>

#include "tests/support/elements.h"
#include "tests/support/operations.h"
#include "tests/support/unit.h"

#include <math.h>

FIXTURES(images, "images.txt")

/* Returns the next `count` numbers of a case's options as a shape. */
static ls_shape take(const double **numbers, int count) {
    int64_t size[LS_MAX_DIMS] = {0};
    for (int i = 0; i < count; i++) {
        size[i] = (int64_t) * (*numbers)++;
    }
    return ls_shape_make(count, size);
}

static int64_t take_one(const double **numbers) {
    return (int64_t) * (*numbers)++;
}

static void check_convolution(const char *name, const double *numbers) {
    const int axes = (int)take_one(&numbers);
    const bool transposed = take_one(&numbers) != 0, bias = take_one(&numbers) != 0, same = take_one(&numbers) != 0;
    const int64_t groups = take_one(&numbers);
    const ls_shape x = take(&numbers, 2 + axes), weight = take(&numbers, 2 + axes);
    ls_conv_options options = {.same = same, .groups = groups};
    ls_conv_transpose_options back = {.groups = groups};
    options.stride = take(&numbers, axes);
    options.padding = take(&numbers, same ? 0 : axes);
    numbers += same ? axes : 0;
    options.dilation = take(&numbers, axes);
    back.stride = options.stride;
    back.padding = options.padding;
    back.dilation = options.dilation;
    back.output_padding = take(&numbers, transposed ? axes : 0);
    const int64_t out = transposed ? weight.size[1] * groups : weight.size[0];
    ls_tensor *inputs[] = {wave(x, 1), wave(weight, 2), bias ? wave(LS_SHAPE(out), 3) : NULL};
    ls_tensor *y = transposed ? ls_conv_transpose(inputs[0], inputs[1], inputs[2], &back)
                              : ls_conv(inputs[0], inputs[1], inputs[2], &options);
    check_against(images, name, y, inputs, bias ? 3 : 2, NULL, 0);
}

static void check_pooling(const char *name, const double *numbers) {
    const int axes = (int)take_one(&numbers);
    const int kind = (int)take_one(&numbers);
    ls_max_pool_options options = {.ceil_mode = take_one(&numbers) != 0};
    const bool exclude_padding = take_one(&numbers) != 0;
    ls_tensor *x = wave(take(&numbers, 2 + axes), 1);
    options.kernel = take(&numbers, axes);
    options.stride = take(&numbers, axes);
    options.padding = take(&numbers, axes);
    options.dilation = take(&numbers, kind == 0 ? axes : 0);
    const ls_average_pool_options average = {.kernel = options.kernel,
                                             .stride = options.stride,
                                             .padding = options.padding,
                                             .ceil_mode = options.ceil_mode,
                                             .exclude_padding = exclude_padding};
    ls_tensor *y = kind == 0   ? ls_max_pool(x, &options)
                   : kind == 1 ? ls_average_pool(x, &average)
                   : kind == 2 ? ls_adaptive_max_pool(x, options.kernel)
                               : ls_adaptive_average_pool(x, options.kernel);
    check_against(images, name, y, &x, 1, NULL, 0);
}

/* Runs the cases "PREFIX0", "PREFIX1", ... */
static void check_all(const char *prefix, int count, void (*check)(const char *name, const double *numbers)) {
    for (int i = 0; i < count; i++) {
        char name[48], options[64];
        snprintf(name, sizeof name, "%s%d", prefix, i);
        snprintf(options, sizeof options, "%s/options", name);
        ls_scope *scope = ls_scope_begin();
        check(name, fixture_find(images, options)->values);
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

TEST(test_convolutions_are_pytorchs) {
    check_all("conv/", 80, check_convolution);
}

TEST(test_pooling_is_pytorchs) {
    check_all("pool/", 60, check_pooling);
}

/* ---- comparison with plain loops --------------------------------------------------------------------------------- */

/* A convolution over two axes. */
typedef struct plain {
    int64_t n, in, height, width, out, kernel, stride, padding, dilation, groups, rows, columns;
} plain;

/* Calls `f` for each product that the convolution adds up, with the indices in y, x and weight. */
static void each_product(const plain *c, void (*f)(int64_t y, int64_t x, int64_t weight, void *user), void *user) {
    const int64_t inside = c->in / c->groups, outside = c->out / c->groups;
    for (int64_t y = 0; y < c->n * c->out * c->rows * c->columns; y++) {
        const int64_t column = y % c->columns, row = y / c->columns % c->rows;
        const int64_t o = y / c->columns / c->rows % c->out, n = y / c->columns / c->rows / c->out;
        for (int64_t w = 0; w < inside * c->kernel * c->kernel; w++) {
            const int64_t i = w / c->kernel / c->kernel;
            const int64_t at_row = row * c->stride - c->padding + w / c->kernel % c->kernel * c->dilation;
            const int64_t at_column = column * c->stride - c->padding + w % c->kernel * c->dilation;
            if (at_row >= 0 && at_row < c->height && at_column >= 0 && at_column < c->width) {
                const int64_t channel = o / outside * inside + i;
                f(y, ((n * c->in + channel) * c->height + at_row) * c->width + at_column,
                  o * inside * c->kernel * c->kernel + w, user);
            }
        }
    }
}

/* Inputs and expected results: y, and the gradients that result from g. */
typedef struct plain_values {
    double *x, *weight, *g, *y, *dx, *d_weight;
} plain_values;

static void add_product(int64_t y, int64_t x, int64_t weight, void *user) {
    const plain_values *v = user;
    v->y[y] += v->x[x] * v->weight[weight];
    v->dx[x] += v->g[y] * v->weight[weight];
    v->d_weight[weight] += v->g[y] * v->x[x];
}

static void assert_near(const char *what, ls_tensor *is, const double *want, double tolerance) {
    ls_tensor *numbers = ls_to(is, LS_F64);
    assert_non_null(numbers);
    const double *value = elements(numbers);
    double largest = 1;
    for (int64_t i = 0; i < ls_numel(numbers); i++) {
        largest = fmax(largest, fabs(want[i]));
    }
    for (int64_t i = 0; i < ls_numel(numbers); i++) {
        if (!(fabs(value[i] - want[i]) <= tolerance * largest)) {
            fail_msg("%s[%lld] is %.12g, not %.12g", what, (long long)i, value[i], want[i]);
        }
    }
}

static ls_tensor *leaf_of(ls_tensor *wave_, ls_dtype dtype) {
    ls_tensor *leaf = ls_detach(ls_to(ls_detach(wave_), dtype));
    assert_int_equal(ls_set_requires_grad(leaf, true), LS_OK);
    return leaf;
}

static void check_plain(plain c, ls_dtype dtype, double tolerance) {
    ls_scope *scope = ls_scope_begin();
    const ls_shape x_shape = LS_SHAPE(c.n, c.in, c.height, c.width);
    const ls_shape w_shape = LS_SHAPE(c.out, c.in / c.groups, c.kernel, c.kernel);
    c.rows = (c.height + 2 * c.padding - c.dilation * (c.kernel - 1) - 1) / c.stride + 1;
    c.columns = (c.width + 2 * c.padding - c.dilation * (c.kernel - 1) - 1) / c.stride + 1;
    const ls_shape y_shape = LS_SHAPE(c.n, c.out, c.rows, c.columns);
    ls_tensor *x = leaf_of(wave(x_shape, 1), dtype), *weight = leaf_of(wave(w_shape, 2), dtype);
    ls_tensor *g = ls_to(ls_detach(wave(y_shape, 3)), dtype);
    plain_values v = {.x = elements(ls_to(ls_detach(x), LS_F64)),
                      .weight = elements(ls_to(ls_detach(weight), LS_F64)),
                      .g = elements(ls_to(g, LS_F64)),
                      .y = calloc((size_t)ls_numel(g), sizeof(double)),
                      .dx = calloc((size_t)ls_numel(x), sizeof(double)),
                      .d_weight = calloc((size_t)ls_numel(weight), sizeof(double))};
    each_product(&c, add_product, &v);
    const ls_conv_options options = {.stride = LS_SHAPE(c.stride),
                                     .padding = LS_SHAPE(c.padding),
                                     .dilation = LS_SHAPE(c.dilation),
                                     .groups = c.groups};
    ls_tensor *y = ls_conv(x, weight, NULL, &options);
    assert_int_equal(ls_backward_with(y, &(ls_backward_options){.gradient = g}), LS_OK);
    assert_near("y", y, v.y, tolerance);
    assert_near("gradient of x", ls_grad(x), v.dx, tolerance);
    assert_near("gradient of weight", ls_grad(weight), v.d_weight, tolerance);
    /* The backward pass of a transposed convolution is the convolution. */
    const ls_conv_transpose_options back = {
        .stride = options.stride, .padding = options.padding, .dilation = options.dilation, .groups = options.groups};
    ls_tensor *transposed = ls_conv_transpose(leaf_of(g, dtype), ls_detach(weight), NULL, &back);
    if (ls_size(transposed, 2) == c.height && ls_size(transposed, 3) == c.width) {
        assert_near("transposed", transposed, v.dx, tolerance);
    }
    free(v.y);
    free(v.dx);
    free(v.d_weight);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

static void test_larger_sizes_are_those_of_plain_loops(void **state) {
    static const plain cases[] = {
        {.n = 2, .in = 3, .height = 61, .width = 47, .out = 8, .kernel = 3, .stride = 1, .padding = 1},
        {.n = 2, .in = 16, .height = 33, .width = 30, .out = 24, .kernel = 3, .stride = 1, .padding = 1},
        {.n = 1, .in = 32, .height = 40, .width = 41, .out = 16, .kernel = 5, .stride = 2, .padding = 2},
        {.n = 3, .in = 24, .height = 20, .width = 21, .out = 48, .kernel = 3, .stride = 2, .padding = 1, .groups = 3},
        {.n = 2,
         .in = 32,
         .height = 35,
         .width = 35,
         .out = 32,
         .kernel = 3,
         .padding = 2,
         .dilation = 2,
         .groups = 32},
        {.n = 2, .in = 32, .height = 16, .width = 16, .out = 64, .kernel = 1},
        {.n = 5, .in = 64, .height = 7, .width = 7, .out = 128, .kernel = 3, .padding = 1},
        {.n = 1, .in = 1, .height = 1, .width = 9000, .out = 4, .kernel = 9, .padding = 4},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        plain c = cases[i];
        c.stride = c.stride != 0 ? c.stride : 1;
        c.dilation = c.dilation != 0 ? c.dilation : 1;
        c.groups = c.groups != 0 ? c.groups : 1;
        check_plain(c, LS_F64, 1e-12);
        check_plain(c, LS_F32, 3e-5);
    }
}

/* ---- pooling of long rows, compared with plain loops ------------------------------------------------------------- */

enum { LONG_ROWS = 7, LONG = 211 };

/* Returns the index of the largest number in a window, the first on a tie. NaN counts as larger; the last NaN wins. */
static int64_t largest_of_window(const double *x, int width, int64_t row, int64_t column, int64_t kernel,
                                 int64_t dilation) {
    int64_t place = -1;
    for (int64_t i = row; i < row + kernel * dilation; i += dilation) {
        for (int64_t k = column; k < column + kernel * dilation; k += dilation) {
            if (i >= 0 && i < LONG_ROWS && k >= 0 && k < width) {
                const double number = x[i * width + k];
                place = place < 0 || number > x[place] || isnan(number) ? i * width + k : place;
            }
        }
    }
    return place;
}

static void check_long_rows(ls_dtype dtype, int width, int64_t kernel, int64_t stride, int64_t padding,
                            int64_t dilation) {
    ls_scope *scope = ls_scope_begin();
    double numbers[LONG_ROWS * LONG], expected[LONG_ROWS * LONG] = {0};
    for (int i = 0; i < LONG_ROWS * width; i++) { /* few values, so that many are equal */
        numbers[i] = i % 97 == 5 ? (double)NAN : i % 5 < 3 ? -(double)INFINITY : i * 7919 % 13;
    }
    ls_tensor *x = leaf_of(ls_from(LS_SHAPE(1, 1, LONG_ROWS, width), LS_F64, numbers), dtype);
    ls_tensor *y = ls_max_pool(x, &(ls_max_pool_options){.kernel = LS_SHAPE(kernel),
                                                         .stride = LS_SHAPE(stride),
                                                         .padding = LS_SHAPE(padding),
                                                         .dilation = LS_SHAPE(dilation)});
    assert_non_null(y);
    const double *got = elements(ls_to(ls_detach(y), LS_F64));
    for (int64_t i = 0; i < ls_size(y, 2); i++) {
        for (int64_t k = 0; k < ls_size(y, 3); k++, got++) {
            const int64_t place =
                largest_of_window(numbers, width, i * stride - padding, k * stride - padding, kernel, dilation);
            expected[place]++;
            assert_true(isnan(numbers[place]) ? isnan(*got) : *got == numbers[place]);
        }
    }
    assert_int_equal(ls_backward(ls_sum(y)), LS_OK);
    const double *gradient = elements(ls_to(ls_grad(x), LS_F64));
    for (int i = 0; i < LONG_ROWS * width; i++) {
        assert_true(gradient[i] == expected[i]);
    }
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

TEST(test_the_largest_of_long_rows) {
    for (int i = 0; i < 2; i++) {
        const ls_dtype dtype = i == 0 ? LS_F32 : LS_F64;
        for (int width = 2; width < 40; width++) {
            check_long_rows(dtype, width, 2, 2, 0, 1);
        }
        check_long_rows(dtype, LONG, 2, 2, 0, 1);
        check_long_rows(dtype, LONG, 3, 1, 1, 1);
        check_long_rows(dtype, LONG, 3, 2, 1, 2);
        check_long_rows(dtype, LONG, 2, 3, 1, 3);
    }
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

SCOPED_TEST(test_halves_are_computed_by_way_of_f32) {
    ls_tensor *x = leaf_of(wave(LS_SHAPE(2, 3, 5, 6), 1), LS_BF16);
    ls_tensor *weight = leaf_of(wave(LS_SHAPE(4, 3, 2, 2), 2), LS_BF16);
    ls_tensor *y = ls_max_pool(ls_conv(x, weight, NULL, NULL), &(ls_max_pool_options){.kernel = LS_SHAPE(2)});
    ls_tensor *wide = ls_conv(ls_to(ls_detach(x), LS_F32), ls_to(ls_detach(weight), LS_F32), NULL, NULL);
    ls_tensor *same = ls_max_pool(ls_to(wide, LS_BF16), &(ls_max_pool_options){.kernel = LS_SHAPE(2)});
    assert_int_equal(ls_dtype_of(y), LS_BF16);
    assert_true(ls_equal(y, same));
    assert_int_equal(ls_backward(ls_sum(y)), LS_OK);
    assert_int_equal(ls_dtype_of(ls_grad(weight)), LS_BF16);
}

SCOPED_TEST(test_not_a_number_is_the_largest) {
    ls_tensor *x = leaf_from(LS_SHAPE(1, 1, 4), (const double[]){1, (double)NAN, 3, 2});
    ls_tensor *y = ls_max_pool(x, &(ls_max_pool_options){.kernel = LS_SHAPE(2)});
    check_values(y, LS_SHAPE(1, 1, 2), LS_F64, (const double[]){(double)NAN, 3});
    assert_int_equal(ls_backward(ls_sum(y)), LS_OK);
    check_values(ls_grad(x), LS_SHAPE(1, 1, 4), LS_F64, (const double[]){0, 1, 1, 0});
    /* On a tie, the first element gets the gradient. */
    ls_tensor *equal = leaf_from(LS_SHAPE(1, 1, 3), (const double[]){2, 2, 2});
    ls_tensor *first = ls_max_pool(equal, &(ls_max_pool_options){.kernel = LS_SHAPE(2), .stride = LS_SHAPE(1)});
    assert_int_equal(ls_backward(ls_sum(first)), LS_OK);
    check_values(ls_grad(equal), LS_SHAPE(1, 1, 3), LS_F64, (const double[]){1, 1, 0});
}

#define REFUSED(call, status, words)                                                                                   \
    do {                                                                                                               \
        ls_scope *scope_ = ls_scope_begin();                                                                           \
        ls_tensor *x = wave(LS_SHAPE(2, 4, 5, 6), 1);                                                                  \
        ls_tensor *w = wave(LS_SHAPE(6, 4, 3, 3), 2);                                                                  \
        (void)x;                                                                                                       \
        (void)w;                                                                                                       \
        ls_tensor *refused_ = call;                                                                                    \
        assert_null(refused_);                                                                                         \
        assert_int_equal(ls_scope_end(scope_), status);                                                                \
        expect_message(words);                                                                                         \
    } while (0)
#define OPTIONS(...)                                                                                                   \
    &(ls_conv_options) {                                                                                               \
        __VA_ARGS__                                                                                                    \
    }
#define BACK(...)                                                                                                      \
    &(ls_conv_transpose_options) {                                                                                     \
        __VA_ARGS__                                                                                                    \
    }
#define POOLING(...)                                                                                                   \
    &(ls_max_pool_options) {                                                                                           \
        __VA_ARGS__                                                                                                    \
    }

TEST(test_convolutions_refuse) {
    REFUSED(ls_conv(wave(LS_SHAPE(4, 5), 1), w, NULL, NULL), LS_ERR_SHAPE,
            "ls_conv: x is [4, 5], but must be [n, channels, ...] with 1 to 3 axes after the channels");
    REFUSED(ls_conv(x, wave(LS_SHAPE(6, 4, 3), 1), NULL, NULL), LS_ERR_SHAPE,
            "ls_conv: x [2, 4, 5, 6], weight [6, 4, 3]: both must have the same number of axes");
    REFUSED(ls_conv(x, w, NULL, OPTIONS(.groups = 2)), LS_ERR_SHAPE,
            "ls_conv: x is [2, 4, 5, 6], but weight [6, 4, 3, 3] with 2 groups needs 8 channels");
    REFUSED(ls_conv(x, wave(LS_SHAPE(3, 2, 1, 1), 1), NULL, OPTIONS(.groups = 2)), LS_ERR_SHAPE,
            "ls_conv: weight [3, 2, 1, 1] cannot be divided into 2 groups");
    REFUSED(ls_conv(x, w, NULL, OPTIONS(.groups = -1)), LS_ERR_ARGUMENT, "groups is -1, but must be positive");
    REFUSED(ls_conv(x, w, wave(LS_SHAPE(4), 1), NULL), LS_ERR_SHAPE,
            "ls_conv: bias is [4], but must be [6] for weight [6, 4, 3, 3]");
    REFUSED(ls_conv(x, w, NULL, OPTIONS(.stride = LS_SHAPE(1, 0))), LS_ERR_ARGUMENT,
            "ls_conv: stride is [1, 0], but its numbers must be from 1 to 2147483647");
    REFUSED(ls_conv(x, w, NULL, OPTIONS(.padding = LS_SHAPE(-1))), LS_ERR_ARGUMENT, "padding is [-1]");
    REFUSED(ls_conv(x, w, NULL, OPTIONS(.padding = LS_SHAPE((int64_t)1 << 40))), LS_ERR_ARGUMENT,
            "ls_conv: padding is [1099511627776], but its numbers must be from 0 to 2147483647");
    REFUSED(ls_conv(x, w, NULL, OPTIONS(.dilation = LS_SHAPE(1, 1, 1))), LS_ERR_ARGUMENT,
            "ls_conv: dilation has 3 numbers, but must have one, or one for each of 2 spatial axes");
    REFUSED(ls_conv(x, w, NULL, OPTIONS(.dilation = LS_SHAPE(3))), LS_ERR_SHAPE,
            "ls_conv: x [2, 4, 5, 6], weight [6, 4, 3, 3]: the window covers 7 positions, but x has only 5, including "
            "padding");
    REFUSED(ls_conv(x, w, NULL, OPTIONS(.same = true, .stride = LS_SHAPE(2))), LS_ERR_ARGUMENT,
            "\"same\" padding needs strides of 1, not 2");
    REFUSED(ls_conv(x, w, NULL, OPTIONS(.same = true, .padding = LS_SHAPE(1))), LS_ERR_ARGUMENT,
            "give either \"same\" padding or a padding, not both");
    REFUSED(ls_conv_transpose(x, wave(LS_SHAPE(4, 2, 3, 3), 1), NULL, BACK(.output_padding = LS_SHAPE(1))),
            LS_ERR_ARGUMENT, "output_padding must be less than stride or dilation");
    REFUSED(ls_conv_transpose(x, wave(LS_SHAPE(4, 2, 3, 3), 1), NULL, BACK(.padding = LS_SHAPE(4))), LS_ERR_SHAPE,
            "ls_conv_transpose: x [2, 4, 5, 6], weight [4, 2, 3, 3]: the output would be empty");
    REFUSED(ls_conv_transpose(x, w, NULL, NULL), LS_ERR_SHAPE, "needs 6 channels");
    REFUSED(ls_conv(x, ls_to(w, LS_F32), NULL, NULL), LS_ERR_SHAPE, "element types f64 and f32 differ");
    REFUSED(ls_conv(x, NULL, NULL, NULL), LS_ERR_ARGUMENT, "ls_conv");
    REFUSED(ls_conv(NULL, w, NULL, NULL), LS_ERR_ARGUMENT, "ls_conv");
}

TEST(test_pooling_refuses) {
    REFUSED(ls_max_pool(x, NULL), LS_ERR_ARGUMENT, "ls_max_pool: the kernel is empty");
    REFUSED(ls_max_pool(x, POOLING(.stride = LS_SHAPE(2))), LS_ERR_ARGUMENT, "the kernel is empty");
    REFUSED(ls_max_pool(x, POOLING(.kernel = LS_SHAPE(3), .padding = LS_SHAPE(2))), LS_ERR_ARGUMENT,
            "ls_max_pool: padding 2 is more than half the kernel size 3");
    REFUSED(ls_max_pool(x, POOLING(.kernel = LS_SHAPE(6))), LS_ERR_SHAPE,
            "ls_max_pool: x is [2, 4, 5, 6]: a window of 6 positions does not fit in 5, padding included");
    REFUSED(ls_max_pool(wave(LS_SHAPE(1, 1, 3), 1),
                        POOLING(.kernel = LS_SHAPE(2), .padding = LS_SHAPE(1), .dilation = LS_SHAPE(4))),
            LS_ERR_ARGUMENT, "a window would cover only padding");
    REFUSED(ls_adaptive_average_pool(x, LS_SCALAR), LS_ERR_ARGUMENT, "no size is given");
    REFUSED(ls_adaptive_average_pool(x, LS_SHAPE(0)), LS_ERR_ARGUMENT, "size is [0]");
    REFUSED(ls_adaptive_max_pool(ls_zeros(LS_SHAPE(2, 3, 0), LS_F64), LS_SHAPE(1)), LS_ERR_SHAPE,
            "there are no positions to pool");
    REFUSED(ls_max_pool(ls_zeros(LS_SHAPE(2, 3, 4), LS_I64), POOLING(.kernel = LS_SHAPE(2))), LS_ERR_SHAPE,
            "expected a floating-point tensor");
    REFUSED(ls_adaptive_max_pool(NULL, LS_SHAPE(1)), LS_ERR_ARGUMENT, "ls_adaptive_max_pool");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convolutions_are_pytorchs),
        cmocka_unit_test(test_pooling_is_pytorchs),
        cmocka_unit_test(test_larger_sizes_are_those_of_plain_loops),
        cmocka_unit_test(test_the_largest_of_long_rows),
        cmocka_unit_test(test_halves_are_computed_by_way_of_f32),
        cmocka_unit_test(test_not_a_number_is_the_largest),
        cmocka_unit_test(test_convolutions_refuse),
        cmocka_unit_test(test_pooling_refuses),
    };
    return cmocka_run_group_tests(tests, images_begin, images_end);
}
