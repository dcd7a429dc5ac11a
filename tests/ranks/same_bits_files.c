/*
 * Trials with .shards = 8 write byte-identical files on any number of ranks: the files of the model and of the
 * optimizer. Trains a perceptron with dropout, clipping and an uneven last batch; a convolutional network with batch
 * normalization and random crops and flips; a Transformer in f16 with a gradient scaler and a forced overflow; and an
 * LSTM in f64. Eight ranks without .shards write the same files. LOCKSTEP_TEST_LONG trains 200 steps.
 *
 * ranks: 1 2 3 4 5 8
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <lockstep/callbacks.h>
#include <lockstep/checkpoint.h>
#include <lockstep/data.h>
#include <lockstep/optim.h>
#include <lockstep/parallel.h>
#include <lockstep/train.h>

#include "base/hash.h"
#include "tests/support/resumed.h"
#include "tests/support/seeds.h"

enum {
    SHARDS = 8,
    FILE_STEPS = 7,
    LONG_STEPS = 200,
    COUNT = 90, /* not a multiple of a global batch */
    SIDE = 8,   /* of a picture */
    WORDS = 11,
    LETTERS = 6 /* per sequence */
};

typedef struct program {
    const char *name;
    ls_module *(*model)(void);
    ls_dataset *(*samples)(void);
    ls_criterion criterion;
    int64_t batch; /* samples in a global batch */
    double clips;  /* the maximum norm of the gradients; 0 disables clipping */
    ls_dtype autocast;
} program;

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static ls_tensor *classes_of(ls_shape shape, uint32_t count) {
    ls_tensor *target = ls_empty(shape, LS_I64);
    int64_t *numbers = ls_data(target);
    for (int64_t i = 0; i < ls_numel(target); i++) {
        numbers[i] = (int64_t)(ls_random_u32(SEED, 2, (uint64_t)i) % count);
    }
    return target;
}

static ls_tensor *normal_numbers(ls_shape shape, ls_dtype dtype) {
    ls_tensor *numbers = ls_empty(shape, LS_F32);
    float *x = ls_data(numbers);
    for (int64_t i = 0; i < ls_numel(numbers); i++) {
        x[i] = (float)ls_random_normal(SEED, 1, (uint64_t)i);
    }
    return ls_to(numbers, dtype);
}

static ls_dataset *rows(void) {
    return ls_tensor_dataset(normal_numbers(LS_SHAPE(COUNT, INPUTS), LS_F32), classes_of(LS_SHAPE(COUNT), CLASSES));
}

static ls_module *make_mlp(void) {
    return ls_sequential(ls_nn_linear(INPUTS, 40), ls_nn_tanh(), ls_nn_dropout(0.3), ls_nn_linear(40, 33), ls_nn_relu(),
                         ls_nn_linear(33, CLASSES));
}

static ls_dataset *pictures(void) {
    ls_dataset *plain =
        ls_tensor_dataset(normal_numbers(LS_SHAPE(COUNT, 1, SIDE, SIDE), LS_F32), classes_of(LS_SHAPE(COUNT), CLASSES));
    return ls_dataset_random_flip(ls_dataset_random_crop(plain, &(ls_random_crop_options){.padding = 2}), 0.5, 0);
}

static ls_module *make_convolutions(void) {
    return ls_sequential(ls_nn_conv_2d(1, 4, LS_SHAPE(3, 3), &(ls_conv_layer_options){.same = true}),
                         ls_nn_batch_norm_2d(4, NULL), ls_nn_relu(), ls_nn_flatten(), ls_nn_linear(4 * SIDE * SIDE, 12),
                         ls_nn_batch_norm_1d(12, NULL), ls_nn_tanh(), ls_nn_linear(12, CLASSES));
}

static ls_dataset *text(void) {
    ls_tensor *words = classes_of(LS_SHAPE(COUNT, LETTERS + 1), WORDS);
    return ls_tensor_dataset(ls_contiguous(ls_narrow(words, 1, 0, LETTERS)),
                             ls_contiguous(ls_narrow(words, 1, 1, LETTERS)));
}

static ls_module *make_gpt(void) {
    const ls_transformer_options block = {.norm_first = true, .dropout = 0.1, .attention = {.causal = true}};
    return ls_sequential(ls_nn_embedding(WORDS, 12), ls_nn_transformer_block(12, 2, &block),
                         ls_nn_transformer_block(12, 2, &block), ls_nn_linear(12, WORDS));
}

static _Thread_local int64_t forwards; /* the number of criterion calls since the last step */
static _Thread_local int64_t steps_done;

/* The loss of the next letter. It overflows in one step. */
static ls_tensor *next_letter(ls_tensor *output, ls_tensor *target, void *user) {
    (void)user;
    ls_tensor *loss = ls_cross_entropy(ls_reshape(output, LS_SHAPE(-1, WORDS)), ls_reshape(target, LS_SHAPE(-1)), NULL);
    return steps_done == FILE_STEPS / 2 ? ls_mul(loss, INFINITY) : loss;
}

static ls_dataset *sequences(void) {
    return ls_tensor_dataset(normal_numbers(LS_SHAPE(COUNT, LETTERS, INPUTS), LS_F64),
                             classes_of(LS_SHAPE(COUNT), CLASSES));
}

static ls_module *make_lstm(void) {
    return ls_sequential(ls_nn_lstm(INPUTS, 9, &(ls_recurrent_options){.dtype = LS_F64}), ls_nn_flatten(),
                         ls_nn_linear_with(LETTERS * 9, CLASSES, &(ls_linear_options){.dtype = LS_F64}));
}

static ls_tensor *counted_criterion(ls_tensor *output, ls_tensor *target, void *user) {
    (void)user;
    forwards++;
    return ls_cross_entropy(output, target, NULL);
}

static const program programs[] = {
    {"dropout, clipping, an uneven last batch", make_mlp, rows, ls_criterion_cross_entropy, 37, 0.5, LS_F32},
    {"batch normalization, crops and flips", make_convolutions, pictures, counted_criterion, 26, 0, LS_F32},
    {"a Transformer in f16 with an overflow", make_gpt, text, next_letter, 21, 1, LS_F16},
    {"an LSTM in f64", make_lstm, sequences, ls_criterion_cross_entropy, 19, 0, LS_F32},
};
enum { PROGRAMS = sizeof programs / sizeof *programs };

/* ---- training ---------------------------------------------------------------------------------------------------- */

typedef struct objects {
    ls_module *model;
    ls_optimizer *optimizer;
    ls_grad_scaler *scaler;
    ls_loader *loader;
    ls_trial *trial;
} objects;

/* Slices that synchronize run each forward pass once, except in the first step. */
static ls_status end_step(ls_trial_state *state, void *user) {
    const int64_t *slices = user; /* of this rank; 0 does not check */
    (void)state;
    steps_done++;
    LS_CHECK(*slices == 0 || steps_done == 1 || forwards <= *slices);
    forwards = 0;
    return LS_OK;
}

/* The trainings with all ranks send small buckets during the backward pass. */
static ls_status make_objects(objects *o, const program *p, ls_comm *comm, int shards, int64_t *slices, bool all) {
    const int64_t steps = seeds_number("LOCKSTEP_TEST_LONG", 0) != 0 ? LONG_STEPS : FILE_STEPS;
    ls_seed(SEED);
    forwards = steps_done = 0;
    o->model =
        ls_data_parallel(p->model(), comm,
                         &(ls_data_parallel_options){
                             .shards = shards, .overlap = all ? LS_OVERLAP_ON : LS_OVERLAP_OFF, .bucket_bytes = 256});
    o->optimizer = ls_adam(o->model, &(ls_adam_options){.learning_rate = 0.01});
    o->scaler = p->autocast == LS_F16 ? ls_grad_scaler_new(&(ls_grad_scaler_options){.initial_scale = 256}) : NULL;
    o->loader = ls_loader_new(
        p->samples(),
        &(ls_loader_options){.global_batch_size = p->batch, .comm = comm, .seed = SEED, .shards = shards});
    LS_CHECK(o->model != NULL && o->optimizer != NULL && o->loader != NULL);
    ls_callback *callbacks[] = {
        ls_callback_new(&(ls_callback_hooks){.on_step_training = end_step}, slices),
        ls_gradient_norm_clipping(p->clips > 0 ? p->clips : 1e9),
    };
    o->trial = ls_trial_new(&(ls_trial_options){.model = o->model,
                                                .optimizer = o->optimizer,
                                                .grad_scaler = o->scaler,
                                                .autocast = p->autocast,
                                                .criterion = p->criterion,
                                                .train = o->loader,
                                                .metrics = LS_METRICS("loss"),
                                                .callbacks = callbacks,
                                                .callback_count = sizeof callbacks / sizeof *callbacks,
                                                .max_steps = steps,
                                                .quiet = true});
    LS_CHECK(o->trial != NULL);
    return ls_trial_run(o->trial, LONG_STEPS);
}

static void free_objects(objects *o) {
    ls_trial_free(o->trial);
    ls_optimizer_free(o->optimizer);
    ls_grad_scaler_free(o->scaler);
    ls_loader_free(o->loader);
    ls_module_free(o->model);
}

/* Appends the bytes of a file to the hash. */
static ls_status hash_file(const char *folder, const char *name, uint64_t *hash) {
    char path[PATH_MAX], bytes[4096];
    size_t count, all = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    LS_CHECK(file != NULL);
    while ((count = fread(bytes, 1, sizeof bytes, file)) > 0) {
        *hash = ls_hash(*hash, bytes, count);
        all += count;
    }
    (void)fclose(file);
    LS_CHECK(all > 0);
    return LS_OK;
}

/* Trains, writes a checkpoint, and hashes the files of the model and of the optimizer. */
static ls_status write_files(const program *p, ls_comm *comm, int shards, const char *name, uint64_t *hash) {
    char folder[PATH_MAX];
    int64_t slices = p->criterion == counted_criterion && shards > 0 ? SHARDS / ls_comm_size(comm) + 1 : 0;
    objects o = {.model = NULL};
    snprintf(folder, sizeof folder, "%s", in_scratch(name));
    ls_scope *scope = ls_scope_begin();
    ls_status status = make_objects(&o, p, comm, shards, &slices, strncmp(name, "all", 3) == 0);
    LS_CHECK(status != LS_OK || o.scaler == NULL || ls_grad_scaler_get_scale(o.scaler) < 256); /* the overflow */
    status = status == LS_OK ? ls_trial_save(o.trial, folder) : status;
    free_objects(&o);
    LS_TRY(ls_scope_end_after(scope, status));
    LS_TRY(ls_comm_barrier(comm, NULL));
    *hash = LS_HASH_START;
    LS_TRY(hash_file(folder, LS_MODEL_NAME ".safetensors", hash));
    return hash_file(folder, LS_OPTIMIZER_NAME ".safetensors", hash);
}

/* ---- the same files ---------------------------------------------------------------------------------------------- */

static ls_status compare(ls_comm *comm, int number, const char *name, uint64_t want) {
    uint64_t hash;
    LS_TRY(write_files(&programs[number], comm, SHARDS, name, &hash));
    return hash == want
               ? LS_OK
               : ls_fail(LS_ERR_INTERNAL, "%s: %d ranks write other files", programs[number].name, ls_comm_size(comm));
}

/* Compares all ranks with groups of some ranks. */
static ls_status same_files(ls_comm *world, int number) {
    const int size = ls_comm_size(world), rank = ls_comm_rank(world);
    char name[64];
    uint64_t want;
    snprintf(name, sizeof name, "all-%d", number);
    LS_TRY(write_files(&programs[number], world, SHARDS, name, &want));
    for (int first = 1; first <= size / 2; first++) {
        ls_comm *group = NULL;
        LS_TRY(ls_comm_split(world, rank < first, 0, &group));
        snprintf(name, sizeof name, "%d-%d-%d", number, first, rank < first);
        const ls_status status = compare(group, number, name, want);
        ls_comm_free(group);
        LS_TRY(status);
    }
    snprintf(name, sizeof name, "plain-%d", number);
    uint64_t plain = want;
    LS_TRY(size != SHARDS ? LS_OK : write_files(&programs[number], world, 0, name, &plain));
    LS_CHECK(plain == want);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(make_scratch(world));
    ls_status status = LS_OK;
    for (int i = 0; i < PROGRAMS && status == LS_OK; i++) {
        status = same_files(world, i);
    }
    LS_TRY(status);
    return remove_scratch(world);
}
