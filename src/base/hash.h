/* 64-bit hashes, not cryptographic: FNV-1a (Fowler, Noll, Vo) for short data and XXH3 for long data. */
#ifndef LS_BASE_HASH_H
#define LS_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define LS_HASH_START UINT64_C(0xcbf29ce484222325)

/* Appends bytes to the data of `hash`, and returns the new hash. LS_HASH_START is the hash of an empty sequence. */
static inline uint64_t ls_hash(uint64_t hash, const void *data, size_t size) {
    const unsigned char *bytes = data;
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* Same as ls_hash with XXH3, whose seed is `hash`. Runs at memory bandwidth. */
uint64_t ls_hash_long(uint64_t hash, const void *data, size_t size);

#endif
