/*
 * A sequence of modules. A Linear followed by a ReLU runs as one fused operation. A ReLU before a MaxPool runs after
 * the MaxPool instead.
 */
#include <stdio.h>

#include "autograd/ops/linear.h"
#include "nn/layers.h"
#include "nn/module.h"

/* Returns whether ls_sequential may fuse or reorder the module with a neighboring module. */
static bool can_fuse(const ls_module *module) {
    return module != NULL && module->hooks == NULL && module->run_recomputed == NULL;
}

static ls_tensor *sequential_forward(ls_module *self, ls_tensor *input) {
    ls_tensor *x = input;
    for (int i = 0; i < self->child_count && x != NULL; i++) {
        ls_module *child = self->children[i].module;
        ls_module *next = i + 1 < self->child_count ? self->children[i + 1].module : NULL;
        const bool alone = can_fuse(child) && can_fuse(next);
        if (alone && child->type == &ls_linear_type && next->type == &ls_relu_type) {
            ls_module_note_call(child);
            ls_module_note_call(next);
            const ls_linear_state *linear = child->state;
            ls_tensor *weight = ls_layer_weight_of(&linear->weight);
            x = weight == NULL ? NULL : ls_linear_activation(x, weight, linear->bias, LS_ACTIVATION_RELU);
            i++;
        } else if (alone && child->type == &ls_relu_type && ls_layer_is_plain_max_pool(next)) {
            x = ls_forward(next, x);
            x = x == NULL ? NULL : ls_forward(child, x);
            i++;
        } else {
            x = ls_forward(child, x);
        }
    }
    return x;
}

/* Drops the reference of ls_module_take, which a freed module did not get. */
static void drop_taken(ls_module *module) {
    if (module != NULL && !ls_owners_are_gone(&module->owners)) {
        ls_module_drop(module);
    }
}

/* Makes a sequence of the modules in `named`, or of the modules in `numbered`, whose names are their numbers. The
 * other argument is NULL. */
static ls_module *sequential_new(const ls_named_module *named, ls_module *const *numbered, int count) {
    static const ls_module_type type = {.name = "Sequential", .forward = sequential_forward};
    /* A module that occurs several times must not be freed before its last occurrence is added. */
    for (int i = 0; i < count; i++) {
        (void)ls_module_take(named != NULL ? named[i].module : numbered[i]);
    }
    ls_module *module = ls_module_new(&type);
    if (module != NULL) {
        module->sequential = true;
    }
    for (int i = 0; i < count; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        (void)ls_module_add_child(module, named != NULL ? named[i].name : number,
                                  named != NULL ? named[i].module : numbered[i]);
    }
    for (int i = 0; i < count; i++) {
        drop_taken(named != NULL ? named[i].module : numbered[i]);
    }
    return ls_module_finish(module);
}

ls_module *ls_sequential_of(ls_module *const *modules, int count) {
    return count < 0 || (modules == NULL && count > 0)
               ? ls_fail_null(LS_ERR_ARGUMENT, "ls_sequential: %d modules%s", count, modules == NULL ? " at NULL" : "")
               : sequential_new(NULL, modules, count);
}

ls_module *ls_sequential_named_of(const ls_named_module *modules, int count) {
    return count < 0 || (modules == NULL && count > 0)
               ? ls_fail_null(LS_ERR_ARGUMENT, "ls_sequential_named: %d modules%s", count,
                              modules == NULL ? " at NULL" : "")
               : sequential_new(modules, NULL, count);
}

static ls_tensor *residual_forward(ls_module *self, ls_tensor *input) {
    ls_tensor *y = ls_forward(self->children[0].module, input);
    return y == NULL ? NULL : ls_add_tensor(input, y);
}

ls_module *ls_nn_residual(ls_module *f) {
    static const ls_module_type type = {.name = "Residual", .forward = residual_forward};
    ls_module *module = ls_module_new(&type);
    (void)ls_module_add_child(module, "0", f);
    return ls_module_finish(module);
}
