/* A pipeline: what its cutting (stages.c) and its running (pipeline.c) share. */
#ifndef LS_PARALLEL_PIPELINE_H
#define LS_PARALLEL_PIPELINE_H

#include "nn/module.h"
#include "parallel/parallel.h"

/* Samples of the steps whose gradients are gathered: what ls_sync_gradients weighs them by. */
enum { LS_STEPS_KNOWN = 12 };
typedef struct ls_gathered_steps {
    int64_t count;
    int64_t differ;  /* 1: not all steps had as many samples */
    int64_t any;     /* 1: there are steps; in the sum, how many ranks have some */
    int64_t several; /* 1: there are several */
    int64_t samples[LS_STEPS_KNOWN];
} ls_gathered_steps;

typedef struct ls_pipeline_state {
    ls_gathered_steps steps;
    ls_comm *comm;
    ls_module *stage; /* this rank's layers, one after the other */
    int micro_batches;
    ls_pipeline_schedule schedule;
    bool broken; /* a step failed here, and may have left the other stages with gradients that this one has not */
} ls_pipeline_state;

extern const ls_module_type ls_pipeline_type;

/* By what this rank's gradients are to be multiplied, for their average over the ranks of `comm`, which have the same
 * stage, to be the mean over the samples of all. Collective. */
ls_status ls_pipeline_weigh(ls_pipeline_state *state, ls_comm *comm, double *weight);

/* The whole model's output on every rank, without gradient. */
ls_tensor *ls_pipeline_forward(ls_module *self, ls_tensor *input);

#endif
