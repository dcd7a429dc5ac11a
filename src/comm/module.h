/*
 * Backends that the core opens on demand: one shared library each, `lockstep-NAME.so`, built by ls_add_backend_module
 * of cmake/Modules.cmake from the sources in backend/NAME, which define ls_module_backend, and in backend/module, which
 * are what modules share and export ls_backend_module (lockstep/sys/module.h). It keeps `core` and returns
 * ls_module_backend. It is called once per ls_backend_find, and the module is never closed.
 *
 * A module needs no symbol of the core: everything it may call is in ls_core, and backend/module/core.c makes ordinary
 * functions of that, so its sources include base/status.h, base/memory.h, base/log.h, comm/auth.h, comm/backend.h,
 * comm/collective/engine.h, comm/pieces.h, comm/reduce.h, comm/transport.h and <lockstep/comm.h> (stores, names, sizes,
 * errors; no calls on communicators) as the core's own do.
 *
 * base/module_file.h says where ls_backend_find looks for the file.
 */
#ifndef LS_COMM_MODULE_H
#define LS_COMM_MODULE_H

#include <lockstep/sys/module.h>

#include "comm/auth.h"
#include "comm/backend.h"
#include "comm/collective/engine.h"
#include "comm/reduce.h"

/* What the core does for modules: see the declarations of the functions without core_. */
struct ls_core {
    void (*error_restore)(ls_status status, const char *message);
    const char *(*error_message)(void);
    ls_status (*error_status)(void);
    ls_status (*fail_memory)(const char *call, size_t bytes);
    void (*comm_tell_waiting)(const ls_waiting *waiting);
    void (*log_write)(ls_log_level level, const char *format, ...);
    void *(*allocate)(size_t size);
    void *(*allocate_aligned)(size_t size, size_t alignment);
    void *(*allocate_zeroed)(size_t count, size_t size);
    void *(*reallocate)(void *memory, size_t old_size, size_t new_size);
    char *(*duplicate_string)(const char *text);
    void (*release)(void *memory);
    uint64_t (*clock_ns)(void);
    size_t (*dtype_size)(ls_dtype dtype);
    const char *(*dtype_name)(ls_dtype dtype);
    const char *(*reduction_name)(ls_reduction reduction);
    size_t (*reduce_width)(ls_dtype dtype, ls_reduction reduction);
    void (*reduce)(const ls_reduce_task *task);
    ls_status (*auth_nonce)(uint8_t nonce[LS_NONCE_SIZE]);
    void (*auth_prove)(const ls_key *key, const char *role, const uint8_t own[LS_NONCE_SIZE],
                       const uint8_t other[LS_NONCE_SIZE], uint8_t proof[LS_PROOF_SIZE]);
    bool (*auth_check)(const ls_key *key, const char *role, const uint8_t own[LS_NONCE_SIZE],
                       const uint8_t other[LS_NONCE_SIZE], const uint8_t proof[LS_PROOF_SIZE]);
    void (*key_forget)(ls_key *key);
    ls_engine *(*engine_new)(ls_endpoint *endpoint, double timeout);
    ls_status (*engine_begin)(void *state, const ls_call *call);
    ls_status (*engine_progress)(void *state, bool wait, bool *finished);
    ls_status (*engine_post)(void *state, const ls_call *call, void **request);
    ls_status (*engine_test)(void *state, void *request, bool wait, bool *finished);
    void (*engine_leave)(void *state, ls_leave_reason reason);
    ls_status (*engine_meet_leaving)(void *state);
    void (*engine_give_up)(void *state, ls_status status);
    int (*engine_culprit)(const void *state);
    void (*engine_close)(void *state);
    void (*engine_traffic)(const void *state, uint64_t *messages, uint64_t *bytes);
    const char *(*engine_way)(const void *state);
    ls_endpoint *(*engine_endpoint)(const ls_engine *engine);
    ls_status (*engine_exchange)(ls_engine *engine, const void *own, void *all, size_t bytes);
    ls_engine_end (*engine_ended)(const ls_engine *engine);
    const ls_backend *backend_tcp;
    int (*tcp_waker)(ls_endpoint *endpoint);
};

/* In a module: what it is. */
extern const ls_backend ls_module_backend;

/* In a module: the core's ls_backend_tcp, and its `leave`. */
const ls_backend *ls_module_tcp(void);
void ls_module_leave_tcp(void *state, ls_leave_reason reason);

/* In a module: ends a communicator that was just opened, an engine, where `status` says that this failed. Gives it
 * back. */
ls_status ls_module_settle(ls_status status, void **state);

/*
 * In a module: what an environment variable says of a library's own collectives, "engine", "auto", the default, or the
 * `library`'s name: an ls_own_collectives, or -1: nothing that it may. And whether that is something, and the same on
 * all ranks, of which the first one's is at `first` and each other's so many bytes behind the one before.
 */
int32_t ls_module_read_use(const char *variable, const char *library, ls_own_collectives automatic);
ls_status ls_module_check_use(const char *variable, const char *library, const int32_t *first, size_t stride, int size);

#endif
