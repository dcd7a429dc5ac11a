/*
 * Data sets composed of others: subsets chosen by sample number or at random, concatenations, and ownership.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/autograd.h>
#include <lockstep/data.h>

static int ended;

static ls_status fetch_numbers(ls_dataset *self, const ls_samples *samples, ls_tensor *input, ls_tensor *target) {
    const int64_t *indices = samples->indices;
    const double *offset = ls_dataset_state(self);
    for (int64_t i = 0; i < samples->count; i++) {
        ((double *)elements(input))[2 * i] = *offset + (double)indices[i];
        ((double *)elements(input))[2 * i + 1] = 0.5;
        ((int64_t *)elements(target))[i] = -indices[i];
    }
    return LS_OK;
}

static void count_end(ls_dataset *self) {
    (void)self;
    ended++;
}

/* The input of sample i is (offset + i, 0.5), its target -i. */
static ls_dataset *numbers(int64_t count, double offset) {
    static const ls_dataset_type type = {"numbers", sizeof(double), fetch_numbers, count_end};
    const ls_sample_layout layout = {.input_shape = LS_SHAPE(2), .input_dtype = LS_F64, .target_dtype = LS_I64};
    ls_dataset *dataset = ls_dataset_new(&type, count, &layout);
    assert_non_null(dataset);
    *(double *)ls_dataset_state(dataset) = offset;
    return dataset;
}

/* Returns the first number of each input, in order, terminated by -1. Takes ownership of the data set. */
static const int64_t *inputs_of(ls_dataset *dataset) {
    static int64_t seen[256];
    int64_t count = 0;
    ls_loader *loader = ls_loader_new(dataset, &(ls_loader_options){.batch_size = 3, .no_shuffle = true});
    assert_non_null(loader);
    for (;;) {
        ls_batch batch;
        bool more;
        assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
        if (!more) {
            break;
        }
        for (int64_t i = 0; i < batch.count && count < 255; i++) {
            seen[count++] = (int64_t)((const double *)elements(batch.input))[2 * i];
        }
    }
    seen[count] = -1;
    ls_loader_free(loader);
    return seen;
}

static void inputs_are(ls_dataset *dataset, const int64_t *wanted) {
    const int64_t *seen = inputs_of(dataset);
    for (int i = 0; wanted[i] >= 0 || seen[i] >= 0; i++) {
        assert_int_equal(seen[i], wanted[i]);
    }
}

#define NUMBERS(...)                                                                                                   \
    (const int64_t[]) {                                                                                                \
        __VA_ARGS__, -1                                                                                                \
    }

static ls_tensor *add_hundred(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    (void)user;
    return ls_add(batch, 100);
}

/* ---- subsets by sample number ------------------------------------------------------------------------------------ */

TEST(test_select) {
    int64_t wanted[] = {3, 0, 3, 4};
    ended = 0;
    ls_dataset *whole = ls_dataset_transform_input(numbers(5, 10), add_hundred, NULL);
    ls_dataset *part = ls_dataset_select(whole, wanted, 4);
    memset(wanted, 0, sizeof wanted);
    assert_int_equal(ls_dataset_count(part), 4);
    ls_dataset *part_of_part = ls_dataset_subset(part, 1, 3);
    ls_dataset *again = ls_dataset_select(part_of_part, NUMBERS(2, 0), 2);
    inputs_are(part, NUMBERS(113, 110, 113, 114));
    inputs_are(part_of_part, NUMBERS(110, 113, 114));
    assert_int_equal(ended, 0);
    inputs_are(again, NUMBERS(114, 110));
    assert_int_equal(ended, 1); /* the last owner of the other data sets was freed */
    assert_null(ls_loader_new(whole, NULL));
    assert_int_equal(ls_error_status(), LS_ERR_STATE);
}

/* Batches whose sample numbers do not fit into the fixed-size buffer. */
TEST(test_select_for_large_batches) {
    enum { COUNT = 200000 };
    int64_t *wanted = calloc(COUNT, sizeof *wanted);
    assert_non_null(wanted);
    for (int64_t i = 0; i < COUNT; i++) {
        wanted[i] = i % 5;
    }
    ls_loader *loader = ls_loader_new(ls_dataset_select(numbers(5, 10), wanted, COUNT),
                                      &(ls_loader_options){.batch_size = COUNT, .no_shuffle = true});
    free(wanted);
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_int_equal(batch.count, COUNT);
    const double *seen = elements(batch.input);
    for (int64_t i = 0; i < COUNT; i++) {
        assert_true(seen[2 * i] == (double)(10 + i % 5));
    }
    ls_loader_free(loader);
}

TEST(test_select_what_is_not_there) {
    ended = 0;
    assert_null(ls_dataset_select(numbers(5, 0), NUMBERS(0, 5), 2));
    assert_string_equal(ls_error_message(), "ls_dataset_select: index 1 is 5, but the data set has 5 samples");
    assert_null(ls_dataset_select(numbers(5, 0), NUMBERS(2, 4, -3), 3));
    expect_message("index 2 is -3");
    assert_null(ls_dataset_select(numbers(5, 0), NULL, 1));
    assert_null(ls_dataset_select(numbers(5, 0), NUMBERS(0), -1));
    assert_int_equal(ended, 4);
    assert_null(ls_dataset_select(NULL, NUMBERS(0), 1));
    inputs_are(ls_dataset_select(numbers(5, 0), NULL, 0), NUMBERS(-1));
    assert_int_equal(ended, 5);
}

/* ---- random parts ------------------------------------------------------------------------------------------------ */

enum { MOST = 10 };

static void sizes_are(int64_t samples, int count, const double *fractions, const int64_t *sizes) {
    ls_dataset *parts[MOST];
    bool there[256] = {false};
    ended = 0;
    assert_int_equal(ls_dataset_split(numbers(samples, 0), fractions, count, 7, parts), LS_OK);
    int64_t all = 0;
    for (int i = 0; i < count; i++) {
        assert_int_equal(ls_dataset_count(parts[i]), sizes[i]);
        const int64_t *seen = inputs_of(parts[i]);
        for (; *seen >= 0; seen++, all++) { /* each sample once */
            assert_true(*seen < samples && !there[*seen]);
            there[*seen] = true;
        }
    }
    assert_int_equal(all, samples);
    assert_int_equal(ended, 1);
}

/* The sizes equal torch.utils.data.random_split's sizes for the same fractions. */
TEST(test_sizes_of_parts) {
    sizes_are(10, 3, (const double[]){0.8, 0.1, 0.1}, NUMBERS(8, 1, 1));
    sizes_are(11, 3, (const double[]){1.0 / 3, 1.0 / 3, 1.0 / 3}, NUMBERS(4, 4, 3));
    sizes_are(7, 2, (const double[]){0.5, 0.5}, NUMBERS(4, 3));
    sizes_are(20, 4, (const double[]){0.29, 0.31, 0.13, 0.27}, NUMBERS(6, 7, 2, 5));
    sizes_are(5, MOST, (const double[]){.1, .1, .1, .1, .1, .1, .1, .1, .1, .1}, NUMBERS(1, 1, 1, 1, 1, 0, 0, 0, 0, 0));
    sizes_are(6, 3, (const double[]){0, 1, 0}, NUMBERS(0, 6, 0));
    sizes_are(0, 2, (const double[]){0.5, 0.5}, NUMBERS(0, 0));
    sizes_are(100, 2, (const double[]){0.7, 0.3 - 5e-10}, NUMBERS(71, 29));
}

static void copy(int64_t *to, const int64_t *from, int count) {
    memcpy(to, from, (size_t)count * sizeof *to);
}

TEST(test_parts_are_random) {
    enum { COUNT = 40, PART = 30 };
    const double fractions[] = {0.75, 0.25};
    int64_t seen[3][PART];
    static const uint64_t seeds[] = {1, 1, 2};
    for (int i = 0; i < 3; i++) {
        ls_dataset *parts[2];
        assert_int_equal(ls_dataset_split(numbers(COUNT, 0), fractions, 2, seeds[i], parts), LS_OK);
        ls_dataset_free(parts[1]);
        copy(seen[i], inputs_of(parts[0]), PART);
    }
    assert_memory_equal(seen[0], seen[1], sizeof seen[0]);
    assert_memory_not_equal(seen[0], seen[2], sizeof seen[0]);
    int moved = 0;
    for (int64_t i = 0; i < PART; i++) {
        moved += seen[0][i] != i;
    }
    assert_true(moved > PART / 2);
    /* The order differs from a loader's order with the same seed. */
    ls_loader *loader = ls_loader_new(numbers(COUNT, 0), &(ls_loader_options){.batch_size = COUNT, .seed = 1});
    ls_batch batch;
    bool more;
    int alike = 0;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    for (int i = 0; i < PART; i++) {
        alike += (int64_t)((const double *)elements(batch.input))[2 * i] == seen[0][i];
    }
    assert_true(alike < PART / 2);
    ls_loader_free(loader);
}

static void expect_no_split(const double *fractions, int count, const char *reason) {
    ls_dataset *parts[MOST] = {(ls_dataset *)&ended, (ls_dataset *)&ended};
    ended = 0;
    assert_int_equal(ls_dataset_split(numbers(5, 0), fractions, count, 0, parts), LS_ERR_ARGUMENT);
    expect_message(reason);
    assert_int_equal(ended, 1);
    for (int i = 0; i < count; i++) {
        assert_null(parts[i]);
    }
}

TEST(test_splits_that_are_none) {
    expect_no_split((const double[]){0.5, 0.4}, 2, "add up to 0.9, but must add up to 1");
    expect_no_split((const double[]){0.5, 0.5 + 5e-10}, 2, "add up to 1.0000000005, but must add up to 1");
    expect_no_split((const double[]){1.5, -0.5}, 2, "fraction 0 is 1.5");
    expect_no_split((const double[]){0.5, NAN}, 2, "fraction 1 is nan");
    expect_no_split((const double[]){1}, 0, "0 parts");
    expect_no_split(NULL, 2, "2 parts: at least one part is needed");
    ended = 0;
    assert_int_equal(ls_dataset_split(numbers(5, 0), (const double[]){1}, 1, 0, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ended, 1);
    ls_dataset *part = (ls_dataset *)&ended;
    (void)ls_error_set(LS_ERR_IO, "no such file");
    assert_int_equal(ls_dataset_split(NULL, (const double[]){1}, 1, 0, &part), LS_ERR_IO);
    expect_message("no such file");
    expect_message("ls_dataset_split: the data set");
    assert_null(part);
}

/* ---- concatenation ----------------------------------------------------------------------------------------------- */

TEST(test_concat) {
    ended = 0;
    ls_dataset *twice = numbers(2, 40);
    ls_dataset *all = ls_dataset_concat(numbers(4, 10), ls_dataset_transform_input(numbers(3, 20), add_hundred, NULL),
                                        twice, ls_dataset_subset(numbers(9, 30), 7, 2), twice);
    assert_int_equal(ls_dataset_count(all), 13);
    ls_dataset *chosen = ls_dataset_select(all, NUMBERS(12, 3, 4, 7, 0, 10, 6, 9), 8);
    ls_loader *loader = ls_loader_new(all, &(ls_loader_options){.batch_size = 13, .no_shuffle = true});
    inputs_are(chosen, NUMBERS(41, 13, 120, 40, 10, 38, 122, 37));
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    static const int64_t targets[] = {0, -1, -2, -3, 0, -1, -2, 0, -1, -7, -8, 0, -1};
    assert_memory_equal(elements(batch.target), targets, sizeof targets);
    assert_true(((const double *)elements(batch.input))[7] == 0.5 &&
                ((const double *)elements(batch.input))[9] == 100.5);
    assert_int_equal(ended, 0);
    ls_loader_free(loader);
    assert_int_equal(ended, 4);
}

TEST(test_parts_of_a_concatenation) {
    ls_dataset *parts[2];
    ls_dataset *all = ls_dataset_transform_input(ls_dataset_concat(numbers(6, 0), numbers(4, 50)), add_hundred, NULL);
    assert_int_equal(ls_dataset_split(all, (const double[]){0.5, 0.5}, 2, 3, parts), LS_OK);
    ls_dataset *back = ls_dataset_concat_of(parts, 2);
    int64_t sum = 0;
    for (const int64_t *seen = inputs_of(back); *seen >= 0; seen++) {
        sum += *seen;
    }
    assert_int_equal(sum, 10 * 100 + 15 + 4 * 50 + 6);
}

/* A transform that returns a view, whose strides differ from the strides of its memory. */
static ls_tensor *swap_columns(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    (void)user;
    ls_tensor *wide = ls_stack((ls_tensor *[]){batch, ls_mul(batch, 2)}, 2, 2);
    return ls_select(wide, 2, 1);
}

TEST(test_batches_with_strides) {
    ls_dataset *strided = ls_dataset_transform_input(numbers(3, 1), swap_columns, NULL);
    inputs_are(ls_dataset_concat(numbers(2, 0), strided), NUMBERS(0, 1, 2, 4, 6));
}

static void expect_no_concat(ls_dataset *a, ls_dataset *b, ls_status status, const char *reason) {
    assert_null(ls_dataset_concat(a, b));
    assert_int_equal(ls_error_status(), status);
    expect_message(reason);
}

static ls_tensor *to_integers(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    (void)user;
    return ls_to(batch, LS_I32);
}

/* Keeps the shape for one sample, but not for several, so the result for one sample does not reveal the error. */
static ls_tensor *narrow_many(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    (void)user;
    return ls_size(batch, 0) > 1 ? ls_narrow(batch, 1, 0, 1) : batch;
}

static ls_status fetch_nothing(ls_dataset *self, const ls_samples *samples, ls_tensor *input, ls_tensor *target) {
    (void)self, (void)samples, (void)input, (void)target;
    return LS_OK;
}

TEST(test_more_samples_than_can_be_counted) {
    static const ls_dataset_type type = {.name = "endless", .fetch = fetch_nothing};
    ls_dataset *some = numbers(10, 0);
    const ls_sample_layout layout = ls_dataset_layout(some);
    expect_no_concat(some, ls_dataset_new(&type, INT64_MAX, &layout), LS_ERR_ARGUMENT,
                     "ls_dataset_concat: the 2 data sets have more samples than int64_t can count");
}

TEST(test_layouts_that_differ) {
    ended = 0;
    ls_tensor *x = ls_ones(LS_SHAPE(3, 5), LS_F64);
    expect_no_concat(
        numbers(2, 0), ls_tensor_dataset(x, ls_zeros(LS_SHAPE(3), LS_I64)), LS_ERR_SHAPE,
        "ls_dataset_concat: the inputs of data set 0 are [2] of f64, but in data set 1 they are [5] of f64");
    expect_no_concat(numbers(2, 0), ls_dataset_transform_target(numbers(2, 0), to_integers, NULL), LS_ERR_SHAPE,
                     "the targets of data set 0 are [] of i64, but in data set 1 they are [] of i32");
    expect_no_concat(numbers(2, 0), ls_dataset_one_hot(ls_dataset_subset(numbers(2, 0), 0, 1), 3), LS_ERR_SHAPE,
                     "the targets of data set 0 are [] of i64, but in data set 1 they are [3] of f32");
    assert_int_equal(ended, 5);
    ls_dataset *empty =
        ls_dataset_concat(ls_tensor_dataset(ls_ones(LS_SHAPE(0, 9), LS_F32), ls_ones(LS_SHAPE(0), LS_F32)),
                          numbers(2, 7)); /* the layout of its samples is not determined */
    inputs_are(empty, NUMBERS(7, 8));
    ls_loader *loader =
        ls_loader_new(ls_dataset_concat(numbers(2, 0), ls_dataset_transform_input(numbers(4, 0), narrow_many, NULL)),
                      &(ls_loader_options){.batch_size = 6});
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_ERR_SHAPE);
    expect_message("each input is [1] of f64, but the first sample's is [2] of f64");
    ls_loader_free(loader);
}

TEST(test_concatenations_of_nothing) {
    ended = 0;
    (void)ls_error_set(LS_ERR_IO, "no such file");
    expect_no_concat(numbers(2, 0), NULL, LS_ERR_IO, "no such file");
    expect_message("ls_dataset_concat: data set 1");
    assert_int_equal(ended, 1);
    assert_null(ls_dataset_concat_of(NULL, 2));
    assert_null(ls_dataset_concat_of((ls_dataset *[]){NULL}, 0));
    expect_message("0 data sets");
    ls_dataset *gone = numbers(2, 0);
    ls_loader_free(ls_loader_new(gone, NULL));
    expect_no_concat(numbers(2, 0), gone, LS_ERR_STATE, "the data set was freed with the last loader");
    assert_int_equal(ended, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_select),
        cmocka_unit_test(test_select_for_large_batches),
        cmocka_unit_test(test_select_what_is_not_there),
        cmocka_unit_test(test_sizes_of_parts),
        cmocka_unit_test(test_parts_are_random),
        cmocka_unit_test(test_splits_that_are_none),
        cmocka_unit_test(test_concat),
        cmocka_unit_test(test_parts_of_a_concatenation),
        cmocka_unit_test(test_batches_with_strides),
        cmocka_unit_test(test_layouts_that_differ),
        cmocka_unit_test(test_more_samples_than_can_be_counted),
        cmocka_unit_test(test_concatenations_of_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
