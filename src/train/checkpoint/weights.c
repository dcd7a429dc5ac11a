/* Loads the weights of a model from a file, or from a checkpoint. */
#include <sys/stat.h>

#include "nn/module.h"
#include "parallel/parallel.h"
#include "train/checkpoint/checkpoint.h"

/*
 * Loads a model whose sharding differs from the sharding in the checkpoint, from the parts in all files. Also reads
 * tensors that the module lacks: the load then rejects them, unless the options allow them.
 */
static ls_status load_parts(const char *call, ls_module *module, const char *found, const ls_part_layout *saved,
                            const ls_module_load_options *options) {
    ls_safetensors *joined = ls_part_layout_join_model(saved, found, module);
    const ls_status status =
        joined != NULL ? ls_module_load_from(call, module, found, joined, options) : ls_error_status();
    ls_safetensors_free(joined);
    return status;
}

static ls_status load_weights(const char *call, ls_module *module, const char *found, const ls_manifest *manifest,
                              const ls_module_load_options *options) {
    char path[PATH_MAX];
    ls_part_layout whole = {0};
    if (manifest->divided && manifest->layout.count == 0) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "%s: the model of %s is sharded over ranks, and has no list of its parts: each rank loads its "
                       "own file, model-0000.safetensors on rank 0",
                       call, found);
    }
    if (manifest->divided) {
        return load_parts(call, module, found, &manifest->layout, options);
    }
    if (!ls_model_is_divided(module)) {
        LS_TRY(ls_path_join(path, found, LS_MODEL_NAME ".safetensors"));
        return ls_module_load_file(call, module, path, options);
    }
    ls_status status = ls_part_layout_add_file(&whole, found, LS_MODEL_NAME, -1);
    status = status == LS_OK ? load_parts(call, module, found, &whole, options) : status;
    ls_part_layout_free(&whole);
    return status;
}

/* Loads from the checkpoint at `folder`, or from the newest complete checkpoint in `folder`. */
static ls_status load_checkpoint(const char *call, ls_module *module, const char *folder,
                                 const ls_module_load_options *options) {
    char found[PATH_MAX];
    ls_manifest manifest;
    LS_TRY(ls_checkpoint_find(folder, found));
    if (found[0] == '\0') {
        return ls_fail(LS_ERR_IO, "%s: the folder %s is not a checkpoint and contains no complete checkpoint", call,
                       folder);
    }
    if (!ls_module_list(module)) {
        return ls_error_status();
    }
    LS_TRY(ls_manifest_read(found, &manifest));
    const ls_status status = load_weights(call, module, found, &manifest, options);
    ls_manifest_free(&manifest);
    return status;
}

static ls_status load_from(const char *call, ls_module *module, const char *path,
                           const ls_module_load_options *options) {
    struct stat about;
    if (module == NULL || path == NULL || stat(path, &about) != 0 || !S_ISDIR(about.st_mode)) {
        return ls_module_load_file(call, module, path, options);
    }
    return load_checkpoint(call, module, path, options);
}

ls_status ls_module_load_with(ls_module *module, const char *path, const ls_module_load_options *options) {
    return load_from("ls_module_load_with", module, path, options);
}

ls_status ls_module_load(ls_module *module, const char *path) {
    return load_from("ls_module_load", module, path, NULL);
}
