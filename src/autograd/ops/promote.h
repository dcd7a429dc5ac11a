/*
 * Which dtype an operation computes in and which it gives, by PyTorch's rules, shared by all families:
 *   - the higher category (bool < integers < floating) wins, and within one the wider dtype (bf16 with f16: f32);
 *   - within a category, a tensor of no dimensions does not change the dtype of one that has some;
 *   - a number never changes a floating dtype; to integers it is what its C type says: a double makes f32 of them, an
 *     integer keeps their dtype (and makes i64 of bool), and must fit into it;
 *   - bf16 and f16 are computed by way of f32, and the result is converted back.
 */
#ifndef LS_AUTOGRAD_PROMOTE_H
#define LS_AUTOGRAD_PROMOTE_H

#include "autograd/op.h"

/* The dtype of a result of both. */
ls_dtype ls_promote(const ls_tensor *a, const ls_tensor *b);

/* The dtype of a tensor that is not floating with an integer on the right. */
ls_dtype ls_promote_integer(ls_dtype dtype);

/* The dtype itself when it is floating, else f32: what functions of real numbers make of integers. */
ls_dtype ls_promote_real(ls_dtype dtype);

/* The dtype in which kernels compute it: f32 for bf16 and f16, else the same. */
static inline ls_dtype ls_compute_dtype(ls_dtype dtype) {
    return dtype == LS_BF16 || dtype == LS_F16 ? LS_F32 : dtype;
}

/* Whether kernels compute it as it is and it can have a gradient: f32 or f64. */
static inline bool ls_is_plain(ls_dtype dtype) {
    return dtype == LS_F32 || dtype == LS_F64;
}

/*
 * ls_apply with the first `converted` inputs (NULL ones left alone) converted to `compute` and the result to `result`;
 * the conversions are on the tape, so gradients come back in the inputs' dtypes.
 */
ls_tensor *ls_apply_as(const ls_op *op, ls_tensor *const *inputs, int input_count, int converted,
                       const ls_op_parameters *parameters, ls_dtype compute, ls_dtype result);

/*
 * Operations with an integer on the right, exact in all 64 bits: `op` takes it as a double where that holds it,
 * `tensor_op` as a second tensor where not. The first is for tensors that are not floating, the second compares any.
 * Beside u8 a negative number makes results that wrap around, or where the operation saturates is 0.
 */
ls_tensor *ls_apply_integer(const ls_op *op, const ls_op *tensor_op, bool saturates, ls_tensor *a, int64_t number);
ls_tensor *ls_compare_integer(const ls_op *op, const ls_op *tensor_op, ls_tensor *a, int64_t number);

/* A number as a tensor of no dimensions on the left of b, released by who asks for it: of a dtype that changes nothing
 * of b's but what a number does. NULL with the error noted. */
ls_tensor *ls_number_beside(const char *call, ls_tensor *b, double number);
ls_tensor *ls_integer_beside(const char *call, ls_tensor *b, int64_t number);

/* The failure of a number beyond i64 beside integers. */
ls_tensor *ls_refuse_unsigned(const char *call, uint64_t number);

/* y += x (broadcast), in place, for any floating dtype. */
ls_status ls_add_into(ls_tensor *y, const ls_tensor *x);

#endif
