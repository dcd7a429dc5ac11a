/*
 * Operations when memory runs out: every allocation of a forward and a backward pass fails once, and each time the call
 * fails with LS_ERR_MEMORY and everything is given back.
 */
#include "tests/support/unit.h"

#include <pthread.h>
#include <stdatomic.h>

#include <lockstep/autograd.h>

#include "autograd/ops/linear.h"

static atomic_long live;       /* blocks */
static atomic_long until_none; /* allocations that still succeed */

static void *allocate(size_t size, size_t alignment, void *user) {
    (void)user;
    if (atomic_fetch_sub(&until_none, 1) <= 0) {
        return NULL;
    }
    atomic_fetch_add(&live, 1);
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void release(void *memory, void *user) {
    (void)user;
    atomic_fetch_sub(&live, 1);
    free(memory);
}

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
    /* They may be left out: one that could not be made must not look as if it was. */
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

typedef ls_tensor *(*program)(ls_dtype dtype);

typedef struct attempt {
    program make;
    ls_dtype dtype;
    ls_status status;
    bool named;
} attempt;

/* In a thread of its own, so that its caches begin empty and are given back when it ends. */
static void *run(void *user) {
    attempt *one = user;
    ls_scope *scope = ls_scope_begin();
    if (scope == NULL) {
        one->status = ls_error_status();
    } else {
        const ls_status status = ls_backward(one->make(one->dtype));
        one->status = ls_scope_end(scope);
        one->status = one->status == LS_OK ? status : one->status;
    }
    one->named = one->status == LS_OK || strlen(ls_error_message()) > 0;
    return NULL;
}

static attempt attempt_with(program make, ls_dtype dtype, long allocations) {
    attempt one = {.make = make, .dtype = dtype};
    const long before = atomic_load(&live);
    atomic_store(&until_none, allocations);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run, &one), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (atomic_load(&live) != before) {
        fail_msg("%ld blocks lost when allocation %ld fails", atomic_load(&live) - before, allocations);
    }
    return one;
}

static void check_program(program make, ls_dtype dtype) {
    const attempt whole = attempt_with(make, dtype, 1L << 40);
    assert_int_equal(whole.status, LS_OK);
    const long needed = (1L << 40) - atomic_load(&until_none);
    assert_true(needed > 5);
    for (long allocations = 0; allocations < needed; allocations++) {
        const attempt one = attempt_with(make, dtype, allocations);
        assert_int_equal(one.status, LS_ERR_MEMORY);
        assert_true(one.named);
    }
}

static void test_memory_runs_out(void **state) {
    (void)state;
    static const program programs[] = {products, norms, losses};
    static const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_BF16};
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 3; j++) {
            check_program(programs[i], dtypes[j]);
        }
    }
}

int main(void) {
    ls_set_allocator(&(ls_allocator){.allocate = allocate, .release = release});
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
