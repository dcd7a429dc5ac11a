/*
 * The divisor of a loss. Metrics use it to scale the losses of ranks, and evaluation has no tape from which to derive
 * it. A mean over targets that are partly ignored or have weights notes its divisor in ls_thread_state.divisor, unless
 * that is NULL. Other means divide by a multiple of the number of samples.
 */
#ifndef LS_AUTOGRAD_LOSS_DIVISOR_H
#define LS_AUTOGRAD_LOSS_DIVISOR_H

#include "tensor/scope.h"

struct ls_loss_divisor {
    ls_tensor *least; /* one number, owned: the smallest noted divisor; NULL if no divisor was noted */
};

/* Notes a divisor: one number. `call` is named in messages. */
ls_status ls_loss_divisor_note(const char *call, ls_tensor *divisor);

#endif
