/* Copies of what a trial consists of, made between two steps, so that training can go on while they are written. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "data/loader.h"
#include "nn/module.h"
#include "parallel/data_parallel.h"
#include "tensor/device.h"
#include "train/checkpoint/checkpoint.h"

/* ---- lists of copies --------------------------------------------------------------------------------------------- */

static void free_copies(ls_copies *copies) {
    for (int i = 0; i < copies->count; i++) {
        ls_tensor_drop(copies->items[i].tensor);
        ls_free((void *)copies->items[i].name);
    }
    for (char **text = copies->metadata; text != NULL && *text != NULL; text++) {
        ls_free(*text);
    }
    ls_free(copies->items);
    ls_free(copies->metadata);
    *copies = (ls_copies){0};
}

/* On the host, dense, and nobody else's. */
static ls_tensor *copy_of(const ls_tensor *tensor) {
    ls_tensor *dense = ls_tensor_dense_on_host("checkpoint", tensor, ls_dtype_of(tensor));
    ls_tensor *copy = dense != NULL
                          ? ls_tensor_new_owned("checkpoint", &ls_cpu, dense->ndim, dense->size, (ls_dtype)dense->dtype)
                          : NULL;
    if (copy != NULL && copy->count > 0) {
        memcpy(ls_host_data(copy), ls_host_data(dense), (size_t)copy->count * ls_dtype_size((ls_dtype)copy->dtype));
    }
    ls_tensor_drop(dense);
    return copy;
}

static ls_status add_copy(ls_copies *copies, const char *prefix, const ls_named *named) {
    const size_t size = strlen(prefix) + strlen(named->name) + 1;
    ls_named *items = ls_grow(copies->items, (size_t)copies->count, sizeof *items);
    copies->items = items != NULL ? items : copies->items;
    char *name = items != NULL ? ls_allocate(size) : NULL;
    if (name == NULL) {
        return ls_fail_memory("checkpoint", size);
    }
    snprintf(name, size, "%s%s", prefix, named->name);
    ls_tensor *copy = copy_of(named->tensor);
    if (copy == NULL) {
        ls_free(name);
        return ls_error_status();
    }
    copies->items[copies->count++] = (ls_named){.name = name, .tensor = copy};
    return LS_OK;
}

static ls_status add_copies(ls_copies *copies, const char *prefix, const ls_named *named, int count) {
    for (int i = 0; i < count; i++) {
        LS_TRY(add_copy(copies, prefix, &named[i]));
    }
    return LS_OK;
}

/* Numbers of one axis, under a name. */
static ls_status add_numbers(ls_copies *copies, const char *name, ls_dtype dtype, int64_t count, void *numbers) {
    const ls_shape shape = ls_shape_make(1, &count);
    ls_tensor *over = ls_tensor_over(&ls_cpu, &shape, dtype, numbers);
    if (over == NULL) {
        return ls_fail_memory("checkpoint", sizeof *over);
    }
    const ls_status status = add_copy(copies, "", &(ls_named){.name = name, .tensor = over});
    ls_tensor_drop(over);
    return status;
}

/* ---- what a rank has of its own ---------------------------------------------------------------------------------- */

void ls_callback_prefix(const ls_trial *trial, int i, char prefix[128]) {
    char number[24], own[24];
    const char *name = ls_trial_callback_name(&trial->own_callbacks[i], i, number);
    int alike = 1;
    for (int k = 0; k < i; k++) {
        alike += strcmp(ls_trial_callback_name(&trial->own_callbacks[k], k, own), name) == 0;
    }
    if (alike == 1) {
        snprintf(prefix, 128, "callback/%.80s/", name);
    } else {
        snprintf(prefix, 128, "callback/%.80s#%d/", name, alike);
    }
}

static ls_status copy_callbacks(const ls_trial *trial, ls_copies *copies) {
    for (int i = 0; i < trial->options.callback_count; i++) {
        const ls_callback *callback = &trial->own_callbacks[i];
        const ls_named *tensors = NULL;
        int count = 0;
        char prefix[128];
        if (callback->state == NULL) {
            continue;
        }
        ls_callback_prefix(trial, i, prefix);
        const uint32_t errors = ls_error_count;
        const ls_status status = callback->state(callback->user, &tensors, &count);
        if (status != LS_OK) {
            return ls_error_count != errors
                       ? status
                       : ls_fail(status, "checkpoint: the state of %s failed with %s", prefix, ls_status_name(status));
        }
        LS_TRY(add_copies(copies, prefix, tensors, count));
    }
    return LS_OK;
}

static ls_status copy_metrics(ls_trial *trial, ls_copies *copies) {
    const ls_named *tensors = NULL;
    int count = 0;
    LS_TRY(ls_metrics_state(trial, &tensors, &count));
    return add_copies(copies, "metric/", tensors, count);
}

static ls_status copy_scaler(ls_grad_scaler *scaler, ls_copies *copies) {
    const ls_named *tensors = NULL;
    int count = 0;
    LS_TRY(ls_grad_scaler_state(scaler, &tensors, &count));
    return add_copies(copies, "grad_scaler/", tensors, count);
}

/* Copies the training modes of all layers, which hooks may have changed. */
static ls_status copy_modes(const ls_module *model, ls_copies *copies) {
    ls_modes modes;
    LS_TRY(ls_modes_take(&modes, model));
    const ls_status status = add_numbers(copies, "modes", LS_BOOL, modes.count, modes.training);
    ls_modes_free(&modes);
    return status;
}

static ls_status copy_own(ls_trial *trial, ls_checkpoint *snapshot) {
    const ls_random_state random = ls_random_get_state();
    ls_averaging_memory memory;
    LS_TRY(add_numbers(&snapshot->own, "random", LS_I64, 2, (int64_t[]){(int64_t)random.seed, (int64_t)random.stream}));
    LS_TRY(copy_modes(trial->state.model, &snapshot->own));
    if (ls_data_parallel_memory(trial->state.model, &memory)) {
        LS_TRY(add_numbers(&snapshot->own, "averaging", LS_F64, 2, (double[]){memory.usual, memory.agrees}));
    }
    if (trial->options.grad_scaler != NULL) {
        LS_TRY(copy_scaler(trial->options.grad_scaler, &snapshot->own));
    }
    LS_TRY(copy_metrics(trial, &snapshot->own));
    return copy_callbacks(trial, &snapshot->own);
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static ls_status copy_metadata(const char *const *metadata, ls_copies *copies) {
    size_t count = 0;
    while (metadata[count] != NULL) {
        count++;
    }
    copies->metadata = ls_allocate_zeroed(count + 1, sizeof *copies->metadata);
    bool whole = copies->metadata != NULL;
    for (size_t i = 0; whole && i < count; i++) {
        copies->metadata[i] = ls_duplicate_string(metadata[i]);
        whole = copies->metadata[i] != NULL;
    }
    return whole ? LS_OK : ls_fail_memory("checkpoint", count * sizeof *metadata);
}

static ls_status copy_model(const ls_trial *trial, ls_checkpoint *snapshot) {
    ls_saved saved;
    const ls_named *tensors = NULL;
    int count = 0;
    LS_TRY(ls_module_list_saved(trial->state.model, NULL, &saved));
    ls_status status = add_copies(&snapshot->model, "", saved.tensors, saved.count);
    if (status == LS_OK && saved.metadata[0] != NULL) {
        status = copy_metadata(saved.metadata, &snapshot->model);
    }
    ls_saved_free(&saved);
    if (status == LS_OK && trial->options.optimizer != NULL) {
        LS_TRY(ls_optimizer_state(trial->options.optimizer, &tensors, &count));
        status = add_copies(&snapshot->optimizer, "", tensors, count);
    }
    return status;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static ls_status describe(const ls_trial *trial, ls_manifest *manifest) {
    const ls_loader *loader = trial->options.train;
    manifest->world_size = trial->state.comm != NULL ? ls_comm_size(trial->state.comm) : 1;
    manifest->optimizer = trial->options.optimizer != NULL;
    manifest->epochs_run = trial->epochs_run;
    manifest->step = trial->state.step;
    manifest->continues = trial->continues || (trial->running && trial->state.phase == LS_PHASE_TRAINING);
    manifest->stopped = trial->running ? trial->state.stop : trial->stopped;
    manifest->batch = manifest->continues ? trial->state.batch : 0;
    manifest->loader_epoch = -1;
    if (loader != NULL) {
        ls_loader_position(loader, &manifest->loader_epoch, &manifest->loader_batch);
        manifest->loader_batches = ls_loader_batch_count(loader);
        manifest->global_batch = ls_loader_global_batch(loader);
    }
    manifest->latest = trial->latest;
    return ls_history_copy(&manifest->history, &trial->history);
}

static ls_status take(ls_trial *trial, ls_checkpoint *snapshot) {
    LS_TRY(describe(trial, &snapshot->manifest));
    LS_TRY(snapshot->writes_model ? copy_model(trial, snapshot) : LS_OK);
    return copy_own(trial, snapshot);
}

ls_checkpoint *ls_checkpoint_take(ls_trial *trial, bool divided) {
    ls_checkpoint *snapshot = ls_allocate_zeroed(1, sizeof *snapshot);
    if (snapshot == NULL) {
        (void)ls_fail_memory("checkpoint", sizeof *snapshot);
        return NULL;
    }
    snapshot->rank = trial->state.comm != NULL ? ls_comm_rank(trial->state.comm) : 0;
    snapshot->writes_model = divided || snapshot->rank == 0;
    snapshot->manifest.divided = divided;
    if (take(trial, snapshot) != LS_OK) {
        ls_checkpoint_free(snapshot);
        return NULL;
    }
    return snapshot;
}

void ls_checkpoint_free(ls_checkpoint *snapshot) {
    if (snapshot != NULL) {
        free_copies(&snapshot->model);
        free_copies(&snapshot->optimizer);
        free_copies(&snapshot->own);
        ls_manifest_free(&snapshot->manifest);
        ls_free(snapshot);
    }
}
