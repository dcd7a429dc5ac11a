#include "comm/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/module_file.h"
#include "base/status.h"
#include "comm/transport/tcp/tcp.h"

#define CORE_FUNCTION(type, name, parameters, arguments) .name = name,
#define CORE_PROCEDURE(name, parameters, arguments)      .name = name,

static const ls_core core = {LS_CORE_FUNCTIONS(CORE_FUNCTION, CORE_PROCEDURE).log_write = ls_log_write,
                             .backend_tcp = &ls_backend_tcp};

static const ls_backend *const backends[] = {&ls_backend_self, &ls_backend_shm, &ls_backend_tcp};

/* ---- backends by name -------------------------------------------------------------------------------------------- */

/* A name becomes part of a path, so only letters, digits and underscores are allowed. */
static bool is_name(const char *name) {
    return name[0] != '\0' && strlen(name) <= 32 &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(name);
}

/*
 * Returns the part of the file name after "lockstep-". MPI libraries are not interchangeable, so each has its own
 * plug-in. The launcher's variables select it: MPICH, and libraries that use its protocol, set PMI_RANK.
 */
static const char *module_of(const char *name) {
    if (strcmp(name, "mpi") != 0) {
        return name;
    }
    return getenv("OMPI_COMM_WORLD_RANK") == NULL && getenv("PMI_RANK") != NULL ? "mpi_mpich" : "mpi_openmpi";
}

/* Returns the backend of lockstep-NAME.so, or NULL with an error set. */
static const ls_backend *find_module(const char *backend_name, const char *name) {
    const bool known = strcmp(backend_name, "mpi") == 0 || strcmp(backend_name, "gloo") == 0;
    ls_module_file file = ls_module_file_open(name, "ls_backend_module");
    if (file.state == LS_MODULE_ABSENT) {
        return ls_fail_null(LS_ERR_ARGUMENT, "there is no backend \"%s\": this build has self, shm, tcp, and %s%s%s%s",
                            backend_name, file.reason, known ? "; `scripts/install-deps --" : "",
                            known ? backend_name : "",
                            known                               ? "` and building Lockstep again make it"
                            : strcmp(backend_name, "nccl") == 0 ? "; docs/reference/gpu.md explains how to build it"
                                                                : "");
    }
    ls_backend_module_function *enter = (ls_backend_module_function *)file.enter;
    const ls_backend *backend = ls_module_file_check(&file, enter != NULL ? enter(LS_BACKEND_ABI, &core) : NULL);
    return backend != NULL ? backend
                           : ls_fail_null(LS_ERR_UNSUPPORTED, "backend \"%s\": %s", backend_name, file.reason);
}

const ls_backend *ls_backend_find(const char *name) {
    for (size_t i = 0; name != NULL && i < sizeof backends / sizeof backends[0]; i++) {
        if (strcmp(name, backends[i]->name) == 0) {
            return backends[i];
        }
    }
    if (name == NULL || !is_name(name)) {
        return ls_fail_null(LS_ERR_ARGUMENT, "\"%s\" is not the name of a backend", name == NULL ? "" : name);
    }
    return find_module(name, module_of(name));
}

const ls_backend *ls_backend_find_mpi(const char *library) {
    char name[64];
    if (snprintf(name, sizeof name, "mpi_%s", library) >= (int)sizeof name || !is_name(name)) {
        return ls_fail_null(LS_ERR_ARGUMENT, "\"%s\" is not the name of an MPI library", library);
    }
    return find_module("mpi", name);
}
