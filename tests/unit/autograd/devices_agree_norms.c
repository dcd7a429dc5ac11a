/*
 * Losses of classes, norms, pooling and resizing on the device of LOCKSTEP_DEVICE compared with the CPU, with sizes for
 * which a GPU's kernels split rows and channels into parts. (Without LOCKSTEP_DEVICE, the CPU is compared with itself.)
 *
 * devices: cpu shadow cuda teams
 */
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/convolution.h>
#include <lockstep/loss.h>
#include <lockstep/nn.h>

enum { MOST_INPUTS = 3, RESULTS = 1 + MOST_INPUTS };

static const char *device;

static int choose_device(void **state) {
    (void)state;
    device = ls_default_device();
    return ls_use_device("cpu") == LS_OK ? 0 : 1;
}

/* Returns y as a function of up to three inputs on one device. */
typedef ls_tensor *function(ls_tensor *const *inputs, int variant);

static ls_tensor *moved(const ls_tensor *tensor, const char *to) {
    ls_tensor *copy = ls_to_device(ls_clone((ls_tensor *)(uintptr_t)tensor), to);
    assert_non_null(copy);
    return copy;
}

/* Computes f(inputs) and the gradients on the device, as tensors on the CPU. */
static void results(function *f, int variant, ls_tensor *const *inputs, const char *where, ls_tensor **into) {
    ls_tensor *own[MOST_INPUTS] = {NULL};
    for (int i = 0; i < MOST_INPUTS && inputs[i] != NULL; i++) {
        own[i] = ls_detach(moved(inputs[i], where));
        if (ls_dtype_of(own[i]) != LS_I64) {
            assert_int_equal(ls_set_requires_grad(own[i], true), LS_OK);
        }
    }
    ls_tensor *y = f(own, variant);
    if (y == NULL) {
        fail_msg("%s: %s", where, ls_error_message());
    }
    ls_seed(99);
    ls_tensor *g = moved(ls_randn(ls_shape_of(y), ls_dtype_of(y)), where);
    if (ls_backward(ls_sum(ls_mul(y, g))) != LS_OK) {
        fail_msg("%s: %s", where, ls_error_message());
    }
    into[0] = moved(ls_detach(y), "cpu");
    for (int i = 0; i < MOST_INPUTS; i++) {
        into[i + 1] = own[i] != NULL && ls_grad(own[i]) != NULL ? moved(ls_detach(ls_grad(own[i])), "cpu") : NULL;
    }
}

static double number(const ls_tensor *tensor, int64_t i) {
    const void *data = ls_data_const(tensor);
    return ls_dtype_of(tensor) == LS_F32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

/*
 * Tolerances are relative to the largest number of the result, because sums of numbers with both signs may be close to
 * zero.
 */
static void check_same(const char *name, int variant, int result, const ls_tensor *is, const ls_tensor *wanted) {
    assert_int_equal(ls_numel(is), ls_numel(wanted));
    const double tolerance = ls_dtype_of(wanted) == LS_F32 ? 1e-5 : 1e-12;
    double largest = 1e-30;
    for (int64_t i = 0; i < ls_numel(wanted); i++) {
        largest = isfinite(number(wanted, i)) ? fmax(largest, fabs(number(wanted, i))) : largest;
    }
    for (int64_t i = 0; i < ls_numel(wanted); i++) {
        const double a = number(is, i), b = number(wanted, i);
        if (!(fabs(a - b) <= tolerance * largest) && a != b && !(isnan(a) && isnan(b))) {
            fail_msg("%s, variant %d, result %d: number %lld is %.17g, but %.17g by the CPU", name, variant, result,
                     (long long)i, a, b);
        }
    }
}

static void check(const char *name, function *f, int variant, ls_tensor *const *inputs) {
    ls_tensor *is[RESULTS], *wanted[RESULTS];
    results(f, variant, inputs, device, is);
    results(f, variant, inputs, "cpu", wanted);
    for (int i = 0; i < RESULTS; i++) {
        assert_int_equal(is[i] != NULL, wanted[i] != NULL);
        if (is[i] != NULL) {
            check_same(name, variant, i, is[i], wanted[i]);
        }
    }
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

static ls_tensor *class_loss(ls_tensor *const *inputs, int variant) {
    const ls_class_loss_options options = {.reduction = (variant & 1) != 0 ? LS_LOSS_NONE : LS_LOSS_MEAN,
                                           .weight = (variant & 2) != 0 ? ls_detach(inputs[2]) : NULL,
                                           .label_smoothing = (variant & 12) == 4 ? 0.1 : 0,
                                           .ignore = true,
                                           .ignore_index = 3};
    return (variant & 8) != 0 ? ls_nll_loss(inputs[0], inputs[1],
                                            &(ls_nll_loss_options){.reduction = options.reduction,
                                                                   .weight = options.weight,
                                                                   .ignore = options.ignore,
                                                                   .ignore_index = options.ignore_index})
                              : ls_cross_entropy(inputs[0], inputs[1], &options);
}

TEST(test_class_losses) {
    const int64_t sizes[][2] = {{500, 7}, {40, 17}, {30, 500}, {9, 3000}, {5, 20000}};
    for (int i = 0; i < 5 * 2; i++) {
        const ls_dtype dtype = i % 2 == 0 ? LS_F32 : LS_F64;
        ls_scope *scope = ls_scope_begin();
        ls_seed(1);
        const int64_t n = sizes[i / 2][0], classes = sizes[i / 2][1];
        ls_tensor *inputs[] = {ls_randn(LS_SHAPE(n, classes), dtype), ls_randint(LS_SHAPE(n), LS_I64, 0, classes),
                               ls_rand(LS_SHAPE(classes), dtype)};
        for (int variant = 0; variant < 16; variant++) {
            check("class_loss", class_loss, variant, inputs);
        }
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

/* ---- norms ------------------------------------------------------------------------------------------------------- */

enum { LAYER, LAYER_PLAIN, RMS, RMS_PLAIN, LAYER_KINDS };

static ls_tensor *layer_norm(ls_tensor *const *inputs, int variant) {
    switch (variant) {
    case LAYER:
        return ls_layer_norm(inputs[0], 1, inputs[1], inputs[2], 1e-5);
    case LAYER_PLAIN:
        return ls_layer_norm(inputs[0], 1, NULL, NULL, 1e-5);
    case RMS:
        return ls_rms_norm(inputs[0], 1, inputs[1], 1e-5);
    default:
        return ls_rms_norm(inputs[0], 1, NULL, 1e-5);
    }
}

TEST(test_layer_norms) {
    const int64_t sizes[][2] = {{3000, 5}, {700, 17}, {257, 768}, {100, 1100}, {3, 10000}, {1, 3}};
    for (int i = 0; i < 6 * 2; i++) {
        const ls_dtype dtype = i % 2 == 0 ? LS_F32 : LS_F64;
        ls_scope *scope = ls_scope_begin();
        ls_seed(2);
        const int64_t width = sizes[i / 2][1];
        ls_tensor *inputs[] = {ls_add(ls_randn(LS_SHAPE(sizes[i / 2][0], width), dtype), 3),
                               ls_randn(LS_SHAPE(width), dtype), ls_randn(LS_SHAPE(width), dtype)};
        for (int variant = 0; variant < LAYER_KINDS; variant++) {
            check("layer_norm", layer_norm, variant, inputs);
        }
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

static ls_tensor *batch_norm(ls_tensor *const *inputs, int variant) {
    const bool affine = (variant & 1) != 0, training = (variant & 2) != 0;
    ls_tensor *const mean = training ? NULL : ls_detach(inputs[1]);
    ls_tensor *const variance = training ? NULL : ls_add(ls_square(ls_detach(inputs[2])), 1);
    return ls_batch_norm(inputs[0], mean, variance, affine ? inputs[1] : NULL, affine ? inputs[2] : NULL, training, 0.1,
                         1e-5);
}

TEST(test_batch_norms) {
    const ls_shape shapes[] = {LS_SHAPE(9000, 5), LS_SHAPE(2, 3, 90, 100), LS_SHAPE(4, 140, 17, 17),
                               LS_SHAPE(40, 30, 7), LS_SHAPE(300, 70)};
    for (int i = 0; i < 5 * 2; i++) {
        const ls_dtype dtype = i % 2 == 0 ? LS_F32 : LS_F64;
        ls_scope *scope = ls_scope_begin();
        ls_seed(3);
        const int64_t channels = shapes[i / 2].size[1];
        ls_tensor *inputs[] = {ls_add(ls_randn(shapes[i / 2], dtype), 3), ls_randn(LS_SHAPE(channels), dtype),
                               ls_randn(LS_SHAPE(channels), dtype)};
        for (int variant = 0; variant < 4; variant++) {
            check("batch_norm", batch_norm, variant, inputs);
        }
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

enum { POOLS = 6, SIZES = 3 };

static ls_tensor *pool(ls_tensor *const *inputs, int variant) {
    const ls_average_pool_options pools[POOLS] = {
        {.kernel = LS_SHAPE(2, 2)},
        {.kernel = LS_SHAPE(3, 3), .stride = LS_SHAPE(2, 2), .padding = LS_SHAPE(1, 1)},
        {.kernel = LS_SHAPE(3, 2), .stride = LS_SHAPE(2, 3), .padding = LS_SHAPE(1, 0), .ceil_mode = true},
        {.kernel = LS_SHAPE(3, 3), .padding = LS_SHAPE(1, 1), .exclude_padding = true},
        {.kernel = LS_SHAPE(7, 5), .stride = LS_SHAPE(1, 1), .padding = LS_SHAPE(3, 2), .ceil_mode = true},
        {.kernel = LS_SHAPE(2, 2), .stride = LS_SHAPE(4, 3)},
    };
    const ls_shape sizes[SIZES] = {LS_SHAPE(1), LS_SHAPE(7, 7), LS_SHAPE(30, 50)};
    const bool largest = variant % 2 != 0;
    const int kind = variant / 2;
    if (kind < POOLS) {
        const ls_max_pool_options options = {.kernel = pools[kind].kernel,
                                             .stride = pools[kind].stride,
                                             .padding = pools[kind].padding,
                                             .ceil_mode = pools[kind].ceil_mode};
        return largest ? ls_max_pool(inputs[0], &options) : ls_average_pool(inputs[0], &pools[kind]);
    }
    return largest ? ls_adaptive_max_pool(inputs[0], sizes[kind - POOLS])
                   : ls_adaptive_average_pool(inputs[0], sizes[kind - POOLS]);
}

static ls_tensor *resize(ls_tensor *const *inputs, int variant) {
    const ls_shape sizes[] = {LS_SHAPE(37, 29), LS_SHAPE(74, 58), LS_SHAPE(11, 90), LS_SHAPE(1, 4), LS_SHAPE(110, 30)};
    const ls_resize_options options = {.mode = variant % 3 == 0 ? LS_RESIZE_NEAREST : LS_RESIZE_LINEAR,
                                       .align_corners = variant % 3 == 2};
    return ls_resize(inputs[0], sizes[variant / 3], &options);
}

TEST(test_images) {
    for (int i = 0; i < 2; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_seed(4);
        ls_tensor *inputs[MOST_INPUTS] = {ls_randn(LS_SHAPE(2, 3, 37, 29), i == 0 ? LS_F32 : LS_F64)};
        for (int variant = 0; variant < 2 * (POOLS + SIZES); variant++) {
            check("pool", pool, variant, inputs);
        }
        for (int variant = 0; variant < 3 * 5; variant++) {
            check("resize", resize, variant, inputs);
        }
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_class_losses),
        cmocka_unit_test(test_layer_norms),
        cmocka_unit_test(test_batch_norms),
        cmocka_unit_test(test_images),
    };
    return cmocka_run_group_tests(tests, choose_device, NULL);
}
