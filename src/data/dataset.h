/*
 * data: data sets, samplers, loaders. This header defines the internals of a data set. Each kind of data set copies raw
 * samples. Transforms then change whole batches.
 */
#ifndef LS_DATA_DATASET_H
#define LS_DATA_DATASET_H

#include <pthread.h>

#include <lockstep/autograd.h>
#include <lockstep/data.h>

#include "base/owners.h"
#include "base/status.h"
#include "data/augment.h"
#include "tensor/tensor.h"

#define LS_TRANSFORM_LIMIT 16

/* The data set's copy of the options of its built-in transforms. */
typedef union ls_step_options {
    double numbers[2];
    ls_augmentation augmentation;
} ls_step_options;

/* A transform and its argument. */
typedef struct ls_transform_step {
    ls_transform function;
    void *user;
    bool built_in; /* the function gets the options instead of `user` */
    ls_step_options options;
} ls_transform_step;

/* The steps for inputs or for targets. */
typedef struct ls_transform_chain {
    ls_transform_step steps[LS_TRANSFORM_LIMIT];
    int count;
} ls_transform_chain;

/* How samples are stored: in blocks of consecutive samples. Each block is read as a whole. */
typedef struct ls_sample_storage {
    int64_t block;  /* samples per block; 0 if samples are not stored in blocks */
    int64_t first;  /* samples before the first complete block */
    int64_t cached; /* blocks that the data set can hold in memory */
} ls_sample_storage;

struct ls_dataset {
    const ls_dataset_type *type;
    void *state;
    ls_owners owners;
    int64_t count;
    ls_sample_layout raw;    /* as fetched */
    ls_sample_layout layout; /* after the transforms */
    ls_transform_chain input;
    ls_transform_chain target;
    /*
     * The data set's type or a transform belongs to the program and was not declared thread-safe (`serial`). The data
     * set then runs under the lock of `guard`. The guard is the data set itself or, for a part of another data set, the
     * data set whose functions it shares. A data set is locked before the data sets that it consists of.
     */
    bool serial;
    bool copies; /* fetch only copies elements: it neither makes tensors nor draws random numbers */
    ls_dataset *guard;
    ls_sample_storage storage;
    pthread_mutex_t lock;
    int earlier_steps; /* steps applied to the inputs before this data set's own */
};

/* Returns false for NULL, and false with LS_ERR_STATE if the data set was freed. */
bool ls_dataset_is_here(const ls_dataset *dataset);

/*
 * Adds a reference for a new owner, who releases it with ls_dataset_drop. Returns NULL with an error if the data set is
 * NULL or was freed. `call` is for the message.
 */
ls_dataset *ls_dataset_take(const char *call, ls_dataset *dataset);
void ls_dataset_drop(ls_dataset *dataset);

/* Takes ownership of the data set and releases it: for constructors that fail or do not need the data set. */
static inline void ls_dataset_consume(ls_dataset *dataset) {
    ls_dataset_drop(dataset != NULL ? ls_dataset_take("ls_dataset", dataset) : NULL);
}

/* Makes a data set of samples from dense tensors. Takes ownership of both references, even on failure. */
ls_dataset *ls_dataset_of_tensors(ls_tensor *input, ls_tensor *target);

/* Returns the shape of one sample of a batch. */
static inline ls_shape ls_sample_shape(const ls_tensor *batch) {
    ls_shape shape = {.ndim = batch->ndim - 1};
    for (int i = 0; i < shape.ndim; i++) {
        shape.size[i] = batch->size[i + 1];
    }
    return shape;
}

/*
 * Fails with LS_ERR_SHAPE if the samples of a batch do not have the shape and dtype of the first sample of the data
 * set. `which` is "input" or "target". `number` is the index of the batch's first sample.
 */
ls_status ls_batch_check(const char *call, const char *which, int64_t number, const ls_tensor *batch, ls_shape shape,
                         ls_dtype dtype);

/*
 * Calls the function in its own scope, without recording, and frees the tensors that the function leaves in the scope.
 * Keeps the error message of a failure, if there is one.
 */
ls_status ls_without_recording(ls_status (*function)(void *argument), void *argument);

/* Adds a step for the inputs or the targets, by the rules of ls_dataset_transform_input. */
ls_dataset *ls_dataset_add_step(ls_dataset *given, bool of_targets, ls_transform_step step);

/* Calls the fetch function of a data set. If it fails without a message, sets one. */
ls_status ls_dataset_fetch(ls_dataset *dataset, const ls_samples *samples, ls_tensor *input, ls_tensor *target);

/*
 * Makes a batch of transformed samples. On entry, *input and *target are NULL or references from an earlier call, which
 * are reused if they fit and have no other owner. On return, the caller owns both references. On failure both are NULL.
 */
ls_status ls_dataset_batch(ls_dataset *dataset, const ls_samples *samples, ls_tensor **input, ls_tensor **target);

#endif
