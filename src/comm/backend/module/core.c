/* In every module: how the core enters it, and the core's functions, called through the table that it hands over. See
 * comm/module.h. */
#include <stdarg.h>
#include <stdio.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/module.h"
#include "comm/transport/tcp/tcp.h"

/* Set before any other function of the module runs, always to the same. */
static const ls_core *core;

LS_API ls_backend_module_function ls_backend_module;

const ls_backend *ls_backend_module(int abi_version, const ls_core *given) {
    if (abi_version != LS_BACKEND_ABI) {
        return NULL;
    }
    core = given;
    return &ls_module_backend;
}

/* ---- base ----------------------------------------------------------------------------------------------------------
 */

ls_status ls_error_set(ls_status status, const char *format, ...) {
    char text[LS_ERROR_CAPACITY];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    core->error_restore(status, text);
    return status;
}

void ls_error_restore(ls_status status, const char *message) {
    core->error_restore(status, message);
}

ls_status ls_fail_memory(const char *call, size_t bytes) {
    return core->fail_memory(call, bytes);
}

const char *ls_error_message(void) {
    return core->error_message();
}

ls_status ls_error_status(void) {
    return core->error_status();
}

void ls_log_write(ls_log_level level, const char *format, ...) {
    char text[LS_ERROR_CAPACITY];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    core->log_write(level, "%s", text);
}

void *ls_allocate(size_t size) {
    return core->allocate(size);
}

void *ls_allocate_aligned(size_t size, size_t alignment) {
    return core->allocate_aligned(size, alignment);
}

void *ls_allocate_zeroed(size_t count, size_t size) {
    return core->allocate_zeroed(count, size);
}

void *ls_reallocate(void *memory, size_t old_size, size_t new_size) {
    return core->reallocate(memory, old_size, new_size);
}

char *ls_duplicate_string(const char *text) {
    return core->duplicate_string(text);
}

void ls_free(void *memory) {
    core->release(memory);
}

uint64_t ls_clock_ns(void) {
    return core->clock_ns();
}

double ls_clock_seconds(void) {
    return (double)core->clock_ns() * 1e-9;
}

size_t ls_dtype_size(ls_dtype dtype) {
    return core->dtype_size(dtype);
}

const char *ls_dtype_name(ls_dtype dtype) {
    return core->dtype_name(dtype);
}

/* ---- comm ----------------------------------------------------------------------------------------------------------
 */

void ls_comm_tell_waiting(const ls_waiting *waiting) {
    core->comm_tell_waiting(waiting);
}

const char *ls_reduction_name(ls_reduction reduction) {
    return core->reduction_name(reduction);
}

size_t ls_reduce_width(ls_dtype dtype, ls_reduction reduction) {
    return core->reduce_width(dtype, reduction);
}

void ls_reduce_buffers(const ls_reduce_task *task) {
    core->reduce(task);
}

/* ---- proofs --------------------------------------------------------------------------------------------------------
 */

ls_status ls_auth_nonce(uint8_t nonce[LS_NONCE_SIZE]) {
    return core->auth_nonce(nonce);
}

void ls_auth_prove(const ls_key *key, const char *role, const uint8_t own[LS_NONCE_SIZE],
                   const uint8_t other[LS_NONCE_SIZE], uint8_t proof[LS_PROOF_SIZE]) {
    core->auth_prove(key, role, own, other, proof);
}

bool ls_auth_check(const ls_key *key, const char *role, const uint8_t own[LS_NONCE_SIZE],
                   const uint8_t other[LS_NONCE_SIZE], const uint8_t proof[LS_PROOF_SIZE]) {
    return core->auth_check(key, role, own, other, proof);
}

void ls_key_forget(ls_key *key) {
    core->key_forget(key);
}

/* ---- the engine ----------------------------------------------------------------------------------------------------
 */

ls_engine *ls_engine_new(ls_endpoint *endpoint, double timeout) {
    return core->engine_new(endpoint, timeout);
}

ls_status ls_engine_begin(void *state, const ls_call *call) {
    return core->engine_begin(state, call);
}

ls_status ls_engine_progress(void *state, bool wait, bool *finished) {
    return core->engine_progress(state, wait, finished);
}

ls_status ls_engine_post(void *state, const ls_call *call, void **request) {
    return core->engine_post(state, call, request);
}

ls_status ls_engine_test(void *state, void *request, bool wait, bool *finished) {
    return core->engine_test(state, request, wait, finished);
}

void ls_engine_leave(void *state, ls_leave_reason reason) {
    core->engine_leave(state, reason);
}

ls_status ls_engine_finalize_barrier(void *state) {
    return core->engine_finalize_barrier(state);
}

void ls_engine_abort(void *state, ls_status status) {
    core->engine_abort(state, status);
}

int ls_engine_failed_rank(const void *state) {
    return core->engine_failed_rank(state);
}

void ls_engine_close(void *state) {
    core->engine_close(state);
}

void ls_engine_traffic(const void *state, uint64_t *messages, uint64_t *bytes) {
    core->engine_traffic(state, messages, bytes);
}

const char *ls_engine_algorithm(const void *state) {
    return core->engine_algorithm(state);
}

ls_endpoint *ls_engine_endpoint(const ls_engine *engine) {
    return core->engine_endpoint(engine);
}

ls_status ls_engine_exchange(ls_engine *engine, const void *own, void *all, size_t bytes) {
    return core->engine_exchange(engine, own, all, bytes);
}

ls_engine_end ls_engine_ended(const ls_engine *engine) {
    return core->engine_ended(engine);
}

/* ---- backend tcp ---------------------------------------------------------------------------------------------------
 */

const ls_backend *ls_module_tcp(void) {
    return core->backend_tcp;
}

int ls_tcp_waker(ls_endpoint *endpoint) {
    return core->tcp_waker(endpoint);
}
