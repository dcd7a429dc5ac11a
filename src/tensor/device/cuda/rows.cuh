/*
 * Kernels over the rows of a matrix: the number of threads per row, and sums along the row. A thread adds CHAIN numbers
 * in their own type, and adds the sums of such chains in double precision. This is exact enough for rows of any length
 * and needs few conversions.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_ROWS_CUH
#define LS_TENSOR_DEVICE_CUDA_ROWS_CUH

#include "tensor/device/cuda/scalar.cuh"

namespace ls {

enum { CHAIN = 32 };

/* A single thread that processes a row, in place of a team. */
struct alone {
    static constexpr int lane = 0;
    static constexpr int size = 1;
    LS_BODY double sum(double value) const {
        return value;
    }
};

/*
 * Calls f(team, row) for every row; the call operator of f is a template over the team. The number of threads depends
 * on the width.
 */
template <class F> ls_status rows(ls_stream *stream, const char *name, int64_t count, int64_t width, F f) {
    if (width <= 16) {
        return each(stream, name, count, [=] LS_BODY(int64_t row) { f(alone(), row); });
    }
    if (width <= 256) {
        return teams<32>(stream, name, count, f);
    }
    if (width <= 1024) {
        return teams<64>(stream, name, count, f);
    }
    return width <= 8192 ? teams<256>(stream, name, count, f) : teams<512>(stream, name, count, f);
}

/* Sums over all i below count; add(i, part) adds to the N numbers of `part`. Every member gets the sums. */
template <class T, int N, class Team, class Add>
LS_BODY void row_sums(const Team &t, int64_t count, double (&sum)[N], Add add) {
    for (int k = 0; k < N; k++) {
        sum[k] = 0;
    }
    for (int64_t i = t.lane; i < count;) {
        const int64_t end = least(count, i + (int64_t)CHAIN * t.size);
        T part[N] = {0};
        for (; i < end; i += t.size) {
            add(i, part);
        }
        for (int k = 0; k < N; k++) {
            sum[k] += (double)part[k];
        }
    }
    for (int k = 0; k < N; k++) {
        sum[k] = t.sum(sum[k]);
    }
}

} // namespace ls

#endif
