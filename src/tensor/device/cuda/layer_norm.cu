/* Layer normalization and its gradient. Variances are biased and computed around the mean (two passes), or around 0. */
#include "tensor/device/cuda/channels.cuh"

namespace {

template <class T> struct normalise_row {
    int64_t width;
    T *y, *mean, *rstd; /* mean may be NULL */
    const T *x, *weight, *bias;
    T epsilon;

    template <class Team> LS_BODY void operator()(const Team &t, int64_t row) const {
        const T *__restrict__ const from = x + row * width;
        const T *__restrict__ const scale = weight;
        const T *__restrict__ const offset = bias;
        T *__restrict__ const to = y + row * width;
        double sum[1] = {0};
        if (mean != nullptr) {
            ls::row_sums<T>(t, width, sum, [=](int64_t i, T *part) { part[0] += from[i]; });
        }
        const T shift = (T)sum[0] / (T)width;
        ls::row_sums<T>(t, width, sum, [=](int64_t i, T *part) { part[0] += (from[i] - shift) * (from[i] - shift); });
        const T factor = 1 / ls::sqrt_of((T)sum[0] / (T)width + epsilon);
        if (t.lane == 0) {
            rstd[row] = factor;
            if (mean != nullptr) {
                mean[row] = shift;
            }
        }
        for (int64_t i = t.lane; i < width; i += t.size) {
            T value = (from[i] - shift) * factor;
            value = scale != nullptr ? value * scale[i] : value;
            to[i] = offset != nullptr ? value + offset[i] : value;
        }
    }
};

/*
 * Computes dx = rstd (gw - mean(gw) - xhat mean(gw xhat)) with gw = g weight, without mean(gw) if x was not centered.
 */
template <class T> struct row_gradient {
    int64_t width;
    T *dx;
    const T *g, *x, *weight, *mean, *rstd;

    template <class Team> LS_BODY void operator()(const Team &t, int64_t row) const {
        const T *__restrict__ const from = x + row * width;
        const T *__restrict__ const gradient = g + row * width;
        const T *__restrict__ const scale = weight;
        T *__restrict__ const to = dx + row * width;
        const T shift = mean != nullptr ? mean[row] : 0, factor = rstd[row];
        double sums[2];
        ls::row_sums<T>(t, width, sums, [=](int64_t i, T *part) {
            const T gw = scale != nullptr ? gradient[i] * scale[i] : gradient[i];
            part[0] += gw;
            part[1] += gw * ((from[i] - shift) * factor);
        });
        const T sum = mean != nullptr ? (T)sums[0] / (T)width : 0;
        const T projection = (T)sums[1] / (T)width;
        for (int64_t i = t.lane; i < width; i += t.size) {
            const T gw = scale != nullptr ? gradient[i] * scale[i] : gradient[i];
            to[i] = factor * (gw - sum - (from[i] - shift) * factor * projection);
        }
    }
};

template <class T> ls_status layer_norm(LS_PARAMETERS_layer_norm) {
    return ls::rows(stream, "layer_norm", width > 0 ? x->count / width : 0, width,
                    normalise_row<T>{width, ls::data<T>(y), ls::data<T>(mean), ls::data<T>(rstd), ls::data<T>(x),
                                     ls::data<T>(weight), ls::data<T>(bias), (T)epsilon});
}

/* Adds the sums over all rows to the gradients of weight and bias, one of which may be NULL. */
template <class T>
ls_status parameter_gradients(ls_stream *stream, ls::channel_view view, T *d_weight, T *d_bias, const T *g, const T *x,
                              const T *mean, const T *rstd) {
    const auto finish = [=] LS_BODY(int64_t i, const double *sum) {
        if (d_bias != nullptr) {
            d_bias[i] += (T)sum[0];
        }
        if (d_weight != nullptr) {
            d_weight[i] += (T)sum[1];
        }
    };
    return ls::channel_sums<T, 2>(
        stream, "layer_norm_backward", view,
        [=] LS_BODY(int64_t at, int64_t row, int64_t, T * chain) {
            chain[0] += g[at];
            if (d_weight != nullptr) {
                chain[1] += g[at] * ((x[at] - (mean != nullptr ? mean[row] : 0)) * rstd[row]);
            }
        },
        finish);
}

template <class T> ls_status layer_norm_backward(LS_PARAMETERS_layer_norm_backward) {
    const int64_t count = width > 0 ? x->count / width : 0;
    const T *const of_y = ls::data<T>(g), *const of_x = ls::data<T>(x), *const of_mean = ls::data<T>(mean),
                   *const of_rstd = ls::data<T>(rstd);
    if (dx != nullptr) {
        LS_TRY(ls::rows(stream, "layer_norm_backward", count, width,
                        row_gradient<T>{width, ls::data<T>(dx), of_y, of_x, ls::data<T>(weight), of_mean, of_rstd}));
    }
    if (count == 0 || (d_weight == nullptr && d_bias == nullptr)) {
        return LS_OK;
    }
    return parameter_gradients<T>(stream, {count, width, 1}, ls::data<T>(d_weight), ls::data<T>(d_bias), of_y, of_x,
                                  of_mean, of_rstd);
}

} // namespace

ls_status ls_cuda_layer_norm(LS_PARAMETERS_layer_norm) {
    return LS_OF_FLOATS(x->dtype, layer_norm, stream, y, mean, rstd, x, width, weight, bias, epsilon);
}

ls_status ls_cuda_layer_norm_backward(LS_PARAMETERS_layer_norm_backward) {
    return LS_OF_FLOATS(x->dtype, layer_norm_backward, stream, dx, d_weight, d_bias, g, x, width, weight, mean, rstd);
}
