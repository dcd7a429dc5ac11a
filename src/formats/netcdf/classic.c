/* The format: https://docs.unidata.ucar.edu/netcdf-c/current/file_format_specifications.html */
#include "formats/netcdf/classic.h"

#include <netcdf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { ALIGNMENT = 4, TAG_BYTES = 4, TYPE_BYTES = 4, CDF5 = 5 };

typedef struct header {
    FILE *file;
    int64_t size;     /* of the file */
    int64_t position; /* in the file */
    int version;      /* 1, 2 or 5 */
    int64_t records;
    int64_t *dimensions; /* 0 is the dimension of the records */
    int64_t dimension_count;
    int64_t end; /* offset of the first byte after all variables, without padding */
    /* Of the variables with records: */
    int64_t record_bytes;   /* of a record of all variables, with padding */
    int64_t record_end;     /* the largest offset of the first byte after a variable's part of record 0 */
    int64_t single_bytes;   /* of a record of the first variable, without padding */
    int64_t variable_count; /* with records */
    char *reason;
} header;

static bool fail(const header *h, const char *reason) {
    (void)snprintf(h->reason, LS_ARRAY_REASON, "%s", reason);
    return false;
}

static bool fail_short(const header *h, const char *part, int64_t needed) {
    (void)snprintf(h->reason, LS_ARRAY_REASON,
                   "the file has %lld bytes, but its header %s %lld bytes: copy "
                   "the file again, or close the file in the program that writes it",
                   (long long)h->size, part, (long long)needed);
    return false;
}

static bool fail_huge(const header *h) {
    (void)snprintf(h->reason, LS_ARRAY_REASON, "the file has %lld bytes, but its header declares more than 2^63 bytes",
                   (long long)h->size);
    return false;
}

/* Fails unless the next `bytes` bytes are in the file. */
static bool need_bytes(const header *h, int64_t bytes) {
    int64_t end;
    if (bytes < 0 || __builtin_add_overflow(h->position, bytes, &end)) {
        return fail_huge(h);
    }
    return end <= h->size || fail_short(h, "alone has at least", end);
}

/* Reads a big-endian integer of 4 or 8 bytes. */
static bool read_integer(header *h, int bytes, int64_t *value) {
    unsigned char raw[8];
    uint64_t all = 0;
    if (!need_bytes(h, bytes)) {
        return false;
    }
    if (fread(raw, 1, (size_t)bytes, h->file) != (size_t)bytes) {
        return fail(h, "its header cannot be read");
    }
    for (int i = 0; i < bytes; i++) {
        all = all << 8 | raw[i];
    }
    h->position += bytes;
    *value = (int64_t)all;
    return *value >= 0 || fail_huge(h);
}

static int count_bytes(const header *h) {
    return h->version == CDF5 ? 8 : 4;
}

/* Reads a number of items of at least `bytes` bytes each, and checks that they can be in the file. */
static bool read_count(header *h, int64_t bytes, int64_t *count) {
    int64_t all;
    if (!read_integer(h, count_bytes(h), count)) {
        return false;
    }
    return __builtin_mul_overflow(*count, bytes, &all) ? fail_huge(h) : need_bytes(h, all);
}

/* Reads the tag and the length of a list whose items have at least `bytes` bytes each. */
static bool read_list(header *h, int64_t bytes, int64_t *count) {
    int64_t tag;
    return read_integer(h, TAG_BYTES, &tag) && read_count(h, bytes, count);
}

static int64_t padded(int64_t bytes) {
    return bytes + (ALIGNMENT - bytes % ALIGNMENT) % ALIGNMENT;
}

/* Skips `count` items and their padding. read_count has checked the number of items. */
static bool skip(header *h, int64_t count, int64_t item_bytes) {
    const int64_t bytes = padded(count * item_bytes);
    if (!need_bytes(h, bytes)) {
        return false;
    }
    h->position += bytes;
    return fseeko(h->file, (off_t)h->position, SEEK_SET) == 0 || fail(h, "its header cannot be read");
}

static bool skip_name(header *h) {
    int64_t length;
    return read_count(h, 1, &length) && skip(h, length, 1);
}

static bool read_type(header *h, int64_t *bytes) {
    static const int sizes[] = {
        [NC_BYTE] = 1,  [NC_CHAR] = 1,   [NC_SHORT] = 2, [NC_INT] = 4,   [NC_FLOAT] = 4, [NC_DOUBLE] = 8,
        [NC_UBYTE] = 1, [NC_USHORT] = 2, [NC_UINT] = 4,  [NC_INT64] = 8, [NC_UINT64] = 8};
    int64_t type;
    if (!read_integer(h, TYPE_BYTES, &type)) {
        return false;
    }
    if (type < NC_BYTE || type > NC_UINT64) {
        return fail(h, "its header has an unknown type of elements");
    }
    *bytes = sizes[type];
    return true;
}

static bool skip_attributes(header *h) {
    int64_t attributes, bytes, count;
    const int least = 2 * count_bytes(h) + TYPE_BYTES;
    bool good = read_list(h, least, &attributes);
    for (int64_t i = 0; good && i < attributes; i++) {
        good = skip_name(h) && read_type(h, &bytes) && read_count(h, bytes, &count) && skip(h, count, bytes);
    }
    return good;
}

static bool read_dimensions(header *h) {
    if (!read_list(h, 2 * count_bytes(h), &h->dimension_count)) {
        return false;
    }
    h->dimensions = calloc((size_t)h->dimension_count + 1, sizeof *h->dimensions);
    bool good = h->dimensions != NULL || fail(h, nc_strerror(NC_ENOMEM));
    for (int64_t i = 0; good && i < h->dimension_count; i++) {
        good = skip_name(h) && read_integer(h, count_bytes(h), &h->dimensions[i]);
    }
    return good;
}

/* Sets *elements to the number of elements of the variable or, if the variable has records, of one record. */
static bool read_shape(header *h, int64_t *elements, bool *has_records) {
    int64_t axes, dimension;
    *elements = 1;
    *has_records = false;
    if (!read_count(h, count_bytes(h), &axes)) {
        return false;
    }
    for (int64_t axis = 0; axis < axes; axis++) {
        if (!read_integer(h, count_bytes(h), &dimension)) {
            return false;
        }
        if (dimension >= h->dimension_count) {
            return fail(h, "its header names a dimension that does not exist");
        }
        if (axis == 0 && h->dimensions[dimension] == 0) {
            *has_records = true;
        } else if (__builtin_mul_overflow(*elements, h->dimensions[dimension], elements)) {
            return fail_huge(h);
        }
    }
    return true;
}

/* Adds a variable at offset `begin`. `bytes` is the size of the variable or, with records, of one record. */
static bool add_variable(header *h, int64_t begin, int64_t bytes, bool has_records) {
    int64_t end;
    if (__builtin_add_overflow(begin, bytes, &end)) {
        return fail_huge(h);
    }
    if (!has_records) {
        h->end = end > h->end ? end : h->end;
        return true;
    }
    h->single_bytes = h->variable_count++ == 0 ? bytes : h->single_bytes;
    h->record_end = end > h->record_end ? end : h->record_end;
    return bytes <= INT64_MAX - ALIGNMENT && !__builtin_add_overflow(h->record_bytes, padded(bytes), &h->record_bytes)
               ? true
               : fail_huge(h);
}

static bool read_variable(header *h) {
    int64_t elements, item, bytes, begin;
    bool has_records;
    if (!skip_name(h) || !read_shape(h, &elements, &has_records) || !skip_attributes(h) || !read_type(h, &item) ||
        !skip(h, 1, count_bytes(h)) || !read_integer(h, h->version == 1 ? 4 : 8, &begin)) {
        return false;
    }
    return __builtin_mul_overflow(elements, item, &bytes) ? fail_huge(h) : add_variable(h, begin, bytes, has_records);
}

static bool read_variables(header *h) {
    int64_t variables;
    bool good = read_list(h, 5 * ALIGNMENT, &variables);
    for (int64_t i = 0; good && i < variables; i++) {
        good = read_variable(h);
    }
    return good;
}

/* Includes the records in h->end. The records of a single variable have no padding. */
static bool add_records(header *h) {
    int64_t before;
    if (h->variable_count == 0 || h->records == 0) {
        return true;
    }
    if (__builtin_mul_overflow(h->records - 1, h->variable_count == 1 ? h->single_bytes : h->record_bytes, &before) ||
        __builtin_add_overflow(before, h->record_end, &before)) {
        return fail_huge(h);
    }
    h->end = before > h->end ? before : h->end;
    return true;
}

static bool read_records(header *h) {
    unsigned char raw[8] = {0};
    const int bytes = count_bytes(h);
    if (!need_bytes(h, bytes)) {
        return false;
    }
    if (fread(raw, 1, (size_t)bytes, h->file) == (size_t)bytes &&
        memcmp(raw, "\xff\xff\xff\xff\xff\xff\xff\xff", (size_t)bytes) == 0) {
        return fail(h, "its header does not state the number of records: copy the file with nccopy");
    }
    return fseeko(h->file, (off_t)h->position, SEEK_SET) == 0 && read_integer(h, bytes, &h->records);
}

static bool check(header *h) {
    struct stat about;
    char magic[4];
    if (fstat(fileno(h->file), &about) != 0 || fread(magic, 1, sizeof magic, h->file) != sizeof magic ||
        memcmp(magic, "CDF", 3) != 0 || (magic[3] != 1 && magic[3] != 2 && magic[3] != CDF5)) {
        return true;
    }
    h->size = about.st_size;
    h->position = sizeof magic;
    h->version = magic[3];
    return read_records(h) && read_dimensions(h) && skip_attributes(h) && read_variables(h) && add_records(h) &&
           (h->end <= h->size || fail_short(h, "declares", h->end));
}

bool ls_netcdf_check_classic(const char *path, char reason[LS_ARRAY_REASON]) {
    header h = {.file = fopen(path, "rbe"), .reason = reason};
    if (h.file == NULL) {
        return fail(&h, "it cannot be opened");
    }
    const bool good = check(&h);
    free(h.dimensions);
    (void)fclose(h.file);
    return good;
}
