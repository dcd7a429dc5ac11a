/* Contiguous runs of elements: y += a x, y *= a, inner products and norms. Sums are computed in double precision. */
#include "tensor/device/cuda/parts.cuh"

namespace {

template <class T> ls_status axpy(ls_stream *stream, int64_t count, double factor, const void *x, void *y) {
    const T a = (T)factor;
    const ls::arrays<T, 2> both = {{ls::numbers<T>(y), ls::numbers<T>(x)}, count};
    return ls::each_four<1>(stream, "axpy", both, [=] LS_BODY(T(&v)[2]) { v[0] += a * v[1]; });
}

template <class T> ls_status scale(ls_stream *stream, int64_t count, double factor, void *y) {
    const T a = (T)factor;
    const ls::arrays<T, 1> one = {{ls::numbers<T>(y)}, count};
    return ls::each_four<1>(stream, "scale", one, [=] LS_BODY(T(&v)[1]) { v[0] *= a; });
}

/* All threads that find an Inf or NaN write the same value. */
template <class T> ls_status unscale(ls_stream *stream, int64_t count, double factor, void *y, double *found) {
    const T a = (T)factor;
    const ls::arrays<T, 1> one = {{ls::numbers<T>(y)}, count};
    return ls::each_four<1>(stream, "unscale", one, [=] LS_BODY(T(&v)[1]) {
        v[0] *= a;
        if (!(v[0] - v[0] == 0)) {
            *found = 1;
        }
    });
}

template <class T> ls_status dot(ls_stream *stream, int64_t count, const void *x, const void *y, double *result) {
    const T *const a = ls::numbers<T>(x), *const b = ls::numbers<T>(y);
    return ls::join_all(stream, "dot", count, ls::plus(), result,
                        [=] LS_BODY(int64_t i) { return (double)a[i] * (double)b[i]; });
}

template <class T> ls_status sum_of_magnitudes(ls_stream *stream, int64_t count, const void *x, double *result) {
    const T *const a = ls::numbers<T>(x);
    return ls::join_all(stream, "sum_of_magnitudes", count, ls::plus(), result,
                        [=] LS_BODY(int64_t i) { return fabs((double)a[i]); });
}

template <class T> ls_status largest_magnitude(ls_stream *stream, int64_t count, const void *x, double *result) {
    const T *const a = ls::numbers<T>(x);
    return ls::join_all(stream, "largest_magnitude", count, ls::larger(), result,
                        [=] LS_BODY(int64_t i) { return fabs((double)a[i]); });
}

} // namespace

ls_status ls_cuda_axpy(ls_stream *stream, ls_dtype dtype, int64_t count, double a, const void *x, void *y) {
    return LS_OF_FLOATS(dtype, axpy, stream, count, a, x, y);
}

ls_status ls_cuda_scale(ls_stream *stream, ls_dtype dtype, int64_t count, double a, void *y) {
    return LS_OF_FLOATS(dtype, scale, stream, count, a, y);
}

ls_status ls_cuda_unscale(ls_stream *stream, ls_dtype dtype, int64_t count, double a, void *y, double *found) {
    return LS_OF_FLOATS(dtype, unscale, stream, count, a, y, found);
}

ls_status ls_cuda_dot(ls_stream *stream, ls_dtype dtype, int64_t count, const void *x, const void *y, double *sum) {
    return LS_OF_FLOATS(dtype, dot, stream, count, x, y, sum);
}

ls_status ls_cuda_sum_of_magnitudes(ls_stream *stream, ls_dtype dtype, int64_t count, const void *x, double *sum) {
    return LS_OF_FLOATS(dtype, sum_of_magnitudes, stream, count, x, sum);
}

ls_status ls_cuda_largest_magnitude(ls_stream *stream, ls_dtype dtype, int64_t count, const void *x, double *largest) {
    return LS_OF_FLOATS(dtype, largest_magnitude, stream, count, x, largest);
}
