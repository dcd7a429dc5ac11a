#include "tensor/cache.h"

#include "base/memory.h"

void ls_cache_init(ls_cache *cache) {
    *cache = (ls_cache){.limit = LS_CACHE_LEAST_LIMIT};
}

void ls_cache_empty(ls_cache *cache) {
    for (int bin = 0; bin < LS_CACHE_BINS; bin++) {
        while (cache->bins[bin] != NULL) {
            ls_cache_block *block = cache->bins[bin];
            cache->bins[bin] = block->next;
            cache->held -= ls_cache_bin_bytes(bin);
            ls_cache_give_back(cache, block, ls_cache_bin_bytes(bin));
        }
    }
}

void *ls_cache_fetch(ls_cache *cache, size_t bytes) {
    const int bin = ls_cache_bin(bytes);
    if (bin >= LS_CACHE_BINS) {
        return NULL;
    }
#ifdef LS_SANITIZED
    (void)cache;
    return ls_allocate_aligned(bytes, LS_CACHE_ALIGNMENT); /* the exact size, so that sanitizers detect overruns */
#else
    const size_t size = ls_cache_bin_bytes(bin);
    void *memory = ls_allocate_aligned(size, LS_CACHE_ALIGNMENT);
    if (memory == NULL && cache->held > 0) {
        ls_cache_empty(cache);
        memory = ls_allocate_aligned(size, LS_CACHE_ALIGNMENT);
    }
    if (memory != NULL) {
        cache->fetched += (int64_t)size;
        if (cache->fetched > (int64_t)cache->limit) {
            cache->limit = (size_t)cache->fetched;
        }
    }
    return memory;
#endif
}

void ls_cache_give_back(ls_cache *cache, void *memory, size_t bytes) {
    cache->fetched -= (int64_t)ls_cache_bin_bytes(ls_cache_bin(bytes));
    ls_free(memory);
}
