#include "comm/agree.h"

#include "base/memory.h"
#include "comm/calls.h"
#include "comm/record.h"

ls_status ls_comm_agree(ls_comm *comm, const char *name, ls_call *call, ls_agree_conclude *conclude, void *argument) {
    const size_t size = (size_t)comm->size, bytes = call->count * call->width;
    call->receive = ls_allocate_zeroed(size, bytes);
    if (call->receive == NULL) { /* the other ranks wait for this rank */
        return ls_comm_abort(comm, ls_fail_memory(name, size * bytes));
    }
    ls_status status = ls_comm_call(comm, call, NULL);
    status = status == LS_OK ? conclude(comm, call->receive, argument) : status;
    ls_free(call->receive);
    return status;
}
