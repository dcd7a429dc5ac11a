/* Reduces the gradients of a model with a reducer (coalescing.c). */
#include "nn/module.h"
#include "parallel/data_parallel.h"
#include "parallel/parallel.h"
#include "tensor/capture.h"

static const char call[] = "ls_distribute_gradients";

/* Adds all gradients to the reducer, with zeros for gradients that only other ranks have. */
static ls_status add_gradients(ls_module *model, ls_reducer *reducer) {
    ls_flat flats[LS_FLAT_LIMIT];
    if (ls_module_flatten(model, flats) < 0) {
        return ls_error_status();
    }
    LS_TRY(ls_complete_gradients(call, model, ls_reducer_comm(reducer)));
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        const ls_leaf *leaf = ls_module_parameter(model, i)->leaf;
        LS_TRY(leaf != NULL && leaf->has_gradient ? ls_reducer_add(reducer, leaf->gradient) : LS_OK);
    }
    return LS_OK;
}

/* Returns whether ls_backward averages the gradients of the module. */
static bool averages(const ls_module *module) {
    return ls_data_parallel_comm(module) != NULL && ls_data_parallel_averages(module);
}

ls_status ls_distribute_gradients(ls_module *model, ls_reducer *reducer) {
    ls_capture_refuse_here(call, LS_CAPTURE_COMMUNICATES);
    if (model == NULL || reducer == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the %s is NULL", call, model == NULL ? "model" : "reducer");
    }
    LS_TRY(ls_reducer_check_here(call, reducer));
    if (ls_data_parallel_comm(model) != NULL || ls_module_any_relative_is(model, averages)) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "%s: the model is data-parallel, or shares layers with a data-parallel module: omit this call "
                       "if ls_backward averages the gradients; otherwise call ls_data_parallel_no_sync(module, true) "
                       "and pass the model that was given to ls_data_parallel",
                       call);
    }
    ls_saved_error first = {.status = LS_OK};
    ls_error_save_first(&first, add_gradients(model, reducer));
    ls_error_save_first(&first, ls_reducer_finish(reducer)); /* after a failure too: no tensor is left in it */
    return ls_error_put_back_first(&first);
}
