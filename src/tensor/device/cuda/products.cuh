/*
 * Shared by gemm.cu, conv.cu and attention.cu: rounding of matrices to 16-bit floats, and products of matrices.
 * cuBLAS computes these products, or the CPU's kernels if these files are built for the host.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_PRODUCTS_CUH
#define LS_TENSOR_DEVICE_CUDA_PRODUCTS_CUH

#include <cstdlib>

#include "tensor/device/cuda/launch.cuh"

namespace ls {

/* `count` matrices, row-major; consecutive matrices are `step` elements apart. */
struct matrices {
    const void *data;
    int64_t rows, columns, leading, count, step;
};

/*
 * Converts f32 matrices to bf16 or f16 matrices that are dense with rows of `leading` elements. Elements after a row's
 * columns are not written.
 */
ls_status to_halves(ls_stream *stream, const matrices &from, ls_dtype half, int64_t leading, uint16_t *to);

/* Rounds `count` f32 numbers to bf16 or f16, and stores them as f32. */
ls_status rounded(ls_stream *stream, const float *from, ls_dtype half, int64_t count, float *to);

/*
 * Computes the product of operands of dtype gemm.dtype: f32, f64, bf16 or f16; for 16-bit floats, C is f32. m, n, k and
 * batch must not be 0; compute, rounds_to and the activation are ignored. Sets *has_bias to whether the bias was added.
 * Returns LS_ERR_UNSUPPORTED, without setting an error, if the library has no kernel for the product.
 */
ls_status library_gemm(ls_stream *stream, const ls_gemm &gemm, bool *has_bias);

/* Returns whether LOCKSTEP_TF32 is 1: f32 products may then round their operands to 11 bits, for much faster units. */
inline bool allows_tf32() {
    static const bool allows = [] {
        const char *const text = getenv("LOCKSTEP_TF32");
        return text != nullptr && strcmp(text, "1") == 0;
    }();
    return allows;
}

} // namespace ls

#endif
