#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/hash.h"

uint64_t ls_hash_long(uint64_t hash, const void *data, size_t size) {
    return XXH3_64bits_withSeed(data, size, hash);
}
