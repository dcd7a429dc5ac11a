/*
 * autograd/ops: one file per family of operations. Each family is a list of `static const ls_op` rows that share rules.
 * This header contains the functions shared by the families. Dtype promotion is in promote.h.
 */
#ifndef LS_AUTOGRAD_OPS_H
#define LS_AUTOGRAD_OPS_H

#include "autograd/op.h"

/* The rows of each family, terminated by NULL. The gradient-check table iterates over them. */
extern const ls_op *const ls_elementwise_ops[];
extern const ls_op *const ls_steps_ops[];
extern const ls_op *const ls_compare_ops[];
extern const ls_op *const ls_reduce_ops[];
extern const ls_op *const ls_extremes_ops[];
extern const ls_op *const ls_statistics_ops[];
extern const ls_op *const ls_shape_ops[];
extern const ls_op *const ls_join_ops[];
extern const ls_op *const ls_index_ops[];
extern const ls_op *const ls_sort_ops[];
extern const ls_op *const ls_copy_ops[];
extern const ls_op *const ls_matmul_ops[];
extern const ls_op *const ls_linear_ops[];
extern const ls_op *const ls_softmax_ops[];
extern const ls_op *const ls_norm_ops[];
extern const ls_op *const ls_batch_norm_ops[];
extern const ls_op *const ls_conv_ops[];
extern const ls_op *const ls_pool_ops[];
extern const ls_op *const ls_attention_ops[];
extern const ls_op *const ls_rotary_ops[];
extern const ls_op *const ls_recurrent_ops[];
extern const ls_op *const ls_resize_ops[];
extern const ls_op *const ls_loss_ops[];
extern const ls_op *const ls_class_loss_ops[];
extern const ls_op *const ls_random_ops[];

/* All these families, terminated by NULL. */
extern const ls_op *const *const ls_op_families[];

/* Returns false, with the error noted, if an input is NULL or was freed. For calls that are composed of other calls. */
bool ls_inputs_are_given(const char *call, ls_tensor *const *inputs, int input_count);

/* Fails with LS_ERR_ARGUMENT if the value does not fit into the dtype of x. */
ls_status ls_check_value(const char *call, const ls_tensor *x, double value);

/* Returns `axis` of x normalized to 0..ndim-1, or -1 with the error set and noted if there is no such axis. */
int ls_op_axis(const char *call, const ls_tensor *x, int axis);

/* Returns the position of a new axis, normalized to 0..ndim, or -1 with the error set and noted if it is invalid. */
int ls_op_new_axis(const char *call, const ls_tensor *x, int axis);

/* reshape.c: the operation of ls_reshape. It makes a view, with the strides of ls_view_strides. */
extern const ls_op ls_reshape_op;

/* The constant operand of a product or quotient. */
typedef struct ls_constant_factor {
    const ls_tensor *variable; /* the other operand: the product is variable * constant, or variable / constant */
    const ls_tensor *tensor;   /* the constant; NULL: `number` */
    double number;
    bool divides;
} ls_constant_factor;

/* elementwise.c: finds the constant operand of a node of ls_mul or ls_div. Returns false if both operands require
 * gradients. */
bool ls_find_constant_factor(const ls_node *node, ls_constant_factor *factor);

/* Computes the strides that view x in a different shape without moving elements. Returns false if no such strides
 * exist. */
bool ls_view_strides(const ls_tensor *x, int ndim, const int64_t *size, int64_t *stride);

/* Packs sizes into parameters: the integer fields hold the sizes, and the first number field holds their count. */
ls_op_parameters ls_shape_parameters(int ndim, const int64_t *size);

/* Returns a view of x in the same shape, on the tape. */
ls_tensor *ls_view_as_is(ls_tensor *x);

/* Computes the shape of a and b after NumPy broadcasting. The message of LS_ERR_SHAPE names the axis that does not
 * match. */
ls_status ls_broadcast_shapes(const char *call, const ls_tensor *a, const ls_tensor *b, int *ndim, int64_t *size);

/* Shape rule: the output has the given dtype and the broadcast shape of all inputs (1 to 3). */
ls_status ls_shape_broadcast(ls_op_call *call, ls_dtype dtype);

/* Returns a tensor without dimensions, outside any scope. */
ls_tensor *ls_number_owned(const char *call, const ls_device *device, ls_dtype dtype, double value);

/* Computes the strides of a dense tensor. */
void ls_dense_strides(int ndim, const int64_t *size, int64_t *stride);

/* Returns x itself if it is contiguous, else a dense copy outside any scope and tape. Returns ownership of the
 * reference to the caller. */
ls_tensor *ls_dense(const char *call, ls_tensor *x);

/*
 * Stack views: tensor records on the stack that show (part of) another tensor in a different shape. They hold no
 * reference and are in no scope. For kernels, which keep no reference.
 */
ls_tensor ls_stack_view(const ls_tensor *base, int ndim, const int64_t *size, const int64_t *stride, int64_t offset);
/* Views the elements of a contiguous tensor in a different shape. */
ls_tensor ls_stack_view_dense(const ls_tensor *base, int ndim, const int64_t *size);
/* Views `length` positions along `axis`, beginning at `start`, with stride `step`. */
ls_tensor ls_stack_view_slice(const ls_tensor *base, int axis, int64_t start, int64_t length, int64_t step);
/* Views position `index` along `axis`; the view does not have this axis. */
ls_tensor ls_stack_view_select(const ls_tensor *base, int axis, int64_t index);

/* Runs the map kernel at `kernel` on the device of y. */
static inline ls_status ls_map(size_t kernel, ls_tensor *y, const ls_tensor *const *operands,
                               const double *parameters) {
    return LS_KERNEL_AT(map, ls_kernels_of(y), kernel)(ls_stream_of(y), y, operands, parameters);
}

/* Shape rule: the output has the shape and dtype of input 0. Forward rule: one map over all inputs with the call's
 * numbers. */
ls_status ls_shape_as_input(ls_op_call *call);
ls_status ls_forward_map(ls_op_call *call);

/* Rule for samples of operations that combine elements along the axis integer[0]. */
ls_samples_use ls_mixes_along_axis(ls_samples_call *call);

/* Backward rule: passes the gradient on unchanged. */
ls_status ls_backward_same(ls_node *node, ls_tensor *gradient);

/* Adds a map of the operands, computed in the shape of `gradient` (the node's), to the gradient of input i. */
ls_status ls_accumulate_map(ls_node *node, int i, const ls_tensor *gradient, size_t kernel,
                            const ls_tensor *const *operands);

/* Same as ls_gradient_place, but fills the tensor with zeros unless it contains a gradient. For rules that only add. */
ls_tensor *ls_gradient_place_zeroed(ls_node *node, int i);

/*
 * Adds the gradient (which may be a stack view) to the gradient of input i, repeated along its missing and size-1 axes
 * by a view, without a copy.
 */
ls_status ls_accumulate_repeated(ls_node *node, int i, const ls_tensor *gradient);

#endif
