/* Libraries that are opened when they are first needed, and not linked. */
#ifndef LS_BASE_LIBRARY_H
#define LS_BASE_LIBRARY_H

#include <stdatomic.h>

/* A library: the names its file goes by, the functions wanted of it, where to put them, and what came of opening it. */
enum { LS_LIBRARY_FILES = 2, LS_LIBRARY_FUNCTIONS = 20 };
typedef struct ls_library {
    const char *use; /* what it is needed for, like its name and its package for the message */
    const char *title;
    const char *package; /* Debian's */
    const char *files[LS_LIBRARY_FILES];
    const char *functions[LS_LIBRARY_FUNCTIONS]; /* NULL after the last */
    int required;                                /* the first functions that the library must have; 0: all */
    void *pointers[LS_LIBRARY_FUNCTIONS];
    atomic_int state; /* 0: not tried yet */
    char failure[256];
} ls_library;

/* The library's functions, in their order; opens it the first time. NULL with LS_ERR_UNSUPPORTED. */
const void *ls_library_get(ls_library *library);

#endif
