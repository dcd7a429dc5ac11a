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

/* Returns the first watch of the pass that can notify other ranks of a failure, or NULL. */
static const ls_scope_callback *find_telling(const ls_backward_pass *pass) {
    const ls_scope_callback *callback = pass->scope->callbacks;
    while (callback != NULL && callback->watch->fail == NULL) {
        callback = callback->next;
    }
    return callback;
}

/*
 * Returns the first watch that can notify other ranks before a pass, among the watches that may take part in the pass
 * on these ranks; or NULL.
 */
static const ls_scope_callback *find_telling_before(const ls_batch_loss *loss) {
    const ls_scope_callback *first = NULL;
    for (const ls_scope *scope = loss->innermost; scope != NULL; scope = scope->outer) {
        for (const ls_scope_callback *callback = scope->callbacks; callback != NULL; callback = callback->next) {
            const bool earlier = first == NULL || ls_scope_callback_precedes(callback, first);
            if (callback->watch->fail != NULL && earlier && ls_watch_joins(scope, callback, loss)) {
                first = callback;
            }
        }
    }
    return first;
}

/* `joins_all`: whether this rank joins all communication, even if the ranks of a collective already fail. */
static bool fail_at_nodes(ls_scope *scope, ls_tape_link *link, bool told, bool joins_all) {
    while (scope != NULL) {
        while (link != NULL) {
            ls_node *node = (ls_node *)link;
            link = link->previous;
            const bool joins = joins_all || !told || node->op->answers;
            told |= joins && ls_is_due(ls_thread_present, node) && node->op->agree != NULL && ls_fail_at_node(node);
        }
        scope = scope->outer;
        link = scope != NULL ? scope->tape.last : NULL;
    }
    return told;
}

/*
 * Without a data-parallel module, every rank that has failed joins all further communication on its tape, so that ranks
 * on other communicators notice the failure, too. It visits the nodes in the order of a pass, so it cannot deadlock. A
 * data-parallel module notifies its ranks itself, and these ranks may never walk their tapes. With such a module, a
 * rank whose failure is known to others therefore visits only the nodes of received messages, and sends their senders
 * the error.
 */
bool ls_fail_at_nodes(const ls_backward_pass *pass, ls_scope *scope, ls_tape_link *link, bool told) {
    return fail_at_nodes(scope, link, told, find_telling(pass) == NULL);
}

/*
 * Other ranks may wait in a call that this rank has not reached. That call fails on all ranks, and then the other ranks
 * do not have a loss either.
 */
enum { TRIES = 16 };

static ls_telling tell(const ls_pass_watch *watch, void *user, bool begun, int tries) {
    ls_scope *scope = ls_thread_present->scope;
    ls_saved_error cause;
    ls_error_save(&cause);
    ls_telling told = LS_NOT_TOLD;
    for (int i = 0; i < tries && told == LS_NOT_TOLD; i++) {
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

ls_telling ls_watch_tell(const ls_pass_watch *watch, void *user, bool begun) {
    return tell(watch, user, begun, TRIES);
}

/*
 * Notifies the other ranks of the failure, unless a node of the tape has notified them. The other ranks no longer wait
 * for this rank at a node: they wait at the end of the pass, or inside a module's collective call.
 */
void ls_fail_at_end(const ls_backward_pass *pass) {
    const ls_scope_callback *callback = pass->told ? NULL : find_telling(pass);
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

static void abandon(const ls_scope_callback *callback, bool missed) {
    if (callback->watch->abandon != NULL) {
        callback->watch->abandon(callback->user, missed);
    }
}

void ls_abandon_watches(const ls_backward_pass *pass) {
    ls_saved_error cause;
    ls_error_save(&cause);
    for (const ls_scope_callback *callback = pass->scope->callbacks; callback != NULL; callback = callback->next) {
        abandon(callback, false);
    }
    for (const ls_scope *scope = pass->scope->outer; scope != NULL; scope = scope->outer) {
        for (const ls_scope_callback *callback = scope->callbacks; callback != NULL; callback = callback->next) {
            if (callback->conditional && callback->pass != pass->thread->pass) {
                abandon(callback, false); /* other ranks may have no loss, and then abandon all conditional watches */
            }
        }
    }
    (void)ls_error_put_back(&cause);
}

/*
 * Abandons the watches before a pass, except for the watches of `notified`, the user that has notified the other ranks.
 * `missed` means that the other ranks have begun the pass. Makes callbacks conditional, as ls_settle_watches does.
 */
static void abandon_before(const ls_batch_loss *loss, const void *notified, bool missed) {
    ls_saved_error cause;
    ls_error_save(&cause);
    for (const ls_scope *scope = loss->innermost; scope != NULL; scope = scope->outer) {
        for (ls_scope_callback *callback = scope->callbacks; callback != NULL; callback = callback->next) {
            const ls_pass_watch *watch = callback->watch;
            const bool joins = ls_watch_joins(scope, callback, loss);
            if (!joins && !callback->conditional) {
                continue;
            }
            if (callback->user != notified) {
                abandon(callback, missed && joins);
            }
            callback->conditional |= watch->stays != NULL && watch->stays(callback->user) == LS_STAYS_IF_REACHED;
        }
    }
    (void)ls_error_put_back(&cause);
}

/* The other ranks wait for this rank before the pass, or at communication on the tape. */
void ls_fail_before_pass(ls_scope *innermost, const ls_tensor *output) {
    const ls_batch_loss loss = {.output = output, .innermost = innermost};
    ls_drop_watches(&loss);
    const ls_scope_callback *callback = find_telling_before(&loss);
    (void)fail_at_nodes(innermost, innermost->tape.last, callback != NULL, callback == NULL);
    if (callback != NULL) {
        void *user = callback->user; /* the callback may be freed with its module */
        /* The other ranks may be in a pass of a different conditional watch, which fails then. */
        const ls_telling told = tell(callback->watch, user, false, callback->conditional ? 1 : TRIES);
        if (told != LS_NOT_TOLD) {
            abandon_before(&loss, user, told == LS_TOLD_IN_PASS);
        }
    }
}
