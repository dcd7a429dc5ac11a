/*
 * Reductions over any axes, indices of extremes, and running sums. statistics.c contains the reductions with special
 * rules.
 */
#include "autograd/ops/reduce.h"

#include "autograd/ops/promote.h"

/* ---- shared by all reductions ------------------------------------------------------------------------------------ */

static ls_status axes_mask(const char *call, const ls_tensor *x, const ls_axes *axes, int64_t *mask) {
    if (axes->count < 0 || axes->count > LS_MAX_DIMS) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: more than %d axes", call, LS_MAX_DIMS);
    }
    *mask = axes->count == 0 ? (INT64_C(1) << x->ndim) - 1 : 0;
    for (int i = 0; i < axes->count; i++) {
        const int axis = ls_axis_index(axes->axis[i], x->ndim);
        if (axis < 0) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: axis %d does not exist in %s, which has %d axes", call, axes->axis[i],
                           LS_SHAPE_TEXT(x), x->ndim);
        }
        if (*mask >> axis & 1) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: axis %d is given twice", call, axis);
        }
        *mask |= INT64_C(1) << axis;
    }
    return LS_OK;
}

/* Sets the parameters of reduce.h. The message of LS_ERR_ARGUMENT names an invalid axis. */
static ls_status prepare(const char *call, const ls_tensor *x, const ls_axes *axes, bool keepdim,
                         ls_op_parameters *parameters) {
    LS_TRY(axes_mask(call, x, axes, &parameters->integer[LS_REDUCE_MASK]));
    parameters->integer[LS_REDUCE_KEEPDIM] = keepdim;
    int64_t group = 1;
    for (int i = 0; i < x->ndim; i++) {
        group *= ls_reduces(parameters, i) ? x->size[i] : 1;
    }
    parameters->integer[LS_REDUCE_GROUP] = group;
    return LS_OK;
}

ls_status ls_reduce_shape_as(ls_op_call *call, ls_dtype dtype) {
    const ls_tensor *x = call->inputs[0];
    int64_t size[LS_MAX_DIMS];
    int ndim = 0;
    for (int i = 0; i < x->ndim; i++) {
        if (!ls_reduces(call->parameters, i)) {
            size[ndim++] = x->size[i];
        } else if (call->parameters->integer[LS_REDUCE_KEEPDIM]) {
            size[ndim++] = 1;
        }
    }
    call->output = ls_tensor_new(call->op->name, ls_tensor_device(x), ndim, size, dtype);
    return call->output == NULL ? ls_error_status() : LS_OK;
}

ls_status ls_reduce_shape(ls_op_call *call) {
    return ls_reduce_shape_as(call, call->inputs[0]->dtype);
}

/*
 * Returns `reduced` if the axis of the samples is reduced. Otherwise the samples stay on that axis, whose index may
 * change.
 */
static ls_samples_use reduce_samples(ls_samples_call *call, ls_samples_use reduced) {
    if (ls_reduces(call->parameters, call->axis)) {
        return reduced;
    }
    int before = 0; /* number of reduced axes before the axis of the samples */
    for (int i = 0; i < call->axis && !call->parameters->integer[LS_REDUCE_KEEPDIM]; i++) {
        before += ls_reduces(call->parameters, i);
    }
    call->axis -= before;
    return LS_SAMPLES_MOVED;
}

static ls_samples_use sums(ls_samples_call *call) {
    return reduce_samples(call, LS_SAMPLES_SUMMED);
}

static ls_samples_use averages(ls_samples_call *call) {
    call->divisor = (double)call->parameters->integer[LS_REDUCE_GROUP];
    return sums(call);
}

ls_samples_use ls_reduce_mixes(ls_samples_call *call) {
    return reduce_samples(call, LS_SAMPLES_MIXED);
}

ls_tensor ls_reduce_view(const ls_tensor *y, const ls_tensor *x, const ls_op_parameters *parameters) {
    const bool keepdim = parameters->integer[LS_REDUCE_KEEPDIM];
    int64_t size[LS_MAX_DIMS], stride[LS_MAX_DIMS];
    for (int i = 0, of_y = 0; i < x->ndim; i++) {
        if (ls_reduces(parameters, i)) {
            size[i] = 1;
            stride[i] = 0;
            of_y += keepdim;
        } else {
            size[i] = y->size[of_y];
            stride[i] = y->stride[of_y++];
        }
    }
    return ls_stack_view(y, x->ndim, size, stride, 0);
}

ls_status ls_reduce_into(size_t kernel, ls_tensor *y, const ls_tensor *x, const ls_op_parameters *parameters) {
    ls_tensor view = ls_reduce_view(y, x, parameters);
    const ls_kernels *kernels = ls_kernels_of(x);
    return LS_KERNEL_AT(pair, kernels, kernel)(ls_stream_of(x), &view, x);
}

ls_tensor *ls_reduce_apply(const ls_op *op, ls_tensor *x, ls_axes axes, bool keepdim, double number, ls_dtype compute,
                           ls_dtype result) {
    ls_op_parameters parameters = {.number = {number}};
    if (prepare(op->name, x, &axes, keepdim, &parameters) != LS_OK) {
        return ls_scope_failed();
    }
    if (x->dtype == compute && compute == result) {
        return ls_apply(op, &x, 1, &parameters);
    }
    return ls_apply_as(op, &x, 1, 1, &parameters, compute, result);
}

static ls_status reduce_forward(ls_op_call *call) {
    return ls_reduce_into(call->op->kernel, call->output, call->inputs[0], call->parameters);
}

/* ---- sum, mean, prod --------------------------------------------------------------------------------------------- */

static ls_status sum_backward(ls_node *node, ls_tensor *gradient) {
    const ls_tensor view = ls_reduce_view(gradient, node->inputs[0], &node->parameters);
    return ls_accumulate_repeated(node, 0, &view);
}

static ls_status mean_forward(ls_op_call *call) {
    LS_TRY(reduce_forward(call));
    const double group = (double)call->parameters->integer[LS_REDUCE_GROUP];
    return ls_map(LS_KERNEL(div_number), call->output, (const ls_tensor *[]){call->output}, &group);
}

static ls_status mean_backward(ls_node *node, ls_tensor *gradient) {
    const double group = (double)node->parameters.integer[LS_REDUCE_GROUP];
    ls_tensor *share = ls_tensor_like_owned(node->op->name, gradient, gradient->dtype);
    if (share == NULL) {
        return ls_error_status();
    }
    ls_status status = ls_map(LS_KERNEL(div_number), share, (const ls_tensor *[]){gradient}, &group);
    if (status == LS_OK) {
        status = sum_backward(node, share);
    }
    ls_tensor_drop(share);
    return status;
}

/*
 * Computes, for each element, the product of the other elements of its group. With P the product of the nonzero
 * elements of the group, this is P / x if no other element is zero (x itself counts as 1 if it is the only zero), and
 * otherwise 0.
 */
static ls_status product_of_others(ls_tensor *y, const ls_tensor *x, const ls_op_parameters *parameters,
                                   ls_tensor *const *temporaries) {
    ls_tensor *is_zero = temporaries[0], *zero_mark = temporaries[1], *zeros = temporaries[2],
              *product = temporaries[3];
    const ls_tensor *one = temporaries[4], *none = temporaries[5];
    const ls_kernels *kernels = ls_kernels_of(x);
    ls_stream *stream = ls_stream_of(x);
    const double zero = 0;
    LS_TRY(kernels->eq_number(stream, is_zero, &x, &zero));
    LS_TRY(kernels->cast(stream, zero_mark, is_zero));
    LS_TRY(ls_reduce_into(LS_KERNEL(sum), zeros, zero_mark, parameters));
    LS_TRY(kernels->where(stream, y, (const ls_tensor *[]){is_zero, one, x}, NULL));
    LS_TRY(ls_reduce_into(LS_KERNEL(prod), product, y, parameters));
    LS_TRY(kernels->div(stream, y, (const ls_tensor *[]){product, y}, NULL));
    LS_TRY(kernels->sub(stream, zero_mark, (const ls_tensor *[]){zeros, zero_mark}, NULL));
    LS_TRY(kernels->eq_number(stream, is_zero, (const ls_tensor *[]){zero_mark}, &zero));
    return kernels->where(stream, y, (const ls_tensor *[]){is_zero, y, none}, NULL);
}

static ls_status prod_backward(ls_node *node, ls_tensor *gradient) {
    const char *name = node->op->name;
    const ls_tensor *x = node->inputs[0];
    const ls_dtype dtype = x->dtype;
    const ls_tensor g = ls_reduce_view(gradient, x, &node->parameters);
    ls_op_parameters keeping = node->parameters;
    keeping.integer[LS_REDUCE_KEEPDIM] = true;
    ls_tensor *temporaries[] = {
        ls_tensor_like_owned(name, x, LS_BOOL),
        ls_tensor_like_owned(name, x, dtype),
        ls_tensor_like_owned(name, &g, dtype),
        ls_tensor_like_owned(name, &g, dtype),
        ls_number_owned(name, ls_tensor_device(x), dtype, 1),
        ls_number_owned(name, ls_tensor_device(x), dtype, 0),
    };
    const int count = sizeof temporaries / sizeof *temporaries;
    ls_tensor *share = ls_tensor_like(name, x, dtype);
    bool good = share != NULL;
    for (int i = 0; i < count; i++) {
        good = good && temporaries[i] != NULL;
    }
    ls_status status = good ? product_of_others(share, x, &keeping, temporaries) : ls_error_status();
    for (int i = 0; i < count; i++) {
        ls_tensor_drop(temporaries[i]);
    }
    if (status == LS_OK) {
        status = ls_map(LS_KERNEL(mul), share, (const ls_tensor *[]){share, &g}, NULL);
    }
    return status == LS_OK ? ls_accumulate(node, 0, share) : status;
}

static const ls_op sum_op = {.name = "ls_sum",
                             .shape = ls_reduce_shape,
                             .forward = reduce_forward,
                             .backward = sum_backward,
                             .over_samples = sums,
                             .kernel = LS_KERNEL(sum)};
static const ls_op mean_op = {.name = "ls_mean",
                              .shape = ls_reduce_shape,
                              .forward = mean_forward,
                              .backward = mean_backward,
                              .over_samples = averages,
                              .kernel = LS_KERNEL(sum)};
static const ls_op prod_op = {.name = "ls_prod",
                              .shape = ls_reduce_shape,
                              .forward = reduce_forward,
                              .backward = prod_backward,
                              .over_samples = ls_reduce_mixes,
                              .reads = {1},
                              .kernel = LS_KERNEL(prod)};

/* Sums and products of integers and bools have dtype i64, as in PyTorch. */
static ls_tensor *total(const ls_op *op, ls_tensor *x, ls_axes axes, bool keepdim) {
    if (x == NULL) {
        return ls_apply(op, &x, 1, NULL);
    }
    const ls_dtype dtype = ls_dtype_is_floating(x->dtype) ? x->dtype : LS_I64;
    return ls_reduce_apply(op, x, axes, keepdim, 0, ls_compute_dtype(dtype), dtype);
}

ls_tensor *ls_sum(ls_tensor *x) {
    return total(&sum_op, x, LS_ALL_AXES, false);
}

ls_tensor *ls_sum_axes(ls_tensor *x, ls_axes axes, bool keepdim) {
    return total(&sum_op, x, axes, keepdim);
}

ls_tensor *ls_prod(ls_tensor *x) {
    return total(&prod_op, x, LS_ALL_AXES, false);
}

ls_tensor *ls_prod_axes(ls_tensor *x, ls_axes axes, bool keepdim) {
    return total(&prod_op, x, axes, keepdim);
}

ls_tensor *ls_mean(ls_tensor *x) {
    return ls_reduce_real(&mean_op, x, LS_ALL_AXES, false, 0);
}

ls_tensor *ls_mean_axes(ls_tensor *x, ls_axes axes, bool keepdim) {
    return ls_reduce_real(&mean_op, x, axes, keepdim, 0);
}

ls_tensor *ls_reduce_real(const ls_op *op, ls_tensor *x, ls_axes axes, bool keepdim, double number) {
    if (x == NULL) {
        return ls_apply(op, &x, 1, NULL);
    }
    const ls_dtype dtype = x->dtype;
    if (!ls_dtype_is_floating(dtype)) {
        return ls_fail_noted(LS_ERR_SHAPE, "%s: the tensor is %s; convert it to a floating-point dtype with ls_to",
                             op->name, ls_dtype_name(dtype));
    }
    return ls_reduce_apply(op, x, axes, keepdim, number, ls_compute_dtype(dtype), dtype);
}

/* ---- cumsum ------------------------------------------------------------------------------------------------------ */

static ls_status cumsum_forward(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    const int axis = (int)call->parameters->integer[0];
    return ls_kernels_of(x)->cumsum(ls_stream_of(x), call->output, x, axis, false);
}

/* Each element contributes to the sums at its own and all later positions. */
static ls_status cumsum_backward(ls_node *node, ls_tensor *gradient) {
    ls_tensor *share = ls_tensor_like(node->op->name, gradient, gradient->dtype);
    if (share == NULL) {
        return ls_error_status();
    }
    const int axis = (int)node->parameters.integer[0];
    LS_TRY(ls_kernels_of(share)->cumsum(ls_stream_of(share), share, gradient, axis, true));
    return ls_accumulate(node, 0, share);
}

static const ls_op cumsum_op = {.name = "ls_cumsum",
                                .shape = ls_shape_as_input,
                                .forward = cumsum_forward,
                                .backward = cumsum_backward,
                                .over_samples = ls_mixes_along_axis};

ls_tensor *ls_cumsum(ls_tensor *x, int axis) {
    if (x == NULL) {
        return ls_apply(&cumsum_op, &x, 1, NULL);
    }
    const int index = ls_op_axis("ls_cumsum", x, axis);
    if (index < 0) {
        return NULL;
    }
    const ls_op_parameters parameters = {.integer = {index}};
    const ls_dtype dtype = ls_dtype_is_floating(x->dtype) ? x->dtype : LS_I64;
    return ls_apply_as(&cumsum_op, &x, 1, 1, &parameters, ls_compute_dtype(dtype), dtype);
}

const ls_op *const ls_reduce_ops[] = {&sum_op, &mean_op, &prod_op, &cumsum_op, NULL};
