/* Scopes: how they begin and end, and the tensors that they hold. */
#include "tensor/scope.h"

/* Returns the scope that holds the tensor's reference, or NULL. */
static ls_scope *holder(const ls_tensor *tensor) {
    return tensor->scope != &ls_nowhere ? tensor->scope : NULL;
}

static void link_tensor(ls_scope *scope, ls_tensor *tensor) {
    tensor->scope = scope;
    tensor->scope_older = scope->newest;
    tensor->scope_newer = NULL;
    if (scope->newest != NULL) {
        scope->newest->scope_newer = tensor;
    }
    scope->newest = tensor;
}

static void unlink_tensor(ls_tensor *tensor) {
    if (tensor->scope_newer != NULL) {
        tensor->scope_newer->scope_older = tensor->scope_older;
    } else {
        tensor->scope->newest = tensor->scope_older;
    }
    if (tensor->scope_older != NULL) {
        tensor->scope_older->scope_newer = tensor->scope_newer;
    }
}

void ls_scope_sweep(ls_scope *scope) {
    while (scope->newest != NULL) {
        ls_tensor *tensor = scope->newest;
        scope->newest = tensor->scope_older;
        if (scope->newest != NULL) {
            scope->newest->scope_newer = NULL;
        }
        tensor->scope = &ls_nowhere;
        ls_tensor_drop(tensor);
    }
}

/* Inserts the callback after the last one that it does not precede: callbacks may have become conditional since. */
static void insert(ls_scope *scope, ls_scope_callback *callback) {
    ls_scope_callback **place = &scope->callbacks;
    for (ls_scope_callback **link = place; *link != NULL; link = &(*link)->next) {
        place = ls_scope_callback_precedes(callback, *link) ? place : &(*link)->next;
    }
    callback->next = *place;
    *place = callback;
}

/* If the scope has a callback with the same pair, merges the callback into it, and returns true. */
static bool merge(ls_scope *scope, const ls_scope_callback *callback) {
    ls_scope_callback **place = &scope->callbacks;
    while (*place != NULL && ((*place)->watch != callback->watch || (*place)->user != callback->user)) {
        place = &(*place)->next;
    }
    ls_scope_callback *kept = *place;
    if (kept != NULL && kept->conditional && !callback->conditional) {
        *place = kept->next;
        kept->conditional = false;
        insert(scope, kept);
    }
    return kept != NULL;
}

ls_status ls_scope_add_callback(ls_scope *scope, const ls_scope_callback *callback) {
    if (merge(scope, callback)) {
        return LS_OK;
    }
    ls_scope_callback *added = ls_record_allocate(sizeof *added);
    if (added == NULL) {
        return ls_fail_memory("ls_watch_pass", sizeof *added);
    }
    *added = *callback;
    insert(scope, added);
    if (added->hold != NULL) {
        added->hold(added->user, true);
    }
    return LS_OK;
}

void ls_scope_move_callbacks(ls_scope *from, ls_scope *to) {
    while (from->callbacks != NULL) {
        ls_scope_callback *callback = from->callbacks;
        from->callbacks = callback->next;
        if (merge(to, callback)) {
            ls_scope_drop_callback(callback);
        } else {
            insert(to, callback);
        }
    }
}

/* Ends the scopes that the thread has left open. */
static void end_open_scopes(ls_thread_state *thread) {
    while (thread->scope != &thread->root) {
        (void)ls_scope_end(thread->scope);
    }
}

static ls_scope *begin_scope(bool library) {
    ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return NULL;
    }
    ls_scope *scope = ls_cache_allocate(&thread->cache, sizeof *scope);
    if (scope == NULL) {
        (void)ls_fail_memory("ls_scope_begin", sizeof *scope);
        return ls_scope_failed();
    }
    scope->outer = thread->scope;
    scope->newest = NULL;
    scope->tape = (ls_tape){0};
    scope->callbacks = NULL;
    scope->gone = NULL;
    scope->status = LS_OK;
    scope->lost = false;
    scope->library = library;
    scope->errors = ls_error_count;
    scope->no_grad = thread->no_grad;
    scope->autocast = thread->autocast;
    scope->message[0] = '\0';
    thread->scope = scope;
    thread->end_scopes = end_open_scopes;
    return scope;
}

ls_scope *ls_scope_begin(void) {
    return begin_scope(false);
}

ls_scope *ls_scope_open(void) {
    return begin_scope(true);
}

/*
 * Keeps the records of `scope`, and releases the records of the previous scope at the same depth, which have waited
 * long enough. A scope without tensors changes nothing.
 */
static void keep_records(ls_thread_state *thread, const ls_scope *scope) {
    if (scope->gone != NULL) {
        ls_scope_release_records(thread, scope->outer);
        scope->outer->gone = scope->gone;
    }
}

/*
 * Ends the innermost scope and drops its tensors. `gone` is the list for their records, or NULL if the records can be
 * reused immediately.
 */
static ls_status end_scope(ls_thread_state *thread, ls_scope *scope, ls_tensor **gone) {
    ls_tensor **before = thread->gone;
    thread->gone = gone;
    ls_scope_sweep(scope);
    if (scope->tape.first != NULL && scope->tape.first->listener->scope_ended(&scope->tape, &scope->outer->tape)) {
        ls_scope_move_callbacks(scope, scope->outer);
    }
    thread->gone = before;
    ls_scope_forget_callbacks(scope);
    keep_records(thread, scope);
    thread->scope = scope->outer;
    thread->no_grad = scope->no_grad;
    thread->autocast = scope->autocast;
    const ls_status status = scope->status;
    if (status != LS_OK) {
        ls_error_restore(status, scope->message);
    }
    if (gone != NULL) { /* reuse the scope's memory only after the next scope has ended, to detect that a scope is ended
                           twice */
        ls_scope *ended = thread->ended;
        thread->ended = scope;
        scope = ended;
    }
    if (scope != NULL) {
        ls_cache_release(&thread->cache, scope, sizeof *scope);
    }
    return status;
}

/* Explains why a scope that is not the innermost cannot be ended. */
static ls_status refuse_end(const ls_thread_state *thread, const ls_scope *scope) {
    for (const ls_scope *open = thread->scope; open->outer != NULL; open = open->outer) {
        if (open == scope) {
            return ls_fail(
                LS_ERR_STATE,
                "ls_scope_end: not the innermost scope of this thread; end the scopes opened inside it first");
        }
    }
    return ls_fail(
        LS_ERR_STATE,
        "ls_scope_end: not an open scope of this thread: it has already ended, or belongs to another thread");
}

ls_status ls_scope_end(ls_scope *scope) {
    if (scope == NULL) { /* ls_scope_begin has failed: keep its message */
        return ls_error_status() != LS_OK ? ls_error_status() : ls_fail(LS_ERR_ARGUMENT, "ls_scope_end: scope is NULL");
    }
    ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return LS_ERR_MEMORY;
    }
    return thread->scope == scope && scope->outer != NULL ? end_scope(thread, scope, &scope->gone)
                                                          : refuse_end(thread, scope);
}

void ls_scope_end_inner(const ls_scope *scope) {
    const ls_thread_state *thread = ls_thread();
    while (thread->scope != scope) {
        (void)ls_scope_end(thread->scope);
    }
}

ls_status ls_scope_end_after(ls_scope *scope, ls_status status) {
    const ls_thread_state *thread = ls_thread();
    ls_saved_error cause;
    ls_error_save(&cause);
    cause.status = status;
    for (bool last = false; !last;) {
        last = thread->scope == scope;
        const ls_status ended = ls_scope_end(thread->scope);
        if (status == LS_OK && ended != LS_OK) {
            status = ended;
            ls_error_save(&cause);
        }
    }
    return status == LS_OK ? LS_OK : ls_error_put_back(&cause);
}

ls_status ls_scope_close(ls_scope *scope) {
    return scope != NULL ? end_scope(ls_thread(), scope, NULL) : ls_error_status();
}

ls_tensor *ls_keep(ls_tensor *tensor) {
    if (tensor == NULL || !ls_tensor_exists("ls_keep", tensor)) {
        return NULL;
    }
    ls_scope *scope = holder(tensor);
    if (scope != NULL) {
        unlink_tensor(tensor);
        if (scope->outer->outer != NULL) {
            link_tensor(scope->outer, tensor);
        } else {
            tensor->scope = NULL;
        }
    }
    return tensor;
}

/* Returns the position of the record that has waited longest. The caller stores a new record there. */
static ls_tensor **oldest_place(ls_record_ring *ring) {
    ls_tensor **place = &ring->records[ring->next];
    ring->next = ring->next + 1 < ring->size ? ring->next + 1 : 0;
    return place;
}

static void keep_in_ring(ls_thread_state *thread, ls_record_ring *ring, ls_tensor *records) {
    while (records != NULL) {
        ls_tensor *record = records;
        records = record->scope_older;
        ls_tensor **place = oldest_place(ring);
        if (*place != NULL) {
            ls_cache_release(&thread->cache, *place, sizeof **place);
        }
        *place = record;
    }
}

/*
 * Drops the user's reference to a tensor that the user may still use by mistake. `mark` tells ls_tensor_refuse_gone the
 * reason; the record waits in `ring`.
 */
static void drop_released(ls_thread_state *thread, ls_tensor *tensor, ls_scope *mark, ls_record_ring *ring) {
    ls_tensor **before = thread->gone;
    ls_tensor *gone = NULL;
    thread->gone = &gone;
    ls_tensor_drop(tensor);
    thread->gone = before;
    if (gone != NULL && ls_tensor_is_freed(tensor)) {
        tensor->scope = mark;
    }
    keep_in_ring(thread, ring, gone);
}

void ls_release(ls_tensor *tensor) {
    if (tensor == NULL || !ls_tensor_exists("ls_release", tensor) || tensor->scope == &ls_nowhere) {
        return;
    }
    if (tensor->scope != NULL) {
        unlink_tensor(tensor);
    }
    tensor->scope = &ls_nowhere;
    ls_tensor_disown(tensor);
}

ls_tensor *ls_tensor_own(ls_tensor *tensor) {
    if (tensor == NULL || ls_tensor_is_freed(tensor)) {
        return NULL;
    }
    if (tensor->scope != NULL) {
        tensor->references++;
    } else {
        tensor->scope = &ls_nowhere;
    }
    return tensor;
}

void ls_tensor_disown(ls_tensor *tensor) {
    ls_thread_state *thread = tensor != NULL ? ls_thread() : NULL;
    if (thread != NULL) {
        drop_released(thread, tensor, NULL, &thread->released);
    } else {
        ls_tensor_drop(tensor);
    }
}

void ls_tensor_withdraw(ls_tensor *tensor) {
    ls_thread_state *thread = tensor != NULL && tensor->references == 1 ? ls_thread() : NULL;
    if (thread != NULL) {
        drop_released(thread, tensor, &ls_past_batch, &thread->past_batches);
    } else {
        ls_tensor_drop(tensor);
    }
}

ls_tensor *ls_tensor_renew(ls_tensor *tensor) {
    const bool alone = tensor != NULL && tensor->references == 1 && tensor->node == NULL && tensor->leaf == NULL;
    ls_thread_state *thread = alone ? ls_thread() : NULL;
    ls_tensor **place = thread != NULL ? oldest_place(&thread->past_batches) : NULL;
    if (place != NULL && *place == NULL) {
        *place = ls_cache_allocate(&thread->cache, sizeof **place);
    }
    if (place == NULL || *place == NULL) {
        ls_tensor_withdraw(tensor);
        return NULL;
    }
    ls_tensor *renewed = *place;
    *renewed = *tensor;
    tensor->references = 0;
    tensor->scope = &ls_past_batch;
    *place = tensor;
    return renewed;
}

ls_tensor *ls_tensor_take(ls_tensor *tensor) {
    if (tensor != NULL && holder(tensor) != NULL) {
        unlink_tensor(tensor);
    }
    if (tensor != NULL) {
        tensor->scope = &ls_nowhere;
    }
    return tensor;
}

ls_tensor *ls_tensor_give(ls_tensor *tensor) {
    if (tensor == NULL) {
        return NULL;
    }
    if (holder(tensor) != NULL) { /* if a scope also holds a reference, it is enough */
        ls_tensor_drop(tensor);
        return tensor;
    }
    const ls_thread_state *thread = ls_thread();
    if (thread != NULL && thread->scope->outer != NULL) {
        link_tensor(thread->scope, tensor);
    } else {
        tensor->scope = NULL;
    }
    return tensor;
}
