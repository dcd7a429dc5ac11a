/*
 * For tests of kernels that accept any strides: tensors of every dtype over plain memory (dense, permuted or with
 * gaps). They are read and written as doubles, by their index in row-major order.
 */
#ifndef LS_TESTS_SUPPORT_ARRAYS_H
#define LS_TESTS_SUPPORT_ARRAYS_H

#include <math.h>

#include "base/float16.h"
#include "tensor/tensor.h"
#include "tests/support/unit.h"

/* The layout of elements: row-major; axes in random order; random strides. */
typedef enum array_layout { ARRAY_DENSE, ARRAY_PERMUTED, ARRAY_STEPPED, ARRAY_LAYOUTS } array_layout;

/* A tensor and its memory, which has the exact size, so that sanitizers detect out-of-bounds accesses. */
typedef struct array {
    ls_tensor tensor;
    void *memory;
} array;

/* Returns a random integer in [0, bound); the sequence is the same in every program. */
static inline int64_t array_dice(int64_t bound) {
    static uint64_t thrown;
    return (int64_t)(ls_random_u32(3, 0, thrown++) % (uint64_t)bound);
}

static inline array array_new(ls_dtype dtype, int ndim, const int64_t *size, array_layout layout) {
    array made = {.tensor = {.dtype = (uint8_t)dtype, .ndim = (int8_t)ndim, .count = 1}};
    ls_tensor *const t = &made.tensor;
    int order[LS_MAX_DIMS];
    for (int i = 0; i < ndim; i++) {
        order[i] = i;
        t->size[i] = size[i];
        t->count *= size[i];
    }
    for (int i = 0; layout == ARRAY_PERMUTED && i < ndim; i++) {
        const int other = (int)array_dice(ndim);
        const int kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    int64_t room = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        const int axis = order[i];
        t->stride[axis] = room * (layout == ARRAY_STEPPED ? 1 + array_dice(3) : 1);
        room = t->stride[axis] * (size[axis] > 0 ? size[axis] : 1);
    }
    int64_t last = 0;
    t->contiguous = true;
    for (int64_t i = ndim - 1, dense = 1; i >= 0; i--) {
        last += t->count > 0 ? (size[i] - 1) * t->stride[i] : 0;
        t->contiguous = t->contiguous && (size[i] == 1 || t->stride[i] == dense || t->count == 0);
        dense *= size[i];
    }
    made.memory = calloc(t->count > 0 ? (size_t)(last + 1) : 0, ls_dtype_size(dtype));
    t->data = made.memory;
    return made;
}

static inline void array_free(array *a) {
    free(a->memory);
}

/* Returns the address in t of element `index` (row-major) of `shape`, to which t broadcasts. */
static inline void *array_at(const ls_tensor *t, const ls_tensor *shape, int64_t index) {
    int64_t offset = 0;
    for (int axis = shape->ndim - 1; axis >= 0; axis--) {
        const int own = axis - (shape->ndim - t->ndim);
        const int64_t place = index % shape->size[axis];
        index /= shape->size[axis];
        if (own >= 0 && t->size[own] != 1) {
            offset += place * t->stride[own];
        }
    }
    return (char *)t->data + offset * (int64_t)ls_dtype_size((ls_dtype)t->dtype);
}

static inline double array_number(ls_dtype dtype, const void *at) {
    switch (dtype) {
    case LS_F32:
        return (double)*(const float *)at;
    case LS_F64:
        return *(const double *)at;
    case LS_BF16:
        return (double)ls_bf16_to_float(*(const uint16_t *)at);
    case LS_F16:
        return (double)ls_f16_to_float(*(const uint16_t *)at);
    case LS_I64:
        return (double)*(const int64_t *)at;
    case LS_I32:
        return *(const int32_t *)at;
    default:
        return *(const uint8_t *)at;
    }
}

static inline double array_get(const ls_tensor *t, const ls_tensor *shape, int64_t index) {
    return array_number((ls_dtype)t->dtype, array_at(t, shape, index));
}

/* `value` must be representable in the dtype. */
static inline void array_set(ls_tensor *t, int64_t index, double value) {
    void *const at = array_at(t, t, index);
    switch ((ls_dtype)t->dtype) {
    case LS_F32:
        *(float *)at = (float)value;
        break;
    case LS_F64:
        *(double *)at = value;
        break;
    case LS_BF16:
        *(uint16_t *)at = ls_bf16_from_float((float)value);
        break;
    case LS_F16:
        *(uint16_t *)at = ls_f16_from_float((float)value);
        break;
    case LS_I64:
        *(int64_t *)at = (int64_t)value;
        break;
    case LS_I32:
        *(int32_t *)at = (int32_t)value;
        break;
    default:
        *(uint8_t *)at = (uint8_t)value;
    }
}

/* Draws the sizes of up to 4 axes: small, varied, and sometimes zero. Returns the number of axes. */
static inline int array_random_shape(int64_t *size) {
    static const int64_t sizes[] = {1, 2, 3, 5, 7, 17, 33, 4, 1, 6};
    const int ndim = (int)array_dice(5);
    for (int i = 0; i < ndim; i++) {
        size[i] = array_dice(60) == 0 ? 0 : sizes[array_dice(10)];
    }
    return ndim;
}

/* Draws a shape that broadcasts to the given shape: leading axes are removed, some axes have size 1. */
static inline int array_random_part(int ndim, const int64_t *size, int64_t *part) {
    const int gone = array_dice(3) == 0 ? (int)array_dice(ndim + 1) : 0;
    for (int i = gone; i < ndim; i++) {
        part[i - gone] = array_dice(4) == 0 ? 1 : size[i];
    }
    return ndim - gone;
}

/* Fails unless `is` and `want` are equal, both NaN, or within the relative tolerance. */
static inline void array_expect(const char *what, double is, double want, double tolerance) {
    if (!(is == want || (isnan(is) && isnan(want)) || fabs(is - want) <= tolerance * (1 + fabs(want)))) {
        fail_msg("%s is %.17g, not %.17g", what, is, want);
    }
}

#endif
