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

/* What all ranks have LOCKSTEP_GLOO_COLLECTIVES say. */
static ls_status agree_on_own(ls_engine *engine, int size, ls_own_collectives *agreed) {
    const int32_t own = read_own();
    int32_t *all = ls_allocate((size_t)size * sizeof *all);
    if (all == NULL) {
        return ls_fail_memory("ls_comm_open", (size_t)size * sizeof *all);
    }
    ls_status status = ls_engine_exchange(engine, &own, all, sizeof own);
    status = status == LS_OK ? check_own(all, size) : status;
    ls_free(all);
    *agreed = (ls_own_collectives)own;
    return status;
}

static ls_status attach(const ls_join *join, ls_engine *engine, ls_own_collectives own) {
    static const ls_key none = {.size = 0};
    const bool named = join->address != NULL && join->address[0] != '\0';
    return ls_gloo_attach(ls_engine_endpoint(engine), named ? join->address : "127.0.0.1",
                          join->store != NULL ? &join->store->key : &none, own);
}

/* Ends a communicator that was just opened where that failed. */
static ls_status settle(ls_status status, void **state) {
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

static ls_status gloo_open(const ls_join *join, void **state) {
    ls_own_collectives own = LS_OWN_NEVER;
    LS_TRY(ls_module_tcp()->open(join, state));
    ls_status status = agree_on_own(*state, join->size, &own);
    status = status == LS_OK ? attach(join, *state, own) : status;
    return settle(status, state);
}

/* A part is as its parent: it makes no call of its own, in which ranks could miss one that leaves it at once. */
static ls_status gloo_split(void *state, const ls_join *join, const int *ranks, void **result) {
    LS_TRY(ls_module_tcp()->split(state, join, ranks, result));
    return *result != NULL ? settle(attach(join, *result, ls_engine_endpoint(state)->own), result) : LS_OK;
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
