/*
 * Checkpoints of trials in one process: their contents, refusals and their messages. checkpoint_overwrite.c tests runs
 * that overwrite a folder. checkpoint_damage.c tests damaged files. checkpoint_faults.c tests writers that fail or are
 * killed. ranks/checkpoints.c tests that resumed training is bit-identical.
 *
 * devices: cpu
 */
#include "tests/support/checkpoints.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "tests/support/fuzz.h"

/* ---- system calls that replace the C library's ------------------------------------------------------------------- */

static bool spoils; /* damages the next file, like a faulty disk or memory */

static char synced[16][PATH_MAX]; /* the first files that were synced since the counter was reset */
static int syncs;

static void note_sync(int fd) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (syncs < 16) {
        const ssize_t length = readlink(link, synced[syncs], PATH_MAX - 1);
        assert_true(length > 0);
        synced[syncs++][length] = '\0';
    }
}

static int64_t slept; /* nanoseconds of sleep that this process requested */

int nanosleep(const struct timespec *time, struct timespec *rest) {
    slept += time->tv_sec * 1000000000 + time->tv_nsec;
    return clock_nanosleep(CLOCK_MONOTONIC, 0, time, rest);
}

/* This test does not cover a loss of power, so it does not wait for the disk. */
int fsync(int fd) {
    if (spoils && pwrite(fd, "X", 1, 100) == 1) { /* write(2) to a folder fails */
        spoils = false;
    }
    note_sync(fd);
    return 0;
}

static bool no_exchange; /* simulates a file system without this call */

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    if (no_exchange) {
        errno = EINVAL;
        return -1;
    }
    return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}

static atomic_int strays; /* number of attempts to remove files in the root of the file system */

int unlink(const char *path) {
    if (strrchr(path, '/') == path) {
        atomic_fetch_add(&strays, 1);
        return -1;
    }
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

/* ---- saving ------------------------------------------------------------------------------------------------------ */

TEST(test_save_and_load) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", in_root("saved/deep/one"));
    training t = begin(NULL, NULL), other = begin(NULL, NULL);
    assert_int_equal(ls_trial_run(t.trial, 2), LS_OK);
    assert_int_equal(ls_trial_save(t.trial, folder), LS_OK);
    const uint64_t hash = ls_module_hash(t.setting.model);
    assert_int_equal(ls_trial_run(t.trial, 3), LS_OK);
    assert_int_equal(ls_trial_load(other.trial, folder), LS_OK);
    assert_true(ls_module_hash(other.setting.model) == hash);
    assert_int_equal(ls_trial_history_count(other.trial), 2);
    assert_true(ls_trial_metric(other.trial, "val_loss") == ls_trial_history(t.trial, 1, "val_loss"));
    assert_int_equal(ls_trial_run(other.trial, 3), LS_OK);
    assert_true(ls_module_hash(other.setting.model) == ls_module_hash(t.setting.model));
    /* again, to the same path */
    assert_int_equal(ls_trial_save(t.trial, in_root("saved/deep/one/")), LS_OK);
    assert_int_equal(ls_trial_load(other.trial, folder), LS_OK);
    assert_int_equal(ls_trial_history_count(other.trial), 3);
    no_exchange = true;
    assert_int_equal(ls_trial_save(t.trial, folder), LS_OK);
    no_exchange = false;
    assert_int_equal(ls_checkpoint_verify(folder), LS_OK);
    assert_int_equal(test_folder_count(in_root("saved/deep")), 1);
    end(&t);
    end(&other);
}

/* Checksums cover the intended bytes, not the written bytes. */
TEST(test_spoiled_in_writing) {
    training t = begin(NULL, NULL);
    spoils = true;
    assert_int_equal(ls_trial_save(t.trial, in_root("spoiled")), LS_OK);
    expect_failure(ls_checkpoint_verify(in_root("spoiled")), LS_ERR_FORMAT,
                   "model.safetensors is damaged: its checksum");
    end(&t);
}

/* The format of Lockstep's first release is still read. */
TEST(test_an_old_manifest) {
    ls_manifest manifest;
    assert_int_equal(ls_checkpoint_verify(LS_FIXTURES "/checkpoint"), LS_OK);
    assert_int_equal(ls_manifest_read(LS_FIXTURES "/checkpoint", &manifest), LS_OK);
    assert_true(manifest.world_size == 1 && manifest.optimizer && !manifest.divided && !manifest.continues);
    assert_true(manifest.epochs_run == 2 && manifest.step == 16 && manifest.loader_epoch == 2);
    assert_true(manifest.samples == 0); /* a later version added this field */
    assert_true(manifest.loader_batch == 0 && manifest.loader_batches == 8 && manifest.global_batch == 1);
    assert_true(manifest.history.count == 2 && manifest.file_count == 3);
    assert_string_equal(manifest.files[1].name, "optimizer.safetensors");
    ls_history_entry entry;
    ls_history_entry_of(&manifest.history, 1, &entry);
    assert_true(entry.count == 2 && entry.train_steps == 8 && entry.validate_steps == 8);
    assert_string_equal(entry.values[1].name, "val_loss");
    assert_true(entry.values[1].value == ls_history_get(&manifest.latest, "val_loss"));
    ls_manifest_free(&manifest);
}

/* Tests numbers that JSON does not support, and numbers that must keep every bit. */
TEST(test_history_keeps_its_bits) {
    const double values[] = {NAN, INFINITY, -INFINITY, 0.1, 5e-324, -0.0, 1e308, 3};
    training t = begin(NULL, NULL), other = begin(NULL, NULL);
    ls_history_entry entry = {.train_steps = 7, .validate_steps = 3};
    for (int i = 0; i < 8; i++) {
        char name[24];
        snprintf(name, sizeof name, "number%d", 7 - i);
        assert_int_equal(ls_history_put(&entry, name, values[i]), LS_OK);
    }
    assert_int_equal(ls_history_append(&t.trial->history, &entry), LS_OK);
    assert_int_equal(ls_trial_save(t.trial, in_root("bits")), LS_OK);
    assert_int_equal(ls_trial_load(other.trial, in_root("bits")), LS_OK);
    ls_history_entry is;
    ls_history_entry_of(&other.trial->history, 0, &is);
    assert_true(is.count == 8 && is.train_steps == 7 && is.validate_steps == 3);
    for (int i = 0; i < 8; i++) {
        assert_string_equal(is.values[i].name, entry.values[i].name); /* in their order */
        assert_true(memcmp(&is.values[i].value, &values[i], sizeof values[i]) == 0 ||
                    (isnan(values[i]) && isnan(is.values[i].value)));
    }
    end(&t);
    end(&other);
}

TEST(test_keeps_the_newest_and_the_best) {
    char best[PATH_MAX], target[PATH_MAX] = "";
    const ls_checkpoint_options options = {.folder = in_root("kept"), .keep = 2, .best = "loss", .highest = true};
    training t = begin(&options, NULL);
    assert_int_equal(ls_trial_run(t.trial, 6), LS_OK); /* the loss decreases, so the first epoch has the highest */
    assert_int_equal(count_whole(in_root("kept")), 3);
    snprintf(best, sizeof best, "%s", in_root("kept/best"));
    assert_true(readlink(best, target, sizeof target - 1) > 0);
    assert_string_equal(target, "epoch-000001-step-0000000003");
    assert_int_equal(ls_trial_load(t.trial, best), LS_OK);
    assert_int_equal(ls_trial_history_count(t.trial), 1);
    end(&t);
    /* After resuming, the best value is still known. */
    t = begin(&options, in_root("kept"));
    assert_int_equal(ls_trial_run(t.trial, 8), LS_OK);
    assert_int_equal(ls_checkpoint_verify(best), LS_OK);
    assert_true(readlink(best, target, sizeof target - 1) > 0);
    assert_string_equal(target, "epoch-000001-step-0000000003");
    assert_int_equal(count_whole(in_root("kept")), 3);
    end(&t);
    const ls_checkpoint_options none = {.folder = in_root("unknown"), .best = "no_loss"};
    t = begin(&none, NULL);
    expect_failure(ls_trial_run(t.trial, 1), LS_ERR_ARGUMENT, "there is no metric \"no_loss\"");
    end(&t);
}

/* The lowest value says nothing about the highest value. */
TEST(test_the_best_value_belongs_to_its_direction) {
    char target[PATH_MAX] = "";
    ls_checkpoint_options options = {.folder = in_root("reversed"), .keep = 2, .best = "loss"};
    training t = begin(&options, NULL);
    assert_int_equal(ls_trial_run(t.trial, 2), LS_OK); /* the loss decreases */
    end(&t);
    options.highest = true;
    t = begin(&options, in_root("reversed"));
    assert_int_equal(ls_trial_run(t.trial, 4), LS_OK);
    assert_true(readlink(in_root("reversed/best"), target, sizeof target - 1) > 0);
    assert_string_equal(target, "epoch-000003-step-0000000009");
    end(&t);
}

/* A checkpoint of a trial without checkpoints has no best value: the next epoch is the best. */
TEST(test_the_best_value_belongs_to_the_checkpoint) {
    char target[PATH_MAX] = "";
    training t = begin(NULL, NULL);
    assert_int_equal(ls_trial_run(t.trial, 1), LS_OK);
    assert_int_equal(ls_trial_save(t.trial, in_root("plain")), LS_OK);
    end(&t);
    const ls_checkpoint_options options = {.folder = in_root("again"), .best = "loss", .overwrite = true};
    t = begin(&options, NULL);
    assert_int_equal(ls_trial_run(t.trial, 4), LS_OK);
    assert_int_equal(ls_trial_load(t.trial, in_root("plain")), LS_OK);
    assert_int_equal(ls_trial_run(t.trial, 2), LS_OK);
    assert_true(readlink(in_root("again/best"), target, sizeof target - 1) > 0);
    assert_string_equal(target, "epoch-000002-step-0000000006");
    end(&t);
}

static ls_status ask_at_two(ls_trial_state *state, void *user) {
    (void)user;
    state->save = state->step == 2;
    return LS_OK;
}

TEST(test_a_hook_asks) {
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    ls_callback *asking = ls_callback_new(&(ls_callback_hooks){.on_step_training = ask_at_two}, NULL);
    options.callbacks = &asking;
    options.callback_count = 1;
    options.checkpoint =
        &(ls_checkpoint_options){.folder = in_root("asked"), .every_epochs = 100, .every_seconds = LS_ZERO};
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 1), LS_OK);
    assert_int_equal(ls_checkpoint_verify(in_root("asked/epoch-000000-step-0000000002")), LS_OK);
    assert_int_equal(count_whole(in_root("asked")), 1);
    ls_trial_free(trial);
    free_setting(&s);
}

static ls_status stop_after_two(ls_trial_state *state, void *user) {
    (void)user;
    state->stop = state->epoch == 1;
    return LS_OK;
}

/* A hook ended the run after an epoch, so a run that resumes from there has ended, too. */
TEST(test_a_hook_stops) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", in_root("stopped"));
    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    ls_callback *stopping = ls_callback_new(&(ls_callback_hooks){.on_end_epoch = stop_after_two}, NULL);
    options.callbacks = &stopping;
    options.callback_count = 1;
    options.checkpoint = &(ls_checkpoint_options){.folder = folder};
    ls_trial *trial = ls_trial_new(&options);
    assert_int_equal(ls_trial_run(trial, 5), LS_OK);
    assert_int_equal(ls_trial_save(trial, in_root("stopped-and-saved")), LS_OK);
    ls_trial_free(trial);
    free_setting(&s);
    training t = begin(NULL, folder);
    assert_int_equal(ls_trial_history_count(t.trial), 2);
    assert_int_equal(ls_trial_run(t.trial, 5), LS_OK);
    assert_int_equal(ls_trial_history_count(t.trial), 2);
    assert_int_equal(ls_trial_run(t.trial, 5), LS_OK);
    assert_int_equal(ls_trial_history_count(t.trial), 5);
    end(&t);
    t = begin(NULL, in_root("stopped-and-saved")); /* after the run was over */
    assert_int_equal(ls_trial_run(t.trial, 5), LS_OK);
    assert_int_equal(ls_trial_history_count(t.trial), 5);
    end(&t);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static ls_status save_in_hook(ls_trial_state *state, void *user) {
    (void)user;
    return ls_trial_save(state->trial, in_root("nowhere"));
}

static ls_status load_in_hook(ls_trial_state *state, void *user) {
    (void)user;
    return ls_trial_load(state->trial, in_root("nowhere"));
}

static ls_status run_in_hook(ls_trial_state *state, void *user) {
    (void)user;
    return ls_trial_run(state->trial, 1);
}

/* Expects that ls_trial_new fails because a call in on_init is refused. */
static void expect_refused_on_init(ls_trial_options options, ls_callback_function function, const char *message) {
    ls_callback *hook = ls_callback_new(&(ls_callback_hooks){.on_init = function}, NULL);
    options.callbacks = &hook;
    options.callback_count = 1;
    assert_null(ls_trial_new(&options));
    assert_int_equal(ls_error_status(), LS_ERR_STATE);
    expect_message(message);
}

/* Regular files and the targets of links are kept. */
static void expect_kept(const training *t) {
    struct stat about;
    assert_int_equal(symlink("full", in_root("link")), 0);
    for (int i = 0; i < 2; i++) {
        const int file = open(in_root(i == 0 ? "full/file" : "file"), O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
        assert_true(file >= 0);
        close(file);
        expect_failure(ls_trial_save(t->trial, in_root(i == 0 ? "link" : "file")), LS_ERR_IO,
                       "exists already and is not a checkpoint");
    }
    assert_int_equal(test_folder_count(in_root("full")), 2);
    assert_true(lstat(in_root("link"), &about) == 0 && S_ISLNK(about.st_mode));
    assert_true(lstat(in_root("file"), &about) == 0 && S_ISREG(about.st_mode));
}

/* If a folder contains a manifest of a different program, of any format, it is not a checkpoint. */
static void expect_other_manifests_kept(const training *t) {
    static const char *const texts[] = {"{\"format\": 2, \"name\": \"site\"}", "{\"format\": 1}", "[]", ""};
    assert_int_equal(mkdir(in_root("site"), 0777), 0);
    write_bytes(in_root("site/index.html"), (const unsigned char *)"page", 4);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_bytes(in_root("site/manifest.json"), (const unsigned char *)texts[i], strlen(texts[i]));
        expect_failure(ls_trial_save(t->trial, in_root("site")), LS_ERR_IO, "exists already and is not a checkpoint");
        expect_failure(ls_trial_load(t->trial, in_root("site")), LS_ERR_FORMAT, "is not a manifest of a checkpoint");
        assert_int_equal(test_folder_count(in_root("site")), 2);
    }
}

static void test_wrong_use(void **state) {
    (void)state;
    training t = begin(NULL, NULL);
    expect_failure(ls_trial_save(NULL, "x"), LS_ERR_ARGUMENT, "ls_trial_save: the trial or the folder is NULL");
    expect_failure(ls_trial_load(t.trial, NULL), LS_ERR_ARGUMENT, "ls_trial_load: the trial or the folder is NULL");
    expect_failure(ls_trial_save(t.trial, ".."), LS_ERR_ARGUMENT, "is not a name for a checkpoint");
    assert_int_equal(atomic_load(&strays), 0); /* without a folder, there is nothing to remove */
    expect_failure(ls_trial_load(t.trial, ""), LS_ERR_IO, "is not a checkpoint and contains no");
    expect_failure(ls_trial_load(t.trial, in_root("nothing")), LS_ERR_IO, "is not a checkpoint and contains no");
    assert_int_equal(mkdir(in_root("full"), 0777), 0);
    assert_int_equal(mkdir(in_root("full/of-something"), 0777), 0);
    expect_failure(ls_trial_save(t.trial, in_root("full")), LS_ERR_IO, "exists already and is not a checkpoint");
    assert_int_equal(test_folder_count(in_root("full")), 1);
    expect_kept(&t);
    expect_other_manifests_kept(&t);
    assert_null(trial_of(&t.setting, &(ls_checkpoint_options){.keep = 1}, NULL));
    expect_message("ls_trial_new: .checkpoint has no folder");
    assert_null(trial_of(&t.setting, &(ls_checkpoint_options){.folder = ""}, NULL));
    expect_message("ls_trial_new: .checkpoint has no folder");
    assert_null(trial_of(&t.setting, &(ls_checkpoint_options){.folder = "x", .keep = -1}, NULL));
    expect_message("ls_trial_new: .checkpoint has a negative number");
    end(&t);

    setting s = make_setting();
    ls_trial_options options = options_of(&s);
    ls_callback *hook = ls_callback_new(
        &(ls_callback_hooks){.on_step_training = save_in_hook, .on_step_validation = save_in_hook}, NULL);
    options.callbacks = &hook;
    options.callback_count = 1;
    ls_trial *trial = ls_trial_new(&options);
    expect_failure(ls_trial_run(trial, 1), LS_ERR_STATE, "the trial is running: set state->save");
    expect_failure(ls_trial_evaluate(trial, s.validate, "test"), LS_ERR_STATE, "the trial is running: set state->save");
    ls_trial_free(trial);
    expect_refused_on_init(options, load_in_hook, "ls_trial_load: the trial is being created");
    expect_refused_on_init(options, run_in_hook, "ls_trial_run: the trial is being created");
    expect_refused_on_init(options, save_in_hook, "ls_trial_save: the trial is being created: save after ls_trial_new");
    free_setting(&s);
}

/* Two histories in one folder would be mistaken for a single history. */
TEST(test_folder_of_another_run) {
    const ls_checkpoint_options options = {.folder = in_root("further")};
    training t = begin(&options, NULL);
    assert_int_equal(ls_trial_run(t.trial, 2), LS_OK);
    end(&t);
    t = begin(&options, NULL);
    expect_failure(ls_trial_run(t.trial, 2), LS_ERR_STATE,
                   "further/epoch-000002-step-0000000006 is further along than this trial: resume from it (.resume");
    expect_message("remove them (.overwrite)");
    end(&t);
    assert_int_equal(count_whole(in_root("further")), 2);
    t = begin(&options, in_root("further"));
    assert_int_equal(ls_trial_run(t.trial, 3), LS_OK);
    end(&t);
    assert_int_equal(count_whole(in_root("further")), 3);
}

/* LS_ZERO means 0 seconds, so no interval is set. */
TEST(test_without_an_interval) {
    const ls_checkpoint_options options = {.folder = in_root("usual"), .every_seconds = LS_ZERO};
    training t = begin(&options, NULL);
    assert_int_equal(ls_trial_run(t.trial, 2), LS_OK);
    assert_int_equal(count_whole(in_root("usual")), 2);
    end(&t);
}

TEST(test_folder_of_another_trial) {
    const ls_checkpoint_options options = {.folder = in_root("shared")};
    assert_int_equal(mkdir(in_root("shared"), 0777), 0);
    const int other = open(in_root("shared"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(flock(other, LOCK_EX), 0);
    training t = begin(&options, NULL);
    slept = 0;
    expect_failure(ls_trial_run(t.trial, 1), LS_ERR_STATE, "a running trial writes its checkpoints to");
    assert_true(slept < 1000000000);
    close(other);
    assert_int_equal(ls_trial_run(t.trial, 1), LS_OK);
    end(&t);
}

/*
 * The directory entries of a folder and its parents are on disk before anything is written there, even if a different
 * program has created the folder.
 */
TEST(test_the_parent_is_synced) {
    char root[PATH_MAX], inner[PATH_MAX];
    assert_non_null(realpath(in_root(""), root));
    assert_int_equal(ls_path_join(inner, root, "outer"), LS_OK);
    for (int made = 0; made < 2; made++) {
        const ls_checkpoint_options options = {.folder = in_root(made ? "outer/made" : "outer/missing")};
        assert_int_equal(made ? mkdir(options.folder, 0777) : 0, 0);
        training t = begin(&options, NULL);
        syncs = 0;
        assert_int_equal(ls_trial_run(t.trial, 1), LS_OK);
        assert_true(syncs > 2);
        assert_string_equal(synced[0], made ? inner : root);
        assert_string_equal(synced[made ? 0 : 1], inner);
        end(&t);
    }
}

static void make_entry(const char *folder, const char *name, bool is_folder) {
    char path[PATH_MAX], inside[PATH_MAX];
    assert_int_equal(ls_path_join(path, folder, name), LS_OK);
    assert_int_equal(ls_path_join(inside, path, "file"), LS_OK);
    assert_int_equal(is_folder ? mkdir(path, 0777) : 0, 0);
    const int file = open(is_folder ? inside : path, O_CREAT | O_WRONLY | O_EXCL | O_CLOEXEC, 0666);
    assert_true(file >= 0);
    close(file);
}

/* In a folder that contains the user's project, only entries with the name format and type of a run's own entries
 * are removed. */
TEST(test_only_own_entries_are_removed) {
    static const struct {
        const char *name;
        bool is_folder;
    } users[] = {{".new-ideas", false},
                 {".old-sources", true},
                 {".new-0123456789abcdef-epoch-000001-step-0000000003", false},
                 {".new-0123456789abcdef-epoch-000001-step-0000000003.link", true},
                 {".new-0123456789abcdef-epoch-000001-step-0000000003.c", true},
                 {".new-0123456789abcdef-results", true},
                 {".new-0123456789ABCDEF-epoch-000001-step-0000000004", true},
                 {".new-123-epoch-000001-step-0000000003", true},
                 {".old-epoch-000009-step-0000000027", false},
                 {".old-epoch-1-step-3", true},
                 {".old-epoch-000001-step-0000000003.txt", true},
                 {"file", false}},
      own[] = {{".new-0123456789abcdef-epoch-000002-step-0000000006", true},
               {".new-fedcba9876543210-epoch-000002-step-0000000006.old", true},
               {".old-epoch-000002-step-0000000006", true}};
    enum { USERS = sizeof users / sizeof *users, OWN = sizeof own / sizeof *own };
    const char *folder = in_root("project");
    const ls_checkpoint_options options = {.folder = folder, .keep = 1};
    training t = begin(&options, NULL);
    assert_int_equal(mkdir(folder, 0777), 0);
    for (int i = 0; i < USERS; i++) {
        make_entry(folder, users[i].name, users[i].is_folder);
    }
    for (int i = 0; i < OWN; i++) {
        make_entry(folder, own[i].name, own[i].is_folder);
    }
    assert_int_equal(count_names(folder), USERS + OWN);
    assert_int_equal(ls_trial_run(t.trial, 2), LS_OK);
    assert_int_equal(count_names(folder), USERS + 1);
    end(&t);
}

/* Neither a file called "best" nor a folder with a foreign manifest.json is replaced. */
TEST(test_files_of_the_user_are_kept) {
    const ls_checkpoint_options options = {.folder = in_root("mine"), .best = "loss"};
    assert_int_equal(mkdir(options.folder, 0777), 0);
    make_entry(options.folder, "best", false);
    training t = begin(&options, NULL);
    expect_failure(ls_trial_run(t.trial, 1), LS_ERR_STATE, "mine/best, the name of the link to the best checkpoint");
    end(&t);
    t = begin(NULL, NULL);
    make_entry(in_root(""), "page", true);
    write_bytes(in_root("page/manifest.json"), (const uint8_t *)"{\"name\": \"app\"}", 15);
    expect_failure(ls_trial_save(t.trial, in_root("page")), LS_ERR_IO, "exists already and is not a checkpoint");
    assert_int_equal(test_folder_count(in_root("page")), 2);
    end(&t);
}

/* A layer that a hook has set to evaluation mode is in this mode after a second trial resumes. */
TEST(test_modes_of_layers) {
    for (int i = 0; i < 2; i++) {
        setting s = make_setting();
        ls_module *layer = ls_nn_dropout(0.5);
        ls_module *model = ls_sequential(ls_nn_linear_with(2, CLASSES, &(ls_linear_options){.dtype = LS_F64}), layer);
        ls_optimizer *optimizer = ls_sgd(model, NULL);
        ls_trial_options options = options_of(&s);
        options.model = model;
        options.optimizer = optimizer;
        ls_trial *trial = ls_trial_new(&options);
        if (i == 0) {
            ls_module_train(layer, false);
            assert_int_equal(ls_trial_save(trial, in_root("modes")), LS_OK);
        } else {
            assert_int_equal(ls_trial_load(trial, in_root("modes")), LS_OK);
            assert_true(ls_module_is_training(model) && !ls_module_is_training(layer));
        }
        ls_trial_free(trial);
        ls_optimizer_free(optimizer);
        ls_module_free(model);
        free_setting(&s);
    }
}

/* Loads the state of a different trial. */
TEST(test_wrong_trial) {
    training t = begin(NULL, NULL);
    assert_int_equal(ls_trial_run(t.trial, 1), LS_OK);
    assert_int_equal(ls_trial_save(t.trial, in_root("other")), LS_OK);
    end(&t);
    setting s = make_setting();
    ls_module *model = ls_nn_linear_with(2, CLASSES + 1, &(ls_linear_options){.dtype = LS_F64});
    ls_optimizer *adam = ls_adam(s.model, NULL);
    ls_trial_options options = options_of(&s);
    options.model = model;
    ls_trial *trial = ls_trial_new(&options);
    const uint64_t hash = ls_module_hash(model);
    expect_failure(ls_trial_load(trial, in_root("other")), LS_ERR_SHAPE, "weight is [3, 2] in the file and [4, 2]");
    assert_true(ls_module_hash(model) == hash);
    ls_trial_free(trial);
    options = options_of(&s);
    options.optimizer = adam;
    trial = ls_trial_new(&options);
    expect_failure(ls_trial_load(trial, in_root("other")), LS_ERR_FORMAT,
                   "has the state of ls_sgd, but this optimizer is ls_adam");
    ls_trial_free(trial);
    options.optimizer = NULL;
    trial = ls_trial_new(&options);
    expect_failure(ls_trial_load(trial, in_root("other")), LS_ERR_ARGUMENT, "was saved by a trial with an optimizer");
    ls_trial_free(trial);
    options = options_of(&s);
    options.train = NULL;
    trial = ls_trial_new(&options);
    expect_failure(ls_trial_load(trial, in_root("other")), LS_ERR_ARGUMENT, "with a loader of training data");
    ls_trial_free(trial);
    ls_optimizer_free(adam);
    ls_module_free(model);
    free_setting(&s);
}

int main(int count, char **arguments) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_save_and_load),
        cmocka_unit_test(test_spoiled_in_writing),
        cmocka_unit_test(test_history_keeps_its_bits),
        cmocka_unit_test(test_an_old_manifest),
        cmocka_unit_test(test_a_hook_asks),
        cmocka_unit_test(test_a_hook_stops),
        cmocka_unit_test(test_keeps_the_newest_and_the_best),
        cmocka_unit_test(test_the_best_value_belongs_to_its_direction),
        cmocka_unit_test(test_the_best_value_belongs_to_the_checkpoint),
        cmocka_unit_test(test_wrong_use),
        cmocka_unit_test(test_folder_of_another_run),
        cmocka_unit_test(test_without_an_interval),
        cmocka_unit_test(test_folder_of_another_trial),
        cmocka_unit_test(test_the_parent_is_synced),
        cmocka_unit_test(test_only_own_entries_are_removed),
        cmocka_unit_test(test_files_of_the_user_are_kept),
        cmocka_unit_test(test_modes_of_layers),
        cmocka_unit_test(test_wrong_trial),
    };
    cmocka_set_test_filter(count > 1 ? arguments[1] : NULL);
    return cmocka_run_group_tests(tests, make_root, test_files_teardown);
}
