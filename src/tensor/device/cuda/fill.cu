/* Setting and converting elements of all dtypes, with any strides. */
#include "tensor/device/cuda/four.cuh"
#include "tensor/device/cuda/products.cuh"

namespace {

/* An element of dtype D in memory (T), and as a value. */
template <int D, class T> struct element {
    typedef T type;
    static LS_HOST_DEVICE T value(T x) {
        return x;
    }
};
struct element_bf16 {
    typedef uint16_t type;
    static LS_HOST_DEVICE float value(uint16_t x) {
        return ls_bf16_to_float(x);
    }
};
struct element_f16 {
    typedef uint16_t type;
    static LS_HOST_DEVICE float value(uint16_t x) {
        return ls_f16_to_float(x);
    }
};
struct element_bool {
    typedef uint8_t type;
    static LS_HOST_DEVICE int value(uint8_t x) {
        return x != 0;
    }
};

/* Converts a floating-point value or an integer like number.h, except that integers that do not fit wrap around. */
template <int D, class V> LS_HOST_DEVICE auto stored(V v) {
    constexpr bool is_floating = std::is_floating_point<V>::value;
    if constexpr (D == LS_F32) {
        return (float)v;
    } else if constexpr (D == LS_F64) {
        return (double)v;
    } else if constexpr (D == LS_BF16) {
        return ls_bf16_from_float((float)v);
    } else if constexpr (D == LS_F16) {
        return ls_f16_from_float((float)v);
    } else if constexpr (D == LS_BOOL) {
        return (uint8_t)(v != 0);
    } else if constexpr (D == LS_I64) {
        return is_floating ? ls_i64_of((double)v) : (int64_t)v;
    } else if constexpr (D == LS_I32) {
        return is_floating ? ls_i32_of((double)v) : (int32_t)v;
    } else {
        return is_floating ? ls_u8_of((double)v) : (uint8_t)v;
    }
}

template <int TO, class FROM> ls_status cast_to(ls_stream *stream, ls_tensor *y, const ls_tensor *x) {
    const ls_tensor *const both[2] = {y, x};
    const ls::walk<2> walk(both);
    typedef decltype(stored<TO>(FROM::value(0))) R;
    R *const to = ls::data<R>(y);
    const typename FROM::type *const from = ls::data<typename FROM::type>(x);
    return ls::each(stream, "cast", walk.count, [=] LS_BODY(int64_t i) {
        int64_t at[2];
        walk.at(i, at);
        to[at[0]] = stored<TO>(FROM::value(from[at[1]]));
    });
}

template <class FROM> ls_status cast_from(ls_stream *stream, ls_tensor *y, const ls_tensor *x) {
    switch (y->dtype) {
    case LS_F32:
        return cast_to<LS_F32, FROM>(stream, y, x);
    case LS_F64:
        return cast_to<LS_F64, FROM>(stream, y, x);
    case LS_BF16:
        return cast_to<LS_BF16, FROM>(stream, y, x);
    case LS_F16:
        return cast_to<LS_F16, FROM>(stream, y, x);
    case LS_I64:
        return cast_to<LS_I64, FROM>(stream, y, x);
    case LS_I32:
        return cast_to<LS_I32, FROM>(stream, y, x);
    case LS_U8:
        return cast_to<LS_U8, FROM>(stream, y, x);
    default:
        return cast_to<LS_BOOL, FROM>(stream, y, x);
    }
}

template <class T> ls_status copy_dense(ls_stream *stream, int64_t count, T *to, const T *from) {
    const ls::arrays<T, 2> both = {{to, ls::numbers<T>(from)}, count};
    return ls::each_four<1, 1>(stream, "copy", both, [=] LS_BODY(T(&v)[2]) { v[0] = v[1]; });
}

template <class T> ls_status copy_of(ls_stream *stream, ls_tensor *y, const ls_tensor *x) {
    const ls_tensor *const both[2] = {y, x};
    const ls::walk<2> walk(both);
    T *const to = ls::data<T>(y);
    const T *const from = ls::data<T>(x);
    if constexpr (sizeof(T) >= 4) {
        if (walk.dense) {
            return copy_dense(stream, walk.count, to, from);
        }
    }
    return ls::each(stream, "copy", walk.count, [=] LS_BODY(int64_t i) {
        int64_t at[2];
        walk.at(i, at);
        to[at[0]] = from[at[1]];
    });
}

template <class T> ls_status fill_dense(ls_stream *stream, int64_t count, T *to, T number) {
    const ls::arrays<T, 1> one = {{to}, count};
    return ls::each_four<1, 1>(stream, "fill", one, [=] LS_BODY(T(&v)[1]) { v[0] = number; });
}

template <int D> ls_status fill_of(ls_stream *stream, ls_tensor *y, double value) {
    const ls_tensor *const one[1] = {y};
    const ls::walk<1> walk(one);
    typedef decltype(stored<D>(0.0)) T;
    T *const to = ls::data<T>(y);
    if constexpr (sizeof(T) >= 4) {
        if (walk.dense) {
            return fill_dense(stream, walk.count, to, stored<D>(value));
        }
    }
    return ls::each(stream, "fill", walk.count, [=] LS_BODY(int64_t i) {
        int64_t at[1];
        walk.at(i, at);
        to[at[0]] = stored<D>(value);
    });
}

template <int D> ls_status count_of(ls_stream *stream, ls_tensor *y) {
    typedef decltype(stored<D>(0.0)) T;
    T *const to = ls::data<T>(y);
    return ls::each(stream, "count_up", y->count, [=] LS_BODY(int64_t i) { to[i] = stored<D>(i); });
}

} // namespace

ls_status ls_cuda_cast(ls_stream *stream, ls_tensor *y, const ls_tensor *x) {
    if (x->dtype == y->dtype) {
        return ls_cuda_copy(stream, y, x);
    }
    const bool to_halves = x->dtype == LS_F32 && (y->dtype == LS_BF16 || y->dtype == LS_F16);
    if (to_halves && x->contiguous && y->contiguous && x->count == y->count) {
        const ls::matrices row = {x->data, 1, x->count, x->count, 1, x->count};
        return ls::to_halves(stream, row, (ls_dtype)y->dtype, x->count, ls::data<uint16_t>(y));
    }
    switch (x->dtype) {
    case LS_F32:
        return cast_from<element<LS_F32, float>>(stream, y, x);
    case LS_F64:
        return cast_from<element<LS_F64, double>>(stream, y, x);
    case LS_BF16:
        return cast_from<element_bf16>(stream, y, x);
    case LS_F16:
        return cast_from<element_f16>(stream, y, x);
    case LS_I64:
        return cast_from<element<LS_I64, int64_t>>(stream, y, x);
    case LS_I32:
        return cast_from<element<LS_I32, int32_t>>(stream, y, x);
    case LS_U8:
        return cast_from<element<LS_U8, uint8_t>>(stream, y, x);
    default:
        return cast_from<element_bool>(stream, y, x);
    }
}

ls_status ls_cuda_copy(ls_stream *stream, ls_tensor *y, const ls_tensor *x) {
    switch (ls_dtype_size((ls_dtype)y->dtype)) {
    case 8:
        return copy_of<uint64_t>(stream, y, x);
    case 4:
        return copy_of<uint32_t>(stream, y, x);
    case 2:
        return copy_of<uint16_t>(stream, y, x);
    default:
        return copy_of<uint8_t>(stream, y, x);
    }
}

#define LS_OF_DTYPE(dtype, function, ...)                                                                              \
    switch (dtype) {                                                                                                   \
    case LS_F32:                                                                                                       \
        return function<LS_F32>(__VA_ARGS__);                                                                          \
    case LS_F64:                                                                                                       \
        return function<LS_F64>(__VA_ARGS__);                                                                          \
    case LS_BF16:                                                                                                      \
        return function<LS_BF16>(__VA_ARGS__);                                                                         \
    case LS_F16:                                                                                                       \
        return function<LS_F16>(__VA_ARGS__);                                                                          \
    case LS_I64:                                                                                                       \
        return function<LS_I64>(__VA_ARGS__);                                                                          \
    case LS_I32:                                                                                                       \
        return function<LS_I32>(__VA_ARGS__);                                                                          \
    case LS_U8:                                                                                                        \
        return function<LS_U8>(__VA_ARGS__);                                                                           \
    default:                                                                                                           \
        return function<LS_BOOL>(__VA_ARGS__);                                                                         \
    }

ls_status ls_cuda_fill(ls_stream *stream, ls_tensor *y, double value){LS_OF_DTYPE(y->dtype, fill_of, stream, y, value)}

ls_status ls_cuda_count_up(ls_stream *stream, ls_tensor *y) {
    LS_OF_DTYPE(y->dtype, count_of, stream, y)
}
