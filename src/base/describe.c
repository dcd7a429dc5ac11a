#include "base/describe.h"

#include <stdio.h>

#include "base/hash.h"
#include "base/locale.h"

enum { VALUE_LIMIT = 256 };

/* Writes the fewest digits, but at least six, that are read back as the same number. They are the same in every
 * locale, because the ranks compare the text. */
static void write_real(char value[VALUE_LIMIT], double number) {
    int digits = 6;
    do {
        (void)ls_snprintf(value, VALUE_LIMIT, "%.*g", digits, number);
    } while (ls_strtod(value, NULL) != number && ++digits <= 17);
}

/* Writes the value of a field. Returns false if it is zero or NULL. */
static bool write_value(char value[VALUE_LIMIT], ls_field_kind kind, const void *at) {
    const char *text;
    switch (kind) {
    case LS_FIELD_REAL:
        write_real(value, *(const double *)at);
        return *(const double *)at != 0;
    case LS_FIELD_INT64:
        snprintf(value, VALUE_LIMIT, "%lld", (long long)*(const int64_t *)at);
        return *(const int64_t *)at != 0;
    case LS_FIELD_UINT64:
        snprintf(value, VALUE_LIMIT, "%llu", (unsigned long long)*(const uint64_t *)at);
        return *(const uint64_t *)at != 0;
    case LS_FIELD_INT:
        snprintf(value, VALUE_LIMIT, "%d", *(const int *)at);
        return *(const int *)at != 0;
    case LS_FIELD_UINT:
        snprintf(value, VALUE_LIMIT, "%u", *(const unsigned *)at);
        return *(const unsigned *)at != 0;
    case LS_FIELD_BOOL:
        snprintf(value, VALUE_LIMIT, "%d", *(const bool *)at);
        return *(const bool *)at;
    case LS_FIELD_TEXT:
        text = *(const char *const *)at;
        snprintf(value, VALUE_LIMIT, "\"%s\"", text != NULL ? text : "");
        return text != NULL;
    default:
        return false;
    }
}

void ls_describe(char *text, size_t size, const char *name, const ls_field *fields, const void *options) {
    size_t length = (size_t)snprintf(text, size, "%s", name);
    const char *before = " (";
    for (; fields != NULL && fields->name != NULL && length < size; fields++) {
        char value[VALUE_LIMIT];
        if (write_value(value, fields->kind, (const char *)options + fields->offset)) {
            length += (size_t)snprintf(text + length, size - length, "%s%s %s", before, fields->name, value);
            before = ", ";
        }
    }
    if (before[0] == ',' && length < size) {
        snprintf(text + length, size - length, ")");
    }
}

uint64_t ls_hash_fields(uint64_t hash, const ls_field *fields, const void *options) {
    static const size_t sizes[] = {[LS_FIELD_REAL] = sizeof(double),
                                   [LS_FIELD_INT64] = sizeof(int64_t),
                                   [LS_FIELD_UINT64] = sizeof(uint64_t),
                                   [LS_FIELD_INT] = sizeof(int),
                                   [LS_FIELD_UINT] = sizeof(unsigned),
                                   [LS_FIELD_BOOL] = sizeof(bool),
                                   [LS_FIELD_TEXT] = 0};
    for (; fields != NULL && fields->name != NULL; fields++) {
        hash = ls_hash(hash, (const char *)options + fields->offset, sizes[fields->kind]);
    }
    return hash;
}
