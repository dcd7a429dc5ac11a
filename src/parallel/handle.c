#include "parallel/handle.h"

#include <string.h>

#include "tensor/scope.h"

static void forget(void *memory, void *user) {
    ls_handle_record *record = memory;
    (void)user;
    if (record->forget != NULL) {
        record->forget(record);
    }
    ls_record_release(record, record->bytes);
}

ls_tensor *ls_handle_new(const char *call, const ls_device *device, const ls_handle_record *record) {
    if (device == NULL) {
        return ls_scope_failed();
    }
    ls_handle_record *copy = ls_record_allocate(record->bytes);
    ls_storage *storage = copy != NULL ? ls_storage_wrap(device, copy, record->bytes, forget, NULL) : NULL;
    if (storage == NULL) {
        if (copy != NULL) {
            ls_record_release(copy, record->bytes);
        }
        return ls_fail_noted(LS_ERR_MEMORY, "%s: out of memory", call);
    }
    *copy = (ls_handle_record){.bytes = record->bytes};
    ls_tensor *token = ls_tensor_of_storage(storage, 1, (const int64_t[]){0}, LS_F32);
    if (token == NULL) {
        return ls_fail_noted(LS_ERR_MEMORY, "%s: out of memory", call);
    }
    memcpy(copy, record, record->bytes);
    return ls_tensor_give(token);
}

ls_tensor *ls_handle_wait(ls_handle *handle) {
    ls_tensor *token = (ls_tensor *)handle;
    if (token == NULL) {
        (void)ls_scope_fail_null("ls_handle_wait: the handle");
        return ls_scope_failed();
    }
    const bool gone = ls_tensor_is_gone(token);
    ls_handle_record *record = gone ? NULL : ls_handle_record_of(token);
    if (gone ? token->scope == NULL : record->waited) {
        return ls_fail_noted(LS_ERR_STATE, "ls_handle_wait: this handle was already waited for");
    }
    if (token->scope == &ls_nowhere) { /* the tape may keep it alive */
        return ls_fail_noted(
            LS_ERR_STATE,
            "ls_handle_wait: the scope of this handle has ended; call ls_handle_wait before ls_scope_end");
    }
    record->waited = true;
    ls_tensor *result = record->end(token);
    ls_release(token);
    return result;
}
