/*
 * NumPy's .npy format, as documented in numpy.lib.format: a magic string, a version, the length of the header, the
 * header (a Python dictionary {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}), and the elements. A .npz file
 * is an archive of .npy files.
 */
#ifndef LS_FORMATS_NPY_H
#define LS_FORMATS_NPY_H

#include "formats/element.h"
#include "formats/file.h"

/* The contents of a header. */
typedef struct ls_npy_header {
    const ls_element *element;
    bool big_endian;
    bool fortran_order; /* the first index varies fastest */
    ls_shape shape;
    size_t bytes; /* of the elements */
} ls_npy_header;

/*
 * Parses `text`, which has `size` bytes and a terminating zero byte. Fails with LS_ERR_FORMAT, or with
 * LS_ERR_UNSUPPORTED for elements that no tensor can hold. Messages begin with the source's call and path.
 */
ls_status ls_npy_parse(const ls_source *source, const char *text, size_t size, ls_npy_header *header);

/*
 * Reads the source to its end as an array on the CPU. The caller owns the result. Returns NULL on failure; the error is
 * LS_ERR_UNSUPPORTED if no tensor can hold the array.
 */
ls_tensor *ls_npy_read_source(ls_source *source);

enum { LS_NPY_HEAD = 512 }; /* enough for a tensor with the largest number of axes */

/*
 * Writes the bytes that precede the elements of `tensor`, and returns their number. Returns 0 with LS_ERR_ARGUMENT for
 * a dtype that NumPy lacks.
 */
size_t ls_npy_head(const char *call, const ls_tensor *tensor, char head[LS_NPY_HEAD]);

#endif
