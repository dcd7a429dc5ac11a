/*
 * A message is sent with one tag and received with a different tag.
 *
 * ranks: 2 3
 * says: ls_comm_recv #1: rank 0 called ls_finalize; a message with tag 1 from it waits here, none with tag 2
 */
#include "tests/mistakes/mistake.h"

int main(void) {
    ls_comm *world = ls_init(NULL);
    if (world == NULL) {
        return failed();
    }
    float number = 1;
    ls_status status = LS_OK;
    if (ls_comm_rank(world) == 0) {
        status = ls_comm_send(world, &number, 1, LS_F32, 1, 1, NULL);
    } else if (ls_comm_rank(world) == 1) {
        status = ls_comm_recv(world, &number, 1, LS_F32, 0, 2, NULL);
    }
    if (status != LS_OK) {
        return failed();
    }
    return ended(ls_finalize());
}
