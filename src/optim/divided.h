/* Sums over the parameters of a model that may be sharded over ranks. */
#ifndef LS_OPTIM_DIVIDED_H
#define LS_OPTIM_DIVIDED_H

#include "nn/module.h"

enum { LS_MOST_DIVIDED_SUMS = 16 };

/* The sum over all parameters that are sharded over the same ranks in the same way. Initially zero. */
typedef struct ls_divided_sum_of {
    ls_division divisions[LS_DIVISIONS];
    double sum;
} ls_divided_sum_of;

typedef struct ls_divided_sums {
    ls_divided_sum_of sums[LS_MOST_DIVIDED_SUMS];
    int count;
    double failed; /* after ls_divided_total: positive if a rank that shares a sum has failed */
} ls_divided_sums;

/*
 * Begins the sums over the parameters of `model`, which may be NULL. If the model contains a stage of a pipeline, the
 * total is collective on this rank even if the stage has no parameters.
 */
ls_status ls_divided_begin(const char *call, ls_divided_sums *sums, const ls_module *model);

/*
 * Returns a pointer to this rank's sum for a parameter with these divisions, and creates the sum if necessary. Call it
 * even for parameters that add nothing, because other ranks may add to the sum. Returns NULL with LS_ERR_UNSUPPORTED if
 * there are too many sums.
 */
double *ls_divided_sum(const char *call, ls_divided_sums *sums, const ls_division *divisions);

/*
 * Computes the total over all ranks, and clears the sums. Collective if parameters are sharded. A rank that has failed
 * sets `sums->failed` to 1 before the call.
 */
ls_status ls_divided_total(ls_divided_sums *sums, double *total);

#endif
