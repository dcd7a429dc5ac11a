/* Code that layer and batch normalization share: the indices of their common inputs, and their backward rule. */
#ifndef LS_AUTOGRAD_OPS_NORM_H
#define LS_AUTOGRAD_OPS_NORM_H

#include "autograd/op.h"

/* Indices of the inputs. */
enum { X, WEIGHT, BIAS };

ls_status ls_norm_check_epsilon(const char *call, double epsilon);

/* Outputs for the gradients of a norm; NULL for gradients that are not required. */
typedef struct ls_norm_gradients {
    ls_tensor *dx, *weight, *bias;
} ls_norm_gradients;

/* Computes the gradients from a dense gradient `g` of the output. Adds to the gradients of weight and bias, which begin
 * as zeros. */
typedef ls_status (*ls_norm_rule)(const ls_node *node, const ls_tensor *g, const ls_norm_gradients *d);

/* The backward rule of a norm: calls `rule`, and passes its results to the inputs. */
ls_status ls_norm_backward(ls_node *node, ls_tensor *gradient, ls_norm_rule rule);

#endif
