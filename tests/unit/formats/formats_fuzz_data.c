/*
 * Damaged files and the readers of NumPy arrays, pictures and data sets. The program's argument, if any, is the only
 * test to run.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <lockstep/data.h>
#include <lockstep/formats.h>

#include <zlib.h>

#include "formats/image.h"
#include "tests/support/damage.h"
#include "tests/support/files.h"
#include "tests/support/fuzz.h"

/* ---- NumPy ------------------------------------------------------------------------------------------------------- */

static void round_npy(uint64_t number, void *argument) {
    static const char *const headers[] = {
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n",
        "{'descr': '>i8', 'fortran_order': True, 'shape': (1, 3, 1), }    \n",
        "{'descr': '|b1', 'fortran_order': True, 'shape': (4, 6), }\n",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }\n",
    };
    const char *header = headers[number % 4];
    content text = {.size = strlen(header)}, c = {.size = 8};
    memcpy(text.bytes, header, text.size);
    const bool whole =
        fuzz_below(4) != 0; /* damages only the header, preceded by its correct length; otherwise arbitrary bytes */
    if (whole) {
        content_damage(&text);
    }
    memcpy(c.bytes, "\x93NUMPY\1", 8);
    c.bytes[6] = (uint8_t)(1 + number % 3);
    const uint32_t length = (uint32_t)text.size;
    content_replace(&c, 8, 0, &length, number % 3 == 0 ? 2 : 4);
    content_replace(&c, c.size, 0, text.bytes, text.size);
    for (size_t i = 0; i < 24; i++) {
        c.bytes[c.size++] = (uint8_t)(i % 5);
    }
    if (!whole) {
        content_damage(&c);
    }
    ls_tensor *tensor = ls_npy_read(number / 4 % 3 == 0 ? content_gzipped_file(&c) : content_file(&c));
    if (tensor == NULL) {
        tally_refused(argument);
        return;
    }
    ((tally *)argument)->accepted++;
    assert_true(ls_is_contiguous(tensor));
    tally_touch(tensor);
    ls_release(tensor);
}

TEST(test_npy) {
    tally counts = {0};
    fuzz_run("npy", 4000, round_npy, &counts);
    tally_assert_both(&counts);
}

/* Returns the position of the next header mark of the archive after `at`, or the size if there is none. */
static size_t find_mark(const content *c, size_t at) {
    while (at + 4 <= c->size && memcmp(c->bytes + at, "PK", 2) != 0) {
        at++;
    }
    return at + 4 <= c->size ? at : c->size;
}

/* Damages numbers in the headers, or bytes with a corrected checksum, or arbitrary bytes. */
static void damage_archive(content *c) {
    static const uint32_t numbers[] = {0, 1, 2, 22, 46, 128, 0xffff, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
    if (fuzz_below(4) == 0) {
        content_damage(c);
        return;
    }
    for (size_t times = fuzz_below(4); times > 0; times--) {
        const size_t mark = find_mark(c, fuzz_below(c->size)), at = mark + 4 + fuzz_below(42);
        const uint32_t number =
            fuzz_below(2) == 0 ? numbers[fuzz_below(sizeof numbers / sizeof *numbers)] : (uint32_t)fuzz_below(c->size);
        const size_t width = (size_t)1 << fuzz_below(3);
        if (at + width <= c->size) {
            memcpy(c->bytes + at, &number, width);
        }
    }
}

/* Makes an archive with a single stored member, which has damaged bytes and a valid checksum. */
static void make_archive(content *c) {
    content array = {.size = 0};
    static const char head[] = "\x93NUMPY\1\0\x40\0{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }    \n";
    content_replace(&array, 0, 0, head, 10 + 64);
    content_replace(&array, array.size, 0, "0123456789abcdefghijklmn", 24);
    if (fuzz_below(4) > 0) {
        content_damage(&array);
    }
    const uint32_t crc = (uint32_t)crc32(0, array.bytes, (uInt)array.size), size = (uint32_t)array.size;
    uint8_t local[30 + 5] = "PK\3\4", central[46 + 5] = "PK\1\2", end[22] = "PK\5\6";
    const uint32_t of_central = sizeof central, behind = sizeof local + size;
    memcpy(local + 26, "\5\0\0\0a.npy", 9);
    memcpy(central + 16, &crc, 4);
    memcpy(central + 20, &size, 4);
    memcpy(central + 24, &size, 4);
    central[28] = 5;
    memcpy(central + 46, "a.npy", 5);
    end[8] = end[10] = 1;
    memcpy(end + 12, &of_central, 4);
    memcpy(end + 16, &behind, 4);
    c->size = 0;
    content_replace(c, 0, 0, local, sizeof local);
    content_replace(c, c->size, 0, array.bytes, array.size);
    content_replace(c, c->size, 0, central, sizeof central);
    content_replace(c, c->size, 0, end, sizeof end);
}

static void round_npz(uint64_t number, void *argument) {
    static content good[3];
    if (good[0].size == 0) {
        content_read(&good[0], LS_FIXTURES "/numpy.npz");
        content_read(&good[1], LS_FIXTURES "/numpy_packed.npz");
        content_read(&good[2], LS_FIXTURES "/numpy_64.npz");
    }
    content c = good[number % 3];
    if (number % 6 == 2) { /* so that the 64-bit record is used */
        memset(c.bytes + c.size - 22 + 8, 0xff, 12);
    }
    if (number % 4 == 0) {
        make_archive(&c);
    } else {
        damage_archive(&c);
    }
    ls_npz *file = ls_npz_load(content_file(&c));
    if (file == NULL) {
        tally_refused(argument);
        return;
    }
    ((tally *)argument)->accepted++;
    for (int i = 0; i < ls_npz_count(file); i++) {
        const ls_named item = ls_npz_at(file, i);
        assert_ptr_equal(ls_npz_find(file, item.name), item.tensor);
        tally_touch(item.tensor);
    }
    ls_npz_free(file);
}

TEST(test_npz) {
    tally counts = {0};
    fuzz_run("npz", 4000, round_npz, &counts);
    tally_assert_both(&counts);
}

/* ---- pictures ---------------------------------------------------------------------------------------------------- */

/* Corrects the checksums of a PNG file's chunks, if there are chunks, so that their contents are read. */
static void mend_checksums(content *c) {
    for (size_t at = 8; at + 12 <= c->size;) {
        const size_t length = (size_t)c->bytes[at] << 24 | (size_t)c->bytes[at + 1] << 16 |
                              (size_t)c->bytes[at + 2] << 8 | c->bytes[at + 3];
        if (length > c->size - at - 12) {
            return;
        }
        const uint32_t crc = (uint32_t)crc32(0, c->bytes + at + 4, (uInt)length + 4);
        for (int i = 0; i < 4; i++) {
            c->bytes[at + 8 + length + (size_t)i] = (uint8_t)(crc >> (24 - 8 * i));
        }
        at += 12 + length;
    }
}

/* Damages the rows of a PNG file, which is then compressed again. */
static void damage_rows(content *c) {
    content rows = {.size = CONTENT_ROOM};
    uint8_t packed[CONTENT_ROOM];
    uint8_t *data = memmem(c->bytes, c->size, "IDAT", 4);
    if (data == NULL) {
        return;
    }
    const size_t at = (size_t)(data - c->bytes), length = (size_t)c->bytes[at - 2] << 8 | c->bytes[at - 1];
    uLongf size = rows.size, packed_size = sizeof packed;
    if (uncompress(rows.bytes, &size, data + 4, length) != Z_OK) {
        return;
    }
    rows.size = size;
    content_damage(&rows);
    assert_int_equal(compress(packed, &packed_size, rows.bytes, rows.size), Z_OK);
    content_replace(c, at + 4, length, packed, packed_size);
    c->bytes[at - 2] = (uint8_t)(packed_size >> 8);
    c->bytes[at - 1] = (uint8_t)packed_size;
}

typedef struct files {
    ls_npz *archive;
    tally counts;
} files;

static void round_image(uint64_t number, void *argument) {
    static const char *const names[] = {"color.png", "palette.png", "gray_opaque.png", "interlaced.png",
                                        "clear.png", "bits.png",    "color.jpg",       "progressive.jpg",
                                        "gray.jpg",  "more.png",    "wide.png",        "ink.jpg"};
    enum { NAMES = sizeof names / sizeof *names };
    files *f = argument;
    const char *name = names[number % NAMES];
    ls_tensor *file = ls_npz_find(f->archive, name);
    content c = {.size = (size_t)ls_numel(file)};
    assert_true(c.size <= CONTENT_ROOM);
    memcpy(c.bytes, ls_data_const(file), c.size);
    if (strstr(name, ".png") != NULL && fuzz_below(3) == 0) {
        damage_rows(&c);
    } else {
        c.size = fuzz_mutate(c.bytes, c.size, CONTENT_ROOM);
    }
    if (strstr(name, ".png") != NULL && fuzz_below(8) > 0) {
        mend_checksums(&c);
    }
    ls_tensor *image = ls_image_read(content_file(&c), number / NAMES % 3 == 0 ? 0 : number / NAMES % 3 == 1 ? 1 : 3);
    if (image == NULL) {
        tally_refused(&f->counts);
        return;
    }
    f->counts.accepted++;
    tally_touch(image);
    ls_release(image);
}

TEST(test_image) {
    files f = {.archive = ls_npz_load(LS_FIXTURES "/image_files.npz")};
    if (ls_libpng_open() == NULL || ls_libjpeg_open() == NULL) {
        printf("SKIPPED pictures: %s\n", ls_error_message());
        ls_npz_free(f.archive);
        skip();
    }
    fuzz_run("image", 4000, round_image, &f);
    tally_assert_both(&f.counts);
    ls_npz_free(f.archive);
}

/* ---- data sets --------------------------------------------------------------------------------------------------- */

/* Reads all samples of a data set, or counts its refusal. */
static void read_samples(ls_dataset *dataset, tally *counts) {
    if (dataset == NULL) {
        counts->refused++;
        assert_true(ls_error_status() == LS_ERR_FORMAT || ls_error_status() == LS_ERR_ARGUMENT);
        return;
    }
    counts->accepted++;
    ls_loader *loader = ls_loader_new(dataset, &(ls_loader_options){.batch_size = 3});
    ls_batch batch = {.count = 0};
    bool more = true;
    for (int i = 0; more && i < 100; i++) {
        assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
        if (more) {
            tally_touch(batch.input);
            tally_touch(batch.target);
        }
    }
    ls_loader_free(loader);
}

/* Reads a file of arbitrary bytes, with options that may not match it. */
static void round_tokens(uint64_t number, void *argument) {
    static const int widths[] = {0, 1, 2, 4, 4, 3, -1};
    content c = {.size = fuzz_below(200)};
    for (size_t i = 0; i < c.size; i++) {
        c.bytes[i] = (uint8_t)fuzz_below(256);
    }
    const ls_tokens_options options = {.context = (int64_t)fuzz_below(20) - 1,
                                       .stride = number % 16 == 0 ? INT64_MAX : (int64_t)fuzz_below(20) - 1,
                                       .width = widths[fuzz_below(7)],
                                       .skip_bytes = number % 16 == 1 ? INT64_MAX : (int64_t)fuzz_below(40) - 2};
    read_samples(ls_tokens_dataset(content_file(&c), &options), argument);
}

TEST(test_tokens) {
    tally counts = {0};
    fuzz_run("tokens", 2000, round_tokens, &counts);
    tally_assert_both(&counts);
}

static void round_cifar(uint64_t number, void *argument) {
    const size_t record = number % 2 == 0 ? 3073 : 3074;
    content c = {.size = (1 + fuzz_below(2)) * record};
    for (size_t i = 0; i < c.size; i++) {
        c.bytes[i] = i % record < 2 ? (uint8_t)fuzz_below(11) : (uint8_t)i;
    }
    if (fuzz_below(2) == 0) {
        c.size = fuzz_mutate(c.bytes, c.size, CONTENT_ROOM);
    }
    char folder[320];
    snprintf(folder, sizeof folder, "%s", test_path("."));
    (void)test_file(number % 2 == 0 ? "test_batch.bin" : "test.bin", c.bytes, c.size);
    read_samples(number % 2 == 0 ? ls_cifar10_dataset(folder, false)
                                 : ls_cifar100_dataset(folder, false, number % 4 == 1),
                 argument);
}

TEST(test_cifar) {
    tally counts = {0};
    fuzz_run("cifar", 1000, round_cifar, &counts);
    tally_assert_both(&counts);
}

int main(int count, char **arguments) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_npy),    cmocka_unit_test(test_npz),   cmocka_unit_test(test_image),
        cmocka_unit_test(test_tokens), cmocka_unit_test(test_cifar),
    };
    cmocka_set_test_filter(count > 1 ? arguments[1] : NULL);
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
