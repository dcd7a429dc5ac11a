/*
 * Layer normalization and its gradient. Variances are biased, and computed in two passes, around the mean or around 0.
 */
#include "tensor/device/cpu/floating.h"
#include "tensor/device/cpu/parallel.h"

#include <math.h>

#define REAL     float
#define FN(name) name##_f32
#define SQRT     sqrtf
#include "tensor/device/cpu/layer_norm.inc"

#define REAL     double
#define FN(name) name##_f64
#define SQRT     sqrt
#include "tensor/device/cpu/layer_norm.inc"

typedef struct norm_call {
    const ls_tensor *y, *x, *mean, *rstd;
    const void *weight, *bias;
    int64_t width;
    double epsilon;
} norm_call;

static void *at_number(const ls_tensor *tensor, int64_t number) {
    return tensor != NULL ? (char *)tensor->data + number * (int64_t)ls_dtype_size(tensor->dtype) : NULL;
}

static void normalize_rows(int64_t begin, int64_t end, const void *context) {
    const norm_call *call = context;
    const int64_t first = begin * call->width;
    (void)LS_FLOATING(call->x->dtype, layer_norm, end - begin, call->width, at_number(call->y, first),
                      at_number(call->mean, begin), at_number(call->rstd, begin), at_number(call->x, first),
                      call->weight, call->bias, call->epsilon);
}

ls_status ls_cpu_layer_norm(ls_stream *stream, ls_tensor *y, ls_tensor *mean, ls_tensor *rstd, const ls_tensor *x,
                            int64_t width, const ls_tensor *weight, const ls_tensor *bias, double epsilon) {
    (void)stream;
    const norm_call call = {.y = y,
                            .x = x,
                            .mean = mean,
                            .rstd = rstd,
                            .weight = ls_data_or_null(weight),
                            .bias = ls_data_or_null(bias),
                            .width = width,
                            .epsilon = epsilon};
    if (x->dtype != LS_F32 && x->dtype != LS_F64) {
        return ls_no_kernel("layer_norm", (ls_dtype)x->dtype);
    }
    ls_parallel(width > 0 ? x->count / width : 0, width, 1, normalize_rows, &call);
    return LS_OK;
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
