/*
 * f32 convolutions that are large enough for oneDNN compared with f64, which uses plain loops and matrix products: all
 * three computations, over one to three axes, on one thread and on several ranks of one process at once.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/autograd.h>
#include <lockstep/comm.h>
#include <lockstep/convolution.h>

#include "base/status.h"
#include "tensor/device/cpu/libraries.h"
#include "tests/support/allocator.h"

enum { RESULTS = 4 };

typedef struct conv_case {
    int axes;
    bool transposed, bias;
    int64_t samples, in, out, groups; /* channels of x and of y */
    int64_t size[3], kernel[3], stride, padding, dilation;
} conv_case;

/*
 * Sample counts that do not divide into equal pieces; strides that omit the end of the image; groups of several
 * channels and of one; channel counts that are multiples of sixteen or not; few channels.
 */
static const conv_case cases[] = {
    {2, false, true, 13, 32, 48, 1, {14, 15}, {3, 3}, 1, 1, 1},
    {2, false, false, 67, 1, 16, 1, {28, 28}, {5, 5}, 1, 2, 1},
    {2, false, true, 5, 20, 50, 1, {12, 12}, {5, 5}, 1, 0, 1},
    {2, false, true, 3, 64, 32, 4, {17, 18}, {3, 3}, 2, 1, 1},
    {2, false, true, 11, 64, 64, 64, {28, 28}, {3, 3}, 1, 1, 1},
    {2, false, false, 4, 33, 17, 1, {20, 19}, {3, 2}, 1, 2, 2},
    {2, false, false, 9, 16, 16, 1, {16, 16}, {2, 2}, 3, 0, 1},
    {1, false, true, 19, 24, 40, 1, {61}, {5}, 2, 3, 1},
    {3, false, true, 3, 16, 16, 1, {7, 9, 8}, {3, 3, 3}, 1, 1, 1},
    {3, false, false, 2, 8, 24, 2, {6, 10, 12}, {2, 3, 3}, 2, 1, 1},
    {2, true, true, 7, 32, 16, 1, {9, 10}, {4, 4}, 2, 1, 1},
    {1, true, false, 9, 32, 32, 2, {80}, {3}, 1, 1, 2},
    {3, true, true, 2, 16, 16, 1, {5, 6, 5}, {3, 3, 3}, 2, 1, 1},
};

static ls_shape shape_of(int64_t first, int64_t second, const int64_t *rest, int count) {
    int64_t size[5] = {first, second, rest[0], rest[1], rest[2]};
    return ls_shape_make(2 + count, size);
}

/* Computes y and the three gradients, as f64. */
static ls_status compute(const conv_case *c, ls_dtype dtype, ls_tensor *results[RESULTS]) {
    ls_seed(7);
    const int64_t channels = c->transposed ? c->in : c->out, others = (c->transposed ? c->out : c->in) / c->groups;
    ls_tensor *leaf[3] = {ls_randn(shape_of(c->samples, c->in, c->size, c->axes), LS_F32),
                          ls_randn(shape_of(channels, others, c->kernel, c->axes), LS_F32),
                          c->bias ? ls_randn(LS_SHAPE(c->out), LS_F32) : NULL};
    for (int i = 0; i < 3 && leaf[i] != NULL; i++) {
        leaf[i] = ls_to(leaf[i], dtype);
        LS_TRY(ls_set_requires_grad(leaf[i], true));
    }
    const int64_t stride[] = {c->stride, c->stride, c->stride}, padding[] = {c->padding, c->padding, c->padding};
    const int64_t dilation[] = {c->dilation, c->dilation, c->dilation};
    const ls_conv_options options = {.stride = ls_shape_make(c->axes, stride),
                                     .padding = ls_shape_make(c->axes, padding),
                                     .dilation = ls_shape_make(c->axes, dilation),
                                     .groups = c->groups};
    const ls_conv_transpose_options back = {
        .stride = options.stride, .padding = options.padding, .dilation = options.dilation, .groups = options.groups};
    ls_tensor *y = c->transposed ? ls_conv_transpose(leaf[0], leaf[1], leaf[2], &back)
                                 : ls_conv(leaf[0], leaf[1], leaf[2], &options);
    LS_TRY(ls_backward(ls_sum(ls_mul(y, ls_sin(ls_detach(y))))));
    results[0] = ls_to(ls_detach(y), LS_F64);
    for (int i = 0; i < 3; i++) {
        results[1 + i] = leaf[i] != NULL ? ls_to(ls_grad(leaf[i]), LS_F64) : NULL;
    }
    return LS_OK;
}

/* Returns the largest difference, relative to the largest magnitude. */
static ls_status compare(int number, const ls_tensor *const name[2], int result) {
    static const char *const names[RESULTS] = {"y", "gradient of x", "gradient of weight", "gradient of bias"};
    const double *a = ls_data_const(name[0]), *b = ls_data_const(name[1]);
    double largest = 0, difference = 0;
    for (int64_t i = 0; i < ls_numel(name[1]); i++) {
        largest = fmax(largest, fabs(b[i]));
        difference = fmax(difference, fabs(a[i] - b[i]));
    }
    return difference <= 2e-5 * largest ? LS_OK
                                        : ls_fail(LS_ERR_INTERNAL, "case %d: %s differs by %g of %g", number,
                                                  names[result], difference, largest);
}

static ls_status run_cases(ls_comm *comm, void *argument) {
    const int rank = comm != NULL ? ls_comm_rank(comm) : 0;
    const int *last = argument, count = *last;
    LS_TRY(ls_use_device("cpu"));
    for (int i = 0; i < count; i++) {
        const int number = (i + rank) % count;
        ls_scope *scope = ls_scope_begin();
        ls_tensor *narrow[RESULTS] = {NULL}, *wide[RESULTS] = {NULL};
        LS_TRY(compute(&cases[number], LS_F32, narrow));
        LS_TRY(compute(&cases[number], LS_F64, wide));
        for (int k = 0; k < RESULTS && wide[k] != NULL; k++) {
            LS_TRY(compare(number, (const ls_tensor *const[]){narrow[k], wide[k]}, k));
        }
        LS_TRY(ls_scope_end(scope));
    }
    return LS_OK;
}

TEST(test_one_thread) {
    if (ls_onednn_open() == NULL) {
        print_message("without oneDNN: %s\n", ls_onednn_failure());
    }
    int all = sizeof cases / sizeof cases[0];
    if (run_cases(NULL, &all) != LS_OK) {
        fail_msg("%s", ls_error_message());
    }
}

TEST(test_ranks_that_are_threads) {
    int some = 4;
    if (ls_run_threads(2, run_cases, &some) != LS_OK) {
        fail_msg("%s", ls_error_message());
    }
}

/* Gradients accumulate. */
SCOPED_TEST(test_gradients_add_up) {
    ls_tensor *x = ls_randn(LS_SHAPE(9, 16, 14, 14), LS_F32), *weight = ls_randn(LS_SHAPE(32, 16, 3, 3), LS_F32);
    assert_int_equal(ls_set_requires_grad(weight, true), LS_OK);
    assert_int_equal(ls_backward(ls_sum(ls_conv(x, weight, NULL, NULL))), LS_OK);
    ls_tensor *once = ls_clone(ls_grad(weight));
    assert_int_equal(ls_backward(ls_sum(ls_conv(x, weight, NULL, NULL))), LS_OK);
    assert_true(ls_item(ls_max(ls_abs(ls_sub(ls_grad(weight), ls_mul(once, 2))))) < 1e-3);
}

/* Counts the allocator's calls while a convolution and its gradients are computed several times. */
static long calls_in(test_allocator *allocator, int times) {
    const long before = atomic_load(&allocator->calls);
    for (int i = 0; i < times; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = ls_ones(LS_SHAPE(13, 32, 14, 14), LS_F32), *weight = ls_ones(LS_SHAPE(32, 32, 3, 3), LS_F32);
        assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
        assert_int_equal(ls_set_requires_grad(weight, true), LS_OK);
        assert_int_equal(ls_backward(ls_sum(ls_conv(x, weight, NULL, NULL))), LS_OK);
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
    return atomic_load(&allocator->calls) - before;
}

TEST(test_the_steady_state_allocates_nothing) {
#ifdef LS_SANITIZED
    skip(); /* under a sanitizer nothing is cached */
#endif
    test_allocator allocator;
    test_allocator_start(&allocator);
    assert_true(calls_in(&allocator, 3) > 0);
    assert_int_equal(calls_in(&allocator, 20), 0);
    (void)test_allocator_stop(&allocator);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_thread), cmocka_unit_test(test_ranks_that_are_threads),
                                       cmocka_unit_test(test_gradients_add_up),
                                       cmocka_unit_test(test_the_steady_state_allocates_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
