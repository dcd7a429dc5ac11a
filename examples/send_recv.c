/*
 * The smallest program for two ranks: rank 0 sends two numbers to rank 1.
 *
 *     lockstep run -n 2 build/examples/send_recv
 */
#include <stdio.h>

#include <lockstep/lockstep.h>

#include "arguments.h"

static ls_status run(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    float numbers[2] = {0, 0};
    ls_status status = LS_OK;
    if (rank == 0) {
        numbers[0] = 1;
        numbers[1] = -1;
        status = ls_comm_send(world, numbers, 2, LS_F32, 1, 0, NULL); /* to rank 1, with tag 0 */
    } else if (rank == 1) {
        status = ls_comm_recv(world, numbers, 2, LS_F32, 0, 0, NULL); /* from rank 0; waits for the numbers */
    }
    if (status == LS_OK && rank < 2) {
        printf("rank %d has [%g, %g]\n", rank, (double)numbers[0], (double)numbers[1]);
    }
    return status;
}

int main(int argc, char **argv) {
    arguments_read(argc, argv, "Rank 0 sends [1, -1] to rank 1, and both print it.", NULL, 0);
    ls_comm *world = ls_init(NULL);
    if (world != NULL && ls_comm_size(world) < 2) {
        fprintf(stderr, "send_recv: exactly two ranks are needed: lockstep run -n 2 %s\n", argv[0]);
        return 2;
    }
    if (world == NULL || run(world) != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "send_recv: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
