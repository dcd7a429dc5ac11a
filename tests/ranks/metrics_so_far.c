/*
 * Within a pass, ls_trial_metric returns the value over this rank's samples so far. After the pass, it returns the
 * value over all ranks. Custom metrics, merged by their own function, do the same. With `.shards`, the samples of all
 * slices of this rank count. A failed pass leaves no values.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <math.h>
#include <string.h>

#include <lockstep/train.h>

enum { SAMPLES = 22, HELD_BACK = 10, BATCH = 4, EPOCHS = 2 };

/* The samples and values that this rank has seen in the pass. */
typedef struct seen {
    double sum; /* of the losses of samples */
    double count;
    double largest;
    double last_loss;     /* of the previous epoch */
    double training_loss; /* of this epoch */
    double validation_loss;
    ls_loader *held_back; /* evaluated during a pass */
} seen;

static ls_dataset *make_dataset(int64_t count, int64_t first) {
    double values[SAMPLES];
    for (int64_t i = 0; i < count; i++) {
        values[i] = cos((double)(first + i));
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *numbers = ls_from(LS_SHAPE(count, 1), LS_F64, values);
    ls_dataset *set = ls_tensor_dataset(numbers, ls_zeros(LS_SHAPE(count, 1), LS_F64));
    return ls_scope_end(scope) == LS_OK ? set : NULL;
}

static ls_tensor *as_it_is(ls_tensor *x, void *user) {
    (void)user;
    return x;
}

static bool is_near(double is, double want) {
    return fabs(is - want) <= 1e-12 * fabs(want) || (isnan(is) && isnan(want));
}

/* ---- a metric that is merged: the largest sample ----------------------------------------------------------------- */

static void begin_largest(double *numbers, void *user) {
    (void)user;
    numbers[0] = (double)-INFINITY;
}

static void merge_largest(double *numbers, const double *other, void *user) {
    (void)user;
    numbers[0] = fmax(numbers[0], other[0]);
}

static ls_status update_largest(const ls_trial_state *state, void *user, double *numbers) {
    const double largest = ls_item(ls_max(state->input));
    merge_largest(numbers, &largest, user);
    return LS_OK;
}

static double result_of_largest(const double *numbers, void *user) {
    (void)user;
    return numbers[0];
}

static const ls_metric_functions largest = {.name = "largest",
                                            .width = 1,
                                            .init = begin_largest,
                                            .update = update_largest,
                                            .merge = merge_largest,
                                            .result = result_of_largest};

/* ---- hooks ------------------------------------------------------------------------------------------------------- */

static ls_status on_start(ls_trial_state *state, void *user) {
    seen *s = user;
    s->sum = s->count = 0;
    s->largest = (double)-INFINITY;
    LS_CHECK(is_near(ls_trial_metric(state->trial, "loss"), s->last_loss)); /* of the previous epoch */
    return LS_OK;
}

static ls_status check(const ls_trial_state *state, const seen *s, const char *loss, const char *max) {
    LS_CHECK(is_near(ls_trial_metric(state->trial, loss), s->count > 0 ? s->sum / s->count : (double)NAN));
    LS_CHECK(s->count == 0 || is_near(ls_trial_metric(state->trial, max), s->largest));
    return LS_OK;
}

/* Before the first batch of an epoch, no metric has a value, not even a running mean. */
static ls_status on_sample(ls_trial_state *state, void *user) {
    LS_CHECK((state->batch == 0) == isnan(ls_trial_metric(state->trial, "running_loss")));
    LS_CHECK(state->batch > 0 || isnan(ls_trial_metric(state->trial, "largest")));
    return check(state, user, "loss", "largest");
}

static ls_status add_batch(const ls_trial_state *state, seen *s) {
    if (state->count > 0) {
        s->sum += ls_item(ls_sum(ls_square(state->input)));
        s->count += (double)state->count;
        s->largest = fmax(s->largest, ls_item(ls_max(state->input)));
    }
    return LS_OK;
}

static ls_status on_step_training(ls_trial_state *state, void *user) {
    seen *s = user;
    LS_TRY(add_batch(state, s));
    LS_TRY(check(state, s, "loss", "largest"));
    LS_CHECK(ls_trial_metric(state->trial, "lr") == 0.5);
    LS_TRY(ls_trial_evaluate(state->trial, s->held_back, "now"));
    LS_CHECK(ls_trial_metric(state->trial, "now_loss") > 0); /* the pass of ls_trial_evaluate has ended */
    return check(state, s, "loss", "largest");
}

/* Checks the values over all ranks after a pass over `samples` samples. */
static ls_status check_pass(const ls_trial_state *state, seen *s, const char *loss, const char *max, int samples) {
    double sums[2] = {s->sum, s->count};
    LS_TRY(ls_comm_allreduce(state->comm, sums, sums, 2, LS_F64, LS_SUM, NULL));
    LS_TRY(ls_comm_allreduce(state->comm, &s->largest, &s->largest, 1, LS_F64, LS_MAX, NULL));
    LS_CHECK(sums[1] == samples && is_near(ls_trial_metric(state->trial, loss), sums[0] / sums[1]));
    LS_CHECK(ls_trial_metric(state->trial, max) == s->largest);
    return LS_OK;
}

static ls_status on_end_training(ls_trial_state *state, void *user) {
    seen *s = user;
    LS_TRY(check_pass(state, s, "loss", "largest", SAMPLES));
    s->training_loss = s->last_loss = ls_trial_metric(state->trial, "loss");
    return LS_OK;
}

static ls_status on_step_validation(ls_trial_state *state, void *user) {
    seen *s = user;
    LS_TRY(add_batch(state, s));
    LS_TRY(check(state, s, "val_loss", "val_largest"));
    LS_CHECK(ls_trial_metric(state->trial, "loss") == s->training_loss);
    return LS_OK;
}

static ls_status on_end_validation(ls_trial_state *state, void *user) {
    seen *s = user;
    LS_TRY(check_pass(state, s, "val_loss", "val_largest", HELD_BACK));
    s->validation_loss = ls_trial_metric(state->trial, "val_loss");
    return LS_OK;
}

static ls_status do_nothing(ls_trial_state *state, void *user) {
    (void)user;
    state->loss = state->count > 0 ? ls_mean(ls_square(state->output = state->input)) : NULL;
    return LS_OK;
}

/* ---- slices ------------------------------------------------------------------------------------------------------ */

enum { SLICES = 6 };

static ls_status mean_input(const ls_trial_state *state, void *user, double *sum, double *weight) {
    (void)user;
    *sum = ls_item(ls_sum(state->input));
    *weight = (double)state->count;
    return LS_OK;
}

static ls_status add_slice(const ls_trial_state *state, seen *s) {
    if (state->count > 0) {
        s->sum += ls_item(ls_sum(state->input));
        s->count += (double)state->count;
        s->largest = fmax(s->largest, ls_item(ls_max(state->input)));
    }
    return LS_OK;
}

static ls_status on_sliced_start(ls_trial_state *state, void *user) {
    *(seen *)user = (seen){.largest = (double)-INFINITY, .held_back = ((seen *)user)->held_back};
    LS_CHECK(state->phase != LS_PHASE_NONE);
    return LS_OK;
}

/* Called once per batch, with the whole share of this rank. */
static ls_status on_sliced_step(ls_trial_state *state, void *user) {
    seen *s = user;
    LS_TRY(add_slice(state, s));
    LS_TRY(check(state, s, "input", "largest"));
    LS_CHECK(ls_trial_metric(state->trial, "lr") == 0.5);
    LS_TRY(ls_trial_evaluate(state->trial, s->held_back, "now"));
    LS_CHECK(!isnan(ls_trial_metric(state->trial, "now_input")));
    return check(state, s, "input", "largest");
}

/* Called once per slice. */
static ls_status on_sliced_validation(ls_trial_state *state, void *user) {
    LS_TRY(add_slice(state, user));
    return check(state, user, "val_input", "val_largest");
}

static ls_status with_slices(ls_comm *world) {
    const ls_loader_options loading = {.global_batch_size = BATCH, .comm = world, .seed = 3, .shards = SLICES};
    ls_module *model = ls_data_parallel(ls_nn_linear_with(1, 1, &(ls_linear_options){.dtype = LS_F64}), world,
                                        &(ls_data_parallel_options){.shards = SLICES});
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.5});
    ls_loader *train = ls_loader_new(make_dataset(SAMPLES, 0), &loading);
    ls_loader *validate = ls_loader_new(make_dataset(HELD_BACK, SAMPLES), &loading);
    seen s = {.held_back = ls_loader_new(make_dataset(HELD_BACK, SAMPLES), &loading)};
    const ls_callback_hooks hooks = {.on_start_training = on_sliced_start,
                                     .on_step_training = on_sliced_step,
                                     .on_start_validation = on_sliced_start,
                                     .on_step_validation = on_sliced_validation};
    ls_trial *trial = ls_trial_new(&(ls_trial_options){
        .model = model,
        .optimizer = optimizer,
        .criterion = ls_criterion_mse,
        .train = train,
        .validate = validate,
        .metrics = LS_METRICS("loss", "lr"),
        LS_CUSTOM_METRICS(ls_metric_new(&largest, NULL),
                          ls_metric_new(&(ls_metric_functions){.name = "input", .mean = mean_input}, NULL)),
        LS_CALLBACKS(ls_callback_new(&hooks, &s)),
        .quiet = true});
    LS_CHECK(trial != NULL);
    LS_TRY(ls_trial_run(trial, EPOCHS));
    ls_trial_free(trial);
    ls_loader_free(train);
    ls_loader_free(validate);
    ls_loader_free(s.held_back);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

/* ---- without slices ---------------------------------------------------------------------------------------------- */

static ls_loader *make_loader(ls_comm *world, int64_t count, int64_t first) {
    return ls_loader_new(make_dataset(count, first),
                         &(ls_loader_options){.global_batch_size = BATCH, .comm = world, .seed = 3});
}

typedef struct parts {
    ls_module *model;
    ls_tensor *parameter;
    ls_optimizer *optimizer;
    ls_loader *train, *validate;
    ls_trial *trial;
} parts;

static ls_status begin(parts *p, ls_comm *world, ls_callback *callback) {
    *p = (parts){.model = ls_nn_function("AsItIs", as_it_is, NULL),
                 .parameter = ls_zeros(LS_SHAPE(1), LS_F64),
                 .optimizer = ls_sgd(NULL, NULL),
                 .train = make_loader(world, SAMPLES, 0),
                 .validate = make_loader(world, HELD_BACK, SAMPLES)};
    LS_TRY(ls_set_requires_grad(p->parameter, true));
    LS_TRY(ls_optimizer_add_group(p->optimizer, &p->parameter, 1, &(ls_group_options){.learning_rate = 0.5}));
    p->trial = ls_trial_new(&(ls_trial_options){.model = p->model,
                                                .optimizer = p->optimizer,
                                                .criterion = ls_criterion_mse,
                                                .step = do_nothing,
                                                .train = p->train,
                                                .validate = p->validate,
                                                .comm = world,
                                                .metrics = LS_METRICS("loss", "running_loss", "lr"),
                                                LS_CUSTOM_METRICS(ls_metric_new(&largest, NULL)),
                                                LS_CALLBACKS(callback),
                                                .quiet = true});
    LS_CHECK(p->trial != NULL);
    return LS_OK;
}

static void end(const parts *p) {
    ls_trial_free(p->trial);
    ls_loader_free(p->train);
    ls_loader_free(p->validate);
    ls_optimizer_free(p->optimizer);
    ls_module_free(p->model);
    ls_release(p->parameter);
}

static ls_status without_slices(ls_comm *world) {
    seen s = {.last_loss = NAN, .held_back = make_loader(world, HELD_BACK, SAMPLES)};
    const ls_callback_hooks hooks = {.on_start_training = on_start,
                                     .on_sample = on_sample,
                                     .on_step_training = on_step_training,
                                     .on_end_training = on_end_training,
                                     .on_start_validation = on_start,
                                     .on_step_validation = on_step_validation,
                                     .on_end_validation = on_end_validation};
    parts p;
    LS_TRY(begin(&p, world, ls_callback_new(&hooks, &s)));
    LS_TRY(ls_trial_run(p.trial, EPOCHS));
    LS_CHECK(ls_trial_metric(p.trial, "loss") == s.training_loss);
    LS_CHECK(ls_trial_metric(p.trial, "val_loss") == s.validation_loss);
    end(&p);
    ls_loader_free(s.held_back);
    return LS_OK;
}

/* ---- a pass that failed ------------------------------------------------------------------------------------------ */

/* The results of the latest complete passes. */
typedef struct results {
    ls_trial_phase fails_in;
    int failures;
    double loss, validation_loss;
} results;

/* After a failed pass, its values so far, which differ between ranks, are not visible. */
static ls_status has_results(ls_trial_state *state, void *user) {
    const results *r = user;
    LS_CHECK(is_near(ls_trial_metric(state->trial, "loss"), r->loss));
    LS_CHECK(is_near(ls_trial_metric(state->trial, "val_loss"), r->validation_loss));
    return LS_OK;
}

static ls_status fail_once(ls_trial_state *state, void *user) {
    results *r = user;
    if (r->failures == 0 && state->phase == r->fails_in && state->epoch == 1 && state->batch == 1) {
        r->failures++;
        return ls_error_set(LS_ERR_ARGUMENT, "this hook fails");
    }
    return LS_OK;
}

static ls_status take_result(ls_trial_state *state, void *user) {
    results *r = user;
    *(state->phase == LS_PHASE_TRAINING ? &r->loss : &r->validation_loss) =
        ls_trial_metric(state->trial, state->phase == LS_PHASE_TRAINING ? "loss" : "val_loss");
    return LS_OK;
}

static ls_status with_failed_pass(ls_comm *world, ls_trial_phase fails_in) {
    results r = {.fails_in = fails_in, .loss = NAN, .validation_loss = NAN};
    const ls_callback_hooks hooks = {.on_start = has_results,
                                     .on_start_epoch = has_results,
                                     .on_start_training = has_results,
                                     .on_step_training = fail_once,
                                     .on_end_training = take_result,
                                     .on_start_validation = has_results,
                                     .on_step_validation = fail_once,
                                     .on_end_validation = take_result};
    parts p;
    LS_TRY(begin(&p, world, ls_callback_new(&hooks, &r)));
    LS_CHECK(ls_trial_run(p.trial, EPOCHS) == LS_ERR_ARGUMENT && r.failures == 1);
    LS_TRY(ls_trial_run(p.trial, EPOCHS));
    end(&p);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(without_slices(world));
    LS_TRY(with_failed_pass(world, LS_PHASE_TRAINING));
    LS_TRY(with_failed_pass(world, LS_PHASE_VALIDATION));
    LS_TRY(strcmp(ls_default_device(), "cpu") == 0 ? with_slices(world) : LS_OK); /* .shards needs a CPU */
    return ls_comm_barrier(world, NULL);
}
