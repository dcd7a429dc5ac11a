#include "comm/backend.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"

typedef struct operation_row {
    const char *name;
    bool typed;          /* has elements of a dtype */
    const char *towards; /* what the root is to the call; NULL: it has none */
    bool reduces;        /* has a reduction */
    bool varies;         /* ranks need not agree on the count */
    bool totals;         /* ranks agree on the total, not on the count */
} operation_row;

static const operation_row operations[LS_OP_COUNT] = {
    [LS_OP_BARRIER] = {.name = "barrier"},
    [LS_OP_BROADCAST] = {.name = "broadcast", .typed = true, .towards = "from"},
    [LS_OP_ALLREDUCE] = {.name = "allreduce", .typed = true, .reduces = true},
    [LS_OP_ALLOC] = {.name = "alloc", .totals = true},
    [LS_OP_REDUCE] = {.name = "reduce", .typed = true, .towards = "to", .reduces = true},
    [LS_OP_GATHER] = {.name = "gather", .typed = true, .towards = "to"},
    [LS_OP_GATHERV] = {.name = "gatherv", .typed = true, .towards = "to", .varies = true},
    [LS_OP_ALLGATHER] = {.name = "allgather", .typed = true},
    [LS_OP_ALLGATHERV] = {.name = "allgatherv", .typed = true, .totals = true},
    [LS_OP_SCATTER] = {.name = "scatter", .typed = true, .towards = "from"},
    [LS_OP_SCATTERV] = {.name = "scatterv", .typed = true, .towards = "from", .varies = true},
    [LS_OP_REDUCE_SCATTER] = {.name = "reduce_scatter", .typed = true, .reduces = true},
    [LS_OP_REDUCE_SCATTERV] = {.name = "reduce_scatterv", .typed = true, .reduces = true, .totals = true},
    [LS_OP_ALLTOALL] = {.name = "alltoall", .typed = true},
    [LS_OP_ALLTOALLV] = {.name = "alltoallv", .typed = true, .varies = true},
    [LS_OP_SPLIT] = {.name = "split"},
    [LS_OP_SEND] = {.name = "send", .typed = true, .towards = "to"},
    [LS_OP_RECV] = {.name = "recv", .typed = true, .towards = "from"},
};

const char *ls_operation_name(ls_operation operation) {
    return operation < LS_OP_COUNT ? operations[operation].name : "unknown";
}

const char *ls_call_describe(ls_operation operation, uint64_t sequence, char *text, size_t capacity) {
    snprintf(text, capacity, "ls_comm_%s #%llu", ls_operation_name(operation), (unsigned long long)sequence);
    return text;
}

const char *ls_leave_describe(ls_leave_reason reason) {
    switch (reason) {
    case LS_LEAVE_FINALIZED:
        return "called ls_finalize";
    case LS_LEAVE_EXITED:
        return "ended without calling ls_finalize";
    case LS_LEAVE_FAILED:
        return "gave up after a failure of its own, which its message names";
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
    const operation_row *row = &operations[call->operation];
    char elements[96] = "";
    char root[48] = "";
    char reduction[32] = "";
    if (row->typed && row->varies) {
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
    if (row->towards != NULL) {
        snprintf(root, sizeof root, " %s rank %d", row->towards, call->root);
    }
    if (row->reduces) {
        snprintf(reduction, sizeof reduction, ", %s", ls_reduction_name(call->reduction));
    }
    snprintf(text, capacity, "%s%s%s%s%s", row->name, elements, root, reduction,
             call->stream != NULL ? ", in memory of a device" : "");
    return text;
}

size_t ls_call_agreed(const ls_call *call) {
    if (operations[call->operation].varies) {
        return 0;
    }
    return operations[call->operation].totals ? call->total : call->count;
}
