/*
 * Checks of numbers on the GPU. The first wrong number is stored in host memory, which stream_wait reads. On the host,
 * tests/shadow has this function.
 */
#ifdef __CUDACC__

#include "tensor/device/cuda/launch.cuh"

ls_status ls_cuda_check_numbers(ls_stream *stream, ls_cuda_check check, const char *name, const int64_t *numbers,
                                int64_t count, int64_t limit, int axis, const int64_t *but) {
    ls_cuda_fault *const fault = ls_cuda_stream_fault(stream);
    const bool has_but = but != nullptr;
    const int64_t allowed = has_but ? *but : 0;
    /* One team, which finds the first wrong number without atomic operations. */
    return ls::teams<1024>(stream, name, count > 0 ? 1 : 0, [=] LS_BODY(ls::team & t, int64_t) {
        int64_t first = INT64_MAX;
        for (int64_t i = t.lane; i < count && first == INT64_MAX; i += t.size) {
            const int64_t number = numbers[i];
            if ((number < 0 || number >= limit) && !(has_but && number == allowed)) {
                first = i;
            }
        }
        first = t.reduce(first, [](int64_t a, int64_t b) { return a < b ? a : b; });
        if (t.lane == 0 && first != INT64_MAX && fault->check == 0) {
            fault->axis = axis;
            fault->name = name;
            fault->position = first;
            fault->value = numbers[first];
            fault->limit = limit;
            fault->check = check;
        }
    });
}

#endif
