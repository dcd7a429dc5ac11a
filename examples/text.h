/*
 * What the examples that learn the bytes of a file share: the loss of the byte that comes next, a byte drawn from what
 * a model says of it, the training, and the lines at the end.
 */
#ifndef LS_EXAMPLES_TEXT_H
#define LS_EXAMPLES_TEXT_H

#include <inttypes.h>
#include <stdio.h>

#include <lockstep/lockstep.h>

enum { BYTES = 256, TOP = 20 };

/* Each position is a sample of its own: its logits against the byte that comes next. */
static inline ls_tensor *next_byte(ls_tensor *output, ls_tensor *target, void *user) {
    (void)user;
    return ls_cross_entropy(ls_reshape(output, LS_SHAPE(-1, BYTES)), ls_reshape(target, LS_SHAPE(-1)), NULL);
}

/* One of the likeliest bytes, drawn by probability; -1 on failure. */
static inline int draw_byte(ls_tensor *logits, double temperature) {
    ls_tensor *indices = NULL;
    ls_tensor *values = ls_top_k(logits, TOP, 0, false, &indices);
    ls_tensor *sums = ls_cumsum(ls_softmax(ls_div(values, temperature), 0), 0);
    ls_tensor *below = ls_sum(ls_to(ls_lt(sums, ls_rand(LS_SCALAR, LS_F32)), LS_I64));
    const double place = below != NULL ? ls_item(below) : -1;
    ls_tensor *byte = place >= 0 ? ls_select(indices, 0, place < TOP ? (int64_t)place : TOP - 1) : NULL;
    return byte != NULL ? (int)ls_item(byte) : -1;
}

/* The file's first byte; a newline where there is none any more. */
static inline int first_byte(const char *file) {
    FILE *stream = fopen(file, "rb");
    const int byte = stream != NULL ? fgetc(stream) : EOF;
    if (stream != NULL) {
        fclose(stream);
    }
    return byte != EOF ? byte : '\n';
}

/* What training came to; rank 0 says most of it, last. */
static inline ls_status report(ls_trial *trial, ls_comm *world, ls_module *model, long context) {
    const double samples = ls_trial_throughput(trial); /* of all ranks: each asks */
    printf("rank %d parameters %016" PRIx64 "\n", ls_comm_rank(world), ls_module_hash(model));
    fflush(stdout);
    const ls_status status = ls_comm_barrier(world, NULL); /* so that rank 0's lines are the last */
    if (status != LS_OK || ls_comm_rank(world) != 0) {
        return status;
    }
    printf("parameters: %" PRId64 "\n", ls_module_size(model));
    printf("throughput: %.0f bytes/s\n", samples * (double)context);
    printf("loss: %.4f\n", ls_trial_metric(trial, "loss"));
    return LS_OK;
}

/* What is learnt, by what, and how. */
typedef struct text_task {
    const char *file;
    long context, batch_size, steps, sample, seed; /* bytes that are seen; pieces a rank and step; bytes to write */
    double learning_rate;
    bool quiet;
    ls_module *(*build_model)(void);
    ls_status (*write_sample)(ls_module *model, int first);
} text_task;

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
                                  .quiet = task->quiet});
}

static inline ls_status train_on_text(ls_comm *world, const text_task *task) {
    ls_seed((uint64_t)task->seed);
    const ls_loader_options by = {.batch_size = task->batch_size, .comm = world, .seed = (uint64_t)task->seed};
    const ls_adam_options adam = {.learning_rate = task->learning_rate, .weight_decay = 0.1};
    ls_dataset *set = ls_tokens_dataset(task->file, &(ls_tokens_options){.context = task->context}); /* of bytes */
    ls_loader *loader = set != NULL ? ls_loader_new(set, &by) : NULL;
    ls_module *model = loader != NULL ? ls_module_retain(task->build_model()) : NULL;
    ls_module *parallel = model != NULL ? ls_data_parallel(model, world, NULL) : NULL;
    ls_optimizer *optimizer = parallel != NULL ? ls_adamw(parallel, &adam) : NULL;
    ls_trial *trial = optimizer != NULL ? make_trial(parallel, optimizer, loader, task) : NULL;
    ls_status status = trial != NULL ? ls_trial_run(trial, 1) : ls_error_status();
    if (status == LS_OK) {
        status = report(trial, world, model, task->context);
    }
    if (status == LS_OK && ls_comm_rank(world) == 0 && task->sample > 0) {
        status = task->write_sample(model, first_byte(task->file));
    }
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_module_free(parallel);
    ls_module_free(model);
    ls_loader_free(loader);
    return status;
}

#endif
