/* Limits of intervals in the numbers of a floating-point dtype. */
#ifndef LS_BASE_FLOAT_LIMITS_H
#define LS_BASE_FLOAT_LIMITS_H

#include <math.h>

#include <lockstep/base.h>

#include "base/float16.h"

/* Returns the bits of the next number towards minus infinity in bf16 or f16. */
static inline uint16_t ls_float16_below(uint16_t half) {
    const bool is_zero = (half & 0x7fffU) == 0;
    return (uint16_t)(is_zero ? 0x8001U : (half & 0x8000U) != 0 ? half + 1U : half - 1U);
}

/* Returns the largest number of a floating-point dtype below `high`, because rounding must not reach `high`. */
static inline double ls_largest_below(double high, ls_dtype dtype) {
    const float nearest = (float)high;
    if (dtype == LS_BF16) {
        const uint16_t half = ls_bf16_from_float(nearest);
        const float number = ls_bf16_to_float(half);
        return number < high ? number : ls_bf16_to_float(ls_float16_below(half));
    }
    if (dtype == LS_F16) {
        const uint16_t half = ls_f16_from_float(nearest);
        const float number = ls_f16_to_float(half);
        return number < high ? number : ls_f16_to_float(ls_float16_below(half));
    }
    if (dtype == LS_F32) {
        return nearest < high ? nearest : nextafterf(nearest, -INFINITY);
    }
    return nextafter(high, -INFINITY);
}

/* Returns the largest number of a floating-point dtype that is at most `high`. */
static inline double ls_largest_up_to(double high, ls_dtype dtype) {
    return ls_largest_below(nextafter(high, INFINITY), dtype);
}

/* Returns the smallest number of a floating-point dtype that is at least `low`. */
static inline double ls_smallest_from(double low, ls_dtype dtype) {
    return -ls_largest_up_to(-low, dtype);
}

#endif
