/* Lists of named tensors. */
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

bool ls_named_list_has(const ls_named_list *list, const ls_tensor *tensor) {
    for (int i = 0; i < list->count; i++) {
        if (list->items[i].tensor == tensor) {
            return true;
        }
    }
    return false;
}
