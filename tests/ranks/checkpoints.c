/*
 * Trials that resume from checkpoints, on any number of ranks. A checkpoint may have been written at any step, even in
 * the middle of an epoch: the result is bit-identical to an uninterrupted run. checkpoints_ends.c tests how runs end
 * early.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/resumed.h"

/* This test does not cover a loss of power, so it does not wait for the disk. */
int fsync(int fd) {
    (void)fd;
    return 0;
}

/* ---- the same bits ----------------------------------------------------------------------------------------------- */

/*
 * Interrupts at step `step`; 0 means at the end of an epoch. Each checkpoint is written as soon as the previous one is
 * on disk, at whatever step.
 */
static ls_status interrupted_at(ls_comm *world, cut how, int64_t step, const outcome *want) {
    const plan plain = {.cut = how};
    char name[32];
    outcome is;
    snprintf(name, sizeof name, "step-%d-%d", (int)how, (int)step);
    const ls_checkpoint_options often = {.folder = in_scratch(name), .every_steps = step, .keep = 1000};
    LS_TRY(train(world, &(plan){.checkpoints = &often, .cut = how}, &is));
    LS_TRY(same(&is, want)); /* writing them changes nothing */
    LS_TRY(goes_on_from(world, &plain, step % 2 != 0,
                        checkpoint_at(name, step > 0 ? (step - 1) / STEPS : 2, step > 0 ? step : 10), want));
    return goes_on_from(world, &plain, step % 2 == 0, in_scratch(name), want); /* the newest */
}

static ls_status same_bits(ls_comm *world) {
    outcome want;
    LS_TRY(train(world, &(plan){0}, &want));
    for (int64_t step = 0; step <= EPOCHS * STEPS; step += 3) {
        LS_TRY(interrupted_at(world, WHOLE, step, &want));
    }
    LS_TRY(interrupted_at(world, WHOLE, STEPS, &want)); /* after the last batch of an epoch */
    LS_TRY(train(world, &(plan){.cut = PLAIN}, &want));
    LS_TRY(interrupted_at(world, PLAIN, 2 * STEPS - 1, &want)); /* before an incomplete batch */
    LS_TRY(train(world, &(plan){.cut = HALF}, &want));
    LS_CHECK(want.skipped > 2 && want.skipped < EPOCHS * STEPS);
    return interrupted_at(world, HALF, want.skipped + 2, &want); /* the scale is about to grow */
}

/* A resumed trial may start or stop scaling losses. */
static ls_status scaler_that_is_new(ls_comm *world) {
    training t;
    outcome ignored;
    const ls_checkpoint_options once[] = {{.folder = in_scratch("with"), .every_epochs = 1}};
    LS_TRY(train(world, &(plan){.cut = HALF, .checkpoints = once}, &ignored));
    LS_TRY(begin(&t, world, &(plan){.cut = PLAIN}));
    LS_TRY(ls_trial_load(t.trial, in_scratch("with")));
    end(&t);
    const ls_checkpoint_options other[] = {{.folder = in_scratch("without"), .every_epochs = 1}};
    LS_TRY(train(world, &(plan){.cut = PLAIN, .checkpoints = other}, &ignored));
    LS_TRY(begin(&t, world, &(plan){.cut = HALF}));
    LS_TRY(ls_trial_load(t.trial, in_scratch("without")));
    LS_CHECK(ls_grad_scaler_get_scale(t.scaler) == 0x1p26);
    end(&t);
    return LS_OK;
}

static ls_status divided_models(ls_comm *world) {
    outcome want;
    ls_comm *part = NULL;
    training t;
    LS_TRY(train(world, &(plan){.cut = DIVIDED}, &want));
    LS_TRY(interrupted_at(world, DIVIDED, 7, &want));
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) == 0 ? 0 : 1, 0, &part)); /* fewer ranks, within an epoch */
    LS_TRY(begin(&t, part, &(plan){.cut = DIVIDED}));
    LS_TRY(ls_trial_load(t.trial, checkpoint_at("step-3-7", 1, 7)));
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    LS_CHECK(ls_trial_history_count(t.trial) == EPOCHS);
    end(&t);
    ls_comm_free(part);
    return LS_OK;
}

static ls_status pipelines(ls_comm *world) {
    outcome want;
    LS_TRY(train(world, &(plan){.cut = PIPELINE}, &want));
    LS_TRY(interrupted_at(world, PIPELINE, 7, &want));
    return interrupted_at(world, PIPELINE, 0, &want);
}

/* Rank 0's clock decides for all ranks. */
static ls_status by_time(ls_comm *world) {
    outcome want, is;
    ls_folder_names names;
    const ls_checkpoint_options at_once = {.folder = in_scratch("time"), .every_seconds = 1e-9, .keep = 1000};
    LS_TRY(train(world, &(plan){0}, &want));
    LS_TRY(train(world, &(plan){.checkpoints = &at_once}, &is));
    LS_TRY(same(&is, &want));
    LS_TRY(ls_folder_list(in_scratch("time"), NULL, &names));
    LS_CHECK(names.count > EPOCHS); /* at least the first step, and the end of each epoch */
    LS_CHECK(strcmp(names.items[0], "epoch-000000-step-0000000001") == 0);
    ls_folder_names_free(&names);
    return LS_OK;
}

/* A checkpoint is written a few steps after it was due, even in the middle of an epoch. */
static ls_status in_the_midst(ls_comm *world) {
    training t;
    char path[PATH_MAX + 128];
    const ls_checkpoint_options once = {.folder = in_scratch("midst"), .every_epochs = 100};
    snprintf(path, sizeof path, "%s", checkpoint_at("midst", 0, 2));
    LS_TRY(begin(&t, world, &(plan){.checkpoints = &once, .train_steps = INT64_MAX}));
    t.watcher.save_at = 2;
    t.watcher.awaited = path;
    t.watcher.began = ls_clock_ns();
    LS_TRY(ls_trial_run(t.trial, 1));
    LS_TRY(ls_checkpoint_verify(path));
    end(&t);
    return ls_comm_barrier(world, NULL);
}

/* Parts that belong to other communicators would be missing in the checkpoint. */
static ls_status parts_of_others(ls_comm *world) {
    training t;
    const ls_checkpoint_options some = {.folder = in_scratch("parts")};
    ls_comm *alone = NULL;
    if (ls_world() != world || ls_comm_size(world) == 1) {
        return LS_OK;
    }
    LS_TRY(ls_comm_split(world, ls_comm_rank(world), 0, &alone));
    LS_TRY(begin(&t, alone, &(plan){.cut = DIVIDED, .checkpoints = &some}));
    LS_CHECK(ls_comm_rank(world) != 0 || ls_trial_run(t.trial, 1) == LS_ERR_UNSUPPORTED);
    LS_CHECK(ls_comm_rank(world) != 0 ||
             strstr(ls_error_message(), "set .comm of ls_trial_options to a communicator of all ranks") != NULL);
    end(&t);
    ls_comm_free(alone);
    return ls_comm_barrier(world, NULL);
}

/* Epochs with fewer or more steps than the loader has batches. */
static ls_status epochs_of_steps(ls_comm *world) {
    for (int64_t steps = 3; steps <= 7; steps += 4) {
        outcome want, is;
        char name[32];
        snprintf(name, sizeof name, "steps-%d", (int)steps);
        const ls_checkpoint_options once = {.folder = in_scratch(name), .every_steps = steps + 2, .keep = 100};
        LS_TRY(train(world, &(plan){.train_steps = steps}, &want));
        LS_TRY(train(world, &(plan){.train_steps = steps, .checkpoints = &once}, &is));
        LS_TRY(same(&is, &want));
        LS_TRY(goes_on_from(world, &(plan){.train_steps = steps}, true, checkpoint_at(name, 1, steps + 2), &want));
    }
    return LS_OK;
}

/* ---- other numbers of ranks -------------------------------------------------------------------------------------- */

/* Trains to the end from a checkpoint, and sums over all ranks which samples each step used. */
static ls_status seen_from(ls_comm *comm, const plan *how, const char *checkpoint, double *seen) {
    training t;
    LS_TRY(begin(&t, comm, how));
    LS_TRY(checkpoint != NULL ? ls_trial_load(t.trial, checkpoint) : LS_OK);
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    memcpy(seen, t.watcher.seen, sizeof t.watcher.seen);
    LS_TRY(ls_comm_allreduce(comm, seen, seen, EPOCHS * SAMPLES, LS_F64, LS_SUM, NULL));
    LS_CHECK(fabs(ls_trial_history(t.trial, 0, "loss")) < 100);
    end(&t);
    return LS_OK;
}

/* All steps after the first `step` steps use the same samples. */
static ls_status saw_the_same(const double *is, const double *want, int64_t step) {
    for (int64_t i = 0; i < EPOCHS * SAMPLES; i++) {
        LS_CHECK(is[i] == (i < step ? 0 : want[i]));
    }
    return LS_OK;
}

static ls_status other_numbers_of_ranks(ls_comm *world) {
    ls_comm *alone = NULL;
    double want[EPOCHS * SAMPLES], is[EPOCHS * SAMPLES];
    outcome ignored;
    const int64_t ranks = ls_comm_size(world);
    LS_TRY(ls_comm_split(world, ls_comm_rank(world), 0, &alone));
    const ls_checkpoint_options once = {.folder = in_scratch("many"), .every_steps = 7, .keep = 100};
    LS_TRY(train(world, &(plan){.checkpoints = &once}, &ignored));
    LS_TRY(seen_from(alone, &(plan){0}, NULL, want));
    LS_TRY(seen_from(alone, &(plan){0}, checkpoint_at("many", 1, 7), is));
    LS_TRY(saw_the_same(is, want, 7));
    /* after 2 steps, 6 * ranks samples were used: one rank resumes with batches of 5 only if 5 divides this number */
    const plan of_each = {.batch_size = 3,
                          .checkpoints = &(ls_checkpoint_options){.folder = in_scratch("each"), .every_steps = 2}};
    if (3 * ranks * 2 <= SAMPLES) {
        training t;
        LS_TRY(begin(&t, world, &of_each));
        t.watcher.signal_at = 0;
        LS_TRY(ls_trial_run(t.trial, 1));
        end(&t);
        LS_TRY(begin(&t, alone, &(plan){.batch_size = 5}));
        LS_CHECK(ls_trial_load(t.trial, checkpoint_at("each", 0, 2)) != LS_OK || ranks * 6 % 5 == 0);
        end(&t);
    }
    /* the opposite direction: from rank 0 alone to all ranks */
    char own[32];
    snprintf(own, sizeof own, "alone-%d", ls_comm_rank(world));
    const ls_checkpoint_options single = {.folder = in_scratch(own), .every_steps = 7, .keep = 100};
    LS_TRY(train(alone, &(plan){.checkpoints = &single}, &ignored));
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_TRY(seen_from(world, &(plan){0}, checkpoint_at("alone-0", 1, 7), is));
    LS_TRY(saw_the_same(is, want, 7));
    ls_comm_free(alone);
    return LS_OK;
}

/* The program runs again with .overwrite: it trains on all ranks as if there had been no earlier run. */
static ls_status run_again(ls_comm *world) {
    outcome want, is;
    ls_checkpoint_options options = {.folder = in_scratch("again"), .every_steps = 4, .keep = 100};
    LS_TRY(train(world, &(plan){.checkpoints = &options}, &want));
    training t;
    LS_TRY(begin(&t, world, &(plan){.checkpoints = &options}));
    LS_CHECK(ls_trial_run(t.trial, EPOCHS) != LS_OK);
    LS_EXPECT_MESSAGE(".overwrite");
    end(&t);
    options.folder = in_scratch("again");
    options.overwrite = true;
    LS_TRY(begin(&t, world, &(plan){.checkpoints = &options}));
    t.watcher.fails_at_start = true; /* a run that fails before its first step removes nothing */
    LS_CHECK(ls_trial_run(t.trial, EPOCHS) == LS_ERR_ARGUMENT);
    end(&t);
    LS_CHECK(ls_checkpoint_verify(checkpoint_at("again", 0, 4)) == LS_OK);
    options.folder = in_scratch("again");
    LS_TRY(train(world, &(plan){.checkpoints = &options}, &is));
    return same(&is, &want);
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(make_scratch(world));
    LS_TRY(run_again(world));
    LS_TRY(same_bits(world));
    LS_TRY(scaler_that_is_new(world));
    LS_TRY(divided_models(world));
    LS_TRY(pipelines(world));
    LS_TRY(parts_of_others(world));
    LS_TRY(by_time(world));
    LS_TRY(in_the_midst(world));
    LS_TRY(epochs_of_steps(world));
    LS_TRY(other_numbers_of_ranks(world));
    return remove_scratch(world);
}
