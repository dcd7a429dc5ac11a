/* Calls to the core's functions, which the plug-in receives as pointers when it is opened. */
#include <stdarg.h>
#include <stdio.h>

#include "tensor/device/cuda/runtime.h"

const ls_cuda_core *ls_cuda_host;

ls_status ls_error_set(ls_status status, const char *format, ...) {
    char text[LS_ERROR_CAPACITY];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ls_cuda_host->error_restore(status, text);
    return status;
}

ls_status ls_fail_memory(const char *call, size_t bytes) {
    return ls_cuda_host->fail_memory(call, bytes);
}

size_t ls_dtype_size(ls_dtype dtype) {
    return ls_cuda_host->dtype_size(dtype);
}

const char *ls_dtype_name(ls_dtype dtype) {
    return ls_cuda_host->dtype_name(dtype);
}
