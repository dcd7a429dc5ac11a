/* IDX: two zero bytes, a type code, the number of axes, the size of each axis as a big-endian 32-bit integer, then
 * big-endian elements. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/memory.h"
#include "formats/file.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

enum { PART = 1 << 15 }; /* bytes per read, a multiple of every element width */

/* For each type code, the stored element type and the resulting dtype. */
typedef struct idx_type {
    unsigned char code;
    size_t width;
    ls_dtype dtype;
} idx_type;

static const idx_type idx_types[] = {
    {0x08, 1, LS_U8}, {0x09, 1, LS_I32}, {0x0B, 2, LS_I32}, {0x0C, 4, LS_I32}, {0x0D, 4, LS_F32}, {0x0E, 8, LS_F64},
};

static const idx_type *find_type(unsigned char code) {
    for (size_t i = 0; i < sizeof idx_types / sizeof *idx_types; i++) {
        if (idx_types[i].code == code) {
            return &idx_types[i];
        }
    }
    return NULL;
}

static uint64_t read_big_endian(const unsigned char *bytes, size_t width) {
    uint64_t value = 0;
    for (size_t i = 0; i < width; i++) {
        value = value << 8 | bytes[i];
    }
    return value;
}

typedef struct idx_header {
    const idx_type *type;
    ls_shape shape;
    size_t bytes; /* size of an element in the file */
} idx_header;

static ls_status fail_amount(const char *path, const idx_header *header, const char *amount) {
    return ls_fail(LS_ERR_FORMAT,
                   "ls_idx_read: %s: its header, %s of %zu bytes each, declares %s data than the file contains", path,
                   ls_shape_describe(header->shape.ndim, header->shape.size).text, header->type->width, amount);
}

static ls_status parse_sizes(const char *path, const unsigned char *bytes, idx_header *header) {
    for (int i = 0; i < header->shape.ndim; i++) {
        header->shape.size[i] = (int64_t)read_big_endian(bytes + 4 * (size_t)i, 4);
    }
    return ls_shape_bytes(header->shape, header->type->width, &header->bytes)
               ? LS_OK
               : ls_fail(LS_ERR_FORMAT,
                         "ls_idx_read: %s has an impossible header: the product of its sizes is too large", path);
}

/* Reads the header. Checks that the file is large enough for the number of elements in the header. */
static ls_status read_header(ls_source *source, idx_header *header) {
    const char *path = source->path;
    unsigned char bytes[4 + 4 * LS_MAX_DIMS];
    size_t got;
    LS_TRY(ls_source_read(source, bytes, 4, &got));
    if (got < 4 || bytes[0] != 0 || bytes[1] != 0) {
        return ls_fail(LS_ERR_FORMAT, "ls_idx_read: %s is not an IDX file: it does not begin with two zero bytes",
                       path);
    }
    header->type = find_type(bytes[2]);
    header->shape.ndim = bytes[3];
    if (header->type != NULL && header->shape.ndim > LS_MAX_DIMS) {
        return ls_fail(LS_ERR_UNSUPPORTED, "ls_idx_read: %s has %d axes, but a tensor has at most %d", path,
                       header->shape.ndim, LS_MAX_DIMS);
    }
    if (header->type == NULL || header->shape.ndim < 1) {
        return ls_fail(LS_ERR_FORMAT, "ls_idx_read: %s is not an IDX file: type code 0x%02x with %d axes", path,
                       bytes[2], header->shape.ndim);
    }
    const size_t wanted = 4 * (size_t)header->shape.ndim;
    LS_TRY(ls_source_read(source, bytes + 4, wanted, &got));
    if (got < wanted) {
        return ls_fail(LS_ERR_FORMAT, "ls_idx_read: %s ends within its header, after %zu bytes", path, 4 + got);
    }
    LS_TRY(parse_sizes(path, bytes + 4, header));
    return header->bytes > ls_source_most(source) ? fail_amount(path, header, "more") : LS_OK;
}

/* Decodes elements, starting with element `first`. */
static void decode(const idx_type *type, const unsigned char *from, size_t count, void *to, size_t first) {
    const size_t width = type->width;
    if (type->dtype == LS_U8) {
        memcpy((uint8_t *)to + first, from, count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const uint64_t bits = read_big_endian(from + i * width, width);
        switch (type->code) {
        case 0x09:
            ((int32_t *)to)[first + i] = (int8_t)bits;
            break;
        case 0x0B:
            ((int32_t *)to)[first + i] = (int16_t)bits;
            break;
        case 0x0E:
            ((uint64_t *)to)[first + i] = bits;
            break;
        default:
            ((uint32_t *)to)[first + i] = (uint32_t)bits;
            break;
        }
    }
}

/*
 * Reads the elements. Each read ends at an element boundary or at the end of the file. The file must end after the last
 * element.
 */
static ls_status read_elements(ls_source *source, const idx_header *header, void *elements) {
    unsigned char part[PART];
    size_t got;
    for (size_t at = 0; at < header->bytes; at += got) {
        const size_t left = header->bytes - at;
        const size_t wanted = left < sizeof part ? left : sizeof part;
        LS_TRY(ls_source_read(source, part, wanted, &got));
        if (got < wanted) {
            return fail_amount(source->path, header, "more");
        }
        decode(header->type, part, got / header->type->width, elements, at / header->type->width);
    }
    LS_TRY(ls_source_read(source, part, 1, &got));
    return got > 0 ? fail_amount(source->path, header, "less") : LS_OK;
}

ls_tensor *ls_idx_read(const char *path) {
    ls_source source;
    idx_header header = {0};
    ls_tensor *tensor = NULL;
    ls_status status = ls_source_open("ls_idx_read", path, true, &source);
    if (status == LS_OK) {
        status = read_header(&source, &header);
    }
    if (status == LS_OK) {
        tensor = ls_tensor_new("ls_idx_read", &ls_cpu, header.shape.ndim, header.shape.size, header.type->dtype);
    }
    if (tensor != NULL && read_elements(&source, &header, ls_data(tensor)) != LS_OK) {
        ls_release(tensor);
        tensor = NULL;
    }
    ls_source_close(&source);
    return tensor;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static const idx_type *type_to_write(ls_dtype dtype) {
    for (size_t i = 0; i < sizeof idx_types / sizeof *idx_types; i++) {
        if (idx_types[i].dtype == dtype && idx_types[i].width == ls_dtype_size(dtype)) {
            return &idx_types[i];
        }
    }
    return NULL;
}

static size_t encode(const ls_tensor *tensor, const idx_type *type, unsigned char *to) {
    unsigned char *at = to;
    *at++ = 0;
    *at++ = 0;
    *at++ = type->code;
    *at++ = (unsigned char)ls_ndim(tensor);
    for (int i = 0; i < ls_ndim(tensor); i++) {
        for (int shift = 24; shift >= 0; shift -= 8) {
            *at++ = (unsigned char)(ls_size(tensor, i) >> shift);
        }
    }
    const unsigned char *from = ls_host_data(tensor);
    for (int64_t i = 0; i < ls_numel(tensor); i++, from += type->width) {
        for (size_t byte = type->width; byte-- > 0;) {
            *at++ = from[byte]; /* memory is little-endian: the most significant byte comes first in the file */
        }
    }
    return (size_t)(at - to);
}

static bool write_gzipped(FILE *file, const unsigned char *bytes, size_t size) {
    const int fd = fcntl(fileno(file), F_DUPFD_CLOEXEC, 0);
    gzFile stream = fd >= 0 ? gzdopen(fd, "wb") : NULL;
    if (stream == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        return false;
    }
    bool good = true;
    for (size_t at = 0; good && at < size;) {
        const size_t part = size - at < (1 << 30) ? size - at : (1 << 30);
        good = gzwrite(stream, bytes + at, (unsigned)part) == (int)part;
        at += part;
    }
    return gzclose_w(stream) == Z_OK && good;
}

static ls_status write_file(const char *path, const unsigned char *bytes, size_t size) {
    const size_t length = strlen(path);
    const bool gzipped = length > 3 && strcmp(path + length - 3, ".gz") == 0;
    ls_new_file file;
    LS_TRY(ls_file_create("ls_idx_write", path, &file));
    const bool good = gzipped ? write_gzipped(file.stream, bytes, size) : fwrite(bytes, 1, size, file.stream) == size;
    return ls_file_commit("ls_idx_write", &file,
                          good ? LS_OK : ls_fail(LS_ERR_IO, "ls_idx_write: cannot write %s: is the disk full?", path));
}

ls_status ls_idx_write(const char *path, const ls_tensor *tensor) {
    if (tensor != NULL && !ls_tensor_is_here("ls_idx_write", tensor)) {
        return ls_error_status();
    }
    const idx_type *type = tensor != NULL ? type_to_write(ls_dtype_of(tensor)) : NULL;
    if (path == NULL || type == NULL || ls_ndim(tensor) < 1 || !ls_is_contiguous(tensor)) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_idx_write: %s: only contiguous tensors of u8, i32, f32 or f64 with one axis or "
                       "more can be written",
                       path != NULL ? path : "NULL");
    }
    for (int i = 0; i < ls_ndim(tensor); i++) {
        if (ls_size(tensor, i) > UINT32_MAX) {
            return ls_fail(LS_ERR_SHAPE,
                           "ls_idx_write: %s: %s has a size of more than 32 bits, which IDX cannot represent", path,
                           LS_SHAPE_TEXT(tensor));
        }
    }
    const size_t room = 4 + 4 * (size_t)ls_ndim(tensor) + (size_t)ls_numel(tensor) * type->width;
    unsigned char *bytes = ls_allocate(room);
    if (bytes == NULL) {
        return ls_fail_memory("ls_idx_write", room);
    }
    ls_tensor *here = ls_tensor_on_device("ls_idx_write", tensor, &ls_cpu);
    const ls_status status = here != NULL ? write_file(path, bytes, encode(here, type, bytes)) : ls_error_status();
    ls_tensor_drop(here);
    ls_free(bytes);
    return status;
}
