/*
 * A forward pass of a data-parallel module whose output no loss uses, and ranks that then run different passes. Passes
 * that do not depend on the module are local to their rank. Passes that depend on it must be the same on all ranks.
 *
 * ranks: 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

enum { INPUTS = 4, OUTPUTS = 2, SEED = 31, STEPS = 3 };

static const ls_linear_options wide = {.dtype = LS_F64};

typedef struct models {
    ls_module *shared; /* data-parallel */
    ls_optimizer *optimizer;
    ls_module *local; /* of this rank alone */
    ls_tensor *x;
} models;

static ls_status begin(models *m, ls_comm *world, const ls_data_parallel_options *options) {
    ls_seed(SEED);
    *m = (models){.shared = ls_data_parallel(ls_nn_linear_with(INPUTS, OUTPUTS, &wide), world, options),
                  .local = ls_nn_linear_with(INPUTS, 1, &wide)};
    m->optimizer = ls_sgd(m->shared, &(ls_sgd_options){.learning_rate = 0.1});
    return m->optimizer != NULL && m->local != NULL ? LS_OK : ls_error_status();
}

static void end(models *m) {
    ls_optimizer_free(m->optimizer);
    ls_module_free(m->shared);
    ls_module_free(m->local);
}

static void set_input(models *m, ls_comm *world, int step) {
    ls_seed(SEED + 1 + (uint64_t)(step * ls_comm_size(world) + ls_comm_rank(world)));
    m->x = ls_randn(LS_SHAPE(3, INPUTS), LS_F64);
}

static ls_tensor *loss_of(ls_module *module, ls_tensor *x) {
    return ls_mean(ls_square(ls_forward(module, x)));
}

/* ---- passes of single ranks -------------------------------------------------------------------------------------- */

typedef enum evaluations { ON_ALL_RANKS, ON_RANK_0, ON_OTHER_RANKS } evaluations;

static bool evaluates(ls_comm *world, evaluations where) {
    return where == ON_ALL_RANKS || (ls_comm_rank(world) == 0) == (where == ON_RANK_0);
}

/* A forward pass that records operations, in a scope that ends before any loss uses its output. */
static ls_status evaluate(const models *m) {
    ls_scope *scope = ls_scope_begin();
    LS_CHECK(ls_forward(m->shared, m->x) != NULL);
    return ls_scope_end(scope);
}

/*
 * Leaves an output unused after the pass of the shared model, evaluates on some ranks, and runs a pass of the local
 * model on rank 0.
 */
static ls_status step_with_local_passes(models *m, ls_comm *world, evaluations where) {
    ls_tensor *y = ls_forward(m->shared, m->x), *unused = ls_forward(m->shared, m->x);
    LS_CHECK(unused != NULL);
    ls_optimizer_zero_grad(m->optimizer);
    LS_TRY(ls_backward(ls_mean(ls_square(y))));
    for (int i = 0; i < 2; i++) {
        LS_TRY(evaluates(world, where) ? evaluate(m) : LS_OK);
        LS_TRY(ls_comm_rank(world) == 0 ? ls_backward(loss_of(m->local, m->x)) : LS_OK);
    }
    return ls_optimizer_step(m->optimizer);
}

static ls_status plain_step(models *m) {
    ls_optimizer_zero_grad(m->optimizer);
    LS_TRY(ls_backward(loss_of(m->shared, m->x)));
    return ls_optimizer_step(m->optimizer);
}

static ls_status local_passes(ls_comm *world, evaluations where, const ls_data_parallel_options *options) {
    models m, plain;
    LS_TRY(begin(&m, world, options));
    LS_TRY(begin(&plain, world, options));
    for (int step = 0; step < STEPS; step++) {
        ls_scope *scope = ls_scope_begin();
        set_input(&m, world, step);
        plain.x = m.x;
        LS_TRY(step_with_local_passes(&m, world, where));
        LS_TRY(plain_step(&plain));
        LS_TRY(ls_scope_end(scope));
    }
    LS_TRY(ls_data_parallel_check(m.shared));
    LS_CHECK(ls_module_hash(m.shared) == ls_module_hash(plain.shared));
    end(&plain);
    end(&m);
    return LS_OK;
}

static ls_status all_local_passes(ls_comm *world) {
    for (evaluations where = ON_ALL_RANKS; where <= ON_OTHER_RANKS; where++) {
        LS_TRY(local_passes(world, where, &(ls_data_parallel_options){.overlap = LS_OVERLAP_OFF}));
        LS_TRY(local_passes(world, where, &(ls_data_parallel_options){.overlap = LS_OVERLAP_ON, .bucket_bytes = 1}));
        LS_TRY(local_passes(world, where, &(ls_data_parallel_options){.zero = 1}));
    }
    return LS_OK;
}

/* ---- different passes -------------------------------------------------------------------------------------------- */

/* Checks that the pass with this status has failed on all ranks, and left no gradients. */
static ls_status check_mismatch(const models *m, ls_status status) {
    LS_CHECK(status == LS_ERR_MISMATCH);
    LS_EXPECT_MESSAGE("the ranks are in different passes of data-parallel modules");
    LS_CHECK(ls_grad(ls_module_parameter(m->shared, 0)) == NULL);
    return LS_OK;
}

/* The last rank has no samples. It calls ls_data_parallel_skip once for each of the two passes of the other ranks. */
static ls_status skips_of_two_passes(ls_comm *world) {
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    models m;
    LS_TRY(begin(&m, world, NULL));
    for (int step = 0; step < STEPS; step++) {
        ls_scope *scope = ls_scope_begin();
        set_input(&m, world, step);
        ls_optimizer_zero_grad(m.optimizer);
        ls_tensor *first = last ? NULL : loss_of(m.shared, m.x), *second = last ? NULL : loss_of(m.shared, m.x);
        LS_TRY(last ? ls_data_parallel_skip(m.shared) : ls_backward(first));
        LS_TRY(last ? ls_data_parallel_skip(m.shared) : ls_backward(second));
        LS_TRY(ls_optimizer_step(m.optimizer));
        LS_TRY(ls_scope_end(scope));
    }
    LS_TRY(ls_data_parallel_check(m.shared));
    end(&m);
    return LS_OK;
}

/* It calls ls_data_parallel_skip only once, and fails in the next step. */
static ls_status missing_skip(ls_comm *world, const ls_data_parallel_options *options) {
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    models m;
    LS_TRY(begin(&m, world, options));
    ls_scope *scope = ls_scope_begin();
    set_input(&m, world, 0);
    LS_TRY(plain_step(&m));
    ls_optimizer_zero_grad(m.optimizer);
    ls_tensor *first = last ? NULL : loss_of(m.shared, m.x), *second = last ? NULL : loss_of(m.shared, m.x);
    LS_TRY(last ? ls_data_parallel_skip(m.shared) : ls_backward(first));
    if (last) {
        LS_TRY(ls_optimizer_step(m.optimizer));
        ls_optimizer_zero_grad(m.optimizer);
        second = loss_of(m.shared, m.x);
    }
    LS_TRY(check_mismatch(&m, ls_backward(second)));
    LS_CHECK(ls_scope_end(scope) == LS_ERR_MISMATCH);
    end(&m);
    return LS_OK;
}

/* Two modules have parameters of the same sizes. The loss of the last rank depends on the other one of them. */
static ls_status different_modules(ls_comm *world) {
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    models m, other;
    LS_TRY(begin(&m, world, NULL));
    LS_TRY(begin(&other, world, NULL));
    ls_scope *scope = ls_scope_begin();
    set_input(&m, world, 0);
    const models *used = last ? &other : &m;
    LS_TRY(check_mismatch(&m, ls_backward(loss_of(used->shared, m.x))));
    LS_CHECK(ls_grad(ls_module_parameter(other.shared, 0)) == NULL);
    LS_CHECK(ls_scope_end(scope) == LS_ERR_MISMATCH);
    end(&other);
    end(&m);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(all_local_passes(world));
    LS_TRY(skips_of_two_passes(world));
    LS_TRY(missing_skip(world, &(ls_data_parallel_options){.overlap = LS_OVERLAP_OFF}));
    LS_TRY(missing_skip(world, &(ls_data_parallel_options){.overlap = LS_OVERLAP_ON, .bucket_bytes = 1}));
    LS_TRY(different_modules(world));
    return ls_comm_barrier(world, NULL);
}
