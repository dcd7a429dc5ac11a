/*
 * Built-in callbacks in one process: when their hooks are called, and their refusals.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/trials.h"

#include <lockstep/lockstep.h>

#include "train/callbacks/samples.h"
#include "train/trial.h"

/* ---- composition ------------------------------------------------------------------------------------------------- */

typedef struct calls {
    int starts, epochs, steps, validations, released;
} calls;

static ls_status on_start(ls_trial_state *state, void *user) {
    (void)state;
    ((calls *)user)->starts++;
    return LS_OK;
}

static ls_status on_start_epoch(ls_trial_state *state, void *user) {
    (void)state;
    ((calls *)user)->epochs++;
    return LS_OK;
}

static ls_status on_step(ls_trial_state *state, void *user) {
    (void)state;
    ((calls *)user)->steps++;
    return LS_OK;
}

static ls_status on_validation(ls_trial_state *state, void *user) {
    (void)state;
    ((calls *)user)->validations++;
    return LS_OK;
}

static void on_release(void *user) {
    ((calls *)user)->released++;
}

static ls_callback *counting(calls *c) {
    return ls_callback_new(&(ls_callback_hooks){.on_start = on_start,
                                                .on_start_epoch = on_start_epoch,
                                                .on_step_training = on_step,
                                                .on_end_validation = on_validation,
                                                .release = on_release},
                           c);
}

static void run_with(ls_callback *const *callbacks, int count, int64_t epochs) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    options.callbacks = callbacks;
    options.callback_count = count;
    ls_trial *trial = ls_trial_new(&options);
    assert_non_null(trial);
    assert_int_equal(ls_trial_run(trial, epochs), LS_OK);
    ls_trial_free(trial);
    free_setting(&s);
}

static bool in_odd_batches(const ls_trial_state *state, void *user) {
    ++*(int *)user;
    return state->batch % 2 == 1;
}

static void test_gates(void **unused) {
    (void)unused;
    int asked = 0;
    calls once = {0}, epoch = {0}, odd = {0}, first = {0}, other = {0}, both[2] = {{0}, {0}};
    ls_callback *const pair[] = {counting(&both[0]), counting(&both[1])};
    ls_callback *const callbacks[] = {ls_once(counting(&once)),
                                      ls_once_per_epoch(counting(&epoch)),
                                      ls_only_if(counting(&odd), in_odd_batches, &asked),
                                      ls_on_rank(counting(&other), 1),
                                      ls_on_rank(counting(&first), 0),
                                      ls_callbacks_of(pair, 2)};
    run_with(callbacks, 6, 2);
    assert_int_equal(first.steps, 6);
    assert_int_equal(once.starts + once.epochs + once.steps + once.validations, 4);
    assert_int_equal(once.steps, 1);
    assert_int_equal(epoch.starts, 1);
    assert_int_equal(epoch.epochs, 2);
    assert_int_equal(epoch.steps, 2);
    assert_int_equal(epoch.validations, 2);
    assert_int_equal(odd.steps, 2);
    assert_int_equal(asked, 1 + 2 + 6 + 2);
    assert_int_equal(other.starts + other.epochs + other.steps + other.validations, 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(both[i].steps, 6);
        assert_int_equal(both[i].released, 1);
    }
    assert_int_equal(once.released + epoch.released + odd.released + first.released + other.released, 5);
}

/* A composition has exactly the hooks of its callbacks. */
static void test_hooks_of_compositions(void **unused) {
    (void)unused;
    calls c = {0};
    ls_callback *empty = ls_callback_new(&(ls_callback_hooks){.name = "empty"}, NULL);
    ls_callback *callback = ls_once(ls_callbacks_of((ls_callback *[]){counting(&c), empty}, 2));
    assert_non_null(callback->hooks.on_start);
    assert_null(callback->hooks.on_sample);
    assert_null(callback->hooks.on_end);
    ls_callback_free(callback);
    assert_int_equal(c.released, 1);
    ls_callback *named = ls_once(ls_callback_new(&(ls_callback_hooks){.name = "mine"}, NULL));
    assert_string_equal(named->hooks.name, "mine");
    assert_true(named->hooks.state != NULL && named->hooks.set_state != NULL);
    ls_callback_free(named);
    ls_callback *forgetful = ls_on_rank(counting(&c), 0); /* a checkpoint without its state is complete */
    assert_true(forgetful->hooks.state == NULL && forgetful->hooks.set_state == NULL);
    ls_callback_free(forgetful);
    ls_callback *none = ls_callbacks_of(NULL, 0);
    assert_non_null(none);
    ls_callback_free(none);
}

/* On failure, the arguments are freed once. */
static void test_refused_compositions(void **unused) {
    (void)unused;
    calls c = {0};
    assert_null(ls_only_if(counting(&c), NULL, NULL));
    expect_message("ls_only_if: the predicate is NULL");
    assert_null(ls_on_rank(counting(&c), -1));
    expect_message("ls_on_rank: rank -1 does not exist");
    assert_null(ls_callbacks_of(NULL, 2));
    expect_message("ls_callbacks_of: the array of 2 callbacks is NULL");
    ls_callback *const some[] = {counting(&c), ls_gradient_norm_clipping(-1)};
    assert_null(ls_once(ls_once_per_epoch(ls_callbacks_of(some, 2))));
    expect_message("ls_gradient_norm_clipping: the limit -1 is not positive");
    assert_int_equal(c.released, 3);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void expect_refused(ls_callback *callback, const char *message) {
    assert_null(callback);
    expect_message(message);
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    (void)ls_error_set(LS_ERR_ARGUMENT, "%s", message);
    options.callbacks = &callback;
    options.callback_count = 1;
    assert_null(ls_trial_new(&options));
    expect_message(message);
    free_setting(&s);
}

static void test_refused_options(void **unused) {
    (void)unused;
    char name[200];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    setting s = make_setting();
    expect_refused(ls_early_stopping(&(ls_early_stopping_options){.patience = -1}), "patience -1 must not be negative");
    expect_refused(ls_early_stopping(&(ls_early_stopping_options){.min_delta = NAN}), "min_delta nan");
    expect_refused(ls_early_stopping(&(ls_early_stopping_options){.mode = (ls_monitor_mode)7}),
                   "the mode 7 does not exist");
    expect_refused(ls_early_stopping(&(ls_early_stopping_options){.monitor = name}), "xxx\" is longer than");
    expect_refused(ls_gradient_norm_clipping(0), "ls_gradient_norm_clipping: the limit 0 is not positive");
    expect_refused(ls_gradient_value_clipping(NAN), "ls_gradient_value_clipping: the limit nan is not positive");
    expect_refused(ls_weight_decay(-0.5, 2), "rate -0.5 must not be negative");
    expect_refused(ls_weight_decay(0.5, 0), "p 0 must be positive");
    expect_refused(ls_scheduler(NULL, NULL), "ls_scheduler: the schedule is NULL");
    assert_null(strstr(ls_error_message(), "is NULL is NULL"));
    expect_refused(ls_rate_finder(&(ls_rate_finder_options){.lowest = LS_ZERO}), "must be positive");
    expect_refused(ls_mixup(&(ls_mixup_options){.alpha = LS_ZERO}), "alpha");
    expect_refused(ls_scheduler(ls_schedule_step(s.optimizer, 2, 0.5),
                                &(ls_scheduler_options){.per_step = true, .monitor = "loss"}),
                   "the metric \"loss\" is measured per epoch");
    expect_refused(ls_scheduler(ls_schedule_plateau(s.optimizer, NULL), NULL), "needs a metric: set .monitor");
    expect_refused(ls_mixup(&(ls_mixup_options){.alpha = -1}), "ls_mixup: alpha -1 must be positive");
    expect_refused(ls_mixup(&(ls_mixup_options){.lambda = 1.5}), "ls_mixup: lambda");
    expect_refused(ls_cutmix(&(ls_cutmix_options){.classes = -1}), "classes -1 must not be negative");
    expect_refused(ls_cutout(NULL), "ls_cutout: length 0 and 1 holes must be positive");
    expect_refused(ls_label_smoothing(2, 3), "ls_label_smoothing: epsilon 2 must be from 0 to 1");
    expect_refused(ls_manifold_mixup(&(ls_manifold_mixup_options){.layers = (const char *const[]){NULL}}),
                   "the list of layers is empty");
    expect_refused(ls_weight_averaging(&(ls_weight_averaging_options){.decay = 1}),
                   "decay 1 must be above 0 and below 1");
    expect_refused(ls_weight_averaging(&(ls_weight_averaging_options){.decay = LS_ZERO}), "must be above 0");
    expect_refused(ls_initialize(&(ls_initialize_options){.rule = LS_WEIGHT_RULES}),
                   "ls_initialize: rule 5 must be one");
    expect_refused(ls_lsuv(&(ls_lsuv_options){.attempts = -1}), "-1 attempts must be positive");
    expect_refused(ls_lsuv(&(ls_lsuv_options){.deviation = INFINITY}), "deviation inf, tolerance 0.1");
    expect_refused(ls_tensorboard(NULL, NULL), "ls_tensorboard: the folder is NULL");
    expect_refused(ls_tensorboard("logs", &(ls_tensorboard_options){.images = -1}),
                   ".images is -1, but neither may be negative");
    expect_refused(ls_csv_log(NULL, NULL), "ls_csv_log: the path is NULL");
    expect_refused(ls_csv_log("log.csv", &(ls_csv_log_options){.separator = '.'}),
                   "the separator '.' can occur in a field");
    expect_refused(ls_csv_log("log.csv", &(ls_csv_log_options){.separator = '"'}), "can occur in a field");
    expect_refused(ls_console(&(ls_console_options){.digits = 18}), "ls_console: digits is 18");
    expect_refused(ls_rate_finder(&(ls_rate_finder_options){.lowest = 1, .highest = 0.5}), "rates from 1 to 0.5");
    expect_refused(ls_rate_finder(&(ls_rate_finder_options){.steps = 2}), "2 steps must be 3 or more");
    expect_refused(ls_rate_finder(&(ls_rate_finder_options){.divergence = 0.5}), "divergence 0.5 above 1");
    expect_refused(ls_rate_finder(&(ls_rate_finder_options){.smoothing = 1}), "smoothing 1 must be below 1");
    expect_refused(ls_scheduler(ls_schedule_exponential(s.optimizer, -1), NULL), "ls_schedule_exponential");
    free_setting(&s);
}

/* Two callbacks that put averages into the model would exchange each other's averages. */
static void test_two_averages(void **unused) {
    (void)unused;
    for (int i = 0; i < 2; i++) {
        setting s = make_setting();
        ls_trial_options options = options_of(&s);
        options.callbacks = (ls_callback *const[]){
            ls_weight_averaging(NULL), ls_once(ls_weight_averaging(&(ls_weight_averaging_options){.no_swap = i == 1}))};
        options.callback_count = 2;
        ls_trial *trial = ls_trial_new(&options);
        if (i == 0) {
            assert_null(trial);
            assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
            expect_message("another ls_weight_averaging of the trial puts its averages into the model");
        } else {
            assert_int_equal(ls_trial_run(trial, 2), LS_OK);
        }
        ls_trial_free(trial);
        free_setting(&s);
    }
}

static double sum_of_squares(const setting *s) {
    ls_scope *scope = ls_scope_begin();
    const double sum = ls_item(ls_sum(ls_square(ls_module_parameter(s->model, 0))));
    assert_int_equal(ls_scope_end(scope), LS_OK);
    return sum;
}

/* Without .validate, only evaluations and predictions after the first update put averages into the model. */
static void test_two_averages_without_validation(void **unused) {
    (void)unused;
    setting s = make_setting();
    assert_int_equal(ls_optimizer_set_learning_rate(s.optimizer, -1, 0.1), LS_OK);
    ls_trial_options options = options_of(&s);
    options.callbacks = (ls_callback *const[]){ls_weight_averaging(NULL),
                                               ls_weight_averaging(&(ls_weight_averaging_options){.decay = 0.5})};
    options.callback_count = 2;
    options.validate = NULL;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_evaluate(trial, s.validate, "before"), LS_OK);
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    const double sum = sum_of_squares(&s);
    assert_int_equal(ls_trial_evaluate(trial, s.validate, "after"), LS_ERR_ARGUMENT);
    expect_message("another ls_weight_averaging of the trial puts its averages into the model");
    assert_true(sum_of_squares(&s) == sum);
    assert_int_equal(ls_trial_run(trial, 3), LS_OK);
    assert_true(sum_of_squares(&s) != sum);
    ls_trial_free(trial);
    free_setting(&s);
}

static ls_status fail_once(ls_trial_state *state, void *user) {
    (void)state;
    return ++*(int *)user == 1 ? LS_ERR_IO : LS_OK;
}

/* A hook fails after the scaler has divided the gradients. The next run divides the gradients of its own steps. */
static void test_scaled_step_after_a_failed_hook(void **unused) {
    (void)unused;
    int backwards = 0;
    setting s = make_setting();
    ls_callback *callback = ls_callback_new(&(ls_callback_hooks){.on_backward = fail_once}, &backwards);
    ls_trial_options options = options_of(&s);
    options.grad_scaler = ls_grad_scaler_new(NULL);
    options.callbacks = &callback;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_ERR_IO);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    ls_trial_free(trial);
    ls_grad_scaler_free(options.grad_scaler);
    free_setting(&s);
}

static ls_status own_step(ls_trial_state *state, void *user) {
    (void)user;
    state->loss = ls_scalar(1, LS_F64);
    return LS_OK;
}

/* Callbacks that need hooks of the default step say how a custom step can support them. */
static void test_steps_of_ones_own(void **unused) {
    (void)unused;
    static const char *const sentences[] = {"call ls_clip_grad_norm in the user step",
                                            "call ls_clip_grad_value in the user step",
                                            "call ls_norm_axes of the parameters in the user step"};
    ls_callback *const callbacks[] = {ls_gradient_norm_clipping(1), ls_gradient_value_clipping(1),
                                      ls_weight_decay(0.1, 2)};
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    options.step = own_step;
    options.callback_count = 1;
    for (int i = 0; i < 3; i++) {
        options.callbacks = &callbacks[i];
        assert_null(ls_trial_new(&options));
        expect_message(sentences[i]);
    }
    free_setting(&s);
}

static void test_metric_that_is_not_there(void **unused) {
    (void)unused;
    setting s = make_setting();
    ls_callback *const callbacks[] = {
        ls_early_stopping(&(ls_early_stopping_options){.monitor = "val_f1"}),
        ls_once(ls_early_stopping(&(ls_early_stopping_options){.monitor = "val_f1"})),
        ls_scheduler(ls_schedule_plateau(s.optimizer, NULL), &(ls_scheduler_options){.monitor = "test_loss"})};
    ls_trial_options options = options_of(&s);
    options.callback_count = 1;
    for (int i = 0; i < 3; i++) {
        options.callbacks = &callbacks[i];
        ls_trial *trial = ls_trial_new(&options);
        assert_int_equal(ls_trial_run(trial, 1), LS_ERR_ARGUMENT);
        assert_int_equal(ls_trial_history_count(trial), 0); /* before the first epoch */
        expect_message(i < 2 ? "ls_early_stopping: there is no metric \"val_f1\"; available: "
                             : "ls_scheduler: there is no metric \"test_loss\"; available: ");
        ls_trial_free(trial);
    }
    free_setting(&s);
}

/* A running loss is measured only in training, and a confusion matrix is not a single number. */
static void test_metric_without_a_result(void **unused) {
    (void)unused;
    static const char *const monitors[] = {"val_running_loss", "val_confusion"};
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    options.metrics = LS_METRICS("running_loss", "acc", "confusion");
    options.callback_count = 1;
    for (int i = 0; i < 2; i++) {
        ls_callback *callback = ls_early_stopping(&(ls_early_stopping_options){.monitor = monitors[i]});
        options.callbacks = &callback;
        ls_trial *trial = ls_trial_new(&options);
        assert_int_equal(ls_trial_run(trial, 1), LS_ERR_ARGUMENT);
        assert_int_equal(ls_trial_history_count(trial), 0);
        expect_message(i == 0 ? "no metric \"val_running_loss\"; available: running_loss, acc, val_acc"
                              : "no metric \"val_confusion\"; available: running_loss, acc, val_acc");
        ls_trial_free(trial);
    }
    free_setting(&s);
}

/* Tests inputs and layers that a callback cannot process. */
static void test_samples_that_do_not_fit(void **unused) {
    (void)unused;
    static const char *const layers[] = {"nowhere", NULL};
    ls_callback *const callbacks[] = {ls_cutout(&(ls_cutout_options){.length = 2}),
                                      ls_cutmix(&(ls_cutmix_options){.classes = 3}),
                                      ls_manifold_mixup(&(ls_manifold_mixup_options){.layers = layers}),
                                      ls_manifold_mixup(&(ls_manifold_mixup_options){.classes = 3})};
    static const char *const sentences[] = {"ls_cutout: inputs are [4, 2], but must be [n, ..., height, width]",
                                            "ls_cutmix: inputs are [4, 2]", "the model has no layer \"nowhere\"",
                                            "the model contains no layers"};
    for (int i = 0; i < 4; i++) {
        setting s = make_setting();
        ls_trial_options options = options_of(&s);
        options.callbacks = &callbacks[i];
        options.callback_count = 1;
        ls_trial *trial = ls_trial_new(&options);
        assert_true(i >= 2 ? trial == NULL : ls_trial_run(trial, 1) != LS_OK);
        expect_message(sentences[i]);
        ls_trial_free(trial);
        free_setting(&s);
    }
}

/* ---- early stopping ---------------------------------------------------------------------------------------------- */

/* A metric with the values of a list, one per epoch. */
static ls_status measure_listed(const ls_trial_state *state, void *user, double *sum, double *weight) {
    *sum = ((const double *)user)[state->epoch];
    *weight = 1;
    return LS_OK;
}

/* Returns the number of epochs, up to 8, that are run with these values of the metric. */
static int64_t epochs_of(const char *name, double values[8], const ls_early_stopping_options *how) {
    setting s = make_setting();
    ls_callback *stop = ls_early_stopping(how);
    ls_trial_options options = options_of(&s);
    options.train_steps = 1;
    options.custom_metrics =
        &(ls_metric *){ls_metric_new(&(ls_metric_functions){name, .mean = measure_listed}, values)};
    options.custom_metric_count = 1;
    options.callbacks = &stop;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_non_null(trial);
    assert_int_equal(ls_trial_run(trial, 8), LS_OK);
    const int64_t epochs = ls_trial_history_count(trial);
    ls_trial_free(trial);
    free_setting(&s);
    return epochs;
}

static void test_when_it_stops(void **unused) {
    (void)unused;
    double falls[8] = {8, 7, 6, 6, 6, 5, 6, 6};
    double small[8] = {8, 7.95, 7.9, 7.8, 7.7, 7.6, 7.5, 7.4};
    double rises[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    double holes[8] = {5, NAN, 4, INFINITY, 3, NAN, NAN, 2};
    assert_int_equal(epochs_of("x", falls, &(ls_early_stopping_options){.monitor = "x"}), 4);
    assert_int_equal(epochs_of("x", falls, &(ls_early_stopping_options){.monitor = "x", .patience = 1}), 4);
    assert_int_equal(epochs_of("x", falls, &(ls_early_stopping_options){.monitor = "x", .patience = 2}), 5);
    assert_int_equal(epochs_of("x", falls, &(ls_early_stopping_options){.monitor = "x", .patience = 3}), 8);
    assert_int_equal(epochs_of("x", small, &(ls_early_stopping_options){.monitor = "x", .min_delta = 0.1}), 2);
    assert_int_equal(epochs_of("x", small, &(ls_early_stopping_options){.monitor = "x"}), 8);
    assert_int_equal(epochs_of("x", rises, &(ls_early_stopping_options){.monitor = "x"}), 2);
    assert_int_equal(epochs_of("my_acc", rises, &(ls_early_stopping_options){.monitor = "my_acc"}), 8);
    assert_int_equal(
        epochs_of("my_acc", rises, &(ls_early_stopping_options){.monitor = "my_acc", .mode = LS_MONITOR_MIN}), 2);
    assert_int_equal(epochs_of("x", rises, &(ls_early_stopping_options){.monitor = "x", .mode = LS_MONITOR_MAX}), 8);
    assert_int_equal(epochs_of("x", holes, &(ls_early_stopping_options){.monitor = "x", .patience = 2}), 7);
}

/* ---- terms added to losses --------------------------------------------------------------------------------------- */

/* Returns the loss of three batches with fixed weights. */
static double loss_with(ls_callback *callback) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    options.callbacks = &callback;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    const double loss = ls_trial_metric(trial, "loss");
    assert_true(fabs(ls_trial_metric(trial, "val_loss") - loss) > 1e-3);
    ls_trial_free(trial);
    free_setting(&s);
    return loss;
}

static ls_status nothing(ls_trial_state *state, void *user) {
    (void)state;
    (void)user;
    return LS_OK;
}

static void test_weight_decay(void **unused) {
    (void)unused;
    static const double powers[] = {1, 2, 3};
    const double plain = loss_with(ls_callback_new(&(ls_callback_hooks){.on_end = nothing}, NULL));
    for (int i = 0; i < 3; i++) {
        setting s = make_setting();
        double want = 0;
        for (int k = 0; k < ls_module_parameter_count(s.model); k++) {
            const ls_tensor *w = ls_module_parameter(s.model, k);
            double sum = 0;
            for (int64_t j = 0; j < ls_numel(w); j++) {
                sum += pow(fabs(((double *)elements(w))[j]), powers[i]);
            }
            want += 0.1 * pow(sum, 1 / powers[i]);
        }
        free_setting(&s);
        assert_true(fabs(loss_with(ls_weight_decay(0.1, powers[i])) - plain - want) < 1e-12);
    }
}

/* ---- a sweep over rates ------------------------------------------------------------------------------------------ */

/* Dropout, batch normalization and running means of metrics continue as if the callback had not run. */
static uint64_t train_after(ls_callback *callback, double *loss) {
    setting s = make_setting();
    ls_optimizer_free(s.optimizer);
    ls_module_free(s.model);
    ls_seed(8);
    s.model = ls_sequential(ls_nn_linear_with(2, 8, &(ls_linear_options){.dtype = LS_F64}),
                            ls_nn_batch_norm_1d(8, &(ls_batch_norm_options){.dtype = LS_F64}), ls_nn_dropout(0.4),
                            ls_nn_linear_with(8, CLASSES, &(ls_linear_options){.dtype = LS_F64}));
    s.optimizer = ls_adam(s.model, NULL);
    ls_trial_options options = options_of(&s);
    options.callbacks = &callback;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    *loss = ls_trial_metric(trial, "val_loss");
    const uint64_t hash = ls_module_hash(s.model);
    ls_trial_free(trial);
    free_setting(&s);
    return hash;
}

static void test_a_sweep_leaves_nothing(void **unused) {
    (void)unused;
    double loss, other;
    const uint64_t plain = train_after(ls_callback_new(&(ls_callback_hooks){.on_end = nothing}, NULL), &loss);
    assert_true(plain == train_after(ls_rate_finder(&(ls_rate_finder_options){.steps = 10}), &other));
    assert_true(loss == other);
}

/* The ranks compare the layers. */
static void test_description_of_layers(void **unused) {
    (void)unused;
    ls_callback *mix = ls_manifold_mixup(&(ls_manifold_mixup_options){.layers = (const char *const[]){"0", "2", NULL}});
    char text[64];
    mix->hooks.describe(mix->user, text, sizeof text);
    assert_string_equal(text, "ls_manifold_mixup (alpha 1) of 0, 2");
    ls_callback_free(mix);
}

/* ---- random numbers ---------------------------------------------------------------------------------------------- */

/*
 * Beta(alpha, alpha) has the mean 1/2 and the variance 1 / (4 (2 alpha + 1)). The tolerance is 5 standard deviations.
 */
static void test_beta(void **unused) {
    (void)unused;
    static const double alphas[] = {0.05, 0.4, 1, 3, 40};
    enum { DRAWS = 20000 };
    for (int i = 0; i < 5; i++) {
        double sum = 0, squares = 0;
        for (int k = 0; k < DRAWS; k++) {
            const ls_trial_state state = {.batch = k, .epoch = i};
            ls_draws draws = ls_draws_of(&state, 7, 1, LS_WHOLE_BATCH);
            const double x = ls_draw_beta(&draws, alphas[i]);
            assert_true(x >= 0 && x <= 1);
            sum += x;
            squares += (x - 0.5) * (x - 0.5);
        }
        const double variance = 1 / (4 * (2 * alphas[i] + 1));
        assert_true(fabs(sum / DRAWS - 0.5) < 5 * sqrt(variance / DRAWS));
        assert_true(fabs(squares / DRAWS / variance - 1) < 5 * sqrt(2.0 / DRAWS));
    }
}

/* Draws differ for a different seed, kind, epoch, batch or position, and are equal for equal arguments. */
static void test_draws_depend_on_their_place(void **unused) {
    (void)unused;
    const ls_trial_state state = {.epoch = 1, .batch = 2}, epoch = {.epoch = 2, .batch = 2},
                         batch = {.epoch = 1, .batch = 3};
    ls_draws draws[] = {ls_draws_of(&state, 5, 1, 4), ls_draws_of(&state, 5, 1, 4),
                        ls_draws_of(&state, 6, 1, 4), ls_draws_of(&state, 5, 2, 4),
                        ls_draws_of(&state, 5, 1, 5), ls_draws_of(&epoch, 5, 1, 4),
                        ls_draws_of(&batch, 5, 1, 4), ls_draws_of(&state, 5, 1, LS_WHOLE_BATCH)};
    double numbers[8];
    for (int i = 0; i < 8; i++) {
        numbers[i] = ls_draw_uniform(&draws[i]);
        for (int k = 0; k < i; k++) {
            assert_int_equal(numbers[i] == numbers[k], i == 1 && k == 0);
        }
        assert_true(ls_draw_uniform(&draws[i]) != numbers[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gates),
        cmocka_unit_test(test_hooks_of_compositions),
        cmocka_unit_test(test_refused_compositions),
        cmocka_unit_test(test_refused_options),
        cmocka_unit_test(test_two_averages),
        cmocka_unit_test(test_two_averages_without_validation),
        cmocka_unit_test(test_scaled_step_after_a_failed_hook),
        cmocka_unit_test(test_steps_of_ones_own),
        cmocka_unit_test(test_metric_that_is_not_there),
        cmocka_unit_test(test_metric_without_a_result),
        cmocka_unit_test(test_samples_that_do_not_fit),
        cmocka_unit_test(test_when_it_stops),
        cmocka_unit_test(test_weight_decay),
        cmocka_unit_test(test_a_sweep_leaves_nothing),
        cmocka_unit_test(test_description_of_layers),
        cmocka_unit_test(test_beta),
        cmocka_unit_test(test_draws_depend_on_their_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
