/*
 * A program's own operation under data parallelism: the gradients equal the gradients of one process with the global
 * batch, with shares of different sizes or empty shares, and with the operation inside a model or as its last layer. An
 * operation that does not declare that it keeps samples apart is refused if samples pass through it.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/ranks.h"

#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>

enum { WIDTH = 4, SAMPLES = 7 };

/* Computes each sample's running sums times the weights, and its sum of squares. */
static ls_status running(ls_custom_call *call) {
    ls_tensor *x = call->inputs[0], *weight = call->inputs[1];
    call->outputs[0] = ls_mul(ls_cumsum(x, 1), weight);
    call->outputs[1] = ls_sum_axes(ls_square(x), LS_AXES(1), true);
    return LS_OK;
}

/* The adjoint of running sums is running sums from the end, computed here as the total minus the sums before. */
static ls_status running_backward(ls_custom_call *call) {
    ls_tensor *x = call->inputs[0], *weight = call->inputs[1];
    ls_tensor *g = call->output_gradients[0], *h = call->output_gradients[1];
    ls_tensor *weighed = ls_mul(g, weight);
    ls_tensor *behind = ls_add(ls_sub(ls_sum_axes(weighed, LS_AXES(1), true), ls_cumsum(weighed, 1)), weighed);
    call->input_gradients[0] = ls_add(behind, ls_mul(ls_mul(x, h), 2));
    call->input_gradients[1] = ls_sum_axes(ls_mul(g, ls_cumsum(x, 1)), LS_AXES(0), false);
    return LS_OK;
}

static const ls_custom_op apart = {
    .name = "running", .forward = running, .backward = running_backward, .outputs = 2, .by_sample = true};
static const ls_custom_op unknown = {.name = "running", .forward = running, .backward = running_backward, .outputs = 2};

static ls_tensor *apply(const ls_custom_op *op, ls_module *self, ls_tensor *x) {
    ls_tensor *outputs[2];
    (void)ls_custom(op, (ls_tensor *[]){x, ls_module_find(self, "weight")}, 2, NULL, outputs);
    return ls_add(outputs[0], outputs[1]);
}

static ls_tensor *apart_forward(ls_module *self, ls_tensor *x) {
    return apply(&apart, self, x);
}

static const ls_module_type type = {.name = "Running", .forward = apart_forward};

static ls_tensor *numbers(ls_shape shape, int salt, int64_t from) {
    ls_tensor *x = ls_empty(shape, LS_F64);
    for (int64_t i = 0; i < ls_numel(x); i++) {
        ((double *)elements(x))[i] = sin(1.1 * salt + 0.37 * (double)(i + from));
    }
    return x;
}

static ls_module *make_model(void) {
    const ls_linear_options options = {.dtype = LS_F64};
    ls_module *layer = ls_module_new(&type);
    (void)ls_module_add_parameter(layer, "weight", numbers(LS_SHAPE(WIDTH), 3, 0));
    ls_seed(5);
    return ls_sequential(ls_nn_linear_with(3, WIDTH, &options), ls_module_finish(layer),
                         ls_nn_linear_with(WIDTH, 2, &options));
}

/* Returns the loss of rows first to last - 1. */
static ls_tensor *loss_of(ls_module *model, int64_t first, int64_t last) {
    ls_tensor *x = numbers(LS_SHAPE(last - first, 3), 1, 3 * first),
              *y = numbers(LS_SHAPE(last - first, 2), 2, 2 * first);
    return ls_mse_loss(ls_forward(model, x), y, LS_LOSS_MEAN);
}

static ls_status same_gradients(const ls_module *model, const ls_module *whole) {
    for (int i = 0; i < ls_module_parameter_count(whole); i++) {
        ls_tensor *a = ls_grad(ls_module_parameter(model, i)), *b = ls_grad(ls_module_parameter(whole, i));
        LS_CHECK(a != NULL && b != NULL);
        for (int64_t k = 0; k < ls_numel(a); k++) {
            const double left = ((double *)elements(a))[k], right = ((double *)elements(b))[k];
            LS_CHECK(fabs(left - right) <= 1e-12 * (1 + fabs(right)));
        }
    }
    return LS_OK;
}

static ls_status shares(ls_comm *world, int64_t first, int64_t last) {
    ls_module *model = ls_data_parallel(make_model(), world, NULL), *whole = make_model();
    ls_scope *scope = ls_scope_begin();
    LS_CHECK(model != NULL && ls_backward(loss_of(whole, 0, SAMPLES)) == LS_OK);
    LS_CHECK((first < last ? ls_backward(loss_of(model, first, last)) : ls_data_parallel_skip(model)) == LS_OK);
    ls_status status = same_gradients(model, whole);
    const ls_status ended = ls_scope_end(scope);
    ls_module_free(model);
    ls_module_free(whole);
    return status != LS_OK ? status : ended;
}

/* An operation that may mix samples cannot follow a data-parallel model. */
static ls_status behind(ls_comm *world, const ls_custom_op *op, ls_status expected) {
    ls_module *model = ls_data_parallel(make_model(), world, NULL);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = numbers(LS_SHAPE(2, 3), 1, 6 * ls_comm_rank(world)), *outputs[2];
    ls_tensor *inputs[] = {ls_forward(model, x), ls_ones(LS_SHAPE(2), LS_F64)};
    LS_CHECK(ls_custom(op, inputs, 2, NULL, outputs) != NULL);
    LS_CHECK(ls_backward(ls_mean(outputs[0])) == expected);
    LS_CHECK(expected == LS_OK || strstr(ls_error_message(), "running") != NULL);
    (void)ls_scope_end(scope);
    ls_module_free(model);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    LS_TRY(shares(world, SAMPLES * rank / size, SAMPLES * (rank + 1) / size));
    LS_TRY(shares(world, rank == 0 ? 0 : SAMPLES, SAMPLES)); /* one rank has all samples */
    LS_TRY(behind(world, &unknown, size > 1 ? LS_ERR_UNSUPPORTED : LS_OK));
    return behind(world, &apart, LS_OK);
}
