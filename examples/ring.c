/*
 * Numbers travel around a ring: each rank sends its current number to the next rank, while it receives a number from
 * the previous rank, until it has seen all numbers.
 *
 *     lockstep run -n 4 build/examples/ring
 */
#include <stdio.h>

#include <lockstep/lockstep.h>

#include "arguments.h"

/* All ranks send before they receive, so the send must not wait for its receiver: it runs as asynchronous work. */
static ls_status pass_on(ls_comm *world, int *number) {
    const int rank = ls_comm_rank(world);
    const int size = ls_comm_size(world);
    const int sent = *number;
    ls_work *sending = NULL;
    ls_status status = ls_comm_send(world, &sent, 1, LS_I32, (rank + 1) % size, 0, &sending);
    if (status != LS_OK) {
        return status;
    }
    status = ls_comm_recv(world, number, 1, LS_I32, (rank + size - 1) % size, 0, NULL);
    const ls_status finished =
        ls_work_wait(sending); /* always wait: this frees the work, which borrows `sent` until then */
    return status != LS_OK ? status : finished;
}

static ls_status run(ls_comm *world) {
    int number = 10 * ls_comm_rank(world);
    printf("rank %d saw the numbers %d", ls_comm_rank(world), number);
    for (int step = 1; step < ls_comm_size(world); step++) {
        const ls_status status = pass_on(world, &number);
        if (status != LS_OK) {
            return status;
        }
        printf(", %d", number);
    }
    printf("\n");
    return LS_OK;
}

int main(int argc, char **argv) {
    arguments_read(argc, argv, "Sends numbers around a ring of ranks.", NULL, 0);
    ls_comm *world = ls_init(NULL);
    if (world == NULL || run(world) != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "ring: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
