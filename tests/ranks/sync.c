/*
 * The basic calls: parameters and buffers are sent from one rank to all ranks, and gradients are averaged over all
 * ranks.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "tests/support/numbers.h"

/* Has trained parameters of two dtypes, a parameter whose dtype allows no gradient, and buffers of three dtypes. */
static ls_tensor *pass_through(ls_module *self, ls_tensor *input) {
    (void)self;
    return input;
}

static ls_tensor *filled(int64_t count, ls_dtype dtype, double value) {
    return ls_full(LS_SHAPE(count), dtype, value);
}

static ls_module *make_model(double value) {
    static const ls_module_type type = {.name = "Numbers", .forward = pass_through};
    ls_module *model = ls_module_new(&type);
    (void)ls_module_add_parameter(model, "single", filled(5, LS_F32, value));
    (void)ls_module_add_parameter(model, "double", filled(33, LS_F64, value + 0.1));
    (void)ls_module_add_parameter(model, "whole", filled(3, LS_I32, value));
    (void)ls_module_add_parameter(model, "last", filled(17, LS_F32, value + 0.5));
    (void)ls_module_add_buffer(model, "mean", filled(4, LS_F32, value + 0.25));
    (void)ls_module_add_buffer(model, "half", filled(7, LS_BF16, value));
    (void)ls_module_add_buffer(model, "steps", filled(1, LS_I64, value));
    return ls_module_finish(model);
}

static ls_status parameters_from_every_root(ls_comm *world) {
    for (int root = 0; root < ls_comm_size(world); root++) {
        ls_module *model = make_model(ls_comm_rank(world) + 1);
        ls_module *right = make_model(root + 1);
        LS_CHECK(model != NULL && right != NULL);
        ls_tensor *single = ls_module_find(model, "single");
        LS_TRY(ls_sync_parameters(model, world, root));
        LS_CHECK(ls_module_find(model, "single") == single);
        LS_CHECK(ls_module_hash(model) == ls_module_hash(right));
        for (int i = 0; i < ls_module_buffer_count(model); i++) {
            LS_CHECK(ls_equal(ls_module_buffer(model, i), ls_module_buffer(right, i)));
        }
        ls_module_free(model);
        ls_module_free(right);
    }
    return LS_OK;
}

/* Adds `value` to every element of the parameter's gradient. */
static ls_status give(ls_module *model, const char *name, double value) {
    ls_scope *scope = ls_scope_begin();
    const ls_status status = ls_backward(ls_sum(ls_mul(ls_module_find(model, name), value)));
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

static ls_status all_elements_are(const ls_tensor *gradient, double value) {
    LS_CHECK(gradient != NULL);
    for (int64_t at = 0; at < ls_numel(gradient); at++) {
        LS_CHECK(fabs(numbers_get(gradient, at) - value) <= 2 * numbers_tolerance(ls_dtype_of(gradient)) * (1 + value));
    }
    return LS_OK;
}

static ls_status gradients_become_means(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    const int size = ls_comm_size(world);
    ls_module *model = make_model(1);
    LS_CHECK(model != NULL);
    for (int round = 0; round < 2; round++) {
        ls_module_zero_grad(model);
        LS_TRY(give(model, "double", rank + 1)); /* on all ranks */
        if (rank == size - 1) {
            LS_TRY(give(model, "last", 6 * size)); /* on one rank only: the other ranks count as zero */
        }
        LS_TRY(ls_sync_gradients(model, world));
        LS_TRY(all_elements_are(ls_grad(ls_module_find(model, "double")), (size + 1) / 2.0));
        LS_TRY(all_elements_are(ls_grad(ls_module_find(model, "last")), 6));
        LS_CHECK(ls_grad(ls_module_find(model, "single")) == NULL); /* on none */
    }
    LS_TRY(ls_sync_gradients(model, world)); /* equal already */
    LS_TRY(all_elements_are(ls_grad(ls_module_find(model, "last")), 6));
    ls_module_zero_grad(model);
    LS_TRY(ls_sync_gradients(model, world));
    LS_CHECK(ls_grad(ls_module_find(model, "double")) == NULL);
    ls_module_free(model);
    return LS_OK;
}

/* A hand-written training loop: synchronization at the start, averaged gradients in each step. Parameters stay
 * bit-identical on all ranks. */
static ls_status by_hand(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    ls_seed((uint64_t)rank);
    ls_module *model = ls_sequential(ls_nn_linear(4, 9), ls_nn_relu(), ls_nn_linear(9, 2));
    LS_TRY(ls_sync_parameters(model, world, ls_comm_size(world) - 1));
    ls_optimizer *optimizer = ls_adam(model, NULL);
    for (int step = 0; step < 5; step++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = ls_randn(LS_SHAPE(3, 4), LS_F32);
        ls_optimizer_zero_grad(optimizer);
        LS_TRY(ls_backward(ls_mean(ls_square(ls_forward(model, x)))));
        LS_TRY(ls_scope_end(scope));
        LS_TRY(ls_sync_gradients(model, world));
        LS_TRY(ls_optimizer_step(optimizer));
    }
    int64_t most = (int64_t)(ls_module_hash(model) >> 1);
    int64_t least = most;
    LS_TRY(ls_comm_allreduce(world, &most, &most, 1, LS_I64, LS_MAX, NULL));
    LS_TRY(ls_comm_allreduce(world, &least, &least, 1, LS_I64, LS_MIN, NULL));
    LS_CHECK(most == least);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

/* Models with different sizes or numbers of parameters: every rank gets an error, and the job continues. */
static ls_status models_that_differ(ls_comm *world) {
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    const bool odd = ls_comm_rank(world) == 1;
    ls_module *wider = ls_nn_linear(3, odd ? 70 : 7);
    LS_CHECK(ls_sync_parameters(wider, world, 0) == LS_ERR_MISMATCH);
    LS_EXPECT_MESSAGE("rank 0's has 2 parameters (28 numbers) and 0 buffers, but rank 1's has 2 (280) and 0");
    LS_CHECK(ls_sync_gradients(wider, world) == LS_ERR_MISMATCH);
    ls_module_free(wider);
    ls_module *turned = odd ? ls_sequential(ls_nn_linear(3, 8)) : ls_sequential(ls_nn_linear(7, 4)); /* 32 numbers */
    LS_CHECK(ls_sync_parameters(turned, world, 0) == LS_ERR_MISMATCH);
    LS_EXPECT_MESSAGE("with different names, shapes or dtypes");
    LS_CHECK(ls_sync_gradients(turned, world) == LS_ERR_MISMATCH);
    LS_EXPECT_MESSAGE("ls_sync_gradients: the models of the ranks differ in shapes or dtypes");
    ls_module_free(turned);
    ls_module *more = odd ? ls_sequential(ls_nn_linear(3, 7), ls_nn_linear(7, 7)) : ls_nn_linear(3, 7);
    LS_CHECK(ls_sync_gradients(more, world) == LS_ERR_MISMATCH);
    LS_CHECK(ls_sync_parameters(more, world, 1) == LS_ERR_MISMATCH);
    ls_module_free(more);
    return ls_comm_barrier(world, NULL);
}

/* Every call that copies or averages parameters refuses the model, and names the parameter `name`. Afterwards, the
 * caller has a reference from ls_module_retain. */
static ls_status expect_refused(ls_comm *world, ls_module *model, const char *name) {
    const uint64_t before = ls_module_hash(model);
    char words[128];
    snprintf(words, sizeof words, "\"%s\" is sharded over ranks of the communicator: pass a communicator", name);
    LS_CHECK(ls_sync_parameters(model, world, 0) == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE(words);
    LS_CHECK(ls_outer_new(model, world, NULL) == NULL && ls_error_status() == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE(words);
    ls_module_retain(model);
    for (int i = 0; i < 2; i++) {
        LS_CHECK(ls_data_parallel(model, world, &(ls_data_parallel_options){.no_initial_sync = i == 1}) == NULL);
        LS_CHECK(ls_error_status() == LS_ERR_UNSUPPORTED);
        LS_EXPECT_MESSAGE(words);
    }
    LS_CHECK(ls_sync_gradients(model, world) == LS_ERR_MISMATCH);
    LS_EXPECT_MESSAGE("or hold different shards");
    LS_CHECK(ls_module_hash(model) == before);
    return LS_OK;
}

/* Shards of one parameter on different ranks are not replicas: rank 0's shard must not overwrite the others. */
static ls_status shards_that_differ(ls_comm *world) {
    const int size = ls_comm_size(world);
    ls_comm *part = NULL;
    LS_TRY(ls_comm_split(world, 0, 0, &part)); /* the same ranks, as another communicator */
    for (int uneven = 0; uneven <= 1 && size > 1; uneven++) {
        ls_seed(3);
        ls_module *model = ls_sequential(ls_nn_linear(2, 3), ls_nn_column_parallel(part, 3, 2 * size + uneven, NULL),
                                         ls_nn_tanh(), ls_nn_row_parallel(part, 2 * size + uneven, 3, NULL));
        LS_TRY(expect_refused(world, model, "1.weight"));
        ls_module_free(model);
    }
    ls_comm_free(part);
    return ls_comm_barrier(world, NULL);
}

/* Ranks with the same shards are replicas of each other. */
static ls_status shards_in_pairs(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    ls_comm *pair = NULL, *same = NULL;
    if (ls_comm_size(world) % 2 != 0) {
        return LS_OK;
    }
    LS_TRY(ls_comm_split(world, rank / 2, 0, &pair));
    LS_TRY(ls_comm_split(world, rank % 2, 0, &same));
    ls_seed(3);
    ls_module *model =
        ls_sequential(ls_nn_column_parallel(pair, 3, 5, NULL), ls_nn_tanh(), ls_nn_row_parallel(pair, 5, 3, NULL));
    LS_TRY(expect_refused(world, model, "0.weight"));
    LS_TRY(ls_sync_parameters(model, same, 0));
    LS_TRY(ls_sync_gradients(model, same));
    ls_outer *outer = ls_outer_new(model, same, NULL);
    LS_CHECK(outer != NULL);
    ls_outer_free(outer);
    ls_module *parallel = ls_data_parallel(model, same, NULL);
    LS_CHECK(parallel != NULL);
    ls_module_free(parallel);
    ls_module_free(model);
    ls_comm_free(pair);
    ls_comm_free(same);
    return LS_OK;
}

static ls_status wrong_input(ls_comm *world) {
    ls_module *model = make_model(2);
    LS_CHECK(ls_sync_parameters(NULL, world, 0) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("ls_sync_parameters: the model is NULL");
    LS_CHECK(ls_sync_parameters(model, NULL, 0) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_sync_gradients(NULL, world) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_sync_gradients(model, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_sync_parameters(model, world, -1) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_sync_parameters(model, world, ls_comm_size(world)) == LS_ERR_ARGUMENT);
    ls_module_free(model);
    return LS_OK;
}

/* A model without parameters: there is nothing to synchronize. */
static ls_status nothing_to_sync(ls_comm *world) {
    ls_module *model = ls_nn_relu();
    LS_TRY(ls_sync_parameters(model, world, 0));
    LS_TRY(ls_sync_gradients(model, world));
    ls_module_free(model);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(wrong_input(world));
    LS_TRY(nothing_to_sync(world));
    LS_TRY(parameters_from_every_root(world));
    LS_TRY(gradients_become_means(world));
    LS_TRY(by_hand(world));
    LS_TRY(models_that_differ(world));
    LS_TRY(shards_that_differ(world));
    LS_TRY(shards_in_pairs(world));
    return ls_comm_barrier(world, NULL);
}
