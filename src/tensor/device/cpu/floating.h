/*
 * Common parts of the kernels for contiguous f32 and f64 tensors. Each kernel is written once, in a file NAME.inc in
 * terms of REAL. NAME.c includes this file for both types; FN(name) is name_f32 or name_f64.
 */
#ifndef LS_TENSOR_DEVICE_CPU_FLOATING_H
#define LS_TENSOR_DEVICE_CPU_FLOATING_H

#include "base/clones.h"
#include "base/status.h"
#include "tensor/device/cpu/cpu_kernels.h"

/* Runs name_f32(...) or name_f64(...). Returns LS_OK, or an error if the CPU does not have this kernel for the
 * dtype. */
#define LS_FLOATING(dtype, name, ...)                                                                                  \
    ((dtype) == LS_F32   ? (name##_f32(__VA_ARGS__), (ls_status)LS_OK)                                                 \
     : (dtype) == LS_F64 ? (name##_f64(__VA_ARGS__), (ls_status)LS_OK)                                                 \
                         : ls_no_kernel(#name, (ls_dtype)(dtype)))

/*
 * Sums `term` for `count` indices i + l in sixteen lanes, and then adds the lanes as a tree into the first lane. So the
 * order does not depend on the vector width of the machine.
 */
#define SUM_IN_LANES(term)                                                                                             \
    double lane[16] = {0};                                                                                             \
    int64_t i = 0;                                                                                                     \
    for (; i + 16 <= count; i += 16) {                                                                                 \
        for (int l = 0; l < 16; l++) {                                                                                 \
            lane[l] += (term);                                                                                         \
        }                                                                                                              \
    }                                                                                                                  \
    for (int l = 0; i + l < count; l++) {                                                                              \
        lane[l] += (term);                                                                                             \
    }                                                                                                                  \
    for (int half = 8; half > 0; half /= 2) {                                                                          \
        for (int l = 0; l < half; l++) {                                                                               \
            lane[l] += lane[l + half];                                                                                 \
        }                                                                                                              \
    }

static inline ls_status ls_no_kernel(const char *name, ls_dtype dtype) {
    return ls_fail(LS_ERR_UNSUPPORTED, "%s: the CPU has no kernel for %s", name, ls_dtype_name(dtype));
}

/* Returns the memory of a tensor, or NULL if the tensor is NULL. */
static inline void *ls_data_or_null(const ls_tensor *tensor) {
    return tensor != NULL ? tensor->data : NULL;
}

#endif
