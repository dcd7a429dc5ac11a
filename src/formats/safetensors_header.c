#include "formats/safetensors_header.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "formats/file.h"
#include "tensor/tensor.h"

const char *ls_safetensors_dtype_name(ls_dtype dtype) {
    static const char *const names[LS_DTYPE_COUNT] = {
        [LS_F32] = "F32", [LS_F64] = "F64", [LS_BF16] = "BF16", [LS_F16] = "F16",
        [LS_I64] = "I64", [LS_I32] = "I32", [LS_U8] = "U8",     [LS_BOOL] = "BOOL",
    };
    return names[dtype];
}

/* ---- JSON, as far as a header has it -------------------------------------------------------------------------------
 */

/*
 * Texts are decoded in place and laid one behind the other at `packed`, which never passes `at`: a text takes no more
 * bytes decoded, with its zero byte, than it took between quotes.
 */
typedef struct parser {
    const char *path;
    char *begin;
    char *at;
    char *packed;
    const char *tensor; /* whose entry this is, for messages; NULL: it is none */
    const char *field;  /* of the entry */
} parser;

/* Names are as long as whoever wrote the file liked; a message has room for the beginning. */
#define NAME "%.100s"

static ls_status fail_at(const parser *p, const char *expected) {
    char where[160] = "";
    if (p->tensor != NULL) {
        snprintf(where, sizeof where, " (the %s of tensor " NAME ")", p->field, p->tensor);
    }
    return ls_fail(LS_ERR_FORMAT,
                   "ls_safetensors_load: %s: the header is not a JSON object of tensors: at byte %zu%s must be %s",
                   p->path, (size_t)(p->at - p->begin), where, expected);
}

static void skip_space(parser *p) {
    while (*p->at == ' ' || *p->at == '\n' || *p->at == '\r' || *p->at == '\t') {
        p->at++;
    }
}

/* Whether this mark comes next, which is then behind. */
static bool accept(parser *p, char mark) {
    skip_space(p);
    const bool found = *p->at == mark;
    p->at += found;
    return found;
}

static ls_status expect(parser *p, char mark) {
    const char expected[] = {'\'', mark, '\'', '\0'};
    return accept(p, mark) ? LS_OK : fail_at(p, expected);
}

/* The four hexadecimal digits of an escape; UINT32_MAX where they are none. */
static uint32_t read_unit(const char *at) {
    uint32_t unit = 0;
    for (int i = 0; i < 4; i++) {
        const char digit = at[i];
        const bool decimal = digit >= '0' && digit <= '9';
        const char lower = (char)(digit | 0x20);
        if (!decimal && !(lower >= 'a' && lower <= 'f')) {
            return UINT32_MAX;
        }
        unit = unit << 4 | (uint32_t)(decimal ? digit - '0' : lower - 'a' + 10);
    }
    return unit;
}

static char *put_character(char *to, uint32_t c) {
    if (c < 0x80) {
        *to++ = (char)c;
        return to;
    }
    const int tail = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    *to++ = (char)((0xff00U >> (tail + 1) & 0xffU) | c >> (6 * tail));
    for (int i = tail - 1; i >= 0; i--) {
        *to++ = (char)(0x80U | (c >> (6 * i) & 0x3fU));
    }
    return to;
}

/* The character of an escape with digits, of two where it takes a surrogate pair; false where it is none, or zero. */
static bool read_digits(parser *p, uint32_t *c) {
    *c = read_unit(p->at);
    if (*c == UINT32_MAX) {
        return false;
    }
    p->at += 4;
    if (*c >= 0xd800 && *c <= 0xdbff && p->at[0] == '\\' && p->at[1] == 'u') {
        const uint32_t low = read_unit(p->at + 2);
        p->at += 6;
        *c = 0x10000 + ((*c - 0xd800) << 10) + (low - 0xdc00);
        return low >= 0xdc00 && low <= 0xdfff;
    }
    return *c != 0 && (*c < 0xd800 || *c > 0xdfff);
}

/* An escape, behind its backslash. */
static bool read_escape(parser *p, char **to) {
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    const char kind = *p->at++;
    if (kind == 'u') {
        uint32_t c;
        const bool good = read_digits(p, &c);
        *to = good ? put_character(*to, c) : *to;
        return good;
    }
    const char *found = kind != '\0' ? strchr(from, kind) : NULL;
    if (found != NULL) {
        *(*to)++ = into[found - from];
    }
    return found != NULL;
}

/* A text; `*text` stays good. */
static ls_status read_text(parser *p, const char **text) {
    LS_TRY(expect(p, '"'));
    char *to = p->packed;
    *text = to;
    while (*p->at != '"') {
        if (*p->at == '\\') {
            p->at++;
            if (!read_escape(p, &to)) {
                return fail_at(p, "an escape that JSON knows");
            }
            continue;
        }
        uint32_t c;
        const size_t length = ls_text_character(p->at, &c);
        if (length == 0 || c < 0x20) {
            return fail_at(p, "a text of UTF-8 and the '\"' that ends it");
        }
        memmove(to, p->at, length);
        to += length;
        p->at += length;
    }
    p->at++;
    *to++ = '\0';
    p->packed = to;
    return LS_OK;
}

/* A text that is read and forgotten. */
static ls_status read_word(parser *p, const char **word) {
    char *packed = p->packed;
    const ls_status status = read_text(p, word);
    p->packed = packed;
    return status;
}

/* An integer that is not negative. */
static ls_status read_size(parser *p, int64_t *size) {
    skip_space(p);
    const char *first = p->at;
    *size = 0;
    for (; *p->at >= '0' && *p->at <= '9'; p->at++) {
        if (__builtin_mul_overflow(*size, 10, size) || __builtin_add_overflow(*size, *p->at - '0', size)) {
            return fail_at(p, "a size of at most 63 bits");
        }
    }
    const bool good = p->at != first && (*first != '0' || p->at == first + 1);
    return good ? LS_OK : fail_at(p, "a whole number, not negative");
}

/* A list of at most `limit` sizes. */
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
        LS_TRY(read_size(p, &sizes[(*count)++]));
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
    for (int i = 0; i < LS_DTYPE_COUNT; i++) {
        if (strcmp(word, ls_safetensors_dtype_name((ls_dtype)i)) == 0) {
            entry->dtype = (ls_dtype)i;
            return LS_OK;
        }
    }
    return ls_fail(LS_ERR_FORMAT, "ls_safetensors_load: %s: tensor " NAME " has the dtype %.20s, which cannot be read",
                   p->path, entry->name, word);
}

static ls_status check_entry(const parser *p, const ls_safetensors_entry *entry) {
    size_t bytes = 0;
    return ls_shape_bytes(entry->shape, ls_dtype_size(entry->dtype), &bytes) && bytes == entry->end - entry->begin
               ? LS_OK
               : fail_entry(p, entry, "its shape and its data_offsets do not fit together");
}

/* {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, in any order. */
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

/* {"key": "value", ...}: the texts lie side by side, since nothing else is kept in between. */
static ls_status read_metadata(parser *p, ls_safetensors_header *header) {
    if (header->metadata != NULL) {
        return fail_at(p, "one __metadata__ at most");
    }
    header->metadata = p->packed;
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
    header->metadata_end = p->packed;
    return LS_OK;
}

static ls_status read_item(parser *p, size_t data_size, ls_safetensors_header *header) {
    char *packed = p->packed;
    const char *name;
    LS_TRY(read_text(p, &name));
    LS_TRY(expect(p, ':'));
    if (strcmp(name, LS_SAFETENSORS_METADATA) == 0) {
        p->packed = packed;
        return read_metadata(p, header);
    }
    ls_safetensors_entry *entry = NULL;
    LS_TRY(add_entry(header, &entry));
    entry->name = name;
    return read_entry(p, data_size, entry);
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static int by_name(const void *left, const void *right) {
    const ls_safetensors_entry *a = left, *b = right;
    return strcmp(a->name, b->name);
}

/* By place; a tensor without elements comes before the one whose data begins there. */
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
        return ls_fail(LS_ERR_FORMAT, "ls_safetensors_load: %s: %zu bytes of data belong to no tensor", path,
                       data_size - covered);
    }
    return LS_OK;
}

ls_status ls_safetensors_parse(const char *path, char *text, size_t size, size_t data_size,
                               ls_safetensors_header *header) {
    parser p = {.path = path, .begin = text, .at = text, .packed = text};
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
    skip_space(&p);
    if (p.at != text + size) {
        return fail_at(&p, "nothing but space behind its end");
    }
    LS_TRY(check_names(path, header));
    return check_places(path, header, data_size);
}
