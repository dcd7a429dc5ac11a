#include "optim/snapshot.h"

#include "base/memory.h"

ls_tensor *ls_snapshot_source(const ls_snapshot *snapshot, int i) {
    return snapshot->sources[i];
}

ls_status ls_snapshot_make(const char *call, ls_snapshot *snapshot, const ls_module *model) {
    ls_snapshot_forget(snapshot);
    snapshot->model = model;
    const int parameters = ls_module_parameter_count(model), count = parameters + ls_module_buffer_count(model);
    snapshot->parameter_count = parameters;
    snapshot->tensors = ls_allocate_zeroed((size_t)count, sizeof *snapshot->tensors);
    snapshot->sources = ls_allocate_zeroed((size_t)count, sizeof *snapshot->sources);
    if (snapshot->tensors == NULL || snapshot->sources == NULL) {
        return ls_fail_memory(call, (size_t)count * sizeof *snapshot->tensors);
    }
    for (; snapshot->count < count; snapshot->count++) {
        const int i = snapshot->count;
        ls_tensor *source = i < parameters ? ls_module_parameter(model, i) : ls_module_buffer(model, i - parameters);
        ls_tensor *copy = ls_tensor_like_owned(call, source, (ls_dtype)source->dtype);
        if (copy == NULL) {
            return ls_error_status();
        }
        ls_storage_set_kind(copy->storage, LS_MEMORY_OPTIMIZER);
        snapshot->sources[i] = source;
        snapshot->tensors[i] = copy;
    }
    return ls_snapshot_take(call, snapshot);
}

/* Copies without recording, because parameters require gradients, and recording would forbid the change. */
static ls_status copy(ls_tensor *destination, const ls_tensor *source) {
    const bool before = ls_no_grad(true);
    const ls_status status = ls_copy_into(destination, source);
    ls_no_grad(before);
    return status;
}

ls_status ls_snapshot_check(const char *call, const ls_snapshot *snapshot) {
    if (snapshot->model != NULL && !ls_module_is_here(snapshot->model)) {
        return LS_ERR_STATE;
    }
    for (int i = 0; i < snapshot->count; i++) {
        LS_TRY(ls_tensor_is_here(call, ls_snapshot_source(snapshot, i)) ? LS_OK : ls_error_status());
    }
    return LS_OK;
}

ls_status ls_snapshot_take(const char *call, const ls_snapshot *snapshot) {
    LS_TRY(ls_snapshot_check(call, snapshot));
    for (int i = 0; i < snapshot->count; i++) {
        LS_TRY(copy(snapshot->tensors[i], ls_snapshot_source(snapshot, i)));
    }
    return LS_OK;
}

ls_status ls_snapshot_put(const char *call, const ls_snapshot *snapshot) {
    LS_TRY(ls_snapshot_check(call, snapshot));
    for (int i = 0; i < snapshot->count; i++) {
        LS_TRY(copy(ls_snapshot_source(snapshot, i), snapshot->tensors[i]));
    }
    return LS_OK;
}

/* Copies only one tensor at a time. */
static ls_status swap_with(const char *call, ls_tensor *own, ls_tensor *other) {
    ls_tensor *room = ls_tensor_like_owned(call, own, (ls_dtype)own->dtype);
    if (room == NULL) {
        return ls_error_status();
    }
    ls_status status = copy(room, own);
    status = status == LS_OK ? copy(own, other) : status;
    status = status == LS_OK ? copy(other, room) : status;
    ls_tensor_drop(room);
    return status;
}

ls_status ls_snapshot_swap(const char *call, const ls_snapshot *snapshot) {
    LS_TRY(ls_snapshot_check(call, snapshot));
    for (int i = 0; i < snapshot->count; i++) {
        LS_TRY(swap_with(call, ls_snapshot_source(snapshot, i), snapshot->tensors[i]));
    }
    return LS_OK;
}

ls_status ls_snapshot_list(const ls_snapshot *snapshot, const char *word, ls_state_list *list) {
    if (snapshot->count > 0 && !ls_module_list((ls_module *)snapshot->model)) {
        return ls_error_status();
    }
    for (int i = 0; i < snapshot->count; i++) {
        ls_tensor *tensor = snapshot->tensors[i];
        const char *name = ls_module_name_of(snapshot->model, snapshot->sources[i]);
        const ls_state_range range = i < snapshot->parameter_count ? LS_STATE_ANY : LS_STATE_UNCHECKED;
        LS_TRY(ls_state_add(list, word != NULL ? name : "", (ls_state_word){word != NULL ? word : name, range},
                            ls_shape_of(tensor), (ls_dtype)tensor->dtype, ls_tensor_device(tensor), tensor->data));
    }
    return LS_OK;
}

void ls_snapshot_forget(ls_snapshot *snapshot) {
    for (int i = 0; i < snapshot->count; i++) {
        ls_tensor_drop(snapshot->tensors[i]);
    }
    ls_free(snapshot->tensors);
    ls_free(snapshot->sources);
    *snapshot = (ls_snapshot){.model = NULL};
}
