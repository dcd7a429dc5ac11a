/*
 * Runs in one process that overwrite the checkpoints of an earlier run.
 *
 * devices: cpu
 */
#include "tests/support/checkpoints.h"

#include <sys/stat.h>
#include <unistd.h>

static ls_trial *trial_with(const setting *s, ls_callback *callback, const ls_checkpoint_options *checkpoints) {
    ls_trial_options options = options_of(s);
    options.callbacks = &callback;
    options.callback_count = 1;
    options.checkpoint = checkpoints;
    return ls_trial_new(&options);
}

static ls_status expect_empty(ls_trial_state *state, void *user) {
    if (state->epoch == 0) {
        assert_int_equal(count_whole(user), 0);
    }
    return LS_OK;
}

/* The checkpoints of an earlier run are removed before the first step, not at the end of the epoch in which they
 * were written. */
TEST(test_overwrite_before_the_first_step) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", in_root("emptied"));
    ls_checkpoint_options each = {.folder = folder, .every_steps = 1, .keep = 9};
    training t = begin(&each, NULL);
    assert_int_equal(ls_trial_run(t.trial, 2), LS_OK);
    end(&t);
    each.overwrite = true;
    setting s = make_setting();
    ls_callback *looking = ls_callback_new(&(ls_callback_hooks){.on_start_training = expect_empty}, folder);
    ls_trial *trial = trial_with(&s, looking, &each);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    /* Checkpoints are written one at a time, so some steps may pass while one is written. */
    assert_in_range(count_whole(folder), 1, 3);
    ls_trial_free(trial);
    free_setting(&s);
}

/* A second run with .overwrite starts fresh, and keeps everything that is not a checkpoint. */
TEST(test_overwrite) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", in_root("again"));
    const ls_checkpoint_options first = {.folder = folder, .every_epochs = 1, .keep = 9, .best = "loss"};
    ls_checkpoint_options second = first;
    second.overwrite = true;
    training t = begin(&first, NULL);
    assert_int_equal(ls_trial_run(t.trial, 3), LS_OK);
    end(&t);
    assert_int_equal(count_names(folder), 4); /* three and the link */
    write_bytes(in_root("again/notes.txt"), (const unsigned char *)"mine", 4);
    assert_int_equal(mkdir(in_root("again/epoch-2-notes"), 0777), 0);
    t = begin(&second, NULL);
    assert_int_equal(ls_trial_run(t.trial, 1), LS_OK);
    const uint64_t fresh = ls_module_hash(t.setting.model);
    assert_int_equal(count_whole(folder), 1);
    assert_int_equal(ls_checkpoint_verify(in_root("again/best")), LS_OK);
    assert_int_equal(count_names(folder), 4);          /* one checkpoint, the link, the notes and the folder */
    assert_int_equal(ls_trial_run(t.trial, 2), LS_OK); /* the next run of the same trial keeps its own checkpoints */
    assert_int_equal(count_whole(folder), 2);
    end(&t);
    t = begin(NULL, NULL);
    assert_int_equal(ls_trial_run(t.trial, 1), LS_OK);
    assert_true(ls_module_hash(t.setting.model) == fresh);
    end(&t);
    t = begin(&second, folder); /* .resume determines the start */
    assert_int_equal(ls_trial_run(t.trial, 3), LS_OK);
    assert_int_equal(count_whole(folder), 3);
    end(&t);
    /* A link with the name of a checkpoint may point to a different program's checkpoint. */
    assert_int_equal(symlink("epoch-000003-step-0000000009", in_root("again/epoch-000004-step-0000000012")), 0);
    t = begin(&second, NULL);
    expect_failure(ls_trial_run(t.trial, 1), LS_ERR_STATE,
                   "epoch-000004-step-0000000012 is further along than this trial");
    assert_int_equal(count_whole(folder), 4);
    end(&t);
}

static ls_status fail_at_start(ls_trial_state *state, void *user) {
    (void)user;
    expect_error(ls_trial_run(state->trial, 1), LS_ERR_STATE, "the trial is in a run");
    return ls_fail(LS_ERR_ARGUMENT, "the hook refuses");
}

/* A run that fails before its first step removes nothing. A hook cannot start a second run. */
TEST(test_overwrite_after_all_checks) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", in_root("unharmed"));
    const ls_checkpoint_options first = {.folder = folder, .every_epochs = 1};
    ls_checkpoint_options second = first;
    second.overwrite = true;
    training t = begin(&first, NULL);
    assert_int_equal(ls_trial_run(t.trial, 2), LS_OK);
    end(&t);
    setting s = make_setting();
    ls_callback *failing = ls_callback_new(&(ls_callback_hooks){.on_start = fail_at_start}, NULL);
    ls_trial *trial = trial_with(&s, failing, &second);
    expect_failure(ls_trial_run(trial, 1), LS_ERR_ARGUMENT, "the hook refuses");
    assert_int_equal(count_whole(folder), 2);
    ls_trial_free(trial);
    free_setting(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_overwrite_before_the_first_step),
        cmocka_unit_test(test_overwrite),
        cmocka_unit_test(test_overwrite_after_all_checks),
    };
    return cmocka_run_group_tests(tests, make_root, test_files_teardown);
}
