/* The devices that are there, which of them new tensors go to, and what moves between a device and the host. */
#include "tensor/device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/device_open.h"
#include "tensor/scope.h"

static const ls_device *devices[LS_MOST_DEVICES] = {&ls_cpu};
static atomic_int device_count = 1;

const ls_device *ls_device_at(int index) {
    return index >= 0 && index < atomic_load_explicit(&device_count, memory_order_acquire) ? devices[index] : NULL;
}

int ls_device_index(const ls_device *device) {
    int index = 0;
    while (ls_device_at(index) != NULL && ls_device_at(index) != device) {
        index++;
    }
    return index;
}

static const ls_device *find(const char *name) {
    const ls_device *device = NULL;
    for (int i = 0; (device = ls_device_at(i)) != NULL && strcmp(device->name, name) != 0; i++) {
    }
    return device;
}

static ls_status add(const ls_device *device) {
    const int count = atomic_load_explicit(&device_count, memory_order_acquire);
    if (count == LS_MOST_DEVICES || find(device->name) != NULL) {
        return ls_fail(LS_ERR_STATE, "ls_device_add: %s",
                       count == LS_MOST_DEVICES ? "there are too many devices" : "there is a device of that name");
    }
    devices[count] = device;
    atomic_store_explicit(&device_count, count + 1, memory_order_release);
    return LS_OK;
}

ls_status ls_device_add(const ls_device *device) {
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one_at_a_time);
    const ls_status status = add(device);
    pthread_mutex_unlock(&one_at_a_time);
    return status;
}

const ls_device *ls_device_find(const char *call, const char *name) {
    const ls_device *device = name != NULL ? find(name) : NULL;
    if (device != NULL) {
        return device;
    }
    if (name != NULL && ls_device_opens(name)) {
        return ls_device_open(call, name);
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
                         "%s: there is no device \"%.64s\"; there are: %s (GPUs are \"cuda:0\", \"cuda:1\" and so on)",
                         call, name, names));
    return ls_scope_failed();
}

/* ---- the default ---------------------------------------------------------------------------------------------------
 */

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

/* ---- to the host and back ------------------------------------------------------------------------------------------
 */

ls_status ls_device_fetch(const ls_device *device, void *host, const void *memory, size_t bytes) {
    ls_stream *stream = ls_device_stream(device);
    LS_TRY(device->copy_to_host(stream, host, memory, bytes));
    return device->stream_wait(stream);
}

ls_status ls_device_store(const ls_device *device, void *memory, const void *host, size_t bytes) {
    ls_stream *stream = ls_device_stream(device);
    LS_TRY(device->copy_from_host(stream, memory, host, bytes));
    return device->stream_wait(stream);
}

static size_t bytes_of(const ls_tensor *tensor) {
    return (size_t)tensor->count * ls_dtype_size((ls_dtype)tensor->dtype);
}

ls_status ls_host_view_begin(ls_host_view *view, const ls_tensor *tensor, int access) {
    const ls_device *device = ls_tensor_device(tensor);
    *view = (ls_host_view){.memory = tensor->data, .tensor = tensor, .write = (access & LS_HOST_WRITE) != 0};
    if (device->is_host) {
        return LS_OK;
    }
    view->memory = device->allocate_pinned(device, bytes_of(tensor));
    if (view->memory == NULL) {
        return ls_fail_memory("memory to copy from a device", bytes_of(tensor));
    }
    view->copied = true;
    if ((access & LS_HOST_READ) == 0) {
        return LS_OK;
    }
    const ls_status status = ls_device_fetch(device, view->memory, tensor->data, bytes_of(tensor));
    if (status != LS_OK) {
        view->write = false;
        (void)ls_host_view_end(view, status);
    }
    return status;
}

ls_status ls_host_view_end(ls_host_view *view, ls_status status) {
    if (!view->copied) {
        return status;
    }
    const ls_device *device = ls_tensor_device(view->tensor);
    if (view->write && status == LS_OK) {
        status = ls_device_store(device, view->tensor->data, view->memory, bytes_of(view->tensor));
    }
    device->release_pinned(device, view->memory, bytes_of(view->tensor));
    view->copied = false;
    return status;
}
