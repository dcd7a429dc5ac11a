/* Tensor records: made over new or shared storage, referred to, moved and freed. */
#include "tensor/tensor.h"

#include "tensor/device.h"
#include "tensor/scope.h"

static ls_tensor *record_new(ls_thread_state *thread, int ndim, ls_dtype dtype) {
    ls_tensor *tensor = ls_cache_allocate(&thread->cache, sizeof *tensor);
    if (tensor == NULL) {
        return NULL;
    }
    tensor->references = 1;
    tensor->dtype = (uint8_t)dtype;
    tensor->ndim = (int8_t)ndim;
    tensor->needs_grad = false;
    tensor->node = NULL;
    tensor->leaf = NULL;
    tensor->scope = NULL;
    return tensor;
}

/* Sizes, dense strides, count; false when the count does not fit. */
static bool lay_out_dense(ls_tensor *tensor, const int64_t *size) {
    int64_t count = 1;
    int64_t step = 1;
    bool fits = true;
    for (int i = tensor->ndim - 1; i >= 0; i--) {
        tensor->size[i] = size[i];
        tensor->stride[i] = step;
        fits = !__builtin_mul_overflow(count, size[i], &count) && fits;
        fits = !__builtin_mul_overflow(step, size[i] > 0 ? size[i] : 1, &step) && fits;
    }
    tensor->count = count;
    tensor->contiguous = true;
    return fits;
}

static bool sizes_are_good(const char *call, int ndim, const int64_t *size) {
    if (ndim < 0 || ndim > LS_MAX_DIMS) {
        (void)ls_fail(LS_ERR_SHAPE, "%s: a shape of more than %d dimensions", call, LS_MAX_DIMS);
        return false;
    }
    for (int i = 0; i < ndim; i++) {
        if (size[i] < 0) {
            (void)ls_fail(LS_ERR_SHAPE, "%s: shape %s has a negative size", call, ls_shape_describe(ndim, size).text);
            return false;
        }
    }
    return true;
}

ls_tensor *ls_tensor_new_owned(const char *call, int ndim, const int64_t *size, ls_dtype dtype) {
    ls_thread_state *thread = ls_thread();
    if (thread == NULL || !sizes_are_good(call, ndim, size)) {
        return ls_scope_failed();
    }
    const size_t width = ls_dtype_size(dtype);
    if (width == 0) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: %d is no dtype", call, (int)dtype);
        return ls_scope_failed();
    }
    ls_tensor *tensor = record_new(thread, ndim, dtype);
    if (tensor == NULL) {
        (void)ls_fail_memory(call, sizeof *tensor);
        return ls_scope_failed();
    }
    size_t bytes = 0;
    const bool fits = lay_out_dense(tensor, size) && !__builtin_mul_overflow((size_t)tensor->count, width, &bytes);
    tensor->storage = fits ? ls_storage_new(&ls_cpu, bytes) : NULL;
    if (tensor->storage == NULL) {
        ls_cache_release(&thread->cache, tensor, sizeof *tensor);
        (void)(fits ? ls_fail_memory(call, bytes)
                    : ls_fail(LS_ERR_MEMORY, "%s: a tensor of shape %s is larger than any memory", call,
                              ls_shape_describe(ndim, size).text));
        return ls_scope_failed();
    }
    tensor->data = tensor->storage->memory;
    return tensor;
}

ls_tensor *ls_tensor_new(const char *call, int ndim, const int64_t *size, ls_dtype dtype) {
    return ls_tensor_give(ls_tensor_new_owned(call, ndim, size, dtype));
}

ls_tensor *ls_tensor_of_storage(ls_storage *storage, int ndim, const int64_t *size, ls_dtype dtype) {
    ls_thread_state *thread = ls_thread();
    ls_tensor *tensor = thread != NULL ? record_new(thread, ndim, dtype) : NULL;
    if (tensor == NULL) {
        ls_storage_drop(storage);
        return NULL;
    }
    (void)lay_out_dense(tensor, size);
    tensor->storage = storage;
    tensor->data = storage->memory;
    return tensor;
}

bool ls_strides_are_dense(int ndim, const int64_t *size, const int64_t *stride) {
    int64_t step = 1;
    bool dense = true;
    for (int i = ndim - 1; i >= 0; i--) {
        if (size[i] == 0) {
            return true;
        }
        dense = dense && (size[i] == 1 || stride[i] == step);
        step *= size[i];
    }
    return dense;
}

ls_tensor *ls_tensor_view_owned(const ls_tensor *base, int ndim, const int64_t *size, const int64_t *stride,
                                int64_t offset) {
    ls_thread_state *thread = ls_thread();
    ls_tensor *tensor = thread != NULL ? record_new(thread, ndim, (ls_dtype)base->dtype) : NULL;
    if (tensor == NULL) {
        (void)ls_fail_memory("a view", sizeof *tensor);
        return ls_scope_failed();
    }
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) {
        tensor->size[i] = size[i];
        tensor->stride[i] = stride[i];
        count *= size[i];
    }
    tensor->count = count;
    tensor->contiguous = ls_strides_are_dense(ndim, size, stride);
    tensor->storage = base->storage;
    atomic_fetch_add_explicit(&base->storage->references, 1, memory_order_relaxed);
    tensor->data = (char *)base->data + offset * (int64_t)ls_dtype_size((ls_dtype)base->dtype);
    return tensor;
}

ls_tensor *ls_tensor_view(const ls_tensor *base, int ndim, const int64_t *size, const int64_t *stride, int64_t offset) {
    return ls_tensor_give(ls_tensor_view_owned(base, ndim, size, stride, offset));
}

ls_tensor *ls_alias(const ls_tensor *tensor) {
    if (tensor == NULL) {
        return NULL;
    }
    return ls_tensor_view(tensor, tensor->ndim, tensor->size, tensor->stride, 0);
}

static void free_record(ls_tensor *tensor) {
    ls_storage_drop(tensor->storage);
    ls_record_release(tensor, sizeof *tensor);
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

/* Freeing what the tape knows of may free more tensors: they queue up, so that the stack stays shallow. */
static void bury(ls_thread_state *thread, ls_tensor *tensor) {
    tensor->scope_older = thread->dying;
    thread->dying = tensor;
    if (thread->burying) {
        return;
    }
    thread->burying = true;
    while (thread->dying != NULL) {
        ls_tensor *next = thread->dying;
        thread->dying = next->scope_older;
        free_with_history(next);
    }
    thread->burying = false;
}

void ls_tensor_drop(ls_tensor *tensor) {
    if (tensor == NULL || --tensor->references > 0) {
        return;
    }
    if (tensor->node == NULL && tensor->leaf == NULL) {
        free_record(tensor);
        return;
    }
    ls_thread_state *thread = ls_thread();
    if (thread != NULL) {
        bury(thread, tensor);
    } else {
        free_with_history(tensor);
    }
}

ls_status ls_tensor_rehome(ls_tensor *tensor, ls_storage *storage, int64_t offset) {
    ls_tensor moved = *tensor;
    moved.storage = storage;
    moved.data = (char *)storage->memory + offset * (int64_t)ls_dtype_size((ls_dtype)tensor->dtype);
    LS_TRY(ls_kernels_of(tensor)->copy(ls_stream_of(tensor), &moved, tensor));
    atomic_fetch_add_explicit(&storage->references, 1, memory_order_relaxed);
    ls_storage_drop(tensor->storage);
    tensor->storage = storage;
    tensor->data = moved.data;
    return LS_OK;
}
