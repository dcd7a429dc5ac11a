/*
 * A real GPU for tests: if LOCKSTEP_DEVICE names a GPU, all tests of the program use it. It is the device of module
 * cuda, except that changes which a test made through elements() are stored before each request.
 */
#include <stdlib.h>
#include <string.h>

#include "tensor/device/cuda/cuda.h"
#include "tests/shadow/shadow.h"

static const ls_device *gpu;
static ls_device checked;

#define ASK_MAP(name, operand_count, parameter_count)                                                                  \
    static ls_status gpu_##name(LS_PARAMETERS_map) {                                                                   \
        shadow_store_edits(stream);                                                                                    \
        return gpu->kernels->name(stream, y, operands, parameters);                                                    \
    }
#define ASK(name, type)                                                                                                \
    static ls_status gpu_##name(LS_PARAMETERS_##type) {                                                                \
        shadow_store_edits(stream);                                                                                    \
        return gpu->kernels->name(stream, NAMES_##type);                                                               \
    }
LS_MAPS(ASK_MAP)
LS_OTHER_KERNELS(ASK)

#define ROW_OF_MAP(name, operand_count, parameter_count) .name = gpu_##name,
#define ROW(name, type)                                  .name = gpu_##name,
static const ls_kernels kernels = {LS_MAPS(ROW_OF_MAP) LS_OTHER_KERNELS(ROW)};

static void release(const ls_device *self, void *memory, size_t bytes) {
    shadow_store_edits(gpu->default_stream(self));
    gpu->release(self, memory, bytes);
}

static ls_status copy(ls_stream *stream, void *to, const void *from, size_t bytes) {
    shadow_store_edits(stream);
    return gpu->copy(stream, to, from, bytes);
}

static ls_status clear(ls_stream *stream, void *memory, size_t bytes) {
    shadow_store_edits(stream);
    return gpu->clear(stream, memory, bytes);
}

static ls_status copy_to_host(ls_stream *stream, void *host, const void *memory, size_t bytes) {
    shadow_store_edits(stream);
    return gpu->copy_to_host(stream, host, memory, bytes);
}

static ls_status copy_from_host(ls_stream *stream, void *memory, const void *host, size_t bytes) {
    shadow_store_edits(stream);
    return gpu->copy_from_host(stream, memory, host, bytes);
}

static ls_status stream_wait(ls_stream *stream) {
    shadow_waits++;
    shadow_store_edits(stream);
    return gpu->stream_wait(stream);
}

static void *library_stream(ls_stream *stream) {
    shadow_store_edits(stream);
    return gpu->library_stream(stream);
}

void shadow_store_on_gpu(ls_stream *stream, void *place, const void *copied, size_t bytes) {
    if (bytes > 0 && gpu->copy_from_host(stream, place, copied, bytes) != LS_OK) {
        shadow_die(ls_error_message());
    }
}

/* The programs also support other devices, so an unavailable GPU is an error only when a test needs it. */
__attribute__((constructor(201))) static void add_gpu(void) {
    const char *wanted = getenv("LOCKSTEP_DEVICE");
    const ls_cuda *cuda = wanted != NULL && strncmp(wanted, "cuda", 4) == 0 ? ls_cuda_open() : NULL;
    const int index = cuda != NULL && wanted[4] == ':' ? atoi(wanted + 5) : 0;
    gpu = cuda != NULL && index < cuda->device_count ? cuda->device(index) : NULL;
    if (gpu == NULL) {
        return;
    }
    checked = *gpu;
    checked.kernels = &kernels;
    checked.release = release;
    checked.copy = copy;
    checked.clear = clear;
    checked.copy_to_host = copy_to_host;
    checked.copy_from_host = copy_from_host;
    checked.stream_wait = stream_wait;
    checked.library_stream = library_stream;
    if (ls_device_add(&checked) != LS_OK) {
        shadow_die("the GPU cannot be added");
    }
}
