/* CSV: a line per row; fields may be quoted, with "" for a quote inside (RFC 4180). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/locale.h"
#include "base/memory.h"
#include "base/option.h"
#include "formats/csv_classes.h"
#include "formats/file.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

enum {
    FIRST_CAPACITY = 1 << 16,
    LINE_LIMIT = 1 << 24,
    BLOCK = 1 << 15 /* numbers in a block, where a row has less */
};

/* A text being read line by line. Fields are cut out of a line in place. */
typedef struct csv_reader {
    ls_source source;
    char *buffer;
    size_t capacity; /* two bytes more are there */
    size_t next;     /* where the next line begins */
    size_t filled;   /* behind it stand two zero bytes */
    bool ended;      /* the file has no more */
    char *at;        /* in the present line */
    char *end;       /* of it: there stands a zero */
    char separator;
    int64_t line;      /* of the file, from 1 */
    int64_t next_line; /* the line in which the next row begins */
} csv_reader;

typedef struct csv_field {
    char *text;
    bool quoted;
} csv_field;

static ls_status csv_error(const csv_reader *reader, const char *what) {
    return ls_fail(LS_ERR_FORMAT, "ls_csv_read: %s, line %lld: %s", reader->source.path, (long long)reader->line, what);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* Makes room for more of the line that begins the buffer. */
static ls_status grow(csv_reader *reader) {
    if (reader->capacity >= LINE_LIMIT) {
        return csv_error(reader, "a line has more than 16 MiB");
    }
    const size_t capacity = reader->capacity > 0 ? 2 * reader->capacity : FIRST_CAPACITY;
    char *buffer = ls_reallocate(reader->buffer, reader->filled, capacity + 2);
    if (buffer == NULL) {
        return ls_fail_memory("ls_csv_read", capacity + 2);
    }
    reader->buffer = buffer;
    reader->capacity = capacity;
    return LS_OK;
}

/* More of the file. Only UTF-8 is read: other encodings have zero bytes, which would end fields early. */
static ls_status refill(csv_reader *reader) {
    if (reader->next > 0) {
        reader->filled -= reader->next;
        memmove(reader->buffer, reader->buffer + reader->next, reader->filled);
        reader->next = 0;
    }
    if (reader->filled == reader->capacity) {
        LS_TRY(grow(reader));
    }
    char *to = reader->buffer + reader->filled;
    const size_t room = reader->capacity - reader->filled;
    size_t got;
    LS_TRY(ls_source_read(&reader->source, to, room, &got));
    if (memchr(to, '\0', got) != NULL) {
        return ls_fail(LS_ERR_FORMAT, "ls_csv_read: %s holds zero bytes: it is not UTF-8 text", reader->source.path);
    }
    to[got] = to[got + 1] = '\0';
    reader->filled += got;
    reader->ended = got < room;
    return LS_OK;
}

/* The newline that ends the row at `from`, one in quotes is none; NULL: the buffer has none. A row has `*fields`, in
 * `*lines` of the file. */
static char *find_newline(const csv_reader *reader, char *from, int *fields, int64_t *lines) {
    bool quoted = false, begins = true; /* a field */
    *fields = 1;
    *lines = 1;
    for (char *at = from; *at != '\0'; at++) {
        if (quoted) {
            *lines += *at == '\n';
            if (*at == '"' && at[1] == '"') {
                at++;
            } else if (*at == '"') {
                quoted = false;
            }
        } else if (*at == '\n') {
            return at;
        } else if (*at == reader->separator) {
            *fields += 1;
            begins = true;
        } else if (*at == '"' && begins) {
            quoted = true;
            begins = false;
        } else if (*at != ' ') {
            begins = false;
        }
    }
    return NULL;
}

/* Cuts out the next row that is not a blank line; `*fields` in it, 0 at the end of the file. */
static ls_status next_row(csv_reader *reader, int *fields) {
    for (;;) {
        int64_t lines = 0;
        char *from = reader->buffer + reader->next;
        char *newline = find_newline(reader, from, fields, &lines);
        if (newline == NULL && !reader->ended) {
            LS_TRY(refill(reader));
            continue;
        }
        reader->line = reader->next_line;
        reader->next_line += lines;
        reader->at = from;
        reader->end = newline != NULL ? newline : reader->buffer + reader->filled;
        reader->next = (size_t)(reader->end - reader->buffer) + (newline != NULL);
        if (newline != NULL && newline > from && newline[-1] == '\r') {
            reader->end--;
        }
        *reader->end = '\0';
        if (reader->end > from) {
            return LS_OK;
        }
        if (newline == NULL) {
            *fields = 0;
            return LS_OK;
        }
    }
}

/* ---- fields ------------------------------------------------------------------------------------------------------ */

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

/* Spaces around the text do not belong to it. */
static void read_plain(csv_reader *reader, csv_field *field) {
    field->text = reader->at;
    while (reader->at < reader->end && *reader->at != reader->separator) {
        reader->at++;
    }
    char *end = reader->at;
    while (end > field->text && end[-1] == ' ') {
        *--end = '\0';
    }
}

static ls_status read_field(csv_reader *reader, csv_field *field) {
    while (*reader->at == ' ' && reader->separator != ' ') {
        reader->at++;
    }
    field->quoted = *reader->at == '"';
    if (field->quoted) {
        LS_TRY(read_quoted(reader, field));
    } else {
        read_plain(reader, field);
    }
    if (reader->at < reader->end && *reader->at != reader->separator) {
        return csv_error(reader, "text follows a closing quote");
    }
    const bool last = reader->at >= reader->end;
    *reader->at = '\0';
    reader->at += !last;
    return LS_OK;
}

static bool is_empty(const csv_field *field) {
    return field->text[strspn(field->text, " \t")] == '\0';
}

/* A name or a text: a quote in the middle of one would end it elsewhere for other programs. */
static ls_status check_text(const csv_reader *reader, const csv_field *field) {
    return field->quoted || strchr(field->text, '"') == NULL
               ? LS_OK
               : csv_error(reader, "a quote stands in the middle of a field");
}

/* ---- columns ----------------------------------------------------------------------------------------------------- */

enum { NAME_ROOM = 64, NAMES_ROOM = 200 }; /* of names in messages */

/* The names of the columns, one after another, each ended by a zero. Without a header the names are numbers. */
typedef struct csv_columns {
    int count;
    char *names; /* NULL: there is no header */
} csv_columns;

/* Reads the header, or nothing if there is none. The present row is the first one. */
static ls_status read_header(csv_reader *reader, const ls_csv_options *options, csv_columns *columns) {
    if (options->no_header) {
        return LS_OK;
    }
    const size_t size = (size_t)(reader->end - reader->at) + 2;
    char *to = columns->names = ls_allocate(size);
    if (to == NULL) {
        return ls_fail_memory("ls_csv_read", size);
    }
    for (int i = 0; i < columns->count; i++) {
        csv_field field;
        LS_TRY(read_field(reader, &field));
        LS_TRY(check_text(reader, &field));
        const size_t length = strlen(field.text) + 1;
        memcpy(to, field.text, length);
        to += length;
    }
    return LS_OK;
}

/* For messages: the name of a column, shortened if it is long. */
static const char *column_name(const csv_columns *columns, int index, char name[NAME_ROOM]) {
    const char *at = columns->names;
    for (int i = 0; at != NULL && i < index; i++) {
        at += strlen(at) + 1;
    }
    if (at != NULL) {
        snprintf(name, NAME_ROOM, "%.*s", NAME_ROOM - 1, at);
    } else {
        snprintf(name, NAME_ROOM, "%d", index);
    }
    return name;
}

/* For messages: the names of all columns, as many as there is room for. */
static void list_columns(const csv_columns *columns, char list[NAMES_ROOM]) {
    size_t length = 0;
    const char *at = columns->names;
    list[0] = '\0';
    for (int i = 0; i < columns->count && length < NAMES_ROOM - 1; i++) {
        const char *comma = i > 0 ? ", " : "";
        const int added = at != NULL ? snprintf(list + length, NAMES_ROOM - length, "%s%s", comma, at)
                                     : snprintf(list + length, NAMES_ROOM - length, "%s%d", comma, i);
        length += (size_t)added;
        at = at != NULL ? at + strlen(at) + 1 : NULL;
    }
}

/* The column of that name, or, if no column has it, of that number. */
static ls_status find_column(const csv_reader *reader, const csv_columns *columns, const char *wanted, int *index) {
    int found = 0;
    const char *at = columns->names;
    for (int i = 0; at != NULL && i < columns->count; i++, at += strlen(at) + 1) {
        if (strcmp(at, wanted) == 0) {
            *index = i;
            found++;
        }
    }
    char *end;
    errno = 0;
    const long number = wanted[0] >= '0' && wanted[0] <= '9' ? strtol(wanted, &end, 10) : -1;
    if (found == 0 && number >= 0 && *end == '\0' && errno == 0 && number < columns->count) {
        *index = (int)number;
        found = 1;
    }
    if (found == 1) {
        return LS_OK;
    }
    char list[NAMES_ROOM];
    list_columns(columns, list);
    return ls_fail(LS_ERR_FORMAT, "ls_csv_read: %s has %s column named \"%.*s\"; columns: %s", reader->source.path,
                   found == 0 ? "no" : "more than one", NAME_ROOM - 1, wanted, list);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* A column of text. */
typedef struct csv_text {
    int column;
    const ls_csv_classes *classes;
    ls_csv_classes *own; /* the same, if they were read from this file */
} csv_text;

/* Numbers gathered row by row, and converted block by block: so that they are there twice at most. */
typedef struct csv_table {
    ls_dtype dtype;
    double empty; /* the value of an empty field; INFINITY: it is refused */
    csv_columns columns;
    int *take; /* take[i]: where field i goes in the row, -1 for nowhere */
    int taken;
    csv_text *texts;
    int text_count;
    double *numbers; /* rows of the next block */
    int64_t pending; /* so many */
    int64_t rows;    /* with those of the blocks */
    ls_tensor **blocks;
    size_t count;
} csv_table;

static int64_t rows_of_block(const csv_table *table) {
    return table->taken < BLOCK ? BLOCK / (table->taken > 0 ? table->taken : 1) : 1;
}

static ls_status reserve_block(csv_table *table) {
    ls_tensor **blocks = ls_grow(table->blocks, table->count, sizeof(ls_tensor *));
    if (blocks == NULL) {
        return ls_fail_memory("ls_csv_read", (table->count + 1) * sizeof(ls_tensor *));
    }
    table->blocks = blocks;
    return LS_OK;
}

/* Makes a block of the pending rows. */
static ls_status finish_block(csv_table *table) {
    LS_TRY(reserve_block(table));
    const ls_shape shape = LS_SHAPE(table->pending, table->taken);
    ls_tensor *block = ls_tensor_new_owned("ls_csv_read", &ls_cpu, shape.ndim, shape.size, table->dtype);
    if (block == NULL) {
        return ls_error_status();
    }
    table->blocks[table->count++] = block;
    ls_tensor *numbers = ls_tensor_take(ls_from_memory(shape, LS_F64, table->numbers, NULL, NULL));
    const ls_status status = numbers != NULL ? ls_copy_into(block, numbers) : ls_error_status();
    ls_tensor_drop(numbers);
    table->pending = 0;
    return status;
}

/* An error about the field of a column in the present row. */
static ls_status field_error(const csv_reader *reader, const csv_columns *columns, int column, const char *what) {
    char name[NAME_ROOM];
    return ls_fail(LS_ERR_FORMAT, "ls_csv_read: %s, line %lld, column \"%s\"%s", reader->source.path,
                   (long long)reader->line, column_name(columns, column, name), what);
}

static ls_status parse_number(const csv_reader *reader, const csv_table *table, const char *text, int column,
                              double *number) {
    char *end;
    *number = strtod(text, &end);
    while (*end == ' ' || *end == '\t') {
        end++;
    }
    if (end != text && *end == '\0') {
        return LS_OK;
    }
    char what[200];
    snprintf(what, sizeof what,
             ": \"%.40s\" is not a number; if the texts of this column are classes, list it in .text", text);
    return field_error(reader, &table->columns, column, what);
}

static ls_status find_class(const csv_reader *reader, const csv_table *table, const csv_text *text,
                            const csv_field *field, double *number) {
    LS_TRY(check_text(reader, field));
    const int found = ls_csv_classes_find(text->classes, field->text);
    if (found < 0) {
        char what[120];
        snprintf(what, sizeof what, ": \"%.40s\" is not one of its %d classes", field->text,
                 ls_csv_classes_count(text->classes));
        return field_error(reader, &table->columns, text->column, what);
    }
    *number = found;
    return LS_OK;
}

/* The largest number up to which a dtype has all whole numbers. */
static double whole_numbers_of(ls_dtype dtype) {
    static const double largest[LS_DTYPE_COUNT] = {
        [LS_F32] = 0x1p24, [LS_F64] = 0x1p53,    [LS_BF16] = 0x1p8,   [LS_F16] = 0x1p11,
        [LS_I64] = 0x1p53, [LS_I32] = INT32_MAX, [LS_U8] = UINT8_MAX, [LS_BOOL] = 1};
    return largest[dtype];
}

/* An integer tensor takes whole numbers that fit, and nothing else. */
static ls_status check_fits(const csv_reader *reader, const csv_table *table, int column, double number) {
    if (ls_dtype_is_floating(table->dtype) || table->dtype == LS_BOOL) {
        return LS_OK;
    }
    const double largest = whole_numbers_of(table->dtype), least = table->dtype == LS_U8 ? 0 : -largest - 1;
    if (number == floor(number) && number >= least && number <= largest) {
        return LS_OK;
    }
    char what[80];
    snprintf(what, sizeof what, ": %.17g does not fit %s", number, ls_dtype_name(table->dtype));
    return field_error(reader, &table->columns, column, what);
}

static ls_status convert(const csv_reader *reader, const csv_table *table, int column, const csv_field *field,
                         double *number) {
    if (is_empty(field)) {
        *number = table->empty;
        return !isinf(table->empty)
                   ? LS_OK
                   : field_error(reader, &table->columns, column,
                                 " is empty; set .empty to the value of an empty field (NAN, for example)");
    }
    for (int i = 0; i < table->text_count; i++) {
        if (table->texts[i].column == column) {
            return find_class(reader, table, &table->texts[i], field, number);
        }
    }
    LS_TRY(parse_number(reader, table, field->text, column, number));
    return check_fits(reader, table, column, *number);
}

static ls_status check_width(const csv_reader *reader, const csv_columns *columns, int fields) {
    return fields == columns->count
               ? LS_OK
               : ls_fail(LS_ERR_FORMAT, "ls_csv_read: %s, line %lld: %d fields where the first line has %d",
                         reader->source.path, (long long)reader->line, fields, columns->count);
}

static ls_status read_row(csv_reader *reader, csv_table *table, int fields) {
    LS_TRY(check_width(reader, &table->columns, fields));
    double *row = table->numbers + table->pending * table->taken;
    for (int column = 0; column < fields; column++) {
        csv_field field;
        LS_TRY(read_field(reader, &field));
        if (table->take[column] >= 0) {
            LS_TRY(convert(reader, table, column, &field, &row[table->take[column]]));
        }
    }
    table->rows++;
    table->pending++;
    return table->pending == rows_of_block(table) ? finish_block(table) : LS_OK;
}

/* ---- which columns ----------------------------------------------------------------------------------------------- */

/* Notes where each column goes. */
static ls_status plan_columns(const csv_reader *reader, const ls_csv_options *options, csv_table *table) {
    const bool by_place = options->columns == NULL || options->all_but;
    table->take = ls_allocate_zeroed((size_t)table->columns.count, sizeof *table->take);
    if (table->take == NULL) {
        return ls_fail_memory("ls_csv_read", (size_t)table->columns.count * sizeof *table->take);
    }
    for (int i = 0; i < table->columns.count; i++) {
        table->take[i] = by_place ? 0 : -1;
    }
    for (int i = 0; options->columns != NULL && i < options->column_count; i++) {
        int column = 0;
        LS_TRY(find_column(reader, &table->columns, options->columns[i], &column));
        table->take[column] = by_place ? -1 : i;
    }
    table->taken = by_place ? 0 : options->column_count;
    for (int i = 0; by_place && i < table->columns.count; i++) {
        table->take[i] = table->take[i] == 0 ? table->taken++ : -1;
    }
    return LS_OK;
}

/* The classes of a column of text, if it is taken. */
static ls_status plan_text(const csv_reader *reader, const ls_csv_options *options, csv_table *table,
                           const ls_csv_text *given) {
    csv_text *text = &table->texts[table->text_count];
    LS_TRY(find_column(reader, &table->columns, given->column, &text->column));
    if (table->take[text->column] < 0) {
        return LS_OK;
    }
    table->text_count++;
    text->classes = given->classes;
    if (given->classes == NULL) {
        text->classes = text->own = ls_csv_classes_read(reader->source.path, given->column, options);
        LS_TRY(text->own != NULL ? LS_OK : ls_error_status());
    }
    const int count = ls_csv_classes_count(text->classes);
    return count - 1 <= whole_numbers_of(table->dtype)
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "ls_csv_read: column \"%.60s\" has %d classes, too many for %s",
                         given->column, count, ls_dtype_name(table->dtype));
}

static ls_status plan_texts(const csv_reader *reader, const ls_csv_options *options, csv_table *table) {
    if (options->text_count == 0) {
        return LS_OK;
    }
    table->texts = ls_allocate_zeroed((size_t)options->text_count, sizeof *table->texts);
    if (table->texts == NULL) {
        return ls_fail_memory("ls_csv_read", (size_t)options->text_count * sizeof *table->texts);
    }
    for (int i = 0; i < options->text_count; i++) {
        LS_TRY(plan_text(reader, options, table, &options->text[i]));
    }
    return LS_OK;
}

static ls_status reserve_rows(csv_table *table) {
    const size_t count = (size_t)rows_of_block(table) * (size_t)table->taken;
    table->numbers = ls_allocate(count * sizeof *table->numbers);
    return table->numbers != NULL ? LS_OK : ls_fail_memory("ls_csv_read", count * sizeof *table->numbers);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Some editors begin UTF-8 files with a mark. */
static ls_status skip_mark(csv_reader *reader) {
    static const char byte_order_mark[] = "\xEF\xBB\xBF";
    LS_TRY(refill(reader));
    if (strncmp(reader->buffer, byte_order_mark, strlen(byte_order_mark)) == 0) {
        reader->next = strlen(byte_order_mark);
    }
    return LS_OK;
}

/* Goes to the first row. */
static ls_status begin(csv_reader *reader, const ls_csv_options *options, csv_columns *columns) {
    LS_TRY(skip_mark(reader));
    LS_TRY(next_row(reader, &columns->count));
    if (columns->count == 0) {
        return ls_fail(LS_ERR_FORMAT, "ls_csv_read: %s is empty", reader->source.path);
    }
    return read_header(reader, options, columns);
}

/* The row after the header, which may be the first one. */
static ls_status first_row(csv_reader *reader, const csv_columns *columns, int *fields) {
    *fields = columns->count;
    return columns->names != NULL ? next_row(reader, fields) : LS_OK;
}

static ls_status read_table(csv_reader *reader, const ls_csv_options *options, csv_table *table) {
    int fields;
    LS_TRY(begin(reader, options, &table->columns));
    LS_TRY(plan_columns(reader, options, table));
    LS_TRY(plan_texts(reader, options, table));
    LS_TRY(reserve_rows(table));
    LS_TRY(first_row(reader, &table->columns, &fields));
    while (fields > 0) {
        LS_TRY(read_row(reader, table, fields));
        LS_TRY(next_row(reader, &fields));
    }
    LS_TRY(table->pending > 0 ? finish_block(table) : LS_OK);
    ls_free(table->numbers); /* before the tensor takes its place */
    table->numbers = NULL;
    return LS_OK;
}

/* The blocks, one behind the other, which are given up on the way. */
static ls_tensor *to_tensor(csv_table *table) {
    const int64_t size[] = {table->rows, table->taken};
    ls_tensor *tensor = ls_tensor_new("ls_csv_read", &ls_cpu, 2, size, table->dtype);
    int64_t row = 0;
    for (size_t i = 0; tensor != NULL && i < table->count; i++) {
        ls_tensor *block = table->blocks[i];
        ls_tensor *place = ls_tensor_view_owned(tensor, block->ndim, block->size, block->stride, row * table->taken);
        row += block->size[0];
        if (place == NULL || ls_copy_into(place, block) != LS_OK) {
            ls_release(tensor);
            tensor = NULL;
        }
        ls_tensor_drop(place);
        ls_tensor_drop(block);
        table->blocks[i] = NULL;
    }
    return tensor;
}

static void table_free(csv_table *table) {
    for (size_t i = 0; i < table->count; i++) {
        ls_tensor_drop(table->blocks[i]);
    }
    for (int i = 0; i < table->text_count; i++) {
        ls_csv_classes_free(table->texts[i].own);
    }
    ls_free(table->texts);
    ls_free(table->blocks);
    ls_free(table->numbers);
    ls_free(table->take);
    ls_free(table->columns.names);
}

static ls_status open_reader(const char *path, const ls_csv_options *options, csv_reader *reader) {
    *reader = (csv_reader){.separator = options->separator != '\0' ? options->separator : ',', .next_line = 1};
    return ls_source_open("ls_csv_read", path, true, &reader->source);
}

static void close_reader(csv_reader *reader) {
    ls_source_close(&reader->source);
    ls_free(reader->buffer);
}

static ls_status check_options(const ls_csv_options *options) {
    if (options->column_count < 0 || (options->columns == NULL && options->column_count > 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_csv_read: %d columns are wanted but not named", options->column_count);
    }
    if (options->text_count < 0 || (options->text == NULL && options->text_count > 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_csv_read: .text_count is %d and .text is NULL", options->text_count);
    }
    for (int i = 0; i < options->text_count; i++) {
        if (options->text[i].column == NULL) {
            return ls_fail(LS_ERR_ARGUMENT, "ls_csv_read: .text[%d] names no column", i);
        }
    }
    const bool whole = !ls_dtype_is_floating(options->dtype);
    return whole && options->empty != floor(options->empty)
               ? ls_fail(LS_ERR_ARGUMENT, "ls_csv_read: .empty is %g, which %s cannot hold", options->empty,
                         ls_dtype_name(options->dtype))
               : LS_OK;
}

ls_tensor *ls_csv_read(const char *path, const ls_csv_options *options) {
    static const ls_csv_options defaults;
    options = options != NULL ? options : &defaults;
    csv_reader reader;
    if (check_options(options) != LS_OK || open_reader(path, options, &reader) != LS_OK) {
        return NULL;
    }
    csv_table table = {.dtype = options->dtype, .empty = ls_option(options->empty, INFINITY)};
    const locale_t before = ls_locale_enter();
    const ls_status status = read_table(&reader, options, &table);
    ls_locale_leave(before);
    ls_tensor *tensor = status == LS_OK ? to_tensor(&table) : NULL;
    close_reader(&reader);
    table_free(&table);
    return tensor;
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

static ls_status read_classes(csv_reader *reader, const ls_csv_options *options, csv_columns *columns, const char *name,
                              ls_csv_classes *classes) {
    int fields, wanted = 0;
    LS_TRY(begin(reader, options, columns));
    LS_TRY(find_column(reader, columns, name, &wanted));
    LS_TRY(first_row(reader, columns, &fields));
    while (fields > 0) {
        csv_field field = {0};
        LS_TRY(check_width(reader, columns, fields));
        for (int column = 0; column <= wanted; column++) {
            LS_TRY(read_field(reader, &field));
        }
        LS_TRY(check_text(reader, &field));
        const ls_status added = is_empty(&field) ? LS_OK : ls_csv_classes_add(classes, field.text);
        if (added == LS_ERR_FORMAT) {
            return field_error(reader, columns, wanted, " has more than 10000 different texts; are they classes?");
        }
        LS_TRY(added);
        LS_TRY(next_row(reader, &fields));
    }
    return LS_OK;
}

ls_csv_classes *ls_csv_classes_read(const char *path, const char *column, const ls_csv_options *options) {
    static const ls_csv_options defaults;
    options = options != NULL ? options : &defaults;
    csv_reader reader;
    if (column == NULL) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_csv_classes_read: no column is named");
    }
    ls_csv_classes *classes = ls_csv_classes_new();
    if (classes == NULL || open_reader(path, options, &reader) != LS_OK) {
        ls_csv_classes_free(classes);
        return NULL;
    }
    csv_columns columns = {0};
    const ls_status status = read_classes(&reader, options, &columns, column, classes);
    ls_free(columns.names);
    close_reader(&reader);
    if (status != LS_OK) {
        ls_csv_classes_free(classes);
        return NULL;
    }
    return classes;
}
