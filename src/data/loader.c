/* Loaders of all kinds: their position, and the ownership of their batches. */
#include "data/loader.h"

#include "autograd/op.h"
#include "base/freed.h"
#include "base/memory.h"
#include "base/trace.h"
#include "comm/separate.h"
#include "data/dataset.h"
#include "tensor/capture.h"
#include "tensor/scope.h"

ls_loader *ls_loader_custom(const ls_loader_type *type, int64_t batches) {
    if (type == NULL || type->next == NULL || type->name == NULL || batches < -1) {
        return ls_fail_null(LS_ERR_ARGUMENT,
                            "ls_loader_custom: the type must have a name and a function `next`, and the number of "
                            "batches is %lld, but must be at least 0, or -1 if it is unknown",
                            (long long)batches);
    }
    ls_loader *loader = ls_allocate_zeroed(1, sizeof *loader);
    void *state = ls_allocate_zeroed(1, type->state_size);
    if (loader == NULL || state == NULL) {
        ls_free(loader);
        ls_free(state);
        (void)ls_fail_memory("ls_loader_custom", sizeof *loader + type->state_size);
        return NULL;
    }
    loader->type = type;
    loader->state = state;
    loader->batches = batches;
    return loader;
}

static void drop_batch(ls_loader *loader) {
    ls_thread_state *thread = ls_thread();
    if (loader->input != NULL && thread->whole_batch[0] == loader->input) {
        thread->whole_batch[0] = thread->whole_batch[1] = NULL;
    }
    if (loader->input != NULL && thread->loaded[0] == loader->input->storage) {
        thread->loaded[0] = thread->loaded[1] = NULL;
    }
    ls_tensor_withdraw(loader->input);
    ls_tensor_withdraw(loader->target);
    loader->input = loader->target = NULL;
}

static bool is_gone(const ls_loader *loader) {
    return loader->type == NULL;
}

bool ls_loader_is_here(const char *call, const ls_loader *loader) {
    if (is_gone(loader)) {
        (void)ls_fail_freed(call, "loader", "ls_loader_free");
        return false;
    }
    return true;
}

void ls_loader_free(ls_loader *loader) {
    if (loader == NULL || is_gone(loader)) {
        return;
    }
    drop_batch(loader);
    if (loader->type->free_state != NULL) {
        loader->type->free_state(loader);
    }
    ls_free(loader->state);
    *loader = (ls_loader){.type = NULL};
    ls_retire(loader, LS_RETIRED_SINGLE);
}

void *ls_loader_state(const ls_loader *loader) {
    return loader != NULL ? loader->state : NULL;
}

/* ---- position ---------------------------------------------------------------------------------------------------- */

int64_t ls_loader_batch_count(const ls_loader *loader) {
    return loader != NULL ? loader->batches : 0;
}

void ls_loader_position(const ls_loader *loader, int64_t *epoch, int64_t *batch) {
    if (epoch != NULL) {
        *epoch = loader != NULL ? loader->epoch : 0;
    }
    if (batch != NULL) {
        *batch = loader != NULL ? loader->batch : 0;
    }
}

/* Reports the failure of a function of a loader kind, with a message even if the function set none. */
static ls_status explain(const ls_loader *loader, const char *what, ls_status status, uint32_t errors) {
    return status == LS_OK || ls_error_count != errors ? status
                                                       : ls_fail(status, "ls_loader_%s: the loader %s failed with %s",
                                                                 what, loader->type->name, ls_status_name(status));
}

ls_status ls_loader_seek(ls_loader *loader, int64_t epoch, int64_t batch) {
    if (loader == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_loader_seek: the loader is NULL");
    }
    if (!ls_loader_is_here("ls_loader_seek", loader)) {
        return LS_ERR_STATE;
    }
    if (epoch < 0 || batch < 0 || (loader->batches >= 0 && batch > loader->batches)) {
        return loader->batches >= 0
                   ? ls_fail(LS_ERR_ARGUMENT, "ls_loader_seek: epoch %lld, batch %lld: an epoch has %lld batches",
                             (long long)epoch, (long long)batch, (long long)loader->batches)
                   : ls_fail(LS_ERR_ARGUMENT, "ls_loader_seek: epoch %lld, batch %lld: both must be 0 or more",
                             (long long)epoch, (long long)batch);
    }
    const bool moves = epoch != loader->epoch || batch != loader->batch;
    if (moves && loader->type->seek != NULL) {
        const uint32_t errors = ls_error_count;
        LS_TRY(explain(loader, "seek", loader->type->seek(loader, epoch, batch), errors));
    }
    loader->epoch = epoch;
    loader->batch = batch;
    return LS_OK;
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

/*
 * Returns a reference to a tensor of a batch. If `scope` is not NULL, the loader kind made the tensor in this scope.
 * Otherwise the loader kind keeps the tensor elsewhere.
 */
static ls_tensor *hold(ls_tensor *tensor, const ls_scope *scope) {
    return tensor != NULL && (scope == NULL || tensor->scope != scope) ? ls_tensor_hold(tensor)
                                                                       : ls_tensor_take(tensor);
}

/* Replaces a tensor of a batch with a copy on the device. The caller holds a reference to the tensor. NULL is
 * allowed. */
static ls_status move(ls_tensor **tensor, const ls_device *device) {
    ls_tensor *before = *tensor;
    if (before == NULL || device == NULL || ls_tensor_device(before) == device) {
        return LS_OK;
    }
    *tensor = ls_tensor_on_device("ls_loader_next", before, device);
    ls_tensor_drop(before);
    return *tensor != NULL ? LS_OK : ls_error_status();
}

static void count_as_data(const ls_tensor *tensor) {
    if (tensor != NULL) {
        ls_storage_set_kind(tensor->storage, LS_MEMORY_DATA);
    }
}

/* Checks the batch that the loader kind returned, and sets the fields that it left empty. */
static ls_status complete(const ls_loader *loader, ls_batch *batch) {
    if (batch->input == NULL || ls_ndim(batch->input) < 1) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_loader_next: the loader %s returned batch %lld of epoch %lld with an input %s",
                       loader->type->name, (long long)loader->batch, (long long)loader->epoch,
                       batch->input == NULL ? "that is NULL" : "without axes");
    }
    if (batch->count == 0) {
        batch->count = ls_size(batch->input, 0);
    }
    if (batch->global_count == 0) {
        batch->global_count = batch->count;
    }
    if (batch->count < 0 || batch->global_count < batch->count) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_loader_next: the loader %s returned batch %lld of epoch %lld with %lld samples on this "
                       "rank, but %lld on all ranks together",
                       loader->type->name, (long long)loader->batch, (long long)loader->epoch, (long long)batch->count,
                       (long long)batch->global_count);
    }
    if (batch->first < 0 || batch->first > batch->global_count - batch->count) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_loader_next: the loader %s returned batch %lld of epoch %lld with samples %lld to %lld of "
                       "%lld: set .first to the index of this rank's first sample",
                       loader->type->name, (long long)loader->batch, (long long)loader->epoch, (long long)batch->first,
                       (long long)(batch->first + batch->count - 1), (long long)batch->global_count);
    }
    return LS_OK;
}

typedef struct making {
    ls_loader *loader;
    const ls_device *device; /* device of the batch; NULL leaves the batch where the loader kind makes it */
    ls_batch *batch;
    bool *more;
} making;

/* Makes a batch in its own scope. `scope` is NULL if the loader kind needs no scope. */
static ls_status make_in(const making *m, const ls_scope *scope) {
    ls_loader *loader = m->loader;
    ls_batch *batch = m->batch;
    const uint32_t errors = ls_error_count;
    LS_TRY(explain(loader, "next", loader->type->next(loader, loader->epoch, batch->number, batch, m->more), errors));
    if (!*m->more) {
        return LS_OK;
    }
    if (!ls_inputs_are_here("ls_loader_next", (ls_tensor *[]){batch->input, batch->target}, 2)) {
        return ls_error_status();
    }
    LS_TRY(scope != NULL ? scope->status : LS_OK); /* if an operation failed, the loader kind may have received NULL */
    LS_TRY(complete(loader, batch));
    loader->input = hold(batch->input, scope);
    loader->target = hold(batch->target, scope);
    loader->lent_copies = m->device != NULL && ls_tensor_device(loader->input) != m->device;
    LS_TRY(move(&loader->input, m->device));
    LS_TRY(move(&loader->target, m->device));
    count_as_data(loader->input);
    count_as_data(loader->target);
    batch->input = loader->input;
    batch->target = loader->target;
    return LS_OK;
}

static ls_status make(void *argument) {
    return make_in(argument, ls_thread()->scope);
}

/* Records, for the warnings of data-parallel training and the checks of pipelines, that this rank has a new batch. */
static void note_batch(const ls_loader *loader, const ls_batch *batch) {
    ls_thread_state *thread = ls_thread();
    thread->whole_batch[0] = loader->undivided ? loader->input : NULL;
    thread->whole_batch[1] = loader->undivided ? loader->target : NULL;
    thread->loaded[0] = loader->input->storage;
    thread->loaded[1] = loader->target != NULL ? loader->target->storage : NULL;
    thread->loaded_first = batch->first;
    thread->loaded_number = batch->number;
    if (loader->epoch > 0 && loader->batch == 0) {
        ls_warn_if_separate(ls_world());
    }
}

ls_status ls_loader_next_on(ls_loader *loader, const ls_device *device, ls_batch *batch, bool *more) {
    ls_capture_refuse_here("ls_loader_next",
                           "gives different tensors in every step: call it before ls_step_replay, and "
                           "copy the batch into tensors of the step (ls_copy_into)");
    if (batch == NULL || more == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_loader_next: an argument is NULL");
    }
    *batch = (ls_batch){0};
    *more = false;
    if (loader == NULL) {
        return ls_fail_missing("ls_loader_next: the loader");
    }
    if (!ls_loader_is_here("ls_loader_next", loader)) {
        return LS_ERR_STATE;
    }
    drop_batch(loader);
    ls_batch made = {.number = loader->batch};
    bool is_more = loader->batches < 0 || loader->batch < loader->batches;
    if (is_more) {
        const uint64_t began = ls_trace_now();
        making m = {
            .loader = loader, .device = device != NULL ? device : loader->device, .batch = &made, .more = &is_more};
        LS_TRY(loader->of_dataset ? make_in(&m, NULL) : ls_without_recording(make, &m));
        ls_trace_add(LS_TRACE_TRAINING, began, -1, "batch");
    }
    if (!is_more) {
        loader->epoch++;
        loader->batch = 0;
        return LS_OK;
    }
    note_batch(loader, &made);
    made.number = loader->batch++;
    *batch = made;
    *more = true;
    return LS_OK;
}

ls_status ls_loader_next(ls_loader *loader, ls_batch *batch, bool *more) {
    return ls_loader_next_on(loader, NULL, batch, more);
}
