/*
 * Data-parallel training. The gradients of each dtype lie in one flat buffer in memory that all ranks of the machine
 * reach, so averaging them (averaging.c) is one all-reduce per dtype without a copy.
 */
#include "parallel/data_parallel.h"

#include <string.h>

#include "base/memory.h"
#include "comm/hold.h"

typedef ls_data_parallel_state data_parallel_state;

/* ---- the whole batch --------------------------------------------------------------------------------------------- */

/* The ranks tell each other how many samples they have, and of which kind. */
static ls_status exchange_shares(data_parallel_state *state) {
    const size_t ranks = (size_t)ls_comm_size(state->comm);
    if (state->shares == NULL) {
        state->shares = ls_allocate_zeroed(ranks, sizeof *state->shares);
        if (state->shares == NULL) {
            return ls_fail_memory("ls_data_parallel", ranks * sizeof *state->shares);
        }
    }
    ls_share own = {.samples = state->part.samples};
    if (state->input != NULL) {
        own.dtype = state->input->dtype;
        own.ndim = state->input->ndim;
        memcpy(own.size, state->input->size, (size_t)own.ndim * sizeof *own.size);
    }
    return ls_comm_allgather(state->comm, &own, state->shares, sizeof own / sizeof(int64_t), LS_I64, NULL);
}

/* Finds this rank's samples in the batch: the ranks have them one after the other. */
static ls_status locate(ls_batch_part *part) {
    data_parallel_state *state = (data_parallel_state *)(void *)part;
    if (state->located) {
        return LS_OK;
    }
    LS_TRY(exchange_shares(state));
    part->first = 0;
    for (int i = 0; i < ls_comm_rank(state->comm); i++) {
        part->first += state->shares[i].samples;
    }
    state->located = true;
    return LS_OK;
}

static ls_status add_over_batch(ls_batch_part *part, double *numbers, int64_t count) {
    const data_parallel_state *state = (const data_parallel_state *)(const void *)part;
    return ls_comm_allreduce(state->comm, numbers, numbers, (size_t)count, LS_F64, LS_SUM, NULL);
}

void ls_data_parallel_hold(data_parallel_state *state, bool hold) {
    if (hold) {
        ls_module_hold(state->module);
    } else {
        ls_module_drop(state->module);
    }
}

static void hold_part(ls_batch_part *part, bool hold) {
    ls_data_parallel_hold((data_parallel_state *)(void *)part, hold);
}

/* Begins a forward pass with this rank's part of the batch, NULL without samples. */
static ls_status begin_forward(data_parallel_state *state, const ls_tensor *input) {
    state->samples = input == NULL ? 0 : input->ndim > 0 ? input->size[0] : 1;
    state->part.samples = state->samples;
    state->input = input;
    state->located = false;
    return state->whole_batch && ls_module_of_whole_batch(state->model, false) != NULL ? locate(&state->part) : LS_OK;
}

static ls_tensor *run_model(data_parallel_state *state, ls_tensor *input) {
    ls_thread_state *thread = ls_thread();
    ls_batch_part *before = thread->batch;
    thread->batch = &state->part;
    ls_tensor *output = state->model->type->forward(state->model, input);
    thread->batch = before;
    return output;
}

static ls_tensor *data_parallel_forward(ls_module *self, ls_tensor *input) {
    data_parallel_state *state = self->state;
    if (ls_comm_size(state->comm) == 1) {
        return state->model->type->forward(state->model, input);
    }
    ls_tensor *output = begin_forward(state, input) == LS_OK ? run_model(state, input) : ls_scope_failed();
    if (output == NULL || !output->needs_grad) {
        return output;
    }
    ls_samples_begin(output);
    return ls_watch_pass(&ls_data_parallel_watch, state) == LS_OK ? output : NULL;
}

/* A batch like that of the others, without samples; NULL when no rank has any. */
static const ls_share *find_share(const data_parallel_state *state) {
    for (int i = 0; i < ls_comm_size(state->comm); i++) {
        if (state->shares[i].samples > 0) {
            return &state->shares[i];
        }
    }
    return NULL;
}

/* The model runs on no samples, for what it does with the others and for its random numbers to stay in step. */
static ls_status run_without_samples(data_parallel_state *state) {
    LS_TRY(begin_forward(state, NULL));
    const ls_share *share = state->located ? find_share(state) : NULL;
    if (share == NULL) {
        return ls_data_parallel_pass_without_samples(state, NULL);
    }
    int64_t size[LS_MAX_DIMS] = {0};
    memcpy(size + 1, share->size + 1, (size_t)(share->ndim > 0 ? share->ndim - 1 : 0) * sizeof *size);
    ls_tensor *input = ls_tensor_new("ls_data_parallel_skip", (int)share->ndim, size, (ls_dtype)share->dtype);
    ls_tensor *output = input != NULL ? run_model(state, input) : NULL;
    return output != NULL ? ls_data_parallel_pass_without_samples(state, output) : ls_error_status();
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Memory of the communicator behind a flat buffer; goes back to it with the last gradient. */
typedef struct comm_memory {
    ls_comm *comm;
} comm_memory;

static void release_comm_memory(void *memory, void *user) {
    comm_memory *owner = user;
    ls_comm_release(owner->comm, memory);
    ls_comm_drop(owner->comm);
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
    owner->comm = ls_comm_hold(state->comm);
    flat->gradients = state->shared[index] = storage;
    return ls_module_move_gradients(state->model, flat->dtype, storage);
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

static void free_state(ls_module *self) {
    const data_parallel_state *state = self->state;
    ls_free(state->shares);
    for (int i = 0; i < LS_FLAT_LIMIT; i++) {
        if (state->shared[i] != NULL) {
            ls_storage_drop(state->shared[i]);
        }
    }
    ls_comm_drop(state->comm);
}

static const ls_module_type data_parallel_type = {.name = "DataParallel",
                                                  .state_size = sizeof(data_parallel_state),
                                                  .forward = data_parallel_forward,
                                                  .free_state = free_state};

ls_module *ls_data_parallel(ls_module *model, ls_comm *comm, const ls_data_parallel_options *options) {
    ls_module *module = ls_module_new(&data_parallel_type);
    if (module == NULL || comm == NULL || ls_comm_check_open("ls_data_parallel", comm) != LS_OK) {
        ls_module_consume(model);
        ls_module_free(module);
        return module == NULL || comm != NULL
                   ? NULL
                   : ls_fail_null(LS_ERR_ARGUMENT, "ls_data_parallel: the communicator is NULL");
    }
    data_parallel_state *state = module->state;
    state->module = module;
    state->comm = ls_comm_hold(comm);
    state->part = (ls_batch_part){.locate = locate, .add = add_over_batch, .hold = hold_part};
    state->model = ls_module_add_child(module, "", model);
    state->whole_batch = state->model != NULL && ls_module_of_whole_batch(state->model, true) != NULL;
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
    if (ls_comm_size(state->comm) == 1) {
        return LS_OK;
    }
    LS_TRY(ls_comm_check_open("ls_data_parallel_skip", state->comm));
    ls_scope *scope = ls_scope_begin();
    const ls_status status = run_without_samples(state);
    const ls_status ended = ls_scope_close(scope);
    return status != LS_OK ? status : ended;
}

ls_comm *ls_data_parallel_comm(const ls_module *module) {
    return module != NULL && module->type == &data_parallel_type ? ((data_parallel_state *)module->state)->comm : NULL;
}
