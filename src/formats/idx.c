/* IDX: two zero bytes, a type code, the number of axes, each size as a big-endian 32-bit integer, then big-endian
 * elements. */
#include <string.h>
#include <zlib.h>

#include "base/memory.h"
#include "formats/file.h"
#include "tensor/tensor.h"

/* How the elements of each type code are stored, and what they become. */
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
    size_t count;
    size_t size; /* bytes before the first element */
} idx_header;

static ls_status parse_header(const char *path, const ls_bytes *bytes, idx_header *header) {
    if (bytes->size < 4 || bytes->data[0] != 0 || bytes->data[1] != 0) {
        return ls_fail(LS_ERR_FORMAT, "ls_idx_read: %s is not an IDX file: it does not begin with two zero bytes",
                       path);
    }
    header->type = find_type(bytes->data[2]);
    const int ndim = bytes->data[3];
    if (header->type == NULL || ndim < 1 || ndim > LS_MAX_DIMS) {
        return ls_fail(LS_ERR_FORMAT, "ls_idx_read: %s is not an IDX file: type code 0x%02x with %d axes", path,
                       bytes->data[2], ndim);
    }
    header->size = 4 + 4 * (size_t)ndim;
    if (bytes->size < header->size) {
        return ls_fail(LS_ERR_FORMAT, "ls_idx_read: %s ends within its header, after %zu bytes", path, bytes->size);
    }
    header->shape.ndim = ndim;
    header->count = 1;
    for (int i = 0; i < ndim; i++) {
        const uint64_t size = read_big_endian(bytes->data + 4 + 4 * (size_t)i, 4);
        header->shape.size[i] = (int64_t)size;
        if (__builtin_mul_overflow(header->count, (size_t)size, &header->count)) {
            return ls_fail(LS_ERR_FORMAT, "ls_idx_read: %s has an impossible header: its sizes multiply to too much",
                           path);
        }
    }
    size_t wanted;
    if (__builtin_mul_overflow(header->count, header->type->width, &wanted) || wanted != bytes->size - header->size) {
        return ls_fail(LS_ERR_FORMAT,
                       "ls_idx_read: %s has %zu bytes of data where its header, %s of %zu bytes each, promises %s",
                       path, bytes->size - header->size, ls_shape_describe(ndim, header->shape.size).text,
                       header->type->width, wanted > bytes->size - header->size ? "more" : "less");
    }
    return LS_OK;
}

static void decode(const idx_header *header, const unsigned char *from, void *to) {
    const size_t width = header->type->width;
    for (size_t i = 0; i < header->count; i++) {
        const uint64_t bits = read_big_endian(from + i * width, width);
        switch (header->type->code) {
        case 0x09:
            ((int32_t *)to)[i] = (int8_t)bits;
            break;
        case 0x0B:
            ((int32_t *)to)[i] = (int16_t)bits;
            break;
        case 0x0E:
            ((uint64_t *)to)[i] = bits;
            break;
        default:
            ((uint32_t *)to)[i] = (uint32_t)bits;
            break;
        }
    }
}

ls_tensor *ls_idx_read(const char *path) {
    ls_bytes bytes;
    idx_header header = {0};
    ls_tensor *tensor = NULL;
    ls_status status = ls_file_read("ls_idx_read", path, &bytes);
    if (status == LS_OK) {
        status = parse_header(path, &bytes, &header);
    }
    if (status == LS_OK) {
        tensor = ls_empty(header.shape, header.type->dtype);
    }
    if (tensor != NULL && header.type->dtype == LS_U8) {
        memcpy(ls_data(tensor), bytes.data + header.size, header.count);
    } else if (tensor != NULL) {
        decode(&header, bytes.data + header.size, ls_data(tensor));
    }
    ls_free(bytes.data);
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
    const unsigned char *from = ls_data(tensor);
    for (int64_t i = 0; i < ls_count(tensor); i++, from += type->width) {
        for (size_t byte = type->width; byte-- > 0;) {
            *at++ = from[byte]; /* little-endian memory, written from its high end */
        }
    }
    return (size_t)(at - to);
}

static ls_status write_gzipped(const char *path, const unsigned char *bytes, size_t size) {
    gzFile stream = gzopen(path, "wb");
    if (stream == NULL) {
        return ls_fail(LS_ERR_IO, "ls_idx_write: cannot write %s", path);
    }
    bool good = true;
    for (size_t at = 0; good && at < size;) {
        const size_t part = size - at < (1 << 30) ? size - at : (1 << 30);
        good = gzwrite(stream, bytes + at, (unsigned)part) == (int)part;
        at += part;
    }
    good = gzclose_w(stream) == Z_OK && good;
    return good ? LS_OK : ls_fail(LS_ERR_IO, "ls_idx_write: cannot write %s: is the disk full?", path);
}

static ls_status write_plain(const char *path, const unsigned char *bytes, size_t size) {
    ls_new_file file;
    LS_TRY(ls_file_create("ls_idx_write", path, &file));
    const ls_status status = fwrite(bytes, 1, size, file.stream) == size
                                 ? LS_OK
                                 : ls_fail(LS_ERR_IO, "ls_idx_write: cannot write %s: is the disk full?", path);
    return ls_file_commit("ls_idx_write", &file, status);
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
            return ls_fail(LS_ERR_SHAPE, "ls_idx_write: %s: %s has a size of more than 32 bits, which IDX cannot tell",
                           path, LS_SHAPE_TEXT(tensor));
        }
    }
    const size_t room = 4 + 4 * (size_t)ls_ndim(tensor) + (size_t)ls_count(tensor) * type->width;
    unsigned char *bytes = ls_allocate(room);
    if (bytes == NULL) {
        return ls_fail_memory("ls_idx_write", room);
    }
    const size_t size = encode(tensor, type, bytes);
    const size_t length = strlen(path);
    const bool gzipped = length > 3 && strcmp(path + length - 3, ".gz") == 0;
    const ls_status status = gzipped ? write_gzipped(path, bytes, size) : write_plain(path, bytes, size);
    ls_free(bytes);
    return status;
}
