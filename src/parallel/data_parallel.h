/* Data-parallel training: what the module (data_parallel.c) and the averaging of its gradients (averaging.c) share. */
#ifndef LS_PARALLEL_DATA_PARALLEL_H
#define LS_PARALLEL_DATA_PARALLEL_H

#include "autograd/samples.h"
#include "nn/module.h"
#include "parallel/parallel.h"

typedef struct ls_data_parallel_state {
    ls_module *model;
    ls_comm *comm;
    ls_flat flats[LS_FLAT_LIMIT];
    int flat_count;
    ls_storage *shared[LS_FLAT_LIMIT]; /* where the gradients lie: this module's own references */
    int parameter_count;
    int64_t samples; /* of the last forward pass */
    bool no_sync;
    bool gathering;     /* since the last averaging there were passes under no_sync */
    bool agrees;        /* ranks agree on weights before every pass: one was irregular */
    bool agreed;        /* the present pass has its weights */
    double usual;       /* divisor of a loss, or samples, that counts as 1; 0 before the first averaging */
    double divisor;     /* of the present pass that has not agreed: of its loss, or samples */
    double all_samples; /* of the present pass that has agreed, of all ranks */
} ls_data_parallel_state;

/* How many numbers stand behind the gradients of flat buffer `flat`. */
int64_t ls_data_parallel_tail(const ls_data_parallel_state *state, int flat);

/* What the module does in a pass; the user is the state. */
extern const ls_pass_watch ls_data_parallel_watch;

/* Takes part in a pass without samples. */
ls_status ls_data_parallel_pass_without_samples(ls_data_parallel_state *state);

#endif
