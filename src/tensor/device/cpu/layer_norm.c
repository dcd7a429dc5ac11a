/* Layer normalisation and its gradient. Variances are biased and taken around the mean (two passes), or around 0. */
#include "tensor/device/cpu/floating.h"

#include <math.h>

#define REAL     float
#define FN(name) name##_f32
#define SQRT     sqrtf
#include "tensor/device/cpu/layer_norm.inc"

#define REAL     double
#define FN(name) name##_f64
#define SQRT     sqrt
#include "tensor/device/cpu/layer_norm.inc"

ls_status ls_cpu_layer_norm(ls_stream *stream, ls_tensor *y, ls_tensor *mean, ls_tensor *rstd, const ls_tensor *x,
                            int64_t width, const ls_tensor *weight, const ls_tensor *bias, double epsilon) {
    (void)stream;
    const int64_t rows = width > 0 ? x->count / width : 0;
    return LS_FLOATING(x->dtype, layer_norm, rows, width, y->data, ls_data_or_null(mean), rstd->data, x->data,
                       ls_data_or_null(weight), ls_data_or_null(bias), epsilon);
}

ls_status ls_cpu_layer_norm_backward(ls_stream *stream, ls_tensor *dx, ls_tensor *d_weight, ls_tensor *d_bias,
                                     const ls_tensor *g, const ls_tensor *x, int64_t width, const ls_tensor *weight,
                                     const ls_tensor *mean, const ls_tensor *rstd) {
    (void)stream;
    const int64_t rows = width > 0 ? x->count / width : 0;
    return LS_FLOATING(x->dtype, layer_norm_backward, rows, width, ls_data_or_null(dx), ls_data_or_null(d_weight),
                       ls_data_or_null(d_bias), g->data, x->data, ls_data_or_null(weight), ls_data_or_null(mean),
                       rstd->data);
}
