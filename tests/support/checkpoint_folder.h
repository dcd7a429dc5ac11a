/* For unit tests of checkpoints: a folder for checkpoints, and checks of its contents. */
#ifndef LS_TESTS_SUPPORT_CHECKPOINT_FOLDER_H
#define LS_TESTS_SUPPORT_CHECKPOINT_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/files.h"
#include "tests/support/unit.h"
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

/* Removes a folder with its contents. */
static inline void forget_folder(const char *folder) {
    char command[PATH_MAX + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

#endif
