/*
 * Tensors [n, channels, inner]: sums over all axes except the channels, and maps with one or two numbers per channel. A
 * channel's elements are summed in parts, because there may be fewer channels than a GPU has threads. Then the parts
 * are summed, always in the same order.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_CHANNELS_CUH
#define LS_TENSOR_DEVICE_CUDA_CHANNELS_CUH

#include "tensor/device/cuda/rows.cuh"

namespace ls {

struct channel_view {
    int64_t n, channels, inner;
};

/* Sums the parts of a channel: partial is [parts, channels, N]. */
template <int N, class Finish> struct joined_parts {
    const double *partial;
    int64_t parts, channels;
    Finish finish;

    template <class Team> LS_BODY void operator()(const Team &t, int64_t channel) const {
        double sum[N];
        for (int k = 0; k < N; k++) {
            double own = 0;
            for (int64_t part = t.lane; part < parts; part += t.size) {
                own += partial[(part * channels + channel) * N + k];
            }
            sum[k] = t.sum(own);
        }
        if (t.lane == 0) {
            finish(channel, sum);
        }
    }
};

/* Sums parts of rows if inner is 1: one thread per part of each channel, so that adjacent threads read adjacent
 * elements. */
template <class T, int N, class Add>
ls_status sum_columns(ls_stream *stream, const char *name, channel_view view, int64_t parts, double *partial, Add add) {
    const int64_t channels = view.channels, n = view.n, length = (n + parts - 1) / parts;
    return each(stream, name, parts * channels, [=] LS_BODY(int64_t i) {
        const int64_t part = quotient(i, channels), channel = i - part * channels;
        const int64_t last = least(n, (part + 1) * length);
        double sum[N] = {0};
        for (int64_t row = part * length; row < last;) {
            const int64_t end = least(last, row + CHAIN);
            T chain[N] = {0};
            for (; row < end; row++) {
                add(row * channels + channel, row, channel, chain);
            }
            for (int k = 0; k < N; k++) {
                sum[k] += (double)chain[k];
            }
        }
        for (int k = 0; k < N; k++) {
            partial[i * N + k] = sum[k];
        }
    });
}

/* Sums parts with one team per part of each channel. The team's members read adjacent elements, row after row. */
template <class T, int N, class Add>
ls_status sum_planes(ls_stream *stream, const char *name, channel_view view, int64_t parts, double *partial, Add add) {
    const int64_t channels = view.channels, inner = view.inner, count = view.n * inner;
    const int64_t length = (count + parts - 1) / parts;
    return teams<256>(stream, name, parts * channels, [=] LS_BODY(team & t, int64_t i) {
        const int64_t part = quotient(i, channels), channel = i - part * channels;
        const int64_t last = least(count, (part + 1) * length);
        /* distance between successive elements of a member */
        const int64_t rows_on = t.size / inner, on = t.size - rows_on * inner;
        int64_t e = part * length + t.lane;
        int64_t row = quotient(e, inner), within = e - row * inner;
        double sum[N] = {0};
        while (e < last) {
            const int64_t end = least(last, e + (int64_t)CHAIN * t.size);
            T chain[N] = {0};
            for (; e < end; e += t.size) {
                add((row * channels + channel) * inner + within, row, channel, chain);
                within += on;
                row += rows_on + (within >= inner ? 1 : 0);
                within -= within >= inner ? inner : 0;
            }
            for (int k = 0; k < N; k++) {
                sum[k] += (double)chain[k];
            }
        }
        for (int k = 0; k < N; k++) {
            sum[k] = t.sum(sum[k]);
        }
        for (int k = 0; t.lane == 0 && k < N; k++) {
            partial[i * N + k] = sum[k];
        }
    });
}

/*
 * Calls finish(channel, sums) for every channel, with N sums over its elements: add(at, row, channel, chain) adds
 * element `at` of the tensor, which is in row `row` of n, to the N numbers of `chain`.
 */
template <class T, int N, class Add, class Finish>
ls_status channel_sums(ls_stream *stream, const char *name, channel_view view, Add add, Finish finish) {
    if (view.channels == 0) {
        return LS_OK;
    }
    const bool columns = view.inner == 1;
    const int64_t wanted = columns ? view.n / CHAIN : view.n * view.inner / 4096;
    const int64_t useful = columns ? least(4096, 131072 / view.channels) : 2048 / view.channels;
    const int64_t parts = most(1, least(wanted, useful));
    const scratch room(stream, (size_t)(parts * view.channels * N) * sizeof(double));
    LS_TRY(room.status(name));
    double *const partial = room.as<double>();
    if (view.n * view.inner == 0) { /* avoids a division by zero */
        view.n = 0;
        view.inner = 1;
    }
    LS_TRY(view.inner == 1 ? (sum_columns<T, N>(stream, name, view, parts, partial, add))
                           : (sum_planes<T, N>(stream, name, view, parts, partial, add)));
    return rows(stream, name, view.channels, parts, joined_parts<N, Finish>{partial, parts, view.channels, finish});
}

/* Calls f(at, channel) for every element. */
template <class F> ls_status each_of_channels(ls_stream *stream, const char *name, channel_view view, F f) {
    const int64_t channels = view.channels, inner = view.inner, runs = view.n * channels;
    if (inner >= 256 && runs >= 512) {
        return teams<128>(stream, name, runs, [=] LS_BODY(team & t, int64_t run) {
            const int64_t channel = run - quotient(run, channels) * channels;
            for (int64_t within = t.lane; within < inner; within += t.size) {
                f(run * inner + within, channel);
            }
        });
    }
    return each(stream, name, runs * inner, [=] LS_BODY(int64_t at) {
        const int64_t run = quotient(at, inner);
        f(at, run - quotient(run, channels) * channels);
    });
}

} // namespace ls

#endif
