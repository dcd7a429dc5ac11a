/* FNV-1a of 64 bits (Fowler, Noll, Vo): tells contents apart, keeps no secret. */
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

#endif
