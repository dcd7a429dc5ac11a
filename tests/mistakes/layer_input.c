/*
 * A layer receives inputs of a different width.
 *
 * ranks: 1
 * says: 784.*100|100.*784
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_module *model = ls_sequential(ls_nn_linear(784, 100), ls_nn_relu(), ls_nn_linear(784, 10));
    ls_scope *scope = ls_scope_begin();
    ls_forward(model, ls_rand(LS_SHAPE(8, 784), LS_F32));
    const ls_status status = ls_scope_end(scope);
    ls_module_free(model);
    return ended(status);
}
