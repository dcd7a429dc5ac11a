/* The threads that oneDNN uses. */
#include "tensor/device/onednn/plan.h"

/* Of OpenMP's library, if oneDNN uses one. */
extern int omp_get_max_threads(void) __attribute__((weak));
extern void omp_set_num_threads(int threads) __attribute__((weak));

int ls_onednn_single_begin(void) {
    if (omp_get_max_threads == NULL || omp_set_num_threads == NULL) {
        return 1;
    }
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    return threads;
}

void ls_onednn_single_end(int threads) {
    if (omp_set_num_threads != NULL) {
        omp_set_num_threads(threads);
    }
}

int ls_onednn_threads(void) {
    return omp_get_max_threads != NULL ? omp_get_max_threads() : 1;
}
