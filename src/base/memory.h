/* Memory from the allocator of ls_set_allocator. The core does not call malloc directly. */
#ifndef LS_BASE_MEMORY_H
#define LS_BASE_MEMORY_H

#include <stddef.h>

/* Returns `size` bytes of uninitialized memory, aligned to 16 bytes. A size of 0 also gives a unique pointer.
 * Returns NULL, without setting an error, if out of memory. */
void *ls_allocate(size_t size);

/* Same as ls_allocate, with a different alignment, a power of two. */
void *ls_allocate_aligned(size_t size, size_t alignment);

/* Returns count * size bytes of zeroed memory. Returns NULL if out of memory or if the product overflows. */
void *ls_allocate_zeroed(size_t count, size_t size);

/* Same as ls_allocate_zeroed for the public function `call`: sets an error if out of memory. */
void *ls_allocate_for(const char *call, size_t count, size_t size);

/* Returns a block of `new_size` bytes with the first min(old_size, new_size) bytes of the old block, which it frees.
 * Returns NULL if out of memory; the old block is then unchanged. */
void *ls_reallocate(void *memory, size_t old_size, size_t new_size);

/*
 * Makes room for one more item in an array of `count` items of `size` bytes. Returns the same memory, or a larger block
 * that contains the items. The capacity doubles, so it follows from the count: an array that starts as NULL must grow
 * only through this function. Returns NULL if out of memory; the array is then unchanged.
 */
void *ls_grow(void *items, size_t count, size_t size);

/* Returns a copy of a string. Returns NULL if `text` is NULL or if out of memory. */
char *ls_duplicate_string(const char *text);

/* Frees memory allocated by the functions above. NULL is allowed. */
void ls_free(void *memory);

#endif
