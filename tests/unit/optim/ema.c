/*
 * Averages of a model's parameters: the formula, swapping, their state, and invalid arguments.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/numbers.h"

#include <lockstep/formats.h>
#include <lockstep/optim.h>

#include "tests/support/allocator.h"
#include "tests/support/files.h"

enum { STEPS = 5 };

static const double decay = 0.7;

static ls_tensor *pass_through(ls_module *self, ls_tensor *input) {
    (void)self;
    return input;
}

static ls_module *make_model(ls_dtype dtype) {
    ls_seed(5);
    ls_module *model = ls_sequential(ls_nn_linear_with(3, 4, &(ls_linear_options){.dtype = dtype}), ls_nn_relu(),
                                     ls_nn_linear_with(4, 2, &(ls_linear_options){.dtype = dtype, .no_bias = true}));
    assert_non_null(model);
    return model;
}

/* Returns element `at` of parameter `index` after this number of steps. */
static double number(int step, int index, int64_t at) {
    return sin(step + 0.3 * index + 0.7 * (double)at);
}

static void set_parameters(ls_module *model, int step) {
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        for (int64_t at = 0; at < ls_numel(ls_module_parameter(model, i)); at++) {
            numbers_set(ls_module_parameter(model, i), at, number(step, i, at));
        }
    }
}

static double average(int steps, int index, int64_t at) {
    double value = number(0, index, at);
    for (int step = 1; step < steps; step++) {
        value = decay * value + (1 - decay) * number(step, index, at);
    }
    return value;
}

static double mean(int steps, int index, int64_t at) {
    double sum = 0;
    for (int step = 0; step < steps; step++) {
        sum += number(step, index, at);
    }
    return sum / steps;
}

static void check_parameters(const char *what, const ls_module *model, double (*right)(int, int, int64_t), int step,
                             double tolerance) {
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        for (int64_t at = 0; at < ls_numel(ls_module_parameter(model, i)); at++) {
            numbers_expect(what, numbers_get(ls_module_parameter(model, i), at), right(step, i, at), tolerance);
        }
    }
}

static void run(ls_module *model, ls_ema *averages, int first, int last) {
    for (int step = first; step < last; step++) {
        set_parameters(model, step);
        assert_int_equal(ls_ema_update(averages), LS_OK);
    }
}

TEST(test_formula) {
    for (int type = 0; type < 2; type++) {
        const ls_dtype dtype = type == 0 ? LS_F32 : LS_F64;
        const double tolerance = 4 * numbers_tolerance(dtype);
        ls_module *model = make_model(dtype);
        const uint64_t before = ls_module_hash(model);
        ls_ema *averages = ls_ema_new(model, decay);
        assert_int_equal(ls_ema_swap(averages),
                         LS_OK); /* before the first update, the averages equal the model's parameters */
        assert_true(ls_module_hash(model) == before);
        assert_int_equal(ls_ema_swap(averages), LS_OK);
        run(model, averages, 0, STEPS);
        check_parameters("the parameter", model, number, STEPS - 1, numbers_tolerance(dtype));
        assert_int_equal(ls_ema_swap(averages), LS_OK);
        check_parameters("the average", model, average, STEPS, tolerance);
        expect_error(ls_ema_update(averages), LS_ERR_STATE, "ls_ema_update: the averages are in the model");
        expect_error(ls_ema_put(averages), LS_ERR_STATE, "ls_ema_put: the averages are in the model");
        assert_int_equal(ls_ema_swap(averages), LS_OK);
        check_parameters("the parameter again", model, number, STEPS - 1, numbers_tolerance(dtype));
        ls_ema_free(averages);
        ls_module_free(model);
    }
}

TEST(test_mean) {
    ls_module *model = make_model(LS_F64);
    ls_ema *averages = ls_ema_new(model, 0);
    run(model, averages, 0, STEPS);
    assert_int_equal(ls_ema_count(averages), STEPS);
    assert_int_equal(ls_ema_put(averages), LS_OK);
    check_parameters("the mean", model, mean, STEPS, 1e-14);
    set_parameters(model, 9);
    assert_int_equal(ls_ema_put(averages), LS_OK); /* the averages still exist */
    check_parameters("the mean again", model, mean, STEPS, 1e-14);
    ls_ema_free(averages);
    ls_module_free(model);
}

/* Statistics and 16-bit floats are averaged in f32; counters are copied. */
TEST(test_buffers) {
    static const ls_module_type type = {.name = "Buffers", .forward = pass_through};
    ls_module *model = ls_module_new(&type);
    ls_tensor *statistic = ls_module_add_buffer(model, "statistic", ls_full(LS_SHAPE(2), LS_F32, 1));
    ls_tensor *half = ls_module_add_buffer(model, "half", ls_full(LS_SHAPE(2), LS_BF16, 2));
    ls_tensor *mask = ls_module_add_buffer(model, "mask", ls_full(LS_SHAPE(2), LS_F32, -INFINITY));
    ls_tensor *counter = ls_module_add_buffer(model, "counter", ls_full(LS_SHAPE(1), LS_I64, 3));
    model = ls_module_finish(model);
    ls_ema *averages = ls_ema_new(model, 0.5), *other = ls_ema_new(model, 0.5);
    assert_int_equal(ls_ema_update(averages), LS_OK);
    ls_tensor *const buffers[] = {statistic, half, counter};
    for (int i = 0; i < 3; i++) {
        ls_tensor *seven = ls_full(ls_shape_of(buffers[i]), ls_dtype_of(buffers[i]), 7);
        assert_int_equal(ls_copy_into(buffers[i], seven), LS_OK);
        ls_release(seven);
    }
    assert_int_equal(ls_ema_update(averages), LS_OK);
    const ls_named *tensors = NULL;
    int count = 0;
    assert_int_equal(ls_ema_state(averages, &tensors, &count), LS_OK);
    assert_int_equal(ls_ema_set_state(other, tensors, count), LS_OK); /* buffers may contain any numbers */
    assert_int_equal(ls_ema_put(averages), LS_OK);
    assert_true(ls_at(mask, (int64_t[]){1}) == -(double)INFINITY);
    assert_true(ls_at(statistic, (int64_t[]){1}) == 4);
    assert_true(ls_at(half, (int64_t[]){1}) == 4.5);
    assert_true(ls_at(counter, (int64_t[]){0}) == 7);
    ls_ema_free(averages);
    ls_ema_free(other);
    ls_module_free(model);
}

/* A parameter that does not change is its own average, bit for bit. */
TEST(test_constant_parameters) {
    static const double decays[] = {0.9, 0.9999, 0};
    for (int i = 0; i < 6; i++) {
        ls_module *model = make_model(i % 2 == 0 ? LS_F32 : LS_F64);
        const uint64_t before = ls_module_hash(model);
        ls_ema *averages = ls_ema_new(model, decays[i / 2]);
        for (int update = 0; update < 3000; update++) {
            assert_int_equal(ls_ema_update(averages), LS_OK);
        }
        assert_int_equal(ls_ema_put(averages), LS_OK);
        assert_true(ls_module_hash(model) == before);
        ls_ema_free(averages);
        ls_module_free(model);
    }
}

/* Returns a model with one parameter of two elements. */
static ls_module *make_single(ls_dtype dtype, double value) {
    static const ls_module_type type = {.name = "Single", .forward = pass_through};
    ls_module *model = ls_module_new(&type);
    (void)ls_module_add_parameter(model, "weight", ls_full(LS_SHAPE(2), dtype, value));
    return ls_module_finish(model);
}

static void set_single(ls_module *model, double value) {
    assert_int_equal(ls_nn_init_constant(ls_module_parameter(model, 0), value), LS_OK);
}

static double get_single(const ls_module *model) {
    return ls_at(ls_module_parameter(model, 0), (int64_t[]){1});
}

/* Averages of 16-bit parameters move by less than their rounding error, also across swaps. */
TEST(test_16_bits) {
    static const ls_dtype dtypes[] = {LS_BF16, LS_F16};
    for (int i = 0; i < 2; i++) {
        ls_module *model = make_single(dtypes[i], 1);
        ls_ema *averages = ls_ema_new(model, 0.999);
        assert_int_equal(ls_ema_update(averages), LS_OK);
        set_single(model, 2);
        for (int update = 0; update < 1000; update++) {
            assert_int_equal(ls_ema_update(averages), LS_OK);
            assert_int_equal(ls_ema_swap(averages), LS_OK);
            assert_int_equal(ls_ema_swap(averages), LS_OK);
            assert_true(get_single(model) == 2);
        }
        const ls_named *tensors = NULL;
        int count = 0;
        assert_int_equal(ls_ema_state(averages, &tensors, &count), LS_OK);
        numbers_expect("the average", numbers_get(tensors[0].tensor, 1), 2 - pow(0.999, 1000), 1e-5);
        assert_int_equal(ls_ema_swap(averages), LS_OK);
        numbers_expect("the rounded average", get_single(model), 2 - pow(0.999, 1000), 8e-3);
        set_single(model, 3); /* a change of the averages */
        assert_int_equal(ls_ema_swap(averages), LS_OK);
        assert_true(get_single(model) == 2);
        assert_int_equal(ls_ema_put(averages), LS_OK);
        assert_true(get_single(model) == 3);
        assert_int_equal(ls_ema_swap(averages), LS_OK);
        ls_ema_free(averages); /* while the averages are in the model */
        ls_module_free(model);
    }
}

/* An infinite average follows the formula. */
TEST(test_infinite_average) {
    ls_module *model = make_single(LS_F32, -INFINITY);
    ls_ema *averages = ls_ema_new(model, 0.5);
    for (int update = 0; update < 3; update++) {
        assert_int_equal(ls_ema_update(averages), LS_OK);
        set_single(model, 1);
    }
    assert_int_equal(ls_ema_put(averages), LS_OK);
    assert_true(get_single(model) == -(double)INFINITY);
    ls_ema_free(averages);
    ls_module_free(model);
}

/* Before the first update, the averages are the current parameters. */
TEST(test_before_the_first_update) {
    for (int type = 0; type < 2; type++) {
        ls_module *model = make_single(type == 0 ? LS_F32 : LS_BF16, 0);
        ls_ema *averages = ls_ema_new(model, decay);
        set_single(model, 5);
        assert_int_equal(ls_ema_put(averages), LS_OK);
        assert_true(get_single(model) == 5);
        set_single(model, 4);
        const ls_named *tensors = NULL;
        int count = 0;
        assert_int_equal(ls_ema_state(averages, &tensors, &count), LS_OK);
        assert_true(numbers_get(tensors[0].tensor, 1) == 4);
        set_single(model, 6);
        assert_int_equal(ls_ema_swap(averages), LS_OK);
        assert_true(get_single(model) == 6);
        assert_int_equal(ls_ema_swap(averages), LS_OK);
        assert_true(get_single(model) == 6 && ls_ema_count(averages) == 0);
        ls_ema_free(averages);
        ls_module_free(model);
    }
}

/* A model with a new parameter is refused, even if its lists are in use. */
TEST(test_added_parameter) {
    for (int kept = 0; kept < 2; kept++) {
        ls_module *model = make_model(LS_F32);
        ls_optimizer *optimizer = kept == 1 ? ls_sgd(model, NULL) : NULL;
        ls_ema *averages = ls_ema_new(model, decay);
        assert_int_equal(ls_ema_update(averages), LS_OK);
        assert_non_null(ls_module_add_child(model, "more", ls_nn_linear(2, 2)));
        ls_status (*const calls[])(ls_ema * averages) = {ls_ema_update, ls_ema_put, ls_ema_swap};
        for (int i = 0; i < 3; i++) {
            expect_error(calls[i](averages), LS_ERR_STATE, "a parameter was added to the model");
        }
        assert_int_equal(ls_ema_count(averages), 1);
        ls_ema_free(averages);
        ls_optimizer_free(optimizer);
        ls_module_free(model);
    }
}

/* After a swap, a gradient that needs the earlier parameters is refused. */
TEST(test_swap_is_a_change) {
    ls_module *model = make_model(LS_F32);
    ls_ema *averages = ls_ema_new(model, decay);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *loss = ls_mean(ls_square(ls_forward(model, ls_ones(LS_SHAPE(2, 3), LS_F32))));
    assert_int_equal(ls_ema_swap(averages), LS_OK);
    expect_error(ls_backward(loss), LS_ERR_STATE, "modified in place");
    (void)ls_scope_end(scope);
    ls_ema_free(averages);
    ls_module_free(model);
}

TEST(test_state) {
    ls_module *model = make_model(LS_F64), *other = make_model(LS_F64), *wider = ls_nn_linear(9, 4);
    ls_ema *averages = ls_ema_new(model, decay), *next = ls_ema_new(other, decay), *wide = ls_ema_new(wider, decay);
    const ls_named *tensors = NULL;
    int count = 0;
    run(model, averages, 0, 3);
    assert_int_equal(ls_ema_state(averages, &tensors, &count), LS_OK);
    assert_int_equal(count, 4);
    assert_string_equal(tensors[2].name, "2.weight");
    assert_string_equal(tensors[3].name, "n_averaged");
    assert_true(ls_item(tensors[3].tensor) == 3);
    expect_error(ls_ema_set_state(wide, tensors, count), LS_ERR_FORMAT,
                 "the file has no tensor weight, which this ls_ema");
    assert_int_equal(ls_safetensors_save(test_path("averages"), tensors, count, NULL), LS_OK);
    assert_int_equal(ls_ema_set_state(next, tensors, count), LS_OK);
    run(model, averages, 3, STEPS);
    run(other, next, 3, STEPS);
    assert_int_equal(ls_ema_swap(averages), LS_OK);
    assert_int_equal(ls_ema_swap(next), LS_OK);
    assert_true(ls_module_hash(model) == ls_module_hash(other));
    expect_error(ls_ema_state(averages, &tensors, &count), LS_ERR_STATE, "ls_ema_state: the averages are in");
    expect_error(ls_ema_set_state(averages, tensors, count), LS_ERR_STATE, "ls_ema_set_state: the averages are in");
    ls_ema_free(averages);
    ls_ema_free(next);
    ls_ema_free(wide);
    ls_module_free(model);
    ls_module_free(other);
    ls_module_free(wider);
}

/* An average may have the 16-bit dtype of its parameter, but no other dtype. */
TEST(test_state_of_16_bits) {
    static const ls_dtype dtypes[] = {LS_BF16, LS_F16, LS_F32};
    for (int i = 0; i < 2; i++) {
        ls_scope *scope = ls_scope_begin();
        const ls_named given[] = {{"weight", ls_full(LS_SHAPE(2), dtypes[i], 1.5)},
                                  {"n_averaged", ls_full(LS_SCALAR, LS_I64, 3)}};
        for (int k = 0; k < 3; k++) {
            ls_module *model = make_single(dtypes[k], 1);
            ls_ema *averages = ls_ema_new(model, decay);
            const ls_status status = ls_ema_set_state(averages, given, 2);
            if (i != k) {
                expect_error(status, LS_ERR_SHAPE, "ls_ema_set_state: weight is [2] of ");
            } else {
                const ls_named *tensors = NULL;
                int count = 0;
                assert_int_equal(status, LS_OK);
                assert_int_equal(ls_ema_count(averages), 3);
                assert_int_equal(ls_ema_state(averages, &tensors, &count), LS_OK);
                assert_int_equal(ls_dtype_of(tensors[0].tensor), LS_F32);
                assert_true(numbers_get(tensors[0].tensor, 1) == 1.5);
            }
            ls_ema_free(averages);
            ls_module_free(model);
        }
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
}

/* A tensor whose scope has ended is refused before any average changes. */
TEST(test_state_of_an_ended_scope) {
    ls_module *model = make_model(LS_F64);
    ls_ema *averages = ls_ema_new(model, decay);
    const ls_named *tensors = NULL;
    int count = 0;
    run(model, averages, 0, 2);
    assert_int_equal(ls_ema_state(averages, &tensors, &count), LS_OK);
    assert_int_equal(count, 4);
    ls_named given[4];
    ls_scope *scope = ls_scope_begin(), *ended = NULL;
    for (int i = 0; i < count; i++) {
        ended = i == count - 1 ? ls_scope_begin() : NULL;
        const ls_tensor *own = tensors[i].tensor;
        given[i] = (ls_named){tensors[i].name, ls_full(ls_shape_of(own), ls_dtype_of(own), 7)};
    }
    assert_int_equal(ls_scope_end(ended), LS_OK);
    expect_error(ls_ema_set_state(averages, given, count), LS_ERR_STATE,
                 "ls_ema_set_state: n_averaged: the tensor belongs to a scope that has ended");
    assert_int_equal(ls_ema_state(averages, &tensors, &count), LS_OK);
    for (int i = 0; i < count; i++) {
        assert_true(numbers_get(tensors[i].tensor, 0) != 7);
    }
    (void)ls_scope_end(scope);
    ls_ema_free(averages);
    ls_module_free(model);
}

TEST(test_wrong_calls) {
    ls_module *model = make_model(LS_F32);
    const ls_named *tensors = NULL;
    int count = 0;
    static const double wrong[] = {-0.1, 1, NAN};
    for (int i = 0; i < 3; i++) {
        assert_null(ls_ema_new(model, wrong[i]));
        expect_error(ls_error_status(), LS_ERR_ARGUMENT, "ls_ema_new: decay is ");
    }
    assert_null(ls_ema_new(ls_nn_linear(-1, 2), 0.9));
    expect_error(ls_error_status(), LS_ERR_ARGUMENT, "ls_ema_new: the model");
    ls_module *freed = ls_nn_linear(2, 2);
    ls_module_free(freed);
    assert_null(ls_ema_new(freed, 0.9));
    expect_error(ls_error_status(), LS_ERR_STATE, "the module was freed");
    assert_int_not_equal(ls_ema_update(NULL), LS_OK);
    assert_int_not_equal(ls_ema_swap(NULL), LS_OK);
    assert_int_not_equal(ls_ema_put(NULL), LS_OK);
    assert_int_equal(ls_ema_count(NULL), 0);
    assert_int_equal(ls_ema_state(NULL, &tensors, &count), LS_ERR_ARGUMENT);
    assert_int_equal(ls_ema_set_state(NULL, NULL, 0), LS_ERR_ARGUMENT);
    ls_ema_free(NULL);
    ls_ema *averages = ls_ema_new(model, 0.9);
    assert_int_equal(ls_ema_set_state(averages, NULL, 1), LS_ERR_ARGUMENT);
    ls_ema_free(averages);
    ls_module_free(model);
}

TEST(test_freed_model) {
    ls_module *model = make_model(LS_F32);
    ls_ema *averages = ls_ema_new(model, decay);
    assert_int_equal(ls_ema_update(averages), LS_OK);
    ls_module_free(model);
    ls_status (*const calls[])(ls_ema * averages) = {ls_ema_update, ls_ema_put, ls_ema_swap};
    for (int i = 0; i < 3; i++) {
        expect_error(calls[i](averages), LS_ERR_STATE, "the module was freed");
    }
    assert_int_equal(ls_ema_count(averages), 1);
    ls_ema_free(averages);
}

TEST(test_failing_allocations) {
    test_allocator allocator;
    test_allocator_start(&allocator);
    ls_module *model = make_model(LS_F32);
    ls_ema *averages = NULL;
    long failures = 0;
    for (; averages == NULL; failures += averages == NULL) {
        atomic_store(&allocator.fail_from, atomic_load(&allocator.calls) + failures);
        averages = ls_ema_new(model, decay);
        atomic_store(&allocator.fail_from, -1);
        assert_true(averages != NULL || ls_error_status() == LS_ERR_MEMORY);
    }
    assert_true(failures > 3);
    ls_ema_free(averages);
    ls_module_free(model);
    assert_int_equal(test_allocator_stop(&allocator), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula),
        cmocka_unit_test(test_swap_is_a_change),
        cmocka_unit_test(test_state),
        cmocka_unit_test(test_state_of_an_ended_scope),
        cmocka_unit_test(test_state_of_16_bits),
        cmocka_unit_test(test_wrong_calls),
        cmocka_unit_test(test_mean),
        cmocka_unit_test(test_constant_parameters),
        cmocka_unit_test(test_16_bits),
        cmocka_unit_test(test_infinite_average),
        cmocka_unit_test(test_before_the_first_update),
        cmocka_unit_test(test_added_parameter),
        cmocka_unit_test(test_buffers),
        cmocka_unit_test(test_freed_model),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
