/*
 * Data-parallel training. The gradients of each dtype lie in one flat buffer in memory that all ranks of the machine
 * reach, so averaging them is one all-reduce per dtype without a copy.
 *
 * The mean over samples: with n_r samples on rank r, the gradient wanted is sum(n_r g_r) / sum(n_r). Each rank scales
 * its own gradient by w_r = n_r / n for one n that all ranks agreed on (their largest first batch; in the usual case
 * w_r is 1 and there is nothing to do) and puts w_r behind the gradients. The average over ranks of w_r g_r, divided by
 * that of w_r, is the mean over samples. Behind w_r stands a mark per parameter, 1 where this rank has a gradient, so
 * that all ranks learn which parameters were used anywhere.
 *
 * Passes gathered under no_sync may each be shared out differently, and what adds up in the buffers cannot be told
 * apart afterwards. So there the ranks agree on n = sum(n_r) / ranks in the (first) forward pass before each backward
 * pass, and each weighs what flows back into its output by n_r / n: the plain average over ranks is then right for all
 * that was gathered.
 */
#include <string.h>

#include "base/memory.h"
#include "nn/module.h"
#include "parallel/parallel.h"

typedef struct data_parallel_state {
    ls_module *model;
    ls_comm *comm;
    ls_flat flats[LS_FLAT_LIMIT];
    int flat_count;
    ls_storage *shared[LS_FLAT_LIMIT]; /* where the gradients lie: this module's own references */
    int parameter_count;
    int64_t usual_samples; /* n above; 0 before the first averaging */
    int64_t samples;       /* of the last forward pass */
    bool no_sync;
    bool gathering;        /* since the last averaging there were passes under no_sync: their gradients are weighed */
    double weight;         /* by which the present pass is */
    uint64_t weighed_pass; /* which one that is: 1 more than the passes before it */
} data_parallel_state;

/* The flat buffer behind which the weight and the marks stand: the one of the finest dtype. */
static int tail_flat(const data_parallel_state *state) {
    return state->flat_count - 1;
}

static int64_t tail_count(const data_parallel_state *state, int flat) {
    return flat == tail_flat(state) ? 1 + state->parameter_count : 0;
}

/* What parameter `index` of the model, whose list is there, carries; NULL when it wants no gradient. */
static ls_leaf *leaf_of(const data_parallel_state *state, int index) {
    return state->model->parameters.items[index].tensor->leaf;
}

static void write_number(const ls_flat *flat, int64_t index, double value) {
    if (flat->dtype == LS_F64) {
        ((double *)flat->gradients->memory)[index] = value;
    } else {
        ((float *)flat->gradients->memory)[index] = (float)value;
    }
}

static double read_number(const ls_flat *flat, int64_t index) {
    return flat->dtype == LS_F64 ? ((const double *)flat->gradients->memory)[index]
                                 : (double)((const float *)flat->gradients->memory)[index];
}

static ls_status scale_gradients(const data_parallel_state *state, double factor) {
    for (int i = 0; i < state->flat_count; i++) {
        const ls_flat *flat = &state->flats[i];
        LS_TRY(
            ls_cpu.kernels->scale(ls_cpu.default_stream(), flat->dtype, flat->count, factor, flat->gradients->memory));
    }
    return LS_OK;
}

/* Writes the weight and the marks, and zeroes what a parameter without a gradient would contribute. */
static ls_status write_tail(const data_parallel_state *state, double weight) {
    const ls_flat *flat = &state->flats[tail_flat(state)];
    write_number(flat, flat->count, weight);
    for (int i = 0; i < state->parameter_count; i++) {
        ls_leaf *leaf = leaf_of(state, i);
        const bool present = leaf != NULL && leaf->has_gradient;
        if (leaf != NULL && !present) {
            LS_TRY(ls_kernels_of(leaf->gradient)->fill(ls_stream_of(leaf->gradient), leaf->gradient, 0));
        }
        write_number(flat, flat->count + 1 + i, present ? 1 : 0);
    }
    return LS_OK;
}

/* Learns which parameters have a gradient on any rank; returns the mean weight. */
static double read_tail(const data_parallel_state *state) {
    const ls_flat *flat = &state->flats[tail_flat(state)];
    for (int i = 0; i < state->parameter_count; i++) {
        ls_leaf *leaf = leaf_of(state, i);
        if (leaf != NULL) {
            leaf->has_gradient = read_number(flat, flat->count + 1 + i) > 0;
            ls_leaf_changed(leaf, "ls_data_parallel");
        }
    }
    return read_number(flat, flat->count);
}

/* Whether the gradient of every parameter lies where it is averaged. */
static bool gradients_are_home(const data_parallel_state *state) {
    for (int i = 0; i < state->parameter_count; i++) {
        const ls_leaf *leaf = leaf_of(state, i);
        bool home = leaf == NULL;
        for (int k = 0; !home && leaf->gradient != NULL && k < state->flat_count; k++) {
            home = leaf->gradient->storage->whole == state->shared[k];
        }
        if (!home) {
            return false;
        }
    }
    return true;
}

/* A model that was laid out anew, as part of a larger one or in parts, has its gradients brought back. */
static ls_status reclaim_gradients(data_parallel_state *state) {
    for (int i = 0; i < state->flat_count; i++) {
        LS_TRY(ls_module_rehome_gradients(state->model, state->flats[i].dtype, state->shared[i]));
    }
    return LS_OK;
}

/*
 * Buffers (running statistics) become the mean over samples too, so that all ranks keep one model; those that cannot be
 * averaged become rank 0's.
 */
static ls_status average_buffers(const data_parallel_state *state, double weight, double mean_weight) {
    for (int i = 0; i < ls_module_buffer_count(state->model); i++) {
        const ls_tensor *buffer = ls_module_buffer(state->model, i);
        const ls_dtype dtype = (ls_dtype)buffer->dtype;
        const size_t count = (size_t)buffer->count;
        ls_tensor_changed(buffer, "ls_data_parallel");
        if (dtype != LS_F32 && dtype != LS_F64) {
            LS_TRY(ls_comm_broadcast(state->comm, buffer->data, count, dtype, 0, NULL));
            continue;
        }
        const ls_kernels *kernels = ls_kernels_of(buffer);
        if (weight != mean_weight) {
            LS_TRY(kernels->scale(ls_stream_of(buffer), dtype, buffer->count, weight / mean_weight, buffer->data));
        }
        LS_TRY(ls_comm_allreduce(state->comm, buffer->data, buffer->data, count, dtype, LS_AVG, NULL));
    }
    return LS_OK;
}

static ls_status agree_on_usual_samples(data_parallel_state *state, int64_t samples) {
    int64_t largest = samples;
    LS_TRY(ls_comm_allreduce(state->comm, &largest, &largest, 1, LS_I64, LS_MAX, NULL));
    state->usual_samples = largest > 0 ? largest : 1;
    return LS_OK;
}

/* One averaging over ranks, to which this rank brings the gradients of `samples` samples. */
static ls_status average_gradients(data_parallel_state *state, int64_t samples) {
    if (ls_comm_size(state->comm) == 1) {
        return LS_OK;
    }
    if (!ls_module_list(state->model)) {
        return ls_error_status();
    }
    if (state->usual_samples == 0) {
        LS_TRY(agree_on_usual_samples(state, samples));
    }
    const double weight = state->gathering ? 1 : (double)samples / (double)state->usual_samples;
    state->gathering = false;
    if (!gradients_are_home(state)) {
        LS_TRY(reclaim_gradients(state));
    }
    if (weight != 1) {
        LS_TRY(scale_gradients(state, weight));
    }
    LS_TRY(write_tail(state, weight));
    for (int i = 0; i < state->flat_count; i++) {
        const ls_flat *flat = &state->flats[i];
        void *memory = flat->gradients->memory;
        LS_TRY(ls_comm_allreduce(state->comm, memory, memory, (size_t)(flat->count + tail_count(state, i)), flat->dtype,
                                 LS_AVG, NULL));
    }
    const double mean_weight = read_tail(state);
    if (!(mean_weight > 0)) { /* nobody had a sample */
        return LS_OK;
    }
    if (mean_weight != 1) {
        LS_TRY(scale_gradients(state, 1 / mean_weight));
    }
    return average_buffers(state, weight, mean_weight);
}

static ls_status backward_ended(void *user) {
    data_parallel_state *state = user;
    return state->no_sync ? LS_OK : average_gradients(state, state->samples);
}

/* ---- the forward pass -------------------------------------------------------------------------------------------- */

/* The input itself, with its gradient multiplied by number[0]. */
static ls_status weigh_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    call->output = ls_tensor_view(x, x->ndim, x->size, x->stride, 0);
    return call->output != NULL ? LS_OK : ls_error_status();
}

static ls_status weigh_backward(ls_node *node, ls_tensor *gradient) {
    return ls_give(node, 0, ls_mul(gradient, node->parameters.number[0]));
}

static const ls_op weigh_op = {.name = "ls_data_parallel", .shape = weigh_shape, .backward = weigh_backward};

/* Agrees on how a pass that is gathered is shared out: the weight of this rank's part. */
static ls_status agree_on_weight(data_parallel_state *state, int64_t samples) {
    int64_t all = samples;
    LS_TRY(ls_comm_allreduce(state->comm, &all, &all, 1, LS_I64, LS_SUM, NULL));
    state->gathering = true;
    state->weight = all > 0 ? (double)samples * ls_comm_size(state->comm) / (double)all : 1;
    return LS_OK;
}

static ls_tensor *weigh(data_parallel_state *state, ls_tensor *output) {
    const uint64_t pass = ls_thread()->pass + 1;
    if (state->weighed_pass != pass && agree_on_weight(state, state->samples) != LS_OK) {
        return ls_scope_failed();
    }
    state->weighed_pass = pass;
    return state->weight != 1 ? ls_apply(&weigh_op, &output, 1, &(ls_op_parameters){.number = {state->weight}})
                              : output;
}

static bool gathers(const data_parallel_state *state) {
    return (state->no_sync || state->gathering) && ls_comm_size(state->comm) > 1;
}

static ls_tensor *data_parallel_forward(ls_module *self, ls_tensor *input) {
    data_parallel_state *state = self->state;
    ls_tensor *output = state->model->type->forward(state->model, input);
    if (output == NULL || !output->needs_grad) {
        return output;
    }
    state->samples = input->ndim > 0 ? input->size[0] : 1;
    if (ls_after_backward(backward_ended, state) != LS_OK) {
        return NULL;
    }
    return gathers(state) ? weigh(state, output) : output;
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
    const size_t bytes = (size_t)(flat->count + tail_count(state, index)) * ls_dtype_size(flat->dtype);
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
        ls_module_free(model);
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
    if (gathers(state)) {
        LS_TRY(agree_on_weight(state, 0));
    }
    return state->no_sync ? LS_OK : average_gradients(state, 0);
}

ls_comm *ls_data_parallel_comm(const ls_module *module) {
    return module != NULL && module->type == &data_parallel_type ? ((data_parallel_state *)module->state)->comm : NULL;
}
