/* Loads the weights of a model from a file, or from a checkpoint. */
#include <sys/stat.h>

#include "nn/module.h"
#include "train/checkpoint/checkpoint.h"

/* Finds the model's file of the checkpoint in `folder`, or of the newest complete checkpoint in `folder`. */
static ls_status find_weights(const char *call, const char *folder, char path[PATH_MAX]) {
    char found[PATH_MAX], file[LS_FILE_NAME_LIMIT];
    ls_manifest manifest;
    LS_TRY(ls_checkpoint_find(folder, found));
    if (found[0] == '\0') {
        return ls_fail(LS_ERR_IO, "%s: the folder %s is not a checkpoint and contains no complete checkpoint", call,
                       folder);
    }
    LS_TRY(ls_manifest_read(found, &manifest));
    const bool sharded = manifest.divided;
    ls_manifest_free(&manifest);
    ls_part_name(file, "model", sharded ? 0 : -1);
    LS_TRY(ls_path_join(path, found, file));
    return sharded ? ls_fail(LS_ERR_UNSUPPORTED,
                             "%s: the model of %s is sharded over ranks: each rank loads its own file, %s on rank 0",
                             call, found, file)
                   : LS_OK;
}

static ls_status load_from(const char *call, ls_module *module, const char *path,
                           const ls_module_load_options *options) {
    char file[PATH_MAX];
    struct stat about;
    if (path == NULL || stat(path, &about) != 0 || !S_ISDIR(about.st_mode)) {
        return ls_module_load_file(call, module, path, options);
    }
    LS_TRY(find_weights(call, path, file));
    return ls_module_load_file(call, module, file, options);
}

ls_status ls_module_load_with(ls_module *module, const char *path, const ls_module_load_options *options) {
    return load_from("ls_module_load_with", module, path, options);
}

ls_status ls_module_load(ls_module *module, const char *path) {
    return load_from("ls_module_load", module, path, NULL);
}
