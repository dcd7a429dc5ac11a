/* Batch normalization and its gradient. Variances are biased, and computed around the mean in two passes. */
#include "tensor/device/cpu/floating.h"

#include <string.h>

/* The shape [n, channels, ...] as three numbers. */
typedef struct channel_view {
    int64_t n, channels, inner;
} channel_view;

/* Size of the part of a tensor that several passes process while it is in the cache. */
enum { BLOCK_BYTES = 512 * 1024 };

#define REAL     float
#define FN(name) name##_f32
#include "tensor/device/cpu/batch_norm.inc"

#define REAL     double
#define FN(name) name##_f64
#include "tensor/device/cpu/batch_norm.inc"

static channel_view channels_of(const ls_tensor *x) {
    channel_view view = {x->size[0], x->size[1], 1};
    for (int i = 2; i < x->ndim; i++) {
        view.inner *= x->size[i];
    }
    return view;
}

ls_status ls_cpu_batch_norm_statistics(ls_stream *stream, ls_tensor *mean, ls_tensor *variance, const ls_tensor *x) {
    (void)stream;
    return LS_FLOATING(x->dtype, batch_statistics, channels_of(x), mean->data, variance->data, x->data);
}

ls_status ls_cpu_batch_norm(ls_stream *stream, ls_tensor *y, const ls_tensor *x, const ls_tensor *mean,
                            const ls_tensor *rstd, const ls_tensor *weight, const ls_tensor *bias) {
    (void)stream;
    return LS_FLOATING(x->dtype, batch_norm, channels_of(x), y->data, x->data, mean->data, rstd->data,
                       ls_data_or_null(weight), ls_data_or_null(bias));
}

ls_status ls_cpu_batch_norm_backward(ls_stream *stream, ls_tensor *dx, ls_tensor *d_weight, ls_tensor *d_bias,
                                     const ls_tensor *g, const ls_tensor *x, const ls_tensor *mean,
                                     const ls_tensor *rstd, const ls_tensor *weight, bool training) {
    (void)stream;
    return LS_FLOATING(x->dtype, batch_norm_backward, channels_of(x), ls_data_or_null(dx), ls_data_or_null(d_weight),
                       ls_data_or_null(d_bias), g->data, x->data, mean->data, rstd->data, ls_data_or_null(weight),
                       training);
}

ls_status ls_cpu_batch_norm_sums(ls_stream *stream, ls_tensor *sums, const ls_tensor *g, const ls_tensor *x,
                                 const ls_tensor *mean) {
    (void)stream;
    return LS_FLOATING(x->dtype, batch_norm_sums, channels_of(x), sums->data, ls_data_or_null(g), x->data,
                       ls_data_or_null(mean));
}

ls_status ls_cpu_batch_norm_dx(ls_stream *stream, ls_tensor *dx, const ls_tensor *g, const ls_tensor *x,
                               const ls_tensor *mean, const ls_tensor *rstd, const ls_tensor *weight,
                               const ls_tensor *of_g, const ls_tensor *of_product) {
    (void)stream;
    return LS_FLOATING(x->dtype, batch_norm_dx, channels_of(x), dx->data, g->data, x->data, mean->data, rstd->data,
                       ls_data_or_null(weight), of_g->data, of_product->data);
}
