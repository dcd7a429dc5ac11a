/* Moves a model to a different device. */
#include "nn/module.h"

static ls_status move(ls_tensor *tensor, const ls_device *device) {
    if (tensor != NULL && !ls_tensor_is_here("ls_to_device", tensor)) {
        return ls_error_status();
    }
    LS_TRY(tensor != NULL ? ls_tensor_move_device(tensor, device) : LS_OK);
    return tensor != NULL && tensor->leaf != NULL ? move(tensor->leaf->gradient, device) : LS_OK;
}

ls_module *ls_module_to_device(ls_module *module, const char *device) {
    static const char call[] = "ls_to_device";
    if (module == NULL) {
        return ls_scope_explains_null(ls_thread()) ? NULL
                                                   : ls_fail_null(LS_ERR_ARGUMENT, "%s: the module is NULL", call);
    }
    const ls_device *target = ls_device_find(call, device);
    if (target == NULL || !ls_module_is_here(module) || !ls_module_list(module)) {
        return NULL;
    }
    for (int i = 0; i < ls_module_parameter_count(module); i++) {
        if (move(ls_module_parameter(module, i), target) != LS_OK) {
            return NULL;
        }
    }
    for (int i = 0; i < ls_module_buffer_count(module); i++) {
        if (move(ls_module_buffer(module, i), target) != LS_OK) {
            return NULL;
        }
    }
    return module;
}
