#include "tensor/scope.h"

#include <string.h>

ls_scope ls_nowhere;

/* The scope that holds the tensor's reference, or NULL. */
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

void ls_scope_forget_callbacks(ls_scope *scope) {
    while (scope->callbacks != NULL) {
        ls_scope_callback *callback = scope->callbacks;
        scope->callbacks = callback->next;
        ls_record_release(callback, sizeof *callback);
    }
}

ls_scope *ls_scope_begin(void) {
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
    scope->status = LS_OK;
    scope->errors = ls_error_count;
    scope->message[0] = '\0';
    thread->scope = scope;
    return scope;
}

ls_status ls_scope_end(ls_scope *scope) {
    if (scope == NULL) { /* ls_scope_begin failed: its message stands */
        return ls_error_status() != LS_OK ? ls_error_status() : ls_fail(LS_ERR_ARGUMENT, "ls_scope_end: scope is NULL");
    }
    ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return LS_ERR_MEMORY;
    }
    if (thread->scope != scope) {
        return ls_fail(LS_ERR_STATE, "ls_scope_end: not the innermost scope of this thread; end those opened in it "
                                     "first");
    }
    ls_scope_sweep(scope);
    if (scope->tape.first != NULL) {
        scope->tape.first->listener->scope_ended(&scope->tape, &scope->outer->tape);
    }
    ls_scope_forget_callbacks(scope);
    thread->scope = scope->outer;
    const ls_status status = scope->status;
    if (status != LS_OK) {
        ls_error_restore(status, scope->message);
    }
    ls_cache_release(&thread->cache, scope, sizeof *scope);
    return status;
}

void *ls_scope_failed(void) {
    ls_thread_state *thread = ls_thread();
    if (thread != NULL && thread->scope != &thread->root && thread->scope->status == LS_OK) {
        thread->scope->status = ls_error_status();
        memcpy(thread->scope->message, ls_error_message(), strlen(ls_error_message()) + 1);
    }
    return NULL;
}

bool ls_scope_explains_null(const ls_thread_state *thread) {
    if (thread->scope == &thread->root) {
        return ls_error_status() != LS_OK;
    }
    return thread->scope->status != LS_OK || thread->scope->errors != ls_error_count;
}

ls_tensor *ls_keep(ls_tensor *tensor) {
    ls_scope *scope = tensor != NULL ? holder(tensor) : NULL;
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

void ls_release(ls_tensor *tensor) {
    if (tensor == NULL || tensor->scope == &ls_nowhere) {
        return;
    }
    if (tensor->scope != NULL) {
        unlink_tensor(tensor);
    }
    tensor->scope = &ls_nowhere;
    ls_tensor_drop(tensor);
}

ls_tensor *ls_tensor_take(ls_tensor *tensor) {
    if (tensor != NULL && holder(tensor) != NULL) {
        unlink_tensor(tensor);
        tensor->scope = NULL;
    }
    return tensor;
}

ls_tensor *ls_tensor_give(ls_tensor *tensor) {
    if (tensor == NULL) {
        return NULL;
    }
    if (holder(tensor) != NULL) { /* its scope's reference will do */
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
