/*
 * A checkpoint writer whose system calls fail, which is killed at any of them, or whose disk is full.
 *
 * devices: cpu
 */
#include "tests/support/checkpoints.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "formats/file.h"
#include "tests/support/failing_calls.h"
#include "tests/support/processes.h"

/* ---- a writer that fails or dies --------------------------------------------------------------------------------- */

static const ls_checkpoint_options *busy(void) {
    static ls_checkpoint_options options;
    static char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", in_root("busy"));
    options = (ls_checkpoint_options){.folder = folder, .every_epochs = 1, .keep = 1, .best = "loss"};
    return &options;
}

static ls_status train_with(const ls_checkpoint_options *checkpoints, const char *resume, int64_t epochs) {
    training t = begin(checkpoints, resume);
    ls_status status = t.trial != NULL ? ls_trial_run(t.trial, epochs) : ls_error_status();
    end(&t);
    return status;
}

static ls_status train_on(int64_t epochs) {
    return train_with(busy(), busy()->folder, epochs);
}

/* Simulates that the program runs again and starts fresh. */
static ls_status train_again(int64_t epochs) {
    ls_checkpoint_options options = *busy();
    options.overwrite = true;
    return train_with(&options, NULL, epochs);
}

/* Writes a file of several blocks and a partial block, in pieces of any size. Afterwards it is complete or absent. */
static ls_status write_large(const char *path, const unsigned char *bytes, size_t size, char text[LS_CHECKSUM_TEXT]) {
    ls_new_file file;
    int64_t summed = 0;
    ls_checksum *sum = ls_checksum_new("test");
    assert_non_null(sum);
    ls_status status = ls_file_create("test", path, &file);
    if (status == LS_OK) {
        file.sum = sum;
        status = ls_file_pass_cache("test", &file);
        for (size_t at = 0, part = 1; status == LS_OK && at < size; at += part, part = part * 3 + 1) {
            part = part < size - at ? part : size - at;
            status = ls_file_write("test", &file, bytes + at, part);
        }
        status = ls_file_commit("test", &file, status);
        ls_checksum_get(sum, &summed, text);
        assert_true(status != LS_OK || summed == (int64_t)size);
    }
    ls_checksum_free(sum);
    return status;
}

TEST(test_every_call_fails_of_a_large_file) {
    enum { SIZE = (5 << 19) + 4096 + 77 };
    unsigned char *bytes = malloc(SIZE);
    assert_non_null(bytes);
    for (size_t i = 0; i < SIZE; i++) {
        bytes[i] = (unsigned char)(i * 2654435761U >> 24);
    }
    const char *path = in_root("large");
    int good = 0;
    for (int call = 0; good < 8; call++) { /* eight successes, so that each write is short once */
        int64_t size = 0;
        char made[LS_CHECKSUM_TEXT], read[LS_CHECKSUM_TEXT], expected[LS_CHECKSUM_TEXT];
        atomic_store(&calls, 0);
        atomic_store(&fails_at, call);
        const ls_status status = write_large(path, bytes, SIZE, made);
        atomic_store(&fails_at, -1);
        if (status != LS_OK) {
            assert_int_equal(status, LS_ERR_IO);
            assert_int_equal(access(path, F_OK), good == 0 ? -1 : 0);
            continue;
        }
        good++;
        ls_checksum_text((const char *)bytes, SIZE, expected);
        assert_int_equal(ls_checksum_file("test", path, &size, read), LS_OK);
        assert_int_equal(size, SIZE);
        assert_string_equal(made, expected);
        assert_string_equal(read, expected);
    }
    assert_int_equal(unlink(path), 0);
    free(bytes);
}

/* From the first checkpoint to the third, each call fails once. */
TEST(test_every_call_fails) {
    ls_log_set_level(LS_LOG_OFF);
    int failures = 0;
    for (int call = 0;; call++) {
        forget_folder(busy()->folder);
        assert_int_equal(train_on(1), LS_OK);
        atomic_store(&calls, 0);
        atomic_store(&fails_at, call);
        const ls_status status = train_on(3);
        atomic_store(&fails_at, -1);
        const bool over = atomic_load(&calls) <= call;
        assert_true(status == LS_OK || status == LS_ERR_IO);
        assert_true(count_whole(busy()->folder) >= 1);
        if (status == LS_OK) {
            assert_int_equal(ls_checkpoint_verify(in_root("busy/epoch-000003-step-0000000009")), LS_OK);
        }
        failures += status != LS_OK;
        assert_int_equal(train_on(3), LS_OK); /* training continues, whatever files were left */
        assert_int_equal(ls_checkpoint_verify(in_root("busy/epoch-000003-step-0000000009")), LS_OK);
        assert_int_equal(ls_checkpoint_verify(in_root("busy/best")), LS_OK);
        if (over) {
            break;
        }
    }
    assert_true(failures > 30);
    ls_log_set_level(LS_LOG_WARNING);
}

typedef ls_status (*training_run)(int64_t epochs);

static const char *train_and_die(int call, const void *run) {
    atomic_store(&calls, 0);
    atomic_store(&dies_at, call);
    LS_MUST((*(const training_run *)run)(3) == LS_OK);
    return NULL;
}

/* Returns whether the run was killed. */
static bool killed_at(int call, training_run run) {
    const int ended = process_wait(process_start(train_and_die, call, &run));
    assert_true(ended == 0 || ended == -SIGKILL);
    return ended != 0;
}

/* As above, but a SIGKILL at each call. After training has continued, no incomplete files are left. */
TEST(test_killed_at_every_call) {
    int killed = 0;
    for (bool again = true; again; killed += again) {
        forget_folder(busy()->folder);
        assert_int_equal(train_on(1), LS_OK);
        again = killed_at(killed, train_on);
        assert_true(count_whole(busy()->folder) >= 1);
        assert_int_equal(train_on(4), LS_OK);
        assert_int_equal(count_whole(busy()->folder), 1); /* the newest checkpoint is the best */
        assert_int_equal(count_names(busy()->folder), 2); /* the checkpoint and the link */
    }
    assert_true(killed > 30);
}

/*
 * A run that overwrites an earlier run is killed: each checkpoint is complete or absent, and the next run completes the
 * removal.
 */
TEST(test_killed_while_overwriting) {
    int killed = 0;
    for (bool again = true; again; killed += again) {
        forget_folder(busy()->folder);
        assert_int_equal(train_on(2), LS_OK);
        again = killed_at(killed, train_again);
        (void)count_whole(busy()->folder);
        assert_int_equal(train_again(1), LS_OK);
        assert_int_equal(ls_checkpoint_verify(in_root("busy/epoch-000001-step-0000000003")), LS_OK);
        assert_int_equal(count_names(busy()->folder), 2);
    }
    assert_true(killed > 30);
}

/* Trains on a disk with this many bytes of space, simulated by a file size limit. */
static const char *train_on_small_disk(int bytes, const void *what) {
    (void)what;
    signal(SIGXFSZ, SIG_IGN);
    LS_MUST(setrlimit(RLIMIT_FSIZE, &(struct rlimit){(rlim_t)bytes, RLIM_INFINITY}) == 0);
    LS_MUST(train_on(3) == LS_ERR_IO && strstr(ls_error_message(), "cannot write") != NULL);
    return NULL;
}

TEST(test_full_disk) {
    for (int bytes = 0; bytes < 400; bytes += 50) {
        forget_folder(busy()->folder);
        assert_int_equal(train_on(1), LS_OK);
        assert_int_equal(process_wait(process_start(train_on_small_disk, bytes, NULL)), 0);
        assert_int_equal(count_whole(busy()->folder), 1);
        assert_int_equal(count_names(busy()->folder), 2);
        assert_int_equal(train_on(3), LS_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_call_fails),
        cmocka_unit_test(test_every_call_fails_of_a_large_file),
        cmocka_unit_test(test_killed_at_every_call),
        cmocka_unit_test(test_killed_while_overwriting),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, make_root, test_files_teardown);
}
