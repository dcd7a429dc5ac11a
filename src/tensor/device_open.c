/* Registers a GPU as a device of this process when the program first names a GPU. Opens the plug-in for CUDA on demand.
 */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/module_file.h"
#include "tensor/device/cuda/cuda.h"
#include "tensor/scope.h"

enum { MOST_DIGITS = 4 };

static pthread_once_t cuda_once = PTHREAD_ONCE_INIT;
static const ls_cuda *cuda;
static ls_module_file cuda_file;

static void open_cuda(void) {
    static const ls_cuda_core core = {.error_restore = ls_error_restore,
                                      .fail_memory = ls_fail_memory,
                                      .log_write = ls_log_write,
                                      .dtype_size = ls_dtype_size,
                                      .dtype_name = ls_dtype_name,
                                      .kernels_complete = ls_kernels_complete};
    cuda_file = ls_module_file_open("cuda", "ls_cuda_module");
    ls_cuda_module_function *enter = (ls_cuda_module_function *)cuda_file.enter;
    cuda = ls_module_file_check(&cuda_file, enter != NULL ? enter(LS_CUDA_ABI, &core) : NULL);
}

const ls_cuda *ls_cuda_open(void) {
    (void)pthread_once(&cuda_once, open_cuda);
    return cuda;
}

const char *ls_cuda_failure(void) {
    if (cuda == NULL || cuda->device_count > 0) {
        return cuda_file.reason;
    }
    return cuda->driver_version == 0 ? "there is no NVIDIA driver"
           : cuda->failure != NULL   ? cuda->failure
                                     : "CUDA finds no GPU";
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static bool is_gpu(const char *name) {
    return strncmp(name, "cuda", 4) == 0 && (name[4] == '\0' || name[4] == ':');
}

/* Returns N for "cuda:N", 0 for "cuda", and -1 for any other name. A device has only one name, so "cuda:00" is
 * invalid. */
static int index_of(const char *name) {
    if (name[4] == '\0') {
        return 0;
    }
    const char *digits = name + 5;
    const size_t length = strspn(digits, "0123456789");
    if (length == 0 || length > MOST_DIGITS || digits[length] != '\0' || (length > 1 && digits[0] == '0')) {
        return -1;
    }
    int index = 0;
    for (size_t i = 0; i < length; i++) {
        index = 10 * index + (digits[i] - '0');
    }
    return index;
}

static const ls_device *open_gpu(const char *call, const char *name, int index) {
    const ls_cuda *opened = ls_cuda_open();
    if (opened == NULL) {
        return ls_fail_null(LS_ERR_UNSUPPORTED, "%s: no device \"%s\": %s", call, name, ls_cuda_failure());
    }
    const int count = opened->device_count;
    if (count == 0) {
        return ls_fail_null(LS_ERR_DEVICE, "%s: no device \"%s\": %s", call, name, ls_cuda_failure());
    }
    if (index >= count && count == 1) {
        return ls_fail_null(LS_ERR_ARGUMENT, "%s: there is no device \"%s\": this process has one GPU, \"cuda:0\"",
                            call, name);
    }
    if (index >= count) {
        return ls_fail_null(LS_ERR_ARGUMENT,
                            "%s: there is no device \"%s\": this process has %d GPUs, \"cuda:0\" to \"cuda:%d\"", call,
                            name, count, count - 1);
    }
    const ls_device *device = opened->device(index);
    if (device == NULL) {
        return ls_fail_null(ls_error_status(), "%s: no device \"%s\": %s", call, name, ls_error_message());
    }
    return ls_device_add(device) == LS_OK ? device : NULL;
}

/* Returns the GPU if it is already registered, possibly by another thread in the meantime. */
static const ls_device *find_gpu(int index) {
    char name[16];
    (void)snprintf(name, sizeof name, "cuda:%d", index);
    return ls_device_named(name);
}

static const ls_device *open_device(const char *call, const char *name) {
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    const int index = index_of(name);
    const ls_device *device = NULL;
    if (index < 0) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: \"%.64s\" is not a device: GPUs are \"cuda:0\", \"cuda:1\" and so on", call,
                      name);
    } else {
        pthread_mutex_lock(&one_at_a_time);
        device = find_gpu(index);
        device = device != NULL ? device : open_gpu(call, name, index);
        pthread_mutex_unlock(&one_at_a_time);
    }
    return device != NULL ? device : ls_scope_failed();
}

const ls_device *ls_device_find(const char *call, const char *name) {
    const ls_device *device = name != NULL ? ls_device_named(name) : NULL;
    if (device != NULL) {
        return device;
    }
    if (name != NULL && is_gpu(name)) {
        return open_device(call, name);
    }
    char names[256];
    size_t length = 0;
    for (int i = 0; ls_device_at(i) != NULL && length < sizeof names; i++) {
        length +=
            (size_t)snprintf(names + length, sizeof names - length, "%s%s", i > 0 ? ", " : "", ls_device_at(i)->name);
    }
    (void)(name == NULL
               ? ls_fail(LS_ERR_ARGUMENT, "%s: the name of the device is NULL", call)
               : ls_fail(LS_ERR_ARGUMENT,
                         "%s: there is no device \"%.64s\"; available: %s (GPUs are \"cuda:0\", \"cuda:1\" and so on)",
                         call, name, names));
    return ls_scope_failed();
}

/* ---- the default ------------------------------------------------------------------------------------------------- */

const ls_device *ls_device_default(void) {
    ls_thread_state *thread = ls_thread();
    if (thread == NULL) {
        return NULL;
    }
    if (__builtin_expect(thread->device == NULL, 0)) {
        const char *name = getenv("LOCKSTEP_DEVICE");
        thread->device = name == NULL || *name == '\0' ? &ls_cpu : ls_device_find("LOCKSTEP_DEVICE", name);
    }
    return thread->device;
}

ls_status ls_use_device(const char *name) {
    ls_thread_state *thread = ls_thread();
    const ls_device *device = thread != NULL ? ls_device_find("ls_use_device", name) : NULL;
    if (device == NULL) {
        return ls_error_status();
    }
    thread->device = device;
    return LS_OK;
}

const char *ls_default_device(void) {
    const ls_device *device = ls_device_default();
    return device != NULL ? device->name : NULL;
}

ls_status ls_device_wait(const char *name) {
    const ls_device *device = ls_device_find("ls_device_wait", name);
    return device != NULL ? device->stream_wait(ls_device_stream(device)) : ls_error_status();
}
