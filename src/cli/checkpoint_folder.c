/* Shared by the actions of `lockstep checkpoint`. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/status.h"
#include "cli/checkpoint.h"

int64_t ls_manifest_bytes(const ls_manifest *manifest) {
    int64_t bytes = 0;
    for (int i = 0; i < manifest->file_count; i++) {
        bytes += manifest->files[i].bytes;
    }
    return bytes;
}

ls_status ls_checkpoint_print(json_t *object) {
    const int failed = json_dumpf(object, stdout, JSON_COMPACT);
    json_decref(object);
    putchar('\n');
    return failed == 0 ? LS_OK : ls_fail(LS_ERR_IO, "lockstep checkpoint: cannot print the result");
}

bool ls_checkpoint_is_file(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 && S_ISREG(about.st_mode);
}

ls_status ls_checkpoint_check_folder(const char *path) {
    struct stat about;
    if (stat(path, &about) != 0) {
        return ls_fail(LS_ERR_IO, "lockstep checkpoint: cannot read %s: %s", path, strerror(errno));
    }
    return S_ISDIR(about.st_mode)
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "lockstep checkpoint: %s is a file: a checkpoint is a folder", path);
}

ls_status ls_checkpoint_resolve(const char *path, char folder[PATH_MAX]) {
    LS_TRY(ls_checkpoint_check_folder(path));
    LS_TRY(ls_checkpoint_find(path, folder));
    return folder[0] != '\0'
               ? LS_OK
               : ls_fail(LS_ERR_IO, "lockstep checkpoint: %s is not a checkpoint and contains no complete checkpoint",
                         path);
}
