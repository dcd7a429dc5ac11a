/* Backend nccl: communicators of backend tcp that have NCCL's collectives. nccl.h tells how it works. */
#include "comm/backend/nccl/nccl.h"

#include <string.h>

#include "base/status.h"
#include "comm/backend/nccl/library.h"
#include "comm/collective/engine.h"
#include "comm/module.h"

/* Without a GPU here the error is that of opening, not of the first call that wants one. */
static ls_status check_gpu(void) {
    char why[LS_NCCL_WHY];
    return ls_nccl_find_gpus(why) ? LS_OK : ls_fail(LS_ERR_DEVICE, "ls_comm_open: backend nccl: %s", why);
}

/* Adds NCCL to a communicator of backend tcp that was just opened. Ends it on failure. */
static ls_status attach(const ls_join *join, void **state) {
    ls_status status = ls_nccl_attach(ls_engine_endpoint(*state), join->machine);
    if (status != LS_OK) {
        char message[LS_ERROR_CAPACITY];
        strncpy(message, ls_error_message(), sizeof message - 1);
        message[sizeof message - 1] = '\0';
        ls_engine_close(*state);
        ls_error_restore(status, message);
        *state = NULL;
    }
    return status;
}

static ls_status nccl_open(const ls_join *join, void **state) {
    LS_TRY(check_gpu());
    LS_TRY(ls_module_tcp()->open(join, state));
    return attach(join, state);
}

static ls_status nccl_split(void *state, const ls_join *join, const int *ranks, void **result) {
    LS_TRY(ls_module_tcp()->split(state, join, ranks, result));
    return *result != NULL ? attach(join, result) : LS_OK;
}

static void nccl_leave(void *state, ls_leave_reason reason) {
    ls_module_tcp()->leave(state, reason);
}

static bool nccl_takes(const void *state, bool reduces, ls_dtype dtype, ls_reduction reduction) {
    (void)state;
    return ls_nccl_takes(reduces, dtype, reduction);
}

const ls_backend ls_module_backend = {
    .name = "nccl",
    .open = nccl_open,
    .close = ls_engine_close,
    .leave = nccl_leave,
    .split = nccl_split,
    .takes = nccl_takes,
    LS_ENGINE_CALLS,
};
