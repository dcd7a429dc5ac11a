/* Lists of named tensors, as files of several tensors take and give them. */
#ifndef LS_FORMATS_NAMED_H
#define LS_FORMATS_NAMED_H

#include <lockstep/formats.h>

#include "base/status.h"
#include "formats/file.h"

/* LS_ERR_ARGUMENT where there is no such list, or a tensor in it is missing, not contiguous, without a name, or has the
 * name of another; LS_ERR_STATE where one is gone. */
ls_status ls_named_check(const char *call, const ls_named *tensors, int count);

/* The tensor of that name; NULL when there is none. */
ls_tensor *ls_named_find(const ls_named *tensors, int count, const char *name);

/* A tensor of a file that no tensor here can hold. */
typedef struct ls_refused {
    const char *name; /* in the texts of the file */
    char *reason;
} ls_refused;

/* The tensors of a file: those that were read, which the set owns, and those that were refused. */
typedef struct ls_named_set {
    ls_named *items;
    int count;
    ls_refused *refused;
    int refused_count;
} ls_named_set;

/* Makes room for `count` of each kind. */
ls_status ls_named_set_reserve(const char *call, ls_named_set *set, size_t count);
/* Adds a tensor that was refused, with the thread's present error as the reason. */
ls_status ls_named_set_refuse(const char *call, ls_named_set *set, const char *name);
/* Item `index`; empty if there is none. */
ls_named ls_named_set_at(const ls_named_set *set, int index);
/* The tensor of that name; NULL if there is none, and NULL with LS_ERR_UNSUPPORTED if it was refused. */
ls_tensor *ls_named_set_find(const ls_named_set *set, const char *name);
void ls_named_set_free(ls_named_set *set);

/* The tensors of a safetensors file. */
const ls_named_set *ls_safetensors_set(const ls_safetensors *file);

/* The bytes of a contiguous tensor. */
size_t ls_tensor_bytes(const ls_tensor *tensor);

/* What ls_safetensors_save writes, into a file that is open. */
ls_status ls_safetensors_write(ls_new_file *file, const ls_named *tensors, int count, const char *const *metadata);

#endif
