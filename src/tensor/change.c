/* Changes to the elements of a tensor, and moves to other memory. */
#include "tensor/capture.h"
#include "tensor/device.h"
#include "tensor/scope.h"

ls_status ls_tensor_check_changeable(const char *call, const ls_tensor *tensor) {
    if (tensor == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the tensor to change is NULL", call);
    }
    if (!ls_tensor_is_here(call, tensor)) {
        return ls_error_status();
    }
    const ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return LS_ERR_MEMORY;
    }
    if (tensor->node != NULL && tensor->node->tape != NULL) {
        return ls_fail(LS_ERR_STATE, "%s: the tensor %s is the result of a recorded operation, which the tape may need",
                       call, LS_SHAPE_TEXT(tensor));
    }
    if (tensor->needs_grad && !thread->no_grad) {
        return ls_fail(LS_ERR_STATE, "%s: the tensor %s requires a gradient; change it under ls_no_grad(true)", call,
                       LS_SHAPE_TEXT(tensor));
    }
    for (int i = 0; i < tensor->ndim; i++) {
        if (tensor->stride[i] == 0 && tensor->size[i] > 1) {
            return ls_fail(LS_ERR_STATE,
                           "%s: the tensor %s repeats its elements along axis %d; change a copy (ls_clone)", call,
                           LS_SHAPE_TEXT(tensor), i);
        }
    }
    return LS_OK;
}

static bool broadcasts_to(const ls_tensor *source, const ls_tensor *destination) {
    const int more = destination->ndim - source->ndim;
    for (int i = 0; i < source->ndim && more >= 0; i++) {
        if (source->size[i] != destination->size[more + i] && source->size[i] != 1) {
            return false;
        }
    }
    return more >= 0;
}

/* Computes the address of the first byte of a nonempty tensor and the address after its last byte. */
static void reach(const ls_tensor *tensor, const char **first, const char **end) {
    int64_t last = 0; /* strides are never negative */
    for (int i = 0; i < tensor->ndim; i++) {
        last += (tensor->size[i] - 1) * tensor->stride[i];
    }
    *first = tensor->data;
    *end = *first + (last + 1) * (int64_t)ls_dtype_size((ls_dtype)tensor->dtype);
}

static bool overlap(const ls_tensor *a, const ls_tensor *b) {
    if (a->count == 0 || b->count == 0) {
        return false;
    }
    const char *first_a, *end_a, *first_b, *end_b;
    reach(a, &first_a, &end_a);
    reach(b, &first_b, &end_b);
    return first_a < end_b && first_b < end_a;
}

/* Copies elements on one device, converting the dtype. */
static ls_status move_elements(ls_tensor *destination, const ls_tensor *source) {
    const ls_kernels *kernels = ls_kernels_of(destination);
    return destination->dtype == source->dtype ? kernels->copy(ls_stream_of(destination), destination, source)
                                               : kernels->cast(ls_stream_of(destination), destination, source);
}

static ls_tensor *dense_copy(const char *call, const ls_tensor *x, ls_dtype dtype) {
    ls_tensor *copy = ls_tensor_like_owned(call, x, dtype);
    if (copy != NULL && move_elements(copy, x) != LS_OK) {
        ls_tensor_drop(copy);
        return ls_scope_failed();
    }
    return copy;
}

/* A new reference is not a visible change, so x may be const. */
static ls_tensor *hold(const ls_tensor *x) {
    union {
        const ls_tensor *lent;
        ls_tensor *held;
    } same = {.lent = x};
    return ls_tensor_hold(same.held);
}

ls_tensor *ls_tensor_dense(const char *call, const ls_tensor *x, ls_dtype dtype) {
    if (x->contiguous && x->dtype == dtype) {
        return hold(x);
    }
    return dense_copy(call, x, dtype);
}

/* Copies the bytes of a dense tensor to a dense tensor of the same size on another device. */
static ls_status transfer(ls_tensor *to, const ls_tensor *from) {
    const size_t bytes = (size_t)from->count * ls_dtype_size((ls_dtype)from->dtype);
    const ls_device *target = ls_tensor_device(to), *source = ls_tensor_device(from);
    if (source->is_host) {
        return ls_device_store(target, to->data, from->data, bytes);
    }
    if (target->is_host) {
        return ls_device_fetch(source, to->data, from->data, bytes);
    }
    ls_host_view view;
    LS_TRY(ls_host_view_begin(&view, from, LS_HOST_READ));
    return ls_host_view_end(&view, ls_device_store(target, to->data, view.memory, bytes));
}

ls_tensor *ls_tensor_on_device(const char *call, const ls_tensor *x, const ls_device *device) {
    if (ls_tensor_device(x) == device) {
        return hold(x);
    }
    ls_tensor *dense = ls_tensor_dense(call, x, (ls_dtype)x->dtype);
    ls_tensor *there = dense != NULL ? ls_tensor_new_owned(call, device, x->ndim, x->size, (ls_dtype)x->dtype) : NULL;
    const ls_status status = there != NULL ? transfer(there, dense) : LS_OK;
    ls_tensor_drop(dense);
    if (status != LS_OK) {
        ls_tensor_drop(there);
        return ls_scope_failed();
    }
    return there;
}

static ls_status copy_on_device(ls_tensor *destination, const ls_tensor *source) {
    if (!overlap(destination, source)) {
        return move_elements(destination, source);
    }
    ls_tensor *copied = dense_copy("ls_copy_into", source, (ls_dtype)source->dtype);
    if (copied == NULL) {
        return ls_error_status();
    }
    const ls_status status = move_elements(destination, copied);
    ls_tensor_drop(copied);
    return status;
}

static ls_status copy_into(ls_tensor *destination, const ls_tensor *source) {
    const char *const call = "ls_copy_into";
    LS_TRY(ls_tensor_check_changeable(call, destination));
    if (source == NULL) {
        return ls_scope_fail_null("%s: the source", call);
    }
    if (ls_tensor_is_gone(source)) {
        return ls_tensor_refuse_gone(call, 2, source);
    }
    if (!broadcasts_to(source, destination)) {
        return ls_fail(LS_ERR_SHAPE, "%s: %s does not broadcast to %s", call, LS_SHAPE_TEXT(source),
                       LS_SHAPE_TEXT(destination));
    }
    ls_capture_note_here(call, destination);
    ls_capture_note_here(call, source);
    ls_tensor_changed(destination, call);
    ls_tensor *there = ls_tensor_on_device(call, source, ls_tensor_device(destination));
    if (there == NULL) {
        return ls_error_status();
    }
    const ls_status status = copy_on_device(destination, there);
    ls_tensor_drop(there);
    return status;
}

ls_status ls_copy_into(ls_tensor *destination, const ls_tensor *source) {
    const ls_status status = copy_into(destination, source);
    if (status != LS_OK) {
        (void)ls_scope_failed_status();
    }
    return status;
}

void ls_mark_changed(ls_tensor *tensor) {
    ls_capture_refuse_here("ls_mark_changed", LS_CAPTURE_WRITES);
    if (tensor != NULL && ls_tensor_is_here("ls_mark_changed", tensor)) {
        ls_tensor_changed(tensor, "ls_mark_changed");
    }
}

ls_status ls_fill(ls_tensor *tensor, double value) {
    ls_status status = ls_tensor_check_changeable("ls_fill", tensor);
    if (status == LS_OK && !ls_dtype_holds((ls_dtype)tensor->dtype, value)) {
        status = ls_fail(LS_ERR_ARGUMENT, "ls_fill: %g does not fit into %s; round it", value,
                         ls_dtype_name((ls_dtype)tensor->dtype));
    }
    if (status == LS_OK) {
        ls_capture_note_here("ls_fill", tensor);
        ls_tensor_changed(tensor, "ls_fill");
        status = ls_kernels_of(tensor)->fill(ls_stream_of(tensor), tensor, value);
    }
    if (status != LS_OK) {
        (void)ls_scope_failed_status();
    }
    return status;
}

/* ---- moving ------------------------------------------------------------------------------------------------------ */

static void release_part(void *memory, void *whole) {
    (void)memory;
    ls_storage_drop(whole);
}

/* Returns a part of `whole` for the tensor's elements. It gets the tensor's version, because the elements do not
 * change. */
static ls_storage *part_for(const ls_tensor *tensor, ls_storage *whole, int64_t offset) {
    const size_t width = ls_dtype_size((ls_dtype)tensor->dtype);
    ls_storage *part = ls_storage_wrap(whole->device, (char *)whole->memory + (size_t)offset * width,
                                       (size_t)tensor->count * width, release_part, whole);
    if (part != NULL) {
        part->whole = ls_storage_hold(whole);
        part->version = tensor->storage->version;
        part->changed_by = tensor->storage->changed_by;
    }
    return part;
}

ls_status ls_tensor_move_storage(ls_tensor *tensor, ls_storage *storage, int64_t offset, bool elements) {
    ls_storage *part = part_for(tensor, storage, offset);
    if (part == NULL) {
        return ls_fail_memory("laying out parameters", sizeof *part);
    }
    ls_tensor moved = *tensor;
    moved.storage = part;
    moved.data = part->memory;
    const ls_status status = elements ? ls_kernels_of(tensor)->copy(ls_stream_of(tensor), &moved, tensor) : LS_OK;
    if (status != LS_OK) {
        ls_storage_drop(part);
        return status;
    }
    ls_tensor_end_alias(tensor);
    ls_storage_drop(tensor->storage);
    tensor->storage = part;
    tensor->data = part->memory;
    return LS_OK;
}

ls_status ls_tensor_move_device(ls_tensor *tensor, const ls_device *device) {
    if (ls_tensor_device(tensor) == device) {
        return LS_OK;
    }
    ls_tensor *there = ls_tensor_on_device("ls_to_device", tensor, device);
    if (there == NULL) {
        return ls_error_status();
    }
    ls_storage *old = tensor->storage;
    there->storage->version = old->version;
    there->storage->changed_by = old->changed_by;
    ls_storage_set_kind(there->storage, (ls_memory_kind)old->whole->kind);
    tensor->storage = there->storage;
    tensor->data = there->data;
    there->storage = old;
    ls_tensor_drop(there);
    ls_tensor_changed(tensor, "ls_to_device"); /* notifies tapes that saved the tensor: it is now on another device */
    return LS_OK;
}
