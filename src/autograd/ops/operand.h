/*
 * Operands for kernels of matrices, axes and losses, most of which take dense tensors of f32 or f64 only. What has to
 * be copied or converted first is recorded like any operation, so that gradients find their way back.
 */
#ifndef LS_AUTOGRAD_OPS_OPERAND_H
#define LS_AUTOGRAD_OPS_OPERAND_H

#include "autograd/op.h"

/*
 * ls_apply with the inputs of the bits in `dense` (bit i: input i) made contiguous, and bf16 and f16 among the first
 * `converted` inputs by way of f32; the result then comes back in the dtype of inputs[0]. At most LS_NODE_INPUTS
 * inputs, of which all but the first may be NULL as in ls_apply.
 */
ls_tensor *ls_apply_dense(const ls_op *op, ls_tensor *const *inputs, int input_count, int converted,
                          const ls_op_parameters *parameters, unsigned dense);

/* LS_OK when every tensor that is not NULL has the dtype of the first, and that is a floating one. */
ls_status ls_check_floating(const char *call, ls_tensor *const *inputs, int input_count);

/* The status of a call that made `tensor`, or could not. */
static inline ls_status ls_made(const ls_tensor *tensor) {
    return tensor != NULL ? LS_OK : ls_error_status();
}

/* `next`, after freeing `previous`, which it was made from, unless that is the caller's own `argument` or `next`. */
static inline ls_tensor *ls_replaced(ls_tensor *next, ls_tensor *previous, const ls_tensor *argument) {
    if (previous != argument && previous != next) {
        ls_release(previous);
    }
    return next;
}

/*
 * The leading dimension of a matrix with these strides as gemm takes it, as it lies or transposed; false when there is
 * none and it must be copied.
 */
bool ls_matrix_layout(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride, int64_t *leading,
                      bool *transposed);

#endif
