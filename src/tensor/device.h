/*
 * The boundary to the devices that hold and compute tensors. A device is an object: a name, memory, streams, events,
 * asynchronous copies and a table of kernels. Everything a stream is asked to do happens in order and may happen later;
 * the CPU does it at once. What fails later is told by the next call that waits for the stream (stream_wait, and so
 * ls_item and all that reads elements), once, with the message of what failed. Only the folder of a device knows how,
 * and nothing outside src/tensor/device reads elements through a pointer unless the device is_host.
 *
 * A thread gives all its work to the device's default stream for that thread, so that memory which is released there
 * can be given out again at once: what comes to use it stands behind what used it before.
 */
#ifndef LS_TENSOR_DEVICE_H
#define LS_TENSOR_DEVICE_H

#include "tensor/kernels.h"
#include "tensor/tensor.h"

typedef struct ls_event ls_event;

struct ls_device {
    const char *name; /* "cpu", "cuda:1": what users call it */
    int index;        /* among the devices of its kind, from 0 */
    bool is_host;     /* what a kernel was asked is done when it returns, in memory that any code can read: the CPU */
    const ls_kernels *kernels;
    void *state;                                                 /* the device's own */
    bool (*gains_by)(const ls_device *self, ls_dtype rounds_to); /* NULL: not known. Whether such products are faster */

    /* Memory: cached, aligned to 64 bytes, not cleared; NULL, with no message, when there is none. It is tied to the
     * default stream of the calling thread: what is released may still be in use by what that was asked before. Any
     * thread may release what another allocated. */
    void *(*allocate)(const ls_device *self, size_t bytes);
    void (*release)(const ls_device *self, void *memory, size_t bytes);
    /* Memory of the host from and to which the device copies by itself; NULL when there is none. */
    void *(*allocate_pinned)(const ls_device *self, size_t bytes);
    void (*release_pinned)(const ls_device *self, void *memory, size_t bytes);

    /* Streams. The default stream of the calling thread is never freed. */
    ls_stream *(*default_stream)(const ls_device *self);
    ls_stream *(*stream_new)(const ls_device *self);
    void (*stream_free)(ls_stream *stream);
    ls_status (*stream_wait)(ls_stream *stream); /* until all it was asked to do is done */
    /* The stream as libraries of the device's maker know it: what the calling thread has one of them put into it,
     * before it asks another device for something, comes behind what the stream was asked so far. NULL: there are none.
     */
    void *(*library_stream)(ls_stream *stream);

    /* Events mark a point in a stream. */
    ls_event *(*event_new)(const ls_device *self);
    void (*event_free)(ls_event *event);
    ls_status (*event_record)(ls_event *event, ls_stream *stream);
    ls_status (*event_wait)(ls_event *event, ls_stream *stream); /* the stream waits, not the caller */
    bool (*event_done)(const ls_event *event);

    /* Bytes, in the stream's order: within the device, and between it and the host, whose memory must stay as it is
     * until the stream has come to it. */
    ls_status (*copy)(ls_stream *stream, void *to, const void *from, size_t bytes);
    ls_status (*clear)(ls_stream *stream, void *memory, size_t bytes);
    ls_status (*copy_to_host)(ls_stream *stream, void *host, const void *memory, size_t bytes);
    ls_status (*copy_from_host)(ls_stream *stream, void *memory, const void *host, size_t bytes);
};

extern const ls_device ls_cpu;

/* Those that are there: the CPU, and what was added. The index is a number for the life of the process. */
enum { LS_MOST_DEVICES = 64 };
const ls_device *ls_device_at(int index);           /* NULL behind the last */
const ls_device *ls_device_named(const char *name); /* NULL if there is none */
int ls_device_index(const ls_device *device);
/* One that is there, or that can be opened (device_open.c). NULL with an error, which says for `call` which
 * there are; LS_ERR_ARGUMENT where the name is none. */
const ls_device *ls_device_find(const char *call, const char *name);
/* Adds one, for good. LS_ERR_STATE when there is one of its name, or are too many. */
ls_status ls_device_add(const ls_device *device) LS_WARN_UNUSED;

/* Puts in place of the kernels that a device lacks ones that fail with LS_ERR_UNSUPPORTED and the kernel's name. */
void ls_kernels_complete(ls_kernels *kernels);

/* What ls_use_device says for this thread; NULL with the error noted when LOCKSTEP_DEVICE names none. */
const ls_device *ls_device_default(void);

/* The kernels and the default stream of the device a tensor lives on. */
static inline const ls_kernels *ls_kernels_of(const ls_tensor *tensor) {
    return tensor->storage->device->kernels;
}
static inline ls_stream *ls_device_stream(const ls_device *device) {
    return device->default_stream(device);
}
static inline ls_stream *ls_stream_of(const ls_tensor *tensor) {
    return ls_device_stream(tensor->storage->device);
}

/* The elements of a tensor whose device is_host. */
static inline void *ls_host_data(const ls_tensor *tensor) {
    return tensor->data;
}

/* Bytes to the host and from it; done on return. */
ls_status ls_device_fetch(const ls_device *device, void *host, const void *memory, size_t bytes);
ls_status ls_device_store(const ls_device *device, void *memory, const void *host, size_t bytes);

/*
 * The elements of a dense tensor where the host can reach them: the tensor's own memory on the CPU, else pinned memory
 * that they are copied to (`read`), and back from by ls_host_view_end (`write`, when its status is LS_OK). Between the
 * two the tensor must stay. For communication, files and what a program computes by itself.
 */
typedef struct ls_host_view {
    void *memory; /* NULL of an empty tensor, perhaps */
    const ls_tensor *tensor;
    bool copied;
    bool write;
} ls_host_view;

enum { LS_HOST_READ = 1, LS_HOST_WRITE = 2 };
ls_status ls_host_view_begin(ls_host_view *view, const ls_tensor *tensor, int access);
ls_status ls_host_view_end(ls_host_view *view, ls_status status);

#endif
