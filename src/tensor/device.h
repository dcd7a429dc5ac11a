/*
 * The boundary to the devices that hold and compute tensors. A device gives memory, streams, events, asynchronous
 * copies and a table of kernels. Everything a stream is asked to do happens in order and may happen later; the CPU does
 * it at once. Only the folder of a device knows how.
 */
#ifndef LS_TENSOR_DEVICE_H
#define LS_TENSOR_DEVICE_H

#include "tensor/kernels.h"
#include "tensor/tensor.h"

typedef struct ls_event ls_event;

struct ls_device {
    const char *name; /* "cpu" */
    const ls_kernels *kernels;

    /* Memory: cached, aligned to 64 bytes, not cleared; NULL when there is none. Any thread may release what another
     * allocated. */
    void *(*allocate)(size_t bytes);
    void (*release)(void *memory, size_t bytes);

    /* Streams. The default stream of the calling thread is never freed. */
    ls_stream *(*default_stream)(void);
    ls_stream *(*stream_new)(void);
    void (*stream_free)(ls_stream *stream);
    ls_status (*stream_wait)(ls_stream *stream); /* until all it was asked to do is done */

    /* Events mark a point in a stream. */
    ls_event *(*event_new)(void);
    void (*event_free)(ls_event *event);
    ls_status (*event_record)(ls_event *event, ls_stream *stream);
    ls_status (*event_wait)(ls_event *event, ls_stream *stream); /* the stream waits, not the caller */
    bool (*event_done)(const ls_event *event);

    /* Copies between this device and the CPU, either way, in the stream's order. */
    ls_status (*copy_to_host)(ls_stream *stream, void *host, const void *memory, size_t bytes);
    ls_status (*copy_from_host)(ls_stream *stream, void *memory, const void *host, size_t bytes);
};

extern const ls_device ls_cpu;

/* The kernels and the default stream of the device a tensor lives on. */
static inline const ls_kernels *ls_kernels_of(const ls_tensor *tensor) {
    return tensor->storage->device->kernels;
}
static inline ls_stream *ls_stream_of(const ls_tensor *tensor) {
    return tensor->storage->device->default_stream();
}

#endif
