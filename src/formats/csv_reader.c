/* Rows, fields and columns of CSV: one row per line. Fields may be quoted, with "" for a quote inside (RFC 4180). */
#include "formats/csv_reader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { FIRST_CAPACITY = 1 << 16, LINE_LIMIT = 1 << 24 };

static ls_status csv_error(const ls_csv_reader *reader, const char *what) {
    return ls_fail(LS_ERR_FORMAT, "%s: %s, line %lld: %s", reader->source.call, reader->source.path,
                   (long long)reader->line, what);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* Makes room in the buffer for more bytes of the line, which moves to the start. */
static ls_status grow(ls_csv_reader *reader) {
    if (reader->capacity >= LINE_LIMIT) {
        return csv_error(reader, "a line has 16 MiB or more");
    }
    const size_t capacity = reader->capacity > 0 ? 2 * reader->capacity : FIRST_CAPACITY;
    char *buffer = ls_reallocate(reader->buffer, reader->filled, capacity + 2);
    if (buffer == NULL) {
        return ls_fail_memory(reader->source.call, capacity + 2);
    }
    reader->buffer = buffer;
    reader->capacity = capacity;
    return LS_OK;
}

/*
 * Reads more of the file. Only UTF-8 is supported: text in UTF-16 or UTF-32 contains zero bytes, which would end fields
 * early.
 */
static ls_status refill(ls_csv_reader *reader) {
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
        return ls_fail(LS_ERR_FORMAT, "%s: %s contains zero bytes: it is not UTF-8 text", reader->source.call,
                       reader->source.path);
    }
    to[got] = to[got + 1] = '\0';
    reader->filled += got;
    reader->ended = got < room;
    return LS_OK;
}

/*
 * Returns whether a carriage return ends a line without a newline, as in classic Mac OS files. At the end of the
 * buffer, reads more of the file to decide.
 */
static bool is_lone_return(const ls_csv_reader *reader, const char *at) {
    return *at == '\r' && at[1] != '\n' && (at[1] != '\0' || reader->ended);
}

/*
 * Finds the newline that ends the row at `from`, ignoring newlines in quotes. Returns NULL if the buffer does not
 * contain it. Stores the number of fields in the row, and the number of file lines in the row.
 */
static char *find_newline(const ls_csv_reader *reader, char *from, int *fields, int64_t *lines) {
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
        } else if (*at == '\n' || is_lone_return(reader, at)) {
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

/* Extracts the next row that is not a blank line. Stores the number of its fields, or 0 at the end of the file. */
ls_status ls_csv_next_row(ls_csv_reader *reader, int *fields) {
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

/* Reads the text up to the closing quote, and replaces doubled quotes with single quotes. */
static ls_status read_quoted(ls_csv_reader *reader, ls_csv_field *field) {
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

/* Reads an unquoted field, without the spaces around it. */
static void read_plain(ls_csv_reader *reader, ls_csv_field *field) {
    field->text = reader->at;
    while (reader->at < reader->end && *reader->at != reader->separator) {
        reader->at++;
    }
    char *end = reader->at;
    while (end > field->text && end[-1] == ' ') {
        *--end = '\0';
    }
}

ls_status ls_csv_read_field(ls_csv_reader *reader, ls_csv_field *field) {
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

bool ls_csv_is_empty(const ls_csv_field *field) {
    return field->text[strspn(field->text, " \t")] == '\0';
}

/* Rejects a name or a string with a quote in the middle: other programs would end the string there. */
ls_status ls_csv_check_text(const ls_csv_reader *reader, const ls_csv_field *field) {
    return field->quoted || strchr(field->text, '"') == NULL
               ? LS_OK
               : csv_error(reader, "a quote stands in the middle of a field");
}

/* ---- columns ----------------------------------------------------------------------------------------------------- */

enum { NAME_ROOM = 64, NAMES_ROOM = 200 }; /* sizes for names in messages */

/* Reads the header, if there is one. The current row is the first one. */
static ls_status read_header(ls_csv_reader *reader, const ls_csv_options *options, ls_csv_columns *columns) {
    if (options->no_header) {
        return LS_OK;
    }
    const size_t size = (size_t)(reader->end - reader->at) + 2;
    char *to = columns->names = ls_allocate(size);
    if (to == NULL) {
        return ls_fail_memory(reader->source.call, size);
    }
    for (int i = 0; i < columns->count; i++) {
        ls_csv_field field;
        LS_TRY(ls_csv_read_field(reader, &field));
        LS_TRY(ls_csv_check_text(reader, &field));
        const size_t length = strlen(field.text) + 1;
        memcpy(to, field.text, length);
        to += length;
    }
    return LS_OK;
}

/* Returns the name of a column for messages, shortened if it is long. */
static const char *column_name(const ls_csv_columns *columns, int index, char name[NAME_ROOM]) {
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

/* Lists the names of the columns for messages, as many as fit. */
static void list_columns(const ls_csv_columns *columns, char list[NAMES_ROOM]) {
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

/* Returns the number of columns with this name. Stores the last of them. */
static int find_name(const ls_csv_columns *columns, const char *wanted, int *index) {
    int found = 0;
    const char *at = columns->names;
    for (int i = 0; at != NULL && i < columns->count; i++, at += strlen(at) + 1) {
        if (strcmp(at, wanted) == 0) {
            *index = i;
            found++;
        }
    }
    return found;
}

bool ls_csv_has_name(const ls_csv_columns *columns, const char *wanted) {
    int index;
    return find_name(columns, wanted, &index) > 0;
}

/* Returns whether a number in the text ends at `end`: only spaces follow. */
bool ls_csv_is_end(const char *text, const char *end) {
    return end != text && end[strspn(end, " \t")] == '\0';
}

bool ls_csv_parse_number(const char *text, double *number) {
    char *end;
    errno = 0;
    *number = strtod(text, &end);
    return ls_csv_is_end(text, end);
}

int ls_csv_count_numeric_names(const ls_csv_columns *columns) {
    const char *name = columns->names;
    int count = 0;
    for (int i = 0; name != NULL && i < columns->count; i++, name += strlen(name) + 1) {
        double number;
        count += ls_csv_parse_number(name, &number);
    }
    return count;
}

const char *ls_csv_separator_remedy(const ls_csv_columns *columns, const char *text) {
    return columns->count == 1 && text != NULL && strpbrk(text, ";\t") != NULL
               ? "; if a semicolon or a tab separates the columns, set .separator"
               : NULL;
}

/* Returns the remedy for an unknown name, judged by the names in the header. */
static const char *name_remedy(const ls_csv_columns *columns) {
    const char *remedy = ls_csv_separator_remedy(columns, columns->names);
    if (remedy != NULL) {
        return remedy;
    }
    return ls_csv_count_numeric_names(columns) > 0 ? "; if the first line is data, set .no_header" : "";
}

/* Finds the column by name, or by number if no column has this name. */
ls_status ls_csv_find_column(const ls_csv_reader *reader, const ls_csv_columns *columns, const char *wanted,
                             int *index) {
    int found = find_name(columns, wanted, index);
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
    return ls_fail(LS_ERR_FORMAT, "%s: %s has %s column named \"%.*s\"; columns: %s%s", reader->source.call,
                   reader->source.path, found == 0 ? "no" : "more than one", NAME_ROOM - 1, wanted, list,
                   name_remedy(columns));
}

/* Sets an error about a column's field in the current row. */
ls_status ls_csv_field_error(const ls_csv_reader *reader, const ls_csv_columns *columns, int column, const char *what) {
    char name[NAME_ROOM];
    return ls_fail(LS_ERR_FORMAT, "%s: %s, line %lld, column \"%s\"%s", reader->source.call, reader->source.path,
                   (long long)reader->line, column_name(columns, column, name), what);
}

ls_status ls_csv_check_width(const ls_csv_reader *reader, const ls_csv_columns *columns, int fields) {
    return fields == columns->count
               ? LS_OK
               : ls_fail(LS_ERR_FORMAT, "%s: %s, line %lld: %d fields, but the first line has %d", reader->source.call,
                         reader->source.path, (long long)reader->line, fields, columns->count);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Skips the byte order mark that some editors write at the start of UTF-8 files. */
static ls_status skip_mark(ls_csv_reader *reader) {
    static const char byte_order_mark[] = "\xEF\xBB\xBF";
    LS_TRY(refill(reader));
    if (strncmp(reader->buffer, byte_order_mark, strlen(byte_order_mark)) == 0) {
        reader->next = strlen(byte_order_mark);
    }
    return LS_OK;
}

/* Reads the first row. */
ls_status ls_csv_begin(ls_csv_reader *reader, const ls_csv_options *options, ls_csv_columns *columns) {
    LS_TRY(skip_mark(reader));
    LS_TRY(ls_csv_next_row(reader, &columns->count));
    if (columns->count == 0) {
        return ls_fail(LS_ERR_FORMAT, "%s: %s is empty", reader->source.call, reader->source.path);
    }
    return read_header(reader, options, columns);
}

/* Reads the row after the header, which is the first row if there is no header. */
ls_status ls_csv_first_row(ls_csv_reader *reader, const ls_csv_columns *columns, int *fields) {
    *fields = columns->count;
    return columns->names != NULL ? ls_csv_next_row(reader, fields) : LS_OK;
}

ls_status ls_csv_open(const char *call, const char *path, const ls_csv_options *options, ls_csv_reader *reader) {
    *reader = (ls_csv_reader){.separator = options->separator != '\0' ? options->separator : ',', .next_line = 1};
    return ls_source_open(call, path, true, &reader->source);
}

void ls_csv_close(ls_csv_reader *reader) {
    ls_source_close(&reader->source);
    ls_free(reader->buffer);
}
