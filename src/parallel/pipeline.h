/* A pipeline: what its cutting (stages.c) and its running (pipeline.c) share. */
#ifndef LS_PARALLEL_PIPELINE_H
#define LS_PARALLEL_PIPELINE_H

#include "nn/module.h"
#include "parallel/parallel.h"

typedef struct ls_pipeline_state {
    ls_comm *comm;
    ls_module *stage; /* this rank's layers, one after the other */
    int micro_batches;
    ls_pipeline_schedule schedule;
    bool broken; /* a step failed here, and may have left the other stages with gradients that this one has not */
} ls_pipeline_state;

extern const ls_module_type ls_pipeline_type;

/* The whole model's output on every rank, without gradient. */
ls_tensor *ls_pipeline_forward(ls_module *self, ls_tensor *input);

#endif
