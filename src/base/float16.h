/* Conversions between float and the 16-bit floats bf16 and f16 (IEEE half). They round to nearest even. */
#ifndef LS_BASE_FLOAT16_H
#define LS_BASE_FLOAT16_H

#include <stdint.h>
#include <string.h>

#include "base/host_device.h"

LS_HOST_DEVICE static inline uint32_t ls_bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

LS_HOST_DEVICE static inline float ls_float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

LS_HOST_DEVICE static inline float ls_bf16_to_float(uint16_t half) {
    return ls_float_of_bits((uint32_t)half << 16);
}

LS_HOST_DEVICE static inline uint16_t ls_bf16_from_float(float value) {
    const uint32_t bits = ls_bits_of_float(value);
    if ((bits & 0x7fffffffU) > 0x7f800000U) {
        return (uint16_t)((bits >> 16) | 0x40U); /* a NaN becomes a quiet NaN */
    }
    return (uint16_t)((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

LS_HOST_DEVICE static inline float ls_f16_to_float(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000U) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fU;
    const uint32_t mantissa = half & 0x3ffU;
    if (exponent == 0x1fU) {
        return ls_float_of_bits(sign | 0x7f800000U | (mantissa << 13));
    }
    if (exponent == 0) { /* zero and subnormals: mantissa * 2^-24 */
        const float magnitude = (float)mantissa * 0x1p-24F;
        return ls_float_of_bits(sign | ls_bits_of_float(magnitude));
    }
    return ls_float_of_bits(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

LS_HOST_DEVICE static inline uint16_t ls_f16_from_float(float value) {
    const uint32_t bits = ls_bits_of_float(value);
    const uint32_t sign = (bits >> 16) & 0x8000U;
    const uint32_t magnitude = bits & 0x7fffffffU;
    if (magnitude > 0x7f800000U) {
        return (uint16_t)(sign | 0x7e00U);
    }
    if (magnitude >= 0x477ff000U) { /* values of 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00U);
    }
    if (magnitude < 0x38800000U) { /* below 2^-14: the addition rounds the subnormal */
        const float shifted = ls_float_of_bits(magnitude) + 0.5F;
        return (uint16_t)(sign | (ls_bits_of_float(shifted) - 0x3f000000U));
    }
    const uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
    return (uint16_t)(sign | ((rounded - 0x38000000U) >> 13));
}

#endif
