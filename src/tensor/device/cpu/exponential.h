/*
 * The exponential and functions derived from it. For f32 they contain no calls and no branches, so loops over them
 * vectorize (unlike loops over libm's functions). For f64 they call libm. Subnormal results, infinities and NaN are
 * correct. The errors for f32, in units in the last place, as measured by tests/unit/tensor/kernels_accuracy.c:
 *     exp 1.5, sigmoid 3, tanh 2; the normal distribution function 6 (12 below -6, where it is below 1e-9)
 */
#ifndef LS_TENSOR_DEVICE_CPU_EXPONENTIAL_H
#define LS_TENSOR_DEVICE_CPU_EXPONENTIAL_H

#include <math.h>

#include "base/float16.h"
#include "base/host_device.h"

/*
 * Computes exp(x) = 2^n exp(r) with n = round(x / ln 2) and r = x - n ln 2. ln 2 is split into two parts; the first is
 * short enough that its product with n is exact. exp(r) is 1 + r + r^2 q(r), where q interpolates at the Chebyshev
 * points of |r| <= ln 2 / 2. 2^n is split into two factors, because n may exceed the exponent range of f32.
 */
LS_HOST_DEVICE static inline float ls_exp_f32(float x) {
    const float above = x > 89.0F ? 89.0F : x; /* the result is infinity from 88.73 on, and 0 below -103.98 */
    const float inside = above < -105.0F ? -105.0F : above;
    const float rounder = 0x1.8p23F; /* adding this number rounds to an integer, which is in the low bits */
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

/* Computes 1 / (1 + exp(-x)) from exp(-|x|), which does not overflow. */
LS_HOST_DEVICE static inline float ls_sigmoid_f32(float x) {
    const float power = ls_exp_f32(x < 0 ? x : -x);
    return (x < 0 ? power : 1.0F) / (1.0F + power);
}

LS_HOST_DEVICE static inline double ls_sigmoid_f64(double x) {
    const double power = exp(x < 0 ? x : -x);
    return (x < 0 ? power : 1.0) / (1.0 + power);
}

/*
 * Computes tanh. Near 0, it is x + x^3 p(x^2), where p interpolates at Chebyshev points. Otherwise, it is 1 - 2 /
 * (exp(2 |x|) + 1), without cancellation.
 */
LS_HOST_DEVICE static inline float ls_tanh_f32(float x) {
    const float size = fabsf(x);
    const float z = x * x;
    float p = 0x1.2c83cp-9F;
    p = p * z - 0x1.116a16p-7F;
    p = p * z + 0x1.64a976p-6F;
    p = p * z - 0x1.ba08c4p-5F;
    p = p * z + 0x1.1110eap-3F;
    p = p * z - 0x1.555556p-2F;
    const float near = p * z * size + size;
    const float far = 1.0F - 2.0F / (ls_exp_f32(2.0F * size) + 1.0F);
    return copysignf(size < 0.625F ? near : far, x);
}

/*
 * Computes exp(-x^2 / 2). x is split into a short number, whose square is exact, and a remainder, because rounding x^2
 * would cause a relative error of x^2 2^-25. The contribution of the remainder is at most 0.03 of x^2 / 2, and is
 * computed by a series. For |x| >= 15 the result is 0.
 */
LS_HOST_DEVICE static inline float ls_bell_f32(float x) {
    const float size = fabsf(x) > 15.0F ? 15.0F : fabsf(x);
    const float high = ls_float_of_bits((ls_bits_of_float(size) + 0x800U) & 0xfffff000U);
    const float rest = (size - high) * (size + high) * 0.5F;
    const float power = ls_exp_f32(-0.5F * high * high);
    return power - power * rest * (1.0F - rest * (0.5F - rest * 0x1.555556p-3F));
}

LS_HOST_DEVICE static inline double ls_bell_f64(double x) {
    return exp(-x * x / 2);
}

/*
 * Computes the normal distribution function. Below 0 it is exp(-x^2 / 2) m(|x|), where m decreases slowly from 1/2. m
 * is a polynomial in 1 / (1 + |x| / 4) - 0.6 that interpolates at Chebyshev points of |x| <= 14.5.
 */
LS_HOST_DEVICE static inline float ls_normal_f32(float x) {
    const float size = fabsf(x) > 15.0F ? 15.0F : fabsf(x);
    const float t = (0.4F - 0.15F * size) / (1.0F + 0.25F * size);
    float m = -0x1.205140p-6F;
    m = m * t + 0x1.1ed0b6p-7F;
    m = m * t + 0x1.643272p-5F;
    m = m * t - 0x1.0360dep-6F;
    m = m * t - 0x1.bcb59ap-4F;
    m = m * t - 0x1.243764p-5F;
    m = m * t + 0x1.1643dap-2F;
    m = m * t + 0x1.4349aap-1F;
    m = m * t + 0x1.98f036p-1F;
    m = m * t + 0x1.676b9ap-1F;
    m = m * t + 0x1.d6a6fp-2F;
    m = m * t + 0x1.129e6p-3F;
    const float below = ls_bell_f32(x) * m;
    return x < 0 ? below : 1.0F - below;
}

LS_HOST_DEVICE static inline double ls_normal_f64(double x) {
    return erfc(-x * 0.70710678118654752440) / 2;
}

#endif
