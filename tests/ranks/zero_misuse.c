/*
 * Uses of .zero in ls_data_parallel that could silently train wrongly. Each gives the results of training without
 * .zero, or an error on every rank.
 *
 * ranks: 1 2 3
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "formats/named.h"
#include "nn/module.h"

enum { WIDTH = 96, BLOCKS = 6, STEPS = 3, SEED = 7 };

/* ---- the model --------------------------------------------------------------------------------------------------- */

/* Equal blocks, which are recomputed, so that a rank owns several whole blocks. The head's parameters come first. */
typedef struct network {
    ls_module *head, *blocks[BLOCKS];
    int only;     /* the number of the only block that runs; -1 runs all blocks */
    bool twice;   /* the first block runs twice */
    bool penalty; /* the output depends on the weight of block 1 outside of this block */
} network;

static ls_tensor *network_forward(ls_module *self, ls_tensor *x) {
    const network *n = ls_module_state(self);
    for (int i = 0; i < BLOCKS; i++) {
        x = n->only < 0 || n->only == i ? ls_tanh(ls_forward(n->blocks[i], x)) : x;
    }
    x = n->twice ? ls_tanh(ls_forward(n->blocks[0], x)) : x;
    x = n->penalty ? ls_add(x, ls_mean(ls_module_parameter(n->blocks[1], 0))) : x;
    return ls_forward(n->head, x);
}

static ls_module *make(void) {
    static const ls_module_type type = {.name = "Network", .state_size = sizeof(network), .forward = network_forward};
    static const char *const names[BLOCKS] = {"a", "b", "c", "d", "e", "f"};
    ls_seed(SEED);
    ls_module *module = ls_module_new(&type);
    network *n = ls_module_state(module);
    n->only = -1;
    n->head = ls_module_add_child(module, "head", ls_nn_linear(WIDTH, 1));
    for (int i = 0; i < BLOCKS; i++) {
        n->blocks[i] = ls_module_add_child(module, names[i], ls_nn_linear(WIDTH, WIDTH));
    }
    return ls_module_finish(module);
}

typedef struct replica {
    ls_module *module;
    ls_optimizer *optimizer;
    network *network;
} replica;

static ls_status wrap(replica *r, ls_comm *world, int zero) {
    ls_module *model = make();
    *r = (replica){.network = ls_module_state(model)};
    for (int i = 0; i < BLOCKS; i++) {
        LS_TRY(ls_recompute(r->network->blocks[i], true));
    }
    r->module = ls_data_parallel(model, world, &(ls_data_parallel_options){.zero = zero});
    LS_CHECK(r->module != NULL);
    return LS_OK;
}

static ls_status begin(replica *r, ls_comm *world, int zero) {
    LS_TRY(wrap(r, world, zero));
    r->optimizer = ls_adam(r->module, NULL);
    LS_CHECK(r->optimizer != NULL);
    return LS_OK;
}

static void end(replica *r) {
    ls_optimizer_free(r->optimizer);
    ls_module_free(r->module);
}

static ls_status backward(const replica *r, const ls_comm *world, int step) {
    ls_seed(100 + (uint64_t)(10 * step + ls_comm_rank(world)));
    return ls_backward(ls_mean(ls_square(ls_forward(r->module, ls_randn(LS_SHAPE(4, WIDTH), LS_F32)))));
}

static ls_status train(const replica *r, const ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_status status = LS_OK;
    for (int step = 0; step < STEPS && status == LS_OK; step++) {
        ls_optimizer_zero_grad(r->optimizer);
        status = backward(r, world, step);
        status = status == LS_OK ? ls_optimizer_step(r->optimizer) : status;
    }
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

static ls_status check_equal(const replica *a, const replica *b) {
    LS_TRY(ls_data_parallel_gather(b->module, true));
    for (int i = 0; i < ls_module_parameter_count(a->module); i++) {
        LS_CHECK(ls_allclose(ls_module_parameter(a->module, i), ls_module_parameter(b->module, i), 1e-5, 1e-6));
    }
    return ls_data_parallel_gather(b->module, false);
}

static ls_status hash_of(ls_module *module, uint64_t *hash) {
    LS_TRY(ls_data_parallel_gather(module, true));
    *hash = ls_module_hash(module);
    LS_CHECK(*hash != 0);
    return ls_data_parallel_gather(module, false);
}

/* ---- changes of the program -------------------------------------------------------------------------------------- */

typedef ls_status change(const replica *r, const ls_comm *world);

static ls_status run_twice(const replica *r, const ls_comm *world) {
    (void)world;
    r->network->twice = true;
    return LS_OK;
}

static ls_status freeze(const replica *r, const ls_comm *world) {
    (void)world;
    LS_TRY(ls_set_requires_grad(ls_module_parameter(r->network->blocks[0], 0), false));
    return ls_set_requires_grad(ls_module_parameter(r->network->blocks[1], 1), false);
}

static ls_status keep_whole(const replica *r, const ls_comm *world) {
    (void)world;
    return ls_data_parallel_gather(r->module, true);
}

static ls_status add_penalty(const replica *r, const ls_comm *world) {
    r->network->penalty = true;
    return keep_whole(r, world);
}

static ls_status stop_recomputing(const replica *r, const ls_comm *world) {
    LS_TRY(ls_recompute(r->network->blocks[1], false));
    return keep_whole(r, world);
}

static ls_status freeze_on_first(const replica *r, const ls_comm *world) {
    return ls_set_requires_grad(ls_module_parameter(r->network->blocks[1], 0), ls_comm_rank(world) != 0);
}

/* The ranks run different blocks of the same owner, so the numbers of exchanged elements agree. */
static ls_status run_other_block(const replica *r, const ls_comm *world) {
    r->network->only = ls_comm_rank(world) % 2;
    return LS_OK;
}

static ls_status set_other_rate(const replica *r, const ls_comm *world) {
    return ls_optimizer_set_learning_rate(r->optimizer, -1, 0.01 * (1 + ls_comm_rank(world)));
}

static ls_status test_equal(ls_comm *world, int zero, change *function) {
    replica whole, sharded;
    LS_TRY(begin(&whole, world, 0));
    LS_TRY(begin(&sharded, world, zero));
    LS_TRY(function(&whole, world));
    LS_TRY(function(&sharded, world));
    LS_TRY(train(&whole, world));
    LS_TRY(train(&sharded, world));
    LS_TRY(check_equal(&whole, &sharded));
    end(&whole);
    end(&sharded);
    return LS_OK;
}

static ls_status test_fails(ls_comm *world, int zero, change *function, const char *message) {
    replica r;
    LS_TRY(begin(&r, world, zero));
    LS_TRY(function(&r, world));
    LS_CHECK(ls_comm_size(world) == 1 || train(&r, world) != LS_OK);
    if (ls_comm_size(world) > 1) {
        LS_EXPECT_MESSAGE(message);
    }
    end(&r);
    return LS_OK;
}

/* After a forward pass alone, no backward pass can detect the mistake. */
static ls_status test_forward(ls_comm *world) {
    replica r;
    LS_TRY(begin(&r, world, 3));
    LS_TRY(run_other_block(&r, world));
    const bool before = ls_no_grad(true);
    ls_scope *scope = ls_scope_begin();
    const bool made = ls_forward(r.module, ls_ones(LS_SHAPE(2, WIDTH), LS_F32)) != NULL;
    LS_CHECK(made == (ls_comm_size(world) == 1));
    (void)ls_scope_end(scope);
    (void)ls_no_grad(before);
    end(&r);
    return LS_OK;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* Sets one row of a matrix to the number, all other rows to 0, and then the first column to 0. */
static void set_row(ls_tensor *matrix, int64_t row, float number) {
    float *elements = ls_data(matrix);
    for (int64_t i = 0; i < ls_numel(matrix); i++) {
        elements[i] = i / ls_size(matrix, 1) == row && i % ls_size(matrix, 1) > 0 ? number : 0;
    }
}

/*
 * The gradient of one element of block 0 overflows. Only one rank owns this element. The optimizer's first parameter is
 * not sharded. All ranks skip the step.
 */
static ls_status test_overflow(ls_comm *world, int zero) {
    replica r;
    LS_TRY(begin(&r, world, zero));
    ls_grad_scaler *scaler = ls_grad_scaler_new(&(ls_grad_scaler_options){.initial_scale = 1});
    LS_TRY(ls_data_parallel_gather(r.module, true));
    set_row(ls_module_parameter(r.network->blocks[0], 0), WIDTH, 0);
    float *head = ls_data(ls_module_parameter(r.network->head, 0));
    for (int i = 0; i < WIDTH; i++) {
        head[i] = i == WIDTH - 1;
    }
    LS_TRY(ls_data_parallel_gather(r.module, false));
    r.network->only = 0;
    ls_tensor *x = ls_zeros(LS_SHAPE(1, WIDTH), LS_F32);
    ((float *)ls_data(x))[0] = 3e38F;
    LS_TRY(ls_backward(ls_grad_scaler_scale(scaler, ls_mul(ls_sum(ls_forward(r.module, x)), 1e3))));
    LS_TRY(ls_grad_scaler_unscale(scaler, r.optimizer));
    LS_TRY(ls_grad_scaler_step(scaler, r.optimizer));
    LS_TRY(ls_grad_scaler_update(scaler));
    LS_CHECK(ls_grad_scaler_skipped(scaler) == 1);
    LS_TRY(train(&r, world));
    ls_grad_scaler_free(scaler);
    end(&r);
    return LS_OK;
}

/* The optimizer updates the biases after each pass, and the weights after every second pass, so their gradients
 * accumulate. */
static ls_status train_apart(replica *r, const ls_comm *world) {
    ls_optimizer *weights = ls_sgd(NULL, NULL), *biases = ls_sgd(NULL, NULL);
    for (int i = 0; i < ls_module_parameter_count(r->module); i++) {
        ls_tensor *parameter = ls_module_parameter(r->module, i);
        LS_TRY(ls_optimizer_add_group(ls_ndim(parameter) == 2 ? weights : biases, &parameter, 1, NULL));
    }
    for (int step = 0; step < 6; step++) {
        ls_optimizer_zero_grad(biases);
        if (step % 2 == 0) {
            ls_optimizer_zero_grad(weights);
        }
        LS_TRY(backward(r, world, step));
        LS_TRY(ls_optimizer_step(biases));
        LS_TRY(step % 2 == 1 ? ls_optimizer_step(weights) : LS_OK);
    }
    ls_optimizer_free(weights);
    ls_optimizer_free(biases);
    return LS_OK;
}

static ls_status test_apart(ls_comm *world, int zero) {
    replica whole, sharded;
    LS_TRY(wrap(&whole, world, 0));
    LS_TRY(wrap(&sharded, world, zero));
    LS_TRY(train_apart(&whole, world));
    LS_TRY(train_apart(&sharded, world));
    LS_TRY(check_equal(&whole, &sharded));
    end(&whole);
    end(&sharded);
    return LS_OK;
}

static ls_status test_sync_gradients(ls_comm *world, int zero) {
    replica r;
    LS_TRY(begin(&r, world, zero));
    LS_TRY(backward(&r, world, 0));
    LS_CHECK(ls_sync_gradients(r.module, world) == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE("omit the call");
    end(&r);
    return LS_OK;
}

/* ---- parameters in other memory ---------------------------------------------------------------------------------- */

/* An optimizer of a part of the model, or of a larger model, would move parameters. It is refused without effect. */
static ls_status test_parts(ls_comm *world, int zero) {
    replica whole, sharded;
    LS_TRY(begin(&whole, world, 0));
    LS_TRY(wrap(&sharded, world, zero));
    LS_CHECK(ls_adam(sharded.network->blocks[1], NULL) == NULL && ls_error_status() == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE("ls_optimizer_add_group");
    ls_module *larger = ls_sequential(ls_nn_linear(WIDTH, WIDTH), sharded.module);
    LS_CHECK(larger != NULL && ls_adam(larger, NULL) == NULL && ls_error_status() == LS_ERR_UNSUPPORTED);
    LS_CHECK(ls_sync_parameters(sharded.network->blocks[1], world, 0) == LS_ERR_UNSUPPORTED);
    if (zero > 1) { /* a second data-parallel module would add its averages to parts of the gradients */
        LS_CHECK(ls_data_parallel(sharded.module, world, NULL) == NULL);
        LS_CHECK(ls_error_status() == LS_ERR_UNSUPPORTED);
        LS_EXPECT_MESSAGE("has some of the parameters");
    }
    sharded.optimizer = ls_adam(sharded.module, NULL);
    LS_CHECK(sharded.optimizer != NULL);
    LS_TRY(train(&whole, world));
    LS_TRY(train(&sharded, world));
    LS_TRY(check_equal(&whole, &sharded));
    ls_optimizer_free(sharded.optimizer);
    ls_module_free(larger);
    end(&whole);
    return LS_OK;
}

/* ---- absent parameters ------------------------------------------------------------------------------------------- */

/* Rank 0 has only a part of the parameters, so it cannot send them to other ranks. */
static ls_status test_sync_parameters(ls_comm *world) {
    replica r;
    uint64_t before = 0, after = 0;
    LS_TRY(begin(&r, world, 3));
    LS_TRY(hash_of(r.module, &before));
    ls_scope *scope = ls_scope_begin();
    LS_CHECK(ls_sync_parameters(r.module, world, 0) == LS_ERR_STATE);
    LS_EXPECT_MESSAGE("call ls_data_parallel_gather first");
    LS_CHECK(ls_scope_end(scope) == LS_ERR_STATE);
    LS_TRY(hash_of(r.module, &after));
    LS_CHECK(before == after);
    end(&r);
    return LS_OK;
}

/* Averages do not change a part of the model, or of themselves. */
static ls_status test_averages(ls_comm *world) {
    replica r;
    uint64_t before = 0, after = 0;
    LS_TRY(begin(&r, world, 3));
    ls_scope *scope = ls_scope_begin();
    LS_CHECK(ls_ema_new(r.module, 0.5) == NULL && ls_error_status() == LS_ERR_STATE);
    LS_EXPECT_MESSAGE("call ls_data_parallel_gather first");
    LS_CHECK(ls_scope_end(scope) == LS_ERR_STATE);
    LS_TRY(ls_data_parallel_gather(r.module, true));
    ls_ema *ema = ls_ema_new(r.module, 0.5);
    LS_CHECK(ema != NULL);
    LS_TRY(ls_data_parallel_gather(r.module, false));
    LS_TRY(train(&r, world));
    LS_TRY(hash_of(r.module, &before));
    scope = ls_scope_begin();
    LS_CHECK(ls_ema_put(ema) == LS_ERR_STATE);
    LS_EXPECT_MESSAGE("ls_ema_put: ");
    LS_CHECK(ls_ema_swap(ema) == LS_ERR_STATE);
    LS_EXPECT_MESSAGE("ls_ema_swap: ");
    LS_CHECK(ls_ema_update(ema) == LS_ERR_STATE);
    LS_EXPECT_MESSAGE("ls_ema_update: ");
    LS_EXPECT_MESSAGE("call ls_data_parallel_gather first");
    LS_CHECK(ls_scope_end(scope) == LS_ERR_STATE && ls_ema_count(ema) == 0);
    LS_TRY(hash_of(r.module, &after));
    LS_CHECK(before == after);
    ls_ema_free(ema);
    end(&r);
    return LS_OK;
}

/* Only rank 0 changes parameters, as if it had loaded a file: parameters of a block, or of the head, which is not in a
 * unit. */
static ls_status test_other_parameters(ls_comm *world, bool in_unit) {
    replica r;
    LS_TRY(begin(&r, world, 3));
    LS_TRY(ls_data_parallel_gather(r.module, true));
    ls_tensor *weight = ls_module_parameter(in_unit ? r.network->blocks[1] : r.network->head, 0);
    LS_TRY(ls_comm_rank(world) == 0 ? ls_nn_init_constant(weight, 0.5) : LS_OK);
    LS_CHECK(ls_data_parallel_gather(r.module, false) == LS_ERR_MISMATCH);
    LS_EXPECT_MESSAGE("ls_sync_parameters");
    LS_TRY(ls_sync_parameters(r.module, world, 0));
    LS_TRY(ls_data_parallel_gather(r.module, false));
    LS_TRY(ls_data_parallel_gather(r.module, true));
    LS_CHECK(ls_at(weight, (const int64_t[]){in_unit ? WIDTH - 1 : 0, 5}) == 0.5);
    end(&r);
    return LS_OK;
}

/* Parameters of which the rank has only a part cannot be loaded. The head, which comes first, then keeps its values. */
static ls_status test_load(ls_comm *world) {
    replica r;
    uint64_t before = 0, after = 0;
    LS_TRY(begin(&r, world, 3));
    LS_TRY(hash_of(r.module, &before));
    ls_safetensors *file = ls_safetensors_new("test", (size_t)ls_module_parameter_count(r.module));
    LS_CHECK(file != NULL);
    for (int i = 0; i < ls_module_parameter_count(r.module); i++) {
        const ls_tensor *parameter = ls_module_parameter(r.module, i);
        ls_tensor *zeros = ls_tensor_new_owned("test", &ls_cpu, parameter->ndim, parameter->size, LS_F32);
        LS_CHECK(zeros != NULL);
        LS_TRY(ls_nn_init_constant(zeros, 0));
        ls_safetensors_add(file, ls_module_parameter_name(r.module, i), zeros);
    }
    ls_scope *scope = ls_scope_begin();
    LS_CHECK(ls_module_load_from("ls_module_load", r.module, "zeros", file, NULL) == LS_ERR_STATE);
    LS_EXPECT_MESSAGE("call ls_data_parallel_gather first");
    LS_CHECK(ls_scope_end(scope) == LS_ERR_STATE);
    ls_safetensors_free(file);
    LS_TRY(hash_of(r.module, &after));
    LS_CHECK(before == after);
    end(&r);
    return LS_OK;
}

/* An alias on one rank prevents resharding on all ranks, which can continue. */
static ls_status test_alias(ls_comm *world, int rank) {
    replica r;
    LS_TRY(begin(&r, world, 3));
    LS_TRY(ls_data_parallel_gather(r.module, true));
    const bool has = rank < 0 || rank == ls_comm_rank(world);
    ls_tensor *alias = has ? ls_detach(ls_module_parameter(r.module, 2)) : NULL;
    LS_CHECK(ls_data_parallel_gather(r.module, false) == (has ? LS_ERR_STATE : LS_ERR_MISMATCH));
    LS_EXPECT_MESSAGE("ls_clone");
    LS_TRY(train(&r, world));
    ls_release(alias);
    LS_TRY(ls_data_parallel_gather(r.module, false));
    end(&r);
    return LS_OK;
}

/* A second module contains a block, too. */
static ls_status test_freed(ls_comm *world, bool whole) {
    replica r;
    LS_TRY(begin(&r, world, 3));
    ls_module *other = ls_sequential(r.network->blocks[1], ls_nn_tanh());
    LS_TRY(train(&r, world));
    LS_TRY(whole ? ls_data_parallel_gather(r.module, true) : LS_OK);
    end(&r);
    ls_scope *scope = ls_scope_begin();
    LS_CHECK((ls_module_hash(other) != 0) == whole);
    LS_CHECK(ls_scope_end(scope) == (whole ? LS_OK : LS_ERR_STATE));
    ls_module_free(other);
    return LS_OK;
}

typedef struct query {
    ls_tensor *table;
} query;

static ls_tensor *query_forward(ls_module *self, ls_tensor *x) {
    (void)x;
    return ls_reshape(((const query *)ls_module_state(self))->table, LS_SHAPE(WIDTH * WIDTH));
}

/* A module that returns its parameter. */
static ls_status test_view(ls_comm *world) {
    static const ls_module_type type = {.name = "Query", .state_size = sizeof(query), .forward = query_forward};
    ls_module *model = ls_module_new(&type);
    query *q = ls_module_state(model);
    q->table = ls_module_add_parameter(model, "table", ls_ones(LS_SHAPE(WIDTH, WIDTH), LS_F32));
    model = ls_module_finish(model);
    LS_TRY(ls_recompute(model, true));
    ls_module *module = ls_data_parallel(model, world, &(ls_data_parallel_options){.zero = 3});
    ls_scope *scope = ls_scope_begin();
    LS_CHECK(ls_forward(module, ls_ones(LS_SHAPE(1, 1), LS_F32)) == NULL);
    LS_EXPECT_MESSAGE("Query returns or keeps a view of its parameter");
    (void)ls_scope_end(scope);
    ls_module_free(module);
    return LS_OK;
}

static ls_status test_no_initial_sync(ls_comm *world, int zero) {
    ls_seed(1 + (uint64_t)ls_comm_rank(world));
    ls_module *model = ls_sequential(ls_nn_linear(4, 4));
    const ls_data_parallel_options options = {.zero = zero, .no_initial_sync = true};
    LS_CHECK(ls_data_parallel(model, world, &options) == NULL && ls_error_status() == LS_ERR_MISMATCH);
    return LS_OK;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static ls_status test_stage(ls_comm *world, int zero) {
    LS_TRY(test_equal(world, zero, run_twice));
    LS_TRY(test_equal(world, zero, freeze));
    LS_TRY(test_equal(world, zero, keep_whole));
    LS_TRY(test_overflow(world, zero));
    LS_TRY(test_apart(world, zero));
    LS_TRY(test_fails(world, zero, freeze_on_first, "frozen"));
    LS_TRY(test_fails(world, zero, set_other_rate, "learning rates"));
    if (zero > 1) {
        LS_TRY(test_fails(world, zero, run_other_block, "the ranks made different calls"));
        LS_TRY(test_fails(world, zero, add_penalty, "receives a gradient outside its module"));
        LS_TRY(test_fails(world, zero, stop_recomputing, "receives a gradient outside its module"));
    }
    if (ls_comm_size(world) > 1) {
        LS_TRY(test_parts(world, zero));
        LS_TRY(test_no_initial_sync(world, zero));
        LS_TRY(zero > 1 ? test_sync_gradients(world, zero) : LS_OK);
    }
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    for (int zero = 1; zero <= 3; zero++) {
        const ls_status status = test_stage(world, zero);
        if (status != LS_OK) {
            return ls_fail(status, ".zero = %d: %s", zero, ls_error_message());
        }
    }
    LS_TRY(test_forward(world));
    if (ls_comm_size(world) > 1) {
        LS_TRY(test_sync_parameters(world));
        LS_TRY(test_averages(world));
        LS_TRY(test_other_parameters(world, true));
        LS_TRY(test_other_parameters(world, false));
        LS_TRY(test_alias(world, -1));
        LS_TRY(test_alias(world, ls_comm_size(world) - 1));
        LS_TRY(test_load(world));
        LS_TRY(test_freed(world, true));
        LS_TRY(test_freed(world, false));
        LS_TRY(test_view(world));
    }
    return ls_scope_end(scope);
}
