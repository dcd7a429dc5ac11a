#include "comm/backend.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "comm/pieces.h"

const char *ls_operation_name(ls_operation operation) {
    return operation < LS_OP_COUNT ? ls_flows[operation].name + strlen("ls_comm_") : "unknown";
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
        return "gave up after its own failure; see its error message";
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
    snprintf(text, capacity, "%s%s%s%s%s", ls_operation_name(call->operation), elements, root, reduction,
             call->stream != NULL ? ", in memory of a device" : "");
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
