/* Rows of a CSV file, their fields, and the names of its columns. */
#ifndef LS_FORMATS_CSV_READER_H
#define LS_FORMATS_CSV_READER_H

#include "formats/file.h"

/* A text file that is read line by line. Fields are extracted in place. */
typedef struct ls_csv_reader {
    ls_source source;
    char *buffer;
    size_t capacity; /* size of the buffer without two extra bytes at the end */
    size_t next;     /* offset of the next line */
    size_t filled;   /* two zero bytes follow */
    bool ended;      /* the end of the file was reached */
    char *at;        /* position in the current line */
    char *end;       /* end of the current line, a zero byte */
    char separator;
    int64_t line;      /* line number in the file, from 1 */
    int64_t next_line; /* number of the line where the next row begins */
} ls_csv_reader;

typedef struct ls_csv_field {
    char *text;
    bool quoted;
} ls_csv_field;

/* The names of the columns, one after another, each with a terminating zero byte. Without a header, the names are
 * numbers. */
typedef struct ls_csv_columns {
    int count;
    char *names; /* NULL if the file has no header */
} ls_csv_columns;

/* Opens the file. Close it with ls_csv_close, except on failure. Messages begin with `call`. */
ls_status ls_csv_open(const char *call, const char *path, const ls_csv_options *options, ls_csv_reader *reader);
void ls_csv_close(ls_csv_reader *reader);

/* Reads the first row, which is usually the header. The caller frees columns->names, even on failure. */
ls_status ls_csv_begin(ls_csv_reader *reader, const ls_csv_options *options, ls_csv_columns *columns);
/* Extract the first row of data, and the next row. Set `*fields` to the number of fields in the row, or 0 at the end
 * of the file. */
ls_status ls_csv_first_row(ls_csv_reader *reader, const ls_csv_columns *columns, int *fields);
ls_status ls_csv_next_row(ls_csv_reader *reader, int *fields);
/* Fails with LS_ERR_FORMAT if the number of fields in a row differs from the number in the first row. */
ls_status ls_csv_check_width(const ls_csv_reader *reader, const ls_csv_columns *columns, int fields);

/* Reads the next field of the row. */
ls_status ls_csv_read_field(ls_csv_reader *reader, ls_csv_field *field);
bool ls_csv_is_empty(const ls_csv_field *field);
/* Fails with LS_ERR_FORMAT if a string has a quote in the middle. */
ls_status ls_csv_check_text(const ls_csv_reader *reader, const ls_csv_field *field);

/* Finds the column by name, or by number if no column has this name. */
ls_status ls_csv_find_column(const ls_csv_reader *reader, const ls_csv_columns *columns, const char *wanted,
                             int *index);
/* Returns whether the header contains the name. */
bool ls_csv_has_name(const ls_csv_columns *columns, const char *wanted);
/* Returns the number of names in the header that are numbers. */
int ls_csv_count_numeric_names(const ls_csv_columns *columns);
/* Returns the remedy for a text that may contain several fields of a file with one column, or NULL. */
const char *ls_csv_separator_remedy(const ls_csv_columns *columns, const char *text);

/* Returns whether a number in the text ends at `end`: only spaces follow. */
bool ls_csv_is_end(const char *text, const char *end);
/* Returns whether the text is a number, and stores the number. errno is ERANGE if a double cannot represent it. */
bool ls_csv_parse_number(const char *text, double *number);

/* Does the work of ls_csv_classes_read. Messages begin with `call`. */
ls_csv_classes *ls_csv_read_classes(const char *call, const char *path, const char *column,
                                    const ls_csv_options *options);

/* Fails with LS_ERR_STATE if the classes were freed. */
ls_status ls_csv_check_classes(const char *call, const ls_csv_classes *classes);

/* Sets LS_ERR_FORMAT for a column's field in the current row. `what` follows the column's name in the message. */
ls_status ls_csv_field_error(const ls_csv_reader *reader, const ls_csv_columns *columns, int column, const char *what);

#endif
