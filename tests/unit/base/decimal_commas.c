/*
 * Programs whose locale writes numbers with a comma: files, messages and lines of the library use decimal points, and
 * can be read again.
 *
 * devices: cpu
 */
#include <lockstep/lockstep.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/describe.h"
#include "base/status.h"
#include "tests/support/commas.h"
#include "tests/support/trials.h"

static int begin_commas(void **state) {
    (void)state;
    (void)commas_begin();
    return 0;
}

#define NEEDS_COMMAS()                                                                                                 \
    do {                                                                                                               \
        if (!commas_are_used()) {                                                                                      \
            skip();                                                                                                    \
        }                                                                                                              \
    } while (0)

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Returns the text of a file. It is valid until the next call. */
static const char *text_of(const char *path) {
    static char text[1 << 16];
    FILE *file = fopen(path, "rbe");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

/* Returns whether the character occurs between two digits. */
static bool has_between_digits(const char *text, char mark) {
    for (const char *at = strchr(text, mark); at != NULL; at = strchr(at + 1, mark)) {
        if (at > text && at[-1] >= '0' && at[-1] <= '9' && at[1] >= '0' && at[1] <= '9') {
            return true;
        }
    }
    return false;
}

static void run(ls_callback *const *callbacks, int count, setting *s, ls_trial **trial) {
    *s = make_setting();
    assert_int_equal(ls_optimizer_set_learning_rate(s->optimizer, -1, 0.125), LS_OK);
    ls_trial_options options = options_of(s);
    options.callbacks = callbacks;
    options.callback_count = count;
    *trial = ls_trial_new(&options);
    assert_non_null(*trial);
    assert_int_equal(ls_trial_run(*trial, 2), LS_OK);
}

/* Uses a different separator, so that a comma between digits is a decimal comma. */
TEST(test_logs_and_histories) {
    NEEDS_COMMAS();
    char epochs[512], batches[512], saved[512];
    snprintf(epochs, sizeof epochs, "%s", test_path("epochs.csv"));
    snprintf(batches, sizeof batches, "%s", test_path("batches.csv"));
    snprintf(saved, sizeof saved, "%s", test_path("saved.csv"));
    setting s;
    ls_trial *trial;
    run((ls_callback *[]){ls_csv_log(epochs, &(ls_csv_log_options){.separator = ';'}),
                          ls_csv_log(batches, &(ls_csv_log_options){.separator = ';', .per_batch = true})},
        2, &s, &trial);
    assert_int_equal(ls_trial_write_history(trial, saved), LS_OK);
    const double loss = ls_trial_history(trial, 1, "loss");
    assert_false(has_between_digits(text_of(epochs), ','));
    assert_false(has_between_digits(text_of(batches), ','));
    for (int i = 0; i < 2; i++) {
        ls_tensor *table =
            ls_csv_read(i == 0 ? epochs : saved, &(ls_csv_options){.separator = i == 0 ? ';' : ',', .dtype = LS_F64});
        assert_non_null(table);
        assert_int_equal(ls_size(table, 1), 3); /* epoch, loss, val_loss */
        assert_true(fabs(ls_at(table, (const int64_t[]){1, 1}) - loss) < 1e-8 && loss > 0.1);
        ls_release(table);
    }
    ls_trial_free(trial);
    free_setting(&s);
}

TEST(test_checkpoints) {
    NEEDS_COMMAS();
    char folder[512], manifest[600];
    snprintf(folder, sizeof folder, "%s", test_path("checkpoint"));
    snprintf(manifest, sizeof manifest, "%s/manifest.json", folder);
    setting s;
    ls_trial *trial;
    run(NULL, 0, &s, &trial);
    assert_int_equal(ls_trial_save(trial, folder), LS_OK);
    assert_false(has_between_digits(text_of(manifest), ','));
    const double loss = ls_trial_history(trial, 0, "val_loss");
    assert_int_equal(ls_trial_run(trial, 3), LS_OK);
    assert_int_equal(ls_trial_load(trial, folder), LS_OK);
    assert_true(ls_trial_history_count(trial) == 2 && ls_trial_history(trial, 0, "val_loss") == loss);
    ls_trial_free(trial);
    free_setting(&s);
}

TEST(test_traces) {
    NEEDS_COMMAS();
    char path[512];
    snprintf(path, sizeof path, "%s", test_path("trace.json"));
    ls_comm *world = ls_init(NULL);
    assert_int_equal(ls_trace_start(), LS_OK);
    ls_trace_span("span", ls_clock_ns() - 1500);
    assert_int_equal(ls_trace_stop(world, path), LS_OK);
    assert_int_equal(ls_finalize(), LS_OK);
    assert_true(has_between_digits(text_of(path), '.'));
    assert_false(has_between_digits(text_of(path), ','));
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

/* The output of callbacks and of the progress line. */
TEST(test_standard_output) {
    NEEDS_COMMAS();
    char path[512];
    snprintf(path, sizeof path, "%s", test_path("output"));
    fflush(stdout);
    const int before = dup(STDOUT_FILENO);
    assert_non_null(freopen(path, "we", stdout));
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    ls_callback *const callbacks[] = {ls_console(NULL), ls_timer(NULL), ls_confusion_printer("confusion", true)};
    options.callbacks = callbacks;
    options.callback_count = 3;
    options.quiet = false;
    options.metrics = LS_METRICS("loss", "confusion");
    ls_trial *trial = ls_trial_new(&options);
    const ls_status status = trial != NULL ? ls_trial_run(trial, 1) : ls_error_status();
    fflush(stdout);
    assert_true(dup2(before, STDOUT_FILENO) == STDOUT_FILENO);
    close(before);
    assert_int_equal(status, LS_OK);
    const char *text = text_of(path);
    assert_true(has_between_digits(text, '.'));
    assert_false(has_between_digits(text, ','));
    ls_trial_free(trial);
    free_setting(&s);
}

static void keep_line(ls_log_level level, int rank, const char *line, void *user) {
    (void)level;
    (void)rank;
    snprintf(user, 256, "%s", line);
}

TEST(test_messages) {
    NEEDS_COMMAS();
    char line[256] = "", text[64];
    setting s = make_setting();
    assert_int_equal(ls_optimizer_set_learning_rate(s.optimizer, 0, -0.5), LS_ERR_ARGUMENT);
    expect_message("-0.5");
    ls_log_set_sink(keep_line, line);
    ls_log_write(LS_LOG_ERROR, "%g s", 1.5);
    ls_log_set_sink(NULL, NULL);
    assert_string_equal(line, "1.5 s");
    ls_tensor *half = ls_full(LS_SHAPE(1), LS_F32, 0.5);
    (void)ls_format(half, text, sizeof text);
    assert_string_equal(text, "tensor([0.5000])");
    ls_release(half);
    free_setting(&s);
    assert_true(commas_are_used()); /* the program's locale is unchanged */
}

/* Ranks compare these strings, and the locale may differ between machines. */
TEST(test_descriptions_of_options) {
    NEEDS_COMMAS();
    static const ls_field fields[] = {
        LS_FIELD(ls_sgd_options, momentum), LS_FIELD(ls_sgd_options, nesterov), {.name = NULL}};
    char text[64];
    ls_describe(text, sizeof text, "ls_sgd", fields, &(ls_sgd_options){.momentum = 0.9, .nesterov = true});
    assert_string_equal(text, "ls_sgd (momentum 0.9, nesterov 1)");
    ls_describe(text, sizeof text, "ls_sgd", fields, &(ls_sgd_options){.momentum = 1.0 / 3});
    assert_string_equal(text, "ls_sgd (momentum 0.3333333333333333)");
}

/* From the environment. */
TEST(test_a_timeout) {
    NEEDS_COMMAS();
    assert_int_equal(setenv("LOCKSTEP_TIMEOUT", "7.5", 1), 0);
    ls_comm *world = ls_init(NULL);
    assert_non_null(world);
    assert_int_equal(ls_finalize(), LS_OK);
    unsetenv("LOCKSTEP_TIMEOUT");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logs_and_histories),
        cmocka_unit_test(test_checkpoints),
        cmocka_unit_test(test_traces),
        cmocka_unit_test(test_standard_output),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_a_timeout),
        cmocka_unit_test(test_descriptions_of_options),
    };
    return cmocka_run_group_tests(tests, begin_commas, test_files_teardown);
}
