/*
 * Generates kernels of maps from one expression each. For example,
 *     LS_MAP2(bce_backward_of_ones, LS_NONE, p, target, (p - target) / (p * (1 - p)))
 * defines ls_cpu_bce_backward_of_ones for f32 and f64. The expression must be valid for each type. Functions come from
 * <tgmath.h>, T is the element type, and U is the type for computation (unsigned for integers, so that they wrap
 * around). LS_MAPn generates loops that vectorize. LS_MAPn_CALLS is for expressions that call libm, which additional
 * loops would not accelerate; LS_MAPn_F64_CALLS is for expressions that call libm only for f64. LS_MAPn_ANY adds
 * integers and bool: a bool is 0 or 1 as an operand, and "not 0" as a result.
 */
#ifndef LS_TENSOR_DEVICE_CPU_MAP_H
#define LS_TENSOR_DEVICE_CPU_MAP_H

#include <tgmath.h>

#include "base/clones.h"
#include "tensor/device/cpu/cpu_kernels.h"
#include "tensor/device/cpu/exponential.h"
#include "tensor/device/cpu/loop.h"
#include "tensor/device/cpu/number.h"

/* Runs the body for the dtype of the last operand. Returns LS_ERR_UNSUPPORTED if there is no such body. */
ls_status ls_map_run(const char *name, const ls_loop_body *bodies, int operands, ls_tensor *y,
                     const ls_tensor *const *operand, const double *parameters);

#define LS_MAP_KERNEL(name, operands, ...)                                                                             \
    ls_status ls_cpu_##name(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operand,                          \
                            const double *parameters) {                                                                \
        static const ls_loop_body bodies[LS_DTYPE_COUNT] = {__VA_ARGS__};                                              \
        (void)stream;                                                                                                  \
        return ls_map_run(#name, bodies, operands, y, operand, parameters);                                            \
    }
#define LS_MAP_KERNEL_FLOATS(name, operands) LS_MAP_KERNEL(name, operands, [LS_F32] = name##_f32, [LS_F64] = name##_f64)
#define LS_MAP_KERNEL_ANY(name, operands)                                                                              \
    LS_MAP_KERNEL(name, operands, [LS_F32] = name##_f32, [LS_F64] = name##_f64, [LS_I64] = name##_i64,                 \
                  [LS_I32] = name##_i32, [LS_U8] = name##_u8, [LS_BOOL] = name##_bool)

/* The parameters of a map, as T. */
#define LS_NONE (void)context
#define LS_NUMBER_AT(index)                                                                                            \
    _Generic((T)0, float                                                                                               \
             : ls_f32_of, double                                                                                       \
             : ls_f64_of, int64_t                                                                                      \
             : ls_i64_of, int32_t                                                                                      \
             : ls_i32_of, uint8_t                                                                                      \
             : ls_u8_of)(((const double *)context)[index])
#define LS_TAKE(name) const T name = LS_NUMBER_AT(0)
#define LS_TAKE2(one, other)                                                                                           \
    const T one = LS_NUMBER_AT(0);                                                                                     \
    const T other = LS_NUMBER_AT(1)

/* Building blocks of expressions: see exponential.h. */
#define LS_SIGN(x)        ((T)(((x) > 0) - ((x) < 0)))
#define LS_BY_T(f32, f64) _Generic((T)0, float : f32, double : f64)
#define LS_EXP(x)         LS_BY_T(ls_exp_f32, (exp))(x)
#define LS_TANH(x)        LS_BY_T(ls_tanh_f32, (tanh))(x)
#define LS_SIGMOID(x)     LS_BY_T(ls_sigmoid_f32, ls_sigmoid_f64)(x)
#define LS_NORMAL(x)      LS_BY_T(ls_normal_f32, ls_normal_f64)(x)
#define LS_BELL(x)        LS_BY_T(ls_bell_f32, ls_bell_f64)(x)

/* The head of a body: defines T, U and R (the type of the result), the output `to`, and the parameters. */
#define LS_BODY_HEAD(name, T_, U_, R_, take)                                                                           \
    static void name(int64_t n, void *const *at, const int64_t *step, const void *context) {                           \
        typedef T_ T;                                                                                                  \
        typedef U_ U;                                                                                                  \
        typedef R_ R;                                                                                                  \
        R *const to = at[0];                                                                                           \
        const int64_t sy = step[0];                                                                                    \
        take;

/* Loops that read each of the operands a, b and c either by a literal index or before the loop, so that they
 * vectorize. */
#define LS_LOOP1(index, read_a, a, expression)                                                                         \
    LS_INDEPENDENT                                                                                                     \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
        const T a = read_a;                                                                                            \
        const U result = (U)(expression);                                                                              \
        to[index] = (R)result;                                                                                         \
    }
#define LS_LOOP2(index, read_a, read_b, a, b, expression)                                                              \
    LS_INDEPENDENT                                                                                                     \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
        const T a = read_a;                                                                                            \
        const T b = read_b;                                                                                            \
        const U result = (U)(expression);                                                                              \
        to[index] = (R)result;                                                                                         \
    }
#define LS_LOOP3(index, read_a, read_b, read_c, a, b, c, expression)                                                   \
    LS_INDEPENDENT                                                                                                     \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
        const T a = read_a;                                                                                            \
        const T b = read_b;                                                                                            \
        const T c = read_c;                                                                                            \
        const U result = (U)(expression);                                                                              \
        to[index] = (R)result;                                                                                         \
    }

/* Bodies of one, two and three operands. */
#define LS_BODY1(name, T_, U_, R_, take, a, expression)                                                                \
    LS_BODY_HEAD(name, T_, U_, R_, take)                                                                               \
    const T *const from = at[1];                                                                                       \
    const int64_t sa = step[1];                                                                                        \
    if (sy == 1 && sa == 1) {                                                                                          \
        LS_LOOP1(i, from[i], a, expression)                                                                            \
    } else {                                                                                                           \
        LS_LOOP1(i *sy, from[i * sa], a, expression)                                                                   \
    }                                                                                                                  \
    }
#define LS_BODY2(name, T_, U_, R_, take, a, b, expression)                                                             \
    LS_BODY_HEAD(name, T_, U_, R_, take)                                                                               \
    const T *const left = at[1];                                                                                       \
    const T *const right = at[2];                                                                                      \
    const int64_t sa = step[1];                                                                                        \
    const int64_t sb = step[2];                                                                                        \
    const T left_number = left[0];                                                                                     \
    const T right_number = right[0];                                                                                   \
    if (sy == 1 && sa == 1 && sb == 1) {                                                                               \
        LS_LOOP2(i, left[i], right[i], a, b, expression)                                                               \
    } else if (sy == 1 && sa == 1 && sb == 0) {                                                                        \
        LS_LOOP2(i, left[i], right_number, a, b, expression)                                                           \
    } else if (sy == 1 && sa == 0 && sb == 1) {                                                                        \
        LS_LOOP2(i, left_number, right[i], a, b, expression)                                                           \
    } else {                                                                                                           \
        LS_LOOP2(i *sy, left[i * sa], right[i * sb], a, b, expression)                                                 \
    }                                                                                                                  \
    }
#define LS_BODY3(name, T_, U_, R_, take, a, b, c, expression)                                                          \
    LS_BODY_HEAD(name, T_, U_, R_, take)                                                                               \
    const T *const one = at[1];                                                                                        \
    const T *const two = at[2];                                                                                        \
    const T *const three = at[3];                                                                                      \
    const int64_t sa = step[1];                                                                                        \
    const int64_t sb = step[2];                                                                                        \
    const int64_t sc = step[3];                                                                                        \
    const T number = one[0];                                                                                           \
    if (sy == 1 && sa == 1 && sb == 1 && sc == 1) {                                                                    \
        LS_LOOP3(i, one[i], two[i], three[i], a, b, c, expression)                                                     \
    } else if (sy == 1 && sa == 0 && sb == 1 &&                                                                        \
               sc == 1) { /* the same gradient for all elements, as for the input of a sum */                          \
        LS_LOOP3(i, number, two[i], three[i], a, b, c, expression)                                                     \
    } else {                                                                                                           \
        LS_LOOP3(i *sy, one[i * sa], two[i * sb], three[i * sc], a, b, c, expression)                                  \
    }                                                                                                                  \
    }

#define LS_BODY1_CALLS(name, T_, take, a, expression)                                                                  \
    LS_BODY_HEAD(name, T_, T_, T_, take)                                                                               \
    const T *const from = at[1];                                                                                       \
    const int64_t sa = step[1];                                                                                        \
    LS_LOOP1(i *sy, from[i * sa], a, expression)                                                                       \
    }
#define LS_BODY2_CALLS(name, T_, take, a, b, expression)                                                               \
    LS_BODY_HEAD(name, T_, T_, T_, take)                                                                               \
    const T *const left = at[1];                                                                                       \
    const T *const right = at[2];                                                                                      \
    const int64_t sa = step[1];                                                                                        \
    const int64_t sb = step[2];                                                                                        \
    LS_LOOP2(i *sy, left[i * sa], right[i * sb], a, b, expression)                                                     \
    }
#define LS_BODY3_CALLS(name, T_, take, a, b, c, expression)                                                            \
    LS_BODY_HEAD(name, T_, T_, T_, take)                                                                               \
    const T *const one = at[1];                                                                                        \
    const T *const two = at[2];                                                                                        \
    const T *const three = at[3];                                                                                      \
    const int64_t sa = step[1];                                                                                        \
    const int64_t sb = step[2];                                                                                        \
    const int64_t sc = step[3];                                                                                        \
    LS_LOOP3(i *sy, one[i * sa], two[i * sb], three[i * sc], a, b, c, expression)                                      \
    }

/* clang-format off */

/* Kernels for f32 and f64. */
#define LS_MAP1(name, take, a, expression)                                                                             \
    LS_CLONES LS_BODY1(name##_f32, float, float, float, take, a, expression)                                           \
    LS_CLONES LS_BODY1(name##_f64, double, double, double, take, a, expression)                                        \
    LS_MAP_KERNEL_FLOATS(name, 1)
#define LS_MAP2(name, take, a, b, expression)                                                                          \
    LS_CLONES LS_BODY2(name##_f32, float, float, float, take, a, b, expression)                                        \
    LS_CLONES LS_BODY2(name##_f64, double, double, double, take, a, b, expression)                                     \
    LS_MAP_KERNEL_FLOATS(name, 2)
#define LS_MAP3(name, take, a, b, c, expression)                                                                       \
    LS_CLONES LS_BODY3(name##_f32, float, float, float, take, a, b, c, expression)                                     \
    LS_CLONES LS_BODY3(name##_f64, double, double, double, take, a, b, c, expression)                                  \
    LS_MAP_KERNEL_FLOATS(name, 3)
#define LS_MAP1_CALLS(name, take, a, expression)                                                                       \
    LS_BODY1_CALLS(name##_f32, float, take, a, expression)                                                             \
    LS_BODY1_CALLS(name##_f64, double, take, a, expression)                                                            \
    LS_MAP_KERNEL_FLOATS(name, 1)
#define LS_MAP2_CALLS(name, take, a, b, expression)                                                                    \
    LS_BODY2_CALLS(name##_f32, float, take, a, b, expression)                                                          \
    LS_BODY2_CALLS(name##_f64, double, take, a, b, expression)                                                         \
    LS_MAP_KERNEL_FLOATS(name, 2)
#define LS_MAP3_CALLS(name, take, a, b, c, expression)                                                                 \
    LS_BODY3_CALLS(name##_f32, float, take, a, b, c, expression)                                                       \
    LS_BODY3_CALLS(name##_f64, double, take, a, b, c, expression)                                                      \
    LS_MAP_KERNEL_FLOATS(name, 3)
#define LS_MAP1_F64_CALLS(name, take, a, expression)                                                                   \
    LS_CLONES LS_BODY1(name##_f32, float, float, float, take, a, expression)                                           \
    LS_BODY1_CALLS(name##_f64, double, take, a, expression)                                                            \
    LS_MAP_KERNEL_FLOATS(name, 1)
#define LS_MAP2_F64_CALLS(name, take, a, b, expression)                                                                \
    LS_CLONES LS_BODY2(name##_f32, float, float, float, take, a, b, expression)                                        \
    LS_BODY2_CALLS(name##_f64, double, take, a, b, expression)                                                         \
    LS_MAP_KERNEL_FLOATS(name, 2)
#define LS_MAP3_F64_CALLS(name, take, a, b, c, expression)                                                             \
    LS_CLONES LS_BODY3(name##_f32, float, float, float, take, a, b, c, expression)                                     \
    LS_BODY3_CALLS(name##_f64, double, take, a, b, c, expression)                                                      \
    LS_MAP_KERNEL_FLOATS(name, 3)

/* Kernels for every dtype except bf16 and f16. */
#define LS_MAP1_ANY(name, take, a, expression)                                                                         \
    LS_CLONES LS_BODY1(name##_f32, float, float, float, take, a, expression)                                           \
    LS_CLONES LS_BODY1(name##_f64, double, double, double, take, a, expression)                                        \
    LS_BODY1(name##_i64, int64_t, uint64_t, int64_t, take, a, expression)                                              \
    LS_BODY1(name##_i32, int32_t, uint32_t, int32_t, take, a, expression)                                              \
    LS_BODY1(name##_u8, uint8_t, uint32_t, uint8_t, take, a, expression)                                               \
    LS_BODY1(name##_bool, uint8_t, uint32_t, bool, take, a, expression)                                                \
    LS_MAP_KERNEL_ANY(name, 1)
#define LS_MAP2_ANY(name, take, a, b, expression)                                                                      \
    LS_CLONES LS_BODY2(name##_f32, float, float, float, take, a, b, expression)                                        \
    LS_CLONES LS_BODY2(name##_f64, double, double, double, take, a, b, expression)                                     \
    LS_BODY2(name##_i64, int64_t, uint64_t, int64_t, take, a, b, expression)                                           \
    LS_BODY2(name##_i32, int32_t, uint32_t, int32_t, take, a, b, expression)                                           \
    LS_BODY2(name##_u8, uint8_t, uint32_t, uint8_t, take, a, b, expression)                                            \
    LS_BODY2(name##_bool, uint8_t, uint32_t, bool, take, a, b, expression)                                             \
    LS_MAP_KERNEL_ANY(name, 2)

/* clang-format on */

#endif
