/* Variances and norms over any axes. */
#include "autograd/ops/promote.h"
#include "autograd/ops/reduce.h"

#include <math.h>

/* Returns an uninitialized tensor like `like`, for temporary use in a rule, which drops it. */
static ls_tensor *scratch_like(const char *call, const ls_tensor *like) {
    return ls_tensor_like_owned(call, like, like->dtype);
}

/* ---- var --------------------------------------------------------------------------------------------------------- */

static double degrees_of_freedom(const ls_op_parameters *parameters) {
    return fmax(0, (double)parameters->integer[LS_REDUCE_GROUP] - parameters->number[0]);
}

/* The tensors of a variance. `mean`, `rest` and `y` have the axes of x, with size 1 along the reduced axes. */
typedef struct variance {
    ls_tensor *mean, *rest, *y;
    ls_tensor *deviation; /* like x */
} variance;

/*
 * Computes sum(d^2) - sum(d)^2 / n with d = x - mean: the corrected two-pass algorithm (Chan, Golub and LeVeque,
 * "Algorithms for computing the sample variance", 1983). The second term removes the rounding of the mean.
 */
static ls_status var_into(const ls_op_call *call, const variance *v) {
    const ls_tensor *x = call->inputs[0];
    const double group = (double)call->parameters->integer[LS_REDUCE_GROUP];
    const double freedom = degrees_of_freedom(call->parameters);
    const ls_kernels *kernels = ls_kernels_of(x);
    ls_stream *stream = ls_stream_of(x);
    LS_TRY(kernels->sum(stream, v->mean, x));
    LS_TRY(kernels->div_number(stream, v->mean, (const ls_tensor *[]){v->mean}, &group));
    LS_TRY(kernels->sub(stream, v->deviation, (const ls_tensor *[]){x, v->mean}, NULL));
    LS_TRY(kernels->sum(stream, v->rest, v->deviation));
    LS_TRY(kernels->square(stream, v->rest, (const ls_tensor *[]){v->rest}, NULL));
    LS_TRY(kernels->div_number(stream, v->rest, (const ls_tensor *[]){v->rest}, &group));
    LS_TRY(kernels->square(stream, v->deviation, (const ls_tensor *[]){v->deviation}, NULL));
    LS_TRY(kernels->sum(stream, v->y, v->deviation));
    LS_TRY(kernels->sub(stream, v->y, (const ls_tensor *[]){v->y, v->rest}, NULL));
    LS_TRY(kernels->relu(stream, v->y, (const ls_tensor *[]){v->y}, NULL)); /* equal elements, and a rounded mean */
    return kernels->div_number(stream, v->y, (const ls_tensor *[]){v->y}, &freedom);
}

static ls_status var_forward(ls_op_call *call) {
    const char *const name = call->op->name;
    ls_tensor view = ls_reduce_view(call->output, call->inputs[0], call->parameters);
    const variance v = {.mean = scratch_like(name, &view),
                        .rest = scratch_like(name, &view),
                        .y = &view,
                        .deviation = scratch_like(name, call->inputs[0])};
    const bool good = v.mean != NULL && v.rest != NULL && v.deviation != NULL;
    const ls_status status = good ? var_into(call, &v) : ls_error_status();
    ls_tensor_drop(v.rest);
    ls_tensor_drop(v.deviation);
    call->saved[0] = v.mean;
    return status;
}

/* Computes 2 (x - mean) g / freedom. */
static ls_status var_share(ls_tensor *share, ls_tensor *factor, const ls_node *node, const ls_tensor *g) {
    const double two_over_freedom = 2 / degrees_of_freedom(&node->parameters);
    LS_TRY(ls_map(LS_KERNEL(mul_number), factor, &g, &two_over_freedom));
    LS_TRY(ls_map(LS_KERNEL(sub), share, (const ls_tensor *[]){node->inputs[0], node->saved[0]}, NULL));
    return ls_map(LS_KERNEL(mul), share, (const ls_tensor *[]){share, factor}, NULL);
}

static ls_status var_backward(ls_node *node, ls_tensor *gradient) {
    const ls_tensor *x = node->inputs[0];
    const ls_tensor g = ls_reduce_view(gradient, x, &node->parameters);
    ls_tensor *factor = scratch_like(node->op->name, &g);
    ls_tensor *share = ls_tensor_like(node->op->name, x, x->dtype);
    const ls_status status = factor == NULL || share == NULL ? ls_error_status() : var_share(share, factor, node, &g);
    ls_tensor_drop(factor);
    return status == LS_OK ? ls_accumulate(node, 0, share) : status;
}

static const ls_op var_op = {.name = "ls_var",
                             .shape = ls_reduce_shape,
                             .forward = var_forward,
                             .backward = var_backward,
                             .over_samples = ls_reduce_mixes,
                             .reads = {1}};

ls_tensor *ls_var(ls_tensor *x) {
    return ls_reduce_real(&var_op, x, LS_ALL_AXES, false, 1);
}

ls_tensor *ls_var_axes(ls_tensor *x, ls_axes axes, int correction, bool keepdim) {
    return ls_reduce_real(&var_op, x, axes, keepdim, correction);
}

/* ---- norm: an operation for each p with a faster rule, and one for all other p ----------------------------------- */

/* Computes y = the reduction of map(x). The power, if given, is applied after the map. */
static ls_status reduce_mapped(ls_op_call *call, size_t map, const double *power, size_t reduction) {
    ls_tensor *mapped = scratch_like(call->op->name, call->inputs[0]);
    if (mapped == NULL) {
        return ls_error_status();
    }
    ls_status status = ls_map(map, mapped, (const ls_tensor *const *)call->inputs, NULL);
    if (status == LS_OK && power != NULL) {
        status = ls_map(LS_KERNEL(pow_number), mapped, (const ls_tensor *[]){mapped}, power);
    }
    if (status == LS_OK) {
        status = ls_reduce_into(reduction, call->output, mapped, call->parameters);
    }
    ls_tensor_drop(mapped);
    return status;
}

static ls_status norm_1_forward(ls_op_call *call) {
    return reduce_mapped(call, LS_KERNEL(abs), NULL, LS_KERNEL(sum));
}

static ls_status norm_2_forward(ls_op_call *call) {
    LS_TRY(reduce_mapped(call, LS_KERNEL(square), NULL, LS_KERNEL(sum)));
    return ls_map(LS_KERNEL(sqrt), call->output, (const ls_tensor *[]){call->output}, NULL);
}

static ls_status norm_p_forward(ls_op_call *call) {
    const double power = call->parameters->number[0], root = 1 / power;
    LS_TRY(reduce_mapped(call, LS_KERNEL(abs), &power, LS_KERNEL(sum)));
    return ls_map(LS_KERNEL(pow_number), call->output, (const ls_tensor *[]){call->output}, &root);
}

static ls_status norm_inf_shape(ls_op_call *call) {
    if (call->parameters->integer[LS_REDUCE_GROUP] == 0) {
        return ls_fail(LS_ERR_SHAPE, "ls_norm: there is no maximum, because a tensor of %s has no elements",
                       LS_SHAPE_TEXT(call->inputs[0]));
    }
    return ls_reduce_shape(call);
}

static ls_status norm_inf_forward(ls_op_call *call) {
    return reduce_mapped(call, LS_KERNEL(abs), NULL, LS_KERNEL(max));
}

static ls_status norm_1_backward(ls_node *node, ls_tensor *gradient) {
    const ls_tensor *x = node->inputs[0];
    const ls_tensor g = ls_reduce_view(gradient, x, &node->parameters);
    ls_tensor *share = ls_tensor_like(node->op->name, x, x->dtype);
    if (share == NULL) {
        return ls_error_status();
    }
    LS_TRY(ls_map(LS_KERNEL(abs_backward), share, (const ls_tensor *[]){&g, x}, NULL));
    return ls_accumulate(node, 0, share);
}

/* Computes factor = g y^(1 - p), or 0 if the norm is 0, because the gradient is then defined as 0. */
static ls_status norm_factor(ls_tensor *factor, const ls_tensor *g, const ls_tensor *y, double p) {
    const double power = 1 - p;
    LS_TRY(ls_map(LS_KERNEL(pow_number), factor, &y, &power));
    LS_TRY(ls_map(LS_KERNEL(mul), factor, (const ls_tensor *[]){factor, g}, NULL));
    return ls_map(LS_KERNEL(relu_backward), factor, (const ls_tensor *[]){factor, y}, NULL);
}

/* Returns norm_factor with x's number of dimensions. Returns ownership of the reference to the caller. */
static ls_tensor *new_norm_factor(ls_node *node, const ls_tensor *gradient, double p) {
    const ls_tensor *x = node->inputs[0];
    const ls_tensor g = ls_reduce_view(gradient, x, &node->parameters);
    const ls_tensor y = ls_reduce_view(node->saved[0], x, &node->parameters);
    ls_tensor *factor = scratch_like(node->op->name, &g);
    if (factor != NULL && norm_factor(factor, &g, &y, p) != LS_OK) {
        ls_tensor_drop(factor);
        return NULL;
    }
    return factor;
}

static ls_status norm_2_backward(ls_node *node, ls_tensor *gradient) {
    const ls_tensor *x = node->inputs[0];
    ls_tensor *factor = new_norm_factor(node, gradient, 2);
    if (factor == NULL) {
        return ls_error_status();
    }
    ls_tensor *share = ls_tensor_like(node->op->name, x, x->dtype);
    const ls_status status =
        share == NULL ? ls_error_status() : ls_map(LS_KERNEL(mul), share, (const ls_tensor *[]){x, factor}, NULL);
    ls_tensor_drop(factor);
    return status == LS_OK ? ls_accumulate(node, 0, share) : status;
}

/* Computes |x|^(p - 1) factor, with x's sign. The result is 0 where x is 0, even for p < 1. */
static ls_status norm_p_share(ls_tensor *share, ls_tensor *magnitude, const ls_tensor *x, const ls_tensor *factor,
                              double p) {
    const double power = p - 1;
    LS_TRY(ls_map(LS_KERNEL(abs), magnitude, &x, NULL));
    LS_TRY(ls_map(LS_KERNEL(pow_number), share, (const ls_tensor *[]){magnitude}, &power));
    LS_TRY(ls_map(LS_KERNEL(mul), share, (const ls_tensor *[]){share, factor}, NULL));
    LS_TRY(ls_map(LS_KERNEL(relu_backward), share, (const ls_tensor *[]){share, magnitude}, NULL));
    return ls_map(LS_KERNEL(abs_backward), share, (const ls_tensor *[]){share, x}, NULL);
}

static ls_status norm_p_backward(ls_node *node, ls_tensor *gradient) {
    const ls_tensor *x = node->inputs[0];
    const double p = node->parameters.number[0];
    ls_tensor *factor = new_norm_factor(node, gradient, p);
    ls_tensor *magnitude = scratch_like(node->op->name, x);
    ls_tensor *share = ls_tensor_like(node->op->name, x, x->dtype);
    const ls_status status = factor == NULL || magnitude == NULL || share == NULL
                                 ? ls_error_status()
                                 : norm_p_share(share, magnitude, x, factor, p);
    ls_tensor_drop(factor);
    ls_tensor_drop(magnitude);
    return status == LS_OK ? ls_accumulate(node, 0, share) : status;
}

static ls_status norm_inf_backward(ls_node *node, ls_tensor *gradient) {
    const char *name = node->op->name;
    const ls_tensor *x = node->inputs[0];
    const ls_tensor g = ls_reduce_view(gradient, x, &node->parameters);
    ls_tensor *magnitude = scratch_like(name, x);
    ls_tensor *spread = NULL;
    if (magnitude != NULL && ls_map(LS_KERNEL(abs), magnitude, &x, NULL) == LS_OK) {
        spread = ls_spread_to_extreme(name, magnitude, &g, LS_KERNEL(argmax), &node->parameters);
    }
    ls_tensor *share = spread == NULL ? NULL : ls_tensor_like(name, x, x->dtype);
    const ls_status status = share == NULL
                                 ? ls_error_status()
                                 : ls_map(LS_KERNEL(abs_backward), share, (const ls_tensor *[]){spread, x}, NULL);
    ls_tensor_drop(magnitude);
    ls_tensor_drop(spread);
    return status == LS_OK ? ls_accumulate(node, 0, share) : status;
}

static const ls_op norm_1_op = {.name = "ls_norm",
                                .shape = ls_reduce_shape,
                                .forward = norm_1_forward,
                                .backward = norm_1_backward,
                                .over_samples = ls_reduce_mixes,
                                .reads = {1}};
static const ls_op norm_2_op = {.name = "ls_norm",
                                .shape = ls_reduce_shape,
                                .forward = norm_2_forward,
                                .backward = norm_2_backward,
                                .over_samples = ls_reduce_mixes,
                                .reads = {1},
                                .saves_output = true};
static const ls_op norm_p_op = {.name = "ls_norm",
                                .shape = ls_reduce_shape,
                                .forward = norm_p_forward,
                                .backward = norm_p_backward,
                                .over_samples = ls_reduce_mixes,
                                .reads = {1},
                                .saves_output = true};
static const ls_op norm_inf_op = {.name = "ls_norm",
                                  .shape = norm_inf_shape,
                                  .forward = norm_inf_forward,
                                  .backward = norm_inf_backward,
                                  .over_samples = ls_reduce_mixes,
                                  .reads = {1}};

ls_tensor *ls_norm(ls_tensor *x) {
    return ls_reduce_real(&norm_2_op, x, LS_ALL_AXES, false, 2);
}

ls_tensor *ls_norm_axes(ls_tensor *x, double p, ls_axes axes, bool keepdim) {
    if (!(p > 0)) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "ls_norm: p is %g, but must be greater than 0", p);
    }
    const ls_op *op = p == 2 ? &norm_2_op : p == 1 ? &norm_1_op : isinf(p) ? &norm_inf_op : &norm_p_op;
    return ls_reduce_real(op, x, axes, keepdim, p);
}

const ls_op *const ls_statistics_ops[] = {&var_op, &norm_1_op, &norm_2_op, &norm_p_op, &norm_inf_op, NULL};
