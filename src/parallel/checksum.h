/*
 * Checksums of tensors that must be equal on all ranks. Ranks may round differently, for example on different devices,
 * so a checksum tolerates small differences, which a hash would not.
 */
#ifndef LS_PARALLEL_CHECKSUM_H
#define LS_PARALLEL_CHECKSUM_H

#include "base/status.h"
#include "tensor/tensor.h"

typedef struct ls_checksum {
    float sum;       /* weighted sum of some elements */
    float magnitude; /* the same sum over absolute values */
} ls_checksum;

/* Computes the checksum of up to 1024 elements at equal distances. `dense` is contiguous, on any device. */
ls_status ls_checksum_of(const char *call, const ls_tensor *dense, ls_checksum *checksum);

/* Returns whether the checksums of two tensors of this dtype differ by more than rounding. */
bool ls_checksums_differ(ls_checksum a, ls_checksum b, ls_dtype dtype);

#endif
