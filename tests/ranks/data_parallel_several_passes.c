/*
 * Several backward passes for several forward passes of a data-parallel module, as in adversarial training: the losses
 * of real and of generated samples, each with its own ls_backward. Parameters equal the parameters of one process.
 * Other passes of single ranks may run in between. A failure in any of the passes fails the step on all ranks.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <lockstep/optim.h>
#include <lockstep/parallel.h>
#include <lockstep/step.h>

#include "tensor/scope.h"

enum { INPUTS = 6, WIDTH = 8, OUTPUTS = 2, SEED = 21, STEPS = 3 };

static const ls_linear_options wide = {.dtype = LS_F64};

static ls_module *make(void) {
    ls_seed(SEED);
    return ls_sequential(ls_nn_linear_with(INPUTS, WIDTH, &wide), ls_nn_tanh(),
                         ls_nn_linear_with(WIDTH, OUTPUTS, &wide));
}

typedef struct training {
    ls_module *module;
    ls_optimizer *optimizer;
    ls_module *local; /* a model of this rank alone */
    ls_tensor *real, *generated;
    int passes;
    int fails_in; /* the pass that fails on this rank; -1: none */
} training;

static ls_status begin(training *t, ls_module *module) {
    ls_seed(SEED + 1);
    *t = (training){.module = module, .local = ls_nn_linear_with(INPUTS, 1, &wide), .fails_in = -1};
    t->optimizer = ls_sgd(t->module, &(ls_sgd_options){.learning_rate = 0.1, .momentum = 0.9});
    return t->optimizer != NULL && t->local != NULL ? LS_OK : ls_error_status();
}

static void end(training *t) {
    ls_optimizer_free(t->optimizer);
    ls_module_free(t->module);
    ls_module_free(t->local);
}

/* Sets the inputs of a step: `count` samples from sample `first`. */
static void set_inputs(training *t, int step, int64_t first, int64_t count, int64_t all) {
    ls_seed(SEED + 10 + (uint64_t)step);
    t->real = ls_narrow(ls_randn(LS_SHAPE(all, INPUTS), LS_F64), 0, first, count);
    t->generated = ls_narrow(ls_randn(LS_SHAPE(all, INPUTS), LS_F64), 0, first, count);
}

/* ---- the passes of a step ---------------------------------------------------------------------------------------- */

typedef enum order { REAL_FIRST, GENERATED_FIRST, WITH_LOCAL_PASSES, SUM_OF_BOTH, UNUSED_OUTPUT, ORDERS } order;

static ls_status run_pass(training *t, ls_tensor *loss) {
    return ls_backward(t->passes++ == t->fails_in ? NULL : loss);
}

static ls_status local_pass(const training *t, bool runs) {
    return runs ? ls_backward(ls_mean(ls_square(ls_forward(t->local, t->real)))) : LS_OK;
}

/* With WITH_LOCAL_PASSES, only the ranks with `runs_local` run a pass of their own model. */
static ls_status run_passes(training *t, order how, bool runs_local) {
    t->passes = 0;
    ls_tensor *real = ls_forward(t->module, t->real);
    ls_tensor *generated = ls_forward(t->module, t->generated);
    ls_tensor *of_real = ls_mean(ls_square(ls_sub_number(real, 1)));
    ls_tensor *of_generated = ls_mean(ls_square(generated));
    switch (how) {
    case GENERATED_FIRST:
        LS_TRY(run_pass(t, of_generated));
        return run_pass(t, of_real);
    case WITH_LOCAL_PASSES:
        LS_TRY(run_pass(t, of_real));
        LS_TRY(local_pass(t, runs_local));
        LS_TRY(run_pass(t, of_generated));
        return local_pass(t, runs_local);
    case SUM_OF_BOTH:
        LS_TRY(run_pass(t, ls_add(of_real, of_generated)));
        return local_pass(t, runs_local);
    case UNUSED_OUTPUT:
        LS_TRY(run_pass(t, of_real));
        return local_pass(t, runs_local);
    default:
        LS_TRY(run_pass(t, of_real));
        return run_pass(t, of_generated);
    }
}

static ls_status step_once(training *t, order how, bool runs_local) {
    ls_optimizer_zero_grad(t->optimizer);
    LS_TRY(run_passes(t, how, runs_local));
    return ls_optimizer_step(t->optimizer);
}

/* ---- equal to one process ---------------------------------------------------------------------------------------- */

static ls_status train(training *t, order how, int64_t first, int64_t count, int64_t all, bool runs_local) {
    for (int step = 0; step < STEPS; step++) {
        ls_scope *scope = ls_scope_begin();
        set_inputs(t, step, first, count, all);
        LS_TRY(ls_scope_end_after(scope, step_once(t, how, runs_local)));
    }
    return LS_OK;
}

/* `parallel` may have names of parameters with a prefix; the order is the same. */
static ls_status compare(const ls_module *parallel, const ls_module *alone) {
    for (int i = 0; i < ls_module_parameter_count(alone); i++) {
        LS_CHECK(ls_allclose(ls_module_parameter(parallel, i), ls_module_parameter(alone, i), 1e-9, 1e-12));
    }
    return LS_OK;
}

static ls_status equals_one_process(ls_comm *world, order how, const ls_data_parallel_options *options) {
    const int64_t rank = ls_comm_rank(world), size = ls_comm_size(world);
    const int64_t first = rank * (rank + 3) / 2, all = size * (size + 3) / 2; /* rank r has r + 2 samples */
    training one, t;
    LS_TRY(begin(&one, make()));
    LS_TRY(train(&one, how, 0, all, all, false));
    LS_TRY(begin(&t, ls_data_parallel(make(), world, options)));
    LS_TRY(train(&t, how, first, rank + 2, all, rank == 0));
    ls_scope *scope = ls_scope_begin();
    LS_TRY(ls_data_parallel_gather(t.module, true));
    LS_TRY(compare(t.module, one.module));
    LS_TRY(ls_data_parallel_gather(t.module, false));
    LS_TRY(ls_scope_end(scope));
    LS_TRY(ls_data_parallel_check(t.module));
    end(&t);
    end(&one);
    return LS_OK;
}

static ls_status all_equal_one_process(ls_comm *world) {
    for (int zero = 0; zero <= 3; zero++) {
        for (order how = 0; how < ORDERS; how++) {
            ls_data_parallel_options options = {.zero = zero, .overlap = LS_OVERLAP_OFF};
            LS_TRY(equals_one_process(world, how, &options));
            options.overlap = LS_OVERLAP_ON;
            options.bucket_bytes = 1;
            LS_TRY(equals_one_process(world, how, &options));
        }
    }
    return LS_OK;
}

/* ---- no_sync ----------------------------------------------------------------------------------------------------- */

/* Two passes under no_sync and two passes after it add up to the gradients of all four. */
static ls_status accumulates(ls_comm *world) {
    const int64_t rank = ls_comm_rank(world), size = ls_comm_size(world);
    const int64_t first = rank * (rank + 3) / 2, all = size * (size + 3) / 2;
    training one, t;
    LS_TRY(begin(&one, make()));
    LS_TRY(begin(&t, ls_data_parallel(make(), world, NULL)));
    ls_scope *scope = ls_scope_begin();
    for (int step = 0; step < 2; step++) {
        set_inputs(&one, step, 0, all, all);
        LS_TRY(run_passes(&one, REAL_FIRST, false));
        LS_TRY(ls_data_parallel_no_sync(t.module, step == 0));
        set_inputs(&t, step, first, rank + 2, all);
        LS_TRY(run_passes(&t, REAL_FIRST, false));
    }
    for (int i = 0; i < ls_module_parameter_count(one.module); i++) {
        LS_CHECK(ls_allclose(ls_grad(ls_module_parameter(t.module, i)), ls_grad(ls_module_parameter(one.module, i)),
                             1e-9, 1e-12));
    }
    LS_TRY(ls_scope_end(scope));
    end(&t);
    end(&one);
    return LS_OK;
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* The last rank fails in one of the two passes: both ranks fail in the same pass, and the next step succeeds. */
static ls_status failing_pass(ls_comm *world, int pass, const ls_data_parallel_options *options) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    training t;
    LS_TRY(begin(&t, ls_data_parallel(make(), world, options)));
    for (int step = 0; step < STEPS; step++) {
        ls_scope *scope = ls_scope_begin();
        set_inputs(&t, step, 0, rank + 2, 2 * size + 2);
        t.fails_in = step == 1 && rank == size - 1 ? pass : -1;
        const ls_status status = step_once(&t, REAL_FIRST, false);
        LS_CHECK((status == LS_OK) == (step != 1));
        LS_CHECK(t.passes == (step == 1 ? pass + 1 : 2));
        LS_CHECK(step != 1 || rank == size - 1 || status == LS_ERR_MISMATCH);
        LS_CHECK(ls_scope_end(scope) == status);
    }
    LS_TRY(ls_data_parallel_check(t.module));
    end(&t);
    return LS_OK;
}

static ls_status failing_passes(ls_comm *world) {
    for (int zero = 0; zero <= 3; zero++) {
        for (int pass = 0; pass < 2; pass++) {
            const ls_data_parallel_options options = {.zero = zero, .overlap = LS_OVERLAP_OFF};
            LS_TRY(failing_pass(world, pass, &options));
            LS_TRY(failing_pass(
                world, pass, &(ls_data_parallel_options){.zero = zero, .overlap = LS_OVERLAP_ON, .bucket_bytes = 1}));
        }
    }
    return LS_OK;
}

/* ---- a step function that runs the first pass itself ------------------------------------------------------------- */

static ls_tensor *loss_of_step(const ls_batch *batch, void *user) {
    training *t = (training *)user;
    ls_tensor *real = ls_forward(t->module, batch->input);
    ls_tensor *generated = ls_forward(t->module, batch->target);
    if (ls_backward(ls_mean(ls_square(ls_sub_number(real, 1)))) != LS_OK) {
        return NULL;
    }
    return t->fails_in < 0 ? ls_mean(ls_square(generated)) : ls_matmul(t->real, t->real);
}

static ls_status step_function(ls_comm *world) {
    const int64_t rank = ls_comm_rank(world), size = ls_comm_size(world);
    const int64_t first = rank * (rank + 3) / 2, all = size * (size + 3) / 2;
    training one, t;
    LS_TRY(begin(&one, make()));
    LS_TRY(begin(&t, ls_data_parallel(make(), world, NULL)));
    ls_scope *scope = ls_scope_begin();
    for (int step = 0; step < STEPS; step++) {
        set_inputs(&one, step, 0, all, all);
        set_inputs(&t, step, first, rank + 2, all);
        const ls_batch batch = {
            .input = t.real, .target = t.generated, .count = rank + 2, .global_count = all, .first = first};
        t.fails_in = step == 1 && rank == 0 ? 1 : -1;
        ls_optimizer_zero_grad(t.optimizer);
        const ls_status status = ls_data_parallel_step(t.module, &batch, loss_of_step, &t);
        LS_CHECK((status == LS_OK) == (step != 1));
        if (status == LS_OK) {
            LS_TRY(ls_optimizer_step(t.optimizer));
            LS_TRY(step_once(&one, REAL_FIRST, false));
        }
    }
    LS_TRY(compare(t.module, one.module));
    LS_TRY(ls_scope_end(scope));
    end(&t);
    end(&one);
    return LS_OK;
}

/* ---- captured steps ---------------------------------------------------------------------------------------------- */

static ls_tensor *captured_step(void *user) {
    training *t = (training *)user;
    return step_once(t, REAL_FIRST, false) == LS_OK ? t->real : NULL;
}

/* A replay either equals the step, or is refused. */
static ls_status captured(ls_comm *world) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    training eager, replayed;
    LS_TRY(begin(&eager, ls_data_parallel(make(), world, NULL)));
    LS_TRY(begin(&replayed, ls_data_parallel(make(), world, NULL)));
    ls_scope *scope = ls_scope_begin();
    set_inputs(&eager, 0, 0, rank + 2, size + 2);
    set_inputs(&replayed, 0, 0, rank + 2, size + 2);
    ls_step *step = ls_step_capture(captured_step, &replayed, &(ls_step_capture_options){.fallback = true});
    LS_CHECK(step != NULL);
    LS_TRY(step_once(&eager, REAL_FIRST, false));
    for (int i = 0; i < STEPS; i++) {
        LS_TRY(ls_step_replay(step));
        LS_TRY(step_once(&eager, REAL_FIRST, false));
    }
    LS_CHECK(ls_module_hash(replayed.module) == ls_module_hash(eager.module));
    ls_step_free(step);
    LS_TRY(ls_scope_end(scope));
    end(&replayed);
    end(&eager);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(all_equal_one_process(world));
    LS_TRY(accumulates(world));
    if (ls_comm_size(world) > 1) {
        LS_TRY(failing_passes(world));
        LS_TRY(step_function(world));
    }
    LS_TRY(captured(world));
    return ls_comm_barrier(world, NULL);
}
