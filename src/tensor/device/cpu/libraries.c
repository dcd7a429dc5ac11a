#include "tensor/device/cpu/libraries.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/library.h"
#include "base/module_file.h"
#include "tensor/scope.h"

static ls_library openblas = {.use = "matrix product",
                              .title = "OpenBLAS",
                              .package = "libopenblas0-openmp",
                              .files = {"libopenblas.so.0"},
                              .functions = {"cblas_dgemm", "cblas_sgemm", "openblas_get_parallel",
                                            "openblas_get_num_threads", "openblas_set_num_threads"}};

const ls_openblas *ls_openblas_open(void) {
    return ls_library_get(&openblas);
}

enum { ON_PTHREADS = 1 };

static pthread_mutex_t single_lock = PTHREAD_MUTEX_INITIALIZER;
static int single_users; /* threads in between */
static int usual_threads;

/* The first thread in sets one thread, the last thread out sets what there was. */
static void count_single_users(int change) {
    const ls_openblas *library = ls_openblas_open();
    if (library->get_parallel() != ON_PTHREADS) {
        return;
    }
    (void)pthread_mutex_lock(&single_lock);
    if (single_users == 0) {
        usual_threads = library->get_num_threads();
        library->set_num_threads(1);
    }
    single_users += change;
    if (single_users == 0) {
        library->set_num_threads(usual_threads);
    }
    (void)pthread_mutex_unlock(&single_lock);
}

void ls_openblas_single_begin(void) {
    count_single_users(1);
}

void ls_openblas_single_end(void) {
    count_single_users(-1);
}

/* ---- oneDNN --------------------------------------------------------------------------------------------------------
 */

static pthread_once_t onednn_once = PTHREAD_ONCE_INIT;
static const ls_onednn *_Atomic onednn;
static ls_module_file onednn_file;

static void open_onednn(void) {
    static const ls_onednn_core core = {
        .allocate = ls_record_allocate, .release = ls_record_release, .fail_memory = ls_fail_memory};
    onednn_file = ls_module_file_open("onednn");
    if (onednn_file.handle == NULL) {
        return;
    }
    ls_onednn_module_function *enter = NULL;
    *(void **)&enter = dlsym(onednn_file.handle, "ls_onednn_module");
    onednn = enter != NULL ? enter(LS_ONEDNN_ABI, &core) : NULL;
    if (onednn == NULL) {
        (void)snprintf(onednn_file.reason, sizeof onednn_file.reason,
                       "lockstep-onednn.so is of another version of Lockstep");
    }
}

const ls_onednn *ls_onednn_open(void) {
    (void)pthread_once(&onednn_once, open_onednn);
    return onednn;
}

const ls_onednn *ls_onednn_opened(void) {
    return atomic_load_explicit(&onednn, memory_order_acquire);
}

const char *ls_onednn_failure(void) {
    return onednn_file.reason;
}
