/* The internals of a loader of any kind: its position in the epochs, and its current batch. */
#ifndef LS_DATA_LOADER_H
#define LS_DATA_LOADER_H

#include <lockstep/data.h>

#include "tensor/device.h"

struct ls_loader {
    const ls_loader_type *type;
    void *state;
    int64_t batches;         /* batches per epoch; -1 if unknown */
    bool of_dataset;         /* a loader of a data set: it makes no tensors in scopes, so its calls need no scope */
    bool undivided;          /* the loader returns global batches, even if there are several ranks */
    const ls_device *device; /* the device of batches; NULL leaves batches where the loader kind makes them */
    int64_t epoch;
    int64_t batch;    /* index of the next batch */
    ls_tensor *input; /* input of the current batch; the loader holds a reference */
    ls_tensor *target;
    bool lent_copies; /* the current batch was made on a different device; the program has copies of it */
};

/* Returns false, with LS_ERR_STATE, if the loader was freed. */
bool ls_loader_is_here(const char *call, const ls_loader *loader);

/* Like ls_loader_next, but puts the batch on `device` instead of the loader's device. NULL selects the loader's device.
 * This is the only function that moves batches between devices. */
ls_status ls_loader_next_on(ls_loader *loader, const ls_device *device, ls_batch *batch, bool *more);

/*
 * Returns the indices, in the data set, of this rank's samples of the current batch. Returns NULL for other kinds of
 * loaders.
 */
const int64_t *ls_loader_samples(const ls_loader *loader);

/*
 * Copies the samples at the given positions, counted from 0, in the current global batch, including samples of other
 * ranks. Reads and transforms them as for the batch, on "cpu". *input and *target follow the rules of ls_dataset_batch.
 * Replaces `places` with positions in the epoch. Fails with LS_ERR_UNSUPPORTED for other kinds of loaders.
 */
ls_status ls_loader_fetch(ls_loader *loader, int64_t *places, int64_t count, ls_tensor **input, ls_tensor **target);

/* Returns the number of samples of a full global batch; 0 for other kinds of loaders. */
int64_t ls_loader_global_batch(const ls_loader *loader);

/* The options of a loader that determine, for each epoch, the order of the samples. */
typedef struct ls_loader_order {
    int64_t samples; /* number of samples of the data set */
    uint64_t seed;
    bool no_shuffle;
} ls_loader_order;

/* Returns the order's options; all are 0 for other kinds of loaders. */
ls_loader_order ls_loader_order_of(const ls_loader *loader);

/* Returns `.shards`; -1 for other kinds of loaders. */
int ls_loader_shards(const ls_loader *loader);

/* Returns the number of ranks over which a loader of a data set splits its batches. Returns 0 for NULL and for other
 * kinds of loaders. */
int ls_loader_ranks(const ls_loader *loader);

/* Returns the index of this rank's share of each global batch; 0 if the loader does not divide batches. */
int ls_loader_share(const ls_loader *loader);

/* Writes into `text` the properties of the loader that must be equal on all ranks: samples, order and batch size.
 * All loaders that do not split their batches over `ranks` ranks have the same text. NULL is allowed. */
void ls_loader_describe(const ls_loader *loader, int ranks, char *text, size_t size);

#endif
