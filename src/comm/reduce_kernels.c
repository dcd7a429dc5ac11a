#include "comm/reduce_kernels.h"

#include "base/clones.h"
#include "base/float16.h"

/* Types that can be read and written at any address. */
#define UNALIGNED __attribute__((aligned(1), may_alias))
typedef float UNALIGNED f32;
typedef double UNALIGNED f64;
typedef int64_t UNALIGNED i64;
typedef int32_t UNALIGNED i32;
typedef uint64_t UNALIGNED u64; /* integers are added and multiplied as unsigned: overflow wraps and is defined */
typedef uint32_t UNALIGNED u32;
typedef uint16_t UNALIGNED u16;
typedef uint8_t UNALIGNED u8;

#define COMBINE(name, type, expression)                                                                                \
    LS_CLONES static void name##_##type(void *into, const void *left, const void *right, size_t count) {               \
        type *result = into;                                                                                           \
        const type *a = left;                                                                                          \
        const type *b = right;                                                                                         \
        LS_INDEPENDENT for (size_t i = 0; i < count; i++) {                                                            \
            const type x = a[i];                                                                                       \
            const type y = b[i];                                                                                       \
            result[i] = (type)(expression);                                                                            \
        }                                                                                                              \
    }

#define COMBINE_EACH(name, expression, first, second, third, fourth, fifth)                                            \
    COMBINE(name, first, expression)                                                                                   \
    COMBINE(name, second, expression)                                                                                  \
    COMBINE(name, third, expression)                                                                                   \
    COMBINE(name, fourth, expression)                                                                                  \
    COMBINE(name, fifth, expression)

COMBINE_EACH(sum, x + y, f32, f64, u64, u32, u8)
COMBINE_EACH(prod, (x) * (y), f32, f64, u64, u32, u8)
COMBINE_EACH(land, x != 0 && y != 0, f32, f64, u64, u32, u8)
COMBINE_EACH(lor, x != 0 || y != 0, f32, f64, u64, u32, u8)
COMBINE_EACH(lxor, (x != 0) != (y != 0), f32, f64, u64, u32, u8)
COMBINE(band, u64, (x) & (y))
COMBINE(band, u32, (x) & (y))
COMBINE(band, u8, (x) & (y))
COMBINE(bor, u64, x | y)
COMBINE(bor, u32, x | y)
COMBINE(bor, u8, x | y)
COMBINE(bxor, u64, x ^ y)
COMBINE(bxor, u32, x ^ y)
COMBINE(bxor, u8, x ^ y)

/* x != x is true only for NaN: a NaN operand on either side is the result. */
COMBINE_EACH(min, x < y || x != x ? x : y, f32, f64, i64, i32, u8)
COMBINE_EACH(max, x > y || x != x ? x : y, f32, f64, i64, i32, u8)

/* True if pair x precedes pair y; if the values are equal or both are NaN, the lower location does. */
#define BEATS(x, y, order)                                                                                             \
    ((x).value order(y).value || ((x).value != (x).value && (y).value == (y).value) ||                                 \
     (((x).value == (y).value || ((x).value != (x).value && (y).value != (y).value)) && (x).location <= (y).location))

#define COMBINE_PAIRS(name, type, order)                                                                               \
    static void name##_##type(void *into, const void *left, const void *right, size_t count) {                         \
        type *result = into;                                                                                           \
        const type *a = left;                                                                                          \
        const type *b = right;                                                                                         \
        for (size_t i = 0; i < count; i++) {                                                                           \
            const type x = a[i];                                                                                       \
            const type y = b[i];                                                                                       \
            result[i] = BEATS(x, y, order) ? x : y;                                                                    \
        }                                                                                                              \
    }

/* The public pair types, at any alignment. */
#define PAIR(name, value_type, location_type)                                                                          \
    typedef struct __attribute__((packed, may_alias)) name {                                                           \
        value_type value;                                                                                              \
        location_type location;                                                                                        \
    } name;

PAIR(loc_f32, float, int32_t)
PAIR(loc_f64, double, int64_t)
PAIR(loc_i64, int64_t, int64_t)
PAIR(loc_i32, int32_t, int32_t)
COMBINE_PAIRS(minloc, loc_f32, <)
COMBINE_PAIRS(minloc, loc_f64, <)
COMBINE_PAIRS(minloc, loc_i64, <)
COMBINE_PAIRS(minloc, loc_i32, <)
COMBINE_PAIRS(maxloc, loc_f32, >)
COMBINE_PAIRS(maxloc, loc_f64, >)
COMBINE_PAIRS(maxloc, loc_i64, >)
COMBINE_PAIRS(maxloc, loc_i32, >)

#define WIDEN(name, type, wide, expression)                                                                            \
    LS_CLONES static void widen_##name(void *into, const void *from, size_t count) {                                   \
        wide *restrict result = into;                                                                                  \
        const type *restrict source = from;                                                                            \
        for (size_t i = 0; i < count; i++) {                                                                           \
            const type x = source[i];                                                                                  \
            result[i] = (expression);                                                                                  \
        }                                                                                                              \
    }

#define FINISH(name, type, wide, expression)                                                                           \
    LS_CLONES static void finish_##name(void *into, const void *from, size_t count, int divisor) {                     \
        type *result = into;                                                                                           \
        const wide *source = from;                                                                                     \
        LS_INDEPENDENT for (size_t i = 0; i < count; i++) {                                                            \
            const wide x = source[i];                                                                                  \
            result[i] = (type)(expression);                                                                            \
        }                                                                                                              \
    }

WIDEN(bf16, u16, f32, ls_bf16_to_float(x))
WIDEN(f16, u16, f32, ls_f16_to_float(x))
WIDEN(i32, i32, i64, x)
WIDEN(u8, u8, i64, x)
FINISH(bf16, u16, f32, ls_bf16_from_float(x / (float)divisor))
FINISH(f16, u16, f32, ls_f16_from_float(x / (float)divisor))

/* Division takes ten times as long as multiplication; for a power of two, both are bit-identical. */
#define FINISH_FLOAT(name, type)                                                                                       \
    FINISH(name##_divided, type, type, x / (type)divisor)                                                              \
    FINISH(name##_scaled, type, type, x *((type)1 / (type)divisor))                                                    \
    static void finish_##name(void *into, const void *from, size_t count, int divisor) {                               \
        ((divisor & (divisor - 1)) == 0 ? finish_##name##_scaled : finish_##name##_divided)(into, from, count,         \
                                                                                            divisor);                  \
    }
FINISH_FLOAT(f32, f32)
FINISH_FLOAT(f64, f64)
COMBINE(mean, f32, (x + y) * (f32)0.5)
COMBINE(mean, f64, (x + y) * (f64)0.5)
FINISH(i64, i64, i64, x / divisor)
FINISH(i32, i32, i64, x / divisor)
FINISH(u8, u8, i64, x / divisor)

/* Rows of the table: elements that are their own accumulators, 16-bit floats with f32 accumulators, and integers
 * whose sum is wider. */
#define PLAIN(function, bytes)                                                                                         \
    { .combine = (function), .two = (function), .width = (bytes), .accumulator = (bytes) }
#define HALF(function, half)                                                                                           \
    { .combine = (function), .widen = widen_##half, .finish = finish_##half, .width = 2, .accumulator = 4 }
#define DIVIDED(function, halved, type, bytes)                                                                         \
    { .combine = (function), .finish = finish_##type, .two = (halved), .width = (bytes), .accumulator = (bytes) }
#define WIDENED(function, type, bytes)                                                                                 \
    { .combine = (function), .widen = widen_##type, .finish = finish_##type, .width = (bytes), .accumulator = 8 }

#define HALVES(name)   [LS_BF16] = HALF(name##_f32, bf16), [LS_F16] = HALF(name##_f32, f16)
#define FLOATS(name)   [LS_F32] = PLAIN(name##_f32, 4), [LS_F64] = PLAIN(name##_f64, 8), HALVES(name)
#define UNSIGNED(name) [LS_I64] = PLAIN(name##_u64, 8), [LS_I32] = PLAIN(name##_u32, 4), [LS_U8] = PLAIN(name##_u8, 1)
#define SIGNED(name)   [LS_I64] = PLAIN(name##_i64, 8), [LS_I32] = PLAIN(name##_i32, 4), [LS_U8] = PLAIN(name##_u8, 1)
#define TRUTH(name)    [LS_BOOL] = PLAIN(name##_u8, 1)
#define PAIRS(name)                                                                                                    \
    [LS_F32] = PLAIN(name##_loc_f32, 8), [LS_F64] = PLAIN(name##_loc_f64, 16), [LS_I64] = PLAIN(name##_loc_i64, 16),   \
    [LS_I32] = PLAIN(name##_loc_i32, 8)

/* For bool, the minimum is the logical and, and the maximum the logical or. */
static const ls_reduce_kernel kernels[LS_REDUCTION_COUNT][LS_DTYPE_COUNT] = {
    [LS_SUM] = {FLOATS(sum), UNSIGNED(sum)},
    [LS_AVG] = {[LS_F32] = DIVIDED(sum_f32, mean_f32, f32, 4),
                [LS_F64] = DIVIDED(sum_f64, mean_f64, f64, 8),
                HALVES(sum),
                [LS_I64] = DIVIDED(sum_u64, NULL, i64, 8),
                [LS_I32] = WIDENED(sum_u64, i32, 4),
                [LS_U8] = WIDENED(sum_u64, u8, 1)},
    [LS_PROD] = {FLOATS(prod), UNSIGNED(prod)},
    [LS_MIN] = {FLOATS(min), SIGNED(min), TRUTH(land)},
    [LS_MAX] = {FLOATS(max), SIGNED(max), TRUTH(lor)},
    [LS_LAND] = {FLOATS(land), UNSIGNED(land), TRUTH(land)},
    [LS_LOR] = {FLOATS(lor), UNSIGNED(lor), TRUTH(lor)},
    [LS_LXOR] = {FLOATS(lxor), UNSIGNED(lxor), TRUTH(lxor)},
    [LS_BAND] = {UNSIGNED(band), TRUTH(land)},
    [LS_BOR] = {UNSIGNED(bor), TRUTH(lor)},
    [LS_BXOR] = {UNSIGNED(bxor), TRUTH(lxor)},
    [LS_MINLOC] = {PAIRS(minloc)},
    [LS_MAXLOC] = {PAIRS(maxloc)},
};

const ls_reduce_kernel *ls_reduce_find(ls_dtype dtype, ls_reduction reduction) {
    return &kernels[reduction][dtype];
}
