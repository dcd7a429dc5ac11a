/*
 * What reductions share (reduce.c, extremes.c, statistics.c). Their integer parameters say which axes go; their kernels
 * want the output with those axes kept at size 1, which a stack view (ops.h) shows of an output that lacks them.
 */
#ifndef LS_AUTOGRAD_OPS_REDUCE_H
#define LS_AUTOGRAD_OPS_REDUCE_H

#include "autograd/ops/ops.h"

enum {
    LS_REDUCE_MASK,    /* bit i: axis i is reduced */
    LS_REDUCE_KEEPDIM, /* reduced axes stay, with size 1 */
    LS_REDUCE_GROUP    /* how many elements go into one */
};

static inline bool ls_reduces(const ls_op_parameters *parameters, int axis) {
    return parameters->integer[LS_REDUCE_MASK] >> axis & 1;
}

/* What reductions make of samples that is neither their sum nor their mean. */
ls_samples_use ls_reduce_mixes(ls_samples_call *call);

/* Shape rule: the output has the input's dtype, or another. */
ls_status ls_reduce_shape(ls_op_call *call);
ls_status ls_reduce_shape_as(ls_op_call *call, ls_dtype dtype);

/* y, a reduction of x, with x's dimensions. */
ls_tensor ls_reduce_view(const ls_tensor *y, const ls_tensor *x, const ls_op_parameters *parameters);

/* y = the reduction of x by the kernel at `kernel`. */
ls_status ls_reduce_into(size_t kernel, ls_tensor *y, const ls_tensor *x, const ls_op_parameters *parameters);

/* Applies a reduction in the dtype `compute`, with `number` as its first number. */
ls_tensor *ls_reduce_apply(const ls_op *op, ls_tensor *x, ls_axes axes, bool keepdim, double number, ls_dtype compute,
                           ls_dtype result);

/* The same for reductions of real numbers only; x may be NULL. */
ls_tensor *ls_reduce_real(const ls_op *op, ls_tensor *x, ls_axes axes, bool keepdim, double number);

/*
 * A tensor of x's shape, with a reference of the caller's, that holds g (x's dimensions, size 1 where reduced) at the
 * first extreme of each group and 0 elsewhere; `kernel` is argmax's or argmin's.
 */
ls_tensor *ls_spread_to_extreme(const char *call, const ls_tensor *x, const ls_tensor *g, size_t kernel,
                                const ls_op_parameters *parameters);

#endif
