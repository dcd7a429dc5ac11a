/* Declarations shared by the files of the backward pass. */
#ifndef LS_AUTOGRAD_BACKWARD_H
#define LS_AUTOGRAD_BACKWARD_H

#include "autograd/samples.h"
#include "autograd/tape.h"

/* Returns whether other ranks may need this node in the current pass of this thread. */
static inline bool ls_is_due(const ls_thread_state *thread, const ls_node *node) {
    return node->op->communicates && node->segment == thread->segment;
}

/*
 * backward_failure.c. Each function keeps the thread's error.
 *   - ls_fail_at_node takes part in the communication of a node after a failure. Returns true for a collective, which
 *     fails on all its ranks. Returns false for a message: only the sender of a received message gets the error; the
 *     gradient of a sent message is received and dropped.
 *   - ls_fail_at_nodes does this at the communicating nodes from `link` toward the beginning of the tape, then in outer
 *     scopes. `told` is whether the ranks of a collective already fail. Returns the new value of `told`.
 *   - ls_fail_at_end notifies the ranks that wait at the end of the pass.
 *   - ls_fail_before_pass notifies the other ranks that this rank does not run the pass from `output`, which is NULL if
 *     there is no loss.
 *   - ls_abandon_watches notifies the watches of a pass that has failed.
 */
bool ls_fail_at_node(ls_node *node);
bool ls_fail_at_nodes(const ls_backward_pass *pass, ls_scope *scope, ls_tape_link *link, bool told);
void ls_fail_at_end(const ls_backward_pass *pass);
void ls_fail_before_pass(ls_scope *innermost, const ls_tensor *output);
void ls_abandon_watches(const ls_backward_pass *pass);

/*
 * backward_walk.c. ls_scale_gradient computes scaled = weight * gradient; in a captured step, replays may change the
 * weight, which is scaling factor number `factor` (ls_capture_factor). ls_walk_scopes walks the tapes of the scope and
 * its outer scopes. ls_settle_nodes then frees the leftovers on nodes that stay on a tape: unused gradients of a failed
 * pass, and held outputs.
 */
ls_status ls_scale_gradient(ls_tensor *scaled, const ls_tensor *gradient, double weight, int factor);
ls_status ls_walk_scopes(ls_backward_pass *pass, ls_scope *innermost, bool keep_tape);
void ls_settle_nodes(ls_scope *innermost);

/*
 * loss_findings.c: records what the pass finds at a node on which the loss depends, for the watches. `gradient` is the
 * gradient of the node's output.
 */
void ls_note_findings(ls_backward_pass *pass, const ls_node *node, const ls_tensor *gradient);

/*
 * watch_reach.c. ls_watch_joins returns whether a callback of the scope takes part in a pass from the loss; if there is
 * no loss, whether it may. ls_drop_watches drops the callbacks that no pass can reach. See ls_samples_reach.
 */
bool ls_watch_joins(const ls_scope *scope, const ls_scope_callback *callback, const ls_batch_loss *loss);
void ls_drop_watches(const ls_batch_loss *loss);

/*
 * backward_watches.c.
 *   - ls_begin_watches adds copies of the callbacks that take part to the pass, and notifies the watches that the pass
 *     begins; `room` is memory for the findings of the pass.
 *   - ls_call_watches_back calls the watches at the end of the pass.
 *   - ls_settle_watches drops the callbacks that do not stay for later passes.
 */
ls_status ls_begin_watches(ls_backward_pass *pass, const ls_tensor *output, bool seeded, ls_pass_findings *room);
ls_status ls_call_watches_back(ls_backward_pass *pass);
void ls_settle_watches(const ls_backward_pass *pass, bool keep_tape);

#endif
