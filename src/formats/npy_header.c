#include <string.h>

#include "formats/npy.h"

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct header_parser {
    const ls_source *source;
    const char *begin;
    const char *at;
} header_parser;

static ls_status fail_at(const header_parser *p, const char *expected) {
    return ls_fail(LS_ERR_FORMAT, "%s: %s: its header is not a NumPy header: at byte %zu, %s was expected",
                   p->source->call, p->source->path, (size_t)(p->at - p->begin), expected);
}

static void skip_space(header_parser *p) {
    while (*p->at == ' ' || *p->at == '\n' || *p->at == '\t') {
        p->at++;
    }
}

/* Skips `mark` if it comes next, and returns whether it did. */
static bool accept(header_parser *p, char mark) {
    skip_space(p);
    const bool found = *p->at == mark;
    p->at += found;
    return found;
}

static ls_status expect(header_parser *p, char mark) {
    const char expected[] = {'\'', mark, '\'', '\0'};
    return accept(p, mark) ? LS_OK : fail_at(p, expected);
}

/* Reads a string of fewer than `room` bytes in single or double quotes, without escapes. */
static ls_status read_text(header_parser *p, char *text, size_t room) {
    skip_space(p);
    const char quote = *p->at;
    if (quote != '\'' && quote != '"') {
        return fail_at(p, "a text");
    }
    const char ends[] = {quote, '\\', '\n', '\0'};
    const size_t length = strcspn(p->at + 1, ends);
    if (p->at[1 + length] != quote || length >= room) {
        return fail_at(p, "a short text");
    }
    memcpy(text, p->at + 1, length);
    text[length] = '\0';
    p->at += length + 2;
    return LS_OK;
}

static ls_status read_descr(header_parser *p, ls_npy_header *header) {
    char text[32];
    if (accept(p, '[')) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "%s: %s: its elements are records, which a tensor cannot hold: save each field as an array",
                       p->source->call, p->source->path);
    }
    LS_TRY(read_text(p, text, sizeof text));
    const bool ordered = text[0] != '\0' && strchr("<>|", text[0]) != NULL;
    const ls_element *element = ordered ? ls_element_of_numpy(text + 1) : NULL;
    if (element != NULL && (text[0] != '|' || element->bytes == 1)) {
        header->element = element;
        header->big_endian = text[0] == '>';
        return LS_OK;
    }
    return ls_fail(LS_ERR_UNSUPPORTED,
                   "%s: %s: its elements are '%s', which a tensor cannot hold: convert them to floating-point numbers, "
                   "integers or bool (astype)",
                   p->source->call, p->source->path, text);
}

static ls_status read_order(header_parser *p, ls_npy_header *header) {
    static const char *const words[] = {"False", "True"};
    skip_space(p);
    for (int i = 0; i < 2; i++) {
        const size_t length = strlen(words[i]);
        if (strncmp(p->at, words[i], length) == 0) {
            header->fortran_order = i == 1;
            p->at += length;
            return LS_OK;
        }
    }
    return fail_at(p, "True or False");
}

/* Reads a non-negative integer. Python 2 appended an L to large integers. */
static ls_status read_size(header_parser *p, int64_t *size) {
    skip_space(p);
    const char *first = p->at;
    *size = 0;
    for (; *p->at >= '0' && *p->at <= '9'; p->at++) {
        if (__builtin_mul_overflow(*size, 10, size) || __builtin_add_overflow(*size, *p->at - '0', size)) {
            return fail_at(p, "a size of at most 63 bits");
        }
    }
    if (p->at == first) {
        return fail_at(p, "a whole number, not negative");
    }
    p->at += *p->at == 'L';
    return LS_OK;
}

/* Reads a Python tuple: (), (2,) or (2, 3). (2) is not a tuple in Python. */
static ls_status read_shape(header_parser *p, ls_npy_header *header) {
    ls_shape *shape = &header->shape;
    LS_TRY(expect(p, '('));
    while (!accept(p, ')')) {
        if (shape->ndim == LS_MAX_DIMS) {
            return ls_fail(LS_ERR_UNSUPPORTED, "%s: %s: the array has more than %d axes, which a tensor cannot hold",
                           p->source->call, p->source->path, LS_MAX_DIMS);
        }
        LS_TRY(read_size(p, &shape->size[shape->ndim++]));
        const bool comma = accept(p, ',');
        if (!comma && shape->ndim == 1) {
            return fail_at(p, "','");
        }
        if (!comma) {
            return expect(p, ')');
        }
    }
    return LS_OK;
}

/* Reads the entries, in any order. Each must occur exactly once. */
static ls_status read_entries(header_parser *p, ls_npy_header *header) {
    static const struct {
        const char *name;
        ls_status (*read)(header_parser *p, ls_npy_header *header);
    } entries[] = {{"descr", read_descr}, {"fortran_order", read_order}, {"shape", read_shape}};
    enum { ENTRIES = sizeof entries / sizeof *entries };
    bool seen[ENTRIES] = {false};
    for (int count = 0; count < ENTRIES; count++) {
        char word[16];
        LS_TRY(read_text(p, word, sizeof word));
        int which = 0;
        while (which < ENTRIES && strcmp(word, entries[which].name) != 0) {
            which++;
        }
        if (which == ENTRIES || seen[which]) {
            return fail_at(p, "the end of descr, fortran_order or shape, once each");
        }
        seen[which] = true;
        LS_TRY(expect(p, ':'));
        LS_TRY(entries[which].read(p, header));
        if (!accept(p, ',') && count + 1 < ENTRIES) {
            return fail_at(p, "','");
        }
    }
    return LS_OK;
}

ls_status ls_npy_parse(const ls_source *source, const char *text, size_t size, ls_npy_header *header) {
    header_parser p = {.source = source, .begin = text, .at = text};
    *header = (ls_npy_header){.shape.ndim = 0};
    LS_TRY(expect(&p, '{'));
    LS_TRY(read_entries(&p, header));
    LS_TRY(expect(&p, '}'));
    skip_space(&p);
    if (p.at != text + size) {
        return fail_at(&p, "nothing but space");
    }
    return ls_shape_bytes(header->shape, header->element->bytes, &header->bytes)
               ? LS_OK
               : ls_fail(LS_ERR_FORMAT, "%s: %s has an impossible header: the product of its sizes is too large",
                         source->call, source->path);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Uses NumPy's layout: version 1.0, padded with spaces to a multiple of 64 bytes including a final newline. */
size_t ls_npy_head(const char *call, const ls_tensor *tensor, char head[LS_NPY_HEAD]) {
    enum { FRONT = 10, ALIGNMENT = 64 };
    const ls_dtype dtype = ls_dtype_of(tensor);
    const char *name = ls_element_of_dtype(dtype)->numpy;
    if (name == NULL) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: NumPy has no %s; convert the tensor with ls_to", call,
                      ls_dtype_name(dtype));
        return 0;
    }
    size_t size = FRONT;
    size += (size_t)snprintf(head + size, LS_NPY_HEAD - size, "{'descr': '%c%s', 'fortran_order': False, 'shape': (",
                             ls_dtype_size(dtype) > 1 ? '<' : '|', name);
    for (int i = 0; i < ls_ndim(tensor); i++) {
        size +=
            (size_t)snprintf(head + size, LS_NPY_HEAD - size, "%s%lld%s", i > 0 ? " " : "",
                             (long long)ls_size(tensor, i), ls_ndim(tensor) == 1 || i + 1 < ls_ndim(tensor) ? "," : "");
    }
    size += (size_t)snprintf(head + size, LS_NPY_HEAD - size, "), }");
    const size_t whole = (size + 1 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    memset(head + size, ' ', whole - size);
    head[whole - 1] = '\n';
    const size_t length = whole - FRONT;
    const char front[FRONT] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, (char)(length & 0xff), (char)(length >> 8)};
    memcpy(head, front, FRONT);
    return whole;
}
