/*
 * The safetensors format: the header's length (64 bits, little-endian), a JSON header {name: {"dtype", "shape",
 * "data_offsets"}, "__metadata__": {string: string}}, then the data, without gaps.
 */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "base/freed.h"
#include "base/memory.h"
#include "base/text.h"
#include "formats/file.h"
#include "formats/named.h"
#include "formats/safetensors_header.h"
#include "tensor/device.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

enum { LENGTH_SIZE = 8, HEADER_LIMIT = 100000000, DATA_ALIGNMENT = 8, PART = 1 << 15 };

static const char save[] = "ls_safetensors_save", reads[] = "ls_safetensors_load";

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static json_t *describe(const ls_tensor *tensor, size_t begin) {
    json_t *shape = json_array();
    for (int i = 0; i < ls_ndim(tensor); i++) {
        json_array_append_new(shape, json_integer(ls_size(tensor, i)));
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", ls_element_of_dtype(ls_dtype_of(tensor))->safetensors, "shape",
                     shape, "data_offsets", (json_int_t)begin, (json_int_t)(begin + ls_tensor_bytes(tensor)));
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
    return json_object_set_new(header, LS_SAFETENSORS_METADATA, pairs) == 0 && good;
}

/*
 * Returns the text of the header, allocated with malloc. It is padded with spaces so that the data is aligned. Returns
 * NULL if out of memory.
 */
static char *make_header(const ls_named *tensors, int count, const char *const *metadata, size_t *size) {
    json_t *header = json_object();
    bool good = header != NULL && add_metadata(header, metadata);
    size_t offset = 0;
    for (int i = 0; good && i < count; i++) {
        good = json_object_set_new(header, tensors[i].name, describe(tensors[i].tensor, offset)) == 0;
        offset += ls_tensor_bytes(tensors[i].tensor);
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

static ls_status write_elements(ls_new_file *file, const ls_tensor *tensor) {
    ls_host_view view;
    LS_TRY(ls_host_view_begin(&view, tensor, LS_HOST_READ));
    return ls_host_view_end(&view, ls_file_write(save, file, view.memory, ls_tensor_bytes(tensor)));
}

static ls_status write_all(ls_new_file *file, const char *header, size_t header_size, const ls_named *tensors,
                           int count) {
    unsigned char length[LENGTH_SIZE];
    for (int i = 0; i < LENGTH_SIZE; i++) {
        length[i] = (unsigned char)((uint64_t)header_size >> (8 * i));
    }
    LS_TRY(ls_file_write(save, file, length, sizeof length));
    LS_TRY(ls_file_write(save, file, header, header_size));
    for (int i = 0; i < count; i++) {
        LS_TRY(write_elements(file, tensors[i].tensor));
    }
    return LS_OK;
}

static ls_status check_given(const ls_named *tensors, int count, const char *const *metadata) {
    size_t pairs = 0;
    LS_TRY(ls_metadata_count(save, metadata, &pairs));
    LS_TRY(ls_named_check(save, tensors, count));
    for (int i = 0; i < count; i++) {
        if (!ls_text_is_utf8(tensors[i].name)) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: the name %.100s of tensor %d is not UTF-8; convert it to UTF-8", save,
                           tensors[i].name, i);
        }
    }
    return ls_named_find(tensors, count, LS_SAFETENSORS_METADATA) == NULL
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: a tensor cannot be named %s: the format reserves this name", save,
                         LS_SAFETENSORS_METADATA);
}

static ls_status write_checked(ls_new_file *file, const ls_named *tensors, int count, const char *const *metadata) {
    size_t header_size = 0;
    char *header = make_header(tensors, count, metadata, &header_size);
    if (header == NULL) {
        return ls_fail(LS_ERR_MEMORY, "%s: out of memory for the header of %s", save, file->path);
    }
    const ls_status status = write_all(file, header, header_size, tensors, count);
    ls_free(header);
    return status;
}

ls_status ls_safetensors_write(ls_new_file *file, const ls_named *tensors, int count, const char *const *metadata) {
    LS_TRY(check_given(tensors, count, metadata));
    return write_checked(file, tensors, count, metadata);
}

ls_status ls_safetensors_save(const char *path, const ls_named *tensors, int count, const char *const *metadata) {
    ls_new_file file;
    LS_TRY(check_given(tensors, count, metadata)); /* before the file is created */
    LS_TRY(ls_file_create(save, path, &file));
    return ls_file_commit(save, &file, write_checked(&file, tensors, count, metadata));
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* A file in memory, or an open file (ls_safetensors_open). */
struct ls_safetensors {
    bool freed;
    char *texts; /* names and metadata */
    const char *metadata, *metadata_end;
    ls_named_set tensors; /* in the order of the data; without elements in an open file */
    char *path;
    ls_source source;              /* of an open file */
    size_t begin;                  /* offset of the data of an open file */
    ls_safetensors_entry *entries; /* of the tensors of an open file, in the same order; NULL for a file in memory */
};

/* Makes an open file a file in memory. */
static void close_file(ls_safetensors *file) {
    ls_source_close(&file->source);
    ls_free(file->path);
    ls_free(file->entries);
    file->path = NULL;
    file->entries = NULL;
}

void ls_safetensors_free(ls_safetensors *file) {
    if (file == NULL || file->freed) {
        return;
    }
    close_file(file);
    ls_named_set_free(&file->tensors);
    ls_free(file->texts);
    *file = (ls_safetensors){.freed = true};
    ls_retire(file, LS_RETIRED_SINGLE);
}

/* Returns a file in memory without room for tensors. */
static ls_safetensors *make_file(const char *call) {
    ls_safetensors *file = ls_allocate_zeroed(1, sizeof *file);
    if (file == NULL) {
        (void)ls_fail_memory(call, sizeof *file);
        return NULL;
    }
    file->source.fd = -1;
    return file;
}

ls_safetensors *ls_safetensors_new(const char *call, size_t count) {
    ls_safetensors *file = make_file(call);
    if (file != NULL && ls_named_set_reserve(call, &file->tensors, count) != LS_OK) {
        ls_safetensors_free(file);
        file = NULL;
    }
    return file;
}

/* Reads the text of the header, and appends a zero byte. */
static ls_status read_header(ls_source *source, ls_safetensors *file, size_t *length) {
    unsigned char bytes[LENGTH_SIZE];
    size_t got;
    uint64_t stored = 0;
    LS_TRY(ls_source_read(source, bytes, sizeof bytes, &got));
    for (size_t i = 0; i < got; i++) {
        stored |= (uint64_t)bytes[i] << (8 * i);
    }
    if (got < LENGTH_SIZE || stored > HEADER_LIMIT || stored > source->size - LENGTH_SIZE) {
        const bool gzipped = got >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
        return ls_fail(
            LS_ERR_FORMAT,
            "ls_safetensors_load: %s is not a safetensors file, or is truncated: its header would have %" PRIu64
            " bytes and the file has %zu%s",
            source->path, stored, source->size, gzipped ? "; it is gzipped: gunzip it first" : "");
    }
    *length = (size_t)stored;
    file->texts = ls_allocate(*length + 1);
    if (file->texts == NULL) {
        return ls_fail_memory(source->call, *length + 1);
    }
    LS_TRY(ls_source_read(source, file->texts, *length, &got));
    file->texts[*length] = '\0';
    return got == *length ? LS_OK : ls_source_fail_short(source);
}

static ls_status refuse_dtype(const ls_source *source, const ls_safetensors_entry *entry) {
    return ls_fail(LS_ERR_UNSUPPORTED,
                   "%s: %s: tensor %.100s has the dtype %s, which Lockstep does not have; convert it, for example to "
                   "F32, in the program that saved it",
                   source->call, source->path, entry->name, entry->dtype);
}

/* Adds a tensor without elements, or rejects it. The entry, in or after its place in file->entries, moves there. */
static ls_status add_entry(ls_safetensors *file, const ls_safetensors_entry *entry) {
    ls_named_set *set = &file->tensors;
    if (entry->element == NULL) {
        (void)refuse_dtype(&file->source, entry);
        return ls_named_set_refuse(reads, set, entry->name);
    }
    ls_tensor *tensor = ls_tensor_over(&ls_cpu, &entry->shape, entry->element->dtype, NULL);
    if (tensor == NULL) {
        return ls_fail_memory(reads, sizeof *tensor);
    }
    file->entries[set->count] = *entry;
    set->items[set->count++] = (ls_named){.name = entry->name, .tensor = tensor};
    return LS_OK;
}

/* Adds all tensors in the order of the file. Gaps and overlaps have already been rejected. */
static ls_status add_entries(ls_safetensors *file, size_t count) {
    LS_TRY(ls_named_set_reserve(reads, &file->tensors, count));
    for (size_t i = 0; i < count; i++) {
        LS_TRY(add_entry(file, &file->entries[i]));
    }
    return LS_OK;
}

static ls_status open_file(ls_safetensors *file) {
    ls_source *source = &file->source;
    ls_safetensors_header header = {0};
    size_t length = 0;
    LS_TRY(ls_source_open(reads, file->path, false, source));
    LS_TRY(read_header(source, file, &length));
    const ls_status status =
        ls_safetensors_parse(source->path, file->texts, length, source->size - LENGTH_SIZE - length, &header);
    file->entries = header.entries;
    file->metadata = header.metadata;
    file->metadata_end = header.metadata_end;
    file->begin = LENGTH_SIZE + length;
    return status == LS_OK ? add_entries(file, header.count) : status;
}

ls_safetensors *ls_safetensors_open(const char *path) {
    ls_saved_error before;
    ls_error_save(&before);
    ls_safetensors *file = make_file(reads);
    if (file == NULL) {
        return NULL;
    }
    file->path = ls_duplicate_string(path);
    const ls_status status =
        path != NULL && file->path == NULL ? ls_fail_memory(reads, strlen(path) + 1) : open_file(file);
    if (status != LS_OK) {
        ls_safetensors_free(file);
        return NULL;
    }
    ls_named_set_forgive(&file->tensors, &before);
    return file;
}

/* Fails with LS_ERR_UNSUPPORTED if the tensor cannot hold a value. */
static ls_status read_elements(const ls_safetensors *file, const ls_safetensors_entry *entry, ls_tensor *tensor) {
    const ls_source *source = &file->source;
    char what[512];
    char *to = ls_elements_begin(entry->element, ls_host_data(tensor), ls_numel(tensor));
    LS_TRY(ls_source_read_at(source, file->begin + entry->begin, to, entry->end - entry->begin));
    snprintf(what, sizeof what, "%.400s: tensor %.100s", source->path, entry->name);
    return ls_elements_widen(entry->element, ls_host_data(tensor), ls_numel(tensor), source->call, what);
}

static ls_tensor *read_tensor(const ls_safetensors *file, const ls_safetensors_entry *entry) {
    ls_tensor *tensor =
        ls_tensor_new_owned(file->source.call, &ls_cpu, entry->shape.ndim, entry->shape.size, entry->element->dtype);
    if (tensor != NULL && read_elements(file, entry, tensor) != LS_OK) {
        ls_tensor_drop(tensor);
        tensor = NULL;
    }
    return tensor;
}

ls_tensor *ls_safetensors_fetch(const ls_safetensors *file, const ls_tensor *tensor) {
    for (int i = 0; file != NULL && file->entries != NULL && i < file->tensors.count; i++) {
        if (file->tensors.items[i].tensor == tensor) {
            return read_tensor(file, &file->entries[i]);
        }
    }
    return ls_tensor_hold((ls_tensor *)tensor);
}

/* Removes the tensors that were rejected. */
static void remove_missing(ls_named_set *set) {
    int count = 0;
    for (int i = 0; i < set->count; i++) {
        if (set->items[i].tensor != NULL) {
            set->items[count++] = set->items[i];
        }
    }
    set->count = count;
}

/* Reads the elements of all tensors of an open file in the order of the file, and closes the file. */
static ls_status read_all(ls_safetensors *file) {
    ls_named_set *set = &file->tensors;
    for (int i = 0; i < set->count; i++) {
        ls_tensor *tensor = read_tensor(file, &file->entries[i]);
        if (tensor == NULL) {
            LS_TRY(ls_error_status() == LS_ERR_UNSUPPORTED ? ls_named_set_refuse(reads, set, set->items[i].name)
                                                           : ls_error_status());
        }
        ls_tensor_drop(set->items[i].tensor);
        set->items[i].tensor = tensor;
    }
    remove_missing(set);
    close_file(file);
    return LS_OK;
}

ls_safetensors *ls_safetensors_load(const char *path) {
    ls_saved_error before;
    ls_error_save(&before);
    ls_safetensors *file = ls_safetensors_open(path);
    if (file == NULL) {
        return NULL;
    }
    if (read_all(file) != LS_OK) {
        ls_safetensors_free(file);
        return NULL;
    }
    ls_named_set_forgive(&file->tensors, &before);
    return file;
}

/* ---- files in memory --------------------------------------------------------------------------------------------- */

void ls_safetensors_add(ls_safetensors *file, const char *name, ls_tensor *tensor) {
    file->tensors.items[file->tensors.count++] = (ls_named){.name = name, .tensor = tensor};
}

ls_status ls_safetensors_add_metadata(const char *call, ls_safetensors *to, const ls_safetensors *from) {
    const size_t before = (size_t)(to->metadata_end - to->metadata);
    const size_t more = (size_t)(from->metadata_end - from->metadata);
    char *texts = ls_allocate(before + more + 1);
    if (texts == NULL) {
        return ls_fail_memory(call, before + more + 1);
    }
    char *end = texts;
    if (before > 0) {
        end = (char *)memcpy(texts, to->metadata, before) + before;
    }
    for (const char *key = from->metadata; key != from->metadata_end;) {
        const char *value = key + strlen(key) + 1, *next = value + strlen(value) + 1;
        if (ls_safetensors_metadata(to, key) == NULL) { /* the files of several ranks have the same keys */
            end = (char *)memcpy(end, key, (size_t)(next - key)) + (next - key);
        }
        key = next;
    }
    ls_free(to->texts);
    to->texts = texts;
    to->metadata = texts;
    to->metadata_end = end;
    return LS_OK;
}

ls_status ls_safetensors_save_file(const char *path, const ls_safetensors *file) {
    size_t texts = 0;
    for (const char *at = file->metadata; at != file->metadata_end; at += strlen(at) + 1) {
        texts++;
    }
    const char **metadata = ls_allocate_zeroed(texts + 1, sizeof *metadata);
    if (metadata == NULL) {
        return ls_fail_memory(save, (texts + 1) * sizeof *metadata);
    }
    size_t count = 0;
    for (const char *at = file->metadata; at != file->metadata_end; at += strlen(at) + 1) {
        metadata[count++] = at;
    }
    const ls_status status =
        ls_safetensors_save(path, file->tensors.items, file->tensors.count, texts > 0 ? metadata : NULL);
    ls_free(metadata);
    return status;
}

const ls_named_set *ls_safetensors_set(const ls_safetensors *file) {
    static const ls_named_set none;
    return file != NULL ? &file->tensors : &none;
}

/* Fails with LS_ERR_STATE if the file was freed. Returns false for NULL, without an error. */
static bool is_here(const char *call, const ls_safetensors *file) {
    return file != NULL && (!file->freed || ls_fail_freed(call, "file", "ls_safetensors_free") == LS_OK);
}

int ls_safetensors_count(const ls_safetensors *file) {
    return ls_safetensors_set(file)->count;
}

ls_named ls_safetensors_at(const ls_safetensors *file, int index) {
    return is_here("ls_safetensors_at", file) ? ls_named_set_at(&file->tensors, index) : (ls_named){0};
}

ls_tensor *ls_safetensors_find(const ls_safetensors *file, const char *name) {
    return is_here("ls_safetensors_find", file) ? ls_named_set_find(&file->tensors, name) : NULL;
}

const char *ls_safetensors_metadata_at(const ls_safetensors *file, int index, const char **value) {
    for (const char *at = file->metadata; at != file->metadata_end; index--) {
        *value = at + strlen(at) + 1;
        if (index == 0) {
            return at;
        }
        at = *value + strlen(*value) + 1;
    }
    return NULL;
}

const char *ls_safetensors_metadata(const ls_safetensors *file, const char *key) {
    if (key == NULL || !is_here("ls_safetensors_metadata", file)) {
        return NULL;
    }
    const char *own, *value;
    for (int i = 0; (own = ls_safetensors_metadata_at(file, i, &value)) != NULL; i++) {
        if (strcmp(own, key) == 0) {
            return value;
        }
    }
    return NULL;
}
