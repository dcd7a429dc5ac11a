/*
 * Sharded optimizer state (.zero in ls_data_parallel): for every method, parameters and states are bit-identical to
 * unsharded training. States can be moved from sharded to unsharded optimizers and back. Misuse fails on every rank,
 * and the ranks stay in step.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <math.h>
#include <stdio.h>

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "base/memory.h"
#include "optim/optimizer.h"
#include "parallel/data_parallel.h"
#include "tests/support/optimizers.h"

enum { INPUTS = 9, WIDTH = 100, OUTPUTS = 3, STEPS = 4, SEED = 5, MOST = 64 };

/* ---- models ------------------------------------------------------------------------------------------------------ */

typedef struct network {
    ls_module *first, *never, *middle, *last;
} network;

/* The layer `never` gets no gradient. The last layer is f64. */
static ls_tensor *network_forward(ls_module *self, ls_tensor *input) {
    const network *n = ls_module_state(self);
    ls_tensor *x = ls_tanh(ls_forward(n->first, input));
    return ls_forward(n->last, ls_to(ls_tanh(ls_forward(n->middle, x)), LS_F64));
}

static ls_module *make(void) {
    static const ls_module_type type = {.name = "Network", .state_size = sizeof(network), .forward = network_forward};
    ls_seed(SEED);
    ls_module *module = ls_module_new(&type);
    network *n = ls_module_state(module);
    n->first = ls_module_add_child(module, "first", ls_nn_linear(INPUTS, WIDTH));
    n->never = ls_module_add_child(module, "never", ls_nn_linear(WIDTH, 5));
    n->middle = ls_module_add_child(module, "middle", ls_nn_linear(WIDTH, WIDTH));
    n->last =
        ls_module_add_child(module, "last", ls_nn_linear_with(WIDTH, OUTPUTS, &(ls_linear_options){.dtype = LS_F64}));
    return ls_module_finish(module);
}

/* Whether the exchanges of stages 2 and 3 overlap with computation. */
static _Thread_local bool overlaps;

/* Stages 2 and 3 shard the recomputed layers: all layers except the last. */
static ls_module *wrap(ls_comm *world, int zero) {
    ls_module *model = make();
    const network *n = ls_module_state(model);
    if (zero > 1 && (ls_recompute(n->first, true) != LS_OK || ls_recompute(n->never, true) != LS_OK ||
                     ls_recompute(n->middle, true) != LS_OK)) {
        ls_module_free(model);
        return NULL;
    }
    const ls_data_parallel_options options = {.zero = zero,
                                              .overlap = zero > 1 && overlaps ? LS_OVERLAP_ON : LS_OVERLAP_OFF};
    return ls_data_parallel(model, world, &options);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

/* Computes the gradients of a step with this number of samples on this rank. */
static ls_status backward_samples(ls_module *module, const ls_comm *world, int step, int64_t samples) {
    ls_seed(100 + (uint64_t)(10 * step + ls_comm_rank(world)));
    ls_tensor *x = ls_randn(LS_SHAPE(samples, INPUTS), LS_F32), *y = ls_randn(LS_SHAPE(samples, OUTPUTS), LS_F64);
    return ls_backward(ls_mse_loss(ls_forward(module, x), y, LS_LOSS_MEAN));
}

/* The ranks have different numbers of samples. */
static ls_status backward(ls_module *module, const ls_comm *world, int step) {
    return backward_samples(module, world, step, 2 + ls_comm_rank(world));
}

/* In passes 0 and 1, the loss is multiplied by 2^40. */
static ls_status backward_scaled(ls_module *module, ls_grad_scaler *scaler, const ls_comm *world, int step) {
    const int rank = ls_comm_rank(world);
    ls_seed(100 + (uint64_t)(10 * step + rank));
    ls_tensor *x = ls_randn(LS_SHAPE(2, INPUTS), LS_F32), *y = ls_randn(LS_SHAPE(2, OUTPUTS), LS_F64);
    ls_tensor *loss = ls_mul(ls_mse_loss(ls_forward(module, x), y, LS_LOSS_MEAN), step < 2 ? 0x1p40 : 1.0);
    return ls_backward(ls_grad_scaler_scale(scaler, loss));
}

static ls_status evaluate(ls_module *module) {
    LS_CHECK(ls_forward(module, ls_ones(LS_SHAPE(3, INPUTS), LS_F32)) != NULL);
    return LS_OK;
}

/* Runs STEPS steps. If `uneven`, the ranks have different numbers of samples. */
static ls_status train(ls_module *module, ls_optimizer *optimizer, const ls_comm *world, int first, bool uneven) {
    for (int step = first; step < first + STEPS; step++) {
        ls_scope *scope = ls_scope_begin();
        ls_optimizer_zero_grad(optimizer);
        LS_TRY(backward_samples(module, world, step, uneven ? 2 + ls_comm_rank(world) : 3));
        double norm;
        LS_TRY(ls_clip_grad_norm(module, 0.7, &norm));
        LS_TRY(ls_optimizer_step(optimizer));
        LS_TRY(ls_scope_end(scope));
    }
    return LS_OK;
}

static ls_status copy_state(ls_optimizer *optimizer, ls_named *copies, int *count) {
    const ls_named *lent;
    LS_TRY(ls_optimizer_state(optimizer, &lent, count));
    LS_CHECK(*count > 0 && *count <= MOST);
    for (int i = 0; i < *count; i++) {
        copies[i] = (ls_named){ls_duplicate_string(lent[i].name), ls_clone(lent[i].tensor)};
        LS_CHECK(copies[i].name != NULL && copies[i].tensor != NULL);
    }
    return LS_OK;
}

static void free_names(ls_named *copies, int count) {
    for (int i = 0; i < count; i++) {
        ls_free((char *)copies[i].name);
    }
}

static ls_status check_states(const ls_named *a, int a_count, const ls_named *b, int b_count) {
    LS_CHECK(a_count == b_count);
    for (int i = 0; i < a_count; i++) {
        LS_CHECK(strcmp(a[i].name, b[i].name) == 0);
        LS_CHECK(ls_equal(a[i].tensor, b[i].tensor));
    }
    return LS_OK;
}

static ls_status check_equal(ls_module *a, ls_module *b) {
    LS_TRY(ls_data_parallel_gather(b, true));
    LS_CHECK(ls_module_hash(a) != 0 && ls_module_hash(a) == ls_module_hash(b));
    return ls_data_parallel_gather(b, false);
}

/* Returns the number of bytes of the states on this rank. */
static size_t state_bytes(const ls_optimizer *optimizer) {
    size_t bytes = 0;
    for (int g = 0; g < optimizer->group_count; g++) {
        for (int k = 0; k < LS_OPTIMIZER_STATES; k++) {
            bytes += optimizer->groups[g].state[k] != NULL ? optimizer->groups[g].state_bytes : 0;
        }
    }
    return bytes;
}

/* Checks that the ranks together hold every state exactly once. */
static ls_status check_bytes(const ls_optimizer *whole, const ls_optimizer *sharded, ls_comm *world) {
    int64_t all = (int64_t)state_bytes(sharded);
    const size_t bytes = state_bytes(whole);
    const bool any = sharded->type->one_by_one;
    const size_t most = bytes / (size_t)ls_comm_size(world) + (size_t)16 * LS_NORM_BLOCK * LS_OPTIMIZER_STATES;
    LS_CHECK(any || (size_t)all <= most);
    LS_TRY(ls_comm_allreduce(world, &all, &all, 1, LS_I64, LS_SUM, NULL));
    LS_CHECK(all == (int64_t)bytes);
    return LS_OK;
}

/*
 * Trains both models, and exchanges their states in the middle. Stages 2 and 3 scale uneven gradients with factors that
 * the ranks agree on before each pass. The unsharded model then does the same, because other factors round differently.
 */
static ls_status compare(int kind, int zero, bool uneven, ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_module *whole = wrap(world, 0), *sharded = wrap(world, zero);
    if (zero > 1 && uneven) {
        ls_data_parallel_remember(whole, (ls_averaging_memory){.agrees = true});
    }
    ls_optimizer *a = optimizer_make(kind, whole), *b = optimizer_make(kind, sharded);
    LS_CHECK(a != NULL && b != NULL);
    LS_TRY(check_bytes(a, b, world));
    LS_TRY(train(whole, a, world, 0, uneven));
    LS_TRY(train(sharded, b, world, 0, uneven));
    LS_TRY(check_equal(whole, sharded));
    LS_TRY(ls_data_parallel_check(sharded));
    ls_named of_a[MOST], of_b[MOST];
    int count_a = 0, count_b = 0;
    LS_TRY(copy_state(a, of_a, &count_a));
    LS_TRY(copy_state(b, of_b, &count_b));
    LS_TRY(check_states(of_a, count_a, of_b, count_b));
    ls_optimizer_free(a);
    ls_optimizer_free(b);
    a = optimizer_make(kind, whole);
    b = optimizer_make(kind, sharded);
    LS_TRY(ls_optimizer_set_state(a, of_b, count_b));
    LS_TRY(ls_optimizer_set_state(b, of_a, count_a));
    LS_TRY(train(whole, a, world, STEPS, uneven));
    LS_TRY(train(sharded, b, world, STEPS, uneven));
    LS_TRY(check_equal(whole, sharded));
    free_names(of_a, count_a);
    free_names(of_b, count_b);
    ls_optimizer_free(a);
    ls_optimizer_free(b);
    ls_module_free(whole);
    ls_module_free(sharded);
    return ls_scope_end(scope);
}

/* Two groups in a different order from the model's, and a third optimizer for the remaining parameters, give
 * bit-identical results. */
static ls_status test_groups(ls_comm *world) {
    uint64_t hash[2];
    for (int zero = 0; zero < 2; zero++) {
        ls_scope *scope = ls_scope_begin();
        ls_module *module = wrap(world, zero);
        ls_tensor *p[8];
        for (int i = 0; i < 8; i++) {
            p[i] = ls_module_parameter(module, i);
        }
        ls_optimizer *a = ls_adam(NULL, NULL), *b = ls_sgd(NULL, &(ls_sgd_options){.momentum = 0.9});
        LS_TRY(ls_optimizer_add_group(a, (ls_tensor *[]){p[4], p[0]}, 2, &(ls_group_options){.learning_rate = 0.01}));
        LS_TRY(ls_optimizer_add_group(a, (ls_tensor *[]){p[5], p[3]}, 2, NULL));
        LS_TRY(ls_optimizer_add_group(b, (ls_tensor *[]){p[1], p[2]}, 2, NULL));
        LS_TRY(ls_optimizer_add_group(b, (ls_tensor *[]){p[7], p[6]}, 2, NULL));
        for (int step = 0; step < STEPS; step++) {
            LS_TRY(backward(module, world, step));
            LS_TRY(ls_optimizer_step(a));
            LS_TRY(ls_optimizer_step(b));
        }
        hash[zero] = ls_module_hash(module);
        ls_module_free(module); /* before the optimizers */
        ls_optimizer_free(a);
        ls_optimizer_free(b);
        LS_TRY(ls_scope_end(scope));
    }
    LS_CHECK(hash[0] == hash[1]);
    return LS_OK;
}

/* ---- stages 2 and 3 ---------------------------------------------------------------------------------------------- */

/* The last rank has no samples in step 1. Gradients of two passes accumulate. Steps under no_grad need all ranks. */
static ls_status train_unevenly(ls_module *module, ls_optimizer *optimizer, ls_grad_scaler *scaler, ls_comm *world) {
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1 && ls_comm_size(world) > 1;
    for (int step = 0; step < STEPS; step++) {
        ls_scope *scope = ls_scope_begin();
        ls_optimizer_zero_grad(optimizer);
        for (int pass = 0; pass < 2; pass++) {
            const bool empty = last && step == 1 && pass == 0;
            LS_TRY(empty ? ls_data_parallel_skip(module) : backward_scaled(module, scaler, world, 2 * step + pass));
        }
        LS_TRY(ls_grad_scaler_unscale(scaler, optimizer));
        LS_TRY(ls_clip_grad_value(module, 0.01));
        LS_TRY(ls_grad_scaler_step(scaler, optimizer));
        LS_TRY(ls_grad_scaler_update(scaler));
        const bool before = ls_no_grad(true);
        LS_TRY(last && step == 2 ? ls_data_parallel_skip(module) : evaluate(module));
        (void)ls_no_grad(before);
        LS_TRY(ls_scope_end(scope));
    }
    return LS_OK;
}

/* Only in step 0, the scaled gradients exceed the largest f32 by far. All ranks skip this step. */
static ls_status test_uneven(int zero, ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_module *whole = wrap(world, 0), *sharded = wrap(world, zero);
    ls_optimizer *a = ls_adam(whole, NULL), *b = ls_adam(sharded, NULL);
    const ls_grad_scaler_options scale = {.initial_scale = 0x1p100, .growth_interval = 1};
    ls_grad_scaler *of_a = ls_grad_scaler_new(&scale), *of_b = ls_grad_scaler_new(&scale);
    LS_TRY(train_unevenly(whole, a, of_a, world));
    LS_TRY(train_unevenly(sharded, b, of_b, world));
    LS_CHECK(ls_grad_scaler_skipped(of_a) == 1 && ls_grad_scaler_skipped(of_b) == 1);
    LS_TRY(ls_data_parallel_gather(sharded, true));
    for (int i = 0; i < ls_module_parameter_count(whole);
         i++) { /* gradients of two passes are added in a different order */
        LS_CHECK(ls_allclose(ls_module_parameter(whole, i), ls_module_parameter(sharded, i), 1e-4, 1e-5));
    }
    LS_TRY(ls_data_parallel_gather(sharded, false));
    LS_TRY(ls_data_parallel_check(sharded));
    ls_grad_scaler_free(of_a);
    ls_grad_scaler_free(of_b);
    ls_optimizer_free(a);
    ls_optimizer_free(b);
    ls_module_free(whole);
    ls_module_free(sharded);
    return ls_scope_end(scope);
}

/* Parameters and gradients of which this rank has only a part cannot be read. */
static ls_status test_absent(ls_comm *world) {
    ls_module *module = wrap(world, 3);
    ls_optimizer *optimizer = ls_sgd(module, NULL);
    LS_TRY(backward(module, world, 0));
    if (ls_comm_size(world) > 1) {
        ls_tensor *parameter = ls_module_parameter(module, 0);
        LS_CHECK(ls_size(parameter, 0) == WIDTH);
        ls_scope *scope = ls_scope_begin();
        LS_CHECK(ls_sum(parameter) == NULL && ls_error_status() == LS_ERR_STATE);
        LS_EXPECT_MESSAGE("this rank has only a part (.zero = 3");
        LS_CHECK(ls_data(parameter) == NULL && isnan(ls_at(parameter, (const int64_t[]){0, 0})));
        LS_CHECK(ls_grad(parameter) == NULL);
        LS_EXPECT_MESSAGE("only a part of the gradient");
        LS_CHECK(ls_module_hash(module) == 0 && ls_ema_new(module, 0.9) == NULL);
        const ls_status saved = ls_module_save(module, "zero-never.safetensors", NULL);
        (void)remove("zero-never.safetensors"); /* only a save that should have failed leaves a file */
        LS_CHECK(saved == LS_ERR_STATE);
        LS_CHECK(ls_module_save(module, "zero-no-such-folder/never", NULL) == LS_ERR_STATE); /* creates no file */
        LS_CHECK(ls_scope_end(scope) == LS_ERR_STATE);
        LS_TRY(ls_data_parallel_gather(module, true));
        LS_CHECK(ls_module_hash(module) != 0);
        LS_TRY(ls_optimizer_step(optimizer));
        LS_TRY(ls_data_parallel_check(module)); /* the step exchanged all parameters, so all of them are checked */
        LS_TRY(ls_data_parallel_gather(module, false));
    }
    ls_optimizer_free(optimizer);
    ls_module_free(module);
    return LS_OK;
}

static ls_status never_called(ls_tensor *leaf, void *user) {
    (void)leaf, (void)user;
    return LS_OK;
}

static ls_status test_refused(ls_comm *world) {
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    LS_CHECK(ls_data_parallel(make(), world, &(ls_data_parallel_options){.zero = 3}) == NULL);
    LS_EXPECT_MESSAGE("call ls_recompute for the blocks of the model");
    ls_module *module = wrap(world, 2);
    LS_TRY(ls_add_grad_hook(ls_module_parameter(module, 0), never_called, NULL));
    ls_scope *scope = ls_scope_begin();
    LS_CHECK(backward(module, world, 0) != LS_OK);
    LS_EXPECT_MESSAGE("gradient hook");
    LS_CHECK(ls_scope_end(scope) != LS_OK);
    ls_module_free(module);
    return LS_OK;
}

/* A training run whose step fails, and its state before this step. */
typedef struct failing {
    ls_module *module;
    ls_optimizer *optimizer;
    ls_named state[MOST];
    int count;
} failing;

static ls_status begin_failing(failing *f, ls_comm *world, int zero) {
    f->module = wrap(world, zero);
    f->optimizer = ls_adam(f->module, NULL);
    LS_TRY(backward(f->module, world, 0));
    LS_TRY(ls_optimizer_step(f->optimizer));
    return copy_state(f->optimizer, f->state, &f->count);
}

/* After the saved state is loaded, a step succeeds. */
static ls_status end_failing(failing *f, ls_comm *world) {
    LS_TRY(ls_optimizer_set_state(f->optimizer, f->state, f->count));
    LS_TRY(backward(f->module, world, 1));
    LS_TRY(ls_optimizer_step(f->optimizer));
    LS_TRY(ls_data_parallel_check(f->module));
    free_names(f->state, f->count);
    ls_optimizer_free(f->optimizer);
    ls_module_free(f->module);
    return LS_OK;
}

/* Rank 0 fails before its first unit, so the others fail in this unit. Until a state is loaded, no step succeeds. */
static ls_status test_fault(ls_comm *world) {
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    failing f;
    LS_TRY(begin_failing(&f, world, 3));
    for (int i = 0; i < 2; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = ls_ones(LS_SHAPE(2, ls_comm_rank(world) == 0 && i == 0 ? 1 : INPUTS), LS_F32);
        ls_tensor *output = ls_forward(f.module, x);
        LS_CHECK(output == NULL);
        LS_CHECK(ls_backward(output) != LS_OK);
        (void)ls_scope_end(scope);
    }
    LS_CHECK(ls_optimizer_step(f.optimizer) != LS_OK);
    return end_failing(&f, world);
}

/* ---- wrong uses -------------------------------------------------------------------------------------------------- */

static ls_status test_order(ls_comm *world) {
    ls_module *model = make();
    ls_optimizer *early = ls_adam(model, NULL);
    ls_module *module = ls_data_parallel(model, world, &(ls_data_parallel_options){.zero = 1});
    LS_TRY(backward(module, world, 0));
    if (ls_comm_size(world) == 1) {
        LS_TRY(ls_optimizer_step(early));
    } else {
        LS_CHECK(ls_optimizer_step(early) == LS_ERR_STATE);
        LS_EXPECT_MESSAGE("create the optimizer after ls_data_parallel");
        LS_CHECK(ls_lbfgs(module, NULL) == NULL && ls_error_status() == LS_ERR_UNSUPPORTED);
        LS_EXPECT_MESSAGE("omit .zero");
        LS_CHECK(ls_conjugate_gradient(module, NULL) == NULL && ls_error_status() == LS_ERR_UNSUPPORTED);
    }
    ls_optimizer_free(early);
    ls_module_free(module);
    return LS_OK;
}

static ls_status test_no_sync(ls_comm *world) {
    ls_module *module = wrap(world, 1);
    ls_optimizer *optimizer = ls_adam(module, NULL);
    LS_TRY(ls_data_parallel_no_sync(module, true));
    LS_TRY(backward(module, world, 0));
    if (ls_comm_size(world) > 1) {
        LS_CHECK(ls_optimizer_step(optimizer) == LS_ERR_STATE);
        LS_EXPECT_MESSAGE("not averaged yet");
    }
    LS_TRY(ls_data_parallel_no_sync(module, false));
    LS_TRY(backward(module, world, 1));
    LS_TRY(ls_optimizer_step(optimizer));
    LS_TRY(ls_data_parallel_check(module));
    if (ls_comm_size(world) > 1) { /* parameters were already sharded by element for Adam */
        LS_CHECK(ls_lamb(module, NULL) == NULL && ls_error_status() == LS_ERR_UNSUPPORTED);
        LS_EXPECT_MESSAGE("create this optimizer first");
    }
    ls_optimizer_free(optimizer);
    ls_module_free(module);
    return LS_OK;
}

static ls_status test_options(ls_comm *world) {
    LS_CHECK(wrap(world, 4) == NULL && ls_error_status() == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE(".zero is 4");
    if (ls_comm_size(world) > 1) {
        LS_CHECK(wrap(world, ls_comm_rank(world) == 0) == NULL && ls_error_status() == LS_ERR_MISMATCH);
        LS_EXPECT_MESSAGE(ls_comm_rank(world) == 0 ? ".zero = 1" : ".zero = 0");
    }
    return LS_OK;
}

/* Rank 0 moves a parameter to different memory: the step fails there, and therefore on all ranks. */
static ls_status test_failure(ls_comm *world) {
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    failing f;
    LS_TRY(begin_failing(&f, world, 1));
    const bool first = ls_comm_rank(world) == 0;
    ls_sharding **own = &ls_module_parameter(f.module, 0)->leaf->sharding, *kept = *own;
    *own = first ? NULL : kept;
    LS_CHECK(ls_optimizer_step(f.optimizer) == (first ? LS_ERR_STATE : LS_ERR_MISMATCH));
    if (!first) {
        LS_EXPECT_MESSAGE("rank 0 failed");
    }
    *own = kept;
    LS_CHECK(ls_optimizer_step(f.optimizer) == LS_ERR_STATE);
    LS_EXPECT_MESSAGE("load a checkpoint");
    LS_TRY(ls_sync_parameters(f.module, world, 0));
    return end_failing(&f, world);
}

/* Stages 2 and 3 support only models on the CPU. */
static bool is_on_host(void) {
    ls_scope *scope = ls_scope_begin();
    const ls_tensor *tensor = ls_ones(LS_SHAPE(1), LS_F32);
    const bool host = tensor != NULL && ls_tensor_device(tensor)->is_host;
    return ls_scope_end(scope) == LS_OK && host;
}

ls_status rank_test(ls_comm *world) {
    const int highest = is_on_host() ? 3 : 1;
    for (int zero = 1; zero <= highest; zero++) {
        for (int kind = 0; kind < OPTIMIZERS_OF_ONE_PASS; kind++) {
            for (int uneven = 0; uneven < 2; uneven++) {
                overlaps = (kind + uneven) % 2 == 0;
                const ls_status status = compare(kind, zero, uneven != 0, world);
                if (status != LS_OK) {
                    return ls_fail(status, ".zero = %d, %s, %s, overlap %d: %s", zero, optimizer_names[kind],
                                   uneven != 0 ? "uneven" : "even", overlaps, ls_error_message());
                }
            }
        }
    }
    for (int zero = 2; zero <= highest; zero++) {
        for (int on = 0; on < 2; on++) {
            overlaps = on != 0;
            LS_TRY(test_uneven(zero, world));
        }
    }
    ls_scope *scope = ls_scope_begin();
    if (highest < 2) {
        LS_CHECK(wrap(world, 3) == NULL && ls_error_status() == LS_ERR_UNSUPPORTED);
        LS_EXPECT_MESSAGE("use .zero = 1");
    } else {
        LS_TRY(test_absent(world));
        LS_TRY(test_refused(world));
        for (int on = 0; on < 2; on++) {
            overlaps = on != 0;
            LS_TRY(test_fault(world));
        }
    }
    LS_TRY(test_groups(world));
    LS_TRY(test_order(world));
    LS_TRY(test_no_sync(world));
    LS_TRY(test_options(world));
    LS_TRY(test_failure(world));
    return ls_scope_end(scope);
}
