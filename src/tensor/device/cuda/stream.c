/*
 * Streams, events and copies of a GPU. Each thread has a default stream on each GPU, which is created on first use and
 * freed with the thread.
 */
#include <stdlib.h>
#include <string.h>

#include "tensor/device/cuda/runtime.h"

/* ---- errors ------------------------------------------------------------------------------------------------------ */

ls_status ls_cuda_status(const ls_gpu *gpu, const char *doing, cudaError_t error) {
    if (error == cudaSuccess) {
        return LS_OK;
    }
    (void)cudaGetLastError(); /* the next kernel would otherwise report this error */
    return ls_fail(LS_ERR_DEVICE, "%s: %s: %s (%s)", gpu->name, doing, cudaGetErrorString(error),
                   cudaGetErrorName(error));
}

/* Reports a failure of earlier work. CUDA does not say which kernel failed. */
static ls_status late_status(const ls_stream *stream, cudaError_t error) {
    return error == cudaSuccess
               ? LS_OK
               : ls_fail(LS_ERR_DEVICE,
                         "%s: %s (%s) in a kernel at or before \"%s\"; set LOCKSTEP_CUDA_WAIT=1 to find the kernel",
                         stream->gpu->name, cudaGetErrorString(error), cudaGetErrorName(error),
                         stream->last != NULL ? stream->last : "(none)");
}

static bool waits_for_each(void) {
    static _Atomic int wanted = -1;
    if (wanted < 0) {
        const char *text = getenv("LOCKSTEP_CUDA_WAIT");
        wanted = text != NULL && strcmp(text, "1") == 0;
    }
    return wanted == 1;
}

cudaStream_t ls_cuda_stream(ls_stream *stream) {
    ls_cuda_use(stream->gpu);
    return stream->cuda;
}

ls_status ls_cuda_launched(ls_stream *stream, const char *name) {
    cudaError_t error = cudaGetLastError();
    stream->last = name;
    if (error != cudaSuccess) {
        return ls_fail(LS_ERR_DEVICE, "%s: kernel \"%s\" could not be started: %s (%s)", stream->gpu->name, name,
                       cudaGetErrorString(error), cudaGetErrorName(error));
    }
    if (ls_cuda_profiles()) {
        ls_cuda_profile_kernel(stream, name);
    }
    if (waits_for_each() && (error = cudaStreamSynchronize(stream->cuda)) != cudaSuccess) {
        return ls_fail(LS_ERR_DEVICE, "%s: kernel \"%s\": %s (%s)", stream->gpu->name, name, cudaGetErrorString(error),
                       cudaGetErrorName(error));
    }
    return LS_OK;
}

ls_cuda_fault *ls_cuda_stream_fault(ls_stream *stream) {
    return stream->fault;
}

/* ---- creation and destruction ------------------------------------------------------------------------------------ */

static ls_gpu *gpu_of(const ls_device *device) {
    return device->state;
}

static ls_stream *make_stream(ls_gpu *gpu) {
    ls_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        return NULL;
    }
    ls_cuda_use(gpu);
    stream->gpu = gpu;
    if (cudaStreamCreateWithFlags(&stream->cuda, cudaStreamNonBlocking) != cudaSuccess ||
        cudaHostAlloc((void **)&stream->fault, sizeof *stream->fault, cudaHostAllocMapped | cudaHostAllocPortable) !=
            cudaSuccess) {
        ls_cuda_host->log_write(LS_LOG_ERROR, "%s: no stream: %s", gpu->name, cudaGetErrorString(cudaGetLastError()));
        if (stream->cuda != NULL) {
            (void)cudaStreamDestroy(stream->cuda);
        }
        free(stream);
        return NULL;
    }
    memset(stream->fault, 0, sizeof *stream->fault);
    return stream;
}

static void stream_free(ls_stream *stream) {
    if (stream == NULL) {
        return;
    }
    ls_cuda_use(stream->gpu);
    (void)cudaStreamSynchronize(stream->cuda);
    for (int i = 0; i < LS_CUDA_SLOTS; i++) {
        if (stream->slot[i].state != NULL) {
            stream->slot[i].end(stream->slot[i].state);
        }
    }
    ls_cuda_profile_end(stream);
    ls_cuda_memory_end(stream);
    (void)cudaFreeHost(stream->fault);
    (void)cudaStreamDestroy(stream->cuda);
    free(stream);
}

static ls_stream *stream_new(const ls_device *self) {
    return make_stream(gpu_of(self));
}

void **ls_cuda_stream_slot(ls_stream *stream, ls_cuda_slot which, void (*end)(void *state)) {
    ls_cuda_use(stream->gpu); /* so that the GPU is current when the caller calls the library */
    stream->slot[which].end = end;
    return &stream->slot[which].state;
}

/* ---- default streams of threads ---------------------------------------------------------------------------------- */

typedef struct thread_streams {
    ls_stream *of[LS_MOST_DEVICES];
} thread_streams;

static pthread_key_t streams_key;
static pthread_once_t streams_once = PTHREAD_ONCE_INIT;
static _Thread_local thread_streams *streams_here;

static void end_streams(void *argument) {
    thread_streams *streams = argument;
    for (int i = 0; i < LS_MOST_DEVICES; i++) {
        stream_free(streams->of[i]);
    }
    free(streams);
    streams_here = NULL;
}

static void make_key(void) {
    (void)pthread_key_create(&streams_key, end_streams);
}

ls_stream *ls_cuda_own_stream(ls_gpu *gpu) {
    if (streams_here == NULL) {
        (void)pthread_once(&streams_once, make_key);
        thread_streams *made = calloc(1, sizeof *made);
        if (made == NULL || pthread_setspecific(streams_key, made) != 0) {
            free(made);
            ls_cuda_host->log_write(LS_LOG_ERROR, "%s: no memory for a thread's streams", gpu->name);
            return NULL;
        }
        streams_here = made;
    }
    ls_stream **stream = &streams_here->of[gpu->device.index];
    *stream = *stream != NULL ? *stream : make_stream(gpu);
    return *stream;
}

/*
 * The thread that opens a GPU creates its default stream then, and gets an error if that fails. For later threads,
 * there is no way to report an error.
 */
static ls_stream *default_stream(const ls_device *self) {
    ls_stream *stream = ls_cuda_own_stream(gpu_of(self));
    if (stream == NULL) {
        abort();
    }
    return stream;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void *allocate(const ls_device *self, size_t bytes) {
    return ls_cuda_memory_take(default_stream(self), bytes);
}

static void release(const ls_device *self, void *memory, size_t bytes) {
    ls_cuda_memory_give(default_stream(self), memory, bytes);
}

static void *allocate_pinned(const ls_device *self, size_t bytes) {
    return ls_cuda_pinned_take(gpu_of(self), bytes);
}

static void release_pinned(const ls_device *self, void *memory, size_t bytes) {
    ls_cuda_pinned_give(gpu_of(self), memory, bytes);
}

void *ls_cuda_scratch_take(ls_stream *stream, size_t bytes) {
    return ls_cuda_memory_take(stream, bytes);
}

void ls_cuda_scratch_give(ls_stream *stream, void *memory, size_t bytes) {
    ls_cuda_memory_give(stream, memory, bytes);
}

/* ---- waiting and copies ------------------------------------------------------------------------------------------ */

static ls_status stream_wait(ls_stream *stream) {
    ls_cuda_use(stream->gpu);
    ls_cuda_profile_collect(stream);
    LS_TRY(late_status(stream, cudaStreamSynchronize(stream->cuda)));
    const ls_cuda_fault found = *stream->fault;
    if (found.check == 0) {
        return LS_OK;
    }
    stream->fault->check = 0;
    return ls_cuda_check_failed((ls_cuda_check)found.check, found.name, found.position, found.value, found.limit,
                                found.axis);
}

static void *library_stream(ls_stream *stream) {
    return ls_cuda_stream(stream);
}

static ls_status copy_bytes(ls_stream *stream, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    return bytes == 0
               ? LS_OK
               : ls_cuda_status(stream->gpu, "copy", cudaMemcpyAsync(to, from, bytes, kind, ls_cuda_stream(stream)));
}

static ls_status copy(ls_stream *stream, void *to, const void *from, size_t bytes) {
    return copy_bytes(stream, to, from, bytes, cudaMemcpyDeviceToDevice);
}

static ls_status copy_to_host(ls_stream *stream, void *host, const void *memory, size_t bytes) {
    return copy_bytes(stream, host, memory, bytes, cudaMemcpyDeviceToHost);
}

static ls_status copy_from_host(ls_stream *stream, void *memory, const void *host, size_t bytes) {
    return copy_bytes(stream, memory, host, bytes, cudaMemcpyHostToDevice);
}

static ls_status clear(ls_stream *stream, void *memory, size_t bytes) {
    return bytes == 0 ? LS_OK
                      : ls_cuda_status(stream->gpu, "clear", cudaMemsetAsync(memory, 0, bytes, ls_cuda_stream(stream)));
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

struct ls_event {
    const ls_gpu *gpu;
    cudaEvent_t cuda;
};

static ls_event *event_new(const ls_device *self) {
    ls_event *event = calloc(1, sizeof *event);
    if (event == NULL) {
        return NULL;
    }
    event->gpu = gpu_of(self);
    ls_cuda_use(event->gpu);
    if (cudaEventCreateWithFlags(&event->cuda, cudaEventDisableTiming) != cudaSuccess) {
        (void)cudaGetLastError();
        free(event);
        return NULL;
    }
    return event;
}

static void event_free(ls_event *event) {
    if (event != NULL) {
        ls_cuda_use(event->gpu);
        (void)cudaEventDestroy(event->cuda);
        free(event);
    }
}

static ls_status event_record(ls_event *event, ls_stream *stream) {
    return ls_cuda_status(stream->gpu, "event", cudaEventRecord(event->cuda, ls_cuda_stream(stream)));
}

static ls_status event_wait(ls_event *event, ls_stream *stream) {
    return ls_cuda_status(stream->gpu, "event", cudaStreamWaitEvent(ls_cuda_stream(stream), event->cuda, 0));
}

static bool event_done(const ls_event *event) {
    ls_cuda_use(event->gpu);
    const bool done = cudaEventQuery(event->cuda) != cudaErrorNotReady;
    (void)cudaGetLastError(); /* the next kernel would otherwise report "not ready" */
    return done;
}

void ls_cuda_fill_device(ls_device *device) {
    device->allocate = allocate;
    device->release = release;
    device->allocate_pinned = allocate_pinned;
    device->release_pinned = release_pinned;
    device->default_stream = default_stream;
    device->stream_new = stream_new;
    device->stream_free = stream_free;
    device->stream_wait = stream_wait;
    device->library_stream = library_stream;
    device->event_new = event_new;
    device->event_free = event_free;
    device->event_record = event_record;
    device->event_wait = event_wait;
    device->event_done = event_done;
    device->copy = copy;
    device->clear = clear;
    device->copy_to_host = copy_to_host;
    device->copy_from_host = copy_from_host;
}
