/* A snapshot's way to disk: each rank's files temporary, then, when all are there, the manifest and the renaming. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/checkpoint/checkpoint.h"

ls_status ls_checkpoint_place(ls_checkpoint *snapshot, const char *parent, const char *name, uint64_t nonce) {
    char temporary[NAME_MAX + 1];
    if (snprintf(temporary, sizeof temporary, ".new-%016" PRIx64 "-%s", nonce, name) > NAME_MAX) {
        return ls_fail(LS_ERR_ARGUMENT, "checkpoint: the name %.100s... is too long", name);
    }
    LS_TRY(ls_path_join(snapshot->parent, parent, ""));
    LS_TRY(ls_path_join(snapshot->temporary, parent, temporary));
    return ls_path_join(snapshot->folder, parent, name);
}

void ls_part_name(char file[LS_FILE_NAME_LIMIT], const char *name, int rank) {
    if (rank < 0) {
        snprintf(file, LS_FILE_NAME_LIMIT, "%s.safetensors", name);
    } else {
        snprintf(file, LS_FILE_NAME_LIMIT, "%s-%04d.safetensors", name, rank);
    }
}

/* The rank in the names of the model's and the optimizer's files. */
static int part_of(const ls_checkpoint *snapshot) {
    return snapshot->manifest.divided ? snapshot->rank : -1;
}

/* ---- this rank's files ------------------------------------------------------------------------------------------- */

static ls_status write_part(const ls_checkpoint *snapshot, const char *name, int rank, const ls_copies *copies) {
    char file[LS_FILE_NAME_LIMIT], path[PATH_MAX];
    ls_part_name(file, name, rank);
    LS_TRY(ls_path_join(path, snapshot->temporary, file));
    return ls_safetensors_save(path, copies->items, copies->count, (const char *const *)copies->metadata);
}

ls_status ls_checkpoint_write(ls_checkpoint *snapshot) {
    if (mkdir(snapshot->temporary, 0777) != 0 && errno != EEXIST) { /* another rank was first */
        return ls_fail(LS_ERR_IO, "checkpoint: cannot make the folder %s: %s", snapshot->temporary, strerror(errno));
    }
    if (snapshot->writes_model) {
        LS_TRY(write_part(snapshot, "model", part_of(snapshot), &snapshot->model));
        if (snapshot->manifest.optimizer) {
            LS_TRY(write_part(snapshot, "optimizer", part_of(snapshot), &snapshot->optimizer));
        }
    }
    return write_part(snapshot, "rank", snapshot->rank, &snapshot->own);
}

static void remove_part(const ls_checkpoint *snapshot, const char *name, int rank) {
    char file[LS_FILE_NAME_LIMIT], path[PATH_MAX];
    ls_part_name(file, name, rank);
    if (ls_path_join(path, snapshot->temporary, file) == LS_OK) {
        (void)unlink(path);
    }
}

void ls_checkpoint_discard(const ls_checkpoint *snapshot) {
    char path[PATH_MAX];
    if (snapshot->writes_model) {
        remove_part(snapshot, "model", part_of(snapshot));
        remove_part(snapshot, "optimizer", part_of(snapshot));
    }
    remove_part(snapshot, "rank", snapshot->rank);
    if (snapshot->rank == 0 && ls_path_join(path, snapshot->temporary, LS_MANIFEST_NAME) == LS_OK) {
        (void)unlink(path);
    }
    (void)rmdir(snapshot->temporary); /* the last rank's succeeds */
}

/* ---- the checkpoint ---------------------------------------------------------------------------------------------- */

static ls_status list_part(ls_checkpoint *snapshot, const char *name, int rank) {
    char file[LS_FILE_NAME_LIMIT];
    ls_part_name(file, name, rank);
    return ls_manifest_add_file(&snapshot->manifest, snapshot->temporary, file);
}

static ls_status list_files(ls_checkpoint *snapshot) {
    const ls_manifest *manifest = &snapshot->manifest;
    for (int i = 0; i < (manifest->divided ? manifest->world_size : 1); i++) {
        LS_TRY(list_part(snapshot, "model", manifest->divided ? i : -1));
        if (manifest->optimizer) {
            LS_TRY(list_part(snapshot, "optimizer", manifest->divided ? i : -1));
        }
    }
    for (int i = 0; i < manifest->world_size; i++) {
        LS_TRY(list_part(snapshot, "rank", i));
    }
    return LS_OK;
}

/* The link to the best one leads to this one at once. */
static ls_status link_best(const ls_checkpoint *snapshot) {
    char temporary[PATH_MAX];
    const char *name = strrchr(snapshot->folder, '/') + 1;
    if (snprintf(temporary, sizeof temporary, "%s.link", snapshot->temporary) >= PATH_MAX ||
        symlink(name, temporary) != 0) {
        return ls_fail(LS_ERR_IO, "checkpoint: cannot make the link %s: %s", snapshot->best, strerror(errno));
    }
    if (rename(temporary, snapshot->best) != 0) {
        const int reason = errno;
        (void)unlink(temporary);
        return ls_fail(LS_ERR_IO, "checkpoint: cannot make the link %s: %s", snapshot->best, strerror(reason));
    }
    return ls_folder_sync(snapshot->parent);
}

/* What is removed has another name first, so that nothing that is half gone looks like a checkpoint. */
static ls_status remove_one(const ls_checkpoint *snapshot, const char *name) {
    char path[PATH_MAX], renamed[PATH_MAX], old[NAME_MAX + 1];
    snprintf(old, sizeof old, ".old-%s", name);
    LS_TRY(ls_path_join(path, snapshot->parent, name));
    LS_TRY(ls_path_join(renamed, snapshot->parent, old));
    if (rename(path, renamed) != 0) {
        return ls_fail(LS_ERR_IO, "checkpoint: cannot remove %s: %s", path, strerror(errno));
    }
    return ls_folder_delete(renamed);
}

/* Those before the `keep` newest up to this one, but for the best. */
static ls_status remove_older(const ls_checkpoint *snapshot) {
    char best[PATH_MAX] = "", link[PATH_MAX];
    ls_folder_names names;
    LS_TRY(ls_path_join(link, snapshot->parent, "best"));
    const ssize_t length = readlink(link, best, sizeof best - 1);
    best[length > 0 ? length : 0] = '\0';
    LS_TRY(ls_folder_list(snapshot->parent, NULL, &names));
    int end = names.count;
    while (end > 0 && strcmp(names.items[end - 1], strrchr(snapshot->folder, '/') + 1) > 0) {
        end--; /* damaged ones, of a run that went on from one before them */
    }
    ls_status status = LS_OK;
    for (int i = 0; status == LS_OK && i < end - snapshot->keep; i++) {
        status = strcmp(names.items[i], best) != 0 ? remove_one(snapshot, names.items[i]) : LS_OK;
    }
    ls_folder_names_free(&names);
    return status;
}

/* What was there under the name has the temporary one then, and goes. */
static ls_status put_in_place(const ls_checkpoint *snapshot) {
    struct stat about;
    const bool there = lstat(snapshot->folder, &about) == 0, is_folder = there && S_ISDIR(about.st_mode);
    if (there && !(is_folder && (ls_checkpoint_is_one(snapshot->folder) || rmdir(snapshot->folder) == 0))) {
        return ls_fail(LS_ERR_IO, "checkpoint: %s is there already, and is no checkpoint", snapshot->folder);
    }
    LS_TRY(ls_folder_sync(snapshot->temporary));
    LS_TRY(ls_folder_replace(snapshot->parent, snapshot->temporary, snapshot->folder));
    return ls_folder_delete(snapshot->temporary);
}

ls_status ls_checkpoint_commit(ls_checkpoint *snapshot) {
    LS_TRY(list_files(snapshot));
    LS_TRY(ls_manifest_write(&snapshot->manifest, snapshot->temporary));
    LS_TRY(put_in_place(snapshot));
    if (snapshot->best[0] != '\0') {
        LS_TRY(link_best(snapshot));
    }
    return snapshot->keep > 0 ? remove_older(snapshot) : LS_OK;
}
