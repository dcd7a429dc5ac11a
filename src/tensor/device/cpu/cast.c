/* Conversions between all dtypes, and ls_arange for all dtypes. */
#include "base/clones.h"
#include "base/status.h"
#include "tensor/device/cpu/cpu_kernels.h"
#include "tensor/device/cpu/loop.h"
#include "tensor/device/cpu/number.h"

/* The type in memory, and the type of the value. (b8 stands for bool, which is a macro.) */
typedef float memory_f32;
typedef double memory_f64;
typedef uint16_t memory_bf16;
typedef uint16_t memory_f16;
typedef int64_t memory_i64;
typedef int32_t memory_i32;
typedef uint8_t memory_u8;
typedef uint8_t memory_b8;
#define VALUE_f32(x)  (x)
#define VALUE_f64(x)  (x)
#define VALUE_bf16(x) ls_bf16_to_float(x)
#define VALUE_f16(x)  ls_f16_to_float(x)
#define VALUE_i64(x)  (x)
#define VALUE_i32(x)  (x)
#define VALUE_u8(x)   (x)
#define VALUE_b8(x)   ((x) != 0)

/* Conversions from a floating-point value. */
#define FLOATING_TO_f32(x)  ((float)(x))
#define FLOATING_TO_f64(x)  ((double)(x))
#define FLOATING_TO_bf16(x) ls_bf16_from_float((float)(x))
#define FLOATING_TO_f16(x)  ls_f16_from_float((float)(x))
#define FLOATING_TO_i64(x)  ls_i64_of((double)(x))
#define FLOATING_TO_i32(x)  ls_i32_of((double)(x))
#define FLOATING_TO_u8(x)   ls_u8_of((double)(x))
#define FLOATING_TO_b8(x)   ((x) != 0)

/* Conversions from an integer. The value wraps around if it does not fit into the integer type. */
#define INTEGER_TO_f32(x)  FLOATING_TO_f32(x)
#define INTEGER_TO_f64(x)  FLOATING_TO_f64(x)
#define INTEGER_TO_bf16(x) FLOATING_TO_bf16(x)
#define INTEGER_TO_f16(x)  FLOATING_TO_f16(x)
#define INTEGER_TO_i64(x)  ((int64_t)(x))
#define INTEGER_TO_i32(x)  ((int32_t)(x))
#define INTEGER_TO_u8(x)   ((uint8_t)(x))
#define INTEGER_TO_b8(x)   ((x) != 0)

/* The conversions from and to f32 are built with LS_CLONES. */
#define CAST(BUILD, FROM, KIND, TO)                                                                                    \
    BUILD static void FROM##_to_##TO(int64_t n, void *const *at, const int64_t *step, const void *context) {           \
        memory_##TO *const to = at[0];                                                                                 \
        const memory_##FROM *const from = at[1];                                                                       \
        const int64_t to_step = step[0];                                                                               \
        const int64_t from_step = step[1];                                                                             \
        (void)context;                                                                                                 \
        if (to_step == 1 && from_step == 1) {                                                                          \
            LS_INDEPENDENT                                                                                             \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                to[i] = KIND##_TO_##TO(VALUE_##FROM(from[i]));                                                         \
            }                                                                                                          \
        } else {                                                                                                       \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                to[i * to_step] = KIND##_TO_##TO(VALUE_##FROM(from[i * from_step]));                                   \
            }                                                                                                          \
        }                                                                                                              \
    }
#define CASTS_FROM(BUILD, FROM, KIND)                                                                                  \
    CAST(LS_CLONES, FROM, KIND, f32)                                                                                   \
    CAST(BUILD, FROM, KIND, f64)                                                                                       \
    CAST(BUILD, FROM, KIND, bf16)                                                                                      \
    CAST(BUILD, FROM, KIND, f16)                                                                                       \
    CAST(BUILD, FROM, KIND, i64)                                                                                       \
    CAST(BUILD, FROM, KIND, i32)                                                                                       \
    CAST(BUILD, FROM, KIND, u8)                                                                                        \
    CAST(BUILD, FROM, KIND, b8)                                                                                        \
    static const ls_loop_body FROM##_to[LS_DTYPE_COUNT] = {                                                            \
        [LS_F32] = FROM##_to_f32, [LS_F64] = FROM##_to_f64, [LS_BF16] = FROM##_to_bf16, [LS_F16] = FROM##_to_f16,      \
        [LS_I64] = FROM##_to_i64, [LS_I32] = FROM##_to_i32, [LS_U8] = FROM##_to_u8,     [LS_BOOL] = FROM##_to_b8};
CASTS_FROM(LS_CLONES, f32, FLOATING)
CASTS_FROM(, f64, FLOATING)
CASTS_FROM(, bf16, FLOATING)
CASTS_FROM(, f16, FLOATING)
CASTS_FROM(, i64, INTEGER)
CASTS_FROM(, i32, INTEGER)
CASTS_FROM(, u8, INTEGER)
CASTS_FROM(, b8, INTEGER)

ls_status ls_cpu_cast(ls_stream *stream, ls_tensor *y, const ls_tensor *x) {
    static const ls_loop_body *const from[LS_DTYPE_COUNT] = {
        [LS_F32] = f32_to, [LS_F64] = f64_to, [LS_BF16] = bf16_to, [LS_F16] = f16_to,
        [LS_I64] = i64_to, [LS_I32] = i32_to, [LS_U8] = u8_to,     [LS_BOOL] = b8_to};
    if (x->dtype == y->dtype) {
        return ls_cpu_copy(stream, y, x);
    }
    ls_loop_spread(2, (const ls_tensor *const[]){y, x}, from[x->dtype][y->dtype], NULL);
    return LS_OK;
}

ls_status ls_cpu_fill(ls_stream *stream, ls_tensor *y, double value) {
    if (y->dtype == LS_F32 && y->count == 1) { /* the start of every backward pass */
        *(float *)y->data = (float)value;
        return LS_OK;
    }
    _Alignas(uint64_t) char element[sizeof(uint64_t)] = {0}; /* can hold an element of any dtype */
    const ls_tensor number = {.data = &value, .count = 1, .dtype = LS_F64, .contiguous = true};
    ls_tensor one = {.data = element, .count = 1, .dtype = y->dtype, .contiguous = true};
    LS_TRY(ls_cpu_cast(stream, &one, &number));
    ls_cpu_repeat(y, element);
    return LS_OK;
}

#define COUNT_UP(TO)                                                                                                   \
    static void count_up_##TO(int64_t n, void *y) {                                                                    \
        memory_##TO *const to = y;                                                                                     \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            to[i] = INTEGER_TO_##TO(i);                                                                                \
        }                                                                                                              \
    }
COUNT_UP(f32)
COUNT_UP(f64)
COUNT_UP(bf16)
COUNT_UP(f16)
COUNT_UP(i64)
COUNT_UP(i32)
COUNT_UP(u8)
COUNT_UP(b8)

ls_status ls_cpu_count_up(ls_stream *stream, ls_tensor *y) {
    static void (*const count_up[LS_DTYPE_COUNT])(int64_t n, void *y) = {
        [LS_F32] = count_up_f32, [LS_F64] = count_up_f64, [LS_BF16] = count_up_bf16, [LS_F16] = count_up_f16,
        [LS_I64] = count_up_i64, [LS_I32] = count_up_i32, [LS_U8] = count_up_u8,     [LS_BOOL] = count_up_b8};
    (void)stream;
    count_up[y->dtype](y->count, y->data);
    return LS_OK;
}
