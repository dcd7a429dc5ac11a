/*
 * base: what everything stands on. This header: how Lockstep's own code fails.
 *
 *     return ls_fail(LS_ERR_ARGUMENT, "ls_foo: width is %d, must be positive", width);      in functions of ls_status
 *     return ls_fail_null(LS_ERR_ARGUMENT, "ls_foo: width is %d, must be positive", width); in functions of pointers
 *
 * A message is one sentence: the call, what is wrong with the values that are, and what to do where that is not plain.
 * Whatever it quotes becomes printable (base/text.h).
 */
#ifndef LS_BASE_STATUS_H
#define LS_BASE_STATUS_H

#include <lockstep/base.h>

#define LS_ERROR_CAPACITY 1024

#define ls_fail           ls_error_set
#define ls_fail_null(...) ((void)ls_error_set(__VA_ARGS__), NULL)

/* How many errors this thread has had: tells whether one came after some point. */
#ifdef __cplusplus
#define LS_THREAD_LOCAL __thread
#else
#define LS_THREAD_LOCAL _Thread_local
#endif
extern LS_THREAD_LOCAL uint32_t ls_error_count __attribute__((visibility("hidden"), tls_model("initial-exec")));

/* Out of memory has one wording everywhere. */
ls_status ls_fail_memory(const char *call, size_t bytes);

/*
 * What the caller should have given is NULL. Either its maker failed, which is the thread's latest error, or the caller
 * had nothing: nobody can tell, so the message is that error's, followed by what is NULL: of several in a row, as where
 * constructors nest, the last. Returns that error's status (LS_ERR_ARGUMENT where there is none).
 */
ls_status ls_fail_missing(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Puts back a message that was saved while clean-up made calls of its own. */
void ls_error_restore(ls_status status, const char *message);

/* Returns early with the status of a failing call. */
#define LS_TRY(call)                                                                                                   \
    do {                                                                                                               \
        const ls_status ls_try_status = (call);                                                                        \
        if (ls_try_status != LS_OK) {                                                                                  \
            return ls_try_status;                                                                                      \
        }                                                                                                              \
    } while (0)

#endif
