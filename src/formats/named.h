/* Lists of named tensors: the contents of files with several tensors. */
#ifndef LS_FORMATS_NAMED_H
#define LS_FORMATS_NAMED_H

#include <lockstep/formats.h>

#include "base/status.h"
#include "formats/file.h"

/*
 * Fails with LS_ERR_ARGUMENT if the list is NULL, or if a tensor is NULL, is not contiguous, has no name, or has the
 * same name as another tensor. Fails with LS_ERR_STATE if a tensor was freed.
 */
ls_status ls_named_check(const char *call, const ls_named *tensors, int count);

/* Counts the pairs of metadata (may be NULL). Fails with LS_ERR_ARGUMENT if a key has no value. */
ls_status ls_metadata_count(const char *call, const char *const *metadata, size_t *pairs);

/* Returns the tensor with this name, or NULL. */
ls_tensor *ls_named_find(const ls_named *tensors, int count, const char *name);

/* A tensor of a file, with elements that no dtype of Lockstep can represent. */
typedef struct ls_refused {
    const char *name; /* points into the file's strings */
    char *reason;
} ls_refused;

/* The tensors of a file: tensors that were read, which the set owns, and tensors that were rejected. */
typedef struct ls_named_set {
    ls_named *items;
    int count;
    ls_refused *refused;
    int refused_count;
} ls_named_set;

/* Makes room for `count` tensors of each kind. */
ls_status ls_named_set_reserve(const char *call, ls_named_set *set, size_t count);
/* Adds a rejected tensor. The reason is the thread's current error. */
ls_status ls_named_set_refuse(const char *call, ls_named_set *set, const char *name);
/* Restores the error from before the call that read the set, if tensors were rejected: the call itself succeeded. */
void ls_named_set_forgive(const ls_named_set *set, const ls_saved_error *before);
/* Returns item `index`, or an empty item if the index is out of range. */
ls_named ls_named_set_at(const ls_named_set *set, int index);
/*
 * Returns the tensor with this name. Returns NULL if there is no such tensor, and NULL with LS_ERR_UNSUPPORTED if the
 * tensor was rejected.
 */
ls_tensor *ls_named_set_find(const ls_named_set *set, const char *name);
void ls_named_set_free(ls_named_set *set);

/* Returns the tensors of a safetensors file. */
const ls_named_set *ls_safetensors_set(const ls_safetensors *file);

/*
 * Opens a file, and checks its header and its size, but reads no elements: the tensors of the open file have a shape
 * and a dtype, but no elements.
 */
ls_safetensors *ls_safetensors_open(const char *path);
/*
 * Returns a tensor of the file with its elements: reads the elements if the file is an open file. Otherwise, or if
 * `file` is NULL, the result is `tensor`. Returns ownership of the reference to the caller (ls_tensor_drop). Returns
 * NULL with LS_ERR_UNSUPPORTED if a value cannot be represented.
 */
ls_tensor *ls_safetensors_fetch(const ls_safetensors *file, const ls_tensor *tensor);

/*
 * A file in memory. ls_safetensors_new returns an empty file with room for `count` tensors. ls_safetensors_add borrows
 * the name, and takes ownership of the tensor. ls_safetensors_add_metadata copies the metadata of another
 * file, except keys that the file already has. ls_safetensors_save_file writes the file.
 */
ls_safetensors *ls_safetensors_new(const char *call, size_t count);
void ls_safetensors_add(ls_safetensors *file, const char *name, ls_tensor *tensor);
ls_status ls_safetensors_add_metadata(const char *call, ls_safetensors *to, const ls_safetensors *from);
ls_status ls_safetensors_save_file(const char *path, const ls_safetensors *file);

/* Returns the key of a metadata pair, by its position in the file, and stores its value. Returns NULL after the last
 * pair. Both are borrowed. */
const char *ls_safetensors_metadata_at(const ls_safetensors *file, int index, const char **value);

/* Returns the size of a contiguous tensor in bytes. */
size_t ls_tensor_bytes(const ls_tensor *tensor);

/* Does the work of ls_safetensors_save, but writes into an open file. */
ls_status ls_safetensors_write(ls_new_file *file, const ls_named *tensors, int count, const char *const *metadata);

#endif
