#include "base/status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/locale.h"
#include "base/text.h"

static _Thread_local ls_status last_status;
_Thread_local uint32_t ls_error_count;

/*
 * A thread's error messages, allocated at its first error. They are not thread-local variables: if dlopen opens the
 * library, its thread-local variables must fit into the few hundred bytes that the C library reserves for all such
 * libraries.
 */
typedef struct error_texts {
    char last[LS_ERROR_CAPACITY];
    char missing[LS_ERROR_CAPACITY]; /* the last message of ls_fail_missing */
    size_t quoted;                   /* the length of the message that `missing` quotes */
} error_texts;

static _Thread_local error_texts *own_texts; /* NULL before the first error, or if out of memory */

static pthread_key_t texts_key;
static pthread_once_t texts_key_once = PTHREAD_ONCE_INIT;
static bool texts_key_works;

static const char *const status_names[] = {
    [LS_OK] = "LS_OK",
    [LS_ERR_ARGUMENT] = "LS_ERR_ARGUMENT",
    [LS_ERR_SHAPE] = "LS_ERR_SHAPE",
    [LS_ERR_MEMORY] = "LS_ERR_MEMORY",
    [LS_ERR_IO] = "LS_ERR_IO",
    [LS_ERR_FORMAT] = "LS_ERR_FORMAT",
    [LS_ERR_STATE] = "LS_ERR_STATE",
    [LS_ERR_UNSUPPORTED] = "LS_ERR_UNSUPPORTED",
    [LS_ERR_PEER] = "LS_ERR_PEER",
    [LS_ERR_MISMATCH] = "LS_ERR_MISMATCH",
    [LS_ERR_TIMEOUT] = "LS_ERR_TIMEOUT",
    [LS_ERR_DENIED] = "LS_ERR_DENIED",
    [LS_ERR_STOPPED] = "LS_ERR_STOPPED",
    [LS_ERR_INTERNAL] = "LS_ERR_INTERNAL",
    [LS_ERR_DEVICE] = "LS_ERR_DEVICE",
};

const char *ls_version(void) {
    return LS_VERSION;
}

const char *ls_status_name(ls_status status) {
    const size_t index = (size_t)status;
    return index < sizeof status_names / sizeof *status_names ? status_names[index] : "unknown";
}

/* ---- a thread's messages ----------------------------------------------------------------------------------------- */

static void free_texts(void *texts) {
    own_texts = NULL;
    free(texts);
}

static void make_texts_key(void) {
    texts_key_works = pthread_key_create(&texts_key, free_texts) == 0;
}

/* Uses calloc, because the allocator of ls_set_allocator may be out of memory. Returns NULL if calloc also fails. */
static error_texts *texts_of_thread(void) {
    if (own_texts == NULL) {
        (void)pthread_once(&texts_key_once, make_texts_key);
        error_texts *texts = texts_key_works ? calloc(1, sizeof *texts) : NULL;
        if (texts != NULL && pthread_setspecific(texts_key, texts) != 0) {
            free(texts);
            texts = NULL;
        }
        own_texts = texts;
    }
    return own_texts;
}

const char *ls_error_message(void) {
    static const char none[LS_ERROR_CAPACITY] = "";
    static const char lost[LS_ERROR_CAPACITY] = "out of memory (even for the error message)";
    return own_texts != NULL ? own_texts->last : ls_error_count == 0 ? none : lost;
}

/* ---- failing ----------------------------------------------------------------------------------------------------- */

ls_status ls_error_status(void) {
    return last_status;
}

static void format_plain(char text[LS_ERROR_CAPACITY], const char *format, va_list arguments) {
    const locale_t before = ls_locale_enter();
    vsnprintf(text, LS_ERROR_CAPACITY, format, arguments);
    ls_locale_leave(before);
}

ls_status ls_error_set(ls_status status, const char *format, ...) {
    /* The arguments may point into the previous message, so the new message is formatted into a separate buffer
     * first. */
    char text[LS_ERROR_CAPACITY];
    va_list arguments;
    va_start(arguments, format);
    format_plain(text, format, arguments);
    va_end(arguments);
    ls_error_restore(status, text);
    return status;
}

ls_status ls_error_set_text(ls_status status, const char *text) {
    return ls_error_set(status, "%s", text != NULL ? text : "");
}

void ls_error_restore(ls_status status, const char *message) {
    error_texts *texts = texts_of_thread();
    last_status = status;
    ls_error_count++;
    if (texts != NULL && message != texts->last) {
        snprintf(texts->last, sizeof texts->last, "%s", message);
        ls_text_make_printable(texts->last);
    }
}

ls_status ls_fail_missing(const char *format, ...) {
    char what[LS_ERROR_CAPACITY];
    va_list arguments;
    va_start(arguments, format);
    format_plain(what, format, arguments);
    va_end(arguments);
    if (last_status == LS_OK) {
        return ls_fail(LS_ERR_ARGUMENT, "%s is NULL", what);
    }
    error_texts *texts = own_texts;
    if (texts == NULL) {
        return last_status;
    }
    texts->quoted = strcmp(texts->last, texts->missing) == 0 ? texts->quoted : strlen(texts->last);
    (void)ls_fail(last_status, "%.*s; %s is NULL", (int)texts->quoted, texts->last, what);
    memcpy(texts->missing, texts->last, sizeof texts->missing);
    return last_status;
}

ls_status ls_fail_memory(const char *call, size_t bytes) {
    return ls_error_set(LS_ERR_MEMORY, "%s: out of memory: could not allocate %zu bytes", call, bytes);
}
