/* ls_comm_from_mpi: communicators over the program's own MPI communicators. The core knows neither MPI nor its types:
 * the public header compiles to the name of the library and a pointer, and the module of that library takes it. */
#include <lockstep/comm.h>

#include "base/status.h"
#include "comm/frame.h"
#include "comm/joined.h"
#include "comm/rendezvous.h"

/* Declared in lockstep/mpi.h, which needs an <mpi.h>. */
LS_API ls_comm *ls_comm_from_mpi_handle(const char *library, const void *handle, const ls_init_options *options);

static ls_status check_options(const ls_init_options *options) {
    const char *given = options->init != NULL      ? "init"
                        : options->backend != NULL ? "backend"
                        : options->world_size != 0 ? "world_size"
                        : options->rank != 0       ? "rank"
                        : options->key != NULL     ? "key"
                                                   : NULL;
    return given == NULL
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s is set, but the MPI communicator says it all but the timeout", given);
}

static ls_status adopt(const char *library, const void *handle, const ls_init_options *options, ls_comm **result) {
    const ls_init_options defaults = {0};
    ls_join join = {.prefix = "mpi/", .machine = ls_machine_number()};
    void *state = NULL;
    options = options != NULL ? options : &defaults;
    LS_TRY(check_options(options));
    LS_TRY(ls_timeout_read(options, &join.timeout));
    const ls_backend *backend = ls_backend_find_mpi(library);
    if (backend == NULL) {
        return ls_error_status();
    }
    LS_TRY(backend->adopt(handle, &join, &state));
    *result = ls_comm_make(backend, &join);
    if (*result == NULL) {
        backend->close(state);
        return ls_error_status();
    }
    (*result)->state = state;
    (*result)->adopted = true;
    return LS_OK;
}

ls_comm *ls_comm_from_mpi_handle(const char *library, const void *handle, const ls_init_options *options) {
    ls_comm *comm = NULL;
    ls_joined();
    if (adopt(library, handle, options, &comm) != LS_OK) {
        ls_fail_in("ls_comm_from_mpi");
    }
    return comm;
}
