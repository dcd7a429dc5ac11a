/* CSV: a line per row; fields may be quoted, with "" for a quote inside (RFC 4180). */
#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "formats/file.h"
#include "tensor/tensor.h"

/* A text being read. Fields are cut out of it in place. */
typedef struct csv_reader {
    const char *path;
    char *at;
    char *end; /* there stands a final zero */
    char separator;
    int64_t line;
    locale_t locale; /* numbers have points, whatever the program's locale has */
} csv_reader;

typedef struct csv_field {
    char *text;
    bool last; /* of its line */
} csv_field;

static ls_status csv_error(const csv_reader *reader, const char *what) {
    return ls_fail(LS_ERR_FORMAT, "ls_csv_read: %s, line %lld: %s", reader->path, (long long)reader->line, what);
}

/* Takes the text up to the closing quote, undoing doubled ones. */
static ls_status read_quoted(csv_reader *reader, csv_field *field) {
    char *to = ++reader->at;
    field->text = to;
    for (;; reader->at++) {
        if (reader->at >= reader->end) {
            return csv_error(reader, "a quoted field does not end");
        }
        if (*reader->at == '"') {
            if (reader->at[1] != '"') {
                break;
            }
            reader->at++;
        }
        *to++ = *reader->at;
    }
    reader->at++;
    *to = '\0';
    return LS_OK;
}

/* Ends the field at the separator or the end of its line and stands behind that. */
static ls_status finish_field(csv_reader *reader, csv_field *field) {
    char *stop = reader->at;
    const char mark = *stop;
    if (mark != reader->separator && mark != '\n' && mark != '\r' && stop < reader->end) {
        return csv_error(reader, "text follows a closing quote");
    }
    if (mark == '\r' && stop[1] == '\n') {
        reader->at++;
    }
    *stop = '\0';
    if (reader->at < reader->end) {
        reader->at++;
    }
    field->last = mark != reader->separator || stop >= reader->end;
    return LS_OK;
}

static ls_status read_field(csv_reader *reader, csv_field *field) {
    while (*reader->at == ' ' && reader->separator != ' ') {
        reader->at++;
    }
    if (*reader->at == '"') {
        LS_TRY(read_quoted(reader, field));
    } else {
        field->text = reader->at;
        while (reader->at < reader->end && *reader->at != reader->separator && *reader->at != '\n' &&
               !(*reader->at == '\r' && reader->at[1] == '\n')) {
            reader->at++;
        }
    }
    return finish_field(reader, field);
}

static bool at_blank_line(const csv_reader *reader) {
    return reader->at < reader->end && (*reader->at == '\n' || (*reader->at == '\r' && reader->at[1] == '\n'));
}

static void skip_blank_lines(csv_reader *reader) {
    while (at_blank_line(reader)) {
        reader->at += *reader->at == '\r' ? 2 : 1;
        reader->line++;
    }
}

/* Numbers gathered row by row. */
typedef struct csv_table {
    double *numbers;
    size_t count;
    size_t capacity;
    int64_t rows;
    int width; /* fields in a line */
    int *take; /* take[i]: where field i goes in the row, -1 for nowhere */
    int taken;
} csv_table;

static ls_status reserve(csv_table *table) {
    if (table->count + (size_t)table->taken <= table->capacity) {
        return LS_OK;
    }
    const size_t capacity = 2 * (table->capacity + (size_t)table->taken);
    double *numbers = ls_reallocate(table->numbers, table->count * sizeof(double), capacity * sizeof(double));
    if (numbers == NULL) {
        return ls_fail_memory("ls_csv_read", capacity * sizeof(double));
    }
    table->numbers = numbers;
    table->capacity = capacity;
    return LS_OK;
}

static ls_status parse_number(const csv_reader *reader, const char *text, int column, double *number) {
    char *end;
    *number = strtod_l(text, &end, reader->locale);
    while (*end == ' ' || *end == '\t') {
        end++;
    }
    if (end == text || *end != '\0') {
        return ls_fail(LS_ERR_FORMAT, "ls_csv_read: %s, line %lld, column %d: \"%.40s\" is not a number", reader->path,
                       (long long)reader->line, column + 1, text);
    }
    return LS_OK;
}

static ls_status read_row(csv_reader *reader, csv_table *table) {
    LS_TRY(reserve(table));
    csv_field field = {0};
    int column = 0;
    for (; !field.last; column++) {
        LS_TRY(read_field(reader, &field));
        if (column < table->width && table->take[column] >= 0) {
            LS_TRY(
                parse_number(reader, field.text, column, &table->numbers[table->count + (size_t)table->take[column]]));
        }
    }
    if (column != table->width) {
        return ls_fail(LS_ERR_FORMAT, "ls_csv_read: %s, line %lld: %d fields where the first line has %d", reader->path,
                       (long long)reader->line, column, table->width);
    }
    table->count += (size_t)table->taken;
    table->rows++;
    reader->line++;
    return LS_OK;
}

/* ---- which columns ------------------------------------------------------------------------------------------------
 */

static bool column_is(const char *name, const char *wanted, int index, bool no_header) {
    if (!no_header) {
        return strcmp(name, wanted) == 0;
    }
    char number[16];
    snprintf(number, sizeof number, "%d", index);
    return strcmp(number, wanted) == 0;
}

/* Which of the named columns this is, -1 for none of them. */
static int find_wanted(const ls_csv_options *options, const char *name, int index) {
    for (int wanted = 0; options->columns != NULL && wanted < options->column_count; wanted++) {
        if (column_is(name, options->columns[wanted], index, options->no_header)) {
            return wanted;
        }
    }
    return -1;
}

/* Notes where each wanted column stands in this first line. */
static ls_status match_columns(csv_reader reader, const ls_csv_options *options, csv_table *table, int *found) {
    csv_field field = {0};
    for (int column = 0; !field.last; column++) {
        LS_TRY(read_field(&reader, &field));
        if (column >= table->width) {
            return csv_error(&reader, "a quote stands in the middle of a field");
        }
        const int wanted = find_wanted(options, field.text, column);
        if (wanted >= 0) {
            found[wanted]++;
        }
        const bool by_place = options->columns == NULL || options->all_but;
        const bool taken = by_place ? wanted < 0 : wanted >= 0;
        table->take[column] = !taken ? -1 : by_place ? table->taken : wanted;
        table->taken += taken;
    }
    return LS_OK;
}

static ls_status check_found(const csv_reader *reader, const ls_csv_options *options, const int *found) {
    for (int wanted = 0; options->columns != NULL && wanted < options->column_count; wanted++) {
        if (found[wanted] != 1) {
            return ls_fail(LS_ERR_FORMAT, "ls_csv_read: %s has %s column named \"%s\"", reader->path,
                           found[wanted] == 0 ? "no" : "more than one", options->columns[wanted]);
        }
    }
    return LS_OK;
}

/* Reading cuts fields out in place, so the first line is looked at in a copy when it is data too. */
static ls_status plan_columns(csv_reader *reader, const ls_csv_options *options, csv_table *table) {
    char *line_end = reader->at;
    bool quoted = false;
    table->width = 1;
    for (; line_end < reader->end && (quoted || *line_end != '\n'); line_end++) {
        quoted = *line_end == '"' ? !quoted : quoted;
        table->width += !quoted && *line_end == reader->separator;
    }
    const size_t size = (size_t)(line_end - reader->at);
    char *copy = ls_allocate(size + 2);
    int *found = ls_allocate_zeroed((size_t)options->column_count + 1, sizeof *found);
    table->take = ls_allocate_zeroed((size_t)table->width, sizeof *table->take);
    ls_status status = LS_OK;
    if (copy == NULL || found == NULL || table->take == NULL) {
        status = ls_fail_memory("ls_csv_read", size);
    } else {
        memcpy(copy, reader->at, size);
        copy[size] = '\n';
        copy[size + 1] = '\0';
        csv_reader first = *reader;
        first.at = copy;
        first.end = copy + size;
        status = match_columns(first, options, table, found);
    }
    if (status == LS_OK) {
        status = check_found(reader, options, found);
    }
    if (status == LS_OK && !options->no_header) {
        reader->at = line_end < reader->end ? line_end + 1 : line_end;
        reader->line++;
    }
    ls_free(copy);
    ls_free(found);
    return status;
}

/* Some editors begin UTF-8 files with a mark. Other encodings have zero bytes, which would end fields early. */
static ls_status check_text(csv_reader *reader) {
    static const char byte_order_mark[] = "\xEF\xBB\xBF";
    const size_t size = (size_t)(reader->end - reader->at);
    if (memchr(reader->at, '\0', size) != NULL) {
        return ls_fail(LS_ERR_FORMAT, "ls_csv_read: %s holds zero bytes: it is not UTF-8 text", reader->path);
    }
    if (strncmp(reader->at, byte_order_mark, strlen(byte_order_mark)) == 0) {
        reader->at += strlen(byte_order_mark);
    }
    return LS_OK;
}

static ls_status read_table(csv_reader *reader, const ls_csv_options *options, csv_table *table) {
    LS_TRY(check_text(reader));
    skip_blank_lines(reader);
    if (reader->at >= reader->end) {
        return ls_fail(LS_ERR_FORMAT, "ls_csv_read: %s is empty", reader->path);
    }
    LS_TRY(plan_columns(reader, options, table));
    for (skip_blank_lines(reader); reader->at < reader->end; skip_blank_lines(reader)) {
        LS_TRY(read_row(reader, table));
    }
    return LS_OK;
}

static ls_tensor *to_tensor(const csv_table *table, ls_dtype dtype) {
    ls_tensor *tensor = ls_empty(LS_SHAPE(table->rows, table->taken), dtype);
    if (tensor == NULL || table->count == 0) {
        return tensor;
    }
    const ls_shape shape = ls_shape_of(tensor);
    ls_tensor *numbers = ls_tensor_take(ls_from_memory(shape, LS_F64, table->numbers, NULL, NULL));
    if (numbers == NULL || ls_copy_into(tensor, numbers) != LS_OK) {
        ls_release(tensor);
        tensor = NULL;
    }
    ls_tensor_drop(numbers);
    return tensor;
}

ls_tensor *ls_csv_read(const char *path, const ls_csv_options *options) {
    static const ls_csv_options defaults;
    options = options != NULL ? options : &defaults;
    if (options->column_count < 0 || (options->columns == NULL && options->column_count > 0)) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_csv_read: %d columns are wanted but not named", options->column_count);
    }
    ls_bytes bytes;
    if (ls_file_read("ls_csv_read", path, &bytes) != LS_OK) {
        return NULL;
    }
    char *text = ls_reallocate(bytes.data, bytes.size, bytes.size + 2);
    if (text == NULL) {
        ls_free(bytes.data);
        (void)ls_fail_memory("ls_csv_read", bytes.size + 2);
        return NULL;
    }
    text[bytes.size] = '\0';
    text[bytes.size + 1] = '\0';
    const locale_t locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (locale == (locale_t)0) {
        ls_free(text);
        (void)ls_fail_memory("ls_csv_read", sizeof locale);
        return NULL;
    }
    csv_reader reader = {.path = path,
                         .at = text,
                         .end = text + bytes.size,
                         .separator = options->separator != '\0' ? options->separator : ',',
                         .line = 1,
                         .locale = locale};
    csv_table table = {0};
    ls_tensor *tensor = NULL;
    if (read_table(&reader, options, &table) == LS_OK) {
        tensor = to_tensor(&table, options->dtype);
    }
    freelocale(locale);
    ls_free(table.numbers);
    ls_free(table.take);
    ls_free(text);
    return tensor;
}
