/*
 * Stages 2 and 3 of .zero with .overlap: parameters are prefetched one unit ahead, and gradients are averaged during
 * the next unit's backward pass. Parameters are bit-identical to training without overlap, even if the order of the
 * modules changes, if a module runs twice, and after evaluations, loads and gathers between steps. A rank that fails
 * anywhere in a step fails the step on all ranks soon, and training continues after a load.
 *
 * ranks: 2 3 4
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <stdio.h>

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "parallel/data_parallel.h"
#include "parallel/units.h"
#include "tensor/scope.h"

enum { WIDTH = 40, BLOCKS = 4, SAMPLES = 3, SEED = 11 };

/* ---- a model whose blocks run in an order that the test chooses -------------------------------------------------- */

typedef struct blocks {
    ls_module *block[BLOCKS];
} blocks;

static _Thread_local const char *order = "0123"; /* the blocks to run */
static _Thread_local int fails_before = -1;      /* the position in the order at which the forward pass fails */
static _Thread_local int fails_in = -1;          /* the position in the order at which the backward pass fails */
static _Thread_local ls_comm
    *reduces; /* the model communicates on it before its third block; NULL if it does not communicate */

static ls_status pass_on(ls_custom_call *call) {
    call->outputs[0] = ls_clone(call->inputs[0]);
    return LS_OK;
}

static ls_status refuse(ls_custom_call *call) {
    (void)call;
    ls_tensor *wrong = ls_matmul(ls_ones(LS_SHAPE(2, 2), LS_F32), ls_ones(LS_SHAPE(3, 3), LS_F32));
    return wrong == NULL ? ls_error_status() : LS_OK;
}

static ls_tensor *run_blocks(ls_module *self, ls_tensor *input) {
    const blocks *b = ls_module_state(self);
    ls_tensor *x = input;
    for (int i = 0; order[i] != '\0'; i++) {
        if (i == fails_before) {
            return ls_matmul(x, ls_ones(LS_SHAPE(WIDTH + 1, 1), LS_F32));
        }
        if (i == 2 && reduces != NULL) {
            x = ls_add(x, ls_allreduce(reduces, x, LS_AVG));
        }
        if (i == fails_in) {
            static const ls_custom_op op = {
                .name = "refuse", .forward = pass_on, .backward = refuse, .by_sample = true};
            x = ls_custom(&op, (ls_tensor *[]){x}, 1, NULL, NULL);
        }
        x = ls_add(x, ls_tanh(ls_forward(b->block[order[i] - '0'], x)));
    }
    return x;
}

static _Thread_local int plain_block = -1; /* the block without parameters; -1: none */

static ls_module *make(void) {
    static const ls_module_type type = {.name = "Blocks", .state_size = sizeof(blocks), .forward = run_blocks};
    static const char *const names[BLOCKS] = {"a", "b", "c", "d"};
    ls_seed(SEED);
    ls_module *module = ls_module_new(&type);
    blocks *b = ls_module_state(module);
    for (int i = 0; i < BLOCKS; i++) {
        ls_module *block = i == plain_block ? ls_nn_relu() : ls_nn_linear(WIDTH, WIDTH);
        b->block[i] = ls_module_add_child(module, names[i], block);
    }
    return ls_module_finish(module);
}

typedef struct run {
    ls_module *module;
    ls_optimizer *optimizer;
    ls_comm *world;
} run;

static ls_status begin(run *r, ls_comm *world, int zero, bool overlaps, ls_dtype wire) {
    ls_module *model = make();
    const blocks *b = ls_module_state(model);
    for (int i = 0; i < BLOCKS; i++) {
        LS_TRY(ls_recompute(b->block[i], true));
    }
    const ls_data_parallel_options options = {
        .zero = zero, .overlap = overlaps ? LS_OVERLAP_ON : LS_OVERLAP_OFF, .reduce_dtype = wire};
    r->world = world;
    r->module = ls_data_parallel(model, world, &options);
    r->optimizer = ls_adam(r->module, NULL);
    return r->optimizer != NULL ? LS_OK : ls_error_status();
}

static void end(run *r) {
    ls_optimizer_free(r->optimizer);
    ls_module_free(r->module);
}

static ls_tensor *input_of(const run *r, int step) {
    ls_seed(100 + (uint64_t)(10 * step + ls_comm_rank(r->world)));
    return ls_randn(LS_SHAPE(SAMPLES + (reduces == NULL ? ls_comm_rank(r->world) : 0), WIDTH), LS_F32);
}

static ls_status backward(const run *r, int step) {
    return ls_backward(ls_mean(ls_square(ls_forward(r->module, input_of(r, step)))));
}

static ls_status train(const run *r, int step, const char *blocks_to_run) {
    ls_scope *scope = ls_scope_begin();
    order = blocks_to_run;
    ls_optimizer_zero_grad(r->optimizer);
    ls_status status = backward(r, step);
    status = status == LS_OK ? ls_optimizer_step(r->optimizer) : status;
    return ls_scope_end_after(scope, status);
}

static ls_status evaluate(const run *r, const char *blocks_to_run) {
    ls_scope *scope = ls_scope_begin();
    const bool before = ls_no_grad(true);
    order = blocks_to_run;
    LS_CHECK(ls_forward(r->module, input_of(r, 50)) != NULL);
    (void)ls_no_grad(before);
    return ls_scope_end(scope);
}

/* ---- equal bits -------------------------------------------------------------------------------------------------- */

static const ls_shards *shards_of(const run *r) {
    return ((const ls_data_parallel_state *)ls_module_state(r->module))->shards;
}

/* Trains with changing orders, and does between the steps what ends or wastes exchanges. */
static ls_status train_in_all_ways(const run *r) {
    static const char *const orders[] = {"0123", "0123", "3210", "0123", "01", "2", "0011223", "0101", "0123", "0123"};
    int step = 0;
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        LS_TRY(train(r, step++, orders[i]));
        if (i % 3 == 0) { /* an evaluation teaches that the last block is followed by the first */
            LS_TRY(evaluate(r, orders[i]));
            LS_TRY(evaluate(r, orders[i]));
        }
        if (i == 4) {
            LS_TRY(ls_data_parallel_gather(r->module, true));
            LS_TRY(evaluate(r, "0123"));
            LS_TRY(ls_data_parallel_gather(r->module, false));
        }
    }
    ls_scope *scope = ls_scope_begin();
    order = "0123";
    ls_optimizer_zero_grad(r->optimizer);
    LS_TRY(backward(r, step));
    LS_TRY(backward(r, step + 1)); /* adds to the gradients of the first pass */
    LS_TRY(ls_optimizer_step(r->optimizer));
    return ls_scope_end(scope);
}

static ls_status hash_of(const run *r, uint64_t *hash) {
    LS_TRY(ls_data_parallel_check(r->module));
    LS_TRY(ls_data_parallel_gather(r->module, true));
    *hash = ls_module_hash(r->module);
    return ls_data_parallel_gather(r->module, false);
}

static ls_status test_bits(ls_comm *world, int zero, ls_dtype wire) {
    uint64_t hash[2];
    for (int overlaps = 0; overlaps < 2; overlaps++) {
        run r;
        LS_TRY(begin(&r, world, zero, overlaps != 0, wire));
        LS_CHECK((shards_of(&r)->private_comm != NULL) == (overlaps != 0));
        LS_TRY(train_in_all_ways(&r));
        LS_TRY(hash_of(&r, &hash[overlaps]));
        end(&r);
    }
    LS_CHECK(hash[0] != 0 && hash[0] == hash[1]);
    return LS_OK;
}

/* ---- exchanges in flight ------------------------------------------------------------------------------------------
 */

static _Thread_local const ls_shards *watched;
static _Thread_local int seen_prefetched, seen_averaging;

static ls_status look(ls_custom_call *call) {
    seen_prefetched += watched->prefetched != NULL;
    seen_averaging += watched->averaging != NULL;
    call->input_gradients[0] = ls_clone(call->output_gradients[0]);
    return LS_OK;
}

static ls_tensor *run_watched(ls_module *self, ls_tensor *input) {
    static const ls_custom_op op = {.name = "look", .forward = pass_on, .backward = look, .by_sample = true};
    const blocks *b = ls_module_state(self);
    ls_tensor *x = input;
    for (int i = 0; i < BLOCKS; i++) {
        x = ls_tanh(ls_forward(b->block[i], x));
        seen_prefetched += watched != NULL && watched->prefetched != NULL;
        x = ls_custom(&op, (ls_tensor *[]){x}, 1, NULL, NULL);
    }
    return x;
}

/* From the second step on, the next block is in flight while a block computes, and gradients of the block before. */
static ls_status test_flight(ls_comm *world) {
    static const ls_module_type type = {.name = "Watched", .state_size = sizeof(blocks), .forward = run_watched};
    ls_module *model = ls_module_new(&type);
    blocks *b = ls_module_state(model);
    ls_seed(SEED);
    for (int i = 0; i < BLOCKS; i++) {
        b->block[i] = ls_module_add_child(model, (const char *[]){"a", "b", "c", "d"}[i], ls_nn_linear(WIDTH, WIDTH));
        LS_TRY(ls_recompute(b->block[i], true));
    }
    run r = {.world = world};
    r.module = ls_data_parallel(ls_module_finish(model), world,
                                &(ls_data_parallel_options){.zero = 3, .overlap = LS_OVERLAP_ON});
    r.optimizer = ls_adam(r.module, NULL);
    LS_CHECK(r.optimizer != NULL);
    for (int step = 0; step < 3; step++) {
        watched = shards_of(&r);
        seen_prefetched = seen_averaging = 0;
        LS_TRY(train(&r, step, "0123"));
        watched = NULL;
        /* forward: after blocks a, b, c; backward: before blocks c, b, a run, three more are in flight */
        LS_CHECK(seen_prefetched == (step == 0 ? 0 : 2 * (BLOCKS - 1)));
        LS_CHECK(seen_averaging == BLOCKS - 1);
        LS_CHECK(shards_of(&r)->prefetched == NULL && shards_of(&r)->averaging == NULL);
    }
    end(&r);
    return LS_OK;
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static ls_status load(const run *r) {
    const ls_named *state;
    int count = 0;
    LS_TRY(ls_optimizer_state(r->optimizer, &state, &count));
    return ls_optimizer_set_state(r->optimizer, state, count);
}

/*
 * The last rank fails at a place of the forward or the backward pass of the third step, which runs the blocks in the
 * order `failing`. Then all ranks fail, and a load repairs. Takes ownership of the run's objects.
 */
static ls_status fail_and_load(run *r, int place, bool forward, const char *failing) {
    const bool last = ls_comm_rank(r->world) == ls_comm_size(r->world) - 1;
    for (int step = 0; step < 2; step++) {
        LS_TRY(train(r, step, "0123"));
    }
    fails_before = last && forward ? place : -1;
    fails_in = last && !forward ? place : -1;
    const ls_status status = train(r, 2, failing);
    fails_before = fails_in = -1;
    LS_CHECK(status == (last ? LS_ERR_SHAPE : LS_ERR_MISMATCH));
    if (!last) {
        char named[64];
        snprintf(named, sizeof named, "rank %d failed: ls_matmul", ls_comm_size(r->world) - 1);
        LS_EXPECT_MESSAGE(named);
    }
    LS_TRY(load(r));
    for (int step = 3; step < 6; step++) {
        LS_TRY(train(r, step, "0123"));
    }
    LS_TRY(ls_data_parallel_check(r->module));
    end(r);
    return LS_OK;
}

static ls_status test_failure(ls_comm *world, int zero, int place, bool forward, bool overlaps) {
    run r;
    LS_TRY(begin(&r, world, zero, overlaps, LS_F32));
    return fail_and_load(&r, place, forward, "0123");
}

/* In the failed step, the ranks predict different units, which the load must clear. */
static ls_status test_order_of_failed_step(ls_comm *world, int place) {
    run r;
    LS_TRY(begin(&r, world, 3, true, LS_F32));
    return fail_and_load(&r, place, false, "0213");
}

/* A unit without parameters does not communicate, so nothing begins there. */
static ls_status test_unit_without_parameters(ls_comm *world, int place) {
    run r;
    plain_block = 1;
    LS_TRY(begin(&r, world, 3, true, LS_F32));
    plain_block = -1;
    return fail_and_load(&r, place, true, "0123");
}

/*
 * All ranks fail in a backward pass that communicates, and continue without a load. The gradients of the failed pass
 * are not added to the gradients of the next pass.
 */
static ls_status test_told(ls_comm *world, int zero) {
    uint64_t hash[2];
    for (int overlaps = 0; overlaps < 2; overlaps++) {
        run r;
        LS_TRY(begin(&r, world, zero, overlaps != 0, LS_F32));
        reduces = world;
        for (int step = 0; step < 5; step++) {
            fails_in = step == 2 ? 2 : -1;
            LS_CHECK((train(&r, step, "0123") == LS_OK) == (step != 2));
            LS_CHECK(shards_of(&r)->averaging == NULL);
        }
        reduces = NULL;
        LS_TRY(hash_of(&r, &hash[overlaps]));
        end(&r);
    }
    LS_CHECK(hash[0] == hash[1]);
    return LS_OK;
}

/* Without the data-parallel module, nothing waits at the end of a pass: the gradients of a unit are averaged when the
 * unit has run. */
static ls_status test_inner_model(ls_comm *world) {
    double norms[2];
    for (int overlaps = 0; overlaps < 2; overlaps++) {
        run r;
        LS_TRY(begin(&r, world, 2, overlaps != 0, LS_F32));
        ls_scope *scope = ls_scope_begin();
        order = "0123";
        LS_TRY(ls_backward(ls_mean(
            ls_square(ls_forward(((ls_data_parallel_state *)ls_module_state(r.module))->model, input_of(&r, 0))))));
        LS_CHECK(shards_of(&r)->averaging == NULL);
        LS_TRY(ls_clip_grad_norm(r.module, 0.01, &norms[overlaps]));
        LS_TRY(ls_scope_end(scope));
        end(&r);
    }
    LS_CHECK(norms[0] == norms[1]);
    return LS_OK;
}

/* A module is freed while parameters are in flight. */
static ls_status test_free(ls_comm *world) {
    run r;
    LS_TRY(begin(&r, world, 3, true, LS_F32));
    LS_TRY(train(&r, 0, "0123"));
    LS_TRY(evaluate(&r, "0123"));
    LS_TRY(evaluate(&r, "0123"));
    LS_TRY(evaluate(&r, "0123"));
    LS_CHECK(shards_of(&r)->prefetched != NULL);
    end(&r);
    return ls_comm_barrier(world, NULL);
}

/* The program adds parameters to a unit after ls_data_parallel, and then frees the module. */
static ls_status test_grown_unit(ls_comm *world) {
    run r;
    LS_TRY(begin(&r, world, 3, true, LS_F32));
    LS_TRY(train(&r, 0, "0123"));
    ls_module *model = ((ls_data_parallel_state *)ls_module_state(r.module))->model;
    ls_module *unit = ((const blocks *)ls_module_state(model))->block[0];
    for (int i = 0; i < 20; i++) {
        char name[16];
        snprintf(name, sizeof name, "more%d", i);
        LS_CHECK(ls_module_add_child(unit, name, ls_nn_linear(2, 2)) != NULL);
    }
    end(&r);
    return ls_comm_barrier(world, NULL);
}

/* The ranks run different blocks. */
static ls_status test_different_blocks(ls_comm *world) {
    run r;
    LS_TRY(begin(&r, world, 3, true, LS_F32));
    LS_TRY(train(&r, 0, "0123"));
    LS_CHECK(train(&r, 1, ls_comm_rank(world) == 0 ? "0123" : "0213") == LS_ERR_MISMATCH);
    end(&r);
    return ls_comm_barrier(world, NULL);
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(test_bits(world, 2, LS_F32));
    LS_TRY(test_bits(world, 3, LS_F32));
    LS_TRY(test_bits(world, 3, LS_BF16));
    LS_TRY(test_flight(world));
    for (int place = 0; place < BLOCKS; place++) {
        LS_TRY(test_failure(world, 3, place, true, true));
        for (int overlaps = 0; overlaps < 2 && place > 0; overlaps++) { /* no gradient reaches the input */
            LS_TRY(test_failure(world, 3, place, false, overlaps != 0));
            LS_TRY(test_failure(world, 2, place, false, overlaps != 0));
        }
    }
    for (int zero = 2; zero <= 3; zero++) {
        LS_TRY(test_told(world, zero));
    }
    for (int place = 1; place < BLOCKS; place++) {
        LS_TRY(test_order_of_failed_step(world, place));
        LS_TRY(test_unit_without_parameters(world, place));
    }
    LS_TRY(test_inner_model(world));
    LS_TRY(test_free(world));
    LS_TRY(test_grown_unit(world));
    return test_different_blocks(world);
}
