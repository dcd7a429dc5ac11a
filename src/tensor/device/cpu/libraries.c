#include "tensor/device/cpu/libraries.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* One library: the file names it goes by, newest first, the functions wanted of it, and what came of opening it. */
typedef struct library {
    const char *title;
    const char *package; /* Debian's, for the message */
    const char *const *files;
    const char *const *functions;
    void **pointers;
    int count;
    char failure[256];
} library;

static void library_open(library *lib) {
    void *handle = NULL;
    for (const char *const *file = lib->files; handle == NULL && *file != NULL; file++) {
        handle = dlopen(*file, RTLD_NOW | RTLD_LOCAL);
    }
    if (handle == NULL) {
        const char *reason = dlerror();
        (void)snprintf(lib->failure, sizeof lib->failure,
                       "%s cannot be opened (%.120s): install %s, or a later version of it", lib->title,
                       reason != NULL ? reason : "no reason given", lib->package);
        return;
    }
    for (int i = 0; i < lib->count; i++) {
        lib->pointers[i] = dlsym(handle, lib->functions[i]);
        if (lib->pointers[i] == NULL) {
            (void)snprintf(lib->failure, sizeof lib->failure, "%s has no function %s", lib->title, lib->functions[i]);
            return;
        }
    }
}

static ls_status library_status(const library *lib) {
    return lib->failure[0] == '\0' ? LS_OK : ls_fail(LS_ERR_UNSUPPORTED, "matrix product: %s", lib->failure);
}

static const char *const onednn_files[] = {"libdnnl.so.3", "libdnnl.so.2", NULL};
static const char *const onednn_functions[] = {"dnnl_sgemm"};
static void *onednn_pointers[1];
static library onednn = {.title = "oneDNN",
                         .package = "libdnnl2",
                         .files = onednn_files,
                         .functions = onednn_functions,
                         .pointers = onednn_pointers,
                         .count = 1};
static ls_onednn onednn_calls;

static void onednn_open_once(void) {
    library_open(&onednn);
    memcpy(&onednn_calls, onednn_pointers, sizeof onednn_calls);
}

const ls_onednn *ls_onednn_open(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, onednn_open_once);
    return library_status(&onednn) == LS_OK ? &onednn_calls : NULL;
}

static const char *const openblas_files[] = {"libopenblas.so.0", NULL};
static const char *const openblas_functions[] = {"cblas_dgemm"};
static void *openblas_pointers[1];
static library openblas = {.title = "OpenBLAS",
                           .package = "libopenblas0-openmp",
                           .files = openblas_files,
                           .functions = openblas_functions,
                           .pointers = openblas_pointers,
                           .count = 1};
static ls_openblas openblas_calls;

static void openblas_open_once(void) {
    library_open(&openblas);
    memcpy(&openblas_calls, openblas_pointers, sizeof openblas_calls);
}

const ls_openblas *ls_openblas_open(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, openblas_open_once);
    return library_status(&openblas) == LS_OK ? &openblas_calls : NULL;
}
