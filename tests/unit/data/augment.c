/*
 * Random changes of pictures: geometry and colors compared with torchvision (tests/fixtures/make_pictures.py), the
 * distribution of the draws, and their dependence on seed, epoch and position only.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/operations.h"
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/data.h>

#include "data/loader.h"
#include "data/pictures.h"
#include "tensor/tensor.h"

/* ---- comparison with torchvision --------------------------------------------------------------------------------- */

enum { MOST = 128 };

typedef struct room {
    uint8_t bytes[MOST];
    float floats[MOST];
} room;

static ls_picture picture_in(room *in, bool bytes, int64_t planes, int64_t height, int64_t width) {
    assert_true(planes * height * width <= MOST);
    for (int i = 0; i < MOST; i++) {
        in->bytes[i] = (uint8_t)((7 * i * i + 13 * i) % 256);
        in->floats[i] = (float)in->bytes[i] / 255;
    }
    return (ls_picture){.pixels = bytes ? (void *)in->bytes : (void *)in->floats,
                        .planes = planes,
                        .height = height,
                        .width = width,
                        .dtype = bytes ? LS_U8 : LS_F32};
}

/* u8 values may be rounded in the other direction. */
static void check_picture(const char *name, const ls_picture *p, const fixture *wanted) {
    assert_int_equal(p->planes * p->height * p->width, wanted->count);
    for (int i = 0; i < wanted->count; i++) {
        const double value =
            p->dtype == LS_U8 ? ((const uint8_t *)p->pixels)[i] : (double)((const float *)p->pixels)[i];
        if (!(fabs(value - wanted->values[i]) <= (p->dtype == LS_U8 ? 1 : 2e-5))) {
            fail_msg("%s: element %d is %g, but must be %g", name, i, value, wanted->values[i]);
        }
    }
}

static bool is_called(const char *name, const char *word) {
    return strncmp(name, word, strlen(word)) == 0;
}

static void check_case(const char *name, const double *o, const fixture *wanted) {
    room rooms[2];
    const bool bytes = o[0] != 0;
    ls_picture from = picture_in(&rooms[0], bytes, (int64_t)o[1], (int64_t)o[2], (int64_t)o[3]);
    ls_picture to = picture_in(&rooms[1], bytes, (int64_t)o[1], (int64_t)o[2], (int64_t)o[3]);
    o += 4;
    if (is_called(name, "crop")) {
        to.height = (int64_t)o[3];
        to.width = (int64_t)o[4];
        ls_picture_crop(&from, (int64_t)(o[1] - o[0]), (int64_t)(o[2] - o[0]), o[5], &to);
    } else if (is_called(name, "rotate")) {
        ls_picture_rotate(&from, o[0], o[1], &to);
    } else if (is_called(name, "flip_sides")) {
        ls_picture_flip_sides(&to);
    } else if (is_called(name, "flip_rows")) {
        ls_picture_flip_rows(&to);
    } else if (is_called(name, "brighten")) {
        ls_picture_brighten(&to, o[0]);
    } else if (is_called(name, "contrast")) {
        ls_picture_contrast(&to, o[0]);
    } else if (is_called(name, "saturate")) {
        ls_picture_saturate(&to, o[0]);
    } else {
        fail_msg("unknown case %s", name);
    }
    check_picture(name, &to, wanted);
}

TEST(test_agrees_with_torchvision) {
    int checked = 0;
    fixture *all = fixtures_load("pictures.txt");
    for (const fixture *options = all; options != NULL; options = options->next) {
        char *end = strstr(options->name, "/options");
        if (end != NULL) {
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)(end - options->name), options->name);
            check_case(name, options->values, fixture_find(all, name));
            checked++;
        }
    }
    assert_int_equal(checked, 72);
    fixtures_free(all);
}

/* ---- random draws ------------------------------------------------------------------------------------------------ */

enum { N = 40, SIDE = 5, PIXELS = SIDE * SIDE };

/* Pixel k of sample i is i + k as u8, or the same divided by 255 as f32. */
static ls_dataset *samples(ls_dtype dtype, int64_t planes) {
    ls_tensor *input = ls_empty(LS_SHAPE(N, planes, SIDE, SIDE), LS_U8);
    for (int64_t i = 0; i < ls_numel(input); i++) {
        ((uint8_t *)elements(input))[i] = (uint8_t)(i / (planes * PIXELS) + i % (planes * PIXELS));
    }
    ls_dataset *dataset = ls_tensor_dataset(input, ls_arange(LS_SHAPE(N), LS_I64));
    return dtype == LS_U8 ? dataset : ls_dataset_normalize(dataset, 0, 1);
}

static ls_dataset *plain(ls_dataset *dataset) {
    return dataset;
}
static ls_dataset *crops(ls_dataset *dataset) {
    return ls_dataset_random_crop(dataset, &(ls_random_crop_options){.height = 4, .width = 3, .padding = 1});
}
static ls_dataset *flips(ls_dataset *dataset) {
    return ls_dataset_random_flip(dataset, 0.5, 0.3);
}
static ls_dataset *turns(ls_dataset *dataset) {
    return ls_dataset_random_rotation(dataset, 30, 0);
}
static ls_dataset *colours(ls_dataset *dataset) {
    return ls_dataset_color_jitter(dataset,
                                   &(ls_color_jitter_options){.brightness = 0.5, .contrast = 0.5, .saturation = 0.5});
}
static ls_dataset *erases(ls_dataset *dataset) {
    return ls_dataset_random_erasing(dataset, &(ls_random_erasing_options){.noise = true});
}
static ls_dataset *cuts(ls_dataset *dataset) {
    return ls_dataset_cutout(dataset, 2, 2, 1);
}
static ls_dataset *all_of_them(ls_dataset *dataset) {
    return cuts(erases(colours(turns(flips(crops(dataset))))));
}

typedef ls_dataset *maker(ls_dataset *dataset);
static maker *const makers[] = {crops, flips, turns, colours, erases, cuts, all_of_them};
enum { MAKERS = sizeof makers / sizeof *makers };

/* The samples of a loader's epoch, one after another, as numbers from 0 to 255. */
typedef struct seen {
    float pixels[N][3 * PIXELS];
    int64_t size; /* of a sample */
} seen;

static void see(ls_loader *loader, int64_t epoch, seen *s) {
    memset(s, 0, sizeof *s);
    assert_non_null(loader);
    assert_int_equal(ls_loader_seek(loader, epoch, 0), LS_OK);
    for (int64_t first = 0;;) {
        ls_batch batch;
        bool more;
        assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
        if (!more) {
            assert_int_equal(first, N);
            return;
        }
        const bool bytes = ls_dtype_of(batch.input) == LS_U8;
        s->size = ls_numel(batch.input) / batch.count;
        for (int64_t i = 0; i < ls_numel(batch.input); i++) {
            s->pixels[first + i / s->size][i % s->size] =
                bytes ? ((const uint8_t *)elements(batch.input))[i] : 255 * ((const float *)elements(batch.input))[i];
        }
        first += batch.count;
    }
}

static void see_epoch(ls_dataset *dataset, ls_loader_options options, int64_t epoch, seen *s) {
    options.batch_size = options.batch_size > 0 ? options.batch_size : 7;
    ls_loader *loader = ls_loader_new(dataset, &options);
    see(loader, epoch, s);
    ls_loader_free(loader);
}

/* Draws do not depend on batches or earlier draws. They differ for a different epoch, seed or position. */
TEST(test_follows_from_seed_epoch_and_place) {
    static seen first, other;
    for (int k = 0; k < 2 * MAKERS; k++) {
        const ls_dtype dtype = k % 2 == 0 ? LS_U8 : LS_F32;
        ls_dataset *dataset = ls_dataset_retain(makers[k / 2](samples(dtype, 3)));
        see_epoch(dataset, (ls_loader_options){.seed = 3}, 2, &first);
        see_epoch(dataset, (ls_loader_options){.seed = 3, .batch_size = 3}, 2, &other);
        assert_memory_equal(&first, &other, sizeof first);
        ls_loader *loader = ls_loader_new(dataset, &(ls_loader_options){.seed = 3, .batch_size = 16});
        see(loader, 0, &other);
        assert_memory_not_equal(&first, &other, sizeof first);
        see(loader, 2, &other);
        assert_memory_equal(&first, &other, sizeof first);
        ls_loader_free(loader);
        see_epoch(dataset, (ls_loader_options){.seed = 4}, 2, &other);
        assert_memory_not_equal(&first, &other, sizeof first);
        see_epoch(dataset, (ls_loader_options){.seed = 3, .no_shuffle = true}, 2, &first);
        see_epoch(dataset, (ls_loader_options){.seed = 3, .no_shuffle = true}, 1, &other);
        assert_memory_not_equal(&first, &other, sizeof first);
        see_epoch(dataset, (ls_loader_options){.seed = 4, .no_shuffle = true}, 2, &other);
        assert_memory_not_equal(&first, &other, sizeof first);
        ls_dataset_free(dataset);
    }
}

/* Each possible crop occurs, with the right contents. Outside of the picture is the fill value. */
TEST(test_crops) {
    static seen now;
    int met[4][5] = {{0}};
    const ls_random_crop_options options = {.height = 4, .width = 3, .padding = 1, .fill = 200};
    ls_dataset *dataset = ls_dataset_retain(ls_dataset_random_crop(samples(LS_U8, 1), &options));
    for (int64_t epoch = 0; epoch < 12; epoch++) {
        see_epoch(dataset, (ls_loader_options){.no_shuffle = true}, epoch, &now);
        assert_int_equal(now.size, 12);
        for (int i = 0; i < N; i++) {
            /* At least one pixel, (1, 1), is inside. */
            const int corner = (int)now.pixels[i][3 + 1] - i - SIDE - 1, top = (corner + SIDE + 1) / SIDE - 1,
                      left = corner - top * SIDE;
            assert_true(top >= -1 && top <= 2 && left >= -1 && left <= 3);
            met[top + 1][left + 1]++;
            for (int k = 0; k < 12; k++) {
                const int y = top + k / 3, x = left + k % 3;
                const bool inside = y >= 0 && y < SIDE && x >= 0 && x < SIDE;
                assert_true(now.pixels[i][k] == (inside ? (float)(i + y * SIDE + x) : 200));
            }
        }
    }
    for (int k = 0; k < 20; k++) { /* 24 of 480 expected for each, within five standard deviations */
        assert_true(met[k / 5][k % 5] > 0 && met[k / 5][k % 5] < 24 + 5 * 5);
    }
    ls_dataset_free(dataset);
}

static bool is_flipped(const float *pixels, int i, bool sides, bool rows) {
    for (int k = 0; k < PIXELS; k++) {
        const int y = rows ? SIDE - 1 - k / SIDE : k / SIDE, x = sides ? SIDE - 1 - k % SIDE : k % SIDE;
        if (pixels[k] != (float)(i + y * SIDE + x)) {
            return false;
        }
    }
    return true;
}

TEST(test_flips) {
    static seen now;
    int often[4] = {0};
    ls_dataset *dataset = ls_dataset_retain(ls_dataset_random_flip(samples(LS_U8, 1), 0.5, 0.25));
    for (int64_t epoch = 0; epoch < 10; epoch++) {
        see_epoch(dataset, (ls_loader_options){.no_shuffle = true}, epoch, &now);
        for (int i = 0; i < N; i++) {
            int which = 0;
            while (which < 4 && !is_flipped(now.pixels[i], i, which % 2 == 1, which / 2 == 1)) {
                which++;
            }
            assert_true(which < 4);
            often[which]++;
        }
    }
    for (int which = 0; which < 4; which++) {
        const double share = which / 2 == 1 ? 0.125 : 0.375;
        assert_true(fabs(often[which] - 10 * N * share) < 5 * sqrt(10 * N * share * (1 - share)));
    }
    ls_dataset_free(dataset);
    for (int k = 0; k < 4; k++) { /* each change alone, always and never */
        see_epoch(ls_dataset_random_flip(samples(LS_F32, 1), k % 2, k / 2), (ls_loader_options){.no_shuffle = true}, 0,
                  &now);
        for (int i = 0; i < N; i++) {
            for (int pixel = 0; pixel < PIXELS; pixel++) {
                now.pixels[i][pixel] = rintf(now.pixels[i][pixel]);
            }
            assert_true(is_flipped(now.pixels[i], i, k % 2 == 1, k / 2 == 1));
        }
    }
}

/* Finds the smallest and the largest factor drawn. Pixels without rounding errors change by exactly this factor. */
TEST(test_colours) {
    static seen now, before;
    double least = 9, largest = 0;
    see_epoch(samples(LS_F32, 3), (ls_loader_options){.no_shuffle = true}, 0, &before);
    ls_dataset *dataset =
        ls_dataset_retain(ls_dataset_color_jitter(samples(LS_F32, 3), &(ls_color_jitter_options){.brightness = 0.4}));
    for (int64_t epoch = 0; epoch < 5; epoch++) {
        see_epoch(dataset, (ls_loader_options){.no_shuffle = true}, epoch, &now);
        for (int i = 1; i < N; i++) {
            const double factor = (double)(now.pixels[i][9] / before.pixels[i][9]);
            least = fmin(least, factor);
            largest = fmax(largest, factor);
            for (int k = 0; k < 3 * PIXELS; k++) {
                assert_true(fabs((double)now.pixels[i][k] - factor * (double)before.pixels[i][k]) < 1e-3);
            }
        }
    }
    assert_true(least > 0.6 - 1e-6 && least < 0.65 && largest < 1.4 + 1e-6 && largest > 1.35);
    ls_dataset_free(dataset);
    /* The order is random, and changes the result. */
    see_epoch(colours(samples(LS_U8, 3)), (ls_loader_options){.no_shuffle = true}, 0, &now);
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < 3 * PIXELS; k++) {
            assert_true(now.pixels[i][k] >= 0 && now.pixels[i][k] <= 255 &&
                        rintf(now.pixels[i][k]) == now.pixels[i][k]);
        }
    }
}

/*
 * Returns the number of pixels of the first plane in which the sample differs from the plain sample, and checks that
 * they form a rectangle.
 */
static int hole(const float *pixels, const float *before, int *height, int *width) {
    int count = 0, top = SIDE, bottom = -1, left = SIDE, right = -1;
    for (int k = 0; k < PIXELS; k++) {
        if (pixels[k] != before[k]) {
            count++;
            top = k / SIDE < top ? k / SIDE : top;
            bottom = k / SIDE > bottom ? k / SIDE : bottom;
            left = k % SIDE < left ? k % SIDE : left;
            right = k % SIDE > right ? k % SIDE : right;
        }
    }
    *height = bottom - top + 1;
    *width = right - left + 1;
    assert_true(count == 0 || count == *height * *width);
    return count;
}

TEST(test_holes) {
    static seen now, before;
    int erased = 0, height, width, edges = 0;
    see_epoch(samples(LS_U8, 1), (ls_loader_options){.no_shuffle = true}, 0, &before);
    const ls_random_erasing_options options = {.probability = 0.75, .least_area = 0.2, .most_area = 0.3, .fill = 255};
    see_epoch(ls_dataset_random_erasing(samples(LS_U8, 1), &options), (ls_loader_options){.no_shuffle = true}, 0, &now);
    for (int i = 0; i < N; i++) {
        const int count = hole(now.pixels[i], before.pixels[i], &height, &width);
        assert_true(count == 0 || (count >= 3 && count <= 12 && height < SIDE && width < SIDE));
        erased += count > 0;
    }
    assert_true(erased > 15 && erased < N);
    see_epoch(ls_dataset_cutout(samples(LS_U8, 1), 3, 1, 255), (ls_loader_options){.no_shuffle = true}, 0, &now);
    for (int i = 0; i < N; i++) {
        const int count = hole(now.pixels[i], before.pixels[i], &height, &width);
        assert_true(height >= 2 && height <= 3 && width >= 2 && width <= 3);
        edges += count < 9;
    }
    assert_true(edges > 5 && edges < N);
}

/*
 * Two transforms of the same kind draw different numbers, even on nested data sets, and so do two copies of a sample.
 */
TEST(test_each_draws_its_own) {
    static seen now;
    ls_dataset *twice = ls_dataset_concat(flips(samples(LS_U8, 1)));
    int unlike = 0;
    see_epoch(flips(twice), (ls_loader_options){.no_shuffle = true}, 0, &now);
    for (int i = 0; i < N; i++) {
        unlike += !is_flipped(now.pixels[i], i, false, false);
    }
    assert_true(unlike > 5); /* otherwise each flip would undo the previous one */
    int64_t zeros[N] = {0};
    unlike = 0;
    see_epoch(ls_dataset_select(flips(samples(LS_U8, 1)), zeros, N), (ls_loader_options){.no_shuffle = true}, 0, &now);
    for (int i = 0; i < N; i++) {
        unlike += !is_flipped(now.pixels[i], 0, false, false);
    }
    assert_true(unlike > 5 && unlike < N);
}

/* Transforms that mix samples of a batch get the partner samples as the batch contains them. */
TEST(test_partners_are_changed_alike) {
    ls_loader *loader = ls_loader_new(all_of_them(samples(LS_U8, 3)), &(ls_loader_options){.batch_size = 8});
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_seek(loader, 1, 2), LS_OK);
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    const int64_t wanted[] = {6, 0, 3};
    int64_t places[] = {6, 0, 3};
    ls_tensor *input = NULL, *target = NULL;
    assert_int_equal(ls_loader_fetch(loader, places, 3, &input, &target), LS_OK);
    const size_t size = (size_t)ls_numel(batch.input) / 8;
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(places[i], 16 + wanted[i]);
        assert_memory_equal((uint8_t *)elements(input) + i * size,
                            (uint8_t *)elements(batch.input) + (size_t)(places[i] - 16) * size, size);
    }
    ls_tensor_drop(input);
    ls_tensor_drop(target);
    ls_loader_free(loader);
}

/* ---- custom transforms ------------------------------------------------------------------------------------------- */

/* Writes its own index, and the position and the epoch of each sample. */
static ls_tensor *tell(ls_tensor *batch, const ls_samples *wanted, void *user) {
    ls_tensor *told = ls_empty(LS_SHAPE(wanted->count, 3), LS_F64);
    *(uint64_t *)user = wanted->seed;
    assert_int_equal(ls_size(batch, 0), wanted->count);
    for (int64_t i = 0; i < wanted->count; i++) {
        double *row = (double *)ls_data(told) + 3 * i;
        row[0] = (double)wanted->indices[i];
        row[1] = (double)wanted->places[i];
        row[2] = (double)wanted->epoch;
    }
    return told;
}

TEST(test_own_transforms_know_the_samples) {
    uint64_t seed = 1;
    const int64_t order[] = {3, 9, 1, 7, 0};
    ls_tensor *x = ls_arange(LS_SHAPE(5), LS_F64);
    ls_dataset *low = ls_dataset_retain(ls_tensor_dataset(x, x));
    ls_dataset *all =
        ls_dataset_concat(ls_dataset_transform_input(low, tell, &seed), ls_dataset_transform_input(low, tell, &seed));
    assert_int_equal(seed, 0); /* the call that determines the layout of a sample */
    ls_loader *loader = ls_loader_new(ls_dataset_select(all, order, 5),
                                      &(ls_loader_options){.batch_size = 3, .no_shuffle = true, .seed = 77});
    assert_int_equal(ls_loader_seek(loader, 4, 0), LS_OK);
    for (int64_t number = 0; number < 2; number++) {
        ls_batch batch;
        bool more;
        assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
        assert_int_equal(seed, 77);
        for (int64_t i = 0; i < batch.count; i++) {
            const double *row = (const double *)elements(batch.input) + 3 * i;
            assert_true(row[0] == (double)(order[3 * number + i] % 5));
            assert_true(row[1] == (double)(3 * number + i) && row[2] == 4);
        }
    }
    ls_loader_free(loader);
    ls_dataset_free(low);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void refused(ls_dataset *made, const char *words) {
    assert_null(made);
    expect_message(words);
}

TEST(test_what_cannot_be) {
    refused(ls_dataset_random_crop(samples(LS_U8, 1), &(ls_random_crop_options){.height = 8, .padding = 1}),
            "ls_dataset_random_crop: a crop of 8 x 5 pixels is larger than inputs of 5 x 5 with a padding of 1");
    refused(ls_dataset_random_crop(samples(LS_U8, 1), &(ls_random_crop_options){.padding = -1}), "must be 0 or more");
    refused(ls_dataset_random_crop(samples(LS_U8, 1), &(ls_random_crop_options){.fill = 256}),
            "fill is 256, but must be between 0 and 255");
    refused(ls_dataset_random_crop(samples(LS_U8, 1), &(ls_random_crop_options){.fill = 0.5}),
            "fill is 0.5, but must be a whole number for u8 inputs");
    refused(ls_dataset_random_crop(samples(LS_U8, 1), &(ls_random_crop_options){.padding = (int64_t)1 << 32}),
            "and the padding at most 2^31");
    refused(ls_dataset_random_flip(samples(LS_U8, 1), 0.5, 1.5), "vertical is 1.5");
    refused(ls_dataset_random_rotation(samples(LS_U8, 1), -1, 0), "degrees is -1");
    refused(ls_dataset_random_rotation(samples(LS_F32, 1), 1, NAN), "fill is nan");
    refused(ls_dataset_random_rotation(samples(LS_F32, 1), 1, INFINITY), "fill is inf");
    refused(ls_dataset_color_jitter(samples(LS_U8, 2), &(ls_color_jitter_options){.contrast = 1}),
            "ls_dataset_color_jitter: inputs are [1, 2, 5, 5]; they must be [n, 3, height, width]");
    refused(ls_dataset_color_jitter(samples(LS_U8, 1), &(ls_color_jitter_options){.saturation = -1}),
            "saturation is -1");
    refused(ls_dataset_random_erasing(samples(LS_U8, 1), &(ls_random_erasing_options){.least_area = 0.5}),
            "least_area is 0.5, but must be between 0 and 0.33");
    refused(ls_dataset_cutout(samples(LS_U8, 1), 0, 1, 0), "length 0 and 1 holes must be positive");
    refused(flips(ls_dataset_flatten(samples(LS_U8, 1))),
            "ls_dataset_random_flip: inputs are [1, 25] of u8; they must be [n, ..., height, width] of u8 or f32");
    ls_tensor *x = ls_zeros(LS_SHAPE(2, 3, 3), LS_F64);
    refused(turns(ls_tensor_dataset(x, x)), "inputs are [1, 3, 3] of f64");
    refused(plain(cuts(NULL)), "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agrees_with_torchvision),
        cmocka_unit_test(test_follows_from_seed_epoch_and_place),
        cmocka_unit_test(test_crops),
        cmocka_unit_test(test_flips),
        cmocka_unit_test(test_colours),
        cmocka_unit_test(test_holes),
        cmocka_unit_test(test_each_draws_its_own),
        cmocka_unit_test(test_partners_are_changed_alike),
        cmocka_unit_test(test_own_transforms_know_the_samples),
        cmocka_unit_test(test_what_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
