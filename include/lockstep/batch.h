/**
 * @file
 * A batch of samples, which loaders (data.h) make and training steps (parallel.h, train.h) use.
 */
#ifndef LOCKSTEP_BATCH_H
#define LOCKSTEP_BATCH_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * One rank's share of a global batch. The loader owns the tensors. They are valid until the next ls_loader_next or
 * ls_loader_free. Do not use the tensors later: calls usually fail with LS_ERR_STATE. To keep a tensor of a batch, copy
 * it: ls_keep(ls_clone(x)).
 */
typedef struct ls_batch {
    ls_tensor *input;     /**< [count, ...] */
    ls_tensor *target;    /**< [count, ...]; NULL if the loader has no targets */
    int64_t first;        /**< index of this rank's first sample in the global batch */
    int64_t count;        /**< number of this rank's samples; may be 0 in a small global batch */
    int64_t global_count; /**< number of samples in the global batch */
    int64_t number;       /**< index of the batch in the epoch, from 0 */
} ls_batch;

#ifdef __cplusplus
}
#endif

#endif
