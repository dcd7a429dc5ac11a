/* Rows of a CSV file, their fields, and the names of its columns. */
#ifndef LS_FORMATS_CSV_READER_H
#define LS_FORMATS_CSV_READER_H

#include "formats/file.h"

/* A text being read line by line. Fields are cut out of a line in place. */
typedef struct ls_csv_reader {
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
} ls_csv_reader;

typedef struct ls_csv_field {
    char *text;
    bool quoted;
} ls_csv_field;

/* The names of the columns, one after another, each ended by a zero. Without a header the names are numbers. */
typedef struct ls_csv_columns {
    int count;
    char *names; /* NULL: there is no header */
} ls_csv_columns;

/* Opens the file; ls_csv_close closes it, but not after a failure. `call` begins the messages. */
ls_status ls_csv_open(const char *call, const char *path, const ls_csv_options *options, ls_csv_reader *reader);
void ls_csv_close(ls_csv_reader *reader);

/* Reads the first row, which is the header unless there is none. The caller frees columns->names, on failure too. */
ls_status ls_csv_begin(ls_csv_reader *reader, const ls_csv_options *options, ls_csv_columns *columns);
/* Cuts out the first row of data, and the next one; `*fields` are in it, 0 at the end of the file. */
ls_status ls_csv_first_row(ls_csv_reader *reader, const ls_csv_columns *columns, int *fields);
ls_status ls_csv_next_row(ls_csv_reader *reader, int *fields);
/* LS_ERR_FORMAT if a row has another number of fields than the first row. */
ls_status ls_csv_check_width(const ls_csv_reader *reader, const ls_csv_columns *columns, int fields);

/* The next field of the row. */
ls_status ls_csv_read_field(ls_csv_reader *reader, ls_csv_field *field);
bool ls_csv_is_empty(const ls_csv_field *field);
/* LS_ERR_FORMAT for a text with a quote in the middle. */
ls_status ls_csv_check_text(const ls_csv_reader *reader, const ls_csv_field *field);

/* The column of that name, or, if no column has it, of that number. */
ls_status ls_csv_find_column(const ls_csv_reader *reader, const ls_csv_columns *columns, const char *wanted,
                             int *index);
/* LS_ERR_FORMAT about the field of a column in the present row; `what` follows the name of the column. */
ls_status ls_csv_field_error(const ls_csv_reader *reader, const ls_csv_columns *columns, int column, const char *what);

#endif
