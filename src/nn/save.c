/* Models in safetensors files. */
#include <lockstep/formats.h>

#include "base/memory.h"
#include "nn/module.h"

/* Parameters first, then buffers. */
static const ls_named_tensor *item(const ls_module *module, int index) {
    const int parameters = module->parameters.count;
    return index < parameters ? &module->parameters.items[index] : &module->buffers.items[index - parameters];
}

static int item_count(const ls_module *module) {
    return ls_module_parameter_count(module) + ls_module_buffer_count(module);
}

ls_status ls_module_save(const ls_module *module, const char *path, const char *const *metadata) {
    if (module == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_module_save: the module is NULL");
    }
    const int count = item_count(module);
    ls_named *tensors = ls_allocate_zeroed((size_t)count, sizeof *tensors);
    if (tensors == NULL) {
        return ls_fail_memory("ls_module_save", (size_t)count * sizeof *tensors);
    }
    for (int i = 0; i < count; i++) {
        tensors[i] = (ls_named){.name = item(module, i)->name, .tensor = item(module, i)->tensor};
    }
    const ls_status status = ls_safetensors_save(path, tensors, count, metadata);
    ls_free(tensors);
    return status;
}

static ls_status check_fits(const ls_module *module, const ls_safetensors *file, const char *path) {
    for (int i = 0; i < item_count(module); i++) {
        const ls_named_tensor *own = item(module, i);
        const ls_tensor *saved = ls_safetensors_find(file, own->name);
        if (saved == NULL) {
            return ls_fail(LS_ERR_FORMAT, "ls_module_load: %s has no tensor %s", path, own->name);
        }
        if (!ls_tensor_same_shape(saved, own->tensor)) {
            return ls_fail(LS_ERR_SHAPE, "ls_module_load: %s: %s is %s there and %s in the model", path, own->name,
                           LS_SHAPE_TEXT(saved), LS_SHAPE_TEXT(own->tensor));
        }
    }
    for (int i = 0; i < ls_safetensors_count(file); i++) {
        const char *name = ls_safetensors_at(file, i).name;
        if (ls_module_find(module, name) == NULL) {
            return ls_fail(LS_ERR_FORMAT, "ls_module_load: %s has a tensor %s that the model has not", path, name);
        }
    }
    return LS_OK;
}

ls_status ls_module_load(ls_module *module, const char *path) {
    if (module == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_module_load: the module is NULL");
    }
    ls_safetensors *file = ls_safetensors_load(path);
    if (file == NULL) {
        return ls_error_status();
    }
    ls_status status = check_fits(module, file, path);
    const bool before = ls_no_grad(true);
    for (int i = 0; status == LS_OK && i < item_count(module); i++) {
        const ls_named_tensor *own = item(module, i);
        status = ls_copy_into(own->tensor, ls_safetensors_find(file, own->name));
    }
    ls_no_grad(before);
    ls_safetensors_free(file);
    return status;
}
