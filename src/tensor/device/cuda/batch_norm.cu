/* Batch normalization and its gradient. Variances are biased and computed around the mean (two passes). */
#include "tensor/device/cuda/channels.cuh"

namespace {

ls::channel_view channels_of(const ls_tensor *x) {
    ls::channel_view view = {x->size[0], x->size[1], 1};
    for (int i = 2; i < x->ndim; i++) {
        view.inner *= x->size[i];
    }
    return view;
}

double samples_of(const ls::channel_view &view) {
    return (double)view.n * (double)view.inner;
}

/* Calls finish(channel, sum of x over the channel's elements) for every channel. */
template <class T, class Finish>
ls_status plain_sums(ls_stream *stream, const char *name, const ls::channel_view &view, const T *x, Finish finish) {
    return ls::channel_sums<T, 1>(
        stream, name, view, [=] LS_BODY(int64_t at, int64_t, int64_t, T * chain) { chain[0] += x[at]; }, finish);
}

/* Calls finish(channel, sum) for every channel, with the sum over its elements of (x - mean) g, or of (x - mean)^2
 * if g is NULL. */
template <class T, class Finish>
ls_status product_sums(ls_stream *stream, const char *name, const ls::channel_view &view, const T *g, const T *x,
                       const T *mean, Finish finish) {
    return ls::channel_sums<T, 1>(
        stream, name, view,
        [=] LS_BODY(int64_t at, int64_t, int64_t channel, T * chain) {
            const T centered = x[at] - mean[channel];
            chain[0] += centered * (g != nullptr ? g[at] : centered);
        },
        finish);
}

template <class T> ls_status batch_norm_statistics(LS_PARAMETERS_batch_norm_statistics) {
    const char *const name = "batch_norm_statistics";
    const ls::channel_view view = channels_of(x);
    const double samples = samples_of(view);
    T *const center = ls::data<T>(mean), *const spread = ls::data<T>(variance);
    const auto mean_of = [=] LS_BODY(int64_t c, const double *sum) { center[c] = (T)(sum[0] / samples); };
    const auto variance_of = [=] LS_BODY(int64_t c, const double *sum) { spread[c] = (T)(sum[0] / samples); };
    LS_TRY(plain_sums<T>(stream, name, view, ls::data<T>(x), mean_of));
    return product_sums<T>(stream, name, view, nullptr, ls::data<T>(x), center, variance_of);
}

template <class T> ls_status batch_norm(LS_PARAMETERS_batch_norm) {
    T *const to = ls::data<T>(y);
    const T *const from = ls::data<T>(x), *const center = ls::data<T>(mean), *const factor = ls::data<T>(rstd),
                   *const scale = ls::data<T>(weight), *const shift = ls::data<T>(bias);
    return ls::each_of_channels(stream, "batch_norm", channels_of(x), [=] LS_BODY(int64_t at, int64_t c) {
        const T slope = scale != nullptr ? factor[c] * scale[c] : factor[c];
        to[at] = (from[at] - center[c]) * slope + (shift != nullptr ? shift[c] : 0);
    });
}

/* Computes dx = rstd weight (g - shift - (x - mean) slope). */
template <class T> struct gradient_terms {
    T *dx;
    const T *g, *x, *mean, *rstd, *weight; /* weight may be NULL */
    const T *shift, *slope;                /* for each channel: the mean of g, and the mean of g xhat times rstd */
};

template <class T>
ls_status input_gradient(ls_stream *stream, const char *name, const ls::channel_view &view, gradient_terms<T> m) {
    return ls::each_of_channels(stream, name, view, [=] LS_BODY(int64_t at, int64_t c) {
        const T factor = m.weight != nullptr ? m.rstd[c] * m.weight[c] : m.rstd[c];
        m.dx[at] = factor * (m.g[at] - m.shift[c] - (m.x[at] - m.mean[c]) * m.slope[c]);
    });
}

/*
 * Computes both sums over the batch, for the gradients of weight and bias (which may be NULL), and for shift and slope
 * of gradient_terms.
 */
template <class T>
ls_status parameter_gradients(ls_stream *stream, const ls::channel_view &view, T *d_weight, T *d_bias, T *shift,
                              T *slope, gradient_terms<T> m, bool training) {
    const double samples = samples_of(view);
    const auto finish = [=] LS_BODY(int64_t c, const double *sum) {
        const double spread = (double)m.rstd[c];
        shift[c] = training ? (T)(sum[0] / samples) : 0;
        slope[c] = training ? (T)(sum[1] * spread * spread / samples) : 0;
        if (d_weight != nullptr) {
            d_weight[c] += (T)(sum[1] * spread);
        }
        if (d_bias != nullptr) {
            d_bias[c] += (T)sum[0];
        }
    };
    return ls::channel_sums<T, 2>(
        stream, "batch_norm_backward", view,
        [=] LS_BODY(int64_t at, int64_t, int64_t c, T * chain) {
            chain[0] += m.g[at];
            chain[1] += (m.x[at] - m.mean[c]) * m.g[at];
        },
        finish);
}

template <class T> ls_status batch_norm_backward(LS_PARAMETERS_batch_norm_backward) {
    const ls::channel_view view = channels_of(x);
    if (view.channels == 0) {
        return LS_OK;
    }
    const ls::scratch room(stream, (size_t)(2 * view.channels) * sizeof(T));
    LS_TRY(room.status("batch_norm_backward"));
    T *const shift = room.as<T>(), *const slope = shift + view.channels;
    const gradient_terms<T> terms = {ls::data<T>(dx),   ls::data<T>(g),      ls::data<T>(x), ls::data<T>(mean),
                                     ls::data<T>(rstd), ls::data<T>(weight), shift,          slope};
    LS_TRY(parameter_gradients<T>(stream, view, ls::data<T>(d_weight), ls::data<T>(d_bias), shift, slope, terms,
                                  training));
    return dx != nullptr ? input_gradient<T>(stream, "batch_norm_backward", view, terms) : LS_OK;
}

template <class T> ls_status batch_norm_sums(LS_PARAMETERS_batch_norm_sums) {
    double *const to = ls::data<double>(sums);
    const auto keep = [=] LS_BODY(int64_t c, const double *sum) { to[c] = sum[0]; };
    if (mean == nullptr) {
        return plain_sums<T>(stream, "batch_norm_sums", channels_of(x), ls::data<T>(x), keep);
    }
    return product_sums<T>(stream, "batch_norm_sums", channels_of(x), ls::data<T>(g), ls::data<T>(x), ls::data<T>(mean),
                           keep);
}

template <class T> ls_status batch_norm_dx(LS_PARAMETERS_batch_norm_dx) {
    const ls::channel_view view = channels_of(x);
    if (view.channels == 0) {
        return LS_OK;
    }
    const ls::scratch room(stream, (size_t)(2 * view.channels) * sizeof(T));
    LS_TRY(room.status("batch_norm_dx"));
    T *const shift = room.as<T>(), *const slope = shift + view.channels;
    const T *const factor = ls::data<T>(rstd);
    const double *const mean_of_g = ls::data<double>(of_g), *const mean_of_product = ls::data<double>(of_product);
    LS_TRY(ls::each(stream, "batch_norm_dx", view.channels, [=] LS_BODY(int64_t c) {
        const double spread = (double)factor[c];
        shift[c] = (T)mean_of_g[c];
        slope[c] = (T)(mean_of_product[c] * spread * spread);
    }));
    return input_gradient<T>(stream, "batch_norm_dx", view,
                             {ls::data<T>(dx), ls::data<T>(g), ls::data<T>(x), ls::data<T>(mean), factor,
                              ls::data<T>(weight), shift, slope});
}

} // namespace

ls_status ls_cuda_batch_norm_statistics(LS_PARAMETERS_batch_norm_statistics) {
    return LS_OF_FLOATS(x->dtype, batch_norm_statistics, stream, mean, variance, x);
}

ls_status ls_cuda_batch_norm(LS_PARAMETERS_batch_norm) {
    return LS_OF_FLOATS(x->dtype, batch_norm, stream, y, x, mean, rstd, weight, bias);
}

ls_status ls_cuda_batch_norm_backward(LS_PARAMETERS_batch_norm_backward) {
    return LS_OF_FLOATS(x->dtype, batch_norm_backward, stream, dx, d_weight, d_bias, g, x, mean, rstd, weight,
                        training);
}

ls_status ls_cuda_batch_norm_sums(LS_PARAMETERS_batch_norm_sums) {
    return LS_OF_FLOATS(x->dtype, batch_norm_sums, stream, sums, g, x, mean);
}

ls_status ls_cuda_batch_norm_dx(LS_PARAMETERS_batch_norm_dx) {
    return LS_OF_FLOATS(x->dtype, batch_norm_dx, stream, dx, g, x, mean, rstd, weight, of_g, of_product);
}
