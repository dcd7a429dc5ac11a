/* Memory through the hooks of ls_set_allocator. Nothing in the core calls malloc itself. */
#ifndef LS_BASE_MEMORY_H
#define LS_BASE_MEMORY_H

#include <stddef.h>

/* `size` bytes (0 gives a unique pointer too), aligned to 16, not cleared; NULL when there are none, with no message.
 */
void *ls_allocate(size_t size);

/* The same with an alignment, a power of two. */
void *ls_allocate_aligned(size_t size, size_t alignment);

/* count * size bytes, cleared; NULL on overflow too. */
void *ls_allocate_zeroed(size_t count, size_t size);

/* A larger or smaller block with the first min(old_size, new_size) bytes kept; on NULL the old block is untouched. */
void *ls_reallocate(void *memory, size_t old_size, size_t new_size);

/*
 * `items`, of which there are `count`, with room for one more: the same memory, or a larger block with them in it. The
 * room doubles, so it follows from the count; an array that began as NULL grows by this call alone. On NULL it is as it
 * was.
 */
void *ls_grow(void *items, size_t count, size_t size);

/* A copy of a string; NULL when there is no memory or text is NULL. */
char *ls_duplicate_string(const char *text);

/* Gives back what the calls above gave. NULL is allowed. */
void ls_free(void *memory);

#endif
