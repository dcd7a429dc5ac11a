/* Finds complete checkpoints. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/file.h"
#include "train/checkpoint/checkpoint.h"

/* Writes the path of a file of a checkpoint. Fails if the file is missing, or if the manifest has a different size. */
static ls_status check_size(const char *folder, const ls_manifest_file *file, char path[PATH_MAX]) {
    struct stat about;
    LS_TRY(ls_path_join(path, folder, file->name));
    if (stat(path, &about) != 0) {
        return errno == ENOENT ? ls_fail(LS_ERR_FORMAT, "checkpoint: %s is missing", path)
                               : ls_fail(LS_ERR_IO, "checkpoint: cannot read %s: %s", path, strerror(errno));
    }
    return about.st_size == file->bytes
               ? LS_OK
               : ls_fail(LS_ERR_FORMAT, "checkpoint: %s is damaged: it has %lld bytes, but %lld were written", path,
                         (long long)about.st_size, (long long)file->bytes);
}

ls_status ls_manifest_check_sizes(const ls_manifest *manifest, const char *folder) {
    char path[PATH_MAX];
    for (int i = 0; i < manifest->file_count; i++) {
        LS_TRY(check_size(folder, &manifest->files[i], path));
    }
    return LS_OK;
}

static ls_status verify_file(const char *folder, const ls_manifest_file *file) {
    char path[PATH_MAX], checksum[LS_CHECKSUM_TEXT];
    int64_t bytes;
    LS_TRY(check_size(folder, file, path));
    LS_TRY(ls_checksum_file("checkpoint", path, &bytes, checksum));
    return strcmp(checksum, file->checksum) == 0
               ? LS_OK
               : ls_fail(LS_ERR_FORMAT,
                         "checkpoint: %s is damaged: its checksum differs from the checksum of the written file", path);
}

ls_status ls_checkpoint_verify(const char *folder) {
    ls_manifest manifest;
    LS_TRY(ls_manifest_read(folder, &manifest));
    ls_status status = LS_OK;
    for (int i = 0; status == LS_OK && i < manifest.file_count; i++) {
        status = verify_file(folder, &manifest.files[i]);
    }
    ls_manifest_free(&manifest);
    return status;
}

/* Tries the newest checkpoint first. Skips damaged checkpoints with a warning, and keeps this thread's last error.
 * Returns any other failure. */
static ls_status find_newest(const char *folder, const ls_folder_names *names, char path[PATH_MAX]) {
    ls_saved_error before;
    ls_error_save(&before);
    for (int i = names->count - 1; i >= 0; i--) {
        LS_TRY(ls_path_join(path, folder, names->items[i]));
        const ls_status status = ls_checkpoint_verify(path);
        if (status != LS_ERR_FORMAT) {
            return status;
        }
        ls_log_write(LS_LOG_WARNING, "%s; %s", ls_error_message(),
                     i > 0 ? "the previous checkpoint is tried" : "no older checkpoint exists");
        (void)ls_error_put_back(&before);
    }
    path[0] = '\0';
    return LS_OK;
}

ls_status ls_checkpoint_find(const char *folder, char path[PATH_MAX]) {
    path[0] = '\0';
    if (ls_checkpoint_is_one(folder)) {
        LS_TRY(ls_path_join(path, folder, ""));
        return ls_checkpoint_verify(path);
    }
    ls_folder_names names;
    LS_TRY(ls_folder_list(folder, NULL, &names));
    const ls_status status = find_newest(folder, &names, path);
    ls_folder_names_free(&names);
    return status;
}

bool ls_checkpoint_is_readable(const char *folder) {
    ls_manifest manifest;
    const ls_status status = ls_manifest_read(folder, &manifest);
    ls_manifest_free(&manifest);
    return status == LS_OK || status == LS_ERR_UNSUPPORTED;
}
