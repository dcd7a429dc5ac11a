/*
 * Outer steps (ls_outer): calls that are refused between two outer steps, wrong arguments, loads, and ranks that are
 * out of step. All ranks fail, and keep their parameters.
 *
 * ranks: 1 2 3 4 5
 * sanitized: 2 3
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <stdio.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "parallel/parallel.h"
#include "tests/support/outer.h"

static ls_status wrong_calls(ls_comm *world) {
    ls_module *model = outer_model(), *empty = ls_sequential(ls_nn_tanh(), ls_nn_tanh());
    LS_CHECK(ls_outer_new(NULL, world, NULL) == NULL && ls_outer_new(model, NULL, NULL) == NULL);
    LS_CHECK(ls_outer_new(model, world, &(ls_outer_options){.steps = -1}) == NULL);
    LS_EXPECT_MESSAGE(".steps is -1");
    LS_CHECK(ls_outer_new(model, world, &(ls_outer_options){.learning_rate = LS_ZERO}) == NULL);
    LS_EXPECT_MESSAGE("must be above 0");
    LS_CHECK(ls_outer_new(model, world, &(ls_outer_options){.momentum = 1}) == NULL);
    LS_EXPECT_MESSAGE("momentum");
    LS_CHECK(ls_outer_new(empty, world, NULL) == NULL);
    LS_EXPECT_MESSAGE("no parameters");
    LS_CHECK(ls_outer_step(NULL) == LS_ERR_ARGUMENT && ls_outer_sync(NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_outer_optimizer(NULL) == NULL);
    ls_outer_free(NULL);
    for (int wrong = -1; wrong <= 6 && ls_comm_size(world) > 1; wrong += 7) { /* -1 would fail on any rank */
        const ls_outer_options options = {.steps = ls_comm_rank(world) == 1 ? wrong : 5};
        LS_CHECK(ls_outer_new(model, world, &options) == NULL && ls_error_status() == LS_ERR_MISMATCH);
        LS_EXPECT_MESSAGE("the options differ between the ranks");
    }
    ls_module *sharded = ls_nn_column_parallel(world, OUTER_INPUTS, 2 * ls_comm_size(world), NULL);
    LS_CHECK(ls_outer_new(sharded, world, NULL) == NULL && ls_error_status() == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE("is sharded over the ranks of the communicator");
    ls_module *zero = ls_data_parallel(outer_model(), world, &(ls_data_parallel_options){.zero = 1});
    LS_TRY(ls_data_parallel_no_sync(zero, true));
    if (ls_comm_size(world) > 1) {
        LS_CHECK(ls_outer_new(zero, world, NULL) == NULL && ls_error_status() == LS_ERR_UNSUPPORTED);
        LS_EXPECT_MESSAGE("omit .zero");
    }
    ls_module_free(zero);
    ls_module_free(sharded);
    ls_module_free(empty);
    ls_module_free(model);
    return LS_OK;
}

/* A failure on the last rank alone, or on all ranks: every rank fails, and keeps its parameters. */
static ls_status failures_before_the_copy(ls_comm *world) {
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    for (int halves = 0; halves <= 1; halves++) {
        ls_seed((uint64_t)ls_comm_rank(world));
        ls_module *model =
            ls_nn_linear_with(OUTER_INPUTS, 1, &(ls_linear_options){.dtype = halves == 1 ? LS_BF16 : LS_F32});
        const uint64_t before = ls_module_hash(model);
        ls_tensor *alias = last && halves == 0 ? ls_keep(ls_alias(ls_module_parameter(model, 0))) : NULL;
        LS_CHECK(ls_outer_new(model, world, NULL) == NULL);
        LS_CHECK(ls_error_status() == (last || halves == 1 ? LS_ERR_UNSUPPORTED : LS_ERR_MISMATCH));
        LS_EXPECT_MESSAGE(halves == 1 ? "bf16" : "alias");
        ls_release(alias);
        LS_CHECK(ls_module_hash(model) == before);
        ls_module_free(model);
    }
    return ls_comm_barrier(world, NULL);
}

static ls_status refused_between(ls_comm *world) {
    ls_module *model = outer_model();
    ls_outer *outer = ls_outer_new(model, world, &(ls_outer_options){.steps = 2});
    LS_CHECK(outer != NULL);
    LS_TRY(ls_outer_step(outer));
    if (ls_comm_size(world) > 1) {
        LS_CHECK(ls_module_hash(model) == 0 && ls_error_status() == LS_ERR_STATE);
        LS_EXPECT_MESSAGE("ls_module_hash: the ranks' parameters differ between two outer steps");
        LS_CHECK(ls_module_save(model, "/dev/null/never.safetensors", NULL) == LS_ERR_STATE);
        LS_EXPECT_MESSAGE("ls_module_save: the ranks' parameters differ between two outer steps");
        LS_CHECK(ls_module_save(ls_module_child(model, 0), "/dev/null/never.safetensors", NULL) == LS_ERR_STATE);
    }
    LS_TRY(ls_outer_sync(outer));
    LS_CHECK(ls_module_hash(model) != 0);
    LS_TRY(ls_outer_step(outer));
    ls_outer_free(outer); /* the replicas are then independent models */
    LS_CHECK(ls_module_hash(model) != 0);
    ls_module_free(model);
    return LS_OK;
}

/* A module that contains the model is refused too. With two outer optimizers, both must have run their outer steps. */
static ls_status refused_around_the_model(ls_comm *world) {
    const ls_status expected = ls_comm_size(world) > 1 ? LS_ERR_STATE : LS_OK;
    ls_module *model = outer_model();
    ls_module_retain(model);
    ls_module *wrap = ls_sequential(model, ls_nn_tanh());
    ls_outer *outers[2];
    for (int i = 0; i < 2; i++) {
        outers[i] = ls_outer_new(model, world, &(ls_outer_options){.steps = 9});
        LS_CHECK(wrap != NULL && outers[i] != NULL);
    }
    for (int i = 0; i < 2; i++) {
        LS_TRY(ls_outer_step(outers[i]));
    }
    LS_CHECK((ls_module_hash(wrap) == 0) == (expected != LS_OK));
    LS_TRY(ls_outer_sync(outers[0]));
    LS_CHECK((ls_module_hash(model) == 0) == (expected != LS_OK));
    LS_CHECK((ls_module_hash(wrap) == 0) == (expected != LS_OK));
    LS_TRY(ls_outer_sync(outers[1]));
    LS_CHECK(ls_module_hash(model) != 0 && ls_module_hash(wrap) != 0);
    LS_TRY(ls_outer_step(outers[0]));
    ls_outer_free(outers[0]);
    LS_CHECK(ls_module_hash(wrap) != 0);
    ls_outer_free(outers[1]);
    ls_module_free(wrap);
    ls_module_free(model);
    return LS_OK;
}

/* A layer stays refused until the outer step of each model that contains it, even if it was added to one of the models
 * between two outer steps. */
static ls_status refused_in_two_models(ls_comm *world) {
    ls_module *layer = ls_module_retain(ls_nn_linear(OUTER_INPUTS, 1)), *relu = ls_module_retain(ls_nn_relu());
    ls_module *models[] = {ls_sequential(layer), outer_model()};
    ls_outer *outers[2];
    for (int i = 0; i < 2; i++) {
        outers[i] = ls_outer_new(models[i], world, &(ls_outer_options){.steps = 9});
        LS_CHECK(outers[i] != NULL);
        LS_TRY(ls_outer_step(outers[i]));
    }
    LS_CHECK(ls_module_add_child(models[1], "layer", layer) != NULL);
    LS_CHECK(ls_module_add_child(models[1], "relu", relu) != NULL);
    const bool several = ls_comm_size(world) > 1;
    LS_CHECK((ls_module_hash(relu) == 0) == several);
    ls_outer_free(outers[1]);
    LS_CHECK(ls_module_hash(relu) != 0);
    LS_CHECK((ls_module_hash(layer) == 0) == several && (ls_module_hash(models[1]) == 0) == several);
    ls_outer_free(outers[0]);
    LS_CHECK(ls_module_hash(layer) != 0 && ls_module_hash(models[1]) != 0);
    ls_module_free(models[0]);
    ls_module_free(models[1]);
    ls_module_free(layer);
    ls_module_free(relu);
    return LS_OK;
}

/* The last rank takes an additional step, or has frozen a parameter. The communicator stays usable. */
static ls_status ranks_out_of_step(ls_comm *world, bool freezes) {
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    ls_module *model = outer_model();
    ls_outer *outer = ls_outer_new(model, world, &(ls_outer_options){.steps = 9});
    LS_CHECK(outer != NULL);
    LS_TRY(ls_outer_step(outer));
    if (last) {
        LS_TRY(freezes ? ls_module_set_requires_grad(ls_module_child(model, 2), false) : ls_outer_step(outer));
    }
    if (ls_comm_size(world) > 1) {
        LS_CHECK(ls_outer_sync(outer) == LS_ERR_MISMATCH);
        LS_EXPECT_MESSAGE("the ranks have taken different numbers of training steps");
    }
    ls_outer_free(outer);
    ls_module_free(model);
    return ls_comm_barrier(world, NULL);
}

/* A layer that is added later would not be part of the outer steps, so every call is refused. */
static ls_status layer_added_later(ls_comm *world, bool to_model) {
    ls_module *model = outer_model();
    ls_outer *outer = ls_outer_new(model, world, NULL);
    LS_CHECK(outer != NULL);
    ls_module *layer = ls_nn_linear_with(64, 64, &(ls_linear_options){.dtype = LS_F64});
    LS_CHECK(ls_module_add_child(to_model ? model : ls_module_child(model, 0), "more", layer) != NULL);
    for (int i = 0; i < 2; i++) {
        LS_CHECK(ls_outer_step(outer) == LS_ERR_STATE);
        LS_EXPECT_MESSAGE("the model's parameters have changed since ls_outer_new: add all layers first");
    }
    ls_outer_free(outer);
    ls_module_free(model);
    return LS_OK;
}

/* After ls_module_load, on all ranks or on rank 0 only, an outer step would mix the loaded weights with the parameters
 * from before. It fails on all ranks. Local SGD only averages. */
static ls_status loads_later(ls_comm *world, bool averages, bool syncs, bool alone) {
    const ls_outer_options options = {
        .steps = 2, .learning_rate = averages ? 1 : 0, .momentum = averages ? LS_ZERO : 0};
    ls_module *model = outer_model();
    char path[64];
    snprintf(path, sizeof path, "/tmp/lockstep-outer-%d-%d", (int)getpid(), ls_comm_rank(world));
    LS_TRY(ls_module_save(model, path, NULL));
    for (int steps = 0; steps <= 2; steps++) { /* after ls_outer_new, between outer steps, after an outer step */
        ls_outer *outer = ls_outer_new(model, world, &options);
        for (int i = 0; i < steps; i++) {
            LS_TRY(ls_outer_step(outer));
        }
        LS_TRY(!alone || ls_comm_rank(world) == 0 ? ls_module_load(model, path) : LS_OK);
        LS_TRY(alone ? ls_sync_parameters(model, world, 0) : LS_OK);
        LS_TRY(!syncs && steps % 2 == 0 ? ls_outer_step(outer) : LS_OK); /* only counts */
        const ls_status status = syncs ? ls_outer_sync(outer) : ls_outer_step(outer);
        LS_CHECK(status == (averages ? LS_OK : LS_ERR_STATE));
        if (!averages) {
            LS_EXPECT_MESSAGE("ls_module_load has changed the parameters");
        }
        ls_outer_free(outer);
        outer = ls_outer_new(model, world, &options);
        LS_TRY(ls_outer_step(outer));
        LS_TRY(ls_outer_sync(outer));
        ls_outer_free(outer);
    }
    ls_module_free(model);
    LS_CHECK(remove(path) == 0);
    return LS_OK;
}

static ls_status freed_before(ls_comm *world) {
    ls_module *model = outer_model();
    ls_outer *outer = ls_outer_new(model, world, NULL);
    LS_CHECK(outer != NULL);
    ls_outer_free(outer);
    LS_CHECK(ls_outer_step(outer) == LS_ERR_STATE);
    LS_EXPECT_MESSAGE("ls_outer_step: the outer optimizer has already been freed (ls_outer_free)");
    ls_outer_free(outer);
    ls_module_free(model);
    return LS_OK;
}

/* The parameters after the last outer step are counted as optimizer state. */
static ls_status anchors_are_counted(ls_comm *world) {
    ls_memory before, after;
    ls_module *model = outer_model();
    const int64_t elements = OUTER_INPUTS * OUTER_HIDDEN + OUTER_HIDDEN + OUTER_HIDDEN + 1;
    LS_TRY(ls_memory_stats(&before));
    ls_outer *outer = ls_outer_new(model, world, NULL);
    LS_CHECK(outer != NULL);
    LS_TRY(ls_memory_stats(&after));
    LS_CHECK(after.bytes[LS_MEMORY_OPTIMIZER] - before.bytes[LS_MEMORY_OPTIMIZER] >= 8 * elements);
    LS_CHECK(after.bytes[LS_MEMORY_ACTIVATIONS] == before.bytes[LS_MEMORY_ACTIVATIONS]);
    ls_outer_free(outer);
    ls_module_free(model);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(wrong_calls(world));
    LS_TRY(failures_before_the_copy(world));
    LS_TRY(refused_between(world));
    LS_TRY(refused_around_the_model(world));
    LS_TRY(refused_in_two_models(world));
    LS_TRY(ranks_out_of_step(world, false));
    LS_TRY(ranks_out_of_step(world, true));
    LS_TRY(layer_added_later(world, false));
    LS_TRY(layer_added_later(world, true));
    LS_TRY(freed_before(world));
    for (int i = 0; i < 8; i++) {
        LS_TRY(loads_later(world, i % 2 == 1, i / 2 % 2 == 1, i < 4));
    }
    return anchors_are_counted(world);
}
