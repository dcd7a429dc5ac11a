/*
 * Models in safetensors files. The format has one name per tensor. A shared tensor is therefore saved under its first
 * name, and a metadata pair maps each additional name to the first name: "decoder.weight": "encoder.weight". PyTorch's
 * safetensors.torch.save_model writes the same pairs. The option .nan_is_mean of ls_nn_standardize_with is saved as a
 * pair with the name of the module's buffer "mean": "0.mean": "nan_is_mean".
 */
#include <lockstep/formats.h>

#include <string.h>

#include "autograd/op.h"
#include "base/memory.h"
#include "formats/named.h"
#include "nn/layers.h"
#include "nn/module.h"

static const char nan_is_mean[] = "nan_is_mean";

/* Parameters first, then buffers. */
static const ls_named_tensor *item(const ls_module *module, int index) {
    const int parameters = module->parameters.count;
    return index < parameters ? &module->parameters.items[index] : &module->buffers.items[index - parameters];
}

static int item_count(const ls_module *module) {
    return ls_module_parameter_count(module) + ls_module_buffer_count(module);
}

/* Writes a metadata pair, with the name of a tensor as its key, to `pair`. */
static ls_status add_pair(const char *const *metadata, const char *key, const char *value, const char **pair) {
    for (; metadata != NULL && metadata[0] != NULL; metadata += 2) {
        if (strcmp(metadata[0], key) == 0) {
            return ls_fail(LS_ERR_ARGUMENT,
                           "ls_module_save: the metadata cannot have the key %s: it is the name of a parameter or "
                           "buffer",
                           key);
        }
    }
    pair[0] = key;
    pair[1] = value;
    return LS_OK;
}

/* Returns whether the tensor is the mean of a module created by ls_nn_standardize with this value of .nan_is_mean. */
static bool is_mean(const ls_module *module, const ls_tensor *tensor, bool skips_nan) {
    const ls_module *standardize = ls_standardize_of_mean(module, tensor);
    return standardize != NULL && ls_standardize_skips_nan(standardize) == skips_nan;
}

/* Lists the tensors, the `given` pairs of metadata, and the pairs of the model. */
static ls_status list(const ls_module *module, const char *const *metadata, size_t given, ls_saved *saved) {
    for (int i = 0; i < saved->count; i++) {
        saved->tensors[i] = (ls_named){.name = item(module, i)->name, .tensor = item(module, i)->tensor};
    }
    if (given > 0) {
        memcpy(saved->metadata, metadata, 2 * given * sizeof *saved->metadata);
    }
    const char **pair = saved->metadata + 2 * given;
    for (int i = 0; i < module->aliases.count; i++, pair += 2) {
        const ls_named_tensor *alias = &module->aliases.items[i];
        LS_TRY(add_pair(metadata, alias->name, ls_module_name_of(module, alias->tensor), pair));
    }
    for (int i = 0; i < module->buffers.count; i++) {
        const ls_named_tensor *buffer = &module->buffers.items[i];
        if (is_mean(module, buffer->tensor, true)) {
            LS_TRY(add_pair(metadata, buffer->name, nan_is_mean, pair));
            pair += 2;
        }
    }
    return LS_OK;
}

void ls_saved_free(ls_saved *saved) {
    ls_free(saved->tensors);
    ls_free(saved->metadata);
    *saved = (ls_saved){0};
}

ls_status ls_module_list_saved(const ls_module *module, const char *const *metadata, ls_saved *saved) {
    *saved = (ls_saved){0};
    if (module == NULL) {
        return ls_fail_missing("ls_module_save: the module");
    }
    size_t given = 0;
    LS_TRY(ls_metadata_count("ls_module_save", metadata, &given));
    LS_TRY(ls_module_check_synchronized("ls_module_save", module));
    if (!ls_module_list((ls_module *)module)) {
        return ls_error_status();
    }
    if (ls_module_has_grown(module)) {
        return ls_fail(LS_ERR_STATE,
                       "ls_module_save: a layer was added to the model after ls_data_parallel, ls_outer_new or a "
                       "recomputed forward pass (ls_recompute), and would be missing in the file: add all layers "
                       "first");
    }
    saved->count = item_count(module);
    const size_t pairs = given + (size_t)module->aliases.count + (size_t)module->buffers.count; /* at most */
    saved->tensors = ls_allocate_zeroed((size_t)saved->count, sizeof *saved->tensors);
    saved->metadata = ls_allocate_zeroed(2 * pairs + 1, sizeof *saved->metadata);
    const ls_status status = saved->tensors != NULL && saved->metadata != NULL
                                 ? list(module, metadata, given, saved)
                                 : ls_fail_memory("ls_module_save", (size_t)saved->count * sizeof *saved->tensors);
    if (status != LS_OK) {
        ls_saved_free(saved);
    }
    return status;
}

ls_status ls_module_save(const ls_module *module, const char *path, const char *const *metadata) {
    ls_saved saved;
    LS_TRY(ls_module_list_saved(module, metadata, &saved));
    const ls_status status =
        ls_safetensors_save(path, saved.tensors, saved.count, saved.metadata[0] != NULL ? saved.metadata : NULL);
    ls_saved_free(&saved);
    return status;
}

/* Returns the tensor with this name, which may be an additional name. */
static const ls_tensor *find_saved(const ls_safetensors *file, const char *name) {
    const ls_tensor *saved = ls_safetensors_find(file, name);
    return saved != NULL ? saved : ls_safetensors_find(file, ls_safetensors_metadata(file, name));
}

/* Returns the file's tensor for the model's tensor, under any of its names. */
static const ls_tensor *find_any(const ls_module *module, const ls_safetensors *file, const ls_named_tensor *own) {
    const ls_tensor *saved = find_saved(file, own->name);
    for (int i = 0; i < module->aliases.count && saved == NULL; i++) {
        const ls_named_tensor *alias = &module->aliases.items[i];
        saved = alias->tensor == own->tensor ? find_saved(file, alias->name) : NULL;
    }
    return saved;
}

/* Sets *equal to whether two tensors of the file are equal. */
static ls_status compare(const ls_module_loading *load, const ls_tensor *saved, const ls_tensor *other, bool *equal) {
    if (saved == other) {
        return LS_OK;
    }
    ls_tensor *a = ls_safetensors_fetch(load->file, saved);
    ls_tensor *b = a != NULL ? ls_safetensors_fetch(load->file, other) : NULL;
    const uint32_t errors = ls_error_count;
    *equal = b != NULL && ls_equal(a, b);
    const ls_status status = b == NULL || ls_error_count != errors ? ls_error_status() : LS_OK;
    ls_tensor_drop(a);
    ls_tensor_drop(b);
    return status;
}

/* For a shared tensor, a file may contain a tensor under each name if all these tensors are equal. */
static ls_status check_aliases(const ls_module_loading *load) {
    const ls_module *module = load->module;
    for (int i = 0; i < module->aliases.count; i++) {
        const ls_named_tensor *alias = &module->aliases.items[i];
        const char *name = ls_module_name_of(module, alias->tensor);
        const ls_named_tensor own = {.name = (char *)name, .tensor = alias->tensor};
        const ls_tensor *saved = find_saved(load->file, alias->name);
        bool equal = true;
        LS_TRY(saved != NULL ? compare(load, saved, find_any(module, load->file, &own), &equal) : LS_OK);
        if (!equal) {
            return ls_fail(LS_ERR_FORMAT, "%s: %s: %s and %s are the same tensor in the model, but differ in the file",
                           load->call, load->path, name, alias->name);
        }
    }
    return LS_OK;
}

/*
 * Returns whether the tensor is the counter that PyTorch saves with the statistics of a BatchNorm. By default, no
 * result depends on this counter.
 */
static bool is_counter(const ls_module *module, ls_named saved) {
    static const char counter[] = "num_batches_tracked";
    static const char statistic[] = "running_mean";
    const size_t length = strlen(saved.name);
    const size_t prefix = length - (sizeof counter - 1);
    if (length < sizeof counter - 1 || strcmp(saved.name + prefix, counter) != 0 || ls_ndim(saved.tensor) != 0 ||
        ls_dtype_of(saved.tensor) != LS_I64) {
        return false;
    }
    for (int i = 0; i < ls_module_buffer_count(module); i++) {
        const char *name = ls_module_buffer_name(module, i);
        if (strncmp(name, saved.name, prefix) == 0 && strcmp(name + prefix, statistic) == 0) {
            return true;
        }
    }
    return false;
}

/* Returns whether the model has no tensor with this name. */
static bool is_extra(const ls_module *module, ls_named saved) {
    return ls_module_find(module, saved.name) == NULL && !is_counter(module, saved);
}

/* Returns the file's tensor if its shape differs from the shape in the model. */
static const ls_tensor *mismatch(const ls_module_loading *load, const ls_named_tensor *own) {
    const ls_tensor *saved = find_any(load->module, load->file, own);
    return saved != NULL && !ls_tensor_same_shape(saved, own->tensor) ? saved : NULL;
}

/* Reports names that are missing in the file or in the model, and names with different shapes. */
static void report(const ls_module_loading *load, const ls_module_load_options *options) {
    const ls_module *module = load->module;
    const ls_safetensors *file = load->file;
    for (int i = 0; options->on_missing != NULL && i < item_count(module); i++) {
        if (find_any(module, file, item(module, i)) == NULL) {
            options->on_missing(item(module, i)->name, options->user);
        }
    }
    for (int i = 0; options->on_mismatched != NULL && i < item_count(module); i++) {
        if (mismatch(load, item(module, i)) != NULL) {
            options->on_mismatched(item(module, i)->name, options->user);
        }
    }
    for (int i = 0; options->on_extra != NULL && i < ls_safetensors_count(file); i++) {
        if (is_extra(module, ls_safetensors_at(file, i))) {
            options->on_extra(ls_safetensors_at(file, i).name, options->user);
        }
    }
    const ls_named_set *all = ls_safetensors_set(file);
    for (int i = 0; options->on_extra != NULL && i < all->refused_count; i++) {
        if (ls_module_find(module, all->refused[i].name) == NULL) {
            options->on_extra(all->refused[i].name, options->user);
        }
    }
}

/* Fails with the first missing or extra name that the options do not allow. */
static ls_status check_names(const ls_module_loading *load, const ls_module_load_options *options) {
    const ls_module *module = load->module;
    const ls_safetensors *file = load->file;
    const char *missing = NULL, *extra = NULL;
    for (int i = item_count(module) - 1; i >= 0; i--) {
        missing = find_any(module, file, item(module, i)) == NULL ? item(module, i)->name : missing;
    }
    for (int i = ls_safetensors_count(file) - 1; i >= 0; i--) {
        extra = is_extra(module, ls_safetensors_at(file, i)) ? ls_safetensors_at(file, i).name : extra;
    }
    const ls_named_set *all = ls_safetensors_set(file);
    for (int i = 0; i < all->refused_count; i++) {
        const char *name = all->refused[i].name;
        if (ls_module_find(module, name) != NULL) {
            return ls_fail(LS_ERR_UNSUPPORTED, "%s: %s", load->call, all->refused[i].reason);
        }
        extra = name;
    }
    if (missing != NULL && !options->allow_missing) {
        return ls_fail(LS_ERR_FORMAT, "%s: %s has no tensor %s", load->call, load->path, missing);
    }
    return extra == NULL || options->allow_extra
               ? LS_OK
               : ls_fail(LS_ERR_FORMAT, "%s: %s has a tensor %s that the model does not have", load->call, load->path,
                         extra);
}

static ls_status check_shapes(const ls_module_loading *load) {
    for (int i = 0; i < item_count(load->module); i++) {
        const ls_named_tensor *own = item(load->module, i);
        const ls_tensor *saved = mismatch(load, own);
        if (saved != NULL) {
            return ls_fail(LS_ERR_SHAPE, "%s: %s: %s is %s in the file and %s in the model", load->call, load->path,
                           own->name, LS_SHAPE_TEXT(saved), LS_SHAPE_TEXT(own->tensor));
        }
    }
    return LS_OK;
}

/* Returns whether the file maps the name, or the first name of the same tensor, to nan_is_mean. */
static bool is_saved_with_option(const ls_safetensors *file, const char *name) {
    const char *saved = ls_safetensors_metadata(file, name);
    const char *first = saved != NULL ? ls_safetensors_metadata(file, saved) : NULL;
    return (saved != NULL && strcmp(saved, nan_is_mean) == 0) || (first != NULL && strcmp(first, nan_is_mean) == 0);
}

/* Fails if a module of the file replaces NaN, and the same module of the model would return NaN. */
static ls_status check_options(const ls_module_loading *load, const ls_named_list *buffers) {
    for (int i = 0; i < buffers->count; i++) {
        const ls_named_tensor *buffer = &buffers->items[i];
        if (is_saved_with_option(load->file, buffer->name) && is_mean(load->module, buffer->tensor, false)) {
            return ls_fail(
                LS_ERR_FORMAT,
                "%s: %s: in the file, the layer of %s replaces NaN with the mean, but in the model it does not; "
                "create it with ls_nn_standardize_with and .nan_is_mean = true",
                load->call, load->path, buffer->name);
        }
    }
    return LS_OK;
}

/* Fails before the first copy if an element of a tensor is missing, for example on the other ranks (.zero = 3), or if a
 * tensor cannot be changed. */
static ls_status check_tensors(const ls_module_loading *load) {
    ls_status status = LS_OK;
    const bool before = ls_no_grad(true);
    for (int i = 0; status == LS_OK && i < item_count(load->module); i++) {
        const ls_named_tensor *own = item(load->module, i);
        const ls_tensor *saved = find_any(load->module, load->file, own);
        if (load->gathers && ls_tensor_is_gone(own->tensor)) {
            continue;
        }
        if (!ls_tensor_is_here(load->call, own->tensor)) {
            status = ls_error_status();
        } else if (saved != NULL && ls_tensor_same_shape(saved, own->tensor)) {
            status = ls_tensor_check_changeable(load->call, own->tensor);
            status = status == LS_OK ? LS_OK : ls_fail(status, "%s (%s of the model)", ls_error_message(), own->name);
        }
    }
    ls_no_grad(before);
    return status;
}

static ls_status copy_saved(const ls_module_loading *load, ls_tensor *own, const ls_tensor *saved) {
    ls_tensor *elements = ls_safetensors_fetch(load->file, saved);
    if (elements == NULL) {
        return ls_error_status();
    }
    if (own->leaf != NULL) {
        own->leaf->loads++;
    }
    const bool before = ls_no_grad(true);
    const ls_status status = ls_copy_into(own, elements);
    ls_no_grad(before);
    ls_tensor_drop(elements);
    return status;
}

ls_status ls_module_load_one(const ls_module_loading *load, int index) {
    const ls_named_tensor *own = item(load->module, index);
    const ls_tensor *saved = find_any(load->module, load->file, own);
    if (saved == NULL) {
        return LS_OK;
    }
    if (ls_tensor_same_shape(saved, own->tensor)) {
        return copy_saved(load, own->tensor, saved);
    }
    ls_log_write(LS_LOG_WARNING, "%s: %s: %s is %s in the file and %s in the model; the model keeps its values",
                 load->call, load->path, own->name, LS_SHAPE_TEXT(saved), LS_SHAPE_TEXT(own->tensor));
    return LS_OK;
}

ls_status ls_module_load_check(const ls_module_loading *load, const ls_module_load_options *options) {
    static const ls_module_load_options defaults;
    options = options != NULL ? options : &defaults;
    report(load, options);
    LS_TRY(check_names(load, options));
    LS_TRY(!options->skip_mismatched ? check_shapes(load) : LS_OK);
    LS_TRY(check_aliases(load));
    LS_TRY(check_options(load, &load->module->buffers));
    LS_TRY(check_options(load, &load->module->aliases));
    return check_tensors(load);
}

ls_status ls_module_load_from(const char *call, ls_module *module, const char *path, const ls_safetensors *file,
                              const ls_module_load_options *options) {
    const ls_module_loading load = {.call = call, .path = path, .module = module, .file = file};
    LS_TRY(ls_module_load_check(&load, options));
    for (int i = 0; i < item_count(module); i++) {
        LS_TRY(ls_module_load_one(&load, i));
    }
    return LS_OK;
}

ls_status ls_module_load_file(const char *call, ls_module *module, const char *path,
                              const ls_module_load_options *options) {
    if (module == NULL) {
        return ls_fail_missing("%s: the module", call);
    }
    if (!ls_module_list(module)) {
        return ls_error_status();
    }
    ls_safetensors *file = ls_safetensors_load(path);
    if (file == NULL) {
        return ls_error_status();
    }
    const ls_status status = ls_module_load_from(call, module, path, file, options);
    ls_safetensors_free(file);
    return status;
}
