/*
 * A run of all ranks writes one record for `lockstep report`, on rank 0, with values over all ranks.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/scratch.h"
#include "tests/support/training.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "formats/json.h"

enum { EPOCHS = 3, STEPS = 9 * EPOCHS, PAUSE = 500000 /* microseconds */ };

static const ls_run_log_options each_step = {.every_steps = 1};

/* The contents of a record. */
typedef struct found {
    int starts, steps, epochs, results, ends;
    int phases;     /* numbers of ranks in all epochs */
    int resumes;    /* starts that resume */
    double seconds; /* of all epochs */
    double epoch_seconds[EPOCHS];
    double in_phases; /* of all ranks */
    double excess;    /* largest difference between a rank's communication in an epoch, and the seconds of the epoch */
    double rate, metric_rate; /* samples per second in the last epoch: in the line, and as a metric */
    double step_loss[STEPS], loss[EPOCHS], val_acc[EPOCHS];
} found;

/* `last` is the duration of the epoch. */
static bool read_phases(ls_json *json, found *f, double last) {
    const char *key;
    for (int64_t n = 0; ls_json_key(json, &n, &key);) {
        const bool communication = strcmp(key, "communication") == 0;
        int64_t ranks = 0;
        for (double seconds; ls_json_item(json, &ranks); f->phases++) {
            if (!ls_json_number(json, &seconds) || seconds < 0 || seconds > 1000) {
                return false;
            }
            f->in_phases += communication ? 0 : seconds;
            f->excess = communication && seconds - last > f->excess ? seconds - last : f->excess;
        }
    }
    return json->expected == NULL;
}

static bool read_metrics(ls_json *json, found *f, int epoch) {
    const char *key;
    for (int64_t n = 0; ls_json_key(json, &n, &key);) {
        double *to = strcmp(key, "loss") == 0                 ? &f->loss[epoch]
                     : strcmp(key, "val_acc") == 0            ? &f->val_acc[epoch]
                     : strcmp(key, "samples_per_second") == 0 ? &f->metric_rate
                                                              : NULL;
        if (to != NULL && epoch < EPOCHS ? !ls_json_number(json, to) : !ls_json_skip(json)) {
            return false;
        }
    }
    return json->expected == NULL;
}

static bool read_line(char *line, found *f) {
    ls_json json = ls_json_of(line);
    const char *key, *kind = "";
    double last = 0;
    for (int64_t n = 0; ls_json_key(&json, &n, &key);) {
        const bool epoch = strcmp(kind, "epoch") == 0;
        if (strcmp(key, "kind") == 0) {
            (void)ls_json_text(&json, &kind);
        } else if (strcmp(key, "loss") == 0 && f->steps < STEPS) {
            (void)ls_json_number(&json, &f->step_loss[f->steps]);
        } else if (strcmp(key, "metrics") == 0 && epoch && f->epochs < EPOCHS) {
            (void)read_metrics(&json, f, f->epochs);
        } else if (strcmp(key, "phases") == 0) {
            (void)read_phases(&json, f, last);
        } else if (strcmp(key, "seconds") == 0) {
            (void)ls_json_number(&json, &last);
            f->seconds += last;
            f->epoch_seconds[f->epochs < EPOCHS ? f->epochs : EPOCHS - 1] = last;
        } else if (strcmp(key, "samples_per_second") == 0) {
            (void)ls_json_number(&json, &f->rate);
        } else if (strcmp(key, "resumes") == 0) {
            bool resumes = false;
            (void)ls_json_flag(&json, &resumes);
            f->resumes += resumes;
        } else {
            (void)ls_json_skip(&json);
        }
    }
    f->starts += strcmp(kind, "start") == 0;
    f->steps += strcmp(kind, "step") == 0;
    f->epochs += strcmp(kind, "epoch") == 0;
    f->results += strcmp(kind, "results") == 0;
    f->ends += strcmp(kind, "end") == 0;
    return json.expected == NULL;
}

static ls_status read_record(const char *folder, found *f) {
    char path[1100], *line = NULL;
    size_t room = 0;
    snprintf(path, sizeof path, "%s/run.jsonl", folder);
    FILE *file = fopen(path, "re");
    LS_CHECK(file != NULL);
    *f = (found){.starts = 0};
    bool whole = true;
    while (whole && getline(&line, &room, file) > 0) {
        whole = read_line(line, f);
    }
    free(line);
    fclose(file);
    LS_CHECK(whole);
    return LS_OK;
}

static ls_status begin_run(training *t, ls_comm *comm, const char *folder, const ls_run_log_options *options,
                           training_plan plan) {
    ls_callback *log = ls_run_log(folder, options);
    plan.callbacks = &log;
    plan.callback_count = 1;
    plan.global_batch = 7;
    return training_begin(t, &plan, comm);
}

static ls_status write_run(ls_comm *comm, const char *folder, training *t) {
    LS_TRY(begin_run(t, comm, folder, &each_step, (training_plan){0}));
    LS_TRY(ls_trial_run(t->trial, EPOCHS));
    return ls_trial_evaluate(t->trial, t->validate, "test");
}

static ls_status check_record(const char *folder, const training *t, int ranks, found *f) {
    LS_TRY(read_record(folder, f));
    LS_CHECK(f->starts == 1 && f->steps == STEPS && f->epochs == EPOCHS && f->results == 1 && f->ends == 1);
    for (int i = 0; i < EPOCHS; i++) {
        LS_CHECK(f->loss[i] == ls_trial_history(t->trial, i, "loss"));
        LS_CHECK(f->val_acc[i] == ls_trial_history(t->trial, i, "val_acc"));
    }
    LS_CHECK(f->phases == EPOCHS * ranks * LS_TIME_TOTAL && f->in_phases > 0 && f->seconds > 0);
    LS_CHECK(ranks > 1 || f->in_phases <= f->seconds);
    return LS_OK;
}

/* A prediction writes no line. */
static ls_status predict(training *t) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *outputs = NULL;
    LS_TRY(ls_trial_predict(t->trial, t->validate, true, &outputs));
    return ls_scope_end(scope);
}

/* On the other ranks, the folder is not writable. */
static ls_status numbers(ls_comm *world) {
    const bool first = ls_comm_rank(world) == 0;
    training all, alone;
    found of_all, of_one;
    const char *const folder = first ? in_scratch("all/of") : "/dev/null/folder", *const other = in_scratch("alone");
    LS_TRY(write_run(world, folder, &all));
    LS_TRY(predict(&all));
    if (first) {
        LS_TRY(write_run(NULL, other, &alone));
        LS_TRY(check_record(folder, &all, ls_comm_size(world), &of_all));
        LS_TRY(check_record(other, &alone, 1, &of_one));
        for (int i = 0; i < STEPS; i++) {
            LS_CHECK(fabs(of_all.step_loss[i] - of_one.step_loss[i]) < 1e-6);
        }
        training_end(&alone);
    }
    training_end(&all);
    return LS_OK;
}

/* Reads the record on rank 0, and compares its line counts. */
static ls_status has_lines(ls_comm *world, const char *folder, const int wanted[5]) {
    found f = {0};
    LS_TRY(ls_comm_rank(world) == 0 ? read_record(folder, &f) : LS_OK);
    const int lines[] = {f.starts, f.resumes, f.steps, f.epochs, f.ends};
    LS_CHECK(ls_comm_rank(world) > 0 || memcmp(lines, wanted, sizeof lines) == 0);
    return ls_comm_barrier(world, NULL);
}

/* A second run of a trial does not resume. By default, every 10th step gets a line. */
static ls_status two_runs(ls_comm *world, const char *folder) {
    const ls_run_log_options no_steps = {.no_steps = true};
    for (int without = 0; without < 2; without++) {
        training t;
        LS_TRY(begin_run(&t, world, folder, without ? &no_steps : NULL, (training_plan){0}));
        LS_TRY(ls_trial_run(t.trial, 1));
        LS_TRY(ls_trial_run(t.trial, EPOCHS));
        LS_TRY(has_lines(world, folder, (int[]){2, 0, without ? 0 : STEPS / 10, EPOCHS, 2}));
        training_end(&t);
    }
    return LS_OK;
}

/* A trial that resumes within an epoch removes the lines after the checkpoint, including an incomplete line. */
static ls_status resumed_run(ls_comm *world, const char *folder, const char *run) {
    const ls_checkpoint_options checkpoint = {.folder = run, .every_steps = 13, .no_signals = true};
    training t;
    LS_TRY(begin_run(&t, world, folder, &each_step, (training_plan){.checkpoint = &checkpoint, .max_steps = 16}));
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    training_end(&t);
    LS_TRY(has_lines(world, folder, (int[]){1, 0, 16, 2, 1}));
    if (ls_comm_rank(world) == 0) {
        char path[1100];
        snprintf(path, sizeof path, "%s/run.jsonl", folder);
        FILE *file = fopen(path, "ae");
        LS_CHECK(file != NULL && fputs("{\"kind\": \"st", file) >= 0 && fclose(file) == 0);
    }
    LS_TRY(begin_run(&t, world, folder, &each_step, (training_plan){.checkpoint = &checkpoint, .resume = run}));
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    training_end(&t);
    LS_TRY(has_lines(world, folder, (int[]){2, 1, STEPS, EPOCHS, 1}));
    LS_TRY(
        training_begin(&t, &(training_plan){.global_batch = 7, .resume = run}, world)); /* the log contains no state */
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    training_end(&t);
    return LS_OK;
}

static ls_status repeated_runs(ls_comm *world) {
    const char *const folder = in_scratch("record"), *const run = in_scratch("checkpoints");
    LS_TRY(two_runs(world, folder));
    return resumed_run(world, folder, run);
}

static ls_status fails(ls_comm *world, const char *folder, const char *says) {
    ls_callback *log = ls_run_log(folder, NULL);
    training t;
    LS_TRY(training_begin(&t, &(training_plan){.callbacks = &log, .callback_count = 1}, world));
    LS_CHECK(ls_trial_run(t.trial, EPOCHS) == LS_ERR_IO);
    LS_EXPECT_MESSAGE(says);
    if (ls_comm_size(world) > 1) {
        LS_EXPECT_MESSAGE("on_start of run_log");
    }
    training_end(&t);
    return LS_OK;
}

/* Reads of /dev/full never end. */
static ls_status refuses_devices(ls_comm *world) {
    const bool first = ls_comm_rank(world) == 0;
    const char *const folder = first ? in_scratch("device") : "/dev/null/folder";
    if (first) {
        LS_CHECK(mkdir(folder, 0777) == 0 && symlink("/dev/full", in_scratch("device/run.jsonl")) == 0);
    }
    return fails(world, folder, "/run.jsonl is not a regular file: choose a different path");
}

/* ---- times ------------------------------------------------------------------------------------------------------- */

/* On rank 0, the log calls uname before it writes the first line. */
static _Thread_local bool slow_uname;

int uname(struct utsname *name) {
    *name = (struct utsname){.sysname = "Test", .machine = "test"};
    return slow_uname ? usleep(PAUSE) : 0;
}

static ls_status pause_rank_0(ls_trial_state *state, void *user) {
    (void)user;
    return ls_comm_rank(state->comm) == 0 && usleep(PAUSE) != 0 ? LS_ERR_IO : LS_OK;
}

enum { BATCH = 6 };
#define STEP_PAUSE 0.02 /* seconds */

static ls_status pause_step(ls_trial_state *state, void *user) {
    (void)state, (void)user;
    return usleep((useconds_t)(STEP_PAUSE * 1e6)) == 0 ? LS_OK : LS_ERR_IO;
}

/* Before the first epoch, the other ranks wait for rank 0 in the log, or in a callback after the log. */
static ls_status waits_before_the_epoch(ls_comm *world, const char *folder, bool in_log) {
    ls_callback *const late = ls_callback_new(&(ls_callback_hooks){.on_start = pause_rank_0}, NULL);
    ls_callback *const both[] = {ls_run_log(folder, NULL), late};
    const double pause = PAUSE * 1e-6;
    training t;
    found f = {0};
    slow_uname = in_log;
    LS_TRY(training_begin(&t, &(training_plan){.callbacks = both, .callback_count = in_log ? 1 : 2}, world));
    LS_TRY(ls_trial_run(t.trial, EPOCHS));
    slow_uname = false;
    LS_TRY(ls_comm_rank(world) == 0 ? read_record(folder, &f) : LS_OK);
    LS_CHECK(f.excess < 0.8 * pause && f.epoch_seconds[0] < f.epoch_seconds[1] + 0.8 * pause);
    training_end(&t);
    if (in_log) {
        ls_callback_free(late);
    }
    return ls_comm_barrier(world, NULL);
}

/*
 * Returns whether a throughput of the epoch includes the samples of all ranks. Steps take at least as long as their
 * pauses, and at most about as long as the epoch: ranks may begin the epoch at different times.
 */
static bool counts_all(const ls_comm *world, const found *f, double rate) {
    const double ranks = ls_comm_size(world);
    return rate > 0.6 * ranks * TRAINING_SAMPLES / f->seconds && rate < 1.001 * ranks * BATCH / STEP_PAUSE;
}

/* The throughput counts the samples of all ranks, even if each rank has its own loader. */
static ls_status own_loaders(ls_comm *world, const char *folder) {
    ls_callback *const log = ls_run_log(folder, NULL);
    ls_callback *const slow = ls_callback_new(&(ls_callback_hooks){.on_sample = pause_step}, NULL);
    ls_seed(TRAINING_SEED);
    ls_module *model = ls_nn_linear_with(TRAINING_INPUTS, TRAINING_CLASSES, &(ls_linear_options){.dtype = LS_F64});
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    ls_outer *outer = ls_outer_new(model, world, NULL);
    ls_loader *loader = ls_loader_new(training_samples(ls_comm_rank(world), TRAINING_SAMPLES),
                                      &(ls_loader_options){.batch_size = BATCH});
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .outer = outer,
                                                       .criterion = ls_criterion_cross_entropy,
                                                       .train = loader,
                                                       .metrics = LS_METRICS("loss", "samples_per_second"),
                                                       LS_CALLBACKS(slow, log),
                                                       .quiet = true});
    found f = {0};
    LS_CHECK(trial != NULL);
    LS_TRY(ls_trial_run(trial, 1));
    const double throughput = ls_trial_throughput(trial), metric = ls_trial_metric(trial, "samples_per_second");
    if (ls_comm_rank(world) == 0) {
        LS_TRY(read_record(folder, &f));
        LS_CHECK(counts_all(world, &f, f.rate) && counts_all(world, &f, f.metric_rate));
        LS_CHECK(counts_all(world, &f, throughput) && counts_all(world, &f, metric));
    }
    ls_trial_free(trial);
    ls_outer_free(outer);
    ls_loader_free(loader);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return ls_comm_barrier(world, NULL);
}

static ls_status times(ls_comm *world) {
    const char *const folder = in_scratch("times");
    LS_TRY(waits_before_the_epoch(world, folder, false));
    LS_TRY(waits_before_the_epoch(world, folder, true));
    return own_loaders(world, folder);
}

static ls_status wrong_options(void) {
    LS_CHECK(ls_run_log(NULL, NULL) == NULL);
    LS_EXPECT_MESSAGE("the folder is NULL");
    LS_CHECK(ls_run_log("", NULL) == NULL);
    LS_EXPECT_MESSAGE("the folder is empty");
    LS_CHECK(ls_run_log("a", &(ls_run_log_options){.every_steps = -1}) == NULL);
    LS_CHECK(ls_error_status() == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE(".every_steps is -1");
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(make_scratch(world));
    LS_TRY(numbers(world));
    LS_TRY(repeated_runs(world));
    LS_TRY(times(world));
    LS_TRY(
        fails(world, "/dev/null/run", "/dev/null: File exists and is not a folder: choose another")); /* on all ranks */
    LS_TRY(refuses_devices(world));
    LS_TRY(wrong_options());
    return remove_scratch(world);
}
