/*
 * Metrics on several ranks: with the same global batches, every value equals the value of one process and is
 * bit-identical on all ranks, for any distribution of the samples, even if ranks get no samples of a batch or of a
 * pass, or if training resumes in the middle of an epoch.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/kept_metrics.h"
#include "tests/support/ranks.h"
#include "tests/support/scores.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tensor/device.h"
#include "train/trial.h"

enum { CLASSES = 4, EPOCHS = 3 };

static const char *const of_classes[] = {"loss",         "acc",      "running_loss", "running_acc",      "loss_std",
                                         "loss_var",     "acc_std",  "top_2_acc",    "top_2_acc_var",    "precision",
                                         "recall_micro", "f1_macro", "confusion",    "recall_per_class", "lr",
                                         "epoch",        NULL};
static const char *const of_numbers[] = {"loss",
                                         "mse",
                                         "rmse",
                                         "mae",
                                         "r2",
                                         "running_mse",
                                         "mse_std",
                                         "mae_var",
                                         "roc_auc",
                                         "f1",
                                         "precision_per_class",
                                         "binary_acc_logits_std",
                                         NULL};
static const char *const of_users[] = {"formula", "running_own", NULL};

/* ---- data and criteria ------------------------------------------------------------------------------------------- */

static ls_status measure_size(const ls_trial_state *state, void *user, double *sum, double *weight) {
    (void)user;
    *sum = ls_item(ls_sum(ls_abs(state->output)));
    *weight = (double)ls_numel(state->output);
    return LS_OK;
}

static ls_status add_squares(const ls_trial_state *state, void *user, double *sums) {
    (void)user;
    sums[0] += (double)state->count;
    sums[1] += ls_item(ls_sum(state->output));
    sums[2] += ls_item(ls_sum(ls_square(state->output)));
    return LS_OK;
}

static double make_formula(const double *sums, void *user) {
    (void)user;
    return sums[2] / sums[0] - sums[1] * sums[1] / (sums[0] * sums[0]);
}

/* The outputs are the samples. They differ between epochs, and nothing is learned. Some classes have more weight. */
static ls_status tell_outputs(ls_trial_state *state, void *user) {
    (void)user;
    static const double weights[CLASSES] = {0.125, 1, 0, 5};
    if (state->count > 0) {
        ls_class_loss_options options = {.weight = ls_from(LS_SHAPE(CLASSES), LS_F64, weights)};
        state->output = ls_mul(state->input, 1 + (double)state->epoch);
        void *user_options = state->criterion == ls_criterion_cross_entropy ? &options : NULL;
        state->loss = state->criterion(state->output, state->target, user_options);
    }
    return LS_OK;
}

/* Targets are class numbers, or 0 and 1 with logits, many of which are equal. */
static ls_dataset *make_dataset(bool classes, uint32_t salt, int64_t count) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *targets = score_targets(salt + 10, count, classes ? CLASSES : 2);
    ls_dataset *set = classes ? ls_tensor_dataset(scores(salt, LS_SHAPE(count, CLASSES)), targets)
                              : ls_tensor_dataset(scores_of_steps(salt, LS_SHAPE(count, 1), 12),
                                                  ls_to(ls_unsqueeze(targets, 1), LS_F64));
    return ls_scope_end(scope) == LS_OK ? set : NULL;
}

/* ---- trials ------------------------------------------------------------------------------------------------------ */

typedef struct plan {
    bool classes;
    int64_t global_batch;
    int64_t samples;
    int64_t held_back;
    ls_callback *callback; /* NULL means a callback without hooks */
} plan;

/* One participant: all ranks together, or this process alone with the same global batches. */
typedef struct participant {
    ls_module *model;
    ls_tensor *parameter;
    ls_optimizer *optimizer;
    ls_loader *train;
    ls_loader *other;
    ls_trial *trial;
} participant;

static ls_status begin(participant *p, const plan *how, ls_comm *comm) {
    const ls_loader_options loading = {.global_batch_size = how->global_batch, .comm = comm, .seed = 5};
    ls_callback *callback =
        how->callback != NULL ? how->callback : ls_callback_new(&(ls_callback_hooks){.name = "none"}, NULL);
    const ls_metric_functions formula = {.name = "formula", .width = 3, .update = add_squares, .result = make_formula};
    ls_metric *own = ls_metric_new(&(ls_metric_functions){.name = "own", .mean = measure_size}, NULL);
    *p = (participant){.model = ls_nn_function("AsItIs", as_it_is, NULL), .parameter = ls_zeros(LS_SHAPE(1), LS_F64)};
    LS_TRY(ls_set_requires_grad(p->parameter, true));
    p->optimizer = ls_sgd(NULL, NULL);
    LS_TRY(ls_optimizer_add_group(p->optimizer, &p->parameter, 1, NULL));
    p->train = ls_loader_new(make_dataset(how->classes, 1, how->samples), &loading);
    p->other = ls_loader_new(make_dataset(how->classes, 2, how->held_back), &loading);
    p->trial = ls_trial_new(
        &(ls_trial_options){.model = p->model,
                            .optimizer = p->optimizer,
                            .criterion = how->classes ? ls_criterion_cross_entropy : ls_criterion_bce_with_logits,
                            .step = tell_outputs,
                            .train = p->train,
                            .comm = comm,
                            .metrics = how->classes ? of_classes : of_numbers,
                            LS_CUSTOM_METRICS(ls_metric_new(&formula, NULL),
                                              ls_metric_running(own, &(ls_running_options){.window = 3, .every = 2})),
                            .callbacks = &callback,
                            .callback_count = 1,
                            .quiet = true});
    LS_CHECK(p->trial != NULL);
    return LS_OK;
}

static void end(participant *p) {
    ls_trial_free(p->trial);
    ls_optimizer_free(p->optimizer);
    ls_loader_free(p->train);
    ls_loader_free(p->other);
    ls_module_free(p->model);
    ls_release(p->parameter);
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static ls_status same_bits(ls_comm *world, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    int64_t sides[2] = {(int64_t)(bits >> 1), -(int64_t)(bits >> 1)};
    LS_TRY(ls_comm_allreduce(world, sides, sides, 2, LS_I64, LS_MAX, NULL));
    LS_CHECK(sides[0] == -sides[1]);
    return LS_OK;
}

/* Returns whether a metric is also measured outside of training. */
static bool is_of_all_passes(const char *name) {
    return strncmp(name, "running_", 8) != 0 && strcmp(name, "lr") != 0;
}

static ls_status compare_metric(ls_comm *world, const participant *all, const participant *alone, const char *prefix,
                                const char *metric) {
    char name[64];
    int64_t count = 0;
    int64_t count_alone = 0;
    snprintf(name, sizeof name, "%s%s", prefix, metric);
    const double *is = ls_trial_metric_values(all->trial, name, &count);
    const double *want = ls_trial_metric_values(alone->trial, name, &count_alone);
    LS_CHECK(count == count_alone && (count > 0) == (prefix[0] == '\0' || is_of_all_passes(metric)));
    for (int64_t i = 0; i < count; i++) {
        LS_TRY(same_bits(world, is[i]));
        if (!(fabs(is[i] - want[i]) <= 1e-12 * fabs(want[i])) && !(isnan(is[i]) && isnan(want[i]))) {
            return ls_fail(LS_ERR_INTERNAL, "%s: measured %.17g, one process %.17g", name, is[i], want[i]);
        }
    }
    return LS_OK;
}

static ls_status compare_all(ls_comm *world, const participant *all, const participant *alone, const plan *how,
                             const char *prefix) {
    for (const char *const *names = how->classes ? of_classes : of_numbers; *names != NULL; names++) {
        LS_TRY(compare_metric(world, all, alone, prefix, *names));
    }
    for (const char *const *names = of_users; *names != NULL; names++) {
        LS_TRY(compare_metric(world, all, alone, prefix, *names));
    }
    return LS_OK;
}

static ls_status compare(ls_comm *world, const plan *how) {
    participant all;
    participant alone;
    LS_TRY(begin(&all, how, world));
    LS_TRY(begin(&alone, how, NULL));
    for (int epoch = 1; epoch <= EPOCHS; epoch++) {
        LS_TRY(ls_trial_run(all.trial, epoch));
        LS_TRY(ls_trial_run(alone.trial, epoch));
        LS_TRY(compare_all(world, &all, &alone, how, ""));
    }
    LS_TRY(ls_trial_evaluate(all.trial, all.other, "test"));
    LS_TRY(ls_trial_evaluate(alone.trial, alone.other, "test"));
    LS_TRY(compare_all(world, &all, &alone, how, "test_"));
    end(&all);
    end(&alone);
    return LS_OK;
}

/* Tests global batches of 7 samples (the last has 4), of 2 samples (some shares are empty), and of all samples. */
static ls_status equals_one_process(ls_comm *world) {
    for (int classes = 0; classes < 2; classes++) {
        LS_TRY(compare(world, &(plan){classes, .global_batch = 7, .samples = 53, .held_back = 17}));
        LS_TRY(compare(world, &(plan){classes, .global_batch = 2, .samples = 31, .held_back = 9}));
        LS_TRY(compare(world, &(plan){classes, .global_batch = 53, .samples = 53, .held_back = 17}));
    }
    return LS_OK;
}

/* Ranks that get samples only in the second pass, or never. */
static ls_status ranks_without_samples(ls_comm *world) {
    for (int classes = 0; classes < 2; classes++) {
        LS_TRY(compare(world, &(plan){classes, .global_batch = 5, .samples = 1, .held_back = 25}));
        LS_TRY(compare(world, &(plan){classes, .global_batch = 1, .samples = 3, .held_back = 2}));
    }
    return LS_OK;
}

/* ---- in the middle of an epoch ----------------------------------------------------------------------------------- */

static ls_status go_on_to_the_end(participant *p, int64_t done) {
    p->trial->continues = true;
    p->trial->state.batch = done;
    p->trial->epochs_run = 1;
    LS_TRY(ls_loader_seek(p->train, 1, done));
    return ls_trial_run(p->trial, 2);
}

static ls_status same_as(const participant *one, const participant *other, const char *const *names) {
    for (; *names != NULL; names++) {
        int64_t count = 0;
        const double *is = ls_trial_metric_values(one->trial, *names, &count);
        const double *want = ls_trial_metric_values(other->trial, *names, NULL);
        LS_CHECK(count > 0 && memcmp(is, want, (size_t)count * sizeof *is) == 0);
    }
    return LS_OK;
}

/* Resumes the second epoch after one of its 8 batches: the values are bit-identical to the values of an uninterrupted
 * run. */
static ls_status goes_on(ls_comm *world, bool classes, int64_t done) {
    kept_state kept = {.after = 8 + done};
    plan how = {classes, .global_batch = 7, .samples = 53, .held_back = 17};
    participant whole;
    participant rest;
    how.callback = ls_callback_new(&(ls_callback_hooks){.on_step_training = keep_state}, &kept);
    LS_TRY(begin(&whole, &how, world));
    LS_TRY(ls_trial_run(whole.trial, 2));
    how.callback = NULL;
    LS_TRY(begin(&rest, &how, world));
    LS_TRY(ls_metrics_set_state(rest.trial, kept.tensors, kept.count));
    LS_TRY(go_on_to_the_end(&rest, done));
    LS_TRY(same_as(&rest, &whole, classes ? of_classes : of_numbers));
    LS_TRY(same_as(&rest, &whole, of_users));
    release_state(&kept);
    end(&rest);
    end(&whole);
    return LS_OK;
}

/* ---- on another number of ranks ---------------------------------------------------------------------------------- */

/* Sends the state that rank `of` stored to every rank. */
static ls_status send_state(ls_comm *world, int of, const kept_state *kept, kept_state *theirs) {
    *theirs = (kept_state){.count = kept->count};
    for (int i = 0; i < kept->count; i++) {
        int64_t count = ls_numel(kept->tensors[i].tensor);
        LS_TRY(ls_comm_broadcast(world, &count, 1, LS_I64, of, NULL));
        ls_tensor *copy = ls_empty(LS_SHAPE(count), LS_F64);
        ls_host_view view;
        if (ls_comm_rank(world) == of) {
            LS_TRY(ls_copy_into(copy, kept->tensors[i].tensor));
        }
        LS_TRY(ls_host_view_begin(&view, copy, LS_HOST_READ | LS_HOST_WRITE));
        LS_TRY(ls_host_view_end(&view, ls_comm_broadcast(world, view.memory, (size_t)count, LS_F64, of, NULL)));
        theirs->tensors[i] = (ls_named){.name = kept->tensors[i].name, .tensor = copy};
    }
    return LS_OK;
}

/*
 * One process resumes from the counts of all ranks, and all ranks resume from the counts of one process: the values of
 * the epoch are the same.
 */
static ls_status goes_on_elsewhere(ls_comm *world, bool classes, int64_t done) {
    kept_state kept = {.after = 8 + done};
    kept_state theirs;
    plan how = {classes, .global_batch = 7, .samples = 53, .held_back = 17};
    participant all, alone, rest;
    how.callback = ls_callback_new(&(ls_callback_hooks){.on_step_training = keep_state}, &kept);
    LS_TRY(begin(&all, &how, world));
    LS_TRY(ls_trial_run(all.trial, 2));
    how.callback = NULL;
    LS_TRY(begin(&alone, &how, NULL));
    for (int rank = 0; rank < ls_comm_size(world); rank++) {
        LS_TRY(send_state(world, rank, &kept, &theirs));
        LS_TRY(rank == 0 ? ls_metrics_set_state(alone.trial, theirs.tensors, theirs.count)
                         : ls_metrics_add_state(alone.trial, theirs.tensors, theirs.count, false));
        release_state(&theirs);
    }
    LS_TRY(go_on_to_the_end(&alone, done));
    LS_TRY(compare_all(world, &all, &alone, &how, ""));
    release_state(&kept);

    how.callback = ls_callback_new(&(ls_callback_hooks){.on_step_training = keep_state}, &kept);
    LS_TRY(begin(&rest, &how, NULL));
    LS_TRY(ls_trial_run(rest.trial, 2));
    how.callback = NULL;
    end(&all);
    LS_TRY(begin(&all, &how, world));
    LS_TRY(ls_comm_rank(world) == 0 ? ls_metrics_set_state(all.trial, kept.tensors, kept.count)
                                    : ls_metrics_add_state(all.trial, kept.tensors, kept.count, true));
    LS_TRY(go_on_to_the_end(&all, done));
    LS_TRY(compare_all(world, &all, &alone, &how, ""));
    release_state(&kept);
    end(&all);
    end(&alone);
    end(&rest);
    return LS_OK;
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

/* Times cannot be predicted, but they must be measured. */
static ls_status takes_time(ls_comm *world) {
    ls_module *model = ls_nn_function("AsItIs", as_it_is, NULL);
    ls_loader *loader =
        ls_loader_new(make_dataset(true, 1, 40), &(ls_loader_options){.global_batch_size = 4, .comm = world});
    ls_trial *trial =
        ls_trial_new(&(ls_trial_options){.model = model,
                                         .step = tell_outputs,
                                         .criterion = ls_criterion_cross_entropy,
                                         .train = loader,
                                         .comm = world,
                                         .metrics = LS_METRICS("samples_per_second", "data_wait", "comm_wait"),
                                         .quiet = true});
    const uint64_t began = ls_clock_ns();
    LS_TRY(ls_trial_run(trial, 1));
    double seconds = (double)(ls_clock_ns() - began) * 1e-9;
    LS_TRY(ls_comm_allreduce(world, &seconds, &seconds, 1, LS_F64, LS_MAX, NULL));
    const double rate = ls_trial_metric(trial, "samples_per_second");
    const double data = ls_trial_metric(trial, "data_wait");
    const double communication = ls_trial_metric(trial, "comm_wait");
    LS_TRY(same_bits(world, rate));
    LS_TRY(same_bits(world, data));
    LS_TRY(same_bits(world, communication));
    LS_CHECK(rate >= 40 / seconds && data > 0 && data <= seconds);
    LS_CHECK((communication > 0) == (ls_comm_size(world) > 1) && data + communication <= seconds);
    ls_trial_free(trial);
    ls_loader_free(loader);
    ls_module_free(model);
    return LS_OK;
}

/* ---- ranks that disagree ----------------------------------------------------------------------------------------- */

static ls_status tell_fewer_classes(ls_trial_state *state, void *user) {
    (void)user;
    const int64_t classes = CLASSES - (ls_comm_rank(state->comm) == 0);
    state->output = ls_narrow(state->input, 1, 0, classes);
    state->target = ls_zeros(LS_SHAPE(state->count), LS_I64);
    state->loss = ls_mean(state->output);
    return LS_OK;
}

static ls_status different_classes(ls_comm *world) {
    ls_module *model = ls_nn_function("AsItIs", as_it_is, NULL);
    ls_loader *train = ls_loader_new(make_dataset(true, 1, 40), &(ls_loader_options){.batch_size = 4, .comm = world});
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .step = tell_fewer_classes,
                                                       .train = train,
                                                       .comm = world,
                                                       .metrics = LS_METRICS("f1"),
                                                       .quiet = true});
    const ls_status status = ls_trial_run(trial, 1);
    LS_CHECK(ls_comm_size(world) == 1 ? status == LS_OK : status == LS_ERR_SHAPE);
    LS_CHECK(status == LS_OK ||
             strstr(ls_error_message(), "metric \"f1\": the outputs of the ranks have different numbers of classes") !=
                 NULL);
    ls_trial_free(trial);
    ls_loader_free(train);
    ls_module_free(model);
    return LS_OK;
}

static ls_loader *load(ls_comm *world, int64_t count, int64_t columns, ls_tensor *targets) {
    return ls_loader_new(ls_tensor_dataset(ls_ones(LS_SHAPE(count, columns), LS_F64), targets),
                         &(ls_loader_options){.comm = world});
}

/* The number of classes, and whether there are targets, may change from pass to pass. */
static ls_status different_passes(ls_comm *world) {
    ls_module *model = ls_nn_function("AsItIs", as_it_is, NULL);
    ls_loader *loaders[] = {
        load(world, 4, 1, ls_ones(LS_SHAPE(4, 1), LS_F64)), load(world, 0, 1, ls_ones(LS_SHAPE(0, 1), LS_F64)),
        load(world, 4, 3, ls_zeros(LS_SHAPE(4), LS_I64)), load(world, 4, 5, ls_zeros(LS_SHAPE(4), LS_I64))};
    int64_t count = -1;
    for (int classes = 0; classes < 2; classes++) {
        ls_trial *trial = ls_trial_new(
            &(ls_trial_options){.model = model,
                                .criterion = classes ? ls_criterion_cross_entropy : ls_criterion_bce_with_logits,
                                .comm = world,
                                .metrics = LS_METRICS("f1", "recall_per_class"),
                                .quiet = true});
        LS_CHECK(trial != NULL);
        LS_TRY(ls_trial_evaluate(trial, loaders[2 * classes], "first"));
        LS_TRY(ls_trial_evaluate(trial, loaders[2 * classes + 1], "second"));
        LS_CHECK(ls_trial_metric(trial, "first_f1") == 1);
        LS_CHECK(isnan(ls_trial_metric(trial, "second_f1")) == !classes);
        LS_CHECK((ls_trial_metric_values(trial, "second_recall_per_class", &count) != NULL) == classes);
        LS_CHECK(count == (classes ? 5 : 0));
        ls_trial_free(trial);
    }
    for (size_t i = 0; i < sizeof loaders / sizeof *loaders; i++) {
        ls_loader_free(loaders[i]);
    }
    ls_module_free(model);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(equals_one_process(world));
    LS_TRY(ranks_without_samples(world));
    for (int64_t done = 1; done < 8; done += 3) {
        LS_TRY(goes_on(world, true, done));
        LS_TRY(goes_on(world, false, done));
        LS_TRY(goes_on_elsewhere(world, true, done));
        LS_TRY(goes_on_elsewhere(world, false, done));
    }
    LS_TRY(takes_time(world));
    LS_TRY(different_classes(world));
    LS_TRY(different_passes(world));
    return ls_comm_barrier(world, NULL);
}
