/*
 * The library's attention for attention.cu, with kernels for some shapes of 16-bit floats (attention_library.cu), and
 * its cuDNN graphs (attention_graph.cuh).
 */
#ifndef LS_TENSOR_DEVICE_CUDA_ATTENTION_CUH
#define LS_TENSOR_DEVICE_CUDA_ATTENTION_CUH

#include "tensor/device/cuda/launch.cuh"

namespace ls {

/*
 * The parameters of a call on f32 tensors whose operands are rounded to a 16-bit float. dq, dk and dv may be NULL; they
 * and g are for the backward pass.
 */
struct attention_call {
    const ls_tensor *q, *k, *v, *mask, *bias;
    ls_tensor *y, *log_sum, *dq, *dk, *dv;
    const ls_tensor *g;
    double scale;
    bool causal;
    ls_dtype half;
};

/* Returns LS_ERR_UNSUPPORTED, without setting an error, if the library has no kernel for the call. */
ls_status library_attention(ls_stream *stream, const attention_call &call);
ls_status library_attention_backward(ls_stream *stream, const attention_call &call);

} // namespace ls

#endif
