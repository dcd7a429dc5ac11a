#include "comm/module.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/module_file.h"
#include "base/status.h"
#include "comm/transport/tcp/tcp.h"

static const ls_core core = {.error_restore = ls_error_restore,
                             .error_message = ls_error_message,
                             .error_status = ls_error_status,
                             .fail_memory = ls_fail_memory,
                             .comm_tell_waiting = ls_comm_tell_waiting,
                             .log_write = ls_log_write,
                             .allocate = ls_allocate,
                             .allocate_aligned = ls_allocate_aligned,
                             .allocate_zeroed = ls_allocate_zeroed,
                             .reallocate = ls_reallocate,
                             .duplicate_string = ls_duplicate_string,
                             .release = ls_free,
                             .clock_ns = ls_clock_ns,
                             .dtype_size = ls_dtype_size,
                             .dtype_name = ls_dtype_name,
                             .reduction_name = ls_reduction_name,
                             .reduce_width = ls_reduce_width,
                             .reduce = ls_reduce_buffers,
                             .auth_nonce = ls_auth_nonce,
                             .auth_prove = ls_auth_prove,
                             .auth_check = ls_auth_check,
                             .key_forget = ls_key_forget,
                             .engine_new = ls_engine_new,
                             .engine_begin = ls_engine_begin,
                             .engine_progress = ls_engine_progress,
                             .engine_post = ls_engine_post,
                             .engine_test = ls_engine_test,
                             .engine_leave = ls_engine_leave,
                             .engine_finalize_barrier = ls_engine_finalize_barrier,
                             .engine_abort = ls_engine_abort,
                             .engine_failed_rank = ls_engine_failed_rank,
                             .engine_close = ls_engine_close,
                             .engine_traffic = ls_engine_traffic,
                             .engine_algorithm = ls_engine_algorithm,
                             .engine_endpoint = ls_engine_endpoint,
                             .engine_exchange = ls_engine_exchange,
                             .engine_ended = ls_engine_ended,
                             .backend_tcp = &ls_backend_tcp,
                             .tcp_waker = ls_tcp_waker};

static const ls_backend *const backends[] = {&ls_backend_self, &ls_backend_shm, &ls_backend_tcp};

/* ---- backends by name ----------------------------------------------------------------------------------------------
 */

/* A name becomes part of a path, so only letters, digits and underscores are allowed. */
static bool is_name(const char *name) {
    return name[0] != '\0' && strlen(name) <= 32 &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(name);
}

/*
 * Returns the part of the file name after "lockstep-". MPI libraries are not interchangeable, so each has its plug-in.
 * The launcher's variables select it: MPICH, and libraries that use its protocol, set PMI_RANK.
 */
static const char *module_of(const char *name) {
    if (strcmp(name, "mpi") != 0) {
        return name;
    }
    return getenv("OMPI_COMM_WORLD_RANK") == NULL && getenv("PMI_RANK") != NULL ? "mpi_mpich" : "mpi_openmpi";
}

/* Returns the backend of lockstep-NAME.so, or NULL and an error. */
static const ls_backend *find_module(const char *backend_name, const char *name) {
    const bool known = strcmp(backend_name, "mpi") == 0 || strcmp(backend_name, "gloo") == 0;
    const ls_module_file file = ls_module_file_open(name);
    if (file.state == LS_MODULE_ABSENT) {
        return ls_fail_null(LS_ERR_ARGUMENT, "there is no backend \"%s\": this build has self, shm, tcp, and %s%s%s%s",
                            backend_name, file.reason, known ? "; `scripts/install-deps --" : "",
                            known ? backend_name : "",
                            known                               ? "` and building Lockstep again make it"
                            : strcmp(backend_name, "nccl") == 0 ? "; docs/reference/gpu.md says what it is built with"
                                                                : "");
    }
    if (file.handle == NULL) {
        return ls_fail_null(LS_ERR_UNSUPPORTED, "backend \"%s\": %s", backend_name, file.reason);
    }
    ls_backend_module_function *enter = NULL;
    void *symbol = dlsym(file.handle, "ls_backend_module");
    memcpy((void *)&enter, (const void *)&symbol, sizeof enter);
    if (enter == NULL) {
        return ls_fail_null(LS_ERR_FORMAT, "backend \"%s\": its lockstep-%s.so is no module of Lockstep", backend_name,
                            name);
    }
    const uint32_t errors = ls_error_count;
    const ls_backend *backend = enter(LS_BACKEND_ABI, &core);
    if (backend == NULL && ls_error_count == errors) {
        return ls_fail_null(LS_ERR_UNSUPPORTED, "backend \"%s\": its module is of another version of Lockstep",
                            backend_name);
    }
    return backend;
}

const ls_backend *ls_backend_find(const char *name) {
    for (size_t i = 0; name != NULL && i < sizeof backends / sizeof backends[0]; i++) {
        if (strcmp(name, backends[i]->name) == 0) {
            return backends[i];
        }
    }
    if (name == NULL || !is_name(name)) {
        return ls_fail_null(LS_ERR_ARGUMENT, "\"%s\" is no name of a backend", name == NULL ? "" : name);
    }
    return find_module(name, module_of(name));
}

const ls_backend *ls_backend_find_mpi(const char *library) {
    char name[64];
    if (snprintf(name, sizeof name, "mpi_%s", library) >= (int)sizeof name || !is_name(name)) {
        return ls_fail_null(LS_ERR_ARGUMENT, "\"%s\" is no name of an MPI library", library);
    }
    return find_module("mpi", name);
}
