/*
 * Waits for a message after its scope has ended.
 *
 * ranks: 2 3
 * says: ls_handle_wait: .*scope
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    ls_scope *outer = ls_scope_begin();
    ls_scope *scope = ls_scope_begin();
    ls_isend(world, ls_ones(LS_SHAPE(4), LS_F32), (rank + 1) % size, 0);
    ls_handle *handle = ls_irecv(world, LS_SHAPE(4), LS_F32, (rank + size - 1) % size, 0);
    if (ls_scope_end(scope) != LS_OK) {
        return failed();
    }
    ls_handle_wait(handle);
    return ended(ls_scope_end(outer));
}
