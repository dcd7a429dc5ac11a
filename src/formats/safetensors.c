/*
 * safetensors, as its documentation describes the format: the header's length (64 bits, little-endian), a JSON header
 * {name: {"dtype", "shape", "data_offsets"}, "__metadata__": {text: text}}, then the data, dense and without holes.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "formats/file.h"
#include "tensor/tensor.h"

enum { LENGTH_SIZE = 8, HEADER_LIMIT = 100000000, DATA_ALIGNMENT = 8 };

static const char metadata_name[] = "__metadata__";

static const char *const type_names[LS_DTYPE_COUNT] = {
    [LS_F32] = "F32", [LS_F64] = "F64", [LS_BF16] = "BF16", [LS_F16] = "F16",
    [LS_I64] = "I64", [LS_I32] = "I32", [LS_U8] = "U8",     [LS_BOOL] = "BOOL",
};

static size_t byte_count(const ls_tensor *tensor) {
    return (size_t)ls_count(tensor) * ls_dtype_size(ls_dtype_of(tensor));
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static json_t *describe(const ls_tensor *tensor, size_t begin) {
    json_t *shape = json_array();
    for (int i = 0; i < ls_ndim(tensor); i++) {
        json_array_append_new(shape, json_integer(ls_size(tensor, i)));
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", type_names[ls_dtype_of(tensor)], "shape", shape, "data_offsets",
                     (json_int_t)begin, (json_int_t)(begin + byte_count(tensor)));
}

static bool add_metadata(json_t *header, const char *const *metadata) {
    if (metadata == NULL) {
        return true;
    }
    json_t *pairs = json_object();
    bool good = pairs != NULL;
    for (; good && metadata[0] != NULL; metadata += 2) {
        good = json_object_set_new(pairs, metadata[0], json_string(metadata[1])) == 0;
    }
    return json_object_set_new(header, metadata_name, pairs) == 0 && good;
}

/* The header's text, padded with spaces so that the data is aligned; from malloc. NULL without memory. */
static char *make_header(const ls_named *tensors, int count, const char *const *metadata, size_t *size) {
    json_t *header = json_object();
    bool good = header != NULL && add_metadata(header, metadata);
    size_t offset = 0;
    for (int i = 0; good && i < count; i++) {
        good = json_object_set_new(header, tensors[i].name, describe(tensors[i].tensor, offset)) == 0;
        offset += byte_count(tensors[i].tensor);
    }
    const size_t length = good ? json_dumpb(header, NULL, 0, JSON_COMPACT) : 0;
    *size = (length + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT;
    char *text = length > 0 ? ls_allocate(*size) : NULL;
    if (text != NULL) {
        memset(text, ' ', *size);
        (void)json_dumpb(header, text, length, JSON_COMPACT);
    }
    json_decref(header);
    return text;
}

static ls_status write_bytes(ls_new_file *file, const void *bytes, size_t size) {
    if (size > 0 && fwrite(bytes, 1, size, file->stream) != size) {
        return ls_fail(LS_ERR_IO, "ls_safetensors_save: cannot write %s: is the disk full?", file->path);
    }
    return LS_OK;
}

static ls_status write_all(ls_new_file *file, const char *header, size_t header_size, const ls_named *tensors,
                           int count) {
    unsigned char length[LENGTH_SIZE];
    for (int i = 0; i < LENGTH_SIZE; i++) {
        length[i] = (unsigned char)((uint64_t)header_size >> (8 * i));
    }
    LS_TRY(write_bytes(file, length, sizeof length));
    LS_TRY(write_bytes(file, header, header_size));
    for (int i = 0; i < count; i++) {
        LS_TRY(write_bytes(file, ls_data(tensors[i].tensor), byte_count(tensors[i].tensor)));
    }
    return LS_OK;
}

static ls_status check_tensors(const ls_named *tensors, int count) {
    if (count < 0 || (tensors == NULL && count > 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_safetensors_save: %d tensors%s", count, tensors == NULL ? " at NULL" : "");
    }
    for (int i = 0; i < count; i++) {
        if (tensors[i].name == NULL || tensors[i].tensor == NULL || !ls_is_contiguous(tensors[i].tensor)) {
            return ls_fail(LS_ERR_ARGUMENT, "ls_safetensors_save: tensor %d (%s) is %s", i,
                           tensors[i].name != NULL ? tensors[i].name : "without a name",
                           tensors[i].tensor == NULL ? "NULL" : "not contiguous or has no name");
        }
        if (strcmp(tensors[i].name, metadata_name) == 0) {
            return ls_fail(LS_ERR_ARGUMENT,
                           "ls_safetensors_save: no tensor can be named %s: the format keeps that name", metadata_name);
        }
        for (int j = 0; j < i; j++) {
            if (strcmp(tensors[i].name, tensors[j].name) == 0) {
                return ls_fail(LS_ERR_ARGUMENT, "ls_safetensors_save: two tensors are named %s", tensors[i].name);
            }
        }
    }
    return LS_OK;
}

ls_status ls_safetensors_save(const char *path, const ls_named *tensors, int count, const char *const *metadata) {
    LS_TRY(check_tensors(tensors, count));
    size_t header_size = 0;
    char *header = make_header(tensors, count, metadata, &header_size);
    if (header == NULL) {
        return ls_fail(LS_ERR_MEMORY,
                       "ls_safetensors_save: cannot make the header of %s: a name or text is not UTF-8, or "
                       "there is no memory",
                       path != NULL ? path : "NULL");
    }
    ls_new_file file;
    ls_status status = ls_file_create("ls_safetensors_save", path, &file);
    if (status == LS_OK) {
        status = write_all(&file, header, header_size, tensors, count);
        status = ls_file_commit("ls_safetensors_save", &file, status);
    }
    ls_free(header);
    return status;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* A tensor and where its data begins, for sorting and for finding holes. */
typedef struct stored {
    ls_named named;
    size_t begin;
} stored;

struct ls_safetensors {
    json_t *header;  /* owns the names and metadata */
    stored *tensors; /* in the order of the data */
    int count;
};

void ls_safetensors_free(ls_safetensors *file) {
    if (file == NULL) {
        return;
    }
    for (int i = 0; i < file->count; i++) {
        ls_tensor_drop(file->tensors[i].named.tensor);
    }
    ls_free(file->tensors);
    json_decref(file->header);
    ls_free(file);
}

typedef struct entry {
    ls_dtype dtype;
    ls_shape shape;
    size_t begin, end;
} entry;

static bool parse_dtype(const json_t *value, ls_dtype *dtype) {
    for (int i = 0; json_is_string(value) && i < LS_DTYPE_COUNT; i++) {
        if (strcmp(json_string_value(value), type_names[i]) == 0) {
            *dtype = (ls_dtype)i;
            return true;
        }
    }
    return false;
}

static bool parse_shape(const json_t *value, ls_shape *shape, size_t *count) {
    if (!json_is_array(value) || json_array_size(value) > LS_MAX_DIMS) {
        return false;
    }
    *count = 1;
    shape->ndim = (int)json_array_size(value);
    for (int i = 0; i < shape->ndim; i++) {
        const json_t *size = json_array_get(value, (size_t)i);
        shape->size[i] = json_integer_value(size);
        if (!json_is_integer(size) || shape->size[i] < 0 ||
            __builtin_mul_overflow(*count, (size_t)shape->size[i], count)) {
            return false;
        }
    }
    return true;
}

static bool parse_offsets(const json_t *value, size_t data_size, entry *parsed) {
    const json_t *begin = json_array_get(value, 0);
    const json_t *end = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end)) {
        return false;
    }
    const json_int_t from = json_integer_value(begin);
    const json_int_t to = json_integer_value(end);
    parsed->begin = (size_t)from;
    parsed->end = (size_t)to;
    return from >= 0 && from <= to && (size_t)to <= data_size;
}

static ls_status parse_entry(const char *path, const char *name, const json_t *value, size_t data_size, entry *parsed) {
    size_t count = 0;
    size_t bytes;
    const char *wrong = NULL;
    *parsed = (entry){0};
    if (!parse_dtype(json_object_get(value, "dtype"), &parsed->dtype)) {
        const char *dtype = json_string_value(json_object_get(value, "dtype"));
        return ls_fail(LS_ERR_FORMAT, "ls_safetensors_load: %s: tensor %s has the dtype %s, which cannot be read", path,
                       name, dtype != NULL ? dtype : "(none)");
    }
    if (!parse_shape(json_object_get(value, "shape"), &parsed->shape, &count)) {
        wrong = "its shape is not a list of at most 8 sizes";
    } else if (!parse_offsets(json_object_get(value, "data_offsets"), data_size, parsed)) {
        wrong = "its data_offsets do not lie in the file";
    } else if (__builtin_mul_overflow(count, ls_dtype_size(parsed->dtype), &bytes) ||
               bytes != parsed->end - parsed->begin) {
        wrong = "its shape and its data_offsets do not fit together";
    }
    return wrong == NULL ? LS_OK : ls_fail(LS_ERR_FORMAT, "ls_safetensors_load: %s: tensor %s: %s", path, name, wrong);
}

/* By place; a tensor without elements comes before the one whose data begins there. */
static int by_place(const void *left, const void *right) {
    const stored *a = left, *b = right;
    const size_t a_size = byte_count(a->named.tensor), b_size = byte_count(b->named.tensor);
    return a->begin != b->begin ? (a->begin > b->begin) - (a->begin < b->begin) : (a_size > b_size) - (a_size < b_size);
}

static ls_status read_tensors(ls_safetensors *file, const char *path, const unsigned char *data, size_t data_size) {
    const size_t capacity = json_object_size(file->header) + 1;
    file->tensors = ls_allocate_zeroed(capacity, sizeof *file->tensors);
    if (file->tensors == NULL) {
        return ls_fail_memory("ls_safetensors_load", capacity * sizeof *file->tensors);
    }
    const char *name;
    json_t *value;
    size_t covered = 0;
    json_object_foreach(file->header, name, value) {
        if (strcmp(name, metadata_name) == 0) {
            continue;
        }
        entry parsed;
        LS_TRY(parse_entry(path, name, value, data_size, &parsed));
        ls_tensor *tensor =
            ls_tensor_new_owned("ls_safetensors_load", parsed.shape.ndim, parsed.shape.size, parsed.dtype);
        if (tensor == NULL) {
            return ls_error_status();
        }
        memcpy(tensor->data, data + parsed.begin, parsed.end - parsed.begin);
        file->tensors[file->count++] = (stored){.named = {.name = name, .tensor = tensor}, .begin = parsed.begin};
        covered += parsed.end - parsed.begin;
    }
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, by_place);
    for (int i = 0; i + 1 < file->count; i++) {
        const stored *here = &file->tensors[i], *next = here + 1;
        if (here->begin + byte_count(here->named.tensor) > next->begin) {
            return ls_fail(LS_ERR_FORMAT, "ls_safetensors_load: %s: the data of %s and %s overlap", path,
                           here->named.name, next->named.name);
        }
    }
    if (covered != data_size) {
        return ls_fail(LS_ERR_FORMAT, "ls_safetensors_load: %s: %zu bytes of data belong to no tensor", path,
                       data_size - covered);
    }
    return LS_OK;
}

static ls_status parse_file(ls_safetensors *file, const char *path, const ls_bytes *bytes) {
    uint64_t length = 0;
    for (size_t i = 0; i < LENGTH_SIZE && i < bytes->size; i++) {
        length |= (uint64_t)bytes->data[i] << (8 * i);
    }
    if (bytes->size < LENGTH_SIZE || length > HEADER_LIMIT || length > bytes->size - LENGTH_SIZE) {
        return ls_fail(LS_ERR_FORMAT,
                       "ls_safetensors_load: %s is not a safetensors file, or cut short: its header would have %" PRIu64
                       " bytes and the file has %zu",
                       path, length, bytes->size);
    }
    json_error_t error;
    file->header = json_loadb((const char *)bytes->data + LENGTH_SIZE, (size_t)length, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(file->header)) {
        return ls_fail(LS_ERR_FORMAT, "ls_safetensors_load: %s: the header is not a JSON object: %s", path,
                       file->header == NULL ? error.text : "it is something else");
    }
    const size_t data_at = LENGTH_SIZE + (size_t)length;
    return read_tensors(file, path, bytes->data + data_at, bytes->size - data_at);
}

ls_safetensors *ls_safetensors_load(const char *path) {
    ls_bytes bytes;
    if (ls_file_read("ls_safetensors_load", path, &bytes) != LS_OK) {
        return NULL;
    }
    ls_safetensors *file = ls_allocate_zeroed(1, sizeof *file);
    if (file == NULL) {
        (void)ls_fail_memory("ls_safetensors_load", sizeof *file);
    } else if (parse_file(file, path, &bytes) != LS_OK) {
        ls_safetensors_free(file);
        file = NULL;
    }
    ls_free(bytes.data);
    return file;
}

int ls_safetensors_count(const ls_safetensors *file) {
    return file != NULL ? file->count : 0;
}

ls_named ls_safetensors_at(const ls_safetensors *file, int index) {
    return index >= 0 && index < ls_safetensors_count(file) ? file->tensors[index].named : (ls_named){0};
}

ls_tensor *ls_safetensors_find(const ls_safetensors *file, const char *name) {
    for (int i = 0; name != NULL && i < ls_safetensors_count(file); i++) {
        if (strcmp(file->tensors[i].named.name, name) == 0) {
            return file->tensors[i].named.tensor;
        }
    }
    return NULL;
}

const char *ls_safetensors_metadata(const ls_safetensors *file, const char *key) {
    return file != NULL && key != NULL
               ? json_string_value(json_object_get(json_object_get(file->header, metadata_name), key))
               : NULL;
}
