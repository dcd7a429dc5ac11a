/* Shared part of every plug-in: the function through which the core enters it, and functions that call the core
 * through the table that the core passes. See comm/module.h. */
#include <stdarg.h>
#include <stdio.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/module.h"
#include "comm/transport/tcp/tcp.h"

/* Set before any other function of the plug-in runs, always to the same value. */
static const ls_core *core;

LS_API ls_backend_module_function ls_backend_module;

const ls_backend *ls_backend_module(int abi_version, const ls_core *given) {
    if (abi_version != LS_BACKEND_ABI) {
        return NULL;
    }
    core = given;
    return &ls_module_backend;
}

#define DEFINE_FUNCTION(type, name, parameters, arguments)                                                             \
    type name parameters {                                                                                             \
        return core->name arguments;                                                                                   \
    }
#define DEFINE_PROCEDURE(name, parameters, arguments)                                                                  \
    void name parameters {                                                                                             \
        core->name arguments;                                                                                          \
    }

LS_CORE_FUNCTIONS(DEFINE_FUNCTION, DEFINE_PROCEDURE)

/* ---- functions outside LS_CORE_FUNCTIONS, mostly with variable arguments ----------------------------------------- */

ls_status ls_error_set(ls_status status, const char *format, ...) {
    char text[LS_ERROR_CAPACITY];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ls_error_restore(status, text);
    return status;
}

void ls_log_write(ls_log_level level, const char *format, ...) {
    char text[LS_ERROR_CAPACITY];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    core->log_write(level, "%s", text);
}

double ls_clock_seconds(void) {
    return (double)ls_clock_ns() * 1e-9;
}

const ls_backend *ls_module_tcp(void) {
    return core->backend_tcp;
}
