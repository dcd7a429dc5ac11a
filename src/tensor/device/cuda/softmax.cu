/*
 * Softmax and its logarithm along one axis, and their gradients. If the axis is the last and a row fits into the
 * registers of its threads, memory is read once. Longer rows, and rows along any other axis, are read twice. y may be
 * x, and dx may be dy, because each thread reads its numbers before it writes them.
 */
#include "tensor/device/cuda/groups.cuh"

namespace {

LS_BODY inline float logarithm_of(float x) {
    return logf(x);
}
LS_BODY inline double logarithm_of(double x) {
    return log(x);
}

/* Ignores NaN, because the exponentials produce it again. */
template <class T> LS_BODY T larger(T a, T b) {
    return a > b ? a : b;
}

/*
 * The number of elements that a member holds of a row of up to EACH times the team size SIZE. If the team has one
 * member, it holds all elements.
 */
template <int SIZE, int EACH> struct held {
#ifdef __CUDACC__
    static constexpr int count = EACH;
#else
    static constexpr int count = SIZE * EACH;
#endif
};

/* Number k * size + lane of the row is value[k]. */
template <class T, int SIZE, int EACH, bool LOG, class TEAM>
LS_BODY void held_row(const TEAM &t, T *y, const T *x, int width) {
    constexpr int count = held<SIZE, EACH>::count;
    T value[count];
    T largest = -(T)HUGE_VALF;
    for (int k = 0; k < count; k++) {
        const int at = k * t.size + t.lane;
        value[k] = at < width ? x[at] : -(T)HUGE_VALF;
        largest = larger(value[k], largest);
    }
    largest = t.reduce(largest, [](T a, T b) { return larger(a, b); });
    T sum = 0;
    for (int k = 0; k < count; k++) {
        if (k * t.size + t.lane < width) {
            const T power = ls::exp_of(value[k] - largest);
            sum += power;
            value[k] = LOG ? value[k] - largest : power;
        }
    }
    const double all = t.reduce((double)sum, [](double a, double b) { return a + b; });
    const T last = LOG ? logarithm_of((T)all) : (T)(1 / all);
    for (int k = 0; k < count; k++) {
        const int at = k * t.size + t.lane;
        if (at < width) {
            y[at] = LOG ? value[k] - last : value[k] * last;
        }
    }
}

/* The number of elements that are loaded before the first is written, because the compiler cannot know that they do
 * not overlap. */
constexpr int WRITTEN = 4;

/* A member's results for a row: the maximum, and the sum of exponentials relative to the maximum. */
template <class T> struct seen {
    T largest;
    double sum;
};

/*
 * Processes PIECE numbers at a time, so that the sum is rarely rescaled to a new maximum. -Inf adds nothing until a
 * different number was read.
 */
template <class T, class TEAM> LS_BODY seen<T> look(const TEAM &t, const T *x, int64_t width, int64_t step) {
    constexpr int PIECE = 8;
    const T nothing = -(T)HUGE_VALF;
    seen<T> own = {nothing, 0};
    for (int64_t i = t.lane; i < width; i += (int64_t)PIECE * t.size) {
        T value[PIECE];
        T largest = own.largest;
        for (int k = 0; k < PIECE; k++) {
            const int64_t at = i + (int64_t)k * t.size;
            value[k] = at < width ? x[at * step] : nothing;
        }
        for (int k = 0; k < PIECE; k++) {
            largest = larger(value[k], largest);
        }
        T sum = 0;
        for (int k = 0; k < PIECE; k++) {
            sum += value[k] == nothing ? (T)0 : ls::exp_of(value[k] - largest);
        }
        if (largest > own.largest) {
            own.sum *= (double)ls::exp_of(own.largest - largest);
            own.largest = largest;
        }
        own.sum += (double)sum;
    }
    return own;
}

template <class T, bool LOG, class TEAM>
LS_BODY void long_row(const TEAM &t, T *y, const T *x, int64_t width, int64_t step) {
    const seen<T> own = look(t, x, width, step);
    const T largest = t.reduce(own.largest, [](T a, T b) { return larger(a, b); });
    const double factor = own.largest == largest ? 1 : (double)ls::exp_of(own.largest - largest);
    const double sum = t.reduce(own.sum * factor, [](double a, double b) { return a + b; });
    const T last = LOG ? logarithm_of((T)sum) : (T)(1 / sum);
    for (int64_t i = t.lane; i < width; i += (int64_t)WRITTEN * t.size) {
        T value[WRITTEN];
        for (int k = 0; k < WRITTEN; k++) {
            const int64_t at = i + (int64_t)k * t.size;
            value[k] = at < width ? x[at * step] - largest : (T)0;
        }
        for (int k = 0; k < WRITTEN; k++) {
            const int64_t at = i + (int64_t)k * t.size;
            if (at < width) {
                y[at * step] = LOG ? value[k] - last : ls::exp_of(value[k]) * last;
            }
        }
    }
}

/* Computes dx = y (dy - sum(dy y)), or dx = dy - exp(y) sum(dy) if y is the logarithm. */
template <class T, bool LOG> LS_BODY T gradient(T dy, T y, T sum) {
    return LOG ? dy - ls::exp_of(y) * sum : y * (dy - sum);
}

template <class T, int SIZE, int EACH, bool LOG, class TEAM>
LS_BODY void held_row_backward(const TEAM &t, T *dx, const T *dy, const T *y, int width) {
    constexpr int count = held<SIZE, EACH>::count;
    T of_dy[count], of_y[count];
    T sum = 0;
    for (int k = 0; k < count; k++) {
        const int at = k * t.size + t.lane;
        of_dy[k] = at < width ? dy[at] : (T)0;
        of_y[k] = at < width ? y[at] : (T)0;
    }
    for (int k = 0; k < count; k++) {
        sum += LOG ? of_dy[k] : of_dy[k] * of_y[k];
    }
    const T all = (T)t.reduce((double)sum, [](double a, double b) { return a + b; });
    for (int k = 0; k < count; k++) {
        const int at = k * t.size + t.lane;
        if (at < width) {
            dx[at] = gradient<T, LOG>(of_dy[k], of_y[k], all);
        }
    }
}

template <class T, bool LOG, class TEAM>
LS_BODY void long_row_backward(const TEAM &t, T *dx, const T *dy, const T *y, int64_t width, int64_t step) {
    constexpr int PIECE = 8;
    double own = 0;
    for (int64_t i = t.lane; i < width; i += (int64_t)PIECE * t.size) {
        T term[PIECE];
        for (int k = 0; k < PIECE; k++) {
            const int64_t at = i + (int64_t)k * t.size;
            term[k] = at >= width ? (T)0 : LOG ? dy[at * step] : dy[at * step] * y[at * step];
        }
        T sum = 0;
        for (int k = 0; k < PIECE; k++) {
            sum += term[k];
        }
        own += (double)sum;
    }
    const T all = (T)t.reduce(own, [](double a, double b) { return a + b; });
    for (int64_t i = t.lane; i < width; i += (int64_t)WRITTEN * t.size) {
        T of_dy[WRITTEN], of_y[WRITTEN];
        for (int k = 0; k < WRITTEN; k++) {
            const int64_t at = i + (int64_t)k * t.size;
            of_dy[k] = at < width ? dy[at * step] : (T)0;
            of_y[k] = at < width ? y[at * step] : (T)0;
        }
        for (int k = 0; k < WRITTEN; k++) {
            const int64_t at = i + (int64_t)k * t.size;
            if (at < width) {
                dx[at * step] = gradient<T, LOG>(of_dy[k], of_y[k], all);
            }
        }
    }
}

/* The arrays of one call: forward, or backward if dy is set. */
template <class T> struct place {
    T *out;
    const T *dy, *x; /* backward: x is y */
    int64_t width, inner;
};

/* Template parameters of the kernels. */
template <class T, bool BACK, bool LOG> struct kind {
    template <int SIZE, int EACH, class TEAM>
    static LS_BODY void short_row(const TEAM &t, const place<T> &p, int64_t row) {
        const int64_t first = row * p.width;
        if constexpr (BACK) {
            held_row_backward<T, SIZE, EACH, LOG>(t, p.out + first, p.dy + first, p.x + first, (int)p.width);
        } else {
            held_row<T, SIZE, EACH, LOG>(t, p.out + first, p.x + first, (int)p.width);
        }
    }
    template <class TEAM> static LS_BODY void any_row(const TEAM &t, const place<T> &p, int64_t row) {
        const int64_t block = ls::quotient(row, p.inner);
        const int64_t first = block * p.width * p.inner + (row - block * p.inner);
        if constexpr (BACK) {
            long_row_backward<T, LOG>(t, p.out + first, p.dy + first, p.x + first, p.width, p.inner);
        } else {
            long_row<T, LOG>(t, p.out + first, p.x + first, p.width, p.inner);
        }
    }
};

template <class T, class KIND, int SIZE, int EACH>
ls_status run_groups(ls_stream *stream, const char *name, const place<T> &p, int64_t rows) {
    const place<T> at = p;
    return ls::groups<SIZE>(stream, name, rows, [=] LS_BODY(const ls::group<SIZE> &g, int64_t row) {
        KIND::template short_row<SIZE, EACH>(g, at, row);
    });
}

template <class T, class KIND>
ls_status run_long(ls_stream *stream, const char *name, const place<T> &p, int64_t rows) {
    const place<T> at = p;
    if (p.inner > 1 && (rows >= 16384 || p.width < 64)) { /* adjacent threads process adjacent rows */
        return ls::each(stream, name, rows, [=] LS_BODY(int64_t row) { KIND::any_row(ls::single(), at, row); });
    }
    if (p.inner > 1) {
        return ls::teams<128>(stream, name, rows,
                              [=] LS_BODY(ls::team & t, int64_t row) { KIND::any_row(t, at, row); });
    }
    return ls::teams<512>(stream, name, rows, [=] LS_BODY(ls::team & t, int64_t row) { KIND::any_row(t, at, row); });
}

template <class T, bool BACK, bool LOG>
ls_status run(ls_stream *stream, const char *name, const ls_tensor *out, const ls_tensor *dy, const ls_tensor *x,
              int axis) {
    typedef kind<T, BACK, LOG> KIND;
    const ls::axis_view view(x, axis);
    const place<T> p = {ls::data<T>(out), ls::data<T>(dy), ls::data<T>(x), view.width, view.inner};
    const int64_t rows = view.outer * view.inner;
    if (view.inner > 1 || view.width > 4096) {
        return run_long<T, KIND>(stream, name, p, rows);
    }
    if (view.width <= 32) {
        return run_groups<T, KIND, 8, 4>(stream, name, p, rows);
    }
    if (view.width <= 256) {
        return run_groups<T, KIND, 32, 8>(stream, name, p, rows);
    }
    if (view.width <= 1024) {
        return run_groups<T, KIND, 32, 32>(stream, name, p, rows);
    }
    return ls::teams<256>(stream, name, rows,
                          [=] LS_BODY(ls::team & t, int64_t row) { KIND::template short_row<256, 16>(t, p, row); });
}

template <bool BACK, bool LOG>
ls_status run_any(ls_stream *stream, const char *name, const ls_tensor *out, const ls_tensor *dy, const ls_tensor *x,
                  int axis) {
    switch (x->dtype) {
    case LS_F32:
        return run<float, BACK, LOG>(stream, name, out, dy, x, axis);
    case LS_F64:
        return run<double, BACK, LOG>(stream, name, out, dy, x, axis);
    default:
        return ls::no_kernel(name, x->dtype);
    }
}

} // namespace

ls_status ls_cuda_softmax(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis) {
    return run_any<false, false>(stream, "softmax", y, nullptr, x, axis);
}

ls_status ls_cuda_log_softmax(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis) {
    return run_any<false, true>(stream, "log_softmax", y, nullptr, x, axis);
}

ls_status ls_cuda_softmax_backward(ls_stream *stream, ls_tensor *dx, const ls_tensor *dy, const ls_tensor *y,
                                   int axis) {
    return run_any<true, false>(stream, "softmax_backward", dx, dy, y, axis);
}

ls_status ls_cuda_log_softmax_backward(ls_stream *stream, ls_tensor *dx, const ls_tensor *dy, const ls_tensor *y,
                                       int axis) {
    return run_any<true, true>(stream, "log_softmax_backward", dx, dy, y, axis);
}
