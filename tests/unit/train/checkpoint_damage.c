/*
 * Damaged checkpoints, and the reader of manifests with fuzzed input.
 *
 * devices: cpu
 */
#include "tests/support/checkpoints.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/fuzz.h"
#include "tests/support/log.h"

/* This test does not cover a loss of power, so it does not wait for the disk. */
int fsync(int fd) {
    (void)fd;
    return 0;
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "rank-0000.safetensors",
                                    "manifest.json"};
enum { FILES = sizeof files / sizeof *files };

static size_t read_bytes(const char *path, unsigned char *bytes, size_t room) {
    FILE *file = fopen(path, "rbe");
    assert_non_null(file);
    const size_t size = fread(bytes, 1, room, file);
    fclose(file);
    return size;
}

/* There are two checkpoints. The newer one is damaged, and the error names it; the older one is used. */
static void expect_refused(const char *folder, const char *file, const char *why) {
    char newest[PATH_MAX], found[PATH_MAX];
    snprintf(newest, sizeof newest, "%s/epoch-000002-step-0000000006", folder);
    expect_failure(ls_checkpoint_verify(newest), LS_ERR_FORMAT, file);
    expect_message(why);
    assert_int_equal(ls_checkpoint_find(folder, found), LS_OK);
    assert_string_equal(strrchr(found, '/') + 1, "epoch-000001-step-0000000003");
}

/* A trial that did not track the best checkpoint has saved no best value. */
TEST(test_no_best_value) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", in_root("no-best"));
    training t = begin(NULL, NULL);
    assert_int_equal(ls_trial_run(t.trial, 1), LS_OK);
    assert_int_equal(ls_trial_save(t.trial, folder), LS_OK);
    end(&t);
    log_begin();
    t = begin(&(ls_checkpoint_options){.folder = in_root("no-best-more")}, folder);
    end(&t);
    assert_int_equal(log_lines(), 0);
    t = begin(&(ls_checkpoint_options){.folder = in_root("no-best-more"), .best = "loss"}, folder);
    end(&t);
    assert_non_null(strstr(log_last(), "no-best has no best value; the value of the first epoch becomes the best"));
    log_end();
}

TEST(test_damaged_files) {
    unsigned char bytes[16384];
    char folder[PATH_MAX], path[PATH_MAX + 100];
    snprintf(folder, sizeof folder, "%s", in_root("harm"));
    const ls_checkpoint_options options = {.folder = folder};
    training t = begin(&options, NULL);
    assert_int_equal(ls_trial_run(t.trial, 2), LS_OK);
    end(&t);
    log_begin();
    for (int i = 0; i < FILES; i++) {
        snprintf(path, sizeof path, "%s/epoch-000002-step-0000000006/%s", folder, files[i]);
        const size_t size = read_bytes(path, bytes, sizeof bytes);
        assert_true(size > 40 && size < sizeof bytes);
        for (size_t at = 0; at < size; at += i == FILES - 1 ? 1 : 37) { /* for the manifest, every byte */
            char found[PATH_MAX];
            bytes[at] ^= 2;
            write_bytes(path, bytes, size);
            bytes[at] ^= 2;
            const ls_status status = ls_checkpoint_find(folder, found);
            /* The change may have increased the manifest's format number. */
            assert_true(status == LS_ERR_UNSUPPORTED ||
                        strcmp(strrchr(found, '/') + 1, "epoch-000001-step-0000000003") == 0);
        }
        assert_non_null(strstr(log_last(), files[i]));
        assert_non_null(strstr(log_last(), "; the previous checkpoint is tried"));
        write_bytes(path, bytes, size - 1);
        expect_refused(folder, files[i], "is damaged");
        write_bytes(path, bytes, 0);
        expect_refused(folder, files[i], "is damaged");
        assert_int_equal(unlink(path), 0);
        expect_refused(folder, files[i], "is missing");
        write_bytes(path, bytes, size);
        assert_int_equal(ls_checkpoint_verify(in_root("harm/epoch-000002-step-0000000006")), LS_OK);
    }
    log_begin();
    write_bytes(in_root("harm/epoch-000002-step-0000000006/manifest.json"), bytes, 1);
    write_bytes(in_root("harm/epoch-000001-step-0000000003/manifest.json"), bytes, 1);
    assert_int_equal(ls_checkpoint_find(folder, path), LS_OK);
    assert_string_equal(path, "");
    assert_non_null(strstr(log_last(), "; no older checkpoint exists"));
    log_end();
}

/*
 * ls_module_load accepts a folder, from which it loads the newest complete checkpoint, a single checkpoint, or the link
 * to the best.
 */
TEST(test_weights_from_folders) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", in_root("weights"));
    const ls_checkpoint_options options = {.folder = folder};
    training t = begin(&options, NULL);
    assert_int_equal(ls_trial_run(t.trial, 1), LS_OK);
    const uint64_t first = ls_module_hash(t.setting.model);
    assert_int_equal(ls_trial_run(t.trial, 2), LS_OK);
    const uint64_t second = ls_module_hash(t.setting.model);
    assert_true(first != second);
    assert_int_equal(ls_module_load(t.setting.model, in_root("weights/epoch-000001-step-0000000003")), LS_OK);
    assert_true(ls_module_hash(t.setting.model) == first);
    assert_int_equal(ls_module_load(t.setting.model, folder), LS_OK);
    assert_true(ls_module_hash(t.setting.model) == second);
    write_bytes(in_root("weights/epoch-000002-step-0000000006/model.safetensors"), (const unsigned char *)"x", 1);
    log_begin();
    (void)ls_error_set(LS_OK, "%s", "");
    assert_int_equal(ls_module_load_with(t.setting.model, folder, NULL), LS_OK);
    log_end();
    assert_int_equal(ls_error_status(),
                     LS_OK); /* the error of the damaged checkpoint is not this thread's last error */
    assert_string_equal(ls_error_message(), "");
    assert_int_equal(ls_trial_load(t.trial, folder), LS_OK);
    assert_int_equal(ls_error_status(), LS_OK);
    assert_string_equal(ls_error_message(), "");
    assert_non_null(strstr(log_last(), "; the previous checkpoint is tried"));
    assert_true(ls_module_hash(t.setting.model) == first);
    expect_failure(ls_module_load(t.setting.model, in_root("weights/epoch-000002-step-0000000006")), LS_ERR_FORMAT,
                   "model.safetensors is damaged");
    assert_int_equal(mkdir(in_root("empty"), 0700), 0);
    expect_failure(ls_module_load(t.setting.model, in_root("empty")), LS_ERR_IO,
                   "is not a checkpoint and contains no complete checkpoint");
    assert_true(ls_module_hash(t.setting.model) == first);
    end(&t);
}

/* Damages the first byte of the manifest of the folder's second checkpoint, and trains from the first checkpoint. */
static void damage_and_go_on(const ls_checkpoint_options *options, unsigned char byte) {
    training t = begin(options, options->folder);
    assert_int_equal(ls_trial_run(t.trial, 2), LS_OK);
    end(&t);
    write_bytes(in_root("twice/epoch-000002-step-0000000006/manifest.json"), &byte, 1);
    t = begin(options, options->folder);
    assert_int_equal(ls_trial_history_count(t.trial), 1);
    assert_int_equal(ls_trial_run(t.trial, 1), LS_OK);
    end(&t);
}

/* If checkpoints were damaged twice, only the newer damaged checkpoint is kept, under a name that is not a
 * checkpoint's. */
TEST(test_damaged_twice) {
    unsigned char byte = 0;
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", in_root("twice"));
    const ls_checkpoint_options options = {.folder = folder};
    ls_log_set_level(LS_LOG_OFF);
    damage_and_go_on(&options, 'a');
    assert_int_equal(read_bytes(in_root("twice/damaged-epoch-000002-step-0000000006/manifest.json"), &byte, 1), 1);
    assert_int_equal(byte, 'a');
    damage_and_go_on(&options, 'b');
    assert_int_equal(read_bytes(in_root("twice/damaged-epoch-000002-step-0000000006/manifest.json"), &byte, 1), 1);
    assert_int_equal(byte, 'b');
    assert_int_equal(count_whole(in_root("twice")), 1);
    assert_int_equal(count_names(in_root("twice")), 2);
    ls_log_set_level(LS_LOG_WARNING);
}

/* Replaces a string in the manifest. */
static void change_manifest(const char *path, const char *from, const char *to) {
    unsigned char bytes[16384];
    const size_t size = read_bytes(path, bytes, sizeof bytes - 100);
    bytes[size] = '\0';
    char *at = strstr((char *)bytes, from);
    assert_non_null(at);
    memmove(at + strlen(to), at + strlen(from), strlen(at) - strlen(from) + 1);
    memcpy(at, to, strlen(to));
    write_bytes(path, bytes, strlen((char *)bytes));
}

TEST(test_newer_format) {
    char path[PATH_MAX];
    training t = begin(NULL, NULL);
    assert_int_equal(ls_trial_save(t.trial, in_root("newer/epoch-000001-step-0000000003")), LS_OK);
    snprintf(path, sizeof path, "%s", in_root("newer/epoch-000001-step-0000000003/manifest.json"));
    change_manifest(path, "\"format\": 1", "\"format\": 2");
    expect_failure(ls_trial_load(t.trial, in_root("newer")), LS_ERR_UNSUPPORTED, "has format 2 of a newer Lockstep");
    end(&t);
    t = begin(NULL, in_root("newer")); /* does not start fresh in the same folder */
    assert_null(t.trial);
    end(&t);
}

TEST(test_state_without_tensors) {
    ls_copies copies = {.count = 0};
    expect_error(ls_copies_add(&copies, "callback/x/", NULL, 5), LS_ERR_ARGUMENT,
                 "the state of \"callback/x/\" is NULL with a count of 5");
    expect_error(ls_copies_add(&copies, "callback/x/", &(ls_named){.name = NULL}, 1), LS_ERR_ARGUMENT,
                 "the name of item 0 of the state of \"callback/x/\" is NULL");
    expect_error(ls_copies_add(&copies, "callback/x/", &(ls_named){.name = "a"}, 1), LS_ERR_ARGUMENT,
                 "the tensor of item 0 of the state of \"callback/x/\" is NULL");
    ls_copies_free(&copies);
}

/* Writes a checkpoint with one more tensor. */
static void write_with(const training *t, const char *folder, const char *name, ls_dtype dtype, int64_t count,
                       void *numbers) {
    ls_checkpoint *snapshot = ls_checkpoint_take(t->trial, false);
    assert_non_null(snapshot);
    assert_int_equal(ls_copies_add_numbers(&snapshot->own, name, dtype, count, numbers), LS_OK);
    assert_int_equal(ls_checkpoint_place(snapshot, in_root(""), folder, 1), LS_OK);
    assert_int_equal(ls_checkpoint_write(snapshot), LS_OK);
    assert_int_equal(ls_checkpoint_gather(snapshot, NULL), LS_OK);
    assert_int_equal(ls_checkpoint_commit(snapshot), LS_OK);
    ls_checkpoint_free(snapshot);
}

/* The options of a callback are two lines of text. */
TEST(test_damaged_options) {
    static unsigned char letters[1000] = "a\nb";
    static const char name[] = "callback//options/early_stopping";
    training t = begin(NULL, NULL);
    write_with(&t, "one_line", name, LS_U8, 1, letters);
    write_with(&t, "too_long", name, LS_U8, sizeof letters, letters);
    write_with(&t, "numbers", name, LS_F64, 1, (double[]){1});
    write_with(&t, "empty", name, LS_U8, 0, letters);
    for (int i = 0; i < 4; i++) {
        const char *const folders[] = {"one_line", "too_long", "numbers", "empty"};
        expect_failure(ls_trial_load(t.trial, in_root(folders[i])), LS_ERR_FORMAT,
                       "is damaged: callback//options/early_stopping is not a text of two lines");
    }
    end(&t);
}

/* Loading refuses an unknown part instead of dropping it. */
TEST(test_unknown_part) {
    training t = begin(NULL, NULL);
    write_with(&t, "unknown", "best_weather", LS_F64, 1, (double[]){21.5});
    const uint64_t hash = ls_module_hash(t.setting.model);
    expect_failure(ls_trial_load(t.trial, in_root("unknown")), LS_ERR_UNSUPPORTED,
                   "has \"best_weather\", which Lockstep");
    assert_true(ls_module_hash(t.setting.model) == hash);
    end(&t);
}

/* ---- the manifest's reader --------------------------------------------------------------------------------------- */

typedef struct fuzzing {
    uint8_t good[16384];
    size_t size;
    int accepted, refused;
} fuzzing;

/* Corrects the checksum, so that the checks after it are reached. */
static void make_whole(uint8_t *bytes, size_t size) {
    static const char begin_text[] = "{\n \"checksum\": \"";
    const size_t at = sizeof begin_text - 1, digits = LS_CHECKSUM_TEXT - 1;
    char checksum[LS_CHECKSUM_TEXT];
    if (size >= at + digits) {
        memset(bytes + at, '0', digits);
        ls_checksum_text((const char *)bytes, size, checksum);
        memcpy(bytes + at, checksum, digits);
    }
}

static void round_manifest(uint64_t number, void *argument) {
    fuzzing *fuzz = argument;
    uint8_t bytes[16384];
    ls_manifest manifest;
    memcpy(bytes, fuzz->good, fuzz->size);
    const size_t size = fuzz_mutate(bytes, fuzz->size, sizeof bytes);
    if (number % 4 != 0) {
        make_whole(bytes, size);
    }
    write_bytes(in_root("fuzzed/manifest.json"), bytes, size);
    const ls_status status = ls_manifest_read(in_root("fuzzed"), &manifest);
    assert_true(status == LS_OK || status == LS_ERR_FORMAT || status == LS_ERR_UNSUPPORTED);
    fuzz->accepted += status == LS_OK;
    fuzz->refused += status != LS_OK;
    if (status == LS_OK) {
        assert_true(manifest.world_size >= 1 && manifest.epochs_run >= 0 && manifest.file_count > 0);
        for (int i = 0; i < manifest.file_count; i++) {
            assert_null(strchr(manifest.files[i].name, '/'));
        }
        ls_manifest_free(&manifest);
    } else {
        assert_true(manifest.history.epochs == NULL && manifest.files == NULL);
    }
}

TEST(test_fuzzed_manifests) {
    static fuzzing fuzz;
    training t = begin(NULL, NULL);
    assert_int_equal(ls_trial_run(t.trial, 2), LS_OK);
    assert_int_equal(ls_trial_save(t.trial, in_root("fuzzed")), LS_OK);
    end(&t);
    fuzz.size = read_bytes(in_root("fuzzed/manifest.json"), fuzz.good, sizeof fuzz.good);
    fuzz_run("manifest", 4000, round_manifest, &fuzz);
    assert_true(getenv("LOCKSTEP_FUZZ_SEED") != NULL || (fuzz.accepted > 0 && fuzz.refused > 0));
}

int main(int count, char **arguments) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_best_value),    cmocka_unit_test(test_weights_from_folders),
        cmocka_unit_test(test_damaged_files),    cmocka_unit_test(test_damaged_twice),
        cmocka_unit_test(test_newer_format),     cmocka_unit_test(test_state_without_tensors),
        cmocka_unit_test(test_damaged_options),  cmocka_unit_test(test_unknown_part),
        cmocka_unit_test(test_fuzzed_manifests),
    };
    cmocka_set_test_filter(count > 1 ? arguments[1] : NULL);
    return cmocka_run_group_tests(tests, make_root, test_files_teardown);
}
