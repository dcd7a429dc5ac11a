/*
 * Gradients that are sent as bf16 or f16: every element is as close to the exact mean as documented, the gradients are
 * bit-identical on all ranks, and other data (weights, samples, marks of used parameters) is not rounded.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "tests/support/numbers.h"

enum { INPUTS = 6, OUTPUTS = 3, SEED = 70, PASSES = 3 };

static const ls_dtype halves[] = {LS_BF16, LS_F16};

static double unit_of(ls_dtype dtype) {
    return dtype == LS_BF16 ? 0x1p-8 : 0x1p-11;
}

/* ---- models and passes ------------------------------------------------------------------------------------------- */

/* The last layer is not used. */
typedef struct parts {
    ls_module *used, *unused;
} parts;

static ls_tensor *forward(ls_module *self, ls_tensor *input) {
    return ls_forward(((const parts *)ls_module_state(self))->used, input);
}

static ls_module *make(void) {
    static const ls_module_type type = {.name = "Parts", .state_size = sizeof(parts), .forward = forward};
    ls_seed(SEED);
    ls_module *module = ls_module_new(&type);
    parts *p = ls_module_state(module);
    p->used = ls_module_add_child(module, "used",
                                  ls_sequential(ls_nn_linear(INPUTS, 40), ls_nn_tanh(), ls_nn_linear(40, OUTPUTS)));
    p->unused = ls_module_add_child(module, "unused", ls_nn_linear(2, 2));
    return ls_module_finish(module);
}

/*
 * Makes normally distributed numbers. Over the columns, their scales fall from 1 to 2^-7 and rise again, and so do the
 * scales of gradients.
 */
static ls_tensor *rows_of(int number, int64_t first, int64_t last, int64_t width) {
    ls_tensor *rows = ls_empty(LS_SHAPE(last - first, width), LS_F32);
    for (int64_t i = 0; rows != NULL && i < ls_numel(rows); i++) {
        const double value = ls_random_normal(SEED, (uint64_t)(number * 100 + width), (uint64_t)(first * width + i));
        numbers_set(rows, i, ldexp(value, i % 2 == 0 ? 0 : -(int)(i % 8)));
    }
    return rows;
}

/* Runs a backward pass over this rank's share of a batch. With `sums`, the loss is not a single mean. */
static ls_status pass(ls_module *model, ls_comm *world, int number, int batch, bool sums) {
    const int64_t rank = ls_comm_rank(world), size = ls_comm_size(world);
    const int64_t first = batch * rank / size, last = batch * (rank + 1) / size;
    if (first == last) {
        return ls_data_parallel_comm(model) != NULL ? ls_data_parallel_skip(model) : LS_OK;
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *y = ls_forward(model, rows_of(number, first, last, INPUTS));
    ls_tensor *target = rows_of(number + 1, first, last, OUTPUTS);
    ls_tensor *loss = ls_mse_loss(y, target, LS_LOSS_MEAN);
    if (sums) {
        loss = ls_add(loss, ls_mul(ls_l1_loss(y, target, LS_LOSS_SUM), 0.1));
    }
    const ls_status status = ls_backward(loss);
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

static ls_module *wrapped(ls_comm *world, ls_dtype dtype) {
    return ls_data_parallel(make(), world, &(ls_data_parallel_options){.reduce_dtype = dtype});
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static ls_status same_on_all_ranks(ls_comm *world, const ls_tensor *tensor) {
    return ranks_have_same_bytes(world, elements(tensor), (size_t)ls_numel(tensor) * sizeof(float));
}

/* Returns whether the dtype can represent every element. */
static bool is_rounded(ls_tensor *tensor, ls_dtype dtype) {
    ls_scope *scope = ls_scope_begin();
    const bool same = ls_equal(ls_to(ls_to(ls_detach(tensor), dtype), LS_F32), tensor);
    return ls_scope_end(scope) == LS_OK && same;
}

/* Checks with the ranks' own gradients that |is - g| <= u (m + |g|), plus the rounding of f32. */
static ls_status near_exact(ls_comm *world, const ls_tensor *is, const ls_tensor *own, double share, ls_dtype dtype) {
    const double u = unit_of(dtype), step = dtype == LS_F16 ? 0x1p-24 : 0;
    for (int64_t i = 0; i < ls_numel(is); i++) {
        const double mine = own != NULL ? share * numbers_get(own, i) : 0;
        double mean[2] = {mine, fabs(mine)};
        LS_TRY(ls_comm_allreduce(world, mean, mean, 2, LS_F64, LS_AVG, NULL));
        const double wrong = fabs(numbers_get(is, i) - mean[0]), most = u * (mean[1] + fabs(mean[0])) + step;
        if (!(wrong <= most + 1e-6 * mean[1])) {
            return ls_fail(LS_ERR_INTERNAL, "%s: element %lld is %.9g, not %.9g: wrong by %g, more than %g",
                           ls_dtype_name(dtype), (long long)i, numbers_get(is, i), mean[0], wrong, most);
        }
    }
    return LS_OK;
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

/* Tests shares that are equal, differ, or are empty on some ranks. */
static ls_status errors_are_as_documented(ls_comm *world, ls_dtype dtype) {
    static const int batches[] = {60, 7, 1};
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    for (int i = 0; i < 3; i++) {
        const int batch = batches[i], samples = batch * (rank + 1) / size - batch * rank / size;
        ls_module *plain = make(), *model = wrapped(world, dtype);
        LS_CHECK(model != NULL);
        LS_TRY(pass(plain, world, i, batch, false));
        LS_TRY(pass(model, world, i, batch, false));
        int rounded = 0;
        for (int k = 0; k < ls_module_parameter_count(plain); k++) {
            ls_tensor *is = ls_grad(ls_module_parameter(model, k)), *own = ls_grad(ls_module_parameter(plain, k));
            LS_CHECK((is != NULL) == (k < 4)); /* only layers that are used have a gradient */
            if (is != NULL) {
                LS_TRY(near_exact(world, is, own, (double)samples * size / batch, dtype));
                LS_TRY(same_on_all_ranks(world, is));
                rounded += is_rounded(is, dtype);
            }
        }
        LS_CHECK((rounded == 4) == (size > 1)); /* a single rank reduces nothing */
        ls_module_free(plain);
        ls_module_free(model);
    }
    return LS_OK;
}

static ls_status close(const ls_module *is, const ls_module *want, double tolerance) {
    for (int k = 0; k < 4; k++) {
        const ls_tensor *a = ls_grad(ls_module_parameter(is, k)), *b = ls_grad(ls_module_parameter(want, k));
        double largest = 0;
        LS_CHECK(a != NULL && b != NULL);
        for (int64_t i = 0; i < ls_numel(b); i++) {
            largest = fmax(largest, fabs(numbers_get(b, i)));
        }
        for (int64_t i = 0; i < ls_numel(b); i++) {
            LS_CHECK(fabs(numbers_get(a, i) - numbers_get(b, i)) <= tolerance * largest);
        }
    }
    return LS_OK;
}

/* Accumulated passes, and losses whose scaling factors the ranks agree on, give almost the same result as with f32. */
static ls_status as_in_f32(ls_comm *world, ls_dtype dtype, bool gathered, bool sums) {
    static const int batches[] = {12, 1, 9};
    ls_module *plain = wrapped(world, LS_F32), *model = wrapped(world, dtype);
    for (int i = 0; i < PASSES; i++) {
        LS_TRY(ls_data_parallel_no_sync(plain, gathered && i < PASSES - 1));
        LS_TRY(ls_data_parallel_no_sync(model, gathered && i < PASSES - 1));
        LS_TRY(pass(plain, world, i, batches[i], sums));
        LS_TRY(pass(model, world, i, batches[i], sums));
    }
    LS_TRY(close(model, plain, 8 * unit_of(dtype)));
    for (int k = 0; k < 4; k++) {
        LS_TRY(same_on_all_ranks(world, ls_grad(ls_module_parameter(model, k))));
    }
    ls_module_free(plain);
    ls_module_free(model);
    return LS_OK;
}

/* If no rank contributes, accumulated gradients are unchanged, even with a small scaling factor. */
static ls_status nobody_brings_anything(ls_comm *world, ls_dtype dtype) {
    ls_module *model = wrapped(world, dtype);
    LS_TRY(pass(model, world, 0, 12, false));
    ls_tensor *gradient = ls_grad(ls_module_parameter(model, 0));
    ls_tensor *before = ls_clone(gradient);
    LS_TRY(ls_data_parallel_skip(model));
    LS_CHECK(ls_equal(gradient, before));
    ls_release(before);
    ls_module_free(model);
    return LS_OK;
}

/* f16 has no finite number above 65504; bf16 has the range of f32. */
static ls_status overflow(ls_comm *world) {
    for (int i = 0; i < 2 && ls_comm_size(world) > 1; i++) {
        ls_module *model = wrapped(world, halves[i]);
        ls_scope *scope = ls_scope_begin();
        ls_tensor *loss = ls_mul(ls_mean(ls_forward(model, ls_ones(LS_SHAPE(2, INPUTS), LS_F32))), 1e6);
        LS_TRY(ls_backward(loss));
        const double bias = ls_item(ls_max(ls_grad(ls_module_find(model, "used.2.bias"))));
        LS_CHECK(isinf(bias) == (halves[i] == LS_F16));
        LS_TRY(ls_scope_end(scope));
        ls_module_free(model);
    }
    return LS_OK;
}

static ls_status wrong_input(ls_comm *world) {
    ls_module *wide = ls_nn_linear_with(2, 2, &(ls_linear_options){.dtype = LS_F64});
    LS_CHECK(ls_data_parallel(wide, world, &(ls_data_parallel_options){.reduce_dtype = LS_BF16}) == NULL);
    LS_CHECK(ls_error_status() == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE("a parameter is of f64");
    LS_CHECK(ls_data_parallel(make(), world, &(ls_data_parallel_options){.reduce_dtype = LS_I64}) == NULL);
    LS_CHECK(ls_error_status() == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE(".reduce_dtype is i64, but must be bf16 or f16");
    return LS_OK;
}

/* Ranks with different options all get an error. */
static ls_status ranks_that_differ(ls_comm *world) {
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    LS_CHECK(wrapped(world, ls_comm_rank(world) == 0 ? LS_BF16 : LS_F16) == NULL);
    LS_CHECK(ls_error_status() == LS_ERR_MISMATCH);
    LS_EXPECT_MESSAGE(ls_comm_rank(world) == 0 ? ".reduce_dtype = bf16" : ".reduce_dtype = f16");
    const ls_data_parallel_options options = {.no_initial_sync = ls_comm_rank(world) == 0};
    LS_CHECK(ls_data_parallel(make(), world, &options) == NULL && ls_error_status() == LS_ERR_MISMATCH);
    LS_EXPECT_MESSAGE(ls_comm_rank(world) == 0 ? ".no_initial_sync = 1" : ".no_initial_sync = 0");
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(wrong_input(world));
    LS_TRY(overflow(world));
    for (int i = 0; i < 2; i++) {
        LS_TRY(errors_are_as_documented(world, halves[i]));
        LS_TRY(nobody_brings_anything(world, halves[i]));
        for (int way = 0; way < 4; way++) {
            LS_TRY(as_in_f32(world, halves[i], way % 2 == 1, way / 2 == 1));
        }
    }
    LS_TRY(ranks_that_differ(world));
    return ls_comm_barrier(world, NULL);
}
