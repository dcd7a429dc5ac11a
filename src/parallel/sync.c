/* Synchronizes ranks: broadcasts parameters from one rank, and averages gradients over all ranks. */
#include <string.h>

#include "autograd/ops/ops.h"
#include "base/hash.h"
#include "base/memory.h"
#include "comm/public_call.h"
#include "nn/module.h"
#include "parallel/buffers.h"
#include "parallel/parallel.h"
#include "parallel/pipeline.h"
#include "tensor/capture.h"
#include "tensor/scope.h"

static ls_status check(const char *call, const ls_module *model, const ls_comm *comm) {
    if (model == NULL || comm == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the %s is NULL", call, model == NULL ? "model" : "communicator");
    }
    return LS_OK;
}

ls_status ls_broadcast_in_place(ls_comm *comm, const ls_tensor *tensor, int root) {
    ls_capture_refuse_here("ls_sync_parameters or ls_sync_gradients", LS_CAPTURE_COMMUNICATES);
    const ls_dtype dtype = (ls_dtype)tensor->dtype;
    const ls_device *on = ls_moving_device(comm, ls_tensor_device(tensor), dtype);
    ls_host_view view;
    LS_TRY(ls_buffer_begin(&view, tensor, LS_HOST_READ | LS_HOST_WRITE, on));
    return ls_host_view_end(
        &view, LS_ON_DEVICE(comm, on, ls_comm_broadcast(comm, view.memory, (size_t)tensor->count, dtype, root, NULL)));
}

ls_status ls_allreduce_in_place(ls_comm *comm, const ls_tensor *tensor, ls_reduction reduction) {
    ls_capture_refuse_here("ls_sync_parameters or ls_sync_gradients", LS_CAPTURE_COMMUNICATES);
    const ls_dtype dtype = (ls_dtype)tensor->dtype;
    const ls_device *on = ls_reducing_device(comm, ls_tensor_device(tensor), dtype, reduction);
    ls_host_view view;
    LS_TRY(ls_buffer_begin(&view, tensor, LS_HOST_READ | LS_HOST_WRITE, on));
    return ls_host_view_end(&view, LS_ON_DEVICE(comm, on,
                                                ls_comm_allreduce(comm, view.memory, view.memory, (size_t)tensor->count,
                                                                  dtype, reduction, NULL)));
}

ls_tensor ls_flat_view(ls_storage *storage, ls_dtype dtype, int64_t count) {
    const ls_tensor whole = {.data = storage->memory, .storage = storage, .dtype = (uint8_t)dtype};
    return ls_stack_view_dense(&whole, 1, &count);
}

static ls_status broadcast_tensor(ls_tensor *tensor, ls_comm *comm, int root) {
    ls_tensor_changed(tensor, "ls_sync_parameters");
    return ls_broadcast_in_place(comm, tensor, root);
}

/* Values that must be equal on all ranks: counts, a hash of names, dtypes and shapes in order, and a hash of the
 * positions of shards. */
typedef struct layout {
    int64_t parameters;
    int64_t buffers;
    int64_t numbers;
    uint64_t hash;
    uint64_t shards;
} layout;

enum { LAYOUT_NUMBERS = sizeof(layout) / sizeof(int64_t) };

static uint64_t hash_tensor(uint64_t hash, const char *name, const ls_tensor *tensor) {
    const int64_t kind[2] = {tensor->dtype, tensor->ndim};
    hash = ls_hash(hash, name, strlen(name) + 1);
    hash = ls_hash(hash, kind, sizeof kind);
    return ls_hash(hash, tensor->size, (size_t)tensor->ndim * sizeof *tensor->size);
}

/* Adds the position of a shard in the whole tensor to a hash. A shard that is the whole tensor counts as unsharded. */
static uint64_t hash_shard(uint64_t hash, const ls_tensor *parameter) {
    static const ls_division none = {.axis = -1};
    const ls_division *division = parameter->leaf != NULL ? &parameter->leaf->divisions[LS_DIVIDED_TENSOR] : &none;
    const bool sharded = division->add != NULL && division->whole != parameter->size[division->axis];
    division = sharded ? division : &none;
    const int64_t shard[3] = {division->axis, division->first, division->whole};
    return ls_hash(hash, shard, sizeof shard);
}

static layout layout_of(const ls_module *model) {
    layout made = {.parameters = ls_module_parameter_count(model),
                   .buffers = ls_module_buffer_count(model),
                   .numbers = ls_module_size(model),
                   .hash = LS_HASH_START,
                   .shards = LS_HASH_START};
    for (int i = 0; i < made.parameters; i++) {
        made.shards = hash_shard(made.shards, ls_module_parameter(model, i));
        made.hash = hash_tensor(made.hash, ls_module_parameter_name(model, i), ls_module_parameter(model, i));
    }
    for (int i = 0; i < made.buffers; i++) {
        made.hash = hash_tensor(made.hash, ls_module_buffer_name(model, i), ls_module_buffer(model, i));
    }
    return made;
}

/* Returns whether the ranks hold different shards of parameters. */
static bool shards_differ(const layout *all, int ranks) {
    bool differ = false, comparable = true;
    for (int r = 1; r < ranks; r++) {
        differ = differ || all[r].shards != all[0].shards;
        comparable = comparable && all[r].parameters == all[0].parameters;
    }
    return differ && comparable;
}

/* Fails with the name of the first parameter of which the ranks hold different shards. Collective. */
static ls_status report_shards(const char *call, const ls_module *model, ls_comm *comm) {
    bool equal = true;
    int i = -1;
    while (equal && ++i < ls_module_parameter_count(model)) {
        const uint64_t hash = hash_shard(LS_HASH_START, ls_module_parameter(model, i));
        LS_TRY(ls_ranks_have_equal(comm, (int64_t)(hash >> 1), &equal));
    }
    return ls_fail(LS_ERR_UNSUPPORTED,
                   "%s: \"%s\" is sharded over ranks of the communicator: pass a communicator of the ranks that have "
                   "the same shards (ls_comm_split)",
                   call, equal ? "" : ls_module_parameter_name(model, i));
}

static ls_status compare_layouts(const char *call, const layout *all, int ranks) {
    for (int r = 1; r < ranks; r++) {
        if (memcmp(&all[r], &all[0], sizeof *all) != 0) {
            return ls_fail(LS_ERR_MISMATCH,
                           "%s: the models differ: rank 0's has %lld parameters (%lld numbers) and %lld buffers, but "
                           "rank %d's has %lld (%lld) and %lld%s",
                           call, (long long)all[0].parameters, (long long)all[0].numbers, (long long)all[0].buffers, r,
                           (long long)all[r].parameters, (long long)all[r].numbers, (long long)all[r].buffers,
                           all[r].numbers == all[0].numbers ? ", with different names, shapes or dtypes" : "");
        }
    }
    return LS_OK;
}

ls_status ls_models_compare(const char *call, const ls_module *model, ls_comm *comm) {
    const int ranks = ls_comm_size(comm);
    const layout own = layout_of(model);
    layout *all = ls_allocate_for(call, (size_t)ranks, sizeof *all);
    LS_TRY(ls_made(all));
    ls_status status = ls_comm_allgather(comm, &own, all, LAYOUT_NUMBERS, LS_I64, NULL);
    if (status == LS_OK) {
        status = shards_differ(all, ranks) ? report_shards(call, model, comm) : compare_layouts(call, all, ranks);
    }
    ls_free(all);
    return status;
}

ls_status ls_copy_parameters(const char *call, ls_module *model, ls_comm *comm, int root) {
    LS_TRY(check(call, model, comm));
    ls_flat flats[LS_FLAT_LIMIT];
    const int used = ls_module_flatten(model, flats);
    if (used < 0) {
        return ls_error_status();
    }
    LS_TRY(ls_models_compare(call, model, comm));
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        const ls_tensor *parameter = ls_module_parameter(model, i);
        LS_TRY(ls_tensor_is_gone(parameter) ? ls_tensor_refuse_gone(call, 0, parameter) : LS_OK);
    }
    for (int i = 0; i < used; i++) {
        const ls_tensor flat = ls_flat_view(flats[i].parameters, flats[i].dtype, flats[i].count);
        LS_TRY(ls_broadcast_in_place(comm, &flat, root));
    }
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        ls_tensor *parameter = ls_module_parameter(model, i);
        if (parameter->leaf == NULL) {
            LS_TRY(broadcast_tensor(parameter, comm, root));
        } else {
            ls_tensor_changed(parameter, call);
        }
    }
    for (int i = 0; i < ls_module_buffer_count(model); i++) {
        LS_TRY(broadcast_tensor(ls_module_buffer(model, i), comm, root));
    }
    return LS_OK;
}

ls_status ls_sync_parameters(ls_module *model, ls_comm *comm, int root) {
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_SYNC_PARAMETERS);
    return ls_public_end(outer, ls_copy_parameters("ls_sync_parameters", model, comm, root));
}

/* Creates zero gradients for parameters without a gradient, so that they add nothing. */
static ls_status clear_missing_gradients(const char *call, ls_module *model) {
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        ls_leaf *leaf = ls_module_parameter(model, i)->leaf;
        if (leaf != NULL && leaf->shard) {
            return ls_fail(LS_ERR_UNSUPPORTED,
                           "%s: each rank has only a part of the gradients, which .zero in ls_data_parallel has "
                           "averaged already: omit the call",
                           call);
        }
        if (leaf != NULL && !leaf->has_gradient) {
            const ls_tensor *gradient = leaf->gradient;
            LS_TRY(ls_kernels_of(gradient)->fill(ls_stream_of(gradient), leaf->gradient, 0));
        }
    }
    return LS_OK;
}

/* A hash and its complement. They travel in the same maximum over ranks as other numbers, which saves a call. They
 * arrive unchanged only if all ranks have the same hash. */
enum { CHECK_BYTES = 16 };

/* Writes the hash of the shapes, dtypes and shards of the parameters, and its complement. */
static void write_check(const ls_module *model, uint8_t *check) {
    uint64_t hash = LS_HASH_START;
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        hash = hash_tensor(hash, "", ls_module_parameter(model, i));
        hash = hash_shard(hash, ls_module_parameter(model, i));
    }
    memcpy(check, &hash, sizeof hash);
    hash = ~hash;
    memcpy(check + sizeof hash, &hash, sizeof hash);
}

/* Agrees on which parameters have a gradient on any rank. Fails on every rank if the ranks have different models. */
static ls_status agree_on_gradients(const char *call, ls_module *model, ls_comm *comm) {
    const int count = ls_module_parameter_count(model);
    const size_t bytes = (size_t)count + CHECK_BYTES;
    uint8_t *present = ls_record_allocate(bytes), check[CHECK_BYTES];
    if (present == NULL) {
        return ls_fail_memory(call, bytes);
    }
    for (int i = 0; i < count; i++) {
        const ls_leaf *leaf = ls_module_parameter(model, i)->leaf;
        present[i] = leaf != NULL && leaf->has_gradient;
    }
    write_check(model, check);
    memcpy(present + count, check, sizeof check);
    ls_status status = ls_comm_allreduce(comm, present, present, bytes, LS_U8, LS_MAX, NULL);
    if (status == LS_OK && memcmp(present + count, check, sizeof check) != 0) {
        status = ls_fail(LS_ERR_MISMATCH,
                         "%s: the models of the ranks differ in shapes or dtypes of parameters, or hold different "
                         "shards of them",
                         call);
    }
    for (int i = 0; status == LS_OK && i < count; i++) {
        ls_leaf *leaf = ls_module_parameter(model, i)->leaf;
        if (leaf != NULL) {
            leaf->has_gradient = present[i] != 0;
            ls_leaf_changed(leaf, call);
        }
    }
    ls_record_release(present, bytes);
    return status;
}

ls_status ls_complete_gradients(const char *call, ls_module *model, ls_comm *comm) {
    LS_TRY(clear_missing_gradients(call, model));
    return agree_on_gradients(call, model, comm);
}

/* Warns once about modules whose results depend on each rank's samples. Averaging gradients does not correct this
 * dependence. */
static void tell_of_parts(ls_module *model, const ls_comm *comm) {
    const ls_module *of_whole_batch = model->told ? NULL : ls_module_of_whole_batch(model, false);
    model->told = true;
    if (of_whole_batch != NULL && ls_comm_size(comm) > 1 && ls_comm_rank(comm) == 0) {
        ls_log_write(LS_LOG_WARNING,
                     "ls_sync_gradients: %s in the model computes statistics or random numbers from each rank's "
                     "samples alone; in ls_data_parallel, it uses the global batch",
                     of_whole_batch->type->name);
    }
}

static ls_status average_gradients(ls_module *model, ls_comm *comm) {
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
    LS_TRY(ls_complete_gradients("ls_sync_gradients", model, comm));
    for (int i = 0; i < used; i++) {
        const ls_tensor flat = ls_flat_view(flats[i].gradients, flats[i].dtype, flats[i].count);
        if (weight != 1) {
            LS_TRY(ls_kernels_of(&flat)->scale(ls_stream_of(&flat), flats[i].dtype, flat.count, weight, flat.data));
        }
        LS_TRY(ls_allreduce_in_place(comm, &flat, LS_AVG));
    }
    return LS_OK;
}

ls_status ls_sync_gradients(ls_module *model, ls_comm *comm) {
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_SYNC_GRADIENTS);
    return ls_public_end(outer, average_gradients(model, comm));
}
