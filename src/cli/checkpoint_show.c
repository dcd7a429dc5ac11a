/* `lockstep checkpoint show`: prints the manifest, and the tensors and the metadata of the model's files, or the
 * tensors and the metadata of one file. */
#include <math.h>
#include <stdio.h>

#include "base/status.h"
#include "cli/checkpoint.h"
#include "cli/cli.h"
#include "formats/named.h"
#include "tensor/tensor.h"

typedef void tensor_function(const char *file, ls_named named, void *user);
typedef void file_function(const char *name, const ls_safetensors *file, void *user);

/* Calls `each` for the tensors of a file. `name` is for `each`. */
static void for_tensors_of(const ls_safetensors *file, const char *name, tensor_function *each, void *user) {
    for (int i = 0; i < ls_safetensors_count(file); i++) {
        each(name, ls_safetensors_at(file, i), user);
    }
}

/* Returns the metadata of a file as a JSON object. */
static json_t *metadata_of(const ls_safetensors *file) {
    json_t *metadata = json_object();
    const char *key, *value;
    for (int i = 0; (key = ls_safetensors_metadata_at(file, i, &value)) != NULL; i++) {
        json_object_set_new(metadata, key, json_string(value));
    }
    return metadata;
}

/* Calls `each` for the model's files. */
static ls_status for_files(const char *folder, const ls_manifest *manifest, file_function *each, void *user) {
    for (int rank = 0; rank < (manifest->divided ? manifest->world_size : 1); rank++) {
        char name[LS_FILE_NAME_LIMIT], path[PATH_MAX];
        ls_part_name(name, LS_MODEL_NAME, manifest->divided ? rank : -1);
        LS_TRY(ls_path_join(path, folder, name));
        ls_safetensors *file = ls_safetensors_load(path);
        if (file == NULL) {
            return ls_error_status();
        }
        each(name, file, user);
        ls_safetensors_free(file);
    }
    return LS_OK;
}

/* ---- for people -------------------------------------------------------------------------------------------------- */

/* `file` is NULL if all tensors are in one file. */
static void print_tensor(const char *file, ls_named named, void *user) {
    (void)user;
    printf("  %-28s %-5s ", named.name, ls_dtype_name(ls_dtype_of(named.tensor)));
    if (file != NULL) {
        printf("%-20s %s\n", LS_SHAPE_TEXT(named.tensor), file);
    } else {
        puts(LS_SHAPE_TEXT(named.tensor));
    }
}

/* Prints the tensors of one of the model's files, and adds its metadata to `user`, an object with the files as keys. */
static void print_file(const char *name, const ls_safetensors *file, void *user) {
    for_tensors_of(file, name, print_tensor, NULL);
    json_object_set_new(user, name, metadata_of(file));
}

/* `file` is NULL if all tensors are in one file. */
static void print_metadata(const char *file, json_t *metadata) {
    const char *key;
    json_t *value;
    if (json_object_size(metadata) > 0) {
        printf("metadata%s%s\n", file != NULL ? " of " : "", file != NULL ? file : "");
    }
    json_object_foreach(metadata, key, value) {
        printf("  %-28s %s\n", key, json_string_value(value));
    }
}

static void print_place(const ls_manifest *manifest) {
    printf("written by     Lockstep %s, %d rank%s%s\n", manifest->version, manifest->world_size,
           manifest->world_size == 1 ? "" : "s", manifest->divided ? ", over which the model is sharded" : "");
    printf("epochs run     %lld\n", (long long)manifest->epochs_run);
    printf("steps          %lld\n", (long long)manifest->step);
    if (manifest->continues) {
        printf("in the epoch   after %lld batches\n", (long long)manifest->batch);
    }
    if (manifest->stopped) {
        printf("stopped        by a hook\n");
    }
    if (manifest->loader_epoch >= 0) {
        printf("loader         epoch %lld, batch %lld", (long long)manifest->loader_epoch,
               (long long)manifest->loader_batch);
        if (manifest->loader_batches >= 0) {
            printf(" of %lld", (long long)manifest->loader_batches);
        }
        if (manifest->global_batch > 0) {
            printf(", of %lld samples", (long long)manifest->global_batch);
        }
        printf("\n");
    }
}

static ls_status show_text(const char *folder, const ls_manifest *manifest) {
    printf("%s\n", folder);
    print_place(manifest);
    printf("results        %s\n", manifest->latest.count == 0 ? "none yet" : "");
    for (int i = 0; i < manifest->latest.count; i++) {
        printf("  %-28s %.9g\n", manifest->latest.values[i].name, manifest->latest.values[i].value);
    }
    printf("files          %s\n", ls_size_describe(ls_manifest_bytes(manifest)).text);
    for (int i = 0; i < manifest->file_count; i++) {
        printf("  %-28s %-10s %.16s...\n", manifest->files[i].name, ls_size_describe(manifest->files[i].bytes).text,
               manifest->files[i].checksum);
    }
    printf("parameters and buffers\n");
    json_t *all = json_object();
    const ls_status status = for_files(folder, manifest, print_file, all);
    const char *file;
    json_t *metadata;
    if (status == LS_OK) {
        json_object_foreach(all, file, metadata) {
            print_metadata(manifest->divided ? file : NULL, metadata);
        }
    }
    json_decref(all);
    return status;
}

/* ---- for programs ------------------------------------------------------------------------------------------------ */

static void add_tensor(const char *file, ls_named named, void *user) {
    json_t *shape = json_array();
    for (int i = 0; i < ls_ndim(named.tensor); i++) {
        json_array_append_new(shape, json_integer(ls_size(named.tensor, i)));
    }
    json_array_append_new(user, json_pack("{s:s, s:s, s:s, s:o}", "file", file, "name", named.name, "dtype",
                                          ls_dtype_name(ls_dtype_of(named.tensor)), "shape", shape));
}

typedef struct contents {
    json_t *tensors, *metadata; /* metadata: with the files as keys */
} contents;

static void add_file(const char *name, const ls_safetensors *file, void *user) {
    const contents *all = user;
    for_tensors_of(file, name, add_tensor, all->tensors);
    json_object_set_new(all->metadata, name, metadata_of(file));
}

static json_t *files_of(const ls_manifest *manifest) {
    json_t *files = json_array();
    for (int i = 0; i < manifest->file_count; i++) {
        const ls_manifest_file *file = &manifest->files[i];
        json_array_append_new(files, json_pack("{s:s, s:I, s:s}", "name", file->name, "bytes", (json_int_t)file->bytes,
                                               "xxh3", file->checksum));
    }
    return files;
}

static json_t *results_of(const ls_manifest *manifest) {
    json_t *results = json_object();
    for (int i = 0; i < manifest->latest.count; i++) {
        const double value = manifest->latest.values[i].value;
        json_object_set_new(results, manifest->latest.values[i].name, isfinite(value) ? json_real(value) : json_null());
    }
    return results;
}

static ls_status show_json(const char *folder, const ls_manifest *manifest) {
    contents all = {json_array(), json_object()};
    const ls_status status = for_files(folder, manifest, add_file, &all);
    if (status != LS_OK) {
        json_decref(all.tensors);
        json_decref(all.metadata);
        return status;
    }
    if (!manifest->divided) { /* one file */
        json_t *metadata = json_incref(json_object_iter_value(json_object_iter(all.metadata)));
        json_decref(all.metadata);
        all.metadata = metadata;
    }
    return ls_checkpoint_print(
        json_pack("{s:s, s:s, s:i, s:b, s:I, s:I, s:I, s:b, s:b, s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "path", folder,
                  "version", manifest->version, "world_size", manifest->world_size, "divided", manifest->divided,
                  "epochs_run", (json_int_t)manifest->epochs_run, "step", (json_int_t)manifest->step, "batch",
                  (json_int_t)manifest->batch, "continues", manifest->continues, "stopped", manifest->stopped,
                  "loader_epoch", (json_int_t)manifest->loader_epoch, "loader_batch",
                  (json_int_t)manifest->loader_batch, "epochs", (json_int_t)manifest->history.count, "latest",
                  results_of(manifest), "files", files_of(manifest), "tensors", all.tensors, "metadata", all.metadata));
}

/* ---- one file ---------------------------------------------------------------------------------------------------- */

static ls_status show_file_json(const char *path, const ls_safetensors *file) {
    json_t *tensors = json_array();
    for_tensors_of(file, path, add_tensor, tensors);
    return ls_checkpoint_print(
        json_pack("{s:s, s:o, s:o}", "path", path, "tensors", tensors, "metadata", metadata_of(file)));
}

static ls_status show_file_text(const ls_safetensors *file) {
    json_t *metadata = metadata_of(file);
    for_tensors_of(file, NULL, print_tensor, NULL);
    print_metadata(NULL, metadata);
    json_decref(metadata);
    return LS_OK;
}

static ls_status show_file(const ls_checkpoint_words *words) {
    const char *path = words->paths[0];
    ls_safetensors *file = ls_safetensors_load(path);
    if (file == NULL) {
        return ls_error_status();
    }
    const ls_status status = words->json ? show_file_json(path, file) : show_file_text(file);
    ls_safetensors_free(file);
    return status;
}

ls_status ls_checkpoint_show(const ls_checkpoint_words *words) {
    char folder[PATH_MAX];
    ls_manifest manifest;
    if (ls_checkpoint_is_file(words->paths[0])) {
        return show_file(words);
    }
    LS_TRY(ls_checkpoint_resolve(words->paths[0], folder));
    LS_TRY(ls_manifest_read(folder, &manifest));
    const ls_status status = words->json ? show_json(folder, &manifest) : show_text(folder, &manifest);
    ls_manifest_free(&manifest);
    return status;
}
