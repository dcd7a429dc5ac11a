/*
 * Reducers and all-reduces of many tensors, with the cases of flashlight's AllReduceTest: scaling factors, asynchronous
 * calls, sets of tensors, and coalescing.
 *
 * ranks: 1 2 3 4
 * devices: cpu shadow
 */
#include "tests/support/ranks.h"

#include <lockstep/parallel.h>
#include <lockstep/trace.h>

#include "base/trace.h"

enum { MANY = 30, LARGE = 1 << 20 };

/* Returns random numbers that differ between ranks. */
static ls_tensor *make(const ls_comm *world, int number, int64_t count, ls_dtype dtype) {
    ls_seed((uint64_t)(100 * number + ls_comm_rank(world)));
    return ls_randn(LS_SHAPE(count), dtype);
}

static ls_tensor *reduced(ls_comm *world, ls_tensor *tensor, double scale) {
    ls_tensor *sum = ls_allreduce(world, tensor, scale == 0 ? LS_AVG : LS_SUM);
    return scale == 0 || scale == 1 ? sum : ls_mul(sum, scale);
}

/* Reduces `count` tensors of at least `size` elements, and compares the results with single all-reduces. */
static ls_status reduce_set(ls_comm *world, const ls_reducer_options *options, int count, int64_t size) {
    ls_reducer *reducer = ls_reducer_new(world, options);
    LS_CHECK(reducer != NULL);
    for (int round = 0; round < 2; round++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *tensors[MANY], *want[MANY];
        for (int i = 0; i < count; i++) {
            tensors[i] = make(world, i, size + i % 3, i % 10 == 7 ? LS_F64 : LS_F32);
            want[i] = reduced(world, tensors[i], options->scale);
        }
        for (int i = 0; i < count; i++) {
            LS_TRY(ls_reducer_add(reducer, tensors[i]));
        }
        LS_TRY(ls_reducer_finish(reducer));
        for (int i = 0; i < count; i++) {
            LS_CHECK(ls_equal(tensors[i], want[i]));
        }
        LS_TRY(ls_scope_end(scope));
    }
    ls_reducer_free(reducer);
    return LS_OK;
}

static ls_status sets(ls_comm *world) {
    static const double scales[] = {0, 1, 0.5};
    static const size_t buckets[] = {0, 1000, SIZE_MAX};
    for (int i = 0; i < 18; i++) {
        const ls_reducer_options options = {
            .scale = scales[i % 3], .bucket_bytes = buckets[i / 3 % 3], .asynchronous = i / 9 != 0};
        LS_TRY(reduce_set(world, &options, MANY, 60));
    }
    LS_TRY(reduce_set(world, &(ls_reducer_options){.bucket_bytes = (size_t)9 << 20, .asynchronous = true}, 5, LARGE));
    return reduce_set(world, &(ls_reducer_options){.scale = 1}, 1, 0);
}

/* Runs `function` with the argument `user`, and counts the calls on the communicator. */
static ls_status count_calls(ls_status (*function)(void *user), void *user, int *calls) {
    LS_TRY(ls_trace_start());
    const ls_status status = function(user);
    ls_trace *trace = ls_trace_take();
    *calls = 0;
    for (size_t i = 0; i < trace->count; i++) {
        *calls += trace->spans[i].kind == LS_TRACE_COMM;
    }
    ls_trace_free(trace);
    return status;
}

typedef struct coalescing {
    ls_reducer *reducer;
    ls_tensor *whole;
    int parts;
} coalescing;

static ls_status add_parts(void *user) {
    const coalescing *c = user;
    const int64_t size = ls_numel(c->whole) / c->parts;
    for (int i = 0; i < c->parts; i++) {
        LS_TRY(ls_reducer_add(c->reducer, ls_narrow(c->whole, 0, i * size, size)));
    }
    return ls_reducer_finish(c->reducer);
}

/* Many tensors need few calls: one thousand tensors of 4 KiB use buckets of 1 MiB. */
static ls_status coalescing_needs_few_calls(ls_comm *world) {
    ls_tensor *whole = make(world, 3, 1000 * 1024, LS_F32);
    ls_tensor *want = reduced(world, whole, 0);
    coalescing c = {.reducer = ls_reducer_new(world, &(ls_reducer_options){.bucket_bytes = (size_t)1 << 20}),
                    .whole = whole,
                    .parts = 1000};
    int calls = 0;
    LS_CHECK(c.reducer != NULL);
    LS_TRY(count_calls(add_parts, &c, &calls));
    LS_CHECK(calls == (ls_comm_size(world) > 1 ? 4 : calls));
    LS_CHECK(ls_equal(whole, want));
    ls_reducer_free(c.reducer);
    return LS_OK;
}

typedef struct many {
    ls_comm *comm;
    ls_tensor **tensors;
    int count;
} many;

static ls_status reduce_many(void *user) {
    const many *m = user;
    return ls_allreduce_many(m->comm, m->tensors, m->count, LS_MAX);
}

/* Tensors in any order need only one call per dtype. */
static ls_status many_tensors(ls_comm *world) {
    ls_tensor *tensors[MANY], *want[MANY];
    for (int i = 0; i < MANY; i++) {
        tensors[i] = make(world, i, 5 + i, i % 2 == 0 ? LS_F32 : LS_F64);
        want[i] = ls_allreduce(world, tensors[i], LS_MAX);
    }
    many m = {.comm = world, .tensors = tensors, .count = MANY};
    int calls = 0;
    LS_TRY(count_calls(reduce_many, &m, &calls));
    LS_CHECK(ls_comm_size(world) == 1 || calls == 2);
    for (int i = 0; i < MANY; i++) {
        LS_CHECK(ls_equal(tensors[i], want[i]));
    }
    LS_TRY(ls_allreduce_many(world, NULL, 0, LS_SUM));
    LS_CHECK(ls_allreduce_many(world, NULL, 1, LS_SUM) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("the array of tensors is NULL");
    LS_CHECK(ls_allreduce_many(world, tensors, MANY, LS_MINLOC) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("minloc cannot reduce tensors");
    return LS_OK;
}

static ls_module *make_model(void) {
    ls_seed(5);
    return ls_sequential(ls_nn_linear(4, 3), ls_nn_tanh(), ls_nn_linear(3, 2), ls_nn_linear(2, 2));
}

/* Reduces the gradients of a model. One rank has only some of them. */
static ls_status gradients(ls_comm *world, size_t bucket_bytes) {
    ls_module *model = make_model(), *other = make_model();
    ls_reducer *reducer = ls_reducer_new(world, &(ls_reducer_options){.bucket_bytes = bucket_bytes});
    LS_CHECK(model != NULL && other != NULL && reducer != NULL);
    for (int i = 0; i < 2; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *y = make(world, 1, 4, LS_F32);
        y = ls_reshape(y, LS_SHAPE(1, 4));
        const int last = ls_comm_rank(world) == 0 ? 3 : 2; /* rank 0 also runs the layer before the last */
        for (int layer = 0; layer < last; layer++) {
            y = ls_forward(ls_module_child(i == 0 ? model : other, layer), y);
        }
        LS_TRY(ls_backward(ls_sum(ls_square(y))));
        LS_TRY(ls_scope_end(scope));
    }
    LS_TRY(ls_distribute_gradients(model, reducer));
    LS_TRY(ls_sync_gradients(other, world));
    for (int i = 0; i < 6; i++) {
        ls_tensor *is = ls_grad(ls_module_parameter(model, i)), *want = ls_grad(ls_module_parameter(other, i));
        LS_CHECK((is == NULL) == (i >= 4) && (want == NULL) == (i >= 4));
        LS_CHECK(is == NULL || ls_equal(is, want));
    }
    ls_reducer_free(reducer);
    ls_module_free(model);
    ls_module_free(other);
    return LS_OK;
}

/* A failed call leaves no tensors in the reducer. A later call would reduce them. */
static ls_status failed_gradients(ls_comm *world) {
    ls_module *model =
        ls_sequential(ls_nn_linear(2, 2), ls_nn_linear_with(2, 2, &(ls_linear_options){.dtype = LS_BF16}));
    ls_reducer *reducer = ls_reducer_new(world, &(ls_reducer_options){.scale = 3, .bucket_bytes = 1000});
    LS_CHECK(model != NULL && reducer != NULL);
    for (int i = 0; i < 4; i++) {
        LS_TRY(ls_backward(ls_sum(ls_module_parameter(model, i))));
    }
    LS_CHECK(ls_distribute_gradients(model, reducer) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE(".scale needs");
    ls_tensor *after = ls_clone(ls_grad(ls_module_parameter(model, 0)));
    LS_TRY(ls_reducer_finish(reducer));
    LS_CHECK(ls_equal(ls_grad(ls_module_parameter(model, 0)), after));
    ls_reducer_free(reducer);
    ls_module_free(model);
    return LS_OK;
}

/* A data-parallel model has averaged its gradients already. */
static ls_status averaged_gradients(ls_comm *world) {
    ls_reducer *reducer = ls_reducer_new(world, &(ls_reducer_options){.scale = 1});
    const int stages = strcmp(ls_default_device(), "cpu") == 0 ? 4 : 2;
    for (int i = 0; i < 2 * stages; i++) {
        const int zero = i / 2;
        ls_module *model = ls_data_parallel(make_model(), world, &(ls_data_parallel_options){.zero = zero});
        LS_CHECK(model != NULL && reducer != NULL);
        LS_TRY(ls_data_parallel_no_sync(model, i % 2 != 0));
        ls_scope *scope = ls_scope_begin();
        LS_TRY(ls_backward(ls_sum(ls_forward(model, ls_ones(LS_SHAPE(1, 4), LS_F32)))));
        ls_tensor *gradient = zero < 2 ? ls_grad(ls_module_parameter(model, 0)) : NULL;
        ls_tensor *before = gradient != NULL ? ls_clone(gradient) : NULL;
        LS_CHECK(ls_distribute_gradients(model, reducer) == LS_ERR_ARGUMENT);
        LS_EXPECT_MESSAGE("the model is data-parallel, or shares layers with a data-parallel module");
        LS_CHECK(before == NULL ? zero > 1 : ls_equal(gradient, before));
        LS_TRY(ls_scope_end(scope));
        ls_module_free(model);
    }
    ls_reducer_free(reducer);
    return LS_OK;
}

/* Refuses `model`, and changes no gradient. */
static ls_status refuses(ls_module *model, ls_reducer *reducer) {
    ls_tensor *before = ls_clone(ls_grad(ls_module_parameter(model, 0)));
    LS_CHECK(ls_distribute_gradients(model, reducer) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("data-parallel");
    LS_CHECK(ls_equal(ls_grad(ls_module_parameter(model, 0)), before));
    return LS_OK;
}

/* Refuses models that contain a data-parallel module or are inside one, unless it does not average. */
static ls_status averaged_parts(ls_comm *world) {
    ls_reducer *reducer = ls_reducer_new(world, &(ls_reducer_options){.scale = 1});
    ls_module *layer = ls_nn_linear(4, 2);
    ls_module *parallel = ls_data_parallel(ls_module_retain(layer), world, NULL);
    ls_module *around = ls_sequential(ls_module_retain(parallel), ls_nn_relu());
    ls_module *shares = ls_sequential(layer, ls_nn_tanh());
    LS_CHECK(reducer != NULL && around != NULL && shares != NULL);
    LS_TRY(ls_backward(ls_mean(ls_forward(parallel, ls_ones(LS_SHAPE(1, 4), LS_F32)))));
    LS_TRY(refuses(around, reducer));
    LS_TRY(refuses(layer, reducer));
    LS_TRY(refuses(shares, reducer));
    LS_TRY(ls_data_parallel_no_sync(parallel, true));
    ls_tensor *sum = ls_mul(ls_grad(ls_module_parameter(layer, 0)), ls_comm_size(world));
    LS_TRY(ls_distribute_gradients(layer, reducer));
    LS_CHECK(ls_allclose(ls_grad(ls_module_parameter(layer, 0)), sum, 1e-6, 0));
    LS_TRY(ls_data_parallel_no_sync(parallel, false));
    ls_module_free(around);
    ls_module_free(parallel);
    LS_TRY(ls_distribute_gradients(shares, reducer)); /* the data-parallel module was freed */
    ls_module_free(shares);
    ls_module_free(layer);
    ls_reducer_free(reducer);
    return LS_OK;
}

/* LS_ZERO selects the factor zero. */
static ls_status zero_scale(ls_comm *world) {
    ls_reducer *reducer = ls_reducer_new(world, &(ls_reducer_options){.scale = LS_ZERO});
    ls_tensor *x = ls_full(LS_SHAPE(3), LS_F64, 1e300);
    LS_CHECK(reducer != NULL);
    LS_TRY(ls_reducer_add(reducer, x));
    LS_TRY(ls_reducer_finish(reducer));
    LS_CHECK(ls_equal(x, ls_zeros(LS_SHAPE(3), LS_F64)));
    ls_reducer_free(reducer);
    return LS_OK;
}

/* ls_reducer_finish returns the error of an ls_reducer_add that could not start a reduction. */
static ls_status failed_start(ls_comm *world, bool asynchronous) {
    const ls_reducer_options options = {.scale = 1, .bucket_bytes = 8, .asynchronous = asynchronous};
    ls_reducer *reducer = ls_reducer_new(world, &options);
    ls_tensor *apart[] = {ls_ones(LS_SHAPE(4), LS_BOOL), ls_ones(LS_SHAPE(4), LS_BOOL)};
    ls_tensor *x = ls_ones(LS_SHAPE(2), LS_F32);
    LS_CHECK(reducer != NULL);
    LS_TRY(ls_reducer_add(reducer, apart[0]));
    LS_CHECK(ls_reducer_add(reducer, apart[1]) == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE("sum is not defined for bool");
    (void)ls_error_set(LS_ERR_STATE, "a different error");
    LS_CHECK(ls_reducer_finish(reducer) == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE("sum is not defined for bool");
    LS_TRY(ls_reducer_add(reducer, x));
    LS_TRY(ls_reducer_finish(reducer));
    LS_CHECK(ls_equal(x, ls_full(LS_SHAPE(2), LS_F32, ls_comm_size(world))));
    ls_reducer_free(reducer);
    return LS_OK;
}

static ls_status refusals(ls_comm *world) {
    ls_reducer *reducer = ls_reducer_new(world, &(ls_reducer_options){.scale = 2});
    LS_CHECK(reducer != NULL && ls_reducer_new(NULL, NULL) == NULL);
    LS_CHECK(ls_reducer_add(reducer, NULL) == LS_ERR_ARGUMENT && ls_reducer_add(NULL, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_reducer_add(reducer, ls_transpose(ls_ones(LS_SHAPE(2, 3), LS_F32), 0, 1)) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("not contiguous");
    LS_CHECK(ls_reducer_add(reducer, ls_ones(LS_SHAPE(2), LS_I64)) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE(".scale needs");
    LS_CHECK(ls_distribute_gradients(NULL, reducer) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_reducer_finish(NULL) == LS_ERR_ARGUMENT);
    if (ls_comm_size(world) > 1) {
        LS_CHECK(ls_reducer_add(reducer, ls_ones(LS_SHAPE(2 + ls_comm_rank(world)), LS_F32)) == LS_ERR_MISMATCH);
    }
    ls_reducer_free(reducer);
    ls_reducer_free(NULL);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    LS_TRY(sets(world));
    LS_TRY(coalescing_needs_few_calls(world));
    LS_TRY(many_tensors(world));
    LS_TRY(gradients(world, 0));
    LS_TRY(gradients(world, SIZE_MAX));
    LS_TRY(failed_gradients(world));
    LS_TRY(averaged_gradients(world));
    LS_TRY(averaged_parts(world));
    LS_TRY(zero_scale(world));
    LS_TRY(failed_start(world, false));
    LS_TRY(failed_start(world, true));
    LS_TRY(refusals(world));
    LS_TRY(ls_scope_end(scope));
    return ls_comm_barrier(world, NULL);
}
