/* Libraries that are not linked, but opened with dlopen on first use. */
#ifndef LS_BASE_LIBRARY_H
#define LS_BASE_LIBRARY_H

#include <stdatomic.h>

/* A library: possible file names, the functions that the caller needs, their addresses, and the result of opening it.
 */
enum { LS_LIBRARY_FILES = 2, LS_LIBRARY_FUNCTIONS = 20 };
typedef struct ls_library {
    const char *use;     /* the caller's task, for messages */
    const char *title;   /* the name, for messages */
    const char *package; /* Debian's package, for messages */
    const char *files[LS_LIBRARY_FILES];
    const char *functions[LS_LIBRARY_FUNCTIONS]; /* NULL after the last */
    int required; /* number of leading functions that the library must have; 0 means all */
    void *pointers[LS_LIBRARY_FUNCTIONS];
    atomic_int state; /* 0 if not tried yet */
    char failure[256];
} ls_library;

/* Returns the addresses of the functions, in the order of `functions`. The first call opens the library. Returns NULL
 * with LS_ERR_UNSUPPORTED if the library or one of the `required` functions is missing. The address of a missing
 * optional function is NULL. */
const void *ls_library_get(ls_library *library);

#endif
