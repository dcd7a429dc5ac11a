/*
 * The interface to devices that store tensors and compute with them. A device is an object: a name, memory, streams,
 * events, asynchronous copies and a table of kernels. Work on a stream runs in order, possibly later; on the CPU it
 * runs immediately. A later failure is reported once, with the message of the failed call, by the next call that waits
 * for the stream (stream_wait, and therefore ls_item and all reads of elements). Only the device's folder knows how the
 * device works. Outside src/tensor/device, no code reads elements through a pointer unless the device is_host.
 *
 * A thread submits all its work to the device's default stream for that thread. So memory released there can be reused
 * immediately: in stream order, the next use comes after the last one.
 */
#ifndef LS_TENSOR_DEVICE_H
#define LS_TENSOR_DEVICE_H

#include "tensor/kernels.h"
#include "tensor/tensor.h"

typedef struct ls_event ls_event;

struct ls_device {
    const char *name;          /* the public name: "cpu", "cuda:1" */
    int index;                 /* index among the devices of the same kind, counted from 0 */
    bool is_host;              /* work is done when a kernel returns, in memory that any code can read: the CPU */
    const ls_kernels *kernels; /* read by ls_device_kernels; the CPU's changes while a step is captured */
    void *state;               /* owned by the device */
    /* returns whether products with operands rounded to this dtype are faster; NULL if unknown */
    bool (*gains_by)(const ls_device *self, ls_dtype rounds_to);
    bool uses_cache;    /* memory comes from the calling thread's cache (cache.h), which callers may use directly */
    bool takes_rounded; /* gemm accepts operands that are already rounded: ls_gemm.a_rounded */

    /*
     * Returns cached memory, aligned to 64 bytes and uninitialized; NULL, without a message, if out of memory. The
     * memory belongs to the default stream of the calling thread: after its release, earlier work of that stream may
     * still use it. Any thread may release another thread's memory.
     */
    void *(*allocate)(const ls_device *self, size_t bytes);
    void (*release)(const ls_device *self, void *memory, size_t bytes);
    /* Returns host memory that the device can access directly, or NULL if out of memory. */
    void *(*allocate_pinned)(const ls_device *self, size_t bytes);
    void (*release_pinned)(const ls_device *self, void *memory, size_t bytes);

    /* Streams. The default stream of the calling thread is never freed. */
    ls_stream *(*default_stream)(const ls_device *self);
    ls_stream *(*stream_new)(const ls_device *self);
    void (*stream_free)(ls_stream *stream);
    ls_status (*stream_wait)(ls_stream *stream); /* waits until all submitted work is complete */
    /*
     * Returns the vendor libraries' handle for the stream. Work that the calling thread submits through this handle,
     * before the thread uses another device, runs after the stream's earlier work. Returns NULL if there are no such
     * libraries.
     */
    void *(*library_stream)(ls_stream *stream);

    /* An event marks a point in a stream. */
    ls_event *(*event_new)(const ls_device *self);
    void (*event_free)(ls_event *event);
    ls_status (*event_record)(ls_event *event, ls_stream *stream);
    ls_status (*event_wait)(ls_event *event, ls_stream *stream); /* makes the stream wait, not the caller */
    bool (*event_done)(const ls_event *event);

    /*
     * Copies bytes in stream order, within the device or between the device and the host. The host memory must stay
     * valid and unchanged until the copy is complete.
     */
    ls_status (*copy)(ls_stream *stream, void *to, const void *from, size_t bytes);
    ls_status (*clear)(ls_stream *stream, void *memory, size_t bytes);
    ls_status (*copy_to_host)(ls_stream *stream, void *host, const void *memory, size_t bytes);
    ls_status (*copy_from_host)(ls_stream *stream, void *memory, const void *host, size_t bytes);
};

extern ls_device ls_cpu;

/* The registered devices: the CPU, and added devices. A device's index is stable for the lifetime of the process. */
enum { LS_MOST_DEVICES = 64 };
const ls_device *ls_device_at(int index);           /* NULL after the last */
const ls_device *ls_device_named(const char *name); /* returns NULL if no device has this name */
int ls_device_index(const ls_device *device);
/*
 * Returns a registered device, or opens it (device_open.c). On failure, returns NULL with an error for `call` that
 * lists the available devices: LS_ERR_ARGUMENT if `name` is not the name of a device.
 */
const ls_device *ls_device_find(const char *call, const char *name);
/* Registers a device permanently. Fails with LS_ERR_STATE if the name is in use or the table is full. */
ls_status ls_device_add(const ls_device *device) LS_WARN_UNUSED;

/* Replaces missing kernels of a device with kernels that fail with LS_ERR_UNSUPPORTED and a message with the kernel's
 * name. */
void ls_kernels_complete(ls_kernels *kernels);

/*
 * Returns the device set by ls_use_device for this thread, or NULL with the error noted if LOCKSTEP_DEVICE does not
 * name a device.
 */
const ls_device *ls_device_default(void);

static inline const ls_kernels *ls_device_kernels(const ls_device *device) {
    return __atomic_load_n(&device->kernels, __ATOMIC_RELAXED);
}

/* Returns the kernels and the default stream of a tensor's device. */
static inline const ls_kernels *ls_kernels_of(const ls_tensor *tensor) {
    return ls_device_kernels(tensor->storage->device);
}
static inline ls_stream *ls_device_stream(const ls_device *device) {
    return device->default_stream(device);
}
static inline ls_stream *ls_stream_of(const ls_tensor *tensor) {
    return ls_device_stream(tensor->storage->device);
}

/* Returns the address of the elements of a tensor whose device is_host. */
static inline void *ls_host_data(const ls_tensor *tensor) {
    return tensor->data;
}

/* Copies bytes to and from the host. The copy is complete on return. */
ls_status ls_device_fetch(const ls_device *device, void *host, const void *memory, size_t bytes);
ls_status ls_device_store(const ls_device *device, void *memory, const void *host, size_t bytes);

/*
 * The elements of a dense tensor in host memory: the tensor's own memory on the CPU, otherwise pinned memory.
 * ls_host_view_begin copies the elements to it (if `read`), and ls_host_view_end copies them back (if `write`, and its
 * status is LS_OK). The tensor must not be freed in between. For communication, files and computation by the program
 * itself.
 */
typedef struct ls_host_view {
    void *memory; /* may be NULL for an empty tensor */
    const ls_tensor *tensor;
    bool copied;
    bool write;
} ls_host_view;

enum { LS_HOST_READ = 1, LS_HOST_WRITE = 2 };
ls_status ls_host_view_begin(ls_host_view *view, const ls_tensor *tensor, int access);
ls_status ls_host_view_end(ls_host_view *view, ls_status status);

#endif
