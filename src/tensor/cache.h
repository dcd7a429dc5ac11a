/*
 * Each thread's cache of memory blocks, under the tensor records and under the CPU's tensors, so that a program in its
 * steady state asks the allocator for nothing. Blocks come in size classes (64 bytes apart up to 1 KiB, then four to a
 * doubling); a freed block goes to the cache of the thread that frees it and is handed out again last in, first out.
 *
 * Under a sanitizer nothing is cached, so that it sees every use after free.
 */
#ifndef LS_TENSOR_CACHE_H
#define LS_TENSOR_CACHE_H

#include <stddef.h>
#include <stdint.h>

#define LS_CACHE_ALIGNMENT   64
#define LS_CACHE_FINE_BINS   16
#define LS_CACHE_BINS        (LS_CACHE_FINE_BINS + 4 * 36) /* up to 64 TiB */
#define LS_CACHE_LEAST_LIMIT ((size_t)64 << 20)

typedef struct ls_cache_block {
    struct ls_cache_block *next;
} ls_cache_block;

/*
 * `held` may not pass `limit`: 64 MiB or the most that this thread itself has fetched from the allocator and not given
 * back, so that a thread that only frees what others allocate does not gather memory without end.
 */
typedef struct ls_cache {
    ls_cache_block *bins[LS_CACHE_BINS];
    size_t held;
    size_t limit;
    int64_t fetched;
} ls_cache;

void ls_cache_init(ls_cache *cache);

/* Gives every block back to the allocator. */
void ls_cache_empty(ls_cache *cache);

/* The slow ends of the calls below. */
void *ls_cache_fetch(ls_cache *cache, size_t bytes);
void ls_cache_give_back(ls_cache *cache, void *memory, size_t bytes);

static inline int ls_cache_bin(size_t bytes) {
    if (bytes <= (size_t)LS_CACHE_FINE_BINS * LS_CACHE_ALIGNMENT) {
        return (int)((bytes - (bytes > 0)) / LS_CACHE_ALIGNMENT);
    }
    const int top = 63 - __builtin_clzll(bytes - 1); /* at least 10 */
    return LS_CACHE_FINE_BINS + (top - 10) * 4 + (int)((bytes - 1) >> (top - 2) & 3U);
}

static inline size_t ls_cache_bin_bytes(int bin) {
    if (bin < LS_CACHE_FINE_BINS) {
        return (size_t)(bin + 1) * LS_CACHE_ALIGNMENT;
    }
    return (size_t)(5 + bin % 4) << (8 + (bin - LS_CACHE_FINE_BINS) / 4);
}

/* `bytes` bytes aligned to 64, not cleared; NULL, with no message, when there are none. */
static inline void *ls_cache_allocate(ls_cache *cache, size_t bytes) {
#ifndef LS_SANITIZED
    const int bin = ls_cache_bin(bytes);
    ls_cache_block *block = bin < LS_CACHE_BINS ? cache->bins[bin] : NULL;
    if (__builtin_expect(block != NULL, 1)) {
        cache->bins[bin] = block->next;
        cache->held -= ls_cache_bin_bytes(bin);
        return block;
    }
#endif
    return ls_cache_fetch(cache, bytes);
}

/* Takes back what ls_cache_allocate gave to any thread; `bytes` as it was asked for. */
static inline void ls_cache_release(ls_cache *cache, void *memory, size_t bytes) {
#ifndef LS_SANITIZED
    const int bin = ls_cache_bin(bytes);
    const size_t size = ls_cache_bin_bytes(bin);
    if (__builtin_expect(cache->held + size <= cache->limit, 1)) {
        ls_cache_block *block = memory;
        block->next = cache->bins[bin];
        cache->bins[bin] = block;
        cache->held += size;
        return;
    }
#endif
    ls_cache_give_back(cache, memory, bytes);
}

#endif
