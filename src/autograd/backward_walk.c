/* The walk of a backward pass: from the innermost tape outwards, newest node first. */
#include "autograd/backward.h"
#include "autograd/captured_step.h"
#include "autograd/mixing_note.h"
#include "autograd/recorded.h"
#include "base/trace.h"
#include "comm/poll.h"
#include "tensor/capture.h"

/* Decrements the number of remaining uses of each leaf among the inputs of a node that the walk has passed. */
static ls_status pass_by(ls_backward_pass *pass, ls_node *node) {
    for (int i = 0; i < node->input_count; i++) {
        if (node->inputs[i] != NULL && node->inputs[i]->leaf != NULL && ls_wants(node, i)) {
            LS_TRY(ls_leaf_passed(pass, node->inputs[i]->leaf));
        }
    }
    return LS_OK;
}

static ls_tensor *zeros_like(const ls_tensor *tensor) {
    ls_tensor *zeros = ls_tensor_like_owned("ls_backward", tensor, (ls_dtype)tensor->dtype);
    if (zeros != NULL && ls_kernels_of(zeros)->fill(ls_stream_of(zeros), zeros, 0) != LS_OK) {
        ls_tensor_drop(zeros);
        return ls_scope_failed();
    }
    return zeros;
}

ls_status ls_refuse_changed(const char *call, const ls_tensor *tensor, bool result) {
    return ls_fail(LS_ERR_STATE,
                   "ls_backward: %s saved %s %s that was later modified in place (by %s): modify it after the backward "
                   "pass, or %s a copy (ls_clone)",
                   call, result ? "its result" : "a tensor", LS_SHAPE_TEXT(tensor), tensor->storage->changed_by,
                   result ? "modify" : "pass that call");
}

/* Reports which of the tensors that the node needs was changed in place after the node was recorded. */
__attribute__((noinline, cold)) static ls_status refuse_changed(const ls_node *node, unsigned inputs) {
    const ls_tensor *tensor = node->output;
    for (; inputs != 0; inputs &= inputs - 1) {
        const int k = __builtin_ctz(inputs);
        tensor = node->inputs[k]->storage->version != node->versions[k] ? node->inputs[k] : tensor;
    }
    return ls_refuse_changed(node->op->name, tensor, tensor == node->output);
}

static inline ls_status check_unchanged(const ls_node *node, unsigned inputs, bool output) {
    uint32_t changed = output ? node->output->storage->version ^ node->versions[LS_NODE_INPUTS] : 0;
    for (unsigned left = inputs; left != 0; left &= left - 1) {
        const int k = __builtin_ctz(left);
        changed |= node->inputs[k]->storage->version ^ node->versions[k];
    }
    return changed == 0 ? LS_OK : refuse_changed(node, inputs);
}

ls_status ls_check_unchanged(const ls_node *node, unsigned inputs, bool output) {
    return check_unchanged(node, inputs, output);
}

ls_status ls_scale_gradient(ls_tensor *scaled, const ls_tensor *gradient, double weight, int factor) {
    ls_capture *capture = ls_thread_present->capture;
    LS_TRY(ls_kernels_of(scaled)->mul_number(ls_stream_of(scaled), scaled, &gradient, &weight));
    if (capture != NULL) {
        ls_capture_factor(capture, factor);
    }
    return LS_OK;
}

/* Returns the gradient times the node's scaling factor for sums over samples. Consumes `gradient`. */
static ls_tensor *scaled_gradient(const ls_node *node, ls_tensor *gradient) {
    ls_tensor *scaled = ls_tensor_like_owned("ls_backward", gradient, (ls_dtype)gradient->dtype);
    const int factor = node->sums_samples ? LS_FACTOR_OF_SUMS + node->sum_index : LS_FACTOR_NONE;
    if (scaled != NULL &&
        ls_scale_gradient(scaled, gradient, node->parameters.number[LS_NODE_WEIGHT], factor) != LS_OK) {
        ls_tensor_drop(scaled);
        scaled = NULL;
    }
    ls_tensor_drop(gradient);
    return scaled;
}

/* Reports that an input is a gradient that depends on leaves, and that this dependence was not recorded. */
__attribute__((noinline, cold)) static ls_status refuse_gradient(const ls_node *node) {
    int i = 0;
    while (i + 1 < node->input_count && (node->inputs[i] == NULL || node->inputs[i]->node != &ls_tape_gradient)) {
        i++;
    }
    return ls_fail(LS_ERR_UNSUPPORTED,
                   "ls_backward: argument %d of %s, %s, is a gradient (ls_grad) or was computed from one, but "
                   "gradients of gradients are not supported: use ls_detach to treat it as a constant",
                   i + 1, node->op->name, LS_SHAPE_TEXT(node->inputs[i]));
}

/* Checks that the rule of a node can run, and scales the gradient of the node's output. */
static inline ls_status prepare_node(ls_backward_pass *pass, ls_node *node) {
    LS_TRY(check_unchanged(node, node->reads, node->op->saves_output));
    if (__builtin_expect(node->of_gradient, 0)) {
        return refuse_gradient(node);
    }
    if (__builtin_expect(pass->findings != NULL, 0) && node->gradient != NULL) {
        ls_note_findings(pass, node, node->gradient);
    }
    if (__builtin_expect(node->weighed, 0) && node->gradient != NULL) {
        node->gradient = scaled_gradient(node, node->gradient);
        return node->gradient != NULL ? LS_OK : ls_error_status();
    }
    return LS_OK;
}

/* Runs the rule of a node. */
static ls_status walk_node(ls_backward_pass *pass, ls_node *node) {
    pass->depends |= node->depends; /* the gradients of this pass then depend on leaves, too */
    ls_tensor *gradient = node->gradient != NULL ? node->gradient : zeros_like(node->output);
    if (gradient == NULL) {
        return ls_error_status();
    }
    node->gradient = NULL;
    if (node->op->saves_output) {
        node->saved[0] = ls_tensor_hold(node->output);
    }
    const uint64_t began = ls_trace_now();
    if (__builtin_expect(pass->thread->capture != NULL, 0)) {
        pass->thread->capture->operation = NULL; /* messages of backward rules name no operation */
    }
    ls_status status = node->op->backward(node, gradient);
    ls_comm_poll();
    if (__builtin_expect(pass->thread->capture != NULL, 0)) {
        ls_capture_poll(pass->thread->capture);
    }
    ls_trace_add(LS_TRACE_BACKWARD, began, -1, "%s backward", node->op->name);
    if (node->op->saves_output) {
        node->saved[0] = NULL;
        ls_tensor_drop(node->output); /* not the last reference: the node holds one while it is walked */
    }
    ls_tensor_drop(gradient);
    if (status == LS_OK) {
        status = pass_by(pass, node);
    }
    ls_scope_sweep(pass->scope);
    return status;
}

/*
 * Returns the reach of a node on this rank. If `due`, the other ranks' reach counts, too. A communicating node holds
 * its output, so the output has two references here: the node's and the walk's.
 */
static inline ls_reach reach_here(const ls_node *node, bool due) {
    if (node->gradient != NULL) {
        return LS_REACH_NOW;
    }
    return due && node->output->references > 2 ? LS_REACH_LATER : LS_REACH_NEVER;
}

/*
 * Raises the reach of a communicating node to the maximum over its ranks. `status` is this rank's result of
 * prepare_node.
 */
__attribute__((noinline)) static ls_status agree_on_reach(ls_backward_pass *pass, ls_node *node, ls_reach *reach,
                                                          ls_status status) {
    const ls_reach here = *reach;
    if (node->op->agree == NULL) {
        *reach = LS_REACH_NOW;
        LS_TRY(status);
    } else if (status != LS_OK) {
        pass->told = ls_fail_at_node(node);
        return status;
    } else {
        status = node->op->agree(node, reach);
        pass->told = status != LS_OK;
        LS_TRY(status);
    }
    return here != LS_REACH_NOW && *reach == LS_REACH_NOW ? prepare_node(pass, node) : LS_OK;
}

/*
 * Processes one node and returns the previous node. The node may be freed here, because the pass no longer needs it or
 * because a hook released its output. Earlier nodes may be freed with it, but never nodes that the walk has passed.
 */
static ls_status step(ls_backward_pass *pass, ls_node *node, bool keep_tape, ls_tape_link **previous) {
    ls_tape *tape = node->link.tape;
    ls_tensor *output = ls_tensor_hold(node->output);
    const bool due = ls_is_due(pass->thread, node);
    ls_reach reach = reach_here(node, due);
    const ls_capture *capture = pass->thread->capture;
    if (__builtin_expect(capture != NULL && node->captured != capture->serial, 0) && reach != LS_REACH_NEVER) {
        ls_capture_refuse_here("ls_backward",
                               "reaches an operation that was recorded before the step, and a replay would "
                               "use its old values: run the whole forward pass in the step");
    }
    ls_status status = reach == LS_REACH_NOW ? prepare_node(pass, node) : LS_OK;
    if (__builtin_expect(due, 0)) {
        status = agree_on_reach(pass, node, &reach, status);
    }
    if (status == LS_OK) {
        status = reach == LS_REACH_NOW ? walk_node(pass, node) : pass_by(pass, node);
    }
    const ls_tape_link *next = node->link.next;
    if (status == LS_OK && (reach == LS_REACH_NOW ? !keep_tape : due && reach == LS_REACH_NEVER)) {
        ls_tape_discard(node);
    }
    ls_tensor_drop(output);
    *previous = next != NULL ? next->previous : tape->last;
    if (*previous == &node->link) {
        *previous = node->link.previous;
    }
    return status;
}

static ls_status walk_tape(ls_backward_pass *pass, ls_scope *scope, bool keep_tape) {
    ls_tape_link *link = scope->tape.last;
    ls_status status = LS_OK;
    while (link != NULL && status == LS_OK) {
        status = step(pass, (ls_node *)link, keep_tape, &link);
    }
    if (status != LS_OK) {
        pass->told = ls_fail_at_nodes(pass, scope, link, pass->told);
    }
    return status;
}

ls_status ls_walk_scopes(ls_backward_pass *pass, ls_scope *innermost, bool keep_tape) {
    for (ls_scope *scope = innermost; scope != NULL; scope = scope->outer) {
        LS_TRY(scope->tape.last != NULL ? walk_tape(pass, scope, keep_tape) : LS_OK);
    }
    return LS_OK;
}

/*
 * Frees leftovers of a walk on nodes that stay on a tape: unused gradients of a failed pass, and held outputs. Proceeds
 * from the first node to the last, because freeing a node can only free earlier nodes.
 */
void ls_settle_nodes(ls_scope *innermost) {
    for (ls_scope *scope = innermost; scope != NULL; scope = scope->outer) {
        ls_tape_link *link = scope->tape.first;
        while (link != NULL) {
            ls_node *node = (ls_node *)link;
            link = link->next;
            ls_tensor *gradient = node->gradient;
            node->gradient = NULL;
            ls_tensor_drop(gradient);
            if (node->holds_output && !node->op->communicates) {
                node->holds_output = false;
                ls_tensor_drop(node->output);
            }
        }
    }
}

/* ---- nodes that a rule has recorded ------------------------------------------------------------------------------ */

static ls_status refuse_communication(const char *name, const char *operation) {
    return ls_fail(LS_ERR_UNSUPPORTED,
                   "ls_recompute: %s communicates (%s), which the second forward pass must not repeat: recompute only "
                   "modules that do not communicate",
                   name, operation);
}

/* Returns whether the leaf is an input of the rule's node. */
static bool is_counted(const ls_node *rule, const ls_leaf *leaf) {
    for (int i = 0; i < rule->input_count; i++) {
        if (rule->inputs[i] != NULL && rule->inputs[i]->leaf == leaf) {
            return true;
        }
    }
    return false;
}

/*
 * Adds a new node's uses of leaves to the counts of the pass. The pass cannot know when the gradient of a leaf is
 * complete if only recorded nodes use the leaf, so such a leaf is rejected.
 */
static ls_status count_uses(const ls_backward_pass *pass, const char *name, const ls_node *rule, const ls_scope *scope,
                            const ls_node *node) {
    for (int i = 0; i < node->input_count; i++) {
        const ls_tensor *input = node->inputs[i];
        if (input == NULL || input->leaf == NULL || !ls_wants(node, i)) {
            continue;
        }
        if (input->scope != scope && !is_counted(rule, input->leaf)) {
            return ls_fail(LS_ERR_UNSUPPORTED,
                           "ls_recompute: %s reads a tensor %s that requires a gradient, but is neither an input nor a "
                           "parameter of the module: add it (ls_module_add_parameter), or pass it as an input",
                           name, LS_SHAPE_TEXT(input));
        }
        if (input->leaf->pass == pass->thread->pass) {
            input->leaf->remaining++;
        }
    }
    return LS_OK;
}

static ls_status begin_recorded(const ls_backward_pass *pass, const char *name, const ls_node *rule,
                                const ls_scope *scope) {
    ls_status status = scope->callbacks != NULL ? refuse_communication(name, "ls_data_parallel") : LS_OK;
    for (const ls_tape_link *link = scope->tape.first; link != NULL && status == LS_OK; link = link->next) {
        const ls_node *node = (const ls_node *)link;
        status = node->op->communicates ? refuse_communication(name, node->op->name)
                                        : count_uses(pass, name, rule, scope, node);
    }
    return status;
}

ls_status ls_walk_recorded(const char *name, const ls_node *rule, ls_scope *scope, ls_tensor *output,
                           ls_tensor *gradient) {
    ls_backward_pass *pass = ls_thread()->walking;
    LS_TRY(begin_recorded(pass, name, rule, scope));
    if (!output->needs_grad) {
        return LS_OK;
    }
    ls_scope *before = pass->scope;
    ls_scope *rules = ls_scope_open();
    if (rules == NULL) {
        return ls_error_status();
    }
    pass->scope = rules;
    (void)ls_no_grad(true);
    ls_status status = ls_gather_gradient(name, 0, output, gradient);
    ls_tape_link *link = scope->tape.last;
    while (link != NULL && status == LS_OK) {
        status = step(pass, (ls_node *)link, false, &link);
    }
    if (status != LS_OK) {
        ls_settle_nodes(scope);
    }
    pass->scope = before;
    ls_scope_end_inner(rules); /* a hook may leave a scope open */
    const ls_status noted = ls_scope_close(rules);
    return status != LS_OK ? status : noted;
}
