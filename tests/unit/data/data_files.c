/*
 * Data sets from files of other programs: CIFAR and tokens.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <lockstep/data.h>

#include "formats/image.h"
#include "tests/support/allocator.h"
#include "tests/support/files.h"

static void expect_none(ls_dataset *dataset, ls_status status, const char *part) {
    assert_null(dataset);
    assert_int_equal(ls_error_status(), status);
    expect_message(part);
}

/* Returns the whole data set as one batch, in order. The caller frees the loader. */
static ls_loader *load_all(ls_dataset *dataset, ls_batch *batch) {
    bool more;
    assert_non_null(dataset);
    const int64_t count = ls_dataset_count(dataset);
    ls_loader *loader = ls_loader_new(dataset, &(ls_loader_options){.batch_size = count, .no_shuffle = true});
    assert_int_equal(ls_loader_next(loader, batch, &more), LS_OK);
    assert_int_equal(batch->count, count);
    return loader;
}

/* ---- CIFAR ------------------------------------------------------------------------------------------------------- */

enum { PICTURE = 3 * 32 * 32, MOST_RECORDS = 8 };

/* Returns the test's folder, which must contain a file. */
static const char *folder(void) {
    static char path[320];
    snprintf(path, sizeof path, "%s", test_path("."));
    return path;
}

static unsigned char pixel(int record, int at) {
    return (unsigned char)(record * 31 + at * 7 + at / 1024);
}

/* Writes records beginning with record `first`. The last label of each record is its number, the other label three
 * times its number. */
static const char *cifar_file(const char *name, int labels, int first, int count, size_t more) {
    static unsigned char bytes[MOST_RECORDS * (2 + PICTURE)];
    unsigned char *at = bytes;
    for (int i = first; i < first + count; i++) {
        if (labels == 2) {
            *at++ = (unsigned char)(i * 3);
        }
        *at++ = (unsigned char)i;
        for (int k = 0; k < PICTURE; k++) {
            *at++ = pixel(i, k);
        }
    }
    return test_file(name, bytes, (size_t)(at - bytes) + more);
}

static void check_cifar(ls_dataset *dataset, int count, int factor) {
    ls_batch batch;
    ls_loader *loader = load_all(dataset, &batch);
    const ls_sample_layout layout = ls_dataset_layout(ls_loader_dataset(loader));
    assert_int_equal(layout.input_dtype, LS_U8);
    assert_int_equal(layout.target_dtype, LS_U8);
    assert_true(layout.input_shape.ndim == 3 && layout.target_shape.ndim == 0);
    assert_true(layout.input_shape.size[0] == 3 && layout.input_shape.size[1] == 32 &&
                layout.input_shape.size[2] == 32);
    assert_int_equal(batch.count, count);
    const unsigned char *pictures = elements(batch.input), *classes = elements(batch.target);
    for (int i = 0; i < count; i++) {
        assert_int_equal(classes[i], i * factor);
        for (int k = 0; k < PICTURE; k++) {
            assert_int_equal(pictures[i * PICTURE + k], pixel(i, k));
        }
    }
    ls_loader_free(loader);
}

TEST(test_cifar_10) {
    static const char *const names[] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                                        "data_batch_5.bin"};
    for (int i = 0; i < 5; i++) {
        expect_none(ls_cifar10_dataset(folder(), true), LS_ERR_IO, names[i]);
        cifar_file(names[i], 1, i < 4 ? 2 * i : 8, i < 4 ? 2 : 1, 0);
    }
    check_cifar(ls_cifar10_dataset(folder(), true), 9, 1);
    expect_none(ls_cifar10_dataset(folder(), false), LS_ERR_IO, "test_batch.bin");
    cifar_file("test_batch.bin", 1, 0, 3, 0);
    check_cifar(ls_cifar10_dataset(folder(), false), 3, 1);
    cifar_file("test_batch.bin", 1, 9, 2, 0); /* 9 and 10 */
    expect_none(ls_cifar10_dataset(folder(), false), LS_ERR_FORMAT, "test_batch.bin: record 1 has label 10");
    cifar_file("test_batch.bin", 1, 0, 2, 1);
    expect_none(ls_cifar10_dataset(folder(), false), LS_ERR_FORMAT, "test_batch.bin has 6147 bytes");
    cifar_file("test_batch.bin", 1, 0, 0, 0);
    expect_none(ls_cifar10_dataset(folder(), false), LS_ERR_FORMAT, "has 0 bytes");
    expect_none(ls_cifar10_dataset(test_path("absent"), false), LS_ERR_IO, "/absent/test_batch.bin");
    expect_none(ls_cifar10_dataset(NULL, false), LS_ERR_ARGUMENT, "pass the folder");
}

TEST(test_cifar_100) {
    cifar_file("train.bin", 2, 0, 7, 0);
    cifar_file("test.bin", 2, 0, 2, 0);
    check_cifar(ls_cifar100_dataset(folder(), true, false), 7, 1);
    check_cifar(ls_cifar100_dataset(folder(), true, true), 7, 3);
    check_cifar(ls_cifar100_dataset(folder(), false, false), 2, 1);
    cifar_file("test.bin", 2, 0, 8, 0);
    expect_none(ls_cifar100_dataset(folder(), false, false), LS_ERR_FORMAT,
                "record 7 has label 21, which is not one of 20 classes: is it CIFAR-100?");
    cifar_file("test.bin", 1, 0, 8, 0);
    expect_none(ls_cifar100_dataset(folder(), false, false), LS_ERR_FORMAT, "records of 3074");
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* Returns token i of all files in these tests. Wide tokens use all their bytes. */
static int64_t token(int i, int width) {
    return width == 1 ? (i * 37) % 256 : width == 2 ? (65535 - i * 41) : INT64_C(4294967295) - i * INT64_C(16777259);
}

static const char *tokens_file(int width, int count, int skip) {
    unsigned char bytes[1024] = {0};
    for (int i = 0; i < count; i++) {
        for (int byte = 0; byte < width; byte++) {
            bytes[skip + i * width + byte] = (unsigned char)(token(i, width) >> (8 * byte));
        }
    }
    return test_file("tokens", bytes, (size_t)(skip + count * width));
}

static void check_tokens(const ls_tokens_options *options, int count, int samples) {
    ls_batch batch;
    const int width = options->width > 0 ? options->width : 1;
    const int stride = (int)(options->stride > 0 ? options->stride : options->context);
    ls_loader *loader =
        load_all(ls_tokens_dataset(tokens_file(width, count, (int)options->skip_bytes), options), &batch);
    assert_int_equal(batch.count, samples);
    assert_int_equal(ls_size(batch.input, 1), options->context);
    const int64_t *now = elements(batch.input), *next = elements(batch.target);
    for (int i = 0; i < samples; i++) {
        for (int at = 0; at < options->context; at++) {
            assert_int_equal(*now++, token(i * stride + at, width));
            assert_int_equal(*next++, token(i * stride + at + 1, width));
        }
    }
    ls_loader_free(loader);
}

TEST(test_tokens) {
    for (int width = 0; width <= 4; width = width == 0 ? 1 : 2 * width) {
        check_tokens(&(ls_tokens_options){.context = 8, .width = width}, 33, 4);
        check_tokens(&(ls_tokens_options){.context = 8, .width = width}, 32, 3);
        check_tokens(&(ls_tokens_options){.context = 8, .width = width, .stride = 3}, 32, 8);
        check_tokens(&(ls_tokens_options){.context = 8, .width = width, .stride = 20, .skip_bytes = 12}, 32, 2);
        check_tokens(&(ls_tokens_options){.context = 31, .width = width, .stride = 1}, 32, 1);
        check_tokens(&(ls_tokens_options){.context = 1, .width = width}, 200, 199);
        check_tokens(&(ls_tokens_options){.context = 1, .width = width, .stride = 7}, 2, 1);
    }
}

TEST(test_tokens_that_are_not_there) {
    char path[320];
    snprintf(path, sizeof path, "%s", tokens_file(2, 16, 0));
    const struct {
        ls_tokens_options options;
        ls_status status;
        const char *part;
    } cases[] = {
        {{.context = 0, .width = 2}, LS_ERR_ARGUMENT, "the context must be at least 1 token"},
        {{.context = 4, .stride = -1}, LS_ERR_ARGUMENT, "stride and skip_bytes must not be negative"},
        {{.context = 4, .skip_bytes = -1}, LS_ERR_ARGUMENT, "stride and skip_bytes must not be negative"},
        {{.context = 4, .width = 3}, LS_ERR_ARGUMENT, "tokens have 3 bytes, but must have 1, 2 or 4"},
        {{.context = 16, .width = 2},
         LS_ERR_ARGUMENT,
         "tokens has 32 bytes (16 tokens), but a sample needs 16 + 1 tokens"},
        {{.context = 1, .width = 2, .skip_bytes = 40}, LS_ERR_ARGUMENT, "tokens has 32 bytes (0 tokens)"},
        {{.context = INT64_MAX, .width = 2}, LS_ERR_ARGUMENT, "a sample needs 9223372036854775807 + 1 tokens"},
        {{.context = 1, .skip_bytes = INT64_MAX}, LS_ERR_ARGUMENT, "0 tokens"},
        {{.context = 4, .width = 4, .skip_bytes = 2}, LS_ERR_FORMAT, "not a multiple of 4, the size of a token"},
    };
    const int descriptors = test_descriptors_count();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_none(ls_tokens_dataset(path, &cases[i].options), cases[i].status, cases[i].part);
    }
    expect_none(ls_tokens_dataset(path, NULL), LS_ERR_ARGUMENT, "the context");
    expect_none(ls_tokens_dataset(test_path("absent"), &(ls_tokens_options){.context = 1}), LS_ERR_IO, "/absent");
    expect_none(ls_tokens_dataset("/dev/zero", &(ls_tokens_options){.context = 1}), LS_ERR_IO, "is a device");
    expect_none(ls_tokens_dataset(NULL, &(ls_tokens_options){.context = 1}), LS_ERR_ARGUMENT, "NULL");
    assert_int_equal(test_descriptors_count(), descriptors);
}

/* Writes many of the same tokens, 1 byte each, gzipped. */
static const char *gzipped_file(int count, int missing) {
    const char *path = test_path("tokens.gz");
    gzFile file = gzopen(path, "wb");
    assert_non_null(file);
    for (int i = 0; i < count; i++) {
        assert_int_equal(gzputc(file, (int)token(i, 1)), token(i, 1));
    }
    assert_int_equal(gzclose(file), Z_OK);
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(truncate(path, status.st_size - missing), 0);
    return path;
}

TEST(test_gzipped_tokens) {
    const int descriptors = test_descriptors_count();
    enum { COUNT = (1 << 16) + 1 }; /* one more than the initial capacity */
    for (int count = COUNT - 2; count <= COUNT; count++) {
        ls_batch batch;
        ls_loader *loader = load_all(
            ls_tokens_dataset(gzipped_file(count, 0), &(ls_tokens_options){.context = 100, .skip_bytes = 50}), &batch);
        assert_int_equal(batch.count, (count - 51) / 100);
        const int64_t *now = elements(batch.input), *next = elements(batch.target);
        for (int i = 0; i < 100 * (int)batch.count; i++) {
            assert_int_equal(now[i], token(50 + i, 1));
            assert_int_equal(next[i], token(51 + i, 1));
        }
        ls_loader_free(loader);
    }
    expect_none(ls_tokens_dataset(gzipped_file(300, 0), &(ls_tokens_options){.context = 300}), LS_ERR_ARGUMENT,
                "tokens.gz has 300 bytes (300 tokens)");
    expect_none(ls_tokens_dataset(gzipped_file(300, 3), &(ls_tokens_options){.context = 8}), LS_ERR_FORMAT,
                "tokens.gz is a truncated gzip file");
    assert_int_equal(test_descriptors_count(), descriptors);
}

/* A file that becomes shorter causes an error, not a signal. It may become longer again. */
TEST(test_tokens_that_go) {
    const char *path = tokens_file(2, 33, 0);
    const int descriptors = test_descriptors_count();
    ls_dataset *dataset = ls_tokens_dataset(path, &(ls_tokens_options){.context = 8, .width = 2});
    ls_loader *loader = ls_loader_new(dataset, &(ls_loader_options){.batch_size = 2, .no_shuffle = true});
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_int_equal(truncate(path, 65), 0);
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_ERR_IO);
    expect_message(path);
    expect_message("was truncated while it was being read");
    assert_int_equal(truncate(path, 66), 0);
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_int_equal(batch.number, 1);
    ls_loader_free(loader);
    assert_int_equal(test_descriptors_count(), descriptors);
}

/* The file is larger than the part that is read, because it contains a hole of a terabyte. */
TEST(test_tokens_of_a_large_file) {
    const char *path = tokens_file(2, 9, 0);
    if (truncate(path, (off_t)1 << 40) != 0) {
        skip(); /* the file system does not support files of this size */
    }
    ls_dataset *dataset = ls_tokens_dataset(path, &(ls_tokens_options){.context = 8, .width = 2});
    const int64_t count = ls_dataset_count(dataset);
    assert_int_equal(count, (((int64_t)1 << 39) - 1) / 8);
    ls_batch batch;
    ls_loader *loader = load_all(ls_dataset_select(dataset, (const int64_t[]){0, count - 1}, 2), &batch);
    const int64_t *now = elements(batch.input);
    assert_true(now[1] == token(1, 2) && now[8] == 0 && now[15] == 0);
    ls_loader_free(loader);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Reads the first batch of a data set, and frees the data set. */
static ls_status read_batch(ls_dataset *dataset) {
    ls_batch batch;
    bool more;
    if (dataset == NULL) {
        return ls_error_status();
    }
    ls_loader *loader = ls_loader_new(dataset, &(ls_loader_options){.batch_size = 2, .no_shuffle = true});
    const ls_status status = loader != NULL ? ls_loader_next(loader, &batch, &more) : ls_error_status();
    ls_loader_free(loader);
    return status;
}

static ls_status read_arrays(void) {
    ls_npz *file = ls_npz_load(LS_FIXTURES "/numpy_packed.npz");
    ls_status status = ls_error_status();
    if (file != NULL) {
        const ls_named named[] = {ls_npz_at(file, 0), ls_npz_at(file, 1)};
        status = ls_npz_save(test_path("copy.npz"), named, 2);
        status = status == LS_OK ? ls_npy_write(test_path("copy.npy"), named[0].tensor) : status;
        ls_npz_free(file);
    }
    if (status == LS_OK) {
        ls_tensor *tensor = ls_npy_read(LS_FIXTURES "/numpy_fortran.npy");
        status = tensor != NULL ? LS_OK : ls_error_status();
        ls_release(tensor);
    }
    return status;
}

static ls_status read_cifar(void) {
    return read_batch(ls_cifar10_dataset(folder(), false));
}

static ls_status read_tokens(void) {
    return read_batch(ls_tokens_dataset(test_path("tokens"), &(ls_tokens_options){.context = 8}));
}

static ls_status read_gzipped(void) {
    return read_batch(ls_tokens_dataset(test_path("tokens.gz"), &(ls_tokens_options){.context = 8}));
}

static ls_status read_pictures(void) {
    char path[320];
    snprintf(path, sizeof path, "%s/pictures", folder());
    const ls_status status = read_batch(ls_image_folder_dataset(path, NULL));
    return status == LS_OK ? read_batch(ls_image_folder_dataset(path, &(ls_image_options){7, 40, 1})) : status;
}

static void put_pictures(void) {
    ls_npz *file = ls_npz_load(LS_FIXTURES "/image_files.npz");
    assert_int_equal(mkdir(test_path("pictures"), 0700), 0);
    for (int i = 0; i < 2; i++) {
        static const char *const names[] = {"color.png", "color.jpg"};
        char path[64];
        snprintf(path, sizeof path, "pictures/%d", i);
        assert_int_equal(mkdir(test_path(path), 0700), 0);
        snprintf(path, sizeof path, "pictures/%d/%s", i, names[i]);
        ls_tensor *bytes = ls_npz_find(file, names[i]);
        (void)test_file(path, ls_data_const(bytes), (size_t)ls_numel(bytes));
    }
    ls_npz_free(file);
}

/* Operations of the transform run out of memory. The error must not be that a target is not a whole number. */
static ls_status make_one_hot(void) {
    ls_scope *scope = ls_scope_begin();
    ls_dataset *set = ls_tensor_dataset(ls_zeros(LS_SHAPE(4), LS_F32), ls_zeros(LS_SHAPE(4), LS_F32));
    set = ls_dataset_one_hot(set, 3);
    const ls_status status = set != NULL ? LS_OK : ls_error_status();
    ls_dataset_free(set);
    (void)ls_scope_end(scope);
    return status;
}

/*
 * Runs `program` once, with allocator call `n` failing, alone or together with all later calls. Returns whether this
 * call took place.
 */
static bool run_out(ls_status (*program)(void), long n, bool once) {
    test_allocator allocator;
    (void)ls_error_set(LS_OK, "%s", "");
    test_allocator_start(&allocator);
    atomic_store(once ? &allocator.fail_once : &allocator.fail_from, n);
    const ls_status status = program();
    const long calls = atomic_load(&allocator.calls), left = test_allocator_stop(&allocator);
    const bool good = calls <= n ? status == LS_OK : status == LS_ERR_MEMORY || (status == LS_OK && once);
    if (left != 0 || !good) {
        fail_msg("allocation %ld fails: %ld blocks are left: %s", n, left, ls_error_message());
    }
    return calls > n;
}

/* Wherever memory runs out, the error is reported and everything is freed. */
TEST(test_memory_runs_out) {
    static ls_status (*const programs[])(void) = {make_one_hot, read_arrays,  read_cifar,
                                                  read_tokens,  read_gzipped, read_pictures};
    const bool pictures = ls_libpng_open() != NULL && ls_libjpeg_open() != NULL;
    cifar_file("test_batch.bin", 1, 0, 3, 0);
    tokens_file(1, 100, 0);
    gzipped_file(100, 0);
    put_pictures();
    for (size_t i = 0; i < sizeof programs / sizeof *programs - !pictures; i++) {
        for (int once = 0; once < 2; once++) {
            long n = 0;
            while (run_out(programs[i], n, once)) {
                n++;
            }
            assert_true(n > 4);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cifar_10),        cmocka_unit_test(test_cifar_100),
        cmocka_unit_test(test_tokens),          cmocka_unit_test(test_tokens_that_are_not_there),
        cmocka_unit_test(test_memory_runs_out), cmocka_unit_test(test_gzipped_tokens),
        cmocka_unit_test(test_tokens_that_go),  cmocka_unit_test(test_tokens_of_a_large_file),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
