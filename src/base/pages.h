/* Memory whose pages can be returned to the system one by one. */
#ifndef LS_BASE_PAGES_H
#define LS_BASE_PAGES_H

#include <stddef.h>

/* Reserves an address range of `bytes` bytes, which reads as zero. A page uses memory only after its first change.
   Returns NULL on failure. */
void *ls_pages_reserve(size_t bytes);

/* Returns to the system the pages that lie entirely between two addresses of such memory. They read as zero
 * afterward. */
void ls_pages_discard(void *from, void *to);

/* Returns free memory of malloc to the system, as far as the C library can. */
void ls_pages_trim(void);

void ls_pages_release(void *memory, size_t bytes);

#endif
