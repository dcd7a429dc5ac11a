#include "formats/safetensors_header.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "formats/file.h"
#include "formats/json.h"
#include "tensor/tensor.h"

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

typedef struct parser {
    ls_json json;
    const char *path;
    const char *tensor; /* the tensor of this entry, for messages; NULL outside tensor entries */
    const char *field;  /* the current field of the entry */
} parser;

/* Names in files may have any length. Messages show only the beginning. */
#define NAME "%.100s"

static ls_status fail_at(const parser *p, const char *expected) {
    char where[160] = "";
    if (p->tensor != NULL) {
        snprintf(where, sizeof where, " (the %s of tensor " NAME ")", p->field, p->tensor);
    }
    return ls_fail(
        LS_ERR_FORMAT,
        "ls_safetensors_load: %s: the header is not a JSON object of tensors: at byte %zu%s, %s was expected", p->path,
        ls_json_position(&p->json), where, expected);
}

static ls_status check(const parser *p, bool read) {
    return read ? LS_OK : fail_at(p, p->json.expected);
}

static bool accept(parser *p, char mark) {
    return ls_json_accept(&p->json, mark);
}

static ls_status expect(parser *p, char mark) {
    return check(p, ls_json_expect(&p->json, mark));
}

static ls_status read_text(parser *p, const char **text) {
    return check(p, ls_json_text(&p->json, text));
}

static ls_status read_word(parser *p, const char **word) {
    return check(p, ls_json_word(&p->json, word));
}

/* Reads a list of at most `limit` sizes. */
static ls_status read_sizes(parser *p, int64_t *sizes, int limit, int *count) {
    LS_TRY(expect(p, '['));
    *count = 0;
    if (accept(p, ']')) {
        return LS_OK;
    }
    do {
        if (*count == limit) {
            return fail_at(p, limit == 2 ? "the end of two numbers" : "the end of at most 8 sizes");
        }
        LS_TRY(check(p, ls_json_size(&p->json, &sizes[(*count)++])));
    } while (accept(p, ','));
    return expect(p, ']');
}

/* ---- entries ----------------------------------------------------------------------------------------------------- */

static ls_status fail_entry(const parser *p, const ls_safetensors_entry *entry, const char *wrong) {
    return ls_fail(LS_ERR_FORMAT, "ls_safetensors_load: %s: tensor " NAME ": %s", p->path, entry->name, wrong);
}

static ls_status read_dtype(parser *p, ls_safetensors_entry *entry) {
    const char *word;
    LS_TRY(read_word(p, &word));
    entry->element = ls_element_of_safetensors(word);
    snprintf(entry->dtype, sizeof entry->dtype, "%s", word);
    return LS_OK;
}

static ls_status check_entry(const parser *p, const ls_safetensors_entry *entry) {
    size_t bytes = 0;
    if (entry->element == NULL) {
        return LS_OK;
    }
    return ls_shape_bytes(entry->shape, entry->element->bytes, &bytes) && bytes == entry->end - entry->begin
               ? LS_OK
               : fail_entry(p, entry, "its shape and its data_offsets do not fit together");
}

/* Reads {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, in any order. */
static ls_status read_entry(parser *p, size_t data_size, ls_safetensors_entry *entry) {
    static const char *const words[] = {"dtype", "shape", "data_offsets"};
    enum { DTYPE, SHAPE, OFFSETS, WORDS };
    bool seen[WORDS] = {false};
    int64_t offsets[2] = {0};
    int count = 0;
    p->tensor = entry->name;
    p->field = "entry";
    LS_TRY(expect(p, '{'));
    do {
        const char *word;
        LS_TRY(read_word(p, &word));
        int which = 0;
        while (which < WORDS && strcmp(word, words[which]) != 0) {
            which++;
        }
        if (which == WORDS || seen[which]) {
            return fail_entry(p, entry, "it must have a dtype, a shape and data_offsets, and nothing else");
        }
        seen[which] = true;
        p->field = words[which];
        LS_TRY(expect(p, ':'));
        LS_TRY(which == DTYPE   ? read_dtype(p, entry)
               : which == SHAPE ? read_sizes(p, entry->shape.size, LS_MAX_DIMS, &entry->shape.ndim)
                                : read_sizes(p, offsets, 2, &count));
        p->field = "entry";
    } while (accept(p, ','));
    LS_TRY(expect(p, '}'));
    p->tensor = NULL;
    if (!seen[DTYPE] || !seen[SHAPE] || !seen[OFFSETS]) {
        return fail_entry(p, entry, "it must have a dtype, a shape and data_offsets, and nothing else");
    }
    if (count != 2 || offsets[0] > offsets[1] || (size_t)offsets[1] > data_size) {
        return fail_entry(p, entry, "its data_offsets do not lie in the file");
    }
    entry->begin = (size_t)offsets[0];
    entry->end = (size_t)offsets[1];
    return check_entry(p, entry);
}

static ls_status add_entry(ls_safetensors_header *header, ls_safetensors_entry **entry) {
    ls_safetensors_entry *entries = ls_grow(header->entries, header->count, sizeof *entries);
    if (entries == NULL) {
        return ls_fail_memory("ls_safetensors_load", (header->count + 1) * sizeof *entries);
    }
    header->entries = entries;
    *entry = &header->entries[header->count++];
    **entry = (ls_safetensors_entry){0};
    return LS_OK;
}

/* Reads {"key": "value", ...}. The strings are adjacent in memory, because no other string is kept between them. */
static ls_status read_metadata(parser *p, ls_safetensors_header *header) {
    if (header->metadata != NULL) {
        return fail_at(p, "one __metadata__ at most");
    }
    header->metadata = p->json.packed;
    LS_TRY(expect(p, '{'));
    if (!accept(p, '}')) {
        do {
            const char *text;
            LS_TRY(read_text(p, &text));
            LS_TRY(expect(p, ':'));
            LS_TRY(read_text(p, &text));
        } while (accept(p, ','));
        LS_TRY(expect(p, '}'));
    }
    header->metadata_end = p->json.packed;
    return LS_OK;
}

static ls_status read_item(parser *p, size_t data_size, ls_safetensors_header *header) {
    char *packed = p->json.packed;
    const char *name;
    LS_TRY(read_text(p, &name));
    LS_TRY(expect(p, ':'));
    if (strcmp(name, LS_SAFETENSORS_METADATA) == 0) {
        p->json.packed = packed;
        return read_metadata(p, header);
    }
    ls_safetensors_entry *entry = NULL;
    LS_TRY(add_entry(header, &entry));
    entry->name = name;
    return read_entry(p, data_size, entry);
}

/* ---- the whole header -------------------------------------------------------------------------------------------- */

static int by_name(const void *left, const void *right) {
    const ls_safetensors_entry *a = left, *b = right;
    return strcmp(a->name, b->name);
}

/* Sorts by offset. At equal offsets, a tensor without elements comes first. */
static int by_place(const void *left, const void *right) {
    const ls_safetensors_entry *a = left, *b = right;
    return a->begin != b->begin ? (a->begin > b->begin) - (a->begin < b->begin) : (a->end > b->end) - (a->end < b->end);
}

static void sort(ls_safetensors_header *header, int (*order)(const void *, const void *)) {
    if (header->count > 1) {
        qsort(header->entries, header->count, sizeof *header->entries, order);
    }
}

static ls_status check_names(const char *path, ls_safetensors_header *header) {
    sort(header, by_name);
    for (size_t i = 1; i < header->count; i++) {
        if (strcmp(header->entries[i - 1].name, header->entries[i].name) == 0) {
            return ls_fail(LS_ERR_FORMAT, "ls_safetensors_load: %s: two tensors are named " NAME, path,
                           header->entries[i].name);
        }
    }
    return LS_OK;
}

static ls_status check_places(const char *path, ls_safetensors_header *header, size_t data_size) {
    size_t covered = 0;
    sort(header, by_place);
    for (size_t i = 0; i < header->count; i++) {
        const ls_safetensors_entry *here = &header->entries[i], *next = here + 1;
        covered += here->end - here->begin;
        if (i + 1 < header->count && here->end > next->begin) {
            return ls_fail(LS_ERR_FORMAT, "ls_safetensors_load: %s: the data of " NAME " and " NAME " overlap", path,
                           here->name, next->name);
        }
    }
    if (covered != data_size) {
        return ls_fail(LS_ERR_FORMAT, "ls_safetensors_load: %s: %zu bytes of data do not belong to a tensor", path,
                       data_size - covered);
    }
    return LS_OK;
}

ls_status ls_safetensors_parse(const char *path, char *text, size_t size, size_t data_size,
                               ls_safetensors_header *header) {
    parser p = {.json = ls_json_of(text), .path = path};
    *header = (ls_safetensors_header){0};
    if (!accept(&p, '{')) {
        return ls_fail(LS_ERR_FORMAT, "ls_safetensors_load: %s: the header is not a JSON object", path);
    }
    if (!accept(&p, '}')) {
        do {
            LS_TRY(read_item(&p, data_size, header));
        } while (accept(&p, ','));
        LS_TRY(expect(&p, '}'));
    }
    LS_TRY(check(&p, ls_json_end(&p.json, size)));
    LS_TRY(check_names(path, header));
    return check_places(path, header, data_size);
}
