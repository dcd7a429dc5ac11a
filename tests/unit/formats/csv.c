/*
 * CSV: numbers, text as classes, gzipped files, files from other programs, and invalid files.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <lockstep/autograd.h>
#include <lockstep/formats.h>

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "tests/support/commas.h"
#include "tests/support/files.h"
#include "tests/support/log.h"

static const char *csv(const char *text) {
    return test_file("table.csv", text, strlen(text));
}

static void expect_numbers(ls_tensor *tensor, int64_t rows, int64_t columns, const float *numbers) {
    assert_non_null(tensor);
    assert_int_equal(ls_size(tensor, 0), rows);
    assert_int_equal(ls_size(tensor, 1), columns);
    assert_memory_equal(ls_data_const(tensor), numbers, (size_t)(rows * columns) * sizeof(float));
    ls_release(tensor);
}

TEST(test_csv_reads_columns) {
    const char *text = "a,\"b, c\",d\r\n1,2.5,-3\r\n\"4\", 5e0 ,6\n";
    expect_numbers(ls_csv_read(csv(text), NULL), 2, 3, (const float[]){1, 2.5F, -3, 4, 5, 6});
    const char *const wanted[] = {"d", "b, c"};
    expect_numbers(ls_csv_read(csv(text), &(ls_csv_options){.columns = wanted, .column_count = 2}), 2, 2,
                   (const float[]){-3, 2.5F, 6, 5});
    const char *const others[] = {"a"};
    expect_numbers(ls_csv_read(csv(text), &(ls_csv_options){.columns = others, .column_count = 1, .all_but = true}), 2,
                   2, (const float[]){2.5F, -3, 5, 6});
    expect_numbers(ls_csv_read(csv("1;2\n3;4"), &(ls_csv_options){.separator = ';', .no_header = true}), 2, 2,
                   (const float[]){1, 2, 3, 4});
    expect_numbers(ls_csv_read(csv("x\n7\n"), NULL), 1, 1, (const float[]){7});
    const char *marked[] = {"x"};
    expect_numbers(
        ls_csv_read(csv("\xEF\xBB\xBFx,y\r\n7,8\r\n"), &(ls_csv_options){.columns = marked, .column_count = 1}), 1, 1,
        (const float[]){7});
    ls_tensor *none = ls_csv_read(csv("x,y\n"), NULL);
    assert_int_equal(ls_size(none, 0), 0);
    assert_int_equal(ls_size(none, 1), 2);
    ls_release(none);
    expect_numbers(ls_csv_read(csv("x\n7\n\n\"\"\n8\n"), &(ls_csv_options){.empty = -1}), 3, 1,
                   (const float[]){7, -1, 8}); /* a blank line is not an empty field */
}

TEST(test_numbers_have_points_in_every_locale) {
    if (!commas_begin()) {
        skip();
    }
    ls_tensor *tensor = ls_csv_read(csv("x\n1.5\n"), NULL);
    char text[64];
    (void)ls_format(tensor, text, sizeof text);
    commas_end();
    assert_string_equal(text, "tensor([[1.5000]])");
    ls_release(tensor);
}

static void expect_csv_error(const char *text, const ls_csv_options *options, const char *part) {
    assert_null(ls_csv_read(csv(text), options));
    assert_int_equal(ls_error_status(), LS_ERR_FORMAT);
    expect_message(part);
}

/* A lone carriage return ends a line, and LS_ZERO selects 0 for empty fields of an integer. */
TEST(test_csv_carriage_returns_and_empty_integers) {
    expect_numbers(ls_csv_read(csv("a,b\r1,2\r3,4\r"), NULL), 2, 2, (const float[]){1, 2, 3, 4});
    expect_numbers(ls_csv_read(csv("a,b\r\n1,2\r\r\n3,4"), NULL), 2, 2, (const float[]){1, 2, 3, 4});
    ls_tensor *numbers = ls_csv_read(csv("a,b\n1,\n,4\n"), &(ls_csv_options){.dtype = LS_I64, .empty = LS_ZERO});
    assert_non_null(numbers);
    assert_int_equal(ls_dtype_of(numbers), LS_I64);
    expect_numbers(ls_to(numbers, LS_F32), 2, 2, (const float[]){1, 0, 0, 4});
    ls_release(numbers);
}

TEST(test_csv_errors_name_line_and_column) {
    static const char *const no_numbers[] = {"x", "12abc", "1 2", "1.2.3", "0x", "--1"};
    for (size_t i = 0; i < sizeof no_numbers / sizeof *no_numbers; i++) {
        char text[64], said[64];
        snprintf(text, sizeof text, "a,b\n1,2\n3,%s\n", no_numbers[i]);
        snprintf(said, sizeof said, "line 3, column \"b\": \"%s\" is not a number", no_numbers[i]);
        expect_csv_error(text, NULL, said);
    }
    expect_csv_error("a,b\n1,2\n3\n", NULL, "line 3: 1 fields, but the first line has 2");
    expect_csv_error("a,b\n1,2,3\n", NULL, "line 2: 3 fields");
    expect_csv_error("", NULL, "is empty");
    expect_csv_error("\xEF\xBB\xBF", NULL, "is empty");
    assert_null(ls_csv_read(test_file("table.csv", "1\0002,3\n", 6), &(ls_csv_options){.no_header = true}));
    expect_message("zero bytes");
    expect_csv_error("a,\"b\n1,2\n", NULL, "does not end");
    expect_csv_error("a\"b,c\"\n1,2\n", NULL, "quote");
    const char *const missing[] = {"c"};
    expect_csv_error("a,b\n1,2\n", &(ls_csv_options){.columns = missing, .column_count = 1},
                     "no column named \"c\"; columns: a, b");
    const char *const twice[] = {"a"};
    expect_csv_error("a,a\n1,2\n", &(ls_csv_options){.columns = twice, .column_count = 1}, "more than one");
}

/* Reads the file, and returns the number of warnings about its header. */
static int count_header_warnings(const char *text, const ls_csv_options *options) {
    log_begin();
    assert_non_null(ls_csv_read(csv(text), options));
    log_end();
    assert_true(log_lines() == 0 || strstr(log_last(), "contains only numbers and is used as the header") != NULL);
    return log_lines();
}

TEST(test_csv_warns_about_a_header_of_numbers) {
    const char *const columns[] = {"1.5"};
    ls_scope *scope = ls_scope_begin();
    assert_int_equal(count_header_warnings("1.5,-2e3\n3,4\n", NULL), 1);
    assert_int_equal(count_header_warnings("1.5,b\n3,4\n", NULL), 0);
    assert_int_equal(count_header_warnings("1.5,2\n3,4\n", &(ls_csv_options){.no_header = true}), 0);
    assert_int_equal(count_header_warnings("1.5,2\n3,4\n", &(ls_csv_options){.columns = columns, .column_count = 1}),
                     0);
    assert_int_equal(count_header_warnings("1.5\t,2\n3,4\n", NULL), 1);
    const char *const by_number[] = {"1.5", "1"}; /* the second column has no name "1" */
    ls_csv_options options = {.columns = by_number, .column_count = 2};
    assert_int_equal(count_header_warnings("1.5,2\n3,4\n", &options), 1);
    assert_int_equal(count_header_warnings("1.5,1\n3,4\n", &options), 0);
    options = (ls_csv_options){.columns = by_number + 1, .column_count = 1};
    assert_int_equal(count_header_warnings("a,b\n3,4\n", &options), 0);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

/* The classes of a text column are read from the same header. */
TEST(test_csv_warns_once_if_it_reads_classes) {
    const ls_csv_options options = {.text = &(ls_csv_text){.column = "2"}, .text_count = 1};
    ls_scope *scope = ls_scope_begin();
    assert_int_equal(count_header_warnings("1.5,2\n3,a\n", &options), 1);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

/* ---- CSV: text and empty fields ---------------------------------------------------------------------------------- */

static const char passengers[] = "Name,Sex,Age,Fare\n"
                                 "\"Smith, \"\"Jo\"\"\",male,22,7.25\n"
                                 "\"two\nlines\",female,,71.5\n"
                                 "Kim, male ,4,\n";

TEST(test_csv_reads_text_as_classes) {
    const char *const wanted[] = {"Sex", "2", "Fare"}; /* a name or a number */
    ls_csv_options options = {.columns = wanted,
                              .column_count = 3,
                              .text = (const ls_csv_text[]){{.column = "Sex"}},
                              .text_count = 1,
                              .empty = -1};
    expect_numbers(ls_csv_read(csv(passengers), &options), 3, 3, (const float[]){1, 22, 7.25F, 0, -1, 71.5F, 1, 4, -1});
    for (int i = 0; i < 2; i++) {
        const float infinity = i == 0 ? INFINITY : -INFINITY;
        options.empty = (double)infinity;
        expect_numbers(ls_csv_read(csv(passengers), &options), 3, 3,
                       (const float[]){1, 22, 7.25F, 0, infinity, 71.5F, 1, 4, infinity});
    }
    options.empty = LS_ZERO;
    expect_numbers(ls_csv_read(csv(passengers), &options), 3, 3, (const float[]){1, 22, 7.25F, 0, 0, 71.5F, 1, 4, 0});
    ls_csv_classes *names = ls_csv_classes_read(csv(passengers), "Name", NULL);
    assert_int_equal(ls_csv_classes_count(names), 3);
    assert_string_equal(ls_csv_classes_name(names, 0), "Kim");
    assert_string_equal(ls_csv_classes_name(names, 1), "Smith, \"Jo\"");
    assert_string_equal(ls_csv_classes_name(names, 2), "two\nlines");
    assert_true(ls_csv_classes_name(names, 3) == NULL && ls_csv_classes_name(names, -1) == NULL);
    assert_int_equal(ls_csv_classes_find(names, "two\nlines"), 2);
    assert_int_equal(ls_csv_classes_find(names, "Sm"), -1);
    ls_csv_classes_free(names);
    ls_csv_classes_free(NULL);
}

/* Two files with the same class numbers. */
TEST(test_csv_classes_of_another_file) {
    ls_csv_classes *colours = ls_csv_classes_read(csv("c\nred\nblue\n\ngreen\n\"\"\n"), "c", NULL);
    assert_int_equal(ls_csv_classes_count(colours), 3); /* an empty field is not a class */
    const ls_csv_options options = {.text = (const ls_csv_text[]){{.column = "c", .classes = colours}},
                                    .text_count = 1};
    expect_numbers(ls_csv_read(csv("c\nred\ngreen\n"), &options), 2, 1, (const float[]){2, 1});
    expect_csv_error("x,c\n1,red\n2,violet\n", &options,
                     "line 3, column \"c\": \"violet\" is not one of its 3 classes");
    ls_csv_classes_free(colours);
}

TEST(test_csv_refuses_fields) {
    const ls_csv_options text = {.text = (const ls_csv_text[]){{.column = "Sex"}}, .text_count = 1};
    expect_csv_error(passengers, &text, "line 2, column \"Name\": \"Smith, \"Jo\"\" is not a number; if it marks");
    expect_csv_error("x,Sex\n1,male\n2,\n", &text, "line 3, column \"Sex\" is empty, but a class must not be");
    const char *const age[] = {"Age"};
    expect_csv_error(passengers, &(ls_csv_options){.columns = age, .column_count = 1},
                     "line 3, column \"Age\" is empty; set .empty"); /* the row begins in line 3 and ends in line 4 */
    expect_csv_error("a,b\n1,2\n3, \n", NULL, "line 3, column \"b\" is empty");
    expect_csv_error("1;;3\n", &(ls_csv_options){.separator = ';', .no_header = true}, "line 1, column \"1\" is empty");
    expect_csv_error("n,Age\n\"x\ny\",1\n7,x\n", &(ls_csv_options){.columns = age, .column_count = 1},
                     "line 4, column \"Age\": \"x\"");
    expect_csv_error("a\n256\n", &(ls_csv_options){.dtype = LS_U8}, "line 2, column \"a\": 256 does not fit u8");
    expect_csv_error("a\n1.5\n", &(ls_csv_options){.dtype = LS_I64}, "1.5 does not fit i64");
    expect_csv_error("Sex\nfe\"male\n", &text, "a quote stands in the middle of a field");
    assert_null(ls_csv_classes_read(csv("a\n1\n"), "b", NULL));
    expect_message("ls_csv_classes_read: ");
    expect_message("has no column named \"b\"; columns: a");
    assert_null(ls_csv_read(csv("a\n1\n"), &(ls_csv_options){.dtype = LS_I64, .empty = NAN}));
    expect_message(".empty is nan, which i64 cannot hold");
    assert_null(ls_csv_read(csv("a\n1\n"), &(ls_csv_options){.dtype = LS_U8, .empty = -1}));
    expect_message(".empty is -1, which u8 cannot hold");
    assert_null(ls_csv_read(csv("a\n1\n"), &(ls_csv_options){.dtype = (ls_dtype)999}));
    expect_message(".dtype is 999, which is not an ls_dtype");
    const char *const unnamed[] = {NULL};
    assert_null(ls_csv_read(csv("a\n1\n"), &(ls_csv_options){.columns = unnamed, .column_count = 1}));
    expect_message(".columns[0] is NULL");
    assert_null(ls_csv_read("", NULL));
    expect_message("ls_csv_read: the path is empty");
    const char *const twice[] = {"a", "0"};
    assert_null(ls_csv_read(csv("a\n1\n"), &(ls_csv_options){.columns = twice, .column_count = 2}));
    expect_message("column \"0\" is selected twice");
    assert_null(ls_csv_read(csv("a\n1\n"), &(ls_csv_options){.text_count = 1}));
    expect_message(".text_count is 1 and .text is NULL");
    assert_null(ls_csv_read(csv("a\n1\n"), &(ls_csv_options){.text_count = -1}));
    expect_message(".text_count is -1, but must be 0 or more");
    assert_null(ls_csv_read(csv("a\n1\n"), &(ls_csv_options){.column_count = 2}));
    expect_message(".column_count is 2 and .columns is NULL");
    assert_null(ls_csv_read(csv("a\n1\n"), &(ls_csv_options){.column_count = -2}));
    expect_message(".column_count is -2, but must be 0 or more");
}

/* A list without its length would select nothing. */
TEST(test_csv_refuses_lists_without_a_count) {
    const char *const columns[] = {"a"};
    const ls_csv_text text[] = {{.column = "a"}};
    for (int i = 0; i < 2; i++) {
        assert_null(ls_csv_read(csv("a\n1\n"), &(ls_csv_options){.columns = columns, .all_but = i == 1}));
        assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
        expect_message("ls_csv_read: .columns lists no column; set .column_count");
    }
    assert_null(ls_csv_read(csv("a\nx\n"), &(ls_csv_options){.text = text}));
    expect_message("ls_csv_read: .text lists no column; set .text_count");
}

/* Each message names the option for the likely mistake. */
TEST(test_csv_errors_name_the_remedy) {
    const char *const kind[] = {"kind"};
    ls_csv_options options = {.columns = kind, .column_count = 1};
    expect_csv_error("temperature;kind\n1;2\n", &options,
                     "columns: temperature;kind; if a semicolon or a tab separates the columns, set .separator");
    expect_csv_error("temperature\tkind\n1\t2\n", &options, "set .separator");
    expect_csv_error("5.1,3.5,setosa\n1,2,x\n", &options, "setosa; if the first line is data, set .no_header");
    expect_csv_error("a;b\n1;2\n", NULL, "\"1;2\" is not a number; if a semicolon or a tab separates");
    expect_csv_error("a;b\n1,5;2\n", &(ls_csv_options){.separator = ';'},
                     "column \"a\": \"1,5\" is not a number; write a decimal point, not a comma");
    expect_csv_error(
        "a,b\n1,n/a\n", NULL,
        "\"n/a\" is not a number; if it marks a missing value, make the field empty and set .empty; if the "
        "strings of this column are classes, list it in .text");
    expect_csv_error("a,b\n1,-\n", NULL, "\"-\" is not a number; if it marks a missing value");
    /* An error in the table of classes names the user's call. */
    expect_csv_error("a,b\nx,1\n,\"y\n",
                     &(ls_csv_options){.text = (const ls_csv_text[]){{.column = "a"}}, .text_count = 1},
                     "ls_csv_read: ");
}

static void expect_integers(const char *text, ls_dtype dtype, int64_t first, int64_t second) {
    ls_tensor *tensor = ls_csv_read(csv(text), &(ls_csv_options){.dtype = dtype, .empty = LS_ZERO});
    assert_non_null(tensor);
    assert_int_equal(ls_dtype_of(tensor), dtype);
    ls_tensor *integers = ls_to(tensor, LS_I64);
    assert_int_equal(ls_numel(integers), 2);
    assert_memory_equal(ls_data_const(integers), ((const int64_t[]){first, second}), 2 * sizeof(int64_t));
    ls_release(integers);
    if (integers != tensor) {
        ls_release(tensor);
    }
}

/* A double cannot represent all integers beyond 2^53. */
TEST(test_csv_integers_are_exact) {
    expect_integers("a\n9007199254740993\n-9007199254740993\n", LS_I64, 9007199254740993, -9007199254740993);
    expect_integers("a\n9223372036854775807\n-9223372036854775808\t\n", LS_I64, INT64_MAX, INT64_MIN);
    expect_integers("a,b\n +7 ,\n", LS_I64, 7, 0);
    expect_integers("a\n-2147483648\n2.147483647e9\n", LS_I32, INT32_MIN, INT32_MAX);
    expect_integers("a\n255\n0x10\n", LS_U8, 255, 16);
    expect_integers("a\n9007199254740991.0\n-9e15\n", LS_I64, 9007199254740991, -9000000000000000);
    const ls_csv_options i64 = {.dtype = LS_I64}, u8 = {.dtype = LS_U8}, i32 = {.dtype = LS_I32};
    expect_csv_error("a\n1\n9223372036854775808\n", &i64,
                     "line 3, column \"a\": 9223372036854775808 does not fit i64; choose another .dtype");
    expect_csv_error("a\n9007199254740993.0\n", &i64,
                     "9007199254740993.0 does not fit i64 exactly; write it without decimal point and exponent");
    expect_csv_error("a\n1.5\n", &i64, "1.5 does not fit i64: it is not an integer");
    expect_csv_error("a\nnan\n", &i64, "nan does not fit i64: it is not an integer");
    expect_csv_error("a\n-1\n", &u8, "-1 does not fit u8; choose another .dtype");
    expect_csv_error("a\n2147483648\n", &i32, "2147483648 does not fit i32");
    expect_csv_error("a\n-3e9\n", &i32, "-3e9 does not fit i32");
}

/* The rule about integers from 2^53 on is a rule about text. */
TEST(test_csv_empty_fields_of_large_integers) {
    const int64_t wanted[] = {INT64_C(1) << 53, 3};
    ls_tensor *tensor = ls_csv_read(csv("a,b\n,3\n"), &(ls_csv_options){.dtype = LS_I64, .empty = 0x1p53});
    assert_non_null(tensor);
    assert_memory_equal(ls_data_const(tensor), wanted, sizeof wanted);
    ls_release(tensor);
    assert_null(ls_csv_read(csv("a\n1\n"), &(ls_csv_options){.dtype = LS_I64, .empty = 0x1p63}));
    expect_message(".empty is 9.22337e+18, which i64 cannot hold");
}

TEST(test_csv_reads_large_numbers_as_true) {
    static const bool wanted[] = {true, true, false, true, true};
    ls_tensor *tensor = ls_csv_read(csv("a\n1e999\n-1e999\n0\n1e300\ninf\n"), &(ls_csv_options){.dtype = LS_BOOL});
    assert_non_null(tensor);
    assert_memory_equal(ls_data_const(tensor), wanted, sizeof wanted);
    ls_release(tensor);
}

/* A number is infinite only if the file says so. */
TEST(test_csv_refuses_overflow) {
    static const struct {
        ls_dtype dtype;
        const char *largest, *too_large;
    } cases[] = {{LS_F32, "3.4028235e38", "1e39"},
                 {LS_F64, "1.7976931348623157e308", "-1e309"},
                 {LS_BF16, "3.3895e38", "3.4e38"},
                 {LS_F16, "-65519", "65520"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64], said[64];
        const ls_csv_options options = {.dtype = cases[i].dtype};
        snprintf(text, sizeof text, "a\n%s\n-inf\n", cases[i].largest);
        ls_tensor *tensor = ls_csv_read(csv(text), &options);
        assert_non_null(tensor);
        assert_true(isfinite(ls_at(tensor, (const int64_t[]){0, 0})));
        assert_true(ls_at(tensor, (const int64_t[]){1, 0}) == (double)-INFINITY);
        ls_release(tensor);
        snprintf(text, sizeof text, "a\n1\n%s\n", cases[i].too_large);
        snprintf(said, sizeof said, "line 3, column \"a\": %s does not fit ", cases[i].too_large);
        expect_csv_error(text, &options, said);
    }
    assert_null(ls_csv_read(csv("a\n1\n"), &(ls_csv_options){.empty = 1e39}));
    expect_message(".empty is 1e+39, which f32 cannot hold");
}

/* Writes to the pipe `path` once a reader has opened it. */
static void *write_pipe(void *path) {
    static const char text[] = "size,kind\n1,a\n2,b\n";
    const int end = open(path, O_WRONLY | O_CLOEXEC);
    return end >= 0 && write(end, text, sizeof text - 1) == sizeof text - 1 && close(end) == 0 ? path : NULL;
}

static ls_tensor *read_csv_pipe(const ls_csv_options *options) {
    static char path[320];
    pthread_t thread;
    void *result;
    snprintf(path, sizeof path, "%s", test_path("pipe.csv"));
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(pthread_create(&thread, NULL, write_pipe, path), 0);
    ls_tensor *tensor = ls_csv_read(path, options);
    pthread_join(thread, &result);
    assert_ptr_equal(result, path);
    assert_int_equal(unlink(path), 0);
    return tensor;
}

/* Collecting the classes of a column needs to read the file twice. */
TEST(test_csv_reads_a_pipe_once) {
    ls_csv_text text = {.column = "kind"};
    const ls_csv_options options = {.text = &text, .text_count = 1};
    assert_null(read_csv_pipe(&options));
    assert_int_equal(ls_error_status(), LS_ERR_UNSUPPORTED);
    expect_message("is a pipe and can be read only once: give the classes of column \"kind\" in .text");
    ls_csv_classes *classes = ls_csv_classes_read(csv("size,kind\n1,a\n2,b\n"), "kind", NULL);
    text.classes = classes;
    expect_numbers(read_csv_pipe(&options), 2, 2, (const float[]){1, 0, 2, 1});
    ls_csv_classes_free(classes);
}

TEST(test_csv_has_as_many_classes_as_fit) {
    enum { TEXTS = 10001 };
    static char text[16 * TEXTS];
    size_t size = (size_t)snprintf(text, sizeof text, "id\n");
    for (int i = 0; i < TEXTS; i++) {
        size += (size_t)snprintf(text + size, sizeof text - size, "n%d\n", i);
    }
    assert_null(ls_csv_classes_read(csv(text), "id", NULL));
    expect_message("line 10002, column \"id\" has more than 10000 different strings");
    text[10 + 5 * 300] = '\0'; /* a few hundred */
    const ls_csv_options bytes = {.text = (const ls_csv_text[]){{.column = "id"}}, .text_count = 1, .dtype = LS_U8};
    assert_null(ls_csv_read(csv(text), &bytes));
    expect_message("too many for u8");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_csv_reads_columns),
        cmocka_unit_test(test_numbers_have_points_in_every_locale),
        cmocka_unit_test(test_csv_carriage_returns_and_empty_integers),
        cmocka_unit_test(test_csv_errors_name_line_and_column),
        cmocka_unit_test(test_csv_reads_text_as_classes),
        cmocka_unit_test(test_csv_classes_of_another_file),
        cmocka_unit_test(test_csv_warns_about_a_header_of_numbers),
        cmocka_unit_test(test_csv_warns_once_if_it_reads_classes),
        cmocka_unit_test(test_csv_refuses_fields),
        cmocka_unit_test(test_csv_refuses_lists_without_a_count),
        cmocka_unit_test(test_csv_errors_name_the_remedy),
        cmocka_unit_test(test_csv_integers_are_exact),
        cmocka_unit_test(test_csv_empty_fields_of_large_integers),
        cmocka_unit_test(test_csv_reads_large_numbers_as_true),
        cmocka_unit_test(test_csv_refuses_overflow),
        cmocka_unit_test(test_csv_has_as_many_classes_as_fit),
        cmocka_unit_test(test_csv_reads_a_pipe_once),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
