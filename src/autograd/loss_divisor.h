/*
 * What a loss divides by. Metrics scale the losses of ranks by it, and in evaluation there is no tape to find it. A
 * mean over targets of which some are ignored, or which have weights, notes its divisor in ls_thread_state.divisor,
 * unless that is NULL. Other means divide by a multiple of the number of samples.
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
