/* Memory in pages that can be given back to the system one by one. */
#ifndef LS_BASE_PAGES_H
#define LS_BASE_PAGES_H

#include <stddef.h>

/* Reserves addresses for `bytes` bytes, which read as zero. A page uses memory from its first change on. NULL: failed.
 */
void *ls_pages_reserve(size_t bytes);

/* Gives back the pages that lie wholly between two addresses of such memory. They read as zero afterwards. */
void ls_pages_discard(void *from, void *to);

/* Gives back the free memory of malloc, as far as the C library can. */
void ls_pages_trim(void);

void ls_pages_release(void *memory, size_t bytes);

#endif
