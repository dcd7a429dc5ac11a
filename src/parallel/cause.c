#include "parallel/cause.h"

#include <stdio.h>
#include <string.h>

#include "autograd/tape.h"
#include "parallel/averaging.h"

typedef struct cause {
    int32_t status;
    char message[LS_ERROR_CAPACITY];
} cause;

/* Orders ranks: first ranks that failed on their own, then ranks that failed because another rank failed, then all
 * others. */
static int32_t order_of(const ls_comm *comm, const cause *own, bool failed) {
    const int size = ls_comm_size(comm), rank = ls_comm_rank(comm);
    return !failed ? 2 * size : own->status != LS_ERR_MISMATCH ? rank : size + rank;
}

ls_status ls_cause_share(ls_comm *comm, const char *call, bool failed) {
    cause own = {.status = (int32_t)ls_error_status()};
    memcpy(own.message, ls_error_message(), strlen(ls_error_message()) + 1);
    const int32_t order = order_of(comm, &own, failed);
    int32_t first = order;
    cause told = own;
    ls_status status = ls_comm_allreduce(comm, &first, &first, 1, LS_I32, LS_MIN, NULL);
    const int rank = first % ls_comm_size(comm);
    if (status == LS_OK) {
        status = ls_comm_broadcast(comm, &told, sizeof told, LS_U8, rank, NULL);
    }
    if (failed && (status != LS_OK || order < ls_comm_size(comm) || order == first)) {
        ls_error_restore((ls_status)own.status, own.message);
        return (ls_status)own.status;
    }
    told.message[sizeof told.message - 1] = '\0';
    return status != LS_OK ? status : ls_fail(LS_ERR_MISMATCH, "%s: rank %d failed: %s", call, rank, told.message);
}

ls_status ls_failure_share(ls_comm *comm, const char *call, bool failed, int64_t *numbers, int count) {
    int64_t most[1 + LS_FAILURE_NUMBERS] = {failed};
    for (int i = 0; i < count; i++) {
        most[1 + i] = numbers[i];
    }
    LS_TRY(ls_comm_allreduce(comm, most, most, 1 + (size_t)count, LS_I64, LS_MAX, NULL));
    if (most[0] != 0) {
        return ls_cause_share(comm, call, failed);
    }
    for (int i = 0; i < count; i++) {
        numbers[i] = most[1 + i];
    }
    return LS_OK;
}

void ls_data_parallel_forget_gradients(const ls_data_parallel_state *state) {
    for (int i = 0; i < state->parameter_count && i < state->model->parameters.count; i++) {
        ls_leaf *leaf = ls_data_parallel_leaf(state, i);
        if (leaf != NULL && leaf->has_gradient) {
            leaf->has_gradient = false;
            ls_leaf_changed(leaf, "ls_data_parallel");
        }
    }
}

/* Ends a call in which a rank reported a failed pass. */
ls_status ls_averaging_share_cause(ls_data_parallel_state *state, bool failed) {
    state->told = true;
    if (ls_module_list(state->model)) {
        ls_data_parallel_forget_gradients(state);
    }
    return ls_cause_share(state->comm, state->slices != NULL ? "ls_data_parallel_step" : "ls_backward", failed);
}

ls_status ls_gradients_explain(const ls_wire_format *format, ls_status status) {
    if (status != LS_ERR_MISMATCH) {
        return status;
    }
    char length[128] = "";
    if (format->functions != NULL) {
        snprintf(length, sizeof length,
                 "`length` of the wire format \"%s\" must return the same number on all ranks, and ", format->name);
    }
    return ls_fail(status,
                   "%s. If all ranks average gradients here: %sa parameter must be frozen "
                   "(ls_set_requires_grad) on all ranks or on none",
                   ls_error_message(), length);
}
