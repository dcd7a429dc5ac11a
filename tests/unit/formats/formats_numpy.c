/*
 * NumPy's .npy and .npz: files from NumPy, round trips, and invalid files.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/unit.h"

#include <lockstep/autograd.h>
#include <lockstep/formats.h>

#include <zlib.h>

#include "tests/support/files.h"

enum { ROOM = 4096 };

/* ---- files from NumPy: tests/fixtures/make_numpy.py -------------------------------------------------------------- */

static void check_numbers(ls_tensor *tensor, ls_dtype dtype, ls_shape shape, double first, double step) {
    assert_non_null(tensor);
    assert_int_equal(ls_dtype_of(tensor), dtype);
    assert_int_equal(ls_ndim(tensor), shape.ndim);
    for (int i = 0; i < shape.ndim; i++) {
        assert_int_equal(ls_size(tensor, i), shape.size[i]);
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *numbers = ls_reshape(ls_to(tensor, LS_F64), LS_SHAPE(-1));
    for (int64_t i = 0; i < ls_numel(tensor); i++) {
        assert_true(ls_item(ls_select(numbers, 0, i)) == first + step * (double)i);
    }
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

static void check_archive(const char *path) {
    ls_npz *file = ls_npz_load(path);
    assert_non_null(file);
    assert_int_equal(ls_npz_count(file), 10);
    assert_string_equal(ls_npz_at(file, 0).name, "f4");
    check_numbers(ls_npz_find(file, "f4"), LS_F32, LS_SHAPE(2, 3), 0, 0.5);
    check_numbers(ls_npz_find(file, "f8"), LS_F64, LS_SHAPE(2, 3), 0, 0.5);
    check_numbers(ls_npz_find(file, "f2"), LS_F16, LS_SHAPE(2, 3), 0, 0.5);
    check_numbers(ls_npz_find(file, "i4"), LS_I32, LS_SHAPE(2, 3, 4), -12, 1);
    check_numbers(ls_npz_find(file, "i8"), LS_I64, LS_SHAPE(2, 3, 4), 0, 1);
    check_numbers(ls_npz_find(file, "u1"), LS_U8, LS_SHAPE(6), 250, 1);
    assert_memory_equal(ls_data_const(ls_npz_find(file, "b1")), "\1\0\1", 3);
    check_numbers(ls_npz_find(file, "number"), LS_F64, LS_SCALAR, 7.5, 0);
    check_numbers(ls_npz_find(file, "none"), LS_F32, LS_SHAPE(3, 0), 0, 0);
    check_numbers(ls_npz_find(file, "gr\xc3\xb6\xc3\x9f\x65/0.weight"), LS_F32, LS_SHAPE(2, 3), 0, 0.5);
    assert_null(ls_npz_find(file, "f4.npy"));
    assert_null(ls_npz_at(file, 10).name);
    assert_null(ls_npz_at(file, -1).tensor);
    ls_npz_free(file);
}

TEST(test_reads_numpy_files) {
    check_archive(LS_FIXTURES "/numpy.npz");
    check_archive(LS_FIXTURES "/numpy_packed.npz");
    check_archive(LS_FIXTURES "/numpy_64.npz"); /* with 64-bit sizes, as in files of 4 GiB and more */
    ls_tensor *tensor = ls_npy_read(LS_FIXTURES "/numpy_fortran.npy"); /* version 3.0, big-endian */
    check_numbers(tensor, LS_F64, LS_SHAPE(2, 3, 4), 0, 1);
    ls_release(tensor);
    assert_true(ls_npz_count(NULL) == 0 && ls_npz_at(NULL, 0).name == NULL && ls_npz_find(NULL, "f4") == NULL);
}

static size_t bytes_of(const char *path, unsigned char bytes[ROOM]) {
    FILE *file = fopen(path, "rbe");
    assert_non_null(file);
    const size_t size = fread(bytes, 1, ROOM, file);
    assert_true(size < ROOM);
    fclose(file);
    return size;
}

/* If NumPy wrote an array in our axis order and byte order, we write the same bytes. */
TEST(test_writes_what_numpy_writes) {
    static const char *const names[] = {"f4", "f8", "f2", "u1", "b1", "number", "none"};
    unsigned char theirs[ROOM], ours[ROOM];
    const size_t size = bytes_of(LS_FIXTURES "/numpy.npz", theirs);
    ls_npz *file = ls_npz_load(LS_FIXTURES "/numpy.npz");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *path = test_path("one.npy");
        assert_int_equal(ls_npy_write(path, ls_npz_find(file, names[i])), LS_OK);
        const size_t length = bytes_of(path, ours);
        assert_int_equal(length % 64, (size_t)ls_numel(ls_npz_find(file, names[i])) *
                                          ls_dtype_size(ls_dtype_of(ls_npz_find(file, names[i]))) % 64);
        assert_non_null(memmem(theirs, size, ours, length));
    }
    ls_npz_free(file);
}

/* ---- round trips ------------------------------------------------------------------------------------------------- */

TEST(test_round_trips) {
    static const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_F16, LS_I64, LS_I32, LS_U8, LS_BOOL};
    enum { COUNT = sizeof dtypes / sizeof *dtypes };
    ls_named tensors[COUNT];
    const char *path = test_path("all.npz");
    for (int i = 0; i < COUNT; i++) {
        const ls_shape shapes[] = {LS_SCALAR, LS_SHAPE(5), LS_SHAPE(0, 2), LS_SHAPE(1, 2, 1, 2, 1, 2, 1, 2)};
        tensors[i] = (ls_named){ls_dtype_name(dtypes[i]), ls_full(shapes[i % 4], dtypes[i], 1)};
        assert_int_equal(ls_npy_write(test_path("one.npy"), tensors[i].tensor), LS_OK);
        ls_tensor *back = ls_npy_read(test_path("one.npy"));
        assert_true(ls_equal(back, tensors[i].tensor));
        assert_int_equal(ls_dtype_of(back), dtypes[i]);
        ls_release(back);
    }
    assert_int_equal(ls_npz_save(path, tensors, COUNT), LS_OK);
    ls_npz *file = ls_npz_load(path);
    assert_int_equal(ls_npz_count(file), COUNT);
    for (int i = 0; i < COUNT; i++) {
        assert_string_equal(ls_npz_at(file, i).name, tensors[i].name);
        assert_true(ls_equal(ls_npz_at(file, i).tensor, tensors[i].tensor));
        ls_release(tensors[i].tensor);
    }
    ls_npz_free(file);
    assert_int_equal(ls_npz_save(path, NULL, 0), LS_OK);
    file = ls_npz_load(path);
    assert_true(file != NULL && ls_npz_count(file) == 0);
    ls_npz_free(file);
}

/* Arrays that need more than one read, in the other byte order, and gzipped. */
TEST(test_reads_large_arrays) {
    enum { ROWS = 301, COLUMNS = 211 };
    static char bytes[128 + 8 * ROWS * COLUMNS];
    const char header[] = "{'descr': '<i8', 'fortran_order': True, 'shape': (301, 211), }";
    memset(bytes, ' ', 128);
    memcpy(bytes, "\x93NUMPY\1\0\x76\0", 10);
    memcpy(bytes + 10, header, sizeof header - 1);
    bytes[127] = '\n';
    for (int64_t column = 0; column < COLUMNS; column++) {
        for (int64_t row = 0; row < ROWS; row++) {
            const int64_t number = row * COLUMNS + column;
            memcpy(bytes + 128 + 8 * (column * ROWS + row), &number, sizeof number);
        }
    }
    const char *path = test_path("large.npy.gz");
    gzFile stream = gzopen(path, "wbe");
    assert_int_equal(gzwrite(stream, bytes, sizeof bytes), sizeof bytes);
    assert_int_equal(gzclose(stream), Z_OK);
    ls_tensor *tensor = ls_npy_read(path), *plain = ls_npy_read(test_file("large.npy", bytes, sizeof bytes));
    assert_non_null(tensor);
    const int64_t *numbers = ls_data_const(tensor);
    for (int64_t i = 0; i < ROWS * COLUMNS; i++) {
        assert_int_equal(numbers[i], i);
    }
    assert_true(ls_equal(tensor, plain));
    ls_release(tensor);
    ls_release(plain);
}

TEST(test_saves_no_more_than_it_can) {
    ls_tensor *half = ls_ones(LS_SHAPE(2), LS_BF16), *matrix = ls_ones(LS_SHAPE(2, 3), LS_F32);
    ls_tensor *turned = ls_transpose(matrix, 0, 1);
    char name[1100] = "";
    memset(name, 'n', sizeof name - 1);
    const struct {
        ls_named tensor;
        const char *part;
    } cases[] = {{{"half", half}, "NumPy has no bf16; convert the tensor with ls_to"},
                 {{"turned", turned}, "tensor 0 (turned) is not contiguous"},
                 {{"none", NULL}, "tensor 0 (none) is NULL"},
                 {{"\xff", matrix}, "the name of tensor 0 is not UTF-8"},
                 {{name, matrix}, "or has more than 1019 bytes"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(ls_npz_save(test_path("not"), &cases[i].tensor, 1), LS_ERR_ARGUMENT);
        expect_message(cases[i].part);
    }
    assert_int_equal(ls_npy_write(test_path("not"), half), LS_ERR_ARGUMENT);
    assert_int_equal(ls_npy_write(test_path("not"), turned), LS_ERR_ARGUMENT);
    expect_message("use ls_contiguous");
    assert_int_not_equal(ls_npy_write(test_path("not"), NULL), LS_OK);
    assert_int_equal(ls_npy_write(test_path("absent/file"), matrix), LS_ERR_IO);
    const ls_named same[] = {{"a", matrix}, {"a", matrix}};
    assert_int_equal(ls_npz_save(test_path("not"), same, 2), LS_ERR_ARGUMENT);
    expect_message("two tensors are named a");
    FILE *none = fopen(test_path("not"), "rbe");
    assert_null(none);
    ls_release(half);
    ls_release(turned);
    ls_release(matrix);
}

/* ---- wrong .npy files -------------------------------------------------------------------------------------------- */

/* Writes a file of version 1.0 with this header, followed by `size` zero bytes. */
static const char *npy_with(const char *header, size_t size) {
    char bytes[ROOM] = "\x93NUMPY\1";
    const size_t length = strlen(header);
    bytes[8] = (char)(length & 0xff);
    bytes[9] = (char)(length >> 8);
    memcpy(bytes + 10, header, length);
    return test_file("made.npy", bytes, 10 + length + size);
}

static void expect_read_error(const char *path, const char *part) {
    assert_null(ls_npy_read(path));
    const bool valid = strstr(part, "its elements are") == part || strstr(part, "the array has") == part;
    assert_int_equal(ls_error_status(), valid ? LS_ERR_UNSUPPORTED : LS_ERR_FORMAT);
    expect_message(part);
    expect_message(path);
}

TEST(test_headers) {
    static const struct {
        const char *header;
        size_t size;
        const char *part; /* NULL if the file is valid, with six zero bytes */
    } cases[] = {
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }  \n", 6, NULL},
        {"{\"shape\":(2,3),\"descr\":\"|u1\",\"fortran_order\":False}", 6, NULL},
        {"{'descr': '<u1', 'fortran_order': True, 'shape': (2L, 3L,),}\n", 6, NULL},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3)}", 5, "declares more data than the file contains"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3)}", 7, "declares less data than the file contains"},
        {"{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3)}", 5, "declares more data than the file contains"},
        {"{'descr': '<c4', 'fortran_order': False, 'shape': (3,)}", 6, "its elements are '<c4', which a tensor cannot"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (3,)}", 6, "its elements are '|O'"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (3,)}", 6, "its elements are '<c8'"},
        {"{'descr': '|i4', 'fortran_order': False, 'shape': (3,)}", 6, "its elements are '|i4'"},
        {"{'descr': '', 'fortran_order': False, 'shape': (3,)}", 6, "its elements are ''"},
        {"{'descr': '\x1b[2J', 'fortran_order': False, 'shape': (3,)}", 6, "its elements are '?[2J'"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}", 6, "its elements are records"},
        {"{'descr': 7, 'fortran_order': False, 'shape': (3,)}", 6, "at byte 10, a text was expected"},
        {"{'descr': '|u1', 'fortran_order': 0, 'shape': (3,)}", 6, "True or False was expected"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (6)}", 6, "',' was expected"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (-6,)}", 6, "a whole number, not negative"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (2 3)}", 6, "',' was expected"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3 1)}", 6, "')' was expected"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': 6}", 6, "'(' was expected"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,6)}", 6, "the array has more than 8 axes"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (9223372036854775808,)}", 6, "at most 63 bits"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (0, 9223372036854775807)}", 0,
         "the product of its sizes is too large"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (4294967296,)}", 6, "declares more"},
        {"{'descr': '|u1', 'fortran_order': False}", 6, "at byte 39, ',' was expected"},
        {"{'descr': '|u1', 'descr': '|u1', 'shape': (6,)}", 6, "once each"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (6,), 'more': 1}", 6, "'}' was expected"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (6,)} 1", 6, "nothing but space was expected"},
        {"{'descr': '|u1' 'fortran_order': False, 'shape': (6,)}", 6, "',' was expected"},
        {"{'descr': '|u1", 6, "a short text was expected"},
        {"[]", 6, "'{' was expected"},
        {"", 6, "'{' was expected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = npy_with(cases[i].header, cases[i].size);
        if (cases[i].part != NULL) {
            expect_read_error(path, cases[i].part);
            continue;
        }
        ls_tensor *tensor = ls_npy_read(path);
        check_numbers(tensor, LS_U8, LS_SHAPE(2, 3), 0, 0);
        ls_release(tensor);
    }
}

TEST(test_fronts) {
    expect_read_error(test_file("front.npy", "\x93NUMP", 5), "not a .npy file");
    expect_read_error(test_file("front.npy", "PK\3\4....", 8), "ls_npz_load reads archives");
    expect_read_error(test_file("front.npy", "\x93NUMPY\1", 7), "ends within its header");
    expect_read_error(test_file("front.npy", "\x93NUMPY\4\0....", 12), "has version 4.0");
    expect_read_error(test_file("front.npy", "\x93NUMPY\1\1....", 12), "has version 1.1");
    expect_read_error(test_file("front.npy", "\x93NUMPY\1\0\5", 9), "ends within its header");
    expect_read_error(test_file("front.npy", "\x93NUMPY\1\0\5\0{}", 12), "ends within its header");
    expect_read_error(test_file("front.npy", "\x93NUMPY\2\0\0\0\1\0{}", 14), "a header of 65536 bytes");
    assert_null(ls_npy_read(test_path("absent")));
    assert_int_equal(ls_error_status(), LS_ERR_IO);
    assert_null(ls_npy_read(NULL));
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
}

/* Integers without a corresponding dtype are converted, in either byte order and axis order. */
TEST(test_integers) {
    static const struct {
        const char *descr;
        ls_dtype dtype;
        const char *data; /* 6 elements */
        size_t size;
        double first, step;
        bool fortran_order;
    } cases[] = {
        {"|i1", LS_I32, "\xfe\xff\0\1\2\3", 6, -2, 1, false},
        {"<i2", LS_I32, "\0\x80\1\x80\2\x80\3\x80\4\x80\5\x80", 12, -32768, 1, false},
        {">u2", LS_I32, "\xff\xfa\xff\xfb\xff\xfc\xff\xfd\xff\xfe\xff\xff", 12, 65530, 1, false},
        {"<u2", LS_I32, "\0\0\3\0\1\0\4\0\2\0\5\0", 12, 0, 1, true},
        {">u4", LS_I64, "\xff\0\0\0\xff\0\0\1\xff\0\0\2\xff\0\0\3\xff\0\0\4\xff\0\0\5", 24, 4278190080., 1, false},
        {"<u8", LS_I64,
         "\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0", 48, 0, 1,
         false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char header[128], bytes[256] = "\x93NUMPY\1";
        snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': %s, 'shape': (2, 3)}", cases[i].descr,
                 cases[i].fortran_order ? "True" : "False");
        const size_t length = strlen(header);
        bytes[8] = (char)length;
        memcpy(bytes + 10, header, length);
        memcpy(bytes + 10 + length, cases[i].data, cases[i].size);
        ls_tensor *tensor = ls_npy_read(test_file("integers.npy", bytes, 10 + length + cases[i].size));
        check_numbers(tensor, cases[i].dtype, LS_SHAPE(2, 3), cases[i].first, cases[i].step);
        ls_release(tensor);
        if (i + 1 == sizeof cases / sizeof *cases) {
            bytes[10 + length + 47] = '\x80';
            const char *path = test_file("integers.npy", bytes, 10 + length + 48);
            assert_null(ls_npy_read(path));
            assert_int_equal(ls_error_status(), LS_ERR_UNSUPPORTED);
            expect_message("element 5 is 9223372036854775813, which i64 cannot hold");
        }
    }
}

/* From an archive with an array that no tensor can hold, the other arrays can be read. */
TEST(test_archive_with_complex_numbers) {
    unsigned char bytes[ROOM];
    ls_tensor *ones = ls_ones(LS_SHAPE(2), LS_F32);
    assert_int_equal(ls_npz_save(test_path("made.npz"), (const ls_named[]){{"a", ones}, {"b", ones}}, 2), LS_OK);
    const size_t size = bytes_of(test_path("made.npz"), bytes);
    char *descr = memmem(bytes, size, "'<f4'", 5);
    assert_non_null(descr);
    descr[2] = 'c';
    (void)ls_error_set(LS_ERR_DENIED, "an earlier failure");
    ls_npz *file = ls_npz_load(test_file("complex.npz", bytes, size));
    assert_int_equal(ls_npz_count(file), 1);
    assert_string_equal(ls_error_message(), "an earlier failure"); /* the call has not failed */
    assert_true(ls_equal(ls_npz_find(file, "b"), ones));
    assert_null(ls_npz_find(file, "a"));
    assert_int_equal(ls_error_status(), LS_ERR_UNSUPPORTED);
    expect_message("its elements are '<c4'");
    ls_npz_free(file);
    ls_release(ones);
}

/* Any value other than 0 is true. */
TEST(test_bools) {
    char bytes[256] = "\x93NUMPY\1\0\x39\0{'descr': '|b1', 'fortran_order': False, 'shape': (3,) }";
    assert_int_equal(strlen(bytes + 10), 0x38);
    bytes[10 + 0x38] = '\n';
    memcpy(bytes + 10 + 0x39, "\0\2\xff", 3);
    ls_tensor *tensor = ls_npy_read(test_file("bools.npy", bytes, 10 + 0x39 + 3));
    assert_memory_equal(ls_data_const(tensor), "\0\1\1", 3);
    ls_release(tensor);
}

/* ---- wrong .npz files -------------------------------------------------------------------------------------------- */

/* Replaces `count` bytes at offset `at` in the archive of two tensors. Negative offsets count from its end. */
static void expect_damage(const char *fixture, ptrdiff_t at, const char *with, size_t count, const char *part) {
    unsigned char bytes[ROOM];
    const size_t size = bytes_of(fixture, bytes);
    const size_t place = at < 0 ? size - (size_t)-at : (size_t)at;
    assert_true(place + count <= size);
    memcpy(bytes + place, with, count);
    const char *path = test_file("damaged.npz", bytes, size);
    assert_null(ls_npz_load(path));
    assert_int_equal(ls_error_status(), LS_ERR_FORMAT);
    expect_message(part);
    expect_message(path);
}

TEST(test_archives) {
    ls_tensor *tensor = ls_arange(LS_SHAPE(8), LS_U8);
    char path[320];
    snprintf(path, sizeof path, "%s", test_path("two.npz"));
    assert_int_equal(ls_npz_save(path, (ls_named[]){{"a", tensor}, {"b", tensor}}, 2), LS_OK);
    ls_release(tensor);
    enum { END = -22, SECOND = END - 51, FIRST = SECOND - 51, MEMBER = 30 + 5 + 128 + 8 };
    expect_damage(path, END, "x", 1, "it has no end record, or is truncated");
    expect_damage(path, END + 4, "\1", 1, "one of several parts");
    expect_damage(path, END + 8, "\3\0\3", 3, "its directory is outside of the file");
    expect_damage(path, END + 8, "\1\0\1", 3, "its directory has more members than it declares");
    expect_damage(path, END + 10, "\xff\xff", 2, "it lacks the record of its 64-bit numbers");
    expect_damage(path, END + 16, "\xff\xff\xff\xff", 4, "it lacks the record of its 64-bit numbers");
    expect_damage(path, END + 16, "\xff\xff", 2, "its directory is outside of the file");
    expect_damage(path, END + 16, "\0\0", 2, "its directory is damaged");
    expect_damage(path, FIRST, "x", 1, "its directory is damaged");
    expect_damage(path, FIRST + 8, "\1", 1, "member a.npy: it is encrypted");
    expect_damage(path, FIRST + 10, "\1", 1, "compressed by a method other than deflate");
    expect_damage(path, FIRST + 10, "\x08", 1, "member a.npy: ");
    expect_damage(path, FIRST + 16, "xxxx", 4, "member a.npy: its checksum (CRC-32) is wrong");
    expect_damage(path, FIRST + 20, "\xff\xff\xff\xff", 4, "its 64-bit numbers are missing");
    expect_damage(path, FIRST + 42, "\xff\xff\xff\xf0", 4, "it does not lie in the archive");
    expect_damage(path, FIRST + 20, "\0\1", 2, "its size is not possible");
    expect_damage(path, FIRST + 20, "\0\1\0\0\0\1\0\0", 8, "it overlaps another member");
    expect_damage(path, SECOND + 20, "\0\1\0\0\0\1\0\0", 8, "or the end of the archive");
    expect_damage(path, FIRST + 20, "\x87\0\0\0\x87\0\0\0", 8, "checksum (CRC-32) is wrong");
    expect_damage(path, FIRST + 28, "\xff\xff", 2, "its directory is damaged");
    expect_damage(path, FIRST + 42, "\1", 1, "its local header is not");
    expect_damage(path, FIRST + 46, "b", 1, "member b.npy: two members have this name");
    expect_damage(path, FIRST + 46, "\xff", 1, "its name is not UTF-8");
    expect_damage(path, FIRST + 46, "\0", 1, "its name is not UTF-8");
    expect_damage(path, FIRST + 50, "x", 1, "member a.npx is not an array");
    expect_damage(path, SECOND + 42, "\0", 1, "it overlaps");
    expect_damage(path, 28, "\1", 1, "its local header is not");
    expect_damage(path, MEMBER - 1, "x", 1, "its checksum (CRC-32) is wrong");
    expect_damage(path, MEMBER, "x", 1, "member b.npy: its local header is not");
    expect_damage(path, 30 + 5 + 10, "x", 1, "member a.npy: its header is not a NumPy header");
    static const char packed[] = LS_FIXTURES "/numpy_packed.npz";
    expect_damage(packed, 100, "xxxxxxxxxxxxxxxx", 16, "member f4.npy: ");
}

/*
 * Python's zipfile does not fill in the 64-bit record if the numbers fit into the end record. In this file they do not
 * fit.
 */
TEST(test_archives_of_64_bits) {
    static const char fixture[] = LS_FIXTURES "/numpy_64.npz";
    unsigned char bytes[ROOM];
    const size_t size = bytes_of(fixture, bytes);
    memset(bytes + size - 22 + 8, 0xff, 12);
    check_archive(test_file("wide.npz", bytes, size));
    char path[320];
    snprintf(path, sizeof path, "%s", test_file("wide.npz", bytes, size));
    enum { LOCATOR = -22 - 20, END = LOCATOR - 56 };
    expect_damage(path, LOCATOR, "x", 1, "it lacks the record of its 64-bit numbers");
    expect_damage(path, LOCATOR + 8, "\0\0\0\0\0\0\0\x80", 8, "it lacks the record of its 64-bit numbers");
    expect_damage(path, END, "x", 1, "the record of its 64-bit numbers is damaged");
    expect_damage(path, END + 16, "\1", 1, "the record of its 64-bit numbers is damaged");
    expect_damage(path, END + 24, "\1", 1, "the record of its 64-bit numbers is damaged");
    expect_damage(path, END + 47, "\x80", 1, "its directory is outside of the file");
    expect_damage(path, END + 55, "\x80", 1, "its directory is outside of the file");
    expect_damage(path, END + 24, "\xff\xff\xff\xff\xff\xff\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x7f", 16,
                  "its directory is outside of the file");
    unsigned char *first = memmem(bytes, size, "PK\1\2", 4); /* the name follows, then an extra field of 16 bytes */
    const ptrdiff_t extra = first - bytes + 46 + 6;
    expect_damage(path, extra, "\2", 1, "member f4.npy: its 64-bit numbers are missing");
    expect_damage(path, extra + 2, "\x08", 1, "member f4.npy: its 64-bit numbers are missing");
    expect_damage(path, extra + 2, "\xff", 1, "member f4.npy: its 64-bit numbers are missing");
    expect_damage(path, extra + 11, "\x80", 1, "member f4.npy: its size is not possible");
    expect_damage(path, extra + 19, "\x80", 1, "member f4.npy: it does not lie in the archive");
}

TEST(test_no_archives) {
    assert_null(ls_npz_load(test_file("empty.npz", "", 0)));
    expect_message("no end record");
    assert_null(ls_npz_load(test_file("short.npz", "PK\5\6", 4)));
    assert_null(ls_npz_load(test_file("zipped.npz", "\x1f\x8b\x08", 3)));
    expect_message("gunzip it first");
    assert_null(ls_npz_load(test_path("absent")));
    assert_int_equal(ls_error_status(), LS_ERR_IO);
    unsigned char bytes[ROOM];
    const size_t size = bytes_of(LS_FIXTURES "/numpy.npz", bytes);
    for (size_t cut = 1; cut < size; cut += 7) {
        assert_null(ls_npz_load(test_file("cut.npz", bytes, size - cut)));
        assert_int_equal(ls_error_status(), LS_ERR_FORMAT);
    }
    memcpy(bytes + size, "a comment",
           9); /* a comment whose length is not stored, so it does not belong to the archive */
    assert_null(ls_npz_load(test_file("long.npz", bytes, size + 9)));
    bytes[size - 2] = 9;
    ls_npz *file = ls_npz_load(test_file("comment.npz", bytes, size + 9));
    assert_int_equal(ls_npz_count(file), 10);
    ls_npz_free(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_numpy_files),
        cmocka_unit_test(test_writes_what_numpy_writes),
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_reads_large_arrays),
        cmocka_unit_test(test_saves_no_more_than_it_can),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_fronts),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_archive_with_complex_numbers),
        cmocka_unit_test(test_bools),
        cmocka_unit_test(test_archives),
        cmocka_unit_test(test_archives_of_64_bits),
        cmocka_unit_test(test_no_archives),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
