/* Shared part of every plug-in: common code for opening and leaving communicators. See comm/module.h. */
#include "base/status.h"
#include "comm/module.h"

ls_status ls_module_settle(ls_status status, void **state) {
    if (status != LS_OK) {
        ls_saved_error cause;
        ls_error_save(&cause);
        ls_engine_close(*state);
        (void)ls_error_put_back(&cause);
        *state = NULL;
    }
    return status;
}

void ls_module_leave_tcp(void *state, ls_leave_reason reason) {
    ls_module_tcp()->leave(state, reason);
}
