/*
 * Converts a double to an element of any dtype. Integers are truncated toward zero, saturate at their limits, and treat
 * NaN as 0. A bool is "not 0". bf16 and f16 are rounded from f32.
 */
#ifndef LS_TENSOR_DEVICE_CPU_NUMBER_H
#define LS_TENSOR_DEVICE_CPU_NUMBER_H

#include "base/float16.h"
#include "base/host_device.h"

#include <stdbool.h>

LS_HOST_DEVICE static inline int64_t ls_i64_of(double value) {
    if (value >= 0x1p63) {
        return INT64_MAX;
    }
    return value >= -0x1p63 ? (int64_t)value : value < 0 ? INT64_MIN : 0;
}

LS_HOST_DEVICE static inline int32_t ls_i32_of(double value) {
    if (value >= 0x1p31) {
        return INT32_MAX;
    }
    return value > -0x1p31 - 1 ? (int32_t)value : value < 0 ? INT32_MIN : 0;
}

LS_HOST_DEVICE static inline uint8_t ls_u8_of(double value) {
    if (value >= 256) {
        return UINT8_MAX;
    }
    return value > -1 ? (uint8_t)value : 0;
}

LS_HOST_DEVICE static inline bool ls_bool_of(double value) {
    return value != 0;
}

LS_HOST_DEVICE static inline float ls_f32_of(double value) {
    return (float)value;
}

LS_HOST_DEVICE static inline double ls_f64_of(double value) {
    return value;
}

LS_HOST_DEVICE static inline uint16_t ls_bf16_of(double value) {
    return ls_bf16_from_float((float)value);
}

LS_HOST_DEVICE static inline uint16_t ls_f16_of(double value) {
    return ls_f16_from_float((float)value);
}

#endif
