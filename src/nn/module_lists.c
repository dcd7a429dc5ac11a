/* Lists of the parameters and buffers of a module and its descendants, with full names. */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "nn/module.h"

static char *join_names(const char *prefix, const char *name) {
    const size_t size = strlen(prefix) + strlen(name) + 2;
    char *joined = ls_allocate(size);
    if (joined != NULL) {
        snprintf(joined, size, "%s%s%s", prefix, *prefix != '\0' && *name != '\0' ? "." : "", name);
    }
    return joined;
}

/* Adds new tensors to `list`, and additional names of listed tensors to the aliases. */
static bool gather_own(ls_module *into, ls_named_list *list, const ls_named_list *own, const char *prefix) {
    for (int i = 0; i < own->count; i++) {
        ls_tensor *tensor = own->items[i].tensor;
        const bool known = ls_named_list_has(&into->parameters, tensor) || ls_named_list_has(list, tensor);
        if (!ls_named_list_add(known ? &into->aliases : list, join_names(prefix, own->items[i].name), tensor)) {
            return false;
        }
    }
    return true;
}

static bool gather(ls_module *into, bool buffers, const ls_module *from, const char *prefix) {
    if (!gather_own(into, buffers ? &into->buffers : &into->parameters,
                    buffers ? &from->own_buffers : &from->own_parameters, prefix)) {
        return false;
    }
    for (int i = 0; i < from->child_count; i++) {
        char *name = join_names(prefix, from->children[i].name);
        const bool good = name != NULL && gather(into, buffers, from->children[i].module, name);
        ls_free(name);
        if (!good) {
            return false;
        }
    }
    return true;
}

bool ls_module_list(ls_module *module) {
    /* only the records of captured steps can hold a freed module that still has its lists */
    if ((!module->listed || module->owners.recorded > 0) && !ls_module_is_here(module)) {
        return false;
    }
    if (!module->listed || (module->stale && module->list_keepers == 0)) {
        ls_module_clear_lists(module);
        module->listed = gather(module, false, module, "") && gather(module, true, module, "");
        if (!module->listed) {
            ls_module_clear_lists(module);
            (void)ls_fail_memory("ls_module_list", sizeof(ls_named_tensor));
        }
    }
    return module->listed;
}

bool ls_module_keep_lists(ls_module *module) {
    const bool listed = ls_module_list(module);
    module->list_keepers += listed ? 1 : 0;
    return listed;
}

void ls_module_release_lists(ls_module *module) {
    module->list_keepers--;
}

/* The lists are a cache, so filling them does not count as changing the module. */
static const ls_named_list *listed(const ls_module *module, bool buffers) {
    static const ls_named_list empty;
    ls_module *cached = (ls_module *)module;
    if (cached == NULL || !ls_module_list(cached)) {
        return &empty;
    }
    return buffers ? &cached->buffers : &cached->parameters;
}

static const ls_named_tensor *listed_item(const ls_module *module, bool buffers, int index) {
    static const ls_named_tensor none;
    const ls_named_list *list = listed(module, buffers);
    return index >= 0 && index < list->count ? &list->items[index] : &none;
}

int ls_module_parameter_count(const ls_module *module) {
    return listed(module, false)->count;
}

ls_tensor *ls_module_parameter(const ls_module *module, int index) {
    return listed_item(module, false, index)->tensor;
}

const char *ls_module_parameter_name(const ls_module *module, int index) {
    return listed_item(module, false, index)->name;
}

int ls_module_buffer_count(const ls_module *module) {
    return listed(module, true)->count;
}

ls_tensor *ls_module_buffer(const ls_module *module, int index) {
    return listed_item(module, true, index)->tensor;
}

const char *ls_module_buffer_name(const ls_module *module, int index) {
    return listed_item(module, true, index)->name;
}

ls_tensor *ls_module_find(const ls_module *module, const char *name) {
    if (module == NULL || name == NULL || !ls_module_list((ls_module *)module)) {
        return NULL;
    }
    const ls_named_list *const lists[] = {&module->parameters, &module->buffers, &module->aliases};
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
        for (int i = 0; i < lists[k]->count; i++) {
            if (strcmp(lists[k]->items[i].name, name) == 0) {
                return lists[k]->items[i].tensor;
            }
        }
    }
    return NULL;
}

const char *ls_module_name_of(const ls_module *module, const ls_tensor *tensor) {
    const ls_named_list *const lists[] = {&module->parameters, &module->buffers};
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
        for (int i = 0; i < lists[k]->count; i++) {
            if (lists[k]->items[i].tensor == tensor) {
                return lists[k]->items[i].name;
            }
        }
    }
    return NULL;
}

int64_t ls_module_size(const ls_module *module) {
    const ls_named_list *list = listed(module, false);
    int64_t size = 0;
    for (int i = 0; i < list->count; i++) {
        size += ls_numel(list->items[i].tensor);
    }
    return size;
}

/* ---- all parameters ---------------------------------------------------------------------------------------------- */

void ls_module_zero_grad(ls_module *module) {
    const ls_named_list *list = listed(module, false);
    for (int i = 0; i < list->count; i++) {
        ls_zero_grad(list->items[i].tensor);
    }
}

ls_status ls_module_set_requires_grad(ls_module *module, bool requires_grad) {
    if (module == NULL) {
        return ls_fail_missing("ls_module_set_requires_grad: the module");
    }
    if (!ls_module_is_here(module) || !ls_module_list(module)) {
        return ls_error_status();
    }
    for (int i = 0; i < module->parameters.count; i++) {
        ls_tensor *parameter = module->parameters.items[i].tensor;
        if (ls_dtype_is_floating(ls_dtype_of(parameter))) {
            LS_TRY(ls_set_requires_grad(parameter, requires_grad));
        }
        if (!requires_grad) {
            ls_zero_grad(parameter);
        }
    }
    return LS_OK;
}

uint64_t ls_module_hash(const ls_module *module) {
    if (module == NULL) {
        (void)ls_fail_missing("ls_module_hash: the module");
        return 0;
    }
    if (!ls_module_list((ls_module *)module) || ls_module_check_synchronized("ls_module_hash", module) != LS_OK) {
        return 0;
    }
    const ls_named_list *list = &module->parameters;
    uint64_t hash = LS_HASH_START;
    for (int i = 0; i < list->count; i++) {
        const ls_tensor *tensor = list->items[i].tensor;
        ls_tensor *dense = ls_tensor_dense_on_host("ls_module_hash", tensor, ls_dtype_of(tensor));
        if (dense == NULL) {
            return 0;
        }
        hash = ls_hash(hash, ls_host_data(dense), (size_t)dense->count * ls_dtype_size(ls_dtype_of(dense)));
        ls_tensor_drop(dense);
    }
    return hash;
}
