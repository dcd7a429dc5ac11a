/*
 * Convolution by cuDNN. As for matrix products, each stream keeps plans (descriptors, and the algorithm that cuDNN's
 * heuristic selects). Algorithms are excluded if their bits depend on the order in which their parts finish, or if
 * their transforms lose digits.
 */
#include "tensor/device/cuda/conv.cuh"

#ifndef __CUDACC__

ls_status ls::library_conv(ls_stream *stream, conv_work work, const conv_shape &shape, const conv_data &data,
                           bool exact) {
    (void)stream;
    (void)work;
    (void)shape;
    (void)data;
    (void)exact;
    return LS_ERR_UNSUPPORTED;
}

#else

#include <cudnn.h>

#include <cstdlib>

#include "tensor/device/cuda/plans.cuh"

namespace {

using ls::conv_data;
using ls::conv_shape;
using ls::conv_work;

/* If the fastest algorithm needs more memory, a slower algorithm that needs less is used. */
constexpr size_t most_workspace = (size_t)1 << 30;

/* Has only 64-bit members, so that there is no padding. */
struct plan_key {
    int64_t work, dtype, tensor_units;
    conv_shape shape;
};

struct plan {
    plan_key key;
    bool is_used, is_known; /* is_known: the library has an algorithm for the key */
    cudnnTensorDescriptor_t large, small;
    cudnnFilterDescriptor_t weight;
    cudnnConvolutionDescriptor_t convolution;
    int algorithm;
    size_t workspace;
};

struct library {
    cudnnHandle_t handle;
    ls::plan_table<plan, 512> plans;
};

/* Records the first failure of several calls. */
struct first_failure {
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;

    void operator()(cudnnStatus_t next) {
        status = status == CUDNN_STATUS_SUCCESS ? next : status;
    }
};

ls_status failed(const char *what, cudnnStatus_t status) {
    return ls_fail(LS_ERR_DEVICE, "convolution: cuDNN %s: %s", what, cudnnGetErrorString(status));
}

/* Returns whether the status means that the library does not support the call, which is not a failure. */
bool is_refusal(cudnnStatus_t status) {
    return CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED ||
           CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_BAD_PARAM;
}

void clear(plan *p) {
    if (p->large != nullptr) {
        (void)cudnnDestroyTensorDescriptor(p->large);
    }
    if (p->small != nullptr) {
        (void)cudnnDestroyTensorDescriptor(p->small);
    }
    if (p->weight != nullptr) {
        (void)cudnnDestroyFilterDescriptor(p->weight);
    }
    if (p->convolution != nullptr) {
        (void)cudnnDestroyConvolutionDescriptor(p->convolution);
    }
    memset(p, 0, sizeof *p);
}

void end(void *memory) {
    library *const l = static_cast<library *>(memory);
    for (plan &p : l->plans.plan) {
        clear(&p);
    }
    if (l->handle != nullptr) {
        (void)cudnnDestroy(l->handle);
    }
    free(l);
}

ls_status library_of(ls_stream *stream, library **found) {
    void **const slot = ls_cuda_stream_slot(stream, LS_CUDA_SLOT_CONV, end);
    *found = static_cast<library *>(*slot);
    if (*found != nullptr) {
        return LS_OK;
    }
    library *const l = static_cast<library *>(calloc(1, sizeof *l));
    if (l == nullptr) {
        return ls_fail_memory("convolution", sizeof *l);
    }
    first_failure all;
    all(cudnnCreate(&l->handle));
    if (all.status == CUDNN_STATUS_SUCCESS) {
        all(cudnnSetStream(l->handle, ls_cuda_stream(stream)));
    }
    if (all.status != CUDNN_STATUS_SUCCESS) {
        end(l);
        return failed("does not start", all.status);
    }
    *slot = *found = l;
    return LS_OK;
}

/* ---- accepted calls ---------------------------------------------------------------------------------------------- */

/* Returns the first axis that is passed to cuDNN: for an image, or for a volume. */
int first_axis(const conv_shape &s) {
    return s.size[0] == 1 && s.out[0] == 1 && s.kernel[0] == 1 && s.before[0] == 0 ? 1 : 0;
}

/* cuDNN pads both sides of an image equally, and computes the sizes of the small side itself. */
bool is_for_it(const conv_shape &s) {
    int64_t large = s.samples * s.groups * s.channels, small = s.samples * s.groups * s.outputs;
    for (int i = 0; i < 3; i++) {
        const int64_t reach = s.dilation[i] * (s.kernel[i] - 1) + 1, room = s.size[i] + 2 * s.before[i] - reach;
        if (room < 0 || room / s.stride[i] + 1 != s.out[i]) {
            return false;
        }
        large *= s.size[i];
        small *= s.out[i];
    }
    return large > 0 && small > 0 && large <= INT32_MAX && small <= INT32_MAX;
}

/* ---- making plans ------------------------------------------------------------------------------------------------ */

cudnnStatus_t describe_tensor(cudnnTensorDescriptor_t *tensor, cudnnDataType_t type, int64_t samples, int64_t channels,
                              const int64_t *size, int axes) {
    int sizes[5] = {(int)samples, (int)channels}, strides[5];
    for (int i = 0; i < axes; i++) {
        sizes[2 + i] = (int)size[i];
    }
    for (int i = axes + 1, step = 1; i >= 0; step *= sizes[i--]) {
        strides[i] = step;
    }
    first_failure all;
    all(cudnnCreateTensorDescriptor(tensor));
    return all.status != CUDNN_STATUS_SUCCESS ? all.status
                                              : cudnnSetTensorNdDescriptor(*tensor, type, 2 + axes, sizes, strides);
}

cudnnStatus_t describe_weight(cudnnFilterDescriptor_t *weight, cudnnDataType_t type, const conv_shape &s, int first) {
    int sizes[5] = {(int)(s.groups * s.outputs), (int)s.channels};
    for (int i = first; i < 3; i++) {
        sizes[2 + i - first] = (int)s.kernel[i];
    }
    first_failure all;
    all(cudnnCreateFilterDescriptor(weight));
    return all.status != CUDNN_STATUS_SUCCESS
               ? all.status
               : cudnnSetFilterNdDescriptor(*weight, type, CUDNN_TENSOR_NCHW, 5 - first, sizes);
}

cudnnStatus_t describe_windows(plan *p, cudnnDataType_t type, int first) {
    const conv_shape &s = p->key.shape;
    int before[3], stride[3], dilation[3];
    for (int i = first; i < 3; i++) {
        before[i - first] = (int)s.before[i];
        stride[i - first] = (int)s.stride[i];
        dilation[i - first] = (int)s.dilation[i];
    }
    first_failure all;
    all(cudnnCreateConvolutionDescriptor(&p->convolution));
    if (all.status != CUDNN_STATUS_SUCCESS) {
        return all.status;
    }
    all(cudnnSetConvolutionNdDescriptor(p->convolution, 3 - first, before, stride, dilation, CUDNN_CROSS_CORRELATION,
                                        type));
    all(cudnnSetConvolutionGroupCount(p->convolution, (int)s.groups));
    all(cudnnSetConvolutionMathType(p->convolution, p->key.tensor_units ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH));
    return all.status;
}

cudnnStatus_t describe(plan *p) {
    const conv_shape &s = p->key.shape;
    const cudnnDataType_t type = p->key.dtype == LS_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    const int first = first_axis(s), axes = 3 - first;
    first_failure all;
    all(describe_tensor(&p->large, type, s.samples, s.groups * s.channels, s.size + first, axes));
    all(describe_tensor(&p->small, type, s.samples, s.groups * s.outputs, s.out + first, axes));
    all(describe_weight(&p->weight, type, s, first));
    all(describe_windows(p, type, first));
    return all.status;
}

/*
 * Fourier transforms lose digits, and so do Winograd transforms with larger tiles (the "nonfused" algorithms). For
 * operands rounded to 11 bits, no transform is allowed.
 */
bool keeps_digits(const plan *p, int algorithm) {
    switch (p->key.work) {
    case ls::CONV_SMALL:
        return algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM ||
               algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM ||
               algorithm == CUDNN_CONVOLUTION_FWD_ALGO_GEMM || algorithm == CUDNN_CONVOLUTION_FWD_ALGO_DIRECT ||
               (algorithm == CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD && !p->key.tensor_units);
    case ls::CONV_LARGE:
        return algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1 ||
               (algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD && !p->key.tensor_units);
    default:
        return algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
    }
}

cudnnStatus_t ask_workspace(const library *l, plan *p) {
    switch (p->key.work) {
    case ls::CONV_SMALL:
        return cudnnGetConvolutionForwardWorkspaceSize(l->handle, p->large, p->weight, p->convolution, p->small,
                                                       (cudnnConvolutionFwdAlgo_t)p->algorithm, &p->workspace);
    case ls::CONV_LARGE:
        return cudnnGetConvolutionBackwardDataWorkspaceSize(l->handle, p->weight, p->small, p->convolution, p->large,
                                                            (cudnnConvolutionBwdDataAlgo_t)p->algorithm, &p->workspace);
    default:
        return cudnnGetConvolutionBackwardFilterWorkspaceSize(l->handle, p->large, p->small, p->convolution, p->weight,
                                                              (cudnnConvolutionBwdFilterAlgo_t)p->algorithm,
                                                              &p->workspace);
    }
}

/*
 * Selects the first acceptable algorithm; the results are sorted by speed. Ignores a result's math type if 11-bit
 * units are forbidden.
 */
template <class RESULT> void take(const library *l, plan *p, const RESULT *results, int count) {
    for (int i = 0; i < count && !p->is_known; i++) {
        const RESULT &r = results[i];
        if (r.status != CUDNN_STATUS_SUCCESS || r.determinism != CUDNN_DETERMINISTIC || !keeps_digits(p, (int)r.algo)) {
            continue;
        }
        p->algorithm = (int)r.algo;
        p->is_known = cudnnSetConvolutionMathType(p->convolution, p->key.tensor_units ? r.mathType : CUDNN_FMA_MATH) ==
                          CUDNN_STATUS_SUCCESS &&
                      ask_workspace(l, p) == CUDNN_STATUS_SUCCESS && p->workspace <= most_workspace;
    }
}

cudnnStatus_t choose(const library *l, plan *p) {
    enum { MOST = 16 };
    int count = 0;
    cudnnStatus_t status;
    if (p->key.work == ls::CONV_SMALL) {
        cudnnConvolutionFwdAlgoPerf_t results[MOST];
        status = cudnnGetConvolutionForwardAlgorithm_v7(l->handle, p->large, p->weight, p->convolution, p->small, MOST,
                                                        &count, results);
        take(l, p, results, status == CUDNN_STATUS_SUCCESS ? count : 0);
    } else if (p->key.work == ls::CONV_LARGE) {
        cudnnConvolutionBwdDataAlgoPerf_t results[MOST];
        status = cudnnGetConvolutionBackwardDataAlgorithm_v7(l->handle, p->weight, p->small, p->convolution, p->large,
                                                             MOST, &count, results);
        take(l, p, results, status == CUDNN_STATUS_SUCCESS ? count : 0);
    } else {
        cudnnConvolutionBwdFilterAlgoPerf_t results[MOST];
        status = cudnnGetConvolutionBackwardFilterAlgorithm_v7(l->handle, p->large, p->small, p->convolution, p->weight,
                                                               MOST, &count, results);
        take(l, p, results, status == CUDNN_STATUS_SUCCESS ? count : 0);
    }
    return status;
}

/*
 * Returns the plan for a convolution. If it is not in the table, creates it, and replaces another plan if the table is
 * full.
 */
ls_status plan_for(library *l, const plan_key &key, plan **found) {
    bool is_new;
    plan *const place = l->plans.find(key, clear, &is_new);
    *found = place;
    if (!is_new) {
        return LS_OK;
    }
    first_failure all;
    all(describe(place));
    if (all.status == CUDNN_STATUS_SUCCESS) {
        all(choose(l, place));
    }
    (void)cudaGetLastError(); /* clear errors from the library's attempts, which the next kernel would report */
    if (all.status != CUDNN_STATUS_SUCCESS && !is_refusal(all.status)) {
        clear(place);
        return failed("cannot plan", all.status);
    }
    place->is_used = true;
    return LS_OK;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

cudnnStatus_t start(const library *l, const plan *p, const conv_data &data, void *room) {
    const float one = 1, zero = 0;
    const double one_f64 = 1, zero_f64 = 0;
    const bool wide = p->key.dtype == LS_F64;
    const void *const factor = wide ? (const void *)&one_f64 : &one, *const none =
                                                                         wide ? (const void *)&zero_f64 : &zero;
    switch (p->key.work) {
    case ls::CONV_SMALL:
        return cudnnConvolutionForward(l->handle, factor, p->large, data.large, p->weight, data.weight, p->convolution,
                                       (cudnnConvolutionFwdAlgo_t)p->algorithm, room, p->workspace, none, p->small,
                                       data.small);
    case ls::CONV_LARGE:
        return cudnnConvolutionBackwardData(l->handle, factor, p->weight, data.weight, p->small, data.small,
                                            p->convolution, (cudnnConvolutionBwdDataAlgo_t)p->algorithm, room,
                                            p->workspace, none, p->large, data.large);
    default:
        return cudnnConvolutionBackwardFilter(l->handle, factor, p->large, data.large, p->small, data.small,
                                              p->convolution, (cudnnConvolutionBwdFilterAlgo_t)p->algorithm, room,
                                              p->workspace, factor, p->weight, data.weight);
    }
}

} // namespace

ls_status ls::library_conv(ls_stream *stream, conv_work work, const conv_shape &shape, const conv_data &data,
                           bool exact) {
    if (!is_for_it(shape)) {
        return LS_ERR_UNSUPPORTED;
    }
    library *l = nullptr;
    plan *p = nullptr;
    LS_TRY(library_of(stream, &l));
    const bool tensor_units = data.dtype == LS_F32 && (exact || allows_tf32());
    const plan_key key = {work, data.dtype, tensor_units, shape};
    LS_TRY(plan_for(l, key, &p));
    if (!p->is_known) {
        return LS_ERR_UNSUPPORTED;
    }
    const scratch room(stream, p->workspace > 0 ? p->workspace : 1);
    LS_TRY(room.status("convolution"));
    const cudnnStatus_t status = start(l, p, data, p->workspace > 0 ? room.memory : nullptr);
    if (is_refusal(status)) {
        (void)cudaGetLastError();
        p->is_known = false;
        return LS_ERR_UNSUPPORTED;
    }
    return status == CUDNN_STATUS_SUCCESS ? ls_cuda_launched(stream, "conv") : failed("fails", status);
}

#endif
