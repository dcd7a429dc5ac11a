#include "nn/module.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tensor/scope.h"

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

void ls_module_fail_if(ls_module *module, bool failed) {
    if (failed && !module->failed) {
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

/* Drops the reference to a child. */
static void drop_child(const ls_module *module, ls_module *child) {
    int i = 0;
    while (child->parents[i] != module) {
        i++;
    }
    child->parents[i] = child->parents[--child->parent_count];
    ls_module_drop(child);
}

/* ---- the lists --------------------------------------------------------------------------------------------------- */

void ls_module_clear_lists(ls_module *module) {
    ls_named_list_clear(&module->parameters, false);
    ls_named_list_clear(&module->buffers, false);
    ls_named_list_clear(&module->aliases, false);
    module->listed = module->stale = module->grown = false;
}

static bool has_all_parameters(const ls_named_list *list, const ls_module *module) {
    bool all = true;
    for (int i = 0; all && i < module->own_parameters.count; i++) {
        all = ls_named_list_has(list, module->own_parameters.items[i].tensor);
    }
    for (int i = 0; all && i < module->child_count; i++) {
        all = has_all_parameters(list, module->children[i].module);
    }
    return all;
}

/* Discards the lists of a module to which a tensor or a child was added, and of its ancestors, except lists that are
 * kept. `has_parameters` means that the addition may contain parameters. */
static void forget_lists(ls_module *module, bool has_parameters) {
    if (module->list_keepers == 0) {
        ls_module_clear_lists(module);
    } else {
        module->stale = true;
        module->grown = module->grown || (has_parameters && !has_all_parameters(&module->parameters, module));
    }
    for (int i = 0; i < module->parent_count; i++) {
        forget_lists(module->parents[i], has_parameters);
    }
}

bool ls_module_has_grown(const ls_module *module) {
    return module->list_keepers > 0 && module->grown;
}

/* ---- references -------------------------------------------------------------------------------------------------- */

static void destroy(ls_module *module) {
    if (module->type->free_state != NULL) {
        module->type->free_state(module);
    }
    forget_hooks(module);
    ls_module_clear_lists(module);
    ls_named_list_clear(&module->own_parameters, true);
    ls_named_list_clear(&module->own_buffers, true);
    for (int i = 0; i < module->child_count; i++) {
        ls_free(module->children[i].name);
        drop_child(module, module->children[i].module);
    }
    ls_named_list_clear(&module->refused_tensors, true);
    for (int i = 0; i < module->refused_child_count; i++) {
        ls_module_drop(module->refused_children[i]);
    }
    ls_free(module->refused_children);
    ls_free(module->children);
    ls_free(module->parents);
    ls_free(module->cause);
    ls_free(module->state);
    *module = (ls_module){.type = NULL};
    ls_retire(module, LS_RETIRED_MODULE);
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

/* Returns the kind of object that has this name, or NULL if the name is free. */
static const char *find_name(const ls_module *module, const char *name) {
    for (int i = 0; i < module->own_parameters.count; i++) {
        if (strcmp(module->own_parameters.items[i].name, name) == 0) {
            return "parameter";
        }
    }
    for (int i = 0; i < module->own_buffers.count; i++) {
        if (strcmp(module->own_buffers.items[i].name, name) == 0) {
            return "buffer";
        }
    }
    for (int i = 0; i < module->child_count; i++) {
        if (strcmp(module->children[i].name, name) == 0) {
            return "child";
        }
    }
    return NULL;
}

/* Checks the name of a new object. Only children may have the name "", even several children. */
static bool name_is_good(const ls_module *module, const char *name, bool is_child) {
    if (name == NULL || strchr(name, '.') != NULL || (name[0] == '\0' && !is_child)) {
        const char *quote = name != NULL ? "\"" : "";
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: the name %s%s%s is not valid: %s", module->type->name, quote,
                      name != NULL ? name : "NULL", quote,
                      is_child ? "names of children are strings without dots" : "names are not empty and have no dots");
        return false;
    }
    const char *kind = name[0] != '\0' ? find_name(module, name) : NULL;
    if (kind != NULL) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: a %s named \"%s\" exists already: choose another name", module->type->name,
                      kind, name);
    }
    return kind == NULL;
}

/* Fails with the first error of a module that has failed. */
static bool is_good(const ls_module *module) {
    if (!module->failed) {
        return true;
    }
    if (module->cause != NULL) {
        (void)ls_error_put_back(module->cause);
    } else {
        (void)ls_fail_memory(module->type->name, sizeof *module->cause);
    }
    return false;
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

/* Checks that a tensor is not both a parameter and a buffer of one module. */
static bool is_one_kind(const ls_module *module, const ls_named_list *list, const char *name, const ls_tensor *tensor) {
    const bool buffer = list == &module->own_buffers;
    if (!ls_named_list_has(buffer ? &module->own_parameters : &module->own_buffers, tensor)) {
        return true;
    }
    (void)ls_fail(LS_ERR_ARGUMENT, "%s: the tensor added as %s \"%s\" is already a %s of this module",
                  module->type->name, buffer ? "buffer" : "parameter", name, buffer ? "parameter" : "buffer");
    return false;
}

/* Sets requires_grad of a floating-point parameter, which fails for the result of a recorded operation. */
static bool is_trainable(const ls_module *module, const ls_named_list *list, ls_tensor *tensor) {
    return list != &module->own_parameters || !ls_dtype_is_floating(tensor->dtype) ||
           ls_set_requires_grad(tensor, true) == LS_OK;
}

/*
 * Rejects a tensor. The module keeps it until the module is freed, because the caller may use it in the next call.
 * Takes ownership of the caller's reference.
 */
static ls_tensor *refuse_tensor(ls_module *module, ls_tensor *owned) {
    if (module != NULL) {
        ls_module_fail_if(module, true);
    }
    if (owned != NULL &&
        (module == NULL || !ls_named_list_add(&module->refused_tensors, ls_duplicate_string(""), owned))) {
        ls_tensor_disown(owned);
    }
    return NULL;
}

static ls_tensor *add_tensor(ls_module *module, ls_named_list *list, const char *name, ls_tensor *tensor) {
    module = ls_module_is_here(module) ? module : NULL;
    (void)(tensor == NULL || ls_tensor_is_here(module != NULL ? module->type->name : "a module", tensor));
    ls_tensor *owned = ls_tensor_own(tensor);
    if (module == NULL || !is_good(module) || !is_there(module, name, owned) || !name_is_good(module, name, false) ||
        !is_dense(module, name, owned) || !is_one_kind(module, list, name, owned) ||
        !is_trainable(module, list, owned)) {
        return refuse_tensor(module, owned);
    }
    if (!ls_named_list_add(list, ls_duplicate_string(name), owned)) {
        (void)ls_fail_memory(module->type->name, sizeof(ls_named_tensor));
        return refuse_tensor(module, owned);
    }
    forget_lists(module, list == &module->own_parameters);
    ls_storage_set_kind(owned->storage, LS_MEMORY_PARAMETERS);
    return owned;
}

ls_tensor *ls_module_add_parameter(ls_module *module, const char *name, ls_tensor *tensor) {
    return module != NULL ? add_tensor(module, &module->own_parameters, name, tensor)
                          : add_tensor(NULL, NULL, name, tensor);
}

ls_tensor *ls_module_add_buffer(ls_module *module, const char *name, ls_tensor *tensor) {
    return module != NULL ? add_tensor(module, &module->own_buffers, name, tensor)
                          : add_tensor(NULL, NULL, name, tensor);
}

/* Makes room for one more child, and for one more parent of the child. */
static bool make_room(ls_module *module, ls_module *child) {
    ls_child *children = ls_grow(module->children, (size_t)module->child_count, sizeof *children);
    module->children = children != NULL ? children : module->children;
    ls_module **parents = ls_grow(child->parents, (size_t)child->parent_count, sizeof *parents);
    child->parents = parents != NULL ? parents : child->parents;
    return children != NULL && parents != NULL;
}

/* Returns whether `module` owns `sought`, also through a refused child. */
static bool contains(const ls_module *module, const ls_module *sought) {
    bool found = module == sought;
    for (int i = 0; i < module->child_count && !found; i++) {
        found = contains(module->children[i].module, sought);
    }
    for (int i = 0; i < module->refused_child_count && !found; i++) {
        found = contains(module->refused_children[i], sought);
    }
    return found;
}

/*
 * Rejects a child that contains the module. If the child owns the module, ownership returns to the module's creator
 * before the child is freed.
 */
static ls_module *refuse_circle(ls_module *module, const char *name, ls_module *child) {
    if (is_good(module)) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: the module added as \"%s\" is %s", module->type->name,
                      name != NULL ? name : "", child == module ? "the module itself" : "a module that it is part of");
        ls_module_fail_if(module, true);
    }
    if (child != module) {
        if (!module->owners.made) {
            module->owners.references++;
            module->owners.made = true;
        }
        ls_module_consume(child);
    }
    return NULL;
}

/* Rejects a child. The module keeps it, like rejected tensors. Takes ownership of the caller's reference. */
static ls_module *refuse_child(ls_module *module, ls_module *owned) {
    ls_module_fail_if(module, true);
    ls_module **kept =
        owned != NULL ? ls_grow(module->refused_children, (size_t)module->refused_child_count, sizeof *kept) : NULL;
    if (kept == NULL) {
        ls_module_drop(owned);
        return NULL;
    }
    module->refused_children = kept;
    kept[module->refused_child_count++] = owned;
    return NULL;
}

/* Takes ownership of the caller's reference to the child. If out of memory, fails, and the caller keeps the reference.
 */
static bool put_child(ls_module *module, const char *name, ls_module *owned) {
    char *copy = ls_duplicate_string(name);
    if (copy == NULL || !make_room(module, owned)) {
        ls_free(copy);
        (void)ls_fail_memory(module->type->name, sizeof(ls_child));
        return false;
    }
    module->children[module->child_count++] = (ls_child){.name = copy, .module = owned};
    owned->parents[owned->parent_count++] = module;
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
    ls_module *owned = ls_module_take(child);
    if (!is_good(module) || !is_there(module, name, owned) || !name_is_good(module, name, true) || !is_good(owned) ||
        !put_child(module, name, owned)) {
        return refuse_child(module, owned);
    }
    forget_lists(module, true);
    return child;
}

/* Returns this module or a descendant that has failed, or NULL. A child may fail after it was added. */
static const ls_module *find_failed(const ls_module *module) {
    const ls_module *found = module->failed ? module : NULL;
    for (int i = 0; i < module->child_count && found == NULL; i++) {
        found = find_failed(module->children[i].module);
    }
    return found;
}

ls_module *ls_module_finish(ls_module *module) {
    if (module == NULL || !ls_module_is_here(module)) {
        return NULL;
    }
    const ls_module *failed = find_failed(module);
    if (failed == NULL) {
        return module;
    }
    ls_saved_error cause;
    ls_error_save(&cause);
    cause = failed->cause != NULL ? *failed->cause : cause;
    ls_module_free(module);
    (void)ls_error_put_back(&cause);
    return NULL;
}

void *ls_module_state(const ls_module *module) {
    if (module != NULL && module->type != NULL && module->type->state_size == 0) {
        (void)ls_fail(LS_ERR_STATE, "ls_module_state: the type %s has no state: set .state_size of ls_module_type",
                      module->type->name);
        ls_module_fail_if((ls_module *)module, true);
        return NULL;
    }
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
static const char *name_after_child(const char *child, const char *name) {
    const size_t length = strlen(child);
    if (length == 0) {
        return name;
    }
    if (strncmp(name, child, length) != 0 ||
        (name[length] != '\0' && (name[length] != '.' || name[length + 1] == '\0'))) {
        return NULL;
    }
    return name + length + (name[length] == '.');
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
        const char *rest = name_after_child(module->children[i].name, name);
        found = rest != NULL ? ls_module_find_child(module->children[i].module, rest) : NULL;
    }
    return found;
}
