/*
 * Tensors in TensorBoard's event files: histograms and pictures, on any device.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/unit.h"

#include <lockstep/autograd.h>
#include <lockstep/formats.h>

#include <float.h>
#include <math.h>
#include <zlib.h>

#include "formats/events.h"
#include "tests/support/events.h"
#include "tests/support/files.h"

enum { PATH_ROOM = 400 };

typedef ls_status writer(ls_events *events, const char *tag, int64_t step, const ls_tensor *tensor);

/* Returns the message in field `number` of the only value in a file with this tensor. The caller frees `*bytes`. */
static const uint8_t *write_one(writer *write, const ls_tensor *tensor, int number, uint8_t **bytes, size_t *size) {
    char path[PATH_ROOM];
    events_record records[2];
    ls_events *events = ls_events_open(test_path("tensors"), NULL);
    assert_non_null(events);
    snprintf(path, sizeof path, "%s", ls_events_path(events));
    if (write(events, "a", 1, tensor) != LS_OK) {
        fail_msg("%s", ls_error_message());
    }
    assert_int_equal(ls_events_close(events), LS_OK);
    *bytes = events_load(path, size);
    assert_int_equal(events_records(*bytes, *size, records, 2), 2);
    const int at[] = {LS_EVENT_SUMMARY, LS_SUMMARY_VALUE, number, 0};
    const uint8_t *message = events_find(records[1].event, records[1].size, at, size);
    assert_non_null(message);
    assert_int_equal(remove(path), 0);
    return message;
}

/* ---- histograms -------------------------------------------------------------------------------------------------- */

enum { MIN = 1, MAX, NUM, SUM, SUM_SQUARES, LIMIT, BUCKET, MOST_BUCKETS = 2000 };

typedef struct histogram {
    double numbers[SUM_SQUARES + 1];
    double limits[MOST_BUCKETS], buckets[MOST_BUCKETS];
    size_t count;
} histogram;

static void histogram_of(const ls_tensor *tensor, histogram *to) {
    uint8_t *bytes;
    size_t size;
    const uint8_t *message = write_one(ls_events_histogram, tensor, LS_VALUE_HISTOGRAM, &bytes, &size);
    memset(to, 0, sizeof *to);
    ls_proto_view view = {.at = (uint8_t *)message, .end = (uint8_t *)message + size};
    for (ls_proto_field field; ls_proto_next(&view, &field);) {
        assert_true(field.size <= sizeof to->limits);
        double *numbers = field.number == LIMIT    ? to->limits
                          : field.number == BUCKET ? to->buckets
                                                   : &to->numbers[field.number];
        memcpy(numbers, field.bytes, field.size);
        to->count = field.size / sizeof(double);
    }
    assert_false(view.damaged);
    free(bytes);
}

/* Returns the count of the bucket of `value`. Checks that the limits increase, and that the first bucket is empty. */
static double count_at(const histogram *of, double value) {
    size_t at = 0;
    while (at < of->count && of->limits[at] <= value) {
        assert_true(at == 0 || of->limits[at] > of->limits[at - 1]);
        at++;
    }
    assert_true(at < of->count);
    assert_true(of->buckets[0] == 0);
    return of->buckets[at];
}

TEST(test_histograms_of_every_dtype) {
    static const double numbers[] = {0, 1, 1, 0, 1, 1};
    static histogram of;
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *tensor = ls_to(ls_from(LS_SHAPE(2, 3), LS_F64, numbers), (ls_dtype)dtype);
        histogram_of(tensor, &of);
        assert_int_equal(ls_scope_end(scope), LS_OK);
        assert_true(of.numbers[MIN] == 0 && of.numbers[MAX] == 1 && of.numbers[NUM] == 6);
        assert_true(of.numbers[SUM] == 4 && of.numbers[SUM_SQUARES] == 4);
        assert_true(count_at(&of, 0) == 2 && count_at(&of, 1) == 4 && count_at(&of, 0.5) == 0);
    }
}

/* Each element is counted once, for any strides. */
SCOPED_TEST(test_histograms_of_views) {
    static histogram of;
    ls_tensor *all = ls_arange(LS_SHAPE(4, 5), LS_F32);
    histogram_of(ls_transpose(ls_narrow(all, 1, 1, 2), 0, 1), &of);
    assert_true(of.numbers[MIN] == 1 && of.numbers[MAX] == 17 && of.numbers[SUM] == 72);
    histogram_of(ls_expand(ls_narrow(ls_narrow(all, 0, 0, 1), 1, 2, 1), LS_SHAPE(3, 7)), &of);
    assert_true(of.numbers[NUM] == 21 && of.numbers[SUM] == 42);
}

/*
 * The limits of histogram.cc, bit by bit: powers of 1.1 by repeated multiplication, their negatives, 0, and the largest
 * number.
 */
TEST(test_limits_of_histograms) {
    static histogram of;
    static const double ends[] = {-DBL_MAX, 0, DBL_MAX};
    ls_tensor *tensor = ls_from(LS_SHAPE(3), LS_F64, ends);
    histogram_of(tensor, &of);
    ls_release(tensor);
    assert_int_equal(of.count, 2 * 775 + 1);
    assert_true(of.limits[0] == -DBL_MAX && of.limits[775] == 0 && of.limits[1550] == DBL_MAX);
    double power = 1e-12;
    for (size_t i = 1; i < 775; i++, power *= 1.1) {
        assert_true(of.limits[775 + i] == power && of.limits[775 - i] == -power);
    }
    assert_true(power >= 1e20);
    assert_true(of.buckets[0] == 0 && of.buckets[1] == 1 && of.buckets[776] == 1 && of.buckets[1550] == 1);
    assert_true(of.numbers[NUM] == 3);
}

/* A number equal to a limit belongs to the bucket above. */
TEST(test_edges_of_buckets) {
    static histogram of;
    const double numbers[] = {1e-12, nextafter(1e-12, 0), -1e-12, nextafter(-1e-12, -1), -nextafter(1e-12, 0)};
    ls_tensor *tensor = ls_from(LS_SHAPE(5), LS_F64, numbers);
    histogram_of(tensor, &of);
    ls_release(tensor);
    assert_int_equal(of.count, 5); /* an empty bucket, and the buckets up to -1e-12, 0, 1e-12 and 1.1e-12 */
    const double buckets[] = {0, 1, 2, 1, 1};
    assert_memory_equal(of.buckets, buckets, sizeof buckets);
    assert_true(of.limits[1] == -1e-12 && of.limits[2] == 0 && of.limits[3] == 1e-12);
}

SCOPED_TEST(test_histograms_of_what_has_none) {
    static const float numbers[] = {1, 2, 3, NAN, -INFINITY, 0};
    ls_events *events = ls_events_open(test_path("tensors"), NULL);
    ls_tensor *tensor = ls_from(LS_SHAPE(2, 3), LS_F32, numbers);
    expect_error(ls_events_histogram(events, "w", 1, tensor), LS_ERR_ARGUMENT,
                 "ls_events_histogram: 'w': element 3 of [2, 3] is nan");
    expect_error(ls_events_histogram(events, "w", 1, ls_narrow(tensor, 1, 1, 1)), LS_ERR_ARGUMENT,
                 "element 1 of [2, 1] is -inf");
    expect_error(ls_events_histogram(events, "w", 1, ls_zeros(LS_SHAPE(0, 3), LS_F32)), LS_ERR_SHAPE,
                 "'w': the tensor [0, 3] has no elements");
    assert_int_equal(ls_events_close(events), LS_OK);
}

/* ---- pictures ---------------------------------------------------------------------------------------------------- */

enum { MOST_BYTES = 1 << 16 };

typedef struct picture {
    uint32_t width, height, channels;
    uint8_t rows[MOST_BYTES]; /* each row with its filter type */
} picture;

static uint32_t big_endian(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Reads one chunk of a PNG file. Returns a pointer to its contents. */
static const uint8_t *next_chunk(const uint8_t **at, const uint8_t *end, const char *type, size_t *size) {
    assert_true(end - *at >= 12);
    const uint8_t *chunk = *at;
    *size = big_endian(chunk);
    assert_memory_equal(chunk + 4, type, 4);
    assert_true(*size <= (size_t)(end - chunk) - 12);
    *at = chunk + *size + 12;
    assert_int_equal(big_endian(*at - 4), crc32(0, chunk + 4, (uInt)*size + 4));
    return chunk + 8;
}

static void picture_of(const ls_tensor *tensor, picture *to) {
    static const uint8_t channels[] = {[0] = 1, [2] = 3, [6] = 4};
    static const int encoded[] = {4, 0};
    uint8_t *bytes;
    size_t size;
    const uint8_t *message = write_one(ls_events_image, tensor, LS_VALUE_IMAGE, &bytes, &size);
    const uint8_t sizes[] = {message[1], message[3], message[5]}; /* of fields 1, 2 and 3, which are small here */
    assert_true(message[0] == 1 << 3 && message[2] == 2 << 3 && message[4] == 3 << 3);
    const uint8_t *at = events_find(message, size, encoded, &size), *end = at + size;
    assert_memory_equal(at, "\x89PNG\r\n\x1a\n", 8);
    at += 8;
    const uint8_t *header = next_chunk(&at, end, "IHDR", &size);
    assert_int_equal(size, 13);
    assert_memory_equal(header + 10, "\0\0\0", 3);
    *to = (picture){big_endian(header), big_endian(header + 4), channels[header[9]], {0}};
    assert_true(header[8] == 8 && sizes[0] == to->height && sizes[1] == to->width && sizes[2] == to->channels);
    const uint8_t *data = next_chunk(&at, end, "IDAT", &size);
    uLongf got = sizeof to->rows;
    assert_int_equal(uncompress(to->rows, &got, data, size), Z_OK);
    assert_int_equal(got, to->height * (1 + to->width * to->channels));
    (void)next_chunk(&at, end, "IEND", &size);
    assert_true(size == 0 && at == end);
    free(bytes);
}

static void expect_picture(const ls_tensor *tensor, uint32_t channels, uint32_t height, uint32_t width,
                           const uint8_t *rows) {
    static picture of;
    picture_of(tensor, &of);
    assert_int_equal(of.channels, channels);
    assert_int_equal(of.height, height);
    assert_int_equal(of.width, width);
    assert_memory_equal(of.rows, rows, height * (1 + width * channels));
}

SCOPED_TEST(test_pictures_of_bytes) {
    static const uint8_t gray[] = {0, 0, 1, 2, 0, 3, 4, 5}; /* each row begins with its filter type, 0 */
    static const uint8_t colors[] = {0, 0, 6, 12, 1, 7, 13, 2, 8, 14, 0, 3, 9, 15, 4, 10, 16, 5, 11, 17};
    static const uint8_t turned[] = {0, 0, 3, 0, 1, 4, 0, 2, 5};
    static const uint8_t opaque[] = {0, 0, 1, 2, 3};
    ls_tensor *all = ls_arange(LS_SHAPE(4, 2, 3), LS_U8);
    expect_picture(ls_reshape(ls_narrow(all, 0, 0, 1), LS_SHAPE(2, 3)), 1, 2, 3, gray);
    expect_picture(ls_narrow(all, 0, 0, 1), 1, 2, 3, gray);
    expect_picture(ls_narrow(all, 0, 0, 3), 3, 2, 3, colors);
    expect_picture(ls_transpose(ls_narrow(all, 0, 0, 1), 1, 2), 1, 3, 2, turned);
    expect_picture(ls_arange(LS_SHAPE(4, 1, 1), LS_U8), 4, 1, 1, opaque);
}

TEST(test_pictures_of_numbers) {
    static const double numbers[] = {0, 1, 0.5, 2, -1, NAN, 1.4 / 255, 1.6 / 255, INFINITY, -INFINITY};
    static const uint8_t pixels[] = {0, 0, 255, 128, 255, 0, 0, 1, 2, 255, 0};
    static const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_F16, LS_BF16};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        ls_scope *scope = ls_scope_begin();
        expect_picture(ls_to(ls_from(LS_SHAPE(1, 10), LS_F64, numbers), dtypes[i]), 1, 1, 10, pixels);
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

/* Pictures larger than a writer's initial buffer, with random pixels, so that compression does not shrink them. */
SCOPED_TEST(test_large_pictures) {
    events_list list = {0};
    char path[PATH_ROOM];
    ls_events *events = ls_events_open(test_path("tensors"), NULL);
    snprintf(path, sizeof path, "%s", ls_events_path(events));
    assert_int_equal(ls_events_image(events, "noise", 1, ls_rand(LS_SHAPE(3, 500, 701), LS_F32)), LS_OK);
    assert_int_equal(ls_events_image(events, "thin", 2, ls_ones(LS_SHAPE(100000, 1), LS_U8)), LS_OK);
    assert_int_equal(ls_events_close(events), LS_OK);
    assert_int_equal(ls_events_read(path, events_note, &list), LS_OK);
    assert_int_equal(list.count, 2);
    assert_int_equal(list.items[0].kind, LS_EVENTS_IMAGE);
}

SCOPED_TEST(test_what_is_no_picture) {
    ls_events *events = ls_events_open(test_path("tensors"), NULL);
    const struct {
        ls_shape shape;
        const char *part;
    } cases[] = {
        {LS_SCALAR, "ls_events_image: 'p': [] is not an image"}, {LS_SHAPE(5), "'p': [5] is not an image"},
        {LS_SHAPE(2, 5, 5), "[2, 5, 5] is not an image"},        {LS_SHAPE(5, 5, 5), "[5, 5, 5] is not an image"},
        {LS_SHAPE(0, 5, 5), "[0, 5, 5] is not an image"},        {LS_SHAPE(5, 5, 3), "[5, 5, 3] is not an image"},
        {LS_SHAPE(1, 3, 5, 5), "[1, 3, 5, 5] is not an image"},  {LS_SHAPE(5, 0), "[5, 0] is not an image"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_error(ls_events_image(events, "p", 1, ls_zeros(cases[i].shape, LS_U8)), LS_ERR_SHAPE, cases[i].part);
    }
    static const ls_dtype dtypes[] = {LS_I32, LS_I64, LS_BOOL};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        expect_error(ls_events_image(events, "p", 1, ls_zeros(LS_SHAPE(2, 2), dtypes[i])), LS_ERR_ARGUMENT,
                     ls_dtype_name(dtypes[i]));
    }
    ls_tensor *huge = ls_expand(ls_zeros(LS_SHAPE(1, 1), LS_U8), LS_SHAPE(1 << 16, 1 << 15));
    expect_error(ls_events_image(events, "p", 1, huge), LS_ERR_SHAPE, "larger than a record can be");
    assert_int_equal(ls_events_close(events), LS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_histograms_of_every_dtype),   cmocka_unit_test(test_histograms_of_views),
        cmocka_unit_test(test_limits_of_histograms),        cmocka_unit_test(test_edges_of_buckets),
        cmocka_unit_test(test_histograms_of_what_has_none), cmocka_unit_test(test_pictures_of_bytes),
        cmocka_unit_test(test_pictures_of_numbers),         cmocka_unit_test(test_large_pictures),
        cmocka_unit_test(test_what_is_no_picture),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
