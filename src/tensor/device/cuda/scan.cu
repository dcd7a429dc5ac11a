/* Operations along one axis, line by line, with any strides: the index of the extreme, and running sums. */
#include "tensor/device/cuda/groups.cuh"

namespace {

/* Returns the tensor's first slice across the axis. */
ls_tensor slice_across(const ls_tensor *x, int axis) {
    ls_tensor slice = *x;
    slice.count = x->count / x->size[axis];
    slice.size[axis] = 1;
    slice.contiguous = false;
    return slice;
}

/* The lines of y and x along an axis: their first elements, and the strides within a line. */
struct lines {
    ls_tensor y_slice, x_slice;
    const ls_tensor *both[2];
    int64_t width, x_step, y_step;

    lines(const ls_tensor *y, const ls_tensor *x, int axis)
        : y_slice(slice_across(y, axis)), x_slice(slice_across(x, axis)), both{&y_slice, &x_slice},
          width(x->size[axis]), x_step(x->stride[axis]), y_step(y->stride[axis]) {
    }
    lines(const lines &) = delete; /* `both` points into this object */
    lines &operator=(const lines &) = delete;
};

/* NaN beats every number, and no number beats NaN. */
template <class T, bool LARGEST> LS_BODY bool beats(T a, T b) {
    return b == b && !(LARGEST ? a <= b : a >= b);
}

/* Returns the index within a line of the first element that is not beaten by any other element. */
template <class T, bool LARGEST, class TEAM>
LS_BODY int64_t found_by(const TEAM &t, const T *x, int64_t width, int64_t step) {
    int64_t found = t.lane < width ? t.lane : width - 1;
    T best = x[found * step];
    for (int64_t k = found + t.size; k < width; k += t.size) {
        const T value = x[k * step];
        const bool better = beats<T, LARGEST>(value, best);
        best = better ? value : best;
        found = better ? k : found;
    }
    const T best_of_all = t.reduce(best, [](T a, T b) { return beats<T, LARGEST>(b, a) ? b : a; });
    const int64_t none = INT64_MAX;
    return t.reduce(beats<T, LARGEST>(best_of_all, best) ? none : found,
                    [](int64_t a, int64_t b) { return a < b ? a : b; });
}

template <class T, bool LARGEST>
ls_status find(ls_stream *stream, const char *name, ls_tensor *y, const ls_tensor *x, int axis) {
    const lines along(y, x, axis);
    const ls::walk<2> walk(along.both);
    int64_t *const to = ls::data<int64_t>(y);
    const T *const from = ls::data<T>(x);
    const int64_t width = along.width, step = along.x_step;
    if (width <= 32 || (step != 1 && walk.count >= 16384)) {
        return ls::each(stream, name, walk.count, [=] LS_BODY(int64_t i) {
            int64_t at[2];
            walk.at(i, at);
            to[at[0]] = found_by<T, LARGEST>(ls::single(), from + at[1], width, step);
        });
    }
    if (width <= 512) {
        return ls::groups<32>(stream, name, walk.count, [=] LS_BODY(const ls::group<32> &g, int64_t i) {
            int64_t at[2];
            walk.at(i, at);
            const int64_t found = found_by<T, LARGEST>(g, from + at[1], width, step);
            if (g.lane == 0) {
                to[at[0]] = found;
            }
        });
    }
    return ls::teams<256>(stream, name, walk.count, [=] LS_BODY(ls::team & t, int64_t i) {
        int64_t at[2];
        walk.at(i, at);
        const int64_t found = found_by<T, LARGEST>(t, from + at[1], width, step);
        if (t.lane == 0) {
            to[at[0]] = found;
        }
    });
}

template <bool LARGEST>
ls_status find_any(ls_stream *stream, const char *name, ls_tensor *y, const ls_tensor *x, int axis) {
    switch (x->count > 0 ? (int)x->dtype : (int)LS_DTYPE_COUNT) {
    case LS_F32:
        return find<float, LARGEST>(stream, name, y, x, axis);
    case LS_F64:
        return find<double, LARGEST>(stream, name, y, x, axis);
    case LS_I64:
        return find<int64_t, LARGEST>(stream, name, y, x, axis);
    case LS_I32:
        return find<int32_t, LARGEST>(stream, name, y, x, axis);
    case LS_U8:
    case LS_BOOL:
        return find<uint8_t, LARGEST>(stream, name, y, x, axis);
    case LS_DTYPE_COUNT:
        return LS_OK;
    default:
        return ls::no_kernel(name, x->dtype);
    }
}

/* If there are too few lines to keep the GPU busy, a line is summed in parts of PART numbers, with one thread per
 * part. */
constexpr int64_t PART = 32, MANY_LINES = 16384, SHORT_LINE = 64;

/* Part p of a line: its numbers, counted from the end if `reverse`. */
struct parts {
    int64_t width, length, count, x_step, y_step;
    bool reverse, beside; /* neighboring threads process neighboring lines instead of neighboring parts */

    LS_BODY int64_t place(int64_t k) const {
        return reverse ? width - 1 - k : k;
    }
    LS_BODY int64_t end(int64_t part) const {
        return width - part * length < length ? width : (part + 1) * length;
    }
    LS_BODY void divide(int64_t i, int64_t lines, int64_t *line, int64_t *part) const {
        const int64_t by = beside ? lines : count;
        const int64_t whole = ls::quotient(i, by), rest = i - whole * by;
        *line = beside ? rest : whole;
        *part = beside ? whole : rest;
    }
};

/* Computes the sum of each part, line by line. */
template <class IN, class SUM>
ls_status sum_parts(ls_stream *stream, const ls::walk<2> &walk, const parts &p, const IN *x, SUM *sums) {
    const ls::walk<2> lines = walk;
    const parts by = p;
    return ls::each(stream, "cumsum", lines.count * by.count, [=] LS_BODY(int64_t i) {
        int64_t at[2], line, part;
        by.divide(i, lines.count, &line, &part);
        lines.at(line, at);
        SUM sum = 0;
        for (int64_t k = part * by.length; k < by.end(part); k++) {
            sum += (SUM)x[at[1] + by.place(k) * by.x_step];
        }
        sums[line * by.count + part] = sum;
    });
}

/* Computes running sums of each part, beginning with the sum of the previous parts, if any. y may be x. */
template <class IN, class OUT, class SUM>
ls_status run_parts(ls_stream *stream, const ls::walk<2> &walk, const parts &p, const IN *x, OUT *y,
                    const SUM *before) {
    const ls::walk<2> lines = walk;
    const parts by = p;
    return ls::each(stream, "cumsum", lines.count * by.count, [=] LS_BODY(int64_t i) {
        int64_t at[2], line, part;
        by.divide(i, lines.count, &line, &part);
        lines.at(line, at);
        SUM sum = part > 0 ? before[line * by.count + part - 1] : (SUM)0;
        for (int64_t k = part * by.length; k < by.end(part); k++) {
            sum += (SUM)x[at[1] + by.place(k) * by.x_step];
            y[at[0] + by.place(k) * by.y_step] = (OUT)sum;
        }
    });
}

/* Returns a dense matrix, of which only sizes and strides are used. */
ls_tensor matrix(int64_t rows, int64_t columns) {
    ls_tensor dense = {};
    dense.count = rows * columns;
    dense.dtype = LS_F64;
    dense.ndim = 2;
    dense.contiguous = true;
    dense.size[0] = rows;
    dense.size[1] = columns;
    dense.stride[0] = columns;
    dense.stride[1] = 1;
    return dense;
}

/* Sums the sums of the parts in the same way, recursively. */
template <class IN, class OUT, class SUM>
ls_status run_sums(ls_stream *stream, const lines &along, bool reverse, const IN *x, OUT *y) {
    const ls::walk<2> walk(along.both);
    const int64_t width = along.width;
    parts by = {width, width, 1, along.x_step, along.y_step, reverse, along.x_step != 1};
    if (width <= SHORT_LINE || walk.count >= MANY_LINES) {
        return run_parts<IN, OUT, SUM>(stream, walk, by, x, y, nullptr);
    }
    by.length = PART;
    by.count = (width + PART - 1) / PART;
    const ls::scratch room(stream, (size_t)(walk.count * by.count) * sizeof(SUM));
    LS_TRY(room.status("cumsum"));
    SUM *const sums = room.as<SUM>();
    LS_TRY((sum_parts<IN, SUM>(stream, walk, by, x, sums)));
    const ls_tensor all_sums = matrix(walk.count, by.count);
    LS_TRY((run_sums<SUM, SUM, SUM>(stream, lines(&all_sums, &all_sums, 1), false, sums, sums)));
    return run_parts<IN, OUT, SUM>(stream, walk, by, x, y, sums);
}

template <class T, class SUM>
ls_status cumsum(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, bool reverse) {
    return run_sums<T, T, SUM>(stream, lines(y, x, axis), reverse, ls::data<T>(x), ls::data<T>(y));
}

} // namespace

ls_status ls_cuda_argmax(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis) {
    return find_any<true>(stream, "argmax", y, x, axis);
}

ls_status ls_cuda_argmin(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis) {
    return find_any<false>(stream, "argmin", y, x, axis);
}

ls_status ls_cuda_cumsum(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, bool reverse) {
    switch (x->count > 0 ? (int)x->dtype : (int)LS_DTYPE_COUNT) {
    case LS_F32:
        return cumsum<float, double>(stream, y, x, axis, reverse);
    case LS_F64:
        return cumsum<double, double>(stream, y, x, axis, reverse);
    case LS_I64:
        return cumsum<int64_t, uint64_t>(stream, y, x, axis, reverse);
    case LS_I32:
        return cumsum<int32_t, uint64_t>(stream, y, x, axis, reverse);
    case LS_U8:
        return cumsum<uint8_t, uint64_t>(stream, y, x, axis, reverse);
    case LS_BOOL:
        return cumsum<ls::truth, uint64_t>(stream, y, x, axis, reverse);
    case LS_DTYPE_COUNT:
        return LS_OK;
    default:
        return ls::no_kernel("cumsum", x->dtype);
    }
}
