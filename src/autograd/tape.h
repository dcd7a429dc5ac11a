/*
 * The engine's own header: nodes on tapes, leaves, and the backward pass while it runs.
 *
 * Who holds whom: a tape owns its nodes; a node holds its inputs, so that what a gradient needs lives on when its scope
 * ends; a tensor knows the node that made it, and the node goes when the tensor does, for then no gradient can reach it
 * any more. Nodes that communicate are the exception: they hold their output.
 */
#ifndef LS_AUTOGRAD_TAPE_H
#define LS_AUTOGRAD_TAPE_H

#include "autograd/op.h"

/* Puts a node for the finished call on the innermost tape; it takes the saved tensors. */
ls_status ls_tape_record(ls_thread_state *thread, const ls_op_call *call);

/* Takes the node off its tape and frees it with all it holds. Its output, if it lives on, is marked as walked. */
void ls_tape_discard(ls_node *node);

/* LS_ERR_STATE: the call saved the tensor, its result or another, whose elements are not what they were. */
ls_status ls_refuse_changed(const char *call, const ls_tensor *tensor, bool result);

/* Whether there is communication on this thread's tapes: other ranks may need it walked although no loss here does. */
bool ls_tape_communicates(void);

/* What a tensor has for a node once that was walked. */
extern ls_tape_link ls_tape_walked;

/*
 * What a gradient has for a node that depends on the values of leaves, and what floating tensors have that were
 * computed from one while operations are recorded. They are constants to the tape: a pass refuses to go back through an
 * operation on one, as how it depends on the leaves was not recorded.
 */
extern ls_tape_link ls_tape_gradient;

/* The backward pass that runs on this thread. */
typedef struct ls_backward_pass {
    ls_thread_state *thread;
    ls_scope *scope;            /* everything rules and hooks make belongs to it */
    ls_leaf *touched;           /* leaves that got a gradient, each with a reference to its tensor */
    bool depends;               /* a rule has read what depends on leaves: so do the gradients */
    ls_pass_findings *findings; /* NULL: no watch asks for them */
    double weight;              /* of the whole loss */
    bool told;                  /* the other ranks know that the pass has failed, or cannot be told */
} ls_backward_pass;

/* Adds `gradient` to what `input` has gathered; `call` and `i` name the rule in messages. */
ls_status ls_gather_gradient(const char *call, int i, ls_tensor *input, ls_tensor *gradient);

/* The walk has passed one use of the leaf: calls its hooks when that was the last. */
ls_status ls_leaf_passed(ls_backward_pass *pass, ls_leaf *leaf);

/* The leaf is about to get a gradient in the pass. */
void ls_leaf_touch(ls_backward_pass *pass, ls_leaf *leaf);

/* Makes sure that there is a gradient tensor to write to. */
ls_status ls_leaf_make_room(ls_leaf *leaf);

/*
 * Ends the pass for all leaves it touched: calls the hooks still due, and forgets gradients that a failed pass began.
 * `status` is that of the pass; returns it, or that of a hook.
 */
ls_status ls_leaves_settle(ls_backward_pass *pass, ls_status status);

#endif
