#include "formats/npy.h"

#include <string.h>

#include "formats/named.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

/* ---- reading ----------------------------------------------------------------------------------------------------- */

enum {
    PART = 1 << 15,      /* bytes per read if the elements are reordered; a multiple of every element width */
    HEADER_LIMIT = 10000 /* NumPy's own */
};

static ls_status fail_amount(const ls_source *source, const ls_npy_header *header, const char *amount) {
    return ls_fail(LS_ERR_FORMAT, "%s: %s: its header, %s of %zu bytes each, declares %s data than the file contains",
                   source->call, source->path, ls_shape_describe(header->shape.ndim, header->shape.size).text,
                   (size_t)header->element->bytes, amount);
}

static ls_status fail_cut(const ls_source *source) {
    return ls_fail(LS_ERR_FORMAT, "%s: %s ends within its header", source->call, source->path);
}

/* Reads the length of the header from the preceding bytes. */
static ls_status read_length(ls_source *source, size_t *length) {
    static const char mark[] = "\x93NUMPY";
    enum { MARK = sizeof mark - 1, FRONT = MARK + 2 };
    unsigned char bytes[FRONT];
    size_t got;
    LS_TRY(ls_source_read(source, bytes, FRONT, &got));
    if (got < MARK || memcmp(bytes, mark, MARK) != 0) {
        return ls_fail(LS_ERR_FORMAT, "%s: %s is not a .npy file: it does not begin with \\x93NUMPY%s", source->call,
                       source->path, got >= 2 && memcmp(bytes, "PK", 2) == 0 ? "; ls_npz_load reads archives" : "");
    }
    if (got < FRONT) {
        return fail_cut(source);
    }
    const unsigned char *version = bytes + MARK;
    if (version[0] < 1 || version[0] > 3 || version[1] != 0) {
        return ls_fail(LS_ERR_FORMAT, "%s: %s has version %d.%d of the format, but only 1.0, 2.0 and 3.0 are supported",
                       source->call, source->path, version[0], version[1]);
    }
    const size_t width = version[0] == 1 ? 2 : 4;
    LS_TRY(ls_source_read(source, bytes, width, &got));
    *length = 0;
    for (size_t i = 0; i < width; i++) {
        *length |= (size_t)bytes[i] << (8 * i);
    }
    return got == width ? LS_OK : fail_cut(source);
}

/* Reads the header. Checks that the file is large enough for the number of elements in the header. */
static ls_status read_header(ls_source *source, ls_npy_header *header) {
    char text[HEADER_LIMIT + 1];
    size_t length = 0, got;
    LS_TRY(read_length(source, &length));
    if (length > HEADER_LIMIT) {
        return ls_fail(LS_ERR_FORMAT, "%s: %s has a header of %zu bytes; at most %d are supported", source->call,
                       source->path, length, HEADER_LIMIT);
    }
    LS_TRY(ls_source_read(source, text, length, &got));
    if (got < length) {
        return fail_cut(source);
    }
    text[length] = '\0';
    LS_TRY(ls_npy_parse(source, text, length, header));
    return header->bytes > ls_source_most(source) ? fail_amount(source, header, "more") : LS_OK;
}

/* Reads elements in Fortran order (first index fastest) and stores them in row-major order. */
static ls_status read_fortran(ls_source *source, const ls_npy_header *header, const ls_tensor *tensor, char *to) {
    const size_t width = header->element->bytes;
    char part[PART];
    int64_t index[LS_MAX_DIMS] = {0};
    size_t got;
    for (size_t at = 0; at < header->bytes; at += got) {
        const size_t left = header->bytes - at;
        LS_TRY(ls_source_read(source, part, left < PART ? left : PART, &got));
        if (got < PART && got < left) {
            return fail_amount(source, header, "more");
        }
        for (size_t from = 0; from < got; from += width) {
            memcpy(to, part + from, width);
            for (int i = 0; i < tensor->ndim; i++) {
                to += (int64_t)width * tensor->stride[i];
                if (++index[i] < tensor->size[i]) {
                    break;
                }
                to -= (int64_t)width * tensor->stride[i] * tensor->size[i];
                index[i] = 0;
            }
        }
    }
    return LS_OK;
}

static ls_status read_in_order(ls_source *source, const ls_npy_header *header, const ls_tensor *tensor, char *to) {
    (void)tensor;
    size_t got;
    LS_TRY(ls_source_read(source, to, header->bytes, &got));
    return got == header->bytes ? LS_OK : fail_amount(source, header, "more");
}

/* Swaps the bytes of each element. */
static void turn_bytes(char *bytes, size_t size, size_t width) {
    for (size_t at = 0; at < size; at += width) {
        for (size_t i = 0; i < width / 2; i++) {
            const char byte = bytes[at + i];
            bytes[at + i] = bytes[at + width - 1 - i];
            bytes[at + width - 1 - i] = byte;
        }
    }
}

/* Reads the elements. The source must end after the last element. */
static ls_status read_elements(ls_source *source, const ls_npy_header *header, ls_tensor *tensor) {
    char more, *bytes = ls_elements_begin(header->element, ls_host_data(tensor), tensor->count);
    size_t got;
    LS_TRY((header->fortran_order ? read_fortran : read_in_order)(source, header, tensor, bytes));
    LS_TRY(ls_source_read(source, &more, 1, &got));
    if (got > 0) {
        return fail_amount(source, header, "less");
    }
    if (header->big_endian) {
        turn_bytes(bytes, header->bytes, header->element->bytes);
    }
    return ls_elements_widen(header->element, ls_host_data(tensor), tensor->count, source->call, source->path);
}

ls_tensor *ls_npy_read_source(ls_source *source) {
    ls_npy_header header;
    if (read_header(source, &header) != LS_OK) {
        return NULL;
    }
    ls_tensor *tensor =
        ls_tensor_new_owned(source->call, &ls_cpu, header.shape.ndim, header.shape.size, header.element->dtype);
    if (tensor != NULL && read_elements(source, &header, tensor) != LS_OK) {
        ls_tensor_drop(tensor);
        return NULL;
    }
    return tensor;
}

ls_tensor *ls_npy_read(const char *path) {
    ls_source source;
    ls_tensor *tensor =
        ls_source_open("ls_npy_read", path, true, &source) == LS_OK ? ls_npy_read_source(&source) : NULL;
    ls_source_close(&source);
    return ls_tensor_give(tensor);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static ls_status write_file(ls_new_file *file, const char *head, size_t size, const ls_tensor *tensor) {
    ls_host_view view;
    LS_TRY(ls_file_write("ls_npy_write", file, head, size));
    LS_TRY(ls_host_view_begin(&view, tensor, LS_HOST_READ));
    return ls_host_view_end(&view, ls_file_write("ls_npy_write", file, view.memory, ls_tensor_bytes(tensor)));
}

ls_status ls_npy_write(const char *path, const ls_tensor *tensor) {
    char head[LS_NPY_HEAD];
    ls_new_file file;
    if (tensor == NULL || !ls_tensor_is_here("ls_npy_write", tensor)) {
        return tensor == NULL ? ls_fail_missing("ls_npy_write: the tensor") : ls_error_status();
    }
    if (!ls_is_contiguous(tensor)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_npy_write: %s: the tensor is not contiguous; use ls_contiguous",
                       path != NULL ? path : "NULL");
    }
    const size_t size = ls_npy_head("ls_npy_write", tensor, head);
    if (size == 0) {
        return LS_ERR_ARGUMENT;
    }
    LS_TRY(ls_file_create("ls_npy_write", path, &file));
    return ls_file_commit("ls_npy_write", &file, write_file(&file, head, size, tensor));
}
