/* The registered devices, and copies between a device and the host. */
#include "tensor/device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/status.h"
#include "tensor/capture.h"

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

const ls_device *ls_device_named(const char *name) {
    const ls_device *device = NULL;
    for (int i = 0; (device = ls_device_at(i)) != NULL && strcmp(device->name, name) != 0; i++) {
    }
    return device;
}

static ls_status add(const ls_device *device) {
    const int count = atomic_load_explicit(&device_count, memory_order_acquire);
    if (count == LS_MOST_DEVICES || ls_device_named(device->name) != NULL) {
        return ls_fail(LS_ERR_STATE, "ls_device_add: %s",
                       count == LS_MOST_DEVICES ? "there are too many devices"
                                                : "a device of this name exists already");
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

/* ---- to the host and back ---------------------------------------------------------------------------------------- */

ls_status ls_device_fetch(const ls_device *device, void *host, const void *memory, size_t bytes) {
    ls_stream *stream = ls_device_stream(device);
    LS_TRY(device->copy_to_host(stream, host, memory, bytes));
    return device->stream_wait(stream);
}

ls_status ls_device_store(const ls_device *device, void *memory, const void *host, size_t bytes) {
    ls_capture_refuse_here("an operation", LS_CAPTURE_WRITES);
    ls_stream *stream = ls_device_stream(device);
    LS_TRY(device->copy_from_host(stream, memory, host, bytes));
    return device->stream_wait(stream);
}

static size_t bytes_of(const ls_tensor *tensor) {
    return (size_t)tensor->count * ls_dtype_size((ls_dtype)tensor->dtype);
}

ls_status ls_host_view_begin(ls_host_view *view, const ls_tensor *tensor, int access) {
    const ls_device *device = ls_tensor_device(tensor);
    ls_capture_refuse_here("an operation", LS_CAPTURE_READS);
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
