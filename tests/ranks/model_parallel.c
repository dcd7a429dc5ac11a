/*
 * Layers and models sharded over ranks give the same results as in a single process: forward, backward, and over
 * several training steps.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>

enum { BATCH = 6, IN = 5, HIDDEN = 7, OUT = 4, ROWS = 9 };

static const ls_linear_options in_f64 = {.dtype = LS_F64};
static const ls_parallel_linear_options parts_in_f64 = {.dtype = LS_F64};

/* Returns whether `part` is close to the slice of `whole` that begins at `start` along the axis. */
static bool is_part(const ls_tensor *part, ls_tensor *whole, int axis, int64_t start) {
    ls_tensor *own = axis >= 0 ? ls_narrow(whole, axis, start, ls_size(part, axis)) : whole;
    return part != NULL && ls_allclose(part, ls_contiguous(own), 1e-5, 1e-6);
}

/* Returns the start of this rank's part of `size`. */
static int64_t start_of(const ls_comm *comm, int64_t size) {
    const int64_t rank = ls_comm_rank(comm);
    const int64_t more = size % ls_comm_size(comm);
    return size / ls_comm_size(comm) * rank + (rank < more ? rank : more);
}

static ls_tensor *look(ls_module *model, ls_tensor *x) {
    const bool before = ls_no_grad(true);
    ls_tensor *y = ls_forward(model, x);
    (void)ls_no_grad(before);
    return y;
}

static ls_status backward(ls_module *model, ls_tensor *x) {
    return ls_backward(ls_mean(ls_square(ls_add(ls_forward(model, x), 0.5))));
}

/*
 * Checks that the parameter `name` of the sharded model, and its gradient, are slices of the parameter and the gradient
 * of the whole model.
 */
static ls_status compare(const ls_comm *comm, const ls_module *divided, const char *name, const ls_module *whole,
                         const char *whole_name, int axis) {
    ls_tensor *part = ls_module_find(divided, name);
    ls_tensor *all = ls_module_find(whole, whole_name);
    LS_CHECK(part != NULL && all != NULL);
    const int64_t start = axis >= 0 ? start_of(comm, ls_size(all, axis)) : 0;
    LS_CHECK(is_part(ls_detach(part), ls_detach(all), axis, start));
    LS_CHECK(ls_grad(part) != NULL && is_part(ls_grad(part), ls_grad(all), axis, start));
    return LS_OK;
}

/* A column-parallel layer, an activation, and a row-parallel layer: this pair needs two exchanges. Trained for some
 * steps. */
static ls_status columns_and_rows(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_seed(5);
    ls_module *whole = ls_sequential(ls_nn_linear_with(IN, IN, &in_f64), ls_nn_linear_with(IN, HIDDEN, &in_f64),
                                     ls_nn_tanh(), ls_nn_linear_with(HIDDEN, OUT, &in_f64));
    ls_seed(5);
    ls_module *divided =
        ls_sequential(ls_nn_linear_with(IN, IN, &in_f64), ls_nn_column_parallel(world, IN, HIDDEN, &parts_in_f64),
                      ls_nn_tanh(), ls_nn_row_parallel(world, HIDDEN, OUT, &parts_in_f64));
    ls_optimizer *optimizers[] = {ls_sgd(whole, &(ls_sgd_options){.learning_rate = 0.1}),
                                  ls_sgd(divided, &(ls_sgd_options){.learning_rate = 0.1})};
    LS_CHECK(optimizers[0] != NULL && optimizers[1] != NULL);
    for (int step = 0; step < 3; step++) {
        ls_tensor *x = ls_randn(LS_SHAPE(BATCH, IN), LS_F64);
        ls_optimizer_zero_grad(optimizers[0]);
        ls_optimizer_zero_grad(optimizers[1]);
        LS_CHECK(ls_allclose(look(divided, x), look(whole, x), 1e-12, 1e-12));
        LS_TRY(backward(whole, x));
        LS_TRY(backward(divided, x));
        LS_TRY(compare(world, divided, "0.weight", whole, "0.weight", -1));
        LS_TRY(compare(world, divided, "1.weight", whole, "1.weight", 0));
        LS_TRY(compare(world, divided, "1.bias", whole, "1.bias", 0));
        LS_TRY(compare(world, divided, "3.weight", whole, "3.weight", 1));
        LS_TRY(compare(world, divided, "3.bias", whole, "3.bias", -1));
        LS_TRY(ls_optimizer_step(optimizers[0]));
        LS_TRY(ls_optimizer_step(optimizers[1]));
    }
    for (int i = 0; i < 2; i++) {
        ls_optimizer_free(optimizers[i]);
    }
    ls_module_free(whole);
    ls_module_free(divided);
    return ls_scope_end(scope);
}

/* A column-parallel layer whose outputs are gathered, followed by a layer that is not sharded. */
static ls_status columns_put_together(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_seed(6);
    ls_module *whole = ls_sequential(ls_nn_linear_with(IN, HIDDEN, &in_f64), ls_nn_linear_with(HIDDEN, OUT, &in_f64));
    ls_seed(6);
    ls_module *divided = ls_sequential(ls_nn_column_parallel(world, IN, HIDDEN, &parts_in_f64),
                                       ls_nn_gather_parallel(world), ls_nn_linear_with(HIDDEN, OUT, &in_f64));
    ls_tensor *x = ls_randn(LS_SHAPE(BATCH, IN), LS_F64);
    LS_TRY(backward(whole, x));
    LS_TRY(backward(divided, x));
    LS_TRY(compare(world, divided, "0.weight", whole, "0.weight", 0));
    LS_TRY(compare(world, divided, "2.weight", whole, "1.weight", -1));
    ls_module_free(whole);
    ls_module_free(divided);
    return ls_scope_end(scope);
}

static ls_status embedding(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_seed(7);
    ls_module *whole = ls_nn_embedding(ROWS, 3);
    ls_seed(7);
    ls_module *divided = ls_nn_parallel_embedding(world, ROWS, 3);
    ls_tensor *index = ls_randint(LS_SHAPE(4, 5), LS_I64, 0, ROWS);
    LS_CHECK(ls_equal(look(whole, index), look(divided, index)));
    LS_TRY(backward(whole, index));
    LS_TRY(backward(divided, index));
    LS_TRY(compare(world, divided, "weight", whole, "weight", 0));
    LS_CHECK(ls_forward(divided, ls_full(LS_SHAPE(1), LS_I64, ROWS)) == NULL);
    LS_EXPECT_MESSAGE("index 9 is not one of 9 rows");
    (void)ls_scope_end(scope);
    scope = ls_scope_begin();
    LS_CHECK(ls_forward(divided, ls_full(LS_SHAPE(1), LS_F32, 1.5)) == NULL);
    LS_EXPECT_MESSAGE("the index is a tensor of f32, but must be i64 or i32");
    ls_module_free(whole);
    ls_module_free(divided);
    (void)ls_scope_end(scope);
    return LS_OK;
}

/*
 * The model is sharded over pairs of ranks, and each pair has some of the samples, beginning with `first`. With
 * `drops`, there is dropout between the layers.
 */
static ls_status divided_model_on_divided_data(ls_comm *world, int64_t first, bool drops) {
    if (ls_comm_size(world) != 4) {
        return LS_OK;
    }
    ls_comm *pair = NULL;
    ls_comm *same_part = NULL;
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) / 2, 0, &pair));
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) % 2, 0, &same_part));
    ls_scope *scope = ls_scope_begin();
    ls_seed(8);
    ls_module *whole = ls_sequential(ls_nn_linear_with(IN, HIDDEN, &in_f64), drops ? ls_nn_dropout(0.4) : ls_nn_relu(),
                                     ls_nn_linear_with(HIDDEN, OUT, &in_f64));
    ls_tensor *x = ls_randn(LS_SHAPE(BATCH, IN), LS_F64);
    ls_seed(14);
    LS_TRY(backward(whole, x));
    ls_seed(8);
    ls_module *divided = ls_data_parallel(ls_sequential(ls_nn_column_parallel(pair, IN, HIDDEN, &parts_in_f64),
                                                        drops ? ls_nn_parallel_dropout(pair, 0.4) : ls_nn_relu(),
                                                        ls_nn_row_parallel(pair, HIDDEN, OUT, &parts_in_f64)),
                                          same_part, NULL);
    LS_CHECK(divided != NULL);
    ls_seed(14);
    LS_TRY(backward(divided,
                    ls_comm_rank(same_part) == 0 ? ls_narrow(x, 0, 0, first) : ls_narrow(x, 0, first, BATCH - first)));
    LS_TRY(compare(pair, divided, "0.weight", whole, "0.weight", 0));
    LS_TRY(compare(pair, divided, "2.weight", whole, "2.weight", 1));
    LS_TRY(compare(pair, divided, "2.bias", whole, "2.bias", -1));
    ls_module_free(whole);
    ls_module_free(divided);
    LS_TRY(ls_scope_end(scope));
    ls_comm_free(pair);
    ls_comm_free(same_part);
    return LS_OK;
}

/*
 * Dropout of sharded activations gives a slice of the dropout of whole activations. Dropout of whole activations is
 * equal on all ranks.
 */
static ls_status dropped_layers(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_seed(11);
    ls_module *whole = ls_sequential(ls_nn_linear_with(IN, HIDDEN, &in_f64), ls_nn_dropout(0.4),
                                     ls_nn_linear_with(HIDDEN, OUT, &in_f64), ls_nn_dropout(0.3));
    ls_seed(11);
    ls_module *divided =
        ls_sequential(ls_nn_column_parallel(world, IN, HIDDEN, &parts_in_f64), ls_nn_parallel_dropout(world, 0.4),
                      ls_nn_row_parallel(world, HIDDEN, OUT, &parts_in_f64), ls_nn_dropout(0.3));
    for (int rows = 1; rows <= 5; rows += 2) {
        ls_tensor *x = ls_randn(LS_SHAPE(rows, 2, IN), LS_F64);
        ls_module_zero_grad(whole);
        ls_module_zero_grad(divided);
        ls_seed(12);
        LS_TRY(backward(whole, x));
        ls_seed(12);
        LS_TRY(backward(divided, x));
        LS_TRY(compare(world, divided, "0.weight", whole, "0.weight", 0));
        LS_TRY(compare(world, divided, "2.weight", whole, "2.weight", 1));
        LS_TRY(compare(world, divided, "2.bias", whole, "2.bias", -1));
    }
    ls_module_train(divided, false);
    ls_module_train(whole, false);
    ls_tensor *x = ls_randn(LS_SHAPE(BATCH, IN), LS_F64);
    LS_CHECK(ls_allclose(look(divided, x), look(whole, x), 1e-12, 1e-12));
    LS_CHECK(ls_nn_parallel_dropout(NULL, 0.5) == NULL && ls_nn_parallel_dropout(world, 2) == NULL);
    ls_module_free(whole);
    ls_module_free(divided);
    return ls_scope_end(scope);
}

/* One dropout module follows layers of two widths, which are sharded only on some ranks. */
static ls_status dropped_widths(ls_comm *world) {
    const int64_t widths[] = {3 * ls_comm_size(world) + 1, 3 * ls_comm_size(world) + 2};
    ls_scope *scope = ls_scope_begin();
    ls_module *layers[2][6];
    ls_module *dropouts[] = {ls_nn_dropout(0.4), ls_nn_parallel_dropout(world, 0.4)};
    ls_seed(11);
    for (int i = 0; i < 2; i++) {
        layers[0][3 * i] = ls_nn_linear_with(IN, widths[i], &in_f64);
        layers[0][3 * i + 1] = dropouts[0];
        layers[0][3 * i + 2] = ls_nn_linear_with(widths[i], IN, &in_f64);
    }
    ls_seed(11);
    for (int i = 0; i < 2; i++) {
        layers[1][3 * i] = ls_nn_column_parallel(world, IN, widths[i], &parts_in_f64);
        layers[1][3 * i + 1] = dropouts[1];
        layers[1][3 * i + 2] = ls_nn_row_parallel(world, widths[i], IN, &parts_in_f64);
    }
    ls_module *whole = ls_sequential_of(layers[0], 6);
    ls_module *divided = ls_sequential_of(layers[1], 6);
    ls_tensor *x = ls_randn(LS_SHAPE(BATCH, IN), LS_F64);
    for (int pass = 0; pass < 2; pass++) {
        ls_seed(12);
        ls_tensor *want = look(whole, x);
        ls_seed(12);
        LS_CHECK(ls_allclose(look(divided, x), want, 1e-9, 1e-12));
    }
    ls_module_free(whole);
    ls_module_free(divided);
    return ls_scope_end(scope);
}

/* ---- the norm of all gradients ----------------------------------------------------------------------------------- */

static ls_status same_bits(ls_comm *world, double number) {
    double sides[2] = {number, -number};
    LS_TRY(ls_comm_allreduce(world, sides, sides, 2, LS_F64, LS_MAX, NULL));
    LS_CHECK(sides[0] == -sides[1]);
    return LS_OK;
}

/* Clips the gradients of both models, so that some of them shrink. The norms of both models are equal, on all ranks. */
static ls_status clip_both(ls_comm *world, ls_module *divided, ls_module *whole) {
    double norms[2];
    LS_TRY(ls_clip_grad_norm(whole, 0.01, &norms[0]));
    LS_TRY(ls_clip_grad_norm(divided, 0.01, &norms[1]));
    LS_CHECK(norms[0] > 0.02 && fabs(norms[1] - norms[0]) < 1e-12 * norms[0]);
    return same_bits(world, norms[1]);
}

static ls_status clipped_layers(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_seed(9);
    ls_module *whole = ls_sequential(ls_nn_linear_with(IN, IN, &in_f64), ls_nn_linear_with(IN, HIDDEN, &in_f64),
                                     ls_nn_tanh(), ls_nn_linear_with(HIDDEN, OUT, &in_f64));
    ls_seed(9);
    ls_module *divided =
        ls_sequential(ls_nn_linear_with(IN, IN, &in_f64), ls_nn_column_parallel(world, IN, HIDDEN, &parts_in_f64),
                      ls_nn_tanh(), ls_nn_row_parallel(world, HIDDEN, OUT, &parts_in_f64));
    ls_tensor *x = ls_randn(LS_SHAPE(BATCH, IN), LS_F64);
    LS_TRY(backward(whole, x));
    LS_TRY(backward(divided, x));
    LS_TRY(clip_both(world, divided, whole));
    LS_TRY(compare(world, divided, "0.weight", whole, "0.weight", -1));
    LS_TRY(compare(world, divided, "1.weight", whole, "1.weight", 0));
    LS_TRY(compare(world, divided, "3.weight", whole, "3.weight", 1));
    LS_TRY(compare(world, divided, "3.bias", whole, "3.bias", -1));
    ls_module_free(whole);
    ls_module_free(divided);
    return ls_scope_end(scope);
}

/* A pipeline over `stages`, with layers sharded over `pair` (may be NULL). */
static ls_status clip_pipeline(ls_comm *world, ls_comm *stages, ls_comm *pair) {
    ls_scope *scope = ls_scope_begin();
    const int width = 8;
    ls_module *layers[2][8];
    const int count = ls_comm_size(stages) + 1;
    ls_seed(10);
    for (int i = 0; i < count; i++) {
        layers[0][i] = ls_nn_linear_with(width, width, &in_f64);
    }
    ls_seed(10);
    for (int i = 0; i < count; i++) { /* two layers form a sharded stage */
        layers[1][i] = pair == NULL ? ls_nn_linear_with(width, width, &in_f64)
                       : i % 2 == 0 ? ls_sequential(ls_nn_column_parallel(pair, width, width, &parts_in_f64),
                                                    ls_nn_gather_parallel(pair))
                                    : ls_nn_linear_with(width, width, &in_f64);
    }
    ls_module *whole = ls_sequential_of(layers[0], count);
    ls_module *divided = ls_pipeline(ls_sequential_of(layers[1], count), stages, NULL);
    LS_CHECK(divided != NULL);
    ls_tensor *x = ls_randn(LS_SHAPE(BATCH, width), LS_F64);
    ls_tensor *y = ls_randn(LS_SHAPE(BATCH, width), LS_F64);
    LS_TRY(ls_backward(ls_mse_loss(ls_forward(whole, x), y, LS_LOSS_MEAN)));
    LS_TRY(ls_pipeline_backward(divided, x, y, ls_criterion_mse, NULL, NULL));
    LS_TRY(clip_both(world, divided, whole));
    ls_module_free(whole);
    ls_module_free(divided);
    return ls_scope_end(scope);
}

static ls_status clipped_pipelines(ls_comm *world) {
    LS_TRY(clip_pipeline(world, world, NULL));
    if (ls_comm_size(world) != 4) {
        return LS_OK;
    }
    ls_comm *pair = NULL;
    ls_comm *stages = NULL;
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) / 2, 0, &pair));
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) % 2, 0, &stages));
    LS_TRY(clip_pipeline(world, stages, pair));
    ls_comm_free(pair);
    ls_comm_free(stages);
    return LS_OK;
}

static ls_tensor *to_bf16(ls_tensor *x, void *user) {
    (void)user;
    return ls_to(x, LS_BF16);
}

static ls_tensor *loss_in_f32(ls_tensor *y, ls_tensor *target, void *user) {
    (void)user;
    return ls_mse_loss(ls_to(y, LS_F32), target, LS_LOSS_MEAN);
}

/* If the gradients of one stage cannot be clipped, no rank clips its gradients, and no rank waits. */
static ls_status one_stage_in_bf16(ls_comm *world) {
    enum { MOST = 8 };
    const int count = ls_comm_size(world), last = ls_comm_rank(world) == count - 1;
    ls_module *layers[MOST];
    int cut[MOST];
    for (int i = 0; i < count; i++) {
        layers[i] = i < count - 1 ? ls_nn_linear(IN, IN)
                                  : ls_sequential(ls_nn_function("ToBf16", to_bf16, NULL),
                                                  ls_nn_linear_with(IN, IN, &(ls_linear_options){.dtype = LS_BF16}));
        cut[i] = i + 1;
    }
    ls_scope *scope = ls_scope_begin();
    ls_module *model = ls_pipeline(ls_sequential_of(layers, count), world, &(ls_pipeline_options){.cut = cut});
    LS_CHECK(model != NULL);
    ls_tensor *x = ls_ones(LS_SHAPE(BATCH, IN), LS_F32);
    LS_TRY(ls_pipeline_backward(model, x, ls_zeros(LS_SHAPE(BATCH, IN), LS_F32), loss_in_f32, NULL, NULL));
    ls_tensor *gradient = ls_grad(ls_module_parameter(model, 0));
    ls_tensor *before = ls_clone(gradient);
    LS_CHECK(ls_clip_grad_norm(model, 1e-3, NULL) == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE(last ? "is bf16, but must be f32 or f64" : "another rank");
    LS_CHECK(ls_equal(gradient, before));
    ls_module_free(model);
    return ls_scope_end(scope);
}

/* After the sharded model was freed, the remaining parameters belong only to this rank. */
static ls_status clipped_afterwards(ls_comm *world) {
    ls_comm *part = NULL;
    LS_TRY(ls_comm_split(world, 0, 0, &part));
    const int count = ls_comm_size(part), rank = ls_comm_rank(part);
    ls_scope *scope = ls_scope_begin();
    ls_module *stage = ls_nn_linear(IN, IN);
    ls_module *layers[8];
    for (int i = 0; i < count; i++) {
        layers[i] = i == rank ? ls_module_retain(stage) : ls_nn_linear(IN, IN);
    }
    ls_module *pipeline = ls_pipeline(ls_sequential_of(layers, count), part, NULL);
    ls_module *columns = ls_nn_column_parallel(part, IN, count, &(ls_parallel_linear_options){.no_bias = true});
    LS_CHECK(pipeline != NULL && columns != NULL);
    ls_module *tied = ls_nn_linear(IN, 1);
    ls_tensor *weight = ls_module_add_parameter(tied, "columns", ls_module_parameter(columns, 0));
    ls_module_free(pipeline);
    ls_module_free(columns);
    ls_comm_free(part);
    ls_tensor *y = ls_forward(stage, ls_ones(LS_SHAPE(BATCH, IN), LS_F32));
    LS_TRY(ls_backward(ls_mul(ls_add(ls_mean(y), ls_mean(weight)), rank + 1)));
    for (int i = 0; i < 2; i++) {
        double norm = 0;
        LS_TRY(ls_clip_grad_norm(i == 0 ? stage : tied, 1, &norm));
        LS_CHECK(i == 0 || fabs(norm - (rank + 1) / sqrt(IN)) < 1e-6);
    }
    ls_module_free(stage);
    ls_module_free(tied);
    return ls_scope_end(scope);
}

static ls_status wrong_input(ls_comm *world) {
    LS_CHECK(ls_nn_column_parallel(NULL, 1, 1, NULL) == NULL);
    LS_EXPECT_MESSAGE("ls_nn_column_parallel: the communicator is NULL");
    LS_CHECK(ls_nn_row_parallel(world, 0, 1, NULL) == NULL);
    LS_CHECK(ls_nn_parallel_embedding(world, 0, 1) == NULL);
    return LS_OK;
}

/* ---- ranks with different samples or seeds ----------------------------------------------------------------------- */

/* Checks that a step failed with a message that contains `text`. With one rank, checks that the step succeeded. */
static ls_status expect_difference(const ls_comm *world, ls_status status, const char *text) {
    LS_CHECK(status == (ls_comm_size(world) > 1 ? LS_ERR_MISMATCH : LS_OK));
    LS_CHECK(status == LS_OK || (strstr(ls_error_message(), text) != NULL &&
                                 strstr(ls_error_message(), "give the loader no .comm") != NULL));
    return LS_OK;
}

/* Runs a step of a model, and ignores the failure of the scope. */
static ls_status step_in_scope(ls_module *model, ls_tensor *x) {
    ls_scope *scope = ls_scope_begin();
    const ls_status status = backward(model, x);
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

/* The input is contiguous or transposed, and has fewer or more elements than a fingerprint reads. */
static ls_status different_samples(ls_comm *world, ls_dtype dtype, int64_t rows, bool transposed) {
    ls_scope *scope = ls_scope_begin();
    ls_seed(5);
    ls_module *model = ls_nn_column_parallel(world, IN, HIDDEN, &(ls_parallel_linear_options){.dtype = dtype});
    ls_tensor *x = ls_randn(transposed ? LS_SHAPE(IN, rows) : LS_SHAPE(rows, IN), dtype);
    x = transposed ? ls_transpose(x, 0, 1) : x;
    LS_TRY(step_in_scope(model, x));
    LS_TRY(expect_difference(world, step_in_scope(model, ls_mul(x, 1 + ls_comm_rank(world))),
                             "ls_nn_column_parallel: the input differs between ranks 0 and 1: "));
    ls_tensor *shifted = ls_concat((ls_tensor *[]){ls_narrow(x, 0, 1, rows - 1), ls_narrow(x, 0, 0, 1)}, 2, 0);
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    LS_TRY(expect_difference(world, step_in_scope(model, last ? shifted : x),
                             "ls_nn_column_parallel: the input differs between ranks 0 and "));
    LS_TRY(step_in_scope(model, x));
    if (dtype == LS_F32) { /* as if the ranks rounded differently */
        LS_TRY(step_in_scope(model, ls_mul(x, 1 + 1e-6 * ls_comm_rank(world))));
    }
    ls_module_free(model);
    return ls_scope_end(scope);
}

/* The index of a parallel embedding is compared exactly, and its errors name no other layer. */
static ls_status different_indices(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_module *model = ls_nn_parallel_embedding(world, ROWS, 3);
    ls_tensor *same = ls_full(LS_SHAPE(64), LS_I64, 1);
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    ls_tensor *index =
        last ? ls_concat((ls_tensor *[]){ls_narrow(same, 0, 0, 63), ls_zeros(LS_SHAPE(1), LS_I64)}, 2, 0) : same;
    LS_TRY(step_in_scope(model, same));
    LS_TRY(expect_difference(world, step_in_scope(model, index), "ls_nn_parallel_embedding: the index differs"));
    LS_CHECK(step_in_scope(model, ls_full(LS_SHAPE(64), LS_I64, 1000)) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("ls_nn_parallel_embedding: index 1000 is not one of");
    LS_CHECK(strstr(ls_error_message(), "is NULL") == NULL);
    LS_TRY(step_in_scope(model, same));
    ls_module_free(model);
    return ls_scope_end(scope);
}

static ls_status different_seeds(ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_ones(LS_SHAPE(BATCH, IN), LS_F32);
    ls_tensor *index = ls_full(LS_SHAPE(BATCH), LS_I64, ls_comm_rank(world));
    ls_seed(5 + (uint64_t)ls_comm_rank(world));
    ls_module *models[] = {
        ls_sequential(ls_nn_linear(IN, IN), ls_nn_column_parallel(world, IN, HIDDEN, NULL)),
        ls_sequential(ls_nn_column_parallel(world, IN, HIDDEN, NULL), ls_nn_row_parallel(world, HIDDEN, OUT, NULL)),
        ls_nn_parallel_embedding(world, ROWS, 3)};
    LS_TRY(expect_difference(world, step_in_scope(models[0], x), "ls_nn_column_parallel: the input differs"));
    LS_TRY(expect_difference(world, step_in_scope(models[1], x), "ls_nn_row_parallel: the bias differs"));
    LS_TRY(expect_difference(world, step_in_scope(models[2], index), "ls_nn_parallel_embedding: the index differs"));
    for (int i = 0; i < 3; i++) {
        ls_module_free(models[i]);
    }
    return ls_scope_end(scope);
}

/* A trial whose loader divides each batch over the ranks of the layers. The shares have the same shape, or not. */
static ls_status divided_batches(ls_comm *world, int64_t batch_size, const char *says) {
    ls_scope *scope = ls_scope_begin();
    ls_seed(5);
    ls_loader *loader =
        ls_loader_new(ls_tensor_dataset(ls_randn(LS_SHAPE(120, IN), LS_F32), ls_randn(LS_SHAPE(120, OUT), LS_F32)),
                      &(ls_loader_options){.global_batch_size = batch_size, .comm = world});
    ls_module *model =
        ls_sequential(ls_nn_column_parallel(world, IN, HIDDEN, NULL), ls_nn_row_parallel(world, HIDDEN, OUT, NULL));
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1});
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = ls_criterion_mse,
                                                       .train = loader,
                                                       .comm = world,
                                                       .quiet = true});
    LS_CHECK(trial != NULL);
    LS_TRY(expect_difference(world, ls_trial_run(trial, 1), says));
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(loader);
    return ls_scope_end(scope);
}

/* Stages 2 and 3 of data parallelism reject layers that communicate. */
static ls_status sharded_gradients(ls_comm *world) {
    if (ls_comm_size(world) != 4) {
        return LS_OK;
    }
    ls_comm *layers, *data;
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) / 2, 0, &layers));
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) % 2, 0, &data));
    for (int zero = 1; zero <= 3; zero++) {
        ls_scope *scope = ls_scope_begin();
        ls_seed(5);
        ls_module *model = ls_data_parallel(ls_sequential(ls_nn_column_parallel(layers, IN, HIDDEN, NULL),
                                                          ls_nn_row_parallel(layers, HIDDEN, OUT, NULL)),
                                            data, &(ls_data_parallel_options){.zero = zero});
        const ls_status status = step_in_scope(model, ls_ones(LS_SHAPE(BATCH, IN), LS_F32));
        LS_CHECK(status == (zero == 1 ? LS_OK : LS_ERR_UNSUPPORTED));
        LS_CHECK(zero == 1 ||
                 strstr(ls_error_message(), ".zero = 2 and 3 do not support layers that communicate") != NULL);
        ls_module_free(model);
        LS_TRY(ls_scope_end(scope));
    }
    ls_comm_free(layers);
    ls_comm_free(data);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(columns_and_rows(world));
    LS_TRY(columns_put_together(world));
    LS_TRY(embedding(world));
    LS_TRY(divided_model_on_divided_data(world, BATCH / 2, false));
    LS_TRY(dropped_layers(world));
    LS_TRY(dropped_widths(world));
    LS_TRY(divided_model_on_divided_data(world, 4, true));
    LS_TRY(clipped_layers(world));
    LS_TRY(clipped_pipelines(world));
    LS_TRY(one_stage_in_bf16(world));
    LS_TRY(clipped_afterwards(world));
    LS_TRY(wrong_input(world));
    for (int i = 0; i < 8; i++) {
        LS_TRY(different_samples(world, i % 2 != 0 ? LS_F64 : LS_F32, i % 4 < 2 ? BATCH : 1000, i >= 4));
    }
    LS_TRY(different_seeds(world));
    LS_TRY(different_indices(world));
    LS_TRY(divided_batches(world, 60, "ls_nn_column_parallel: the input differs"));
    LS_TRY(divided_batches(world, 61, "ls_nn_column_parallel: rank 0 passes ["));
    LS_TRY(sharded_gradients(world));
    return ls_comm_barrier(world, NULL);
}
