/*
 * Reading and adding at positions given by an index. The stream checks indices; kernels ignore invalid ones. Elements
 * for the same position are added in the order of the index, so the result is bit-identical to the CPU's.
 */
#include "tensor/device/cuda/four.cuh"
#include "tensor/device/cuda/order.cuh"

namespace {

/* How elements are added: as numbers (integers wrap around), as truth values, or as four numbers at once. */
template <class T> struct of_number {
    typedef T type;
    static LS_HOST_DEVICE T sum(T a, T b) {
        if constexpr (std::is_floating_point<T>::value) {
            return a + b;
        } else {
            return (T)((typename std::make_unsigned<T>::type)a + (typename std::make_unsigned<T>::type)b);
        }
    }
};
struct of_truth {
    typedef uint8_t type;
    static LS_HOST_DEVICE uint8_t sum(uint8_t a, uint8_t b) {
        return a != 0 || b != 0;
    }
};
struct of_four {
    typedef ls::four<float> type;
    static LS_HOST_DEVICE type sum(const type &a, const type &b) {
        type both;
        for (int l = 0; l < 4; l++) {
            both.number[l] = a.number[l] + b.number[l];
        }
        return both;
    }
};

/* Calls function<E>(...) with the element type E of the dtype. */
#define OF_ELEMENT(name, dtype, function, ...)                                                                         \
    ((dtype) == LS_F32    ? function<of_number<float>>(__VA_ARGS__)                                                    \
     : (dtype) == LS_F64  ? function<of_number<double>>(__VA_ARGS__)                                                   \
     : (dtype) == LS_I64  ? function<of_number<int64_t>>(__VA_ARGS__)                                                  \
     : (dtype) == LS_I32  ? function<of_number<int32_t>>(__VA_ARGS__)                                                  \
     : (dtype) == LS_U8   ? function<of_number<uint8_t>>(__VA_ARGS__)                                                  \
     : (dtype) == LS_BOOL ? function<of_truth>(__VA_ARGS__)                                                            \
                          : ls::no_kernel(name, dtype))

ls_status check_index(ls_stream *stream, const char *name, const ls_tensor *index, int axis, int64_t size) {
    return index->count == 0 ? LS_OK
                             : ls_cuda_check_numbers(stream, LS_CUDA_CHECK_INDEX, name, ls::data<int64_t>(index),
                                                     index->count, size, axis, nullptr);
}

using ls::quotient;

/* ---- index_select ------------------------------------------------------------------------------------------------ */

struct alignas(16) sixteen {
    uint64_t half[2];
};

/* Copies runs of `run` words of type W. A word may be a part of an element or several elements. */
template <class W>
ls_status select_words(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, const ls_tensor *index,
                       int64_t run) {
    const int64_t outer = ls::axis_view(x, axis).outer, size = x->size[axis], many = index->count;
    W *const to = ls::data<W>(y);
    const W *const from = ls::data<W>(x);
    const int64_t *const at = ls::data<int64_t>(index);
    return ls::each(stream, "index_select", outer * many * run, [=] LS_BODY(int64_t i) {
        const int64_t row = quotient(i, run), word = i - row * run;
        const int64_t block = quotient(row, many);
        const int64_t place = at[row - block * many];
        if (place >= 0 && place < size) {
            to[i] = from[(block * size + place) * run + word];
        }
    });
}

/* ---- adding rows at the positions given by an ordered list ------------------------------------------------------- */

/* The key of ignored elements, which sorts after all other keys. */
constexpr int64_t NOWHERE = INT64_MAX;

/*
 * Sources in the order of their destinations. The first source of each destination stores the number of sources for
 * this destination; the other sources store 0.
 */
struct ordered {
    ls::placed sources;
    int64_t *length;
    int64_t many;
};

/* The keys are in the first quarter of the memory, which has room for 4 n numbers; they are overwritten. */
ls_status order_sources(ls_stream *stream, const char *name, int64_t n, int64_t *memory, ordered *result) {
    const ls::placed room[2] = {{memory + 2 * n, memory + 3 * n}, {memory, memory + n}};
    int which;
    LS_TRY(ls::order_places(stream, name, n, memory, room, &which));
    const int64_t *const key = room[which].key;
    int64_t *const length = room[1 - which].key;
    *result = {room[which], length, n};
    return ls::each(stream, name, n, [=] LS_BODY(int64_t i) {
        const bool first = key[i] != NOWHERE && (i == 0 || key[i - 1] != key[i]);
        length[i] = first ? ls::keys_below(key, i, n, key[i], true) : 0;
    });
}

/* For each of `outer` blocks of y, [size, inner], and x, [many, inner]: y[key] += x[source], one source after
 * another. */
template <class E>
ls_status add_ordered(ls_stream *stream, const char *name, int64_t outer, int64_t size, int64_t inner,
                      const ordered list, typename E::type *y, const typename E::type *x) {
    typedef typename E::type T;
    const int64_t many = list.many;
    return ls::each(stream, name, outer * many * inner, [=] LS_BODY(int64_t i) {
        const int64_t row = quotient(i, inner), column = i - row * inner;
        const int64_t block = quotient(row, many);
        const int64_t at = row - block * many, length = list.length[at];
        if (length == 0) {
            return;
        }
        T *const to = y + (block * size + list.sources.key[at]) * inner + column;
        const T *const from = x + block * many * inner + column;
        const int64_t *const source = list.sources.place + at;
        T sum = *to;
        int64_t j = 0;
        for (; j + 8 <= length; j += 8) { /* overlaps the reads */
            T read[8];
            for (int l = 0; l < 8; l++) {
                read[l] = from[source[j + l] * inner];
            }
            for (int l = 0; l < 8; l++) {
                sum = E::sum(sum, read[l]);
            }
        }
        for (; j < length; j++) {
            sum = E::sum(sum, from[source[j] * inner]);
        }
        *to = sum;
    });
}

/* ---- index_add --------------------------------------------------------------------------------------------------- */

/* For few rows: the thread of each element reads the whole index. */
template <class E>
ls_status add_few(ls_stream *stream, const ls::axis_view &view, const int64_t *index, int64_t many, typename E::type *y,
                  const typename E::type *x) {
    const int64_t inner = view.inner, size = view.width;
    return ls::each(stream, "index_add", view.outer * inner, [=] LS_BODY(int64_t i) {
        const int64_t block = quotient(i, inner), column = i - block * inner;
        for (int64_t k = 0; k < many; k++) {
            if (index[k] >= 0 && index[k] < size) {
                typename E::type *const to = y + (block * size + index[k]) * inner + column;
                *to = E::sum(*to, x[(block * many + k) * inner + column]);
            }
        }
    });
}

template <class E>
ls_status add_rows(ls_stream *stream, const ls::axis_view view, const int64_t *index, int64_t many, void *to,
                   const void *from) {
    typedef typename E::type T;
    T *const y = static_cast<T *>(to);
    const T *const x = static_cast<const T *>(from);
    const int64_t size = view.width;
    if (many <= 16) {
        return add_few<E>(stream, view, index, many, y, x);
    }
    const ls::scratch memory(stream, 4 * (size_t)many * sizeof(int64_t));
    LS_TRY(memory.status("index_add"));
    int64_t *const keys = memory.as<int64_t>();
    LS_TRY(ls::each(stream, "index_add", many,
                    [=] LS_BODY(int64_t i) { keys[i] = index[i] >= 0 && index[i] < size ? index[i] : NOWHERE; }));
    ordered list;
    LS_TRY(order_sources(stream, "index_add", many, keys, &list));
    return add_ordered<E>(stream, "index_add", view.outer, size, view.inner, list, y, x);
}

/* ---- take_along and scatter_add ---------------------------------------------------------------------------------- */

/* Views the tensor into which the index points with the shape of the index, using stride 0 along the axis. */
ls_tensor beside(const ls_tensor *x, int axis, const ls_tensor *index) {
    ls_tensor still = *x;
    memcpy(still.size, index->size, sizeof still.size);
    still.stride[axis] = 0;
    still.count = index->count;
    still.contiguous = false;
    return still;
}

template <class E>
ls_status take(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, const ls_tensor *index) {
    typedef typename E::type T;
    const ls_tensor still = beside(x, axis, index);
    const ls_tensor *const both[2] = {index, &still};
    const ls::walk<2> walk(both);
    const int64_t along = x->stride[axis], size = x->size[axis];
    T *const to = ls::data<T>(y);
    const T *const from = ls::data<T>(x);
    const int64_t *const place = ls::data<int64_t>(index);
    return ls::each(stream, "take_along", walk.count, [=] LS_BODY(int64_t i) {
        int64_t at[2];
        walk.at(i, at);
        if (place[at[0]] >= 0 && place[at[0]] < size) {
            const T taken = from[at[1] + place[at[0]] * along];
            to[at[0]] = std::is_same<E, of_truth>::value ? (T)(taken != 0) : taken;
        }
    });
}

/* A column: the elements along the axis at one position of the other axes. */
template <class T> struct columns {
    ls::walk<2> walk; /* offsets of the column's first element in index (and x), and in y */
    int64_t length, step;
    int64_t along, size; /* of y */
    const int64_t *index;
    const T *x;
    T *y;

    LS_BODY bool is_inside(int64_t place) const {
        return place >= 0 && place < size;
    }
};

template <class E> ls_status scatter_by_threads(ls_stream *stream, const columns<typename E::type> &of) {
    const columns<typename E::type> c = of;
    return ls::each(stream, "scatter_add", c.walk.count, [=] LS_BODY(int64_t i) {
        int64_t at[2];
        c.walk.at(i, at);
        for (int64_t k = 0; k < c.length; k++) {
            const int64_t source = at[0] + k * c.step, place = c.index[source];
            if (c.is_inside(place)) {
                typename E::type *const to = c.y + at[1] + place * c.along;
                *to = E::sum(*to, c.x[source]);
            }
        }
    });
}

/*
 * Uses one warp per column, whose lanes read 32 sources at once. For sources with the same destination, the lane of the
 * first source adds all of them, in order.
 */
template <class E> ls_status scatter_by_warps(ls_stream *stream, const columns<typename E::type> &of) {
    const columns<typename E::type> c = of;
    return ls::teams<32>(stream, "scatter_add", c.walk.count, [=] LS_BODY(ls::team & t, int64_t i) {
        int64_t at[2];
        c.walk.at(i, at);
        for (int64_t k = 0; k < c.length; k += t.size) {
            const int64_t place = k + t.lane < c.length ? c.index[at[0] + (k + t.lane) * c.step] : -1;
            const bool inside = c.is_inside(place);
#ifdef __CUDA_ARCH__
            unsigned same = __match_any_sync(0xffffffffU, inside ? (long long)place : -1LL);
            const bool first = inside && __ffs((int)same) - 1 == t.lane;
            const int turns = 1;
#else
            unsigned same = 1;
            const bool first = inside;
            const int turns = t.size; /* one member at a time, for its own source */
#endif
            for (int turn = 0; turn < turns; turn++) {
                if (first && (turns == 1 || turn == t.lane)) {
                    typename E::type *const to = c.y + at[1] + place * c.along;
                    typename E::type sum = *to;
                    const int64_t own = turns == 1 ? 0 : turn;
                    for (int64_t source = at[0] + (k + own) * c.step; same != 0; same >>= 1, source += c.step) {
                        if ((same & 1U) != 0) {
                            sum = E::sum(sum, c.x[source]);
                        }
                    }
                    *to = sum;
                }
#ifdef __CUDA_ARCH__
                __syncwarp(); /* the next turn may read the elements that this turn wrote */
#else
            t.sync();
#endif
            }
        }
    });
}

/* For few, long columns: uses an ordered list of all sources. */
template <class E>
ls_status scatter_ordered(ls_stream *stream, const ls_tensor *y, const ls_tensor *x, int axis, const ls_tensor *index) {
    const ls_tensor still = beside(y, axis, index);
    const ls_tensor *const both[2] = {index, &still};
    const ls::walk<2> walk(both);
    const ls::scratch memory(stream, 4 * (size_t)index->count * sizeof(int64_t));
    LS_TRY(memory.status("scatter_add"));
    int64_t *const keys = memory.as<int64_t>();
    const int64_t along = y->stride[axis], size = y->size[axis];
    const int64_t *const place = ls::data<int64_t>(index);
    LS_TRY(ls::each(stream, "scatter_add", walk.count, [=] LS_BODY(int64_t i) {
        int64_t at[2];
        walk.at(i, at);
        const int64_t here = place[at[0]];
        keys[at[0]] = here >= 0 && here < size ? at[1] + here * along : NOWHERE;
    }));
    ordered list;
    LS_TRY(order_sources(stream, "scatter_add", index->count, keys, &list));
    return add_ordered<E>(stream, "scatter_add", 1, y->count, 1, list, ls::data<typename E::type>(y),
                          ls::data<typename E::type>(x));
}

/*
 * Selects the faster method: each iteration over a column takes about a microsecond, and ordering takes about a
 * nanosecond per source.
 */
template <class E>
ls_status scatter(ls_stream *stream, const ls_tensor *y, const ls_tensor *x, int axis, const ls_tensor *index) {
    typedef typename E::type T;
    if (index->count == 0) {
        return LS_OK;
    }
    const ls::axis_view view(index, axis);
    const int64_t many = index->count / view.width;
    if (view.width > 2048 && many < 48) {
        return scatter_ordered<E>(stream, y, x, axis, index);
    }
    ls_tensor heads = *index;
    heads.size[axis] = 1;
    heads.count = many;
    heads.contiguous = false;
    const ls_tensor still = beside(y, axis, &heads);
    const ls_tensor *const both[2] = {&heads, &still};
    const columns<T> of = {ls::walk<2>(both), view.width,    index->stride[axis],
                           y->stride[axis],   y->size[axis], ls::data<int64_t>(index),
                           ls::data<T>(x),    ls::data<T>(y)};
    const bool side_by_side = view.inner >= 32 && many >= 8192;
    return view.width <= 16 || side_by_side ? scatter_by_threads<E>(stream, of) : scatter_by_warps<E>(stream, of);
}

} // namespace

ls_status ls_cuda_index_select(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, const ls_tensor *index) {
    LS_TRY(check_index(stream, "index_select", index, axis, x->size[axis]));
    const int64_t bytes = ls::axis_view(x, axis).inner * (int64_t)ls_dtype_size((ls_dtype)x->dtype);
    const uintptr_t whole = (uintptr_t)bytes | (uintptr_t)x->data | (uintptr_t)y->data;
    if (y->count == 0) {
        return LS_OK;
    }
    if (whole % 16 == 0) {
        return select_words<sixteen>(stream, y, x, axis, index, bytes / 16);
    }
    if (whole % 8 == 0) {
        return select_words<uint64_t>(stream, y, x, axis, index, bytes / 8);
    }
    if (whole % 4 == 0) {
        return select_words<uint32_t>(stream, y, x, axis, index, bytes / 4);
    }
    return whole % 2 == 0 ? select_words<uint16_t>(stream, y, x, axis, index, bytes / 2)
                          : select_words<uint8_t>(stream, y, x, axis, index, bytes);
}

ls_status ls_cuda_index_add(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, const ls_tensor *index) {
    LS_TRY(check_index(stream, "index_add", index, axis, y->size[axis]));
    ls::axis_view view(y, axis);
    if (x->count == 0) {
        return LS_OK;
    }
    const int64_t *const at = ls::data<int64_t>(index);
    const uintptr_t aligned = (uintptr_t)x->data | (uintptr_t)y->data;
    if (x->dtype == LS_F32 && view.inner % 4 == 0 && aligned % 16 == 0) {
        view.inner /= 4;
        return add_rows<of_four>(stream, view, at, index->count, y->data, x->data);
    }
    return OF_ELEMENT("index_add", x->dtype, add_rows, stream, view, at, index->count, y->data, x->data);
}

ls_status ls_cuda_take_along(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, const ls_tensor *index) {
    LS_TRY(check_index(stream, "take_along", index, axis, x->size[axis]));
    return OF_ELEMENT("take_along", x->dtype, take, stream, y, x, axis, index);
}

ls_status ls_cuda_scatter_add(ls_stream *stream, ls_tensor *y, const ls_tensor *x, int axis, const ls_tensor *index) {
    LS_TRY(check_index(stream, "scatter_add", index, axis, y->size[axis]));
    return OF_ELEMENT("scatter_add", x->dtype, scatter, stream, y, x, axis, index);
}
