/*
 * The assignment of GPUs to ranks, from lists in CUDA_VISIBLE_DEVICES and folders with device files.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include "cli/gpus.c" /* the command's code is not in a library */

#include <stdlib.h>
#include <sys/stat.h>

/* Checks the entries that the ranks of one machine get, separated by spaces. "" means that the variable is not
 * changed. */
static void check_ranks(const ls_gpus *gpus, int ranks, const char *wanted) {
    char all[256] = "";
    for (int rank = 0; rank < ranks; rank++) {
        char text[LS_GPU_TEXT];
        const size_t length = strlen(all);
        if (ls_gpus_of_rank(gpus, rank, ranks, text)) {
            (void)snprintf(all + length, sizeof all - length, "%s%s", rank > 0 ? " " : "", text);
        }
    }
    assert_string_equal(all, wanted);
}

TEST(test_lists) {
    static const struct {
        const char *list;
        int count;
        int ranks;
        const char *wanted;
    } rows[] = {
        {"0,1", 2, 2, "0 1"},
        {"3,1,2", 3, 4, "3 1 2 3"},
        {"2,5", 2, 1, ""}, /* a single rank gets both GPUs */
        {"7", 1, 3, ""},
        {"", 0, 2, ""},
        {"-1", 0, 2, ""},
        {"NoDevFiles", 0, 2, ""},
        {"0,-1,1", 1, 2, ""}, /* CUDA ignores all entries from -1 on */
        {"0,1,-1,2", 2, 3, "0 1 0"},
        {"0,1,", 2, 2, "0 1"},
        {"0,,1", 1, 2, ""},
        {" 4, 5 ,6", 3, 3, "4 5 6"},
        {"GPU-8a1b,MIG-GPU-8a1b/1/0", 2, 3, "GPU-8a1b MIG-GPU-8a1b/1/0 GPU-8a1b"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_gpus gpus;
        ls_gpus_find(&gpus, rows[i].list, "/dev/null/at-all");
        assert_int_equal(gpus.count, rows[i].count);
        check_ranks(&gpus, rows[i].ranks, rows[i].wanted);
    }
    char longer[2 * LS_GPU_TEXT + 3]; /* an entry that is too long to name a GPU */
    memset(longer, 'x', sizeof longer);
    (void)snprintf(longer + sizeof longer - 3, 3, ",1");
    char text[LS_GPU_TEXT];
    ls_gpus gpus;
    ls_gpus_find(&gpus, longer, "/dev/null/at-all");
    assert_false(ls_gpus_of_rank(&gpus, 0, 2, text));
    assert_true(ls_gpus_of_rank(&gpus, 1, 2, text));
}

static void make_file(const char *folder, const char *name) {
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    (void)fclose(file);
}

TEST(test_device_files) {
    static const char *const names[] = {"nvidia2", "nvidia10", "nvidia3",  "nvidiactl",     "nvidia-uvm",
                                        "nvidia",  "nvidia4x", "xnvidia1", "nvidia-modeset"};
    char folder[] = "/tmp/lockstep-gpus-XXXXXX";
    assert_non_null(mkdtemp(folder));
    ls_gpus gpus;
    ls_gpus_find(&gpus, NULL, folder);
    assert_int_equal(gpus.count, 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        make_file(folder, names[i]);
    }
    ls_gpus_find(&gpus, NULL, folder);
    assert_int_equal(gpus.count, 3);
    check_ranks(&gpus, 5, "0 1 2 0 1"); /* in CUDA's numbering */
    check_ranks(&gpus, 1, "");
    ls_gpus_find(&gpus, "5,4", folder); /* a list takes precedence over files */
    check_ranks(&gpus, 2, "5 4");
    char path[256];
    (void)snprintf(path, sizeof path, "%s/nvidia3", folder);
    assert_int_equal(chmod(path, 0), 0);
    ls_gpus_find(&gpus, NULL, folder);
    assert_int_equal(gpus.count, geteuid() == 0 ? 3 : 2); /* root may open all files */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)unlink(path);
    }
    assert_int_equal(rmdir(folder), 0);
    ls_gpus_find(&gpus, NULL, folder);
    assert_int_equal(gpus.count, 0);
    check_ranks(&gpus, 4, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_device_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
