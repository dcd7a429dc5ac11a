/* The backward pass: checks, start, walk and end. */
#include "autograd/backward.h"

#include "autograd/captured_step.h"
#include "comm/public_call.h"
#include "tensor/capture.h"

/*
 * Returns a copy of the caller's initial gradient, scaled by `weight`. The copy is needed because the initial gradient
 * may be the gradient of a leaf, which the pass changes. Replays cannot change factors of 16-bit gradients.
 */
static ls_tensor *scaled_copy(ls_tensor *gradient, double weight, ls_capture *capture) {
    if (capture == NULL || !ls_capture_changes_factors(capture)) {
        return weight != 1 ? ls_mul_number(gradient, weight) : ls_clone(gradient);
    }
    if (gradient->dtype != LS_F32 && gradient->dtype != LS_F64) {
        ls_capture_refuse(capture, "ls_backward_with", "begins with a gradient of 16-bit floats: use f32");
        return weight != 1 ? ls_mul_number(gradient, weight) : ls_clone(gradient);
    }
    ls_tensor *scaled = ls_tensor_like("ls_backward", gradient, (ls_dtype)gradient->dtype);
    return scaled != NULL && ls_scale_gradient(scaled, gradient, weight, LS_FACTOR_OF_LOSS) == LS_OK ? scaled : NULL;
}

/* Sets the initial gradient of the output, scaled by `weight`. */
static ls_status seed(ls_tensor *output, ls_tensor *given, double weight) {
    ls_capture *capture = ls_thread_present->capture;
    ls_tensor *gradient = given != NULL ? scaled_copy(given, weight, capture)
                                        : ls_tensor_like("ls_backward", output, (ls_dtype)output->dtype);
    if (gradient == NULL) {
        return ls_error_status();
    }
    if (given == NULL) {
        LS_TRY(ls_kernels_of(gradient)->fill(ls_stream_of(gradient), gradient, weight));
        if (__builtin_expect(capture != NULL, 0)) {
            ls_capture_factor(capture, LS_FACTOR_OF_LOSS);
        }
    }
    return ls_gather_gradient("ls_backward", 0, output, gradient);
}

bool ls_tape_communicates(void) {
    const ls_thread_state *thread = ls_thread();
    for (const ls_scope *scope = thread != NULL ? thread->scope : NULL; scope != NULL; scope = scope->outer) {
        for (const ls_tape_link *link = scope->tape.last; link != NULL; link = link->previous) {
            const ls_node *node = (const ls_node *)link;
            if (ls_is_due(thread, node)) {
                return true;
            }
        }
    }
    return false;
}

/* Completes asynchronous operations that the program has started but not finished: all, even if one fails, because
 * other ranks wait for them. Returns the first failure. */
static ls_status complete(ls_thread_state *thread) {
    ls_saved_error first = {.status = LS_OK};
    for (ls_scope *scope = thread->scope; scope != NULL; scope = scope->outer) {
        for (ls_tape_link *link = scope->tape.first; link != NULL; link = link->next) {
            ls_node *node = (ls_node *)link;
            if (node->op->complete != NULL && node->segment == thread->segment) {
                ls_error_save_first(&first, node->op->complete(node));
            }
        }
    }
    return ls_error_put_back_first(&first);
}

static ls_status check_output(const ls_tensor *output, const ls_tensor *gradient) {
    if (!ls_dtype_is_floating((ls_dtype)output->dtype)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_backward: the loss is %s; only floating-point tensors have gradients",
                       ls_dtype_name((ls_dtype)output->dtype));
    }
    if (gradient == NULL && output->count != 1) {
        return ls_fail(LS_ERR_SHAPE,
                       "ls_backward: the loss must be one number, not %s; reduce it (ls_mean), or pass the first "
                       "gradient to ls_backward_with",
                       LS_SHAPE_TEXT(output));
    }
    if (gradient != NULL && (gradient->dtype != output->dtype || !ls_tensor_same_shape(gradient, output))) {
        return ls_fail(LS_ERR_SHAPE, "ls_backward_with: the gradient is %s of %s, but the output is %s of %s",
                       LS_SHAPE_TEXT(gradient), ls_dtype_name((ls_dtype)gradient->dtype), LS_SHAPE_TEXT(output),
                       ls_dtype_name((ls_dtype)output->dtype));
    }
    if (gradient != NULL && ls_tensor_device(gradient) != ls_tensor_device(output)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_backward_with: the gradient is on %s, but the output is on %s",
                       ls_tensor_device(gradient)->name, ls_tensor_device(output)->name);
    }
    if (!output->needs_grad && !ls_tape_communicates()) {
        return ls_fail(
            LS_ERR_STATE,
            "ls_backward: the loss has no history: no tensor that it was computed from requires a gradient, or "
            "recording was off (ls_no_grad), or a comparison, ls_argmax, integers or ls_detach cut the history");
    }
    if (output->needs_grad && output->leaf == NULL && (output->node == NULL || output->node->tape == NULL)) {
        return ls_fail(LS_ERR_STATE, "ls_backward: an earlier backward pass has used up the tape of this loss; set "
                                     "keep_tape in ls_backward_with to keep it");
    }
    return LS_OK;
}

static ls_status run_pass(ls_backward_pass *pass, ls_tensor *output, const ls_backward_options *options) {
    ls_scope *innermost = pass->scope->outer;
    ls_pass_findings findings;
    if (options->gradient != NULL) {
        ls_capture_note_here("ls_backward_with", options->gradient);
    }
    ls_status status = ls_begin_watches(pass, output, options->gradient != NULL, &findings);
    const bool begun = status == LS_OK;
    if (status == LS_OK && output->needs_grad) {
        status = seed(output, options->gradient, pass->weight);
        if (status != LS_OK) {
            pass->told = ls_fail_at_nodes(pass, innermost, innermost->tape.last, false);
        }
    }
    if (status == LS_OK) {
        status = ls_walk_scopes(pass, innermost, options->keep_tape);
    }
    status = ls_leaves_settle(pass, status);
    if (status == LS_OK) {
        status = ls_call_watches_back(pass);
    } else if (begun) {
        ls_fail_at_end(pass);
    }
    if (status != LS_OK) {
        ls_abandon_watches(pass);
    }
    ls_settle_watches(pass, options->keep_tape);
    if (status != LS_OK || options->keep_tape) {
        ls_settle_nodes(innermost);
    }
    return status;
}

/* Before the pass, runs the checks that can fail on this rank alone. */
static ls_status prepare_pass(ls_thread_state *thread, const ls_tensor *output, const ls_tensor *gradient) {
    LS_TRY(complete(thread));
    if (!ls_tensor_is_here("ls_backward", output) ||
        (gradient != NULL && !ls_tensor_is_here("ls_backward_with", gradient))) {
        return ls_error_status();
    }
    return check_output(output, gradient);
}

/* Opens the pass, runs it and closes it. */
static ls_status backward(ls_thread_state *thread, ls_tensor *output, const ls_backward_options *options) {
    if (thread->walking != NULL) {
        return ls_fail(LS_ERR_STATE, "ls_backward: called during a backward pass, by a hook or a backward function");
    }
    const ls_status prepared = prepare_pass(thread, output, options->gradient);
    if (prepared != LS_OK) {
        ls_fail_before_pass(thread->scope, ls_tensor_is_freed(output) ? NULL : output);
        return prepared;
    }
    ls_backward_pass pass = {.thread = thread,
                             .scope = ls_scope_open(),
                             .weight = 1,
                             .depends = options->gradient != NULL && options->gradient->node == &ls_tape_gradient};
    if (pass.scope == NULL) {
        const ls_status status = ls_error_status();
        ls_fail_before_pass(thread->scope, output);
        return status;
    }
    thread->walking = &pass;
    thread->pass++;
    (void)ls_no_grad(true);
    ls_tensor_hold(output); /* a hook may release the tensor */
    const ls_status status = run_pass(&pass, output, options);
    ls_tensor_drop(output);
    thread->walking = NULL;
    ls_scope_end_inner(pass.scope); /* a hook may leave a scope open */
    const ls_status noted = ls_scope_close(pass.scope);
    return status != LS_OK ? status : noted;
}

/*
 * Returns whether the initial gradient may be missing because the operation that made it failed. Outside any scope, an
 * earlier failure tells nothing about this call.
 */
static bool lacks_gradient(const ls_thread_state *thread, const ls_backward_options *options) {
    return options != NULL && options->gradient == NULL && thread->scope->lost;
}

/* The loss is NULL if the operation that made it failed, or if the caller erred. */
static ls_status refuse_missing(ls_thread_state *thread) {
    if (thread->scope->status != LS_OK) {
        ls_error_restore(thread->scope->status, thread->scope->message);
    } else {
        (void)ls_scope_fail_null("ls_backward: the loss");
    }
    if (thread->walking == NULL) {
        ls_saved_error cause;
        ls_error_save(&cause);
        (void)complete(thread);
        (void)ls_error_put_back(&cause);
        ls_fail_before_pass(thread->scope, NULL);
    }
    return ls_scope_failed_status();
}

ls_status ls_backward_with(ls_tensor *output, const ls_backward_options *options) {
    static const ls_backward_options defaults;
    ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return LS_ERR_MEMORY;
    }
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_BACKWARD);
    if (output == NULL || lacks_gradient(thread, options)) {
        return ls_public_end(outer, refuse_missing(thread));
    }
    const ls_status status = ls_public_end(outer, backward(thread, output, options != NULL ? options : &defaults));
    if (status != LS_OK) {
        (void)ls_scope_failed_status();
    }
    return status;
}

ls_status ls_backward(ls_tensor *loss) {
    return ls_backward_with(loss, NULL);
}
