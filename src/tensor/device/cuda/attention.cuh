/*
 * What attention.cu asks of the library, which has a kernel for some shapes of halves (attention_library.cu), and the
 * graphs that tell cuDNN what is wanted (attention_graph.cuh).
 */
#ifndef LS_TENSOR_DEVICE_CUDA_ATTENTION_CUH
#define LS_TENSOR_DEVICE_CUDA_ATTENTION_CUH

#include "tensor/device/cuda/launch.cuh"

namespace ls {

/* The parameters of a call of f32 whose operands are rounded to a half. dq, dk and dv may be NULL; those and g are of
 * the backward pass. */
struct attention_call {
    const ls_tensor *q, *k, *v, *mask, *bias;
    ls_tensor *y, *log_sum, *dq, *dk, *dv;
    const ls_tensor *g;
    double scale;
    bool causal;
    ls_dtype half;
};

/* LS_ERR_UNSUPPORTED, with no error set: the library does not have it. */
ls_status library_attention(ls_stream *stream, const attention_call &call);
ls_status library_attention_backward(ls_stream *stream, const attention_call &call);

} // namespace ls

#endif
