/*
 * Trials with an outer optimizer (.outer): resuming with bit-identical results, checkpoints that wait for an outer
 * step, a rank that fails within a training step, and setups that are refused.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "parallel/parallel.h"
#include "tests/support/resumed.h"

/* This test does not cover a loss of power, so it does not wait for the disk. */
int fsync(int fd) {
    (void)fd;
    return 0;
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

static bool exists(const char *folder, int64_t epochs_run, int64_t step) {
    return access(checkpoint_at(folder, epochs_run, step), F_OK) == 0;
}

/*
 * An epoch has 5 steps. With outer steps every 2 steps and at the end of each epoch, outer steps follow steps 2, 4, 5,
 * 7, 9, 10, 12, 14 and 15. A checkpoint that is due after step 6 waits for step 7.
 */
static ls_status same_bits(ls_comm *world) {
    outcome want, is;
    const plan plain = {.cut = OUTER};
    const ls_checkpoint_options often = {.folder = in_scratch("often"), .every_steps = 6, .keep = 100};
    LS_TRY(train(world, &plain, &want));
    LS_TRY(train(world, &(plan){.checkpoints = &often, .cut = OUTER}, &is));
    LS_TRY(same(&is, &want));
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_CHECK(!exists("often", 1, 6) && exists("often", 1, 7));
    LS_TRY(goes_on_from(world, &plain, true, checkpoint_at("often", 1, 7), &want));
    LS_TRY(goes_on_from(world, &plain, false, checkpoint_at("often", 1, 7), &want));
    return goes_on_from(world, &plain, true, in_scratch("often"), &want);
}

/* A signal ends the run after the next outer step. The resumed run is bit-identical to an uninterrupted run. */
static ls_status signal_waits(ls_comm *world) {
    outcome want, is;
    training t;
    const ls_checkpoint_options some = {.folder = in_scratch("signal"), .every_epochs = 100};
    LS_TRY(train(world, &(plan){.cut = OUTER}, &want));
    LS_TRY(begin(&t, world, &(plan){.checkpoints = &some, .cut = OUTER}));
    t.watcher.signal_at = 6;
    LS_CHECK(ls_trial_run(t.trial, EPOCHS) == LS_ERR_STOPPED);
    LS_EXPECT_MESSAGE("after step 7");
    LS_CHECK(exists("signal", 1, 7));
    t.watcher.signal_at = 0;
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    LS_TRY(look(&t, &is));
    end(&t);
    return same(&is, &want);
}

/* A hook saves and stops between two outer steps: the outer step then takes place early. */
static ls_status stop_does_not_wait(ls_comm *world) {
    training t;
    const ls_checkpoint_options some = {.folder = in_scratch("stop"), .every_epochs = 100};
    LS_TRY(begin(&t, world, &(plan){.checkpoints = &some, .cut = OUTER, .stop_at = 3}));
    t.watcher.save_at = 3;
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    LS_CHECK(exists("stop", 0, 3));
    LS_CHECK(ls_module_hash(t.model) != 0);
    end(&t);
    return ls_comm_barrier(world, NULL);
}

/* A different number of ranks, and a trial without an outer optimizer, resume from the checkpoint. */
static ls_status other_setups(ls_comm *world) {
    ls_comm *alone = NULL;
    training t;
    LS_TRY(ls_comm_split(world, ls_comm_rank(world), 0, &alone));
    LS_TRY(begin(&t, alone, &(plan){.cut = OUTER}));
    LS_TRY(ls_trial_load(t.trial, checkpoint_at("often", 1, 7)));
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    end(&t);
    ls_comm_free(alone);
    const ls_checkpoint_options plain = {.folder = in_scratch("plain"), .every_steps = 4, .keep = 100};
    outcome ignored;
    LS_TRY(train(world, &(plan){.checkpoints = &plain, .cut = PLAIN}, &ignored));
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_TRY(begin(&t, world, &(plan){.cut = PLAIN}));
    LS_TRY(ls_trial_load(t.trial, checkpoint_at("plain", 0, 4)));
    end(&t);
    return ls_comm_barrier(world, NULL);
}

/* ---- changes between runs ---------------------------------------------------------------------------------------- */

/*
 * The second run starts from the parameters that the program sets between two runs: with a learning rate of almost 0,
 * they stay the same.
 */
static ls_status changed_between_runs(ls_comm *world) {
    ls_module *model = ls_nn_linear(INPUTS, CLASSES);
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 1e-30});
    ls_outer *outer = ls_outer_new(model, world, &(ls_outer_options){.steps = 2, .momentum = LS_ZERO});
    ls_loader *loader =
        ls_loader_new(make_dataset(0, SAMPLES), &(ls_loader_options){.global_batch_size = 8, .comm = world});
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = ls_criterion_cross_entropy,
                                                       .train = loader,
                                                       .outer = outer,
                                                       .quiet = true});
    LS_CHECK(trial != NULL);
    LS_TRY(ls_trial_run(trial, 1));
    ls_scope *scope = ls_scope_begin();
    ls_tensor *bias = ls_module_find(model, "bias");
    (void)ls_no_grad(true);
    LS_TRY(ls_copy_into(bias, ls_full(LS_SHAPE(CLASSES), LS_F32, 8)));
    LS_TRY(ls_scope_end(scope));
    LS_TRY(ls_trial_run(trial, 2));
    LS_CHECK(ls_at(bias, (int64_t[]){0}) == 8);
    ls_outer_free(outer);
    LS_CHECK(ls_trial_run(trial, 3) == LS_ERR_STATE);
    LS_EXPECT_MESSAGE("ls_trial_run: the outer optimizer has already been freed (ls_outer_free)");
    ls_trial_free(trial);
    ls_loader_free(loader);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return LS_OK;
}

/* A model with its optimizer, outer optimizer, loader and trial. */
typedef struct setup {
    ls_module *model;
    ls_optimizer *optimizer;
    ls_outer *outer;
    ls_loader *loader;
    ls_trial *trial;
} setup;

/* `steps` is the number of local steps per outer step. */
static ls_status begin_setup(setup *self, ls_comm *world, int steps) {
    self->model = ls_nn_linear(INPUTS, CLASSES);
    self->optimizer = ls_sgd(self->model, &(ls_sgd_options){.learning_rate = 0.1});
    self->outer = ls_outer_new(self->model, world, &(ls_outer_options){.steps = steps});
    self->loader = ls_loader_new(make_dataset(0, SAMPLES), &(ls_loader_options){.global_batch_size = 8, .comm = world});
    LS_CHECK(self->outer != NULL && self->loader != NULL);
    return LS_OK;
}

/* Unless `by_trial`, the callbacks make the outer steps. */
static ls_status run_setup(setup *self, ls_callback *const *callbacks, int count, bool by_trial, int64_t epochs) {
    self->trial = ls_trial_new(&(ls_trial_options){.model = self->model,
                                                   .optimizer = self->optimizer,
                                                   .criterion = ls_criterion_cross_entropy,
                                                   .train = self->loader,
                                                   .callbacks = callbacks,
                                                   .callback_count = count,
                                                   .outer = by_trial ? self->outer : NULL,
                                                   .quiet = true});
    LS_CHECK(self->trial != NULL);
    return ls_trial_run(self->trial, epochs);
}

static void end_setup(setup *self) {
    ls_trial_free(self->trial);
    ls_outer_free(self->outer);
    ls_loader_free(self->loader);
    ls_optimizer_free(self->optimizer);
    ls_module_free(self->model);
}

/* Returns how often ls_weight_averaging updates its averages in two epochs of `epoch` steps. */
static ls_status count_updates(ls_comm *world, int outer_steps, int64_t *count, int64_t *epoch) {
    setup self;
    ls_callback *averaging = ls_weight_averaging(&(ls_weight_averaging_options){.decay = 0.5});
    LS_TRY(begin_setup(&self, world, outer_steps));
    LS_TRY(run_setup(&self, &averaging, 1, true, 2));
    *count = ls_weight_averaging_count(averaging);
    *epoch = ls_loader_batch_count(self.loader);
    end_setup(&self);
    return LS_OK;
}

/* On any number of ranks, the averages are updated after each outer step, also after the one at the end of an epoch. */
static ls_status averages_after_outer_steps(ls_comm *world) {
    int64_t count = 0, epoch = 0;
    LS_TRY(count_updates(world, 2, &count, &epoch));
    LS_CHECK(epoch % 2 == 1 && count == epoch + 1);
    LS_TRY(count_updates(world, 100, &count, &epoch));
    LS_CHECK(count == 2);
    return LS_OK;
}

static ls_status step_outer(ls_trial_state *state, void *outer) {
    (void)state;
    return ls_outer_step(outer);
}

static ls_status sync_outer(ls_trial_state *state, void *outer) {
    (void)state;
    return ls_outer_sync(outer);
}

/* The program makes the outer steps itself. At the end of training, the callback runs before the last outer step. */
static ls_status averages_are_equal(ls_comm *world) {
    setup self;
    bool equal = false;
    LS_TRY(begin_setup(&self, world, 4));
    ls_callback *callbacks[] = {ls_callback_new(&(ls_callback_hooks){.on_step_training = step_outer}, self.outer),
                                ls_weight_averaging(&(ls_weight_averaging_options){.decay = 0.5, .keep = true}),
                                ls_callback_new(&(ls_callback_hooks){.on_end_training = sync_outer}, self.outer)};
    LS_CHECK(ls_loader_batch_count(self.loader) % 4 == 1);
    LS_TRY(run_setup(&self, callbacks, 3, false, 1));
    LS_CHECK(ls_comm_size(world) == 1 || ls_weight_averaging_count(callbacks[1]) == 1);
    LS_TRY(ls_ranks_have_equal(world, (int64_t)(ls_module_hash(self.model) >> 1), &equal));
    LS_CHECK(equal);
    end_setup(&self);
    return LS_OK;
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

typedef struct fault {
    ls_comm *world;
    int64_t fails_at; /* step at which the criterion fails on the last rank */
    int64_t steps;
    int64_t saves_at; /* step at which a hook saves the model; 0 means never */
} fault;

static ls_tensor *criterion(ls_tensor *output, ls_tensor *target, void *user) {
    fault *self = user;
    const bool last = ls_comm_rank(self->world) == ls_comm_size(self->world) - 1;
    return ++self->steps == self->fails_at && last ? ls_add(output, ls_ones(LS_SHAPE(17, 19), LS_F32))
                                                   : ls_criterion_cross_entropy(output, target, NULL);
}

static ls_status save_between(ls_trial_state *state, void *user) {
    const fault *self = user;
    return state->step == self->saves_at ? ls_module_save(state->model, in_scratch("never"), NULL) : LS_OK;
}

/* Runs a trial of one epoch with outer steps every 4 steps. */
static ls_status run(ls_comm *world, fault *self, bool has_hook, ls_outer *other) {
    ls_seed(SEED);
    ls_module *model = make_model(world, OUTER);
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1});
    ls_outer *outer = ls_outer_new(model, world, &(ls_outer_options){.steps = 4});
    ls_loader *loader =
        ls_loader_new(make_dataset(0, SAMPLES), &(ls_loader_options){.global_batch_size = 6, .comm = world});
    ls_callback *callback = ls_callback_new(&(ls_callback_hooks){.on_step_training = save_between}, self);
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = criterion,
                                                       .criterion_user = self,
                                                       .train = loader,
                                                       .callbacks = &callback,
                                                       .callback_count = has_hook,
                                                       .outer = other != NULL ? other : outer,
                                                       .quiet = true});
    const ls_status status = trial != NULL ? ls_trial_run(trial, 1) : ls_error_status();
    char message[1024];
    snprintf(message, sizeof message, "%s", ls_error_message());
    if (!has_hook) {
        ls_callback_free(callback);
    }
    ls_trial_free(trial);
    ls_loader_free(loader);
    ls_outer_free(outer);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return status == LS_OK ? LS_OK : ls_error_set(status, "%s", message);
}

/* The last rank fails between two outer steps, or in the step before an outer step. All ranks get its message. */
static ls_status failing_rank(ls_comm *world) {
    char expected[64];
    snprintf(expected, sizeof expected, "rank %d failed: ", ls_comm_size(world) - 1);
    for (int64_t step = 2; step <= 4; step += 2) {
        for (int has_hook = 0; has_hook < 2; has_hook++) {
            const ls_status status = run(world, &(fault){.world = world, .fails_at = step}, has_hook != 0, NULL);
            LS_CHECK(status == LS_ERR_SHAPE);
            LS_CHECK(ls_comm_size(world) == 1 || strstr(ls_error_message(), expected) != NULL);
            LS_EXPECT_MESSAGE("[17, 19]");
            LS_TRY(ls_comm_barrier(world, NULL));
        }
    }
    return LS_OK;
}

static ls_status refusals(ls_comm *world) {
    LS_TRY(run(world, &(fault){.world = world, .saves_at = 4}, true, NULL));
    if (ls_comm_size(world) > 1) {
        LS_CHECK(run(world, &(fault){.world = world, .saves_at = 5}, true, NULL) == LS_ERR_STATE);
        LS_EXPECT_MESSAGE("ls_module_save: the ranks' parameters differ between two outer steps");
    }
    ls_module *model = make_model(world, OUTER);
    ls_outer *other = ls_outer_new(model, world, NULL);
    LS_CHECK(run(world, &(fault){.world = world}, false, other) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("ls_trial_new: .outer was created for a different model");
    ls_outer_free(other);
    ls_module_free(model);
    return LS_OK;
}

/* The program runs the outer steps itself, and evaluates between two of them. */
static ls_status evaluation_between(ls_comm *world) {
    ls_module *model = make_model(world, OUTER);
    ls_outer *outer = ls_outer_new(model, world, &(ls_outer_options){.steps = 4});
    ls_loader *loader = ls_loader_new(make_dataset(0, SAMPLES), &(ls_loader_options){.batch_size = 6, .comm = world});
    ls_trial *trial = ls_trial_new(
        &(ls_trial_options){.model = model, .criterion = ls_criterion_cross_entropy, .comm = world, .quiet = true});
    LS_CHECK(outer != NULL && trial != NULL);
    LS_TRY(ls_trial_evaluate(trial, loader, "test"));
    LS_TRY(ls_outer_step(outer));
    const ls_status expected = ls_comm_size(world) > 1 ? LS_ERR_STATE : LS_OK;
    LS_CHECK(ls_trial_evaluate(trial, loader, "test") == expected);
    LS_CHECK(ls_trial_save(trial, in_scratch("between")) == expected);
    LS_TRY(ls_outer_sync(outer));
    LS_TRY(ls_trial_evaluate(trial, loader, "test"));
    LS_TRY(ls_trial_save(trial, in_scratch("after")));
    ls_trial_free(trial);
    ls_loader_free(loader);
    ls_outer_free(outer);
    ls_module_free(model);
    return LS_OK;
}

/* ---- two levels -------------------------------------------------------------------------------------------------- */

static ls_trial *make_levels_trial(ls_module *model, ls_optimizer *optimizer, ls_loader *loader, ls_outer *outer,
                                   ls_comm *comm) {
    return ls_trial_new(&(ls_trial_options){.model = model,
                                            .optimizer = optimizer,
                                            .criterion = ls_criterion_cross_entropy,
                                            .train = loader,
                                            .comm = comm,
                                            .outer = outer,
                                            .quiet = true});
}

/* Pairs of ranks average gradients, and the pairs take outer steps. Then all four ranks have bit-identical
 * parameters. */
static ls_status two_levels(ls_comm *world) {
    ls_comm *inside = NULL, *between = NULL;
    if (ls_comm_size(world) != 4) {
        return LS_OK;
    }
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) / 2, 0, &inside));
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) % 2, 0, &between));
    ls_seed(SEED);
    ls_module *model = ls_data_parallel(make_model(world, OUTER), inside, NULL);
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1});
    ls_outer *outer = ls_outer_new(model, between, &(ls_outer_options){.steps = 2});
    ls_loader *loader =
        ls_loader_new(make_dataset(0, SAMPLES), &(ls_loader_options){.global_batch_size = 8, .comm = world});
    LS_CHECK(outer != NULL);
    ls_comm *const too_small[] = {NULL, inside, between};
    for (int i = 0; i < 3; i++) {
        LS_CHECK(make_levels_trial(model, optimizer, loader, outer, too_small[i]) == NULL);
        LS_CHECK(ls_error_status() == LS_ERR_ARGUMENT);
        LS_EXPECT_MESSAGE("4 ranks train the model, but the trial's communicator has 2: set .comm");
    }
    ls_trial *trial = make_levels_trial(model, optimizer, loader, outer, world);
    LS_CHECK(trial != NULL);
    LS_TRY(ls_trial_run(trial, 2));
    LS_TRY(ranks_have_same_module(world, model));
    if (ls_comm_rank(world) == 3) { /* rank 0 shares no level with it */
        ls_scope *scope = ls_scope_begin();
        (void)ls_no_grad(true);
        LS_TRY(ls_fill(ls_module_parameter(model, 0), 5));
        LS_TRY(ls_scope_end(scope));
    }
    LS_CHECK(ls_trial_run(trial, 3) == LS_ERR_MISMATCH);
    LS_EXPECT_MESSAGE("the parameters of the ranks differ");
    ls_trial_free(trial);
    ls_loader_free(loader);
    ls_outer_free(outer);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_comm_free(between);
    ls_comm_free(inside);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(make_scratch(world));
    LS_TRY(same_bits(world));
    LS_TRY(signal_waits(world));
    LS_TRY(stop_does_not_wait(world));
    LS_TRY(other_setups(world));
    LS_TRY(changed_between_runs(world));
    LS_TRY(averages_after_outer_steps(world));
    LS_TRY(averages_are_equal(world));
    LS_TRY(failing_rank(world));
    LS_TRY(refusals(world));
    LS_TRY(evaluation_between(world));
    LS_TRY(two_levels(world));
    return remove_scratch(world);
}
