/* Reductions of losses. */
#ifndef LS_AUTOGRAD_OPS_LOSS_H
#define LS_AUTOGRAD_OPS_LOSS_H

#include <lockstep/loss.h>

#include "tensor/tensor.h"

/* Fails if `reduction` is not a valid value. Records a sum (loss_divisor.h). */
ls_status ls_loss_take_reduction(const char *call, ls_loss_reduction reduction);

/* Computes total = factor * the sum of all elements. `total` has one element; both tensors are dense. */
ls_status ls_loss_sum(ls_tensor *total, const ls_tensor *elements, double factor);

/*
 * Returns the mean or the sum of the elements, or the elements themselves. Consumes `elements`; returns NULL for NULL.
 * For losses that are composed of other operations.
 */
ls_tensor *ls_loss_reduced(ls_tensor *elements, ls_loss_reduction reduction);

#endif
