#include "base/memory.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/base.h>

#include "base/status.h"

#define LS_DEFAULT_ALIGNMENT 16
#define LS_FIRST_ROOM        4 /* initial capacity in items, a power of two */

static void *system_allocate(size_t size, size_t alignment, void *user) {
    (void)user;
    if (alignment <= LS_DEFAULT_ALIGNMENT) {
        return malloc(size);
    }
    void *memory = NULL;
    return posix_memalign(&memory, alignment, size) == 0 ? memory : NULL;
}

static void system_release(void *memory, void *user) {
    (void)user;
    free(memory);
}

static ls_allocator allocator = {.allocate = system_allocate, .release = system_release};

void ls_set_allocator(const ls_allocator *replacement) {
    allocator =
        replacement != NULL ? *replacement : (ls_allocator){.allocate = system_allocate, .release = system_release};
}

void *ls_allocate_aligned(size_t size, size_t alignment) {
    return allocator.allocate(size > 0 ? size : 1, alignment, allocator.user);
}

void *ls_allocate(size_t size) {
    return ls_allocate_aligned(size, LS_DEFAULT_ALIGNMENT);
}

void *ls_allocate_zeroed(size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        return NULL;
    }
    void *memory = ls_allocate(bytes);
    if (memory != NULL) {
        memset(memory, 0, bytes);
    }
    return memory;
}

void *ls_allocate_for(const char *call, size_t count, size_t size) {
    void *memory = ls_allocate_zeroed(count, size);
    if (memory == NULL) {
        (void)ls_fail_memory(call, count * size);
    }
    return memory;
}

void *ls_reallocate(void *memory, size_t old_size, size_t new_size) {
    void *moved = ls_allocate(new_size);
    if (moved != NULL && memory != NULL) {
        memcpy(moved, memory, old_size < new_size ? old_size : new_size);
        ls_free(memory);
    }
    return moved;
}

void *ls_grow(void *items, size_t count, size_t size) {
    const bool full = count == 0 || (count >= LS_FIRST_ROOM && (count & (count - 1)) == 0);
    return full ? ls_reallocate(items, count * size, (count > 0 ? 2 * count : LS_FIRST_ROOM) * size) : items;
}

char *ls_duplicate_string(const char *text) {
    if (text == NULL) {
        return NULL;
    }
    const size_t size = strlen(text) + 1;
    char *copy = ls_allocate(size);
    return copy != NULL ? memcpy(copy, text, size) : NULL;
}

void ls_free(void *memory) {
    if (memory != NULL) {
        allocator.release(memory, allocator.user);
    }
}
