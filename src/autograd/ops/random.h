/* Dropout of a tensor that is sharded over ranks along its last axis. */
#ifndef LS_AUTOGRAD_OPS_RANDOM_H
#define LS_AUTOGRAD_OPS_RANDOM_H

#include <lockstep/autograd.h>

/*
 * Runs ls_dropout on x, the shard that begins at `start` of a tensor whose last axis has size `whole`. If `whole` is 0,
 * x is the whole tensor.
 */
ls_tensor *ls_dropout_part(ls_tensor *x, double p, int64_t start, int64_t whole);

#endif
