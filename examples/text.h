/*
 * Shared code of the examples that learn the bytes of a file: the loss for the next byte, sampling of a byte from the
 * model's logits, the training, and the final report.
 */
#ifndef LS_EXAMPLES_TEXT_H
#define LS_EXAMPLES_TEXT_H

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "data_parallel.h"

enum { BYTES = 256, TOP = 20 };

/* The Jargon File, 1.7 MB, as installed by Debian's package jargon-text. */
#define TEXT "/usr/share/doc/jargon-text/jargon.txt.gz"

/* Treats each position as a sample: its logits are compared with the next byte. */
static inline ls_tensor *next_byte(ls_tensor *output, ls_tensor *target, void *user) {
    (void)user;
    return ls_cross_entropy(ls_reshape(output, LS_SHAPE(-1, BYTES)), ls_reshape(target, LS_SHAPE(-1)), NULL);
}

/* Samples from the most probable bytes. Returns -1 on failure. */
static inline int draw_byte(ls_tensor *logits, double temperature) {
    ls_tensor *indices = NULL;
    ls_tensor *values = ls_top_k(logits, TOP, 0, false, &indices);
    ls_tensor *sums = ls_cumsum(ls_softmax(ls_div(values, temperature), 0), 0);
    ls_tensor *below = ls_sum(ls_to(ls_lt(sums, ls_rand(LS_SCALAR, LS_F32)), LS_I64));
    const double place = below != NULL ? ls_item(below) : -1;
    ls_tensor *byte = place >= 0 ? ls_select(indices, 0, place < TOP ? (int64_t)place : TOP - 1) : NULL;
    return byte != NULL ? (int)ls_item(byte) : -1;
}

/* The model, the optimizer and the training options. */
typedef struct text_task {
    const char *file;
    const char *load, *save; /* weight files to load before and to save after the training; NULL for none */
    long context, batch_size, steps, sample, seed; /* context and sample in bytes, batch_size in pieces */
    double learning_rate;
    bool bf16, quiet, capture;
    ls_module *(*build_model)(void);
    ls_status (*write_sample)(ls_module *model);
} text_task;

/* Reports the results. Rank 0 prints most of them, after the other ranks' lines. Losses are in nats per byte. */
static inline ls_status report(ls_trial *trial, ls_comm *world, ls_module *model, const text_task *task) {
    const double samples = ls_trial_throughput(trial); /* collective: every rank must call it */
    const ls_status status = report_parameters(world, model);
    if (status != LS_OK || ls_comm_rank(world) != 0) {
        return status;
    }
    printf("parameters: %" PRId64 "\n", ls_module_size(model));
    if (task->steps > 0) {
        printf("throughput: %.0f bytes/s\n", samples * (double)task->context);
        printf("loss: %.4f\n", ls_trial_metric(trial, "loss"));
    }
    printf("test loss: %.4f\n", ls_trial_metric(trial, "test_loss"));
    return LS_OK;
}

/* The training data and the held-out data. */
typedef struct text_parts {
    ls_loader *train, *test;
} text_parts;

/* Splits the file into training pieces (the first nine tenths) and test pieces (the rest). A piece starts at every
 * quarter of the context. */
static inline text_parts open_text(ls_comm *world, const text_task *task) {
    if (strcmp(task->file, TEXT) == 0 && access(TEXT, R_OK) != 0) {
        (void)ls_error_set(LS_ERR_IO, "%s does not exist: install the Debian package jargon-text, or pass --file FILE",
                           TEXT);
        return (text_parts){0};
    }
    ls_loader_options by = loader_options(world, task->batch_size, global_batch_size);
    by.seed = (uint64_t)task->seed;
    ls_tokens_options piece = {.context = task->context, .stride = (task->context + 3) / 4}; /* each byte is a token */
    ls_dataset *set = ls_tokens_dataset(task->file, &piece);
    const int64_t count = (ls_dataset_count(set) * 9 + 9) / 10;
    text_parts parts = {.train = set != NULL ? ls_loader_new(ls_dataset_subset(set, 0, count), &by) : NULL};
    piece.skip_bytes = count * piece.stride + task->context;
    piece.stride = task->context;
    by.no_shuffle = true;
    set = parts.train != NULL ? ls_tokens_dataset(task->file, &piece) : NULL;
    parts.test = set != NULL ? ls_loader_new(set, &by) : NULL;
    return parts;
}

static inline ls_trial *make_trial(ls_module *model, ls_optimizer *optimizer, ls_loader *loader,
                                   const text_task *task) {
    const long rising = (task->steps + 9) / 10;
    ls_schedule *falling = ls_schedule_cosine(optimizer, task->steps - rising + 1, task->learning_rate / 10);
    ls_schedule *schedule = falling != NULL ? ls_schedule_warm_up(falling, rising, 0.01) : NULL;
    return schedule == NULL ? NULL
                            : ls_trial_new(&(ls_trial_options){
                                  .model = model,
                                  .optimizer = optimizer,
                                  .criterion = next_byte,
                                  .train = loader,
                                  .metrics = LS_METRICS("loss"),
                                  LS_CALLBACKS(ls_scheduler(schedule, &(ls_scheduler_options){.per_step = true}),
                                               ls_gradient_norm_clipping(1)),
                                  .train_steps = task->steps,
                                  .endless = true,
                                  .autocast = task->bf16 ? LS_BF16 : LS_F32,
                                  .capture = task->capture,
                                  .quiet = task->quiet});
}

static inline ls_status train_on_text(ls_comm *world, const text_task *task) {
    ls_seed((uint64_t)task->seed);
    const ls_adam_options adam = {.learning_rate = task->learning_rate, .weight_decay = 0.1};
    text_parts text = open_text(world, task);
    ls_module *model = text.test != NULL ? ls_module_retain(task->build_model()) : NULL;
    const bool good = model != NULL && (task->load == NULL || ls_module_load(model, task->load) == LS_OK);
    ls_module *parallel = good ? make_data_parallel(model, world) : NULL;
    ls_optimizer *optimizer = parallel != NULL ? ls_adamw(parallel, &adam) : NULL;
    ls_trial *trial = optimizer != NULL ? make_trial(parallel, optimizer, text.train, task) : NULL;
    ls_status status = trial != NULL ? ls_trial_run(trial, task->steps > 0) : ls_error_status();
    status = status == LS_OK ? ls_trial_evaluate(trial, text.test, "test") : status;
    /* With --zero 3, each rank holds only a part. */
    status = status == LS_OK ? ls_data_parallel_gather(parallel, true) : status;
    status = status == LS_OK ? report(trial, world, model, task) : status;
    if (status == LS_OK && ls_comm_rank(world) == 0) {
        status = task->save != NULL ? ls_module_save(model, task->save, NULL) : LS_OK;
        status = status == LS_OK && task->sample > 0 ? task->write_sample(model) : status;
    }
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_module_free(parallel);
    ls_module_free(model);
    ls_loader_free(text.train);
    ls_loader_free(text.test);
    return status;
}

#endif
