/*
 * A layer inside the model has a width that was computed as negative.
 *
 * ranks: 1
 * says: ls_nn_linear.*-2
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    const int64_t hidden = 6 - 8;
    ls_module *model = ls_sequential(ls_nn_linear(4, hidden), ls_nn_relu(), ls_nn_linear(hidden, 2));
    ls_scope *scope = ls_scope_begin();
    ls_forward(model, ls_rand(LS_SHAPE(8, 4), LS_F32));
    return ended(ls_scope_end(scope));
}
