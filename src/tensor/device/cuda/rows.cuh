/*
 * Kernels that go over the rows of a matrix: how many threads a row gets, and sums along it. Numbers are added up in
 * their own type in chains of CHAIN, and these in double precision, which is exact enough for rows of any length and
 * costs few conversions.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_ROWS_CUH
#define LS_TENSOR_DEVICE_CUDA_ROWS_CUH

#include "tensor/device/cuda/scalar.cuh"

namespace ls {

enum { CHAIN = 32 };

/* In a team's place: a thread that does a row by itself. */
struct alone {
    static constexpr int lane = 0;
    static constexpr int size = 1;
    LS_BODY double sum(double value) const {
        return value;
    }
};

/* f(team, row) for every row, where f's call is a template over the team: as many threads as the width is worth. */
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

/* Adds up what add(i, part) adds to the N numbers of `part` for each i of count; every member gets the sums. */
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
