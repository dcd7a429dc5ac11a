#include "comm/transport/place.h"

#include <stdbool.h>

static uint64_t machine_of(const uint64_t *machine, size_t stride, int rank) {
    return *(const uint64_t *)(const void *)((const char *)machine + stride * (size_t)rank);
}

/* Returns true if each block of `width` ranks is on one machine. The caller has already checked this for each half
 * of a block. */
static bool is_together(const uint64_t *machine, size_t stride, int size, int width) {
    for (int first = 0; first + width / 2 < size; first += width) {
        if (machine_of(machine, stride, first) != machine_of(machine, stride, first + width / 2)) {
            return false;
        }
    }
    return true;
}

ls_place ls_place_find(const uint64_t *machine, size_t stride, int size) {
    ls_place place = {.block_ranks = 1, .largest_machine = 1};
    while (place.block_ranks < size && is_together(machine, stride, size, 2 * place.block_ranks)) {
        place.block_ranks *= 2;
    }
    for (int first = 0; first < size && place.block_ranks > 1; first += place.block_ranks) {
        int ranks = 0;
        for (int other = first; other < size; other += place.block_ranks) {
            const int block = size - other < place.block_ranks ? size - other : place.block_ranks;
            const bool same = machine_of(machine, stride, other) == machine_of(machine, stride, first);
            ranks += same ? block : 0;
        }
        place.largest_machine = ranks > place.largest_machine ? ranks : place.largest_machine;
    }
    return place;
}
