/* Records of tensors, which are freed when their last reference is dropped. A program that still uses a freed tensor
 * gets an error. */
#include <stdio.h>

#include "tensor/scope.h"

ls_scope ls_nowhere;
ls_scope ls_past_batch;

static void free_record(ls_tensor *tensor) {
    ls_tensor_end_alias(tensor);
    ls_storage_drop(tensor->storage);
    ls_thread_state *thread = ls_thread();
    if (thread != NULL && thread->gone != NULL) {
        tensor->storage = NULL;
        tensor->scope_older = *thread->gone;
        *thread->gone = tensor;
    } else {
        ls_record_release(tensor, sizeof *tensor);
    }
}

static void free_with_history(ls_tensor *tensor) {
    if (tensor->node != NULL) {
        tensor->node->listener->output_died(tensor->node);
    }
    if (tensor->leaf != NULL) {
        tensor->leaf_free(tensor->leaf);
    }
    free_record(tensor);
}

/* Freeing a tensor with a node may free more tensors. They are queued, so that the recursion stays shallow. */
static void queue_free(ls_thread_state *thread, ls_tensor *tensor) {
    tensor->scope_older = thread->free_queue;
    thread->free_queue = tensor;
    if (thread->freeing) {
        return;
    }
    thread->freeing = true;
    while (thread->free_queue != NULL) {
        ls_tensor *next = thread->free_queue;
        thread->free_queue = next->scope_older;
        free_with_history(next);
    }
    thread->freeing = false;
}

void ls_tensor_destroy(ls_tensor *tensor) {
    tensor->references = 0; /* without the mark LS_ABSENT */
    if (tensor->node == NULL && tensor->leaf == NULL) {
        free_record(tensor);
        return;
    }
    ls_thread_state *thread = ls_thread();
    if (thread != NULL) {
        queue_free(thread, tensor);
    } else {
        free_with_history(tensor);
    }
}

ls_status ls_tensor_refuse_gone(const char *call, int argument, const ls_tensor *tensor) {
    char which[32] = "the tensor";
    if (argument != 0) {
        snprintf(which, sizeof which, "argument %d", argument);
    }
    const char *why = "belongs to a scope that has ended; call ls_keep before ls_scope_end";
    if (!ls_tensor_is_freed(tensor)) {
        why =
            "is a parameter of which this rank has only a part (.zero = 3 in ls_data_parallel): use it in the forward "
            "function of its module, or call ls_data_parallel_gather first";
    } else if (tensor->scope == NULL) {
        why = "was released by ls_release, or was freed with its last owner";
    } else if (tensor->scope == &ls_past_batch) {
        why = "belongs to an earlier batch of its loader; copy it with ls_clone before the next ls_loader_next";
    }
    (void)ls_fail(LS_ERR_STATE, "%s: %s %s", call, which, why);
    return ls_scope_failed_status();
}
