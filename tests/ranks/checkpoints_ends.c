/*
 * Runs with checkpoints that end early, on any number of ranks, by a limit of steps, a hook or a signal: a trial that
 * resumes is bit-identical to an uninterrupted run. Errors on several ranks are tested, too: one rank cannot write, or
 * has different options.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/resumed.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/stat.h>

/* This test does not cover a loss of power, so it does not wait for the disk. */
int fsync(int fd) {
    (void)fd;
    return 0;
}

/* A run ends in the middle of an epoch. A run that resumes from there continues to the end of this epoch. */
static ls_status ended_in_the_midst(ls_comm *world) {
    outcome want, is;
    const plan until = {.max_steps = STEPS + 3};
    const ls_checkpoint_options there = {.folder = in_scratch("ended"), .every_steps = STEPS + 3};
    LS_TRY(train(world, &until, &want));
    LS_CHECK(want.epochs == 2);
    LS_TRY(train(world, &(plan){.max_steps = STEPS + 3, .checkpoints = &there}, &is));
    LS_TRY(same(&is, &want));
    return goes_on_from(world, &until, true, checkpoint_at("ended", 1, STEPS + 3), &want);
}

/*
 * A hook ends the run in the middle of an epoch, after a step with a checkpoint. A run that resumes from there is
 * marked as ended, too, and can be told to continue.
 */
static ls_status stopped_at_a_checkpoint(ls_comm *world) {
    enum { AT = STEPS + 2 };
    outcome want, is;
    training t;
    const ls_checkpoint_options there = {.folder = in_scratch("stopped"), .every_steps = AT};
    LS_TRY(train(world, &(plan){.stop_at = AT}, &want));
    LS_CHECK(want.epochs == 1 && want.steps == AT);
    LS_TRY(train(world, &(plan){.stop_at = AT, .checkpoints = &there}, &is));
    LS_TRY(same(&is, &want));
    LS_TRY(begin(&t, world, &(plan){.resume = in_scratch("stopped")}));
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    LS_TRY(look(&t, &is));
    LS_TRY(same(&is, &want));
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    LS_CHECK(ls_trial_history_count(t.trial) == EPOCHS);
    LS_CHECK(t.watcher.steps == EPOCHS * STEPS); /* the epoch consisted of the loader's remaining batches */
    end(&t);
    return LS_OK;
}

/* The same if the checkpoint of the step before is probably still being written. */
static ls_status stopped_after_a_checkpoint(ls_comm *world) {
    for (int at = STEPS + 2; at <= STEPS + 4; at++) {
        char folder[32];
        outcome is;
        snprintf(folder, sizeof folder, "stopped-%d", at);
        const ls_checkpoint_options each = {.folder = in_scratch(folder), .every_steps = 1};
        LS_TRY(train(world, &(plan){.stop_at = at, .checkpoints = &each}, &is));
        LS_CHECK(is.steps == at);
        LS_CHECK(access(checkpoint_at(folder, 1, at), F_OK) == 0);
    }
    return ls_comm_barrier(world, NULL); /* ranks that are threads share the handlers of signals */
}

/* ---- signals ----------------------------------------------------------------------------------------------------- */

static ls_status stopped_by_signal(ls_comm *world) {
    struct sigaction before, now;
    outcome want, is;
    training t;
    const ls_checkpoint_options seldom = {.folder = in_scratch("signal"), .every_epochs = 100};
    (void)sigaction(SIGUSR1, NULL, &before);
    LS_TRY(train(world, &(plan){0}, &want));
    LS_TRY(begin(&t, world, &(plan){.checkpoints = &seldom}));
    t.watcher.signal_at = ls_comm_rank(world) == ls_comm_size(world) - 1 ? 8 : 0;
    const ls_status status = ls_trial_run(t.trial, EPOCHS);
    LS_CHECK(status == LS_ERR_STOPPED);
    LS_EXPECT_MESSAGE("stopped by SIGUSR1 after step ");
    end(&t);
    LS_TRY(ls_comm_barrier(world, NULL));
    (void)sigaction(SIGUSR1, NULL, &now);
    LS_CHECK(now.sa_handler == before.sa_handler);
    LS_TRY(train(world, &(plan){.checkpoints = &seldom, .resume = in_scratch("signal")}, &is));
    return same(&is, &want);
}

/* The stopped trial can be continued without a new trial. */
static ls_status goes_on_by_itself(ls_comm *world) {
    outcome want, is;
    training t;
    const ls_checkpoint_options seldom = {.folder = in_scratch("itself"), .every_epochs = 100};
    LS_TRY(train(world, &(plan){0}, &want));
    LS_TRY(begin(&t, world, &(plan){.checkpoints = &seldom}));
    t.watcher.signal_at = ls_comm_rank(world) == 0 ? 8 : 0;
    LS_CHECK(ls_trial_run(t.trial, EPOCHS) == LS_ERR_STOPPED);
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_TRY(ls_trial_evaluate(t.trial, t.validate, "between"));
    t.watcher.signal_at = 0;
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    LS_TRY(look(&t, &is));
    end(&t);
    return same(&is, &want);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* The folder disappears while rank 0 is in a hook: no rank can write, and all ranks get the error. */
static ls_status cannot_write(ls_comm *world) {
    training t;
    const ls_checkpoint_options often = {.folder = in_scratch("spoiled"), .every_steps = 6};
    LS_TRY(begin(&t, world, &(plan){.checkpoints = &often}));
    t.watcher.spoil_at = ls_comm_rank(world) == 0 ? 4 : 0;
    const ls_status status = ls_trial_run(t.trial, EPOCHS);
    LS_CHECK(status == LS_ERR_IO);
    LS_EXPECT_MESSAGE("cannot make the folder");
    end(&t);
    return ls_comm_barrier(world, NULL);
}

/*
 * On the last rank, the folder is missing or is a different folder with the same name, as on a machine without the
 * shared file system. All ranks get the error before training.
 */
static ls_status other_folder(ls_comm *world, bool missing) {
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    char here[PATH_MAX];
    training t;
    ls_folder_names names;
    const ls_checkpoint_options each = {.folder = "alone"};
    LS_CHECK(getcwd(here, sizeof here) != NULL &&
             unshare(CLONE_FS) == 0); /* ranks may be threads of the same process */
    const char *elsewhere = missing ? "nothing-there" : "elsewhere";
    LS_CHECK(!last || mkdir(in_scratch(elsewhere), 0777) == 0);
    LS_CHECK(!last || missing || mkdir(in_scratch("elsewhere/alone"), 0777) == 0);
    LS_CHECK(chdir(in_scratch(last ? elsewhere : "")) == 0);
    LS_TRY(begin(&t, world, &(plan){.checkpoints = &each}));
    const ls_status status = ls_trial_run(t.trial, EPOCHS);
    LS_CHECK(status == LS_ERR_IO);
    LS_EXPECT_MESSAGE("the folder alone on ");
    LS_EXPECT_MESSAGE(" is not the folder that rank 0 uses");
    LS_CHECK(t.watcher.steps == 0);
    end(&t);
    LS_CHECK(chdir(here) == 0);
    LS_TRY(ls_folder_list(in_scratch("alone"), NULL, &names));
    LS_CHECK(names.count == 0);
    return LS_OK;
}

/*
 * Rank 0 finds a checkpoint in a folder that the last rank does not have, as on a machine without the shared file
 * system. All ranks get the error before the trial reads the checkpoint.
 */
static ls_status resumes_elsewhere(ls_comm *world) {
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    char here[PATH_MAX];
    outcome is;
    training t;
    const ls_checkpoint_options each = {.folder = in_scratch("left")};
    LS_TRY(train(world, &(plan){.checkpoints = &each}, &is));
    LS_CHECK(getcwd(here, sizeof here) != NULL && unshare(CLONE_FS) == 0);
    LS_CHECK(!last || mkdir(in_scratch("without"), 0777) == 0);
    LS_CHECK(chdir(in_scratch(last ? "without" : "")) == 0);
    const ls_status status = begin(&t, world, &(plan){.resume = "left"});
    LS_CHECK(status == LS_ERR_IO);
    LS_EXPECT_MESSAGE("the folder left on ");
    LS_EXPECT_MESSAGE(" is not the folder that rank 0 uses");
    end(&t);
    LS_CHECK(chdir(here) == 0);
    return LS_OK;
}

static ls_status other_options(ls_comm *world) {
    training t;
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    const ls_checkpoint_options differ = {.folder = in_scratch("differ"), .every_steps = last ? 2 : 3};
    LS_TRY(begin(&t, world, &(plan){.checkpoints = &differ}));
    const ls_status status = ls_trial_run(t.trial, 1);
    LS_CHECK(status == LS_ERR_MISMATCH);
    LS_EXPECT_MESSAGE("the ranks' .checkpoint options differ");
    end(&t);
    LS_TRY(begin(&t, world, &(plan){.checkpoints = last ? &differ : NULL}));
    LS_CHECK(ls_trial_run(t.trial, 1) == LS_ERR_MISMATCH);
    end(&t);
    return LS_OK;
}

/* If the newest checkpoint is damaged, the previous one is used, and the newest is renamed when training continues. */
static ls_status damaged(ls_comm *world) {
    outcome want, is;
    char path[PATH_MAX + 128];
    const ls_checkpoint_options each = {.folder = in_scratch("damaged")};
    LS_TRY(train(world, &(plan){.checkpoints = &each}, &want));
    snprintf(path, sizeof path, "%s/rank-%04d.safetensors", checkpoint_at("damaged", 3, 15), ls_comm_size(world) - 1);
    LS_CHECK(ls_comm_rank(world) != 0 || truncate(path, 20) == 0);
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_TRY(train(world, &(plan){.checkpoints = &each, .resume = in_scratch("damaged")}, &is));
    LS_TRY(same(&is, &want));
    LS_CHECK(ls_comm_rank(world) != 0 || ls_checkpoint_verify(checkpoint_at("damaged", 3, 15)) == LS_OK);
    LS_CHECK(access(in_scratch("damaged/damaged-epoch-000003-step-0000000015"), F_OK) == 0);
    return LS_OK;
}

static void say_nothing(ls_log_level level, int rank, const char *line, void *user) {
    (void)level;
    (void)rank;
    (void)line;
    (void)user;
}

static atomic_int missed, reordered; /* warnings of this process */

static void count_warnings(ls_log_level level, int rank, const char *line, void *user) {
    (void)rank;
    (void)user;
    missed += level == LS_LOG_WARNING && strstr(line, "without the requested checkpoint after step 5: set") != NULL;
    reordered += level == LS_LOG_WARNING && strstr(line, "in this epoch, some samples are repeated or missing") != NULL;
}

/* A hook ends the run after the training of an epoch, when checkpoints can no longer be written. The run says so, and
 * continues in the next run. */
static ls_status stopped_after_training(ls_comm *world) {
    training t;
    ls_folder_names names;
    const ls_checkpoint_options each = {.folder = in_scratch("late")};
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    LS_TRY(begin(&t, world, &(plan){.checkpoints = &each}));
    t.watcher.stops_after_training = true;
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    LS_CHECK(!last || missed > 0);
    LS_CHECK(ls_trial_history_count(t.trial) == 0);
    LS_TRY(ls_folder_list(each.folder, NULL, &names));
    LS_CHECK(names.count == 0);
    LS_TRY(ls_comm_barrier(world, NULL));
    t.watcher.stops_after_training = false;
    LS_TRY(ls_trial_run(t.trial, 1));
    LS_CHECK(ls_trial_history_count(t.trial) == 1);
    end(&t);
    return ls_comm_barrier(world, NULL);
}

static ls_status resume_with(ls_comm *world, const char *checkpoint, const plan *how, int warnings) {
    training t;
    LS_TRY(ls_comm_barrier(world, NULL));
    const int before = reordered;
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_TRY(begin(&t, world, how));
    LS_TRY(ls_trial_load(t.trial, checkpoint));
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_CHECK(ls_comm_rank(world) != 0 || reordered - before == warnings);
    end(&t);
    return LS_OK;
}

/* Rank 0 warns once if a run resumes within an epoch with a different order of samples. */
static ls_status resumed_in_another_order(ls_comm *world) {
    outcome is;
    char within[2 * PATH_MAX], at_end[2 * PATH_MAX];
    ls_checkpoint_options there = {.folder = in_scratch("within"), .every_steps = STEPS + 2};
    LS_TRY(train(world, &(plan){.max_steps = STEPS + 2, .checkpoints = &there}, &is));
    snprintf(within, sizeof within, "%s", checkpoint_at("within", 1, STEPS + 2));
    there = (ls_checkpoint_options){.folder = in_scratch("at-end"), .every_steps = STEPS};
    LS_TRY(train(world, &(plan){.max_steps = STEPS, .checkpoints = &there}, &is));
    snprintf(at_end, sizeof at_end, "%s", checkpoint_at("at-end", 0, STEPS));
    const plan others[] = {{.seed = UINT64_MAX}, {.no_shuffle = true}, {.samples = SAMPLES + 1}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        LS_TRY(resume_with(world, within, &others[i], 1));
        LS_TRY(resume_with(world, at_end, &others[i], 0));
    }
    return resume_with(world, within, &(plan){.seed = SEED}, 0);
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(make_scratch(world));
    LS_TRY(ended_in_the_midst(world));
    LS_TRY(stopped_at_a_checkpoint(world));
    LS_TRY(stopped_after_a_checkpoint(world));
    LS_TRY(stopped_by_signal(world));
    LS_TRY(goes_on_by_itself(world));
    LS_TRY(cannot_write(world));
    LS_TRY(ls_comm_size(world) > 1 ? other_folder(world, false) : LS_OK);
    LS_TRY(ls_comm_size(world) > 1 ? other_folder(world, true) : LS_OK);
    LS_TRY(ls_comm_size(world) > 1 ? resumes_elsewhere(world) : LS_OK);
    LS_TRY(ls_comm_size(world) > 1 ? other_options(world) : LS_OK);
    ls_log_set_sink(count_warnings, NULL);
    LS_TRY(stopped_after_training(world));
    LS_TRY(resumed_in_another_order(world));
    ls_log_set_sink(say_nothing, NULL);
    LS_TRY(damaged(world));
    return remove_scratch(world);
}
