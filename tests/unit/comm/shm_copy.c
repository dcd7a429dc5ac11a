/*
 * ls_shm_copy copies the same bytes on each of its code paths, and writes none outside.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <string.h>

#include "comm/backend/shm/shm.h"

enum { ROOM = 3 * 4096 };

static _Alignas(4096) unsigned char source[ROOM];
static _Alignas(4096) unsigned char target[ROOM];
static unsigned char expected[ROOM];

static void copy(size_t into, size_t from, size_t bytes, size_t all) {
    memset(target, 0xee, sizeof target);
    memset(expected, 0xee, sizeof expected);
    memcpy(expected + into, source + from, bytes);
    ls_shm_copy(target + into, source + from, bytes, all);
    if (memcmp(target, expected, sizeof target) != 0) {
        fail_msg("%zu bytes from %zu to %zu, of %zu in all: not the same", bytes, from, into, all);
    }
}

/*
 * Tests targets before the source, at the same offset in a page, and shortly after it, and sizes around each switch
 * between code paths.
 */
TEST(same_bytes) {
    static const size_t sizes[] = {0, 1, 63, 64, 65, 127, 128, 2047, 2048, 2049, 2111, 2112, 4096 + 77};
    for (size_t i = 0; i < ROOM; i++) {
        source[i] = (unsigned char)(i * 31 + i / 251);
    }
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (size_t shift = 0; shift <= 160; shift++) {
            copy(128 + shift, 192, sizes[s], 0);
            copy(128 + shift, 192, sizes[s], SIZE_MAX);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
