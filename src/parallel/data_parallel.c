/*
 * Data-parallel training. The gradients of each dtype lie in one flat buffer in memory that all ranks of the machine
 * reach, so averaging them (averaging.c) is one all-reduce per dtype without a copy.
 */
#include "parallel/data_parallel.h"

#include <string.h>

#include "base/memory.h"

typedef ls_data_parallel_state data_parallel_state;

static ls_tensor *data_parallel_forward(ls_module *self, ls_tensor *input) {
    data_parallel_state *state = self->state;
    ls_tensor *output = state->model->type->forward(state->model, input);
    if (output == NULL || !output->needs_grad || ls_comm_size(state->comm) == 1) {
        return output;
    }
    state->samples = input->ndim > 0 ? input->size[0] : 1;
    ls_samples_begin(output);
    return ls_watch_pass(&ls_data_parallel_watch, state) == LS_OK ? output : NULL;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Memory of the communicator behind a flat buffer; goes back to it with the last gradient. */
typedef struct comm_memory {
    ls_comm *comm;
} comm_memory;

static void release_comm_memory(void *memory, void *user) {
    comm_memory *owner = user;
    ls_comm_release(owner->comm, memory);
    ls_free(owner);
}

static ls_status share_gradients(data_parallel_state *state, int index) {
    ls_flat *flat = &state->flats[index];
    const size_t bytes = (size_t)(flat->count + ls_data_parallel_tail(state, index)) * ls_dtype_size(flat->dtype);
    void *memory = ls_comm_alloc(state->comm, bytes);
    if (memory == NULL) {
        return ls_error_status();
    }
    comm_memory *owner = ls_allocate(sizeof *owner);
    ls_storage *storage = owner != NULL ? ls_storage_wrap(&ls_cpu, memory, bytes, release_comm_memory, owner) : NULL;
    if (storage == NULL) {
        ls_free(owner);
        ls_comm_release(state->comm, memory);
        return ls_fail_memory("ls_data_parallel", bytes);
    }
    owner->comm = state->comm;
    flat->gradients = state->shared[index] = storage;
    return ls_module_rehome_gradients(state->model, flat->dtype, storage);
}

static ls_status prepare(data_parallel_state *state, const ls_data_parallel_options *options) {
    if (options == NULL || !options->no_initial_sync) {
        LS_TRY(ls_sync_parameters(state->model, state->comm, 0));
    }
    const int flat_count = ls_module_flatten(state->model, state->flats);
    if (flat_count < 0) {
        return ls_error_status();
    }
    state->flat_count = flat_count;
    state->parameter_count = ls_module_parameter_count(state->model);
    if (flat_count == 0) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_data_parallel: the model has no parameters that want gradients");
    }
    for (int i = 0; i < flat_count; i++) {
        if (state->flats[i].dtype != LS_F32 && state->flats[i].dtype != LS_F64) {
            return ls_fail(LS_ERR_UNSUPPORTED, "ls_data_parallel: parameters of %s cannot be trained; use f32 or f64",
                           ls_dtype_name(state->flats[i].dtype));
        }
        LS_TRY(share_gradients(state, i));
    }
    return LS_OK;
}

static void finish(ls_module *self) {
    const data_parallel_state *state = self->state;
    for (int i = 0; i < LS_FLAT_LIMIT; i++) {
        if (state->shared[i] != NULL) {
            ls_storage_drop(state->shared[i]);
        }
    }
}

static const ls_module_type data_parallel_type = {.name = "DataParallel",
                                                  .state_size = sizeof(data_parallel_state),
                                                  .forward = data_parallel_forward,
                                                  .finish = finish};

ls_module *ls_data_parallel(ls_module *model, ls_comm *comm, const ls_data_parallel_options *options) {
    ls_module *module = ls_module_new(&data_parallel_type);
    if (module == NULL || comm == NULL) {
        ls_module_consume(model);
        ls_module_free(module);
        return module == NULL ? NULL : ls_fail_null(LS_ERR_ARGUMENT, "ls_data_parallel: the communicator is NULL");
    }
    data_parallel_state *state = module->state;
    state->comm = comm;
    state->model = ls_module_add_child(module, "", model);
    module->failed |= state->model == NULL || prepare(state, options) != LS_OK;
    return ls_module_finish(module);
}

static data_parallel_state *state_of(const char *call, const ls_module *module) {
    if (module == NULL || module->type != &data_parallel_type) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: the module %s", call,
                            module == NULL ? "is NULL" : "was not made by ls_data_parallel");
    }
    return module->state;
}

ls_status ls_data_parallel_no_sync(ls_module *module, bool on) {
    data_parallel_state *state = state_of("ls_data_parallel_no_sync", module);
    if (state == NULL) {
        return ls_error_status();
    }
    state->no_sync = on;
    return LS_OK;
}

ls_status ls_data_parallel_skip(ls_module *module) {
    data_parallel_state *state = state_of("ls_data_parallel_skip", module);
    if (state == NULL) {
        return ls_error_status();
    }
    return ls_comm_size(state->comm) > 1 ? ls_data_parallel_pass_without_samples(state) : LS_OK;
}

ls_comm *ls_data_parallel_comm(const ls_module *module) {
    return module != NULL && module->type == &data_parallel_type ? ((data_parallel_state *)module->state)->comm : NULL;
}
