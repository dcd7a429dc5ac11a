/*
 * Internal header of the engine: nodes on tapes, leaves, and the running backward pass.
 *
 * Ownership: a tape owns its nodes. A node holds references to its inputs, so that tensors needed for gradients outlive
 * their scope. A tensor points to the node that made it. The node is freed with its tensor, because no gradient can
 * reach it any more. Communicating nodes are the exception: they hold their output.
 */
#ifndef LS_AUTOGRAD_TAPE_H
#define LS_AUTOGRAD_TAPE_H

#include "autograd/op.h"

/* Adds a node for the finished call to the innermost tape. Takes ownership of the saved tensors. */
ls_status ls_tape_record(ls_thread_state *thread, const ls_op_call *call);

/* Removes the node from its tape and frees it with all its references. Marks its output, if still alive, as walked. */
void ls_tape_discard(ls_node *node);

/* Returns whether no node of the scope depends on nodes of outer scopes. */
bool ls_tape_is_closed(const ls_scope *scope);

/* Discards all nodes of the scope, even communicating nodes, which would otherwise outlive it. */
void ls_tape_clear(ls_scope *scope);

/* Fails with LS_ERR_STATE because the elements of a tensor that the call saved (its result or another tensor) were
 * changed. */
ls_status ls_refuse_changed(const char *call, const ls_tensor *tensor, bool result);

/*
 * Returns whether this thread's tapes have communicating nodes: other ranks may need these nodes walked even if this
 * rank has no loss.
 */
bool ls_tape_communicates(void);

/* A placeholder: the node of a tensor whose own node was discarded (ls_tape_discard). */
extern ls_tape_link ls_tape_walked;

/*
 * The node of a gradient that depends on the values of leaves, and of floating-point tensors that were computed from
 * such a gradient while operations were being recorded. The tape treats them as constants: a pass refuses to walk back
 * through an operation on such a tensor, because its dependence on the leaves was not recorded.
 */
extern ls_tape_link ls_tape_gradient;

/*
 * A callback of one backward pass, registered by `begin` of a watch (ls_pass_observe). It must not fail, and must keep
 * the thread's error.
 */
typedef struct ls_pass_observer {
    void (*leaf_complete)(void *user, const ls_leaf *leaf); /* called after the hooks of a leaf with a new gradient */
    void *user;
    struct ls_pass_observer *next;
} ls_pass_observer;

/* The backward pass that runs on this thread. */
typedef struct ls_backward_pass {
    ls_thread_state *thread;
    ls_scope *scope;  /* owns everything that rules and hooks create */
    ls_leaf *touched; /* leaves that received a gradient, each with a reference to its tensor */
    bool depends; /* a rule has read values that depend on leaves, and therefore the gradients depend on them, too */
    ls_pass_findings *findings; /* NULL if no watch asks for them */
    ls_pass_observer *observers;
    double weight; /* of the whole loss */
    bool told;     /* the other ranks have been notified that the pass has failed, or cannot be notified */
} ls_backward_pass;

/* Adds an observer to the pass that runs on this thread, unless the pass already has it. The pass borrows it until
 * it ends. */
void ls_pass_observe(ls_pass_observer *observer);

/* Adds `gradient` to the accumulated gradient of `input`. Error messages name the rule with `call` and `i`. */
ls_status ls_gather_gradient(const char *call, int i, ls_tensor *input, ls_tensor *gradient);

/* Records that the walk has passed one use of the leaf. Calls the leaf's hooks at the last use. */
ls_status ls_leaf_passed(ls_backward_pass *pass, ls_leaf *leaf);

/* Records that the leaf is about to receive a gradient in the pass. Fails if the leaf is a shard that is not open. */
ls_status ls_leaf_touch(ls_backward_pass *pass, ls_leaf *leaf);

/* Ensures that the leaf has a gradient tensor. */
ls_status ls_leaf_make_room(ls_leaf *leaf);

/*
 * Ends the pass for all touched leaves: calls the remaining hooks, and discards gradients that a failed pass began.
 * `status` is the status of the pass. Returns `status`, or the status of a hook that failed.
 */
ls_status ls_leaves_settle(ls_backward_pass *pass, ls_status status);

#endif
