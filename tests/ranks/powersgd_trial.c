/*
 * Trials with PowerSGD: a run that resumes from a checkpoint is bit-identical to an uninterrupted run, because the
 * checkpoint contains the error feedback of each rank. Resuming with a different number of ranks, a different rank of
 * the matrices, or plain training works, too.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/resumed.h"

#include "parallel/data_parallel.h"

/* This test does not cover a loss of power, so it does not wait for the disk. */
int fsync(int fd) {
    (void)fd;
    return 0;
}

static ls_status same_bits(ls_comm *world) {
    outcome want, is;
    const plan plain = {.cut = POWERSGD};
    const ls_checkpoint_options often = {.folder = in_scratch("often"), .every_steps = 7, .keep = 100};
    LS_TRY(train(world, &plain, &want));
    LS_TRY(train(world, &(plan){.checkpoints = &often, .cut = POWERSGD}, &is));
    LS_TRY(same(&is, &want));
    LS_TRY(goes_on_from(world, &plain, true, checkpoint_at("often", 1, 7), &want));
    LS_TRY(goes_on_from(world, &plain, false, checkpoint_at("often", 1, 7), &want));
    return goes_on_from(world, &plain, true, in_scratch("often"), &want);
}

/* Returns the sum of the magnitudes of this rank's error feedback in a model of make_model, or -1 without PowerSGD. */
static double error_of(const training *t) {
    int64_t count = 0;
    const float *numbers = ls_data_parallel_powersgd(t->model, &count);
    double sum = 0;
    for (int64_t i = 0; numbers != NULL && i < 8 * INPUTS + CLASSES * 8; i++) {
        sum += fabs((double)numbers[i]);
    }
    return numbers != NULL ? sum : -1;
}

static _Thread_local int warnings;

static void count_warnings(ls_log_level level, int rank, const char *line, void *user) {
    (void)rank;
    (void)user;
    warnings += level == LS_LOG_WARNING && strstr(line, "error feedback of PowerSGD") != NULL;
}

/* Resumes on `comm`, and checks whether the error feedback comes from the checkpoint. */
static ls_status resumes(ls_comm *comm, cut how, const char *from, bool restores) {
    training t;
    LS_TRY(begin(&t, comm, &(plan){.cut = how}));
    warnings = 0;
    LS_TRY(ls_trial_load(t.trial, from));
    const double error = error_of(&t);
    LS_CHECK(error < 0 || (error > 0) == restores);
    LS_CHECK(warnings == (error >= 0 && !restores));
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    LS_CHECK((error_of(&t) > 0) == (error >= 0));
    end(&t);
    return ls_comm_barrier(comm, NULL);
}

static ls_status other_setups(ls_comm *world) {
    const ls_checkpoint_options some = {.folder = in_scratch("plain"), .every_steps = 4, .keep = 100};
    ls_comm *pair = NULL;
    outcome ignored;
    LS_TRY(train(world, &(plan){.checkpoints = &some, .cut = PLAIN}, &ignored));
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_TRY(resumes(world, POWERSGD, checkpoint_at("often", 1, 7), true));
    LS_TRY(resumes(world, PLAIN, checkpoint_at("often", 1, 7), false));
    LS_TRY(resumes(world, POWERSGD, checkpoint_at("plain", 0, 4), false));
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) / 2, 0, &pair));
    LS_TRY(resumes(pair, POWERSGD, checkpoint_at("often", 1, 7), ls_comm_size(pair) == ls_comm_size(world)));
    ls_comm_free(pair);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(make_scratch(world));
    ls_log_set_sink(count_warnings, NULL);
    LS_TRY(same_bits(world));
    LS_TRY(other_setups(world));
    return remove_scratch(world);
}
