/*
 * How kernels of device/cuda are written and started. A kernel's arithmetic is a lambda marked LS_BODY, started over an
 * index space by one of
 *
 *     ls::each(stream, "name", n, [=] LS_BODY(int64_t i) { ... });              one thread for each i below n
 *     ls::teams<256>(stream, "name", n, [=] LS_BODY(ls::team &t, int64_t i) { ... });   256 threads for each i below n
 *
 * With nvcc these start kernels. With any other C++ compiler they are loops on the host, in which a team has one
 * member, or a number of threads that a test sets (ls_cuda_host_members). So the arithmetic, bounds and synchronization
 * of every kernel are tested without a GPU (tests/shadow runs the kernels as device "shadow:1"). Results of a lambda
 * must not depend on the number of members of its team, except for the order of a sum.
 *
 * Results are the same in every run: atomic operations are used only if their order has no effect, and the sizes of
 * teams and parts depend only on shapes.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_LAUNCH_CUH
#define LS_TENSOR_DEVICE_CUDA_LAUNCH_CUH

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>
#include <utility>

extern "C" {
#include "base/status.h"
#include "tensor/device.h"
#include "tensor/device/cpu/loop.h"
#include "tensor/device/cpu/number.h"
#include "tensor/device/cuda/cuda_kernels.h"
#include "tensor/device/cuda/stream.h"
}

#ifdef __CUDACC__
#define LS_BODY __device__
#else
#define LS_BODY
#endif

namespace ls {

/* The threads that process one item together. lane: the index of this thread, less than size. */
struct team {
    int lane, size;
#ifdef __CUDACC__
    void *joined; /* shared memory for 32 numbers of at most 8 bytes, used by reduce */

    __device__ void sync() const {
        __syncthreads();
    }
    /*
     * Combines the values of all members with `join`, in an order that depends only on the team's size. Every member
     * gets the result.
     */
    template <class T, class Join> __device__ T reduce(T value, Join join) const {
        static_assert(sizeof(T) <= 8, "there is room for so much of each warp");
        T *const each = static_cast<T *>(joined);
        for (int half = 16; half > 0; half /= 2) {
            value = join(value, __shfl_xor_sync(0xffffffffU, value, half));
        }
        __syncthreads();
        if ((lane & 31) == 0) {
            each[lane >> 5] = value;
        }
        __syncthreads();
        T all = each[0];
        for (int i = 1; i < size / 32; i++) {
            all = join(all, each[i]);
        }
        return all;
    }
#else
    ls_cuda_host_team *others; /* NULL if the team has one member */

    void sync() const {
        if (others != nullptr) {
            ls_cuda_host_wait(others);
        }
    }
    template <class T, class Join> T reduce(T value, Join join) const {
        static_assert(sizeof(T) <= 8, "on a GPU there is room for no more");
        if (others == nullptr) {
            return value;
        }
        char(*const each)[16] = ls_cuda_host_room(others);
        memcpy(each[lane], &value, sizeof value);
        sync();
        T all, next;
        memcpy(&all, each[0], sizeof all);
        for (int i = 1; i < size; i++) {
            memcpy(&next, each[i], sizeof next);
            all = join(all, next);
        }
        sync(); /* before the memory is overwritten */
        return all;
    }
#endif
    template <class T> LS_BODY T sum(T value) const {
        return reduce(value, [](T a, T b) { return a + b; });
    }
    /* NaN wins. */
    template <class T> LS_BODY T largest(T value) const {
        return reduce(value, [](T a, T b) { return a > b || a != a ? a : b; });
    }
};

#ifdef __CUDACC__
template <class F> __global__ void each_kernel(int64_t n, F f) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        f(i);
    }
}

template <int THREADS, class F> __global__ void __launch_bounds__(THREADS) teams_kernel(int64_t n, F f) {
    __shared__ double joined[32];
    team t{(int)threadIdx.x, THREADS, joined};
    for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
        f(t, i);
    }
}
#endif

/* Calls f(i) for every i below n, in any order, in parallel. */
template <class F> ls_status each(ls_stream *stream, const char *name, int64_t n, F f) {
    if (n <= 0) {
        return LS_OK;
    }
#ifdef __CUDACC__
    const int64_t blocks = (n + 255) / 256;
    each_kernel<<<(unsigned)(blocks < 0x40000000 ? blocks : 0x40000000), 256, 0, ls_cuda_stream(stream)>>>(n, f);
    return ls_cuda_launched(stream, name);
#else
    (void)stream;
    (void)name;
    for (int64_t i = 0; i < n; i++) {
        f(i);
    }
    return LS_OK;
#endif
}

#ifndef __CUDACC__
template <class F> struct teams_call {
    int64_t n;
    F *f;
};

template <class F> void member_of_teams(void *argument, int lane, int size, ls_cuda_host_team *others) {
    const teams_call<F> *const call = static_cast<teams_call<F> *>(argument);
    team t{lane, size, others};
    for (int64_t i = 0; i < call->n; i++) {
        (*call->f)(t, i);
        t.sync(); /* on the host, teams run one after another, and the next team may reuse the shared memory */
    }
}
#endif

/* Calls f(team, i) for every i below n: THREADS members (a multiple of 32) call it together for each i. */
template <int THREADS, class F> ls_status teams(ls_stream *stream, const char *name, int64_t n, F f) {
    static_assert(THREADS % 32 == 0 && THREADS <= 1024, "a team is of whole warps");
    if (n <= 0) {
        return LS_OK;
    }
#ifdef __CUDACC__
    teams_kernel<THREADS><<<(unsigned)(n < 0x40000000 ? n : 0x40000000), THREADS, 0, ls_cuda_stream(stream)>>>(n, f);
    return ls_cuda_launched(stream, name);
#else
    (void)stream;
    (void)name;
    teams_call<F> call{n, &f};
    const int members = ls_cuda_host_members();
    if (members > 1) {
        ls_cuda_host_run(members, member_of_teams<F>, &call);
    } else {
        member_of_teams<F>(&call, 0, 1, nullptr);
    }
    return LS_OK;
#endif
}

/* Device memory for the duration of a kernel call; the destructor releases it in stream order. */
struct scratch {
    ls_stream *stream;
    size_t bytes;
    void *memory;

    scratch(ls_stream *on, size_t size) : stream(on), bytes(size), memory(ls_cuda_scratch_take(on, size)) {
    }
    ~scratch() {
        if (memory != nullptr) {
            ls_cuda_scratch_give(stream, memory, bytes);
        }
    }
    scratch(const scratch &) = delete;
    scratch &operator=(const scratch &) = delete;
    /* Returns LS_ERR_MEMORY if the allocation failed. */
    ls_status status(const char *name) const {
        return memory != nullptr ? LS_OK : ls_fail_memory(name, bytes);
    }
    template <class T> T *as() const {
        return static_cast<T *>(memory);
    }
};

/* Returns a / b for nonnegative numbers. Avoids 64-bit division, which is ten times slower on a GPU. */
LS_HOST_DEVICE inline int64_t quotient(int64_t a, int64_t b) {
    return ((a | b) >> 32) == 0 ? (int64_t)((uint32_t)a / (uint32_t)b) : a / b;
}

/*
 * The offsets of element i in N tensors. The axes are as in ls_loop: the first tensor determines the shape, and the
 * other tensors broadcast to it. at(i, offset) sets the offsets, in elements, from the first element of each tensor.
 */
template <int N> struct walk {
    int ndim;
    bool dense; /* element i of every tensor is at offset i */
    int64_t count;
    int64_t size[LS_MAX_DIMS];
    int64_t step[LS_MAX_DIMS][N];

    explicit walk(const ls_tensor *const *tensor) : ndim(0), dense(true), count(tensor[0]->count) {
        if (count == 0) {
            return;
        }
        ls_loop loop;
        ls_loop_plan(&loop, N, tensor);
        ndim = loop.ndim;
        dense = ndim == 1;
        for (int axis = 0; axis < ndim; axis++) {
            size[axis] = loop.size[axis];
            for (int t = 0; t < N; t++) {
                step[axis][t] = loop.step[axis][t];
                dense = dense && step[axis][t] == 1;
            }
        }
    }
    LS_BODY void at(int64_t i, int64_t (&offset)[N]) const {
        if (dense) {
            for (int t = 0; t < N; t++) {
                offset[t] = i;
            }
            return;
        }
        for (int t = 0; t < N; t++) {
            offset[t] = 0;
        }
        for (int axis = ndim - 1; axis > 0; axis--) {
            const int64_t rest = quotient(i, size[axis]);
            const int64_t here = i - rest * size[axis];
            for (int t = 0; t < N; t++) {
                offset[t] += here * step[axis][t];
            }
            i = rest;
        }
        for (int t = 0; t < N; t++) {
            offset[t] += i * step[0][t];
        }
    }
};

/* A contiguous tensor, viewed along one axis: `outer` blocks of `width` rows of `inner` elements. */
struct axis_view {
    int64_t outer, width, inner;

    axis_view(const ls_tensor *tensor, int axis)
        : outer(tensor->count > 0 ? 1 : 0), width(tensor->ndim > 0 ? tensor->size[axis] : 1), inner(1) {
        for (int i = 0; i < tensor->ndim; i++) {
            (i < axis ? outer : inner) *= i == axis ? 1 : tensor->size[i];
        }
    }
};

template <class T> T *data(const ls_tensor *tensor) {
    return tensor != nullptr ? static_cast<T *>(tensor->data) : nullptr;
}

inline ls_status no_kernel(const char *name, int dtype) {
    return ls_fail(LS_ERR_UNSUPPORTED, "%s: the device has no kernel for %s", name, ls_dtype_name((ls_dtype)dtype));
}

} // namespace ls

/*
 * LS_OF_FLOATS calls function<T>(...) with the C type of f32 or f64. The second macro accepts all dtypes except 16-bit
 * floats, with uint8_t for bool. (GPU lambdas are not allowed in generic lambdas, but they are allowed in template
 * functions.)
 */
#define LS_OF_FLOATS(dtype, function, ...)                                                                             \
    ((dtype) == LS_F32   ? function<float>(__VA_ARGS__)                                                                \
     : (dtype) == LS_F64 ? function<double>(__VA_ARGS__)                                                               \
                         : ls::no_kernel(#function, dtype))
#define LS_OF_ANY(dtype, function, ...)                                                                                \
    ((dtype) == LS_I64                        ? function<int64_t>(__VA_ARGS__)                                         \
     : (dtype) == LS_I32                      ? function<int32_t>(__VA_ARGS__)                                         \
     : (dtype) == LS_U8 || (dtype) == LS_BOOL ? function<uint8_t>(__VA_ARGS__)                                         \
                                              : LS_OF_FLOATS(dtype, function, __VA_ARGS__))

#endif
