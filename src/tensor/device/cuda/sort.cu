/*
 * Sorting along one axis: a merge sort in which each element computes its own position. First, runs of SHORT elements
 * are sorted by counting. Then each pass merges pairs of adjacent runs: an element's position is its index in its run
 * plus the number of elements that precede it in the other run, found by binary search. If elements are equal, the
 * elements of the left run come first, so that the sort is stable.
 */
#include "tensor/device/cuda/groups.cuh"

namespace {

constexpr int64_t SHORT = 32;

/* NaN is the largest. */
template <class T> LS_BODY bool goes_before(T a, T b, bool descending) {
    return descending ? a > b || (a != a && b == b) : a < b || (b != b && a == a);
}

/* A contiguous tensor, whose lines are the columns of `outer` blocks of `width` rows of `inner` elements. */
struct lines {
    int64_t width, inner;
    bool descending;

    LS_BODY int64_t at(int64_t line, int64_t place) const {
        const int64_t block = ls::quotient(line, inner);
        return (block * width + place) * inner + (line - block * inner);
    }
};

/* Elements in runs, line by line: their keys, and their original indices in the line. */
template <class T> struct runs {
    T *key;
    int64_t *index;
};

/* Stores the order in y if y is not NULL; otherwise stores the runs in `to`. */
template <class T>
ls_status first_runs(ls_stream *stream, const lines &all, int64_t count, int64_t *y, const T *x, const runs<T> &to) {
    const lines l = all;
    const runs<T> runs_to = to;
    return ls::each(stream, "argsort", count, [=] LS_BODY(int64_t i) {
        const int64_t line = ls::quotient(i, l.width);
        const int64_t own = i - line * l.width;
        const int64_t begin = own - own % SHORT;
        const int64_t end = begin + SHORT < l.width ? begin + SHORT : l.width;
        const T key = x[l.at(line, own)];
        int64_t place = begin;
        for (int64_t k = begin; k < end; k++) {
            const T other = x[l.at(line, k)];
            place += goes_before(other, key, l.descending) || (k < own && !goes_before(key, other, l.descending));
        }
        if (y != nullptr) {
            y[l.at(line, place)] = own;
        } else {
            runs_to.key[line * l.width + place] = key;
            runs_to.index[line * l.width + place] = own;
        }
    });
}

/* Returns how many of the n sorted keys precede `key`; with `equal`, equal keys also count. */
template <class T> LS_BODY int64_t count_before(const T *keys, int64_t n, T key, bool equal, bool descending) {
    int64_t low = 0;
    for (int64_t high = n; low < high;) {
        const int64_t middle = low + (high - low) / 2;
        const T other = keys[middle];
        if (equal ? !goes_before(key, other, descending) : goes_before(other, key, descending)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

template <class T>
ls_status merge(ls_stream *stream, const lines &all, int64_t count, int64_t run, int64_t *y, const runs<T> &from,
                const runs<T> &to) {
    const lines l = all;
    const runs<T> runs_from = from, runs_to = to;
    return ls::each(stream, "argsort", count, [=] LS_BODY(int64_t i) {
        const int64_t line = ls::quotient(i, l.width);
        const int64_t own = i - line * l.width;
        const int64_t begin = own & ~(2 * run - 1); /* the length of a run is a power of two */
        const int64_t middle = begin + run < l.width ? begin + run : l.width;
        const int64_t end = middle + run < l.width ? middle + run : l.width;
        const T *const keys = runs_from.key + line * l.width;
        const T key = keys[own];
        const int64_t place = own < middle
                                  ? own + count_before(keys + middle, end - middle, key, false, l.descending)
                                  : own - run + count_before(keys + begin, middle - begin, key, true, l.descending);
        if (y != nullptr) {
            y[l.at(line, place)] = runs_from.index[i];
        } else {
            runs_to.key[line * l.width + place] = key;
            runs_to.index[line * l.width + place] = runs_from.index[i];
        }
    });
}

template <class T> ls_status argsort(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, bool descending) {
    const ls::axis_view view(x, axis);
    const lines all = {view.width, view.inner, descending};
    const int64_t count = x->count;
    int64_t *const to_y = ls::data<int64_t>(y);
    if (view.width <= SHORT) {
        return first_runs<T>(stream, all, count, to_y, ls::data<T>(x), {nullptr, nullptr});
    }
    const ls::scratch room(stream, 2 * (size_t)count * (sizeof(int64_t) + sizeof(T)));
    LS_TRY(room.status("argsort"));
    int64_t *const index = room.as<int64_t>();
    T *const key = reinterpret_cast<T *>(index + 2 * count);
    runs<T> from = {key, index}, to = {key + count, index + count};
    LS_TRY(first_runs<T>(stream, all, count, nullptr, ls::data<T>(x), from));
    for (int64_t run = SHORT; run < view.width; run *= 2) {
        LS_TRY(merge<T>(stream, all, count, run, 2 * run < view.width ? nullptr : to_y, from, to));
        const runs<T> sorted = to;
        to = from;
        from = sorted;
    }
    return LS_OK;
}

} // namespace

ls_status ls_cuda_argsort(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, bool reverse) {
    return x->count == 0 ? LS_OK : LS_OF_ANY(x->dtype, argsort, stream, y, x, axis, reverse);
}
