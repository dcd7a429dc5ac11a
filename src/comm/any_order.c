/* Whether reductions of a communicator may be made in any order: what all its ranks have to agree on. */
#include <stdio.h>

#include "base/memory.h"
#include "comm/frame.h"

/* LS_ERR_MISMATCH where not all ranks said the same. */
static ls_status check_same(const ls_comm *comm, const uint8_t *said) {
    ls_rank_list groups[2] = {{.count = 0}, {.count = 0}};
    for (int rank = 0; rank < comm->size; rank++) {
        ls_rank_list_add(&groups[said[rank] != 0], rank);
    }
    return groups[0].count == 0 || groups[1].count == 0
               ? LS_OK
               : ls_fail(LS_ERR_MISMATCH, "ls_comm_set_any_order: the ranks differ: %s said true, %s false",
                         groups[1].text, groups[0].text);
}

ls_status ls_comm_set_any_order(ls_comm *comm, bool any_order) {
    if (comm == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_comm_set_any_order: the communicator is NULL");
    }
    const uint8_t own = any_order;
    uint8_t *said = ls_allocate_zeroed((size_t)comm->size, 1);
    if (said == NULL) {
        return ls_comm_abort(comm, ls_fail_memory("ls_comm_set_any_order", (size_t)comm->size));
    }
    ls_status status = ls_comm_allgather(comm, &own, said, 1, LS_U8, NULL);
    status = status == LS_OK ? check_same(comm, said) : status;
    ls_free(said);
    comm->any_order = status == LS_OK ? any_order : comm->any_order;
    return status;
}
