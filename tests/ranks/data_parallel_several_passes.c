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

static _Thread_local bool normalizes; /* the model has a batch normalization */

static ls_module *make(void) {
    ls_seed(SEED);
    ls_module *norm =
        normalizes ? ls_nn_batch_norm_1d(INPUTS, &(ls_batch_norm_options){.dtype = LS_F64}) : ls_nn_relu();
    return ls_sequential(norm, ls_nn_linear_with(INPUTS, WIDTH, &wide), ls_nn_tanh(),
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

typedef enum order {
    REAL_FIRST,
    GENERATED_FIRST,
    WITH_LOCAL_PASSES,
    SUM_OF_BOTH,
    UNUSED_OUTPUT,
    NESTED_SCOPES,
    PENALTY, /* a pass of parameters only, while an output is unused */
    ORDERS
} order;

static ls_tensor *penalty_of(const training *t) {
    return ls_mean(ls_square(ls_module_parameter(t->module, 0)));
}

static ls_status run_pass(training *t, ls_tensor *loss) {
    return ls_backward(t->passes++ == t->fails_in ? NULL : loss);
}

static ls_status local_pass(const training *t, bool runs) {
    return runs ? ls_backward(ls_mean(ls_square(ls_forward(t->local, t->real)))) : LS_OK;
}

/* The first output belongs to an outer scope, whose tape is empty after the first pass. */
static ls_status run_nested(training *t) {
    ls_tensor *of_real = ls_mean(ls_square(ls_sub_number(ls_forward(t->module, t->real), 1)));
    ls_scope *inner = ls_scope_begin();
    ls_tensor *of_generated = ls_mean(ls_square(ls_forward(t->module, t->generated)));
    LS_TRY(run_pass(t, of_real));
    LS_TRY(run_pass(t, of_generated));
    return ls_scope_end(inner);
}

/* With WITH_LOCAL_PASSES, only the ranks with `runs_local` run a pass of their own model. */
static ls_status run_passes(training *t, order how, bool runs_local) {
    t->passes = 0;
    if (how == NESTED_SCOPES) {
        return run_nested(t);
    }
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
    case PENALTY:
        LS_TRY(run_pass(t, of_real));
        LS_TRY(ls_backward(penalty_of(t)));
        return run_pass(t, of_generated);
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

/* With `empty`, the last of several ranks has no samples. */
static ls_status equals_one_process(ls_comm *world, order how, const ls_data_parallel_options *options, bool empty) {
    const int64_t rank = ls_comm_rank(world), size = ls_comm_size(world);
    const int64_t first = rank * (rank + 3) / 2; /* rank r has r + 2 samples */
    const int64_t own = empty && size > 1 && rank == size - 1 ? 0 : rank + 2;
    const int64_t all = size * (size + 3) / 2 - (empty && size > 1 ? size + 1 : 0);
    training one, t;
    LS_TRY(begin(&one, make()));
    LS_TRY(train(&one, how, 0, all, all, false));
    LS_TRY(begin(&t, ls_data_parallel(make(), world, options)));
    LS_TRY(train(&t, how, own > 0 ? first : 0, own, all, rank == 0));
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

static ls_status normalized_equals_one_process(ls_comm *world) {
    normalizes = true;
    ls_status status = LS_OK;
    for (int i = 0; i < 4 && status == LS_OK; i++) {
        status = equals_one_process(world, i < 2 ? REAL_FIRST : NESTED_SCOPES, NULL, i % 2 == 1);
    }
    normalizes = false;
    return status;
}

static ls_status all_equal_one_process(ls_comm *world) {
    for (int zero = 0; zero <= 3; zero++) {
        for (order how = 0; how < (zero < 2 ? ORDERS : PENALTY); how++) { /* from stage 2 on, penalties are refused */
            ls_data_parallel_options options = {.zero = zero, .overlap = LS_OVERLAP_OFF};
            LS_TRY(equals_one_process(world, how, &options, false));
            LS_TRY(equals_one_process(world, how, &options, true));
            options.overlap = LS_OVERLAP_ON;
            options.bucket_bytes = 1;
            LS_TRY(equals_one_process(world, how, &options, false));
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

/* ---- ranks whose programs differ --------------------------------------------------------------------------------- */

/*
 * On rank 0, the second loss depends on parameters only, so the pass is local to rank 0. The other ranks wait for the
 * next pass of rank 0, which is a pass of the next step.
 */
static ls_status penalty_on_one_rank(ls_comm *world) {
    training t;
    LS_TRY(begin(&t, ls_data_parallel(make(), world, NULL)));
    ls_scope *scope = ls_scope_begin();
    set_inputs(&t, 0, 0, 3, 3);
    ls_tensor *real = ls_forward(t.module, t.real), *generated = ls_forward(t.module, t.generated);
    LS_TRY(ls_backward(ls_mean(ls_square(real))));
    if (ls_comm_rank(world) == 0) {
        LS_TRY(ls_backward(penalty_of(&t)));
        ls_optimizer_zero_grad(t.optimizer);
        generated = ls_forward(t.module, t.real);
    }
    LS_CHECK(ls_backward(ls_mean(ls_square(generated))) == LS_ERR_MISMATCH);
    LS_EXPECT_MESSAGE("the ranks are in different passes of data-parallel modules");
    LS_CHECK(ls_scope_end(scope) == LS_ERR_MISMATCH);
    end(&t);
    return LS_OK;
}

/*
 * A discriminator and a generator have parameters of the same sizes. With `extra`, rank 0 runs the discriminator once
 * more, for a score that it prints. Returns the hash of both modules.
 */
static ls_status adversarial_steps(ls_comm *world, bool extra, uint64_t hash[2]) {
    ls_seed(SEED);
    ls_module *generator = ls_data_parallel(ls_nn_linear_with(INPUTS, INPUTS, &wide), world, NULL);
    ls_module *discriminator = ls_data_parallel(ls_nn_linear_with(INPUTS, INPUTS, &wide), world, NULL);
    ls_optimizer *optimizers[] = {ls_sgd(generator, NULL), ls_sgd(discriminator, NULL)};
    for (int step = 0; step < STEPS; step++) {
        ls_scope *scope = ls_scope_begin();
        ls_seed(SEED + (uint64_t)(8 * step + ls_comm_rank(world)));
        ls_tensor *x = ls_randn(LS_SHAPE(3, INPUTS), LS_F64), *z = ls_randn(LS_SHAPE(3, INPUTS), LS_F64);
        LS_CHECK(!extra || ls_comm_rank(world) > 0 || ls_forward(discriminator, x) != NULL);
        ls_optimizer_zero_grad(optimizers[1]);
        LS_TRY(ls_backward(ls_mean(ls_square(ls_forward(discriminator, x)))));
        LS_TRY(ls_optimizer_step(optimizers[1]));
        ls_optimizer_zero_grad(optimizers[0]);
        LS_TRY(ls_backward(ls_mean(ls_square(ls_forward(discriminator, ls_forward(generator, z))))));
        LS_TRY(ls_optimizer_step(optimizers[0]));
        LS_TRY(ls_scope_end(scope));
    }
    hash[0] = ls_module_hash(generator);
    hash[1] = ls_module_hash(discriminator);
    for (int i = 0; i < 2; i++) {
        ls_optimizer_free(optimizers[i]);
    }
    ls_module_free(generator);
    ls_module_free(discriminator);
    return LS_OK;
}

static ls_status extra_output_on_one_rank(ls_comm *world) {
    uint64_t plain[2], extra[2];
    LS_TRY(adversarial_steps(world, false, plain));
    LS_TRY(adversarial_steps(world, true, extra));
    LS_CHECK(plain[0] == extra[0] && plain[1] == extra[1]);
    return ranks_have_same_bytes(world, extra, sizeof extra);
}

/* An output is left on all ranks. Then all ranks, or only rank 0, evaluate, and rank 0 runs a pass of its own model. */
static ls_status evaluations_between(ls_comm *world) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    training t, other;
    LS_TRY(begin(&t, ls_data_parallel(make(), world, NULL)));
    LS_TRY(begin(&other, ls_data_parallel(make(), world, NULL)));
    for (int step = 0; step < 2 * STEPS; step++) {
        ls_scope *scope = ls_scope_begin();
        set_inputs(&t, step, 0, rank + 2, size + 2);
        LS_TRY(step_once(&t, UNUSED_OUTPUT, false));
        ls_scope *evaluation = ls_scope_begin();
        (void)ls_no_grad(true);
        LS_CHECK((step % 2 == 0 && rank > 0) || ls_forward(t.module, t.real) != NULL);
        LS_TRY(ls_scope_end(evaluation));
        LS_TRY(local_pass(&t, rank == 0));
        ls_optimizer_zero_grad(other.optimizer);
        LS_TRY(ls_backward(ls_mean(ls_square(ls_forward(other.module, t.real)))));
        LS_TRY(ls_optimizer_step(other.optimizer));
        LS_TRY(ls_scope_end(scope));
    }
    LS_TRY(ls_data_parallel_check(t.module));
    LS_TRY(ls_data_parallel_check(other.module));
    end(&other);
    end(&t);
    return LS_OK;
}

/* The last rank has no samples, and an output is left on the other ranks. Then all ranks add a penalty on parameters.
 */
static ls_status penalty_after_skip(ls_comm *world) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    training t;
    LS_TRY(begin(&t, ls_data_parallel(make(), world, NULL)));
    for (int step = 0; step < STEPS; step++) {
        ls_scope *scope = ls_scope_begin();
        set_inputs(&t, step, 0, rank + 2, size + 2);
        ls_optimizer_zero_grad(t.optimizer);
        LS_TRY(rank == size - 1 && step > 0 ? ls_data_parallel_skip(t.module) : run_passes(&t, UNUSED_OUTPUT, false));
        LS_TRY(ls_backward(penalty_of(&t)));
        LS_TRY(ls_optimizer_step(t.optimizer));
        LS_TRY(ls_scope_end(scope));
    }
    LS_TRY(ls_data_parallel_check(t.module));
    end(&t);
    return LS_OK;
}

/* The second loss of the last rank does not depend on the module: the ranks do not mix gradients of different passes.
 */
static ls_status different_losses(ls_comm *world) {
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    training t;
    LS_TRY(begin(&t, ls_data_parallel(make(), world, NULL)));
    ls_scope *scope = ls_scope_begin();
    set_inputs(&t, 0, 0, 3, 3);
    for (int step = 0; step < 2; step++) {
        ls_tensor *real = ls_forward(t.module, t.real), *generated = ls_forward(t.module, t.generated);
        LS_TRY(ls_backward(ls_mean(ls_square(real))));
        if (step == 0) {
            LS_TRY(ls_backward(ls_mean(ls_square(generated))));
        } else if (last) {
            LS_TRY(local_pass(&t, true));
            ls_optimizer_zero_grad(t.optimizer);
            LS_CHECK(ls_backward(ls_mean(ls_forward(t.module, t.real))) == LS_ERR_MISMATCH);
        } else {
            LS_CHECK(ls_backward(ls_mean(ls_square(generated))) == LS_ERR_MISMATCH);
        }
    }
    LS_EXPECT_MESSAGE("the ranks are in different passes of data-parallel modules");
    LS_CHECK(ls_grad(ls_module_parameter(t.module, 0)) == NULL);
    LS_CHECK(ls_scope_end(scope) == LS_ERR_MISMATCH);
    end(&t);
    return LS_OK;
}

/* An output of the first model is left on all ranks. Then the last rank fails in a pass of another model. */
static ls_status failure_of_another_model(ls_comm *world) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    training t, other;
    LS_TRY(begin(&t, ls_data_parallel(make(), world, NULL)));
    LS_TRY(begin(&other, ls_data_parallel(make(), world, NULL)));
    for (int step = 0; step < STEPS; step++) {
        ls_scope *scope = ls_scope_begin();
        set_inputs(&t, step, 0, rank + 2, size + 2);
        LS_TRY(step_once(&t, UNUSED_OUTPUT, false));
        ls_tensor *loss = ls_mean(ls_forward(other.module, t.real));
        const bool fails = step == 1 && rank == size - 1;
        const ls_status status = ls_backward(fails ? NULL : loss);
        LS_CHECK(status == (step != 1 ? LS_OK : fails ? LS_ERR_ARGUMENT : LS_ERR_MISMATCH));
        LS_CHECK(ls_scope_end(scope) == status);
    }
    LS_TRY(ls_data_parallel_check(t.module));
    LS_TRY(ls_data_parallel_check(other.module));
    end(&other);
    end(&t);
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

static ls_status refuse_gradient(ls_tensor *leaf, void *user) {
    (void)leaf, (void)user;
    return ls_fail(LS_ERR_IO, "the hook fails");
}

/*
 * The last rank fails in the pass of the first loss: before the pass, or in the pass with `by_hook`. The program
 * continues with the second loss, which all ranks average.
 */
static ls_status continues_after_failure(ls_comm *world, bool by_hook, const ls_data_parallel_options *options) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    training t;
    LS_TRY(begin(&t, ls_data_parallel(make(), world, options)));
    for (int step = 0; step < STEPS; step++) {
        ls_scope *scope = ls_scope_begin();
        set_inputs(&t, step, 0, rank + 2, size + 2);
        const bool fails = step == 1 && rank == size - 1;
        ls_tensor *real = ls_clone(t.real);
        LS_TRY(ls_set_requires_grad(real, true));
        LS_TRY(fails && by_hook ? ls_add_grad_hook(real, refuse_gradient, NULL) : LS_OK);
        ls_optimizer_zero_grad(t.optimizer);
        ls_tensor *of_real = ls_mean(ls_square(ls_forward(t.module, real)));
        ls_tensor *of_generated = ls_mean(ls_square(ls_forward(t.module, t.generated)));
        LS_CHECK((ls_backward(fails && !by_hook ? NULL : of_real) == LS_OK) == (step != 1));
        LS_TRY(local_pass(&t, rank == 0));
        LS_TRY(ls_backward(of_generated));
        LS_TRY(ls_optimizer_step(t.optimizer));
        LS_CHECK((ls_scope_end(scope) == LS_OK) == (step != 1));
    }
    LS_TRY(ls_data_parallel_check(t.module));
    end(&t);
    return LS_OK;
}

static ls_status all_continue_after_failure(ls_comm *world) {
    for (int by_hook = 0; by_hook < 2; by_hook++) {
        LS_TRY(continues_after_failure(world, by_hook, &(ls_data_parallel_options){.overlap = LS_OVERLAP_OFF}));
        LS_TRY(continues_after_failure(world, by_hook,
                                       &(ls_data_parallel_options){.overlap = LS_OVERLAP_ON, .bucket_bytes = 1}));
        LS_TRY(continues_after_failure(world, by_hook, &(ls_data_parallel_options){.zero = 1}));
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
    LS_TRY(normalized_equals_one_process(world));
    LS_TRY(accumulates(world));
    LS_TRY(extra_output_on_one_rank(world));
    LS_TRY(evaluations_between(world));
    if (ls_comm_size(world) > 1) {
        LS_TRY(penalty_on_one_rank(world));
        LS_TRY(failing_passes(world));
        LS_TRY(all_continue_after_failure(world));
        LS_TRY(step_function(world));
        LS_TRY(failure_of_another_model(world));
        LS_TRY(penalty_after_skip(world));
        LS_TRY(different_losses(world));
    }
    LS_TRY(captured(world));
    return ls_comm_barrier(world, NULL);
}
