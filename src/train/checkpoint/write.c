/*
 * Writes a snapshot to disk: each rank writes its files to a temporary folder. When all files exist, rank 0 writes the
 * manifest and renames the folder.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "formats/named.h"
#include "train/checkpoint/checkpoint.h"

bool ls_checkpoint_temporary(char temporary[NAME_MAX + 1], const char *name, uint64_t nonce) {
    return snprintf(temporary, NAME_MAX + 1, ".new-%016" PRIx64 "-%s", nonce, name) <= NAME_MAX;
}

ls_status ls_checkpoint_place(ls_checkpoint *snapshot, const char *parent, const char *name, uint64_t nonce) {
    char temporary[NAME_MAX + 1];
    if (!ls_checkpoint_temporary(temporary, name, nonce)) {
        return ls_fail(LS_ERR_ARGUMENT, "checkpoint: the name %.100s... is too long", name);
    }
    LS_TRY(ls_path_join(snapshot->parent, parent, ""));
    LS_TRY(ls_path_join(snapshot->temporary, parent, temporary));
    return ls_path_join(snapshot->folder, parent, name);
}

/* ---- this rank's files ------------------------------------------------------------------------------------------- */

/* Computes the checksum from the data in memory, not from the file, so that a later reader can detect disk errors. */
static ls_status write_part(ls_checkpoint *snapshot, int part, const char *name, int rank, const ls_copies *copies) {
    ls_manifest_file *file = &snapshot->written[part];
    char path[PATH_MAX];
    ls_part_name(file->name, name, rank);
    LS_TRY(ls_path_join(path, snapshot->temporary, file->name));
    ls_checksum *sum = ls_checksum_new("checkpoint");
    if (sum == NULL) {
        return LS_ERR_MEMORY;
    }
    ls_new_file written;
    ls_status status = ls_file_create("checkpoint", path, &written);
    if (status == LS_OK) {
        written.sum = sum;
        written.in_new_folder = true;
        status = ls_file_pass_cache("checkpoint", &written);
        status = status == LS_OK ? ls_safetensors_write(&written, copies->items, copies->count,
                                                        (const char *const *)copies->metadata)
                                 : status;
        status = ls_file_commit("checkpoint", &written, status);
        ls_checksum_get(sum, &file->bytes, file->checksum);
    }
    ls_checksum_free(sum);
    return status;
}

ls_status ls_checkpoint_write(ls_checkpoint *snapshot) {
    const int rank = snapshot->rank;
    const int part = snapshot->manifest.divided ? rank : -1;
    if (mkdir(snapshot->temporary, 0777) != 0 && errno != EEXIST) { /* another rank was first */
        return ls_fail(LS_ERR_IO, "checkpoint: cannot make the folder %s: %s", snapshot->temporary, strerror(errno));
    }
    if (snapshot->writes_model) {
        LS_TRY(write_part(snapshot, LS_MODEL_PART, LS_MODEL_NAME, part, &snapshot->model));
    }
    if (snapshot->writes_optimizer && snapshot->manifest.optimizer) {
        LS_TRY(write_part(snapshot, LS_OPTIMIZER_PART, LS_OPTIMIZER_NAME, snapshot->own_optimizer ? rank : -1,
                          &snapshot->optimizer));
    }
    if (snapshot->manifest.layout.count > 0) {
        ls_part_layout_hash(&snapshot->manifest.layout, 0, &snapshot->model);
    }
    if (snapshot->manifest.layout.count > snapshot->model.count) {
        ls_part_layout_hash(&snapshot->manifest.layout, snapshot->model.count, &snapshot->optimizer);
    }
    if (snapshot->outer.count > 0) {
        LS_TRY(write_part(snapshot, LS_OUTER_PART, LS_OUTER_NAME, part, &snapshot->outer));
    }
    LS_TRY(write_part(snapshot, LS_RANK_PART, LS_RANK_NAME, rank, &snapshot->own));
    return ls_folder_sync(snapshot->temporary);
}

void ls_checkpoint_discard(const ls_checkpoint *snapshot) {
    char path[PATH_MAX];
    for (int i = 0; i < LS_PARTS; i++) {
        const char *name = snapshot->written[i].name;
        if (name[0] != '\0' && ls_path_join(path, snapshot->temporary, name) == LS_OK) {
            (void)unlink(path);
        }
    }
    if (snapshot->rank == 0 && ls_path_join(path, snapshot->temporary, LS_MANIFEST_NAME) == LS_OK) {
        (void)unlink(path);
    }
    (void)rmdir(snapshot->temporary); /* succeeds on the last rank */
}

/* ---- the checkpoint ---------------------------------------------------------------------------------------------- */

ls_status ls_checkpoint_gather(ls_checkpoint *snapshot, ls_comm *comm) {
    ls_manifest *manifest = &snapshot->manifest;
    if (snapshot->rank == 0) {
        const size_t count = (size_t)manifest->world_size * LS_PARTS;
        manifest->files = ls_allocate_for("checkpoint", count, sizeof *manifest->files);
        LS_TRY(ls_made(manifest->files));
        memcpy(manifest->files, snapshot->written, sizeof snapshot->written);
    }
    LS_TRY(comm != NULL ? ls_comm_gather(comm, snapshot->rank == 0 ? manifest->files : snapshot->written,
                                         manifest->files, sizeof snapshot->written, LS_U8, 0, NULL)
                        : LS_OK);
    for (int i = 0; snapshot->rank == 0 && i < manifest->world_size * LS_PARTS; i++) {
        if (manifest->files[i].name[0] != '\0') {
            manifest->files[manifest->file_count++] = manifest->files[i];
        }
    }
    return manifest->divided ? ls_part_layout_gather(&manifest->layout, comm) : LS_OK;
}

/* Checks that all files exist. Files are missing if the ranks do not share the folder. */
static ls_status find_files(const ls_checkpoint *snapshot) {
    for (int i = 0; i < snapshot->manifest.file_count; i++) {
        const ls_manifest_file *file = &snapshot->manifest.files[i];
        struct stat about;
        char path[PATH_MAX];
        LS_TRY(ls_path_join(path, snapshot->temporary, file->name));
        if (stat(path, &about) != 0) {
            return ls_fail(LS_ERR_IO,
                           "checkpoint: cannot find %s, which a rank has written: %s; do all ranks see the folder?",
                           path, strerror(errno));
        }
        if (about.st_size != file->bytes) {
            return ls_fail(LS_ERR_IO, "checkpoint: %s has %lld bytes, but %lld were written", path,
                           (long long)about.st_size, (long long)file->bytes);
        }
    }
    return LS_OK;
}

/* Keeps the `keep` newest checkpoints up to this one, and the best one. Removes all older checkpoints. */
static ls_status remove_older(const ls_checkpoint *snapshot) {
    char best[NAME_MAX + 1];
    ls_folder_names names;
    LS_TRY(ls_folder_link(snapshot->parent, "best", best));
    LS_TRY(ls_folder_list(snapshot->parent, NULL, &names));
    int end = names.count;
    while (end > 0 && strcmp(names.items[end - 1], strrchr(snapshot->folder, '/') + 1) > 0) {
        end--; /* skips later checkpoints that are damaged: the run resumed from an earlier one */
    }
    ls_status status = LS_OK;
    for (int i = 0; status == LS_OK && i < end - snapshot->keep; i++) {
        status = strcmp(names.items[i], best) != 0 ? ls_checkpoint_remove(snapshot->parent, names.items[i]) : LS_OK;
    }
    ls_folder_names_free(&names);
    return status;
}

/*
 * Returns whether the folder is empty or a checkpoint. The checkpoint may be complete, in a newer format, or damaged if
 * its name is a checkpoint's name.
 */
static bool may_replace(const char *folder) {
    const bool is_one = ls_is_checkpoint_name(strrchr(folder, '/') + 1) && ls_checkpoint_is_one(folder);
    return is_one || rmdir(folder) == 0 || ls_checkpoint_is_readable(folder);
}

/* Replaces an existing checkpoint with this name. The old checkpoint gets the temporary name, and is deleted. */
static ls_status put_in_place(const ls_checkpoint *snapshot) {
    struct stat about;
    const bool there = lstat(snapshot->folder, &about) == 0;
    if (there && !(S_ISDIR(about.st_mode) && may_replace(snapshot->folder))) {
        return ls_fail(LS_ERR_IO,
                       "checkpoint: %s exists already and is not a checkpoint; remove it, or choose another name",
                       snapshot->folder);
    }
    LS_TRY(ls_folder_sync(snapshot->temporary));
    LS_TRY(ls_folder_replace(snapshot->parent, snapshot->temporary, snapshot->folder));
    return ls_folder_delete(snapshot->temporary);
}

/*
 * First creates the link to the best checkpoint under a temporary name. If the run is killed between the two renames,
 * the run that resumes from this checkpoint finds the link and renames it.
 */
static ls_status put_in_place_as_best(const ls_checkpoint *snapshot) {
    char link[PATH_MAX];
    if (snprintf(link, sizeof link, "%s%s", snapshot->temporary, LS_LINK_SUFFIX) >= PATH_MAX ||
        symlink(strrchr(snapshot->folder, '/') + 1, link) != 0) {
        return ls_fail(LS_ERR_IO, "checkpoint: cannot make the link %s: %s", snapshot->best, strerror(errno));
    }
    ls_status status = put_in_place(snapshot);
    if (status == LS_OK && rename(link, snapshot->best) != 0) {
        status = ls_fail(LS_ERR_IO, "checkpoint: cannot make the link %s: %s", snapshot->best, strerror(errno));
    }
    if (status != LS_OK) {
        (void)unlink(link);
        return status;
    }
    return ls_folder_sync(snapshot->parent);
}

ls_status ls_checkpoint_commit(ls_checkpoint *snapshot) {
    LS_TRY(find_files(snapshot));
    LS_TRY(ls_manifest_write(&snapshot->manifest, snapshot->temporary));
    LS_TRY(snapshot->best[0] != '\0' ? put_in_place_as_best(snapshot) : put_in_place(snapshot));
    return snapshot->keep > 0 ? remove_older(snapshot) : LS_OK;
}
