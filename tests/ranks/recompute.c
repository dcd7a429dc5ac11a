/*
 * ls_recompute inside ls_data_parallel: bit-identical to training without it, with dropout, overlap, accumulation,
 * uneven shares and parameters that some ranks do not use. Batch normalization and operations that mix samples or
 * communicate are refused. If the recomputation fails on one rank, it fails on all ranks.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "tests/support/numbers.h"

enum { INPUTS = 5, WIDTH = 32, STEPS = 5, SEED = 3 };

/* The layer `twice` runs twice. The layer `sometimes` runs only if the input says so, which differs between ranks. */
typedef struct network {
    ls_module *first, *twice, *sometimes, *last;
} network;

static ls_tensor *network_forward(ls_module *self, ls_tensor *input) {
    const network *n = ls_module_state(self);
    ls_tensor *x = ls_forward(n->first, input);
    x = ls_forward(n->twice, ls_forward(n->twice, x));
    if (ls_size(input, 0) > 0 && ls_at(input, (const int64_t[]){0, 0}) > 0) {
        x = ls_add(x, ls_forward(n->sometimes, x));
    }
    return ls_forward(n->last, x);
}

static ls_module *layer(int64_t in, int64_t out) {
    return ls_sequential(ls_nn_linear(in, out), ls_nn_tanh(), ls_nn_dropout(0.3));
}

static ls_module *make(void) {
    static const ls_module_type type = {.name = "Network", .state_size = sizeof(network), .forward = network_forward};
    ls_seed(SEED);
    ls_module *module = ls_module_new(&type);
    network *n = ls_module_state(module);
    n->first = ls_module_add_child(module, "first", layer(INPUTS, WIDTH));
    n->twice = ls_module_add_child(module, "twice", layer(WIDTH, WIDTH));
    n->sometimes = ls_module_add_child(module, "sometimes", layer(WIDTH, WIDTH));
    n->last = ls_module_add_child(module, "last", ls_nn_linear(WIDTH, 3));
    return ls_module_finish(module);
}

static ls_status recompute_all(ls_module *module) {
    LS_TRY(ls_recompute(module, true));
    for (int i = 0; i < ls_module_child_count(module); i++) {
        LS_TRY(recompute_all(ls_module_child(module, i)));
    }
    return LS_OK;
}

static ls_status run_pass(const ls_comm *world, ls_module *model, int step) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    const int64_t count = (rank + step) % size == 1 ? 0 : 2 + (rank + step) % 3;
    if (count == 0) {
        return ls_data_parallel_skip(model);
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_empty(LS_SHAPE(count, INPUTS), LS_F32);
    for (int64_t i = 0; i < ls_numel(x); i++) {
        numbers_set(x, i, ls_random_normal(SEED, (uint64_t)(step * 100 + rank), (uint64_t)i));
    }
    const ls_status status = ls_backward(ls_mean(ls_square(ls_forward(model, x))));
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

/* Trains the model, and sets *hash to the hash of its parameters. */
static ls_status train(ls_comm *world, bool recompute, ls_overlap_mode overlap, uint64_t *hash) {
    ls_module *bare = make();
    LS_CHECK(bare != NULL);
    if (recompute) {
        LS_TRY(recompute_all(bare));
    }
    ls_module *model =
        ls_data_parallel(bare, world, &(ls_data_parallel_options){.overlap = overlap, .bucket_bytes = 1});
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.05, .momentum = 0.9});
    LS_CHECK(optimizer != NULL);
    for (int step = 0; step < STEPS; step++) {
        ls_seed((uint64_t)(SEED + step)); /* ranks that skip draw no random streams */
        ls_optimizer_zero_grad(optimizer);
        LS_TRY(ls_data_parallel_no_sync(model, true));
        LS_TRY(run_pass(world, model, 10 * step));
        LS_TRY(ls_data_parallel_no_sync(model, false));
        ls_seed((uint64_t)(SEED + step + 100));
        LS_TRY(run_pass(world, model, 10 * step + 5));
        LS_TRY(ls_optimizer_step(optimizer));
    }
    LS_TRY(ls_data_parallel_check(model));
    *hash = ls_module_hash(model);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

static ls_status refuses_batch_norm(ls_comm *world) {
    ls_module *norm = ls_nn_batch_norm_1d(INPUTS, NULL);
    LS_TRY(ls_recompute(norm, true));
    ls_module *model = ls_data_parallel(ls_sequential(norm, ls_nn_linear(INPUTS, 2)), world, NULL);
    LS_CHECK(model != NULL);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *output = ls_forward(model, ls_full(LS_SHAPE(2, INPUTS), LS_F32, 1));
    if (ls_comm_size(world) == 1) { /* no communication */
        LS_TRY(ls_backward(ls_mean(output)));
    } else {
        LS_CHECK(output == NULL && ls_error_status() == LS_ERR_UNSUPPORTED);
        LS_EXPECT_MESSAGE("computes over the global batch");
    }
    (void)!ls_scope_end(scope);
    ls_module_free(model);
    return LS_OK;
}

static ls_tensor *softmax_over_samples(ls_tensor *x, void *user) {
    (void)user;
    return ls_softmax(x, 0);
}

/* An operation that mixes samples is detected in a recomputed module, too. */
static ls_status refuses_mixing(ls_comm *world) {
    ls_module *softmax = ls_nn_function("Softmax", softmax_over_samples, NULL);
    LS_TRY(ls_recompute(softmax, true));
    ls_module *model = ls_data_parallel(ls_sequential(ls_nn_linear(INPUTS, 2), softmax), world, NULL);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *output = ls_forward(model, ls_full(LS_SHAPE(2, INPUTS), LS_F32, 1));
    LS_CHECK((output != NULL) == (ls_comm_size(world) == 1));
    if (output == NULL) {
        LS_CHECK(ls_error_status() == LS_ERR_UNSUPPORTED);
        LS_EXPECT_MESSAGE("ls_softmax combines the samples of this rank along axis 0");
    }
    (void)!ls_scope_end(scope);
    ls_module_free(model);
    return LS_OK;
}

static ls_tensor *sum_over_ranks(ls_tensor *x, void *user) {
    return ls_allreduce(user, x, LS_SUM);
}

/* The call refuses a module that communicates, on all ranks, and the communicator stays usable. */
static ls_status refuses_communication(ls_comm *world) {
    ls_module *module = ls_sequential(ls_nn_linear(INPUTS, 2), ls_nn_function("Sum", sum_over_ranks, world));
    LS_TRY(ls_recompute(module, true));
    ls_scope *scope = ls_scope_begin();
    ls_tensor *output = ls_forward(module, ls_full(LS_SHAPE(2, INPUTS), LS_F32, 1));
    LS_CHECK((output != NULL) == (ls_comm_size(world) == 1));
    if (output != NULL) { /* on a single rank, only the tape shows the communication */
        LS_CHECK(ls_backward(ls_mean(output)) == LS_ERR_UNSUPPORTED);
    }
    LS_CHECK(ls_error_status() == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE("Sequential communicates");
    (void)!ls_scope_end(scope);
    ls_module_free(module);
    return ls_comm_barrier(world, NULL);
}

/* The forward function fails on the last rank when it is recomputed, if `user` points to true. */
static ls_tensor *fail_later(ls_tensor *x, void *user) {
    if (*(const bool *)user) {
        (void)ls_error_set(LS_ERR_IO, "the second run failed");
        return NULL;
    }
    return ls_square(x);
}

/* If the recomputation fails on one rank, all ranks get the error and stay in step. */
static ls_status second_run_fails(ls_comm *world) {
    bool fails = false;
    ls_module *last = ls_nn_function("Last", fail_later, &fails);
    LS_TRY(ls_recompute(last, true));
    ls_module *model = ls_data_parallel(ls_sequential(ls_nn_linear(INPUTS, 2), last), world, NULL);
    for (int step = 0; step < 2; step++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *loss = ls_mean(ls_forward(model, ls_full(LS_SHAPE(2, INPUTS), LS_F32, 1)));
        fails = step == 0 && ls_comm_rank(world) == ls_comm_size(world) - 1;
        const ls_status status = ls_backward(loss);
        fails = false;
        LS_CHECK((status == LS_OK) == (step == 1));
        if (step == 0) {
            LS_EXPECT_MESSAGE("the second run failed");
        }
        (void)!ls_scope_end(scope);
    }
    LS_TRY(ls_data_parallel_check(model));
    ls_module_free(model);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    for (int i = 0; i < 2; i++) {
        const ls_overlap_mode overlap = i == 0 ? LS_OVERLAP_OFF : LS_OVERLAP_ON;
        uint64_t plain = 0, recomputed = 1;
        LS_TRY(train(world, false, overlap, &plain));
        LS_TRY(train(world, true, overlap, &recomputed));
        LS_CHECK(plain == recomputed);
    }
    LS_TRY(refuses_batch_norm(world));
    LS_TRY(refuses_mixing(world));
    LS_TRY(refuses_communication(world));
    LS_TRY(second_run_fails(world));
    return ls_comm_barrier(world, NULL);
}
