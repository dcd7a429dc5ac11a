/*
 * The divisor of a loss. Metrics use it to scale the losses of ranks, and evaluation has no tape from which to derive
 * it. If targets are weighted or partly ignored, a mean records its divisor in ls_thread_state.divisor, unless this
 * pointer is NULL. A sum records that it has no divisor. Other means divide by a multiple of the number of samples.
 */
#ifndef LS_AUTOGRAD_LOSS_DIVISOR_H
#define LS_AUTOGRAD_LOSS_DIVISOR_H

#include "tensor/scope.h"

struct ls_loss_divisor {
    ls_tensor *least; /* one number, owned: the smallest recorded divisor; NULL if no divisor was recorded */
    bool is_sum;      /* a loss was reduced to its sum (LS_LOSS_SUM) */
};

/* Records a divisor, which is a tensor with one element. Error messages name `call`. */
ls_status ls_loss_divisor_note(const char *call, ls_tensor *divisor);

/* Records that a loss is a sum. */
void ls_loss_divisor_note_sum(void);

#endif
