/* What losses share: their reductions. */
#ifndef LS_AUTOGRAD_OPS_LOSS_H
#define LS_AUTOGRAD_OPS_LOSS_H

#include <lockstep/loss.h>

#include "tensor/tensor.h"

/* LS_OK for a reduction that is one. */
ls_status ls_loss_check_reduction(const char *call, ls_loss_reduction reduction);

/* total = factor * the sum of all elements; total has one element, both are dense. */
ls_status ls_loss_sum(ls_tensor *total, const ls_tensor *elements, double factor);

/* The mean or the sum of the elements, or the elements; consumes them. NULL gives NULL. For losses that are composed of
 * other operations. */
ls_tensor *ls_loss_reduced(ls_tensor *elements, ls_loss_reduction reduction);

#endif
