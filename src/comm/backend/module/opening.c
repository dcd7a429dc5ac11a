/* In every module: what they have in common when communicators are opened. See comm/module.h. */
#include <stdlib.h>
#include <string.h>

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

/* ---- which collectives of a library are used --------------------------------------------------------------------- */

int32_t ls_module_read_use(const char *variable, const char *library, ls_own_collectives automatic) {
    const char *wanted = getenv(variable);
    if (wanted == NULL || *wanted == '\0' || strcmp(wanted, "auto") == 0) {
        return (int32_t)automatic;
    }
    return strcmp(wanted, "engine") == 0  ? (int32_t)LS_OWN_NEVER
           : strcmp(wanted, library) == 0 ? (int32_t)LS_OWN_ALWAYS
                                          : -1;
}

static const char *name_of(int32_t use, const char *library) {
    return use == LS_OWN_NEVER ? "engine" : use == LS_OWN_ALWAYS ? library : "auto";
}

/* One would begin what another never does. */
ls_status ls_module_check_use(const char *variable, const char *library, const int32_t *first, size_t stride,
                              int size) {
    for (int rank = 0; rank < size; rank++) {
        int32_t use = 0;
        memcpy(&use, (const unsigned char *)first + (size_t)rank * stride, sizeof use);
        if (use < 0) {
            return ls_fail(LS_ERR_ARGUMENT, "ls_comm_open: %s of rank %d must be engine, auto or %s", variable, rank,
                           library);
        }
        if (use != *first) {
            return ls_fail(LS_ERR_ARGUMENT,
                           "ls_comm_open: %s is %s on rank 0 and %s on rank %d: it must be the same on all", variable,
                           name_of(*first, library), name_of(use, library), rank);
        }
    }
    return LS_OK;
}
