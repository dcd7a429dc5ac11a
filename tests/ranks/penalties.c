/*
 * Penalties on the parameters of data-parallel modules. A penalty on the parameters of another module is not scaled by
 * this rank's share of the samples. After a failed pass, buckets in flight do not change the gradients of a penalty.
 *
 * ranks: 1 2 3
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "tests/support/elements.h"

enum { INPUTS = 4, WIDTH = 64, SEED = 5 };

static const ls_linear_options f64 = {.dtype = LS_F64};

static ls_tensor *rows(int step, int rank, int64_t count) {
    ls_seed((uint64_t)(100 * step + rank));
    return ls_randn(LS_SHAPE(count, INPUTS), LS_F64);
}

static ls_tensor *mean_square(ls_tensor *x) {
    return ls_mean(ls_square(x));
}

/* Checks that a parameter has the gradient of its mean square, bit for bit. */
static ls_status has_penalty(ls_tensor *parameter) {
    LS_CHECK(ls_grad(parameter) != NULL);
    const double *weight = elements(parameter), *gradient = elements(ls_grad(parameter));
    for (int64_t i = 0; i < ls_numel(parameter); i++) {
        LS_CHECK(gradient[i] == 1.0 / (double)ls_numel(parameter) * 2 * weight[i]);
    }
    return LS_OK;
}

/* The first loss has two terms, so the ranks agree on scaling factors before this pass and all later passes. */
static ls_status of_another_module(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    ls_seed(SEED);
    ls_module *other = ls_data_parallel(ls_nn_linear_with(INPUTS, INPUTS, &f64), world, NULL);
    ls_module *model = ls_data_parallel(ls_nn_linear_with(INPUTS, 2, &f64), world, NULL);
    LS_CHECK(other != NULL && model != NULL);
    ls_tensor *weight = ls_module_parameter(other, 0);
    for (int step = 0; step < 3; step++) {
        ls_scope *scope = ls_scope_begin();
        ls_module_zero_grad(other);
        ls_tensor *output = ls_forward(model, rows(step, rank, 2 + 3 * rank));
        ls_tensor *loss = ls_add(mean_square(output), mean_square(weight));
        LS_TRY(ls_backward(step == 0 ? ls_add(loss, ls_mean(output)) : loss));
        LS_TRY(has_penalty(weight));
        LS_TRY(ls_scope_end(scope));
    }
    ls_module_free(model);
    ls_module_free(other);
    return LS_OK;
}

static _Thread_local bool refuses;

static ls_status refuse(ls_tensor *tensor, void *user) {
    (void)tensor, (void)user;
    return refuses ? ls_error_set(LS_ERR_UNSUPPORTED, "the hook refuses") : LS_OK;
}

/*
 * The failure of a hook reaches the other ranks in a call for `second`, so the buckets of `first` stay in flight. The
 * program ignores the failure and runs a pass from a penalty alone.
 */
static ls_status after_failure(ls_comm *world) {
    const int rank = ls_comm_rank(world), failing = ls_comm_size(world) - 1;
    const ls_data_parallel_options options = {.overlap = LS_OVERLAP_ON, .bucket_bytes = 1};
    ls_seed(SEED);
    ls_module *second = ls_data_parallel(
        ls_sequential(ls_nn_linear_with(INPUTS, WIDTH, &f64), ls_nn_tanh(), ls_nn_linear_with(WIDTH, INPUTS, &f64)),
        world, &options);
    ls_module *first = ls_data_parallel(ls_nn_linear_with(INPUTS, INPUTS, &f64), world, &options);
    LS_CHECK(second != NULL && first != NULL);
    ls_tensor *weight = ls_module_parameter(second, 0);
    LS_TRY(ls_add_grad_hook(weight, refuse, NULL));
    for (int step = 0; step < 8; step++) {
        ls_scope *scope = ls_scope_begin();
        ls_module_zero_grad(second);
        refuses = step % 2 == 1 && rank == failing;
        const ls_status status = ls_backward(mean_square(ls_forward(second, ls_forward(first, rows(step, rank, 3)))));
        refuses = false;
        LS_CHECK((status == LS_OK) == (step % 2 == 0));
        if (status != LS_OK) {
            ls_module_zero_grad(second);
            LS_TRY(ls_backward(mean_square(weight)));
            LS_TRY(ls_comm_barrier(world, NULL));
            LS_TRY(has_penalty(weight));
        }
        (void)!ls_scope_end(scope);
    }
    LS_TRY(ls_data_parallel_check(second));
    ls_module_free(first);
    ls_module_free(second);
    return LS_OK;
}

/* Runs both modules. On a rank that leaves early, an operation fails before the second module runs. */
static ls_status run_both(ls_comm *world, ls_module *const *models, int step, bool leaves) {
    ls_tensor *x = rows(step, ls_comm_rank(world), 3);
    ls_tensor *y = ls_forward(models[0], leaves ? ls_add(x, ls_ones(LS_SHAPE(5, 5), LS_F64)) : x);
    return ls_backward(leaves ? NULL : mean_square(ls_add(y, ls_forward(models[1], x))));
}

/* Rank 0 has never sent its buckets of the second module, so the other ranks cannot write gradients. */
static ls_status refused_in_flight(ls_comm *world) {
    const ls_data_parallel_options options = {.overlap = LS_OVERLAP_ON, .bucket_bytes = 1};
    const bool leaves = ls_comm_rank(world) == 0;
    ls_module *models[2];
    ls_seed(SEED);
    for (int i = 0; i < 2; i++) {
        models[i] = ls_data_parallel(ls_nn_linear_with(INPUTS, WIDTH, &f64), world, &options);
        LS_CHECK(models[i] != NULL);
    }
    ls_tensor *weight = ls_module_parameter(models[1], 0);
    for (int step = 0; step < 6 && ls_comm_size(world) > 1; step++) {
        ls_scope *scope = ls_scope_begin();
        const ls_status status = run_both(world, models, step, leaves && step == 2);
        LS_CHECK(step == 2 ? status != LS_OK : step == 3 ? status == LS_ERR_MISMATCH : status == LS_OK);
        (void)!ls_scope_end(scope);
        if (step == 2) {
            scope = ls_scope_begin();
            LS_CHECK(ls_backward(mean_square(weight)) == (leaves ? LS_OK : LS_ERR_STATE));
            if (!leaves) {
                LS_EXPECT_MESSAGE("other ranks may still send the gradient of a parameter [64, 4]");
            }
            (void)!ls_scope_end(scope);
            LS_TRY(ls_comm_barrier(world, NULL)); /* rank 0 sends buckets in its next step */
        }
        ls_module_zero_grad(models[1]);
    }
    ls_scope *scope = ls_scope_begin();
    LS_TRY(ls_backward(mean_square(weight)));
    LS_TRY(has_penalty(weight));
    LS_TRY(ls_scope_end(scope));
    ls_module_free(models[0]);
    ls_module_free(models[1]);
    return LS_OK;
}

typedef enum after_failure_kind { NOTHING, SECOND_FAILURE, NO_SYNC, KINDS } after_failure_kind;

/* After a failed step with buckets in flight, and after another failure or a pass under no_sync, training continues. */
static ls_status recovers(ls_comm *world, after_failure_kind kind) {
    const ls_data_parallel_options options = {.overlap = LS_OVERLAP_ON, .bucket_bytes = 1};
    const bool leaves = ls_comm_rank(world) == 0 && ls_comm_size(world) > 1;
    ls_module *models[2];
    ls_seed(SEED);
    for (int i = 0; i < 2; i++) {
        models[i] = ls_data_parallel(ls_nn_linear_with(INPUTS, WIDTH, &f64), world, &options);
        LS_CHECK(models[i] != NULL);
    }
    ls_status status = LS_OK;
    for (int step = 0; step < 8; step++) {
        LS_TRY(ls_data_parallel_no_sync(models[1], kind == NO_SYNC && step == 3));
        ls_scope *scope = ls_scope_begin();
        const bool fails = step == 2 || (kind == SECOND_FAILURE && step == 3);
        /* after the failures, with the second module alone */
        ls_tensor *x = rows(step, ls_comm_rank(world), 3);
        status = step < 4 ? run_both(world, models, step, leaves && fails)
                          : ls_backward(mean_square(ls_forward(models[1], x)));
        LS_CHECK(step > 1 || status == LS_OK);
        LS_CHECK(step != 2 || (status != LS_OK) == (ls_comm_size(world) > 1));
        (void)!ls_scope_end(scope);
        ls_module_zero_grad(models[0]);
        ls_module_zero_grad(models[1]);
        LS_TRY(ls_comm_barrier(world, NULL));
    }
    LS_TRY(status);
    ls_module_free(models[0]);
    ls_module_free(models[1]);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(of_another_module(world));
    LS_TRY(after_failure(world));
    LS_TRY(refused_in_flight(world));
    for (after_failure_kind kind = NOTHING; kind < KINDS; kind++) {
        LS_TRY(recovers(world, kind));
    }
    return ls_comm_barrier(world, NULL);
}
