/* The affine map with its activation as one node of the tape: what a Linear followed by a ReLU becomes. */
#ifndef LS_AUTOGRAD_OPS_LINEAR_H
#define LS_AUTOGRAD_OPS_LINEAR_H

#include <lockstep/autograd.h>

#include "tensor/kernels.h"

/* activation(x weight^T + bias), as ls_linear otherwise. */
ls_tensor *ls_linear_activation(ls_tensor *x, ls_tensor *weight, ls_tensor *bias, ls_activation activation);

#endif
