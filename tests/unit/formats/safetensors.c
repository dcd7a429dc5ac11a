/*
 * safetensors: round trips, a file from another program, conversions of integers, open files, invalid files, and a full
 * disk.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <lockstep/formats.h>
#include <lockstep/nn.h>

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "formats/named.h"
#include "tensor/tensor.h"
#include "tests/support/files.h"

TEST(test_safetensors_round_trip) {
    ls_named tensors[LS_DTYPE_COUNT];
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
        tensors[dtype] = (ls_named){ls_dtype_name((ls_dtype)dtype), ls_ones(LS_SHAPE(dtype, 3), (ls_dtype)dtype)};
    }
    const char *path = test_path("all.safetensors");
    const char *const metadata[] = {"format", "lockstep \xc3\xa4\"", NULL};
    assert_int_equal(ls_safetensors_save(path, tensors, LS_DTYPE_COUNT, metadata), LS_OK);
    assert_int_equal(ls_safetensors_save(path, NULL, 0, (const char *const[]){"key", NULL}), LS_ERR_ARGUMENT);
    expect_message("ls_safetensors_save: the key key of the metadata has no value");
    const char *const twice[] = {"step", "1", "format", "pt", "step", "2", NULL};
    assert_int_equal(ls_safetensors_save(path, NULL, 0, twice), LS_ERR_ARGUMENT);
    expect_message("ls_safetensors_save: the metadata contains the key step twice");
    ls_safetensors *file = ls_safetensors_load(path);
    assert_non_null(file);
    assert_int_equal(ls_safetensors_count(file), LS_DTYPE_COUNT);
    assert_string_equal(ls_safetensors_metadata(file, "format"), metadata[1]);
    assert_null(ls_safetensors_metadata(file, "other"));
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
        assert_true(ls_equal(ls_safetensors_find(file, tensors[dtype].name), tensors[dtype].tensor));
        ls_release(tensors[dtype].tensor);
    }
    assert_null(ls_safetensors_find(file, "nothing"));
    for (int past = LS_DTYPE_COUNT; past <= LS_DTYPE_COUNT + 1; past++) {
        assert_true(ls_safetensors_at(file, past).name == NULL && ls_safetensors_at(file, past).tensor == NULL);
    }
    assert_null(ls_safetensors_at(file, -1).name);
    assert_true(ls_safetensors_find(file, NULL) == NULL && ls_safetensors_find(NULL, "f32") == NULL);
    assert_true(ls_safetensors_metadata(file, NULL) == NULL && ls_safetensors_metadata(NULL, "format") == NULL);
    assert_true(ls_safetensors_count(NULL) == 0 && ls_safetensors_at(NULL, 0).name == NULL);
    ls_safetensors_free(file);
}

/* Written by Python's safetensors: tests/fixtures/make_safetensors.py. */
TEST(test_safetensors_reads_python_file) {
    ls_safetensors *file = ls_safetensors_load(LS_FIXTURES "/python.safetensors");
    assert_non_null(file);
    ls_tensor *weight = ls_safetensors_find(file, "0.weight");
    assert_int_equal(ls_ndim(weight), 2);
    assert_int_equal(ls_size(weight, 0), 2);
    assert_int_equal(ls_size(weight, 1), 3);
    const float numbers[] = {0, 0.5F, 1, 1.5F, 2, 2.5F};
    assert_memory_equal(ls_data_const(weight), numbers, sizeof numbers);
    assert_true(ls_item(ls_safetensors_find(file, "step")) == 7);
    assert_int_equal(ls_dtype_of(ls_safetensors_find(file, "half")), LS_F16);
    assert_string_equal(ls_safetensors_metadata(file, "format"), "np");
    ls_safetensors_free(file);
}

/* Writes a file with this header, followed by `data_size` zero bytes. */
static const char *safetensors_with(const char *header, size_t data_size) {
    unsigned char bytes[1024] = {(unsigned char)strlen(header)};
    memcpy(bytes + 8, header, strlen(header));
    return test_file("made.safetensors", bytes, 8 + strlen(header) + data_size);
}

static void expect_safetensors_error(const char *header, size_t data_size, const char *part) {
    assert_null(ls_safetensors_load(safetensors_with(header, data_size)));
    assert_int_equal(ls_error_status(), LS_ERR_FORMAT);
    expect_message(part);
}

/* Creates a file with this header and data, and opens it. */
static ls_safetensors *safetensors_of(const char *header, const void *data, size_t size) {
    unsigned char bytes[1024] = {0};
    const size_t length = strlen(header);
    bytes[0] = (unsigned char)(length & 0xff);
    bytes[1] = (unsigned char)(length >> 8);
    memcpy(bytes + 8, header, length);
    memcpy(bytes + 8 + length, data, size);
    return ls_safetensors_load(test_file("made.safetensors", bytes, 8 + length + size));
}

static void expect_integers(const ls_tensor *tensor, ls_dtype dtype, int64_t first, int64_t last) {
    assert_non_null(tensor);
    assert_int_equal(ls_dtype_of(tensor), dtype);
    const int64_t at[] = {0, ls_numel(tensor) - 1};
    const void *elements = ls_data_const(tensor);
    if (dtype == LS_I64) {
        assert_true(((const int64_t *)elements)[at[0]] == first && ((const int64_t *)elements)[at[1]] == last);
    } else {
        assert_true(((const int32_t *)elements)[at[0]] == first && ((const int32_t *)elements)[at[1]] == last);
    }
}

/* Integers without a dtype are converted. A tensor that no dtype can hold is refused when it is requested. */
TEST(test_safetensors_converts_integers) {
    static const char header[] = "{\"i8\":{\"dtype\":\"I8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                                 "\"f8\":{\"dtype\":\"F8_E4M3\",\"shape\":[5],\"data_offsets\":[3,8]},"
                                 "\"i16\":{\"dtype\":\"I16\",\"shape\":[2],\"data_offsets\":[8,12]},"
                                 "\"u16\":{\"dtype\":\"U16\",\"shape\":[2],\"data_offsets\":[12,16]},"
                                 "\"u32\":{\"dtype\":\"U32\",\"shape\":[2],\"data_offsets\":[16,24]},"
                                 "\"u64\":{\"dtype\":\"U64\",\"shape\":[2],\"data_offsets\":[24,40]},"
                                 "\"large\":{\"dtype\":\"U64\",\"shape\":[1],\"data_offsets\":[40,48]},"
                                 "\"last\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[48,49]}}";
    static const unsigned char data[] = "\x80\0\x7f" /* i8: -128, 0, 127 */
                                        "f8f8f"
                                        "\0\x80\xff\x7f"                   /* i16: -32768, 32767 */
                                        "\0\0\xff\xff"                     /* u16: 0, 65535 */
                                        "\1\0\0\0\xff\xff\xff\xff"         /* u32: 1, 2^32 - 1 */
                                        "\2\0\0\0\0\0\0\0"                 /* u64: 2, */
                                        "\xff\xff\xff\xff\xff\xff\xff\x7f" /* 2^63 - 1 */
                                        "\0\0\0\0\0\0\0\x80"               /* 2^63 */
                                        "\7";
    (void)ls_error_set(LS_ERR_DENIED, "an earlier failure");
    ls_safetensors *file = safetensors_of(header, data, sizeof data - 1);
    assert_non_null(file);
    assert_string_equal(ls_error_message(), "an earlier failure"); /* the call has not failed */
    assert_int_equal(ls_safetensors_count(file), 6);
    expect_integers(ls_safetensors_find(file, "i8"), LS_I32, -128, 127);
    expect_integers(ls_safetensors_find(file, "i16"), LS_I32, -32768, 32767);
    expect_integers(ls_safetensors_find(file, "u16"), LS_I32, 0, 65535);
    expect_integers(ls_safetensors_find(file, "u32"), LS_I64, 1, UINT32_MAX);
    expect_integers(ls_safetensors_find(file, "u64"), LS_I64, 2, INT64_MAX);
    assert_true(ls_item(ls_safetensors_find(file, "last")) == 7);
    assert_null(ls_safetensors_find(file, "f8"));
    assert_int_equal(ls_error_status(), LS_ERR_UNSUPPORTED);
    expect_message("tensor f8 has the dtype F8_E4M3, which Lockstep does not have");
    assert_null(ls_safetensors_find(file, "large"));
    expect_message("tensor large: element 0 is 9223372036854775808, which i64 cannot hold");
    ls_safetensors_free(file);
}

/* A stored byte other than 0 is true. In memory, true is always 1. */
TEST(test_safetensors_reads_booleans) {
    static const char header[] = "{\"mask\":{\"dtype\":\"BOOL\",\"shape\":[4],\"data_offsets\":[0,4]}}";
    ls_safetensors *file = safetensors_of(header, (const unsigned char *)"\0\1\2\xff", 4);
    assert_non_null(file);
    assert_memory_equal(ls_data_const(ls_safetensors_find(file, "mask")), "\0\1\1\1", 4);
    ls_safetensors_free(file);
}

static void note_name(const char *name, void *user) {
    strncpy(user, name, 15);
}

/* A model accepts integers as weights, and fails only if it needs a refused tensor. */
TEST(test_a_model_of_integers) {
    static const char header[] = "{\"weight\":{\"dtype\":\"I8\",\"shape\":[1,2],\"data_offsets\":[0,2]},"
                                 "\"bias\":{\"dtype\":\"%s\",\"shape\":[1],\"data_offsets\":[2,4]},"
                                 "\"scale\":{\"dtype\":\"F8_E5M2\",\"shape\":[1],\"data_offsets\":[4,5]}}";
    ls_module *model = ls_nn_linear(2, 1);
    for (int good = 0; good < 2; good++) {
        char text[sizeof header + 16];
        snprintf(text, sizeof text, header, good ? "I16" : "F8_E4M3");
        ls_safetensors_free(safetensors_of(text, "\xff\3\7\0", 5));
        const char *path = test_path("made.safetensors");
        char extra[16] = "";
        const ls_module_load_options all = {.allow_extra = true, .on_extra = note_name, .user = extra};
        assert_int_equal(ls_module_load(model, path), good ? LS_ERR_FORMAT : LS_ERR_UNSUPPORTED);
        expect_message(good ? "a tensor scale that the model does not have" : "tensor bias has");
        assert_int_equal(ls_module_load_with(model, path, &all), good ? LS_OK : LS_ERR_UNSUPPORTED);
        assert_string_equal(extra, "scale");
    }
    const float *weight = ls_data(ls_module_find(model, "weight"));
    assert_true(weight[0] == -1 && weight[1] == 3 && ls_item(ls_module_find(model, "bias")) == 7);
    ls_module_free(model);
}

TEST(test_safetensors_refuses_bad_files) {
    expect_safetensors_error("[1]", 0, "not a JSON object");
    expect_safetensors_error("{\"a\":", 0, "not a JSON object");
    expect_safetensors_error("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "shape");
    expect_safetensors_error("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "fit together");
    expect_safetensors_error("{\"a\":{\"dtype\":\"F32\",\"shape\":[0,4611686018427387904],\"data_offsets\":[0,0]}}", 4,
                             "fit together");
    expect_safetensors_error("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, "lie in the file");
    expect_safetensors_error("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 8,
                             "do not belong to a tensor");
    expect_safetensors_error("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                             "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
                             4, "overlap");
    const unsigned char tiny[] = {255, 255, 255, 255};
    assert_null(ls_safetensors_load(test_file("tiny", tiny, sizeof tiny)));
    assert_int_equal(ls_error_status(), LS_ERR_FORMAT);
}

/* Tests the first and the last character of each UTF-8 length, and of surrogate pairs. Unpaired surrogates are
 * invalid. */
TEST(test_safetensors_escapes) {
    static const char *const rows[][2] = {
        {"\\u0001", "\x01"},
        {"\\u007f", "\x7f"},
        {"\\u0080", "\xc2\x80"},
        {"\\u07ff", "\xdf\xbf"},
        {"\\u0800", "\xe0\xa0\x80"},
        {"\\ud7ff", "\xed\x9f\xbf"},
        {"\\ue000", "\xee\x80\x80"},
        {"\\uFFFF", "\xef\xbf\xbf"},
        {"\\ud800\\udc00", "\xf0\x90\x80\x80"},
        {"\\udbff\\udfff", "\xf4\x8f\xbf\xbf"},
        {"\\\\\\/\\b\\f\\n\\r\\t\\\"", "\\/\b\f\n\r\t\""},
        {"\\u0000", NULL},
        {"\\ud800", NULL},
        {"\\udbff", NULL},
        {"\\udc00", NULL},
        {"\\udfff", NULL},
        {"\\ud800\\udbff", NULL},
        {"\\ud800\\ue000", NULL},
        {"\\ud800 \\udc00", NULL},
        {"\\u00g0", NULL},
        {"\\u00`0", NULL},
        {"\\x", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char header[128];
        snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", rows[i][0]);
        if (rows[i][1] == NULL) {
            expect_safetensors_error(header, 1, "an escape that JSON knows");
            continue;
        }
        ls_safetensors *file = ls_safetensors_load(safetensors_with(header, 1));
        assert_non_null(file);
        assert_string_equal(ls_safetensors_at(file, 0).name, rows[i][1]);
        ls_safetensors_free(file);
    }
}

/* The header may list the tensors in any order. A tensor without elements does not overlap any other. */
TEST(test_safetensors_of_empty_tensors) {
    const char header[] = "{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]},"
                          "\"none\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[1,1]},"
                          "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    char text[8 + sizeof header - 1 + 3] = {(char)(sizeof header - 1)};
    memcpy(text + 8, header, sizeof header - 1);
    memcpy(text + 8 + sizeof header - 1, "\1\2\3", 3);
    ls_safetensors *file = ls_safetensors_load(test_file("empty.safetensors", text, sizeof text));
    assert_non_null(file);
    assert_string_equal(ls_safetensors_at(file, 0).name, "a");
    assert_string_equal(ls_safetensors_at(file, 1).name, "none");
    assert_int_equal(ls_size(ls_safetensors_find(file, "none"), 1), 5);
    assert_memory_equal(ls_data_const(ls_safetensors_find(file, "b")), "\2\3", 2);
    ls_safetensors_free(file);
}

/* An open file has shapes and dtypes, and reads each tensor when it is fetched. */
TEST(test_safetensors_open) {
    static const char header[] = "{\"odd\":{\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,1]},"
                                 "\"large\":{\"dtype\":\"U64\",\"shape\":[1],\"data_offsets\":[1,9]},"
                                 "\"half\":{\"dtype\":\"U16\",\"shape\":[1,2],\"data_offsets\":[9,13]},"
                                 "\"__metadata__\":{\"key\":\"value\"}}";
    static const char data[] = "?\377\377\377\377\377\377\377\377\1\0\2";
    enum { LENGTH = sizeof header - 1, DATA = sizeof data };
    char text[8 + LENGTH + DATA] = {(char)LENGTH};
    memcpy(text + 8, header, LENGTH);
    memcpy(text + 8 + LENGTH, data, DATA);
    const char *path = test_file("open.safetensors", text, sizeof text);
    const int descriptors = test_descriptors_count();
    assert_null(ls_safetensors_open(test_path("missing.safetensors")));
    assert_null(ls_safetensors_open(NULL));
    ls_safetensors *file = ls_safetensors_open(path);
    assert_non_null(file);
    assert_int_equal(ls_safetensors_count(file), 2);
    assert_string_equal(ls_safetensors_metadata(file, "key"), "value");
    assert_null(ls_safetensors_find(file, "odd"));
    expect_message("has the dtype F4, which Lockstep does not have");
    const ls_tensor *half = ls_safetensors_find(file, "half");
    assert_int_equal(ls_size(half, 1), 2);
    for (int i = 0; i < 2; i++) {
        ls_tensor *elements = ls_safetensors_fetch(file, half);
        assert_non_null(elements);
        assert_int_equal(ls_dtype_of(elements), ls_dtype_of(half));
        assert_true(ls_at(elements, (int64_t[]){0, 0}) == 1 && ls_at(elements, (int64_t[]){0, 1}) == 2);
        ls_tensor_drop(elements);
    }
    assert_null(ls_safetensors_fetch(file, ls_safetensors_find(file, "large")));
    assert_int_equal(ls_error_status(), LS_ERR_UNSUPPORTED);
    assert_int_equal(truncate(path, sizeof text - 1), 0);
    assert_null(ls_safetensors_fetch(file, half));
    expect_message("was truncated while it was being read");
    assert_null(ls_safetensors_open(path));
    ls_safetensors_free(file);
    assert_int_equal(test_descriptors_count(), descriptors);
}

/* Compares the whole message. */
static void expect_unsaved(const char *path, const ls_named *tensors, int count, const char *why) {
    assert_int_equal(ls_safetensors_save(path, tensors, count, NULL), LS_ERR_ARGUMENT);
    assert_string_equal(strstr(ls_error_message(), ": ") + 2, why);
}

TEST(test_safetensors_refuses_bad_arguments) {
    const char *path = test_file("arguments.safetensors", "", 0);
    ls_tensor *one = ls_ones(LS_SHAPE(1), LS_F32), *matrix = ls_ones(LS_SHAPE(2, 3), LS_F32);
    ls_tensor *turned = ls_transpose(matrix, 0, 1);
    const ls_named good = {"a", one};
    expect_unsaved(path, NULL, 3, "3 tensors at NULL");
    expect_unsaved(path, NULL, -1, "-1 tensors at NULL");
    expect_unsaved(path, &good, -1, "-1 tensors");
    expect_unsaved(path, &(ls_named){"__metadata__", one}, 1,
                   "a tensor cannot be named __metadata__: the format reserves this name");
    expect_unsaved(path, &(ls_named){"a", NULL}, 1, "tensor 0 (a) is NULL");
    expect_unsaved(path, &(ls_named){NULL, one}, 1, "tensor 0 has no name");
    expect_unsaved(path, (ls_named[]){good, {"b", turned}}, 2,
                   "tensor 1 (b) is not contiguous: call ls_contiguous first");
    expect_unsaved(path, (ls_named[]){good, {"b", one}, good}, 3, "two tensors are named a");
    const char *const texts[] = {"key", "\xff", NULL}, *const keys[] = {"\xff", "text", NULL};
    assert_int_equal(ls_safetensors_save(path, &good, 1, texts), LS_ERR_ARGUMENT);
    expect_message("ls_safetensors_save: the value of the key key of the metadata is not UTF-8");
    assert_int_equal(ls_safetensors_save(path, &good, 1, keys), LS_ERR_ARGUMENT);
    expect_message("of the metadata is not UTF-8; convert it to UTF-8");
    assert_int_equal(ls_safetensors_save(path, &(ls_named){"\xff", one}, 1, NULL), LS_ERR_ARGUMENT);
    expect_message("of tensor 0 is not UTF-8; convert it to UTF-8");
    ls_release(one);
    ls_release(turned);
    ls_release(matrix);
}

TEST(test_safetensors_leaves_the_old_file_when_it_fails) {
    ls_tensor *tensor = ls_ones(LS_SHAPE(2), LS_F32);
    const char *path = test_path("kept.safetensors");
    assert_int_equal(ls_safetensors_save(path, &(ls_named){"a", tensor}, 1, NULL), LS_OK);
    const int files = test_files_count();
    const ls_named same[] = {{"a", tensor}, {"a", tensor}};
    assert_int_equal(ls_safetensors_save(path, same, 2, NULL), LS_ERR_ARGUMENT);
    assert_int_not_equal(ls_safetensors_save(test_path("absent/file"), same, 1, NULL), LS_OK);
    assert_int_equal(test_files_count(), files);
    ls_safetensors *file = ls_safetensors_load(path);
    assert_int_equal(ls_safetensors_count(file), 1);
    ls_safetensors_free(file);
    ls_release(tensor);
}

/* A file size limit simulates a full disk. */
TEST(test_full_disk_keeps_the_old_file) {
    ls_tensor *small = ls_ones(LS_SHAPE(2), LS_F32);
    ls_tensor *large = ls_ones(LS_SHAPE(100000), LS_F32);
    const char *path = test_path("full.safetensors");
    assert_int_equal(ls_safetensors_save(path, &(ls_named){"a", small}, 1, NULL), LS_OK);
    const int files = test_files_count();
    struct rlimit before;
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = 4096, .rlim_max = before.rlim_max});
    const ls_status status = ls_safetensors_save(path, &(ls_named){"a", large}, 1, NULL);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, LS_ERR_IO);
    expect_message(path);
    assert_int_equal(test_files_count(), files);
    ls_safetensors *file = ls_safetensors_load(path);
    assert_true(ls_equal(ls_safetensors_find(file, "a"), small));
    ls_safetensors_free(file);
    ls_release(small);
    ls_release(large);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors_round_trip),
        cmocka_unit_test(test_safetensors_reads_python_file),
        cmocka_unit_test(test_safetensors_converts_integers),
        cmocka_unit_test(test_safetensors_reads_booleans),
        cmocka_unit_test(test_a_model_of_integers),
        cmocka_unit_test(test_safetensors_refuses_bad_files),
        cmocka_unit_test(test_safetensors_escapes),
        cmocka_unit_test(test_safetensors_of_empty_tensors),
        cmocka_unit_test(test_safetensors_open),
        cmocka_unit_test(test_safetensors_refuses_bad_arguments),
        cmocka_unit_test(test_safetensors_leaves_the_old_file_when_it_fails),
        cmocka_unit_test(test_full_disk_keeps_the_old_file),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
