/*
 * A rank, or all ranks, are killed at any system call of the writers, while a model that is sharded over ranks is
 * saved: with ZeRO, by tensors, and as a pipeline. Afterwards, the folder has the old or the new checkpoint. Its
 * weights, and the training that continues from it, are bit-identical to an undisturbed run. LOCKSTEP_TEST_LONG=1
 * kills at every third call instead of a few calls, and LOCKSTEP_TEST_EVERY=1 at every call.
 *
 * devices: cpu
 * environment: OMP_NUM_THREADS=1
 * cost: 10
 */
#include "tests/support/checkpoint_folder.h"

#include <sys/mman.h>

#include "comm/comm.h"
#include "tests/support/failing_calls.h"
#include "tests/support/forks.h"
#include "tests/support/resumed.h"
#include "tests/support/seeds.h"

enum { MOST_RANKS = 4, NOBODY = -1, SAVED_EPOCHS = 2 };

/* How a model is sharded. */
typedef struct model_way {
    const char *name;
    plan plan;
} model_way;

static const model_way ways[] = {
    {"stage 1", {.zero = 1}}, {"stage 3", {.zero = 3}}, {"tensors", {.cut = DIVIDED}}, {"pipeline", {.cut = PIPELINE}}};
enum { WAYS = sizeof ways / sizeof *ways };

/* What the ranks of one job do, and the rank that is killed. */
typedef struct job_plan {
    const model_way *way;
    int ranks;
    bool saves; /* trains one epoch more, and saves with ls_trial_save over the old checkpoint */
    int64_t epochs;
    const char *folder, *resume;
    int keep;
    int victim; /* the rank that is killed */
    int call;   /* number of the system call at which the victim is killed, counted from 0 */
} job_plan;

/* In memory that the ranks share with the test. */
typedef struct shared {
    outcome outcomes[MOST_RANKS];
    atomic_bool killed;
} shared;

static shared *board;

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

/* From here on, the system calls of this rank count. */
static void arm(const job_plan *job, int rank) {
    atomic_store(&calls, 0);
    atomic_store(&dies_at, rank == job->victim ? job->call : -1);
}

static ls_status run_or_save(const job_plan *job, training *t, int rank) {
    if (!job->saves) {
        arm(job, rank);
        return ls_trial_run(t->trial, job->epochs);
    }
    LS_TRY(ls_trial_run(t->trial, job->epochs));
    arm(job, rank);
    return ls_trial_save(t->trial, job->folder);
}

static ls_status note_outcome(const training *t, const plan *how, outcome *is) {
    LS_TRY(how->zero == 3 ? ls_data_parallel_gather(t->model, true) : LS_OK);
    return look(t, is);
}

static const char *run_rank(ls_comm *world, int rank, const void *argument) {
    const job_plan *job = argument;
    const ls_checkpoint_options checkpoints = {
        .folder = job->folder, .every_epochs = 1, .keep = job->keep, .best = "loss"};
    plan how = job->way->plan;
    training t;
    how.checkpoints = job->saves ? NULL : &checkpoints;
    how.resume = job->resume;
    LS_MUST(world != NULL);
    LS_MUST(begin(&t, world, &how) == LS_OK);
    ls_status status = run_or_save(job, &t, rank);
    atomic_store(&dies_at, -1);
    all_die = NULL;
    status = status == LS_OK ? note_outcome(&t, &how, &board->outcomes[rank]) : status;
    end(&t);
    /* LS_ERR_IO: the others noticed the death first, and removed the unfinished folder that this rank writes to. */
    LS_MUST(status == LS_OK || (job->victim != NOBODY && (status == LS_ERR_PEER || status == LS_ERR_IO)));
    return NULL;
}

/* Runs the job. Returns whether the victim was killed. With `all`, the other ranks are killed at their next call. */
static bool run(const job_plan *job, bool all) {
    ls_forks forks;
    bool killed = false;
    atomic_store(&board->killed, false);
    all_die = all ? &board->killed : NULL;
    ls_forks_start(&forks, job->ranks, 0, 60, run_rank, job);
    for (int rank = 0; rank < job->ranks; rank++) {
        const int ended = ls_forks_wait(&forks, rank);
        assert_true(ended == 0 || (ended == -SIGKILL && job->victim != NOBODY && (all || rank == job->victim)));
        killed = killed || ended != 0;
    }
    ls_forks_end(&forks);
    all_die = NULL;
    return killed;
}

/* ---- undisturbed runs -------------------------------------------------------------------------------------------- */

/* An undisturbed run: its outcome on each rank, and the hash of the whole model's weights after each epoch. */
typedef struct reference {
    outcome outcomes[MOST_RANKS];
    uint64_t hashes[EPOCHS + 1];
} reference;

/* Returns the hash of a checkpoint's weights, loaded by one process into a model that is not sharded. */
static uint64_t hash_of(const job_plan *job, const char *path) {
    const ls_join_context join = {.size = 1, .local_size = 1, .prefix = "", .timeout = 1.0};
    ls_comm *alone = ls_comm_open(&ls_backend_self, &join);
    assert_non_null(alone);
    ls_module *model = make_planned(alone, &(plan){.cut = job->way->plan.cut, .zero = job->way->plan.zero > 0});
    assert_int_equal(ls_module_load(model, path), LS_OK);
    const uint64_t hash = ls_module_hash(model);
    ls_module_free(model);
    ls_comm_free(alone);
    return hash;
}

static const char *epoch_in(const char *folder, int64_t epoch) {
    static char path[PATH_MAX];
    char name[LS_CHECKPOINT_NAME_LIMIT];
    ls_checkpoint_name(name, epoch, epoch * STEPS);
    assert_int_equal(ls_path_join(path, folder, name), LS_OK);
    return path;
}

static void run_undisturbed(const job_plan *job, const char *folder, reference *want) {
    job_plan first = *job;
    first.victim = NOBODY;
    first.folder = folder;
    first.resume = NULL;
    first.saves = false;
    first.epochs = EPOCHS;
    first.keep = EPOCHS;
    forget_folder(folder);
    assert_false(run(&first, false));
    memcpy(want->outcomes, board->outcomes, sizeof want->outcomes);
    for (int64_t epoch = 1; epoch <= EPOCHS; epoch++) {
        want->hashes[epoch] = hash_of(job, epoch_in(folder, epoch));
        assert_true(epoch == 1 || want->hashes[epoch] != want->hashes[epoch - 1]);
    }
}

/* ---- kills ------------------------------------------------------------------------------------------------------- */

static void copy_folder(const char *from, const char *to) {
    char command[2 * PATH_MAX + 16];
    snprintf(command, sizeof command, "cp -r '%s' '%s'", from, to);
    assert_int_equal(system(command), 0);
}

/* All checkpoints in the folder are complete, and have the weights of the undisturbed run. Returns the newest epoch. */
static int64_t check_folder(const job_plan *job, const reference *want) {
    int64_t newest = 0;
    assert_true(count_whole(job->folder) >= 1);
    for (int64_t epoch = 1; epoch <= EPOCHS; epoch++) {
        if (access(epoch_in(job->folder, epoch), F_OK) == 0) {
            assert_true(hash_of(job, epoch_in(job->folder, epoch)) == want->hashes[epoch]);
            newest = epoch;
        }
    }
    return newest;
}

/* Continues a run from its first checkpoint, and kills it if it reaches the call. Returns whether it was killed. */
static bool kill_run(job_plan *job, const reference *want, bool all) {
    job_plan again = *job;
    forget_folder(job->folder);
    assert_int_equal(mkdir(job->folder, 0700), 0);
    copy_folder(epoch_in(job->resume, 1), job->folder);
    again.resume = job->folder;
    const bool killed = run(&again, all);
    const int64_t newest = check_folder(job, want);
    assert_true(killed || newest == EPOCHS);
    again.victim = NOBODY;
    assert_false(run(&again, false)); /* training continues, whatever files were left */
    for (int rank = 0; rank < job->ranks; rank++) {
        assert_int_equal(same(&board->outcomes[rank], &want->outcomes[rank]), LS_OK);
    }
    assert_true(check_folder(job, want) == EPOCHS);
    assert_int_equal(count_names(job->folder), count_whole(job->folder) + 1); /* and the link to the best */
    return killed;
}

/* A save over an older checkpoint is killed. Returns whether it was killed. Counts the kills that leave the old
 * checkpoint, and the kills that leave the new checkpoint. */
static bool kill_save(job_plan *job, const reference *want, bool all, int left[2]) {
    char saved[PATH_MAX];
    job_plan again = *job;
    assert_int_equal(ls_path_join(saved, job->folder, "saved"), LS_OK);
    forget_folder(job->folder);
    assert_int_equal(mkdir(job->folder, 0700), 0);
    copy_folder(epoch_in(job->resume, 1), saved);
    again.folder = saved;
    again.resume = epoch_in(job->resume, 1);
    const bool killed = run(&again, all);
    assert_int_equal(ls_checkpoint_verify(saved), LS_OK);
    const bool is_new = hash_of(job, saved) == want->hashes[SAVED_EPOCHS];
    assert_true(is_new || (killed && hash_of(job, saved) == want->hashes[1]));
    left[is_new] += killed;
    return killed;
}

/* Kills each rank at every `step`-th call: alone, and with all ranks. Returns the number of kills that left a new
 * checkpoint. Only a few calls of a save follow the rename, so larger steps may miss all of them. */
static int kill_at_calls(const model_way *way, int ranks, bool saves, int step) {
    char busy[PATH_MAX], undisturbed[PATH_MAX];
    int kills = 0, left[2] = {0, 0};
    reference want;
    snprintf(busy, sizeof busy, "%s", in_root("busy"));
    snprintf(undisturbed, sizeof undisturbed, "%s", in_root("undisturbed"));
    job_plan job = {.way = way,
                    .ranks = ranks,
                    .saves = saves,
                    .epochs = saves ? SAVED_EPOCHS : EPOCHS,
                    .folder = busy,
                    .resume = undisturbed,
                    .keep = 1};
    run_undisturbed(&job, undisturbed, &want);
    for (int i = 0; i < 2 * ranks; i++) {
        const bool all = i % 2 != 0;
        bool killed = true;
        job.victim = i / 2;
        for (job.call = i % step; killed; job.call += step) {
            killed = saves ? kill_save(&job, &want, all, left) : kill_run(&job, &want, all);
            kills += killed;
        }
    }
    print_message("%s on %d ranks, %s: %d kills\n", way->name, ranks, saves ? "one save" : "a run", kills);
    assert_true(kills >= 2 * ranks);
    assert_true(!saves || (left[0] > 0 && (left[1] > 0 || step > 1)));
    return left[1];
}

/* The long list kills at more calls, on two and on four ranks. */
static void kill_all_ways(bool saves, int step) {
    const int long_step = (int)seeds_number("LOCKSTEP_TEST_EVERY", seeds_number("LOCKSTEP_TEST_LONG", 0) != 0 ? 3 : 0);
    int left_new = 0;
    ls_log_set_level(LS_LOG_OFF);
    for (int i = 0; i < WAYS; i++) {
        for (int ranks = 2; ranks <= MOST_RANKS; ranks += 2) {
            if (long_step > 0 || ranks == 2 + i % 2 * 2) {
                const int short_step = ranks == 2 ? step : 3 * step;
                left_new += kill_at_calls(&ways[i], ranks, saves, long_step > 0 ? long_step : short_step);
            }
        }
    }
    ls_log_set_level(LS_LOG_WARNING);
    assert_true(!saves || left_new > 0);
}

TEST(test_killed_in_a_run) {
    kill_all_ways(false, IS_SANITIZED ? 51 : 17);
}

TEST(test_killed_in_a_save) {
    kill_all_ways(true, IS_SANITIZED ? 11 : 7);
}

static int open_board(void **state) {
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return board == MAP_FAILED ? -1 : make_root(state);
}

static int close_board(void **state) {
    (void)munmap(board, sizeof *board);
    return test_files_teardown(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_in_a_run),
        cmocka_unit_test(test_killed_in_a_save),
    };
    return cmocka_run_group_tests(tests, open_board, close_board);
}
