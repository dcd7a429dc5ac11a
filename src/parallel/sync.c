/* Making ranks equal: parameters from one rank, gradients averaged over all. */
#include "nn/module.h"
#include "parallel/parallel.h"
#include "parallel/pipeline.h"
#include "tensor/scope.h"

static ls_status check(const char *call, const ls_module *model, const ls_comm *comm) {
    if (model == NULL || comm == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the %s is NULL", call, model == NULL ? "model" : "communicator");
    }
    return LS_OK;
}

static ls_status broadcast_tensor(ls_tensor *tensor, ls_comm *comm, int root) {
    ls_tensor_changed(tensor, "ls_sync_parameters");
    return ls_comm_broadcast(comm, tensor->data, (size_t)tensor->count, (ls_dtype)tensor->dtype, root, NULL);
}

ls_status ls_sync_parameters(ls_module *model, ls_comm *comm, int root) {
    LS_TRY(check("ls_sync_parameters", model, comm));
    ls_flat flats[LS_FLAT_LIMIT];
    const int used = ls_module_flatten(model, flats);
    if (used < 0) {
        return ls_error_status();
    }
    for (int i = 0; i < used; i++) {
        LS_TRY(
            ls_comm_broadcast(comm, flats[i].parameters->memory, (size_t)flats[i].count, flats[i].dtype, root, NULL));
    }
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        ls_tensor *parameter = ls_module_parameter(model, i);
        if (parameter->leaf == NULL) {
            LS_TRY(broadcast_tensor(parameter, comm, root));
        } else {
            ls_tensor_changed(parameter, "ls_sync_parameters");
        }
    }
    for (int i = 0; i < ls_module_buffer_count(model); i++) {
        LS_TRY(broadcast_tensor(ls_module_buffer(model, i), comm, root));
    }
    return LS_OK;
}

/* Zeroes what a parameter without a gradient would contribute. */
static ls_status clear_missing_gradients(ls_module *model) {
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        ls_leaf *leaf = ls_module_parameter(model, i)->leaf;
        if (leaf != NULL && !leaf->has_gradient) {
            const ls_tensor *gradient = leaf->gradient;
            LS_TRY(ls_kernels_of(gradient)->fill(ls_stream_of(gradient), leaf->gradient, 0));
        }
    }
    return LS_OK;
}

/* Agrees which parameters have a gradient on some rank. */
static ls_status agree_on_gradients(ls_module *model, ls_comm *comm) {
    const int count = ls_module_parameter_count(model);
    uint8_t *present = ls_record_allocate((size_t)count);
    if (present == NULL) {
        return ls_fail_memory("ls_sync_gradients", (size_t)count);
    }
    for (int i = 0; i < count; i++) {
        const ls_leaf *leaf = ls_module_parameter(model, i)->leaf;
        present[i] = leaf != NULL && leaf->has_gradient;
    }
    const ls_status status = ls_comm_allreduce(comm, present, present, (size_t)count, LS_U8, LS_MAX, NULL);
    for (int i = 0; status == LS_OK && i < count; i++) {
        ls_leaf *leaf = ls_module_parameter(model, i)->leaf;
        if (leaf != NULL) {
            leaf->has_gradient = present[i] != 0;
            ls_leaf_changed(leaf, "ls_sync_gradients");
        }
    }
    ls_record_release(present, (size_t)count);
    return status;
}

/* Says once what averaged gradients do not make up for. */
static void tell_of_parts(ls_module *model, const ls_comm *comm) {
    const ls_module *of_whole_batch = model->told ? NULL : ls_module_of_whole_batch(model, false);
    model->told = true;
    if (of_whole_batch != NULL && ls_comm_size(comm) > 1 && ls_comm_rank(comm) == 0) {
        ls_log_write(
            LS_LOG_WARNING,
            "ls_sync_gradients: %s in the model works on each rank's samples alone (its statistics, its random "
            "numbers); in ls_data_parallel it works on the whole batch",
            of_whole_batch->type->name);
    }
}

ls_status ls_sync_gradients(ls_module *model, ls_comm *comm) {
    LS_TRY(check("ls_sync_gradients", model, comm));
    tell_of_parts(model, comm);
    ls_flat flats[LS_FLAT_LIMIT];
    const int used = ls_module_flatten(model, flats);
    if (used < 0) {
        return ls_error_status();
    }
    double weight = 1;
    if (model->type == &ls_pipeline_type) {
        LS_TRY(ls_pipeline_weigh(model->state, comm, &weight));
    }
    LS_TRY(clear_missing_gradients(model));
    LS_TRY(agree_on_gradients(model, comm));
    for (int i = 0; i < used; i++) {
        void *memory = flats[i].gradients->memory;
        if (weight != 1) {
            LS_TRY(ls_cpu.kernels->scale(ls_cpu.default_stream(), flats[i].dtype, flats[i].count, weight, memory));
        }
        LS_TRY(ls_comm_allreduce(comm, memory, memory, (size_t)flats[i].count, flats[i].dtype, LS_AVG, NULL));
    }
    return LS_OK;
}
