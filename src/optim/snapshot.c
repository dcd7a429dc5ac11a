#include "optim/snapshot.h"

#include "autograd/ops/promote.h"
#include "base/memory.h"
#include "tensor/scope.h"

ls_tensor *ls_snapshot_source(const ls_snapshot *snapshot, int i) {
    return snapshot->sources[i];
}

ls_status ls_snapshot_make(const char *call, ls_snapshot *snapshot, const ls_module *model, bool wide) {
    ls_snapshot_forget(snapshot);
    snapshot->model = model;
    const int parameters = ls_module_parameter_count(model), count = parameters + ls_module_buffer_count(model);
    snapshot->parameter_count = parameters;
    snapshot->tensors = ls_allocate_zeroed((size_t)count, sizeof *snapshot->tensors);
    snapshot->sources = ls_allocate_zeroed((size_t)count, sizeof *snapshot->sources);
    snapshot->originals = ls_allocate_zeroed((size_t)count, sizeof(ls_tensor *));
    if (snapshot->tensors == NULL || snapshot->sources == NULL || snapshot->originals == NULL) {
        return ls_fail_memory(call, (size_t)count * sizeof *snapshot->tensors);
    }
    for (; snapshot->count < count; snapshot->count++) {
        const int i = snapshot->count;
        ls_tensor *source = i < parameters ? ls_module_parameter(model, i) : ls_module_buffer(model, i - parameters);
        const ls_dtype dtype = (ls_dtype)source->dtype;
        ls_tensor *copy = ls_tensor_like_owned(call, source, wide ? ls_compute_dtype(dtype) : dtype);
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

/* Ignores buffers: a layer may register a cache in its first forward pass. */
static bool has_grown(const ls_snapshot *snapshot) {
    const ls_module *model = snapshot->model;
    return model != NULL &&
           (ls_module_has_grown(model) || ls_module_parameter_count(model) != snapshot->parameter_count);
}

ls_status ls_snapshot_check(const char *call, const ls_snapshot *snapshot) {
    if (snapshot->model != NULL && !ls_module_is_here(snapshot->model)) {
        return LS_ERR_STATE;
    }
    if (has_grown(snapshot)) {
        return ls_fail(LS_ERR_STATE,
                       "%s: a parameter was added to the model after its copies were made: add all "
                       "layers first",
                       call);
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

/* Returns `wide`, except for elements whose rounded copy in the model was changed: they get the model's value. */
static ls_tensor *merge(ls_tensor *wide, ls_tensor *rounded) {
    ls_tensor *same = ls_eq(ls_to(wide, (ls_dtype)rounded->dtype), rounded);
    return ls_where(same, wide, rounded);
}

/* Copies the elements that were changed in the rounded copy to `wide`. */
static ls_status copy_changes(ls_tensor *wide, ls_tensor *rounded) {
    ls_scope *scope = ls_scope_open();
    if (scope == NULL) {
        return ls_error_status();
    }
    (void)ls_no_grad(true);
    ls_tensor *merged = merge(wide, rounded);
    const ls_status status = merged != NULL ? ls_copy_into(wide, merged) : ls_error_status();
    const ls_status ended = ls_scope_close(scope);
    return status != LS_OK ? status : ended;
}

/* Exchanges a 16-bit tensor and its copy in f32. The copy keeps its digits: `original` keeps the tensor's values. */
static ls_status swap_wide(const char *call, ls_tensor *own, ls_tensor *wide, ls_tensor **original) {
    if (*original == NULL) {
        ls_tensor *room = ls_tensor_like_owned(call, own, (ls_dtype)own->dtype);
        if (room == NULL) {
            return ls_error_status();
        }
        ls_storage_set_kind(room->storage, LS_MEMORY_OPTIMIZER);
        *original = room;
        LS_TRY(copy(room, own));
        return copy(own, wide);
    }
    LS_TRY(copy_changes(wide, own));
    LS_TRY(copy(own, *original));
    ls_tensor_drop(*original);
    *original = NULL;
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
        ls_tensor *own = ls_snapshot_source(snapshot, i), *other = snapshot->tensors[i];
        LS_TRY(own->dtype == other->dtype ? swap_with(call, own, other)
                                          : swap_wide(call, own, other, &snapshot->originals[i]));
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
        ls_tensor_drop(snapshot->originals[i]);
    }
    ls_free(snapshot->originals);
    ls_free(snapshot->tensors);
    ls_free(snapshot->sources);
    *snapshot = (ls_snapshot){.model = NULL};
}
