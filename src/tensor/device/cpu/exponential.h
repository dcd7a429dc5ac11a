/*
 * The exponential of an f32 without a call or a branch, so that loops over it vectorise (libm's does not). Within 1.5
 * units in the last place; subnormal results, infinities and NaN as they should be.
 */
#ifndef LS_TENSOR_DEVICE_CPU_EXPONENTIAL_H
#define LS_TENSOR_DEVICE_CPU_EXPONENTIAL_H

#include "base/float16.h"

/*
 * exp(x) = 2^n exp(r) with n = round(x / ln 2) and r = x - n ln 2. ln 2 is in two parts, the first short enough that n
 * times it is exact. exp(r) is 1 + r + r^2 q(r), q through the Chebyshev points of |r| <= ln 2 / 2. 2^n is in two
 * factors, since n reaches beyond the exponents of f32.
 */
static inline float ls_exp_f32(float x) {
    const float above = x > 89.0F ? 89.0F : x; /* infinity from 88.73 on, 0 below -103.98 */
    const float inside = above < -105.0F ? -105.0F : above;
    const float rounder = 0x1.8p23F; /* adding it leaves an integer in the low bits */
    const float shifted = inside * 0x1.715476p0F + rounder;
    const float n = shifted - rounder;
    const float r = (inside - n * 0x1.62e4p-1F) - n * 0x1.7f7d1cp-20F;
    float q = 0x1.6d113cp-10F;
    q = q * r + 0x1.120ba2p-7F;
    q = q * r + 0x1.55551ap-5F;
    q = q * r + 0x1.5554dcp-3F;
    q = q * r + 0.5F;
    const float power = q * (r * r) + r + 1.0F;
    const int32_t exponent = (int32_t)(ls_bits_of_float(shifted) - ls_bits_of_float(rounder));
    const int32_t half = exponent >> 1;
    const float first = ls_float_of_bits((uint32_t)(half + 127) << 23);
    const float second = ls_float_of_bits((uint32_t)(exponent - half + 127) << 23);
    return power * first * second;
}

#endif
