/* Comparisons, which return bool, and selection by a bool. */
#include "tensor/device/cuda/map.cuh"

/*
 * Returns -1, 0 or 1 if integer a is less than, equal to, or greater than a number that may have a fraction, and 2 if
 * the number is NaN. A double cannot represent every i64 exactly, so the function compares the integral part, then the
 * fraction.
 */
static LS_HOST_DEVICE inline int compared(int64_t a, double number) {
    if (number != number) {
        return 2;
    }
    if (number >= 0x1p63) {
        return -1;
    }
    if (number < -0x1p63) {
        return 1;
    }
    const double whole = floor(number);
    const int64_t b = (int64_t)whole;
    if (a != b) {
        return a < b ? -1 : 1;
    }
    return number > whole ? -1 : 0;
}
static LS_HOST_DEVICE inline int compared(double a, double b) {
    return a != a || b != b ? 2 : (a > b) - (a < b);
}
static LS_HOST_DEVICE inline int compared(float a, double number) {
    return compared((double)a, (double)(float)number); /* as on the CPU, the number is first rounded to f32 */
}
static LS_HOST_DEVICE inline int compared(int32_t a, double number) {
    return compared((int64_t)a, number);
}
static LS_HOST_DEVICE inline int compared(uint8_t a, double number) {
    return compared((int64_t)a, number);
}

#define COMPARE(name, a, b, expression, of_number)                                                                     \
    template <class T> struct name##_of {                                                                              \
        LS_HOST_DEVICE uint8_t operator()(T a, T b) const {                                                            \
            return (expression) ? 1 : 0;                                                                               \
        }                                                                                                              \
    };                                                                                                                 \
    template <class T> struct name##_number_of {                                                                       \
        double number;                                                                                                 \
        LS_HOST_DEVICE uint8_t operator()(T a) const {                                                                 \
            const int way = compared(a, number);                                                                       \
            return (of_number) ? 1 : 0;                                                                                \
        }                                                                                                              \
    };                                                                                                                 \
    template <class T>                                                                                                 \
    static ls_status name##_typed(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operand) {                  \
        return ls::map2<uint8_t, T>(stream, #name, y, operand, name##_of<T>{});                                        \
    }                                                                                                                  \
    template <class T>                                                                                                 \
    static ls_status name##_number_typed(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operand,             \
                                         double number) {                                                              \
        return ls::map1<uint8_t, T>(stream, #name "_number", y, operand, name##_number_of<T>{number});                 \
    }                                                                                                                  \
    ls_status ls_cuda_##name(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operand, const double *) {       \
        return LS_OF_ANY(operand[1]->dtype, name##_typed, stream, y, operand);                                         \
    }                                                                                                                  \
    ls_status ls_cuda_##name##_number(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operand,                \
                                      const double *parameters) {                                                      \
        return LS_OF_ANY(operand[0]->dtype, name##_number_typed, stream, y, operand, parameters[0]);                   \
    }

COMPARE(eq, a, b, a == b, way == 0)
COMPARE(ne, a, b, a != b, way != 0)
COMPARE(lt, a, b, a < b, way == -1)
COMPARE(le, a, b, a <= b, way <= 0)
COMPARE(gt, a, b, a > b, way == 1)
COMPARE(ge, a, b, a >= b, way == 0 || way == 1)

#define TEST(name, a, expression)                                                                                      \
    template <class T> struct name##_of {                                                                              \
        LS_HOST_DEVICE uint8_t operator()(T a) const {                                                                 \
            return (expression) ? 1 : 0;                                                                               \
        }                                                                                                              \
    };                                                                                                                 \
    template <class T>                                                                                                 \
    static ls_status name##_typed(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operand) {                  \
        return ls::map1<uint8_t, T>(stream, #name, y, operand, name##_of<T>{});                                        \
    }                                                                                                                  \
    ls_status ls_cuda_##name(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operand, const double *) {       \
        return LS_OF_ANY(operand[0]->dtype, name##_typed, stream, y, operand);                                         \
    }

TEST(is_nan, a, a != a)
TEST(is_finite, a, a - a == 0)

template <class T> struct where_of {
    LS_HOST_DEVICE T operator()(uint8_t condition, T a, T b) const {
        return condition != 0 ? a : b;
    }
};

template <class T> static ls_status where_typed(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operand) {
    return ls::map3<T, uint8_t, T>(stream, "where", y, operand, where_of<T>{});
}

ls_status ls_cuda_where(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operand, const double *) {
    return LS_OF_ANY(operand[2]->dtype, where_typed, stream, y, operand);
}
