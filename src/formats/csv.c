/* CSV files as tensors. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/float16.h"
#include "base/locale.h"
#include "base/memory.h"
#include "base/option.h"
#include "formats/csv.h"
#include "formats/csv_reader.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

enum { BLOCK = 1 << 15 }; /* numbers in a block, unless a row contains more */

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* A column of text. */
typedef struct csv_text {
    int column;
    const ls_csv_classes *classes;
    ls_csv_classes *own; /* the same table, if it was created from this file */
} csv_text;

/* A number of an integer dtype as an integer, so that it stays exact; any other number as a double. */
typedef union csv_number {
    double real;
    int64_t integer;
} csv_number;

/* Numbers, read row by row and converted block by block, so that memory holds at most two copies of them. */
typedef struct csv_table {
    const char *call; /* for messages */
    ls_dtype dtype;
    bool integers;              /* whether the numbers are integers */
    bool class_target;          /* whether the only column contains the classes of a data set */
    bool allow_empty;           /* whether empty fields are allowed */
    double empty;               /* the value of an empty field */
    const char *const *targets; /* columns that are omitted */
    int target_count;
    ls_csv_columns columns;
    int *take; /* take[i] is the output column of field i; -1 if the field is not used */
    int taken;
    csv_text *texts;
    int text_count;
    csv_number *numbers; /* rows that are not yet in a block */
    int64_t pending;     /* the number of them */
    int64_t rows;        /* number of rows, including the rows in the blocks */
    ls_tensor **blocks;
    size_t count;
} csv_table;

static int64_t rows_of_block(const csv_table *table) {
    return table->taken < BLOCK ? BLOCK / (table->taken > 0 ? table->taken : 1) : 1;
}

static ls_status reserve_block(csv_table *table) {
    ls_tensor **blocks = ls_grow(table->blocks, table->count, sizeof(ls_tensor *));
    if (blocks == NULL) {
        return ls_fail_memory(table->call, (table->count + 1) * sizeof(ls_tensor *));
    }
    table->blocks = blocks;
    return LS_OK;
}

/* Makes a block from the pending rows. */
static ls_status finish_block(csv_table *table) {
    LS_TRY(reserve_block(table));
    const ls_shape shape = LS_SHAPE(table->pending, table->taken);
    ls_tensor *block = ls_tensor_new_owned(table->call, &ls_cpu, shape.ndim, shape.size, table->dtype);
    if (block == NULL) {
        return ls_error_status();
    }
    table->blocks[table->count++] = block;
    const ls_dtype dtype = table->integers ? LS_I64 : LS_F64;
    ls_tensor *numbers = ls_tensor_take(ls_from_memory(shape, dtype, table->numbers, NULL, NULL));
    const ls_status status = numbers != NULL ? ls_copy_into(block, numbers) : ls_error_status();
    ls_tensor_drop(numbers);
    table->pending = 0;
    return status;
}

/* Stores a number that the table's dtype can represent. */
static void store(const csv_table *table, double number, csv_number *to) {
    if (table->integers) {
        to->integer = (int64_t)number;
    } else {
        to->real = number;
    }
}

/* Returns whether the text is an integer without a decimal point and exponent, within i64. Stores the integer. */
static bool parse_integer(const char *text, int64_t *integer) {
    char *end;
    errno = 0;
    *integer = strtoll(text, &end, 10);
    return errno == 0 && ls_csv_is_end(text, end);
}

/* Returns whether a finite number becomes infinite in the dtype. */
static bool overflows(ls_dtype dtype, double number) {
    const float single = (float)number;
    return isfinite(number) && ((dtype == LS_F32 && isinf(single)) ||
                                (dtype == LS_BF16 && isinf(ls_bf16_to_float(ls_bf16_from_float(single)))) ||
                                (dtype == LS_F16 && isinf(ls_f16_to_float(ls_f16_from_float(single)))));
}

/*
 * Returns whether the dtype can represent the number. Integer dtypes represent only integers within their range, and
 * floating-point dtypes round. LS_BOOL represents every number as true or false.
 */
static bool fits(ls_dtype dtype, double number) {
    return dtype == LS_BOOL || (ls_dtype_holds(dtype, number) && !overflows(dtype, number));
}

/* Returns whether a number that strtod has just read from text fits. A double from 2^53 on may differ from an integer
 * in the text. */
static bool text_fits(ls_dtype dtype, double number) {
    const bool too_large = isinf(number) && errno == ERANGE;
    return fits(dtype, number) && (!too_large || dtype == LS_BOOL) && (dtype != LS_I64 || fabs(number) < 0x1p53);
}

/* Fails because the dtype cannot represent the number in the field. */
static ls_status refuse_number(const ls_csv_reader *reader, const csv_table *table, const char *text, int column,
                               double number) {
    const char *remedy = "; choose another .dtype";
    if (table->integers && number != floor(number)) {
        remedy = ": it is not an integer";
    } else if (table->dtype == LS_I64 && fabs(number) < 0x1p63) {
        remedy = " exactly; write it without decimal point and exponent";
    }
    char what[160];
    snprintf(what, sizeof what, ": %.40s does not fit %s%s", text, ls_dtype_name(table->dtype), remedy);
    return ls_csv_field_error(reader, &table->columns, column, what);
}

/* Fails because the text is not a number. */
static ls_status refuse_text(const ls_csv_reader *reader, const csv_table *table, const char *text, int column) {
    const char *remedy = ls_csv_separator_remedy(&table->columns, text);
    const bool has_comma = strchr(text, ',') != NULL && text[strspn(text, "+-0123456789.,eE ")] == '\0';
    if (remedy == NULL && has_comma) {
        remedy = "; write a decimal point, not a comma";
    } else if (remedy == NULL) {
        remedy = "; if it marks a missing value, make the field empty and set .empty; if the strings of this column "
                 "are classes, list it in .text";
    }
    char what[240];
    snprintf(what, sizeof what, ": \"%.40s\" is not a number%s", text, remedy);
    return ls_csv_field_error(reader, &table->columns, column, what);
}

static ls_status read_number(const ls_csv_reader *reader, const csv_table *table, const char *text, int column,
                             csv_number *to) {
    double number;
    if (!ls_csv_parse_number(text, &number)) {
        return refuse_text(reader, table, text, column);
    }
    const bool number_fits = text_fits(table->dtype, number);
    if (table->integers && parse_integer(text, &to->integer)) {
        return table->dtype == LS_I64 || ls_dtype_holds(table->dtype, number)
                   ? LS_OK
                   : refuse_number(reader, table, text, column, number);
    }
    if (!number_fits) {
        return refuse_number(reader, table, text, column, number);
    }
    store(table, number, to);
    return LS_OK;
}

static ls_status find_class(const ls_csv_reader *reader, const csv_table *table, const csv_text *text,
                            const ls_csv_field *field, csv_number *to) {
    LS_TRY(ls_csv_check_text(reader, field));
    const int found = ls_csv_classes_find(text->classes, field->text);
    if (found < 0) {
        char what[120];
        snprintf(what, sizeof what, ": \"%.40s\" is not one of its %d classes", field->text,
                 ls_csv_classes_count(text->classes));
        return ls_csv_field_error(reader, &table->columns, text->column, what);
    }
    store(table, found, to);
    return LS_OK;
}

/* Returns the largest n for which the dtype can represent all integers up to n. */
static double whole_numbers_of(ls_dtype dtype) {
    static const double largest[LS_DTYPE_COUNT] = {
        [LS_F32] = 0x1p24, [LS_F64] = 0x1p53,    [LS_BF16] = 0x1p8,   [LS_F16] = 0x1p11,
        [LS_I64] = 0x1p53, [LS_I32] = INT32_MAX, [LS_U8] = UINT8_MAX, [LS_BOOL] = 1};
    return largest[dtype];
}

/* Returns the text column at this position, or NULL if the column contains numbers. */
static const csv_text *find_text(const csv_table *table, int column) {
    for (int i = 0; i < table->text_count; i++) {
        if (table->texts[i].column == column) {
            return &table->texts[i];
        }
    }
    return NULL;
}

static ls_status convert(const ls_csv_reader *reader, const csv_table *table, int column, const ls_csv_field *field,
                         csv_number *to) {
    const csv_text *text = find_text(table, column);
    if (ls_csv_is_empty(field)) {
        if (!table->allow_empty) {
            return ls_csv_field_error(reader, &table->columns, column,
                                      text != NULL || table->class_target
                                          ? " is empty, but a class must not be; remove the line"
                                          : " is empty; set .empty to the value of an empty field (NAN, for example)");
        }
        store(table, table->empty, to);
        return LS_OK;
    }
    return text != NULL ? find_class(reader, table, text, field, to)
                        : read_number(reader, table, field->text, column, to);
}

static ls_status read_row(ls_csv_reader *reader, csv_table *table, int fields) {
    LS_TRY(ls_csv_check_width(reader, &table->columns, fields));
    csv_number *row = table->numbers + table->pending * table->taken;
    for (int column = 0; column < fields; column++) {
        ls_csv_field field;
        LS_TRY(ls_csv_read_field(reader, &field));
        if (table->take[column] >= 0) {
            LS_TRY(convert(reader, table, column, &field, &row[table->take[column]]));
        }
    }
    table->rows++;
    table->pending++;
    return table->pending == rows_of_block(table) ? finish_block(table) : LS_OK;
}

/* ---- selecting columns ------------------------------------------------------------------------------------------- */

/* Returns whether the program identifies one of these columns by its number, because the header lacks the name. */
static bool any_by_number(const ls_csv_columns *columns, const char *const *wanted, int count) {
    for (int i = 0; wanted != NULL && i < count; i++) {
        if (!ls_csv_has_name(columns, wanted[i])) {
            return true;
        }
    }
    return false;
}

/*
 * Warns if the header looks like data, which would be lost. A program that identifies all columns by name knows the
 * header. If it identifies a target by number, reading the target has already given this warning.
 */
static void check_header(const ls_csv_reader *reader, const ls_csv_options *options, const csv_table *table) {
    const ls_csv_columns *columns = &table->columns;
    const bool by_name = options->columns != NULL && !options->all_but &&
                         !any_by_number(columns, options->columns, options->column_count);
    if (!by_name && ls_csv_count_numeric_names(columns) == columns->count &&
        !any_by_number(columns, table->targets, table->target_count)) {
        ls_log_write(LS_LOG_WARNING,
                     "%s: %s: the first line contains only numbers and is used as the header; if it is data, set "
                     ".no_header",
                     reader->source.call, reader->source.path);
    }
}

/* Omits the target columns of a data set from its input. Fails if the program has selected a target as an input. */
static ls_status omit_targets(const ls_csv_reader *reader, bool by_place, const csv_table *table) {
    for (int i = 0; i < table->target_count; i++) {
        int column = 0;
        LS_TRY(ls_csv_find_column(reader, &table->columns, table->targets[i], &column));
        if (!by_place && table->take[column] >= 0) {
            return ls_fail(LS_ERR_ARGUMENT,
                           "%s: column \"%.60s\" is a target and must not be in .columns; remove it there", table->call,
                           table->targets[i]);
        }
        table->take[column] = -1;
    }
    return LS_OK;
}

/* Determines the output column for each field. */
static ls_status plan_columns(const ls_csv_reader *reader, const ls_csv_options *options, csv_table *table) {
    const bool by_place = options->columns == NULL || options->all_but;
    table->take = ls_allocate_zeroed((size_t)table->columns.count, sizeof *table->take);
    if (table->take == NULL) {
        return ls_fail_memory(table->call, (size_t)table->columns.count * sizeof *table->take);
    }
    for (int i = 0; i < table->columns.count; i++) {
        table->take[i] = by_place ? 0 : -1;
    }
    for (int i = 0; options->columns != NULL && i < options->column_count; i++) {
        int column = 0;
        LS_TRY(ls_csv_find_column(reader, &table->columns, options->columns[i], &column));
        if (!by_place && table->take[column] >= 0) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: column \"%.60s\" is selected twice", reader->source.call,
                           options->columns[i]);
        }
        table->take[column] = by_place ? -1 : i;
    }
    LS_TRY(omit_targets(reader, by_place, table));
    table->taken = by_place ? 0 : options->column_count;
    for (int i = 0; by_place && i < table->columns.count; i++) {
        table->take[i] = table->take[i] == 0 ? table->taken++ : -1;
    }
    return LS_OK;
}

/* Determines the classes of a text column, if the column is used. */
static ls_status plan_text(const ls_csv_reader *reader, const ls_csv_options *options, csv_table *table,
                           const ls_csv_text *given) {
    csv_text *text = &table->texts[table->text_count];
    LS_TRY(ls_csv_find_column(reader, &table->columns, given->column, &text->column));
    if (table->take[text->column] < 0) {
        return LS_OK;
    }
    table->text_count++;
    text->classes = given->classes;
    if (given->classes != NULL) {
        LS_TRY(ls_csv_check_classes(table->call, given->classes));
    } else {
        if (reader->source.size == SIZE_MAX) {
            return ls_fail(LS_ERR_UNSUPPORTED,
                           "%s: %s is a pipe and can be read only once: give the classes of column \"%.60s\" in .text",
                           table->call, reader->source.path, given->column);
        }
        text->classes = text->own =
            ls_csv_read_classes(reader->source.call, reader->source.path, given->column, options);
        LS_TRY(text->own != NULL ? LS_OK : ls_error_status());
    }
    const int count = ls_csv_classes_count(text->classes);
    return count - 1 <= whole_numbers_of(table->dtype)
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: column \"%.60s\" has %d classes, too many for %s", table->call,
                         given->column, count, ls_dtype_name(table->dtype));
}

static ls_status plan_texts(const ls_csv_reader *reader, const ls_csv_options *options, csv_table *table) {
    if (options->text_count == 0) {
        return LS_OK;
    }
    table->texts = ls_allocate_zeroed((size_t)options->text_count, sizeof *table->texts);
    if (table->texts == NULL) {
        return ls_fail_memory(table->call, (size_t)options->text_count * sizeof *table->texts);
    }
    for (int i = 0; i < options->text_count; i++) {
        LS_TRY(plan_text(reader, options, table, &options->text[i]));
    }
    return LS_OK;
}

static ls_status reserve_rows(csv_table *table) {
    const size_t count = (size_t)rows_of_block(table) * (size_t)table->taken;
    table->numbers = ls_allocate(count * sizeof *table->numbers);
    return table->numbers != NULL ? LS_OK : ls_fail_memory(table->call, count * sizeof *table->numbers);
}

static ls_status read_table(ls_csv_reader *reader, const ls_csv_options *options, csv_table *table) {
    int fields;
    LS_TRY(ls_csv_begin(reader, options, &table->columns));
    LS_TRY(plan_columns(reader, options, table));
    check_header(reader, options, table);
    LS_TRY(plan_texts(reader, options, table));
    LS_TRY(reserve_rows(table));
    LS_TRY(ls_csv_first_row(reader, &table->columns, &fields));
    while (fields > 0) {
        LS_TRY(read_row(reader, table, fields));
        LS_TRY(ls_csv_next_row(reader, &fields));
    }
    LS_TRY(table->pending > 0 ? finish_block(table) : LS_OK);
    ls_free(table->numbers); /* freed before the tensor is allocated, to save memory */
    table->numbers = NULL;
    return LS_OK;
}

/* Concatenates the blocks into a tensor. Frees each block after copying it. */
static ls_tensor *to_tensor(csv_table *table) {
    const int64_t size[] = {table->rows, table->taken};
    ls_tensor *tensor = ls_tensor_new(table->call, &ls_cpu, 2, size, table->dtype);
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

static ls_status check_options(const char *call, const ls_csv_options *options) {
    if (options->column_count < 0 || (options->columns == NULL && options->column_count > 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: .column_count is %d%s", call, options->column_count,
                       options->column_count < 0 ? ", but must be 0 or more" : " and .columns is NULL");
    }
    if (options->columns != NULL && options->column_count == 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: .columns lists no column; set .column_count to their number", call);
    }
    for (int i = 0; options->columns != NULL && i < options->column_count; i++) {
        if (options->columns[i] == NULL) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: .columns[%d] is NULL", call, i);
        }
    }
    if (options->text_count < 0 || (options->text == NULL && options->text_count > 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: .text_count is %d%s", call, options->text_count,
                       options->text_count < 0 ? ", but must be 0 or more" : " and .text is NULL");
    }
    if (options->text != NULL && options->text_count == 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: .text lists no column; set .text_count to their number", call);
    }
    for (int i = 0; i < options->text_count; i++) {
        if (options->text[i].column == NULL) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: .text[%d] names no column", call, i);
        }
    }
    if (ls_dtype_size(options->dtype) == 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: .dtype is %d, which is not an ls_dtype", call, (int)options->dtype);
    }
    const double empty = ls_option(options->empty, 0);
    return fits(options->dtype, empty) ? LS_OK
                                       : ls_fail(LS_ERR_ARGUMENT, "%s: .empty is %g, which %s cannot hold", call, empty,
                                                 ls_dtype_name(options->dtype));
}

ls_tensor *ls_csv_read_columns(const char *call, const char *path, const char *const *targets, int count,
                               const ls_csv_options *options) {
    static const ls_csv_options defaults;
    options = options != NULL ? options : &defaults;
    ls_csv_reader reader;
    if (check_options(call, options) != LS_OK || ls_csv_open(call, path, options, &reader) != LS_OK) {
        return NULL;
    }
    csv_table table = {.call = call,
                       .dtype = options->dtype,
                       .integers = !ls_dtype_is_floating(options->dtype) && options->dtype != LS_BOOL,
                       .class_target = options->class_target && targets == NULL,
                       .allow_empty = options->empty != 0,
                       .empty = ls_option(options->empty, 0),
                       .targets = targets,
                       .target_count = count};
    const locale_t before = ls_locale_enter();
    const ls_status status = read_table(&reader, options, &table);
    ls_locale_leave(before);
    ls_tensor *tensor = status == LS_OK ? to_tensor(&table) : NULL;
    ls_csv_close(&reader);
    table_free(&table);
    return tensor;
}

static ls_status find_text_column(ls_csv_reader *reader, const char *wanted, const ls_csv_options *options,
                                  ls_csv_columns *columns, bool *is_text) {
    int index = 0, other = 0;
    LS_TRY(ls_csv_begin(reader, options, columns));
    LS_TRY(ls_csv_find_column(reader, columns, wanted, &index));
    for (int i = 0; i < options->text_count; i++) {
        LS_TRY(ls_csv_find_column(reader, columns, options->text[i].column, &other));
        *is_text = *is_text || other == index;
    }
    return LS_OK;
}

ls_status ls_csv_find_text(const char *call, const char *path, const char *column, const ls_csv_options *options,
                           bool *is_text) {
    ls_csv_reader reader;
    ls_csv_columns columns = {0};
    *is_text = false;
    if (options->text_count == 0 || column == NULL) {
        return LS_OK;
    }
    LS_TRY(check_options(call, options));
    LS_TRY(ls_csv_open(call, path, options, &reader));
    const ls_status status = find_text_column(&reader, column, options, &columns, is_text);
    ls_csv_close(&reader);
    ls_free(columns.names);
    return status;
}

ls_tensor *ls_csv_read(const char *path, const ls_csv_options *options) {
    return ls_csv_read_columns("ls_csv_read", path, NULL, 0, options);
}
