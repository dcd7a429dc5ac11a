/*
 * What a loss divides by, for metrics, which must weigh the losses of ranks and have no tape to follow in evaluation.
 * A mean of targets of which some are ignored, or which have weights, notes its divisor in ls_thread_state.divisor,
 * unless that is NULL. Any other mean divides by a number that every sample has the same part in.
 */
#ifndef LS_AUTOGRAD_LOSS_DIVISOR_H
#define LS_AUTOGRAD_LOSS_DIVISOR_H

#include "tensor/scope.h"

struct ls_loss_divisor {
    ls_tensor *least; /* one number, owned: the smallest that was noted; NULL: none was */
};

/* Notes a divisor: one number. `call` is named in messages. */
ls_status ls_loss_divisor_note(const char *call, ls_tensor *divisor);

#endif
