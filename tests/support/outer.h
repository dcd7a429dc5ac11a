/* The model of the tests of outer optimizers. */
#ifndef LS_TESTS_SUPPORT_OUTER_H
#define LS_TESTS_SUPPORT_OUTER_H

#include <lockstep/nn.h>

enum { OUTER_INPUTS = 3, OUTER_HIDDEN = 4 };

static inline ls_module *outer_model(void) {
    const ls_linear_options wide = {.dtype = LS_F64};
    ls_seed(7);
    return ls_sequential(ls_nn_linear_with(OUTER_INPUTS, OUTER_HIDDEN, &wide), ls_nn_tanh(),
                         ls_nn_linear_with(OUTER_HIDDEN, 1, &wide));
}

#endif
