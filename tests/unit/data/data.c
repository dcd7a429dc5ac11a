/*
 * Data sets, transforms, and the order that loaders keep.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/autograd.h>
#include <lockstep/data.h>
#include <lockstep/loss.h>
#include <lockstep/nn.h>

#include "tests/support/files.h"
#include "tests/support/log.h"

/* n samples: the input of sample i is (i, i + 0.5), its target i modulo 3. */
static ls_dataset *counting_set(int64_t n) {
    ls_tensor *input = ls_empty(LS_SHAPE(n, 2), LS_F32);
    ls_tensor *target = ls_empty(LS_SHAPE(n), LS_I64);
    for (int64_t i = 0; i < n; i++) {
        ((float *)elements(input))[2 * i] = (float)i;
        ((float *)elements(input))[2 * i + 1] = (float)i + 0.5F;
        ((int64_t *)elements(target))[i] = i % 3;
    }
    return ls_tensor_dataset(input, target);
}

/* Appends the numbers of an epoch's samples to `seen`. Checks that inputs and targets match. */
static int64_t read_epoch(ls_loader *loader, int64_t *seen, int64_t capacity) {
    int64_t count = 0;
    for (;;) {
        ls_batch batch;
        bool more;
        assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
        if (!more) {
            assert_int_equal(batch.count, 0);
            return count;
        }
        const float *input = elements(batch.input);
        const int64_t *target = elements(batch.target);
        for (int64_t i = 0; i < batch.count; i++) {
            assert_true(count < capacity);
            seen[count++] = (int64_t)input[2 * i];
            assert_true(input[2 * i + 1] == input[2 * i] + 0.5F);
            assert_int_equal(target[i], (int64_t)input[2 * i] % 3);
        }
    }
}

TEST(test_loader_keeps_order_when_asked) {
    int64_t seen[10];
    ls_loader *loader = ls_loader_new(counting_set(10), &(ls_loader_options){.batch_size = 4, .no_shuffle = true});
    assert_int_equal(ls_loader_batch_count(loader), 3);
    assert_int_equal(read_epoch(loader, seen, 10), 10);
    for (int64_t i = 0; i < 10; i++) {
        assert_int_equal(seen[i], i);
    }
    ls_loader_free(loader);
    loader =
        ls_loader_new(counting_set(10), &(ls_loader_options){.batch_size = 4, .no_shuffle = true, .drop_last = true});
    assert_int_equal(ls_loader_batch_count(loader), 2);
    assert_int_equal(read_epoch(loader, seen, 10), 8);
    ls_loader_free(loader);
}

TEST(test_shuffle_is_a_permutation_of_seed_and_epoch) {
    enum { N = 100 };
    int64_t first[N], second[N], again[N];
    bool found[N] = {false};
    ls_loader *loader = ls_loader_new(counting_set(N), &(ls_loader_options){.batch_size = 7, .seed = 3});
    assert_int_equal(read_epoch(loader, first, N), N);
    assert_int_equal(read_epoch(loader, second, N), N);
    assert_memory_not_equal(first, second, sizeof first);
    for (int i = 0; i < N; i++) {
        assert_false(found[first[i]]);
        found[first[i]] = true;
    }
    assert_int_equal(ls_loader_seek(loader, 0, 0), LS_OK);
    assert_int_equal(read_epoch(loader, again, N), N);
    assert_memory_equal(first, again, sizeof first);
    assert_int_equal(ls_loader_seek(loader, 0, 10), LS_OK); /* the middle of an epoch */
    assert_int_equal(read_epoch(loader, again, N), N - 70);
    assert_memory_equal(first + 70, again, 30 * sizeof *first);
    ls_loader_free(loader);
    loader = ls_loader_new(counting_set(N), &(ls_loader_options){.batch_size = 7, .seed = 4});
    assert_int_equal(read_epoch(loader, again, N), N);
    assert_memory_not_equal(first, again, sizeof first);
    ls_loader_free(loader);
}

typedef struct squares {
    int64_t offset;
} squares;

static int finished;

static ls_status fetch_squares(ls_dataset *self, const ls_samples *samples, ls_tensor *input, ls_tensor *target) {
    const int64_t *indices = samples->indices;
    const squares *own = ls_dataset_state(self);
    for (int64_t i = 0; i < samples->count; i++) {
        if (indices[i] == 5) {
            return ls_error_set(LS_ERR_FORMAT, "squares: sample 5 is spoilt");
        }
        ((double *)elements(input))[i] = (double)indices[i];
        ((double *)elements(target))[i] = (double)(indices[i] * indices[i] + own->offset);
    }
    return LS_OK;
}

static void finish_squares(ls_dataset *self) {
    (void)self;
    finished++;
}

static ls_tensor *negate(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    (void)user;
    return ls_neg(batch);
}

TEST(test_a_data_set_of_ones_own) {
    static const ls_dataset_type type = {"squares", sizeof(squares), fetch_squares, finish_squares};
    const ls_sample_layout layout = {.input_dtype = LS_F64, .target_dtype = LS_F64};
    finished = 0;
    ls_dataset *set = ls_dataset_new(&type, 6, &layout);
    assert_non_null(set);
    assert_int_equal(((squares *)ls_dataset_state(set))->offset, 0);
    ((squares *)ls_dataset_state(set))->offset = 10;
    set = ls_dataset_transform_target(set, negate, NULL);
    ls_loader *loader = ls_loader_new(set, &(ls_loader_options){.batch_size = 3, .no_shuffle = true});
    assert_ptr_equal(ls_loader_dataset(loader), set);
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    const double wanted[] = {-10, -11, -14};
    assert_memory_equal(elements(batch.target), wanted, sizeof wanted);
    assert_true(((double *)elements(batch.input))[2] == 2);
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_ERR_FORMAT);
    assert_string_equal(ls_error_message(), "squares: sample 5 is spoilt");
    ls_loader_free(loader);
    assert_int_equal(finished, 1);
    assert_null(ls_dataset_state(NULL));
}

TEST(test_transforms_change_batches_and_layout) {
    const unsigned char pixels[] = {0, 255, 51, 102, 153, 204, 0, 255};
    const unsigned char labels[] = {1, 0};
    ls_dataset *set = ls_tensor_dataset(ls_from(LS_SHAPE(2, 2, 2), LS_U8, pixels), ls_from(LS_SHAPE(2), LS_U8, labels));
    set = ls_dataset_one_hot(ls_dataset_flatten(ls_dataset_normalize(set, 0.5, 0.25)), 3);
    assert_non_null(set);
    const ls_sample_layout layout = ls_dataset_layout(set);
    assert_int_equal(layout.input_shape.ndim, 1);
    assert_int_equal(layout.input_shape.size[0], 4);
    assert_int_equal(layout.input_dtype, LS_F32);
    assert_int_equal(layout.target_shape.size[0], 3);
    set = ls_dataset_preload(set);
    ls_loader *loader = ls_loader_new(set, &(ls_loader_options){.batch_size = 2, .no_shuffle = true});
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    const float wanted[] = {-2, 2, -1.2F, -0.4F, 0.4F, 1.2F, -2, 2};
    for (int i = 0; i < 8; i++) {
        assert_true(fabsf(((float *)elements(batch.input))[i] - wanted[i]) < 1e-5F);
    }
    const float hot[] = {0, 1, 0, 1, 0, 0};
    assert_memory_equal(elements(batch.target), hot, sizeof hot);
    ls_loader_free(loader);
}

SCOPED_TEST(test_normalize_subtracts_a_large_mean_first) {
    const double numbers[] = {1e6 + 0.5, 1e6 - 0.25};
    const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_I64};
    for (int i = 0; i < 3; i++) {
        const double scale = dtypes[i] == LS_I64 ? 1000 : 1;
        ls_tensor *input = ls_to(ls_mul(ls_from(LS_SHAPE(2), LS_F64, numbers), scale), dtypes[i]);
        ls_dataset *set =
            ls_dataset_normalize(ls_tensor_dataset(input, ls_zeros(LS_SHAPE(2), LS_I64)), 1e6 * scale, 3 * scale);
        assert_non_null(set);
        ls_loader *loader = ls_loader_new(set, &(ls_loader_options){.batch_size = 2, .no_shuffle = true});
        ls_batch batch;
        bool more;
        assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
        const float *given = elements(batch.input);
        assert_true(fabsf(given[0] - 0.5F / 3) < 1e-6F && fabsf(given[1] + 0.25F / 3) < 1e-6F);
        ls_loader_free(loader);
    }
}

/* Reads the two inputs of a normalized data set. */
static void expect_normalized(const double *inputs, ls_dtype dtype, double mean, double deviation,
                              const float *expected) {
    ls_tensor *input = ls_to(ls_from(LS_SHAPE(2), LS_F64, inputs), dtype);
    ls_dataset *set = ls_dataset_normalize(ls_tensor_dataset(input, ls_zeros(LS_SHAPE(2), LS_I64)), mean, deviation);
    assert_non_null(set);
    ls_loader *loader = ls_loader_new(set, &(ls_loader_options){.batch_size = 2, .no_shuffle = true});
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    const float *given = elements(batch.input);
    for (int i = 0; i < 2; i++) {
        assert_true(fabsf(given[i] - expected[i]) <= 1e-6F * fabsf(expected[i]));
    }
    ls_loader_free(loader);
}

/* f32 cannot hold these means, these deviations, or 1 / deviation. */
SCOPED_TEST(test_normalize_with_numbers_outside_f32) {
    expect_normalized((const double[]){1e30, -2e30}, LS_F32, 0, 1e40, (const float[]){1e-10F, -2e-10F});
    expect_normalized((const double[]){0, 0x1p-140}, LS_F32, 0, 0x1p-139, (const float[]){0, 0.5F});
    expect_normalized((const double[]){1, 2}, LS_F32, 1e300, 1e300, (const float[]){-1, -1});
    expect_normalized((const double[]){254, 255}, LS_U8, 1, 0x1p-130, (const float[]){-0x1p122F * 256 / 255, 0});
    expect_normalized((const double[]){0, 255}, LS_U8, 1e100, 1e100, (const float[]){-1, -1});
    const double wrong[][2] = {{NAN, 1}, {INFINITY, 1}, {0, NAN}, {0, INFINITY}, {0, -1}, {0, 1e-320}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_null(ls_dataset_normalize(counting_set(3), wrong[i][0], wrong[i][1]));
        expect_error(ls_error_status(), LS_ERR_ARGUMENT, "but must be between");
    }
}

static ls_status fetch_nothing(ls_dataset *self, const ls_samples *samples, ls_tensor *input, ls_tensor *target) {
    (void)self, (void)samples, (void)input, (void)target;
    return LS_ERR_FORMAT;
}

/* The message names the type of the data set, not the loader, and not the part. */
TEST(test_fetch_that_fails_without_a_message) {
    static const ls_dataset_type types[] = {{.name = "nothing", .fetch = fetch_nothing}, {.fetch = fetch_nothing}};
    for (int i = 0; i < 4; i++) {
        ls_dataset *set = ls_dataset_new(&types[i % 2], 3, &(ls_sample_layout){.input_dtype = LS_F32});
        ls_loader *loader = ls_loader_new(i < 2 ? set : ls_dataset_subset(set, 1, 2), NULL);
        ls_batch batch;
        bool more;
        expect_error(ls_loader_next(loader, &batch, &more), LS_ERR_FORMAT,
                     i % 2 == 0 ? "fetch of a data set of type \"nothing\" failed with LS_ERR_FORMAT"
                                : "fetch of a data set of type \"user-defined\" failed");
        ls_loader_free(loader);
    }
}

/* Tests inputs that are numbers, and classes in f32. */
TEST(test_flatten_of_numbers_and_one_hot_of_floats) {
    ls_dataset *set =
        ls_dataset_flatten(ls_tensor_dataset(ls_ones(LS_SHAPE(3), LS_F32), ls_zeros(LS_SHAPE(3), LS_F32)));
    assert_non_null(set);
    const ls_shape shape = ls_dataset_layout(set).input_shape;
    assert_true(shape.ndim == 1 && shape.size[0] == 1);
    const float classes[] = {1, 0, 2}, wanted[] = {0, 1, 0, 1, 0, 0, 0, 0, 1};
    const float wrong[] = {0.5F, -0.25F, NAN, INFINITY};
    ls_dataset_free(set);
    set = ls_tensor_dataset(ls_zeros(LS_SHAPE(3), LS_F32), ls_from(LS_SHAPE(3), LS_F32, classes));
    ls_loader *loader =
        ls_loader_new(ls_dataset_one_hot(set, 3), &(ls_loader_options){.batch_size = 3, .no_shuffle = true});
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_memory_equal(elements(batch.target), wanted, sizeof wanted);
    ls_loader_free(loader);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        set = ls_tensor_dataset(ls_zeros(LS_SHAPE(1), LS_F32), ls_from(LS_SHAPE(1), LS_F32, &wrong[i]));
        assert_null(ls_dataset_one_hot(set, 3));
        assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
        expect_message("a target is not a whole number");
    }
}

static ls_tensor *add_user_number(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    return ls_add(batch, *(const double *)user);
}

static ls_tensor *lose_a_row(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    (void)user;
    return ls_narrow(batch, 0, 0, 0);
}

/* Returns three columns for one sample, and one column for several samples. */
static ls_tensor *change_width(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)batch;
    (void)user;
    return ls_ones(LS_SHAPE(samples->count, samples->count == 1 ? 3 : 1), LS_F32);
}

TEST(test_samples_of_different_shapes) {
    ls_dataset *set = ls_dataset_retain(ls_dataset_transform_input(counting_set(5), change_width, NULL));
    ls_module *standardize = ls_nn_standardize(3);
    assert_int_equal(ls_nn_standardize_fit(standardize, set), LS_ERR_SHAPE);
    expect_message(
        "ls_nn_standardize_fit: in the batch that begins with sample 0, each input is [1] of f32, but the first "
        "sample's is [3] of f32");
    ls_module_free(standardize);
    assert_null(ls_dataset_preload(set));
    assert_int_equal(ls_error_status(), LS_ERR_SHAPE);
    expect_message("ls_dataset_preload: in the batch that begins with sample 0, each input is [1] of f32");
    ls_dataset_free(set);
}

static ls_tensor *expect_no_user(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    return user == NULL ? batch : NULL;
}

static ls_tensor *give_nothing(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    (void)batch;
    (void)user;
    return NULL;
}

static ls_tensor *fail_in_words(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    (void)batch;
    (void)user;
    (void)ls_error_set(LS_ERR_STOPPED, "the user's own words");
    return NULL;
}

TEST(test_transforms_that_fail) {
    ls_dataset *set = ls_dataset_transform_input(counting_set(5), expect_no_user, NULL);
    assert_non_null(set);
    ls_dataset_free(set);
    assert_null(ls_dataset_transform_input(counting_set(5), give_nothing, NULL));
    expect_message("a transform returned NULL");
    assert_null(ls_dataset_transform_input(counting_set(5), fail_in_words, NULL));
    assert_string_equal(ls_error_message(), "the user's own words");
}

TEST(test_one_hot_of_a_class_too_many) {
    const int64_t labels[] = {2, 3}, negative[] = {-1, 1};
    ls_dataset *set = ls_tensor_dataset(ls_zeros(LS_SHAPE(2), LS_F32), ls_from(LS_SHAPE(2), LS_I64, labels));
    ls_loader *loader =
        ls_loader_new(ls_dataset_one_hot(set, 3), &(ls_loader_options){.batch_size = 2, .no_shuffle = true});
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_ERR_ARGUMENT);
    expect_message("the target 3 is not one of 3 classes");
    ls_loader_free(loader);
    set = ls_tensor_dataset(ls_zeros(LS_SHAPE(2), LS_F32), ls_from(LS_SHAPE(2), LS_I64, negative));
    assert_null(ls_dataset_one_hot(set, 3));
    expect_message("the target -1 is not one of 3 classes");
    set = ls_tensor_dataset(ls_zeros(LS_SHAPE(0, 2), LS_F32), ls_zeros(LS_SHAPE(0), LS_I64));
    loader = ls_loader_new(ls_dataset_one_hot(set, 3), NULL);
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_false(more);
    ls_loader_free(loader);
}

TEST(test_slices_of_a_batch) {
    assert_null(ls_loader_new(counting_set(10), &(ls_loader_options){.batch_size = 4, .shards = 4}));
    expect_message("set .global_batch_size instead of .batch_size");
    assert_null(ls_loader_new(counting_set(10), &(ls_loader_options){.shards = 4}));
    expect_message("set .global_batch_size instead of .batch_size");
    ls_loader *loader = ls_loader_new(counting_set(10), &(ls_loader_options){.global_batch_size = 4, .shards = 4});
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_int_equal(batch.count, 4);
    ls_loader_free(loader);
}

TEST(test_user_transforms) {
    double number = 100;
    ls_dataset *set = ls_dataset_subset(ls_dataset_transform_input(counting_set(5), add_user_number, &number), 2, 3);
    ls_loader *loader = ls_loader_new(set, &(ls_loader_options){.batch_size = 3, .no_shuffle = true});
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_true(((float *)elements(batch.input))[0] == 102);
    ls_loader_free(loader);
    assert_null(ls_dataset_transform_input(counting_set(5), lose_a_row, NULL));
    assert_int_equal(ls_error_status(), LS_ERR_SHAPE);
    expect_message("it must keep the first axis");
}

TEST(test_csv_set) {
    static const char text[] = "x1,y,x2\n1,10,2\n3,30,4\n";
    const char *path = test_file("set.csv", text, sizeof text - 1);
    const char *const target[] = {"y"};
    ls_dataset *set = ls_csv_dataset(path, target, 1, NULL);
    assert_non_null(set);
    assert_int_equal(ls_dataset_count(set), 2);
    assert_int_equal(ls_dataset_layout(set).input_shape.size[0], 2);
    ls_loader *loader = ls_loader_new(set, &(ls_loader_options){.batch_size = 2, .no_shuffle = true});
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_memory_equal(elements(batch.input), ((const float[]){1, 2, 3, 4}), 4 * sizeof(float));
    assert_memory_equal(elements(batch.target), ((const float[]){10, 30}), 2 * sizeof(float));
    ls_loader_free(loader);
    const char *const missing[] = {"z"};
    assert_null(ls_csv_dataset(path, missing, 1, NULL));
    expect_message("ls_csv_dataset: ");
    assert_null(ls_csv_dataset(path, target, 1, &(ls_csv_options){.columns = missing, .column_count = 1}));
    expect_message("ls_csv_dataset: ");
    const char *pipe = test_path("set.pipe");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_null(ls_csv_dataset(pipe, target, 1, NULL));
    expect_message("is a pipe and can be read only once");
    assert_int_equal(unlink(pipe), 0);
}

/* Expects the numbers of the only input column. */
static void expect_csv_input(ls_dataset *set, float first, float second) {
    assert_non_null(set);
    assert_int_equal(ls_dataset_layout(set).input_shape.size[0], 1);
    ls_loader *loader = ls_loader_new(set, &(ls_loader_options){.batch_size = 2, .no_shuffle = true});
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_memory_equal(elements(batch.input), ((const float[]){first, second}), 2 * sizeof(float));
    ls_loader_free(loader);
}

/* A target is not an input, whatever columns the options select or omit. */
TEST(test_csv_set_omits_targets) {
    static const char text[] = "id,area,price\n1,10,100\n2,20,200\n";
    const char *path = test_file("price.csv", text, sizeof text - 1);
    const char *const target[] = {"price"}, *const by_number[] = {"2"}, *const omitted[] = {"id", "price"};
    ls_csv_options options = {.columns = omitted, .column_count = 1, .all_but = true};
    expect_csv_input(ls_csv_dataset(path, target, 1, &options), 10, 20);
    expect_csv_input(ls_csv_dataset(path, by_number, 1, &options), 10, 20);
    options.column_count = 2;
    expect_csv_input(ls_csv_dataset(path, target, 1, &options), 10, 20);
    options.all_but = false;
    const char *const *const names[] = {target, by_number};
    for (int i = 0; i < 2; i++) {
        assert_null(ls_csv_dataset(path, names[i], 1, &options));
        assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
        expect_message(i == 0 ? "ls_csv_dataset: column \"price\" is a target and must not be in .columns"
                              : "ls_csv_dataset: column \"2\" is a target");
    }
}

/* Without .no_header, the first sample would be lost. There is one warning, although the file is read twice. */
TEST(test_csv_set_warns_about_a_header_of_numbers) {
    static const char text[] = "1.5,2,3\n4,5,6\n";
    const char *path = test_file("headless.csv", text, sizeof text - 1);
    const char *const targets[] = {"0", "1.5"}, *const columns[] = {"1"};
    const ls_csv_options options[] = {{0}, {.columns = columns, .column_count = 1}};
    for (int i = 0; i < 4; i++) {
        log_begin();
        ls_dataset *set = ls_csv_dataset(path, &targets[i / 2], 1, &options[i % 2]);
        log_end();
        assert_non_null(set);
        assert_int_equal(log_lines(), 1);
        assert_non_null(strstr(log_last(), "set .no_header"));
        ls_dataset_free(set);
    }
}

/* Tests a table with a text column as the target, and a table with class numbers and empty fields. */
TEST(test_csv_set_of_classes) {
    static const char iris[] = "length,width,species\n5.1,3.5,setosa\n7,3.2,versicolor\n5,3,setosa\n";
    const char *const species[] = {"species"};
    ls_dataset *set =
        ls_csv_dataset(test_file("iris.csv", iris, sizeof iris - 1), species, 1,
                       &(ls_csv_options){.text = (const ls_csv_text[]){{.column = "species"}}, .text_count = 1});
    const ls_sample_layout layout = ls_dataset_layout(set);
    assert_true(layout.target_dtype == LS_I64 && layout.target_shape.ndim == 0 && layout.input_shape.size[0] == 2);
    ls_loader *loader = ls_loader_new(set, &(ls_loader_options){.batch_size = 3, .no_shuffle = true});
    ls_batch batch;
    bool more;
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_memory_equal(elements(batch.target), ((const int64_t[]){0, 1, 0}), 3 * sizeof(int64_t));
    ls_scope *scope = ls_scope_begin();
    assert_non_null(ls_cross_entropy(ls_zeros(LS_SHAPE(3, 2), LS_F32), batch.target, NULL));
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_loader_free(loader);
    static const char titanic[] = "Survived,Sex,Age\n0,male,22\n1,female,\n";
    const char *const survived[] = {"Survived"};
    ls_csv_options options = {
        .class_target = true, .text = (const ls_csv_text[]){{.column = "Sex"}}, .text_count = 1, .empty = NAN};
    set = ls_csv_dataset(test_file("titanic.csv", titanic, sizeof titanic - 1), survived, 1, &options);
    loader = ls_loader_new(set, &(ls_loader_options){.batch_size = 2, .no_shuffle = true});
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_memory_equal(elements(batch.target), ((const int64_t[]){0, 1}), 2 * sizeof(int64_t));
    const float *input = elements(batch.input);
    assert_true(input[0] == 1 && input[1] == 22 && input[2] == 0 && isnan(input[3]));
    ls_loader_free(loader);
    static const char large[] = "x,id\n1,9007199254740993\n2,-1\n";
    const char *const id[] = {"id"};
    set =
        ls_csv_dataset(test_file("large.csv", large, sizeof large - 1), id, 1, &(ls_csv_options){.class_target = true});
    loader = ls_loader_new(set, &(ls_loader_options){.batch_size = 2, .no_shuffle = true});
    assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
    assert_memory_equal(elements(batch.target), ((const int64_t[]){9007199254740993, -1}), 2 * sizeof(int64_t));
    ls_loader_free(loader);
    static const char unknown[] = "Survived,Sex,Age\n,male,22\n";
    assert_null(ls_csv_dataset(test_file("unknown.csv", unknown, sizeof unknown - 1), survived, 1, &options));
    expect_message("line 2, column \"Survived\" is empty, but a class must not be; remove the line");
    options.empty = 0;
    assert_null(ls_csv_dataset(test_file("titanic.csv", titanic, sizeof titanic - 1), survived, 1, &options));
    expect_message("line 3, column \"Age\" is empty; set .empty");
}

/* The target and the entry of .text may identify the column in different ways. */
TEST(test_csv_set_finds_a_text_target_by_name_and_number) {
    static const char iris[] = "length,width,species\n5.1,3.5,setosa\n7,3.2,versicolor\n";
    static const char *const names[] = {"species", "2"};
    const char *path = test_file("iris.csv", iris, sizeof iris - 1);
    for (int i = 0; i < 2; i++) {
        ls_dataset *set =
            ls_csv_dataset(path, &names[i], 1,
                           &(ls_csv_options){.text = (const ls_csv_text[]){{.column = names[1 - i]}}, .text_count = 1});
        const ls_sample_layout layout = ls_dataset_layout(set);
        assert_true(layout.target_dtype == LS_I64 && layout.target_shape.ndim == 0);
        ls_dataset_free(set);
    }
    assert_null(ls_csv_dataset(path, &(const char *){NULL}, 1,
                               &(ls_csv_options){.text = (const ls_csv_text[]){{.column = "2"}}, .text_count = 1}));
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
}

TEST(test_errors) {
    assert_null(ls_tensor_dataset(ls_zeros(LS_SHAPE(3, 2), LS_F32), ls_zeros(LS_SHAPE(4), LS_F32)));
    expect_message("[3, 2] and targets [4]");
    assert_null(ls_mnist_dataset(test_path("absent"), true));
    expect_message("/absent");
    ls_loader *whole = ls_loader_new(counting_set(3), &(ls_loader_options){.batch_size = INT64_MAX});
    assert_int_equal(ls_loader_batch_count(whole), 1);
    ls_loader_free(whole);
    assert_null(ls_loader_new(counting_set(3), &(ls_loader_options){.batch_size = -1}));
    assert_null(ls_dataset_subset(counting_set(3), 2, 2));
    assert_null(ls_dataset_normalize(counting_set(3), 0, 0));
    assert_null(ls_dataset_preload(ls_dataset_flatten(NULL)));
    const ls_sample_layout layouts[] = {{.input_shape = LS_SHAPE(-2)}, {.target_dtype = LS_DTYPE_COUNT}};
    for (int i = 0; i < 2; i++) {
        assert_null(ls_dataset_new(&(ls_dataset_type){.name = "squares", .fetch = fetch_squares}, 3, &layouts[i]));
        assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    }
    ls_tensor *images = ls_zeros(LS_SHAPE(3, 2), LS_U8);
    ls_tensor *labels = ls_zeros(LS_SHAPE(2), LS_U8);
    const char *image_path = test_path("images");
    const char *label_path = test_path("labels");
    assert_int_equal(ls_idx_write(image_path, images), LS_OK);
    assert_int_equal(ls_idx_write(label_path, labels), LS_OK);
    assert_null(ls_idx_dataset(image_path, label_path));
    expect_message("has 3 samples");
    ls_release(images);
    ls_release(labels);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loader_keeps_order_when_asked),
        cmocka_unit_test(test_shuffle_is_a_permutation_of_seed_and_epoch),
        cmocka_unit_test(test_a_data_set_of_ones_own),
        cmocka_unit_test(test_transforms_change_batches_and_layout),
        cmocka_unit_test(test_normalize_subtracts_a_large_mean_first),
        cmocka_unit_test(test_normalize_with_numbers_outside_f32),
        cmocka_unit_test(test_fetch_that_fails_without_a_message),
        cmocka_unit_test(test_flatten_of_numbers_and_one_hot_of_floats),
        cmocka_unit_test(test_user_transforms),
        cmocka_unit_test(test_transforms_that_fail),
        cmocka_unit_test(test_samples_of_different_shapes),
        cmocka_unit_test(test_one_hot_of_a_class_too_many),
        cmocka_unit_test(test_slices_of_a_batch),
        cmocka_unit_test(test_csv_set),
        cmocka_unit_test(test_csv_set_omits_targets),
        cmocka_unit_test(test_csv_set_warns_about_a_header_of_numbers),
        cmocka_unit_test(test_csv_set_of_classes),
        cmocka_unit_test(test_csv_set_finds_a_text_target_by_name_and_number),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
