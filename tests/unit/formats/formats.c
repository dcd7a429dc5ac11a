/*
 * IDX and gzip: round trips, files from other programs, and invalid files. Also random damage to IDX, CSV and
 * safetensors files.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <lockstep/formats.h>

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include "base/random.h"
#include "tests/support/files.h"

/* ---- IDX --------------------------------------------------------------------------------------------------------- */

static const unsigned char small_idx[] = {0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6};

TEST(test_idx_reads_a_file_by_hand) {
    ls_tensor *tensor = ls_idx_read(test_file("small", small_idx, sizeof small_idx));
    assert_non_null(tensor);
    assert_int_equal(ls_ndim(tensor), 2);
    assert_int_equal(ls_size(tensor, 0), 2);
    assert_int_equal(ls_dtype_of(tensor), LS_U8);
    assert_memory_equal(ls_data_const(tensor), small_idx + 12, 6);
    ls_release(tensor);
}

static void check_round_trip(ls_tensor *tensor, const char *name) {
    const char *path = test_path(name);
    assert_int_equal(ls_idx_write(path, tensor), LS_OK);
    ls_tensor *back = ls_idx_read(path);
    assert_non_null(back);
    assert_true(ls_equal(tensor, back));
    ls_release(tensor);
    ls_release(back);
}

TEST(test_idx_round_trips) {
    const int32_t integers[] = {-1, 2, INT32_MIN, INT32_MAX};
    const double doubles[] = {-1.5, 1e300};
    const float floats[] = {0.1F, -3e38F, 0};
    check_round_trip(ls_from(LS_SHAPE(2, 2), LS_I32, integers), "i32");
    check_round_trip(ls_from(LS_SHAPE(2), LS_F64, doubles), "f64.gz");
    check_round_trip(ls_from(LS_SHAPE(3, 1), LS_F32, floats), "f32");
    check_round_trip(ls_zeros(LS_SHAPE(0, 7), LS_U8), "empty.gz");
}

static void expect_idx_error(const char *path, ls_status status, const char *part) {
    assert_null(ls_idx_read(path));
    assert_int_equal(ls_error_status(), status);
    expect_message(part);
    expect_message(path);
}

TEST(test_idx_errors_name_file_and_reason) {
    expect_idx_error(test_path("absent"), LS_ERR_IO, "cannot open");
    expect_idx_error(test_path("."), LS_ERR_IO, " is a folder");
    expect_idx_error("/dev/zero", LS_ERR_IO, "/dev/zero is a device"); /* which never ends */
    expect_idx_error(test_file("short", small_idx, 17), LS_ERR_FORMAT, "declares more");
    expect_idx_error(test_file("header", small_idx, 7), LS_ERR_FORMAT, "ends within its header");
    unsigned char wrong[sizeof small_idx];
    memcpy(wrong, small_idx, sizeof wrong);
    wrong[0] = 1;
    expect_idx_error(test_file("magic", wrong, sizeof wrong), LS_ERR_FORMAT, "not an IDX file");
    wrong[0] = 0;
    wrong[2] = 0x55;
    expect_idx_error(test_file("type", wrong, sizeof wrong), LS_ERR_FORMAT, "type code 0x55");
    memcpy(wrong, small_idx, sizeof wrong);
    memset(wrong + 4, 0xff, 4);
    expect_idx_error(test_file("large", wrong, sizeof wrong), LS_ERR_FORMAT, "declares more");
    memset(wrong + 8, 0xff, 4);
    expect_idx_error(test_file("huge", wrong, sizeof wrong), LS_ERR_FORMAT, "the product of its sizes is too large");
    const unsigned char none[] = {0, 0, 8, 3, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255};
    expect_idx_error(test_file("none", none, sizeof none), LS_ERR_FORMAT, "the product of its sizes is too large");
}

/* Reads arrays with up to the largest number of axes that a tensor can have. */
TEST(test_idx_of_many_axes) {
    for (int axes = LS_MAX_DIMS; axes <= LS_MAX_DIMS + 1; axes++) {
        unsigned char bytes[4 + 4 * (LS_MAX_DIMS + 1) + 1] = {0, 0, 8, (unsigned char)axes};
        const size_t size = 4 + 4 * (size_t)axes;
        for (size_t at = 7; at < size; at += 4) {
            bytes[at] = 1;
        }
        bytes[size] = 42;
        const char *path = test_file("axes", bytes, size + 1);
        if (axes > LS_MAX_DIMS) {
            expect_idx_error(path, LS_ERR_UNSUPPORTED, "has 9 axes, but a tensor has at most 8");
            continue;
        }
        ls_tensor *tensor = ls_idx_read(path);
        assert_int_equal(ls_ndim(tensor), LS_MAX_DIMS);
        assert_true(ls_item(tensor) == 42);
        ls_release(tensor);
    }
}

TEST(test_idx_truncated_gzip) {
    ls_tensor *tensor = ls_randint(LS_SHAPE(100, 10), LS_U8, 0, 255);
    const char *path = test_path("whole.gz");
    assert_int_equal(ls_idx_write(path, tensor), LS_OK);
    ls_release(tensor);
    unsigned char bytes[2000];
    FILE *file = fopen(path, "rb");
    const size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    expect_idx_error(test_file("cut.gz", bytes, size / 2), LS_ERR_FORMAT, "is a truncated");
    bytes[size / 2] ^= 0x40;
    const char *damaged = test_file("damaged.gz", bytes, size);
    assert_null(ls_idx_read(damaged));
    assert_int_equal(ls_error_status(), LS_ERR_FORMAT);
}

/* ---- gzip -------------------------------------------------------------------------------------------------------- */

/* A file of gzip members, plain text and zeros. */
typedef struct mixture {
    uint8_t bytes[1 << 16];
    size_t size;
} mixture;

static void put_member(mixture *file, const void *bytes, size_t size) {
    const char *path = test_path("member");
    gzFile stream = gzopen(path, "wbe");
    assert_int_equal(gzwrite(stream, bytes, (unsigned)size), size);
    assert_int_equal(gzclose(stream), Z_OK);
    FILE *member = fopen(path, "rb");
    file->size += fread(file->bytes + file->size, 1, sizeof file->bytes - file->size, member);
    fclose(member);
}

static void put_bytes(mixture *file, const void *bytes, size_t size) {
    memcpy(file->bytes + file->size, bytes, size);
    file->size += size;
}

static ls_tensor *read_numbers(const char *path) {
    return ls_csv_read(path, NULL);
}

/* A gzip file may consist of several members with zeros after them, but of nothing else. */
TEST(test_gzip_members) {
    static const char npy[] = "\x93NUMPY\1\0\x46\0{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }"
                              "            \nabc";
    static const struct {
        const char *bytes;
        size_t size;
        ls_tensor *(*read)(const char *path);
    } cases[] = {{"\0\0\x08\1\0\0\0\3abc", 11, ls_idx_read},
                 {npy, sizeof npy - 1, ls_npy_read},
                 {"a\n1\n2\n3\n", 8, read_numbers}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *bytes = cases[i].bytes;
        const size_t size = cases[i].size;
        for (size_t cut = 0; cut <= size; cut++) {
            mixture file = {.size = 0};
            put_member(&file, bytes, cut);
            put_bytes(&file, "\0\0", cut % 3);
            put_member(&file, bytes + cut, size - cut);
            put_bytes(&file, "\0\0\0", cut % 4);
            ls_tensor *tensor = cases[i].read(test_file("members", file.bytes, file.size));
            assert_true(tensor != NULL && ls_numel(tensor) == 3);
            ls_release(tensor);
            put_bytes(&file, "xx", 1 + cut % 2);
            assert_null(cases[i].read(test_file("members", file.bytes, file.size)));
            expect_error(ls_error_status(), LS_ERR_FORMAT, "members is a damaged gzip file: it ends with bytes that");
        }
    }
}

/* The second member is damaged in its first bytes, so that a part of the rows is missing. */
TEST(test_gzip_damaged_member) {
    mixture file = {.size = 0};
    put_member(&file, "a\n1\n2\n", 6);
    const size_t first = file.size;
    put_member(&file, "3\n", 2);
    for (size_t i = 0; i < 3; i++) {
        file.bytes[first + i] ^= 0x10;
        assert_null(ls_csv_read(test_file("damaged", file.bytes, file.size), NULL));
        expect_error(ls_error_status(), LS_ERR_FORMAT, "damaged is a damaged gzip file: ");
        file.bytes[first + i] ^= 0x10;
    }
    for (size_t size = first + 1; size < file.size; size++) {
        assert_null(ls_csv_read(test_file("cut", file.bytes, size), NULL));
        expect_error(ls_error_status(), LS_ERR_FORMAT, "cut is a truncated gzip file");
    }
}

/* ---- random damage ----------------------------------------------------------------------------------------------- */

typedef void (*reader)(const char *path);

static void read_idx(const char *path) {
    ls_release(ls_idx_read(path));
}

static void read_csv(const char *path) {
    ls_release(ls_csv_read(path, NULL));
    ls_release(ls_csv_read(path, &(ls_csv_options){.no_header = true, .separator = ';'}));
}

static void read_safetensors(const char *path) {
    ls_safetensors_free(ls_safetensors_load(path));
}

/*
 * Flips, removes and repeats bytes of a good file. Readers must accept or refuse the result, but never crash (checked
 * in sanitizer builds).
 */
static void fuzz(const unsigned char *good, size_t size, reader read) {
    enum { ROUNDS = 400, ROOM = 2048 };
    for (uint64_t round = 0; round < ROUNDS; round++) {
        unsigned char bytes[ROOM];
        size_t length = size;
        memcpy(bytes, good, size);
        const uint64_t changes = 1 + ls_random_below(77, round, 0, 4);
        for (uint64_t change = 0; change < changes; change++) {
            const uint64_t at = ls_random_below(77, round, 3 * change + 1, length);
            bytes[at] = (unsigned char)ls_random_below(77, round, 3 * change + 2, 256);
        }
        if (round % 3 == 0) {
            length = 1 + ls_random_below(77, round, 50, length - 1);
        }
        read(test_file("fuzzed", bytes, length));
    }
}

TEST(test_random_damage) {
    fuzz(small_idx, sizeof small_idx, read_idx);
    static const char table[] = "a,\"b\",c\n1,2,3\n4,\"5\",6\r\n7,8e2,9\n";
    fuzz((const unsigned char *)table, sizeof table - 1, read_csv);
    ls_tensor *tensor = ls_ones(LS_SHAPE(2, 3), LS_F32);
    const ls_named named[] = {{"first", tensor}, {"second", tensor}};
    const char *path = test_path("whole.safetensors");
    assert_int_equal(ls_safetensors_save(path, named, 2, NULL), LS_OK);
    ls_release(tensor);
    unsigned char bytes[1024];
    FILE *file = fopen(path, "rb");
    const size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    fuzz(bytes, size, read_safetensors);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idx_reads_a_file_by_hand),
        cmocka_unit_test(test_idx_round_trips),
        cmocka_unit_test(test_idx_errors_name_file_and_reason),
        cmocka_unit_test(test_idx_of_many_axes),
        cmocka_unit_test(test_idx_truncated_gzip),
        cmocka_unit_test(test_gzip_members),
        cmocka_unit_test(test_gzip_damaged_member),
        cmocka_unit_test(test_random_damage),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
