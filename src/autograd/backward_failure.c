/* Failure of a backward pass on this rank: notifies the ranks that wait for this rank. */
#include <stdio.h>

#include "autograd/backward.h"

bool ls_fail_at_node(ls_node *node) {
    ls_saved_error cause;
    ls_error_save(&cause);
    ls_reach reach = LS_REACH_FAILED;
    const bool told = node->op->agree(node, &reach) != LS_OK;
    (void)ls_error_put_back(&cause);
    return told;
}

/*
 * Finds the first callback in this scope and its outer scopes that can notify other ranks of a failure. Conditional
 * callbacks come last, because the other ranks may run the pass without them.
 */
static const ls_scope_callback *find_telling(const ls_scope *scope) {
    const ls_scope_callback *conditional = NULL;
    for (; scope != NULL; scope = scope->outer) {
        for (const ls_scope_callback *callback = scope->callbacks; callback != NULL; callback = callback->next) {
            if (callback->watch->fail == NULL || ls_watch_skips(ls_thread_present, callback)) {
                continue;
            }
            if (!callback->conditional) {
                return callback;
            }
            conditional = conditional == NULL ? callback : conditional;
        }
    }
    return conditional;
}

/*
 * Without a data-parallel module, every rank that has failed joins all further communication on its tape, so that ranks
 * on other communicators notice the failure, too. It visits the nodes in the order of a pass, so it cannot deadlock. A
 * data-parallel module notifies its ranks itself, and these ranks may never walk their tapes. With such a module, a
 * rank whose failure is known to others therefore visits only the nodes of received messages, and sends their senders
 * the error.
 */
bool ls_fail_at_nodes(const ls_thread_state *thread, ls_scope *scope, ls_tape_link *link, bool told) {
    const bool joins_all = find_telling(thread->scope) == NULL;
    while (scope != NULL) {
        while (link != NULL) {
            ls_node *node = (ls_node *)link;
            link = link->previous;
            const bool joins = joins_all || !told || node->op->answers;
            told |= joins && ls_is_due(thread, node) && node->op->agree != NULL && ls_fail_at_node(node);
        }
        scope = scope->outer;
        link = scope != NULL ? scope->tape.last : NULL;
    }
    return told;
}

/*
 * Other ranks may wait in a call that this rank has not reached. That call fails on all ranks, and then the other ranks
 * do not have a loss either.
 */
#define TRIES 16

ls_telling ls_watch_tell(const ls_pass_watch *watch, void *user, bool begun) {
    ls_scope *scope = ls_thread_present->scope;
    ls_saved_error cause;
    ls_error_save(&cause);
    ls_telling told = LS_NOT_TOLD;
    for (int i = 0; i < TRIES && told == LS_NOT_TOLD; i++) {
        told = watch->fail(user, begun);
        const bool later = told == LS_NOT_TOLD && ls_error_status() == LS_ERR_MISMATCH;
        if (told == LS_NOT_TOLD) {
            (void)ls_error_put_back(&cause);
        }
        if (!later) {
            break;
        }
    }
    if (told != LS_NOT_TOLD && cause.status == LS_ERR_MISMATCH && scope->status == LS_ERR_MISMATCH) {
        snprintf(scope->message, sizeof scope->message, "%s", ls_error_message());
    }
    return told;
}

/*
 * Notifies the other ranks of the failure, unless a node of the tape has notified them. The other ranks no longer wait
 * for this rank at a node: they wait at the end of the pass, or inside a module's collective call.
 */
void ls_fail_at_end(const ls_backward_pass *pass) {
    const ls_scope_callback *callback = pass->told ? NULL : find_telling(pass->scope);
    if (callback == NULL) {
        return;
    }
    ls_saved_error cause;
    ls_error_save(&cause);
    const ls_telling told = ls_watch_tell(callback->watch, callback->user, true);
    if (told == LS_NOT_TOLD || cause.status != LS_ERR_MISMATCH) { /* otherwise the error names the rank that failed */
        (void)ls_error_put_back(&cause);
    }
}

/* The callback watches later passes only if they reach its user, on this rank as on the ranks that ran the pass. */
static void abandon(ls_scope_callback *callback, const void *notified, bool missed) {
    const ls_pass_watch *watch = callback->watch;
    if (watch->abandon != NULL && callback->user != notified) {
        watch->abandon(callback->user, missed);
    }
    callback->conditional |= watch->stays != NULL && watch->stays(callback->user) == LS_STAYS_IF_REACHED;
}

void ls_abandon_watches(const ls_scope *scope, const void *notified, bool missed) {
    ls_saved_error cause;
    ls_error_save(&cause);
    for (; scope != NULL; scope = scope->outer) {
        for (ls_scope_callback *callback = scope->callbacks; callback != NULL; callback = callback->next) {
            if (!ls_watch_skips(ls_thread_present, callback)) {
                abandon(callback, notified, missed && !callback->conditional);
            }
        }
    }
    (void)ls_error_put_back(&cause);
}

/*
 * Sends the other ranks the thread's error, which prevents the pass on this rank. They wait for this rank before the
 * pass, or at communication on the tape.
 */
void ls_fail_before_pass(const ls_thread_state *thread) {
    const ls_scope_callback *callback = find_telling(thread->scope);
    if (callback != NULL) {
        void *user = callback->user; /* the callback may be freed with its module */
        (void)ls_fail_at_nodes(thread, thread->scope, thread->scope->tape.last, true);
        const ls_telling told = ls_watch_tell(callback->watch, user, false);
        if (told != LS_NOT_TOLD) {
            ls_abandon_watches(thread->scope, user, told == LS_TOLD_IN_PASS);
        }
    } else {
        (void)ls_fail_at_nodes(thread, thread->scope, thread->scope->tape.last, false);
    }
}
