/*
 * The gradients of frozen parameters of a data-parallel module are not sent, whichever parameters are frozen, and
 * whenever. The gradients of the other parameters equal the gradients of one process.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <math.h>
#include <string.h>

#include <lockstep/optim.h>
#include <lockstep/parallel.h>
#include <lockstep/trace.h>

#include "base/trace.h"
#include "tests/support/numbers.h"

enum { INPUTS = 4, WIDTH = 20, PARAMETERS = 6, PATTERNS = (1 << PARAMETERS) - 1, BATCH = 11 };

/* ---- models and steps -------------------------------------------------------------------------------------------- */

static ls_module *make(ls_dtype dtype) {
    const ls_linear_options options = {.dtype = dtype};
    ls_seed(3);
    return ls_sequential(ls_nn_linear_with(INPUTS, WIDTH, &options), ls_nn_tanh(),
                         ls_nn_linear_with(WIDTH, WIDTH, &options), ls_nn_tanh(),
                         ls_nn_linear_with(WIDTH, 1, &options));
}

/* Freezes the parameters whose bits are set in `pattern`. */
static ls_status freeze(ls_module *model, unsigned pattern) {
    for (int i = 0; i < PARAMETERS; i++) {
        LS_TRY(ls_set_requires_grad(ls_module_parameter(model, i), (pattern >> i & 1U) == 0));
    }
    return LS_OK;
}

static ls_tensor *rows(int64_t first, int64_t last, ls_dtype dtype) {
    ls_tensor *x = ls_empty(LS_SHAPE(last - first, INPUTS), dtype);
    for (int64_t i = 0; i < ls_numel(x); i++) {
        numbers_set(x, i, sin((double)(first * INPUTS + i)));
    }
    return x;
}

/* Runs a pass over the share of `rank`, which may be empty. */
static ls_status run_pass(ls_module *model, int rank, int size, ls_dtype dtype) {
    const int64_t first = BATCH * (int64_t)rank / size, last = BATCH * (int64_t)(rank + 1) / size;
    ls_scope *scope = ls_scope_begin();
    const ls_status status = ls_backward(ls_mean(ls_square(ls_forward(model, rows(first, last, dtype)))));
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

static void forget_gradients(ls_module *model) {
    for (int i = 0; i < PARAMETERS; i++) {
        ls_zero_grad(ls_module_parameter(model, i));
    }
}

/* Runs a pass on all ranks, and counts the bytes of its communication. */
static ls_status count_bytes(ls_comm *world, ls_module *model, ls_dtype dtype, int64_t *bytes, int *calls) {
    LS_TRY(ls_trace_start());
    const ls_status status = run_pass(model, ls_comm_rank(world), ls_comm_size(world), dtype);
    ls_trace *trace = ls_trace_take();
    *bytes = 0;
    *calls = 0;
    for (size_t i = 0; i < trace->count; i++) {
        *bytes += trace->spans[i].kind == LS_TRACE_COMM ? trace->spans[i].bytes : 0;
        *calls += trace->spans[i].kind == LS_TRACE_COMM;
    }
    ls_trace_free(trace);
    return status;
}

static ls_status close(ls_tensor *is, ls_tensor *want, double tolerance) {
    is = ls_to_device(is, "cpu");
    want = ls_to_device(want, "cpu");
    for (int64_t at = 0; at < ls_numel(want); at++) {
        const double difference = numbers_get(is, at) - numbers_get(want, at);
        LS_CHECK(fabs(difference) <= tolerance * (1 + fabs(numbers_get(want, at))));
    }
    return LS_OK;
}

static ls_status same_gradients(const ls_module *is, const ls_module *want, double tolerance) {
    for (int i = 0; i < PARAMETERS; i++) {
        ls_tensor *a = ls_grad(ls_module_parameter(is, i)), *b = ls_grad(ls_module_parameter(want, i));
        ls_scope *scope = ls_scope_begin();
        LS_CHECK((a == NULL) == (b == NULL));
        LS_TRY(a != NULL ? close(a, b, tolerance) : LS_OK);
        LS_TRY(ls_scope_end(scope));
    }
    return LS_OK;
}

static ls_status same_bits_on_all_ranks(ls_comm *world, const ls_module *model) {
    for (int i = 0; i < PARAMETERS; i++) {
        ls_tensor *gradient = ls_grad(ls_module_parameter(model, i));
        if (gradient == NULL) {
            continue;
        }
        ls_scope *scope = ls_scope_begin();
        ls_tensor *least = ls_allreduce(world, ls_detach(gradient), LS_MIN);
        LS_CHECK(ls_equal(least, ls_allreduce(world, ls_detach(gradient), LS_MAX)));
        LS_TRY(ls_scope_end(scope));
    }
    return LS_OK;
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

/* Returns the number of bytes of the gradients that are sent. Each gradient begins at a multiple of 64 bytes. */
static int64_t travelling(const ls_module *model, unsigned pattern, size_t width, size_t travels_in) {
    int64_t bytes = 0;
    for (int i = 0; i < PARAMETERS; i++) {
        const int64_t step = 64 / (int64_t)width;
        const int64_t padded = (ls_numel(ls_module_parameter(model, i)) + step - 1) / step * step;
        bytes += (pattern >> i & 1U) == 0 ? padded * (int64_t)travels_in : 0;
    }
    return bytes;
}

/* Returns whether gradients are averaged in device memory, with a call per span. */
static bool on_devices(const ls_comm *world) {
    return strcmp(ls_comm_backend(world), "nccl") == 0 && strcmp(ls_default_device(), "cpu") != 0;
}

/* Every pattern follows every other pattern, so parameters are frozen and unfrozen. */
static ls_status frozen_do_not_travel(ls_comm *world, ls_dtype dtype, ls_dtype reduce_dtype, double tolerance) {
    const size_t width = ls_dtype_size(dtype);
    const bool halves = reduce_dtype != LS_F32;
    ls_module *model = ls_data_parallel(make(dtype), world, &(ls_data_parallel_options){.reduce_dtype = reduce_dtype});
    ls_module *alone = make(dtype);
    LS_CHECK(model != NULL && alone != NULL);
    LS_TRY(run_pass(model, ls_comm_rank(world), ls_comm_size(world), dtype)); /* agrees on the meaning of 1 */
    int64_t others = -1;                                                      /* bytes sent besides gradients */
    for (unsigned i = 0; i < PATTERNS; i++) {
        const unsigned pattern = i * 37 % PATTERNS;
        int64_t bytes = 0;
        int calls = 0;
        forget_gradients(model);
        forget_gradients(alone);
        LS_TRY(freeze(model, pattern));
        LS_TRY(freeze(alone, pattern));
        LS_TRY(count_bytes(world, model, dtype, &bytes, &calls));
        LS_TRY(run_pass(alone, 0, 1, dtype));
        LS_TRY(same_gradients(model, alone, tolerance));
        LS_TRY(same_bits_on_all_ranks(world, model));
        bytes -= travelling(model, pattern, width, halves ? 2 : width);
        others = others >= 0 ? others : bytes;
        LS_CHECK(ls_comm_size(world) == 1 || bytes == others);
        LS_CHECK(ls_comm_size(world) == 1 || calls == (halves ? 2 : 1) || on_devices(world));
    }
    LS_CHECK(others <= 23 * (int64_t)width || ls_comm_size(world) == 1); /* ls_tail and the marks of the parameters */
    ls_module_free(model);
    ls_module_free(alone);
    return LS_OK;
}

/* Gradients computed before a parameter was frozen remain afterwards, as in a single process. */
static ls_status old_gradients_stay(ls_comm *world, bool no_sync) {
    ls_module *model = ls_data_parallel(make(LS_F64), world, NULL);
    ls_module *alone = make(LS_F64);
    LS_CHECK(model != NULL && alone != NULL);
    LS_TRY(ls_data_parallel_no_sync(model, no_sync));
    LS_TRY(run_pass(model, ls_comm_rank(world), ls_comm_size(world), LS_F64));
    LS_TRY(run_pass(alone, 0, 1, LS_F64));
    LS_TRY(ls_data_parallel_no_sync(model, false));
    LS_TRY(freeze(model, 1U << 2 | 1U << 5));
    LS_TRY(freeze(alone, 1U << 2 | 1U << 5));
    LS_TRY(run_pass(model, ls_comm_rank(world), ls_comm_size(world), LS_F64));
    LS_TRY(run_pass(alone, 0, 1, LS_F64));
    LS_TRY(same_gradients(model, alone, 1e-12));
    LS_TRY(same_bits_on_all_ranks(world, model));
    ls_module_free(model);
    ls_module_free(alone);
    return LS_OK;
}

/* An optimizer does not change parameters that were frozen before the module was created, or after training with
 * momentum. */
static ls_status optimizers_leave_it_alone(ls_comm *world) {
    ls_module *plain = make(LS_F32);
    LS_TRY(freeze(plain, 1U << 1 | 1U << 2));
    ls_module *model = ls_data_parallel(plain, world, NULL);
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1, .momentum = 0.9});
    LS_CHECK(model != NULL && optimizer != NULL);
    ls_tensor *before = ls_clone(ls_module_parameter(model, 2));
    for (int i = 0; i < 3; i++) {
        ls_optimizer_zero_grad(optimizer);
        LS_TRY(run_pass(model, ls_comm_rank(world), ls_comm_size(world), LS_F32));
        LS_TRY(ls_optimizer_step(optimizer));
    }
    LS_CHECK(ls_equal(before, ls_module_parameter(model, 2)));
    ls_release(before);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

/*
 * One call freezes a subtree that was trained with momentum: its gradients are not sent, and no step changes its
 * parameters. After it is unfrozen, it continues to train.
 */
static ls_status a_subtree_is_left_alone(ls_comm *world) {
    ls_module *body = make(LS_F32), *head = ls_nn_linear(1, 1);
    ls_module *model = ls_data_parallel(ls_sequential(body, head), world, NULL);
    ls_optimizer *optimizer =
        ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.01, .momentum = 0.9, .weight_decay = 0.1});
    LS_CHECK(model != NULL && optimizer != NULL);
    uint64_t before = 0, of_head = 0;
    for (int step = 0; step < 6; step++) {
        int64_t bytes = 0;
        int calls = 0;
        if (step == 2 || step == 4) { /* without ls_optimizer_zero_grad in between */
            LS_TRY(ls_module_set_requires_grad(body, step == 4));
            before = ls_module_hash(body);
            of_head = ls_module_hash(head);
        } else {
            ls_optimizer_zero_grad(optimizer);
        }
        LS_TRY(count_bytes(world, model, LS_F32, &bytes, &calls));
        LS_TRY(ls_optimizer_step(optimizer));
        LS_CHECK((step == 2 || step == 3) == (ls_module_hash(body) == before) || step < 2);
        LS_CHECK(step < 2 || ls_module_hash(head) != of_head);
        LS_CHECK(step != 3 || ls_comm_size(world) == 1 || bytes < 4 * INPUTS * WIDTH);
        LS_CHECK(step == 3 || ls_comm_size(world) == 1 || bytes > 4 * INPUTS * WIDTH || step == 2);
    }
    LS_CHECK(ls_module_set_requires_grad(NULL, false) == LS_ERR_ARGUMENT);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

/*
 * One rank freezes different parameters from the other ranks: all ranks get an error, whether the numbers of elements
 * differ or not.
 */
static ls_status frozen_on_one_rank(ls_comm *world, unsigned on_first, unsigned on_others, ls_dtype reduce_dtype) {
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    ls_module *model = ls_data_parallel(make(LS_F32), world, &(ls_data_parallel_options){.reduce_dtype = reduce_dtype});
    LS_CHECK(model != NULL);
    LS_TRY(run_pass(model, ls_comm_rank(world), ls_comm_size(world), LS_F32));
    forget_gradients(model);
    LS_TRY(freeze(model, ls_comm_rank(world) == 0 ? on_first : on_others));
    LS_CHECK(run_pass(model, ls_comm_rank(world), ls_comm_size(world), LS_F32) == LS_ERR_MISMATCH);
    LS_EXPECT_MESSAGE("ls_set_requires_grad");
    LS_TRY(freeze(model, 0)); /* the ranks are still in step */
    LS_TRY(run_pass(model, ls_comm_rank(world), ls_comm_size(world), LS_F32));
    ls_module_free(model);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(frozen_do_not_travel(world, LS_F64, LS_F32, 1e-12));
    LS_TRY(frozen_do_not_travel(world, LS_F32, LS_F32, 2e-6));
    LS_TRY(frozen_do_not_travel(world, LS_F32, LS_BF16, 3e-2));
    LS_TRY(old_gradients_stay(world, false));
    LS_TRY(old_gradients_stay(world, true));
    LS_TRY(optimizers_leave_it_alone(world));
    LS_TRY(a_subtree_is_left_alone(world));
    LS_TRY(frozen_on_one_rank(world, 1U << 2, 0, LS_F32));
    LS_TRY(frozen_on_one_rank(world, 0, 1U << 0 | 1U << 4, LS_F32));
    LS_TRY(frozen_on_one_rank(world, 1U << 1, 1U << 3, LS_F32)); /* the same number of elements */
    LS_TRY(frozen_on_one_rank(world, 1U << 2, 0, LS_BF16));
    return ls_comm_barrier(world, NULL);
}
