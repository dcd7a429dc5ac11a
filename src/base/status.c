#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

static _Thread_local ls_status last_status;
static _Thread_local char last_message[LS_ERROR_CAPACITY];
_Thread_local uint32_t ls_error_count;

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
};

const char *ls_version(void) {
    return LS_VERSION;
}

const char *ls_status_name(ls_status status) {
    const size_t index = (size_t)status;
    return index < sizeof status_names / sizeof *status_names ? status_names[index] : "unknown";
}

const char *ls_error_message(void) {
    return last_message;
}

ls_status ls_error_status(void) {
    return last_status;
}

ls_status ls_error_set(ls_status status, const char *format, ...) {
    /* The arguments may point into the old message (a cause quoted by its caller), so format aside first. */
    char text[LS_ERROR_CAPACITY];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ls_error_restore(status, text);
    return status;
}

void ls_error_restore(ls_status status, const char *message) {
    last_status = status;
    ls_error_count++;
    if (message != last_message) {
        snprintf(last_message, sizeof last_message, "%s", message);
        ls_text_make_printable(last_message);
    }
}

/* The latest message of ls_fail_missing that quotes another, and the length of what it quotes. */
static _Thread_local char missing[LS_ERROR_CAPACITY];
static _Thread_local size_t quoted;

ls_status ls_fail_missing(const char *format, ...) {
    char what[LS_ERROR_CAPACITY];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (last_status == LS_OK) {
        return ls_fail(LS_ERR_ARGUMENT, "%s is NULL", what);
    }
    quoted = strcmp(last_message, missing) == 0 ? quoted : strlen(last_message);
    (void)ls_fail(last_status, "%.*s; %s is NULL", (int)quoted, last_message, what);
    memcpy(missing, last_message, sizeof missing);
    return last_status;
}

ls_status ls_fail_memory(const char *call, size_t bytes) {
    return ls_error_set(LS_ERR_MEMORY, "%s: out of memory (%zu bytes wanted)", call, bytes);
}
