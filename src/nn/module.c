#include "nn/module.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "tensor/scope.h"

static void named_list_clear(ls_named_list *list, bool owns_tensors) {
    for (int i = 0; i < list->count; i++) {
        ls_free(list->items[i].name);
        if (owns_tensors) {
            ls_tensor_disown(list->items[i].tensor);
        }
    }
    ls_free(list->items);
    *list = (ls_named_list){0};
}

/* Takes ownership of `name`, even on failure. */
static bool named_list_add(ls_named_list *list, char *name, ls_tensor *tensor) {
    ls_named_tensor *items = name != NULL ? ls_grow(list->items, (size_t)list->count, sizeof *items) : NULL;
    if (items == NULL) {
        ls_free(name);
        return false;
    }
    list->items = items;
    list->items[list->count++] = (ls_named_tensor){.name = name, .tensor = tensor};
    return true;
}

static void forget_lists(ls_module *module) {
    named_list_clear(&module->parameters, false);
    named_list_clear(&module->buffers, false);
    named_list_clear(&module->aliases, false);
    module->listed = false;
}

ls_module *ls_module_new(const ls_module_type *type) {
    if (type == NULL) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_module_new: the type is NULL");
    }
    if ((type->forward == NULL) == (type->forward_many == NULL)) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_module_new: the type %s has %s", type->name,
                            type->forward == NULL ? "no forward function"
                                                  : "both forward and forward_many: it must have one of them");
    }
    if (type->inputs < 0 || type->outputs < 0 || (type->forward != NULL && (type->inputs > 1 || type->outputs > 1))) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_module_new: the type %s has %d inputs and %d outputs%s", type->name,
                            type->inputs, type->outputs, type->forward != NULL ? ", which forward_many is for" : "");
    }
    ls_module *module = ls_allocate_zeroed(1, sizeof *module);
    void *state = ls_allocate_zeroed(1, type->state_size);
    if (module == NULL || state == NULL) {
        ls_free(module);
        ls_free(state);
        (void)ls_fail_memory("ls_module_new", sizeof *module + type->state_size);
        return NULL;
    }
    module->type = type;
    module->state = state;
    module->owners = LS_OWNERS_NEW;
    module->training = true;
    return module;
}

void ls_hook_free(ls_hook *hook) {
    if (hook->own.release != NULL) {
        hook->own.release(hook->own.user);
    }
    ls_free(hook);
}

/* Notes that an addition to the module has failed, with the latest error. Only the first failure counts. */
static void fail_module(ls_module *module) {
    if (!module->failed) {
        module->failed = true;
        module->cause = ls_allocate(sizeof *module->cause);
        if (module->cause != NULL) {
            ls_error_save(module->cause);
        }
    }
}

static void forget_hooks(ls_module *module) {
    while (module->hooks != NULL) {
        ls_hook *hook = module->hooks;
        module->hooks = hook->next;
        ls_hook_free(hook);
    }
}

static void destroy(ls_module *module) {
    if (module->type->free_state != NULL) {
        module->type->free_state(module);
    }
    forget_hooks(module);
    forget_lists(module);
    named_list_clear(&module->own_parameters, true);
    named_list_clear(&module->own_buffers, true);
    for (int i = 0; i < module->child_count; i++) {
        ls_free(module->children[i].name);
        ls_module_drop(module->children[i].module);
    }
    ls_free(module->children);
    ls_free(module->cause);
    ls_free(module->state);
    *module = (ls_module){.type = NULL};
    ls_retire(module, LS_RETIRED_SHARED);
}

bool ls_module_is_here(const ls_module *module) {
    if (module != NULL && ls_owners_are_gone(&module->owners)) {
        (void)ls_fail(LS_ERR_STATE,
                      "the module was freed, by ls_module_free or with the last module that owned it; keep "
                      "it with ls_module_retain");
        return false;
    }
    return module != NULL;
}

ls_module *ls_module_take(ls_module *module) {
    if (!ls_module_is_here(module)) {
        return NULL;
    }
    ls_owners_take(&module->owners);
    return module;
}

void ls_module_drop(ls_module *module) {
    if (module != NULL && ls_owners_drop(&module->owners)) {
        destroy(module);
    }
}

void ls_module_hold_record(void *module, bool hold) {
    ls_module *const held = module;
    if (hold) {
        ls_owners_hold_record(&held->owners);
    } else if (ls_owners_drop_record(&held->owners)) {
        destroy(held);
    }
}

ls_module *ls_module_retain(ls_module *module) {
    if (!ls_module_is_here(module)) {
        return NULL;
    }
    ls_owners_retain(&module->owners);
    return module;
}

void ls_module_free(ls_module *module) {
    if (module != NULL && ls_owners_give_back(&module->owners)) {
        destroy(module);
    }
}

static bool name_is_good(const ls_module *module, const char *name) {
    if (name == NULL || strchr(name, '.') != NULL) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: the name %s%s%s is not valid: names are not empty and have no dots",
                      module->type->name, name != NULL ? "\"" : "", name != NULL ? name : "NULL",
                      name != NULL ? "\"" : "");
        return false;
    }
    return true;
}

/* Returns whether `added` exists. Reports NULL as an error. */
static bool is_there(const ls_module *module, const char *name, const void *added) {
    if (added == NULL && name != NULL && name[0] != '\0') {
        (void)ls_fail_missing("%s: the object added as \"%s\"", module->type->name, name);
    } else if (added == NULL) {
        (void)ls_fail_missing("%s: its module", module->type->name);
    }
    return added != NULL;
}

/* Checks that a tensor is contiguous. Parameters and buffers are copied, reduced and updated as one range of memory. */
static bool is_dense(const ls_module *module, const char *name, const ls_tensor *tensor) {
    if (!tensor->contiguous) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: \"%s\" %s is not contiguous: call ls_contiguous first", module->type->name,
                      name, LS_SHAPE_TEXT(tensor));
    }
    return tensor->contiguous;
}

static bool list_has(const ls_named_list *list, const ls_tensor *tensor) {
    for (int i = 0; i < list->count; i++) {
        if (list->items[i].tensor == tensor) {
            return true;
        }
    }
    return false;
}

/* Checks that a tensor is not both a parameter and a buffer of one module. */
static bool is_one_kind(const ls_module *module, const ls_named_list *list, const char *name, const ls_tensor *tensor) {
    const bool buffer = list == &module->own_buffers;
    if (!list_has(buffer ? &module->own_parameters : &module->own_buffers, tensor)) {
        return true;
    }
    (void)ls_fail(LS_ERR_ARGUMENT, "%s: the tensor added as %s \"%s\" is already a %s of this module",
                  module->type->name, buffer ? "buffer" : "parameter", name, buffer ? "parameter" : "buffer");
    return false;
}

/*
 * Rejects a tensor. The module keeps it, without a name, until ls_module_finish, because the caller may use it in the
 * next call. Takes ownership of the caller's reference.
 */
static ls_tensor *refuse_tensor(ls_module *module, ls_tensor *owned) {
    if (module != NULL) {
        fail_module(module);
    }
    if (owned != NULL && (module == NULL || !named_list_add(&module->own_buffers, ls_duplicate_string(""), owned))) {
        ls_tensor_disown(owned);
    }
    return NULL;
}

static ls_tensor *add_tensor(ls_module *module, ls_named_list *list, const char *name, ls_tensor *tensor) {
    module = ls_module_is_here(module) ? module : NULL;
    (void)(tensor == NULL || ls_tensor_is_here(module != NULL ? module->type->name : "a module", tensor));
    ls_tensor *owned = ls_tensor_own(tensor);
    if (module == NULL || module->failed || !is_there(module, name, owned) || !name_is_good(module, name) ||
        !is_dense(module, name, owned) || !is_one_kind(module, list, name, owned)) {
        return refuse_tensor(module, owned);
    }
    forget_lists(module);
    if (!named_list_add(list, ls_duplicate_string(name), owned)) {
        (void)ls_fail_memory(module->type->name, sizeof(ls_named_tensor));
        return refuse_tensor(module, owned);
    }
    ls_storage_set_kind(owned->storage, LS_MEMORY_PARAMETERS);
    return owned;
}

ls_tensor *ls_module_add_parameter(ls_module *module, const char *name, ls_tensor *tensor) {
    ls_tensor *added = module != NULL ? add_tensor(module, &module->own_parameters, name, tensor)
                                      : add_tensor(NULL, NULL, name, tensor);
    if (added != NULL && ls_dtype_is_floating(ls_dtype_of(added)) && ls_set_requires_grad(added, true) != LS_OK) {
        fail_module(module);
    }
    return added;
}

ls_tensor *ls_module_add_buffer(ls_module *module, const char *name, ls_tensor *tensor) {
    return module != NULL ? add_tensor(module, &module->own_buffers, name, tensor)
                          : add_tensor(NULL, NULL, name, tensor);
}

static bool grow_children(ls_module *module) {
    ls_child *children = ls_grow(module->children, (size_t)module->child_count, sizeof *children);
    module->children = children != NULL ? children : module->children;
    return children != NULL;
}

static bool contains(const ls_module *module, const ls_module *sought) {
    bool found = module == sought;
    for (int i = 0; i < module->child_count && !found; i++) {
        found = contains(module->children[i].module, sought);
    }
    return found;
}

/*
 * Rejects a child that contains the module. If the child owns the module, ownership returns to the module's creator
 * before the child is freed.
 */
static ls_module *refuse_circle(ls_module *module, const char *name, ls_module *child) {
    (void)ls_fail(LS_ERR_ARGUMENT, "%s: the module added as \"%s\" is %s", module->type->name, name != NULL ? name : "",
                  child == module ? "the module itself" : "a module that it is part of");
    fail_module(module);
    if (child != module) {
        if (!module->owners.made) {
            module->owners.references++;
            module->owners.made = true;
        }
        ls_module_consume(child);
    }
    return NULL;
}

/* Takes ownership of the caller's reference to the child. Returns false if out of memory. */
static bool put_child(ls_module *module, const char *name, ls_module *owned) {
    char *copy = ls_duplicate_string(name);
    if (copy == NULL || !grow_children(module)) {
        ls_free(copy);
        ls_module_drop(owned);
        return false;
    }
    module->children[module->child_count++] = (ls_child){.name = copy, .module = owned};
    return true;
}

ls_module *ls_module_add_child(ls_module *module, const char *name, ls_module *child) {
    if (!ls_module_is_here(module)) {
        ls_module_consume(child);
        return NULL;
    }
    if (child != NULL && contains(child, module)) {
        return refuse_circle(module, name, child);
    }
    /* Keep the first error. */
    const bool gone = child != NULL && ls_owners_are_gone(&child->owners);
    ls_module *owned = gone && module->failed ? NULL : ls_module_take(child);
    const bool good = !module->failed && is_there(module, name, owned) && name_is_good(module, name);
    if (!good) {
        fail_module(module);
    }
    if (owned == NULL) {
        return NULL;
    }
    /* A rejected module is kept until ls_module_finish, like rejected tensors. */
    forget_lists(module);
    if (!put_child(module, good ? name : "", owned)) {
        (void)ls_fail_memory(module->type->name, sizeof(ls_child));
        fail_module(module);
    }
    return module->failed ? NULL : child;
}

ls_module *ls_module_finish(ls_module *module) {
    if (module == NULL || !ls_module_is_here(module)) {
        return NULL;
    }
    if (!module->failed) {
        return module;
    }
    ls_saved_error cause;
    ls_error_save(&cause);
    cause = module->cause != NULL ? *module->cause : cause;
    ls_module_free(module);
    (void)ls_error_put_back(&cause);
    return NULL;
}

void *ls_module_state(const ls_module *module) {
    return module != NULL ? module->state : NULL;
}

bool ls_module_is_training(const ls_module *module) {
    return module != NULL && module->training;
}

const ls_module *ls_module_of_whole_batch(const ls_module *module, bool ever) {
    const ls_module *found = module->type->whole_batch && (ever || module->training) ? module : NULL;
    for (int i = 0; i < module->child_count && found == NULL; i++) {
        found = ls_module_of_whole_batch(module->children[i].module, ever);
    }
    return found;
}

/* ---- children ---------------------------------------------------------------------------------------------------- */

const char *ls_module_type_name(const ls_module *module) {
    return ls_module_is_here(module) ? module->type->name : NULL;
}

int ls_module_child_count(const ls_module *module) {
    return module != NULL ? module->child_count : 0;
}

ls_module *ls_module_child(const ls_module *module, int index) {
    return index >= 0 && index < ls_module_child_count(module) ? module->children[index].module : NULL;
}

const char *ls_module_child_name(const ls_module *module, int index) {
    return index >= 0 && index < ls_module_child_count(module) ? module->children[index].name : NULL;
}

/*
 * Returns the rest of `name` after the child's name and dot, or NULL if `name` does not begin with them. If the child's
 * name is empty, returns `name`.
 */
static const char *behind_child(const char *child, const char *name) {
    const size_t length = strlen(child);
    if (length == 0) {
        return name;
    }
    const bool begins = strncmp(name, child, length) == 0 && (name[length] == '.' || name[length] == '\0');
    return begins ? name + length + (name[length] == '.') : NULL;
}

ls_module *ls_module_find_child(const ls_module *module, const char *name) {
    if (!ls_module_is_here(module) || name == NULL) {
        return NULL;
    }
    if (*name == '\0') {
        return (ls_module *)module;
    }
    ls_module *found = NULL;
    for (int i = 0; i < module->child_count && found == NULL; i++) {
        const char *rest = behind_child(module->children[i].name, name);
        found = rest != NULL ? ls_module_find_child(module->children[i].module, rest) : NULL;
    }
    return found;
}

/* ---- lists of everything below a module -------------------------------------------------------------------------- */

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
        const bool known = list_has(&into->parameters, tensor) || list_has(list, tensor);
        if (!named_list_add(known ? &into->aliases : list, join_names(prefix, own->items[i].name), tensor)) {
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

static bool has_all_parameters(const ls_named_list *list, const ls_module *module) {
    bool all = true;
    for (int i = 0; all && i < module->own_parameters.count; i++) {
        all = list_has(list, module->own_parameters.items[i].tensor);
    }
    for (int i = 0; all && i < module->child_count; i++) {
        all = has_all_parameters(list, module->children[i].module);
    }
    return all;
}

bool ls_module_has_grown(const ls_module *module) {
    return module->listed && !has_all_parameters(&module->parameters, module);
}

bool ls_module_list(ls_module *module) {
    /* only the records of captured steps can hold a freed module that still has its lists */
    if ((!module->listed || module->owners.recorded > 0) && !ls_module_is_here(module)) {
        return false;
    }
    if (!module->listed) {
        module->listed = gather(module, false, module, "") && gather(module, true, module, "");
        if (!module->listed) {
            forget_lists(module);
            (void)ls_fail_memory("ls_module_list", sizeof(ls_named_tensor));
        }
    }
    return module->listed;
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
