/* Rules of ls_allreduce and ls_allgather that other calls use. */
#ifndef LS_PARALLEL_REDUCTIONS_H
#define LS_PARALLEL_REDUCTIONS_H

#include "autograd/op.h"

ls_status ls_allreduce_shape(ls_op_call *call);
ls_status ls_allreduce_forward(ls_op_call *call);
ls_status ls_allreduce_backward(ls_node *node, ls_tensor *gradient);
ls_status ls_allreduce_agree(ls_node *node, ls_reach *reach);

ls_status ls_allgather_shape(ls_op_call *call);
ls_status ls_allgather_forward(ls_op_call *call);

#endif
