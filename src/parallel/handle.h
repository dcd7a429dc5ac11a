/*
 * Handles of asynchronous calls. A handle is a token: an empty tensor, so that a scope can own it. The token's memory
 * is the record of the call, which begins with an ls_handle_record. Messages (point.c) and collectives (begin.c) have
 * such records.
 */
#ifndef LS_PARALLEL_HANDLE_H
#define LS_PARALLEL_HANDLE_H

#include "parallel/meeting.h"

typedef struct ls_handle_record ls_handle_record;

struct ls_handle_record {
    size_t bytes;
    bool waited; /* ls_handle_wait was called */
    /* Waits, and returns the result for the innermost scope, or NULL with the error set. */
    ls_tensor *(*end)(ls_tensor *token);
    /* Called when the last reference to the token is dropped. Waits, because a buffer must stay valid while a call
     * writes to it. */
    void (*forget)(ls_handle_record *record);
};

/*
 * Returns a token on a device, which contains a copy of the record of `record->bytes` bytes. On failure, returns NULL
 * with the error set, and does not call `forget`. A NULL device means that the caller has already set the error.
 */
ls_tensor *ls_handle_new(const char *call, const ls_device *device, const ls_handle_record *record);

static inline void *ls_handle_record_of(const ls_tensor *token) {
    return token->storage->memory;
}

/* Starts a collective like ls_meet, and returns its handle. */
ls_handle *ls_meet_begin(const ls_collective *what, const ls_proposal *proposal);

#endif
