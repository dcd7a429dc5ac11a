/* For tests of checkpoints in one process: a folder for checkpoints, trials that write them, and checks of the
 * folder. */
#ifndef LS_TESTS_SUPPORT_CHECKPOINTS_H
#define LS_TESTS_SUPPORT_CHECKPOINTS_H

#include <stdio.h>
#include <string.h>

#include "tests/support/files.h"
#include "tests/support/trials.h"
#include "train/checkpoint/checkpoint.h"

static char test_root[320];

static inline int make_root(void **state) {
    (void)state;
    snprintf(test_root, sizeof test_root, "%s", test_file("a", "", 0));
    *strrchr(test_root, '/') = '\0';
    return 0;
}

/* Returns a path, which is valid until the next call. */
static inline const char *in_root(const char *name) {
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", test_root, name);
    return path;
}

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

/* Counts the checkpoints. At any time, a folder with the name of a checkpoint must be a complete checkpoint. */
static inline int count_whole(const char *folder) {
    char path[PATH_MAX];
    ls_folder_names names;
    assert_int_equal(ls_folder_list(folder, NULL, &names), LS_OK);
    for (int i = 0; i < names.count; i++) {
        assert_int_equal(ls_path_join(path, folder, names.items[i]), LS_OK);
        assert_int_equal(ls_checkpoint_verify(path), LS_OK);
    }
    const int count = names.count;
    ls_folder_names_free(&names);
    return count;
}

/* Counts all names, including hidden names. */
static inline int count_names(const char *folder) {
    ls_folder_names names;
    assert_int_equal(ls_folder_list(folder, "", &names), LS_OK);
    const int count = names.count - 2; /* . and .. */
    ls_folder_names_free(&names);
    return count;
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
