/* Sums over what a model's parameters have, on the ranks that it may be divided over. */
#ifndef LS_OPTIM_DIVIDED_H
#define LS_OPTIM_DIVIDED_H

#include "autograd/op.h"

enum { LS_MOST_DIVIDED_SUMS = 16 };

/* Of what is divided over the same ranks, in the same way. Starts as zeros. */
typedef struct ls_divided_sum_of {
    ls_division divisions[LS_DIVISIONS];
    double sum;
} ls_divided_sum_of;

typedef struct ls_divided_sums {
    ls_divided_sum_of sums[LS_MOST_DIVIDED_SUMS];
    int count;
} ls_divided_sums;

/*
 * This rank's sum for a parameter that is divided so, made when there is none: also for parameters that have nothing to
 * add, since other ranks may. NULL with LS_ERR_UNSUPPORTED where there are too many.
 */
double *ls_divided_sum(const char *call, ls_divided_sums *sums, const ls_division *divisions);

/* What all of them come to on all ranks; uses the sums up. Collective where something is divided. */
ls_status ls_divided_total(ls_divided_sums *sums, double *total);

#endif
