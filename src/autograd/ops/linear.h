/* Linear map and activation as one node of the tape: used for a Linear module followed by a ReLU. */
#ifndef LS_AUTOGRAD_OPS_LINEAR_H
#define LS_AUTOGRAD_OPS_LINEAR_H

#include <lockstep/autograd.h>

#include "tensor/kernels.h"

/* Computes activation(x weight^T + bias), with the rules of ls_linear. */
ls_tensor *ls_linear_activation(ls_tensor *x, ls_tensor *weight, ls_tensor *bias, ls_activation activation);

#endif
