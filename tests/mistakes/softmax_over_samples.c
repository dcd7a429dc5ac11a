/*
 * A softmax over axis 0, the axis of the samples, in the model.
 *
 * ranks: 2 3
 * says: ls_softmax combines the samples of this rank along axis 0, .*ls_allgather
 */
#include "tests/mistakes/mistake.h"

static ls_tensor *softmax(ls_tensor *x, void *user) {
    (void)user;
    return ls_softmax(x, 0);
}

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    ls_module *model = ls_sequential(ls_nn_linear(3, 4), ls_nn_function("Softmax", softmax, NULL));
    model = ls_data_parallel(model, world, NULL);
    ls_tensor *output = ls_forward(model, ls_randn(LS_SHAPE(8, 3), LS_F32));
    if (output == NULL || ls_backward(ls_mean(output)) != LS_OK) {
        return failed();
    }
    ls_module_free(model);
    return ended(ls_finalize());
}
