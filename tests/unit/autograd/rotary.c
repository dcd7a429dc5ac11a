/*
 * ls_rotary has the bits of its composition of products, sums and differences, also in gradients: for every dtype,
 * strides, positions, gradients that accumulate, autocast, captured steps, and on a device without its kernel.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/attention.h>
#include <lockstep/autograd.h>
#include <lockstep/step.h>

#include "tensor/device.h"
#include "tests/support/elements.h"

/* ---- the composition --------------------------------------------------------------------------------------------- */

static ls_tensor *composed(ls_tensor *x, const ls_rotary_options *options) {
    const int64_t positions = ls_size(x, -2), width = ls_size(x, -1);
    const ls_dtype dtype = ls_dtype_of(x), compute = dtype == LS_F64 ? LS_F64 : LS_F32;
    const double base = options->base > 0 ? options->base : 10000;
    ls_tensor *place = ls_add(ls_arange(LS_SHAPE(positions, 1), LS_F64), (double)options->first);
    ls_tensor *power = ls_mul(ls_arange(LS_SHAPE(width / 2), LS_F64), -2 * log(base) / (double)width);
    ls_tensor *angle = ls_mul(place, ls_exp(power));
    ls_tensor *cosine = ls_to(ls_cos(angle), compute), *sine = ls_to(ls_sin(angle), compute);
    ls_tensor *wide = ls_to(x, compute), *pair[2];
    for (int i = 0; i < 2; i++) {
        pair[i] = options->halves ? ls_narrow(wide, -1, i * (width / 2), width / 2) : ls_slice(wide, -1, i, width, 2);
    }
    ls_tensor *both[2] = {ls_sub(ls_mul(pair[0], cosine), ls_mul(pair[1], sine)),
                          ls_add(ls_mul(pair[0], sine), ls_mul(pair[1], cosine))};
    return ls_to(options->halves ? ls_concat(both, 2, -1) : ls_flatten(ls_stack(both, 2, -1), -2, -1), dtype);
}

typedef ls_tensor *rotation(ls_tensor *x, const ls_rotary_options *options);

static void expect_same_bits(const char *what, const ls_tensor *a, const ls_tensor *b) {
    const ls_tensor *one = ls_contiguous((ls_tensor *)a), *other = ls_contiguous((ls_tensor *)b);
    assert_true(ls_dtype_of(one) == ls_dtype_of(other) && ls_numel(one) == ls_numel(other));
    const size_t bytes = (size_t)ls_numel(one) * ls_dtype_size(ls_dtype_of(one));
    if (bytes > 0 && memcmp(elements(one), elements(other), bytes) != 0) {
        fail_msg("%s: %s differ", what, ls_dtype_name(ls_dtype_of(one)));
    }
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

static ls_tensor *as_is(ls_tensor *x) {
    return x;
}

/* Queries of a projection, as multi-head attention views them. */
static ls_tensor *of_projection(ls_tensor *x) {
    ls_tensor *narrow = ls_narrow(x, -1, 0, ls_size(x, -1) / 3);
    return ls_transpose(ls_reshape(narrow, LS_SHAPE(ls_size(x, 0), ls_size(x, 1), 2, ls_size(narrow, -1) / 2)), 1, 2);
}

static ls_tensor *transposed(ls_tensor *x) {
    return ls_transpose(x, -1, -2);
}

static ls_tensor *repeated(ls_tensor *x) {
    return ls_expand(x, LS_SHAPE(3, ls_size(x, -2), ls_size(x, -1)));
}

static const struct {
    const char *name;
    ls_shape shape;
    ls_tensor *(*view)(ls_tensor *x);
} cases[] = {{"one matrix", {2, {5, 6}}, as_is},
             {"one pair", {2, {1, 2}}, as_is},
             {"heads", {4, {2, 3, 9, 8}}, as_is},
             {"views of a projection", {3, {3, 9, 3 * 2 * 34}}, of_projection},
             {"long rows", {3, {2, 3, 3 * 2 * 70}}, of_projection},
             {"columns", {3, {2, 6, 7}}, transposed},
             {"repeated", {3, {1, 4, 10}}, repeated},
             {"seven axes", {7, {2, 1, 2, 1, 2, 3, 4}}, as_is},
             {"no matrix", {3, {0, 3, 4}}, as_is},
             {"no position", {3, {2, 0, 4}}, as_is}};
enum { CASES = sizeof cases / sizeof cases[0] };

static const ls_rotary_options options[] = {
    {0}, {.halves = true}, {.base = 100, .first = 3, .halves = true}, {.first = -17}, {.base = 5, .first = 1000003}};
enum { OPTIONS = sizeof options / sizeof options[0] };

/* Returns random numbers, of which a quarter are 0 and a quarter are -0. */
static ls_tensor *with_zeros(ls_shape shape, ls_dtype dtype) {
    ls_tensor *numbers = ls_randn(shape, LS_F64);
    return ls_to(ls_mul(numbers, ls_to(ls_gt(ls_rand(shape, LS_F64), 0.5), LS_F64)), dtype);
}

/* The values of one computation, and the gradients of its leaf after the first and the second backward pass. */
typedef struct outcome {
    ls_tensor *y, *first, *second;
} outcome;

/* With `twice`, the view has another rotation and another operation, whose gradients are added. */
static outcome compute(rotation *rotate, ls_tensor *leaf, int number, const ls_rotary_options *o, ls_tensor *weight,
                       bool twice) {
    outcome result = {NULL, NULL, NULL};
    for (int pass = 0; pass < 2; pass++) {
        ls_tensor *view = cases[number].view(leaf);
        ls_tensor *y = rotate(view, o), *all = ls_mul(y, weight);
        if (twice) {
            ls_tensor *shared = ls_add(y, view); /* both operands get the same gradient */
            all = ls_add(ls_add(ls_mul(rotate(rotate(view, o), o), shared), all), ls_mul(view, view));
        }
        assert_int_equal(ls_backward(ls_sum(all)), LS_OK);
        ls_tensor *copy = ls_clone(ls_grad(leaf));
        result = pass == 0 ? (outcome){y, copy, NULL} : (outcome){result.y, result.first, copy};
    }
    return result;
}

static ls_tensor *leaf_of(ls_tensor *x) {
    ls_tensor *leaf = ls_clone(x);
    assert_int_equal(ls_set_requires_grad(leaf, true), LS_OK);
    return leaf;
}

static void check_case(int number, ls_dtype dtype, const ls_rotary_options *o, bool twice) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = with_zeros(cases[number].shape, dtype);
    ls_tensor *weight = with_zeros(ls_shape_of(cases[number].view(x)), dtype);
    const outcome one = compute(ls_rotary, leaf_of(x), number, o, weight, twice);
    const outcome other = compute(composed, leaf_of(x), number, o, weight, twice);
    expect_same_bits(cases[number].name, one.y, other.y);
    expect_same_bits(cases[number].name, one.first, other.first);
    expect_same_bits(cases[number].name, one.second, other.second);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

static void check_cases(void) {
    static const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_BF16, LS_F16};
    ls_seed(5);
    for (int i = 0; i < CASES * OPTIONS * 4; i++) {
        check_case(i % CASES, dtypes[i / CASES % 4], &options[i / CASES / 4], false);
        check_case(i % CASES, dtypes[i / CASES % 4], &options[i / CASES / 4], true);
    }
}

TEST(test_bits_of_the_composition) {
    check_cases();
}

/* ---- modes ------------------------------------------------------------------------------------------------------- */

/* Without a record, and under autocast, which concerns only matrix products. */
SCOPED_TEST(test_modes) {
    ls_tensor *x = leaf_of(with_zeros(LS_SHAPE(2, 5, 6), LS_F32));
    ls_tensor *y = composed(x, &options[0]);
    (void)ls_no_grad(true);
    ls_tensor *constant = ls_rotary(x, NULL);
    (void)ls_no_grad(false);
    expect_same_bits("no_grad", constant, y);
    assert_false(ls_requires_grad(constant));
    (void)ls_autocast(LS_BF16);
    expect_same_bits("autocast", ls_rotary(x, NULL), y);
    (void)ls_autocast(LS_F32);
}

/* A tensor with the maximum number of axes. */
SCOPED_TEST(test_eight_axes) {
    ls_tensor *x = ls_randn(LS_SHAPE(2, 3, 5, 6), LS_F32);
    ls_tensor *deep = ls_reshape(x, LS_SHAPE(1, 2, 1, 3, 1, 1, 5, 6));
    for (int i = 0; i < OPTIONS; i++) {
        expect_same_bits("eight axes", ls_rotary(deep, &options[i]), composed(x, &options[i]));
    }
}

static bool is_on_cpu(void) {
    ls_tensor *probe = ls_zeros(LS_SCALAR, LS_F32);
    const bool on_cpu = strcmp(ls_device_of(probe), "cpu") == 0;
    ls_release(probe);
    return on_cpu;
}

typedef struct captured {
    ls_tensor *leaf, *weight;
    rotation *rotate;
} captured;

static ls_tensor *train(void *user) {
    const captured *self = user;
    ls_tensor *y = self->rotate(ls_transpose(self->leaf, 1, 2), &options[2]);
    ls_zero_grad(self->leaf);
    assert_int_equal(ls_backward(ls_sum(ls_mul(ls_mul(y, y), self->weight))), LS_OK);
    return y;
}

TEST(test_captured_step) {
    if (!is_on_cpu()) {
        skip(); /* only steps on the CPU can be captured */
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = with_zeros(LS_SHAPE(2, 7, 3, 8), LS_F32);
    ls_tensor *weight = with_zeros(LS_SHAPE(2, 3, 7, 8), LS_F32);
    captured one = {leaf_of(x), weight, ls_rotary}, other = {leaf_of(x), weight, composed};
    ls_step *step = ls_step_capture(train, &one, NULL);
    assert_non_null(step);
    for (int i = 0; i < 4; i++) {
        const bool before = ls_no_grad(true);
        x = with_zeros(LS_SHAPE(2, 7, 3, 8), LS_F32);
        assert_int_equal(ls_copy_into(one.leaf, x), LS_OK);
        assert_int_equal(ls_copy_into(other.leaf, x), LS_OK);
        (void)ls_no_grad(before);
        assert_int_equal(ls_step_replay(step), LS_OK);
        expect_same_bits("replay", ls_step_result(step), train(&other));
        expect_same_bits("gradient of a replay", ls_grad(one.leaf), ls_grad(other.leaf));
    }
    ls_step_free(step);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

/* A device without the kernel composes it of its other kernels. */
TEST(test_device_without_the_kernel) {
    static ls_kernels kernels;
    static ls_device device;
    if (!is_on_cpu()) {
        skip();
    }
    kernels = *ls_cpu.kernels;
    kernels.rotary = NULL;
    ls_kernels_complete(&kernels);
    device = ls_cpu;
    device.name = "without:0";
    device.kernels = &kernels;
    assert_int_equal(ls_device_add(&device), LS_OK);
    assert_int_equal(ls_use_device(device.name), LS_OK);
    check_cases();
    assert_int_equal(ls_use_device("cpu"), LS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_of_the_composition),
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_eight_axes),
        cmocka_unit_test(test_captured_step),
        cmocka_unit_test(test_device_without_the_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
