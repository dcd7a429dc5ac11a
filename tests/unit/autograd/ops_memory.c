/*
 * Operations and their gradients when memory runs out: each allocation of a forward and a backward pass fails, either
 * alone or together with all later allocations. Each time, the call fails with LS_ERR_MEMORY and frees everything.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/autograd.h>
#include <lockstep/loss.h>

#include "autograd/ops/linear.h"
#include "tests/support/allocator.h"

static ls_tensor *leaf(ls_shape shape, ls_dtype dtype) {
    ls_tensor *tensor = ls_full(shape, dtype, 0.5);
    if (tensor != NULL) {
        (void)ls_set_requires_grad(tensor, true);
    }
    return tensor;
}

static ls_tensor *products(ls_dtype dtype) {
    ls_tensor *x = leaf(LS_SHAPE(2, 3, 4), dtype);
    ls_tensor *hidden =
        ls_linear_activation(x, leaf(LS_SHAPE(5, 4), dtype), leaf(LS_SHAPE(5), dtype), LS_ACTIVATION_RELU);
    return ls_mean(ls_matmul(ls_transpose(hidden, 1, 2), ls_slice(x, 2, 0, 4, 2)));
}

static ls_tensor *norms(ls_dtype dtype) {
    ls_tensor *x = ls_dropout(ls_transpose(leaf(LS_SHAPE(4, 3), dtype), 0, 1), 0.3);
    ls_tensor *normal = ls_layer_norm(x, 1, leaf(LS_SHAPE(4), dtype), leaf(LS_SHAPE(4), dtype), 1e-5);
    ls_tensor *weight = leaf(LS_SHAPE(4), dtype == LS_F64 ? LS_F64 : LS_F32);
    ls_tensor *mean = ls_zeros(LS_SHAPE(4), dtype == LS_F64 ? LS_F64 : LS_F32);
    ls_tensor *variance = ls_ones(LS_SHAPE(4), dtype == LS_F64 ? LS_F64 : LS_F32);
    /* These inputs are optional, so a failed input must not be treated as omitted. */
    if (weight == NULL || mean == NULL || variance == NULL) {
        return NULL;
    }
    return ls_sum(
        ls_logsumexp(ls_softmax(ls_batch_norm(normal, mean, variance, weight, NULL, true, 0.1, 1e-5), 0), 1, false));
}

static ls_tensor *losses(ls_dtype dtype) {
    ls_tensor *x = leaf(LS_SHAPE(2, 3, 2), dtype);
    ls_tensor *weight = ls_ones(LS_SHAPE(3), dtype);
    if (weight == NULL) {
        return NULL;
    }
    const ls_class_loss_options options = {.weight = weight, .label_smoothing = 0.1};
    ls_tensor *classes = ls_cross_entropy(x, ls_zeros(LS_SHAPE(2, 2), LS_U8), &options);
    ls_tensor *target = leaf(LS_SHAPE(2, 3, 2), dtype);
    ls_tensor *elements = ls_add(ls_mse_loss(x, target, LS_LOSS_MEAN), ls_kl_div_loss(x, target, LS_LOSS_SUM));
    return ls_add(classes, ls_add(elements, ls_bce_loss(target, target, LS_LOSS_MEAN)));
}

/* Returns a leaf with zeros, ties and other numbers. */
static ls_tensor *matrix(ls_dtype dtype) {
    ls_tensor *values = ls_from(LS_SHAPE(3, 4), LS_F64, (const double[]){1, 2, 3, 0, 5, 6, 0, 0, 3, 2, 9, 1});
    ls_tensor *x = ls_detach(ls_to(values, dtype));
    return x != NULL && ls_set_requires_grad(x, true) == LS_OK ? x : NULL;
}

static ls_tensor *element_by_element(ls_dtype dtype) {
    ls_tensor *x = matrix(dtype);
    ls_tensor *row = ls_select(x, 0, 0);
    ls_tensor *y = ls_div(ls_exp(ls_mul(ls_add(x, row), ls_tanh(x))), ls_add(ls_square(ls_neg(row)), 1));
    ls_tensor *z = ls_where(ls_lt(x, 0.5), ls_maximum(x, y), ls_pow(ls_abs(y), row));
    return ls_sum(ls_clamp(z, -5, 5));
}

static ls_tensor *in_half_precision(ls_dtype dtype) {
    ls_tensor *x = matrix(dtype);
    ls_tensor *half = ls_to(x, LS_BF16);
    ls_tensor *y = ls_add(ls_mul(half, half), ls_add(ls_ones(LS_SHAPE(4), LS_I32), 0.5));
    ls_tensor *rows[] = {y, ls_relu(half), y, ls_to(x, LS_F16)};
    return ls_mean(ls_concat(rows, 4, 0));
}

static ls_tensor *reductions(ls_dtype dtype) {
    ls_tensor *x = matrix(dtype);
    ls_tensor *sums = ls_add(ls_sum_axes(x, LS_AXES(0), false), ls_mean_axes(x, LS_AXES(0), true));
    ls_tensor *extremes = ls_add(ls_max_axes(x, LS_AXES(0), false), ls_min(x));
    ls_tensor *spread = ls_add(ls_var_axes(x, LS_AXES(0), 0, false), ls_prod_axes(x, LS_AXES(0), false));
    ls_tensor *norms = ls_add(ls_norm_axes(x, 1, LS_AXES(0), false), ls_norm_axes(x, 2, LS_AXES(0), false));
    ls_tensor *others =
        ls_add(ls_norm_axes(x, 3, LS_AXES(0), false), ls_norm_axes(x, (double)INFINITY, LS_AXES(0), false));
    ls_tensor *all = ls_add(ls_add(ls_add(sums, extremes), ls_add(spread, norms)), others);
    return ls_sum(ls_mul(ls_cumsum(all, 1), ls_argmax(x, 0, false)));
}

static ls_tensor *views(ls_dtype dtype) {
    ls_tensor *x = matrix(dtype);
    ls_tensor *parts[2] = {NULL};
    if (ls_split(ls_transpose(x, 0, 1), 0, 2, parts, 2) < 0) {
        return NULL;
    }
    ls_tensor *joined = ls_stack((ls_tensor *[]){parts[0], parts[1], parts[0], parts[0]}, 4, 1);
    ls_tensor *padded = ls_pad(ls_reshape(ls_permute(joined, LS_AXES(2, 0, 1)), LS_SHAPE(-1, 2)), 0, 1, 2, 3);
    ls_tensor *repeated = ls_expand(ls_unsqueeze(ls_slice(padded, 0, 1, 9, 2), 0), LS_SHAPE(3, -1, -1));
    return ls_sum(ls_add(ls_clone(repeated), ls_contiguous(ls_flatten(repeated, 1, 1))));
}

static ls_tensor *indices(ls_dtype dtype) {
    ls_tensor *x = matrix(dtype);
    ls_tensor *index = ls_to(ls_reshape(ls_slice(ls_arange(LS_SHAPE(6), LS_I32), 0, 0, 6, 2), LS_SHAPE(3)), LS_I32);
    ls_tensor *near = ls_minimum(index, 2);
    ls_tensor *rows = ls_embedding(x, near), *columns = ls_index_select(ls_transpose(x, 0, 1), 1, near);
    ls_tensor *taken =
        ls_take_along_axis(ls_to(x, LS_BF16), 0, ls_expand(ls_reshape(near, LS_SHAPE(3, 1)), LS_SHAPE(3, 2)));
    return ls_sum(ls_add(ls_add(ls_sum(rows), ls_sum(columns)), ls_sum(taken)));
}

typedef ls_tensor *(*program)(ls_dtype dtype);

static ls_status run(program make, ls_dtype dtype) {
    ls_scope *scope = ls_scope_begin();
    if (scope == NULL) {
        return ls_error_status();
    }
    const ls_status status = ls_backward(make(dtype));
    const ls_status whole = ls_scope_end(scope);
    assert_true(status == LS_OK || whole != LS_OK);
    return whole;
}

static void check_program(program make, ls_dtype dtype, bool once) {
    for (long n = 0;; n++) {
        test_allocator allocator;
        test_allocator_start(&allocator);
        atomic_store(once ? &allocator.fail_once : &allocator.fail_from, n);
        const ls_status status = run(make, dtype);
        const long calls = atomic_load(&allocator.calls);
        assert_int_equal(test_allocator_stop(&allocator), 0);
        if (calls <= n) { /* the allocation was not reached */
            if (status != LS_OK) {
                fail_msg("with memory enough: %s", ls_error_message());
            }
            assert_true(n > 5);
            return;
        }
        /* After a single failed allocation, the call may succeed, because it empties the caches and tries again. */
        if (status != LS_ERR_MEMORY && !(once && status == LS_OK)) {
            fail_msg("allocation %ld fails: %s, %s", n, ls_status_name(status), ls_error_message());
        }
    }
}

TEST(test_memory_runs_out) {
    static const program programs[] = {products,          norms,      losses, element_by_element,
                                       in_half_precision, reductions, views,  indices};
    static const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_BF16};
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        for (size_t j = 0; j < sizeof dtypes / sizeof *dtypes; j++) {
            check_program(programs[i], dtypes[j], false);
            check_program(programs[i], dtypes[j], true);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
