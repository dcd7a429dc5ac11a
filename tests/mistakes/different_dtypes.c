/*
 * One rank computes in double precision.
 *
 * ranks: 2 3
 * says: ls_allreduce.*f32.*f64|ls_allreduce.*f64.*f32
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_ones(LS_SHAPE(8), ls_comm_rank(world) == 1 ? LS_F64 : LS_F32);
    ls_allreduce(world, x, LS_SUM);
    if (ls_scope_end(scope) != LS_OK) {
        return failed();
    }
    return ended(ls_finalize());
}
