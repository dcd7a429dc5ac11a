/*
 * Generates the GPU's map kernels from the same rows as the CPU's (tensor/device/maps_*.inc). T is the element type,
 * and U is the type for computation. The macros used in the rows, such as LS_TAKE and LS_EXP, are defined here.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_MAP_CUH
#define LS_TENSOR_DEVICE_CUDA_MAP_CUH

#include "tensor/device/cuda/four.cuh"
#include "tensor/device/cuda/scalar.cuh"

namespace ls {

/* Returns a parameter of a map, as T. */
template <class T> LS_HOST_DEVICE inline T number(double value);
template <> LS_HOST_DEVICE inline float number<float>(double value) {
    return (float)value;
}
template <> LS_HOST_DEVICE inline double number<double>(double value) {
    return value;
}
template <> LS_HOST_DEVICE inline int64_t number<int64_t>(double value) {
    return ls_i64_of(value);
}
template <> LS_HOST_DEVICE inline int32_t number<int32_t>(double value) {
    return ls_i32_of(value);
}
template <> LS_HOST_DEVICE inline uint8_t number<uint8_t>(double value) {
    return ls_u8_of(value);
}

/* Integers are computed as unsigned numbers, which wrap around; small integers are computed with 32 bits. */
template <class T> struct computing { typedef T type; };
template <> struct computing<int64_t> { typedef uint64_t type; };
template <> struct computing<int32_t> { typedef uint32_t type; };
template <> struct computing<uint8_t> { typedef uint32_t type; };

#define LS_OF_TWO(name, f32, f64)                                                                                      \
    LS_HOST_DEVICE inline float name(float x) {                                                                        \
        return f32(x);                                                                                                 \
    }                                                                                                                  \
    LS_HOST_DEVICE inline double name(double x) {                                                                      \
        return f64(x);                                                                                                 \
    }
LS_OF_TWO(normal_of, ls_normal_f32, ls_normal_f64)
LS_OF_TWO(bell_of, ls_bell_f32, ls_bell_f64)
#undef LS_OF_TWO

/* Maps of dense tensors whose elements all have the same type, of four or eight bytes. */
template <class T, class F>
ls_status dense_map1(ls_stream *stream, const char *name, int64_t count, T *to, const T *a, F f) {
    const arrays<T, 2> all = {{to, numbers<T>(a)}, count};
    return each_four<1, 1>(stream, name, all, [=] LS_BODY(T(&v)[2]) { v[0] = f(v[1]); });
}

template <class T, class F>
ls_status dense_map2(ls_stream *stream, const char *name, int64_t count, T *to, const T *a, const T *b, F f) {
    const arrays<T, 3> all = {{to, numbers<T>(a), numbers<T>(b)}, count};
    return each_four<1, 1>(stream, name, all, [=] LS_BODY(T(&v)[3]) { v[0] = f(v[1], v[2]); });
}

template <class R, class T> constexpr bool by_four = std::is_same<R, T>::value && sizeof(T) >= 4;

/*
 * Computes y = f(operands), with elements of type R computed from type T. F is a class, not a lambda, because rows name
 * their operands.
 */
template <class R, class T, class F>
ls_status map1(ls_stream *stream, const char *name, ls_tensor *y, const ls_tensor *const *operand, F f) {
    const ls_tensor *const all[2] = {y, operand[0]};
    const walk<2> over(all);
    R *const to = data<R>(y);
    const T *const a = data<T>(operand[0]);
    if constexpr (by_four<R, T>) {
        if (over.dense) {
            return dense_map1(stream, name, over.count, to, a, f);
        }
    }
    return each(stream, name, over.count, [=] LS_BODY(int64_t i) {
        int64_t at[2];
        over.at(i, at);
        to[at[0]] = f(a[at[1]]);
    });
}

template <class R, class T, class F>
ls_status map2(ls_stream *stream, const char *name, ls_tensor *y, const ls_tensor *const *operand, F f) {
    const ls_tensor *const all[3] = {y, operand[0], operand[1]};
    const walk<3> over(all);
    R *const to = data<R>(y);
    const T *const a = data<T>(operand[0]);
    const T *const b = data<T>(operand[1]);
    if constexpr (by_four<R, T>) {
        if (over.dense) {
            return dense_map2(stream, name, over.count, to, a, b, f);
        }
    }
    return each(stream, name, over.count, [=] LS_BODY(int64_t i) {
        int64_t at[3];
        over.at(i, at);
        to[at[0]] = f(a[at[1]], b[at[2]]);
    });
}

/* The first operand may have a different type: the condition of `where`. */
template <class R, class C, class T, class F>
ls_status map3(ls_stream *stream, const char *name, ls_tensor *y, const ls_tensor *const *operand, F f) {
    const ls_tensor *const all[4] = {y, operand[0], operand[1], operand[2]};
    const walk<4> over(all);
    R *const to = data<R>(y);
    const C *const a = data<C>(operand[0]);
    const T *const b = data<T>(operand[1]);
    const T *const c = data<T>(operand[2]);
    return each(stream, name, over.count, [=] LS_BODY(int64_t i) {
        int64_t at[4];
        over.at(i, at);
        to[at[0]] = f(a[at[1]], b[at[2]], c[at[3]]);
    });
}

/* The parameters of a map, for its function. */
struct map_numbers {
    double value[2];

    explicit map_numbers(const double *given, int count) : value{0, 0} {
        for (int i = 0; i < count; i++) {
            value[i] = given[i];
        }
    }
};

} // namespace ls

/* Macros for the rows. */
#define LS_NONE enum { no_numbers = 0 }
#define LS_TAKE(name)                                                                                                  \
    enum { numbers_taken = 1 };                                                                                        \
    const T name = ls::number<T>(numbers.value[0])
#define LS_TAKE2(one, other)                                                                                           \
    LS_TAKE(one);                                                                                                      \
    const T other = ls::number<T>(numbers.value[1])
#define LS_SIGN(x)    ((T)(((x) > 0) - ((x) < 0)))
#define LS_EXP(x)     ls::exp_of(x)
#define LS_TANH(x)    ls::tanh_of(x)
#define LS_SIGMOID(x) ls::sigmoid_of(x)
#define LS_NORMAL(x)  ls::normal_of(x)
#define LS_BELL(x)    ls::bell_of(x)

/* Number of parameters of each map, according to the list of kernels. */
#define LS_COUNT_OF(name, operands, parameters) enum { ls_parameters_of_##name = parameters };
LS_MAPS(LS_COUNT_OF)

/* The function of a map, and the map for one type. TRUTH is the variant for bool, whose result is "is not 0". */
#define LS_FUNCTION1(name, take, a, expression)                                                                        \
    template <class T, bool TRUTH> struct name##_of {                                                                  \
        typedef typename ls::computing<T>::type U;                                                                     \
        ls::map_numbers numbers;                                                                                       \
        LS_HOST_DEVICE T operator()(T a) const {                                                                       \
            take;                                                                                                      \
            const U result = (U)(expression);                                                                          \
            return TRUTH ? (T)(result != 0) : (T)result;                                                               \
        }                                                                                                              \
    };                                                                                                                 \
    template <class T, bool TRUTH = false>                                                                             \
    static ls_status name##_typed(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operand,                    \
                                  const double *given) {                                                               \
        return ls::map1<T, T>(stream, #name, y, operand,                                                               \
                              name##_of<T, TRUTH>{ls::map_numbers(given, ls_parameters_of_##name)});                   \
    }
#define LS_FUNCTION2(name, take, a, b, expression)                                                                     \
    template <class T, bool TRUTH> struct name##_of {                                                                  \
        typedef typename ls::computing<T>::type U;                                                                     \
        ls::map_numbers numbers;                                                                                       \
        LS_HOST_DEVICE T operator()(T a, T b) const {                                                                  \
            take;                                                                                                      \
            const U result = (U)(expression);                                                                          \
            return TRUTH ? (T)(result != 0) : (T)result;                                                               \
        }                                                                                                              \
    };                                                                                                                 \
    template <class T, bool TRUTH = false>                                                                             \
    static ls_status name##_typed(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operand,                    \
                                  const double *given) {                                                               \
        return ls::map2<T, T>(stream, #name, y, operand,                                                               \
                              name##_of<T, TRUTH>{ls::map_numbers(given, ls_parameters_of_##name)});                   \
    }
#define LS_FUNCTION3(name, take, a, b, c, expression)                                                                  \
    template <class T, bool TRUTH> struct name##_of {                                                                  \
        typedef typename ls::computing<T>::type U;                                                                     \
        ls::map_numbers numbers;                                                                                       \
        LS_HOST_DEVICE T operator()(T a, T b, T c) const {                                                             \
            take;                                                                                                      \
            const U result = (U)(expression);                                                                          \
            return TRUTH ? (T)(result != 0) : (T)result;                                                               \
        }                                                                                                              \
    };                                                                                                                 \
    template <class T, bool TRUTH = false>                                                                             \
    static ls_status name##_typed(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operand,                    \
                                  const double *given) {                                                               \
        return ls::map3<T, T, T>(stream, #name, y, operand,                                                            \
                                 name##_of<T, TRUTH>{ls::map_numbers(given, ls_parameters_of_##name)});                \
    }

/* Defines the kernel, which selects the function by the dtype of the last operand. */
#define LS_MAP_OF_FLOATS(name, operands)                                                                               \
    ls_status ls_cuda_##name(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operand,                         \
                             const double *parameters) {                                                               \
        return LS_OF_FLOATS(operand[operands - 1]->dtype, name##_typed, stream, y, operand, parameters);               \
    }
#define LS_MAP_OF_ANY(name, operands)                                                                                  \
    ls_status ls_cuda_##name(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operand,                         \
                             const double *parameters) {                                                               \
        return operand[operands - 1]->dtype == LS_BOOL                                                                 \
                   ? name##_typed<uint8_t, true>(stream, y, operand, parameters)                                       \
                   : LS_OF_ANY(operand[operands - 1]->dtype, name##_typed, stream, y, operand, parameters);            \
    }

#define LS_MAP1(name, take, a, expression)       LS_FUNCTION1(name, take, a, expression) LS_MAP_OF_FLOATS(name, 1)
#define LS_MAP2(name, take, a, b, expression)    LS_FUNCTION2(name, take, a, b, expression) LS_MAP_OF_FLOATS(name, 2)
#define LS_MAP3(name, take, a, b, c, expression) LS_FUNCTION3(name, take, a, b, c, expression) LS_MAP_OF_FLOATS(name, 3)
#define LS_MAP1_CALLS                            LS_MAP1
#define LS_MAP2_CALLS                            LS_MAP2
#define LS_MAP3_CALLS                            LS_MAP3
#define LS_MAP1_F64_CALLS                        LS_MAP1
#define LS_MAP2_F64_CALLS                        LS_MAP2
#define LS_MAP3_F64_CALLS                        LS_MAP3

#define LS_MAP1_ANY(name, take, a, expression)    LS_FUNCTION1(name, take, a, expression) LS_MAP_OF_ANY(name, 1)
#define LS_MAP2_ANY(name, take, a, b, expression) LS_FUNCTION2(name, take, a, b, expression) LS_MAP_OF_ANY(name, 2)

#endif
