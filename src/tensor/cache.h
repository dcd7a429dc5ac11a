/*
 * Each thread's cache of memory blocks, for tensor records and for the CPU's tensors. In steady state, a program does
 * not call the allocator. Blocks have size classes (64 bytes apart up to 1 KiB, then four per doubling). A freed block
 * goes to the cache of the thread that frees it, and is reused last in, first out.
 *
 * Nothing is cached under a sanitizer, so that it detects every use after free.
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
 * `held` may not exceed `limit`: 64 MiB, or the maximum that this thread itself has allocated and not freed, if that is
 * larger. So a thread that only frees other threads' memory does not accumulate memory without limit.
 */
typedef struct ls_cache {
    ls_cache_block *bins[LS_CACHE_BINS];
    size_t held;
    size_t limit;
    int64_t fetched;
} ls_cache;

void ls_cache_init(ls_cache *cache);

/* Returns every block to the allocator. */
void ls_cache_empty(ls_cache *cache);

/* The slow paths of the inline functions below. */
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

/* Returns `bytes` bytes of uninitialized memory aligned to 64 bytes. Returns NULL, without a message, if out of
 * memory. */
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

/* Frees memory returned by ls_cache_allocate on any thread; `bytes` is the requested size. */
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
