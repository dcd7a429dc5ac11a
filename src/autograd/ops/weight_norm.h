/* The initial norms of weight normalization. */
#ifndef LS_AUTOGRAD_OPS_WEIGHT_NORM_H
#define LS_AUTOGRAD_OPS_WEIGHT_NORM_H

#include <lockstep/autograd.h>

/* Returns the Euclidean norms of x [n, ...] over all axes but the first: [n, 1, ...]. */
ls_tensor *ls_weight_norms(ls_tensor *x);

#endif
