/*
 * Checks of numbers on the GPU. The first wrong number is stored in host memory, which stream_wait reads. On the host,
 * tests/shadow implements this function.
 */
#ifdef __CUDACC__

#include "tensor/device/cuda/launch.cuh"

namespace {

constexpr int64_t part_size = 8192; /* count of numbers that one team checks */

/* The permitted numbers: 0 up to limit, and `allowed` if has_allowed. */
struct permitted {
    int64_t limit, allowed;
    bool has_allowed;

    LS_BODY bool has(int64_t number) const {
        return (number >= 0 && number < limit) || (has_allowed && number == allowed);
    }
};

/* Returns to every member the index of the first wrong number of a part, or INT64_MAX if there is none. */
LS_BODY int64_t first_wrong(const ls::team &t, const permitted &rule, const int64_t *numbers, int64_t part,
                            int64_t count) {
    const int64_t end = (part + 1) * part_size < count ? (part + 1) * part_size : count;
    int64_t first = INT64_MAX;
    for (int64_t i = part * part_size + t.lane; i < end && first == INT64_MAX; i += t.size) {
        first = rule.has(numbers[i]) ? first : i;
    }
    return t.reduce(first, [](int64_t a, int64_t b) { return a < b ? a : b; });
}

} // namespace

ls_status ls_cuda_check_numbers(ls_stream *stream, ls_cuda_check check, const char *name, const int64_t *numbers,
                                int64_t count, int64_t limit, int axis, const int64_t *but) {
    const permitted rule = {limit, but != nullptr ? *but : 0, but != nullptr};
    const int64_t parts = (count + part_size - 1) / part_size;
    ls_cuda_fault *const fault = ls_cuda_stream_fault(stream);
    const ls::scratch room(stream, (size_t)(parts > 0 ? parts : 1) * sizeof(int64_t));
    LS_TRY(room.status(name));
    int64_t *const firsts = room.as<int64_t>();
    if (parts > 1) {
        LS_TRY(ls::teams<256>(stream, name, parts, [=] LS_BODY(ls::team & t, int64_t part) {
            const int64_t first = first_wrong(t, rule, numbers, part, count);
            if (t.lane == 0) {
                firsts[part] = first;
            }
        }));
    }
    /* One team reports the first wrong number, without atomic operations. */
    return ls::teams<256>(stream, name, parts > 0 ? 1 : 0, [=] LS_BODY(ls::team & t, int64_t) {
        int64_t first = parts > 1 ? INT64_MAX : first_wrong(t, rule, numbers, 0, count);
        for (int64_t part = t.lane; part < parts && parts > 1; part += t.size) {
            first = firsts[part] < first ? firsts[part] : first;
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
