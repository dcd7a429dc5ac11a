/*
 * Small groups of threads: 8 or 32 threads that process one row together without shared memory, for rows on which a
 * team of launch.cuh would mostly wait,
 *
 *     ls::groups<32>(stream, "name", n, [=] LS_BODY(const ls::group<32> &g, int64_t i) { ... });
 *
 * and a team of one, for functions over teams that a single thread calls. Without nvcc, a group has one member.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_GROUPS_CUH
#define LS_TENSOR_DEVICE_CUDA_GROUPS_CUH

#include "tensor/device/cuda/scalar.cuh"

namespace ls {

struct single {
    static constexpr int lane = 0, size = 1;

    template <class T, class Join> LS_BODY T reduce(T value, Join) const {
        return value;
    }
};

/* A bool in memory. The user's bytes may be larger than 1, which also means true. */
struct truth {
    uint8_t byte;

    LS_HOST_DEVICE explicit truth(uint64_t value) : byte(value != 0) {
    }
    LS_HOST_DEVICE explicit operator uint64_t() const {
        return byte;
    }
};

#ifdef __CUDACC__
template <int SIZE> struct group {
    static constexpr int size = SIZE;
    int lane;

    /* Every member gets the same result, because the joins are commutative and each step joins two halves of equal
     * size. */
    template <class T, class Join> __device__ T reduce(T value, Join join) const {
        const unsigned mine =
            SIZE == 32 ? 0xffffffffU : ((1U << (SIZE % 32)) - 1U) << (threadIdx.x & 31U & ~(SIZE - 1U));
        for (int half = SIZE / 2; half > 0; half /= 2) {
            value = join(value, __shfl_xor_sync(mine, value, half));
        }
        return value;
    }
};

template <int SIZE, class F> __global__ void __launch_bounds__(256) groups_kernel(int64_t n, F f) {
    const group<SIZE> g{(int)(threadIdx.x % SIZE)};
    const int64_t step = (int64_t)gridDim.x * (256 / SIZE);
    for (int64_t i = (int64_t)blockIdx.x * (256 / SIZE) + threadIdx.x / SIZE; i < n; i += step) {
        f(g, i);
    }
}
#else
template <int SIZE> struct group : single {};
#endif

/* Calls f(group, i) for every i below n: SIZE members call it together for each i. */
template <int SIZE, class F> ls_status groups(ls_stream *stream, const char *name, int64_t n, F f) {
    static_assert(SIZE == 8 || SIZE == 16 || SIZE == 32, "a group is of one warp");
    if (n <= 0) {
        return LS_OK;
    }
#ifdef __CUDACC__
    const int64_t blocks = (n + 256 / SIZE - 1) / (256 / SIZE);
    groups_kernel<SIZE>
        <<<(unsigned)(blocks < 0x40000000 ? blocks : 0x40000000), 256, 0, ls_cuda_stream(stream)>>>(n, f);
    return ls_cuda_launched(stream, name);
#else
    (void)stream;
    (void)name;
    const group<SIZE> g;
    for (int64_t i = 0; i < n; i++) {
        f(g, i);
    }
    return LS_OK;
#endif
}

} // namespace ls

#endif
