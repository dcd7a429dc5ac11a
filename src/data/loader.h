/* What a loader is inside, of any kind: a place in the epochs, and the batch that is lent. */
#ifndef LS_DATA_LOADER_H
#define LS_DATA_LOADER_H

#include <lockstep/data.h>

struct ls_loader {
    const ls_loader_type *type;
    void *state;
    int64_t batches; /* of an epoch; -1: not known */
    int64_t epoch;
    int64_t batch;    /* the next one */
    ls_tensor *input; /* of the batch lent last, held */
    ls_tensor *target;
};

/* The numbers in its data set of the samples of the batch lent last, this rank's; NULL of a loader of another kind. */
const int64_t *ls_loader_samples(const ls_loader *loader);

#endif
