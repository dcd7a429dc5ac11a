/*
 * data: data sets, samplers, loaders. This header: what a data set is inside. A kind of data set copies raw samples;
 * transforms change whole batches of them afterwards.
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

/* What the data set keeps for its own transforms. */
typedef union ls_step_options {
    double numbers[2];
    ls_augmentation augmentation;
} ls_step_options;

/* A transform and its argument. */
typedef struct ls_transform_step {
    ls_transform function;
    void *user;
    bool built_in; /* it is given the options instead of `user` */
    ls_step_options options;
} ls_transform_step;

/* The steps of inputs, or of targets. */
typedef struct ls_transform_chain {
    ls_transform_step steps[LS_TRANSFORM_LIMIT];
    int count;
} ls_transform_chain;

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
     * Its type or a transform is a program's own and has not been said to be safe in several threads (`serial`): it
     * runs under the lock of `guard`, which is the data set itself, or what this is a part of, with which it shares
     * them. Locks are taken from data sets to those that they are made of.
     */
    bool serial;
    bool copies; /* fetch copies elements and nothing else: it makes no tensors and draws no numbers */
    ls_dataset *guard;
    pthread_mutex_t lock;
    int earlier_steps; /* of inputs, that samples have gone through before */
};

/* A reference for who takes the data set over; ls_dataset_drop gives it back. NULL is allowed. NULL with an error when
 * it is gone. */
ls_dataset *ls_dataset_take(ls_dataset *dataset);
void ls_dataset_drop(ls_dataset *dataset);

/* Takes it over and gives it up: what a constructor that has no use for it, or fails, does. */
static inline void ls_dataset_consume(ls_dataset *dataset) {
    ls_dataset_drop(ls_dataset_take(dataset));
}

/* Samples from dense tensors; takes references of the caller's, also when it fails. */
ls_dataset *ls_dataset_of_tensors(ls_tensor *input, ls_tensor *target);

/* The shape of one sample of a batch. */
static inline ls_shape ls_sample_shape(const ls_tensor *batch) {
    ls_shape shape = {.ndim = batch->ndim - 1};
    for (int i = 0; i < shape.ndim; i++) {
        shape.size[i] = batch->size[i + 1];
    }
    return shape;
}

/* Calls the function in a scope of its own, without recording: what it makes a batch from goes with the scope. A
 * failure keeps its message, or none. */
ls_status ls_without_recording(ls_status (*function)(void *argument), void *argument);

/* Adds a step of the inputs, or of the targets: as ls_dataset_transform_input does. */
ls_dataset *ls_dataset_add_step(ls_dataset *given, bool of_targets, ls_transform_step step);

/*
 * Samples, transformed. *input and *target come in as NULL or as the tensors of an earlier call
 * (references of the caller's), which are used again when they fit and nobody else refers to them; they go out as
 * references of the caller's. On failure both are NULL.
 */
ls_status ls_dataset_batch(ls_dataset *dataset, const ls_samples *samples, ls_tensor **input, ls_tensor **target);

#endif
