/*
 * Plug-ins: backends that the core opens on demand. Each is one shared library, `lockstep-NAME.so`, which
 * ls_add_backend_module of cmake/Modules.cmake builds from two folders. backend/NAME defines ls_module_backend.
 * backend/module is common to all plug-ins, and exports ls_backend_module (lockstep/sys/module.h), which stores `core`
 * and returns ls_module_backend. ls_backend_find calls it once per search. A plug-in is never closed.
 *
 * A plug-in uses no symbol of the core: ls_core has everything that it may call, and backend/module/core.c wraps this
 * in ordinary functions. So its sources include base/status.h, base/memory.h, base/log.h, comm/auth.h, comm/backend.h,
 * comm/engine/engine.h, comm/pieces.h, comm/reduce.h, comm/transport.h and <lockstep/comm.h> (stores, names, sizes,
 * errors; no calls on communicators) as the core's sources do.
 *
 * base/module_file.h describes where ls_backend_find looks for the file.
 */
#ifndef LS_COMM_MODULE_H
#define LS_COMM_MODULE_H

#include <lockstep/sys/module.h>

#include "comm/auth.h"
#include "comm/backend.h"
#include "comm/engine/engine.h"
#include "comm/reduce.h"

/* The core's functions for plug-ins: see the declarations of the functions named ls_ and the member. */
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
    ls_status (*engine_finalize_barrier)(void *state);
    void (*engine_abort)(void *state, ls_status status);
    int (*engine_failed_rank)(const void *state);
    void (*engine_close)(void *state);
    void (*engine_traffic)(const void *state, uint64_t *messages, uint64_t *bytes);
    const char *(*engine_algorithm)(const void *state);
    ls_endpoint *(*engine_endpoint)(const ls_engine *engine);
    ls_status (*engine_exchange)(ls_engine *engine, const void *own, void *all, size_t bytes);
    ls_engine_end (*engine_ended)(const ls_engine *engine);
    const ls_backend *backend_tcp;
    int (*tcp_waker)(ls_endpoint *endpoint);
};

/* In a plug-in: its backend. */
extern const ls_backend ls_module_backend;

/* In a plug-in: the core's ls_backend_tcp, and its `leave`. */
const ls_backend *ls_module_tcp(void);
void ls_module_leave_tcp(void *state, ls_leave_reason reason);

/* In a plug-in: closes the engine of a communicator that was just opened if `status` is a failure. Returns `status`. */
ls_status ls_module_settle(ls_status status, void **state);

#endif
