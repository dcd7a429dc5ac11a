/*
 * Tests of callbacks that log a run: the files and lines that they write, and how resumed runs append to them.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/damage.h"
#include "tests/support/files.h"
#include "tests/support/fuzz.h"
#include "tests/support/trials.h"

#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "train/trial.h"

/* ---- CSV --------------------------------------------------------------------------------------------------------- */

static char *contents(const char *path) {
    static char text[8192];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

/* Returns the first columns of all lines, separated by spaces. */
static const char *columns(const char *path, char separator, int count) {
    static char all[8192];
    char *out = all;
    bool copies = true;
    int seen = 0;
    for (const char *c = contents(path); *c != '\0'; c++) {
        seen += *c == separator;
        copies = copies && seen < count;
        if (*c == '\n') {
            *out++ = ' ';
            copies = true;
            seen = 0;
        } else if (copies) {
            *out++ = *c;
        }
    }
    *out = '\0';
    return all;
}

static ls_tensor *started; /* the state of the last log that was started */

/* Runs a trial until epoch `to`. It continues a first trial of `from` epochs. */
static void log_with(ls_callback *log, int64_t from, int64_t batch, int64_t to) {
    setting s = make_setting();
    const ls_named *remembered;
    int count;
    ls_trial_options options = options_of(&s);
    options.metrics = LS_METRICS("loss", "acc");
    options.callbacks = &log;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_non_null(trial);
    for (int64_t i = 0; i < from; i++) {
        static const char *const names[] = {"loss", "acc", "val_loss", "val_acc"};
        ls_history_entry entry = {.count = 0};
        for (int k = 0; k < 4; k++) {
            assert_int_equal(ls_history_put(&entry, names[k], 1), LS_OK);
        }
        assert_int_equal(ls_history_append(&trial->history, &entry), LS_OK);
    }
    trial->epochs_run = from;
    trial->continues = batch > 0;
    trial->state.batch = batch;
    assert_int_equal(ls_loader_seek(s.train, from, batch), LS_OK);
    assert_int_equal(ls_trial_run(trial, to), LS_OK);
    assert_int_equal(log->hooks.state(log->user, &remembered, &count), LS_OK);
    ls_release(started);
    started = ls_clone(remembered[0].tensor);
    ls_trial_free(trial);
    free_setting(&s);
}

static void log_run(const char *path, const ls_csv_log_options *how, int64_t from, int64_t batch, int64_t to) {
    log_with(ls_csv_log(path, how), from, batch, to);
}

static void test_a_line_for_each_epoch(void **unused) {
    (void)unused;
    const char *path = test_path("epochs.csv");
    log_run(path, NULL, 0, 0, 2);
    assert_string_equal(columns(path, ',', 1), "epoch 0 1 ");
    assert_non_null(strstr(contents(path), "epoch,loss,acc,val_loss,val_acc\n0,"));
    log_run(path, NULL, 0, 0, 1);
    assert_string_equal(columns(path, ',', 1), "epoch 0 ");
    log_run(path, &(ls_csv_log_options){.append = true}, 0, 0, 2);
    assert_string_equal(columns(path, ',', 1), "epoch 0 0 1 ");
    log_run(path, &(ls_csv_log_options){.separator = '\t', .no_header = true}, 0, 0, 2);
    assert_string_equal(columns(path, '\t', 1), "0 1 ");
}

static ls_status count_one(const ls_trial_state *state, void *user, double *sum, double *weight) {
    (void)state;
    (void)user;
    *sum = *weight = 1;
    return LS_OK;
}

/* Names of columns with a special character are quoted, in the log and in the history (RFC 4180). */
static void check_quotes(const char *name, const char *quoted) {
    const char *path = test_path("names.csv"), *history = test_path("history.csv");
    char header[256];
    setting s = make_setting();
    ls_callback *log = ls_csv_log(path, NULL);
    ls_trial_options options = options_of(&s);
    options.custom_metrics =
        &(ls_metric *){ls_metric_new(&(ls_metric_functions){.name = name, .mean = count_one}, NULL)};
    options.custom_metric_count = 1;
    options.callbacks = &log;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    snprintf(header, sizeof header, "epoch,loss,%s,val_loss,", quoted);
    assert_ptr_equal(strstr(contents(path), header), contents(path));
    assert_int_equal(ls_trial_evaluate(trial, s.validate, "line\nbreak"), LS_OK); /* a metric's name cannot have one */
    assert_int_equal(ls_trial_write_history(trial, history), LS_OK);
    assert_ptr_equal(strstr(contents(history), header), contents(history));
    assert_non_null(strstr(contents(history), ",\"line\nbreak_loss\","));
    ls_trial_free(trial);
    free_setting(&s);
}

static void test_names_with_special_characters(void **unused) {
    (void)unused;
    check_quotes("a b", "a b");
    check_quotes("a,b", "\"a,b\"");
    check_quotes("a\"b", "\"a\"\"b\"");
}

/* Results that an evaluation adds to an epoch of the history get no column in later lines. */
static void test_evaluations_between(void **unused) {
    (void)unused;
    const char *path = test_path("between.csv");
    setting s = make_setting();
    ls_callback *log = ls_csv_log(path, NULL);
    ls_trial_options options = options_of(&s);
    options.callbacks = &log;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    assert_int_equal(ls_trial_evaluate(trial, s.validate, "test"), LS_OK);
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    int commas = 0;
    for (const char *c = contents(path); *c != '\0'; c++) {
        commas += *c == ',';
    }
    assert_int_equal(commas, 3 * 2); /* epoch,loss,val_loss */
    ls_trial_free(trial);
    free_setting(&s);
}

/* Lines after the checkpoint from which a run resumes are replaced, not duplicated. */
static void test_goes_on(void **unused) {
    (void)unused;
    const char *path = test_path("again.csv");
    log_run(path, NULL, 0, 0, 4);
    char first[8192];
    snprintf(first, sizeof first, "%s", contents(path));
    log_run(path, NULL, 2, 0, 4);
    assert_string_equal(columns(path, ',', 1), "epoch 0 1 2 3 ");
    assert_memory_equal(contents(path), first, (size_t)(strstr(first, "\n2,") - first));
    log_run(path, NULL, 3, 0, 6);
    assert_string_equal(columns(path, ',', 1), "epoch 0 1 2 3 4 5 ");
    log_run(path, NULL, 2, 0, 3);
    assert_string_equal(columns(path, ',', 1), "epoch 0 1 2 ");
    test_file("again.csv", "epoch,loss\n0,1\n1,", 17); /* as if killed in the middle of a line */
    log_run(path, NULL, 1, 0, 3);
    assert_string_equal(columns(path, ',', 1), "epoch 0 1 2 ");
    const char remark[] = "epoch,loss\n0,1\n# slower from here\n1,1\n2,1\n";
    test_file("again.csv", remark, sizeof remark - 1);
    log_run(path, NULL, 2, 0, 2); /* a line that a user has added, and the lines after it, are kept */
    assert_string_equal(columns(path, ',', 1), "epoch 0 # slower from here 1 ");
    test_file("again.csv", "", 0);
    log_run(path, NULL, 1, 0, 2);
    assert_string_equal(columns(path, ',', 1), "epoch 1 ");
    log_run(test_path("new.csv"), NULL, 1, 0, 2);
    assert_string_equal(columns(test_path("new.csv"), ',', 1), "epoch 1 ");
}

/* A trial that has written lines loads an earlier checkpoint. */
static void test_goes_on_after_a_load(void **unused) {
    (void)unused;
    const char *path = test_path("loaded.csv"), *folder = test_path("loaded");
    setting s = make_setting();
    ls_callback *log = ls_csv_log(path, NULL);
    ls_trial_options options = options_of(&s);
    options.callbacks = &log;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    for (int64_t epochs = 0; epochs < 2; epochs++) {
        assert_int_equal(ls_trial_run(trial, epochs), LS_OK);
        assert_int_equal(ls_trial_save(trial, folder), LS_OK);
        assert_int_equal(ls_trial_run(trial, 3), LS_OK);
        assert_int_equal(ls_trial_load(trial, folder), LS_OK);
        assert_int_equal(ls_trial_run(trial, 2), LS_OK);
        assert_string_equal(columns(path, ',', 1), "epoch 0 1 ");
        assert_int_equal(ls_trial_load(trial, folder), LS_OK);
    }
    ls_trial_free(trial);
    free_setting(&s);
}

/* The same with a checkpoint of a trial without a log, for lines of epochs and of batches. */
static void test_goes_on_after_a_load_without_a_log(void **unused) {
    (void)unused;
    const char *path = test_path("foreign.csv"), *folder = test_path("foreign");
    for (int per_batch = 0; per_batch < 2; per_batch++) {
        setting s = make_setting();
        ls_callback *log = ls_csv_log(path, &(ls_csv_log_options){.per_batch = per_batch != 0});
        ls_trial_options options = options_of(&s);
        ls_trial *other = ls_trial_new(&options);
        options.callbacks = &log;
        options.callback_count = 1;
        ls_trial *trial = ls_trial_new(&options);
        assert_int_equal(ls_trial_run(other, 1), LS_OK);
        assert_int_equal(ls_trial_save(other, folder), LS_OK);
        char expected[8192];
        assert_int_equal(ls_trial_run(trial, 2), LS_OK);
        snprintf(expected, sizeof expected, "%s", columns(path, ',', per_batch != 0 ? 2 : 1));
        assert_int_equal(ls_trial_run(trial, 3), LS_OK);
        assert_int_equal(ls_trial_load(trial, folder), LS_OK);
        assert_int_equal(ls_trial_run(trial, 2), LS_OK);
        assert_string_equal(columns(path, ',', per_batch != 0 ? 2 : 1), expected);
        ls_trial_free(trial);
        ls_trial_free(other);
        free_setting(&s);
    }
}

/* After a run that could not reopen the file, the next run fails, too, instead of losing lines. */
static void test_reopens_after_a_failure(void **unused) {
    (void)unused;
    const char *path = test_path("replaced.csv"), *folder = test_path("replaced");
    setting s = make_setting();
    ls_callback *log = ls_csv_log(path, NULL);
    ls_trial_options options = options_of(&s);
    options.callbacks = &log;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    assert_int_equal(ls_trial_save(trial, folder), LS_OK);
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    assert_int_equal(ls_trial_load(trial, folder), LS_OK);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ls_trial_run(trial, 2), LS_ERR_IO);
    }
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    assert_string_equal(columns(path, ',', 1), "epoch 1 ");
    ls_trial_free(trial);
    free_setting(&s);
}

static ls_status fail_in_batch_1(ls_trial_state *state, void *user) {
    bool *failed = user;
    const bool fails = !*failed && state->batch == 1;
    *failed |= fails;
    return fails ? ls_error_set(LS_ERR_IO, "the hook fails") : LS_OK;
}

/* A run after a failed run continues with the next batch, and keeps the lines of the batches before it. */
static void test_goes_on_after_a_failure(void **unused) {
    (void)unused;
    const char *path = test_path("failed.csv");
    bool failed = false;
    setting s = make_setting();
    ls_callback *callbacks[] = {ls_csv_log(path, &(ls_csv_log_options){.per_batch = true}),
                                ls_callback_new(&(ls_callback_hooks){.on_step_training = fail_in_batch_1}, &failed)};
    ls_trial_options options = options_of(&s);
    options.callbacks = callbacks;
    options.callback_count = 2;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_ERR_IO);
    char before[8192];
    snprintf(before, sizeof before, "%s", columns(path, ',', 2));
    assert_non_null(strstr(before, "0,1 "));
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    assert_memory_equal(columns(path, ',', 2), before, strlen(before));
    assert_null(strstr(columns(path, ',', 2) + strlen(before), "0,1 "));
    ls_trial_free(trial);
    free_setting(&s);
}

/* A log that continues from the state of the last log. */
static ls_callback *log_again(const char *path, const ls_csv_log_options *how) {
    ls_callback *log = ls_csv_log(path, how);
    assert_int_equal(log->hooks.set_state(log->user, &(ls_named){.name = "start", .tensor = started}, 1), LS_OK);
    return log;
}

/* Earlier lines are kept, even if the trial had written no line before the checkpoint. */
static void test_goes_on_behind_others(void **unused) {
    (void)unused;
    static const char before[] = "epoch,loss\n0,1\n1,1\n";
    const ls_csv_log_options how = {.append = true};
    const char *path = test_file("others.csv", before, sizeof before - 1);
    log_run(path, &how, 0, 0, 2);
    assert_string_equal(columns(path, ',', 1), "epoch 0 1 0 1 ");
    log_with(log_again(path, &how), 0, 1, 1);
    assert_string_equal(columns(path, ',', 1), "epoch 0 1 0 ");
    log_with(log_again(path, &how), 1, 0, 2);
    assert_string_equal(columns(path, ',', 1), "epoch 0 1 0 1 ");
    test_file("others.csv", "", 0); /* another file */
    log_with(log_again(path, &how), 1, 0, 2);
    assert_string_equal(columns(path, ',', 1), "epoch 1 ");
}

/* The epoch number has only one column, even with a metric "epoch". */
static void test_metric_epoch(void **unused) {
    (void)unused;
    setting s = make_setting();
    const char *path = test_path("numbered.csv"), *history = test_path("history.csv");
    ls_callback *log = ls_csv_log(path, NULL);
    ls_trial_options options = options_of(&s);
    options.metrics = LS_METRICS("epoch", "loss");
    options.validate = NULL;
    options.callbacks = &log;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 2), LS_OK);
    assert_int_equal(ls_trial_write_history(trial, history), LS_OK);
    ls_trial_free(trial);
    free_setting(&s);
    assert_true(strncmp(contents(path), "epoch,loss\n0,", 13) == 0);
    assert_true(strncmp(contents(history), "epoch,loss\n0,", 13) == 0);
}

static void test_a_line_for_each_batch(void **unused) {
    (void)unused;
    const ls_csv_log_options how = {.per_batch = true, .separator = ';'};
    const char *path = test_path("batches.csv");
    log_run(path, &how, 0, 0, 2);
    assert_string_equal(columns(path, ';', 2), "epoch;batch 0;0 0;1 0;2 1;0 1;1 1;2 ");
    log_run(path, &how, 1, 1, 2);
    assert_string_equal(columns(path, ';', 2), "epoch;batch 0;0 0;1 0;2 1;0 1;1 1;2 ");
    assert_non_null(strstr(contents(path), "epoch;batch;loss;learning_rate\n"));
}

/* A damaged log file that a resumed run finds, and the part of it that the run keeps. */
typedef struct damaged_log {
    ls_trial *trial;
    tally counts; /* counts of accepted files, which are kept whole */
} damaged_log;

static void keep_lines(const char *path, const ls_csv_log_options *how, int64_t start, ls_trial_state *state) {
    ls_callback *log = ls_csv_log(path, how);
    ls_tensor *where = ls_full(LS_SCALAR, LS_I64, (double)start);
    assert_int_equal(log->hooks.set_state(log->user, &(ls_named){.name = "start", .tensor = where}, 1), LS_OK);
    assert_int_equal(log->hooks.on_start(state, log->user), LS_OK);
    ls_callback_free(log);
    ls_release(where);
}

/*
 * The run keeps the beginning of the file, up to the last line that is the header or belongs to an earlier epoch. A
 * second run keeps the same part.
 */
static void round_log(uint64_t number, void *argument) {
    static const char *const texts[] = {"epoch,loss,val_loss\n0,0.5,1\n1,0.25,nan\n2,0.125,1e-3\n",
                                        "epoch,batch,loss,learning_rate\n0,0,1,0.1\n0,1,1,0.1\n1,0,1,0.1\n1,1,0,0.1\n",
                                        "0,0.5\n1,0.25\n2,0.125\n"};
    damaged_log *log = argument;
    const int kind = (int)(number % 3);
    const ls_csv_log_options how = {.per_batch = kind == 1, .no_header = kind == 2};
    const int64_t epochs = 1 + (int64_t)fuzz_below(2);
    log->trial->epochs_run = epochs;
    log->trial->continues = kind == 1;
    log->trial->state.batch = kind == 1;
    content before = {.size = 0}, after, again;
    content_replace(&before, 0, 0, texts[kind], strlen(texts[kind]));
    if (fuzz_below(3) == 0) { /* a byte that terminates strings, but not lines */
        content_replace(&before, fuzz_below(before.size), 0, "", 1);
    }
    content_damage(&before);
    const int64_t start = fuzz_below(4) == 0 ? (int64_t)fuzz_below(before.size + 20) : 0;
    const char *path = content_file(&before);
    keep_lines(path, &how, start, &log->trial->state);
    content_read(&after, path);
    assert_true(after.size <= before.size);
    assert_memory_equal(after.bytes, before.bytes, after.size);
    const size_t own = (size_t)start <= before.size ? (size_t)start : 0;
    assert_true(after.size == own || (after.size > own && after.bytes[after.size - 1] == '\n'));
    keep_lines(path, &how, start, &log->trial->state);
    content_read(&again, path);
    assert_int_equal(again.size, after.size);
    log->counts.accepted += after.size == before.size;
    log->counts.refused += after.size < before.size;
}

static void test_damaged_logs(void **unused) {
    (void)unused;
    setting s = make_setting();
    const ls_trial_options options = options_of(&s);
    damaged_log log = {.trial = ls_trial_new(&options)};
    log.trial->running = true;
    fuzz_run("csv_log", 3000, round_log, &log);
    tally_assert_both(&log.counts);
    log.trial->running = false;
    ls_trial_free(log.trial);
    free_setting(&s);
}

static void test_files_that_cannot_be(void **unused) {
    (void)unused;
    const char *const paths[] = {test_path("absent/log.csv"), "/dev/full"};
    for (int i = 0; i < 2; i++) {
        setting s = make_setting();
        ls_callback *log = ls_csv_log(paths[i], NULL);
        ls_trial_options options = options_of(&s);
        options.callbacks = &log;
        options.callback_count = 1;
        ls_trial *trial = ls_trial_new(&options);
        assert_int_equal(ls_trial_run(trial, 1), LS_ERR_IO);
        expect_message(i == 0 ? "/absent/log.csv: No such file" : "ls_csv_log: cannot write /dev/full: No space left");
        ls_trial_free(trial);
        free_setting(&s);
    }
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* Returns the output of two epochs and an evaluation. A prediction in between has none. */
static const char *printed(ls_callback *callback) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    options.metrics = LS_METRICS("loss", "acc", "lr");
    options.custom_metrics = &(ls_metric *){ls_metric_confusion(NULL)};
    options.custom_metric_count = 1;
    options.callbacks = &callback;
    options.callback_count = 1;
    const char *path = test_path("printed");
    fflush(stdout);
    const int terminal = dup(STDOUT_FILENO);
    assert_non_null(freopen(path, "w", stdout));
    ls_trial *trial = ls_trial_new(&options);
    const ls_status ran = trial != NULL ? ls_trial_run(trial, 2) : ls_error_status();
    ls_tensor *outputs = NULL;
    const ls_status predicted = ran == LS_OK ? ls_trial_predict(trial, s.validate, false, &outputs) : ran;
    ls_release(outputs);
    const ls_status evaluated = predicted == LS_OK ? ls_trial_evaluate(trial, s.validate, "test") : predicted;
    fflush(stdout);
    dup2(terminal, STDOUT_FILENO);
    close(terminal);
    ls_trial_free(trial);
    free_setting(&s);
    assert_int_equal(evaluated, LS_OK);
    return contents(path);
}

static int lines_of(const char *text) {
    int lines = 0;
    for (; *text != '\0'; text++) {
        lines += *text == '\n';
    }
    return lines;
}

static void test_console(void **unused) {
    (void)unused;
    const char *text = printed(ls_console(NULL));
    assert_int_equal(lines_of(text), 5);
    assert_ptr_equal(strstr(text, "0/2(t): loss="), text);
    assert_non_null(strstr(text, "\n0/2(v): val_loss="));
    assert_non_null(strstr(text, ", val_acc="));
    assert_non_null(strstr(text, "\n1/2(t): loss="));
    assert_non_null(strstr(text, "\n0/1(e): test_loss="));
    assert_null(strstr(text, "nan"));
    text = printed(ls_console(&(ls_console_options){.per_batch = true, .digits = 2}));
    assert_int_equal(lines_of(text), 5 + 2 * (3 + 2) + 2);
    assert_non_null(strstr(text, "0/2(t): 3/3 loss="));
    assert_non_null(strstr(text, "0/2(v): 1/2 loss="));
}

static int count_of(const char *text, const char *words) {
    int count = 0;
    for (; (text = strstr(text, words)) != NULL; text++) {
        count++;
    }
    return count;
}

/* Tests 5 samples in 3 classes. Each row of fractions adds up to 1, unless its class does not occur. */
static void test_confusion(void **unused) {
    (void)unused;
    const char *text = printed(ls_confusion_printer(NULL, false));
    assert_int_equal(lines_of(text), 3 * 5);
    assert_int_equal(count_of(text, "val_confusion: one row per target class"), 2);
    assert_int_equal(count_of(text, "test_confusion: one row per target class"), 1);
    double sum = 0, counts[3];
    const char *at = strstr(text, "test_confusion");
    for (int i = 0; i < 3; i++) {
        int row;
        at = strchr(i == 0 ? strchr(at, '\n') + 1 : at, '\n') + 1;
        assert_int_equal(sscanf(at, "%d %lf %lf %lf", &row, &counts[0], &counts[1], &counts[2]), 4);
        assert_int_equal(row, i);
        int64_t targets = 0;
        for (int k = 0; k < TEST_COUNT; k++) {
            targets += target_at(1, k) == i;
        }
        assert_int_equal(counts[0] + counts[1] + counts[2], targets);
        sum += counts[0] + counts[1] + counts[2];
    }
    assert_int_equal(sum, TEST_COUNT);
    text = printed(ls_confusion_printer("confusion", true));
    assert_int_equal(lines_of(text), 3 * 5);
    assert_true(strstr(text, "1.000") != NULL || strstr(text, "0.500") != NULL || strstr(text, "0.333") != NULL);
}

static void test_confusion_of_nothing(void **unused) {
    (void)unused;
    setting s = make_setting();
    ls_callback *printer = ls_confusion_printer("mixed_up", false);
    ls_trial_options options = options_of(&s);
    options.callbacks = &printer;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_ERR_ARGUMENT);
    expect_message("ls_confusion_printer: there is no metric \"mixed_up\"; available: ");
    ls_trial_free(trial);
    printer = ls_confusion_printer("recall_per_class", false);
    options.metrics = LS_METRICS("recall_per_class");
    trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_ERR_ARGUMENT);
    expect_message("ls_confusion_printer: metric \"recall_per_class\" is not a confusion matrix");
    ls_trial_free(trial);
    printer = ls_confusion_printer(NULL, false); /* without samples, there is no table */
    ls_loader *empty = make_loader(1, 0);
    options.metrics = LS_METRICS("confusion");
    trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_evaluate(trial, empty, "test"), LS_OK);
    ls_trial_free(trial);
    ls_loader_free(empty);
    free_setting(&s);
}

static void test_timer_prints_a_table(void **unused) {
    (void)unused;
    const char *text = printed(ls_timer(NULL));
    assert_non_null(strstr(text, "seconds            least       mean    largest\n"));
    assert_non_null(strstr(text, "\nforward "));
    assert_non_null(strstr(text, "\ntotal "));
    assert_null(strstr(text, "user step"));
    assert_non_null(strstr(text, "\nmemory (MB)        least       mean    largest\nparameters         0.0"));
    assert_non_null(strstr(text, "\ngradients          0.0"));
    assert_non_null(strstr(text, "\nactivations        0.0"));
    assert_non_null(strstr(text, "\npeak               0.0"));
    assert_null(strstr(text, "buckets"));
    assert_string_equal(printed(ls_timer(&(ls_timer_options){.no_table = true})), "");
}

/* A replay is not a run. */
static void test_timer_in_a_replay(void **unused) {
    (void)unused;
    setting s = make_setting();
    ls_callback *timer = ls_timer(&(ls_timer_options){.no_table = true});
    ls_trial_options options = options_of(&s);
    options.callbacks = &timer;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    double before[LS_TIMES];
    for (int i = 0; i < LS_TIMES; i++) {
        before[i] = ls_timer_seconds(timer, (ls_time)i);
    }
    assert_true(before[LS_TIME_FORWARD] > 0 && before[LS_TIME_VALIDATION] > 0);
    assert_int_equal(ls_trial_replay(trial, &timer, 1, false), LS_OK);
    for (int i = 0; i < LS_TIMES; i++) {
        assert_true(ls_timer_seconds(timer, (ls_time)i) == before[i]);
    }
    ls_trial_free(trial);
    free_setting(&s);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_line_for_each_epoch),   cmocka_unit_test(test_names_with_special_characters),
        cmocka_unit_test(test_evaluations_between),     cmocka_unit_test(test_goes_on),
        cmocka_unit_test(test_goes_on_after_a_load),    cmocka_unit_test(test_goes_on_after_a_load_without_a_log),
        cmocka_unit_test(test_reopens_after_a_failure), cmocka_unit_test(test_goes_on_after_a_failure),
        cmocka_unit_test(test_goes_on_behind_others),   cmocka_unit_test(test_metric_epoch),
        cmocka_unit_test(test_a_line_for_each_batch),   cmocka_unit_test(test_damaged_logs),
        cmocka_unit_test(test_files_that_cannot_be),    cmocka_unit_test(test_confusion),
        cmocka_unit_test(test_confusion_of_nothing),    cmocka_unit_test(test_console),
        cmocka_unit_test(test_timer_prints_a_table),    cmocka_unit_test(test_timer_in_a_replay),
    };
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    return cmocka_run_group_tests(tests, NULL, test_files_teardown);
}
