#include "comm/reduce_kernels.h"

#include "base/float16.h"

/* Built for several instruction sets; the loader picks one. The sanitizers' runtimes are not up when it does. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(LS_SANITIZED)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

/* Buffers may be the same but never overlap partly, so no iteration depends on another. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Types that may be read and written at any address. */
#define UNALIGNED __attribute__((aligned(1), may_alias))
typedef float UNALIGNED f32;
typedef double UNALIGNED f64;
typedef int64_t UNALIGNED i64;
typedef int32_t UNALIGNED i32;
typedef uint64_t UNALIGNED u64; /* integers are added and multiplied without sign: overflow wraps, and is defined */
typedef uint32_t UNALIGNED u32;
typedef uint16_t UNALIGNED u16;
typedef uint8_t UNALIGNED u8;

#define COMBINE(name, type, expression)                                                                                \
    CLONES static void name##_##type(void *into, const void *left, const void *right, size_t count) {                  \
        type *result = into;                                                                                           \
        const type *a = left;                                                                                          \
        const type *b = right;                                                                                         \
        INDEPENDENT for (size_t i = 0; i < count; i++) {                                                               \
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

/* x != x is true of a NaN alone: it wins from either side. */
COMBINE_EACH(min, x < y || x != x ? x : y, f32, f64, i64, i32, u8)
COMBINE_EACH(max, x > y || x != x ? x : y, f32, f64, i64, i32, u8)

/* Whether pair x beats pair y; among equals, and among NaNs, the lower location does. */
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

/* The public pairs, at any address. */
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
    CLONES static void widen_##name(void *into, const void *from, size_t count) {                                      \
        wide *restrict result = into;                                                                                  \
        const type *restrict source = from;                                                                            \
        for (size_t i = 0; i < count; i++) {                                                                           \
            const type x = source[i];                                                                                  \
            result[i] = (expression);                                                                                  \
        }                                                                                                              \
    }

#define FINISH(name, type, wide, expression)                                                                           \
    CLONES static void finish_##name(void *into, const void *from, size_t count, int divisor) {                        \
        type *result = into;                                                                                           \
        const wide *source = from;                                                                                     \
        INDEPENDENT for (size_t i = 0; i < count; i++) {                                                               \
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
FINISH(f32, f32, f32, x / (float)divisor)
FINISH(f64, f64, f64, x / (double)divisor)
FINISH(i64, i64, i64, x / divisor)
FINISH(i32, i32, i64, x / divisor)
FINISH(u8, u8, i64, x / divisor)

#define FLOATS(name)          [LS_F32] = name##_f32, [LS_F64] = name##_f64
#define INTEGERS(name)        [LS_I64] = name##_u64, [LS_I32] = name##_u32, [LS_U8] = name##_u8
#define SIGNED_INTEGERS(name) [LS_I64] = name##_i64, [LS_I32] = name##_i32, [LS_U8] = name##_u8
#define PAIRS(name)                                                                                                    \
    [LS_F32] = name##_loc_f32, [LS_F64] = name##_loc_f64, [LS_I64] = name##_loc_i64, [LS_I32] = name##_loc_i32

/* By the accumulator's type. A bool's smallest is its and, its largest its or. */
static ls_reduce_combine *const combines[LS_REDUCTION_COUNT][LS_DTYPE_COUNT] = {
    [LS_SUM] = {FLOATS(sum), INTEGERS(sum)},
    [LS_AVG] = {FLOATS(sum), INTEGERS(sum)},
    [LS_PROD] = {FLOATS(prod), INTEGERS(prod)},
    [LS_MIN] = {FLOATS(min), SIGNED_INTEGERS(min), [LS_BOOL] = land_u8},
    [LS_MAX] = {FLOATS(max), SIGNED_INTEGERS(max), [LS_BOOL] = lor_u8},
    [LS_LAND] = {FLOATS(land), INTEGERS(land), [LS_BOOL] = land_u8},
    [LS_LOR] = {FLOATS(lor), INTEGERS(lor), [LS_BOOL] = lor_u8},
    [LS_LXOR] = {FLOATS(lxor), INTEGERS(lxor), [LS_BOOL] = lxor_u8},
    [LS_BAND] = {INTEGERS(band), [LS_BOOL] = land_u8},
    [LS_BOR] = {INTEGERS(bor), [LS_BOOL] = lor_u8},
    [LS_BXOR] = {INTEGERS(bxor), [LS_BOOL] = lxor_u8},
    [LS_MINLOC] = {PAIRS(minloc)},
    [LS_MAXLOC] = {PAIRS(maxloc)},
};

/* What an average does to the dtype's sum. */
static ls_reduce_finish *const divisions[LS_DTYPE_COUNT] = {
    [LS_F32] = finish_f32, [LS_F64] = finish_f64, [LS_I64] = finish_i64, [LS_I32] = finish_i32, [LS_U8] = finish_u8,
};

ls_reduce_kernel ls_reduce_find(ls_dtype dtype, ls_reduction reduction) {
    ls_reduce_kernel kernel = {.width = ls_dtype_size(dtype)};
    ls_dtype accumulator = dtype;
    if (reduction == LS_MINLOC || reduction == LS_MAXLOC) {
        kernel.width *= 2;
    } else if (dtype == LS_BF16 || dtype == LS_F16) {
        accumulator = LS_F32;
        kernel.widen = dtype == LS_BF16 ? widen_bf16 : widen_f16;
        kernel.finish = dtype == LS_BF16 ? finish_bf16 : finish_f16;
    } else if (reduction == LS_AVG) {
        kernel.finish = divisions[dtype];
        if (dtype == LS_I32 || dtype == LS_U8) { /* the sum may not fit where the average does */
            accumulator = LS_I64;
            kernel.widen = dtype == LS_I32 ? widen_i32 : widen_u8;
        }
    }
    kernel.accumulator = accumulator == dtype ? kernel.width : ls_dtype_size(accumulator);
    kernel.combine = combines[reduction][accumulator];
    return kernel;
}
