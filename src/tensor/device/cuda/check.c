/* Error messages of checks in kernels: the same as the messages from the CPU's kernels. */
#include "base/status.h"
#include "tensor/device/cuda/stream.h"

ls_status ls_cuda_check_failed(ls_cuda_check check, const char *name, int64_t position, int64_t value, int64_t limit,
                               int axis) {
    const long long p = position, v = value, l = limit;
    switch (check) {
    case LS_CUDA_CHECK_TARGET:
        return ls_fail(LS_ERR_ARGUMENT, LS_TARGET_MESSAGE, p, v, l);
    case LS_CUDA_CHECK_LENGTH:
        return ls_fail(LS_ERR_ARGUMENT, "lengths[%lld] is %lld, but x has %lld steps", p, v, l - 1);
    default:
        return ls_fail(LS_ERR_ARGUMENT, "%s: index %lld at position %lld is out of range for axis %d of size %lld",
                       name, v, p, axis, l);
    }
}
