/* Hashes of 64 bits, which tell contents apart and keep no secret: FNV-1a (Fowler, Noll, Vo), and XXH3 for much data.
 */
#ifndef LS_BASE_HASH_H
#define LS_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define LS_HASH_START UINT64_C(0xcbf29ce484222325)

/* The hash of what `hash` is of, LS_HASH_START: nothing, followed by these bytes. */
static inline uint64_t ls_hash(uint64_t hash, const void *data, size_t size) {
    const unsigned char *bytes = data;
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* XXH3 with `hash` as its seed: at the speed of memory. */
uint64_t ls_hash_long(uint64_t hash, const void *data, size_t size);

#endif
