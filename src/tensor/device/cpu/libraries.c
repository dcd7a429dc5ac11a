#include "tensor/device/cpu/libraries.h"

#include <gnu/libc-version.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/library.h"
#include "base/module_file.h"
#include "base/processor.h"
#include "base/threads.h"
#include "tensor/scope.h"

static ls_library openblas = {.use = "matrix product",
                              .title = "OpenBLAS",
                              .package = "libopenblas0-openmp",
                              .files = {"libopenblas.so.0"},
                              .functions = {"cblas_dgemm", "cblas_sgemm", "openblas_get_num_threads",
                                            "openblas_set_num_threads", "omp_get_max_threads", "omp_set_num_threads",
                                            "openblas_get_config"},
                              .required = 4};

const ls_openblas *ls_openblas_open(void) {
    return ls_library_get(&openblas);
}

static pthread_mutex_t limit_lock = PTHREAD_MUTEX_INITIALIZER;
static int limited_calls; /* current number, over all threads */
static int usual_threads;

static bool is_on_openmp(const ls_openblas *library) {
    return library->get_max_threads != NULL && library->set_max_threads != NULL;
}

int ls_openblas_limit_begin(int threads) {
    const ls_openblas *library = ls_openblas_open();
    if (is_on_openmp(library)) {
        const int before = ls_onednn_opened() == NULL ? library->get_max_threads() : 0;
        if (threads < before) {
            library->set_max_threads(threads);
        }
        return before;
    }
    (void)pthread_mutex_lock(&limit_lock);
    if (limited_calls++ == 0) {
        usual_threads = library->get_num_threads();
        if (threads < usual_threads) {
            library->set_num_threads(threads);
        }
    }
    (void)pthread_mutex_unlock(&limit_lock);
    return 0;
}

void ls_openblas_limit_end(int before) {
    const ls_openblas *library = ls_openblas_open();
    if (is_on_openmp(library)) {
        if (before > 0) {
            library->set_max_threads(before);
        }
        return;
    }
    (void)pthread_mutex_lock(&limit_lock);
    if (--limited_calls == 0 && library->get_num_threads() != usual_threads) {
        library->set_num_threads(usual_threads);
    }
    (void)pthread_mutex_unlock(&limit_lock);
}

/* ---- oneDNN ------------------------------------------------------------------------------------------------------ */

static pthread_once_t onednn_once = PTHREAD_ONCE_INIT;
static const ls_onednn *_Atomic onednn;
static ls_module_file onednn_file;

static void open_onednn(void) {
    static const ls_onednn_core core = {.allocate = ls_record_allocate,
                                        .release = ls_record_release,
                                        .fail_memory = ls_fail_memory,
                                        .thread_limit = ls_threads_limit};
    onednn_file = ls_module_file_open("onednn", "ls_onednn_module");
    ls_onednn_module_function *enter = (ls_onednn_module_function *)onednn_file.enter;
    onednn = ls_module_file_check(&onednn_file, enter != NULL ? enter(LS_ONEDNN_ABI, &core) : NULL);
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

/* ---- versions ---------------------------------------------------------------------------------------------------- */

static pthread_once_t description_once = PTHREAD_ONCE_INIT;
static char description[256];

#ifdef __clang__
#define COMPILER "clang", __clang_major__, __clang_minor__
#else
#define COMPILER "gcc", __GNUC__, __GNUC_MINOR__
#endif

static int openblas_threads(const ls_openblas *library) {
    const int threads = is_on_openmp(library) ? library->get_max_threads() : library->get_num_threads();
    return threads < ls_threads_limit() ? threads : ls_threads_limit();
}

/* get_config of OpenBLAS writes into one buffer per process, so two threads must not call it at the same time. */
static void describe(void) {
    const ls_onednn *module = ls_onednn_open();
    const ls_openblas *library = ls_openblas_open();
    const char *config = library == NULL ? "no OpenBLAS" : library->get_config != NULL ? library->get_config() : "?";
    char dnnl[80] = "no oneDNN", threads[32] = "";
    if (module != NULL) {
        snprintf(dnnl, sizeof dnnl, "oneDNN %s %s", module->version, module->isa);
    } else if (library != NULL) {
        snprintf(threads, sizeof threads, ", OpenBLAS threads: %d", openblas_threads(library));
    }
    snprintf(description, sizeof description, "Lockstep %s (%s %d.%d, %s), %s, %.100s, glibc %s%s", ls_version(),
             COMPILER, ls_processor_level(), dnnl, config, gnu_get_libc_version(), threads);
}

const char *ls_cpu_libraries_describe(void) {
    (void)pthread_once(&description_once, describe);
    return description;
}
