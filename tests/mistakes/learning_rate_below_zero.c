/*
 * A negative learning rate.
 *
 * ranks: 1
 * says: ls_adam: .*learning_rate.*-0\.1
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_module *model = ls_nn_linear(4, 2);
    ls_optimizer *optimizer = ls_adam(model, &(ls_adam_options){.learning_rate = -0.1});
    if (optimizer == NULL) {
        return failed();
    }
    return 0;
}
