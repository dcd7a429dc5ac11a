/* Backend gloo: communicators of backend tcp that have libgloo's collectives. gloo.h tells how it works. */
#include "comm/backend/gloo/gloo.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/collective/engine.h"
#include "comm/module.h"
#include "comm/store.h"

static const char *const own_names[] = {[LS_OWN_NEVER] = "engine", [LS_OWN_LARGE] = "auto", [LS_OWN_ALWAYS] = "gloo"};

/* What LOCKSTEP_GLOO_COLLECTIVES says of libgloo's collectives; -1: nothing that it may. */
static int32_t read_own(void) {
    const char *wanted = getenv("LOCKSTEP_GLOO_COLLECTIVES");
    for (int32_t own = 0; own < (int32_t)(sizeof own_names / sizeof *own_names); own++) {
        if (own_names[own] != NULL &&
            (wanted == NULL || *wanted == '\0' ? own == LS_OWN_LARGE : strcmp(wanted, own_names[own]) == 0)) {
            return own;
        }
    }
    return -1;
}

/* All ranks must say the same: one would begin what another never does. */
static ls_status check_own(const int32_t *all, int size) {
    for (int rank = 0; rank < size; rank++) {
        if (all[rank] < 0) {
            return ls_fail(LS_ERR_ARGUMENT,
                           "ls_comm_open: LOCKSTEP_GLOO_COLLECTIVES of rank %d must be engine, auto or gloo", rank);
        }
        if (all[rank] != all[0]) {
            return ls_fail(LS_ERR_ARGUMENT,
                           "ls_comm_open: LOCKSTEP_GLOO_COLLECTIVES is %s on rank 0 and %s on rank %d: it must be the "
                           "same on all",
                           own_names[all[0]], own_names[all[rank]], rank);
        }
    }
    return LS_OK;
}

/* Adds libgloo's collectives to a communicator of backend tcp that was just opened. Ends it on failure. */
static ls_status attach(const ls_join *join, void **state) {
    static const ls_key none = {.size = 0};
    ls_engine *engine = *state;
    const int32_t own = read_own();
    int32_t *all = ls_allocate((size_t)join->size * sizeof *all);
    ls_status status = all != NULL ? LS_OK : ls_fail_memory("ls_comm_open", (size_t)join->size * sizeof *all);
    status = status == LS_OK ? ls_engine_exchange(engine, &own, all, sizeof own) : status;
    status = status == LS_OK ? check_own(all, join->size) : status;
    status = status == LS_OK
                 ? ls_gloo_attach(ls_engine_endpoint(engine),
                                  join->address != NULL && join->address[0] != '\0' ? join->address : "127.0.0.1",
                                  join->store != NULL ? &join->store->key : &none, (ls_own_collectives)own)
                 : status;
    ls_free(all);
    if (status != LS_OK) {
        char message[LS_ERROR_CAPACITY];
        strncpy(message, ls_error_message(), sizeof message - 1);
        message[sizeof message - 1] = '\0';
        ls_engine_close(engine);
        ls_error_restore(status, message);
        *state = NULL;
    }
    return status;
}

static ls_status gloo_open(const ls_join *join, void **state) {
    LS_TRY(ls_module_tcp()->open(join, state));
    return attach(join, state);
}

static ls_status gloo_split(void *state, const ls_join *join, const int *ranks, void **result) {
    LS_TRY(ls_module_tcp()->split(state, join, ranks, result));
    return *result != NULL ? attach(join, result) : LS_OK;
}

static void gloo_leave(void *state, ls_leave_reason reason) {
    ls_module_tcp()->leave(state, reason);
}

const ls_backend ls_module_backend = {
    .name = "gloo",
    .open = gloo_open,
    .close = ls_engine_close,
    .leave = gloo_leave,
    .split = gloo_split,
    LS_ENGINE_CALLS,
};
