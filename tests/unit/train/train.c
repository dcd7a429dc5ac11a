/*
 * Trials in one process: the calls to hooks and the state that they receive, and runs that end early or fail.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/trials.h"

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

/* Recording hooks: each notes its name, and one of them acts. */
typedef struct recorder {
    char log[4096];
    const char *acting; /* the hook that sets `stop` or returns `status` */
    int64_t step;       /* after this many steps */
    bool stop;
    bool silent;
    ls_status status;
} recorder;

static ls_status record(ls_trial_state *state, void *user, const char *hook) {
    recorder *r = user;
    const size_t length = strlen(r->log);
    snprintf(r->log + length, sizeof r->log - length, "%s ", hook);
    assert_non_null(state);
    assert_true(strcmp(hook, "end") != 0 || (state->phase == LS_PHASE_NONE && state->loader == NULL));
    if (r->acting == NULL || strcmp(r->acting, hook) != 0 || state->step < r->step) {
        return LS_OK;
    }
    state->stop = r->stop;
    return r->status == LS_OK || r->silent ? r->status : ls_error_set(r->status, "%s: enough is enough", hook);
}

#define HOOKS(apply)                                                                                                   \
    apply(init) apply(start) apply(start_epoch) apply(start_training) apply(sample) apply(forward) apply(criterion)    \
        apply(backward) apply(step_training) apply(end_training) apply(start_validation) apply(sample_validation)      \
            apply(forward_validation) apply(criterion_validation) apply(step_validation) apply(end_validation)         \
                apply(end_epoch) apply(checkpoint) apply(end)

#define RECORDING_HOOK(name)                                                                                           \
    static ls_status record_##name(ls_trial_state *state, void *user) {                                                \
        return record(state, user, #name);                                                                             \
    }
HOOKS(RECORDING_HOOK)

#define HOOK_FIELD(name) .on_##name = record_##name,
#define HOOK_NAME(name)  #name,

static ls_callback *recording(recorder *r) {
    return ls_callback_new(&(ls_callback_hooks){HOOKS(HOOK_FIELD)}, r);
}

#define TRAIN_STEP    "sample forward criterion backward step_training "
#define VALIDATE_STEP "sample_validation forward_validation criterion_validation step_validation "
#define VALIDATION    "start_validation " VALIDATE_STEP VALIDATE_STEP "end_validation "
#define EPOCH_BEGINS  "start_epoch start_training "
#define EPOCH_ENDS    "end_epoch checkpoint "
#define WHOLE_EPOCH   EPOCH_BEGINS TRAIN_STEP TRAIN_STEP TRAIN_STEP "end_training " VALIDATION EPOCH_ENDS

TEST(test_all_hooks_in_order) {
    setting s = make_setting();
    recorder r = {.log = ""};
    ls_callback *callback = recording(&r);
    ls_trial_options options = options_of(&s);
    options.callbacks = &callback;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_non_null(trial);
    assert_string_equal(r.log, "init ");
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    assert_string_equal(r.log, "init start " WHOLE_EPOCH WHOLE_EPOCH "end ");
    r.log[0] = '\0';
    assert_int_equal(ls_trial_run(trial, 3), LS_OK); /* one more epoch, so there are three */
    assert_string_equal(r.log, "start " WHOLE_EPOCH "end ");
    r.log[0] = '\0';
    assert_int_equal(ls_trial_run(trial, 3), LS_OK);
    assert_string_equal(r.log, "start end ");
    r.log[0] = '\0';
    assert_int_equal(ls_trial_evaluate(trial, s.validate, "test"), LS_OK);
    assert_string_equal(r.log, "start start_epoch " VALIDATION "end_epoch end ");
    ls_trial_free(trial);
    r.log[0] = '\0';

    callback = recording(&r);
    options.validate = NULL;
    trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    assert_string_equal(r.log,
                        "init start " EPOCH_BEGINS TRAIN_STEP TRAIN_STEP TRAIN_STEP "end_training " EPOCH_ENDS "end ");
    ls_trial_free(trial);
    free_setting(&s);
}

/* Results replace results of the same name. The mean over no samples is NAN. */
TEST(test_results_of_evaluations) {
    setting s = make_setting();
    const ls_trial_options options = options_of(&s);
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    const double before = ls_trial_history(trial, 0, "val_loss");
    assert_int_equal(ls_trial_evaluate(trial, s.train, "val"), LS_OK);
    assert_true(ls_trial_history(trial, 0, "val_loss") != before);
    assert_true(ls_trial_history(trial, 0, "val_loss") == ls_trial_metric(trial, "val_loss"));
    ls_tensor *nothing = ls_empty(LS_SHAPE(0, 1), LS_F32);
    ls_loader *empty = ls_loader_new(ls_tensor_dataset(nothing, nothing), NULL);
    assert_int_equal(ls_trial_evaluate(trial, empty, "empty"), LS_OK);
    assert_true(isnan(ls_trial_metric(trial, "empty_loss")) && isnan(ls_trial_history(trial, 0, "empty_loss")));
    ls_loader_free(empty);
    ls_trial_free(trial);
    free_setting(&s);
}

static ls_status append_text(ls_trial_state *state, void *user) {
    (void)state;
    strcat(user, "b");
    return LS_OK;
}

static ls_status prepend_text(ls_trial_state *state, void *user) {
    (void)state;
    strcat(user, "a");
    return LS_OK;
}

TEST(test_callbacks_in_their_order) {
    setting s = make_setting();
    char text[64] = "";
    ls_callback *const callbacks[] = {
        ls_callback_new(&(ls_callback_hooks){.on_start = prepend_text, .on_sample = prepend_text}, text),
        ls_callback_new(&(ls_callback_hooks){.name = "empty"}, NULL),
        ls_callback_new(&(ls_callback_hooks){.on_start = append_text, .on_sample = append_text}, text)};
    ls_trial_options options = options_of(&s);
    options.callbacks = callbacks;
    options.callback_count = 3;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    assert_string_equal(text, "abababab");
    ls_trial_free(trial);
    free_setting(&s);
}

/* Checks the state that hooks receive. on_sample replaces tensors, and the rest of the step must use the new ones. */
static ls_status check_start(ls_trial_state *state, void *user) {
    const setting *s = user;
    assert_ptr_equal(state->model, s->model);
    assert_ptr_equal(state->optimizer, s->optimizer);
    assert_null(state->comm);
    assert_int_equal(state->epochs, 2);
    return LS_OK;
}

static ls_status check_sample(ls_trial_state *state, void *user) {
    (void)user;
    assert_int_equal(state->batches, 3);
    assert_int_equal(state->step, state->epoch * 3 + state->batch);
    assert_int_equal(state->count, state->batch == 2 ? TRAIN_COUNT - 2 * BATCH : BATCH);
    assert_int_equal(state->global_count, state->count);
    assert_int_equal(ls_size(state->input, 0), state->count);
    assert_true(ls_module_is_training(state->model));
    assert_true(state->output == NULL && state->loss == NULL);
    state->input = ls_mul(state->input, 2);
    return LS_OK;
}

static ls_status check_criterion(ls_trial_state *state, void *user) {
    (void)user;
    ls_tensor *output =
        ls_linear(state->input, ls_module_find(state->model, "weight"), ls_module_find(state->model, "bias"));
    assert_true(ls_allclose(state->output, output, 1e-12, 1e-12));
    assert_true(ls_item(state->loss) == ls_item(ls_cross_entropy(state->output, state->target, NULL)));
    return LS_OK;
}

static ls_status check_backward(ls_trial_state *state, void *user) {
    (void)user;
    assert_non_null(ls_grad(ls_module_find(state->model, "weight")));
    return LS_OK;
}

static ls_status check_step(ls_trial_state *state, void *user) {
    (void)user;
    assert_int_equal(state->step, state->epoch * 3 + state->batch + 1);
    return LS_OK;
}

static ls_status check_validation(ls_trial_state *state, void *user) {
    (void)user;
    assert_int_equal(state->batches, 2);
    assert_false(ls_module_is_training(state->model));
    assert_false(ls_requires_grad(state->output));
    return LS_OK;
}

static ls_status check_end_training(ls_trial_state *state, void *user) {
    (void)user;
    assert_true(ls_trial_metric(state->trial, "loss") > 0);
    assert_int_equal(ls_trial_history_count(state->trial), state->epoch);
    return LS_OK;
}

static ls_status check_end_epoch(ls_trial_state *state, void *user) {
    (void)user;
    assert_int_equal(ls_trial_history_count(state->trial), state->epoch + 1);
    assert_true(ls_trial_history(state->trial, state->epoch, "val_loss") == ls_trial_metric(state->trial, "val_loss"));
    return LS_OK;
}

TEST(test_what_hooks_see) {
    setting s = make_setting();
    ls_callback *callback = ls_callback_new(&(ls_callback_hooks){.on_start = check_start,
                                                                 .on_sample = check_sample,
                                                                 .on_criterion = check_criterion,
                                                                 .on_backward = check_backward,
                                                                 .on_step_training = check_step,
                                                                 .on_end_training = check_end_training,
                                                                 .on_criterion_validation = check_validation,
                                                                 .on_end_epoch = check_end_epoch},
                                            &s);
    ls_trial_options options = options_of(&s);
    options.callbacks = &callback;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    ls_trial_free(trial);
    free_setting(&s);
}

/* ---- early ends -------------------------------------------------------------------------------------------------- */

static void expect_run(recorder *r, int64_t max_steps, int64_t epochs, ls_status status, const char *log) {
    setting s = make_setting();
    ls_callback *callback = recording(r);
    ls_trial_options options = options_of(&s);
    options.callbacks = &callback;
    options.callback_count = 1;
    options.max_steps = max_steps;
    ls_trial *trial = ls_trial_new(&options);
    assert_non_null(trial);
    assert_int_equal(ls_trial_run(trial, epochs), status);
    assert_string_equal(r->log, log);
    ls_trial_free(trial);
    free_setting(&s);
}

/* Stops in the middle of an epoch, or after its last step. As in torchbearer, the stopped epoch does not count. */
TEST(test_stop) {
    recorder r = {.acting = "step_training", .step = 4, .stop = true};
    expect_run(&r, 0, 5, LS_OK, "init start " WHOLE_EPOCH EPOCH_BEGINS TRAIN_STEP "end_training end ");
    r = (recorder){.acting = "sample", .step = 1, .stop = true}; /* the step still takes place */
    expect_run(&r, 0, 5, LS_OK, "init start " EPOCH_BEGINS TRAIN_STEP TRAIN_STEP "end_training end ");
    r = (recorder){.acting = "end_training", .stop = true};
    expect_run(&r, 0, 5, LS_OK, "init start " EPOCH_BEGINS TRAIN_STEP TRAIN_STEP TRAIN_STEP "end_training end ");
    r = (recorder){.acting = "end_validation", .stop = true};
    expect_run(&r, 0, 5, LS_OK, "init start " WHOLE_EPOCH "end ");
    r = (recorder){.acting = "end_epoch", .stop = true};
    expect_run(&r, 0, 5, LS_OK, "init start " WHOLE_EPOCH "end ");
    r = (recorder){.acting = "start", .stop = true};
    expect_run(&r, 0, 5, LS_OK, "init start end ");
}

TEST(test_max_steps) {
    recorder r = {.log = ""};
    expect_run(&r, 4, 5, LS_OK,
               "init start " WHOLE_EPOCH EPOCH_BEGINS TRAIN_STEP "end_training " VALIDATION EPOCH_ENDS "end ");
    r = (recorder){.log = ""};
    expect_run(&r, 3, 5, LS_OK, "init start " WHOLE_EPOCH "end ");
    r = (recorder){.log = ""};
    expect_run(&r, 100, 0, LS_OK, "init start end ");
}

TEST(test_failing_hooks_end_the_run) {
    static const char *const hooks[] = {HOOKS(HOOK_NAME)};
    assert_int_equal(sizeof hooks / sizeof *hooks, 19);
    static const char whole[] = "init start " WHOLE_EPOCH "end ";
    for (size_t i = 1; i < 19; i++) {
        char message[64];
        recorder r = {.acting = hooks[i], .status = LS_ERR_STATE};
        /* The log ends with the first call of the hook. */
        char log[sizeof whole];
        char name[64];
        snprintf(name, sizeof name, " %s ", hooks[i]);
        const char *first = strstr(whole, name);
        assert_non_null(first);
        snprintf(log, sizeof log, "%.*s", (int)(first - whole) + (int)strlen(name), whole);
        expect_run(&r, 0, 1, LS_ERR_STATE, log);
        snprintf(message, sizeof message, "%s: enough is enough", hooks[i]);
        assert_string_equal(ls_error_message(), message);
        r = (recorder){.acting = hooks[i], .status = LS_ERR_IO, .silent = true};
        expect_run(&r, 0, 1, LS_ERR_IO, log);
        snprintf(message, sizeof message, "the hook on_%s of callback 0 failed with LS_ERR_IO (status %d)", hooks[i],
                 (int)LS_ERR_IO);
        expect_message(message);
    }
}

TEST(test_failing_init) {
    setting s = make_setting();
    recorder r = {.acting = "init", .status = LS_ERR_IO};
    ls_callback *callback = recording(&r);
    ls_trial_options options = options_of(&s);
    options.callbacks = &callback;
    options.callback_count = 1;
    assert_null(ls_trial_new(&options));
    assert_int_equal(ls_error_status(), LS_ERR_IO);
    assert_string_equal(ls_error_message(), "init: enough is enough");
    free_setting(&s);
}

/* ---- wrong input ------------------------------------------------------------------------------------------------- */

static void expect_no_trial(const ls_trial_options *options, const char *reason) {
    assert_null(ls_trial_new(options));
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    expect_message(reason);
}

TEST(test_wrong_options) {
    setting s = make_setting();
    const ls_trial_options good = options_of(&s);
    ls_trial_options options = good;
    expect_no_trial(NULL, "ls_trial_new: the options are NULL");
    options.model = NULL;
    expect_no_trial(&options, "needs a model");
    options = good;
    options.criterion = NULL;
    expect_no_trial(&options, "needs a criterion or a user step");
    options = good;
    options.max_steps = -1;
    expect_no_trial(&options, ".max_steps is -1, but must not be negative");
    options = good;
    options.callback_count = 1;
    expect_no_trial(&options, "ls_trial_new: the array of 1 callbacks is NULL");
    options.callback_count = -1;
    expect_no_trial(&options, "ls_trial_new: the number of callbacks is -1");
    options = good;
    options.custom_metric_count = 2;
    expect_no_trial(&options, "2 custom metrics");
    options = good;
    options.metrics = LS_METRICS("loss", "accuracy");
    expect_no_trial(&options, "there is no metric \"accuracy\"");
    options.metrics = LS_METRICS("loss", "loss");
    expect_no_trial(&options, "two metrics are named \"loss\"");
    options = good;
    options.custom_metrics = &(ls_metric *){NULL};
    options.custom_metric_count = 1;
    (void)ls_error_set(LS_ERR_ARGUMENT, "the constructor's reason");
    expect_no_trial(&options, "the constructor's reason");

    ls_trial *trial = ls_trial_new(&good);
    assert_int_equal(ls_trial_run(NULL, 1), LS_ERR_ARGUMENT);
    assert_int_equal(ls_trial_evaluate(trial, NULL, "test"), LS_ERR_ARGUMENT);
    assert_int_equal(ls_trial_evaluate(trial, s.validate, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_trial_evaluate(NULL, s.validate, "test"), LS_ERR_ARGUMENT);
    char label[100];
    memset(label, 'x', sizeof label - 1);
    label[sizeof label - 1] = '\0';
    assert_int_equal(ls_trial_evaluate(trial, s.validate, label), LS_ERR_ARGUMENT);
    assert_true(isnan(ls_trial_metric(NULL, "loss")) && isnan(ls_trial_metric(trial, NULL)));
    assert_int_equal(ls_trial_history_count(NULL), 0);
    assert_true(ls_trial_throughput(NULL) == 0);
    ls_trial_free(NULL);
    ls_trial_free(trial);
    free_setting(&s);
}

static ls_tensor *no_loss(ls_tensor *output, ls_tensor *target, void *user) {
    (void)user;
    (void)output;
    (void)target;
    return NULL;
}

static ls_status cannot_measure(const ls_trial_state *state, void *user, double *sum, double *weight) {
    (void)state;
    (void)user;
    (void)sum;
    (void)weight;
    return LS_ERR_IO;
}

static ls_status take_input_away(ls_trial_state *state, void *user) {
    (void)user;
    state->input = NULL;
    return LS_OK;
}

static void expect_failure(const ls_trial_options *options, ls_status status, const char *reason) {
    ls_trial *trial = ls_trial_new(options);
    assert_non_null(trial);
    assert_int_equal(ls_trial_run(trial, 1), status);
    expect_message(reason);
    ls_trial_free(trial);
}

TEST(test_steps_that_fail) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    (void)ls_error_set(LS_ERR_PEER, "an older error");
    options.criterion = no_loss;
    expect_failure(&options, LS_ERR_ARGUMENT, "the criterion returned NULL without an error");
    options.criterion = ls_criterion_cross_entropy;
    options.criterion_user = &(ls_class_loss_options){.reduction = LS_LOSS_NONE};
    expect_failure(&options, LS_ERR_SHAPE, "the loss must be one number");
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_evaluate(trial, s.validate, "test"), LS_ERR_SHAPE);
    expect_message("loss must be one number, not 4");
    ls_trial_free(trial);
    options = options_of(&s);
    options.criterion = ls_criterion_mse; /* for outputs [4, 3] and targets [4] */
    expect_failure(&options, LS_ERR_SHAPE, "ls_mse_loss");
    options = options_of(&s);
    options.custom_metrics =
        &(ls_metric *){ls_metric_new(&(ls_metric_functions){"mine", .mean = cannot_measure}, NULL)};
    options.custom_metric_count = 1;
    expect_failure(&options, LS_ERR_IO, "the metric \"mine\" failed with LS_ERR_IO");
    options = options_of(&s);
    options.callbacks = (ls_callback *[]){ls_callback_new(&(ls_callback_hooks){.on_sample = take_input_away}, NULL)};
    options.callback_count = 1;
    expect_failure(&options, LS_ERR_ARGUMENT, "Linear: input 0 is NULL");
    free_setting(&s);
}

/* A layer registers its cache in its first forward pass. */
static ls_tensor *forward_with_cache(ls_module *self, ls_tensor *x) {
    if (ls_module_buffer_count(self) == 0) {
        ls_module_add_buffer(self, "cache", ls_zeros(LS_SHAPE(2), LS_F64));
    }
    return x;
}

TEST(test_caches_and_frozen_parameters) {
    static const ls_module_type cached = {.name = "Cached", .forward = forward_with_cache};
    setting s = make_setting();
    ls_module *model =
        ls_sequential(ls_module_new(&cached), ls_nn_linear_with(2, CLASSES, &(ls_linear_options){.dtype = LS_F64}));
    ls_tensor *bias = ls_module_find(model, "1.bias");
    ls_set_requires_grad(bias, false);
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    ls_trial_options options = options_of(&s);
    options.model = model;
    options.optimizer = optimizer;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    ls_set_requires_grad(bias, true);
    assert_int_equal(ls_trial_run(trial, 3), LS_OK); /* the optimizer also has frozen parameters */
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    free_setting(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_hooks_in_order),
        cmocka_unit_test(test_callbacks_in_their_order),
        cmocka_unit_test(test_what_hooks_see),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_results_of_evaluations),
        cmocka_unit_test(test_max_steps),
        cmocka_unit_test(test_failing_hooks_end_the_run),
        cmocka_unit_test(test_failing_init),
        cmocka_unit_test(test_wrong_options),
        cmocka_unit_test(test_steps_that_fail),
        cmocka_unit_test(test_caches_and_frozen_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
