/*
 * Plug-ins: backends that the core loads on demand. Each is a shared library `lockstep-NAME.so`, which
 * ls_add_backend_module of cmake/Modules.cmake builds from two folders. backend/NAME defines ls_module_backend.
 * backend/module is common to all plug-ins, and exports ls_backend_module (lockstep/sys/module.h), which stores `core`
 * and returns ls_module_backend. ls_backend_find calls it once per search. A plug-in is never unloaded.
 *
 * A plug-in uses no symbols from the core directly: LS_CORE_FUNCTIONS lists everything that it may call, and
 * backend/module/core.c defines functions with these names. So its sources include base/status.h, base/memory.h,
 * base/log.h, comm/channel/hello.h, comm/backend.h, comm/engine/engine.h, comm/pieces.h, comm/reduce.h,
 * comm/transport.h and <lockstep/comm.h> (stores, names, sizes, errors; no calls on communicators) as the core's
 * sources do.
 *
 * base/module_file.h describes where ls_backend_find looks for the file.
 */
#ifndef LS_COMM_MODULE_H
#define LS_COMM_MODULE_H

#include <lockstep/sys/module.h>

#include "comm/backend.h"
#include "comm/channel/hello.h"
#include "comm/engine/engine.h"
#include "comm/reduce.h"

/*
 * The core's functions for plug-ins: FUNCTION(type, name, parameters, arguments), or PROCEDURE(name, parameters,
 * arguments) for a function without a result. The list is the whole interface: it generates the members of ls_core, the
 * core's table (module.c), and the functions with the same names in a plug-in (backend/module/core.c), which call the
 * members. The functions are documented at their declarations. A change to the list requires a new LS_BACKEND_ABI.
 */
#define LS_CORE_FUNCTIONS(FUNCTION, PROCEDURE)                                                                         \
    /* base */                                                                                                         \
    PROCEDURE(ls_error_restore, (ls_status status, const char *message), (status, message))                            \
    FUNCTION(ls_status, ls_fail_memory, (const char *call, size_t bytes), (call, bytes))                               \
    FUNCTION(const char *, ls_error_message, (void), ())                                                               \
    FUNCTION(ls_status, ls_error_status, (void), ())                                                                   \
    FUNCTION(void *, ls_allocate, (size_t size), (size))                                                               \
    FUNCTION(void *, ls_allocate_aligned, (size_t size, size_t alignment), (size, alignment))                          \
    FUNCTION(void *, ls_allocate_zeroed, (size_t count, size_t size), (count, size))                                   \
    FUNCTION(void *, ls_reallocate, (void *memory, size_t old_size, size_t new_size), (memory, old_size, new_size))    \
    FUNCTION(char *, ls_duplicate_string, (const char *text), (text))                                                  \
    PROCEDURE(ls_free, (void *memory), (memory))                                                                       \
    FUNCTION(uint64_t, ls_clock_ns, (void), ())                                                                        \
    FUNCTION(size_t, ls_dtype_size, (ls_dtype dtype), (dtype))                                                         \
    FUNCTION(const char *, ls_dtype_name, (ls_dtype dtype), (dtype))                                                   \
    /* communicators */                                                                                                \
    PROCEDURE(ls_comm_tell_waiting, (const ls_waiting *waiting), (waiting))                                            \
    FUNCTION(const char *, ls_reduction_name, (ls_reduction reduction), (reduction))                                   \
    FUNCTION(size_t, ls_reduce_width, (ls_dtype dtype, ls_reduction reduction), (dtype, reduction))                    \
    PROCEDURE(ls_reduce_buffers, (const ls_reduce_task *task), (task))                                                 \
    /* hellos */                                                                                                       \
    FUNCTION(ls_status, ls_hello_make, (ls_hello * hello, bool keyed), (hello, keyed))                                 \
    PROCEDURE(ls_hello_prove,                                                                                          \
              (ls_hello * hello, const ls_key *key, const char *role, const uint8_t nonce[LS_NONCE_SIZE]),             \
              (hello, key, role, nonce))                                                                               \
    FUNCTION(bool, ls_hello_is_proven,                                                                                 \
             (const ls_hello *hello, const ls_key *key, const char *role, const uint8_t nonce[LS_NONCE_SIZE]),         \
             (hello, key, role, nonce))                                                                                \
    FUNCTION(ls_status, ls_hello_check_build, (const ls_hello *hello, const char *sender), (hello, sender))            \
    PROCEDURE(ls_hello_encode, (const ls_hello *hello, bool with_proof, uint8_t *bytes), (hello, with_proof, bytes))   \
    FUNCTION(ls_status, ls_hello_decode, (const uint8_t *bytes, bool with_proof, ls_hello *hello),                     \
             (bytes, with_proof, hello))                                                                               \
    PROCEDURE(ls_key_forget, (ls_key * key), (key))                                                                    \
    /* the engine */                                                                                                   \
    FUNCTION(ls_engine *, ls_engine_new, (ls_endpoint * endpoint, double timeout), (endpoint, timeout))                \
    FUNCTION(ls_status, ls_engine_begin, (void *state, const ls_call *call), (state, call))                            \
    FUNCTION(ls_status, ls_engine_progress, (void *state, bool wait, bool *finished), (state, wait, finished))         \
    FUNCTION(ls_status, ls_engine_post, (void *state, const ls_call *call, void **request), (state, call, request))    \
    FUNCTION(ls_status, ls_engine_test, (void *state, void *request, bool wait, bool *finished),                       \
             (state, request, wait, finished))                                                                         \
    PROCEDURE(ls_engine_leave, (void *state, ls_leave_reason reason), (state, reason))                                 \
    FUNCTION(ls_status, ls_engine_finalize_barrier, (void *state), (state))                                            \
    FUNCTION(bool, ls_engine_advance_sends, (void *state), (state))                                                    \
    PROCEDURE(ls_engine_withdraw_contents, (void *state), (state))                                                     \
    PROCEDURE(ls_engine_abort, (void *state, ls_status status, int failed_rank), (state, status, failed_rank))         \
    FUNCTION(int, ls_engine_failed_rank, (const void *state), (state))                                                 \
    PROCEDURE(ls_engine_close, (void *state), (state))                                                                 \
    PROCEDURE(ls_engine_traffic, (const void *state, uint64_t *messages, uint64_t *bytes), (state, messages, bytes))   \
    FUNCTION(const char *, ls_engine_algorithm, (const void *state), (state))                                          \
    FUNCTION(ls_endpoint *, ls_engine_endpoint, (const ls_engine *engine), (engine))                                   \
    FUNCTION(ls_status, ls_engine_exchange, (ls_engine * engine, const void *own, void *all, size_t bytes),            \
             (engine, own, all, bytes))                                                                                \
    FUNCTION(ls_engine_end, ls_engine_ended, (const ls_engine *engine), (engine))                                      \
    /* backend tcp */                                                                                                  \
    FUNCTION(int, ls_tcp_waker, (ls_endpoint * endpoint), (endpoint))

#define LS_CORE_FUNCTION_MEMBER(type, name, parameters, arguments) type(*name) parameters;
#define LS_CORE_PROCEDURE_MEMBER(name, parameters, arguments)      void(*name) parameters;

struct ls_core {
    LS_CORE_FUNCTIONS(LS_CORE_FUNCTION_MEMBER, LS_CORE_PROCEDURE_MEMBER)
    void (*log_write)(ls_log_level level, const char *format, ...) LS_PRINTF(2, 3);
    const ls_backend *backend_tcp;
};

/* A backend that is a plug-in. The plug-in defines it. */
extern const ls_backend ls_module_backend;

/* In a plug-in, return the core's ls_backend_tcp, and call its `leave`. */
const ls_backend *ls_module_tcp(void);
void ls_module_leave_tcp(void *state, ls_leave_reason reason);

/* In a plug-in: closes the engine of a newly opened communicator if `status` is a failure. Returns `status`. */
ls_status ls_module_settle(ls_status status, void **state);

#endif
