/* Initialisers. Numbers are drawn in double precision and converted, so that all dtypes start from the same numbers. */
#include <math.h>

#include "base/float_limits.h"
#include "base/random.h"
#include "nn/module.h"
#include "tensor/capture.h"

static ls_status check_target(const char *call, const ls_tensor *tensor) {
    if (tensor == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the tensor is NULL", call);
    }
    if (!ls_dtype_is_floating(ls_dtype_of(tensor))) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: a tensor of %s cannot be initialized: it must be floating-point", call,
                       ls_dtype_name(ls_dtype_of(tensor)));
    }
    return LS_OK;
}

/* Copies values into a parameter, with recording off, because recording forbids changing a parameter. Consumes
 * `values`. */
static ls_status put(ls_tensor *tensor, ls_tensor *values) {
    if (values == NULL) {
        return ls_error_status();
    }
    const bool before = ls_no_grad(true);
    const ls_status status = ls_copy_into(tensor, values);
    ls_no_grad(before);
    ls_tensor_drop(values);
    return status;
}

/* Creates the tensor on the host. */
static ls_tensor *numbers_like(const char *call, const ls_tensor *tensor) {
    ls_capture_refuse_here(call, LS_CAPTURE_WRITES);
    return ls_tensor_new_owned(call, &ls_cpu, tensor->ndim, tensor->size, LS_F64);
}

ls_status ls_nn_init_constant(ls_tensor *tensor, double value) {
    LS_TRY(check_target("ls_nn_init_constant", tensor));
    const bool before = ls_no_grad(true);
    const ls_status status = ls_fill(tensor, value);
    ls_no_grad(before);
    return status;
}

/* An interval of the numbers of a dtype: from `least` to `most`. */
typedef struct number_range {
    double least, most;
} number_range;

/* Returns `number`, moved into the interval so that conversion to the dtype does not leave it. */
static double moved_into(const number_range *allowed, double number) {
    return number < allowed->least ? allowed->least : number > allowed->most ? allowed->most : number;
}

static ls_status check_interval(const char *call, const ls_tensor *tensor, const number_range *allowed, double low,
                                double high) {
    return allowed->least <= allowed->most
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT,
                         "%s: no number of %s lies between the limits %.17g and %.17g: move them apart", call,
                         ls_dtype_name(ls_dtype_of(tensor)), low, high);
}

/* Returns the interval of `number` alone. Returns an empty interval if |number| is above the largest number of the
 * dtype. */
static number_range range_of_one(double number, ls_dtype dtype) {
    const bool fits = fabs(number) <= ls_largest_below(INFINITY, dtype);
    return fits ? (number_range){number, number} : (number_range){INFINITY, -INFINITY};
}

/* Sets the interval of the numbers of [low, high), or of `low` alone if `high` is the same. */
static ls_status check_uniform(const char *call, const ls_tensor *tensor, double low, double high,
                               number_range *allowed) {
    LS_TRY(check_target(call, tensor));
    if (!(low <= high) || isinf(low) || isinf(high)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the limits are %g and %g, but must be finite numbers in increasing order",
                       call, low, high);
    }
    if (isinf(high - low)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the difference of the limits %g and %g is too large for f64", call, low,
                       high);
    }
    const ls_dtype dtype = ls_dtype_of(tensor);
    *allowed = low < high ? (number_range){ls_smallest_from(low, dtype), ls_largest_below(high, dtype)}
                          : range_of_one(low, dtype);
    return check_interval(call, tensor, allowed, low, high);
}

static ls_status draw_uniform(const char *call, ls_tensor *tensor, double low, double high) {
    number_range allowed = {0};
    LS_TRY(check_uniform(call, tensor, low, high, &allowed));
    const ls_random_state state = ls_random_next_stream();
    ls_tensor *values = numbers_like(call, tensor);
    double *numbers = values != NULL ? ls_host_data(values) : NULL;
    for (int64_t i = 0; values != NULL && i < values->count; i++) {
        const double number = low + (high - low) * ls_random_uniform(state.seed, state.stream, (uint64_t)i);
        numbers[i] = moved_into(&allowed, number);
    }
    return put(tensor, values);
}

ls_status ls_nn_init_uniform(ls_tensor *tensor, double low, double high) {
    return draw_uniform("ls_nn_init_uniform", tensor, low, high);
}

static ls_status draw_normal(const char *call, ls_tensor *tensor, double mean, double deviation) {
    LS_TRY(check_target(call, tensor));
    if (!isfinite(mean) || !(deviation >= 0) || isinf(deviation)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the mean %g must be finite, and the deviation %g finite and not negative",
                       call, mean, deviation);
    }
    const ls_random_state state = ls_random_next_stream();
    ls_tensor *values = numbers_like(call, tensor);
    double *numbers = values != NULL ? ls_host_data(values) : NULL;
    for (int64_t i = 0; values != NULL && i < values->count; i++) {
        numbers[i] = mean + deviation * ls_random_normal(state.seed, state.stream, (uint64_t)i);
    }
    return put(tensor, values);
}

ls_status ls_nn_init_normal(ls_tensor *tensor, double mean, double deviation) {
    return draw_normal("ls_nn_init_normal", tensor, mean, deviation);
}

enum { TRIES = 1000 }; /* numbers of the normal distribution that are tried; even, as two numbers share a block */

/*
 * Returns a number of the normal distribution between `low` and `high`. It is a number of the uniform distribution or,
 * in a wide tail, the exponential distribution, and accepted with the ratio of the densities (Robert, Simulation of
 * truncated normal variables, Statistics and Computing 5, 1995). Uses numbers first, first + count, ... of the stream.
 */
static double tail_within(ls_random_state state, uint64_t first, uint64_t count, double low, double high) {
    if (high < 0) {
        return -tail_within(state, first, count, -high, -low);
    }
    const double mode = fmax(low, 0);
    const double width = high - low;
    const double rate = mode * width > 1 ? mode : 0; /* of the exponential distribution; 0 for the uniform one */
    for (;; first += 2 * count) {
        const double u = ls_random_uniform(state.seed, state.stream, first);
        const double number = rate > 0 ? low - log1p(u * expm1(-rate * width)) / rate : low + u * width;
        const double distance = number - mode;
        const double ratio = exp(-distance * (distance / 2 + (mode - rate)));
        if (ls_random_uniform(state.seed, state.stream, first + count) < ratio) {
            return number;
        }
    }
}

/*
 * Returns the first of numbers i, i + count, i + 2 count, ... of the stream that lies in the interval. If TRIES numbers
 * do not, draws from the interval itself. For a far tail, it draws from the interval at once.
 */
static double normal_within(ls_random_state state, int64_t i, int64_t count, double low, double high) {
    const bool in_far_tail = low > 4 || high < -4;
    for (int64_t attempt = 0; attempt < TRIES && !in_far_tail; attempt++) {
        const double number = ls_random_normal(state.seed, state.stream, (uint64_t)(i + attempt * count));
        if (number >= low && number <= high) {
            return number;
        }
    }
    return tail_within(state, (uint64_t)(i + TRIES * count), (uint64_t)count, low, high);
}

/* Sets the interval of the numbers of [low, high]. */
static ls_status check_truncated(const char *call, const ls_tensor *tensor, double mean, double deviation, double low,
                                 double high, number_range *allowed) {
    LS_TRY(check_target(call, tensor));
    if (!(low < high) || !isfinite(mean) || !(deviation > 0) || isinf(deviation)) {
        return ls_fail(
            LS_ERR_ARGUMENT,
            "%s: the mean %g must be finite, the deviation %g finite and positive, and the limit %g below %g", call,
            mean, deviation, low, high);
    }
    const double nearest = low > mean ? low : high < mean ? high : mean;
    if (!isfinite((nearest - mean) / deviation)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: [%g, %g] is too far from the mean %g for the deviation %g", call, low,
                       high, mean, deviation);
    }
    const ls_dtype dtype = ls_dtype_of(tensor);
    *allowed = (number_range){ls_smallest_from(low, dtype), ls_largest_up_to(high, dtype)};
    return check_interval(call, tensor, allowed, low, high);
}

ls_status ls_nn_init_truncated_normal(ls_tensor *tensor, double mean, double deviation, double low, double high) {
    const char *const call = "ls_nn_init_truncated_normal";
    number_range allowed = {0};
    LS_TRY(check_truncated(call, tensor, mean, deviation, low, high, &allowed));
    const ls_random_state state = ls_random_next_stream();
    ls_tensor *values = numbers_like(call, tensor);
    double *numbers = values != NULL ? ls_host_data(values) : NULL;
    for (int64_t i = 0; values != NULL && i < values->count; i++) {
        const double number =
            normal_within(state, i, values->count, (low - mean) / deviation, (high - mean) / deviation);
        numbers[i] = moved_into(&allowed, mean + deviation * number);
    }
    return put(tensor, values);
}

static ls_status check_gain(const char *call, double gain) {
    return isfinite(gain) && gain >= 0
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: the gain is %g, but must be finite and not negative", call, gain);
}

static ls_status check_finite(const char *call, const char *name, double number) {
    return isfinite(number) ? LS_OK
                            : ls_fail(LS_ERR_ARGUMENT, "%s: the %s is %g, but must be finite", call, name, number);
}

/* For [out, in, kernel...], fan_in = in * kernel and fan_out = out * kernel. */
static ls_status fans(const char *call, const ls_tensor *tensor, double *fan_in, double *fan_out) {
    LS_TRY(check_target(call, tensor));
    if (tensor->ndim < 2 || tensor->count == 0) {
        return ls_fail(LS_ERR_SHAPE, "%s: %s has no fan-in: it needs at least two axes, none of size 0", call,
                       LS_SHAPE_TEXT(tensor));
    }
    *fan_in = (double)(tensor->count / tensor->size[0]);
    *fan_out = (double)(tensor->count / tensor->size[1]);
    return LS_OK;
}

/* Returns sqrt(number / ((1 + slope^2) fan_in)), even if slope^2 overflows. */
static double kaiming_scale(double number, double slope, double fan_in) {
    const double divisor = (1.0 + slope * slope) * fan_in;
    return isfinite(divisor) ? sqrt(number / divisor) : sqrt(number / fan_in) / fabs(slope);
}

ls_status ls_nn_init_kaiming_uniform(ls_tensor *tensor, double slope) {
    const char *const call = "ls_nn_init_kaiming_uniform";
    double fan_in = 0;
    double fan_out = 0;
    LS_TRY(fans(call, tensor, &fan_in, &fan_out));
    LS_TRY(check_finite(call, "slope", slope));
    const double bound = kaiming_scale(6, slope, fan_in);
    return draw_uniform(call, tensor, -bound, bound);
}

ls_status ls_nn_init_kaiming_normal(ls_tensor *tensor, double slope) {
    const char *const call = "ls_nn_init_kaiming_normal";
    double fan_in = 0;
    double fan_out = 0;
    LS_TRY(fans(call, tensor, &fan_in, &fan_out));
    LS_TRY(check_finite(call, "slope", slope));
    return draw_normal(call, tensor, 0, kaiming_scale(2, slope, fan_in));
}

ls_status ls_nn_init_xavier_uniform(ls_tensor *tensor, double gain) {
    const char *const call = "ls_nn_init_xavier_uniform";
    double fan_in = 0;
    double fan_out = 0;
    LS_TRY(fans(call, tensor, &fan_in, &fan_out));
    LS_TRY(check_gain(call, gain));
    const double bound = gain * sqrt(6.0 / (fan_in + fan_out));
    return draw_uniform(call, tensor, -bound, bound);
}

ls_status ls_nn_init_xavier_normal(ls_tensor *tensor, double gain) {
    const char *const call = "ls_nn_init_xavier_normal";
    double fan_in = 0;
    double fan_out = 0;
    LS_TRY(fans(call, tensor, &fan_in, &fan_out));
    LS_TRY(check_gain(call, gain));
    return draw_normal(call, tensor, 0, gain * sqrt(2.0 / (fan_in + fan_out)));
}

/* Vectors in a matrix. They are the rows if there are at most as many rows as columns, otherwise the columns. */
typedef struct vectors {
    double *numbers;
    int64_t count, length;
    int64_t step, stride;
} vectors;

static double dot(const vectors *v, int64_t a, int64_t b) {
    double sum = 0;
    for (int64_t j = 0; j < v->length; j++) {
        sum += v->numbers[a * v->step + j * v->stride] * v->numbers[b * v->step + j * v->stride];
    }
    return sum;
}

/* Modified Gram-Schmidt, applied twice. For this purpose, it is as accurate as a QR decomposition. */
static void orthonormalise(const vectors *v) {
    for (int64_t a = 0; a < v->count; a++) {
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t b = 0; b < a; b++) {
                const double share = dot(v, a, b);
                for (int64_t j = 0; j < v->length; j++) {
                    v->numbers[a * v->step + j * v->stride] -= share * v->numbers[b * v->step + j * v->stride];
                }
            }
        }
        const double length = sqrt(dot(v, a, a));
        for (int64_t j = 0; j < v->length; j++) {
            v->numbers[a * v->step + j * v->stride] /= length;
        }
    }
}

ls_status ls_nn_init_orthogonal(ls_tensor *tensor, double gain) {
    const char *const call = "ls_nn_init_orthogonal";
    double fan_in = 0;
    double fan_out = 0;
    LS_TRY(fans(call, tensor, &fan_in, &fan_out));
    LS_TRY(check_finite(call, "gain", gain));
    const ls_random_state state = ls_random_next_stream();
    ls_tensor *values = numbers_like(call, tensor);
    if (values == NULL) {
        return ls_error_status();
    }
    double *numbers = ls_host_data(values);
    for (int64_t i = 0; i < values->count; i++) {
        numbers[i] = ls_random_normal(state.seed, state.stream, (uint64_t)i);
    }
    const int64_t rows = tensor->size[0];
    const int64_t columns = tensor->count / rows;
    const bool wide = rows <= columns;
    orthonormalise(&(vectors){.numbers = numbers,
                              .count = wide ? rows : columns,
                              .length = wide ? columns : rows,
                              .step = wide ? columns : 1,
                              .stride = wide ? 1 : columns});
    for (int64_t i = 0; i < values->count; i++) {
        numbers[i] *= gain;
    }
    return put(tensor, values);
}
