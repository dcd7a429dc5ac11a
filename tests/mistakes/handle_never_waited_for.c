/*
 * An all-reduce that is started, and whose result the program never asks for.
 *
 * ranks: 1 2 3
 * says: ls_allreduce_begin: .*never waited.*call ls_handle_wait
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *sums = ls_full(LS_SHAPE(1000), LS_F32, ls_comm_rank(world));
    ls_allreduce_begin(world, sums, LS_SUM);
    printf("%g\n", ls_item(ls_sum(sums)));
    return ended(ls_scope_end(scope));
}
