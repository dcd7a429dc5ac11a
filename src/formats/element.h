/*
 * The types of elements in .npy and safetensors files, and the dtypes of the tensors that hold their values. For some
 * integer types in files, there is no tensor dtype. Such elements are widened to a dtype that holds all values. u64
 * elements are accepted only if their values fit.
 */
#ifndef LS_FORMATS_ELEMENT_H
#define LS_FORMATS_ELEMENT_H

#include <lockstep/tensor.h>

#include "base/status.h"

typedef struct ls_element {
    const char *safetensors; /* name of the element type in safetensors files */
    const char *numpy;       /* name in .npy files, without the byte order; NULL if .npy has no such type */
    ls_dtype dtype;          /* of the tensor */
    bool widened;            /* the tensor's dtype differs from the file's */
    bool is_signed;          /* for widened types */
    uint8_t bytes;           /* in the file */
} ls_element;

/* Returns the type with this name, or NULL if no tensor can hold its values. */
const ls_element *ls_element_of_safetensors(const char *name);
const ls_element *ls_element_of_numpy(const char *name);
/* Returns the type of the elements of a tensor. */
const ls_element *ls_element_of_dtype(ls_dtype dtype);

/*
 * Returns the address, in the memory of a tensor of `count` elements, where the caller must store the file's elements
 * for ls_elements_widen.
 */
char *ls_elements_begin(const ls_element *element, void *memory, int64_t count);
/*
 * Converts the file's elements to the tensor's dtype, in place. A boolean other than 0 becomes 1. Fails with
 * LS_ERR_UNSUPPORTED if a value does not fit. The message begins with `call` and `what`.
 */
ls_status ls_elements_widen(const ls_element *element, void *memory, int64_t count, const char *call, const char *what);

#endif
