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

/* The bytes of a contiguous tensor. */
size_t ls_tensor_bytes(const ls_tensor *tensor);

/* What ls_safetensors_save writes, into a file that is open. */
ls_status ls_safetensors_write(ls_new_file *file, const ls_named *tensors, int count, const char *const *metadata);

#endif
