/* The setting that reductions of a communicator may combine values in any order. All ranks must agree on it. */
#include <stdio.h>

#include "comm/agree.h"
#include "comm/record.h"

/* Fails with LS_ERR_MISMATCH if the ranks passed different values. */
static ls_status check_same(ls_comm *comm, void *records, void *argument) {
    const uint8_t *said = records;
    (void)argument;
    ls_rank_list groups[2] = {{.count = 0}, {.count = 0}};
    for (int rank = 0; rank < comm->size; rank++) {
        ls_rank_list_add(&groups[said[rank] != 0], rank);
    }
    return groups[0].count == 0 || groups[1].count == 0
               ? LS_OK
               : ls_fail(
                     LS_ERR_MISMATCH,
                     "ls_comm_set_any_order: the ranks passed different values: %s passed true, but %s passed false",
                     groups[1].text, groups[0].text);
}

ls_status ls_comm_set_any_order(ls_comm *comm, bool any_order) {
    if (comm == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_comm_set_any_order: the communicator is NULL");
    }
    const uint8_t own = any_order;
    ls_call call = {.operation = LS_OP_ALLGATHER, .dtype = LS_U8, .count = 1, .width = sizeof own, .send = &own};
    const ls_status status = ls_comm_agree(comm, "ls_comm_set_any_order", &call, check_same, NULL);
    comm->any_order = status == LS_OK ? any_order : comm->any_order;
    return status;
}

bool ls_comm_has_any_order(const ls_comm *comm) {
    return comm->any_order;
}
