/*
 * Data-parallel training: for any number of ranks and any distribution of the batches, the parameters are bit-identical
 * on all ranks, and equal, up to rounding, the gradients of one process with the global batch.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "tests/support/numbers.h"

enum { INPUTS = 6, OUTPUTS = 3, SEED = 40 };

/* ---- models ------------------------------------------------------------------------------------------------------ */

static ls_module *linear(int64_t in, int64_t out, ls_dtype dtype) {
    return ls_nn_linear_with(in, out, &(ls_linear_options){.dtype = dtype});
}

static ls_module *make_mlp(ls_dtype dtype) {
    return ls_sequential(linear(INPUTS, 5, dtype), ls_nn_tanh(), linear(5, OUTPUTS, dtype));
}

static ls_module *make_normalised(ls_dtype dtype) {
    const ls_batch_norm_options options = {.dtype = dtype};
    return ls_sequential(ls_nn_batch_norm_1d(INPUTS, &options), linear(INPUTS, 5, dtype),
                         ls_nn_batch_norm_1d(5, &options), ls_nn_tanh(), linear(5, OUTPUTS, dtype));
}

static ls_tensor *to_image(ls_tensor *x, void *user) {
    (void)user;
    return ls_reshape(x, LS_SHAPE(ls_size(x, 0), 1, 2, INPUTS / 2));
}

static ls_module *make_convolutional(ls_dtype dtype) {
    const ls_batch_norm_options norm = {.dtype = dtype};
    return ls_sequential(
        ls_nn_function("Image", to_image, NULL),
        ls_nn_conv_2d(1, 4, LS_SHAPE(3), &(ls_conv_layer_options){.same = true, .dtype = dtype}),
        ls_nn_batch_norm_2d(4, &norm), ls_nn_tanh(),
        ls_nn_conv_transpose_2d(4, 4, LS_SHAPE(2),
                                &(ls_conv_transpose_layer_options){.stride = LS_SHAPE(2), .groups = 2, .dtype = dtype}),
        ls_nn_max_pool(&(ls_max_pool_options){.kernel = LS_SHAPE(2), .stride = LS_SHAPE(1)}),
        ls_nn_average_pool(
            &(ls_average_pool_options){.kernel = LS_SHAPE(3), .stride = LS_SHAPE(2), .padding = LS_SHAPE(1)}),
        ls_nn_batch_norm_2d(4, &norm), ls_nn_adaptive_average_pool(LS_SHAPE(1)), ls_nn_flatten(),
        linear(4, OUTPUTS, dtype));
}

/* Rows whose first number is positive also pass through `sometimes`. No row passes through `never`. */
typedef struct branches {
    ls_module *always;
    ls_module *never;
    ls_module *sometimes;
} branches;

static ls_tensor *branches_forward(ls_module *self, ls_tensor *input) {
    const branches *b = ls_module_state(self);
    ls_tensor *output = ls_forward(b->always, input);
    ls_tensor *chosen = ls_to(ls_gt(ls_narrow(input, 1, 0, 1), 0), ls_dtype_of(input));
    return ls_item(ls_max(chosen)) > 0 ? ls_add(output, ls_mul(ls_forward(b->sometimes, input), chosen)) : output;
}

static ls_module *make_branches(ls_dtype dtype) {
    static const ls_module_type type = {
        .name = "Branches", .state_size = sizeof(branches), .forward = branches_forward};
    ls_module *module = ls_module_new(&type);
    branches *b = ls_module_state(module);
    b->always = ls_module_add_child(module, "always", linear(INPUTS, OUTPUTS, dtype));
    b->never = ls_module_add_child(module, "never", linear(INPUTS, OUTPUTS, dtype));
    b->sometimes = ls_module_add_child(module, "sometimes", linear(INPUTS, OUTPUTS, dtype));
    return ls_module_finish(module);
}

/* Converts between parameters of two dtypes: a double-precision layer follows a single-precision layer. */
static ls_tensor *to_double(ls_tensor *x, void *user) {
    (void)user;
    return ls_to(x, LS_F64);
}

static ls_module *make_mixed(ls_dtype dtype) {
    (void)dtype;
    return ls_sequential(linear(INPUTS, 5, LS_F32), ls_nn_function("Double", to_double, NULL),
                         linear(5, OUTPUTS, LS_F64));
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

/*
 * Returns rows first to last - 1 of global batch `number`. The first element of a row is positive in the first
 * `positive` rows, and negative in the others.
 */
static ls_tensor *rows_of(int number, int64_t first, int64_t last, int64_t width, ls_dtype dtype, int64_t positive) {
    ls_tensor *rows = ls_empty(LS_SHAPE(last - first, width), dtype);
    for (int64_t i = 0; rows != NULL && i < ls_numel(rows); i++) {
        const double value = ls_random_normal(SEED, (uint64_t)(number * 100 + width), (uint64_t)(first * width + i));
        const bool leads = i % width == 0 && positive >= 0;
        numbers_set(rows, i, !leads ? value : first + i / width < positive ? fabs(value) : -fabs(value));
    }
    return rows;
}

/* The parameters of a training. */
typedef struct training {
    ls_module *(*make)(ls_dtype dtype);
    ls_dtype dtype;
    const int *batches; /* sizes of the global batches in order, terminated by 0 */
    int passes;         /* batches accumulated for each step of the optimizer */
    bool twice;         /* two forward passes for each backward pass */
    bool some_positive; /* the rows of the first rank begin with positive numbers, all others with negative ones */
    double tolerance;
} training;

/* A participant: a model, and its rows of each batch. */
typedef struct trainee {
    ls_module *model;
    ls_module *parallel; /* the model, if it is data-parallel, else NULL */
    ls_optimizer *optimizer;
    int rank;
    int size;
} trainee;

static int64_t share_begin(int batch, int rank, int size) {
    return (int64_t)batch * rank / size;
}

static ls_tensor *loss_of(const training *t, const trainee *who, int number, int batch, int world) {
    const int64_t first = share_begin(batch, who->rank, who->size);
    const int64_t last = share_begin(batch, who->rank + 1, who->size);
    const int64_t positive = t->some_positive ? share_begin(batch, 1, world) : -1;
    const ls_dtype in = t->make == make_mixed ? LS_F32 : t->dtype;
    ls_tensor *x = rows_of(number, first, last, INPUTS, in, positive);
    ls_tensor *y = rows_of(number, first, last, OUTPUTS, t->dtype, -1);
    return ls_mse_loss(ls_forward(who->model, x), y, LS_LOSS_MEAN);
}

static ls_status one_pass(const training *t, const trainee *who, int number, int batch, int world) {
    if (share_begin(batch, who->rank, who->size) == share_begin(batch, who->rank + 1, who->size)) {
        return ls_data_parallel_skip(who->parallel);
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *loss = loss_of(t, who, number, batch, world);
    if (t->twice) {
        loss = ls_add(loss, ls_mul(loss_of(t, who, number + 50, batch, world), 0.7));
    }
    const ls_status status = ls_backward(loss);
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

static ls_status train(const training *t, const trainee *who, int world) {
    for (int number = 0; t->batches[number] != 0;) {
        ls_optimizer_zero_grad(who->optimizer);
        for (int pass = 0; pass < t->passes; pass++, number++) {
            if (who->parallel != NULL && t->passes > 1) {
                LS_TRY(ls_data_parallel_no_sync(who->parallel, pass < t->passes - 1));
            }
            LS_TRY(one_pass(t, who, number, t->batches[number], world));
        }
        LS_TRY(ls_optimizer_step(who->optimizer));
    }
    return LS_OK;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static ls_status same_buffers(ls_comm *world, const ls_module *model) {
    for (int i = 0; i < ls_module_buffer_count(model); i++) {
        const ls_tensor *buffer = ls_module_buffer(model, i);
        for (int64_t at = 0; at < ls_numel(buffer); at++) {
            const double value = numbers_get(buffer, at);
            LS_TRY(ranks_have_same_bytes(world, &value, sizeof value));
        }
    }
    return LS_OK;
}

static ls_status close(const ls_tensor *is, const ls_tensor *want, double tolerance) {
    for (int64_t at = 0; at < ls_numel(want); at++) {
        const double difference = numbers_get(is, at) - numbers_get(want, at);
        if (!(fabs(difference) <= tolerance * (1 + fabs(numbers_get(want, at))))) {
            return ls_fail(LS_ERR_INTERNAL, "number %lld is %.17g, one process has %.17g", (long long)at,
                           numbers_get(is, at), numbers_get(want, at));
        }
    }
    return LS_OK;
}

static ls_status begin(trainee *who, ls_module *model, ls_module *parallel) {
    LS_CHECK(model != NULL);
    who->model = model;
    who->parallel = parallel;
    who->optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.01});
    LS_CHECK(who->optimizer != NULL);
    return LS_OK;
}

static void end(trainee *who) {
    ls_optimizer_free(who->optimizer);
    ls_module_free(who->model);
}

/* Trains on all ranks and alone. The caller frees both trainees, *all and *alone. */
static ls_status train_both(ls_comm *world, const training *t, trainee *all, trainee *alone) {
    const int rank = ls_comm_rank(world);
    const int size = ls_comm_size(world);
    *all = (trainee){.rank = rank, .size = size};
    *alone = (trainee){.rank = 0, .size = 1};
    ls_seed((uint64_t)(SEED + rank)); /* ranks start with different parameters, but rank 0's are used */
    ls_module *parallel = ls_data_parallel(t->make(t->dtype), world, NULL);
    LS_TRY(begin(all, parallel, parallel));
    ls_seed(SEED);
    LS_TRY(begin(alone, t->make(t->dtype), NULL));
    LS_CHECK(ls_module_hash(all->model) == ls_module_hash(alone->model));
    LS_TRY(train(t, all, size));
    LS_TRY(train(t, alone, size));
    return ranks_have_same_module(world, all->model);
}

static ls_status compare(ls_comm *world, const training *t) {
    trainee all;
    trainee alone;
    LS_TRY(train_both(world, t, &all, &alone));
    for (int i = 0; i < ls_module_parameter_count(alone.model); i++) {
        LS_TRY(close(ls_module_parameter(all.model, i), ls_module_parameter(alone.model, i), t->tolerance));
        LS_CHECK((ls_grad(ls_module_parameter(all.model, i)) != NULL) ==
                 (ls_grad(ls_module_parameter(alone.model, i)) != NULL));
    }
    end(&all);
    end(&alone);
    return LS_OK;
}

static ls_status compare_dtypes(ls_comm *world, training t) {
    t.dtype = LS_F64;
    t.tolerance = 1e-12;
    LS_TRY(compare(world, &t));
    t.dtype = LS_F32;
    t.tolerance = 2e-6;
    return compare(world, &t);
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

/* Divisible by all numbers of ranks, then different shares, then fewer samples than ranks. */
static const int usual_batches[] = {60, 120, 60, 60, 0};
static const int uneven_batches[] = {7, 12, 9, 5, 11, 0};
static const int small_batches[] = {1, 7, 2, 3, 1, 8, 0};

static ls_status equals_one_process(ls_comm *world) {
    const int *const batches[] = {usual_batches, uneven_batches, small_batches};
    for (int i = 0; i < 3; i++) {
        LS_TRY(compare_dtypes(world, (training){.make = make_mlp, .batches = batches[i], .passes = 1}));
        LS_TRY(compare(
            world,
            &(training){.make = make_mixed, .dtype = LS_F64, .batches = batches[i], .passes = 1, .tolerance = 2e-6}));
    }
    return compare_dtypes(world, (training){.make = make_mlp, .batches = small_batches, .passes = 1, .twice = true});
}

/* Statistics include the samples of all ranks, even if a rank's share is one sample or empty. */
static ls_status convolutions_equal_one_process(ls_comm *world) {
    const int *const batches[] = {usual_batches, uneven_batches, small_batches};
    for (int i = 0; i < 3; i++) {
        training t = {.make = make_convolutional, .batches = batches[i], .passes = 1};
        t.dtype = LS_F64;
        t.tolerance = 1e-10;
        LS_TRY(compare(world, &t));
        t.dtype = LS_F32;
        t.tolerance = 2e-4;
        LS_TRY(compare(world, &t));
    }
    return LS_OK;
}

static ls_status unused_parameters(ls_comm *world) {
    training t = {.make = make_branches, .batches = uneven_batches, .passes = 1, .some_positive = true};
    LS_TRY(compare_dtypes(world, t));
    t.batches = small_batches;
    LS_TRY(compare_dtypes(world, t));

    t.dtype = LS_F64;
    ls_seed(SEED);
    ls_module *untrained = make_branches(LS_F64);
    trainee all;
    trainee alone;
    LS_TRY(train_both(world, &t, &all, &alone));
    LS_CHECK(ls_grad(ls_module_find(all.model, "always.weight")) != NULL);
    LS_CHECK(ls_grad(ls_module_find(all.model, "never.weight")) == NULL);
    LS_CHECK(ls_equal(ls_module_find(all.model, "never.weight"), ls_module_find(untrained, "never.weight")));
    LS_CHECK(!ls_equal(ls_module_find(all.model, "sometimes.weight"), ls_module_find(untrained, "sometimes.weight")));
    ls_module_free(untrained);
    end(&all);
    end(&alone);
    return LS_OK;
}

/*
 * Accumulates three batches per step, each with a different distribution. On some ranks, the share of some batches, or
 * of the last batch, is empty.
 */
static ls_status gathered_passes(ls_comm *world) {
    static const int batches[] = {12, 7, 1, 1, 1, 12, 3, 2, 5, 0};
    training t = {.make = make_mlp, .batches = batches, .passes = 3};
    LS_TRY(compare_dtypes(world, t));
    t.twice = true;
    return compare_dtypes(world, t);
}

/* Under no_sync, gradients stay local. Afterwards they become equal. */
static ls_status no_sync_is_local(ls_comm *world) {
    const training t = {.make = make_mlp, .dtype = LS_F64, .batches = usual_batches, .passes = 1};
    trainee all = {.rank = ls_comm_rank(world), .size = ls_comm_size(world)};
    ls_module *parallel = ls_data_parallel(make_mlp(LS_F64), world, NULL);
    LS_TRY(begin(&all, parallel, parallel));
    const ls_tensor *weight = ls_module_parameter(parallel, 0);
    LS_TRY(ls_data_parallel_no_sync(parallel, true));
    LS_TRY(one_pass(&t, &all, 0, 12, all.size));
    double sides[2] = {numbers_get(ls_grad(weight), 0), -numbers_get(ls_grad(weight), 0)};
    LS_TRY(ls_comm_allreduce(world, sides, sides, 2, LS_F64, LS_MAX, NULL));
    LS_CHECK((sides[0] != -sides[1]) == (all.size > 1));
    LS_TRY(ls_data_parallel_no_sync(parallel, false));
    LS_TRY(one_pass(&t, &all, 1, 12, all.size));
    sides[0] = numbers_get(ls_grad(weight), 0);
    sides[1] = -sides[0];
    LS_TRY(ls_comm_allreduce(world, sides, sides, 2, LS_F64, LS_MAX, NULL));
    LS_CHECK(sides[0] == -sides[1]);
    end(&all);
    return LS_OK;
}

/* Every rank has the same running statistics, and the statistics of the inputs equal one process's. */
static ls_status running_statistics(ls_comm *world) {
    static const int batches[] = {11, 12, 10, 13, 0}; /* a rank needs two samples to compute statistics */
    const training t = {.make = make_normalised, .dtype = LS_F64, .batches = batches, .passes = 1};
    trainee all;
    trainee alone;
    LS_TRY(train_both(world, &t, &all, &alone));
    LS_TRY(same_buffers(world, all.model));
    LS_TRY(close(ls_module_find(all.model, "0.running_mean"), ls_module_find(alone.model, "0.running_mean"), 1e-12));
    LS_CHECK(numbers_get(ls_module_find(all.model, "2.running_var"), 0) != 1);
    end(&all);
    end(&alone);
    return LS_OK;
}

/* If no rank has samples, nothing is trained and no rank waits. */
static ls_status all_skip(ls_comm *world) {
    ls_module *model = ls_data_parallel(make_normalised(LS_F32), world, NULL);
    LS_CHECK(model != NULL);
    ls_optimizer *optimizer = ls_adamw(model, NULL);
    const uint64_t before = ls_module_hash(model);
    LS_TRY(ls_data_parallel_skip(model));
    LS_CHECK(ls_grad(ls_module_parameter(model, 0)) == NULL);
    LS_TRY(ls_optimizer_step(optimizer));
    LS_CHECK(ls_module_hash(model) == before);
    LS_TRY(same_buffers(world, model));
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

/*
 * Gradients are still averaged if the parameters move in memory because an optimizer is created for part of the model
 * or for a larger model.
 */
static ls_status laid_out_anew(ls_comm *world) {
    const training t = {.make = make_mlp, .dtype = LS_F64, .batches = uneven_batches, .passes = 1};
    trainee all = {.rank = ls_comm_rank(world), .size = ls_comm_size(world)};
    ls_seed((uint64_t)(SEED + all.rank));
    ls_module *end_of_model = linear(5, OUTPUTS, LS_F64);
    ls_module *parallel =
        ls_data_parallel(ls_sequential(linear(INPUTS, 5, LS_F64), ls_nn_tanh(), end_of_model), world, NULL);
    ls_module *front = linear(INPUTS, INPUTS, LS_F64);
    LS_CHECK(ls_nn_init_constant(ls_module_parameter(front, 0), 0.25) == LS_OK);
    LS_CHECK(ls_nn_init_constant(ls_module_parameter(front, 1), 0) == LS_OK);
    LS_CHECK(ls_set_requires_grad(ls_module_parameter(front, 0), false) == LS_OK);
    LS_CHECK(ls_set_requires_grad(ls_module_parameter(front, 1), false) == LS_OK);
    LS_TRY(begin(&all, ls_sequential(front, parallel), parallel));
    LS_TRY(train(&t, &all, all.size));
    LS_TRY(ranks_have_same_module(world, all.model));
    ls_optimizer *part = ls_sgd(end_of_model, NULL);
    LS_CHECK(part != NULL);
    LS_TRY(train(&t, &all, all.size));
    LS_TRY(ls_optimizer_step(part));
    LS_TRY(ranks_have_same_module(world, all.model));
    ls_optimizer_free(part);
    end(&all);
    return LS_OK;
}

/* Fine-tuning with dropout and running statistics frozen: gradients flow in evaluation mode, and become equal. */
static ls_status evaluation_mode(ls_comm *world) {
    const training t = {.make = make_mlp, .dtype = LS_F64, .batches = usual_batches, .passes = 1};
    trainee all = {.rank = ls_comm_rank(world), .size = ls_comm_size(world)};
    ls_module *parallel = ls_data_parallel(make_mlp(LS_F64), world, NULL);
    LS_TRY(begin(&all, parallel, parallel));
    ls_module_train(parallel, false);
    LS_TRY(one_pass(&t, &all, 0, 12, all.size));
    LS_TRY(ls_optimizer_step(all.optimizer));
    LS_TRY(ranks_have_same_module(world, parallel));
    end(&all);
    return LS_OK;
}

static ls_status without_initial_sync(ls_comm *world) {
    const ls_data_parallel_options options = {.no_initial_sync = true};
    ls_seed((uint64_t)(SEED + ls_comm_rank(world)));
    ls_module *plain = make_mlp(LS_F32);
    const uint64_t hash = ls_module_hash(plain);
    ls_module *model = ls_data_parallel(plain, world, &options);
    LS_CHECK(model != NULL && ls_module_hash(model) == hash);
    LS_CHECK(ls_data_parallel_comm(model) == world);
    ls_module_free(model);
    return LS_OK;
}

static ls_status wrong_input(ls_comm *world) {
    LS_CHECK(ls_data_parallel(NULL, world, NULL) == NULL);
    LS_CHECK(ls_error_status() == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("is NULL");
    LS_CHECK(ls_data_parallel(make_mlp(LS_F32), NULL, NULL) == NULL && ls_error_status() == LS_ERR_ARGUMENT);
    LS_CHECK(ls_data_parallel(ls_nn_relu(), world, NULL) == NULL);
    LS_EXPECT_MESSAGE("no parameters");
    LS_CHECK(ls_data_parallel(make_mlp(LS_BF16), world, NULL) == NULL && ls_error_status() == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE("bf16");
    ls_module *plain = make_mlp(LS_F32);
    LS_CHECK(ls_data_parallel_no_sync(plain, true) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("was not created by ls_data_parallel");
    LS_CHECK(ls_data_parallel_skip(plain) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_data_parallel_no_sync(NULL, true) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_data_parallel_skip(NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_data_parallel_comm(plain) == NULL && ls_data_parallel_comm(NULL) == NULL);
    ls_module_free(plain);
    return LS_OK;
}

/* Ranks whose models have different sizes all get an error. */
static ls_status models_that_differ(ls_comm *world) {
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    const int64_t width = ls_comm_rank(world) == 1 ? 40 : 4;
    LS_CHECK(ls_data_parallel(ls_nn_linear(3, width), world, NULL) == NULL && ls_error_status() == LS_ERR_MISMATCH);
    const ls_data_parallel_options options = {.no_initial_sync = true};
    LS_CHECK(ls_data_parallel(ls_nn_linear(3, width), world, &options) == NULL);
    LS_CHECK(ls_error_status() == LS_ERR_MISMATCH);
    return LS_OK;
}

/* A model is moved to a different device after ls_data_parallel: every rank gets an error, and no rank crashes. */
static ls_status moved_afterwards(ls_comm *world) {
    const char *own = ls_default_device(), *other = strcmp(own, "cpu") == 0 ? "shadow:0" : "cpu";
    ls_module *model = ls_data_parallel(ls_nn_linear(2, 1), world, NULL);
    LS_CHECK(ls_to_device(model, other) == model);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_to_device(ls_ones(LS_SHAPE(3, 2), LS_F32), other);
    const ls_status status = ls_backward(ls_mean(ls_forward(model, x)));
    LS_CHECK(ls_comm_size(world) > 1 || status == LS_OK); /* a single rank has nothing to average */
    LS_CHECK(ls_comm_size(world) == 1 ||
             (status == LS_ERR_STATE && strstr(ls_error_message(), "move it before ls_data_parallel") != NULL));
    (void)ls_scope_end(scope);
    ls_module_free(model);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(wrong_input(world));
    LS_TRY(equals_one_process(world));
    LS_TRY(convolutions_equal_one_process(world));
    LS_TRY(unused_parameters(world));
    LS_TRY(gathered_passes(world));
    LS_TRY(no_sync_is_local(world));
    LS_TRY(running_statistics(world));
    LS_TRY(all_skip(world));
    LS_TRY(laid_out_anew(world));
    LS_TRY(evaluation_mode(world));
    LS_TRY(without_initial_sync(world));
    LS_TRY(models_that_differ(world));
    LS_TRY(moved_afterwards(world));
    return ls_comm_barrier(world, NULL);
}
