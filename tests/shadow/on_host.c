/* What the kernels of device/cuda need of their stream, where they are compiled for the host: they run when they are
 * called, and fail at once. */
#include <stdlib.h>

#include "base/status.h"
#include "tensor/device/cuda/stream.h"

void *ls_cuda_scratch_take(ls_stream *stream, size_t bytes) {
    (void)stream;
    return malloc(bytes > 0 ? bytes : 1); /* so that sanitizers see its ends */
}

void ls_cuda_scratch_give(ls_stream *stream, void *memory, size_t bytes) {
    (void)stream;
    (void)bytes;
    free(memory);
}

ls_status ls_cuda_check_numbers(ls_stream *stream, ls_cuda_check check, const char *name, const int64_t *numbers,
                                int64_t count, int64_t limit, int axis, const int64_t *but) {
    (void)stream;
    for (int64_t i = 0; i < count; i++) {
        if ((numbers[i] < 0 || numbers[i] >= limit) && (but == NULL || numbers[i] != *but)) {
            return ls_cuda_check_failed(check, name, i, numbers[i], limit, axis);
        }
    }
    return LS_OK;
}
