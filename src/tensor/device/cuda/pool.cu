/* Pooling: the maximum or the mean of each window in each channel. */
#include "tensor/device/cuda/rows.cuh"

namespace {

/* The positions of a window along an axis: every `step`-th position in [start, end). */
struct span {
    int64_t start, end, step;
    int64_t divisor; /* divisor of an average: a number of positions */
};

/* An image and its outputs. */
struct pool {
    ls_window window;
    int64_t planes, size[3], plane, out[3], positions;

    pool(const ls_tensor *x, const ls_tensor *y, const ls_window *window)
        : window(*window), planes(x->size[0] * x->size[1]), plane(1), positions(1) {
        for (int i = 0; i < 3; i++) {
            size[i] = x->size[2 + i];
            out[i] = y->size[2 + i];
            plane *= size[i];
            positions *= out[i];
        }
    }

    /* Returns the positions of window `o` along an axis. */
    LS_BODY span span_of(int axis, int64_t o) const {
        const int64_t in = size[axis];
        if (window.adaptive) {
            const int64_t start = ls::quotient(o * in, out[axis]);
            const int64_t end = ls::quotient((o + 1) * in + out[axis] - 1, out[axis]);
            return {start, end, 1, end - start};
        }
        const int64_t step = window.dilation[axis], before = window.before[axis];
        const int64_t from = o * window.stride[axis] - before;
        const int64_t reach = from + (window.kernel[axis] - 1) * step + 1;
        const int64_t start = from < 0 ? ls::quotient(step - 1 - from, step) * step + from : from;
        const int64_t end = ls::least(reach, in);
        /* As in PyTorch, the part of the last window beyond the padding (ceil_mode) does not count. */
        return {start, end, step, window.exclude_padding ? end - start : ls::least(reach, in + before) - from};
    }

    /* Returns the windows that cover position p of an axis: [start, end). Only for windows without dilation. */
    LS_BODY span seen_by(int axis, int64_t p) const {
        const int64_t in = size[axis], o = out[axis];
        if (window.adaptive) {
            return {ls::quotient(p * o, in), ls::least(o, ls::quotient((p + 1) * o - 1, in) + 1), 1, 0};
        }
        const int64_t stride = window.stride[axis], at = p + window.before[axis];
        const int64_t first = at < window.kernel[axis] ? 0 : ls::quotient(at - window.kernel[axis], stride) + 1;
        return {first, ls::least(o, ls::quotient(at, stride) + 1), 1, 0};
    }

    /* Returns the plane of window i, and sets the window's positions. */
    LS_BODY int64_t window_at(int64_t i, span (&spans)[3]) const {
        for (int axis = 2; axis >= 0; axis--) {
            const int64_t rest = ls::quotient(i, out[axis]);
            spans[axis] = span_of(axis, i - rest * out[axis]);
            i = rest;
        }
        return i;
    }
};

LS_BODY double divisor_of(const span &a, const span &b, const span &c) {
    return (double)a.divisor * (double)b.divisor * (double)c.divisor;
}

template <class T> ls_status max_pool(ls_stream *stream, const pool &images, T *y, int64_t *index, const T *x) {
    const pool p = images;
    return ls::each(stream, "max_pool", p.planes * p.positions, [=] LS_BODY(int64_t at) {
        span s[3];
        const T *const image = x + p.window_at(at, s) * p.plane;
        T largest = -(T)INFINITY;
        int64_t place = (s[0].start * p.size[1] + s[1].start) * p.size[2] + s[2].start;
        for (int64_t i = s[0].start; i < s[0].end; i += s[0].step) {
            for (int64_t j = s[1].start; j < s[1].end; j += s[1].step) {
                const int64_t row = (i * p.size[1] + j) * p.size[2];
                for (int64_t k = s[2].start; k < s[2].end; k += s[2].step) {
                    const T number = image[row + k];
                    if (number > largest || number != number) {
                        largest = number;
                        place = row + k;
                    }
                }
            }
        }
        y[at] = largest;
        index[at] = place;
    });
}

/* Computes the mean of one window; the members of a team share its positions. */
template <class T> struct window_mean {
    pool p;
    T *y;
    const T *x;

    template <class Team> LS_BODY void operator()(const Team &t, int64_t at) const {
        span s[3];
        const T *const image = x + p.window_at(at, s) * p.plane;
        const int64_t width = ls::most(0, s[2].end - s[2].start), height = ls::most(0, s[1].end - s[1].start);
        const int64_t count = ls::most(0, s[0].end - s[0].start) * height * width;
        double sum = 0;
        for (int64_t e = t.lane; e < count; e += t.size) {
            const int64_t row = ls::quotient(e, width), depth = ls::quotient(row, height);
            const int64_t i = s[0].start + depth, j = s[1].start + row - depth * height;
            sum += (double)image[(i * p.size[1] + j) * p.size[2] + s[2].start + e - row * width];
        }
        sum = t.sum(sum);
        if (t.lane == 0) {
            y[at] = (T)(sum / divisor_of(s[0], s[1], s[2]));
        }
    }
};

template <class T> ls_status average_pool(ls_stream *stream, const pool &p, T *y, const T *x) {
    int64_t volume = 1; /* approximate volume of a window */
    for (int axis = 0; axis < 3; axis++) {
        volume *= p.window.adaptive ? p.size[axis] / ls::most(1, p.out[axis]) + 1 : p.window.kernel[axis];
    }
    return ls::rows(stream, "average_pool", p.planes * p.positions, volume, window_mean<T>{p, y, x});
}

/* Each position sums over the windows that cover it. */
template <class T> ls_status average_pool_backward(ls_stream *stream, const pool &images, T *dx, const T *g) {
    const pool p = images;
    return ls::each(stream, "average_pool_backward", p.planes * p.plane, [=] LS_BODY(int64_t at) {
        span seen[3];
        int64_t plane = at;
        for (int axis = 2; axis >= 0; axis--) {
            const int64_t rest = ls::quotient(plane, p.size[axis]);
            seen[axis] = p.seen_by(axis, plane - rest * p.size[axis]);
            plane = rest;
        }
        const T *const from = g + plane * p.positions;
        double sum = 0;
        for (int64_t i = seen[0].start; i < seen[0].end; i++) {
            const span depth = p.span_of(0, i);
            for (int64_t j = seen[1].start; j < seen[1].end; j++) {
                const span height = p.span_of(1, j);
                for (int64_t k = seen[2].start; k < seen[2].end; k++) {
                    const double share =
                        (double)from[(i * p.out[1] + j) * p.out[2] + k] / divisor_of(depth, height, p.span_of(2, k));
                    sum += (double)(T)share;
                }
            }
        }
        dx[at] += (T)sum;
    });
}

} // namespace

ls_status ls_cuda_max_pool(LS_PARAMETERS_max_pool) {
    const pool p(x, y, window);
    int64_t *const places = ls::data<int64_t>(index);
    return x->dtype == LS_F32   ? max_pool(stream, p, ls::data<float>(y), places, ls::data<float>(x))
           : x->dtype == LS_F64 ? max_pool(stream, p, ls::data<double>(y), places, ls::data<double>(x))
                                : ls::no_kernel("max_pool", x->dtype);
}

ls_status ls_cuda_average_pool(LS_PARAMETERS_pool) {
    const pool p(x, y, window);
    return x->dtype == LS_F32   ? average_pool(stream, p, ls::data<float>(y), ls::data<float>(x))
           : x->dtype == LS_F64 ? average_pool(stream, p, ls::data<double>(y), ls::data<double>(x))
                                : ls::no_kernel("average_pool", x->dtype);
}

ls_status ls_cuda_average_pool_backward(LS_PARAMETERS_pool) {
    const pool p(y, x, window);
    return x->dtype == LS_F32   ? average_pool_backward(stream, p, ls::data<float>(y), ls::data<float>(x))
           : x->dtype == LS_F64 ? average_pool_backward(stream, p, ls::data<double>(y), ls::data<double>(x))
                                : ls::no_kernel("average_pool_backward", x->dtype);
}
