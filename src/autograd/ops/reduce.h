/*
 * Shared by reductions (reduce.c, extremes.c, statistics.c). Their integer parameters select the reduced axes. Their
 * kernels need an output that keeps those axes with size 1. If the output lacks these axes, a stack view (ops.h) adds
 * them.
 */
#ifndef LS_AUTOGRAD_OPS_REDUCE_H
#define LS_AUTOGRAD_OPS_REDUCE_H

#include "autograd/ops/ops.h"

enum {
    LS_REDUCE_MASK,    /* bit i: axis i is reduced */
    LS_REDUCE_KEEPDIM, /* reduced axes are kept, with size 1 */
    LS_REDUCE_GROUP    /* number of elements reduced to one element */
};

static inline bool ls_reduces(const ls_op_parameters *parameters, int axis) {
    return parameters->integer[LS_REDUCE_MASK] >> axis & 1;
}

/* Rule for samples of reductions that are neither a sum nor a mean. */
ls_samples_use ls_reduce_mixes(ls_samples_call *call);

/* Shape rule of reductions: the output has the input's dtype, or the given dtype. */
ls_status ls_reduce_shape(ls_op_call *call);
ls_status ls_reduce_shape_as(ls_op_call *call, ls_dtype dtype);

/* Views y, a reduction of x, with x's number of dimensions. */
ls_tensor ls_reduce_view(const ls_tensor *y, const ls_tensor *x, const ls_op_parameters *parameters);

/* Computes y = the reduction of x by the kernel at offset `kernel`. */
ls_status ls_reduce_into(size_t kernel, ls_tensor *y, const ls_tensor *x, const ls_op_parameters *parameters);

/* Applies a reduction in the dtype `compute`. `number` becomes number[0] of the parameters. */
ls_tensor *ls_reduce_apply(const ls_op *op, ls_tensor *x, ls_axes axes, bool keepdim, double number, ls_dtype compute,
                           ls_dtype result);

/* Same as ls_reduce_apply, for reductions of real numbers only; x may be NULL. */
ls_tensor *ls_reduce_real(const ls_op *op, ls_tensor *x, ls_axes axes, bool keepdim, double number);

/*
 * Returns a tensor of x's shape that contains g (x's number of dimensions, size 1 where reduced) at the first extreme
 * of each group and 0 elsewhere. Returns ownership of the reference to the caller. `kernel` is the offset of argmax or
 * argmin.
 */
ls_tensor *ls_spread_to_extreme(const char *call, const ls_tensor *x, const ls_tensor *g, size_t kernel,
                                const ls_op_parameters *parameters);

#endif
