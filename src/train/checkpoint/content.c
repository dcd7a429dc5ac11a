/*
 * The contents of a checkpoint, as one table. Each row copies a part of the trial into a snapshot, and restores it.
 * Saving and loading both use this table. Loading fails if a tensor of the checkpoint belongs to no row. Loading
 * ignores the state of callbacks that the trial lacks, with a warning.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/share.h"
#include "data/loader.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "parallel/outer.h"
#include "parallel/slices.h"
#include "tensor/device.h"
#include "train/checkpoint/checkpoint.h"
#include "train/replicas.h"

/* ---- tensors in files -------------------------------------------------------------------------------------------- */

/* Lists all tensors in the file. The caller frees the array, which has room for at least one tensor. */
static ls_named *list_file(const ls_safetensors *file) {
    const int count = ls_safetensors_count(file);
    ls_named *all = ls_allocate_for("checkpoint", (size_t)count + 1, sizeof *all);
    for (int i = 0; all != NULL && i < count; i++) {
        all[i] = ls_safetensors_at(file, i);
    }
    return all;
}

/*
 * Copies the numbers of a part that consists of a single tensor. Returns false if the tensor is missing, or has a
 * different dtype or length.
 */
static bool read_numbers(const ls_named *tensors, int count, ls_dtype dtype, int64_t length, void *numbers) {
    if (count != 1 || tensors->name[0] != '\0' || ls_dtype_of(tensors->tensor) != dtype ||
        ls_numel(tensors->tensor) != length) {
        return false;
    }
    memcpy(numbers, ls_host_data(tensors->tensor), (size_t)length * ls_dtype_size(dtype));
    return true;
}

/* ---- modes ------------------------------------------------------------------------------------------------------- */

/* Copies the training modes of all layers, which hooks may have changed. */
static ls_status get_modes(ls_trial *trial, const char *prefix, ls_checkpoint *to) {
    ls_modes modes;
    LS_TRY(ls_modes_take(&modes, trial->state.model));
    const ls_status status = ls_copies_add_numbers(&to->own, prefix, LS_BOOL, modes.count, modes.training);
    ls_modes_free(&modes);
    return status;
}

/* If the layers differ, for example because the model is sharded differently, the model keeps its modes. */
static ls_status set_modes(ls_resumption *from) {
    ls_module *model = from->trial->state.model;
    ls_modes modes;
    LS_TRY(ls_modes_take(&modes, model));
    if (!from->joins && from->count == 1 && ls_dtype_of(from->tensors->tensor) == LS_BOOL &&
        ls_numel(from->tensors->tensor) == modes.count) {
        for (int i = 0; i < modes.count; i++) {
            modes.training[i] = ((const uint8_t *)ls_host_data(from->tensors->tensor))[i] != 0;
        }
    }
    ls_modes_put(&modes, model);
    return LS_OK;
}

/* ---- state of each rank ------------------------------------------------------------------------------------------ */

static const char metric_prefix[] = "metric/";

static ls_status get_metrics_of(ls_trial *trial, const char *prefix, ls_checkpoint *to) {
    const ls_named *tensors = NULL;
    int count = 0;
    LS_TRY(ls_metrics_state(trial, &tensors, &count));
    return ls_copies_add(&to->own, prefix, tensors, count);
}

/* Writes a prefix such as "metric/3/", for the numbers of slice 3. */
static void name_slice(int slice, char name[32]) {
    snprintf(name, 32, "%s%d/", metric_prefix, slice);
}

static ls_status get_metrics(ls_trial *trial, const char *prefix, ls_checkpoint *to) {
    const ls_slices *slices = ls_data_parallel_slices(trial->state.model);
    ls_status status = slices == NULL ? get_metrics_of(trial, prefix, to) : LS_OK;
    for (int i = 0; slices != NULL && i < slices->count && status == LS_OK; i++) {
        char name[32];
        name_slice(slices->first + i, name);
        struct ls_metric_set *whole = ls_metrics_enter(trial, i);
        status = get_metrics_of(trial, name, to);
        ls_metrics_leave(trial, whole);
    }
    return status;
}

typedef ls_status use_metrics(ls_trial *trial, const ls_named *tensors, int count);

static ls_status add_metrics(ls_trial *trial, const ls_named *tensors, int count) {
    return ls_metrics_add_state(trial, tensors, count, false);
}

/* Uses the numbers with this prefix in the file of a rank. */
static ls_status use_metrics_of(const ls_resumption *from, int rank, const char *prefix, use_metrics *use) {
    char path[PATH_MAX];
    LS_TRY(ls_part_path(path, from->folder, LS_RANK_NAME, rank));
    ls_safetensors *file = ls_safetensors_load(path);
    ls_named *all = file != NULL ? list_file(file) : NULL;
    ls_status status = ls_error_status();
    if (all != NULL) {
        const int count = ls_state_select(all, ls_safetensors_count(file), prefix, all);
        status = use(from->trial, all, count);
    }
    ls_free(all);
    ls_safetensors_free(file);
    return status;
}

/* The slice may have belonged to a different rank. */
static ls_status set_metrics_of_slice(const ls_resumption *from, int slice) {
    const int ranks = from->manifest.world_size;
    char name[32];
    name_slice(slice, name);
    int rank = 0;
    while (rank + 1 < ranks && ls_share_of(from->manifest.shards, ranks, rank + 1).start <= slice) {
        rank++;
    }
    return use_metrics_of(from, rank, name, ls_metrics_set_state);
}

static ls_status set_metrics_of_slices(const ls_resumption *from) {
    const ls_slices *slices = ls_data_parallel_slices(from->trial->state.model);
    ls_status status = LS_OK;
    for (int i = 0; i < slices->count && status == LS_OK; i++) {
        struct ls_metric_set *whole = ls_metrics_enter(from->trial, i);
        status = set_metrics_of_slice(from, slices->first + i);
        ls_metrics_leave(from->trial, whole);
    }
    return status;
}

/* Returns the name of the metric in "NAME" or, with slices, in "3/NAME". */
static const char *metric_of(const ls_resumption *from, const char *name) {
    const char *slash = from->manifest.shards > 0 ? strchr(name, '/') : NULL;
    return slash != NULL ? slash + 1 : name;
}

/* Checks the names of the metrics, whose numbers are not used. The files of some ranks may have no slices. */
static ls_status check_metric_names(const ls_resumption *from) {
    const ls_named *own = NULL;
    int count = 0;
    LS_TRY(ls_metrics_state(from->trial, &own, &count));
    for (int i = 0; i < from->count; i++) {
        const char *name = metric_of(from, from->tensors[i].name);
        LS_TRY(ls_state_find(own, count, name) != NULL
                   ? LS_OK
                   : ls_fail(LS_ERR_FORMAT, "checkpoint: %s has the metric \"%s\", which the trial does not have",
                             from->folder, name));
    }
    for (int i = 0; i < count && from->count > 0; i++) {
        bool has = false;
        for (int k = 0; k < from->count && !has; k++) {
            has = strcmp(metric_of(from, from->tensors[k].name), own[i].name) == 0;
        }
        LS_TRY(has ? LS_OK
                   : ls_fail(LS_ERR_FORMAT, "checkpoint: %s does not have the trial's metric \"%s\"", from->folder,
                             own[i].name));
    }
    return LS_OK;
}

/*
 * If the checkpoint has more ranks, each rank adds the numbers of several of them, so that the sums over all ranks stay
 * the same. With `.shards`, each slice keeps its numbers.
 */
static ls_status set_metrics(ls_resumption *from) {
    const int shards = ls_trial_shards(from->trial);
    if (shards != from->manifest.shards) {
        return !from->manifest.continues
                   ? check_metric_names(from)
                   : ls_fail(LS_ERR_ARGUMENT,
                             "checkpoint: %s was taken within an epoch with .shards = %d, but the model has .shards = "
                             "%d: resume it with %d, or resume the last checkpoint of an epoch",
                             from->folder, from->manifest.shards, shards, from->manifest.shards);
    }
    if (shards > 0) {
        return set_metrics_of_slices(from);
    }
    if (from->rank >= from->manifest.world_size) {
        return ls_metrics_add_state(from->trial, from->tensors, from->count, true);
    }
    LS_TRY(ls_metrics_set_state(from->trial, from->tensors, from->count));
    for (int rank = from->rank + from->size; rank < from->manifest.world_size; rank += from->size) {
        LS_TRY(use_metrics_of(from, rank, metric_prefix, add_metrics));
    }
    return LS_OK;
}

/* Copies the best value of the metric so far, for the link to the best checkpoint. */
static ls_status get_best(ls_trial *trial, const char *prefix, ls_checkpoint *to) {
    return trial->checkpointer != NULL ? ls_copies_add_numbers(&to->own, prefix, LS_F64, 2, trial->checkpointer->best)
                                       : LS_OK;
}

static ls_status set_best(ls_resumption *from) {
    ls_checkpointer *self = from->trial->checkpointer;
    if (self == NULL) {
        return LS_OK;
    }
    const bool known = read_numbers(from->tensors, from->count, LS_F64, 2, self->best);
    const bool other = known && self->options.best != NULL && self->best[1] > 1 && self->best[1] != self->best_kind;
    self->best[1] = known && !other ? self->best[1] : 0;
    if (self->options.best != NULL && (!known || other)) {
        ls_log_write(LS_LOG_WARNING, "checkpoint: %s has %s; the value of the first epoch becomes the best",
                     from->folder, other ? "the best value of another metric or direction" : "no best value");
    }
    return LS_OK;
}

static ls_status get_scaler(ls_trial *trial, const char *prefix, ls_checkpoint *to) {
    const ls_named *tensors = NULL;
    int count = 0;
    if (trial->options.grad_scaler == NULL) {
        return LS_OK;
    }
    LS_TRY(ls_grad_scaler_state(trial->options.grad_scaler, &tensors, &count));
    return ls_copies_add(&to->own, prefix, tensors, count);
}

static ls_status set_scaler(ls_resumption *from) {
    ls_grad_scaler *scaler = from->trial->options.grad_scaler;
    if (scaler != NULL && from->count == 0) {
        ls_log_write(LS_LOG_WARNING, "checkpoint: %s has no state for the grad_scaler; it keeps its current state",
                     from->folder);
    }
    return scaler != NULL && from->count > 0 ? ls_grad_scaler_set_state(scaler, from->tensors, from->count) : LS_OK;
}

static ls_status get_averaging(ls_trial *trial, const char *prefix, ls_checkpoint *to) {
    ls_averaging_memory memory;
    return ls_data_parallel_memory(trial->state.model, &memory)
               ? ls_copies_add_numbers(&to->own, prefix, LS_F64, 2, (double[]){memory.usual, memory.agrees})
               : LS_OK;
}

/* Returns the number of shares in a global batch. */
static int shares_of(int shards, int ranks) {
    return shards > 0 ? shards : ranks;
}

/* If the number of shares differs, the sizes differ too. */
static ls_status set_averaging(ls_resumption *from) {
    ls_module *model = from->trial->state.model;
    ls_averaging_memory memory;
    double numbers[2];
    if (ls_data_parallel_memory(model, &memory) && read_numbers(from->tensors, from->count, LS_F64, 2, numbers)) {
        const bool same = !from->joins && shares_of(ls_trial_shards(from->trial), from->size) ==
                                              shares_of(from->manifest.shards, from->manifest.world_size);
        memory = (ls_averaging_memory){.usual = same ? numbers[0] : 0, .agrees = numbers[1] != 0};
        ls_data_parallel_remember(model, memory);
    }
    return LS_OK;
}

static ls_status get_powersgd(ls_trial *trial, const char *prefix, ls_checkpoint *to) {
    int64_t count = 0;
    float *numbers = ls_data_parallel_powersgd(trial->state.model, &count);
    return numbers != NULL ? ls_copies_add_numbers(&to->own, prefix, LS_F32, count, numbers) : LS_OK;
}

/* If the number of ranks or .powersgd_rank differs, the numbers have a different meaning. */
static ls_status set_powersgd(ls_resumption *from) {
    ls_module *model = from->trial->state.model;
    int64_t count = 0;
    float *numbers = ls_data_parallel_powersgd(model, &count);
    if (numbers == NULL || (!from->joins && from->size == from->manifest.world_size &&
                            read_numbers(from->tensors, from->count, LS_F32, count, numbers))) {
        return LS_OK;
    }
    ls_data_parallel_restart_powersgd(model);
    ls_log_write(LS_LOG_WARNING,
                 "checkpoint: %s has no error feedback of PowerSGD for this .powersgd_rank and number of ranks; it "
                 "starts from zero",
                 from->folder);
    return LS_OK;
}

static ls_status get_random(ls_trial *trial, const char *prefix, ls_checkpoint *to) {
    const ls_random_state random = ls_random_get_state();
    (void)trial;
    return ls_copies_add_numbers(&to->own, prefix, LS_I64, 2,
                                 (int64_t[]){(int64_t)random.seed, (int64_t)random.stream});
}

static ls_status set_random(ls_resumption *from) {
    int64_t numbers[2];
    if (!read_numbers(from->tensors, from->count, LS_I64, 2, numbers)) {
        return ls_fail(LS_ERR_FORMAT, "checkpoint: %s: the file of a rank has no random numbers", from->folder);
    }
    ls_random_set_state((ls_random_state){.seed = (uint64_t)numbers[0], .stream = (uint64_t)numbers[1]});
    return LS_OK;
}

/* ---- in the manifest --------------------------------------------------------------------------------------------- */

static ls_status get_loader(ls_trial *trial, const char *prefix, ls_checkpoint *to) {
    const ls_loader *loader = trial->options.train;
    ls_manifest *manifest = &to->manifest;
    (void)prefix;
    manifest->loader_epoch = -1;
    ls_loader_order order = {.samples = 0};
    if (loader != NULL) {
        order = ls_loader_order_of(loader);
        ls_loader_position(loader, &manifest->loader_epoch, &manifest->loader_batch);
        manifest->loader_batches = ls_loader_batch_count(loader);
        manifest->global_batch = ls_loader_global_batch(loader);
    }
    manifest->samples = order.samples;
    manifest->no_shuffle = order.no_shuffle;
    snprintf(manifest->seed, sizeof manifest->seed, "%" PRIu64, order.seed);
    return LS_OK;
}

static ls_status set_loader(ls_resumption *from) {
    const ls_manifest *manifest = &from->manifest;
    return manifest->loader_epoch >= 0
               ? ls_loader_seek(from->trial->options.train, manifest->loader_epoch, from->loader_batch)
               : LS_OK;
}

static ls_status get_history(ls_trial *trial, const char *prefix, ls_checkpoint *to) {
    (void)prefix;
    to->manifest.latest = trial->latest;
    return ls_history_copy(&to->manifest.history, &trial->history);
}

static ls_status set_history(ls_resumption *from) {
    ls_trial *trial = from->trial;
    ls_history_free(&trial->history);
    trial->history = from->manifest.history;
    from->manifest.history = (ls_history){.count = 0};
    trial->latest = from->manifest.latest;
    return LS_OK;
}

static ls_status get_position(ls_trial *trial, const char *prefix, ls_checkpoint *to) {
    ls_manifest *manifest = &to->manifest;
    (void)prefix;
    manifest->epochs_run = trial->epochs_run;
    manifest->step = trial->state.step;
    manifest->continues = trial->continues || (trial->running && trial->state.phase == LS_PHASE_TRAINING);
    manifest->stopped = trial->running ? trial->state.stop : trial->stopped;
    manifest->batch = manifest->continues ? trial->state.batch : 0;
    return LS_OK;
}

static ls_status set_position(ls_resumption *from) {
    ls_trial *trial = from->trial;
    const ls_manifest *manifest = &from->manifest;
    trial->loads++;
    trial->epochs_run = manifest->epochs_run;
    trial->state.epoch = manifest->epochs_run;
    trial->state.step = manifest->step;
    trial->state.batch = from->batch;
    trial->continues = manifest->continues;
    trial->stopped = manifest->stopped;
    return LS_OK;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

enum content_place { IN_FILES = 0, IN_RANK_FILE, IN_MANIFEST };

static const struct content {
    enum content_place place;
    const char *prefix; /* prefix of the tensors' names in a rank's file */
    ls_status (*get)(ls_trial *trial, const char *prefix, ls_checkpoint *to);
    ls_status (*set)(ls_resumption *from);
} contents[] = {
    {IN_FILES, "model", ls_checkpoint_get_model, ls_checkpoint_set_model},
    {IN_FILES, "optimizer", ls_checkpoint_get_optimizer, ls_checkpoint_set_optimizer},
    {IN_FILES, "outer", ls_checkpoint_get_outer, ls_checkpoint_set_outer},
    {IN_RANK_FILE, "modes", get_modes, set_modes},
    {IN_RANK_FILE, metric_prefix, get_metrics, set_metrics},
    {IN_RANK_FILE, "best", get_best, set_best},
    {IN_RANK_FILE, "callback/", ls_checkpoint_get_callbacks, ls_checkpoint_set_callbacks}, /* schedules and others */
    {IN_RANK_FILE, "grad_scaler/", get_scaler, set_scaler},
    {IN_RANK_FILE, "averaging", get_averaging, set_averaging},
    {IN_RANK_FILE, "powersgd", get_powersgd, set_powersgd},
    {IN_RANK_FILE, "random", get_random, set_random},
    {IN_MANIFEST, "loader", get_loader, set_loader},
    {IN_MANIFEST, "history", get_history, set_history},
    {IN_MANIFEST, "position", get_position, set_position},
};

enum { CONTENTS = sizeof contents / sizeof *contents };

ls_status ls_checkpoint_get_contents(ls_trial *trial, ls_checkpoint *to) {
    for (int i = 0; i < CONTENTS; i++) {
        LS_TRY(contents[i].get(trial, contents[i].prefix, to));
    }
    return LS_OK;
}

static bool is_known(const char *name) {
    bool known = false;
    for (int i = 0; i < CONTENTS; i++) {
        const char *prefix = contents[i].prefix;
        const size_t length = strlen(prefix);
        const bool whole = prefix[length - 1] != '/'; /* the tensor's whole name */
        known |= contents[i].place == IN_RANK_FILE &&
                 (whole ? strcmp(name, prefix) == 0 : strncmp(name, prefix, length) == 0);
    }
    return known;
}

static ls_status check_known(const ls_resumption *from, const ls_named *all, int count) {
    for (int i = 0; i < count; i++) {
        if (!is_known(all[i].name)) {
            return ls_fail(LS_ERR_UNSUPPORTED,
                           "checkpoint: %s has \"%.100s\", which Lockstep %s cannot load: use Lockstep %s, which saved "
                           "the checkpoint",
                           from->folder, all[i].name, ls_version(), from->manifest.version);
        }
    }
    return LS_OK;
}

ls_status ls_checkpoint_set_contents(ls_resumption *from) {
    const int count = ls_safetensors_count(from->own);
    ls_named *all = list_file(from->own), *found = list_file(from->own);
    ls_status status = all != NULL && found != NULL ? LS_OK : ls_error_status();
    status = status == LS_OK ? check_known(from, all, count) : status;
    from->tensors = found;
    for (int i = 0; status == LS_OK && i < CONTENTS; i++) {
        const struct content *part = &contents[i];
        from->count = part->place == IN_RANK_FILE ? ls_state_select(all, count, part->prefix, found) : 0;
        status = part->set(from);
    }
    ls_free(all);
    ls_free(found);
    return status;
}
