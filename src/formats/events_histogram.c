/* Histograms with TensorBoard's bucket limits (tensorflow/core/lib/histogram/histogram.cc). */
#include <float.h>
#include <math.h>

#include "formats/events.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

/* HistogramProto. */
enum {
    HISTOGRAM_MIN = 1,
    HISTOGRAM_MAX = 2,
    HISTOGRAM_NUM = 3,
    HISTOGRAM_SUM = 4,
    HISTOGRAM_SUM_SQUARES = 5,
    HISTOGRAM_LIMITS = 6,
    HISTOGRAM_BUCKETS = 7
};

/* The limits are 0, the powers of 1.1 from 1e-12 to 1e20, the largest number, and the negatives of these numbers. */
enum { SIDE = 775, LIMITS = 2 * SIDE + 1 };

typedef struct histogram {
    double limits[LIMITS];  /* upwards */
    double buckets[LIMITS]; /* the count of numbers x with limits[i - 1] <= x < limits[i] */
    double min, max, count, sum, sum_squares;
} histogram;

static void make_limits(histogram *all) {
    double *zero = all->limits + SIDE;
    double limit = 1e-12;
    *zero = 0;
    for (int i = 1; i < SIDE; i++) {
        zero[i] = limit;
        limit *= 1.1;
    }
    zero[SIDE] = DBL_MAX;
    for (int i = 1; i <= SIDE; i++) {
        zero[-i] = -zero[i];
    }
}

/* Returns the first bucket whose limit exceeds the value. The largest number belongs to the last bucket. */
static int bucket_of(const histogram *all, double value) {
    int low = 0, high = LIMITS - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (all->limits[middle] > value) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* Returns false if the number is not finite, because it has no bucket. */
static bool count_one(histogram *all, double value) {
    if (!isfinite(value)) {
        return false;
    }
    all->min = fmin(all->min, value);
    all->max = fmax(all->max, value);
    all->count++;
    all->sum += value;
    all->sum_squares += value * value;
    all->buckets[bucket_of(all, value)]++;
    return true;
}

/*
 * Omits empty buckets at both ends, except one before the first filled bucket, which marks where the filled bucket
 * begins.
 */
static void put_histogram(ls_proto *to, const histogram *all) {
    int first = bucket_of(all, all->min);
    const int end = bucket_of(all, all->max) + 1;
    first -= first > 0;
    const size_t size = (size_t)(end - first) * sizeof(double);
    ls_proto_double(to, HISTOGRAM_MIN, all->min);
    ls_proto_double(to, HISTOGRAM_MAX, all->max);
    ls_proto_double(to, HISTOGRAM_NUM, all->count);
    ls_proto_double(to, HISTOGRAM_SUM, all->sum);
    ls_proto_double(to, HISTOGRAM_SUM_SQUARES, all->sum_squares);
    ls_proto_begin(to, HISTOGRAM_LIMITS);
    ls_proto_append(to, all->limits + first, size);
    ls_proto_end(to);
    ls_proto_begin(to, HISTOGRAM_BUCKETS);
    ls_proto_append(to, all->buckets + first, size);
    ls_proto_end(to);
}

static ls_status count_all(const char *call, const char *tag, const ls_tensor *tensor, histogram *all) {
    const ls_dtype dtype = ls_dtype_of(tensor);
    const size_t width = ls_dtype_size(dtype);
    ls_tensor *here = ls_tensor_dense_on_host(call, tensor, dtype);
    ls_status status = here != NULL ? LS_OK : ls_error_status();
    const char *elements = here != NULL ? ls_host_data(here) : NULL;
    for (int64_t i = 0; status == LS_OK && i < ls_numel(tensor); i++, elements += width) {
        const double value = ls_element_number(dtype, elements);
        if (!count_one(all, value)) {
            status = ls_fail(LS_ERR_ARGUMENT, "%s: '%.100s': element %lld of %s is %g, which fits no bucket", call, tag,
                             (long long)i, LS_SHAPE_TEXT(tensor), value);
        }
    }
    ls_tensor_drop(here);
    return status;
}

ls_status ls_events_histogram(ls_events *events, const char *tag, int64_t step, const ls_tensor *tensor) {
    static const char call[] = "ls_events_histogram";
    LS_TRY(ls_events_check_tensor(call, events, tag, tensor));
    if (ls_numel(tensor) == 0) {
        return ls_fail(LS_ERR_SHAPE, "%s: '%.100s': the tensor %s has no elements", call, tag, LS_SHAPE_TEXT(tensor));
    }
    histogram all = {.min = INFINITY, .max = -INFINITY};
    make_limits(&all);
    LS_TRY(count_all(call, tag, tensor, &all));
    ls_proto *to = ls_events_begin_value(events, tag, step);
    ls_proto_begin(to, LS_VALUE_HISTOGRAM);
    put_histogram(to, &all);
    return ls_events_end(call, events);
}
