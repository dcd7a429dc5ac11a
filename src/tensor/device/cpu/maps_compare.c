/* Comparisons, which return bool, and selection by a bool. */
#include "tensor/device/cpu/map.h"

/* A number that is compared with integers must keep its fraction. long double represents all integers and the
 * fraction. */
#define TAKE_WIDE(b) const long double b = (long double)((const double *)context)[0]

/* clang-format off */
#define COMPARE_KERNEL(name, operands)                                                                                 \
    LS_MAP_KERNEL(name, operands, [LS_F32] = name##_f32, [LS_F64] = name##_f64, [LS_I64] = name##_i64,                 \
                  [LS_I32] = name##_i32, [LS_U8] = name##_u8, [LS_BOOL] = name##_u8)
#define COMPARE(name, a, b, expression)                                                                                \
    LS_CLONES LS_BODY2(name##_f32, float, bool, bool, LS_NONE, a, b, expression)                                       \
    LS_CLONES LS_BODY2(name##_f64, double, bool, bool, LS_NONE, a, b, expression)                                      \
    LS_BODY2(name##_i64, int64_t, bool, bool, LS_NONE, a, b, expression)                                               \
    LS_BODY2(name##_i32, int32_t, bool, bool, LS_NONE, a, b, expression)                                               \
    LS_BODY2(name##_u8, uint8_t, bool, bool, LS_NONE, a, b, expression)                                                \
    COMPARE_KERNEL(name, 2)                                                                                            \
    LS_CLONES LS_BODY1(name##_number_f32, float, bool, bool, LS_TAKE(b), a, expression)                                \
    LS_CLONES LS_BODY1(name##_number_f64, double, bool, bool, LS_TAKE(b), a, expression)                               \
    LS_BODY1(name##_number_i64, int64_t, bool, bool, TAKE_WIDE(b), a, expression)                                      \
    LS_BODY1(name##_number_i32, int32_t, bool, bool, TAKE_WIDE(b), a, expression)                                      \
    LS_BODY1(name##_number_u8, uint8_t, bool, bool, TAKE_WIDE(b), a, expression)                                       \
    COMPARE_KERNEL(name##_number, 1)
/* clang-format on */

COMPARE(eq, a, b, a == b)
COMPARE(ne, a, b, a != b)
COMPARE(lt, a, b, a < b)
COMPARE(le, a, b, a <= b)
COMPARE(gt, a, b, a > b)
COMPARE(ge, a, b, a >= b)

/* clang-format off */
#define TEST(name, a, expression)                                                                                      \
    LS_CLONES LS_BODY1(name##_f32, float, bool, bool, LS_NONE, a, expression)                                          \
    LS_CLONES LS_BODY1(name##_f64, double, bool, bool, LS_NONE, a, expression)                                         \
    LS_BODY1(name##_i64, int64_t, bool, bool, LS_NONE, a, expression)                                                  \
    LS_BODY1(name##_i32, int32_t, bool, bool, LS_NONE, a, expression)                                                  \
    LS_BODY1(name##_u8, uint8_t, bool, bool, LS_NONE, a, expression)                                                   \
    COMPARE_KERNEL(name, 1)
/* clang-format on */
TEST(is_nan, a, a != a)
TEST(is_finite, a, a - a == 0)

#define WHERE(name, T_)                                                                                                \
    LS_CLONES LS_BODY_HEAD(name, T_, T_, T_, LS_NONE) const uint8_t *const condition = at[1];                          \
    const T *const chosen = at[2];                                                                                     \
    const T *const other = at[3];                                                                                      \
    const int64_t sc = step[1];                                                                                        \
    const int64_t sa = step[2];                                                                                        \
    const int64_t sb = step[3];                                                                                        \
    if (sy == 1 && sc == 1 && sa == 1 && sb == 1) {                                                                    \
        LS_LOOP2(i, chosen[i], other[i], a, b, condition[i] != 0 ? a : b)                                              \
    } else {                                                                                                           \
        LS_LOOP2(i *sy, chosen[i * sa], other[i * sb], a, b, condition[i * sc] != 0 ? a : b)                           \
    }                                                                                                                  \
    }
WHERE(where_f32, float)
WHERE(where_f64, double)
WHERE(where_i64, int64_t)
WHERE(where_i32, int32_t)
WHERE(where_u8, uint8_t)
LS_MAP_KERNEL(where, 3, [LS_F32] = where_f32, [LS_F64] = where_f64, [LS_I64] = where_i64, [LS_I32] = where_i32,
              [LS_U8] = where_u8, [LS_BOOL] = where_u8)
