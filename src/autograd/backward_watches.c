/* The watches of a backward pass: notified of the composition of the loss, and called at the end. */
#include "autograd/backward.h"

/* Removes the first callback from the pass. */
static ls_scope_callback *take_callback(const ls_backward_pass *pass) {
    ls_scope_callback *callback = pass->scope->callbacks;
    pass->scope->callbacks = callback->next;
    return callback;
}

ls_status ls_call_watches_back(ls_backward_pass *pass) {
    ls_status status = LS_OK;
    while (status == LS_OK && pass->scope->callbacks != NULL) {
        ls_scope_callback *callback = take_callback(pass);
        status = callback->watch->end(callback->user, pass->findings);
        if (status != LS_OK && ls_error_status() != status) {
            (void)ls_fail(status, "ls_backward: a callback at the end of the backward pass failed with %s",
                          ls_status_name(status));
        }
        ls_scope_drop_callback(callback);
    }
    return status;
}

/* Makes a callback that took part in a pass conditional if its watch asks for it. Returns whether it stays in its
 * scope.
 */
static bool stays(ls_scope_callback *callback, bool keep_tape) {
    const ls_pass_watch *watch = callback->watch;
    const ls_stay stay = watch->stays != NULL ? watch->stays(callback->user) : LS_STAYS_NOT;
    callback->conditional |= stay == LS_STAYS_IF_REACHED;
    return keep_tape || stay != LS_STAYS_NOT;
}

void ls_settle_watches(const ls_backward_pass *pass, bool keep_tape) {
    for (ls_scope *scope = pass->scope->outer; scope != NULL; scope = scope->outer) {
        ls_scope_callback **link = &scope->callbacks;
        while (*link != NULL) {
            ls_scope_callback *callback = *link;
            if (callback->pass != pass->thread->pass || stays(callback, keep_tape)) {
                link = &callback->next;
            } else {
                *link = callback->next;
                ls_scope_drop_callback(callback);
            }
        }
    }
}

/* If another rank has failed, the senders of messages to this rank get its error. */
static ls_status begin_watch(const ls_backward_pass *pass, const ls_scope_callback *callback, ls_batch_loss *loss,
                             bool agreed) {
    const ls_status status = callback->watch->begin(callback->user, loss, agreed);
    if (status != LS_OK) {
        ls_scope *innermost = pass->scope->outer;
        (void)ls_fail_at_nodes(pass, innermost, innermost->tape.last, true);
    }
    return status;
}

/* Notifies the watches, with the composition of the loss. Watches may scale the loss. */
__attribute__((noinline)) static ls_status tell_watches(ls_backward_pass *pass, const ls_tensor *output, bool seeded,
                                                        ls_pass_findings *room) {
    ls_batch_loss loss;
    ls_samples_trace(&loss, pass->scope->outer, output, seeded);
    const ls_status status = ls_batch_loss_check(&loss);
    if (status != LS_OK) { /* the losses of other ranks may pass this check */
        ls_fail_before_pass(pass->scope->outer, output);
        return status;
    }
    bool agreed = false;
    for (const ls_scope_callback *callback = pass->scope->callbacks; callback != NULL; callback = callback->next) {
        agreed = agreed || (callback->watch->begin != NULL && callback->watch->agrees(callback->user, &loss));
    }
    for (const ls_scope_callback *callback = pass->scope->callbacks; callback != NULL; callback = callback->next) {
        LS_TRY(callback->watch->begin != NULL ? begin_watch(pass, callback, &loss, agreed) : LS_OK);
    }
    pass->weight = loss.weight;
    if (loss.watched && !seeded) {
        *room = (ls_pass_findings){.exchanges = loss.exchanges};
        pass->findings = room;
    }
    return LS_OK;
}

/* Adds the callbacks of the scope that take part in the pass to the pass. */
static ls_status join_watches(ls_backward_pass *pass, ls_scope *scope, const ls_batch_loss *loss, bool *begins) {
    for (ls_scope_callback *callback = scope->callbacks; callback != NULL; callback = callback->next) {
        if (scope->tape.last != NULL && ls_watch_joins(scope, callback, loss)) {
            LS_TRY(ls_scope_add_callback(pass->scope, callback));
            callback->pass = pass->thread->pass;
            *begins |= callback->watch->begin != NULL;
        }
    }
    return LS_OK;
}

ls_status ls_begin_watches(ls_backward_pass *pass, const ls_tensor *output, bool seeded, ls_pass_findings *room) {
    const ls_batch_loss loss = {.output = output, .innermost = pass->scope->outer};
    bool begins = false;
    ls_status status = LS_OK;
    ls_drop_watches(&loss);
    for (ls_scope *scope = pass->scope->outer; scope != NULL && status == LS_OK; scope = scope->outer) {
        status = scope->callbacks != NULL ? join_watches(pass, scope, &loss, &begins) : LS_OK;
    }
    if (status != LS_OK) {
        ls_fail_before_pass(pass->scope->outer, output);
    }
    return status == LS_OK && begins ? tell_watches(pass, output, seeded, room) : status;
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

ls_status ls_watch_pass(const ls_pass_watch *watch, void *user, uint64_t order) {
    ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return LS_ERR_MEMORY;
    }
    const ls_scope_callback callback = {.watch = watch, .user = user, .hold = watch->hold, .order = order};
    return ls_scope_add_callback(thread->scope, &callback) == LS_OK ? LS_OK : ls_scope_failed_status();
}
