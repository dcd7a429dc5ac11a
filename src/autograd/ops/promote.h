/*
 * The dtypes in which operations compute, and the dtypes of their results, by PyTorch's rules. Shared by all families:
 *   - the higher category (bool < integers < floating) wins, and within a category the wider dtype (bf16 with f16:
 *     f32);
 *   - within a category, a tensor without dimensions does not change the dtype of a tensor with dimensions;
 *   - a number never changes a floating-point dtype. With an integer tensor, a double gives f32; an integer keeps the
 *     dtype (bool becomes i64) and must fit into it;
 *   - bf16 and f16 are computed in f32, and the result is converted back.
 */
#ifndef LS_AUTOGRAD_PROMOTE_H
#define LS_AUTOGRAD_PROMOTE_H

#include "autograd/op.h"

/* Returns the dtype of the result of an operation on both tensors. */
ls_dtype ls_promote(const ls_tensor *a, const ls_tensor *b);

/* Returns the result dtype of an operation on an integer and a tensor that is not floating-point. */
ls_dtype ls_promote_integer(ls_dtype dtype);

/* Returns the result dtype of real functions: `dtype` itself if it is floating-point, else f32. */
ls_dtype ls_promote_real(ls_dtype dtype);

/* Returns the dtype in which kernels compute: f32 for bf16 and f16, otherwise `dtype` itself. */
static inline ls_dtype ls_compute_dtype(ls_dtype dtype) {
    return dtype == LS_BF16 || dtype == LS_F16 ? LS_F32 : dtype;
}

/* Returns whether kernels compute directly in this dtype and tensors of it can have a gradient: f32 or f64. */
static inline bool ls_is_plain(ls_dtype dtype) {
    return dtype == LS_F32 || dtype == LS_F64;
}

/*
 * Runs ls_apply with the first `converted` inputs (except NULL) converted to `compute`, and with the result converted
 * to `result`. The conversions are on the tape, so gradients have the inputs' dtypes.
 */
ls_tensor *ls_apply_as(const ls_op *op, ls_tensor *const *inputs, int input_count, int converted,
                       const ls_op_parameters *parameters, ls_dtype compute, ls_dtype result);

/*
 * Applies an operation with an integer as right operand, exact in all 64 bits. `op` takes the integer as a double if
 * that is exact; otherwise, `tensor_op` takes it as a second tensor. `op` is for tensors that are not floating-point;
 * `tensor_op` accepts any dtype. With u8, a negative number gives results that wrap around, or that are 0 if the
 * operation saturates.
 */
ls_tensor *ls_apply_integer(const ls_op *op, const ls_op *tensor_op, bool saturates, ls_tensor *a, int64_t number);
ls_tensor *ls_compare_integer(const ls_op *op, const ls_op *tensor_op, ls_tensor *a, int64_t number);

/*
 * Returns a number as a tensor without dimensions for the left operand of an operation with b, in a dtype that promotes
 * like a number. The caller releases the tensor. On failure, notes the error and returns NULL.
 */
ls_tensor *ls_number_beside(const char *call, ls_tensor *b, double number);
ls_tensor *ls_integer_beside(const char *call, ls_tensor *b, int64_t number);

/* Fails because the number is outside the range of i64 and the tensor is an integer tensor. */
ls_tensor *ls_refuse_unsigned(const char *call, uint64_t number);

/* Computes y += x in place, with broadcasting, for any floating-point dtype. */
ls_status ls_add_into(ls_tensor *y, const ls_tensor *x);

#endif
