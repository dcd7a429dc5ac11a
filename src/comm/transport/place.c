#include "comm/transport/place.h"

#include <stdbool.h>

static uint64_t machine_of(const uint64_t *machine, size_t stride, int rank) {
    return *(const uint64_t *)(const void *)((const char *)machine + stride * (size_t)rank);
}

/* Whether each block of `width` ranks is on one machine, where that is so of halves of them. */
static bool is_together(const uint64_t *machine, size_t stride, int size, int width) {
    for (int first = 0; first + width / 2 < size; first += width) {
        if (machine_of(machine, stride, first) != machine_of(machine, stride, first + width / 2)) {
            return false;
        }
    }
    return true;
}

ls_place ls_place_find(const uint64_t *machine, size_t stride, int size) {
    ls_place place = {.together = 1, .crowd = 1};
    while (place.together < size && is_together(machine, stride, size, 2 * place.together)) {
        place.together *= 2;
    }
    for (int first = 0; first < size && place.together > 1; first += place.together) {
        int ranks = 0;
        for (int other = first; other < size; other += place.together) {
            const int block = size - other < place.together ? size - other : place.together;
            const bool same = machine_of(machine, stride, other) == machine_of(machine, stride, first);
            ranks += same ? block : 0;
        }
        place.crowd = ranks > place.crowd ? ranks : place.crowd;
    }
    return place;
}
