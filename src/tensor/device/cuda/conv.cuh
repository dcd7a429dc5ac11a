/*
 * What conv.cu and conv_library.cu share. A convolution has a large side, which windows see, and a small one, with a
 * number for each window; which of large, small and weight is made from the other two is the work.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_CONV_CUH
#define LS_TENSOR_DEVICE_CUDA_CONV_CUH

#include "tensor/device/cuda/products.cuh"

namespace ls {

enum conv_work { CONV_SMALL, CONV_LARGE, CONV_WEIGHT };

/* Channels and outputs are those of one group. */
struct conv_shape {
    int64_t samples, groups, channels, outputs;
    int64_t size[3], out[3], kernel[3], stride[3], dilation[3], before[3];
};

/* Numbers of `dtype`, f32 or f64, contiguous. */
struct conv_data {
    ls_dtype dtype;
    void *large, *small, *weight;
};

/*
 * By cuDNN; of the weight the gradient is added to what is there. exact: all operands have numbers of at most 11 bits,
 * so that products of such units are those of f32. LS_ERR_UNSUPPORTED, with no error set: it does not have it.
 */
ls_status library_conv(ls_stream *stream, conv_work work, const conv_shape &shape, const conv_data &data, bool exact);

} // namespace ls

#endif
