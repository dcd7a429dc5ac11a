/* Lists of named copies of tensors: the contents of one file in a checkpoint. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tensor/device.h"
#include "train/checkpoint/checkpoint.h"

void ls_copies_free(ls_copies *copies) {
    for (int i = 0; i < copies->count; i++) {
        ls_tensor_drop(copies->items[i].tensor);
        ls_free((void *)copies->items[i].name);
    }
    for (char **text = copies->metadata; text != NULL && *text != NULL; text++) {
        ls_free(*text);
    }
    ls_free(copies->items);
    ls_free(copies->metadata);
    *copies = (ls_copies){0};
}

/* Returns a dense copy in host memory. */
static ls_tensor *copy_of(const ls_tensor *tensor) {
    ls_tensor *dense = ls_tensor_dense_on_host("checkpoint", tensor, ls_dtype_of(tensor));
    ls_tensor *copy = dense != NULL
                          ? ls_tensor_new_owned("checkpoint", &ls_cpu, dense->ndim, dense->size, (ls_dtype)dense->dtype)
                          : NULL;
    if (copy != NULL && copy->count > 0) {
        memcpy(ls_host_data(copy), ls_host_data(dense), (size_t)copy->count * ls_dtype_size((ls_dtype)copy->dtype));
    }
    ls_tensor_drop(dense);
    return copy;
}

static ls_status add_copy(ls_copies *copies, const char *prefix, const ls_named *named) {
    const size_t size = strlen(prefix) + strlen(named->name) + 1;
    ls_named *items = ls_grow(copies->items, (size_t)copies->count, sizeof *items);
    copies->items = items != NULL ? items : copies->items;
    char *name = items != NULL ? ls_allocate(size) : NULL;
    if (name == NULL) {
        return ls_fail_memory("checkpoint", size);
    }
    snprintf(name, size, "%s%s", prefix, named->name);
    ls_tensor *copy = copy_of(named->tensor);
    if (copy == NULL) {
        ls_free(name);
        return ls_error_status();
    }
    copies->items[copies->count++] = (ls_named){.name = name, .tensor = copy};
    return LS_OK;
}

ls_status ls_copies_add(ls_copies *copies, const char *prefix, const ls_named *named, int count) {
    if (named == NULL && count > 0) {
        return ls_fail(LS_ERR_ARGUMENT, "checkpoint: the state of \"%s\" is NULL with a count of %d", prefix, count);
    }
    for (int i = 0; i < count; i++) {
        if (named[i].name == NULL || named[i].tensor == NULL) {
            return ls_fail(LS_ERR_ARGUMENT, "checkpoint: the %s of item %d of the state of \"%s\" is NULL",
                           named[i].name == NULL ? "name" : "tensor", i, prefix);
        }
        LS_TRY(add_copy(copies, prefix, &named[i]));
    }
    return LS_OK;
}

ls_status ls_copies_add_numbers(ls_copies *copies, const char *name, ls_dtype dtype, int64_t count, void *numbers) {
    const ls_shape shape = ls_shape_make(1, &count);
    ls_tensor *over = ls_tensor_over(&ls_cpu, &shape, dtype, numbers);
    if (over == NULL) {
        return ls_fail_memory("checkpoint", sizeof *over);
    }
    const ls_status status = add_copy(copies, "", &(ls_named){.name = name, .tensor = over});
    ls_tensor_drop(over);
    return status;
}

ls_status ls_copies_add_metadata(ls_copies *copies, const char *const *metadata) {
    size_t count = 0;
    while (metadata[count] != NULL) {
        count++;
    }
    copies->metadata = ls_allocate_zeroed(count + 1, sizeof *copies->metadata);
    bool whole = copies->metadata != NULL;
    for (size_t i = 0; whole && i < count; i++) {
        copies->metadata[i] = ls_duplicate_string(metadata[i]);
        whole = copies->metadata[i] != NULL;
    }
    return whole ? LS_OK : ls_fail_memory("checkpoint", count * sizeof *metadata);
}
