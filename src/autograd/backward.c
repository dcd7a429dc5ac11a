#include <stdio.h>
#include <string.h>

#include "autograd/mixing_note.h"
#include "autograd/samples.h"
#include "autograd/tape.h"
#include "base/trace.h"

/* Counts down the leaves among the inputs of a node that the walk leaves behind. */
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
                   "ls_backward: %s saved %s %s that was changed in place afterwards (by %s): change it after the "
                   "backward pass, or %s a copy (ls_clone)",
                   call, result ? "its result" : "a tensor", LS_SHAPE_TEXT(tensor), tensor->storage->changed_by,
                   result ? "change" : "give that call");
}

/* Says which of the elements that a node saved are not what they were. */
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

/* Notes what the pass finds at a node that the loss depends on. */
static void note_findings(ls_backward_pass *pass, const ls_node *node, const ls_tensor *gradient) {
    ls_pass_findings *found = pass->findings;
    for (int i = 0; i < node->input_count && node->has_constant; i++) {
        const char *operation = node->inputs[i] != NULL ? ls_mixing_operation(node->inputs[i]) : NULL;
        if (operation != NULL) {
            found->constant = operation;
            found->divides |= node->output->count == 1;
        }
    }
    if (!node->sums_samples || node->divides || gradient->count != 1 || found->sums == LS_FOUND_SUMS) {
        return;
    }
    found->sum[found->sums].factor = ls_item(gradient) / pass->weight;
    for (int i = 0; i < LS_FOUND_SIZES && i < node->input_count; i++) {
        found->sum[found->sums].sizes[i] = node->inputs[i] != NULL ? (double)node->inputs[i]->count : 0;
    }
    found->sums++;
}

/* The gradient, used up, times the weight of the node's sum over samples. */
static ls_tensor *weighed_gradient(const ls_node *node, ls_tensor *gradient) {
    ls_tensor *weighed = ls_tensor_like_owned("ls_backward", gradient, (ls_dtype)gradient->dtype);
    const double weight = node->parameters.number[LS_NODE_WEIGHT];
    if (weighed != NULL && ls_kernels_of(weighed)->mul_number(ls_stream_of(weighed), weighed,
                                                              (const ls_tensor *[]){gradient}, &weight) != LS_OK) {
        ls_tensor_drop(weighed);
        weighed = NULL;
    }
    ls_tensor_drop(gradient);
    return weighed;
}

/* A gradient among the inputs depends on leaves in ways that no tape knows. */
__attribute__((noinline, cold)) static ls_status refuse_gradient(const ls_node *node) {
    int i = 0;
    while (i + 1 < node->input_count && (node->inputs[i] == NULL || node->inputs[i]->node != &ls_tape_gradient)) {
        i++;
    }
    return ls_fail(
        LS_ERR_UNSUPPORTED,
        "ls_backward: argument %d of %s, %s, is a gradient (ls_grad) or was computed from one, and there are "
        "no gradients of gradients: ls_detach makes a constant of it",
        i + 1, node->op->name, LS_SHAPE_TEXT(node->inputs[i]));
}

/* Checks that the rule of a node can run, and scales the gradient that has reached the node by its weight. */
static inline ls_status prepare_node(ls_backward_pass *pass, ls_node *node) {
    LS_TRY(check_unchanged(node, node->reads, node->op->saves_output));
    if (__builtin_expect(node->of_gradient, 0)) {
        return refuse_gradient(node);
    }
    if (__builtin_expect(pass->findings != NULL, 0) && node->gradient != NULL) {
        note_findings(pass, node, node->gradient);
    }
    if (__builtin_expect(node->weighed, 0) && node->gradient != NULL) {
        node->gradient = weighed_gradient(node, node->gradient);
        return node->gradient != NULL ? LS_OK : ls_error_status();
    }
    return LS_OK;
}

/* Runs the rule of a node. */
static ls_status walk_node(ls_backward_pass *pass, ls_node *node) {
    pass->depends |= node->depends; /* what the rule reads may make this pass's gradients such ones */
    ls_tensor *gradient = node->gradient != NULL ? node->gradient : zeros_like(node->output);
    if (gradient == NULL) {
        return ls_error_status();
    }
    node->gradient = NULL;
    if (node->op->saves_output) {
        node->saved[0] = ls_tensor_hold(node->output);
    }
    const uint64_t began = ls_trace_now();
    ls_status status = node->op->backward(node, gradient);
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

/* The reach of a node on this rank; `due` if the other ranks' reach counts, too. A node that communicates holds its
 * output: the step of the walk and the node have a reference each. */
static inline ls_reach reach_here(const ls_node *node, bool due) {
    if (node->gradient != NULL) {
        return LS_REACH_NOW;
    }
    return due && node->output->references > 2 ? LS_REACH_LATER : LS_REACH_NEVER;
}

/* Whether other ranks may need the node walked in the present pass of this thread. */
static inline bool is_due(const ls_thread_state *thread, const ls_node *node) {
    return node->op->communicates && node->segment == thread->segment;
}

/* Tells the other ranks of a node, which wait for this rank there, that the pass has failed here. Keeps the thread's
 * error. */
static void fail_at_node(ls_node *node) {
    const ls_status status = ls_error_status();
    char message[LS_ERROR_CAPACITY];
    memcpy(message, ls_error_message(), sizeof message);
    ls_reach reach = LS_REACH_FAILED;
    (void)node->op->agree(node, &reach);
    ls_error_restore(status, message);
}

/* Finds the next node at which other ranks can be told of a failure: from `link` towards the beginning of the tape,
 * then in outer scopes. */
static ls_node *find_due(const ls_thread_state *thread, ls_scope *scope, ls_tape_link *link) {
    while (scope != NULL) {
        for (; link != NULL; link = link->previous) {
            ls_node *node = (ls_node *)link;
            if (is_due(thread, node) && node->op->agree != NULL) {
                return node;
            }
        }
        scope = scope->outer;
        link = scope != NULL ? scope->tape.last : NULL;
    }
    return NULL;
}

/* Raises the reach of a node that communicates to the greatest over its ranks. `status` is that of prepare_node here.
 */
__attribute__((noinline)) static ls_status agree_on_reach(ls_backward_pass *pass, ls_node *node, ls_reach *reach,
                                                          ls_status status) {
    const ls_reach here = *reach;
    if (node->op->agree == NULL) {
        *reach = LS_REACH_NOW;
        LS_TRY(status);
    } else if (status != LS_OK) {
        pass->told = true;
        fail_at_node(node);
        return status;
    } else {
        status = node->op->agree(node, reach);
        pass->told = status != LS_OK;
        LS_TRY(status);
    }
    return here != LS_REACH_NOW && *reach == LS_REACH_NOW ? prepare_node(pass, node) : LS_OK;
}

/*
 * One step of the walk: deals with the node and returns the one before it. A node may go on the way, used up or because
 * a hook released its output, and take earlier nodes with it, but never those that the walk has left behind.
 */
static ls_status step(ls_backward_pass *pass, ls_node *node, bool keep_tape, ls_tape_link **previous) {
    ls_tape *tape = node->link.tape;
    ls_tensor *output = ls_tensor_hold(node->output);
    const bool due = is_due(pass->thread, node);
    ls_reach reach = reach_here(node, due);
    ls_status status = reach == LS_REACH_NOW ? prepare_node(pass, node) : LS_OK;
    if (__builtin_expect(due, 0)) {
        status = agree_on_reach(pass, node, &reach, status);
    }
    if (status == LS_OK) {
        status = reach == LS_REACH_NOW ? walk_node(pass, node) : pass_by(pass, node);
    }
    const ls_tape_link *behind = node->link.next;
    if (status == LS_OK && (reach == LS_REACH_NOW ? !keep_tape : due && reach == LS_REACH_NEVER)) {
        ls_tape_discard(node);
    }
    ls_tensor_drop(output);
    *previous = behind != NULL ? behind->previous : tape->last;
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
    ls_node *next = status != LS_OK && !pass->told ? find_due(pass->thread, scope, link) : NULL;
    if (next != NULL) {
        pass->told = true;
        fail_at_node(next);
    }
    return status;
}

/* The callbacks of a scope whose tape is walked become those of the pass, and stay where the tape does. */
static ls_status adopt_callbacks(ls_backward_pass *pass, ls_scope *scope, bool keep_tape) {
    for (const ls_scope_callback *callback = scope->callbacks; keep_tape && callback != NULL;
         callback = callback->next) {
        LS_TRY(ls_scope_add_callback(pass->scope, callback));
    }
    if (!keep_tape) {
        ls_scope_move_callbacks(scope, pass->scope);
    }
    return LS_OK;
}

static ls_status walk_scopes(ls_backward_pass *pass, ls_scope *innermost, bool keep_tape) {
    for (ls_scope *scope = innermost; scope != NULL; scope = scope->outer) {
        if (scope->tape.last != NULL) {
            LS_TRY(adopt_callbacks(pass, scope, keep_tape));
            LS_TRY(walk_tape(pass, scope, keep_tape));
        }
    }
    return LS_OK;
}

/* Returns a callback that watches the next pass, too, to the scope from which the pass took it. This does not depend on
 * the nodes left on the tape, because ranks may hold different outputs. */
static void leave_callback(ls_scope_callback *callback) {
    if (callback->origin != NULL) {
        ls_scope_give_callback(callback->origin, callback);
    } else {
        ls_scope_drop_callback(callback);
    }
}

static ls_status call_back(ls_backward_pass *pass, bool keep_tape) {
    ls_status status = LS_OK;
    while (status == LS_OK && pass->scope->callbacks != NULL) {
        ls_scope_callback *callback = pass->scope->callbacks;
        pass->scope->callbacks = callback->next;
        status = callback->watch->end(callback->user, pass->findings);
        if (status != LS_OK && ls_error_status() != status) {
            (void)ls_fail(status, "ls_backward: a callback at its end failed with %s", ls_status_name(status));
        }
        if (status == LS_OK && !keep_tape && callback->watch->stays != NULL && callback->watch->stays(callback->user)) {
            leave_callback(callback);
        } else {
            ls_scope_drop_callback(callback);
        }
    }
    return status;
}

/* Finds the first callback in this scope and its outer scopes that can tell other ranks of a failure. */
static const ls_scope_callback *find_telling(const ls_scope *scope) {
    const ls_scope_callback *callback = NULL;
    for (; scope != NULL && callback == NULL; scope = scope->outer) {
        callback = scope->callbacks;
        while (callback != NULL && callback->watch->fail == NULL) {
            callback = callback->next;
        }
    }
    return callback;
}

/* Tells the other ranks of a failure where no node is left at which they wait for this rank: they wait at the end of
 * the pass. */
static void fail_at_end(const ls_backward_pass *pass) {
    const ls_scope_callback *callback = pass->told ? NULL : find_telling(pass->scope);
    if (callback == NULL) {
        return;
    }
    const ls_status status = ls_error_status();
    char message[LS_ERROR_CAPACITY];
    memcpy(message, ls_error_message(), sizeof message);
    (void)callback->watch->fail(callback->user, true);
    ls_error_restore(status, message);
}

/* Other ranks may wait in a call that this rank has not reached. That call fails on all ranks, and then the other ranks
 * have no loss either. */
#define TRIES 16

void ls_watch_tell(const ls_pass_watch *watch, void *user, bool begun) {
    ls_scope *scope = ls_thread_present->scope;
    const ls_status status = ls_error_status();
    char message[LS_ERROR_CAPACITY];
    memcpy(message, ls_error_message(), sizeof message);
    bool told = false;
    for (int i = 0; i < TRIES && !told; i++) {
        told = watch->fail(user, begun);
        const bool later = !told && ls_error_status() == LS_ERR_MISMATCH;
        if (!told) {
            ls_error_restore(status, message);
        }
        if (!later) {
            break;
        }
    }
    if (told && status == LS_ERR_MISMATCH && scope->status == LS_ERR_MISMATCH) {
        snprintf(scope->message, sizeof scope->message, "%s", ls_error_message());
    }
}

/* Tells the other ranks the thread's error, because of which this rank runs no pass. They wait for this rank before the
 * pass, or at the last communication on the tape. */
static void fail_before_pass(const ls_thread_state *thread) {
    const ls_scope_callback *callback = find_telling(thread->scope);
    ls_node *node = callback == NULL ? find_due(thread, thread->scope, thread->scope->tape.last) : NULL;
    if (callback != NULL) {
        ls_watch_tell(callback->watch, callback->user, false);
    } else if (node != NULL) {
        fail_at_node(node);
    }
}

/*
 * What a walk leaves on nodes that stay on a tape: gradients that a failed pass did not come to use, and outputs held.
 * First to last, for a node that goes takes only earlier ones with it.
 */
static void settle_nodes(ls_scope *innermost) {
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

/* The gradient to begin with, times `weight`. */
static ls_status seed(ls_tensor *output, ls_tensor *gradient, double weight) {
    if (gradient == NULL) {
        gradient = ls_tensor_like("ls_backward", output, (ls_dtype)output->dtype);
        if (gradient == NULL) {
            return ls_error_status();
        }
        LS_TRY(ls_kernels_of(gradient)->fill(ls_stream_of(gradient), gradient, weight));
    } else if (weight != 1) {
        gradient = ls_mul_number(gradient, weight);
        if (gradient == NULL) {
            return ls_error_status();
        }
    }
    return ls_gather_gradient("ls_backward", 0, output, gradient);
}

bool ls_tape_communicates(void) {
    const ls_thread_state *thread = ls_thread();
    for (const ls_scope *scope = thread != NULL ? thread->scope : NULL; scope != NULL; scope = scope->outer) {
        for (const ls_tape_link *link = scope->tape.last; link != NULL; link = link->previous) {
            const ls_node *node = (const ls_node *)link;
            if (node->op->communicates && node->segment == thread->segment) {
                return true;
            }
        }
    }
    return false;
}

/* Ends what the program has begun and not ended, as if it did so now. */
static ls_status complete(ls_thread_state *thread) {
    for (ls_scope *scope = thread->scope; scope != NULL; scope = scope->outer) {
        for (ls_tape_link *link = scope->tape.first; link != NULL; link = link->next) {
            ls_node *node = (ls_node *)link;
            if (node->op->complete != NULL && node->segment == thread->segment) {
                LS_TRY(node->op->complete(node));
            }
        }
    }
    return LS_OK;
}

static ls_status check_output(const ls_tensor *output, const ls_tensor *gradient) {
    if (!ls_dtype_is_floating((ls_dtype)output->dtype)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_backward: the loss is %s; only floating tensors have gradients",
                       ls_dtype_name((ls_dtype)output->dtype));
    }
    if (gradient == NULL && output->count != 1) {
        return ls_fail(LS_ERR_SHAPE,
                       "ls_backward: the loss must be one number, not %s; reduce it (ls_mean), or give "
                       "ls_backward_with the gradient to begin with",
                       LS_SHAPE_TEXT(output));
    }
    if (gradient != NULL && (gradient->dtype != output->dtype || !ls_tensor_same_shape(gradient, output))) {
        return ls_fail(LS_ERR_SHAPE, "ls_backward_with: the gradient is %s of %s, the output %s of %s",
                       LS_SHAPE_TEXT(gradient), ls_dtype_name((ls_dtype)gradient->dtype), LS_SHAPE_TEXT(output),
                       ls_dtype_name((ls_dtype)output->dtype));
    }
    if (gradient != NULL && ls_tensor_device(gradient) != ls_tensor_device(output)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_backward_with: the gradient is on %s, the output on %s",
                       ls_tensor_device(gradient)->name, ls_tensor_device(output)->name);
    }
    if (!output->needs_grad && !ls_tape_communicates()) {
        return ls_fail(LS_ERR_STATE, "ls_backward: the loss has no history: nothing that it was made from requires a "
                                     "gradient, or what does went through a comparison, ls_argmax, integers or "
                                     "ls_detach, or recording was off (ls_no_grad)");
    }
    if (output->needs_grad && output->leaf == NULL && (output->node == NULL || output->node->tape == NULL)) {
        return ls_fail(LS_ERR_STATE, "ls_backward: the tape of this loss was already walked and is used up; keep_tape "
                                     "in ls_backward_with keeps it");
    }
    return LS_OK;
}

/* Whether the same callback is one of a scope that is told before. */
static bool is_told(const ls_scope *innermost, const ls_scope *scope, const ls_scope_callback *callback) {
    bool told = false;
    for (; innermost != scope && !told; innermost = innermost->outer) {
        told =
            innermost->tape.last != NULL && ls_scope_find_callback(innermost, callback->watch, callback->user) != NULL;
    }
    return told;
}

/* The other ranks may have a loss that is right. */
static ls_status check_loss(const ls_thread_state *thread, const ls_batch_loss *loss) {
    const ls_status status = ls_batch_loss_check(loss);
    if (status != LS_OK) {
        fail_before_pass(thread);
    }
    return status;
}

/* Tells those who watch, with what the loss is made of if any of them asks; they may weigh it. */
__attribute__((noinline)) static ls_status tell_watches(ls_backward_pass *pass, const ls_tensor *output, bool seeded,
                                                        ls_pass_findings *room) {
    ls_scope *innermost = pass->scope->outer;
    ls_batch_loss loss = {.weight = 1};
    bool traced = false;
    bool agreed = false;
    for (int telling = 0; telling < 2; telling++) {
        for (ls_scope *scope = innermost; scope != NULL; scope = scope->outer) {
            ls_scope_callback *callback = scope->tape.last != NULL ? scope->callbacks : NULL;
            for (; callback != NULL; callback = callback->next) {
                if (callback->watch->begin == NULL || is_told(innermost, scope, callback)) {
                    continue;
                }
                if (!traced) {
                    ls_samples_trace(&loss, innermost, output, seeded);
                    LS_TRY(check_loss(pass->thread, &loss));
                    traced = true;
                }
                if (telling == 0) {
                    agreed = agreed || callback->watch->agrees(callback->user, &loss);
                } else {
                    LS_TRY(callback->watch->begin(callback->user, &loss, agreed));
                }
            }
        }
    }
    pass->weight = loss.weight;
    if (loss.watched && !seeded) {
        *room = (ls_pass_findings){0};
        pass->findings = room;
    }
    return LS_OK;
}

/* `room` is for the findings of the pass. */
static inline ls_status begin_pass(ls_backward_pass *pass, const ls_tensor *output, bool seeded,
                                   ls_pass_findings *room) {
    ls_scope *innermost = pass->scope->outer;
    bool watched = false;
    for (const ls_scope *scope = innermost; scope != NULL; scope = scope->outer) {
        watched = watched || scope->callbacks != NULL;
    }
    return watched ? tell_watches(pass, output, seeded, room) : LS_OK;
}

static ls_status run_pass(ls_backward_pass *pass, ls_tensor *output, const ls_backward_options *options) {
    ls_scope *innermost = pass->scope->outer;
    ls_pass_findings findings;
    ls_status status = begin_pass(pass, output, options->gradient != NULL, &findings);
    const bool begun = status == LS_OK;
    if (status == LS_OK && output->needs_grad) {
        status = seed(output, options->gradient, pass->weight);
    }
    if (status == LS_OK) {
        status = walk_scopes(pass, innermost, options->keep_tape);
    }
    status = ls_leaves_settle(pass, status);
    if (status == LS_OK) {
        status = call_back(pass, options->keep_tape);
    } else if (begun) {
        fail_at_end(pass);
    }
    if (status != LS_OK || options->keep_tape) {
        settle_nodes(innermost);
    }
    return status;
}

/* What can fail on this rank alone before the pass begins. */
static ls_status prepare_pass(ls_thread_state *thread, const ls_tensor *output, const ls_tensor *gradient) {
    if (!ls_tensor_is_here("ls_backward", output) ||
        (gradient != NULL && !ls_tensor_is_here("ls_backward_with", gradient))) {
        return ls_error_status();
    }
    LS_TRY(complete(thread));
    return check_output(output, gradient);
}

/* Opens the pass, runs it, closes it. */
static ls_status backward(ls_thread_state *thread, ls_tensor *output, const ls_backward_options *options) {
    if (thread->walking != NULL) {
        return ls_fail(LS_ERR_STATE, "ls_backward: called inside a backward pass, from a hook or a rule");
    }
    const ls_status prepared = prepare_pass(thread, output, options->gradient);
    if (prepared != LS_OK) {
        fail_before_pass(thread);
        return prepared;
    }
    ls_backward_pass pass = {.thread = thread,
                             .scope = ls_scope_begin(),
                             .weight = 1,
                             .depends = options->gradient != NULL && options->gradient->node == &ls_tape_gradient};
    if (pass.scope == NULL) {
        return ls_error_status();
    }
    thread->walking = &pass;
    thread->pass++;
    const bool no_grad = ls_no_grad(true);
    ls_tensor_hold(output); /* a hook may release it */
    const ls_status status = run_pass(&pass, output, options);
    ls_tensor_drop(output);
    (void)ls_no_grad(no_grad);
    thread->walking = NULL;
    while (thread->scope != pass.scope) { /* a hook left it open */
        (void)ls_scope_end(thread->scope);
    }
    const ls_status noted = ls_scope_close(pass.scope);
    return status != LS_OK ? status : noted;
}

/* The loss is NULL: what should have made it failed, or the caller erred. */
static ls_status refuse_missing(ls_thread_state *thread) {
    if (thread->scope->status != LS_OK) {
        ls_error_restore(thread->scope->status, thread->scope->message);
    } else if (!ls_scope_explains_null(thread)) {
        (void)ls_fail(LS_ERR_ARGUMENT, "ls_backward: the loss is NULL");
    }
    if (thread->walking == NULL) {
        fail_before_pass(thread);
    }
    return ls_scope_failed_status();
}

ls_status ls_backward_with(ls_tensor *output, const ls_backward_options *options) {
    static const ls_backward_options defaults;
    ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return LS_ERR_MEMORY;
    }
    if (output == NULL) {
        return refuse_missing(thread);
    }
    const ls_status status = backward(thread, output, options != NULL ? options : &defaults);
    if (status != LS_OK) {
        (void)ls_scope_failed();
    }
    return status;
}

ls_status ls_backward(ls_tensor *loss) {
    return ls_backward_with(loss, NULL);
}

ls_status ls_watch_pass(const ls_pass_watch *watch, void *user) {
    ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return LS_ERR_MEMORY;
    }
    const ls_scope_callback callback = {.watch = watch, .user = user, .hold = watch->hold};
    return ls_scope_add_callback(thread->scope, &callback) == LS_OK ? LS_OK : ls_scope_failed_status();
}
