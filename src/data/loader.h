/* What a loader is inside, of any kind: a place in the epochs, and the batch that is lent. */
#ifndef LS_DATA_LOADER_H
#define LS_DATA_LOADER_H

#include <lockstep/data.h>

#include "tensor/device.h"

struct ls_loader {
    const ls_loader_type *type;
    void *state;
    int64_t batches;         /* of an epoch; -1: not known */
    bool of_dataset;         /* its kind makes no tensors of a scope, so its calls need none of their own */
    const ls_device *device; /* receives the batches; NULL: batches stay where the kind makes them */
    int64_t epoch;
    int64_t batch;    /* the next one */
    ls_tensor *input; /* of the batch lent last, held */
    ls_tensor *target;
    bool lent_copies; /* that batch was made on another device; the program has copies of it */
};

/* False, with LS_ERR_STATE, for a loader that was freed. */
bool ls_loader_is_here(const char *call, const ls_loader *loader);

/* Like ls_loader_next, but puts the batch on `device` instead of the loader's device. NULL selects the loader's device.
 * This is the only function that moves batches between devices. */
ls_status ls_loader_next_on(ls_loader *loader, const ls_device *device, ls_batch *batch, bool *more);

/* The numbers in its data set of the samples of the batch lent last, this rank's; NULL of a loader of another kind. */
const int64_t *ls_loader_samples(const ls_loader *loader);

/*
 * The samples at those places, from 0, of the global batch lent last, whichever ranks have them: copied from the data
 * set, and changed as in the batch itself, into *input and *target, which are used and given as ls_dataset_batch says,
 * on "cpu". `places` become places in the epoch. LS_ERR_UNSUPPORTED of a loader of another kind.
 */
ls_status ls_loader_fetch(ls_loader *loader, int64_t *places, int64_t count, ls_tensor **input, ls_tensor **target);

/* The samples of a global batch that is full; 0 of a loader of another kind. */
int64_t ls_loader_global_batch(const ls_loader *loader);

/* Returns whether this is a loader of a data set and divides its batches over `ranks` ranks. */
bool ls_loader_divides(const ls_loader *loader, int ranks);

/* Writes the properties of the loader that must be equal on all ranks into `text`: samples, order and batch size. If
 * the loader does not divide its batches over `ranks` ranks, the text is the same for all such loaders. */
void ls_loader_describe(const ls_loader *loader, int ranks, char *text, size_t size);

#endif
