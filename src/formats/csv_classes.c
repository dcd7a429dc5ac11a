/* The strings of a CSV column: a table sorted by bytes. The index of a string is its class number. */
#include <string.h>

#include "base/freed.h"
#include "base/memory.h"
#include "formats/csv_reader.h"
#include "tensor/scope.h"

enum { MOST_CLASSES = 10000 }; /* a column with more distinct strings contains identifiers or prose */

struct ls_csv_classes {
    char **names; /* sorted */
    int count;
    bool freed;
};

ls_status ls_csv_check_classes(const char *call, const ls_csv_classes *classes) {
    return !classes->freed ? LS_OK : ls_fail_freed(call, "table of classes", "ls_csv_classes_free");
}

static ls_csv_classes *classes_new(const char *call) {
    ls_csv_classes *classes = ls_allocate_zeroed(1, sizeof *classes);
    if (classes == NULL) {
        (void)ls_fail_memory(call, sizeof *classes);
    }
    return classes;
}

/* Returns the index of the first name that is not less than `text`. */
static int search(const ls_csv_classes *classes, const char *text) {
    int low = 0, high = classes->count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (strcmp(classes->names[middle], text) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Adds a string if it is not yet in the table. Returns LS_ERR_FORMAT, without a message, if the table is full. */
static ls_status add(const char *call, ls_csv_classes *classes, const char *text) {
    const int at = search(classes, text);
    if (at < classes->count && strcmp(classes->names[at], text) == 0) {
        return LS_OK;
    }
    if (classes->count == MOST_CLASSES) {
        return LS_ERR_FORMAT;
    }
    char **names = ls_grow(classes->names, (size_t)classes->count, sizeof *names);
    classes->names = names != NULL ? names : classes->names;
    char *copy = names != NULL ? ls_duplicate_string(text) : NULL;
    if (copy == NULL) {
        return ls_fail_memory(call, strlen(text) + 1);
    }
    memmove(names + at + 1, names + at, (size_t)(classes->count - at) * sizeof *names);
    names[at] = copy;
    classes->count++;
    return LS_OK;
}

int ls_csv_classes_count(const ls_csv_classes *classes) {
    return classes != NULL ? classes->count : 0;
}

const char *ls_csv_classes_name(const ls_csv_classes *classes, int64_t number) {
    if (classes == NULL || ls_csv_check_classes("ls_csv_classes_name", classes) != LS_OK) {
        return NULL;
    }
    return number >= 0 && number < classes->count ? classes->names[number] : NULL;
}

int ls_csv_classes_find(const ls_csv_classes *classes, const char *name) {
    if (classes == NULL || name == NULL || ls_csv_check_classes("ls_csv_classes_find", classes) != LS_OK) {
        return -1;
    }
    const int at = search(classes, name);
    return at < classes->count && strcmp(classes->names[at], name) == 0 ? at : -1;
}

void ls_csv_classes_free(ls_csv_classes *classes) {
    if (classes == NULL || classes->freed) {
        return;
    }
    for (int i = 0; i < classes->count; i++) {
        ls_free(classes->names[i]);
    }
    ls_free(classes->names);
    *classes = (ls_csv_classes){.freed = true};
    ls_retire(classes, LS_RETIRED_SINGLE);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static ls_status read_classes(ls_csv_reader *reader, const ls_csv_options *options, ls_csv_columns *columns,
                              const char *name, ls_csv_classes *classes) {
    int fields, wanted = 0;
    LS_TRY(ls_csv_begin(reader, options, columns));
    LS_TRY(ls_csv_find_column(reader, columns, name, &wanted));
    LS_TRY(ls_csv_first_row(reader, columns, &fields));
    while (fields > 0) {
        ls_csv_field field = {0};
        LS_TRY(ls_csv_check_width(reader, columns, fields));
        for (int column = 0; column <= wanted; column++) {
            LS_TRY(ls_csv_read_field(reader, &field));
        }
        LS_TRY(ls_csv_check_text(reader, &field));
        const ls_status added = ls_csv_is_empty(&field) ? LS_OK : add(reader->source.call, classes, field.text);
        if (added == LS_ERR_FORMAT) {
            char what[80];
            snprintf(what, sizeof what, " has more than %d different strings; are they classes?", MOST_CLASSES);
            return ls_csv_field_error(reader, columns, wanted, what);
        }
        LS_TRY(added);
        LS_TRY(ls_csv_next_row(reader, &fields));
    }
    return LS_OK;
}

ls_csv_classes *ls_csv_read_classes(const char *call, const char *path, const char *column,
                                    const ls_csv_options *options) {
    static const ls_csv_options defaults;
    options = options != NULL ? options : &defaults;
    ls_csv_reader reader;
    if (column == NULL) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: the column's name is NULL or empty", call);
    }
    ls_csv_classes *classes = classes_new(call);
    if (classes == NULL || ls_csv_open(call, path, options, &reader) != LS_OK) {
        ls_csv_classes_free(classes);
        return NULL;
    }
    ls_csv_columns columns = {0};
    const ls_status status = read_classes(&reader, options, &columns, column, classes);
    ls_free(columns.names);
    ls_csv_close(&reader);
    if (status != LS_OK) {
        ls_csv_classes_free(classes);
        return NULL;
    }
    return classes;
}

ls_csv_classes *ls_csv_classes_read(const char *path, const char *column, const ls_csv_options *options) {
    return ls_csv_read_classes("ls_csv_classes_read", path, column, options);
}
