/* The watches of a backward pass: notified of the composition of the loss, and called at the end. */
#include "autograd/backward.h"

/*
 * Gives a callback that also watches the next pass back to the scope from which the pass took it, and drops any other
 * callback. This does not depend on the nodes left on the tape, because ranks may hold different outputs.
 */
static void leave_callback(ls_scope_callback *callback, bool keep_tape) {
    const ls_pass_watch *watch = callback->watch;
    const ls_stay stay = watch->stays != NULL && !keep_tape ? watch->stays(callback->user) : LS_STAYS_NOT;
    if (stay != LS_STAYS_NOT && callback->origin != NULL) {
        callback->conditional = stay == LS_STAYS_IF_REACHED;
        ls_scope_give_callback(callback->origin, callback);
    } else {
        ls_scope_drop_callback(callback);
    }
}

/* Removes the first callback from the pass. */
static ls_scope_callback *take_callback(const ls_backward_pass *pass) {
    ls_scope_callback *callback = pass->scope->callbacks;
    pass->scope->callbacks = callback->next;
    return callback;
}

ls_status ls_call_watches_back(ls_backward_pass *pass, bool keep_tape) {
    ls_status status = LS_OK;
    while (status == LS_OK && pass->scope->callbacks != NULL) {
        ls_scope_callback *callback = take_callback(pass);
        status = callback->watch->end(callback->user, pass->findings);
        if (status != LS_OK && ls_error_status() != status) {
            (void)ls_fail(status, "ls_backward: a callback at the end of the backward pass failed with %s",
                          ls_status_name(status));
        }
        leave_callback(callback, keep_tape);
    }
    return status;
}

void ls_leave_watches(ls_backward_pass *pass, bool keep_tape) {
    while (pass->scope->callbacks != NULL) {
        leave_callback(take_callback(pass), keep_tape);
    }
}

/* Returns whether an inner scope has the same callback, which was already notified. */
static bool is_told(const ls_thread_state *thread, const ls_scope *innermost, const ls_scope *scope,
                    const ls_scope_callback *callback) {
    bool told = false;
    for (; innermost != scope && !told; innermost = innermost->outer) {
        const ls_scope_callback *same = ls_scope_find_callback(innermost, callback->watch, callback->user);
        told = same != NULL && ls_scope_callback_is_live(innermost, same) && !ls_watch_skips(thread, same);
    }
    return told;
}

/* Checks the loss of this rank. The loss of other ranks may pass this check. */
static ls_status check_loss(const ls_thread_state *thread, const ls_batch_loss *loss) {
    const ls_status status = ls_batch_loss_check(loss);
    if (status != LS_OK) {
        ls_fail_before_pass(thread);
    }
    return status;
}

/* If another rank has failed, the senders of messages to this rank get its error. */
static ls_status begin_watch(const ls_backward_pass *pass, const ls_scope_callback *callback, ls_batch_loss *loss,
                             bool agreed) {
    const ls_status status = callback->watch->begin(callback->user, loss, agreed);
    if (status != LS_OK) {
        ls_scope *innermost = pass->scope->outer;
        (void)ls_fail_at_nodes(pass->thread, innermost, innermost->tape.last, true);
    }
    return status;
}

/* Traces the loss, checks it, and finds the watches that take no part in the pass. */
static ls_status trace_loss(const ls_backward_pass *pass, const ls_tensor *output, bool seeded, ls_batch_loss *loss) {
    ls_scope *innermost = pass->scope->outer;
    ls_samples_trace(loss, innermost, output, seeded);
    LS_TRY(check_loss(pass->thread, loss));
    for (ls_scope *scope = innermost; scope != NULL; scope = scope->outer) {
        for (ls_scope_callback *callback = scope->callbacks; callback != NULL; callback = callback->next) {
            if (callback->conditional && !callback->watch->is_reached(callback->user, loss)) {
                callback->skipped = pass->thread->pass;
            }
        }
    }
    return LS_OK;
}

/* Notifies the watches, with the composition of the loss if any watch asks for it. Watches may scale the loss. */
__attribute__((noinline)) static ls_status tell_watches(ls_backward_pass *pass, const ls_tensor *output, bool seeded,
                                                        ls_pass_findings *room) {
    ls_scope *innermost = pass->scope->outer;
    ls_batch_loss loss = {.weight = 1};
    bool traced = false;
    bool agreed = false;
    for (int telling = 0; telling < 2; telling++) {
        for (ls_scope *scope = innermost; scope != NULL; scope = scope->outer) {
            for (ls_scope_callback *callback = scope->callbacks; callback != NULL; callback = callback->next) {
                if (callback->watch->begin == NULL || !ls_scope_callback_is_live(scope, callback)) {
                    continue;
                }
                if (!traced) {
                    LS_TRY(trace_loss(pass, output, seeded, &loss));
                    traced = true;
                }
                if (ls_watch_skips(pass->thread, callback) || is_told(pass->thread, innermost, scope, callback)) {
                    continue;
                }
                loss.later = callback->conditional;
                if (telling == 0) {
                    agreed = agreed || callback->watch->agrees(callback->user, &loss);
                } else {
                    LS_TRY(begin_watch(pass, callback, &loss, agreed));
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

/* `room` is memory for the findings of the pass. */
ls_status ls_begin_watches(ls_backward_pass *pass, const ls_tensor *output, bool seeded, ls_pass_findings *room) {
    ls_scope *innermost = pass->scope->outer;
    bool watched = false;
    for (const ls_scope *scope = innermost; scope != NULL; scope = scope->outer) {
        watched = watched || scope->callbacks != NULL;
    }
    return watched ? tell_watches(pass, output, seeded, room) : LS_OK;
}

void ls_pass_observe(ls_pass_observer *observer) {
    ls_backward_pass *pass = ls_thread_present->walking;
    const ls_pass_observer *other = pass->observers;
    while (other != NULL && other != observer) {
        other = other->next;
    }
    if (other == NULL) {
        observer->next = pass->observers;
        pass->observers = observer;
    }
}

ls_status ls_watch_pass(const ls_pass_watch *watch, void *user, bool conditional) {
    ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return LS_ERR_MEMORY;
    }
    const ls_scope_callback callback = {.watch = watch, .user = user, .hold = watch->hold, .conditional = conditional};
    return ls_scope_add_callback(thread->scope, &callback) == LS_OK ? LS_OK : ls_scope_failed_status();
}
