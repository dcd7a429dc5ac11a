/* What the gradient check over several ranks needs from its caller. */
#ifndef LS_AUTOGRAD_GRADCHECK_H
#define LS_AUTOGRAD_GRADCHECK_H

#include "autograd/op.h"

typedef struct ls_gradcheck_ranks {
    int rank;
    int size;
    /* replaces the numbers with their sums over ranks; collective */
    ls_status (*add)(void *user, double *numbers, int count);
    void *user;
} ls_gradcheck_ranks;

/* Runs ls_gradcheck on the sum over ranks, or on this rank only if `ranks` is NULL. Error messages name `call`. */
ls_status ls_gradcheck_with(const char *call, const ls_gradcheck_ranks *ranks, ls_function function, ls_tensor **inputs,
                            int count, void *user, const ls_gradcheck_options *options);

#endif
