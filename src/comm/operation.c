#include "comm/backend.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"

typedef struct operation_row {
    const char *name;
    bool typed;   /* has elements of a dtype */
    bool rooted;  /* has a root */
    bool reduces; /* has a reduction */
} operation_row;

static const operation_row operations[LS_OP_COUNT] = {
    [LS_OP_BARRIER] = {"barrier", false, false, false},
    [LS_OP_BROADCAST] = {"broadcast", true, true, false},
    [LS_OP_ALLREDUCE] = {"allreduce", true, false, true},
    [LS_OP_ALLOC] = {"alloc", false, false, false},
};

const char *ls_operation_name(ls_operation operation) {
    return operation < LS_OP_COUNT ? operations[operation].name : "unknown";
}

const char *ls_call_describe(ls_operation operation, uint64_t sequence, char *text, size_t capacity) {
    snprintf(text, capacity, "ls_comm_%s #%llu", ls_operation_name(operation), (unsigned long long)sequence);
    return text;
}

const char *ls_call_detail(const ls_call *call, char *text, size_t capacity) {
    if (call->operation >= LS_OP_COUNT) {
        snprintf(text, capacity, "something unknown");
        return text;
    }
    const operation_row *row = &operations[call->operation];
    char elements[64] = "";
    char root[32] = "";
    char reduction[32] = "";
    if (row->typed) {
        snprintf(elements, sizeof elements, " of %zu %s", call->count, ls_dtype_name(call->dtype));
    } else if (call->count != 0) {
        snprintf(elements, sizeof elements, " of %zu bytes", call->count);
    }
    if (row->rooted) {
        snprintf(root, sizeof root, " from rank %d", call->root);
    }
    if (row->reduces) {
        snprintf(reduction, sizeof reduction, ", %s", ls_reduction_name(call->reduction));
    }
    snprintf(text, capacity, "%s%s%s%s", row->name, elements, root, reduction);
    return text;
}

static const ls_backend *const backends[] = {&ls_backend_self, &ls_backend_shm};

const ls_backend *ls_backend_find(const char *name) {
    char names[128] = "";
    size_t length = 0;
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        if (name != NULL && strcmp(name, backends[i]->name) == 0) {
            return backends[i];
        }
        length +=
            (size_t)snprintf(names + length, sizeof names - length, "%s%s", i == 0 ? "" : ", ", backends[i]->name);
    }
    return ls_fail_null(LS_ERR_ARGUMENT, "there is no backend \"%s\"; this build has: %s", name == NULL ? "" : name,
                        names);
}
