/*
 * Pictures: comparison with Pillow on the same files, folders of classes, and invalid files.
 *
 * devices: cpu
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/data.h>
#include <zlib.h>

#include "formats/image.h"
#include "tests/support/files.h"

/* Without the libraries, the functions report this, and all other functions work. These tests then end here. */
static void need_libraries(void) {
    if (ls_libpng_open() == NULL || ls_libjpeg_open() == NULL) {
        assert_int_equal(ls_error_status(), LS_ERR_UNSUPPORTED);
        printf("SKIPPED pictures: %s\n", ls_error_message());
        skip();
    }
}

/* ---- the fixtures: tests/fixtures/make_image_files.py
 * ----------------------------------------------------------------
 */

static ls_npz *pictures;

static int open_pictures(void **state) {
    (void)state;
    pictures = ls_npz_load(LS_FIXTURES "/image_files.npz");
    return pictures != NULL ? 0 : -1;
}

static int close_pictures(void **state) {
    ls_npz_free(pictures);
    return test_files_teardown(state);
}

/* Writes one of the picture files under a different name, without its last `cut` bytes. */
static const char *write_picture(const char *name, const char *as, size_t cut) {
    ls_tensor *bytes = ls_npz_find(pictures, name);
    assert_non_null(bytes);
    return test_file(as, ls_data_const(bytes), (size_t)ls_numel(bytes) - cut);
}

static bool is_jpeg(const char *name) {
    return strstr(name, ".jpg") != NULL;
}

/* JPEG libraries may round differently. */
static void compare(const char *name, const unsigned char *pixels, const ls_tensor *expected, int tolerance) {
    const unsigned char *right = ls_data_const(expected);
    for (int64_t i = 0; i < ls_numel(expected); i++) {
        if (abs(pixels[i] - right[i]) > tolerance) {
            fail_msg("%s: byte %lld is %d, not %d", name, (long long)i, pixels[i], right[i]);
        }
    }
}

static void check_picture(const char *file, const char *name, int channels, const char *mode) {
    char key[64];
    snprintf(key, sizeof key, "%s:%s", name, mode);
    const ls_tensor *expected = ls_npz_find(pictures, key);
    ls_tensor *read = ls_image_read(file, channels);
    if (read == NULL || expected == NULL) {
        fail_msg("%s: %s", key, ls_error_message());
    }
    assert_int_equal(ls_dtype_of(read), LS_U8);
    assert_int_equal(ls_ndim(read), 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ls_size(read, i), ls_size(expected, i));
    }
    compare(key, ls_data_const(read), expected, is_jpeg(name) ? 2 : 0);
    ls_release(read);
}

TEST(test_reads_what_pillow_reads) {
    need_libraries();
    int files = 0;
    for (int i = 0; i < ls_npz_count(pictures); i++) {
        const char *name = ls_npz_at(pictures, i).name;
        if (strchr(name, ':') != NULL) {
            continue;
        }
        char file[320];
        snprintf(file, sizeof file, "%s", write_picture(name, name, 0));
        check_picture(file, name, 3, "RGB");
        check_picture(file, name, 1, "L");
        ls_tensor *own = ls_image_read(file, 0);
        const bool gray = strstr(name, "gray") != NULL || strstr(name, "bits") != NULL || strstr(name, "more") != NULL;
        assert_int_equal(ls_size(own, 0), gray ? 1 : 3);
        ls_release(own);
        files++;
    }
    assert_int_equal(files, 15);
}

/* ---- folders ----------------------------------------------------------------------------------------------------- */

static void expect_none(ls_dataset *dataset, ls_status status, const char *part) {
    assert_null(dataset);
    if (ls_error_status() != status || strstr(ls_error_message(), part) == NULL) {
        fail_msg("%s, expected: %s", ls_error_message(), part);
    }
}

/* Makes a new folder in the test's folder, and returns its path. */
static const char *make_folder(const char *name) {
    const char *path = test_path(name);
    assert_int_equal(mkdir(path, 0700), 0);
    return path;
}

TEST(test_folder_of_classes) {
    need_libraries();
    char root[320];
    snprintf(root, sizeof root, "%s", make_folder("classes"));
    expect_none(ls_image_folder_dataset(root, NULL), LS_ERR_ARGUMENT, "there is no folder in");
    make_folder("classes/zebra");
    make_folder("classes/Ape");
    make_folder("classes/.hidden");
    write_picture("color.png", "classes/readme.png", 0); /* not a class */
    write_picture("color.png", "classes/zebra/b.PNG", 0);
    expect_none(ls_image_folder_dataset(root, NULL), LS_ERR_ARGUMENT, "there is no image (.png, .jpg, .jpeg) in");
    write_picture("full.jpg", "classes/Ape/10.jpeg", 0);
    write_picture("gray.png", "classes/Ape/2.png", 0);
    write_picture("palette.png", "classes/zebra/.a.png", 0);
    write_picture("wide.png", "classes/zebra/a.png", 0);
    test_file("classes/zebra/labels.txt", "", 0);
    static const char *const expected[] = {"full.jpg", "gray.png", "wide.png", "color.png"};
    for (int channels = 1; channels <= 3; channels += 2) {
        ls_dataset *dataset = ls_image_folder_dataset(root, &(ls_image_options){.channels = channels});
        assert_int_equal(ls_dataset_count(dataset), 4);
        assert_string_equal(ls_image_folder_class(dataset, 0), "Ape");
        assert_string_equal(ls_image_folder_class(dataset, 1), "zebra");
        assert_true(ls_image_folder_class(dataset, 2) == NULL && ls_image_folder_class(dataset, -1) == NULL);
        ls_loader *loader = ls_loader_new(dataset, &(ls_loader_options){.no_shuffle = true, .threads = 4});
        for (int i = 0; i < 4; i++) { /* decoded in parallel */
            ls_batch batch;
            bool more;
            char key[64];
            assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
            snprintf(key, sizeof key, "%s:%s", expected[i], channels == 1 ? "L" : "RGB");
            compare(key, elements(batch.input), ls_npz_find(pictures, key), is_jpeg(key) ? 2 : 0);
            assert_int_equal(((const int64_t *)elements(batch.target))[0], i / 2);
        }
        ls_loader_free(loader);
    }
    assert_null(ls_image_folder_class(NULL, 0));
}

/* Every size of the Pillow fixtures gives bit-identical results. */
TEST(test_resizes_as_pillow_does) {
    need_libraries();
    char root[320];
    int sizes = 0;
    snprintf(root, sizeof root, "%s", make_folder("resized"));
    make_folder("resized/all");
    for (int i = 0; i < ls_npz_count(pictures); i++) {
        const ls_named item = ls_npz_at(pictures, i);
        const char *colon = strchr(item.name, ':');
        if (colon == NULL || colon[1] < '0' || colon[1] > '9') {
            continue;
        }
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(colon - item.name), item.name);
        const char *path = write_picture(name, is_jpeg(name) ? "resized/all/one.jpg" : "resized/all/one.png", 0);
        const ls_image_options options = {.height = ls_size(item.tensor, 1), .width = ls_size(item.tensor, 2)};
        ls_loader *loader = ls_loader_new(ls_image_folder_dataset(root, &options), NULL);
        ls_batch batch;
        bool more;
        assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
        compare(item.name, elements(batch.input), item.tensor, is_jpeg(name) ? 2 : 0);
        ls_loader_free(loader);
        assert_int_equal(unlink(path), 0);
        sizes++;
    }
    assert_int_equal(sizes, 8);
}

TEST(test_folders_that_are_wrong) {
    need_libraries();
    char root[320];
    snprintf(root, sizeof root, "%s", make_folder("wrong"));
    make_folder("wrong/a");
    write_picture("color.png", "wrong/a/1.png", 0);
    expect_none(ls_image_folder_dataset(NULL, NULL), LS_ERR_ARGUMENT, "NULL");
    expect_none(ls_image_folder_dataset(test_path("absent"), NULL), LS_ERR_IO, "/absent");
    expect_none(ls_image_folder_dataset(root, &(ls_image_options){.channels = 2}), LS_ERR_ARGUMENT,
                ".channels is 2, but must be 1 or 3");
    expect_none(ls_image_folder_dataset(root, &(ls_image_options){.height = 2}), LS_ERR_ARGUMENT,
                "set both (each at most");
    expect_none(ls_image_folder_dataset(root, &(ls_image_options){.height = 20000, .width = 2}), LS_ERR_ARGUMENT,
                "each at most 16384");
    ls_tensor *other = ls_npz_find(pictures, "color.png");
    const char *path = test_file("wrong/a/2.webp", ls_data_const(other), 10);
    expect_none(ls_image_folder_dataset(root, NULL), LS_ERR_UNSUPPORTED, "2.webp: not a PNG or JPEG file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("nowhere", test_path("wrong/c")), 0); /* such as a class on a disk that is not mounted */
    expect_none(ls_image_folder_dataset(root, NULL), LS_ERR_IO, "wrong/c: No such file or directory");
    assert_int_equal(unlink(test_path("wrong/c")), 0);
    make_folder("wrong/a/b");
    expect_none(ls_image_folder_dataset(root, NULL), LS_ERR_ARGUMENT,
                "wrong/a/b is a folder inside the folder of a class");
    assert_int_equal(rmdir(test_path("wrong/a/b")), 0);
    write_picture("color.png", "wrong/a/2.png", 40);
    ls_dataset *dataset = ls_image_folder_dataset(root, NULL);
    ls_loader *loader = ls_loader_new(dataset, &(ls_loader_options){.batch_size = 2, .no_shuffle = true});
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_ERR_FORMAT);
    expect_message("wrong/a/2.png is a truncated PNG file: download it again");
    assert_int_equal(unlink(test_path("wrong/a/2.png")), 0);
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_ERR_IO);
    expect_message("cannot open");
    unsigned char small[] = "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\0\0\0\0\x3a\x7e\x9b\x55\0\0\0\nIDAT"
                            "\x78\x9c\x63\x60\0\0\0\2\0\1\x48\xaf\xa4\x71\0\0\0\0IEND\xae\x42\x60\x82";
    test_file("wrong/a/2.png", small, sizeof small - 1);
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_ERR_SHAPE);
    expect_message("wrong/a/2.png has 1 x 1 pixels and ");
    ls_loader_free(loader);
}

/* ---- invalid files ----------------------------------------------------------------------------------------------- */

static void expect_read_error(const char *path, const char *part) {
    assert_null(ls_image_read(path, 0));
    assert_int_equal(ls_error_status(), LS_ERR_FORMAT);
    expect_message(part);
    expect_message(path);
}

/* Replaces bytes after a mark in the file and, for PNG, corrects the checksum of its header. */
static void expect_damage(const char *name, const char *mark, size_t size, size_t behind, const char *with,
                          size_t count, const char *part) {
    unsigned char bytes[4096];
    ls_tensor *file = ls_npz_find(pictures, name);
    const size_t length = (size_t)ls_numel(file);
    assert_true(length < sizeof bytes);
    memcpy(bytes, ls_data_const(file), length);
    unsigned char *at = memmem(bytes, length, mark, size);
    assert_non_null(at);
    memcpy(at + behind, with, count);
    expect_read_error(test_file("damaged", bytes, length), part);
}

static void put_word(unsigned char *to, size_t word) {
    for (int i = 0; i < 4; i++) {
        to[i] = (unsigned char)(word >> (24 - 8 * i));
    }
}

/* Writes a PNG file of `size` bytes that promises a large picture, and has one more chunk of zeros. */
static void expect_promise(size_t size, size_t height, size_t width, int depth, int kind, const char *part) {
    unsigned char bytes[4096] = "\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
    put_word(bytes + 16, width);
    put_word(bytes + 20, height);
    bytes[24] = (unsigned char)depth;
    bytes[25] = (unsigned char)kind;
    put_word(bytes + 29, crc32(0, bytes + 12, 17));
    put_word(bytes + 33, size - 45);
    memcpy(bytes + 37, "IDAT", 4);
    expect_read_error(test_file("promise", bytes, size), part);
}

/* Bytes before a marker do not belong to the picture. Many programs leave such bytes. */
TEST(test_bytes_between_markers) {
    need_libraries();
    unsigned char bytes[4096];
    ls_tensor *file = ls_npz_find(pictures, "color.jpg");
    const size_t size = (size_t)ls_numel(file);
    memcpy(bytes, ls_data_const(file), size);
    unsigned char *at = memmem(bytes, size, "\xff\xc0", 2);
    memmove(at + 3, at, size - (size_t)(at - bytes));
    memcpy(at, "abc", 3);
    check_picture(test_file("more.jpg", bytes, size + 3), "color.jpg", 3, "RGB");
}

TEST(test_files_that_are_wrong) {
    need_libraries();
    expect_read_error(test_file("empty", "", 0), "neither a PNG nor a JPEG");
    expect_read_error(test_file("text", "GIF89a....", 10), "neither a PNG nor a JPEG");
    expect_read_error(test_file("short", "\x89PNG\r\n\x1a\n", 8), "is a truncated");
    expect_read_error(test_file("short", "\xff\xd8\xff", 3), "is a truncated");
    assert_null(ls_image_read(test_path("."), 0));
    assert_int_equal(ls_error_status(), LS_ERR_IO);
    assert_null(ls_image_read(test_path("."), 2));
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    static const char *const names[] = {"color.png", "interlaced.png", "palette.png",    "color.jpg",
                                        "gray.jpg",  "full.jpg",       "progressive.jpg"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t size = (size_t)ls_numel(ls_npz_find(pictures, names[i]));
        for (size_t cut = 1; cut + 8 < size; cut += 5) {
            expect_read_error(write_picture(names[i], "cut", cut), "is a truncated");
        }
    }
    expect_damage("color.png", "IHDR", 4, 7, "x", 1, "is a damaged PNG file: IHDR: CRC error");
    expect_damage("color.png", "IDAT", 4, 60, "xxxx", 4, "is a damaged PNG file");
    expect_promise(3000, 16384, 16384, 16, 2, "16384 rows of 16384 pixels, which its bytes cannot give");
    expect_promise(3000, 16385, 16384, 1, 0, "16385 rows of 16384 pixels, which is 0, or more than 2^28");
    expect_promise(3000, 0, 1, 8, 0, "is a damaged PNG file");
    expect_promise(3000, 1, 3000000, 8, 0, "is a damaged PNG file");
    expect_damage("color.jpg", "\xff\xc0", 2, 5, "\xff\0\xff\0", 4, "rows of 65280 pixels, which is 0, or more");
    expect_damage("color.jpg", "\xff\xc0", 2, 5, "\x3f\xff\x3f\xff", 4, "rows of 16383 pixels, which its bytes cannot");
    expect_damage("color.jpg", "\xff\xc0", 2, 5, "\0\0", 2, "is a damaged JPEG file");
    expect_damage("color.jpg", "\xff\xc0", 2, 1, "\xc9", 1, "arithmetic coding");
    expect_damage("color.jpg", "\xff\xc4", 2, 5, "\xff\xff\xff", 3, "is a damaged JPEG file");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_what_pillow_reads), cmocka_unit_test(test_folder_of_classes),
        cmocka_unit_test(test_resizes_as_pillow_does),  cmocka_unit_test(test_folders_that_are_wrong),
        cmocka_unit_test(test_bytes_between_markers),   cmocka_unit_test(test_files_that_are_wrong),
    };
    return cmocka_run_group_tests(tests, open_pictures, close_pictures);
}
