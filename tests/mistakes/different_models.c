/*
 * Ranks whose models differ.
 *
 * ranks: 2 3
 * says: ls_data_parallel: the models differ: rank 0's has 2 parameters \(40 numbers\).*, but rank 1's has 2 \(80\)
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    ls_module *model = ls_sequential(ls_nn_linear(4, ls_comm_rank(world) == 1 ? 16 : 8), ls_nn_tanh());
    model = ls_data_parallel(model, world, NULL);
    if (model == NULL) {
        return failed();
    }
    ls_module_free(model);
    return ended(ls_finalize());
}
