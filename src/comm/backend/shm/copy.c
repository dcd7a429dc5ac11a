#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "comm/backend/shm/shm.h"

#if defined(__SSE2__)
enum { LINE = 64, PAGE = 4096 };

/* Copies whole cache lines. `to` is at the beginning of a line. */
static void stream_lines(unsigned char *to, const unsigned char *from, size_t lines) {
    for (; lines != 0; lines--, to += LINE, from += LINE) {
        const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
        const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
        const __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
        const __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));
        _mm_stream_si128((__m128i *)(void *)to, a);
        _mm_stream_si128((__m128i *)(void *)(to + 16), b);
        _mm_stream_si128((__m128i *)(void *)(to + 32), c);
        _mm_stream_si128((__m128i *)(void *)(to + 48), d);
    }
    _mm_sfence();
}

/* Does the same with `to` at any address, and with ordinary stores. */
static void store_lines(unsigned char *to, const unsigned char *from, size_t lines) {
    for (; lines != 0; lines--, to += LINE, from += LINE) {
        const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
        const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
        const __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
        const __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));
        _mm_storeu_si128((__m128i *)(void *)to, a);
        _mm_storeu_si128((__m128i *)(void *)(to + 16), b);
        _mm_storeu_si128((__m128i *)(void *)(to + 32), c);
        _mm_storeu_si128((__m128i *)(void *)(to + 48), d);
    }
}

/* Returns true if memcpy would take many times longer than necessary. */
static bool is_slow(const unsigned char *to, const unsigned char *from, size_t bytes) {
    const size_t behind = ((uintptr_t)to - (uintptr_t)from) % PAGE;
    return bytes >= LS_SHM_COPY_BY_INSTRUCTION && behind - 1 < LS_SHM_COPY_BEHIND - 1;
}

void ls_shm_copy(void *into, const void *from, size_t bytes, size_t all) {
    unsigned char *to = into;
    const unsigned char *source = from;
    size_t done = 0;
    if (all >= LS_SHM_COPY_PAST_CACHE && bytes >= LINE) {
        const size_t head = (LINE - ((uintptr_t)to & (LINE - 1))) & (LINE - 1);
        const size_t lines = (bytes - head) / LINE;
        memcpy(to, source, head);
        stream_lines(to + head, source + head, lines);
        done = head + lines * LINE;
    } else if (is_slow(to, source, bytes)) {
        store_lines(to, source, bytes / LINE);
        done = bytes / LINE * LINE;
    }
    memcpy(to + done, source + done, bytes - done);
}
#else
void ls_shm_copy(void *into, const void *from, size_t bytes, size_t all) {
    (void)all;
    memcpy(into, from, bytes);
}
#endif
