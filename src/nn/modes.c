/* Training and evaluation mode, and synchronization state, of a module and all its descendants. */
#include <stdatomic.h>

#include "nn/module.h"
#include "tensor/scope.h"

void ls_module_train(ls_module *module, bool training) {
    if (module == NULL) {
        return;
    }
    module->training = training;
    for (int i = 0; i < module->child_count; i++) {
        ls_module_train(module->children[i].module, training);
    }
}

/*
 * The sum of ls_module.unsynchronized over all modules of the process. It cannot belong to a thread: a program may run
 * ls_outer_step in one thread and save the model in a different thread. Ranks of the same process share the count
 * safely, because a positive count only starts the search through the module.
 */
static atomic_int unsynchronized_count;

void ls_module_add_unsynchronized(ls_module *module, int change) {
    module->unsynchronized += change;
    atomic_fetch_add_explicit(&unsynchronized_count, change, memory_order_relaxed);
}

/* Returns whether the condition is true for the module or an ancestor. */
static bool self_or_ancestor_is(const ls_module *module, bool (*condition)(const ls_module *module)) {
    bool found = condition(module);
    for (int i = 0; i < module->parent_count && !found; i++) {
        found = self_or_ancestor_is(module->parents[i], condition);
    }
    return found;
}

bool ls_module_any_relative_is(const ls_module *module, bool (*condition)(const ls_module *module)) {
    bool found = self_or_ancestor_is(module, condition);
    for (int i = 0; i < module->child_count && !found; i++) {
        found = ls_module_any_relative_is(module->children[i].module, condition);
    }
    return found;
}

/* Returns whether an ls_outer of the module has taken steps since its last outer step. */
static bool is_unsynchronized(const ls_module *module) {
    return module->unsynchronized > 0;
}

/* Omits the search if no model has an ls_outer: a search takes long, because it visits a shared module once per path.
 */
bool ls_module_is_unsynchronized(const ls_module *module) {
    return atomic_load_explicit(&unsynchronized_count, memory_order_relaxed) > 0 &&
           ls_module_any_relative_is(module, is_unsynchronized);
}

ls_status ls_module_check_synchronized(const char *call, const ls_module *module) {
    return !ls_module_is_unsynchronized(module)
               ? LS_OK
               : ls_fail(LS_ERR_STATE,
                         "%s: the ranks' parameters differ between two outer steps of ls_outer: call "
                         "ls_outer_sync on all ranks first",
                         call);
}

static int count_modules(const ls_module *module) {
    int count = 1;
    for (int i = 0; i < module->child_count; i++) {
        count += count_modules(module->children[i].module);
    }
    return count;
}

static bool *copy_modes(const ls_module *module, bool *next) {
    *next++ = module->training;
    for (int i = 0; i < module->child_count; i++) {
        next = copy_modes(module->children[i].module, next);
    }
    return next;
}

static const bool *put_modes(ls_module *module, const bool *next) {
    module->training = *next++;
    for (int i = 0; i < module->child_count; i++) {
        next = put_modes(module->children[i].module, next);
    }
    return next;
}

ls_status ls_modes_take(ls_modes *modes, const ls_module *module) {
    const int count = count_modules(module);
    *modes = (ls_modes){.training = ls_record_allocate((size_t)count * sizeof(bool)), .count = count};
    if (modes->training == NULL) {
        return ls_fail_memory("ls_module_train", (size_t)count * sizeof(bool));
    }
    (void)copy_modes(module, modes->training);
    return LS_OK;
}

void ls_modes_free(ls_modes *modes) {
    ls_record_release(modes->training, (size_t)modes->count * sizeof(bool));
}

void ls_modes_set(const ls_modes *modes, ls_module *module) {
    if (count_modules(module) == modes->count) {
        (void)put_modes(module, modes->training);
    } else { /* layers were added after the modes were recorded */
        ls_module_train(module, modes->training[0]);
    }
}

void ls_modes_put(ls_modes *modes, ls_module *module) {
    ls_modes_set(modes, module);
    ls_modes_free(modes);
}
