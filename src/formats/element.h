/*
 * The types of elements in .npy and safetensors files, and the dtypes of the tensors that hold their values. A tensor
 * has no dtype for some integers of files: these are widened to one that holds all values, u64 only if the values fit.
 */
#ifndef LS_FORMATS_ELEMENT_H
#define LS_FORMATS_ELEMENT_H

#include <lockstep/tensor.h>

#include "base/status.h"

typedef struct ls_element {
    const char *safetensors; /* its name there */
    const char *numpy;       /* its name there, without the byte order; NULL: it has none */
    ls_dtype dtype;          /* of the tensor */
    bool widened;            /* the tensor has another dtype than the file */
    bool is_signed;          /* of widened ones */
    uint8_t bytes;           /* in the file */
} ls_element;

/* The type of that name; NULL: no tensor can hold its values. */
const ls_element *ls_element_of_safetensors(const char *name);
const ls_element *ls_element_of_numpy(const char *name);
/* The type of the elements of a tensor. */
const ls_element *ls_element_of_dtype(ls_dtype dtype);

/* Where in the memory of a tensor of `count` elements its elements of the file are read to, for ls_elements_widen. */
char *ls_elements_begin(const ls_element *element, void *memory, int64_t count);
/*
 * Makes elements of the tensor of those of the file, in place. Fails with LS_ERR_UNSUPPORTED if a value does not fit,
 * with a message that begins with `call` and `what`.
 */
ls_status ls_elements_widen(const ls_element *element, void *memory, int64_t count, const char *call, const char *what);

#endif
