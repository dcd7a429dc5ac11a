/* The gradient check for programs that communicate. */
#include "autograd/gradcheck.h"

#include "parallel/parallel.h"

ls_status ls_add_over_ranks(void *comm, double *numbers, int count) {
    return ls_comm_allreduce(comm, numbers, numbers, (size_t)count, LS_F64, LS_SUM, NULL);
}

ls_status ls_gradcheck_distributed(ls_comm *comm, ls_function function, ls_tensor **inputs, int count, void *user,
                                   const ls_gradcheck_options *options) {
    static const char call[] = "ls_gradcheck_distributed";
    if (comm == NULL) {
        (void)ls_fail_missing("%s: the communicator", call);
        return ls_scope_failed_status();
    }
    const ls_gradcheck_ranks ranks = {
        .rank = ls_comm_rank(comm), .size = ls_comm_size(comm), .add = ls_add_over_ranks, .user = comm};
    return ls_gradcheck_with(call, &ranks, function, inputs, count, user, options);
}
