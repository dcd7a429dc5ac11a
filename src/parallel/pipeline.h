/* A pipeline: declarations shared by the partitioning of a model into stages (stages.c) and the execution of the
 * stages (pipeline.c). */
#ifndef LS_PARALLEL_PIPELINE_H
#define LS_PARALLEL_PIPELINE_H

#include "nn/module.h"
#include "parallel/parallel.h"

/* Numbers of samples in the steps whose gradients are accumulated. ls_sync_gradients uses them as weights. */
enum { LS_STEPS_KNOWN = 12 };
typedef struct ls_gathered_steps {
    int64_t count;
    int64_t differ;  /* 1 if the steps had different numbers of samples */
    int64_t any;     /* 1 if there are steps; in the sum, the number of ranks with steps */
    int64_t several; /* 1 if there are several steps */
    int64_t samples[LS_STEPS_KNOWN];
} ls_gathered_steps;

typedef struct ls_pipeline_state {
    ls_gathered_steps steps;
    ls_comm *comm;
    ls_module *stage; /* this rank's layers as a sequence */
    int micro_batches;
    ls_pipeline_schedule schedule;
    bool broken; /* a step failed on this rank, so other stages may have gradients that this stage lacks */
    int failed;  /* the stage that failed first in this step, and its error message */
    char cause[LS_ERROR_CAPACITY];
} ls_pipeline_state;

extern const ls_module_type ls_pipeline_type;

/* Returns the communicator of the first pipeline among the module and its descendants, or NULL. */
ls_comm *ls_module_pipeline_comm(const ls_module *module);

/* Returns whether the module or one of its descendants is a pipeline. */
bool ls_module_has_pipeline(const ls_module *module);

/*
 * Computes the scaling factor of this rank's gradients. With these factors, the average over `comm`, whose ranks run
 * the same stage, is the mean over all samples. Collective.
 */
ls_status ls_pipeline_weigh(ls_pipeline_state *state, ls_comm *comm, double *weight);

/* Returns the output of the whole model on every rank, without a gradient. */
ls_tensor *ls_pipeline_forward(ls_module *self, ls_tensor *input);

#endif
