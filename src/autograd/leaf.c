/* Leaves: tensors that require a gradient, the accumulation of the gradient, and the hooks called when it is
 * complete. */
#include "autograd/captured_step.h"
#include "autograd/tape.h"

static void free_leaf(ls_leaf *leaf) {
    ls_tensor_drop(leaf->gradient);
    while (leaf->hooks != NULL) {
        ls_leaf_hook *hook = leaf->hooks;
        leaf->hooks = hook->next;
        ls_record_release(hook, sizeof *hook);
    }
    ls_record_release(leaf, sizeof *leaf);
}

ls_status ls_set_requires_grad(ls_tensor *tensor, bool requires_grad) {
    const char *const call = "ls_set_requires_grad";
    if (tensor == NULL) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: tensor is NULL", call);
        return ls_scope_failed_status();
    }
    if (!ls_tensor_exists(call, tensor)) {
        return ls_error_status();
    }
    if (tensor->node == &ls_tape_gradient) { /* a leaf does not depend on other leaves */
        tensor->node = NULL;
    }
    if (tensor->node != NULL) {
        (void)ls_fail(LS_ERR_STATE, "%s: the tensor %s is the result of an operation, not a leaf; use ls_detach", call,
                      LS_SHAPE_TEXT(tensor));
        return ls_scope_failed_status();
    }
    if (requires_grad && !ls_dtype_is_floating((ls_dtype)tensor->dtype)) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: only floating-point tensors have gradients, not %s", call,
                      ls_dtype_name((ls_dtype)tensor->dtype));
        return ls_scope_failed_status();
    }
    if (requires_grad && tensor->leaf == NULL) {
        ls_leaf *leaf = ls_record_allocate(sizeof *leaf);
        if (leaf == NULL) {
            (void)ls_fail_memory(call, sizeof *leaf);
            return ls_scope_failed_status();
        }
        *leaf = (ls_leaf){.tensor = tensor};
        tensor->leaf = leaf;
        tensor->leaf_free = free_leaf;
    }
    tensor->needs_grad = requires_grad;
    return LS_OK;
}

bool ls_requires_grad(const ls_tensor *tensor) {
    return tensor != NULL && ls_tensor_exists("ls_requires_grad", tensor) && tensor->needs_grad;
}

ls_tensor *ls_grad(const ls_tensor *tensor) {
    if (tensor == NULL || !ls_tensor_exists("ls_grad", tensor) || tensor->leaf == NULL || !tensor->leaf->has_gradient) {
        return NULL;
    }
    if (tensor->leaf->shard) {
        (void)ls_fail(LS_ERR_STATE,
                      "ls_grad: with this .zero in ls_data_parallel, each rank holds only a part of the gradient: clip "
                      "with ls_clip_grad_norm and step with the optimizer, or set .zero = 1");
        return ls_scope_failed();
    }
    tensor->leaf->lent = true;
    tensor->leaf->gradient->scope = &ls_nowhere; /* borrowed by the caller: ls_release has no effect */
    return tensor->leaf->gradient;
}

void ls_zero_grad(ls_tensor *tensor) {
    if (tensor == NULL) {
        return;
    }
    if (__builtin_expect(ls_thread_present != NULL && ls_thread_present->capture != NULL, 0)) {
        ls_capture_zero_grad(ls_thread_present->capture, tensor);
    }
    ls_leaf_forget_gradient(tensor);
}

ls_status ls_add_grad_hook(ls_tensor *leaf, ls_grad_hook hook, void *user) {
    if (leaf != NULL && !ls_tensor_exists("ls_add_grad_hook", leaf)) {
        return ls_error_status();
    }
    if (leaf == NULL || hook == NULL || leaf->leaf == NULL || !leaf->needs_grad) {
        (void)ls_fail(LS_ERR_ARGUMENT, "ls_add_grad_hook: %s",
                      leaf == NULL   ? "leaf is NULL"
                      : hook == NULL ? "hook is NULL"
                                     : "the tensor is not a leaf that requires a gradient");
        return ls_scope_failed_status();
    }
    ls_leaf_hook *added = ls_record_allocate(sizeof *added);
    if (added == NULL) {
        (void)ls_fail_memory("ls_add_grad_hook", sizeof *added);
        return ls_scope_failed_status();
    }
    *added = (ls_leaf_hook){.function = hook, .user = user};
    ls_leaf_hook **end = &leaf->leaf->hooks;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = added;
    return LS_OK;
}

ls_status ls_leaf_make_room(ls_leaf *leaf) {
    if (leaf->gradient != NULL) {
        return LS_OK;
    }
    const ls_tensor *tensor = leaf->tensor;
    leaf->gradient = ls_tensor_like_owned("ls_backward", tensor, (ls_dtype)tensor->dtype);
    if (leaf->gradient == NULL) {
        return LS_ERR_MEMORY;
    }
    ls_storage_set_kind(leaf->gradient->storage, LS_MEMORY_GRADIENTS);
    return LS_OK;
}

ls_status ls_leaf_touch(ls_backward_pass *pass, ls_leaf *leaf) {
    if (__builtin_expect(leaf->shard && !leaf->open, 0)) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "ls_backward: a parameter %s receives a gradient outside its module, which .zero in "
                       "ls_data_parallel shards: use the parameter only in the forward function of that module, which "
                       "must be recomputed (ls_recompute), or set .zero = 1",
                       LS_SHAPE_TEXT(leaf->tensor));
    }
    if (__builtin_expect(leaf->in_flight, 0)) {
        return ls_fail(LS_ERR_STATE,
                       "ls_backward: an earlier pass of a data-parallel module failed, and other ranks may still send "
                       "the gradient of a parameter %s: on all ranks, run a pass of the module (ls_forward and "
                       "ls_backward) before a pass without it",
                       LS_SHAPE_TEXT(leaf->tensor));
    }
    leaf->touched = true;
    leaf->given = pass->thread->pass;
    if (leaf->listed) {
        return LS_OK;
    }
    leaf->listed = true;
    leaf->fresh = !leaf->has_gradient;
    leaf->next_touched = pass->touched;
    pass->touched = leaf;
    ls_tensor_hold(leaf->tensor);
    return LS_OK;
}

/* Calls the hooks and the observers, because the gradient of this pass is complete. */
static ls_status complete(const ls_backward_pass *pass, ls_leaf *leaf) {
    leaf->touched = false;
    for (ls_leaf_hook *hook = leaf->hooks; hook != NULL; hook = hook->next) {
        const ls_status status = hook->function(leaf->tensor, hook->user);
        if (status != LS_OK) {
            return ls_error_status() == status
                       ? status
                       : ls_fail(status, "ls_backward: a gradient hook failed with %s", ls_status_name(status));
        }
    }
    for (const ls_pass_observer *observer = pass->observers; observer != NULL; observer = observer->next) {
        observer->leaf_complete(observer->user, leaf);
    }
    return LS_OK;
}

ls_status ls_leaf_passed(ls_backward_pass *pass, ls_leaf *leaf) {
    if (leaf->pass != pass->thread->pass) {
        leaf->pass = pass->thread->pass;
        leaf->remaining = leaf->uses;
    }
    leaf->remaining--;
    return leaf->remaining == 0 && leaf->touched ? complete(pass, leaf) : LS_OK;
}

ls_status ls_leaves_settle(ls_backward_pass *pass, ls_status status) {
    /* The list runs from the leaf touched last to the leaf touched first. Hooks are called in the order of the walk. */
    ls_leaf *ordered = NULL;
    while (pass->touched != NULL) {
        ls_leaf *leaf = pass->touched;
        pass->touched = leaf->next_touched;
        leaf->next_touched = ordered;
        ordered = leaf;
    }
    for (ls_leaf *leaf = ordered; leaf != NULL && status == LS_OK; leaf = leaf->next_touched) {
        status = leaf->touched ? complete(pass, leaf) : LS_OK;
    }
    while (ordered != NULL) {
        ls_leaf *leaf = ordered;
        ordered = leaf->next_touched;
        leaf->has_gradient = leaf->has_gradient && (status == LS_OK || !leaf->fresh);
        if (status == LS_OK && (pass->depends || leaf->fresh)) {
            leaf->gradient->node = pass->depends ? &ls_tape_gradient : NULL;
        }
        leaf->touched = false;
        leaf->listed = false;
        ls_tensor_drop(leaf->tensor); /* may free the leaf */
    }
    return status;
}
