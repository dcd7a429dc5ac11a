/*
 * Buffers of a data-parallel module. They stay bit-identical on all ranks, a buffer that no rank changes keeps its
 * bits, and a step makes a call for buffers only if a rank has changed a buffer.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include <lockstep/optim.h>
#include <lockstep/parallel.h>
#include <lockstep/trace.h>

#include "base/trace.h"
#include "tests/support/numbers.h"

enum { INPUTS = 4, CONSTANTS = 5 };

/* ---- a model with buffers ---------------------------------------------------------------------------------------- */

static const double constants[2][CONSTANTS] = {{-(double)FLT_MAX, 0.1F, 1e-3F, -INFINITY, -0.0},
                                               {-DBL_MAX, 0.1, 1.0 / 3, -INFINITY, -0.0}};

typedef struct observer {
    ls_module *linear;
    ls_tensor *mean;   /* f64: the running mean of the module's inputs */
    ls_tensor *mean32; /* the running mean in f32 */
    ls_tensor *calls;  /* i64 */
    bool observes;
} observer;

static ls_status observe(const observer *o, ls_tensor *input) {
    ls_tensor *mean = ls_mean_axes(ls_to(ls_detach(input), LS_F64), LS_AXES(0), false);
    LS_TRY(ls_copy_into(o->mean, ls_add(ls_mul(o->mean, 0.5), ls_mul(mean, 0.5))));
    LS_TRY(ls_copy_into(o->mean32, o->mean));
    return ls_copy_into(o->calls, ls_add(o->calls, 1));
}

static ls_tensor *observer_forward(ls_module *self, ls_tensor *input) {
    const observer *o = ls_module_state(self);
    return !o->observes || observe(o, input) == LS_OK ? ls_forward(o->linear, input) : NULL;
}

static ls_tensor *constant(ls_dtype dtype) {
    ls_tensor *tensor = ls_empty(LS_SHAPE(CONSTANTS), dtype);
    for (int i = 0; i < CONSTANTS; i++) {
        numbers_set(tensor, i, constants[dtype == LS_F64][i]);
    }
    return tensor;
}

static ls_module *make_observer(bool observes) {
    static const ls_module_type type = {
        .name = "Observer", .state_size = sizeof(observer), .forward = observer_forward};
    ls_module *module = ls_module_new(&type);
    observer *o = ls_module_state(module);
    o->linear = ls_module_add_child(module, "linear", ls_nn_linear_with(INPUTS, 1, NULL));
    ls_module_add_buffer(module, "constant32", constant(LS_F32));
    ls_module_add_buffer(module, "constant64", constant(LS_F64));
    o->mean = ls_module_add_buffer(module, "mean", ls_zeros(LS_SHAPE(INPUTS), LS_F64));
    o->mean32 = ls_module_add_buffer(module, "mean32", ls_zeros(LS_SHAPE(INPUTS), LS_F32));
    o->calls = ls_module_add_buffer(module, "calls", ls_zeros(LS_SCALAR, LS_I64));
    o->observes = observes;
    return ls_module_finish(module);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Returns rows first to last - 1 of a batch. */
static ls_tensor *rows(int64_t first, int64_t last) {
    ls_tensor *x = ls_empty(LS_SHAPE(last - first, INPUTS), LS_F32);
    for (int64_t i = 0; i < ls_numel(x); i++) {
        numbers_set(x, i, sin((double)(first * INPUTS + i)));
    }
    return x;
}

/*
 * Runs a forward and a backward pass over this rank's share of a batch. The last ranks have more samples; rank 0 may
 * have none.
 */
static ls_status run_step(ls_comm *world, ls_module *model, int64_t batch) {
    const int64_t rank = ls_comm_rank(world);
    const int64_t first = batch * rank / ls_comm_size(world), last = batch * (rank + 1) / ls_comm_size(world);
    if (first == last) {
        return ls_data_parallel_skip(model);
    }
    ls_scope *scope = ls_scope_begin();
    const ls_status status = ls_backward(ls_mean(ls_square(ls_forward(model, rows(first, last)))));
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

/* Runs such a step and counts the calls on communicators. */
static ls_status count_calls(ls_comm *world, ls_module *model, int64_t batch, int *calls) {
    LS_TRY(ls_trace_start());
    const ls_status status = run_step(world, model, batch);
    ls_trace *trace = ls_trace_take();
    *calls = 0;
    for (size_t i = 0; i < trace->count; i++) {
        *calls += trace->spans[i].kind == LS_TRACE_COMM;
    }
    ls_trace_free(trace);
    return status;
}

static bool is_constant(const ls_module *model, const char *name, ls_dtype dtype) {
    const ls_tensor *buffer = ls_module_find(model, name);
    bool same = true;
    for (int i = 0; i < CONSTANTS; i++) {
        const double element = numbers_get(buffer, i);
        same = same && memcmp(&element, &constants[dtype == LS_F64][i], sizeof element) == 0;
    }
    return same;
}

static bool are_constant(const ls_module *model) {
    return is_constant(model, "constant32", LS_F32) && is_constant(model, "constant64", LS_F64);
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

/* A mask with even, uneven and empty shares, even if every rank has rewritten it with the same values, as when it
 * loads a file. */
static ls_status constants_keep_their_bits(ls_comm *world) {
    ls_module *model = ls_data_parallel(make_observer(false), world, NULL);
    LS_CHECK(model != NULL);
    for (int64_t batch = 1; batch <= 2 * ls_comm_size(world) + 1; batch++) {
        LS_TRY(run_step(world, model, batch));
        LS_CHECK(are_constant(model));
        ls_mark_changed(ls_module_find(model, "constant32"));
        ls_mark_changed(ls_module_find(model, "constant64"));
        LS_TRY(run_step(world, model, batch));
        LS_CHECK(are_constant(model));
        LS_CHECK(isfinite(numbers_get(ls_grad(ls_module_find(model, "linear.weight")), 0)));
    }
    LS_TRY(ranks_have_same_module(world, model));
    ls_module_free(model);
    return LS_OK;
}

/* A program's own statistics become the mean over samples. An empty share adds nothing, whatever its buffer holds. */
static ls_status changed_buffers_are_averaged(ls_comm *world) {
    const int size = ls_comm_size(world);
    ls_module *model = ls_data_parallel(make_observer(true), world, NULL);
    LS_CHECK(model != NULL);
    double want[INPUTS] = {0};
    for (int64_t batch = 1; batch <= 2 * size + 1; batch++) {
        const int64_t first = batch * ls_comm_rank(world) / size, last = batch * (ls_comm_rank(world) + 1) / size;
        if (first == last) {
            LS_TRY(ls_fill(ls_module_find(model, "mean"), NAN));
        }
        ls_scope *scope = ls_scope_begin();
        const ls_tensor *mean = ls_mean_axes(ls_to(rows(0, batch), LS_F64), LS_AXES(0), false);
        for (int i = 0; i < INPUTS; i++) {
            want[i] = want[i] / 2 + numbers_get(mean, i) / 2;
        }
        LS_TRY(ls_scope_end(scope));
        LS_TRY(run_step(world, model, batch));
        for (int i = 0; i < INPUTS; i++) {
            LS_CHECK(fabs(numbers_get(ls_module_find(model, "mean"), i) - want[i]) < 1e-6);
            LS_CHECK(fabs(numbers_get(ls_module_find(model, "mean32"), i) - want[i]) < 1e-6);
        }
        LS_CHECK(ls_item(ls_module_find(model, "calls")) == (double)batch);
        LS_TRY(ranks_have_same_module(world, model));
    }
    ls_module_free(model);
    return LS_OK;
}

/* If one rank changes the value between two steps, the new value counts as that rank's value. */
static ls_status changed_on_one_rank(ls_comm *world) {
    const int size = ls_comm_size(world);
    ls_module *model = ls_data_parallel(make_observer(false), world, NULL);
    LS_CHECK(model != NULL);
    if (ls_comm_rank(world) == size - 1) {
        LS_TRY(ls_fill(ls_module_find(model, "mean"), size));
    }
    LS_TRY(run_step(world, model, 2 * size));
    LS_CHECK(fabs(numbers_get(ls_module_find(model, "mean"), 0) - 1) < 1e-12 || size == 1);
    LS_TRY(ranks_have_same_module(world, model));
    ls_module_free(model);
    return LS_OK;
}

static ls_status calls_of_a_step(ls_comm *world) {
    const int64_t batch = 4 * ls_comm_size(world);
    int without = 0, with = 0, calls = 0;
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    ls_module *idle = ls_data_parallel(make_observer(false), world, NULL);
    ls_module *busy = ls_data_parallel(make_observer(true), world, NULL);
    ls_module *norms = ls_data_parallel(ls_sequential(ls_nn_batch_norm_1d(INPUTS, NULL), ls_nn_linear(INPUTS, 8),
                                                      ls_nn_batch_norm_1d(8, NULL), ls_nn_tanh(), ls_nn_linear(8, 8),
                                                      ls_nn_batch_norm_1d(8, NULL), ls_nn_linear(8, 1)),
                                        world, NULL);
    LS_CHECK(idle != NULL && busy != NULL && norms != NULL);
    for (int step = 0; step < 3; step++) { /* the first step agrees on the meaning of 1 */
        LS_TRY(count_calls(world, idle, batch, &without));
        LS_TRY(count_calls(world, busy, batch, &with));
        LS_TRY(count_calls(world, norms, batch, &calls));
    }
    const bool on_devices = strcmp(ls_comm_backend(world), "nccl") == 0 && strcmp(ls_default_device(), "cpu") != 0;
    LS_CHECK(without == (on_devices ? 2 : 1)); /* on devices, the marks are sent separately */
    LS_CHECK(with == without + 3); /* one call for means; two for buffers without a mean, for any number of buffers */
    LS_CHECK(calls ==
             1 + 3 * 3 + 1 + without); /* shares; means, variances and gradients of each norm; weights, gradients */
    ls_tensor *mean = ls_clone(ls_module_find(norms, "0.running_mean"));
    ls_module_train(norms, false);
    LS_TRY(count_calls(world, norms, batch + 1, &calls));
    LS_CHECK(calls == 1 + without && ls_equal(mean, ls_module_find(norms, "0.running_mean"))); /* weights, gradients */
    ls_release(mean);
    LS_TRY(ranks_have_same_module(world, norms));
    ls_module_free(idle);
    ls_module_free(busy);
    ls_module_free(norms);
    return LS_OK;
}

/* Frozen norms in a training model keep the bits of their statistics, with shares of different sizes. */
static ls_status frozen_statistics_do_not_drift(ls_comm *world) {
    ls_module *norm = ls_nn_batch_norm_1d(INPUTS, NULL);
    ls_module *model = ls_data_parallel(ls_sequential(norm, ls_nn_linear(INPUTS, 1)), world, NULL);
    LS_CHECK(model != NULL);
    LS_TRY(ls_fill(ls_module_find(model, "0.running_var"), 0.3));
    ls_module_train(norm, false);
    for (int64_t batch = 1; batch <= 3 * ls_comm_size(world); batch++) {
        LS_TRY(run_step(world, model, batch));
        LS_CHECK(numbers_get(ls_module_find(model, "0.running_var"), 0) == (double)0.3F);
    }
    ls_module_free(model);
    return LS_OK;
}

/* A buffer that is added later is a cache of this rank. A parameter that is added later is refused, because its
 * gradient would not be averaged. */
static ls_status added_afterwards(ls_comm *world) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    ls_module *observes = make_observer(true), *linear = ls_module_child(observes, 0);
    ls_module *model = ls_data_parallel(observes, world, NULL), *modules[] = {model, observes, linear};
    LS_CHECK(model != NULL);
    ls_tensor *caches[3];
    for (int i = 0; i < 3; i++) {
        caches[i] = ls_module_add_buffer(modules[i], "cache", ls_full(LS_SCALAR, LS_F32, rank));
        LS_CHECK(caches[i] != NULL);
    }
    for (int step = 0; step < 2; step++) {
        LS_TRY(run_step(world, model, size));
        LS_TRY(ranks_have_same_module(world, model));
    }
    for (int i = 0; i < 3; i++) {
        LS_CHECK(ls_item(caches[i]) == rank);
    }
    const observer *o = ls_module_state(observes);
    const double mean = numbers_get(o->mean, 0);
    LS_TRY(ranks_have_same_bytes(world, &mean, sizeof mean));
    LS_CHECK(ls_module_add_parameter(linear, "late", ls_zeros(LS_SCALAR, LS_F32)) != NULL);
    LS_CHECK(run_step(world, model, size) == (size > 1 ? LS_ERR_STATE : LS_OK));
    if (size > 1) {
        LS_EXPECT_MESSAGE("ls_data_parallel: a layer was added to the model after ls_data_parallel was called");
    }
    ls_module_free(model);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(constants_keep_their_bits(world));
    LS_TRY(changed_buffers_are_averaged(world));
    LS_TRY(changed_on_one_rank(world));
    LS_TRY(calls_of_a_step(world));
    LS_TRY(frozen_statistics_do_not_drift(world));
    LS_TRY(added_afterwards(world));
    return ls_comm_barrier(world, NULL);
}
