/* Lists of named tensors. Also discards the lists of a module and of its ancestors. */
#include "base/memory.h"
#include "nn/module.h"

void ls_named_list_clear(ls_named_list *list, bool owns_tensors) {
    for (int i = 0; i < list->count; i++) {
        ls_free(list->items[i].name);
        if (owns_tensors) {
            ls_tensor_disown(list->items[i].tensor);
        }
    }
    ls_free(list->items);
    *list = (ls_named_list){0};
}

bool ls_named_list_add(ls_named_list *list, char *name, ls_tensor *tensor) {
    ls_named_tensor *items = name != NULL ? ls_grow(list->items, (size_t)list->count, sizeof *items) : NULL;
    if (items == NULL) {
        ls_free(name);
        return false;
    }
    list->items = items;
    list->items[list->count++] = (ls_named_tensor){.name = name, .tensor = tensor};
    return true;
}

void ls_module_clear_lists(ls_module *module) {
    ls_named_list_clear(&module->parameters, false);
    ls_named_list_clear(&module->buffers, false);
    ls_named_list_clear(&module->aliases, false);
    module->listed = module->stale = false;
}

static void forget_above(const ls_module *module) {
    for (int i = 0; i < module->parent_count; i++) {
        ls_module *parent = module->parents[i];
        if (parent->list_keepers > 0) {
            parent->stale = parent->listed;
        } else {
            ls_module_clear_lists(parent);
        }
        forget_above(parent);
    }
}

void ls_module_forget_lists(ls_module *module) {
    ls_module_clear_lists(module);
    forget_above(module);
}

bool ls_named_list_has(const ls_named_list *list, const ls_tensor *tensor) {
    for (int i = 0; i < list->count; i++) {
        if (list->items[i].tensor == tensor) {
            return true;
        }
    }
    return false;
}
