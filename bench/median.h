/* The median of measured values. */
#ifndef LS_BENCH_MEDIAN_H
#define LS_BENCH_MEDIAN_H

#include <stdlib.h>

static inline int compare_numbers(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the median, and sorts the values. */
static inline double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, compare_numbers);
    return values[count / 2];
}

#endif
