/* Tensor records over new or shared storage. */
#include "tensor/tensor.h"

#include "tensor/device.h"
#include "tensor/scope.h"

__attribute__((always_inline)) static inline ls_tensor *record_new(ls_thread_state *thread, int ndim, ls_dtype dtype) {
    ls_tensor *tensor = ls_cache_allocate(&thread->cache, sizeof *tensor);
    if (tensor == NULL) {
        return NULL;
    }
    tensor->references = 1;
    tensor->dtype = (uint8_t)dtype;
    tensor->ndim = (int8_t)ndim;
    tensor->needs_grad = false;
    tensor->spread = 0;
    tensor->is_alias = false;
    tensor->node = NULL;
    tensor->leaf = NULL;
    tensor->scope = &ls_nowhere;
    return tensor;
}

/* Sets sizes, dense strides and count. Returns false if a size is negative or the count overflows. */
static inline bool lay_out_dense(ls_tensor *tensor, const int64_t *size) {
    int64_t step = 1; /* the product of the sizes, counting 0 as 1 */
    int64_t signs = 0;
    bool none = false;
    bool fits = true;
    for (int i = tensor->ndim - 1; i >= 0; i--) {
        tensor->size[i] = size[i];
        tensor->stride[i] = step;
        signs |= size[i];
        none = none || size[i] == 0;
        fits = !__builtin_mul_overflow(step, size[i] != 0 ? size[i] : 1, &step) && fits;
    }
    tensor->count = none ? 0 : step;
    tensor->contiguous = true;
    return fits && signs >= 0;
}

/* Reports the error in a layout whose number of elements or size in bytes is invalid. */
__attribute__((noinline, cold)) static void *refuse_layout(const char *call, int ndim, const int64_t *size) {
    bool negative = false;
    for (int i = 0; i < ndim; i++) {
        negative = negative || size[i] < 0;
    }
    (void)(negative
               ? ls_fail(LS_ERR_SHAPE, "%s: shape %s has a negative size", call, ls_shape_describe(ndim, size).text)
               : ls_fail(LS_ERR_MEMORY, "%s: a tensor of shape %s is too large", call,
                         ls_shape_describe(ndim, size).text));
    return ls_scope_failed();
}

__attribute__((noinline, cold)) static void *refuse_memory(const char *call, size_t bytes) {
    (void)ls_fail_memory(call, bytes);
    return ls_scope_failed();
}

__attribute__((noinline, cold)) static void *refuse_kind(const char *call, int ndim, ls_dtype dtype) {
    (void)(ndim < 0 || ndim > LS_MAX_DIMS
               ? ls_fail(LS_ERR_SHAPE, "%s: the shape has more than %d dimensions, fewer than 0, or no sizes", call,
                         LS_MAX_DIMS)
               : ls_fail(LS_ERR_ARGUMENT, "%s: %d is not a dtype", call, (int)dtype));
    return ls_scope_failed();
}

ls_tensor *ls_tensor_new_owned(const char *call, const ls_device *device, int ndim, const int64_t *size,
                               ls_dtype dtype) {
    ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return NULL;
    }
    const size_t width = ls_dtype_size(dtype);
    if (width == 0 || ndim < 0 || ndim > LS_MAX_DIMS) {
        return refuse_kind(call, ndim, dtype);
    }
    ls_tensor *tensor = record_new(thread, ndim, dtype);
    if (tensor == NULL) {
        return refuse_memory(call, sizeof *tensor);
    }
    size_t bytes;
    if (!lay_out_dense(tensor, size) || __builtin_mul_overflow((size_t)tensor->count, width, &bytes)) {
        ls_cache_release(&thread->cache, tensor, sizeof *tensor);
        return refuse_layout(call, ndim, size);
    }
    tensor->storage = ls_storage_new(device, bytes);
    if (tensor->storage == NULL) {
        ls_cache_release(&thread->cache, tensor, sizeof *tensor);
        return refuse_memory(call, bytes);
    }
    tensor->data = tensor->storage->memory;
    return tensor;
}

ls_tensor *ls_tensor_new(const char *call, const ls_device *device, int ndim, const int64_t *size, ls_dtype dtype) {
    return ls_tensor_give(ls_tensor_new_owned(call, device, ndim, size, dtype));
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
        return refuse_memory("a view", sizeof *tensor);
    }
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) {
        tensor->size[i] = size[i];
        tensor->stride[i] = stride[i];
        count *= size[i];
    }
    tensor->count = count;
    tensor->contiguous = ls_strides_are_dense(ndim, size, stride);
    tensor->storage = ls_storage_hold(base->storage);
    tensor->data = (char *)base->data + offset * (int64_t)ls_dtype_size((ls_dtype)base->dtype);
    return tensor;
}

ls_tensor *ls_tensor_view(const ls_tensor *base, int ndim, const int64_t *size, const int64_t *stride, int64_t offset) {
    return ls_tensor_give(ls_tensor_view_owned(base, ndim, size, stride, offset));
}

ls_tensor *ls_alias(const ls_tensor *tensor) {
    if (tensor == NULL || !ls_tensor_is_here("ls_alias", tensor)) {
        return NULL;
    }
    ls_tensor *alias = ls_tensor_view(tensor, tensor->ndim, tensor->size, tensor->stride, 0);
    if (alias != NULL) {
        alias->spread = tensor->spread;
        alias->is_alias = true;
        atomic_fetch_add_explicit(&alias->storage->aliases, 1, memory_order_relaxed);
    }
    return alias;
}

bool ls_tensor_has_alias(const ls_tensor *tensor) {
    const ls_storage *storage = tensor->storage;
    const int aliases = atomic_load_explicit(&storage->aliases, memory_order_relaxed);
    return aliases > tensor->is_alias ||
           (tensor->is_alias && atomic_load_explicit(&storage->references, memory_order_relaxed) > 1);
}
