/*
 * mpi4torch's ring: each rank sends a tensor to the next rank, and adds the tensor that it receives from the previous
 * rank. The gradient of the sum of all ranks' results with respect to each tensor is 2: 1 from its own rank and 1 from
 * the next rank. The backward pass orders its messages by itself.
 *
 *     lockstep run -n 3 build/examples/isend_recv_wait
 */
#include <stdio.h>

#include <lockstep/lockstep.h>

#include "arguments.h"

static ls_status run(ls_comm *comm) {
    const int rank = ls_comm_rank(comm);
    const int size = ls_comm_size(comm);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *a = ls_full(LS_SHAPE(1), LS_F32, 1 + rank);
    ls_status status = ls_set_requires_grad(a, true);

    ls_handle *sent = ls_isend(comm, a, (rank + 1) % size, 0);
    ls_tensor *b = ls_recv(comm, LS_SHAPE(1), LS_F32, (rank + size - 1) % size, 0);
    ls_handle_wait(sent);
    ls_tensor *sum = ls_add(a, b);
    if (status == LS_OK) {
        status = ls_backward(sum);
    }
    if (status == LS_OK) {
        printf("rank %d: %g + %g = %g, gradient %g\n", rank, ls_item(a), ls_item(b), ls_item(sum), ls_item(ls_grad(a)));
    }
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

int main(int argc, char **argv) {
    arguments_read(argc, argv, "Sends tensors around a ring of ranks, and their gradients back.", NULL, 0);
    ls_comm *world = ls_init(NULL);
    if (world == NULL || run(world) != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "isend_recv_wait: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
