/*
 * Shared by conv.cu and conv_library.cu. A convolution has a large side, which windows cover, and a small side, with
 * one number per window. `work` selects which of large, small and weight is computed from the other two.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_CONV_CUH
#define LS_TENSOR_DEVICE_CUDA_CONV_CUH

#include "tensor/device/cuda/products.cuh"

namespace ls {

enum conv_work { CONV_SMALL, CONV_LARGE, CONV_WEIGHT };

/* channels and outputs are the counts of one group. */
struct conv_shape {
    int64_t samples, groups, channels, outputs;
    int64_t size[3], out[3], kernel[3], stride[3], dilation[3], before[3];
};

/* Contiguous elements of `dtype`, which is f32 or f64. */
struct conv_data {
    ls_dtype dtype;
    void *large, *small, *weight;
};

/*
 * Computes a convolution with cuDNN. Adds the gradient of the weight to the existing values. `exact` means that all
 * operands have at most 11 significant bits, so that tensor cores with such operands compute the same products as f32.
 * Returns LS_ERR_UNSUPPORTED, without setting an error, if cuDNN has no kernel for the convolution.
 */
ls_status library_conv(ls_stream *stream, conv_work work, const conv_shape &shape, const conv_data &data, bool exact);

} // namespace ls

#endif
