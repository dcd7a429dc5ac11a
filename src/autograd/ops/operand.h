/*
 * Operands for kernels that compute with matrices, axes and losses. Most of these kernels accept only dense tensors of
 * f32 or f64. The necessary copies and conversions are recorded like any operation, so that gradients pass through
 * them.
 */
#ifndef LS_AUTOGRAD_OPS_OPERAND_H
#define LS_AUTOGRAD_OPS_OPERAND_H

#include "autograd/op.h"
#include "autograd/ops/promote.h"

/*
 * Runs ls_apply after making the inputs whose bits are set in `dense` (bit i: input i) contiguous, and converting bf16
 * and f16 among the first `converted` inputs to f32. The result is then converted back to the dtype of inputs[0]. There
 * may be at most LS_NODE_INPUTS inputs. All but the first may be NULL, as in ls_apply.
 */
ls_tensor *ls_apply_dense(const ls_op *op, ls_tensor *const *inputs, int input_count, int converted,
                          const ls_op_parameters *parameters, unsigned dense);

/* Returns LS_OK if the dtype of the first tensor is floating, and every other tensor that is not NULL has the same
 * dtype. */
ls_status ls_check_floating(const char *call, ls_tensor *const *inputs, int input_count);

/*
 * Returns `next` and releases `previous`, from which it was made, unless `previous` is `argument` or `next`.
 */
static inline ls_tensor *ls_replaced(ls_tensor *next, ls_tensor *previous, const ls_tensor *argument) {
    if (previous != argument && previous != next) {
        ls_release(previous);
    }
    return next;
}

/* Returns x in the dtype in which kernels compute: x itself, or a copy in f32 of a 16-bit float. NULL for NULL. */
static inline ls_tensor *ls_widened(ls_tensor *x) {
    return x == NULL || ls_compute_dtype(x->dtype) == x->dtype ? x : ls_to(x, ls_compute_dtype(x->dtype));
}

/* Converts y back to the dtype of x. Consumes y; returns NULL for NULL. */
static inline ls_tensor *ls_narrowed(ls_tensor *y, const ls_tensor *x) {
    return y == NULL || y->dtype == x->dtype ? y : ls_replaced(ls_to(y, x->dtype), y, NULL);
}

/*
 * Returns the leading dimension with which gemm can read a matrix with these strides, directly or transposed. Returns
 * false if there is no such dimension, so that the matrix must be copied.
 */
bool ls_matrix_layout(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride, int64_t *leading,
                      bool *transposed);

#endif
