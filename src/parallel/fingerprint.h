/*
 * Fingerprints of tensors that must be equal on all ranks. Ranks may round differently, for example on different
 * devices, so a fingerprint, unlike a hash, tolerates small differences.
 */
#ifndef LS_PARALLEL_FINGERPRINT_H
#define LS_PARALLEL_FINGERPRINT_H

#include "base/status.h"
#include "tensor/tensor.h"

typedef struct ls_fingerprint {
    float sum;       /* weighted sum of some elements; for integers, the lowest bits of a hash */
    float magnitude; /* the same sum over absolute values; for integers, 0, which tolerates no difference */
} ls_fingerprint;

/* Computes the fingerprint of up to 1024 elements at equal distances. `dense` is contiguous, on any device. */
ls_status ls_fingerprint_of(const char *call, const ls_tensor *dense, ls_fingerprint *fingerprint);

/* Returns whether the fingerprints of two tensors of this dtype (or of integers) differ by more than rounding. */
bool ls_fingerprints_differ(ls_fingerprint a, ls_fingerprint b, ls_dtype dtype);

#endif
