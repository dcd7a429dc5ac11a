/*
 * Tapes of data-parallel modules on any number of ranks: tapes that outlive a scope, a pass or the module, tapes with
 * other data alongside the samples, and samples with one axis. Gradients equal the gradients of one process.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <lockstep/parallel.h>

enum { INPUTS = 6, OUTPUTS = 3, SEED = 40 };

/* A model whose parameters outlive the enclosing module. */
static ls_module *make_retained(bool normalised, ls_module **stays) {
    const ls_linear_options wide = {.dtype = LS_F64};
    const ls_batch_norm_options norm = {.dtype = LS_F64};
    ls_seed(SEED);
    ls_module *first = ls_nn_linear_with(INPUTS, 5, &wide), *last = ls_nn_linear_with(5, OUTPUTS, &wide);
    *stays = ls_module_retain(normalised ? ls_sequential(ls_nn_batch_norm_1d(INPUTS, &norm), first,
                                                         ls_nn_batch_norm_1d(5, &norm), ls_nn_tanh(), last)
                                         : ls_sequential(first, ls_nn_tanh(), last));
    return *stays;
}

/* ---- tapes that outlive something -------------------------------------------------------------------------------- */

typedef enum later { KEPT_LOSS, KEPT_TAPE, FREED_MODULE, LATER } later;

/*
 * Runs a pass of `model` after the scope of its forward pass has ended, or a second time over the same tape, or after
 * the model has been freed.
 */
static ls_status pass_later(ls_module *model, ls_tensor *input, later when) {
    ls_scope *outer = ls_scope_begin();
    ls_scope *inner = ls_scope_begin();
    ls_tensor *output = ls_forward(model, input);
    ls_tensor *loss = ls_mean(ls_square(output));
    if (when == KEPT_TAPE) {
        LS_TRY(ls_backward_with(loss, &(ls_backward_options){.keep_tape = true}));
        loss = ls_mean(output);
    } else if (when == FREED_MODULE) {
        ls_module_free(model);
    }
    (void)ls_keep(loss);
    LS_TRY(ls_scope_end(inner));
    LS_TRY(ls_backward(loss));
    return ls_scope_end(outer);
}

static ls_status passes_later(ls_comm *world) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    for (later when = 0; when < LATER; when++) {
        ls_module *alone = NULL, *shared = NULL;
        ls_module *model = ls_sequential(make_retained(true, &alone));
        ls_module *parallel = ls_data_parallel(make_retained(true, &shared), world, NULL);
        ls_scope *scope = ls_scope_begin();
        ls_tensor *input = ls_randn(LS_SHAPE(3 * size, INPUTS), LS_F64);
        LS_TRY(pass_later(model, input, when));
        LS_TRY(pass_later(parallel, ls_narrow(input, 0, 3 * rank, 3), when));
        for (int i = 0; i < ls_module_parameter_count(alone); i++) {
            LS_CHECK(ls_allclose(ls_grad(ls_module_parameter(shared, i)), ls_grad(ls_module_parameter(alone, i)), 1e-9,
                                 1e-12));
        }
        LS_TRY(ls_scope_end(scope));
        if (when != FREED_MODULE) {
            ls_module_free(parallel);
            ls_module_free(model);
        }
        ls_module_free(shared);
        ls_module_free(alone);
    }
    return LS_OK;
}

/*
 * The model runs in an outer and an inner scope. A pass in the inner scope does not give the model a gradient. The pass
 * over the outer tape still averages.
 */
static ls_status pass_without_gradient(ls_comm *world) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    ls_module *alone = NULL, *shared = NULL;
    ls_module *model = ls_sequential(make_retained(false, &alone));
    ls_module *parallel = ls_data_parallel(make_retained(false, &shared), world, NULL);
    ls_module *other =
        ls_data_parallel(ls_nn_linear_with(OUTPUTS, 1, &(ls_linear_options){.dtype = LS_F64}), world, NULL);
    ls_scope *outer = ls_scope_begin();
    ls_tensor *input = ls_randn(LS_SHAPE(3 * size, INPUTS), LS_F64);
    ls_tensor *own = ls_narrow(input, 0, 3 * rank, 3);
    LS_TRY(ls_backward(ls_mean(ls_square(ls_forward(model, input)))));
    ls_tensor *output = ls_forward(parallel, own);
    ls_scope *inner = ls_scope_begin();
    LS_TRY(ls_backward(ls_mean(ls_forward(other, ls_detach(ls_forward(parallel, own))))));
    LS_TRY(ls_scope_end(inner));
    LS_TRY(ls_backward(ls_mean(ls_square(output))));
    for (int i = 0; i < ls_module_parameter_count(alone); i++) {
        LS_CHECK(
            ls_allclose(ls_grad(ls_module_parameter(shared, i)), ls_grad(ls_module_parameter(alone, i)), 1e-9, 1e-12));
    }
    LS_TRY(ls_scope_end(outer));
    ls_module_free(other);
    ls_module_free(parallel);
    ls_module_free(model);
    ls_module_free(shared);
    ls_module_free(alone);
    return LS_OK;
}

/* Rank 0 keeps an output that no loss reaches, and the other ranks release it: all ranks still make the same calls. */
static ls_status output_of_one_rank(ls_comm *world) {
    const ls_linear_options wide = {.dtype = LS_F64};
    ls_module *first = ls_data_parallel(ls_nn_linear_with(INPUTS, OUTPUTS, &wide), world, NULL);
    ls_module *last = ls_data_parallel(ls_nn_linear_with(OUTPUTS, 1, &wide), world, NULL);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *output = ls_forward(first, ls_randn(LS_SHAPE(3, INPUTS), LS_F64)), *samples = ls_detach(output);
    if (ls_comm_rank(world) > 0) {
        ls_release(output);
    }
    for (int step = 0; step < 3; step++) {
        LS_TRY(ls_backward(ls_mean(ls_forward(last, samples))));
    }
    LS_TRY(ls_scope_end(scope));
    ls_module_free(first);
    ls_module_free(last);
    return LS_OK;
}

/* On rank 0, the operation that makes the initial gradient fails, so the pass fails on all ranks. */
static ls_status failed_gradient(ls_comm *world) {
    const ls_linear_options wide = {.dtype = LS_F64};
    ls_module *model = ls_data_parallel(ls_nn_linear_with(INPUTS, OUTPUTS, &wide), world, NULL);
    const bool fails = ls_comm_rank(world) == 0;
    for (int step = 0; step < 3; step++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *loss = ls_mean(ls_forward(model, ls_randn(LS_SHAPE(3, INPUTS), LS_F64)));
        ls_tensor *one = ls_ones(LS_SCALAR, LS_F64);
        ls_tensor *gradient = ls_add(ls_ones(LS_SHAPE(2), LS_F64), ls_ones(LS_SHAPE(fails ? 3 : 2), LS_F64));
        LS_CHECK((gradient == NULL) == fails);
        const ls_backward_options options = {.gradient = fails ? gradient : one};
        LS_CHECK(ls_backward_with(loss, &options) == (fails ? LS_ERR_SHAPE : LS_ERR_MISMATCH));
        LS_EXPECT_MESSAGE("ls_add: ");
        LS_CHECK(ls_grad(ls_module_parameter(model, 0)) == NULL);
        LS_CHECK(ls_scope_end(scope) != LS_OK);
    }
    ls_module_free(model);
    return LS_OK;
}

/* ---- other data next to the samples ------------------------------------------------------------------------------ */

enum { ROWS_BEHIND, PADDED, COLUMNS_BEHIND, TURNED, SAMPLES_BEHIND, FOLDED, JOINED };

/*
 * Returns the mean of extended outputs. They are extended by rows that every rank has, by columns, or by rows before
 * and after the outputs.
 */
static ls_tensor *extended_mean(ls_tensor *output, int how) {
    const int64_t samples = ls_size(output, 0);
    ls_tensor *turned = ls_transpose(output, 0, 1);
    ls_tensor *fixed = ls_full(LS_SHAPE(2, OUTPUTS), LS_F64, 3);
    switch (how) {
    case ROWS_BEHIND:
        return ls_mean(ls_concat((ls_tensor *[]){output, fixed}, 2, 0));
    case PADDED:
        return ls_mean(ls_pad(output, 0, 1, 0, 0.5));
    case COLUMNS_BEHIND:
        return ls_mean(ls_concat((ls_tensor *[]){output, ls_full(ls_shape_of(output), LS_F64, 3)}, 2, 1));
    case TURNED:
        return ls_mean(ls_concat((ls_tensor *[]){turned, ls_square(turned)}, 2, 0));
    case SAMPLES_BEHIND:
        return ls_mean(ls_square(ls_concat((ls_tensor *[]){output, output}, 2, 0)));
    default: {
        ls_tensor *rows = ls_square(ls_reshape(output, LS_SHAPE(samples * OUTPUTS)));
        return ls_mean(ls_mean_axes(ls_reshape(rows, LS_SHAPE(samples, OUTPUTS)), LS_AXES(1), false));
    }
    }
}

/* One process would have these rows only once, so this is refused. All other cases equal one process. */
static ls_status joined(ls_comm *world) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    const int64_t samples = rank == 0 ? 1 : 3, first = rank == 0 ? 0 : 3 * rank - 2;
    for (int how = 0; how < JOINED; how++) {
        ls_module *alone = NULL, *shared = NULL;
        ls_module *model = ls_sequential(make_retained(false, &alone));
        ls_module *parallel = ls_data_parallel(make_retained(false, &shared), world, NULL);
        ls_scope *scope = ls_scope_begin();
        ls_tensor *input = ls_randn(LS_SHAPE(3 * size - 2, INPUTS), LS_F64);
        LS_TRY(ls_backward(extended_mean(ls_forward(model, input), how)));
        ls_tensor *own = ls_forward(parallel, ls_narrow(input, 0, first, samples));
        const ls_status status = ls_backward(extended_mean(own, how));
        const bool refused = size > 1 && (how == ROWS_BEHIND || how == PADDED);
        LS_CHECK(status == (refused ? LS_ERR_UNSUPPORTED : LS_OK));
        for (int i = 0; !refused && i < ls_module_parameter_count(alone); i++) {
            LS_CHECK(ls_allclose(ls_grad(ls_module_parameter(shared, i)), ls_grad(ls_module_parameter(alone, i)), 1e-9,
                                 1e-12));
        }
        LS_CHECK(ls_scope_end(scope) == status);
        ls_module_free(parallel);
        ls_module_free(model);
        ls_module_free(shared);
        ls_module_free(alone);
    }
    return LS_OK;
}

static ls_module *make_of_tokens(void) {
    ls_seed(SEED);
    return ls_sequential(ls_nn_embedding(30, 4), ls_nn_dropout(0.5));
}

/* Samples may be single numbers, without a second axis: dropout draws the same numbers as in a single process. */
static ls_status samples_of_one_axis(ls_comm *world) {
    const int size = ls_comm_size(world), rank = ls_comm_rank(world);
    const int64_t first = (int64_t)rank * (rank + 1) / 2, count = rank + 1; /* a different number on each rank */
    ls_module *alone = make_of_tokens(), *parallel = ls_data_parallel(make_of_tokens(), world, NULL);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *tokens = ls_arange(LS_SHAPE((int64_t)size * (size + 1) / 2), LS_I64);
    ls_seed(SEED);
    ls_tensor *whole = ls_forward(alone, tokens);
    ls_seed(SEED);
    ls_tensor *own = ls_forward(parallel, ls_narrow(tokens, 0, first, count));
    LS_CHECK(ls_equal(own, ls_narrow(whole, 0, first, count)));
    LS_TRY(ls_backward(ls_mean(own)));
    LS_TRY(ls_scope_end(scope));
    ls_module_free(parallel);
    ls_module_free(alone);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(passes_later(world));
    LS_TRY(pass_without_gradient(world));
    LS_TRY(output_of_one_rank(world));
    LS_TRY(failed_gradient(world));
    LS_TRY(joined(world));
    LS_TRY(samples_of_one_axis(world));
    return ls_comm_barrier(world, NULL);
}
