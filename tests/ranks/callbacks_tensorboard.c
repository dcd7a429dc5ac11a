/*
 * A run of all ranks writes one file for TensorBoard, on rank 0, with values over all ranks. An independent reader
 * checks the file.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/files.h"
#include "tests/support/training.h"

#include <dirent.h>
#include <stdlib.h>

enum { EPOCHS = 3, EVERY = 2 };

/* The contents of the file. */
typedef struct found {
    int kinds[LS_EVENTS_OTHER + 1];
    int pictures;
    double loss[EPOCHS], val_acc[EPOCHS], batch[64], rate;
    int batches;
    int histograms_of_last_epoch;
} found;

static ls_status take(const ls_events_item *item, void *user) {
    found *f = user;
    f->kinds[item->kind]++;
    if (item->kind == LS_EVENTS_SCALAR && strcmp(item->tag, "epoch/loss") == 0) {
        f->loss[item->step] = item->value;
    } else if (item->kind == LS_EVENTS_SCALAR && strcmp(item->tag, "epoch/val_acc") == 0) {
        f->val_acc[item->step] = item->value;
    } else if (item->kind == LS_EVENTS_SCALAR && strcmp(item->tag, "batch/loss") == 0) {
        LS_CHECK(item->step == EVERY * (f->batches + 1));
        f->batch[f->batches++] = item->value;
    } else if (item->kind == LS_EVENTS_SCALAR && strcmp(item->tag, "batch/learning_rate/0") == 0) {
        f->rate = item->value;
    } else if (item->kind == LS_EVENTS_HISTOGRAM) {
        f->histograms_of_last_epoch += item->step == EPOCHS - 1 && strstr(item->tag, "parameters/") == item->tag;
    }
    return LS_OK;
}

/* Reads the only file in the folder. */
static ls_status read_folder(const char *folder, found *f) {
    char path[1024] = "";
    DIR *entries = opendir(folder);
    LS_CHECK(entries != NULL && test_folder_count(folder) == 1);
    for (struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries)) {
        if (entry->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        }
    }
    closedir(entries);
    *f = (found){.rate = 0};
    return ls_events_read(path, take, f);
}

static ls_status write_run(ls_comm *comm, const char *folder, training *t) {
    ls_callback *board = ls_tensorboard(folder, &(ls_tensorboard_options){.every_steps = EVERY, .images = 3});
    LS_TRY(training_begin(t, &(training_plan){.callbacks = &board, .callback_count = 1, .global_batch = 7}, comm));
    LS_TRY(ls_trial_run(t->trial, EPOCHS));
    return ls_trial_evaluate(t->trial, t->validate, "test");
}

static ls_status check_file(const char *folder, const training *t, found *f) {
    const int steps = EPOCHS * 9;
    LS_TRY(read_folder(folder, f));
    for (int i = 0; i < EPOCHS; i++) {
        LS_CHECK(fabs(f->loss[i] - ls_trial_history(t->trial, i, "loss")) < 1e-6);
        LS_CHECK(fabs(f->val_acc[i] - ls_trial_history(t->trial, i, "val_acc")) < 1e-6);
    }
    LS_CHECK(f->batches == steps / EVERY && fabs(f->rate - 0.05) < 1e-8);
    LS_CHECK(f->kinds[LS_EVENTS_TEXT] == 1 && f->kinds[LS_EVENTS_GRAPH] == 1);
    LS_CHECK(f->kinds[LS_EVENTS_IMAGE] == 0); /* the inputs are not pictures */
    LS_CHECK(f->histograms_of_last_epoch == 4 && f->kinds[LS_EVENTS_HISTOGRAM] == 4 * EPOCHS);
    LS_CHECK(f->kinds[LS_EVENTS_SCALAR] == 4 * EPOCHS + 2 * (steps / EVERY));
    return LS_OK;
}

/* On the other ranks, the folder is not writable. */
static ls_status numbers(ls_comm *world) {
    const bool first = ls_comm_rank(world) == 0;
    training all, alone;
    found of_all, of_one;
    char folder[1024], other[1024];
    snprintf(folder, sizeof folder, "%s", first ? test_path("all") : "/dev/null/folder");
    LS_TRY(write_run(world, folder, &all));
    if (first) {
        snprintf(other, sizeof other, "%s", test_path("alone"));
        LS_TRY(write_run(NULL, other, &alone));
        LS_TRY(check_file(folder, &all, &of_all));
        LS_TRY(check_file(other, &alone, &of_one));
        for (int i = 0; i < of_one.batches; i++) {
            LS_CHECK(fabs(of_all.batch[i] - of_one.batch[i]) < 1e-6);
        }
        training_end(&alone);
    }
    training_end(&all);
    return LS_OK;
}

/* Writes pictures of the first batch, and no other optional contents. */
static ls_status pictures(ls_comm *world) {
    const bool first = ls_comm_rank(world) == 0;
    char folder[1024];
    snprintf(folder, sizeof folder, "%s", first ? test_path("pictures") : "/dev/null/folder");
    ls_callback *board =
        ls_tensorboard(folder, &(ls_tensorboard_options){.images = 2, .no_histograms = true, .no_model = true});
    ls_seed(3);
    ls_tensor *input = ls_rand(LS_SHAPE(24, 3, 5, 4), LS_F32);
    ls_loader *loader = ls_loader_new(ls_tensor_dataset(input, ls_zeros(LS_SHAPE(24), LS_I64)),
                                      &(ls_loader_options){.global_batch_size = 12, .comm = world});
    ls_module *model = ls_data_parallel(ls_sequential(ls_nn_flatten(), ls_nn_linear(60, 2)), world, NULL);
    ls_optimizer *optimizer = ls_sgd(model, NULL);
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = ls_criterion_cross_entropy,
                                                       .train = loader,
                                                       .callbacks = &board,
                                                       .callback_count = 1,
                                                       .quiet = true});
    LS_TRY(ls_trial_run(trial, 2));
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_loader_free(loader);
    ls_module_free(model);
    if (first) {
        found f;
        LS_TRY(read_folder(folder, &f));
        LS_CHECK(f.kinds[LS_EVENTS_IMAGE] == 2 && f.kinds[LS_EVENTS_SCALAR] == 2);
        LS_CHECK(f.kinds[LS_EVENTS_TEXT] + f.kinds[LS_EVENTS_GRAPH] + f.kinds[LS_EVENTS_HISTOGRAM] == 0);
        test_files_remove();
    }
    return LS_OK;
}

/* If rank 0 cannot write, all ranks fail with its message. */
static ls_status no_folder(ls_comm *world) {
    ls_callback *board = ls_tensorboard("/dev/null/board", NULL);
    training t;
    LS_TRY(training_begin(&t, &(training_plan){.callbacks = &board, .callback_count = 1}, world));
    LS_CHECK(ls_trial_run(t.trial, EPOCHS) == LS_ERR_IO);
    LS_EXPECT_MESSAGE("cannot create the folder /dev/null");
    training_end(&t);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(numbers(world));
    LS_TRY(pictures(world));
    LS_TRY(no_folder(world));
    return ls_comm_barrier(world, NULL);
}
