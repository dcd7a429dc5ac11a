/*
 * For tests of kernels: contiguous f32 or f64 tensors over plain memory. So a test needs no runtime, and a reference
 * can be written once in double precision.
 */
#ifndef LS_TESTS_SUPPORT_NUMBERS_H
#define LS_TESTS_SUPPORT_NUMBERS_H

#include <math.h>

#include "base/random.h"
#include "tensor/tensor.h"
#include "tests/support/elements.h"
#include "tests/support/unit.h"

/* Makes a tensor with memory from malloc. Free it with numbers_free. */
static inline ls_tensor numbers_new(ls_dtype dtype, ls_shape shape) {
    ls_tensor tensor = {.dtype = (uint8_t)dtype, .ndim = (int8_t)shape.ndim, .contiguous = true, .count = 1};
    for (int i = shape.ndim - 1; i >= 0; i--) {
        tensor.size[i] = shape.size[i];
        tensor.stride[i] = tensor.count;
        tensor.count *= shape.size[i];
    }
    tensor.data = calloc((size_t)tensor.count + 1, ls_dtype_size(dtype));
    assert_non_null(tensor.data);
    return tensor;
}

static inline void numbers_free(ls_tensor *tensor) {
    free(tensor->data);
}

static inline double numbers_get(const ls_tensor *tensor, int64_t at) {
    return tensor->dtype == LS_F32 ? (double)((const float *)elements(tensor))[at]
                                   : ((const double *)elements(tensor))[at];
}

static inline void numbers_set(ls_tensor *tensor, int64_t at, double value) {
    if (tensor->dtype == LS_F32) {
        ((float *)elements(tensor))[at] = (float)value;
    } else {
        ((double *)elements(tensor))[at] = value;
    }
}

/* Makes normally distributed numbers around `mean`. The same stream gives the same numbers. */
static inline ls_tensor numbers_random(ls_dtype dtype, ls_shape shape, uint64_t stream, double mean) {
    ls_tensor tensor = numbers_new(dtype, shape);
    for (int64_t i = 0; i < tensor.count; i++) {
        numbers_set(&tensor, i, mean + ls_random_normal(11, stream, (uint64_t)i));
    }
    return tensor;
}

/* Fails unless |is - want| <= tolerance (1 + |want|). Equal infinities agree. */
static inline void numbers_expect(const char *what, double is, double want, double tolerance) {
    if (!(is == want || fabs(is - want) <= tolerance * (1 + fabs(want)))) {
        fail_msg("%s is %.9g, not %.9g", what, is, want);
    }
}

/* Returns the tolerance for a kernel of this dtype, compared with the exact result. */
static inline double numbers_tolerance(ls_dtype dtype) {
    return dtype == LS_F32 ? 2e-6 : 1e-13;
}

#endif
