/*
 * Callbacks that change samples, and callbacks that average weights: training on any number of ranks gives the same
 * result as in a single process, and a result that differs from training without the callbacks. The changed samples
 * are checked, too.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/training.h"

#include "base/share.h"

enum { EPOCHS = 3, SIDE = 6, PLANES = 2, PICTURES = 30, CLASSES = TRAINING_CLASSES };

/* ---- pictures ---------------------------------------------------------------------------------------------------- */

static ls_dataset *make_pictures(void) {
    ls_tensor *input = ls_empty(LS_SHAPE(PICTURES, PLANES, SIDE, SIDE), LS_F64);
    ls_tensor *target = ls_empty(LS_SHAPE(PICTURES), LS_I64);
    for (int64_t i = 0; i < ls_numel(input); i++) {
        ((double *)elements(input))[i] = 2 + ls_random_uniform(TRAINING_SEED, 9, (uint64_t)i);
    }
    for (int64_t i = 0; i < PICTURES; i++) {
        ((int64_t *)elements(target))[i] = i % CLASSES;
    }
    return ls_tensor_dataset(input, target);
}

/* Replaces the training data of a prepared trial. */
static ls_status show_pictures(training *t, ls_comm *comm, int64_t global_batch) {
    const ls_linear_options layer = {.dtype = LS_F64};
    const ls_loader_options loading = {
        .global_batch_size = global_batch, .comm = comm, .seed = TRAINING_SEED, .threads = comm != NULL ? 2 : 0};
    ls_optimizer_free(t->optimizer);
    ls_loader_free(t->train);
    ls_loader_free(t->validate);
    ls_module_free(t->model);
    ls_seed(TRAINING_SEED);
    t->model = ls_sequential(ls_nn_flatten(), ls_nn_linear_with(PLANES * SIDE * SIDE, 5, &layer), ls_nn_tanh(),
                             ls_nn_linear_with(5, CLASSES, &layer));
    t->model = comm != NULL ? ls_data_parallel(t->model, comm, NULL) : t->model;
    t->optimizer = ls_sgd(t->model, &(ls_sgd_options){.learning_rate = 0.02, .momentum = 0.5});
    t->train = ls_loader_new(make_pictures(), &loading);
    t->validate = ls_loader_new(make_pictures(), &loading);
    LS_CHECK(t->optimizer != NULL && t->train != NULL && t->validate != NULL);
    return LS_OK;
}

static ls_status train(training *t, ls_comm *comm, ls_callback *callback, ls_callback *after, int64_t global_batch) {
    ls_callback *const callbacks[] = {callback, after};
    const training_plan plan = {.callbacks = callbacks, .callback_count = 2};
    LS_TRY(training_prepare(t, &plan, comm));
    LS_TRY(show_pictures(t, comm, global_batch));
    training_start(t, &plan);
    LS_CHECK(t->trial != NULL);
    return ls_trial_run(t->trial, EPOCHS);
}

typedef ls_callback *(*maker)(void);

static ls_callback *mixup(void) {
    return ls_mixup(&(ls_mixup_options){.classes = CLASSES, .alpha = 0.4});
}

static ls_callback *pairing(void) {
    return ls_mixup(&(ls_mixup_options){.lambda = 0.5, .keep_targets = true, .seed = 3});
}

static ls_callback *cutmix(void) {
    return ls_cutmix(&(ls_cutmix_options){.classes = CLASSES});
}

static ls_callback *cutout(void) {
    return ls_cutout(&(ls_cutout_options){.length = 3, .holes = 2, .fill = -1});
}

static ls_callback *erasing(void) {
    return ls_cutout(&(ls_cutout_options){.length = 4, .noise = true});
}

static ls_callback *smoothing(void) {
    return ls_label_smoothing(0.2, CLASSES);
}

static ls_callback *manifold(void) {
    return ls_manifold_mixup(&(ls_manifold_mixup_options){.classes = CLASSES});
}

static ls_callback *manifold_by_name(void) {
    static const char *const layers[] = {"1", "2", NULL};
    return ls_manifold_mixup(&(ls_manifold_mixup_options){.classes = CLASSES, .layers = layers, .lambda = 0.3});
}

static ls_callback *averaging(void) {
    return ls_weight_averaging(&(ls_weight_averaging_options){.decay = 0.8, .keep = true});
}

static ls_callback *averaging_of_epochs(void) {
    return ls_weight_averaging(&(ls_weight_averaging_options){.first_epoch = 1, .keep = true});
}

static ls_status nothing(ls_trial_state *state, void *user) {
    (void)state;
    (void)user;
    return LS_OK;
}

static ls_callback *none(void) {
    return ls_callback_new(&(ls_callback_hooks){.on_end = nothing}, NULL);
}

static ls_status as_alone(ls_comm *world, maker make, int64_t global_batch) {
    training all, alone, plain;
    LS_TRY(train(&all, world, make(), none(), global_batch));
    LS_TRY(train(&alone, NULL, make(), none(), global_batch));
    LS_TRY(train(&plain, NULL, none(), none(), global_batch));
    LS_CHECK(parameter_difference(all.model, alone.model) < 1e-10);
    LS_CHECK(parameter_difference(plain.model, alone.model) > 1e-4);
    for (int i = 0; i < EPOCHS; i++) {
        LS_CHECK(fabs(ls_trial_history(all.trial, i, "loss") - ls_trial_history(alone.trial, i, "loss")) < 1e-10);
        LS_CHECK(fabs(ls_trial_history(all.trial, i, "val_loss") - ls_trial_history(alone.trial, i, "val_loss")) <
                 1e-10);
    }
    training_end(&all);
    training_end(&alone);
    training_end(&plain);
    return LS_OK;
}

/* ---- changed samples --------------------------------------------------------------------------------------------- */

/* All ranks' samples of the first batch of the last epoch, in order. */
typedef struct seen {
    double inputs[PICTURES][PLANES * SIDE * SIDE];
    double targets[PICTURES][CLASSES];
    int64_t count;
} seen;

static ls_status see(ls_trial_state *state, void *user) {
    seen *s = user;
    if (state->epoch != EPOCHS - 1 || state->batch != 0) {
        return LS_OK;
    }
    const ls_dtype dtype = ls_dtype_of(state->target);
    LS_CHECK(ls_dtype_of(state->input) == LS_F64 && ls_size(state->input, 0) == state->count);
    memcpy(s->inputs, elements(state->input), (size_t)ls_numel(state->input) * sizeof(double));
    for (int64_t i = 0; i < ls_numel(state->target); i++) {
        if (dtype == LS_I64) {
            s->targets[i][((int64_t *)elements(state->target))[i]] = 1;
        } else {
            s->targets[i / CLASSES][i % CLASSES] = dtype == LS_F32 ? (double)((float *)elements(state->target))[i]
                                                                   : ((double *)elements(state->target))[i];
        }
    }
    s->count = state->count;
    return LS_OK;
}

static ls_status see_batch(ls_comm *comm, maker make, int64_t global_batch, seen *s) {
    training t;
    memset(s, 0, sizeof *s);
    LS_TRY(train(&t, comm, make(), ls_callback_new(&(ls_callback_hooks){.on_sample = see}, s), global_batch));
    training_end(&t);
    return LS_OK;
}

/* This rank's samples are bit-identical to one process's samples at the same positions. */
static ls_status same_samples(ls_comm *world, maker make) {
    static _Thread_local seen mine, all;
    const int64_t batch = 16;
    const ls_share share = ls_share_of(batch, ls_comm_size(world), ls_comm_rank(world));
    LS_TRY(see_batch(world, make, batch, &mine));
    LS_TRY(see_batch(NULL, make, batch, &all));
    LS_CHECK(mine.count == share.count && all.count == batch);
    LS_CHECK(memcmp(mine.inputs, all.inputs[share.start], (size_t)mine.count * sizeof *mine.inputs) == 0);
    LS_CHECK(memcmp(mine.targets, all.targets[share.start], (size_t)mine.count * sizeof *mine.targets) == 0);
    return LS_OK;
}

enum { PIXELS = SIDE * SIDE };

/* Returns the number of pixels in which a sample differs from the plain batch. */
static int changed(const double *a, const double *b) {
    int count = 0;
    for (int i = 0; i < PLANES * PIXELS; i++) {
        count += a[i] != b[i];
    }
    return count;
}

/* Targets add up to 1. Their weights match the inputs, each a mixture of two samples of the plain batch. */
static ls_status looks_right(void) {
    static _Thread_local seen plain, mixed, cut, holes, smooth;
    LS_TRY(see_batch(NULL, none, PICTURES, &plain));
    LS_TRY(see_batch(NULL, pairing, PICTURES, &mixed));
    LS_TRY(see_batch(NULL, cutmix, PICTURES, &cut));
    LS_TRY(see_batch(NULL, cutout, PICTURES, &holes));
    LS_TRY(see_batch(NULL, smoothing, PICTURES, &smooth));
    int mixes = 0, shapes = 0;
    for (int i = 0; i < PICTURES; i++) {
        bool is_pair = false;
        for (int k = 0; k < PICTURES; k++) {
            is_pair = is_pair || fabs(mixed.inputs[i][7] - (plain.inputs[i][7] + plain.inputs[k][7]) / 2) < 1e-14;
        }
        mixes += is_pair && mixed.inputs[i][7] != plain.inputs[i][7];
        const int pixels = changed(cut.inputs[i], plain.inputs[i]);
        double sum = 0, kept = 0;
        for (int c = 0; c < CLASSES; c++) {
            sum += cut.targets[i][c];
            kept += cut.targets[i][c] * plain.targets[i][c];
            LS_CHECK(fabs(smooth.targets[i][c] - (plain.targets[i][c] * 0.8 + 0.2 / CLASSES)) < 1e-6);
        }
        LS_CHECK(fabs(sum - 1) < 1e-6);
        LS_CHECK(pixels == 0 || kept > 1 - 1e-6 || fabs(kept - (1 - pixels / (double)(PLANES * PIXELS))) < 1e-6);
        LS_CHECK(memcmp(holes.targets[i], plain.targets[i], sizeof *holes.targets) == 0);
        const int filled = changed(holes.inputs[i], plain.inputs[i]);
        LS_CHECK(filled >= PLANES * 2 * 2 && filled <= PLANES * 2 * 9);
        for (int k = 0; k < PLANES * PIXELS; k++) {
            LS_CHECK(holes.inputs[i][k] == plain.inputs[i][k] || holes.inputs[i][k] == -1);
        }
        shapes += i > 0 && filled != changed(holes.inputs[0], plain.inputs[0]);
    }
    LS_CHECK(mixes > PICTURES / 2 && shapes > 0);
    LS_CHECK(memcmp(mixed.targets, plain.targets, sizeof mixed.targets) == 0);
    return LS_OK;
}

/* ---- averages ---------------------------------------------------------------------------------------------------- */

/* Stores the first parameter after each step, and inspects validation. */
typedef struct history {
    ls_callback *averaging;
    double weights[64];
    int steps;
    double validated;
    double after;
} history;

static double first_weight(const ls_trial_state *state) {
    return ((double *)elements(ls_module_parameter(state->model, 0)))[0];
}

static ls_status note_step(ls_trial_state *state, void *user) {
    history *h = user;
    h->weights[h->steps++] = first_weight(state);
    return LS_OK;
}

static ls_status note_validated(ls_trial_state *state, void *user) {
    ((history *)user)->validated = first_weight(state);
    return LS_OK;
}

static ls_status note_after(ls_trial_state *state, void *user) {
    ((history *)user)->after = first_weight(state);
    return LS_OK;
}

static ls_status averages(ls_comm *world, double decay) {
    history h = {.averaging = ls_weight_averaging(&(ls_weight_averaging_options){.decay = decay})};
    training t;
    LS_TRY(train(&t, world, h.averaging,
                 ls_callback_new(&(ls_callback_hooks){.on_step_training = note_step,
                                                      .on_sample_validation = note_validated,
                                                      .on_end_epoch = note_after},
                                 &h),
                 10));
    LS_CHECK(h.steps == 3 * EPOCHS && h.after == h.weights[h.steps - 1]);
    double want = decay > 0 ? h.weights[0] : 0;
    for (int i = 1; i < h.steps && decay > 0; i++) {
        want = decay * want + (1 - decay) * h.weights[i];
    }
    for (int i = 2; i < h.steps && decay == 0; i += 3) {
        want += h.weights[i] / EPOCHS;
    }
    LS_CHECK(fabs(h.validated - want) < 1e-14 && h.validated != h.after);
    LS_CHECK(ls_weight_averaging_count(h.averaging) == (decay > 0 ? h.steps : EPOCHS));
    LS_TRY(same_on_all(world, h.validated));
    LS_TRY(ls_trial_evaluate(t.trial, t.validate, "test"));
    LS_CHECK(ls_trial_metric(t.trial, "test_loss") == ls_trial_metric(t.trial, "val_loss"));
    training_end(&t);
    return LS_OK;
}

static ls_status stop_within_epoch(ls_trial_state *state, void *user) {
    (void)user;
    state->stop = state->step == 4;
    return LS_OK;
}

/* An epoch counts once, although a hook stopped the run within it. */
static ls_status averages_whole_epochs(ls_comm *world) {
    ls_callback *averaging = ls_weight_averaging(NULL);
    training t;
    LS_TRY(train(&t, world, averaging,
                 ls_callback_new(&(ls_callback_hooks){.on_step_training = stop_within_epoch}, NULL), 10));
    LS_CHECK(ls_trial_history_count(t.trial) == 1 && ls_weight_averaging_count(averaging) == 1);
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    LS_CHECK(ls_trial_history_count(t.trial) == EPOCHS && ls_weight_averaging_count(averaging) == EPOCHS);
    training_end(&t);
    return LS_OK;
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static ls_status refused(ls_comm *world, ls_callback *callback, const char *words) {
    training t;
    const ls_status status = train(&t, world, callback, none(), 12);
    LS_CHECK(status != LS_OK);
    if (strstr(ls_error_message(), words) == NULL) {
        return ls_fail(LS_ERR_INTERNAL, "\"%s\" does not say \"%s\"", ls_error_message(), words);
    }
    training_end(&t);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    static const maker makers[] = {mixup,     pairing,  cutmix,           cutout,    erasing,
                                   smoothing, manifold, manifold_by_name, averaging, averaging_of_epochs};
    static const maker samples[] = {mixup, pairing, cutmix, cutout, erasing, smoothing};
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
        LS_TRY(as_alone(world, makers[i], 7));
        LS_TRY(as_alone(world, makers[i], 2));
    }
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        LS_TRY(same_samples(world, samples[i]));
    }
    LS_TRY(looks_right());
    LS_TRY(averages(world, 0.6));
    LS_TRY(averages(world, 0));
    LS_TRY(averages_whole_epochs(world));
    LS_TRY(refused(world, ls_mixup(NULL), "ls_mixup: targets are class numbers ["));
    LS_TRY(refused(world, ls_cutmix(&(ls_cutmix_options){.classes = 2}), "ls_cutmix: a target is 2, but there are 2"));
    LS_TRY(refused(world, ls_label_smoothing(0.1, 0), "`classes` must be given"));
    return ls_comm_barrier(world, NULL);
}
