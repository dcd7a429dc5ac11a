/*
 * `.capture` of a trial: results bit-identical to training without it, what hooks may change between steps, and the
 * reasons for which a trial trains without a capture.
 *
 * devices: cpu
 */
#include "tests/support/checkpoints.h"

#include <signal.h>

#include <lockstep/lockstep.h>

#include "tests/support/log.h"
#include "tests/support/optimizers.h"

/* ---- training ---------------------------------------------------------------------------------------------------- */

enum { PIXELS = 36, KINDS = 5, SAMPLES = 50, TESTED = 20, BATCH_SIZE = 16, FULL_BATCHES = 3, TEST_BATCHES = 2 };

/* What a test changes in a training run. */
typedef struct variant {
    int optimizer; /* of optimizers.h */
    bool dropout;
    bool no_capture;
    bool no_small_batch;
    ls_class_loss_options *loss;
    ls_schedule *(*schedule)(ls_optimizer *optimizer);
    ls_callback *(*callback)(void);
    ls_dtype autocast;
    const ls_checkpoint_options *checkpoint;
    const char *resume;
    int epochs;     /* 0 selects 3 */
    ls_status ends; /* of the run */
    ls_callback_function step;
    ls_grad_scaler *scaler;
} variant;

/* What a run leaves. */
typedef struct outcome {
    uint64_t hash;
    double metrics[4]; /* of the last epoch */
    int criterion_calls;
    int64_t epochs;
} outcome;

typedef struct criterion_state {
    int calls;
    const ls_class_loss_options *loss;
} criterion_state;

static ls_tensor *criterion(ls_tensor *output, ls_tensor *target, void *user) {
    criterion_state *self = user;
    self->calls++;
    return ls_cross_entropy(output, target, self->loss);
}

/* Images of classes that differ, and the classes. */
static ls_loader *make_images(int count, uint64_t seed, bool drop_last) {
    ls_scope *scope = ls_scope_begin();
    ls_seed(seed);
    ls_tensor *classes = ls_empty(LS_SHAPE(count), LS_I64);
    for (int i = 0; i < count; i++) {
        ((int64_t *)elements(classes))[i] = i % KINDS;
    }
    ls_tensor *shade = ls_reshape(ls_mul(ls_to(classes, LS_F32), 0.2), LS_SHAPE(count, 1));
    ls_tensor *images = ls_add(ls_rand(LS_SHAPE(count, PIXELS), LS_F32), shade);
    ls_loader *loader = ls_loader_new(ls_tensor_dataset(images, classes),
                                      &(ls_loader_options){.batch_size = BATCH_SIZE, .drop_last = drop_last});
    assert_non_null(loader);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    return loader;
}

static ls_module *make_model(bool dropout) {
    return ls_sequential(ls_nn_linear(PIXELS, 24), ls_nn_relu(), ls_nn_batch_norm_1d(24, NULL),
                         dropout ? ls_nn_dropout(0.2) : ls_nn_tanh(), ls_nn_linear(24, KINDS));
}

static outcome run(const variant *v) {
    criterion_state counted = {.loss = v->loss};
    ls_loader *train = make_images(SAMPLES, 11, v->no_small_batch), *validate = make_images(TESTED, 12, false);
    ls_seed(3);
    ls_module *model = make_model(v->dropout);
    ls_optimizer *optimizer = optimizer_make(v->optimizer, model);
    assert_non_null(optimizer);
    ls_callback *callbacks[2];
    int count = 0;
    if (v->schedule != NULL) {
        callbacks[count++] = ls_scheduler(v->schedule(optimizer), &(ls_scheduler_options){.per_step = true});
    }
    if (v->callback != NULL) {
        callbacks[count++] = v->callback();
    }
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = criterion,
                                                       .criterion_user = &counted,
                                                       .train = train,
                                                       .validate = validate,
                                                       .metrics = LS_METRICS("loss", "acc"),
                                                       .callbacks = callbacks,
                                                       .callback_count = count,
                                                       .checkpoint = v->checkpoint,
                                                       .resume = v->resume,
                                                       .autocast = v->autocast,
                                                       .step = v->step,
                                                       .grad_scaler = v->scaler,
                                                       .capture = !v->no_capture,
                                                       .quiet = true});
    assert_non_null(trial);
    if (ls_trial_run(trial, v->epochs > 0 ? v->epochs : 3) != v->ends) {
        fail_msg("%s", ls_error_message());
    }
    const outcome result = {.hash = ls_module_hash(model),
                            .metrics = {ls_trial_metric(trial, "loss"), ls_trial_metric(trial, "acc"),
                                        ls_trial_metric(trial, "val_loss"), ls_trial_metric(trial, "val_acc")},
                            .criterion_calls = counted.calls,
                            .epochs = ls_trial_history_count(trial)};
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(train);
    ls_loader_free(validate);
    return result;
}

/* ---- the log ----------------------------------------------------------------------------------------------------- */

/* Fails unless the log has this many lines, and the last line contains `part`. */
static void expect_log(int count, const char *part) {
    if (log_lines() != count || strstr(log_last(), part) == NULL) {
        fail_msg("%d lines in the log, the last is \"%s\" instead of \"%s\"", log_lines(), log_last(), part);
    }
}

/* ---- the same bits ----------------------------------------------------------------------------------------------- */

static void expect_equal(const outcome *a, const outcome *b) {
    assert_true(a->hash == b->hash);
    assert_memory_equal(a->metrics, b->metrics, sizeof a->metrics);
    assert_int_equal(a->epochs, b->epochs);
}

/* Trains with and without .capture. `calls` is how often the criterion is called when .capture is set. */
static void compare(variant v, int calls) {
    v.no_capture = true;
    const outcome eager = run(&v);
    v.no_capture = false;
    log_begin();
    const outcome captured = run(&v);
    log_end();
    expect_equal(&eager, &captured);
    if (captured.criterion_calls != calls) {
        fail_msg("the criterion was called %d times instead of %d times", captured.criterion_calls, calls);
    }
}

enum { STEPS = FULL_BATCHES + 1, ALL_CALLS = 3 * (STEPS + TEST_BATCHES) };
enum { CAPTURED_CALLS = 1 + 3 * (1 + TEST_BATCHES) }; /* the capture, and each small batch and validation */

static void compare_captured(variant v) {
    compare(v, CAPTURED_CALLS);
    assert_int_equal(log_lines(), 0);
}

TEST(test_optimizers) {
    for (int i = 0; i < OPTIMIZERS_OF_ONE_PASS; i++) {
        compare_captured((variant){.optimizer = i});
    }
}

TEST(test_batches_of_one_size) {
    compare((variant){.no_small_batch = true}, 1 + 3 * TEST_BATCHES);
    assert_int_equal(log_lines(), 0);
}

static ls_schedule *one_cycle(ls_optimizer *optimizer) {
    return ls_schedule_one_cycle(optimizer, &(ls_one_cycle_options){.max_learning_rate = 0.2, .steps = 3 * STEPS});
}

static ls_schedule *decay(ls_optimizer *optimizer) {
    return ls_schedule_exponential(optimizer, 0.8);
}

TEST(test_schedules_for_each_step) {
    compare_captured((variant){.optimizer = OPTIMIZER_MOMENTUM, .schedule = one_cycle});
    compare_captured((variant){.optimizer = OPTIMIZER_ADAM, .schedule = one_cycle});
    compare_captured((variant){.optimizer = OPTIMIZER_ADAMW, .schedule = decay});
}

/* The divisor of such a loss is a tensor, which the metric "loss" reads. */
TEST(test_losses_with_weights_and_ignored_targets) {
    ls_tensor *weight = ls_full(LS_SHAPE(KINDS), LS_F32, 0.5);
    ls_scope *scope = ls_scope_begin();
    assert_int_equal(ls_fill(ls_narrow(weight, 0, 0, 2), 2), LS_OK);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    compare_captured((variant){.loss = &(ls_class_loss_options){.weight = weight}});
    compare_captured((variant){.loss = &(ls_class_loss_options){.ignore = true, .ignore_index = 1}});
    ls_release(weight);
}

TEST(test_autocast) {
    compare_captured((variant){.autocast = LS_BF16});
}

/* ---- runs that end early, and checkpoints ------------------------------------------------------------------------ */

static ls_callback *stop_early(void) {
    return ls_early_stopping(
        &(ls_early_stopping_options){.monitor = "val_loss", .min_delta = 100, .restore_best = true});
}

TEST(test_early_stopping) {
    variant v = {.optimizer = OPTIMIZER_ADAM, .callback = stop_early, .epochs = 9};
    compare(v, 1 + 2 * (1 + TEST_BATCHES));
    assert_int_equal(log_lines(), 0);
}

static int64_t stops_after; /* steps */

static ls_status stop_run(ls_trial_state *state, void *user) {
    (void)user;
    return state->step != stops_after || raise(SIGTERM) == 0 ? LS_OK : ls_error_set(LS_ERR_IO, "no signal");
}

static ls_callback *stopping(void) {
    return ls_callback_new(&(ls_callback_hooks){.on_step_training = stop_run}, NULL);
}

/* A run that stops within an epoch at a checkpoint, and a new trial that resumes, end like one run. */
static void check_resume(int64_t steps, int calls) {
    char folder[PATH_MAX];
    stops_after = steps;
    snprintf(folder, sizeof folder, "%s", in_root(steps > STEPS ? "long" : "short"));
    const variant whole = {.optimizer = OPTIMIZER_ADAM, .schedule = one_cycle, .no_capture = true};
    const outcome eager = run(&whole);
    const ls_checkpoint_options checkpoint = {.folder = folder, .every_epochs = 100};
    variant part = {.optimizer = OPTIMIZER_ADAM, .schedule = one_cycle, .checkpoint = &checkpoint, .resume = folder};
    part.callback = stopping;
    part.ends = LS_ERR_STOPPED;
    (void)run(&part);
    part.ends = LS_OK;
    const outcome resumed = run(&part);
    expect_equal(&eager, &resumed);
    assert_int_equal(resumed.criterion_calls, calls);
}

TEST(test_checkpoints) {
    check_resume(STEPS + 1, 1 + 2 * (1 + TEST_BATCHES));
    /* the first batch is the small last batch of an epoch, and the next is captured again */
    check_resume(STEPS - 1, 2 + 2 + 3 * TEST_BATCHES);
}

/* ---- hooks that change the model --------------------------------------------------------------------------------- */

static ls_callback *hooks(const ls_callback_hooks *functions) {
    ls_callback *callback = ls_callback_new(functions, NULL);
    assert_non_null(callback);
    return callback;
}

/* Weights that a hook changes count in the next replay. */
static ls_status shrink(ls_trial_state *state, void *user) {
    (void)user;
    const bool before = ls_no_grad(true);
    ls_tensor *weight = ls_module_parameter(state->model, 0);
    const ls_status status = ls_copy_into(weight, ls_mul(weight, 0.9));
    (void)ls_no_grad(before);
    return status;
}

static ls_callback *shrinking(void) {
    return hooks(&(ls_callback_hooks){.on_step_training = shrink});
}

/* Batch norm in evaluation mode from step 5 on. */
static ls_status freeze_norm(ls_trial_state *state, void *user) {
    (void)user;
    if (state->step == 5) {
        ls_module_train(ls_module_child(state->model, 2), false);
    }
    return LS_OK;
}

static ls_callback *freezing_norm(void) {
    return hooks(&(ls_callback_hooks){.on_step_training = freeze_norm});
}

/* The first layer is not trained in the second epoch. */
static ls_status freeze_layer(ls_trial_state *state, void *user) {
    (void)user;
    return ls_set_requires_grad(ls_module_parameter(state->model, 0), state->epoch != 1);
}

static ls_callback *freezing_layer(void) {
    return hooks(&(ls_callback_hooks){.on_start_epoch = freeze_layer});
}

static ls_status check_results(ls_trial_state *state, void *user) {
    (void)user;
    ls_tensor *loss = criterion(state->output, state->target, &(criterion_state){.calls = 0});
    return loss != NULL && ls_item(loss) == ls_item(state->loss) ? LS_OK : ls_error_set(LS_ERR_STATE, "other results");
}

static ls_callback *checking(void) {
    return hooks(&(ls_callback_hooks){.on_step_training = check_results});
}

/* Doubles inputs. */
static ls_status change_sample(ls_trial_state *state, void *user) {
    (void)user;
    state->input = ls_mul(state->input, (double)(state->step + 1));
    return state->input != NULL ? LS_OK : ls_error_status();
}

static ls_callback *changing_samples(void) {
    return hooks(&(ls_callback_hooks){.on_sample = change_sample});
}

static ls_callback *mixing(void) {
    return ls_mixup(&(ls_mixup_options){.classes = KINDS, .seed = 4});
}

/* Targets with a different dtype in every second step. */
static ls_status change_dtype(ls_trial_state *state, void *user) {
    (void)user;
    state->target = state->step % 2 == 0 ? state->target : ls_to(state->target, LS_I32);
    return state->target != NULL ? LS_OK : ls_error_status();
}

static ls_callback *changing_dtype(void) {
    return hooks(&(ls_callback_hooks){.on_sample = change_dtype});
}

TEST(test_batches_that_differ) {
    compare((variant){.callback = changing_dtype}, CAPTURED_CALLS + 3);
    expect_log(1, "of the captured batch, with inputs: [16, 36]");
}

static ls_callback *clipping(void) {
    return ls_gradient_norm_clipping(0.5);
}

static ls_callback *clipping_values(void) {
    return ls_gradient_value_clipping(0.02);
}

static ls_callback *decaying(void) {
    return ls_weight_decay(0.01, 2);
}

static ls_callback *grouped(void) {
    return ls_callbacks_of((ls_callback *[]){clipping(), decaying(), mixing()}, 3);
}

static ls_callback *clipping_once(void) {
    return ls_once(clipping());
}

TEST(test_callbacks_within_the_step) {
    compare_captured((variant){.callback = grouped});
    compare_captured((variant){.callback = clipping});
    compare_captured((variant){.callback = clipping_values});
    compare_captured((variant){.callback = decaying});
}

TEST(test_dropout) {
    compare_captured((variant){.dropout = true});
    compare_captured((variant){.dropout = true, .callback = mixing});
}

TEST(test_hooks_that_replays_obey) {
    compare_captured((variant){.callback = shrinking});
    compare_captured((variant){.callback = checking});
    compare_captured((variant){.callback = changing_samples});
    compare_captured((variant){.callback = mixing});
}

/* A hook of a layer, which a replay would not call, is added in the second epoch. */
static ls_status double_output(ls_module_call *call, void *user) {
    (void)user;
    call->outputs[0] = ls_mul(call->outputs[0], 2);
    return call->outputs[0] != NULL ? LS_OK : ls_error_status();
}

static ls_status add_hook(ls_trial_state *state, void *user) {
    (void)user;
    return state->epoch != 1 || ls_module_add_hooks(ls_module_child(state->model, 1),
                                                    &(ls_module_hooks){.forward = double_output}) > 0
               ? LS_OK
               : ls_error_status();
}

static ls_callback *adding_a_hook(void) {
    return hooks(&(ls_callback_hooks){.on_start_epoch = add_hook});
}

static ls_optimizer *other_optimizer;

/* The second optimizer exists before the first step, because a new optimizer moves the parameters. */
static ls_status make_other_optimizer(ls_trial_state *state, void *user) {
    (void)user;
    other_optimizer = ls_sgd(state->model, &(ls_sgd_options){.learning_rate = 0.3});
    return other_optimizer != NULL ? LS_OK : ls_error_status();
}

static ls_status use_other_optimizer(ls_trial_state *state, void *user) {
    (void)user;
    state->optimizer = state->epoch >= 1 ? other_optimizer : state->optimizer;
    return LS_OK;
}

static ls_status free_other_optimizer(ls_trial_state *state, void *user) {
    (void)state;
    (void)user;
    ls_optimizer_free(other_optimizer);
    return LS_OK;
}

static ls_callback *replacing_optimizer(void) {
    return hooks(&(ls_callback_hooks){
        .on_start = make_other_optimizer, .on_start_epoch = use_other_optimizer, .on_end = free_other_optimizer});
}

static ls_tensor *other_criterion(ls_tensor *output, ls_tensor *target, void *user) {
    return ls_mul(criterion(output, target, user), 0.25);
}

static ls_status use_other_criterion(ls_trial_state *state, void *user) {
    (void)user;
    state->criterion = state->epoch >= 1 ? other_criterion : state->criterion;
    return LS_OK;
}

static ls_callback *replacing_criterion(void) {
    return hooks(&(ls_callback_hooks){.on_start_epoch = use_other_criterion});
}

TEST(test_objects_that_hooks_replace) {
    compare((variant){.callback = replacing_criterion}, CAPTURED_CALLS + 1);
    assert_int_equal(log_lines(), 0);
    compare((variant){.callback = replacing_optimizer}, CAPTURED_CALLS + 1);
    assert_int_equal(log_lines(), 0);
}

TEST(test_hooks_that_cause_another_capture) {
    compare((variant){.callback = freezing_norm}, CAPTURED_CALLS + 1);
    assert_int_equal(log_lines(), 0);
    compare((variant){.callback = freezing_layer}, CAPTURED_CALLS + 2);
    assert_int_equal(log_lines(), 0);
}

/* Batch norm changes its mode in each step. */
static ls_status toggle(ls_trial_state *state, void *user) {
    (void)user;
    ls_module_train(ls_module_child(state->model, 2), state->step % 2 == 0);
    return LS_OK;
}

static ls_callback *toggling(void) {
    return hooks(&(ls_callback_hooks){.on_step_training = toggle});
}

/* ---- runs that fail ---------------------------------------------------------------------------------------------- */

/* A class that does not exist, in step 2. */
static ls_status spoil_target(ls_trial_state *state, void *user) {
    (void)user;
    if (state->step == 2) {
        state->target = ls_full(LS_SHAPE(BATCH_SIZE), LS_I64, KINDS);
    }
    return LS_OK;
}

static ls_callback *spoiling(void) {
    return hooks(&(ls_callback_hooks){.on_sample = spoil_target});
}

TEST(test_errors_of_replays) {
    char message[LS_ERROR_CAPACITY];
    (void)run(&(variant){.callback = spoiling, .no_capture = true, .ends = LS_ERR_ARGUMENT});
    snprintf(message, sizeof message, "%s", ls_error_message());
    const outcome captured = run(&(variant){.callback = spoiling, .ends = LS_ERR_ARGUMENT});
    assert_string_equal(ls_error_message(), message);
    assert_int_equal(captured.criterion_calls, 1); /* step 2 was a replay */
}

/* ---- several runs ------------------------------------------------------------------------------------------------ */

/* A second run, after a change of the learning rate and an evaluation, continues with the captured step. Only the
 * capture, each small batch and the validations call the criterion. */
TEST(test_several_runs) {
    enum { EPOCHS = 4, VALIDATIONS = EPOCHS + 1, VALIDATION_BATCHES = 2, TRAINING_BATCHES = 3 };
    for (int i = 0; i < 2; i++) {
        setting s = make_setting();
        ls_trial_options options = options_of(&s);
        criterion_state counted = {.calls = 0};
        options.criterion = criterion;
        options.criterion_user = &counted;
        options.capture = i == 1;
        ls_trial *trial = ls_trial_new(&options);
        static uint64_t hashes[2];
        assert_int_equal(ls_optimizer_set_learning_rate(s.optimizer, -1, 0.1), LS_OK);
        assert_int_equal(ls_trial_run(trial, 2), LS_OK);
        assert_int_equal(ls_trial_evaluate(trial, s.validate, "test"), LS_OK);
        assert_int_equal(ls_optimizer_set_learning_rate(s.optimizer, -1, 0.05), LS_OK);
        assert_int_equal(ls_trial_run(trial, EPOCHS), LS_OK);
        const int steps = i == 1 ? 1 + EPOCHS : EPOCHS * TRAINING_BATCHES;
        assert_int_equal(counted.calls, steps + VALIDATIONS * VALIDATION_BATCHES);
        hashes[i] = ls_module_hash(s.model);
        assert_true(hashes[i] == hashes[0]);
        ls_trial_free(trial);
        free_setting(&s);
    }
}

/* ---- steps without a capture ------------------------------------------------------------------------------------- */

static void compare_uncaptured(variant v, const char *reason) {
    compare(v, ALL_CALLS);
    expect_log(1, reason);
    expect_log(1, "ls_trial_run: trains without .capture: ");
}

static ls_status accept(ls_trial_state *state, void *user) {
    (void)user;
    return state->loss != NULL ? LS_OK : LS_ERR_STATE;
}

static ls_callback *reading_the_loss(void) {
    return hooks(&(ls_callback_hooks){.name = "mine", .on_criterion = accept});
}

static ls_status learn_input(ls_trial_state *state, void *user) {
    (void)user;
    return ls_set_requires_grad(state->input, true);
}

static ls_callback *with_learned_input(void) {
    return hooks(&(ls_callback_hooks){.on_sample = learn_input});
}

static ls_status own_step(ls_trial_state *state, void *user) {
    (void)user;
    ls_optimizer_zero_grad(state->optimizer);
    state->output = ls_forward(state->model, state->input);
    state->loss = criterion(state->output, state->target, state->criterion_user);
    LS_TRY(ls_backward(state->loss));
    return ls_optimizer_step(state->optimizer);
}

TEST(test_reasons_against_a_capture) {
    compare_uncaptured((variant){.callback = reading_the_loss}, "the hook on_criterion of mine needs");
    compare_uncaptured((variant){.callback = clipping_once}, "the hook on_backward of ");
    compare_uncaptured((variant){.callback = with_learned_input}, "the input or the target requires a gradient");
    compare((variant){.callback = toggling, .no_small_batch = true}, 3 * (FULL_BATCHES + TEST_BATCHES));
    expect_log(1, "every step changes what its replay checks: ls_step_replay: ");
    compare((variant){.callback = adding_a_hook}, CAPTURED_CALLS + 2 * FULL_BATCHES);
    expect_log(1, "has hooks, which a replay does not call");
    compare_uncaptured((variant){.step = own_step}, "the step is a user function");
}

TEST(test_gradient_scalers) {
    outcome both[2];
    for (int i = 0; i < 2; i++) {
        ls_grad_scaler *scaler = ls_grad_scaler_new(NULL);
        log_begin();
        both[i] = run(&(variant){.scaler = scaler, .no_capture = i == 0});
        log_end();
        assert_int_equal(log_lines(), i);
        ls_grad_scaler_free(scaler);
    }
    expect_log(1, "ls_grad_scaler_scale");
    expect_equal(&both[0], &both[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_batches_of_one_size),
        cmocka_unit_test(test_schedules_for_each_step),
        cmocka_unit_test(test_losses_with_weights_and_ignored_targets),
        cmocka_unit_test(test_autocast),
        cmocka_unit_test(test_early_stopping),
        cmocka_unit_test(test_checkpoints),
        cmocka_unit_test(test_batches_that_differ),
        cmocka_unit_test(test_callbacks_within_the_step),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_hooks_that_replays_obey),
        cmocka_unit_test(test_objects_that_hooks_replace),
        cmocka_unit_test(test_hooks_that_cause_another_capture),
        cmocka_unit_test(test_errors_of_replays),
        cmocka_unit_test(test_several_runs),
        cmocka_unit_test(test_reasons_against_a_capture),
        cmocka_unit_test(test_gradient_scalers),
    };
    return cmocka_run_group_tests(tests, make_root, test_files_teardown);
}
