/*
 * The interface to devices that hold and compute tensors. A device is an object: a name, memory, streams, events,
 * asynchronous copies and a table of kernels. Work on a stream runs in order, possibly later; on the CPU it runs at
 * once. The next call that waits for the stream (stream_wait, and so ls_item and all reads of elements) reports a later
 * failure, once, with the message of the failed call. Only the device's folder knows how it works. Outside
 * src/tensor/device, no code reads elements through a pointer unless the device is_host.
 *
 * A thread submits all its work to the device's default stream for that thread. So memory released there can be reused
 * at once: the next use comes after the last one in stream order.
 */
#ifndef LS_TENSOR_DEVICE_H
#define LS_TENSOR_DEVICE_H

#include "tensor/kernels.h"
#include "tensor/tensor.h"

typedef struct ls_event ls_event;

struct ls_device {
    const char *name;          /* the public name: "cpu", "cuda:1" */
    int index;                 /* index among the devices of its kind, from 0 */
    bool is_host;              /* a kernel's work is done when it returns, in memory that any code can read: the CPU */
    const ls_kernels *kernels; /* read by ls_device_kernels; the CPU's changes while a step is captured */
    void *state;               /* owned by the device */
    /* whether products with operands rounded to this dtype are faster; NULL: unknown */
    bool (*gains_by)(const ls_device *self, ls_dtype rounds_to);
    bool uses_cache;    /* memory is the calling thread's cache (cache.h), which callers may use directly */
    bool takes_rounded; /* gemm takes operands that are rounded already: ls_gemm.a_rounded */

    /*
     * Memory: cached, aligned to 64 bytes, not cleared; NULL, without message, if out of memory. It belongs to the
     * default stream of the calling thread: released memory may still be in use by earlier work of that stream. Any
     * thread may release another thread's memory.
     */
    void *(*allocate)(const ls_device *self, size_t bytes);
    void (*release)(const ls_device *self, void *memory, size_t bytes);
    /* Host memory that the device can access directly; NULL if out of memory. */
    void *(*allocate_pinned)(const ls_device *self, size_t bytes);
    void (*release_pinned)(const ls_device *self, void *memory, size_t bytes);

    /* Streams. The default stream of the calling thread is never freed. */
    ls_stream *(*default_stream)(const ls_device *self);
    ls_stream *(*stream_new)(const ls_device *self);
    void (*stream_free)(ls_stream *stream);
    ls_status (*stream_wait)(ls_stream *stream); /* waits until all submitted work is done */
    /*
     * Returns the vendor libraries' handle of the stream. Work that the calling thread submits to a library on it,
     * before it uses another device, runs after the stream's earlier work. NULL: no such libraries.
     */
    void *(*library_stream)(ls_stream *stream);

    /* Events mark a point in a stream. */
    ls_event *(*event_new)(const ls_device *self);
    void (*event_free)(ls_event *event);
    ls_status (*event_record)(ls_event *event, ls_stream *stream);
    ls_status (*event_wait)(ls_event *event, ls_stream *stream); /* the stream waits, not the caller */
    bool (*event_done)(const ls_event *event);

    /*
     * Copies of bytes, in stream order: within the device, and between it and the host. The host memory must stay valid
     * and unchanged until the copy has run.
     */
    ls_status (*copy)(ls_stream *stream, void *to, const void *from, size_t bytes);
    ls_status (*clear)(ls_stream *stream, void *memory, size_t bytes);
    ls_status (*copy_to_host)(ls_stream *stream, void *host, const void *memory, size_t bytes);
    ls_status (*copy_from_host)(ls_stream *stream, void *memory, const void *host, size_t bytes);
};

extern ls_device ls_cpu;

/* The registered devices: the CPU, and added devices. The index is stable for the life of the process. */
enum { LS_MOST_DEVICES = 64 };
const ls_device *ls_device_at(int index);           /* NULL after the last */
const ls_device *ls_device_named(const char *name); /* NULL if no device has this name */
int ls_device_index(const ls_device *device);
/*
 * Returns a registered device, or opens one (device_open.c). Returns NULL with an error that lists the available
 * devices for `call`; LS_ERR_ARGUMENT if the name is not a device name.
 */
const ls_device *ls_device_find(const char *call, const char *name);
/* Registers a device permanently. Fails with LS_ERR_STATE if the name is in use or the table is full. */
ls_status ls_device_add(const ls_device *device) LS_WARN_UNUSED;

/* Replaces missing kernels of a device by kernels that fail with LS_ERR_UNSUPPORTED and the kernel's name. */
void ls_kernels_complete(ls_kernels *kernels);

/*
 * Returns the device set by ls_use_device for this thread; NULL with the error noted if LOCKSTEP_DEVICE is not a
 * device.
 */
const ls_device *ls_device_default(void);

static inline const ls_kernels *ls_device_kernels(const ls_device *device) {
    return __atomic_load_n(&device->kernels, __ATOMIC_RELAXED);
}

/* The kernels and the default stream of a tensor's device. */
static inline const ls_kernels *ls_kernels_of(const ls_tensor *tensor) {
    return ls_device_kernels(tensor->storage->device);
}
static inline ls_stream *ls_device_stream(const ls_device *device) {
    return device->default_stream(device);
}
static inline ls_stream *ls_stream_of(const ls_tensor *tensor) {
    return ls_device_stream(tensor->storage->device);
}

/* Returns the elements of a tensor whose device is_host. */
static inline void *ls_host_data(const ls_tensor *tensor) {
    return tensor->data;
}

/* Copy bytes to the host and from it; done on return. */
ls_status ls_device_fetch(const ls_device *device, void *host, const void *memory, size_t bytes);
ls_status ls_device_store(const ls_device *device, void *memory, const void *host, size_t bytes);

/*
 * The elements of a dense tensor in host memory: the tensor's own memory on the CPU, otherwise pinned memory. They are
 * copied to it (`read`), and ls_host_view_end copies them back (`write`, if its status is LS_OK). The tensor must not
 * be freed in between. For communication, files and computation by the program itself.
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
