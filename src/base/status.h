/*
 * base: the lowest layer. This header defines how Lockstep's own code reports errors.
 *
 *     return ls_fail(LS_ERR_ARGUMENT, "ls_foo: width is %d, but must be positive", width);
 *     return ls_fail_null(LS_ERR_ARGUMENT, "ls_foo: width is %d, but must be positive", width);
 *
 * Functions that return a pointer use ls_fail_null.
 *
 * A message is one sentence: the call, the wrong values, and the remedy if it is not obvious. Quoted text is made
 * printable (base/text.h).
 */
#ifndef LS_BASE_STATUS_H
#define LS_BASE_STATUS_H

#include <lockstep/base.h>

#define LS_ERROR_CAPACITY 1024

#define ls_fail           ls_error_set
#define ls_fail_null(...) ((void)ls_error_set(__VA_ARGS__), NULL)

/* The number of errors of this thread so far. Comparing two readings shows whether an error has occurred in between. */
#ifdef __cplusplus
#define LS_THREAD_LOCAL __thread
#else
#define LS_THREAD_LOCAL _Thread_local
#endif
extern LS_THREAD_LOCAL uint32_t ls_error_count __attribute__((visibility("hidden"), tls_model("initial-exec")));

/* Fails with LS_ERR_MEMORY and the same wording for every caller. */
ls_status ls_fail_memory(const char *call, size_t bytes);

/*
 * Fails because an argument of the caller is NULL. Either the function that should have created the argument failed, or
 * the caller passed NULL itself; this function cannot distinguish the two cases. So the new message is the thread's
 * last error, followed by "NAME is NULL". If constructors are nested, only the outermost argument is named. Returns the
 * status of the last error, or LS_ERR_ARGUMENT if the thread had no error.
 */
ls_status ls_fail_missing(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Restores a message that the caller saved before a cleanup that may fail. */
void ls_error_restore(ls_status status, const char *message);

/* The last error of a thread. */
typedef struct ls_saved_error {
    ls_status status;
    char message[LS_ERROR_CAPACITY];
} ls_saved_error;

/* Saves the thread's last error before a cleanup that may fail. */
static inline void ls_error_save(ls_saved_error *saved) {
    saved->status = ls_error_status();
    __builtin_memcpy(saved->message, ls_error_message(), sizeof saved->message);
}

/* Restores a saved error as the thread's last error. Returns its status. */
static inline ls_status ls_error_put_back(const ls_saved_error *saved) {
    ls_error_restore(saved->status, saved->message);
    return saved->status;
}

/* Undoes the errors of calls that may fail: restores the last error and the count that were read before the calls. */
static inline void ls_error_undo(const ls_saved_error *before, uint32_t errors) {
    if (ls_error_count != errors) {
        (void)ls_error_put_back(before);
        ls_error_count = errors;
    }
}

/*
 * Keeps the first error of several calls. If `status` is a failure, saves it with the thread's last error message,
 * unless `first` already has an error. Initially, first->status is LS_OK.
 */
static inline void ls_error_save_first(ls_saved_error *first, ls_status status) {
    if (status != LS_OK && first->status == LS_OK) {
        ls_error_save(first);
        first->status = status;
    }
}

/* Restores the first error, and returns its status. Returns LS_OK if there was no error. */
static inline ls_status ls_error_put_back_first(const ls_saved_error *first) {
    return first->status == LS_OK ? LS_OK : ls_error_put_back(first);
}

/* Checks the object `made` that a call returned: returns LS_OK, or the thread's error status if it is NULL. */
static inline ls_status ls_made(const void *made) {
    return made != NULL ? LS_OK : ls_error_status();
}

/* Returns early with the status of a failing call. */
#define LS_TRY(call)                                                                                                   \
    do {                                                                                                               \
        const ls_status ls_try_status = (call);                                                                        \
        if (ls_try_status != LS_OK) {                                                                                  \
            return ls_try_status;                                                                                      \
        }                                                                                                              \
    } while (0)

#endif
