#include "nn/module.h"
#include "tensor/scope.h"

static int64_t padded(int64_t count, ls_dtype dtype) {
    const int64_t step = LS_FLAT_ALIGNMENT / (int64_t)ls_dtype_size(dtype);
    return (count + step - 1) / step * step;
}

int64_t ls_flat_offset(const ls_flat *flat, const ls_tensor *parameter) {
    const char *base = flat->parameters->memory;
    return ((const char *)parameter->data - base) / (int64_t)ls_dtype_size(flat->dtype);
}

/* Returns whether the gradient exists and lies in the storage at the same offset as the parameter. */
static bool gradient_in_place(const ls_flat *flat, const ls_tensor *parameter, int64_t offset) {
    const ls_tensor *gradient = parameter->leaf != NULL ? parameter->leaf->gradient : NULL;
    return gradient != NULL && gradient->storage->whole == flat->gradients &&
           (const char *)gradient->data ==
               (const char *)flat->gradients->memory + offset * (int64_t)ls_dtype_size(flat->dtype);
}

/* Finds buffers that already contain all parameters of the dtype in order. */
static bool already_flat(const ls_named_list *list, ls_flat *flat) {
    int64_t offset = 0;
    for (int i = 0; i < list->count; i++) {
        const ls_tensor *parameter = list->items[i].tensor;
        if (parameter->dtype != flat->dtype || parameter->leaf == NULL) {
            continue;
        }
        if (flat->parameters == NULL && parameter->leaf->gradient != NULL) {
            flat->parameters = parameter->storage->whole;
            flat->gradients = parameter->leaf->gradient->storage->whole;
        }
        if (flat->parameters == NULL || parameter->storage->whole != flat->parameters ||
            ls_flat_offset(flat, parameter) != offset || !gradient_in_place(flat, parameter, offset)) {
            return false;
        }
        offset += padded(parameter->count, flat->dtype);
    }
    /* A tensor's own storage may end before the padding, or contain other data in the padding. */
    const size_t bytes = (size_t)flat->count * ls_dtype_size(flat->dtype);
    return flat->parameters->bytes == bytes && flat->gradients->bytes >= bytes;
}

/* Creates a missing gradient tensor for the parameter, at `offset` in the storage. */
static bool lay_gradient(ls_tensor *parameter, ls_storage *storage, int64_t offset) {
    ls_leaf *leaf = parameter->leaf;
    if (leaf->gradient == NULL) {
        leaf->gradient = ls_tensor_like_owned("ls_module_flatten", parameter, (ls_dtype)parameter->dtype);
        if (leaf->gradient == NULL) {
            return false;
        }
        ls_storage_set_kind(leaf->gradient->storage, LS_MEMORY_GRADIENTS);
    }
    return ls_tensor_move_storage(leaf->gradient, storage, offset, leaf->has_gradient) == LS_OK;
}

static size_t bytes_of(const ls_tensor *tensor) {
    return (size_t)tensor->count * ls_dtype_size((ls_dtype)tensor->dtype);
}

/* Returns whether two contiguous tensors share memory. All parameters and buffers are contiguous. */
static bool share_memory(const ls_tensor *a, const ls_tensor *b) {
    const uintptr_t begin_a = (uintptr_t)a->data, begin_b = (uintptr_t)b->data;
    return a->storage->whole == b->storage->whole && begin_a < begin_b + bytes_of(b) && begin_b < begin_a + bytes_of(a);
}

/* Rejects different tensors that share memory, because moving would separate them. */
static bool check_ties(const ls_named_list *parameters, const ls_named_list *others, bool same) {
    for (int i = 0; i < parameters->count; i++) {
        for (int k = same ? i + 1 : 0; k < others->count; k++) {
            if (share_memory(parameters->items[i].tensor, others->items[k].tensor)) {
                (void)ls_fail(LS_ERR_UNSUPPORTED,
                              "laying out the parameters: \"%s\" and \"%s\" share memory (an ls_alias or a view), "
                              "which the layout would separate; to tie them, add the same tensor under both names",
                              parameters->items[i].name, others->items[k].name);
                return false;
            }
        }
    }
    return true;
}

/* Rejects parameters with an alias in the program, because the alias would keep the old memory. */
static bool check_aliases(const ls_named_list *parameters) {
    for (int i = 0; i < parameters->count; i++) {
        if (ls_tensor_has_alias(parameters->items[i].tensor)) {
            (void)ls_fail(LS_ERR_UNSUPPORTED,
                          "laying out the parameters: an ls_alias or ls_detach of \"%s\" exists, which would keep the "
                          "old memory: release it first, or create it after the optimizer and ls_data_parallel; to tie "
                          "two models, add the same tensor to both",
                          parameters->items[i].name);
            return false;
        }
    }
    return true;
}

/* Rejects parameters that are sharded over ranks (ZeRO), because other code relies on their current layout. */
static bool check_shards(const ls_named_list *parameters) {
    for (int i = 0; i < parameters->count; i++) {
        const ls_tensor *parameter = parameters->items[i].tensor;
        if ((parameter->leaf != NULL && parameter->leaf->sharding != NULL) || ls_tensor_is_gone(parameter)) {
            (void)ls_fail(
                LS_ERR_UNSUPPORTED,
                "laying out the parameters: \"%s\" belongs to an ls_data_parallel with .zero, and must stay "
                "where it is: create the optimizer for the module created by ls_data_parallel, or add the parameters "
                "with ls_optimizer_add_group",
                parameters->items[i].name);
            return false;
        }
    }
    return true;
}

/* Returns cleared memory. */
static ls_storage *allocate(const ls_device *device, size_t bytes) {
    ls_storage *storage = ls_storage_new(device, bytes);
    if (storage != NULL && device->clear(ls_device_stream(device), storage->memory, bytes) != LS_OK) {
        ls_storage_drop(storage);
        storage = NULL;
    }
    return storage;
}

static bool lay_out(const ls_named_list *list, const ls_device *device, ls_flat_memory *memory, ls_flat *flat) {
    const size_t bytes = (size_t)flat->count * ls_dtype_size(flat->dtype);
    flat->parameters = memory(device, bytes);
    flat->gradients = memory(device, bytes);
    bool good = flat->parameters != NULL && flat->gradients != NULL;
    if (good) {
        ls_storage_set_kind(flat->parameters, LS_MEMORY_PARAMETERS);
        ls_storage_set_kind(flat->gradients, LS_MEMORY_GRADIENTS);
    } else {
        (void)ls_fail_memory("ls_module_flatten", 2 * bytes);
    }
    int64_t offset = 0;
    for (int i = 0; good && i < list->count; i++) {
        ls_tensor *parameter = list->items[i].tensor;
        if (parameter->dtype == flat->dtype && parameter->leaf != NULL) {
            good = lay_gradient(parameter, flat->gradients, offset) &&
                   ls_tensor_move_storage(parameter, flat->parameters, offset, true) == LS_OK;
            offset += padded(parameter->count, flat->dtype);
            if (memory != allocate) { /* the caller saves memory, so the parameter's old memory is freed */
                ls_cache_empty(&ls_thread()->cache);
            }
        }
    }
    /* From here on, the tensors hold references to the storages. */
    ls_storage_drop(flat->parameters);
    ls_storage_drop(flat->gradients);
    return good;
}

ls_status ls_module_device(ls_module *module, const char *call, const ls_device **device) {
    *device = &ls_cpu;
    if (!ls_module_list(module)) {
        return ls_error_status();
    }
    const ls_named_list *list = &module->parameters;
    for (int i = 0; i < list->count; i++) {
        const ls_device *own = ls_tensor_device(list->items[i].tensor);
        if (i > 0 && own != *device) {
            return ls_fail(LS_ERR_UNSUPPORTED,
                           "%s: the parameter %s is on %s, but the parameters before it are on %s; a model must be on "
                           "one device (ls_module_to_device)",
                           call, list->items[i].name, own->name, (*device)->name);
        }
        *device = own;
    }
    return LS_OK;
}

int ls_module_flatten(ls_module *module, ls_flat flats[LS_FLAT_LIMIT]) {
    return ls_module_flatten_in(module, NULL, flats);
}

int ls_module_flatten_in(ls_module *module, ls_flat_memory *memory, ls_flat flats[LS_FLAT_LIMIT]) {
    const ls_device *device = NULL;
    if (ls_module_device(module, "ls_module_flatten", &device) != LS_OK) {
        return -1;
    }
    int used = 0;
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
        ls_flat flat = {.dtype = (ls_dtype)dtype};
        for (int i = 0; i < module->parameters.count; i++) {
            const ls_tensor *parameter = module->parameters.items[i].tensor;
            if (parameter->dtype == dtype && parameter->leaf != NULL) {
                flat.count += padded(parameter->count, flat.dtype);
            }
        }
        if (flat.count == 0) {
            continue;
        }
        if (memory == NULL && already_flat(&module->parameters, &flat)) {
            flats[used++] = flat;
            continue;
        }
        if (!check_shards(&module->parameters) || !check_ties(&module->parameters, &module->parameters, true) ||
            !check_ties(&module->parameters, &module->buffers, false) || !check_aliases(&module->parameters) ||
            !lay_out(&module->parameters, device, memory != NULL ? memory : allocate, &flat)) {
            return -1;
        }
        flats[used++] = flat;
    }
    return used;
}

ls_status ls_module_move_gradients(ls_module *module, ls_dtype dtype, ls_storage *storage) {
    if (!ls_module_list(module)) {
        return ls_error_status();
    }
    int64_t offset = 0;
    for (int i = 0; i < module->parameters.count; i++) {
        ls_tensor *parameter = module->parameters.items[i].tensor;
        if (parameter->dtype != dtype || parameter->leaf == NULL) {
            continue;
        }
        const ls_tensor *gradient = parameter->leaf->gradient;
        if ((gradient == NULL || gradient->storage->whole != storage) && !lay_gradient(parameter, storage, offset)) {
            return ls_error_status();
        }
        offset += padded(parameter->count, dtype);
    }
    return LS_OK;
}
