#include "base/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "base/status.h"

enum { NOT_TRIED = 0, OPEN, FAILED };

static int open_library(ls_library *library) {
    void *handle = NULL;
    for (int i = 0; i < LS_LIBRARY_FILES && library->files[i] != NULL && handle == NULL; i++) {
        handle = dlopen(library->files[i], RTLD_NOW | RTLD_LOCAL);
    }
    if (handle == NULL) {
        const char *reason = dlerror();
        (void)snprintf(library->failure, sizeof library->failure, "%s cannot be opened (%.120s): install %s or newer",
                       library->title, reason != NULL ? reason : "no reason given", library->package);
        return FAILED;
    }
    for (int i = 0; i < LS_LIBRARY_FUNCTIONS && library->functions[i] != NULL; i++) {
        library->pointers[i] = dlsym(handle, library->functions[i]);
        if (library->pointers[i] == NULL && (library->required == 0 || i < library->required)) {
            (void)snprintf(library->failure, sizeof library->failure, "%s has no function %s", library->title,
                           library->functions[i]);
            (void)dlclose(handle);
            return FAILED;
        }
    }
    return OPEN;
}

const void *ls_library_get(ls_library *library) {
    static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
    if (atomic_load_explicit(&library->state, memory_order_acquire) == NOT_TRIED) {
        (void)pthread_mutex_lock(&opening);
        if (atomic_load_explicit(&library->state, memory_order_relaxed) == NOT_TRIED) {
            atomic_store_explicit(&library->state, open_library(library), memory_order_release);
        }
        (void)pthread_mutex_unlock(&opening);
    }
    if (atomic_load_explicit(&library->state, memory_order_relaxed) == FAILED) {
        return ls_fail_null(LS_ERR_UNSUPPORTED, "%s: %s", library->use, library->failure);
    }
    return library->pointers;
}
