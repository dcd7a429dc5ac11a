/*
 * Sharded state of models of any size: each element has one owner, even if some ranks own no element. Changes to
 * parameters before the first step persist. After a failed step, training continues once a state is loaded.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "autograd/op.h"

/* A few blocks of 4,096 elements per rank, sizes just below and above a block, and ranks without elements. */
static const int64_t sizes[] = {1, 100, 4095, 4096, 4097, 5414, 5478, 8191, 12289, 30000};
enum { SIZES = sizeof sizes / sizeof *sizes, STEPS = 3 };

static ls_module *make(ls_comm *world, int zero, int64_t size) {
    ls_seed(3);
    ls_module *model =
        ls_sequential(ls_nn_linear_with(size, 1, &(ls_linear_options){.no_bias = true}), ls_nn_linear(1, 2));
    return ls_data_parallel(model, world, &(ls_data_parallel_options){.zero = zero});
}

static ls_status backward(ls_module *module, const ls_comm *world, int step, int64_t size) {
    ls_seed(50 + (uint64_t)(10 * step + ls_comm_rank(world)));
    return ls_backward(ls_mean(ls_square(ls_forward(module, ls_randn(LS_SHAPE(2, size), LS_F32)))));
}

static ls_status train(ls_comm *world, int zero, int64_t size, uint64_t *hash) {
    ls_scope *scope = ls_scope_begin();
    ls_module *module = make(world, zero, size);
    ls_optimizer *optimizer = ls_sgd(module, &(ls_sgd_options){.learning_rate = 0.1, .momentum = 0.9});
    LS_CHECK(optimizer != NULL);
    for (int step = 0; step < STEPS; step++) {
        double norm;
        ls_optimizer_zero_grad(optimizer);
        LS_TRY(backward(module, world, step, size));
        LS_TRY(ls_clip_grad_norm(module, 0.5, &norm));
        LS_TRY(ls_optimizer_step(optimizer));
    }
    LS_TRY(ls_data_parallel_gather(module, true));
    *hash = ls_module_hash(module);
    LS_TRY(ls_data_parallel_gather(module, false));
    ls_optimizer_free(optimizer);
    ls_module_free(module);
    return ls_scope_end(scope);
}

static ls_status test_sizes(ls_comm *world) {
    for (int i = 0; i < SIZES; i++) {
        uint64_t whole = 0, sharded = 0;
        LS_TRY(train(world, 0, sizes[i], &whole));
        for (int zero = 1; zero <= 3; zero++) {
            LS_TRY(train(world, zero, sizes[i], &sharded));
            if (sharded != whole) {
                return ls_fail(LS_ERR_INTERNAL, "%lld elements, .zero = %d: other parameters", (long long)sizes[i],
                               zero);
            }
        }
    }
    return LS_OK;
}

/* Changes parameters as if a model had been loaded, before any optimizer or pass has sharded the parameters. */
static ls_status test_early_change(ls_comm *world) {
    ls_module *module = make(world, 3, 30000);
    ls_tensor *parameter = ls_module_parameter(module, 0);
    LS_TRY(ls_data_parallel_gather(module, true));
    const bool before = ls_no_grad(true);
    LS_TRY(ls_fill(parameter, 0.25));
    (void)ls_no_grad(before);
    LS_TRY(ls_data_parallel_gather(module, false));
    LS_TRY(backward(module, world, 0, 30000)); /* divides them */
    LS_TRY(ls_data_parallel_gather(module, true));
    LS_CHECK(ls_item(ls_min(parameter)) == 0.25 && ls_item(ls_max(parameter)) == 0.25);
    LS_TRY(ls_data_parallel_gather(module, false));
    ls_module_free(module);
    return LS_OK;
}

/* The only state of plain SGD is the number of steps. Its step fails on rank 0 as if a parameter did not belong to
 * the module. */
static ls_status test_recovery(ls_comm *world, int zero) {
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    ls_module *module = make(world, zero, 30000);
    ls_optimizer *optimizer = ls_sgd(module, &(ls_sgd_options){.learning_rate = 0.1});
    LS_TRY(backward(module, world, 0, 30000));
    const ls_named *lent;
    ls_named state[8];
    int count = 0;
    LS_TRY(ls_optimizer_state(optimizer, &lent, &count));
    for (int i = 0; i < count; i++) {
        static const char *const names[] = {"param_groups.0.lr", "0.weight.step", "1.weight.step", "1.bias.step"};
        LS_CHECK(count == 4 && strcmp(lent[i].name, names[i]) == 0);
        state[i] = (ls_named){names[i], ls_clone(lent[i].tensor)};
    }
    ls_sharding **own = &ls_module_parameter(module, 0)->leaf->sharding, *kept = *own;
    *own = ls_comm_rank(world) == 0 ? NULL : kept;
    LS_CHECK(ls_optimizer_step(optimizer) != LS_OK);
    *own = kept;
    LS_CHECK(ls_optimizer_step(optimizer) == LS_ERR_STATE);
    LS_EXPECT_MESSAGE("load a checkpoint");
    LS_TRY(ls_data_parallel_gather(module, true)); /* a trial first loads the model */
    LS_TRY(ls_sync_parameters(module, world, 0));
    LS_TRY(ls_data_parallel_gather(module, false));
    LS_TRY(ls_optimizer_set_state(optimizer, state, count));
    LS_TRY(ls_optimizer_step(optimizer));
    ls_optimizer_free(optimizer);
    ls_module_free(module);
    return LS_OK;
}

/* With options that only some ranks have, the ranks would update their shards differently. */
static ls_status test_other_options(ls_comm *world) {
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    ls_module *module = make(world, 1, 100);
    ls_optimizer *optimizer = ls_adam(module, &(ls_adam_options){.beta2 = ls_comm_rank(world) == 0 ? 0.99 : 0.9});
    LS_TRY(backward(module, world, 0, 100));
    LS_CHECK(ls_optimizer_step(optimizer) == LS_ERR_MISMATCH);
    LS_EXPECT_MESSAGE("different optimizers, options");
    ls_optimizer_free(optimizer);
    ls_module_free(module);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(test_sizes(world));
    ls_scope *scope = ls_scope_begin();
    LS_TRY(test_early_change(world));
    for (int zero = 1; zero <= 3; zero++) {
        LS_TRY(test_recovery(world, zero));
    }
    LS_TRY(test_other_options(world));
    return ls_scope_end(scope);
}
