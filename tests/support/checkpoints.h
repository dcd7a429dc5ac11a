/* For tests of checkpoints in one process: trials that write checkpoints. */
#ifndef LS_TESTS_SUPPORT_CHECKPOINTS_H
#define LS_TESTS_SUPPORT_CHECKPOINTS_H

#include <stdio.h>
#include <string.h>

#include "tests/support/checkpoint_folder.h"
#include "tests/support/trials.h"

typedef struct training {
    setting setting;
    ls_trial *trial;
} training;

static inline ls_trial *trial_of(const setting *s, const ls_checkpoint_options *checkpoints, const char *resume) {
    ls_trial_options options = options_of(s);
    options.checkpoint = checkpoints;
    options.resume = resume;
    return ls_trial_new(&options);
}

static inline training begin(const ls_checkpoint_options *checkpoints, const char *resume) {
    training t = {.setting = make_setting()};
    (void)!ls_optimizer_set_learning_rate(t.setting.optimizer, -1, 0.1);
    t.trial = trial_of(&t.setting, checkpoints, resume);
    return t;
}

static inline void end(training *t) {
    ls_trial_free(t->trial);
    free_setting(&t->setting);
}

static inline void expect_failure(ls_status is, ls_status want, const char *message) {
    assert_int_equal(is, want);
    expect_message(message);
}

/* Writes a file. */
static inline void write_bytes(const char *path, const unsigned char *bytes, size_t size) {
    FILE *file = fopen(path, "wbe");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

#endif
