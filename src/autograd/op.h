/*
 * autograd: operations, the tape they are recorded on, and the walk backwards. This header: what an operation is, and
 * what its rules may use.
 *
 * An operation is one `static const ls_op` row; ls_apply carries it out:
 *   1. shape:    checks the inputs and makes call->output (ls_tensor_new, or a view);
 *   2. forward:  computes it; may leave in call->saved what the gradient needs;
 *   3. if something that wants a gradient goes in and the thread records, a node with inputs, parameters and saved
 * tensors goes on the tape;
 *   4. backward: later, is given the gradient of the output and hands each input its share (ls_give or ls_sink).
 */
#ifndef LS_AUTOGRAD_OP_H
#define LS_AUTOGRAD_OP_H

#include <lockstep/autograd.h>

#include "base/status.h"
#include "tensor/device.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

#define LS_NODE_INPUTS 3
#define LS_NODE_SAVED  3

typedef struct ls_op ls_op;
typedef struct ls_node ls_node;

/* The numbers an operation was called with, copied into its node. Their meaning is the operation's. */
typedef struct ls_op_parameters {
    double number[4];
    int64_t integer[LS_MAX_DIMS];
    ls_random_state random;
} ls_op_parameters;

/* One application of an operation while it runs. */
typedef struct ls_op_call {
    const ls_op *op;
    ls_tensor *const *inputs; /* input_count of them; optional ones may be NULL */
    int input_count;
    const ls_op_parameters *parameters;
    ls_tensor *output;               /* made by shape */
    ls_tensor *saved[LS_NODE_SAVED]; /* references for the node, from ls_tensor_new_owned and the like; dropped if
                                        nothing is recorded */
    bool records;                    /* whether a node will be made: whether saving pays */
} ls_op_call;

struct ls_op {
    const char *name; /* as the user wrote it, for messages: "ls_matmul" */
    ls_status (*shape)(ls_op_call *call);
    ls_status (*forward)(ls_op_call *call); /* NULL: the shape rule made a view, nothing to compute */
    ls_status (*backward)(ls_node *node,
                          ls_tensor *gradient); /* NULL: not differentiable. `gradient` is lent, any strides */
    size_t kernel; /* offset of a map kernel in ls_kernels, for families that share rules: LS_KERNEL(exp) */
    size_t kernel_backward;
    bool saves_output; /* the node keeps an alias of the output in saved[0] */
    bool communicates; /* its backward runs even if no gradient reaches it */
};

#define LS_KERNEL(name)            offsetof(ls_kernels, name)
#define LS_MAP_KERNEL(kernels, at) (*(const ls_map_kernel *)(const void *)((const char *)(kernels) + (at)))

struct ls_node {
    ls_tape_link link; /* first: a link is its node */
    const ls_op *op;
    ls_tensor *output;   /* weak; NULL once it is freed */
    ls_tensor *gradient; /* of the output, gathered so far; owned */
    int input_count;
    ls_tensor **inputs; /* owned references; inline_inputs, or an array of its own for concat and its kin */
    ls_tensor *inline_inputs[LS_NODE_INPUTS];
    ls_tensor *saved[LS_NODE_SAVED];
    ls_op_parameters parameters;
};

/*
 * Applies the operation. Any required input that is NULL gives NULL. On failure notes the error in the scope and
 * returns NULL. `parameters` may be NULL when the operation has none. The result belongs to the innermost scope.
 */
ls_tensor *ls_apply(const ls_op *op, ls_tensor *const *inputs, int input_count, const ls_op_parameters *parameters);

/* For backward rules. Does input i want a gradient? */
bool ls_wants(const ls_node *node, int i);

/*
 * Hands input i a gradient, whose shape broadcasting may have enlarged: the surplus is summed away. Takes the tensor
 * over where it can (when it belongs to the innermost scope and nobody else refers to it) and copies it where it must.
 * NULL is the failure of the call that made it.
 */
ls_status ls_give(ls_node *node, int i, ls_tensor *gradient);

/*
 * Where a rule can write input i's gradient itself: a dense tensor of the input's shape, lent. With *accumulate it
 * holds a gradient that must be added to, else its elements are not set. NULL: out of memory.
 */
ls_tensor *ls_sink(ls_node *node, int i, bool *accumulate);

/*
 * Calls `function(user)` once, at the end of the backward pass that next walks this thread's innermost tape with a node
 * on it: how data-parallel training learns that gradients are complete. It is forgotten when the scope ends first.
 * The same pair of function and user on the same tape is called once.
 */
typedef ls_status (*ls_backward_callback)(void *user);
ls_status ls_after_backward(ls_backward_callback function, void *user);

/* What a leaf that wants a gradient carries. */
typedef struct ls_leaf_hook {
    ls_grad_hook function;
    void *user;
    struct ls_leaf_hook *next;
} ls_leaf_hook;

struct ls_leaf {
    ls_tensor *gradient; /* owned; dense; NULL until first needed or until it is laid into a flat buffer */
    bool has_gradient;   /* false: the next gradient overwrites, and ls_grad gives NULL */
    int uses;            /* nodes on tapes that have it as input: 0 while walking means its gradient is complete */
    bool touched;        /* by the backward pass that runs */
    ls_leaf_hook *hooks;
};

#endif
