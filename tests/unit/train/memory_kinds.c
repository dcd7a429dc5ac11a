/*
 * Tensor memory by kind: exact counts for tensors, models, gradients, optimizers and data, peaks, threads, and the
 * memory budget of a trial.
 *
 * devices: cpu shadow
 */
#include "tests/support/unit.h"

#include <math.h>
#include <pthread.h>

#include <lockstep/lockstep.h>

#include "optim/optimizer.h"
#include "tests/support/optimizers.h"

enum { INPUTS = 6, HIDDEN = 20, OUTPUTS = 3, BATCH = 8, SAMPLES = 24 };

/* The bytes of the parameters in f32. Each parameter begins at a multiple of 64 bytes. */
enum { WEIGHTS = 4 * (INPUTS * HIDDEN + 8) + 4 * (HIDDEN + 12) + 4 * (HIDDEN * OUTPUTS + 4) + 64 };

static ls_memory stats(void) {
    ls_memory memory = {.total = -1};
    assert_int_equal(ls_memory_stats(&memory), LS_OK);
    int64_t total = 0, peak = 0;
    for (int i = 0; i < LS_MEMORY_KINDS; i++) {
        assert_true(memory.bytes[i] >= 0 && memory.peak[i] >= 0);
        total += memory.bytes[i];
        peak += memory.peak[i];
    }
    assert_int_equal(total, memory.total);
    assert_int_equal(peak, memory.peak_total);
    assert_true(memory.peak_total >= memory.total);
    return memory;
}

static void expect_same(const ls_memory *before) {
    const ls_memory after = stats();
    for (int i = 0; i < LS_MEMORY_KINDS; i++) {
        assert_int_equal(after.bytes[i], before->bytes[i]);
    }
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

TEST(test_tensors_and_peaks) {
    const ls_memory before = stats();
    ls_tensor *a = ls_zeros(LS_SHAPE(10, 10), LS_F32);
    assert_int_equal(ls_memory_reset_peak(), LS_OK);
    ls_tensor *b = ls_zeros(LS_SHAPE(3), LS_F64);
    ls_tensor *row = ls_narrow(a, 0, 2, 1);
    assert_int_equal(stats().bytes[LS_MEMORY_ACTIVATIONS], before.bytes[LS_MEMORY_ACTIVATIONS] + 424);
    ls_release(a);
    assert_int_equal(stats().total, before.total + 424); /* the view keeps the memory alive */
    ls_release(row);
    ls_release(b);
    expect_same(&before);
    assert_int_equal(stats().peak_total, before.total + 424);
    assert_int_equal(stats().peak[LS_MEMORY_ACTIVATIONS], before.bytes[LS_MEMORY_ACTIVATIONS] + 424);
    assert_int_equal(ls_memory_reset_peak(), LS_OK);
    assert_int_equal(stats().peak_total, before.total);
}

TEST(test_arguments_and_names) {
    expect_error(ls_memory_stats(NULL), LS_ERR_ARGUMENT, "ls_memory_stats: the argument is NULL");
    assert_string_equal(ls_memory_kind_name(LS_MEMORY_PARAMETERS), "parameters");
    assert_string_equal(ls_memory_kind_name(LS_MEMORY_ACTIVATIONS), "activations");
    assert_string_equal(ls_memory_kind_name(LS_MEMORY_KINDS), "unknown");
    assert_string_equal(ls_memory_kind_name((ls_memory_kind)-1), "unknown");
}

/* Memory that the program itself allocates is not counted. */
TEST(test_memory_of_the_program) {
    float numbers[4] = {0};
    const ls_memory before = stats();
    ls_tensor *tensor = ls_from_memory(LS_SHAPE(4), LS_F32, numbers, NULL, NULL);
    assert_non_null(tensor);
    expect_same(&before);
    ls_release(tensor);
    expect_same(&before);
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

static ls_module *make_model(void) {
    ls_seed(1);
    ls_module *model = ls_sequential(ls_nn_linear(INPUTS, HIDDEN), ls_nn_tanh(), ls_nn_linear(HIDDEN, OUTPUTS));
    assert_non_null(model);
    return model;
}

static ls_status evaluate(void *user, double *loss) {
    ls_module *model = user;
    ls_seed(2);
    ls_tensor *x = ls_randn(LS_SHAPE(BATCH, INPUTS), LS_F32);
    ls_tensor *result = ls_mean(ls_square(ls_sub(ls_forward(model, x), 1)));
    *loss = ls_item(result);
    return ls_backward(result);
}

static void expect_kinds(const ls_memory *before, int64_t parameters, int64_t gradients, int64_t optimizer) {
    const ls_memory now = stats();
    assert_int_equal(now.bytes[LS_MEMORY_PARAMETERS] - before->bytes[LS_MEMORY_PARAMETERS], parameters);
    assert_int_equal(now.bytes[LS_MEMORY_GRADIENTS] - before->bytes[LS_MEMORY_GRADIENTS], gradients);
    assert_int_equal(now.bytes[LS_MEMORY_OPTIMIZER] - before->bytes[LS_MEMORY_OPTIMIZER], optimizer);
    assert_int_equal(now.bytes[LS_MEMORY_ACTIVATIONS], before->bytes[LS_MEMORY_ACTIVATIONS]);
}

TEST(test_network_with_adam) {
    const ls_memory before = stats();
    ls_module *model = make_model();
    expect_kinds(&before, 4 * (INPUTS * HIDDEN + HIDDEN + HIDDEN * OUTPUTS + OUTPUTS), 0, 0);
    ls_optimizer *optimizer = ls_adam(model, NULL);
    expect_kinds(&before, WEIGHTS, WEIGHTS, 2 * WEIGHTS);
    assert_int_equal(ls_memory_reset_peak(), LS_OK);
    double loss;
    assert_int_equal(ls_optimizer_step_closure(optimizer, evaluate, model, &loss), LS_OK);
    expect_kinds(&before, WEIGHTS, WEIGHTS, 2 * WEIGHTS);
    const ls_memory after = stats();
    assert_int_equal(after.peak[LS_MEMORY_PARAMETERS], after.bytes[LS_MEMORY_PARAMETERS]);
    assert_true(after.peak[LS_MEMORY_ACTIVATIONS] >= after.bytes[LS_MEMORY_ACTIVATIONS] + 4 * BATCH * 2 * HIDDEN);
    ls_optimizer_free(optimizer);
    expect_kinds(&before, WEIGHTS, WEIGHTS, 0);
    ls_module_free(model);
    expect_same(&before);
}

/* Without an optimizer, the backward pass allocates the gradients. */
TEST(test_gradients_of_the_backward_pass) {
    const ls_memory before = stats();
    ls_module *model = make_model();
    ls_scope *scope = ls_scope_begin();
    double loss;
    assert_int_equal(evaluate(model, &loss), LS_OK);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    const int64_t bytes = 4 * (INPUTS * HIDDEN + HIDDEN + HIDDEN * OUTPUTS + OUTPUTS);
    expect_kinds(&before, bytes, bytes, 0);
    ls_module_free(model);
    expect_same(&before);
}

TEST(test_buffers_and_averages) {
    const ls_memory before = stats();
    ls_module *model = ls_nn_batch_norm_1d(5, NULL);
    const int64_t bytes = stats().bytes[LS_MEMORY_PARAMETERS] - before.bytes[LS_MEMORY_PARAMETERS];
    assert_true(bytes >= 4 * 4 * 5); /* weight, bias, mean and variance; there is also a counter */
    expect_kinds(&before, bytes, 0, 0);
    ls_ema *averages = ls_ema_new(model, 0.9);
    expect_kinds(&before, bytes, 0, bytes);
    ls_ema_free(averages);
    ls_module_free(model);
    expect_same(&before);
}

/* ---- optimizers -------------------------------------------------------------------------------------------------- */

/* Number of state tensors per parameter after a few steps, or -1 if some parameters have fewer. */
static const int states_of[OPTIMIZERS] = {
    [OPTIMIZER_SGD] = 0,
    [OPTIMIZER_MOMENTUM] = 1,
    [OPTIMIZER_ADAM] = 2,
    [OPTIMIZER_AMSGRAD] = 3,
    [OPTIMIZER_ADAMW] = 2,
    [OPTIMIZER_RMSPROP] = 1,
    [OPTIMIZER_RMSPROP_MOMENTUM] = 2,
    [OPTIMIZER_RMSPROP_CENTERED] = 3,
    [OPTIMIZER_ADAGRAD] = 1,
    [OPTIMIZER_ADADELTA] = 2,
    [OPTIMIZER_NADAM] = 2,
    [OPTIMIZER_RADAM] = 2,
    [OPTIMIZER_LION] = 1,
    [OPTIMIZER_LAMB] = 2,
    [OPTIMIZER_MUON] = -1,
    [OPTIMIZER_LBFGS] = 4 + 2 * OPTIMIZERS_PAIRS,
    [OPTIMIZER_LBFGS_SEARCH] = 6 + 2 * OPTIMIZERS_SEARCH_PAIRS,
    [OPTIMIZER_CONJUGATE_GRADIENT] = 6,
};

/* The predicted bytes equal the bytes after a few steps, when L-BFGS has all its pairs. */
TEST(test_optimizers_allocate_as_predicted) {
    for (int i = 0; i < OPTIMIZERS; i++) {
        const ls_memory before = stats();
        ls_module *model = make_model();
        const int states = states_of[i];
        ls_optimizer *optimizer = optimizer_make(i, model);
        assert_non_null(optimizer);
        const int64_t predicted = stats().bytes[LS_MEMORY_OPTIMIZER] + ls_optimizer_pending(optimizer);
        for (int step = 0; step < 5; step++) {
            double loss;
            assert_int_equal(ls_optimizer_step_closure(optimizer, evaluate, model, &loss), LS_OK);
        }
        const int64_t bytes = stats().bytes[LS_MEMORY_OPTIMIZER];
        if (bytes != predicted || ls_optimizer_pending(optimizer) != 0) {
            print_error("%s: predicted %lld bytes, allocated %lld\n", optimizer_names[i], (long long)predicted,
                        (long long)bytes);
            fail();
        }
        const int64_t number = i >= OPTIMIZERS_OF_ONE_PASS ? (int64_t)sizeof(double) : 0; /* result of a kernel */
        const int64_t own = bytes - before.bytes[LS_MEMORY_OPTIMIZER];
        assert_true(states < 0 ? own > WEIGHTS && own < 2 * WEIGHTS : own == states * WEIGHTS + number);
        ls_optimizer_free(optimizer);
        ls_module_free(model);
        expect_same(&before);
    }
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

typedef struct other_thread {
    ls_tensor *tensor;
    int64_t total;
} other_thread;

static void *allocate(void *argument) {
    other_thread *self = argument;
    self->tensor = ls_zeros(LS_SHAPE(256), LS_F32);
    ls_memory memory;
    self->total = ls_memory_stats(&memory) == LS_OK ? memory.total : -1;
    return NULL;
}

static void *release(void *argument) {
    other_thread *self = argument;
    ls_release(self->tensor);
    ls_memory memory;
    self->total = ls_memory_stats(&memory) == LS_OK ? memory.total : -1;
    return NULL;
}

static void run_thread(void *(*function)(void *argument), other_thread *self) {
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, function, self), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

/* A thread counts its own tensors. Other threads may free them, even after it has exited. */
TEST(test_threads_count_separately) {
    const ls_memory before = stats();
    other_thread self = {.tensor = NULL};
    run_thread(allocate, &self);
    assert_int_equal(self.total, 1024);
    expect_same(&before);
    ls_release(self.tensor);
    expect_same(&before);

    self.tensor = ls_zeros(LS_SHAPE(100), LS_F32);
    assert_int_equal(stats().total, before.total + 400);
    run_thread(release, &self);
    assert_int_equal(self.total, 0);
    expect_same(&before);

    run_thread(allocate, &self);
    run_thread(release, &self);
    assert_int_equal(self.total, 0);
}

static ls_status seen_in_loader;

static ls_tensor *look(ls_tensor *x, const ls_samples *samples, void *user) {
    (void)samples;
    (void)user;
    ls_memory memory;
    seen_in_loader = ls_memory_stats(&memory);
    return ls_add(x, 1);
}

static ls_dataset *make_data(void) {
    ls_scope *scope = ls_scope_begin();
    ls_dataset *data =
        ls_tensor_dataset(ls_rand(LS_SHAPE(SAMPLES, INPUTS), LS_F32), ls_zeros(LS_SHAPE(SAMPLES), LS_I64));
    assert_int_equal(ls_scope_end(scope), LS_OK);
    return data;
}

/* The batches made by a loader's threads are counted for the thread that reads them. */
TEST(test_loaders) {
    for (int threads = 0; threads <= 2; threads++) {
        const ls_memory before = stats();
        ls_dataset *data = ls_dataset_transform_input(make_data(), look, NULL);
        ls_loader *loader = ls_loader_new(data, &(ls_loader_options){.batch_size = BATCH, .threads = threads});
        assert_non_null(loader);
        assert_true(stats().bytes[LS_MEMORY_DATA] >= before.bytes[LS_MEMORY_DATA] + SAMPLES * (4 * INPUTS + 8));
        bool more = true;
        for (int i = 0; i < 10; i++) {
            ls_batch batch;
            assert_int_equal(ls_loader_next(loader, &batch, &more), LS_OK);
        }
        const int64_t data_bytes = stats().bytes[LS_MEMORY_DATA] - before.bytes[LS_MEMORY_DATA];
        assert_true(data_bytes >= (SAMPLES + BATCH) * (4 * INPUTS + 8));
        ls_loader_free(loader); /* joins the threads */
        assert_int_equal(seen_in_loader, threads > 0 ? LS_ERR_STATE : LS_OK);
        expect_same(&before);
    }
}

/* ---- trials ------------------------------------------------------------------------------------------------------ */

typedef struct setting {
    ls_module *model;
    ls_optimizer *optimizer;
    ls_loader *loader;
    ls_callback *timer;
    ls_trial *trial;
    int64_t start; /* bytes before the run */
} setting;

static setting make_setting(int64_t limit, bool lbfgs) {
    setting s = {.model = make_model()};
    s.optimizer = lbfgs ? ls_lbfgs(s.model, NULL) : ls_adam(s.model, NULL);
    s.loader = ls_loader_new(make_data(), &(ls_loader_options){.batch_size = BATCH});
    s.timer = ls_timer(&(ls_timer_options){.no_table = true});
    s.trial = ls_trial_new(&(ls_trial_options){.model = s.model,
                                               .optimizer = s.optimizer,
                                               .criterion = ls_criterion_cross_entropy,
                                               .train = s.loader,
                                               .memory_limit = limit,
                                               LS_CALLBACKS(s.timer),
                                               .quiet = true});
    assert_non_null(s.trial);
    s.start = stats().total;
    return s;
}

static void free_setting(setting *s) {
    ls_trial_free(s->trial);
    ls_optimizer_free(s->optimizer);
    ls_loader_free(s->loader);
    ls_module_free(s->model);
}

static double peak_of(const setting *s, ls_memory_kind kind) {
    double least = -1, mean = -1, largest = -1;
    ls_timer_memory_over_ranks(s->timer, kind, &least, &mean, &largest);
    assert_true((isnan(least) && isnan(mean) && isnan(largest)) || (least == mean && mean == largest));
    return largest;
}

/* The program's own peak is independent of the peak of a run. */
TEST(test_peak_of_a_run) {
    const ls_memory before = stats();
    ls_release(ls_zeros(LS_SHAPE(1000000), LS_F64));
    setting s = make_setting(0, false);
    assert_true(isnan(peak_of(&s, LS_MEMORY_KINDS)) && isnan(peak_of(&s, LS_MEMORY_DATA)));
    assert_int_equal(ls_trial_run(s.trial, 2), LS_OK);
    assert_true(stats().peak_total >= before.total + 8000000);
    assert_true(peak_of(&s, LS_MEMORY_KINDS) > (double)s.start && peak_of(&s, LS_MEMORY_KINDS) < 1e6);
    assert_int_equal(peak_of(&s, LS_MEMORY_PARAMETERS), before.bytes[LS_MEMORY_PARAMETERS] + WEIGHTS);
    assert_int_equal(peak_of(&s, LS_MEMORY_OPTIMIZER), before.bytes[LS_MEMORY_OPTIMIZER] + 2 * WEIGHTS);
    double sum = 0;
    for (int i = 0; i < LS_MEMORY_KINDS; i++) {
        sum += peak_of(&s, (ls_memory_kind)i);
    }
    assert_true(sum == peak_of(&s, LS_MEMORY_KINDS));
    assert_true(isnan(peak_of(&s, (ls_memory_kind)(LS_MEMORY_KINDS + 1))));
    free_setting(&s);
    expect_same(&before);
}

/* Returns the peak of a run of one step. */
static int64_t measured_peak(void) {
    setting s = make_setting(0, false);
    assert_int_equal(ls_trial_run(s.trial, 1), LS_OK);
    const int64_t peak = (int64_t)peak_of(&s, LS_MEMORY_KINDS);
    free_setting(&s);
    return peak;
}

static void expect_kept(const setting *s, int64_t epochs) {
    assert_int_equal(ls_trial_history_count(s->trial), epochs);
}

TEST(test_budget) {
    const ls_memory before = stats();
    const int64_t peak = measured_peak();
    char text[200];
    setting s = make_setting(peak, false); /* exactly enough */
    assert_int_equal(ls_trial_run(s.trial, 1), LS_OK);
    expect_kept(&s, 1);
    free_setting(&s);

    s = make_setting(peak - 1, false);
    assert_int_equal(ls_trial_run(s.trial, 1), LS_ERR_MEMORY);
    snprintf(text, sizeof text, "ls_trial_run: the first step needed %lld bytes (parameters %d, gradients %d, ",
             (long long)peak, WEIGHTS, WEIGHTS);
    expect_message(text);
    snprintf(text, sizeof text, "optimizer %d, data ", 2 * WEIGHTS);
    expect_message(text);
    snprintf(text, sizeof text, "but .memory_limit is %lld: make batches smaller", (long long)peak - 1);
    expect_message(text);
    expect_kept(&s, 0);
    free_setting(&s);

    s = make_setting(1, false);
    const int64_t start = s.start;
    free_setting(&s);
    s = make_setting(start - 1, false);
    assert_int_equal(ls_trial_run(s.trial, 1), LS_ERR_MEMORY);
    snprintf(text, sizeof text, "ls_trial_run: before the first step, training needs %lld bytes (parameters %d, ",
             (long long)start, WEIGHTS);
    expect_message(text);
    snprintf(text, sizeof text, "), but .memory_limit is %lld: use a smaller model", (long long)start - 1);
    expect_message(text);
    free_setting(&s);
    expect_same(&before);
}

/* The budget counts the state of the optimizer before the first step, although its steps allocate this state. */
TEST(test_budget_counts_later_state) {
    setting s = make_setting(100000, true);
    assert_true(s.start < 50000);
    assert_int_equal(ls_trial_run(s.trial, 1), LS_ERR_MEMORY);
    char text[80];
    snprintf(text, sizeof text, "optimizer %d, ", (4 + 2 * 100) * WEIGHTS + (int)sizeof(double));
    expect_message("before the first step");
    expect_message(text);
    free_setting(&s);
    assert_null(ls_trial_new(&(ls_trial_options){.memory_limit = -1}));
    expect_message("ls_trial_new: .memory_limit is -1, but must not be negative");
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors_and_peaks),
        cmocka_unit_test(test_arguments_and_names),
        cmocka_unit_test(test_memory_of_the_program),
        cmocka_unit_test(test_network_with_adam),
        cmocka_unit_test(test_gradients_of_the_backward_pass),
        cmocka_unit_test(test_buffers_and_averages),
        cmocka_unit_test(test_optimizers_allocate_as_predicted),
        cmocka_unit_test(test_threads_count_separately),
        cmocka_unit_test(test_loaders),
        cmocka_unit_test(test_peak_of_a_run),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_budget_counts_later_state),
    };
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
