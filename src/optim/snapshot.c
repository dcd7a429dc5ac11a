#include "optim/snapshot.h"

#include "base/memory.h"

static int parameters(const ls_snapshot *snapshot) {
    return ls_module_parameter_count(snapshot->model);
}

ls_tensor *ls_snapshot_source(const ls_snapshot *snapshot, int i) {
    const int first = parameters(snapshot);
    return i < first ? ls_module_parameter(snapshot->model, i) : ls_module_buffer(snapshot->model, i - first);
}

static const char *name_of(const ls_snapshot *snapshot, int i) {
    const int first = parameters(snapshot);
    return i < first ? ls_module_parameter_name(snapshot->model, i) : ls_module_buffer_name(snapshot->model, i - first);
}

ls_status ls_snapshot_make(const char *call, ls_snapshot *snapshot, const ls_module *model) {
    ls_snapshot_forget(snapshot);
    snapshot->model = model;
    const int count = parameters(snapshot) + ls_module_buffer_count(model);
    snapshot->tensors = ls_allocate_zeroed((size_t)count, sizeof *snapshot->tensors);
    if (snapshot->tensors == NULL) {
        return ls_fail_memory(call, (size_t)count * sizeof *snapshot->tensors);
    }
    for (; snapshot->count < count; snapshot->count++) {
        const ls_tensor *source = ls_snapshot_source(snapshot, snapshot->count);
        ls_tensor *copy = ls_tensor_like_owned(call, source, (ls_dtype)source->dtype);
        if (copy == NULL) {
            return ls_error_status();
        }
        ls_storage_set_kind(copy->storage, LS_MEMORY_OPTIMIZER);
        snapshot->tensors[snapshot->count] = copy;
    }
    return ls_snapshot_take(snapshot);
}

/* Copies without recording, because parameters require gradients, and recording would forbid the change. */
static ls_status copy(ls_tensor *destination, const ls_tensor *source) {
    const bool before = ls_no_grad(true);
    const ls_status status = ls_copy_into(destination, source);
    ls_no_grad(before);
    return status;
}

ls_status ls_snapshot_take(const ls_snapshot *snapshot) {
    for (int i = 0; i < snapshot->count; i++) {
        LS_TRY(copy(snapshot->tensors[i], ls_snapshot_source(snapshot, i)));
    }
    return LS_OK;
}

ls_status ls_snapshot_put(const ls_snapshot *snapshot) {
    for (int i = 0; i < snapshot->count; i++) {
        LS_TRY(copy(ls_snapshot_source(snapshot, i), snapshot->tensors[i]));
    }
    return LS_OK;
}

/* Copies only one tensor at a time. */
static ls_status swap_with(ls_tensor *own, ls_tensor *other) {
    ls_tensor *room = ls_tensor_like_owned("ls_snapshot_swap", own, (ls_dtype)own->dtype);
    if (room == NULL) {
        return ls_error_status();
    }
    ls_status status = copy(room, own);
    status = status == LS_OK ? copy(own, other) : status;
    status = status == LS_OK ? copy(other, room) : status;
    ls_tensor_drop(room);
    return status;
}

ls_status ls_snapshot_swap(const ls_snapshot *snapshot) {
    for (int i = 0; i < snapshot->count; i++) {
        LS_TRY(swap_with(ls_snapshot_source(snapshot, i), snapshot->tensors[i]));
    }
    return LS_OK;
}

ls_status ls_snapshot_list(const ls_snapshot *snapshot, const char *word, ls_state_list *list) {
    for (int i = 0; i < snapshot->count; i++) {
        ls_tensor *tensor = snapshot->tensors[i];
        const char *name = name_of(snapshot, i);
        const ls_state_range range = i < parameters(snapshot) ? LS_STATE_ANY : LS_STATE_UNCHECKED;
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
    *snapshot = (ls_snapshot){.model = NULL};
}
