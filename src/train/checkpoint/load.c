/* Restores a trial from a checkpoint. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "comm/public_call.h"
#include "data/loader.h"
#include "parallel/data_parallel.h"
#include "train/agree.h"
#include "train/checkpoint/checkpoint.h"
#include "train/progress.h"

/* ---- the position in the data ------------------------------------------------------------------------------------ */

/*
 * Converts a number of batches in the checkpoint to batches of `now` samples. Returns -1 if the result is not an
 * integer.
 */
static int64_t convert(const ls_resumption *load, int64_t batches, int64_t now) {
    int64_t samples;
    const bool counts = !__builtin_mul_overflow(batches, load->manifest.global_batch, &samples);
    return counts && samples % now == 0 ? samples / now : -1;
}

/*
 * Warns on rank 0 if the epoch continues with a different order of samples. Checkpoints of older versions, and loaders
 * of other kinds, do not have the order's options.
 */
static void check_order(const ls_resumption *load) {
    const ls_manifest *manifest = &load->manifest;
    const bool within = manifest->loader_batch > 0 && manifest->loader_batch != manifest->loader_batches;
    if (load->rank != 0 || !within) {
        return;
    }
    const ls_loader_order now = ls_loader_order_of(load->trial->options.train);
    char seed[LS_SEED_TEXT];
    snprintf(seed, sizeof seed, "%" PRIu64, now.seed);
    const bool known = manifest->samples > 0 && now.samples > 0;
    if (known && (now.samples != manifest->samples || strcmp(seed, manifest->seed) != 0 ||
                  now.no_shuffle != manifest->no_shuffle)) {
        ls_log_write(
            LS_LOG_WARNING,
            "checkpoint: %s was taken within an epoch of %lld samples with .seed = %s%s, and this run has %lld "
            "samples with .seed = %s%s: in this epoch, some samples are repeated or missing; use the loader "
            "of the earlier run if this is not intended",
            load->folder, (long long)manifest->samples, manifest->seed, manifest->no_shuffle ? " and .no_shuffle" : "",
            (long long)now.samples, seed, now.no_shuffle ? " and .no_shuffle" : "");
    }
}

static ls_status place_data(ls_resumption *load) {
    const ls_manifest *manifest = &load->manifest;
    const ls_trial_options *options = &load->trial->options;
    load->batch = manifest->batch;
    load->loader_batch = manifest->loader_batch;
    if ((options->train != NULL) != (manifest->loader_epoch >= 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "checkpoint: %s was saved by a trial %s a loader of training data",
                       load->folder, options->train == NULL ? "with" : "without");
    }
    check_order(load);
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
        if (load->rank == 0) {
            ls_log_write(LS_LOG_WARNING,
                         "checkpoint: %s was trained with global batches of %lld samples, and this run has %lld: set "
                         ".global_batch_size = %lld if this is not intended",
                         load->folder, (long long)manifest->global_batch, (long long)now,
                         (long long)manifest->global_batch);
        }
        return LS_OK;
    }
    return ls_fail(
        LS_ERR_ARGUMENT,
        "checkpoint: %s was taken after %lld global batches of %lld samples, not at a boundary of batches of "
        "%lld: set .global_batch_size = %lld",
        load->folder, (long long)manifest->loader_batch, (long long)manifest->global_batch, (long long)now,
        (long long)manifest->global_batch);
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static ls_status check_fits(ls_resumption *load) {
    const ls_manifest *manifest = &load->manifest;
    if (manifest->divided && manifest->layout.count == 0 && manifest->world_size != load->size) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "checkpoint: %s has a model that is sharded over %d ranks, and no list of its parts: resume it "
                       "on %d ranks, not on %d; the next checkpoint has the list",
                       load->folder, manifest->world_size, manifest->world_size, load->size);
    }
    if (manifest->optimizer != (load->trial->options.optimizer != NULL)) {
        return ls_fail(LS_ERR_ARGUMENT, "checkpoint: %s was saved by a trial %s an optimizer", load->folder,
                       manifest->optimizer ? "with" : "without");
    }
    return place_data(load);
}

/* A new rank uses rank 0's file. */
static ls_status load_parts(ls_resumption *load) {
    char path[PATH_MAX];
    LS_TRY(check_fits(load));
    LS_TRY(ls_part_path(path, load->folder, LS_RANK_NAME, load->rank < load->manifest.world_size ? load->rank : 0));
    load->own = ls_safetensors_load(path);
    LS_TRY(load->own != NULL ? ls_checkpoint_split(load) : ls_error_status());
    /* No rank changes its model on its own, or waits for a rank that has failed. */
    const bool agrees = load->joins || ls_data_parallel_is_sharded(load->trial->state.model);
    LS_TRY(agrees ? ls_trial_agree_at_end(load->trial, LS_OK) : LS_OK);
    return ls_checkpoint_set_contents(load);
}

static ls_status load_from(ls_trial *trial, const char *folder) {
    ls_resumption load = {
        .trial = trial, .folder = folder, .rank = ls_trial_rank(&trial->state), .size = ls_trial_size(&trial->state)};
    LS_TRY(ls_manifest_read(folder, &load.manifest));
    const ls_status status = load_parts(&load);
    ls_safetensors_free(load.own);
    ls_safetensors_free(load.model);
    ls_safetensors_free(load.optimizer);
    ls_part_layout_free(&load.layout);
    ls_manifest_free(&load.manifest);
    return status;
}

/* Rank 0 searches, and sends the path to all ranks. The path is "" if there is no checkpoint. */
static ls_status find_for_all(ls_trial *trial, const char *folder, bool needed, char path[PATH_MAX]) {
    ls_comm *comm = trial->state.comm;
    ls_status status = LS_OK;
    if (ls_trial_rank(&trial->state) == 0) {
        status = ls_checkpoint_find(folder, path);
        if (status == LS_OK && path[0] == '\0' && needed) {
            status =
                ls_fail(LS_ERR_IO, "ls_trial_load: %s is not a checkpoint and contains no complete checkpoint", folder);
        }
    }
    LS_TRY(ls_trial_agree_at_end(trial, status));
    return comm != NULL ? ls_comm_broadcast(comm, path, PATH_MAX, LS_U8, 0, NULL) : LS_OK;
}

/* Checks that every rank sees the checkpoint that rank 0 has found. */
static ls_status check_sees(ls_trial *trial, const char *path, const char *folder) {
    return ls_trial_agree_at_end(trial, ls_trial_rank(&trial->state) == 0 ? LS_OK : ls_folder_await(path, folder));
}

ls_status ls_trial_go_on_from(ls_trial *trial, const char *folder, bool needed) {
    char path[PATH_MAX] = "";
    LS_TRY(ls_trial_begin_agreeing(trial));
    LS_TRY(find_for_all(trial, folder, needed, path));
    LS_TRY(path[0] != '\0' ? check_sees(trial, path, folder) : LS_OK);
    LS_TRY(path[0] != '\0' ? ls_trial_agree_at_end(trial, load_from(trial, path)) : LS_OK);
    if (!needed) {
        ls_progress_resumed(trial, path);
    }
    return LS_OK;
}

ls_status ls_trial_load(ls_trial *trial, const char *folder) {
    if (trial == NULL || folder == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_trial_load: the trial or the folder is NULL");
    }
    LS_TRY(ls_trial_check_here("ls_trial_load", trial));
    if (trial->in_on_init) {
        return ls_fail(LS_ERR_STATE,
                       "ls_trial_load: the trial is being created: load after ls_trial_new, or set .resume");
    }
    if (trial->running || trial->measuring) {
        return ls_fail(LS_ERR_STATE, "ls_trial_load: the trial is in a run");
    }
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_TRIAL_LOAD);
    return ls_public_end(outer, ls_trial_go_on_from(trial, folder, true));
}
