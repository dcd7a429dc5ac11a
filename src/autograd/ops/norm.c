#include "autograd/ops/norm.h"

#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"
#include "autograd/ops/promote.h"

ls_status ls_norm_check_epsilon(const char *call, double epsilon) {
    if (!(epsilon >= 0.0)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: epsilon is %g, but must not be negative", call, epsilon);
    }
    return LS_OK;
}

static ls_status open_gradients(ls_node *node, ls_norm_gradients *d) {
    const ls_tensor *x = node->inputs[X];
    *d = (ls_norm_gradients){0};
    if (ls_wants(node, WEIGHT)) {
        d->weight = ls_gradient_place_zeroed(node, WEIGHT);
        LS_TRY(ls_made(d->weight));
    }
    if (ls_wants(node, BIAS)) {
        d->bias = ls_gradient_place_zeroed(node, BIAS);
        LS_TRY(ls_made(d->bias));
    }
    if (ls_wants(node, X)) {
        d->dx = ls_tensor_like(node->op->name, x, (ls_dtype)x->dtype);
        LS_TRY(ls_made(d->dx));
    }
    return LS_OK;
}

ls_status ls_norm_backward(ls_node *node, ls_tensor *gradient, ls_norm_rule rule) {
    ls_norm_gradients d;
    LS_TRY(open_gradients(node, &d));
    ls_tensor *g = ls_dense(node->op->name, gradient);
    LS_TRY(ls_made(g));
    const ls_status status = rule(node, g, &d);
    ls_tensor_drop(g);
    LS_TRY(status);
    return d.dx != NULL ? ls_accumulate(node, X, d.dx) : LS_OK;
}

/* ---- layer_norm -------------------------------------------------------------------------------------------------- */

/* Indices in saved[] of the node, and in integer[] of the parameters. */
enum { SAVED_MEAN, SAVED_RSTD };
enum { WIDTH, AXES, NOT_CENTERED };

static ls_status layer_norm_forward(ls_op_call *call) {
    const ls_tensor *x = call->inputs[X];
    const int64_t width = call->parameters->integer[WIDTH];
    const int64_t rows = width > 0 ? x->count / width : 0;
    for (int i = call->parameters->integer[NOT_CENTERED] != 0 ? SAVED_RSTD : SAVED_MEAN; i <= SAVED_RSTD; i++) {
        call->saved[i] = ls_tensor_new_owned(call->op->name, ls_tensor_device(x), 1, &rows, (ls_dtype)x->dtype);
        LS_TRY(ls_made(call->saved[i]));
    }
    return ls_kernels_of(x)->layer_norm(ls_stream_of(x), call->output, call->saved[SAVED_MEAN], call->saved[SAVED_RSTD],
                                        x, width, call->inputs[WEIGHT], call->inputs[BIAS],
                                        call->parameters->number[0]);
}

static ls_status layer_norm_rule(const ls_node *node, const ls_tensor *g, const ls_norm_gradients *d) {
    return ls_kernels_of(g)->layer_norm_backward(ls_stream_of(g), d->dx, d->weight, d->bias, g, node->inputs[X],
                                                 node->parameters.integer[WIDTH], node->inputs[WEIGHT],
                                                 node->saved[SAVED_MEAN], node->saved[SAVED_RSTD]);
}

static ls_status layer_norm_backward(ls_node *node, ls_tensor *gradient) {
    return ls_norm_backward(node, gradient, layer_norm_rule);
}

static ls_samples_use layer_norm_samples(ls_samples_call *call) {
    const int kept = call->inputs[X]->ndim - (int)call->parameters->integer[AXES];
    return call->axis >= kept ? LS_SAMPLES_MIXED : LS_SAMPLES_KEPT;
}

static const ls_op layer_norm_op = {.name = "ls_layer_norm",
                                    .shape = ls_shape_as_input,
                                    .forward = layer_norm_forward,
                                    .backward = layer_norm_backward,
                                    .over_samples = layer_norm_samples,
                                    .reads = {[X] = 1U << X | 1U << WEIGHT, [WEIGHT] = 1U << X},
                                    .optional = 1U << WEIGHT | 1U << BIAS};

static const ls_op rms_norm_op = {.name = "ls_rms_norm",
                                  .shape = ls_shape_as_input,
                                  .forward = layer_norm_forward,
                                  .backward = layer_norm_backward,
                                  .over_samples = layer_norm_samples,
                                  .reads = {[X] = 1U << X | 1U << WEIGHT, [WEIGHT] = 1U << X},
                                  .optional = 1U << WEIGHT | 1U << BIAS};

/* Returns whether the sizes of `part` (which may be NULL) are the last `axes` sizes of x. */
static bool ends(const ls_tensor *x, const ls_tensor *part, int axes) {
    bool fits = part == NULL || part->ndim == axes;
    for (int i = 0; part != NULL && fits && i < axes; i++) {
        fits = part->size[i] == x->size[x->ndim - axes + i];
    }
    return fits;
}

static ls_status check_layer_norm(const char *call, ls_tensor *const *inputs, int axes, double epsilon) {
    const ls_tensor *x = inputs[X];
    LS_TRY(ls_check_floating(call, inputs, BIAS + 1));
    LS_TRY(ls_norm_check_epsilon(call, epsilon));
    if (axes < 1 || axes > x->ndim) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: cannot normalize over the last %d axes of %s", call, axes,
                       LS_SHAPE_TEXT(x));
    }
    for (int i = WEIGHT; i <= BIAS; i++) {
        if (!ends(x, inputs[i], axes)) {
            return ls_fail(LS_ERR_SHAPE, "%s: %s is %s, but must have the shape of the last %d axes of %s", call,
                           i == WEIGHT ? "weight" : "bias", LS_SHAPE_TEXT(inputs[i]), axes, LS_SHAPE_TEXT(x));
        }
    }
    return LS_OK;
}

static ls_tensor *norm_rows(const ls_op *op, ls_tensor *x, int axes, ls_tensor *weight, ls_tensor *bias,
                            double epsilon) {
    ls_tensor *const inputs[] = {[X] = x, [WEIGHT] = weight, [BIAS] = bias};
    if (x == NULL) {
        return ls_apply(op, inputs, 3, NULL); /* reports the error */
    }
    if (axes == 0) {
        axes = weight != NULL ? weight->ndim : bias != NULL ? bias->ndim : 0;
    }
    if (check_layer_norm(op->name, inputs, axes, epsilon) != LS_OK) {
        return ls_scope_failed();
    }
    ls_op_parameters parameters = {.number = {epsilon},
                                   .integer = {[WIDTH] = 1, [AXES] = axes, [NOT_CENTERED] = op == &rms_norm_op}};
    for (int i = x->ndim - axes; i < x->ndim; i++) {
        parameters.integer[WIDTH] *= x->size[i];
    }
    return ls_apply_dense(op, inputs, 3, 3, &parameters, 1U << X | 1U << WEIGHT | 1U << BIAS);
}

ls_tensor *ls_layer_norm(ls_tensor *x, int axes, ls_tensor *weight, ls_tensor *bias, double epsilon) {
    return norm_rows(&layer_norm_op, x, axes, weight, bias, epsilon);
}

ls_tensor *ls_rms_norm(ls_tensor *x, int axes, ls_tensor *weight, double epsilon) {
    return norm_rows(&rms_norm_op, x, axes, weight, NULL, epsilon);
}

const ls_op *const ls_norm_ops[] = {&layer_norm_op, &rms_norm_op, NULL};
