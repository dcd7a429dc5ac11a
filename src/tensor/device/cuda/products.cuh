/*
 * What gemm.cu, conv.cu and attention.cu share: matrices whose numbers are rounded to a half, and products by the
 * library, which is cuBLAS, or the CPU's kernels where these files are built for the host.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_PRODUCTS_CUH
#define LS_TENSOR_DEVICE_CUDA_PRODUCTS_CUH

#include "tensor/device/cuda/launch.cuh"

namespace ls {

/* `count` matrices as they lie, row-major, each `step` elements behind the one before. */
struct matrices {
    const void *data;
    int64_t rows, columns, leading, count, step;
};

/* The numbers of f32 matrices as bf16 or f16 in dense matrices of rows of `leading` numbers; what is behind a row's
 * columns is left as it was. */
ls_status to_halves(ls_stream *stream, const matrices &from, ls_dtype half, int64_t leading, uint16_t *to);

/* `count` numbers of f32, rounded to those of a half. */
ls_status rounded(ls_stream *stream, const float *from, ls_dtype half, int64_t count, float *to);

/*
 * The product of operands of dtype gemm.dtype: f32, f64, bf16 or f16, with C of f32 for the halves. m, n and k are not
 * 0, batch is not 0, compute, rounds_to and the activation are not looked at. *has_bias: whether it has added the bias.
 * LS_ERR_UNSUPPORTED, with no error set: the library does not have it.
 */
ls_status library_gemm(ls_stream *stream, const ls_gemm &gemm, bool *has_bias);

/* Whether LOCKSTEP_TF32 is 1: products of f32 may round their operands to 11 bits, on units many times as fast. */
bool allows_tf32();

} // namespace ls

#endif
