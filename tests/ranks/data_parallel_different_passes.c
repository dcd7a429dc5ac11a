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

#include "tensor/scope.h"

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

/* The next step after a failure. */
static ls_status step_in_scope(models *m, ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    set_input(m, world, STEPS);
    return ls_scope_end_after(scope, plain_step(m));
}

/* ---- different passes -------------------------------------------------------------------------------------------- */

/* Checks that the pass with this status has failed on all ranks, and left no gradients. */
static ls_status check_mismatch(const models *m, ls_status status) {
    LS_CHECK(status == LS_ERR_MISMATCH);
    LS_EXPECT_MESSAGE("the ranks are in different passes of data-parallel modules");
    LS_CHECK(ls_grad(ls_module_parameter(m->shared, 0)) == NULL);
    return LS_OK;
}

/*
 * The last rank has no samples. It calls ls_data_parallel_skip once for each of the `passes` of the other ranks. Unless
 * it `clears` its gradients, it keeps the gradients of the step before.
 */
static ls_status empty_rank(ls_comm *world, int passes, bool clears) {
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    models m;
    LS_TRY(begin(&m, world, NULL));
    for (int step = 0; step < STEPS; step++) {
        ls_scope *scope = ls_scope_begin();
        set_input(&m, world, step);
        if (!last || clears) {
            ls_optimizer_zero_grad(m.optimizer);
        }
        ls_tensor *losses[2] = {NULL};
        for (int i = 0; i < passes && !last; i++) {
            losses[i] = loss_of(m.shared, m.x);
        }
        for (int i = 0; i < passes; i++) {
            LS_TRY(last ? ls_data_parallel_skip(m.shared) : ls_backward(losses[i]));
        }
        LS_TRY(ls_optimizer_step(m.optimizer));
        LS_TRY(ls_scope_end(scope));
    }
    LS_TRY(ls_data_parallel_check(m.shared));
    end(&m);
    return LS_OK;
}

/* The last rank calls ls_data_parallel_skip only once, and fails in the next step. */
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
    LS_TRY(step_in_scope(&m, world));
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
    LS_TRY(step_in_scope(&m, world));
    LS_TRY(step_in_scope(&other, world));
    end(&other);
    end(&m);
    return LS_OK;
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* Checks the statuses of two passes. The second pass fails in step 1, because the last rank has no loss. */
static ls_status check_second(ls_comm *world, int step, ls_status first, ls_status second) {
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    LS_CHECK(first == LS_OK);
    LS_CHECK(second == (step != 1 ? LS_OK : last ? LS_ERR_ARGUMENT : LS_ERR_MISMATCH));
    if (step == 1 && !last) {
        LS_EXPECT_MESSAGE("failed: ls_backward: the loss is NULL");
    }
    return LS_OK;
}

static bool fails(ls_comm *world, int step) {
    return step == 1 && ls_comm_rank(world) == ls_comm_size(world) - 1;
}

/* The watch of a module whose output was released, in an outer scope, does not send the error. */
static ls_status failure_with_released_output(ls_comm *world, const ls_data_parallel_options *options) {
    models m, tried;
    LS_TRY(begin(&m, world, options));
    LS_TRY(begin(&tried, world, options));
    ls_scope *outer = ls_scope_begin();
    set_input(&tried, world, STEPS);
    ls_release(ls_forward(tried.shared, tried.x));
    for (int step = 0; step < STEPS; step++) {
        ls_scope *scope = ls_scope_begin();
        set_input(&m, world, step);
        ls_optimizer_zero_grad(m.optimizer);
        ls_tensor *first = loss_of(m.shared, m.x), *second = loss_of(m.shared, m.x);
        const ls_status status = ls_backward(first);
        LS_TRY(check_second(world, step, status, ls_backward(fails(world, step) ? NULL : second)));
        LS_TRY(ls_optimizer_step(m.optimizer));
        LS_CHECK((ls_scope_end(scope) == LS_OK) == (step != 1));
    }
    LS_TRY(ls_data_parallel_check(m.shared));
    LS_TRY(ls_scope_end(outer));
    end(&tried);
    end(&m);
    return LS_OK;
}

/*
 * An actor and a critic use one encoder. The rank without a loss does not know that the pass of the other ranks does
 * not use the actor, whose outputs remain on the tape. After the failure, the program updates the actor alone.
 */
static ls_status failure_of_critic(ls_comm *world, const ls_data_parallel_options *options) {
    models encoder, actor, critic;
    LS_TRY(begin(&encoder, world, options));
    LS_TRY(begin(&actor, world, options));
    LS_TRY(begin(&critic, world, options));
    for (int step = 0; step < STEPS; step++) {
        ls_scope *scope = ls_scope_begin();
        set_input(&encoder, world, step);
        ls_optimizer_zero_grad(encoder.optimizer);
        ls_optimizer_zero_grad(actor.optimizer);
        ls_optimizer_zero_grad(critic.optimizer);
        ls_tensor *shared = ls_pad(ls_forward(encoder.shared, encoder.x), 1, 0, INPUTS - OUTPUTS, 0);
        ls_tensor *of_actor = loss_of(actor.shared, shared), *of_critic = loss_of(critic.shared, shared);
        const ls_status status = ls_backward_with(of_actor, &(ls_backward_options){.keep_tape = true});
        LS_TRY(check_second(world, step, status, ls_backward(fails(world, step) ? NULL : of_critic)));
        LS_TRY(ls_optimizer_step(actor.optimizer));
        LS_CHECK((ls_scope_end(scope) == LS_OK) == (step != 1));
        LS_TRY(ls_data_parallel_check(actor.shared));
    }
    LS_TRY(ls_data_parallel_check(critic.shared));
    LS_TRY(ls_data_parallel_check(encoder.shared));
    end(&critic);
    end(&actor);
    end(&encoder);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(all_local_passes(world));
    LS_TRY(empty_rank(world, 2, true));
    LS_TRY(empty_rank(world, 1, false));
    LS_TRY(missing_skip(world, &(ls_data_parallel_options){.overlap = LS_OVERLAP_OFF}));
    LS_TRY(missing_skip(world, &(ls_data_parallel_options){.overlap = LS_OVERLAP_ON, .bucket_bytes = 1}));
    LS_TRY(different_modules(world));
    for (int i = 0; i < 2; i++) {
        const ls_data_parallel_options options = {.overlap = i == 0 ? LS_OVERLAP_OFF : LS_OVERLAP_ON,
                                                  .bucket_bytes = 1};
        LS_TRY(failure_with_released_output(world, &options));
    }
    LS_TRY(failure_of_critic(world, &(ls_data_parallel_options){.overlap = LS_OVERLAP_OFF}));
    return ls_comm_barrier(world, NULL);
}
