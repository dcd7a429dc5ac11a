/*
 * Callbacks that measure runs: a file written by rank 0 with values over all ranks, times of all ranks, and a sweep
 * over learning rates. The sweep has the same result on any number of ranks as it does in a single process, and leaves
 * the trial unchanged.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/files.h"
#include "tests/support/training.h"

#include "comm/meter.h"

enum { EPOCHS = 3 };

/* ---- a file ------------------------------------------------------------------------------------------------------ */

/* Reads the losses of all batches from the file. */
static ls_status read_losses(const char *path, double *losses, int count) {
    FILE *file = fopen(path, "r");
    char line[256];
    LS_CHECK(file != NULL && fgets(line, sizeof line, file) != NULL);
    for (int i = 0; i < count; i++) {
        int epoch, batch;
        LS_CHECK(fgets(line, sizeof line, file) != NULL);
        LS_CHECK(sscanf(line, "%d,%d,%lf,", &epoch, &batch, &losses[i]) == 3);
    }
    LS_CHECK(fgets(line, sizeof line, file) == NULL);
    fclose(file);
    return LS_OK;
}

static ls_status log_batches(ls_comm *comm, const char *path) {
    ls_callback *log = ls_csv_log(path, &(ls_csv_log_options){.per_batch = true});
    training t;
    LS_TRY(training_begin(&t, &(training_plan){.callbacks = &log, .callback_count = 1, .global_batch = 25}, comm));
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    training_end(&t);
    return LS_OK;
}

/* Only rank 0 touches the file: on the other ranks, the path is not writable. */
static ls_status files(ls_comm *world) {
    const bool first = ls_comm_rank(world) == 0;
    double all[3 * EPOCHS], alone[3 * EPOCHS];
    LS_TRY(log_batches(world, first ? test_path("all.csv") : "/dev/null/log.csv"));
    if (first) {
        LS_TRY(log_batches(NULL, test_path("alone.csv")));
        LS_TRY(read_losses(test_path("all.csv"), all, 3 * EPOCHS));
        LS_TRY(read_losses(test_path("alone.csv"), alone, 3 * EPOCHS));
        for (int i = 0; i < 3 * EPOCHS; i++) {
            LS_CHECK(fabs(all[i] - alone[i]) < 1e-7);
        }
        LS_CHECK(all[0] != all[1]);
        test_files_remove();
    }
    return LS_OK;
}

/* If rank 0 cannot write, all ranks fail. */
static ls_status no_file(ls_comm *world) {
    ls_callback *log = ls_csv_log("/dev/null/log.csv", NULL);
    training t;
    LS_TRY(training_begin(&t, &(training_plan){.callbacks = &log, .callback_count = 1}, world));
    LS_CHECK(ls_trial_run(t.trial, EPOCHS) == LS_ERR_IO);
    LS_EXPECT_MESSAGE("ls_csv_log: cannot open /dev/null/log.csv");
    training_end(&t);
    return LS_OK;
}

/* ---- times ------------------------------------------------------------------------------------------------------- */

enum { BUSY_NS = 2000000 };

/* Keeps the last rank busy for some time. */
static ls_status be_busy(ls_trial_state *state, void *user) {
    (void)user;
    const uint64_t began = ls_clock_ns();
    while (ls_comm_rank(state->comm) == ls_comm_size(state->comm) - 1 && ls_clock_ns() - began < BUSY_NS) {
    }
    return LS_OK;
}

static ls_status times(ls_comm *world) {
    ls_callback *timer = ls_timer(&(ls_timer_options){.waiting = true, .no_table = true});
    ls_callback *const callbacks[] = {ls_callback_new(&(ls_callback_hooks){.on_forward = be_busy}, NULL), timer};
    training t;
    LS_TRY(training_begin(&t, &(training_plan){.callbacks = callbacks, .callback_count = 2}, world));
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    double sum = 0, least, mean, largest;
    for (int i = 0; i < LS_TIME_TOTAL; i++) {
        const double own = ls_timer_seconds(timer, (ls_time)i);
        LS_CHECK(own >= 0);
        sum += i != LS_TIME_COMMUNICATION ? own : 0; /* communication is a part of the other times */
        ls_timer_over_ranks(timer, (ls_time)i, &least, &mean, &largest);
        LS_CHECK(least >= 0 && least <= own && own <= largest && least <= mean * (1 + 1e-9) &&
                 mean <= largest * (1 + 1e-9));
        LS_TRY(same_on_all(world, mean));
    }
    const double total = ls_timer_seconds(timer, LS_TIME_TOTAL);
    LS_CHECK(sum <= total);
    ls_timer_over_ranks(timer, LS_TIME_FORWARD, NULL, NULL, &largest);
    LS_CHECK(largest >= EPOCHS * 5 * BUSY_NS * 1e-9);
    LS_CHECK(ls_timer_seconds(timer, LS_TIME_USER_STEP) == 0 && ls_timer_seconds(timer, LS_TIME_VALIDATION) > 0);
    const double messages = ls_timer_seconds(timer, LS_TIME_COMMUNICATION);
    LS_CHECK(messages < ls_timer_seconds(timer, LS_TIME_TOTAL) && (ls_comm_size(world) == 1 || messages > 0));
    LS_CHECK(isnan(ls_timer_seconds(callbacks[0], LS_TIME_DATA)) && isnan(ls_timer_bytes(callbacks[0])));
    const double bytes = ls_timer_bytes(timer), gradients = 8 * (4 * 6 + 6 + 6 * 3 + 3);
    LS_CHECK(ls_comm_size(world) == 1 || bytes >= EPOCHS * 5 * gradients);
    LS_TRY(ls_trial_run(t.trial, EPOCHS)); /* no epoch is left */
    ls_timer_over_ranks(timer, LS_TIME_FORWARD, &least, NULL, &largest);
    LS_CHECK(least == 0 && largest == 0 && ls_timer_seconds(timer, LS_TIME_FORWARD) > 0);
    LS_CHECK(ls_timer_seconds(timer, LS_TIME_TOTAL) > total);
    training_end(&t);
    return LS_OK;
}

static ls_status fail(ls_trial_state *state, void *user) {
    (void)state;
    (void)user;
    return ls_error_set(LS_ERR_IO, "no more");
}

/* The time after a failed run does not count, and freeing the trial ends its measurement. */
static ls_status times_of_failures(ls_comm *world) {
    ls_callback *const callbacks[] = {ls_timer(NULL),
                                      ls_callback_new(&(ls_callback_hooks){.on_step_training = fail}, NULL)};
    training t;
    LS_TRY(training_begin(&t, &(training_plan){.callbacks = callbacks, .callback_count = 2}, world));
    LS_CHECK(ls_trial_run(t.trial, 1) == LS_ERR_IO && ls_comm_metered.users == 1);
    LS_CHECK(isnan(ls_timer_seconds(callbacks[1], LS_TIME_DATA)) && ls_timer_bytes(callbacks[0]) == 0);
    const double forward = ls_timer_seconds(callbacks[0], LS_TIME_FORWARD);
    const double total = ls_timer_seconds(callbacks[0], LS_TIME_TOTAL);
    LS_CHECK(forward > 0 && total > forward);
    const double messages = ls_timer_seconds(callbacks[0], LS_TIME_COMMUNICATION);
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_CHECK(ls_timer_seconds(callbacks[0], LS_TIME_TOTAL) == total);
    LS_CHECK(ls_timer_seconds(callbacks[0], LS_TIME_COMMUNICATION) == messages);
    const double began = ls_clock_seconds();
    LS_CHECK(ls_trial_run(t.trial, 1) == LS_ERR_IO && ls_comm_metered.users == 1 && ls_comm_metered.depth == 0);
    LS_CHECK(ls_timer_seconds(callbacks[0], LS_TIME_TOTAL) - total <= ls_clock_seconds() - began);
    training_end(&t);
    LS_CHECK(ls_comm_metered.users == 0);
    return LS_OK;
}

/* Which hook fails, and the timer that it reads. */
typedef struct failing {
    bool starts;     /* on_start fails */
    bool validation; /* on_end_validation fails */
    const ls_callback *timer;
    double seconds; /* time of the validation in progress */
} failing;

static ls_status fail_at_start(ls_trial_state *state, void *user) {
    return ((const failing *)user)->starts ? fail(state, user) : LS_OK;
}

static ls_status fail_after_validation(ls_trial_state *state, void *user) {
    failing *self = user;
    const uint64_t began = ls_clock_ns();
    while (ls_clock_ns() - began < BUSY_NS) {
    }
    self->seconds = ls_timer_seconds(self->timer, LS_TIME_VALIDATION);
    return self->validation ? fail(state, user) : LS_OK;
}

/* The timer is called after the callback that fails: the time between runs does not count, even if the next run fails
 * before it reaches the timer. A validation that is in progress or has failed counts. */
static ls_status times_between_runs(ls_comm *world) {
    failing user = {.validation = true};
    ls_callback *timer = ls_timer(&(ls_timer_options){.no_table = true});
    ls_callback *const callbacks[] = {
        ls_callback_new(&(ls_callback_hooks){.on_start = fail_at_start, .on_end_validation = fail_after_validation},
                        &user),
        timer};
    training t;
    user.timer = timer;
    LS_TRY(training_begin(&t, &(training_plan){.callbacks = callbacks, .callback_count = 2}, world));
    LS_CHECK(ls_trial_run(t.trial, 1) == LS_ERR_IO);
    const double total = ls_timer_seconds(timer, LS_TIME_TOTAL);
    const double validation = ls_timer_seconds(timer, LS_TIME_VALIDATION);
    const double messages = ls_timer_seconds(timer, LS_TIME_COMMUNICATION);
    LS_CHECK(user.seconds >= BUSY_NS * 1e-9 && validation >= user.seconds && total > validation);
    user.starts = true;
    for (int i = 0; i < 2; i++) {
        LS_TRY(ls_comm_barrier(world, NULL));
        LS_CHECK(ls_trial_run(t.trial, 1) == LS_ERR_IO);
        LS_CHECK(ls_timer_seconds(timer, LS_TIME_TOTAL) == total);
        LS_CHECK(ls_timer_seconds(timer, LS_TIME_VALIDATION) == validation);
        LS_CHECK(ls_timer_seconds(timer, LS_TIME_COMMUNICATION) == messages);
    }
    user.starts = user.validation = false;
    const double began = ls_clock_seconds();
    LS_TRY(ls_trial_run(t.trial, 2));
    LS_CHECK(ls_timer_seconds(timer, LS_TIME_TOTAL) - total <= ls_clock_seconds() - began);
    LS_CHECK(ls_timer_seconds(timer, LS_TIME_VALIDATION) - validation >= BUSY_NS * 1e-9);
    training_end(&t);
    return LS_OK;
}

/* With `.shards`, a rank has several slices. The callback after the timer delays the backward pass of each slice. */
static ls_status times_of_slices(ls_comm *world) {
    enum { SHARDS = 10 };
    ls_callback *const callbacks[] = {ls_timer(&(ls_timer_options){.no_table = true}),
                                      ls_callback_new(&(ls_callback_hooks){.on_criterion = be_busy}, NULL)};
    training t = {.model = ls_data_parallel(
                      ls_nn_linear_with(TRAINING_INPUTS, TRAINING_CLASSES, &(ls_linear_options){.dtype = LS_F64}),
                      world, &(ls_data_parallel_options){.shards = SHARDS})};
    t.optimizer = ls_sgd(t.model, NULL);
    t.train = ls_loader_new(training_samples(0, TRAINING_SAMPLES),
                            &(ls_loader_options){.global_batch_size = 20, .comm = world, .shards = SHARDS});
    training_start(&t, &(training_plan){.callbacks = callbacks, .callback_count = 2});
    LS_CHECK(t.trial != NULL);
    LS_TRY(ls_trial_run(t.trial, 1));
    double backward;
    ls_timer_over_ranks(callbacks[0], LS_TIME_BACKWARD, NULL, NULL, &backward);
    LS_CHECK(backward >= 3 * (SHARDS / ls_comm_size(world)) * BUSY_NS * 1e-9);
    training_end(&t);
    return LS_OK;
}

/* ---- rates ------------------------------------------------------------------------------------------------------- */

static const ls_rate_finder_options sweep = {.lowest = 1e-4, .highest = 1e3, .steps = 40};

static ls_status train(training *t, ls_comm *comm, ls_callback **finder, const ls_rate_finder_options *how) {
    *finder = how != NULL ? ls_rate_finder(how) : ls_callback_new(&(ls_callback_hooks){.name = NULL}, NULL);
    LS_TRY(training_begin(t, &(training_plan){.callbacks = finder, .callback_count = 1, .global_batch = 7}, comm));
    return ls_trial_run(t->trial, EPOCHS);
}

/* A run with the sweep is bit-identical to a run without it, and the sweep has the same values as in a single
 * process. */
static ls_status rates(ls_comm *world) {
    training all, alone, plain;
    ls_callback *finders[3];
    LS_TRY(train(&all, world, &finders[0], &sweep));
    LS_TRY(train(&alone, NULL, &finders[1], &sweep));
    LS_TRY(train(&plain, world, &finders[2], NULL));
    LS_CHECK(ls_module_hash(all.model) == ls_module_hash(plain.model));
    LS_CHECK(ls_trial_metric(all.trial, "loss") == ls_trial_metric(plain.trial, "loss"));
    LS_CHECK(ls_optimizer_learning_rate(all.optimizer, 0) == 0.05);
    const double found = ls_rate_finder_suggestion(finders[0]);
    LS_CHECK(found > 1e-3 && found < 10 && fabs(found / ls_rate_finder_suggestion(finders[1]) - 1) < 1e-6);
    LS_TRY(same_on_all(world, found));
    const int64_t count = ls_rate_finder_count(finders[0]);
    LS_CHECK(count > 10 && count < sweep.steps && count == ls_rate_finder_count(finders[1]));
    double rate, loss, other;
    ls_rate_finder_point(finders[0], 5, &rate, &loss);
    ls_rate_finder_point(finders[1], 5, NULL, &other);
    LS_CHECK(fabs(rate / (1e-4 * pow(1e7, 5.0 / 39)) - 1) < 1e-12 && fabs(loss - other) < 1e-10);
    ls_rate_finder_point(finders[0], count, &rate, &loss);
    LS_CHECK(isnan(rate) && isnan(loss));
    training_end(&all);
    training_end(&alone);
    training_end(&plain);
    return LS_OK;
}

static ls_tensor *negative_loss(ls_tensor *output, ls_tensor *target, void *user) {
    return ls_sub(ls_criterion_cross_entropy(output, target, user), 100.0);
}

/* A loss below 0 does not end the sweep at its first step. */
static ls_status rate_of_a_negative_loss(ls_comm *world) {
    ls_callback *finder = ls_rate_finder(&(ls_rate_finder_options){.lowest = 1e-4, .highest = 1e-2, .steps = 10});
    training t;
    LS_TRY(training_begin(&t, &(training_plan){.callbacks = &finder, .callback_count = 1, .criterion = negative_loss},
                          world));
    LS_TRY(ls_trial_run(t.trial, 1));
    LS_CHECK(ls_rate_finder_count(finder) == 10);
    training_end(&t);
    return LS_OK;
}

static ls_status rate_that_is_used(ls_comm *world) {
    ls_rate_finder_options how = sweep;
    how.apply = true;
    training t;
    ls_callback *finder;
    LS_TRY(train(&t, world, &finder, &how));
    LS_CHECK(ls_optimizer_learning_rate(t.optimizer, 0) == ls_rate_finder_suggestion(finder));
    LS_CHECK(ls_optimizer_learning_rate(t.optimizer, 0) != 0.05 && isfinite(ls_trial_metric(t.trial, "loss")));
    LS_TRY(ls_trial_run(t.trial, EPOCHS + 1));
    LS_CHECK(ls_optimizer_learning_rate(t.optimizer, 0) == ls_rate_finder_suggestion(finder));
    training_end(&t);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(files(world));
    LS_TRY(no_file(world));
    LS_TRY(times(world));
    LS_TRY(times_of_failures(world));
    LS_TRY(times_between_runs(world));
    LS_TRY(strcmp(ls_default_device(), "cpu") == 0 ? times_of_slices(world) : LS_OK);
    LS_TRY(rates(world));
    LS_TRY(rate_of_a_negative_loss(world));
    LS_TRY(rate_that_is_used(world));
    return ls_comm_barrier(world, NULL);
}
