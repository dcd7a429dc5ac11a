/*
 * NumPy's .npy format, as its documentation (numpy.lib.format) describes it: a mark, a version, the length of the
 * header, the header, which is a Python dictionary {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}, and the
 * elements. An archive of them is .npz.
 */
#ifndef LS_FORMATS_NPY_H
#define LS_FORMATS_NPY_H

#include "formats/element.h"
#include "formats/file.h"

/* What a header says. */
typedef struct ls_npy_header {
    const ls_element *element;
    bool big_endian;
    bool fortran_order; /* the first index moves fastest */
    ls_shape shape;
    size_t bytes; /* of the elements */
} ls_npy_header;

/* Reads `text`, of `size` bytes with a zero byte behind them. LS_ERR_FORMAT, or LS_ERR_UNSUPPORTED for elements that no
 * tensor can hold, beginning with the source's call and path. */
ls_status ls_npy_parse(const ls_source *source, const char *text, size_t size, ls_npy_header *header);

/* The array that the source gives, up to its end: a reference of the caller's, on the CPU; NULL on failure, with
 * LS_ERR_UNSUPPORTED if no tensor can hold it. */
ls_tensor *ls_npy_read_source(ls_source *source);

enum { LS_NPY_HEAD = 512 }; /* no more for as many axes as a tensor has */

/* Writes what comes before the elements of `tensor`; returns its size, 0 with LS_ERR_ARGUMENT for a dtype that NumPy
 * does not have. */
size_t ls_npy_head(const char *call, const ls_tensor *tensor, char head[LS_NPY_HEAD]);

#endif
