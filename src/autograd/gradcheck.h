/* The gradient check over several ranks: what it needs to know of them. */
#ifndef LS_AUTOGRAD_GRADCHECK_H
#define LS_AUTOGRAD_GRADCHECK_H

#include "autograd/op.h"

typedef struct ls_gradcheck_ranks {
    int rank;
    int size;
    ls_status (*add)(void *user, double *number); /* replaces it by its sum over ranks; all call it together */
    void *user;
} ls_gradcheck_ranks;

/* ls_gradcheck of the sum over ranks; `ranks` NULL: of this one. `call` names it in messages. */
ls_status ls_gradcheck_with(const char *call, const ls_gradcheck_ranks *ranks, ls_function function, ls_tensor **inputs,
                            int count, void *user, const ls_gradcheck_options *options);

#endif
