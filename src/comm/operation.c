#include "comm/backend.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "comm/pieces.h"
#include "comm/public_call.h"

const char *ls_operation_name(ls_operation operation) {
    return operation < LS_OP_COUNT ? ls_flows[operation].name + strlen("ls_comm_") : "unknown";
}

const char *ls_call_describe(ls_operation operation, uint64_t sequence, char *text, size_t capacity) {
    snprintf(text, capacity, "ls_comm_%s #%llu", ls_operation_name(operation), (unsigned long long)sequence);
    return text;
}

static const char *const public_names[LS_PUBLIC_COUNT] = {
    [LS_PUBLIC_ALLGATHER] = "ls_allgather",
    [LS_PUBLIC_ALLREDUCE] = "ls_allreduce",
    [LS_PUBLIC_ALLTOALL] = "ls_alltoall",
    [LS_PUBLIC_BACKWARD] = "ls_backward",
    [LS_PUBLIC_BROADCAST] = "ls_broadcast",
    [LS_PUBLIC_CLIP_GRAD_NORM] = "ls_clip_grad_norm",
    [LS_PUBLIC_DATA_PARALLEL] = "ls_data_parallel",
    [LS_PUBLIC_DATA_PARALLEL_CHECK] = "ls_data_parallel_check",
    [LS_PUBLIC_DATA_PARALLEL_GATHER] = "ls_data_parallel_gather",
    [LS_PUBLIC_DATA_PARALLEL_LOSS] = "ls_data_parallel_loss",
    [LS_PUBLIC_DATA_PARALLEL_SKIP] = "ls_data_parallel_skip",
    [LS_PUBLIC_DATA_PARALLEL_STEP] = "ls_data_parallel_step",
    [LS_PUBLIC_FORWARD] = "ls_forward",
    [LS_PUBLIC_GATHER] = "ls_gather",
    [LS_PUBLIC_GRAD_SCALER_UNSCALE] = "ls_grad_scaler_unscale",
    [LS_PUBLIC_OPTIMIZER_STEP] = "ls_optimizer_step",
    [LS_PUBLIC_OUTER_NEW] = "ls_outer_new",
    [LS_PUBLIC_OUTER_STEP] = "ls_outer_step",
    [LS_PUBLIC_OUTER_SYNC] = "ls_outer_sync",
    [LS_PUBLIC_PIPELINE_BACKWARD] = "ls_pipeline_backward",
    [LS_PUBLIC_REDUCE] = "ls_reduce",
    [LS_PUBLIC_REDUCE_SCATTER] = "ls_reduce_scatter",
    [LS_PUBLIC_SCATTER] = "ls_scatter",
    [LS_PUBLIC_SYNC_GRADIENTS] = "ls_sync_gradients",
    [LS_PUBLIC_SYNC_PARAMETERS] = "ls_sync_parameters",
    [LS_PUBLIC_TRIAL_EVALUATE] = "ls_trial_evaluate",
    [LS_PUBLIC_TRIAL_LOAD] = "ls_trial_load",
    [LS_PUBLIC_TRIAL_NEW] = "ls_trial_new",
    [LS_PUBLIC_TRIAL_PREDICT] = "ls_trial_predict",
    [LS_PUBLIC_TRIAL_RUN] = "ls_trial_run",
    [LS_PUBLIC_TRIAL_SAVE] = "ls_trial_save",
    [LS_PUBLIC_TRIAL_THROUGHPUT] = "ls_trial_throughput",
};

const char *ls_public_name(ls_public_call call) {
    return call < LS_PUBLIC_COUNT ? public_names[call] : NULL;
}

const char *ls_leave_describe(ls_leave_reason reason) {
    switch (reason) {
    case LS_LEAVE_FINALIZED:
        return "called ls_finalize";
    case LS_LEAVE_EXITED:
        return "ended without calling ls_finalize";
    case LS_LEAVE_FAILED:
        return "gave up after its own failure; see its error message";
    case LS_LEAVE_MPI_ENDED:
        return "called MPI_Finalize, but not ls_comm_free before it";
    default:
        return "left without making this call";
    }
}

void ls_rank_list_add(ls_rank_list *list, int rank) {
    const size_t capacity = sizeof list->text;
    if (list->count == 0) {
        list->first = rank;
        list->length = (size_t)snprintf(list->text, capacity, "rank %d", rank);
    } else if (list->count == 1) {
        list->length = (size_t)snprintf(list->text, capacity, "ranks %d, %d", list->first, rank);
    } else if (list->length < capacity - 24) {
        list->length += (size_t)snprintf(list->text + list->length, capacity - list->length, ", %d", rank);
    } else if (list->text[list->length - 1] != '.') {
        list->length += (size_t)snprintf(list->text + list->length, capacity - list->length, ", ...");
    }
    list->count++;
}

const char *ls_call_detail(const ls_call *call, char *text, size_t capacity) {
    if (call->operation >= LS_OP_COUNT) {
        snprintf(text, capacity, "something unknown");
        return text;
    }
    const ls_flow *row = &ls_flows[call->operation];
    char elements[96] = "";
    char root[48] = "";
    char reduction[32] = "";
    if (row->typed && row->agreed == LS_AGREED_NOTHING) {
        snprintf(elements, sizeof elements, " of %s", ls_dtype_name(call->dtype));
    } else if (row->typed) {
        snprintf(elements, sizeof elements, " of %zu %s", ls_call_agreed(call), ls_dtype_name(call->dtype));
    } else if (call->total != 0 && call->operation == LS_OP_ALLOC) {
        snprintf(elements, sizeof elements, " of %zu bytes", call->total);
    }
    if (call->layout != 0) {
        const size_t length = strlen(elements);
        snprintf(elements + length, sizeof elements - length, " (counts with hash %08x)", call->layout);
    }
    if (row->root_is != NULL) {
        snprintf(root, sizeof root, " %s rank %d", row->root_is, call->root);
    }
    if (row->reduces) {
        snprintf(reduction, sizeof reduction, ", %s", ls_reduction_name(call->reduction));
    }
    const char *public = ls_public_name((ls_public_call)call->public_call);
    snprintf(text, capacity, "%s%s%s%s%s%s%s", ls_operation_name(call->operation), elements, root, reduction,
             call->stream != NULL ? ", in memory of a device" : "", public != NULL ? ", in " : "",
             public != NULL ? public : "");
    return text;
}

size_t ls_call_agreed(const ls_call *call) {
    switch (ls_flows[call->operation].agreed) {
    case LS_AGREED_COUNT:
        return call->count;
    case LS_AGREED_TOTAL:
        return call->total;
    default:
        return 0;
    }
}
