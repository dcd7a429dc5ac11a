/* Back from a checkpoint into a trial. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "data/loader.h"
#include "nn/module.h"
#include "parallel/data_parallel.h"
#include "tensor/device.h"
#include "train/agree.h"
#include "train/checkpoint/checkpoint.h"

typedef struct loading {
    ls_trial *trial;
    const char *folder;
    ls_manifest manifest;
    int rank, size;       /* of the trial */
    ls_safetensors *own;  /* what this rank had, or rank 0 */
    int64_t batch;        /* of the trial's epoch, in its global batches */
    int64_t loader_batch; /* likewise, of the loader's */
} loading;

/* ---- where the data goes on -------------------------------------------------------------------------------------- */

/* So many batches of then in those of now; -1 where that is none. */
static int64_t convert(const loading *load, int64_t batches, int64_t now) {
    int64_t samples;
    const bool counts = !__builtin_mul_overflow(batches, load->manifest.global_batch, &samples);
    return counts && samples % now == 0 ? samples / now : -1;
}

static ls_status place_data(loading *load) {
    const ls_manifest *manifest = &load->manifest;
    const ls_trial_options *options = &load->trial->options;
    load->batch = manifest->batch;
    load->loader_batch = manifest->loader_batch;
    if ((options->train != NULL) != (manifest->loader_epoch >= 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "checkpoint: %s is of a trial %s a loader of training data", load->folder,
                       options->train == NULL ? "with" : "without");
    }
    const int64_t now = options->train != NULL ? ls_loader_global_batch(options->train) : 0;
    if (now == 0 || now == manifest->global_batch || manifest->global_batch == 0) {
        return LS_OK;
    }
    const bool at_end = manifest->loader_batch == manifest->loader_batches;
    load->loader_batch = at_end ? ls_loader_batch_count(options->train) : convert(load, manifest->loader_batch, now);
    load->batch = at_end && manifest->batch == manifest->loader_batch && options->train_steps == 0
                      ? load->loader_batch
                      : convert(load, manifest->batch, now);
    if (load->loader_batch >= 0 && load->batch >= 0) {
        return LS_OK;
    }
    return ls_fail(LS_ERR_ARGUMENT,
                   "checkpoint: %s is behind %lld global batches of %lld samples, where none of %lld begins: give the "
                   "loader a global_batch_size of %lld",
                   load->folder, (long long)manifest->loader_batch, (long long)manifest->global_batch, (long long)now,
                   (long long)manifest->global_batch);
}

/* ---- what a rank has of its own ---------------------------------------------------------------------------------- */

static ls_safetensors *open_part(const loading *load, const char *name, int rank) {
    char file[LS_FILE_NAME_LIMIT], path[PATH_MAX];
    ls_part_name(file, name, rank);
    return ls_path_join(path, load->folder, file) == LS_OK ? ls_safetensors_load(path) : NULL;
}

/* The tensors whose names begin so, under what follows; an array of the caller's. */
static ls_status list_with(const ls_safetensors *file, const char *prefix, ls_named **found, int *count) {
    const size_t length = strlen(prefix);
    *count = 0;
    *found = ls_allocate_zeroed((size_t)ls_safetensors_count(file), sizeof **found);
    if (*found == NULL) {
        return ls_fail_memory("checkpoint", (size_t)ls_safetensors_count(file) * sizeof **found);
    }
    for (int i = 0; i < ls_safetensors_count(file); i++) {
        const ls_named named = ls_safetensors_at(file, i);
        if (strncmp(named.name, prefix, length) == 0) {
            (*found)[(*count)++] = (ls_named){.name = named.name + length, .tensor = named.tensor};
        }
    }
    return LS_OK;
}

/* Two numbers of that name; false where there are none such. */
static bool get_pair(const ls_safetensors *file, const char *name, ls_dtype dtype, void *pair) {
    const ls_tensor *tensor = ls_safetensors_find(file, name);
    if (tensor == NULL || ls_dtype_of(tensor) != dtype || ls_numel(tensor) != 2) {
        return false;
    }
    memcpy(pair, ls_host_data(tensor), 2 * ls_dtype_size(dtype));
    return true;
}

static ls_status fail_own(const loading *load, const char *what) {
    return ls_fail(LS_ERR_FORMAT, "checkpoint: %s: the file of a rank has no %s", load->folder, what);
}

static ls_status set_callbacks(const loading *load) {
    const ls_trial *trial = load->trial;
    for (int i = 0; i < trial->options.callback_count; i++) {
        const ls_callback *callback = &trial->own_callbacks[i];
        char prefix[128], number[24];
        ls_named *tensors;
        int count;
        if (callback->set_state == NULL) {
            continue;
        }
        ls_callback_prefix(trial, i, prefix);
        LS_TRY(list_with(load->own, prefix, &tensors, &count));
        ls_status status = LS_OK;
        if (count > 0) {
            status = callback->set_state(callback->user, tensors, count);
        } else {
            ls_log_write(LS_LOG_WARNING, "checkpoint: %s has nothing of %s, which begins anew", load->folder,
                         ls_trial_callback_name(callback, i, number));
        }
        ls_free(tensors);
        LS_TRY(status);
    }
    return LS_OK;
}

static ls_status set_scaler(const loading *load) {
    ls_grad_scaler *scaler = load->trial->options.grad_scaler;
    ls_named *tensors;
    int count;
    if (scaler == NULL) {
        return LS_OK;
    }
    LS_TRY(list_with(load->own, "grad_scaler/", &tensors, &count));
    if (count == 0) {
        ls_log_write(LS_LOG_WARNING, "checkpoint: %s has nothing of the grad_scaler, which begins anew", load->folder);
    }
    const ls_status status = count > 0 ? ls_grad_scaler_set_state(scaler, tensors, count) : LS_OK;
    ls_free(tensors);
    return status;
}

typedef ls_status set_numbers(ls_trial *trial, const ls_named *numbers, int count);

static ls_status add_numbers(ls_trial *trial, const ls_named *numbers, int count) {
    return ls_metrics_add_state(trial, numbers, count, false);
}

static ls_status add_none(ls_trial *trial, const ls_named *numbers, int count) {
    return ls_metrics_add_state(trial, numbers, count, true);
}

static ls_status set_metrics_from(const loading *load, const ls_safetensors *file, set_numbers *set) {
    ls_named *numbers;
    int count;
    LS_TRY(list_with(file, "metric/", &numbers, &count));
    const ls_status status = set(load->trial, numbers, count);
    ls_free(numbers);
    return status;
}

/* Where there were more ranks, each takes the numbers of some of them: those of all are what they were. */
static ls_status set_metrics(const loading *load) {
    if (load->rank >= load->manifest.world_size) {
        return set_metrics_from(load, load->own, add_none);
    }
    LS_TRY(set_metrics_from(load, load->own, ls_metrics_set_state));
    for (int rank = load->rank + load->size; rank < load->manifest.world_size; rank += load->size) {
        ls_safetensors *other = open_part(load, "rank", rank);
        const ls_status status = other != NULL ? set_metrics_from(load, other, add_numbers) : ls_error_status();
        ls_safetensors_free(other);
        LS_TRY(status);
    }
    return LS_OK;
}

/* Restores the training modes of the layers. Checkpoints of older versions do not have these. */
static ls_status set_modes(const loading *load) {
    const ls_tensor *tensor = ls_safetensors_find(load->own, "modes");
    ls_module *model = load->trial->state.model;
    ls_modes modes;
    LS_TRY(ls_modes_take(&modes, model));
    if (tensor != NULL && ls_dtype_of(tensor) == LS_BOOL && ls_numel(tensor) == modes.count) {
        for (int i = 0; i < modes.count; i++) {
            modes.training[i] = ((const uint8_t *)ls_host_data(tensor))[i] != 0;
        }
    }
    ls_modes_put(&modes, model);
    return LS_OK;
}

static ls_status set_own(const loading *load) {
    int64_t random[2];
    double averaging[2];
    ls_averaging_memory memory;
    if (!get_pair(load->own, "random", LS_I64, random)) {
        return fail_own(load, "random numbers");
    }
    LS_TRY(set_modes(load));
    LS_TRY(set_metrics(load));
    LS_TRY(set_callbacks(load));
    LS_TRY(set_scaler(load));
    if (ls_data_parallel_memory(load->trial->state.model, &memory) &&
        get_pair(load->own, "averaging", LS_F64, averaging)) {
        const bool same = load->size == load->manifest.world_size; /* shares are of another size otherwise */
        memory = (ls_averaging_memory){.usual = same ? averaging[0] : 0, .agrees = averaging[1] != 0};
        ls_data_parallel_remember(load->trial->state.model, memory);
    }
    ls_random_set_state((ls_random_state){.seed = (uint64_t)random[0], .stream = (uint64_t)random[1]});
    return LS_OK;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static ls_status load_model(const loading *load) {
    char file[LS_FILE_NAME_LIMIT], path[PATH_MAX];
    const int part = load->manifest.divided ? load->rank : -1;
    ls_part_name(file, "model", part);
    LS_TRY(ls_path_join(path, load->folder, file));
    LS_TRY(ls_module_load(load->trial->state.model, path));
    if (!load->manifest.optimizer) {
        return LS_OK;
    }
    ls_part_name(file, "optimizer", part);
    LS_TRY(ls_path_join(path, load->folder, file));
    return ls_optimizer_load(load->trial->options.optimizer, path);
}

static ls_status check_fits(loading *load) {
    const ls_manifest *manifest = &load->manifest;
    if (manifest->divided && manifest->world_size != load->size) {
        return ls_fail(
            LS_ERR_UNSUPPORTED,
            "checkpoint: %s is of a model that is divided over %d ranks: it can go on with as many only, not "
            "with %d",
            load->folder, manifest->world_size, load->size);
    }
    if (manifest->optimizer != (load->trial->options.optimizer != NULL)) {
        return ls_fail(LS_ERR_ARGUMENT, "checkpoint: %s is of a trial %s an optimizer", load->folder,
                       manifest->optimizer ? "with" : "without");
    }
    return place_data(load);
}

static void set_place(const loading *load) {
    ls_trial *trial = load->trial;
    const ls_manifest *manifest = &load->manifest;
    trial->epochs_run = manifest->epochs_run;
    trial->state.epoch = manifest->epochs_run;
    trial->state.step = manifest->step;
    trial->state.batch = load->batch;
    trial->continues = manifest->continues;
    trial->stopped = manifest->stopped;
    trial->latest = manifest->latest;
}

static void set_history(loading *load) {
    ls_history_free(&load->trial->history);
    load->trial->history = load->manifest.history;
    load->manifest.history = (ls_history){.count = 0};
}

static ls_status load_parts(loading *load) {
    LS_TRY(check_fits(load));
    load->own = open_part(load, "rank", load->rank < load->manifest.world_size ? load->rank : 0);
    if (load->own == NULL) {
        return ls_error_status();
    }
    LS_TRY(load_model(load));
    LS_TRY(set_own(load));
    if (load->manifest.loader_epoch >= 0) {
        LS_TRY(ls_loader_seek(load->trial->options.train, load->manifest.loader_epoch, load->loader_batch));
    }
    set_history(load);
    set_place(load);
    return LS_OK;
}

static ls_status load_from(ls_trial *trial, const char *folder) {
    const ls_comm *comm = trial->state.comm;
    loading load = {.trial = trial,
                    .folder = folder,
                    .rank = comm != NULL ? ls_comm_rank(comm) : 0,
                    .size = comm != NULL ? ls_comm_size(comm) : 1};
    LS_TRY(ls_manifest_read(folder, &load.manifest));
    const ls_status status = load_parts(&load);
    ls_safetensors_free(load.own);
    ls_manifest_free(&load.manifest);
    return status;
}

/* Rank 0 looks, and all take what it has found: "" is nothing. */
static ls_status find_for_all(ls_trial *trial, const char *folder, bool needed, char path[PATH_MAX]) {
    ls_comm *comm = trial->state.comm;
    ls_status status = LS_OK;
    if (comm == NULL || ls_comm_rank(comm) == 0) {
        status = ls_checkpoint_find(folder, path);
        if (status == LS_OK && path[0] == '\0' && needed) {
            status = ls_fail(LS_ERR_IO, "ls_trial_load: %s is no checkpoint, and holds none that is whole", folder);
        }
    }
    LS_TRY(ls_trial_agree_at_end(trial, status));
    return comm != NULL ? ls_comm_broadcast(comm, path, PATH_MAX, LS_U8, 0, NULL) : LS_OK;
}

ls_status ls_trial_go_on_from(ls_trial *trial, const char *folder, bool needed) {
    char path[PATH_MAX] = "";
    LS_TRY(ls_trial_begin_agreeing(trial));
    LS_TRY(find_for_all(trial, folder, needed, path));
    return path[0] != '\0' ? ls_trial_agree_at_end(trial, load_from(trial, path)) : LS_OK;
}

ls_status ls_trial_load(ls_trial *trial, const char *folder) {
    if (trial == NULL || folder == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_load: the trial or the folder is NULL");
    }
    return !trial->running && !trial->measuring
               ? ls_trial_go_on_from(trial, folder, true)
               : ls_fail(LS_ERR_STATE, "ls_trial_load: the trial is in the midst of a run");
}
