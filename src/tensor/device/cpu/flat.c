/* Operations on flat arrays: y += a x, y *= a, inner products and norms. */
#include <math.h>
#include <string.h>

#include "tensor/device/cpu/floating.h"

#define REAL     float
#define BITS     int32_t
#define FN(name) name##_f32
#include "tensor/device/cpu/flat.inc"

#define REAL     double
#define BITS     int64_t
#define FN(name) name##_f64
#include "tensor/device/cpu/flat.inc"

ls_status ls_cpu_axpy(ls_stream *stream, ls_dtype dtype, int64_t count, double a, const void *x, void *y) {
    (void)stream;
    return LS_FLOATING(dtype, axpy, count, a, x, y);
}

ls_status ls_cpu_scale(ls_stream *stream, ls_dtype dtype, int64_t count, double a, void *y) {
    (void)stream;
    return LS_FLOATING(dtype, scale, count, a, y);
}

ls_status ls_cpu_unscale(ls_stream *stream, ls_dtype dtype, int64_t count, double a, void *y, double *found) {
    (void)stream;
    return LS_FLOATING(dtype, unscale, count, a, y, found);
}

ls_status ls_cpu_dot(ls_stream *stream, ls_dtype dtype, int64_t count, const void *x, const void *y, double *sum) {
    (void)stream;
    return LS_FLOATING(dtype, dot, count, x, y, sum);
}

ls_status ls_cpu_sum_of_magnitudes(ls_stream *stream, ls_dtype dtype, int64_t count, const void *x, double *sum) {
    (void)stream;
    return LS_FLOATING(dtype, sum_of_magnitudes, count, x, sum);
}

ls_status ls_cpu_largest_magnitude(ls_stream *stream, ls_dtype dtype, int64_t count, const void *x, double *largest) {
    (void)stream;
    return LS_FLOATING(dtype, largest_magnitude, count, x, largest);
}
