/* The number of threads that oneDNN uses. */
#include "tensor/device/onednn/plan.h"

/* Functions of the OpenMP library, if oneDNN uses one. */
extern int omp_get_max_threads(void) __attribute__((weak));
extern void omp_set_num_threads(int threads) __attribute__((weak));

int ls_onednn_team(void) {
    const int most = omp_get_max_threads != NULL ? omp_get_max_threads() : 1;
    const int limit = ls_onednn_host->thread_limit();
    return most < limit ? most : limit;
}

int ls_onednn_set_threads(int threads) {
    if (omp_get_max_threads == NULL || omp_set_num_threads == NULL) {
        return 1;
    }
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    return before;
}
