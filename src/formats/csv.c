/* CSV: a line per row; fields may be quoted, with "" for a quote inside (RFC 4180). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/locale.h"
#include "base/memory.h"
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
    int64_t line;
} csv_reader;

typedef struct csv_field {
    char *text;
    bool quoted;
    bool last; /* of its line */
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

/* The newline that ends the line at `from`, one in quotes is none; NULL: the buffer has none. */
static char *find_newline(const csv_reader *reader, char *from, int *fields) {
    bool quoted = false, begins = true; /* a field */
    *fields = 1;
    for (char *at = from; *at != '\0'; at++) {
        if (quoted) {
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

/* Cuts out the next line that is not blank; `*fields` in it, 0 where there is none. */
static ls_status next_line(csv_reader *reader, int *fields) {
    for (;;) {
        char *from = reader->buffer + reader->next;
        char *newline = find_newline(reader, from, fields);
        if (newline == NULL && !reader->ended) {
            LS_TRY(refill(reader));
            continue;
        }
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
        reader->line++;
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

static ls_status read_field(csv_reader *reader, csv_field *field) {
    while (*reader->at == ' ' && reader->separator != ' ') {
        reader->at++;
    }
    field->quoted = *reader->at == '"';
    if (field->quoted) {
        LS_TRY(read_quoted(reader, field));
    } else {
        field->text = reader->at;
        while (reader->at < reader->end && *reader->at != reader->separator) {
            reader->at++;
        }
    }
    if (reader->at < reader->end && *reader->at != reader->separator) {
        return csv_error(reader, "text follows a closing quote");
    }
    field->last = reader->at >= reader->end;
    *reader->at = '\0';
    reader->at += !field->last;
    return LS_OK;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Numbers gathered row by row, and converted block by block: so that they are there twice at most. */
typedef struct csv_table {
    ls_dtype dtype;
    int width; /* fields in a line */
    int *take; /* take[i]: where field i goes in the row, -1 for nowhere */
    int taken;
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

static ls_status parse_number(const csv_reader *reader, const char *text, int column, double *number) {
    char *end;
    *number = strtod(text, &end);
    while (*end == ' ' || *end == '\t') {
        end++;
    }
    if (end == text || *end != '\0') {
        return ls_fail(LS_ERR_FORMAT, "ls_csv_read: %s, line %lld, column %d: \"%.40s\" is not a number",
                       reader->source.path, (long long)reader->line, column + 1, text);
    }
    return LS_OK;
}

static ls_status read_row(csv_reader *reader, csv_table *table, int fields) {
    if (fields != table->width) {
        return ls_fail(LS_ERR_FORMAT, "ls_csv_read: %s, line %lld: %d fields where the first line has %d",
                       reader->source.path, (long long)reader->line, fields, table->width);
    }
    double *row = table->numbers + table->pending * table->taken;
    for (int column = 0; column < fields; column++) {
        csv_field field;
        LS_TRY(read_field(reader, &field));
        if (table->take[column] >= 0) {
            LS_TRY(parse_number(reader, field.text, column, &row[table->take[column]]));
        }
    }
    table->rows++;
    table->pending++;
    reader->line++;
    return table->pending == rows_of_block(table) ? finish_block(table) : LS_OK;
}

/* ---- which columns ----------------------------------------------------------------------------------------------- */

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
static ls_status match_columns(csv_reader *reader, const ls_csv_options *options, csv_table *table, int *found) {
    for (int column = 0; column < table->width; column++) {
        csv_field field;
        LS_TRY(read_field(reader, &field));
        if (!field.quoted && strchr(field.text, '"') != NULL) {
            return csv_error(reader, "a quote stands in the middle of a field");
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
            return ls_fail(LS_ERR_FORMAT, "ls_csv_read: %s has %s column named \"%s\"", reader->source.path,
                           found[wanted] == 0 ? "no" : "more than one", options->columns[wanted]);
        }
    }
    return LS_OK;
}

/* Reading cuts fields out in place, so the first line is looked at in a copy when it is data too. */
static ls_status plan_columns(csv_reader *reader, const ls_csv_options *options, csv_table *table) {
    const size_t size = (size_t)(reader->end - reader->at);
    char *copy = options->no_header ? ls_duplicate_string(reader->at) : NULL;
    int *found = ls_allocate_zeroed((size_t)options->column_count + 1, sizeof *found);
    table->take = ls_allocate_zeroed((size_t)table->width, sizeof *table->take);
    ls_status status = LS_OK;
    if ((copy == NULL && options->no_header) || found == NULL || table->take == NULL) {
        status = ls_fail_memory("ls_csv_read", size);
    } else {
        csv_reader first = *reader;
        first.at = copy != NULL ? copy : reader->at;
        first.end = first.at + size;
        status = match_columns(&first, options, table, found);
    }
    if (status == LS_OK) {
        status = check_found(reader, options, found);
    }
    ls_free(copy);
    ls_free(found);
    return status;
}

static ls_status reserve_rows(csv_table *table) {
    const size_t count = (size_t)rows_of_block(table) * (size_t)table->taken;
    table->numbers = ls_allocate(count * sizeof *table->numbers);
    return table->numbers != NULL ? LS_OK : ls_fail_memory("ls_csv_read", count * sizeof *table->numbers);
}

/* Some editors begin UTF-8 files with a mark. */
static ls_status begin(csv_reader *reader) {
    static const char byte_order_mark[] = "\xEF\xBB\xBF";
    LS_TRY(refill(reader));
    if (strncmp(reader->buffer, byte_order_mark, strlen(byte_order_mark)) == 0) {
        reader->next = strlen(byte_order_mark);
    }
    return LS_OK;
}

static ls_status read_table(csv_reader *reader, const ls_csv_options *options, csv_table *table) {
    LS_TRY(begin(reader));
    LS_TRY(next_line(reader, &table->width));
    if (table->width == 0) {
        return ls_fail(LS_ERR_FORMAT, "ls_csv_read: %s is empty", reader->source.path);
    }
    LS_TRY(plan_columns(reader, options, table));
    LS_TRY(reserve_rows(table));
    int fields = table->width;
    if (!options->no_header) {
        reader->line++;
        LS_TRY(next_line(reader, &fields));
    }
    while (fields > 0) {
        LS_TRY(read_row(reader, table, fields));
        LS_TRY(next_line(reader, &fields));
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
    ls_free(table->blocks);
    ls_free(table->numbers);
    ls_free(table->take);
}

ls_tensor *ls_csv_read(const char *path, const ls_csv_options *options) {
    static const ls_csv_options defaults;
    options = options != NULL ? options : &defaults;
    if (options->column_count < 0 || (options->columns == NULL && options->column_count > 0)) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_csv_read: %d columns are wanted but not named", options->column_count);
    }
    csv_reader reader = {.separator = options->separator != '\0' ? options->separator : ',', .line = 1};
    if (ls_source_open("ls_csv_read", path, true, &reader.source) != LS_OK) {
        return NULL;
    }
    csv_table table = {.dtype = options->dtype};
    ls_tensor *tensor = NULL;
    const locale_t before = ls_locale_enter();
    const ls_status status = read_table(&reader, options, &table);
    ls_locale_leave(before);
    if (status == LS_OK) {
        tensor = to_tensor(&table);
    }
    ls_source_close(&reader.source);
    table_free(&table);
    ls_free(reader.buffer);
    return tensor;
}
